"""Exits that combine what all exits so far return."""

import numpy as np
import pytest
import torch
from torch import nn

from support.exit_networks import (
    adding_network,
    batches,
    echo_network,
    evidence,
    pair_network,
    pair_of,
)
from ttamer.errors import ArgumentError
from ttamer.fitting import fit
from ttamer.torch import (
    CombinedExits,
    EarlyExit,
    Runner,
    attach,
    combine_exits,
    count_flops,
    threshold_tables,
    trace_of,
    vgg,
)

EXITS, CLASSES = 3, 4


def opinions(rows, seed):
    """Return logits of exits that err independently, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    logits = torch.randn(rows, EXITS, CLASSES, generator=generator)
    return logits + nn.functional.one_hot(labels, CLASSES)[:, None], labels


def test_independent_exits_count_alike_and_err_less_together():
    network = echo_network(EXITS)
    combined = combine_exits(network, batches(*opinions(4000, 0)))
    weights = [exit_.weights.detach().numpy() for exit_ in combined.ramps()]
    # The log-likelihood ratio of such an exit is its logits: the product is the posterior.
    for own in weights:
        np.testing.assert_allclose(own, 1.0, atol=0.1)
    inputs, labels = opinions(4000, 1)
    own, together = (
        [(logits.argmax(1) != labels).float().mean().item() for logits in each(inputs)]
        for each in (network, combined)
    )
    assert together[0] == pytest.approx(own[0], abs=0.01)
    assert together[1] < own[1] - 0.05
    assert together[2] == own[2]  # the head keeps its own answer


def test_the_full_output_and_the_costs_do_not_change():
    network = vgg(11, width=8).eval()
    inputs = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    combined = combine_exits(network, [(inputs, torch.arange(6))])
    assert combined.names == network.names
    assert torch.equal(combined.full(inputs), network.full(inputs))
    assert torch.equal(combined(inputs)[-1], network(inputs)[-1])
    assert count_flops(combined, inputs) == count_flops(network, inputs)
    for found, wanted in zip(combined.plain()(inputs), network(inputs), strict=True):
        assert torch.equal(found, wanted)


def test_before_it_is_fitted_each_exit_returns_its_own():
    inputs, _ = opinions(20, 0)
    found = CombinedExits(echo_network(EXITS), CLASSES)(inputs)
    for k in range(EXITS - 1):
        assert torch.equal(found[k], torch.log_softmax(inputs[:, k], dim=1))


def test_exits_can_be_fitted_to_the_answers_of_the_network():
    inputs, labels = opinions(3000, 0)
    inputs[:, -1] = inputs[:, 0] + 0.1 * inputs[:, -1]  # the network follows its first exit
    combined = combine_exits(echo_network(EXITS), [(inputs, labels)], target="last")
    first, second = next(iter(list(combined.ramps())[1:])).weights.tolist()
    assert first > 3 * abs(second)


def test_rows_with_nan_are_not_used():
    inputs, labels = opinions(400, 0)
    broken = inputs.clone()
    broken[:3, 1] = float("nan")
    found, wanted = (
        combine_exits(echo_network(EXITS), [(x, y)]).state_dict()
        for x, y in ((broken, labels), (inputs[3:], labels[3:]))
    )
    assert all(map(torch.equal, found.values(), wanted.values()))


@pytest.mark.parametrize("pair", [False, True])
def test_a_runner_regroups_and_returns_what_the_exits_return(pair):
    inputs, labels = evidence(600, seed=3)
    given = pair_of(inputs) if pair else inputs
    network = pair_network() if pair else adding_network()
    network.trim = lambda value: value
    combined = combine_exits(network, [(given, labels)])
    policy = fit(trace_of(combined, [(given, labels)]), tradeoffs=[0.9])[0]
    answers = Runner(combined, policy)(given)
    assert len(answers.exit.unique()) > 1
    with torch.inference_mode():
        every = torch.stack(combined(given))
        wanted = every[answers.exit, torch.arange(len(labels))]
    torch.testing.assert_close(answers.logits, wanted)


def test_exits_of_an_attached_network_are_combined_and_run():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)).eval()
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    labels = model(inputs).argmax(1)
    combined = combine_exits(attach(model, ["0"], inputs), [(inputs, labels)])
    policy = fit(trace_of(combined, [(inputs, labels)]), tradeoffs=[0.9])[0]
    assert Runner(combined, policy)(inputs).logits.shape == (200, CLASSES)


def test_it_is_saved_and_built_again_by_name(tmp_path):
    inputs = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    combined = combine_exits(vgg(11, width=8), [(inputs, torch.arange(8))])
    combined.save_pretrained(tmp_path)
    found = EarlyExit.from_pretrained(tmp_path)
    assert isinstance(found, CombinedExits)
    for one, other in zip(found(inputs), combined(inputs), strict=True):
        assert torch.equal(one, other)


def test_a_threshold_runs_on_combined_exits():
    inputs, _ = opinions(50, 0)
    combined = CombinedExits(echo_network(EXITS), CLASSES)
    tables = threshold_tables(np.array([0.5, 0.5, 0.0]))
    answers = Runner(combined, tables, classes=[str(k) for k in range(CLASSES)])(inputs)
    sure = inputs[:, 0].softmax(1).amax(1) >= 0.5
    assert torch.equal(answers.exit == 0, sure)


@pytest.mark.parametrize(
    ("network", "loader", "target", "text"),
    [
        (echo_network(EXITS), [], "label", "has no inputs with finite logits"),
        (echo_network(1), [opinions(4, 0)], "label", "no ramps to combine"),
        (echo_network(EXITS), [(opinions(4, 0)[0], torch.arange(4) + 1)], "label", "labels are 1"),
        (echo_network(EXITS), [opinions(4, 0)], "network", 'must be "label" or "last"'),
        (CombinedExits(echo_network(EXITS), CLASSES), [opinions(4, 0)], "label", "combined alr"),
    ],
    ids=["empty", "no ramps", "labels", "target", "twice"],
)
def test_what_cannot_be_combined_is_refused(network, loader, target, text):
    with pytest.raises(ArgumentError, match=text):
        combine_exits(network, loader, target=target)
