"""Training one part keeps the rest, and a seed fixes the result."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ttamer.errors import ArgumentError
from ttamer.torch import training
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.training import Recipe, train


def build(seed=0, width=8, blocks=3):
    """Return a network with batch normalisation and dropout in backbone and ramps.

    Layers before a normalisation have no bias: its gradient would be rounding noise around zero.
    """
    torch.manual_seed(seed)
    sizes = [6] + [width] * blocks
    parts = [
        nn.Sequential(nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2))
        for a, b in pairwise(sizes)
    ]
    ramps = [
        nn.Sequential(nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 3))
        for _ in parts[1:]
    ]
    return EarlyExit(parts, ramps, nn.Linear(width, 3))


def data(rows=96, batch=32):
    """Return a loader that shuffles; which of three numbers is the largest can be learned."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(rows, 6, generator=generator)
    labels = inputs[:, :3].argmax(dim=1)
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True)


def kept(modules):
    """Return copies of all weights and buffers of some modules."""
    return [t.clone() for m in modules for t in m.state_dict().values()]


def same(one, two):
    return len(one) == len(two) and all(map(torch.equal, one, two))


def recipe(part="all", **changes):
    return dataclasses.replace(Recipe(part, epochs=3, rate=0.05), **changes)


# What is trained


def test_training_the_backbone_leaves_ramps_as_they_are():
    network = build()
    ramps, backbone = kept(network.ramps()), kept(network.backbone())
    train(network, data(), recipe("backbone"))
    assert same(kept(network.ramps()), ramps)
    assert not same(kept(network.backbone()), backbone)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_training_ramps_leaves_the_backbone_as_it_is_and_its_running_means_too(optimiser):
    network = build()
    train(network, data(), recipe("backbone"))
    inputs = torch.randn(20, 6, generator=torch.Generator().manual_seed(6))
    ramps, backbone = kept(network.ramps()), kept(network.backbone())
    assert any(t.ndim == 0 for t in backbone)  # batch counters are among what is compared
    answers = network.full(inputs)
    train(network, data(), recipe("ramps", optimiser=optimiser))
    assert same(kept(network.backbone()), backbone)
    assert torch.equal(network.full(inputs), answers)
    for before, after in zip(ramps, kept(network.ramps()), strict=True):
        assert not torch.equal(before, after)


def test_training_all_moves_every_weight():
    network = build()
    before = {name: p.clone() for name, p in network.named_parameters()}
    train(network, data(), recipe("all"))
    for name, parameter in network.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_losses_fall_and_exits_learn():
    network, loader = build(), data(rows=512)
    first = train(network, loader, recipe("backbone", epochs=8, rate=0.1))
    second = train(network, loader, recipe("ramps", epochs=8, rate=0.1))
    assert first[-1] < 0.6 * first[0]
    assert second[-1] < 0.6 * second[0]
    inputs, labels = loader.dataset.tensors
    for logits in network(inputs):
        assert (logits.argmax(dim=1) == labels).float().mean() > 0.75  # by chance 1/3


def test_the_loss_of_all_and_of_ramps_is_the_sum_over_exits():
    network = build()
    inputs, labels = data().dataset.tensors
    # At such a rate nothing moves; without dropout the loss is that of the network as it is.
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    network.train()
    with torch.no_grad():
        each = [nn.functional.cross_entropy(logits, labels).item() for logits in network(inputs)]
    whole = [(inputs, labels)]
    small = {"epochs": 1, "rate": 1e-12}
    assert train(network, whole, recipe("all", **small)) == pytest.approx([sum(each)], rel=1e-5)
    assert train(network, whole, recipe("backbone", **small)) == pytest.approx(each[-1:], rel=1e-5)


def test_what_was_frozen_is_frozen_again_also_after_an_error():
    network = build()
    first, *others = network.parameters()
    first.requires_grad_(False)
    nothing = [(torch.full((4, 6), float("nan")), torch.zeros(4, dtype=torch.int64))]
    with pytest.raises(ArgumentError, match="the loss of epoch 1 is nan"):
        train(network, nothing, Recipe("ramps", epochs=1, rate=0.1))
    assert not first.requires_grad
    assert all(parameter.requires_grad for parameter in others)
    assert not any(module.training for module in network.modules())


def test_what_is_frozen_does_not_learn():
    network = build()
    frozen = network.segments[0][0].weight.requires_grad_(False)
    before, other = frozen.clone(), network.segments[1][0].weight.clone()
    train(network, data(), recipe("all"))
    assert torch.equal(frozen, before)
    assert not torch.equal(network.segments[1][0].weight, other)
    for ramp in network.ramps():
        ramp.requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"all parameters of ramps are frozen: call requires_g"):
        train(network, data(), recipe("ramps"))


