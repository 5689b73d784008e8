"""Running with a policy: regrouped or not, a batch is answered as its rows one by one would be."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from support.exit_networks import (
    BELIEFS,
    CLASSES,
    EXITS,
    TRADEOFFS,
    Calls,
    adding_network,
    batches,
    by_session,
    convolutions,
    echo_network,
    evidence,
    fitted,
    pair_network,
    pair_of,
)
from support.traces import answering_trace
from ttamer.baselines import FAMILIES
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.torch import attach, runner as running
from ttamer.torch.cuda.decide_kernel import KernelDecider
from ttamer.torch.deciding import threshold_tables
from ttamer.torch.early_exit import EarlyExit
from ttamer.torch.runner import Runner, group_sizes
from ttamer.torch.tracing import trace_of

THRESHOLDS = [np.array([0.9, 0.8, 0.7, 0.0]), np.array([np.nan, 0.9, np.inf, 0.0])]


def ungrouped(network, policy, inputs, **options):
    """Return the answers of a runner that never regroups: groups have one size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "group_sizes", lambda batch: [batch])
        return Runner(network, policy, **options)(inputs)


def parts_of(answers, rows=slice(None)):
    """Return all that answers say, NaN made comparable."""
    return (
        answers.logits.nan_to_num(-99.0)[rows],
        answers.exit[rows],
        answers.asked[rows],
        answers.confidence.nan_to_num(-99.0)[rows],
        answers.prediction[rows],
    )


def assert_same(one, two, rows=slice(None)):
    """Compare answers with rows of others."""
    for left, right in zip(parts_of(one), parts_of(two, rows), strict=True):
        assert torch.equal(left, right)


def assert_as_sessions(policy, network, answers):
    """Compare answers with sessions that are told what the exits asked said; return these."""
    reported = by_session(policy, network.names, answers)
    asked = [tuple(network.names[k] for k in row.nonzero()[:, 0]) for row in answers.asked]
    assert asked == [asked for asked, _, _ in reported]
    assert [network.names[k] for k in answers.exit] == [answer for _, answer, _ in reported]
    unclear = (answers.asked & answers.confidence.isnan()).sum()
    assert unclear == sum(unclear for _, _, unclear in reported)
    return reported


RULES = [(belief, tradeoff) for belief in BELIEFS for tradeoff in TRADEOFFS]
RULES += [("set", k) for k in range(len(THRESHOLDS))]
all_rules = pytest.mark.parametrize(("kind", "setting"), RULES)


def rule_of(kind, setting):
    """Return what a runner is given: a fitted policy, or tables."""
    if kind == "set":
        return threshold_tables(THRESHOLDS[setting])
    return fitted(kind).at(setting)


# The same decisions


@all_rules
def test_regrouped_or_not_all_ways_of_running_answer_alike(kind, setting):
    rule = rule_of(kind, setting)
    inputs, _ = evidence(300, seed=2, broken=0.05)
    network = adding_network()
    unchanged = ungrouped(network, rule, inputs)
    regrouped = Runner(network, rule)
    assert_same(regrouped(inputs), unchanged)
    for row in range(0, 300, 60):  # a row alone
        assert_same(regrouped(inputs[row : row + 1]), unchanged, slice(row, row + 1))
    for rows in torch.arange(300).split([70, 10, 0, 120, 1, 69, 30]):
        assert_same(regrouped(inputs[rows]), unchanged, rows)


def test_long_cascades_where_a_belief_looks_back_at_some_exits_only():
    inputs, _ = evidence(120, seed=3, exits=8)
    network = adding_network(8)
    recalled = 0
    for tradeoff in TRADEOFFS:
        policy = fitted("answers", exits=8).at(tradeoff)
        answers = Runner(network, policy)(inputs)
        assert_same(answers, ungrouped(network, policy, inputs))
        reported = assert_as_sessions(policy, network, answers)
        recalled += sum(answer != asked[-1] for asked, answer, _ in reported)
    assert recalled


