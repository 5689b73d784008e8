"""Decisions on tensors are those of sessions, whatever the logits."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from support.examples import examples
from support.exit_networks import by_session, echo_network, fitted
from support.torch_oracle import Oracle
from ttamer.errors import ArgumentError
from ttamer.fitted.belief import Extras
from ttamer.fitted.ladder import FittedPolicy
from ttamer.fitted.models import BeliefModel
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.plans import fit
from ttamer.torch.deciding import (
    NO_ANSWER,
    HostDecider,
    confidence_of,
    scores_of,
    tables_of,
    threshold_tables,
)
from ttamer.torch.profiling import Costs
from ttamer.torch.runner import Regrouping, Runner
from ttamer.torch.tracing import trace_of
from ttamer.trace.trace import BELIEF_FIELDS, Trace

CPU = torch.device("cpu")


def some_logits(generator, rows, exits, classes, broken=0.0):
    """Return few different whole numbers, so that equal confidences and agreement are likely."""
    logits = generator.integers(-2, 3, (rows, exits, classes)).astype(np.float32)
    logits[generator.random((rows, exits)) < broken] = np.nan
    return torch.from_numpy(logits)


@st.composite
def policies(draw) -> tuple[FittedPolicy, torch.Tensor]:
    """Return a policy fitted on a small random trace, and logits: the trace's own and others."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    exits, classes = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    rows = draw(st.integers(12, 120))
    logits = some_logits(generator, rows, exits, classes)
    fresh = some_logits(generator, 30, exits, classes, broken=0.15)
    alike = draw(st.integers(1, exits))  # exits that agree: among equals the first answers
    logits[:, :alike], fresh[:, :alike] = logits[:, :1].clone(), fresh[:, :1].clone()
    names = echo_network(exits).names
    ramps = draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=exits, max_size=exits))
    target = draw(st.sampled_from(["label", "last"]))
    spec = Costs(names, (1.0,) * exits, tuple(ramps), "seconds").spec(
        target=target, skip=draw(st.booleans())
    )
    # The last exit is mostly right: else there would be no reason to ask on.
    label = logits[:, -1].argmax(dim=1)
    label[generator.random(rows) < 0.2] = 0
    trace = trace_of(echo_network(exits), [(logits, label)], spec=spec)
    columns = trace.extras
    if target == "label" and draw(st.booleans()):  # a log that does not say what was predicted
        trace = Trace(spec, trace.confidence, correct=~trace.wrong())
    belief = draw(st.sampled_from(["full", "calibrated", "none"]))
    tradeoff = draw(st.sampled_from([1.0, 0.99, 0.97, 0.9, 0.8, 0.6, 0.0]))
    states = draw(st.integers(1, 5))
    if belief == "full":
        ladder = build_belief(trace, np.array([tradeoff]), states=states)
        fitted = ladder.fitted
        if draw(st.booleans()):
            fitted = with_columns(fitted, columns, generator)
        policy = FittedPolicy.of(ladder[0].policy, on_edges(fitted, trace, columns))
    else:
        policy = fit(trace, belief=belief, states=states, tradeoffs=[tradeoff])[0]
    return policy, torch.cat([logits, fresh])


def with_columns(fitted: BeliefModel, columns, generator) -> BeliefModel:
    """Let the belief read margins and entropies of some exits, with bounds at values met."""

    def whole(*shape):  # weights are multiples of 2^-12
        return generator.integers(-6000, 6000, shape) / 4096

    extras = {}
    for v, levels in enumerate(fitted.belief.levels):
        names = tuple(name for name in BELIEF_FIELDS if generator.random() < 0.6)
        if names:
            bounds = tuple(
                np.unique(generator.choice(columns[name][:, v], generator.integers(0, 6)))
                for name in names
            )
            terms = tuple(whole(len(each) + 1) for each in bounds)
            extras[v] = Extras(names, levels + whole(len(levels)), bounds, terms)
    return dataclasses.replace(fitted, belief=dataclasses.replace(fitted.belief, extras=extras))


