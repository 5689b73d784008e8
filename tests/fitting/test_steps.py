"""The new fit: beliefs of any subset, policies as tables, one arithmetic for rows and sessions."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import CHANCES, GRID, Belief, Seen, chance, chance_of
from ttamer.fitting.crossfit import StepFit, fit_steps
from ttamer.fitting.inputs import FeatureSpec
from ttamer.fitting.planner import Log, PlanOptions
from ttamer.fitting.policy import play
from ttamer.fitting.session import SingleNode
from ttamer.stats.logistic import log_loss, sigmoid


def simulated(
    nodes: int = 3,
    rows: int = 240,
    *,
    seed: int = 0,
    classes: int = 3,
    inputs: bool = False,
    graded: bool = False,
    gaps: float = 0.0,
    exits: bool = False,
) -> Log:
    """Return rows of nodes that get better and dearer, with confidences that say something."""
    rng = np.random.default_rng([seed, nodes, rows])
    hard = rng.normal(size=(rows, 1))
    skill = np.linspace(-0.3, 1.5, nodes)
    chances = 1 / (1 + np.exp(-(hard - skill + 0.5 * rng.normal(size=(rows, nodes)))))
    losses = (rng.random((rows, nodes)) < chances).astype(float)
    if graded:
        losses *= rng.choice([0.25, 0.5, 1.0], size=losses.shape)
    confidence = 1 - chances + 0.1 * rng.normal(size=losses.shape)
    codes = None
    if classes:
        truth = rng.integers(classes, size=(rows, 1))
        codes = np.where(losses > 0, rng.integers(classes, size=losses.shape), truth)
        codes[rng.random(codes.shape) < 0.03] = -1
    features = None
    if inputs:
        near = np.hstack([hard + 0.3 * rng.normal(size=(rows, 1)), rng.normal(size=(rows, 4))])
        features = (np.rint(np.clip(near, -2, 2) * 512) / 2048).astype(np.float32)
    cost = np.linspace(1, 10, nodes) * rng.uniform(0.5, 1.5, size=losses.shape)
    if exits:
        cost = np.ones(losses.shape)
    lost = rng.random(losses.shape) < gaps
    losses, confidence = np.where(lost, np.nan, losses), np.where(lost, np.nan, confidence)
    if codes is not None:
        codes = np.where(lost, -1, codes)
    names = tuple(map(str, range(classes)))
    return Log(losses, np.where(lost, np.nan, cost), confidence, codes, names, features)


QUICK = PlanOptions(points=12, shortlist=2)

KINDS = {
    "plain": ({}, {}),
    "texts alone": ({"classes": 0}, {}),
    "inputs": ({"inputs": True, "rows": 400}, {}),
    "gaps": ({"gaps": 0.1, "inputs": True, "rows": 400}, {}),
    "graded": ({"graded": True}, {}),
    "exits": ({"nodes": 4, "exits": True}, {"kind": "exits"}),
    "tree": ({"nodes": 4}, {"parents": (-1, 0, 0, 2)}),
    "one node": ({"nodes": 1}, {}),
    "latency": ({}, {"latency_weight": 0.01}),
}


@cache
def fitted(kind: str) -> tuple[StepFit, Log]:
    trace, how = KINDS[kind]
    log = simulated(**trace)
    log = replace(log, latency=10 * log.cost if "latency_weight" in how else None, **how)
    gate = {"gated": 0} if trace.get("inputs") else {}
    options = PlanOptions(points=12, shortlist=2, **gate)
    names = tuple(f"m{v}" for v in range(log.losses.shape[1]))
    return fit_steps(names, log, options=options), log


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_session_decides_as_a_batch(kind, data):
    fit, _ = fitted(kind)
    number = data.draw(st.integers(0, len(fit.tables) - 1))
    seed = data.draw(st.integers(0, 1000))
    failing = data.draw(st.sampled_from([0.0, 0.3, 0.9]))
    trace, _ = KINDS[kind]
    log = simulated(**{**trace, "seed": seed + 1, "rows": 15, "gaps": failing})
    tables = fit.tables
    cheapest = float(tables.costs.min())
    cap = data.draw(st.sampled_from([None, 30 * cheapest, 12 * cheapest, 25 * cheapest]))
    z = costs = None
    if tables.prior is not None:
        z, costs = tables.prior(log.features)
        alone = [tables.prior(log.features[[t]]) for t in range(len(log))]
        assert np.array_equal(z, np.concatenate([one for one, _ in alone]))
        assert np.array_equal(costs, np.concatenate([one for _, one in alone]))
    policy = tables.policy(number)
    done = policy.play(Seen(log.confidence, log.codes, z), costs)
    risks = tables.belief.risks(Seen(np.where(done.asked, log.confidence, np.nan), log.codes, z))
    for t in range(len(log)):
        row = None if costs is None else costs[t]
        try:
            turn = policy.session(None if z is None else z[t], row, cap)
        except ArgumentError:
            assert cap is not None
            continue
        price_of = tables.costs if row is None else row
        while turn.next is not None:
            assert turn.next == best_within(turn, tables.names, price_of, cap)
            node, last = tables.names.index(turn.next), turn.is_last
            if np.isnan(log.confidence[t, node]):
                turn.fail()
            else:
                code = -1 if log.codes is None else int(log.codes[t, node])
                text = None if code < 0 else log.classes[code]
                turn.observe(confidence=log.confidence[t, node], prediction=text)
                assert turn.next is None or not last
        assert best_within(turn, tables.names, price_of, cap) is None or cap is not None
        assert turn.explain().answer == turn.answer
        if cap is not None:
            assert turn.cost <= cap * (1 + 1e-6)
            continue
        assert [tables.names[v] for v in np.flatnonzero(done.asked[t])] == sorted(turn.asked)
        assert tables.names[done.last[t]] == turn.asked[-1]
        assert turn.answer == (None if done.answer[t] < 0 else tables.names[done.answer[t]])
        for name, risk in turn.beliefs.items():
            assert risk == risks[t, tables.names.index(name)]


def best_within(turn, names, costs, cap):
    """The way of the largest gain above its price that the cap allows, from what is explained."""
    why = turn.explain()
    room = np.inf if cap is None else cap * (1 + 1e-9) - turn.cost
    net = {v: why.gains[v] - why.prices[v] for v in why.gains if costs[names.index(v)] <= room}
    best = max(net, key=net.__getitem__, default=None)
    if best is None and turn.answer is None:  # the most expensive node that is left
        return turn.next
    return best if best is not None and (turn.answer is None or net[best] > 0) else None


def test_chances_on_the_grid_are_the_same_in_every_library():
    x = np.arange(-8 * 4096, 8 * 4096 + 1) / GRID
    exact = CHANCES / (1 + np.exp(-x))
    far = np.abs(exact - np.floor(exact) - 0.5).min()
    assert far > 1e-7  # a unit in the last place is 1e-11
    assert all(chance_of(v) == p for v, p in zip(x[::97].tolist(), chance(x[::97]), strict=True))


def numbers_of(belief: Belief):
    yield from belief.levels
    yield from belief.offsets
    yield from (cells.values for cells in belief.pairs.values())
    yield from belief.weights.values()
    yield belief.masked
    yield from (w for w in (belief.head, belief.first, belief.later) if w is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_belief_is_on_the_grid(kind):
    for values in numbers_of(fitted(kind)[0].tables.belief):
        assert np.array_equal(values * 4096, np.rint(values * 4096))
        assert np.abs(values).max(initial=0) <= 64


def estimates(fit: StepFit, log: Log):
    """The loss and the cost of each price on complete rows, shape (P, R)."""
    rows = np.arange(len(log.complete))
    paid = (fit.asked * log.cost[log.complete]).sum(axis=2)
    return log.losses[log.complete][rows, fit.answer], paid


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_are_of_complete_rows_and_cheaper_where_prices_are_higher(kind):
    fit, log = fitted(kind)
    lost, paid = estimates(fit, log)
    assert fit.answer.shape == lost.shape == (len(fit.tables), len(log.complete))
    assert np.take_along_axis(fit.asked, fit.answer[..., None], 2).all()
    assert paid[-1].mean() <= paid[0].mean() + 1e-9
    assert math.isclose(fit.weight.mean(), 1, rel_tol=1e-6)


@pytest.mark.parametrize("kind", ["exits", "plain", "inputs"])
def test_an_index_is_where_asking_begins_to_pay(kind):
    fit, _ = fitted(kind)
    rng, policy = np.random.default_rng(0), fit.tables.policy(5)
    for step, ways in policy.indices.items():
        for way in policy.ways[step]:
            index = ways[way.node]
            near = index + np.arange(-2, 3) / GRID if abs(index) < 7 else np.zeros(0)
            for x in [*near, *rng.integers(-8 * GRID, 8 * GRID, 20) / GRID]:
                turn = policy.session()
                turn._step, turn._came, turn._x, turn._state = step, step, float(x), float(x)
                gain, price = {v: rest for v, *rest in turn._ways(turn._prior, turn._bar)}[way.node]
                if kind != "inputs":  # with inputs the gain need not rise with x
                    assert (gain > price) == (x > index)
                elif x > index:
                    assert gain > price


def test_a_free_node_that_never_errs_is_asked_alone():
    log = simulated(3, 300)
    losses, cost = log.losses.copy(), log.cost.copy()
    losses[:, 1], cost[:, 1] = 0, 0.1
    log = Log(losses, cost, log.confidence, log.codes)
    lost, paid = estimates(fit_steps(("a", "b", "c"), log, options=QUICK), log)
    assert lost.mean(axis=1).max() < 0.02
    assert np.allclose(paid.mean(axis=1)[2:], 0.1, atol=0.05)


def test_where_only_the_input_says_anything_the_policy_routes():
    rng = np.random.default_rng(0)
    kind = rng.integers(2, size=900)
    losses = np.stack([kind, 1 - kind], axis=1).astype(float)
    losses = np.where(rng.random(losses.shape) < 0.05, 1 - losses, losses)
    spec = FeatureSpec.of({"kind": np.array(["x", "y"])[kind].tolist()})
    features = spec.rows({"kind": np.array(["x", "y"])[kind].tolist()})
    log = Log(losses, np.ones(losses.shape), np.zeros(losses.shape), features=features)
    fit = fit_steps(("a", "b"), log, options=QUICK)
    assert fit.tables.prior is not None
    lost, paid = estimates(fit, log)
    assert (lost + paid - 1).mean(axis=1).min() < 0.08
    assert losses.mean(axis=0).min() > 0.4


def test_inputs_that_say_nothing_are_left_out_where_rows_are_few():
    log = simulated(3, 150)
    noise = np.random.default_rng(0).normal(size=(150, 40)).astype(np.float32)
    noise = np.rint(noise / 8 * 2048) / 2048
    log = Log(log.losses, log.cost, log.confidence, log.codes, log.classes, noise)
    assert fit_steps(("a", "b", "c"), log, options=QUICK).tables.prior is None


def test_twenty_models_are_planned_with_nine():
    log = simulated(20, 120, classes=0)
    fit = fit_steps(tuple(map(str, range(20))), log, options=PlanOptions(points=6, shortlist=1))
    assert len(set(fit.tables.node.tolist())) <= 9
    done = fit.tables.policy(2).play(Seen(log.confidence))
    assert (done.answer >= 0).all()


def test_a_single_node_is_asked_until_one_answers():
    policy = SingleNode(("a", "b", "c"), np.array([1.0, 2.0, 4.0]), 2, backups=(0, 1))
    confidence = np.array([[0.5, 0.5, 0.5], [0.5, 0.5, np.nan], [np.nan, np.nan, np.nan]])
    done, costs = policy.play(Seen(confidence)), [4.0, 5.0, 7.0]
    for cap in (None, 4.5, 1.5):
        for t in range(3):
            turn = policy.session(max_cost=cap)
            while turn.next is not None:
                v = policy.names.index(turn.next)
                if np.isnan(confidence[t, v]):
                    turn.fail()
                else:
                    turn.observe(confidence=confidence[t, v])
            assert turn.cost <= (cap or costs[t])
            if cap is None:
                assert turn.cost == costs[t]
                answer = done.answer[t]
                assert turn.answer == (None if answer < 0 else policy.names[answer])
        assert turn.asked == {None: ("c", "a", "b"), 4.5: ("c",), 1.5: ("a",)}[cap]


def test_vectors_of_another_width_are_refused():
    vectors = np.random.default_rng(0).normal(size=(10, 4))
    spec = FeatureSpec.of({"e": vectors}, embedders={"e": "mini 2"})
    assert spec.rows({"e": vectors}).shape == (10, 4)
    with pytest.raises(ArgumentError, match="5 numbers"):
        spec.rows({"e": [np.ones(5)]})


def test_one_input_has_the_features_of_its_row():
    prompts = ["How many is 2 + 2?", "", "Write a poem " * 1000]
    inputs = {"user": ["free", "paid", "new"], "size": [1.0, None, 3.0], "prompt": prompts}
    spec = FeatureSpec.of(inputs)
    rows = spec.rows(inputs)
    for t in range(3):
        one = spec.rows({name: [values[t]] for name, values in inputs.items()})
        assert np.array_equal(one[0], rows[t])


def test_play_of_many_prices_shares_a_view():
    fit, log = fitted("plain")
    view = fit.tables.belief.view(Seen(log.confidence, log.codes))
    for number in (0, 5, 11):
        policy = fit.tables.policy(number)
        alone = policy.play(Seen(log.confidence, log.codes))
        assert np.array_equal(alone.answer, play(policy, view).answer)


def test_what_a_hundred_classes_say_is_used():
    rng, classes = np.random.default_rng(5), 100
    codes = rng.integers(classes, size=(3000, 2))
    wrong = rng.random(codes.shape) < np.where(codes[:, [0]] < 20, [0.9, 0.02], 0.02)
    codes[:, 1] = classes  # a text of its own: only the class of the cheap node says anything
    names, cost = tuple(map(str, range(classes + 1))), np.broadcast_to([1.0, 20.0], wrong.shape)
    log = Log(wrong.astype(float), cost, np.zeros(wrong.shape), codes, names)
    fit = fit_steps(("cheap", "dear"), log, options=PlanOptions(points=8))
    lost, paid = estimates(fit, log)
    assert paid.mean(axis=1)[lost.mean(axis=1) < 0.03].min() < 7


def test_rare_classes_count_as_one_and_free_texts_have_no_names():
    rng, rows = np.random.default_rng(6), 400
    codes = np.where(rng.random((rows, 2)) < 0.5, 0, 1 + np.arange(2 * rows).reshape(rows, 2))
    wrong = rng.random(codes.shape) < np.where(codes > 0, 0.5, 0.1)
    names = tuple(f"text {k}" for k in range(2 * rows + 1))
    log = Log(wrong.astype(float), np.ones(wrong.shape), np.zeros(wrong.shape), codes, names)
    belief = fit_steps(("a", "b"), log, options=PlanOptions(points=4)).tables.belief
    assert belief.classes == ("text 0",)
    assert all(common < 0 < rare for common, rare in belief.offsets)
    assert all(len(cells.keys) <= 4 for cells in belief.pairs.values())


def test_rows_without_a_label_teach_how_answers_agree():
    """Agreement says who is right, so the confidence curve is learnt from all rows."""
    names, gains = ("a", "b", "c"), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        confidence = rng.normal(size=(2500, 3))
        right = rng.random(confidence.shape) < sigmoid(2 * confidence)
        codes = np.where(right, 0, rng.integers(1, 9, size=right.shape))  # errors rarely agree
        losses = (~right).astype(float)
        losses[60:2000] = np.nan
        alone = []
        for rows in (slice(60), slice(2000)):
            parts = (losses[rows], np.ones(right.shape)[rows], confidence[rows], codes[rows])
            belief = fit_steps(names, Log(*parts), options=QUICK).tables.belief
            odds = belief.view(Seen(confidence[2000:], codes[2000:])).odds((0,))
            alone.append(log_loss(odds[:, 0], losses[2000:, 0]).mean())
        gains.append(alone[0] - alone[1])
    assert min(gains) > 0.01