@pytest.mark.parametrize("belief", BELIEFS)
def test_decisions_are_those_of_a_replay_of_the_trace(belief):
    inputs, labels = evidence(600, seed=4)
    network, ladder = adding_network(), fitted(belief)
    trace = trace_of(network, batches(inputs, labels), spec=ladder.spec)
    shapes = set()
    for policy in list(ladder)[::4]:
        answers, played = Runner(network, policy)(inputs), policy.play(trace)
        assert np.array_equal(answers.exit, played.answer)
        assert np.array_equal(answers.asked, played.asked)
        asked = answers.asked.numpy()
        read = trace.margin if belief == "answers" else trace.confidence
        assert np.array_equal(answers.confidence.double().numpy()[asked], read[asked])
        assert np.array_equal(answers.prediction.numpy()[asked], trace.prediction[asked])
        assert answers.confidence[~answers.asked].isnan().all()
        assert (answers.prediction[~answers.asked] == -1).all()
        shapes |= {tuple(row) for row in asked.tolist()}
    assert len(shapes) == EXITS  # else little was tested


def test_thresholds_are_those_of_the_baseline():
    inputs, labels = evidence(300, seed=4)
    network = adding_network()
    trace = trace_of(network, batches(inputs, labels))
    settings = FAMILIES["threshold"].fit(trace)
    assert len(settings) > 5
    for setting in settings[::4]:
        limits = np.full(EXITS, setting.knob["threshold"])
        answers, played = (
            Runner(network, threshold_tables(limits))(inputs),
            setting.rule.play(trace),
        )
        assert np.array_equal(answers.exit, played.answer)
        assert np.array_equal(answers.asked, played.asked)


@pytest.mark.parametrize("belief", ["answers", "markov"])
def test_recall_returns_the_logits_of_the_exit_it_names(belief):
    inputs, _ = evidence(300, seed=5)
    network = adding_network()
    with torch.inference_mode():
        logits = torch.stack(network(inputs))
    recalled, rows = 0, torch.arange(300)
    for tradeoff in TRADEOFFS:
        answers = Runner(network, fitted(belief).at(tradeoff))(inputs)
        assert torch.equal(answers.logits, logits[answers.exit, rows])
        last = torch.where(answers.asked, torch.arange(EXITS), -1).max(dim=1).values
        recalled += int((last != answers.exit).sum())
        predicted = answers.prediction[rows, answers.exit]
        assert torch.equal(answers.logits.argmax(dim=1).int(), predicted)
    assert recalled  # answers of an earlier exit than the one asked last


# NaN


@pytest.mark.parametrize("belief", BELIEFS)
def test_nan_logits_are_no_confidence_and_are_counted(belief):
    inputs, _ = evidence(200, seed=6)
    inputs[:100, -EXITS] = 1.0  # the first exit of these rows gives NaN
    network, policy = adding_network(), fitted(belief).at(0.9)
    answers = Runner(network, policy)(inputs)
    assert answers.asked[:, 0].all()
    assert answers.confidence[:100, 0].isnan().all()
    assert (answers.prediction[:100, 0] == -1).all()
    assert answers.asked[:100, 1:].any(dim=1).all()
    assert_as_sessions(policy, network, answers)


# Sizes


@pytest.mark.parametrize(("kind", "setting"), [("answers", 0.9), ("markov", 0.9), ("set", 1)])
def test_an_empty_batch(kind, setting):
    runner = Runner(adding_network(), rule_of(kind, setting))
    inputs, _ = evidence(10, seed=0)
    answers = runner(inputs[:0])
    assert len(answers) == 0
    assert answers.logits.shape == (0, CLASSES)
    assert answers.asked.shape == answers.confidence.shape == answers.prediction.shape == (0, EXITS)


@pytest.mark.parametrize(("limit", "last"), [(0.0, 0), (np.inf, EXITS - 1)])
def test_where_all_stop_at_once_nothing_else_runs_and_where_none_does_all_of_it(limit, last):
    inputs, _ = evidence(50, seed=0)
    network = adding_network()
    calls = Calls.of(network)
    runner = Runner(network, threshold_tables(np.full(EXITS, limit)))
    answers = runner(inputs)
    assert answers.exit.tolist() == [last] * 50
    assert calls.segments == calls.ramps == {k: [50] for k in range(last + 1)}
    assert runner.waits <= last + 1