def on_edges(fitted: BeliefModel, trace: Trace, columns) -> BeliefModel:
    """Move edges of X onto values that it takes, where they stay apart."""
    seen = fitted.belief.evidence(trace.confidence, fitted.predictions(trace), extras=columns)
    moved = []
    for step, edges in zip(fitted.steps, fitted.edges, strict=True):
        values = np.unique(fitted.belief.least(seen, step)[0])
        onto = values[np.minimum(np.searchsorted(values, edges), len(values) - 1)]
        moved.append(onto if (np.diff(onto) > 0).all() else edges)
    return dataclasses.replace(fitted, edges=tuple(moved))


def said(logits):
    """Return the answers of every exit to every row, as a session observes them."""
    every = [scores_of(logits[:, k])._asdict() for k in range(logits.shape[1])]
    return SimpleNamespace(
        **{name: torch.stack([each[name] for each in every], dim=1) for name in every[0]}
    )


@examples(60)
@given(policies(), st.booleans())
def test_a_batch_decides_as_sessions_do(drawn, whole):
    policy, logits = drawn
    names = policy.fitted.spec.names
    network = echo_network(len(names))
    texts = [str(k) for k in range(logits.shape[2])]
    rule = Regrouping.never() if whole else Regrouping.always()
    answers = Runner(network, policy, classes=texts, regrouping=rule)(logits)
    unclear = 0
    for row, (asked, answer, nan) in enumerate(by_session(policy, names, said(logits))):
        assert [names[k] for k in answers.asked[row].nonzero()[:, 0]] == list(asked)
        assert names[answers.exit[row]] == answer
        unclear += nan
    assert answers.unclear == unclear
    every = torch.arange(len(logits))
    want = logits[every, answers.exit]
    assert torch.equal(answers.logits.nan_to_num(-9), want.nan_to_num(-9))


@pytest.mark.parametrize("skip", [False, True])
def test_sessions_and_batches_shift_by_the_class_of_an_answer(skip):
    policy, generator = fitted("full", skip=skip)[2], np.random.default_rng(3)
    model, names = policy.fitted, policy.fitted.spec.names
    logits = some_logits(generator, 60, len(names), len(model.classes), broken=0.1)
    shifts = {step: generator.integers(-3, 4, len(model.classes)) / 2 for step in model.steps[:-1]}
    decided = []
    for own in ({}, shifts):
        belief = dataclasses.replace(model.belief, shifts=own)
        shifted = FittedPolicy.of(policy.policy, dataclasses.replace(model, belief=belief))
        answers = Runner(echo_network(len(names)), shifted, classes=model.classes)(logits)
        asked = [[names[k] for k in row.nonzero()[:, 0]] for row in answers.asked]
        assert asked == [list(row) for row, *_ in by_session(shifted, names, said(logits))]
        decided.append(asked)
    assert decided[0] != decided[1]


@pytest.mark.parametrize("kind", [Oracle, HostDecider])
@pytest.mark.parametrize("seed", range(4))
def test_log_odds_are_those_of_sessions_where_margins_and_entropies_are_read(kind, seed):
    generator = np.random.default_rng(seed)
    exits, rows = 3, 150
    logits = some_logits(generator, rows, exits, 3)
    fresh = some_logits(generator, 40, exits, 3, broken=0.2)
    spec = Costs(echo_network(exits).names, (1.0,) * exits, (0.5,) * exits, "seconds").spec()
    trace = trace_of(echo_network(exits), [(logits, logits[:, -1].argmax(dim=1))], spec=spec)
    ladder = build_belief(trace, np.array([0.9]), states=5)
    fitted = with_columns(ladder.fitted, trace.extras, generator)
    tables = tables_of(FittedPolicy.of(ladder[0].policy, fitted), spec.names, 3)
    assert tables.reads_columns
    decider, every = kind(tables, CPU), torch.cat([logits, fresh])
    found = said(every)
    for k in range(exits):
        carry = decider.start(len(every), 3, every.dtype)
        carry.place[:] = tables.exit_of.index(k)
        decider.observe(carry, k, torch.arange(len(every)), every[:, k])
        names = fitted.belief.extras[k].names if k in fitted.belief.extras else ()
        for row in range(len(every)):
            columns = [float(getattr(found, name)[row, k]) for name in names]
            given = columns if all(map(math.isfinite, columns)) else ()
            expected = fitted.scorer.odds(k, float(found.confidence[row, k]), given)
            assert carry.odds[row, k].item() == expected