def test_a_ramp_that_exits_share_learns_once_a_step():
    """Of a parameter that is listed twice, optimisers warn, and take two steps."""
    torch.manual_seed(0)
    ramp = nn.Linear(6, 3)
    network = EarlyExit([nn.Linear(6, 6) for _ in range(3)], [ramp, ramp], nn.Linear(6, 3))
    train(network, data(), recipe("ramps"))


@pytest.mark.parametrize("part", ["backbone", "ramps", "all"])
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_is_named(part, label):
    loader = [(torch.zeros(4, 6), torch.tensor([0, 1, -100, label]))]
    with pytest.raises(ArgumentError, match=f"a label is {label}, and the network has 3 classes"):
        train(build(), loader, recipe(part))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_norms_and_biases_have_no_weight_decay(optimiser):
    learning = list(build().parameters())
    groups = training._optimiser(recipe(optimiser=optimiser), learning).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert [decays[id(p)] for p in learning] == [5e-4 * (p.ndim > 1) for p in learning]


def test_mixed_precision_keeps_single_precision_weights():
    network, plain = build(), build()
    losses = train(network, data(), recipe("all", precision="bf16"))
    exact = train(plain, data(), recipe("all"))
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert losses == pytest.approx(exact, rel=0.05)
    assert losses != exact


# Seeds


def test_a_seed_gives_the_same_weights_bit_for_bit():
    runs = []
    for seed in (3, 3, 4):
        network = build()
        torch.manual_seed(999 + len(runs))  # what the caller drew before does not matter
        losses = train(network, data(), recipe("all", seed=seed))
        runs.append((losses, kept([network])))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


def test_the_random_generator_is_afterwards_as_it_was():
    network, before = build(), torch.get_rng_state()
    train(network, data(), recipe("all"))
    assert torch.equal(torch.get_rng_state(), before)


# The recipe


def test_the_rate_rises_over_the_warm_up_and_falls_as_a_cosine():
    steps = [training.factor(k / 10, 0.2) for k in range(11)]
    assert steps[:3] == [0.0, 0.5, 1.0]
    assert steps[6] == pytest.approx(0.5)
    assert steps[2:] == sorted(steps[2:], reverse=True)
    assert steps[10] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"part": "head"}, "part must be one of backbone, ramps, all, not 'head'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": float("nan")}, "rate is nan; it must be a finite number above 0"),
        ({"epochs": 1.5}, "epochs is 1.5; it must be a whole number from 1 on"),
        ({"seed": -1}, "seed is -1"),
        ({"optimiser": "adam"}, "optimiser must be .*, not 'adam'"),
    ],
)
def test_a_recipe_out_of_range_is_refused(changes, text):
    with pytest.raises(ArgumentError, match=text):
        recipe(**changes)


def test_batches_without_rows_are_skipped():
    whole = list(data())
    empty = (torch.empty(0, 6), torch.empty(0, dtype=torch.int64))
    losses = train(build(), [whole[0], empty, *whole[1:]], recipe())
    assert all(math.isfinite(loss) and loss > 1 for loss in losses)
    with pytest.raises(ArgumentError, match="no batch of the loader has rows"):
        train(build(), [empty], recipe())


# Losses that are not finite


def test_progress_is_reported_until_a_loss_is_not_finite():
    good, lines = data(), []
    bad = [(torch.full((8, 6), float("nan")), torch.zeros(8, dtype=torch.int64))] * len(good)

    class Turning(list):
        """Good for one epoch, bad from then on."""

        def __iter__(self):
            return iter(bad if lines else good)

    with pytest.raises(ArgumentError, match=r"loss of epoch 2 is nan: lower the rate \(0.05\)"):
        train(build(), Turning(good), recipe(), progress=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("all: epoch 1 of 3, loss ")


@pytest.mark.parametrize(
    ("network", "loader", "plan", "text"),
    [
        (build(blocks=1), data(), recipe("ramps"), "no ramps to train"),
        (build(), [], recipe(), "has no batches"),
        (build(), (batch for batch in data()), recipe(), "a generator has no length and cannot be"),
        (build(), data().dataset, recipe(), "give a DataLoader, not a Dataset"),
        (build(), data(), {"epochs": 1}, "train needs a Recipe, not dict"),
    ],
)
def test_what_cannot_be_trained_is_refused(network, loader, plan, text):
    with pytest.raises(ArgumentError, match=text):
        train(network, loader, plan)