# Work


@all_rules
def test_exits_that_are_not_asked_do_not_run_and_each_asked_waits_at_most_once(kind, setting):
    inputs, _ = evidence(200, seed=8)
    network = adding_network()
    calls = Calls.of(network)
    runner = Runner(network, rule_of(kind, setting))
    answers = runner(inputs)
    asked = set(answers.asked.any(dim=0).nonzero()[:, 0].tolist())
    assert set(calls.ramps) == asked
    assert set(calls.segments) == set(range(max(asked) + 1))
    assert all(len(rows) == 1 for rows in (*calls.ramps.values(), *calls.segments.values()))
    assert runner.waits <= len(asked)
    assert {network.names[k] for k in asked} <= set(runner.reached)
    want = group_sizes_run(answers)
    assert [calls.segments[k][0] for k in range(max(asked) + 1)] == want


def group_sizes_run(answers):
    """Return on how many rows each segment runs, from who was asked what.

    After an exit that was asked, the next size that holds all who go on is taken, where that is
    fewer rows by at least this many.
    """
    rows, sizes = len(answers), []
    asked = answers.asked.any(dim=0).nonzero()[:, 0].tolist()
    for k in range(max(asked) + 1):
        sizes.append(rows)
        alive = int(answers.asked[:, k + 1 :].any(dim=1).sum())
        if k in asked and alive:
            rows = min(size for size in group_sizes(len(answers)) if size >= alive)
    return sizes


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_the_next_batch_leaves_answers_as_they_are(monkeypatch):
    one, two = (evidence(6, seed=seed, exits=3)[0] for seed in (1, 2))
    network, policy = adding_network(3), fitted(exits=3).at(0.97)
    want = Runner(network, policy)(one)
    monkeypatch.setattr(running, "decider_for", KernelDecider)
    runner = Runner(network, policy)
    answers = runner(one)
    before = [part.clone() for part in parts_of(answers)]
    runner(two)
    assert torch.equal(answers.exit, want.exit)
    assert all(map(torch.equal, parts_of(answers), before))


# Values and precision


def test_tuples():
    inputs, _ = evidence(120, seed=9)
    policy = fitted().at(0.9)
    plain = Runner(adding_network(), policy)
    pairs = Runner(pair_network(), policy)
    want = plain(inputs)
    assert_same(pairs(pair_of(inputs)), want)
    assert_same(pairs(list(pair_of(inputs))), want)


def test_inputs_of_another_kind_are_refused():
    inputs, _ = evidence(5, seed=9)
    network = EarlyExit([nn.Linear(4, 8)] * 2, [nn.Linear(8, 3)], nn.Linear(8, 3))
    network.segments[1] = nn.Linear(8, 8)
    single = Runner(network, threshold_tables(np.array([0.5, 0.0])))
    training = Runner(adding_network(), rule_of("set", 0))
    training.network.train()
    for runner, value, text in (
        (
            Runner(adding_network(), rule_of("set", 0)),
            {"x": inputs},
            "a tuple of tensors, not dict",
        ),
        (single, torch.zeros(4), r"returns shape \(3,\), .* for one input, inputs\[None"),
        (training, inputs, r"in training mode: call network\.eval\(\)"),
    ):
        with pytest.raises(ArgumentError, match=text):
            runner(value)


@pytest.mark.parametrize("belief", ["answers", "markov"])
def test_half_precision(belief):
    inputs, _ = evidence(120, seed=10)
    policy = fitted(belief).at(0.9)
    want = Runner(adding_network(), policy)(inputs)
    halves = Runner(adding_network().bfloat16(), policy)(inputs.bfloat16())
    mixed = Runner(adding_network(), policy, precision="bf16")
    for found in (halves, mixed(inputs)):
        assert found.logits.dtype == torch.bfloat16
        # Evidence is whole numbers and small: bfloat16 holds it, so nothing else may differ.
        assert torch.equal(found.logits.float(), want.logits)
        assert torch.equal(found.exit, want.exit)
        assert torch.equal(found.asked, want.asked)
        assert torch.equal(found.confidence.nan_to_num(-1), want.confidence.nan_to_num(-1))
    assert want.logits.dtype == torch.float32