@examples(60)
@given(st.data())
def test_thresholds_decide_as_a_plain_loop_does(data):
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    exits = data.draw(st.integers(1, 4))
    logits = some_logits(generator, 20, exits, 3, broken=0.1)
    seen = said(logits)
    # Confidences that are met are reached; a threshold may leave no one, all, or the ramp out.
    met = seen.confidence.double().nan_to_num(0.5).flatten().tolist()
    limit = st.sampled_from([*met, float("inf"), -float("inf"), float("nan"), 0.9])
    thresholds = data.draw(st.lists(limit, min_size=exits, max_size=exits))
    answers = Runner(echo_network(exits), threshold_tables(np.array(thresholds)))(logits)
    for row in range(len(logits)):
        asked = []
        for k in range(exits):
            if k < exits - 1 and np.isnan(thresholds[k]):
                continue
            asked.append(k)
            if seen.confidence[row, k].item() >= thresholds[k]:
                break
        assert answers.asked[row].nonzero()[:, 0].tolist() == asked
        assert answers.exit[row] == asked[-1]


@examples(25)
@given(policies(), st.integers(0, 2**32 - 1))
def test_rows_may_come_in_any_order_and_may_have_stopped(drawn, seed):
    policy, logits = drawn
    rows, exits, classes = logits.shape
    tables = tables_of(policy, policy.fitted.spec.names, classes)
    decider = HostDecider(tables, CPU)
    generator = torch.Generator().manual_seed(seed)
    one, two = (decider.start(rows, classes, logits.dtype) for _ in range(2))
    for k in range(exits):
        decider.observe(one, k, torch.arange(rows), logits[:, k])
        running = (~decider.stopped(two)).nonzero()[:, 0]
        order = running[torch.randperm(len(running), generator=generator)]
        if k in tables.reached:
            decider.observe(two, k, order, logits[order, k])
            alive, due = decider.going(two, torch.arange(rows))
            assert alive == (two.place >= 0).sum()
            assert due > k
            alive = [row for row in order.tolist() if two.place[row] >= 0]
            for size in {len(alive), len(order)}:
                positions, chosen = decider.regroup(two, order, size)
                assert torch.equal(chosen, order[positions])
                assert chosen[: len(alive)].tolist() == alive  # in order, before all others
                assert len(set(chosen.tolist())) == size
    assert np.array_equal(one.owner, two.owner)
    assert (one.place == -1).all()
    assert (two.place == -1).all()


@pytest.mark.parametrize("belief", ["full", "calibrated", "none"])
def test_among_equally_good_exits_the_first_answers(belief):
    generator = np.random.default_rng(0)
    logits = some_logits(generator, 2500, 3, 3)
    logits[:, 1] = logits[:, 0]
    seen = said(logits).confidence
    pick = torch.where(seen[:, 0] > seen[:, 2], 0, 2)  # the surer exit is right
    label = logits[torch.arange(2500), pick].argmax(dim=1)
    spec = Costs(echo_network(3).names, (1.0,) * 3, (0.0,) * 3, "seconds").spec()
    trace = trace_of(echo_network(3), [(logits, label)], spec=spec)
    policy = fit(trace, belief=belief, states=4, tradeoffs=[1.0])[0]
    answers = Runner(echo_network(3), policy, classes=["0", "1", "2"])(logits)
    assert np.array_equal(answers.exit, policy.play(trace).answer)
    assert set(answers.exit[answers.asked[:, 1]].tolist()) == {0, 2}


def test_a_cautious_policy_runs_as_it_is_played():
    generator = np.random.default_rng(1)
    logits = some_logits(generator, 400, 3, 3)
    label = torch.where(torch.arange(400) % 4 > 0, logits[:, 2].argmax(dim=1), 0)
    spec = Costs(echo_network(3).names, (1.0,) * 3, (0.0,) * 3, "seconds").spec()
    trace = trace_of(echo_network(3), [(logits, label)], spec=spec)
    ladder = fit(trace, belief="full", states=8, tradeoffs=[0.2, 0.5, 0.8])
    for number in range(len(ladder.cautious)):
        policy = ladder.rung(len(ladder) + number)
        answers = Runner(echo_network(3), policy, classes=["0", "1", "2"])(logits)
        played = policy.play(trace)
        assert np.array_equal(answers.exit, played.answer)
        assert np.array_equal(answers.asked, played.asked)


def test_logits_for_another_number_of_classes_are_refused():
    policy = fitted("full").at(0.9)
    tables = tables_of(policy, policy.fitted.spec.names, 4)
    with pytest.raises(ArgumentError, match=r"4 classes.* 7"):
        HostDecider(tables, CPU).start(3, 7, torch.float32)


def test_as_many_exits_as_there_are_bits():
    logits = torch.zeros(3, 64, 2)
    logits[0, 0, 0] = logits[1, 62, 0] = 9.0
    answers = Runner(echo_network(64), threshold_tables(np.full(64, 0.9)))(logits)
    assert answers.exit.tolist() == [0, 62, 63]
    assert answers.asked.sum(dim=1).tolist() == [1, 63, 64]
    assert answers.asked[2].all()
    with pytest.raises(ArgumentError, match=r"65 exits.*64"):
        HostDecider(threshold_tables(np.full(65, 0.9)), CPU)


# Scores of logits


NAN, INF = float("nan"), float("inf")


@examples(50)
@given(st.lists(st.lists(st.integers(-30, 30), min_size=3, max_size=3), min_size=1, max_size=6))
def test_scores_are_those_of_the_softmax_in_double_precision(rows):
    logits = np.array(rows, float)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    ranked = np.sort(chances, axis=1)
    found = scores_of(torch.tensor(logits, dtype=torch.float32))
    np.testing.assert_allclose(found.confidence, ranked[:, -1], rtol=1e-5)
    np.testing.assert_allclose(found.margin, ranked[:, -1] - ranked[:, -2], atol=1e-6)
    entropy = -(chances * np.log(np.maximum(chances, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-5)
    assert found.prediction.tolist() == logits.argmax(axis=1).tolist()  # of equals the first


def test_what_decides_is_what_a_trace_records():
    torch.manual_seed(0)
    logits = torch.randn(100, 7) * 4
    logits[3, 2] = NAN
    logits[4] = INF
    confidence, prediction = confidence_of(logits)
    scores = scores_of(logits)
    assert torch.equal(confidence.nan_to_num(-1), scores.confidence.nan_to_num(-1))
    assert torch.equal(prediction, scores.prediction)
    assert prediction.dtype == scores.prediction.dtype == torch.int32


@pytest.mark.parametrize("row", [[NAN, 0, 1], [NAN] * 3, [INF, 0, 1], [INF, -INF, INF]])
def test_where_the_softmax_is_nan_there_is_no_answer(row):
    scores = scores_of(torch.tensor([row, [0.0, 1.0, 2.0]]))
    assert scores.prediction.tolist() == [NO_ANSWER, 2]
    for part in (scores.confidence, scores.margin, scores.entropy):
        assert part.isnan().tolist() == [True, False]


def test_a_class_that_is_ruled_out_takes_no_part():
    scores = scores_of(torch.tensor([[-INF, 0.0, 0.0]]))
    assert scores.confidence.item() == pytest.approx(0.5)
    assert scores.entropy.item() == pytest.approx(math.log(2))


def test_with_one_class_the_margin_is_its_probability():
    scores = scores_of(torch.tensor([[3.0], [-1.0]]))
    assert scores.margin.tolist() == [1.0, 1.0]
    assert scores.prediction.tolist() == [0, 0]


def test_half_precision_is_scored_in_single():
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    for half, single in zip(scores_of(logits), scores_of(logits.float()), strict=True):
        assert half.dtype != torch.bfloat16
        assert torch.equal(half, single)


def test_no_rows():
    scores = scores_of(torch.zeros(0, 3))
    assert [len(part) for part in scores] == [0, 0, 0, 0]