def test_half_precision_that_rounds_decides_by_what_it_computed():
    torch.manual_seed(0)
    network = convolutions(CLASSES)
    inputs = torch.randn(40, 3, 8, 8)
    labels = torch.randint(0, CLASSES, (40,))
    trace = trace_of(network, [(inputs, labels)], precision="bf16")
    policy = fit(trace, belief="markov", states=4, tradeoffs=[0.8])[0]
    half = {"precision": "bf16"}
    plain = Runner(network, policy, **half)(inputs)
    for answers in (plain, ungrouped(network, policy, inputs, **half)):
        assert_as_sessions(policy, network, answers)
        assert answers.logits.dtype == torch.bfloat16
        recomputed = answers.logits.float().softmax(dim=1).max(dim=1).values
        chosen = answers.confidence[torch.arange(40), answers.exit]
        torch.testing.assert_close(recomputed, chosen)


def test_under_inference_mode_and_with_inputs_that_want_gradients():
    inputs, _ = evidence(60, seed=11)
    runner = Runner(adding_network(), fitted().at(0.9))
    want = runner(inputs)
    with torch.inference_mode():
        assert_same(runner(inputs.clone()), want)
    found = runner(inputs.clone().requires_grad_())
    assert_same(found, want)
    assert not found.logits.requires_grad


def test_the_network_is_run_as_it_evaluates():
    class Rough(nn.Module):
        """Like dropout, seen at once."""

        def forward(self, value):
            return value * 0 if self.training else value

    inputs, _ = evidence(30, seed=11)
    network = adding_network()
    network.segments[0] = nn.Sequential(network.segments[0], Rough())
    network.train()
    policy = fitted().at(0.9)
    assert_same(Runner(network, policy)(inputs), Runner(adding_network(), policy)(inputs))


def test_convolutions_regrouped_answer_as_they_do_whole():
    torch.manual_seed(0)
    network = convolutions(CLASSES).eval()
    inputs = torch.randn(64, 3, 8, 8)
    with torch.inference_mode():
        logits = torch.stack(network(inputs))
    # Half way between two confidences: sums may be rounded otherwise in a smaller batch.
    ordered = logits.softmax(-1).amax(-1).sort(dim=1).values
    tables = threshold_tables((ordered[:, 39] + ordered[:, 40]).double().numpy() / 2)
    whole = ungrouped(network, tables, inputs)
    assert len(whole.exit.unique()) == 4
    regrouped = Runner(network, tables)(inputs)
    torch.testing.assert_close(regrouped.logits, whole.logits)
    assert torch.equal(regrouped.exit, whole.exit)
    assert torch.equal(whole.logits, logits[whole.exit, torch.arange(64)])


# Classes


def test_a_trace_with_names_of_classes():
    inputs, labels = evidence(1500, seed=1)
    names = ["ant", "bee", "cat", "dog"]
    trace = trace_of(adding_network(), batches(inputs, labels), classes=names)
    policy = fit(trace).at(0.9)
    fresh, fresh_labels = evidence(200, seed=2)
    answers = Runner(adding_network(), policy, classes=names)(fresh)
    test = trace_of(adding_network(), batches(fresh, fresh_labels), classes=names)
    assert np.array_equal(answers.exit, policy.play(test).answer)
    with pytest.raises(ArgumentError, match=r"classes are ant.*network's are 0, 1, 2, 3"):
        Runner(adding_network(), policy)
    with pytest.raises(ArgumentError, match=r"3 classes.* 4: name all classes"):
        Runner(adding_network(), policy, classes=names[:3])(fresh)


def test_classes_the_policy_has_not_met_still_agree_or_not():
    inputs, _ = evidence(200, seed=2)
    policy = fitted().at(0.97)
    network = adding_network()
    names = ["0", "1", "new", "newer"]
    answers = Runner(network, policy, classes=names)(inputs)
    text = [[names[k] if k >= 0 else None for k in row] for row in answers.prediction.tolist()]
    confidence = answers.confidence.tolist()
    for row in range(200):
        turn = policy.session()
        while turn.next is not None:
            k = network.names.index(turn.next)
            sure = confidence[row][k]
            turn.observe(confidence=sure, margin=sure, prediction=text[row][k])
        assert turn.answer == network.names[answers.exit[row]]
        assert len(turn.asked) == answers.asked[row].sum()
    assert not torch.equal(answers.asked, Runner(network, policy)(inputs).asked)


# What is refused


def test_policies_that_a_network_cannot_run_are_refused():
    trace = answering_trace(300)
    blocks = [nn.Linear(4, 4) for _ in range(3)]
    separate = EarlyExit(blocks, blocks[:2], blocks[2], names=trace.names)
    of_models = fit(trace, belief="markov", states=4, tradeoffs=[0.9])[0]
    unknown = EarlyExit([nn.Identity()], [], nn.Identity(), names=["full"])
    for network, policy, text in (
        (adding_network(3), fitted().at(0.9), r"fitted for 4 exits .* has 3 \(exit1, exit2, full"),
        (
            adding_network(3),
            threshold_tables(np.zeros(EXITS)),
            "tables are for 4 exits, and the ne",
        ),
        (separate, of_models, r"asks separate models.*kind = \"exits\""),
        (adding_network(), fitted("markov"), r"one fitted policy, not a .*ladder.at\(tradeoff"),
        (adding_network(), fitted("markov").for_budget(0.8), "one fitted policy, not a Mixture"),
        (unknown, fitted().at(0.9), "name them with classes="),
        (
            echo_network(65),
            threshold_tables(np.zeros(65)),
            "65 exits, and at most 64 are supported",
        ),
    ):
        with pytest.raises(ArgumentError, match=text):
            Runner(network, policy)
    with pytest.raises(ArgumentError, match='"fp32" or "bf16", not \'fp8\''):
        Runner(adding_network(), rule_of("set", 0), precision="fp8")


def test_an_attached_network_has_the_classes_of_its_ramps():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    network = attach(model, ["0", "2"], torch.randn(2, 4, generator=generator))
    rows = torch.randn(200, 4, generator=generator)
    trace = trace_of(network, [(rows, model(rows).argmax(dim=1))])
    policy = fit(trace, belief="markov", states=3).at(0.9)
    assert Runner(network, policy)(rows).logits.shape == (200, 3)


def test_compiled_parts_answer_the_same():
    """Dynamo traces the parts; what it hands on is run as it is, which takes no compiler."""
    network, policy = adding_network(), fitted().at(0.97)
    inputs, _ = evidence(40, seed=12)
    plain = Runner(network, policy)(inputs)
    for part in (*network.segments, *network.exits):
        part.compile(backend="eager", dynamic=True)
    compiled = Runner(network, policy)(inputs)
    assert torch.equal(plain.exit, compiled.exit)
    assert torch.equal(plain.logits, compiled.logits)
    assert len(plain.exit.unique()) > 1


def test_exits_may_compute_in_different_precisions():
    """Under mixed precision a ramp may return half precision and the head not."""

    class Half(nn.Module):
        def __init__(self, ramp):
            super().__init__()
            self.ramp = ramp

        def forward(self, value):
            return self.ramp(value).bfloat16()

    network, policy = adding_network(), fitted().at(0.97)
    inputs, _ = evidence(30, seed=3)
    plain = Runner(network, policy)(inputs)
    network.exits[1] = Half(network.exits[1])  # the numbers are small and whole: nothing is lost
    mixed = Runner(network, policy)(inputs)
    assert torch.equal(plain.exit, mixed.exit)
    assert torch.equal(plain.logits, mixed.logits)


@given(st.integers(1, 5000))
def test_groups_have_few_sizes_and_none_is_filled_up_by_more_than_half(batch):
    sizes = group_sizes(batch)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, batch)
    assert len(sizes) <= 2 * batch.bit_length()
    for small, large in pairwise(sizes):
        assert large <= 2 * small
        assert large <= 1.5 * small or small < 4
