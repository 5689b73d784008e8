"""The parts of a fit against oracles: enumeration of policies, and optima found by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ttamer.fitting.belief import Belief, Seen, by_pattern
from ttamer.fitting.crossfit import CrossFit
from ttamer.fitting.planner import Log, PlanOptions, Topology, folds_of, raked
from ttamer.fitting.regression import BeliefOptions, Curve
from ttamer.stats.logistic import class_offsets, log_loss, logistic, sigmoid


def test_logistic_is_at_the_least_of_its_objective():
    rng = np.random.default_rng(0)
    columns = np.column_stack([np.ones(200), rng.normal(size=(200, 3)), np.zeros(200)])
    losses = rng.random(200)
    weight = rng.uniform(0.5, 2, 200)
    prior = np.array([0, 1.0, 0, 0, 0.3])
    w = logistic(columns, losses, 3.0, prior, weight, tolerance=1e-14)

    def objective(w):
        spread = 3.0 * np.maximum(columns.var(axis=0), 0.01) + 1e-9 * 200
        spread[0] = 1e-6 * 200
        pull = 0.5 * spread[:4] @ (w - prior)[:4] ** 2
        return weight @ log_loss(columns @ w, losses) + pull

    best = objective(w)
    for step in itertools.chain(np.eye(5)[:4], -np.eye(5)[:4], rng.normal(size=(20, 5))):
        assert objective(w + 1e-3 * step * np.array([1, 1, 1, 1, 0])) > best
    assert w[4] == 0.3


def test_logistic_does_not_diverge_on_rows_that_separate():
    x = np.column_stack([np.ones(60), np.repeat([-3.0, 3.0], 30)])
    w = logistic(x, np.repeat([0.0, 1.0], 30), 0.01)
    assert np.isfinite(w).all()
    assert (sigmoid(x @ w) > 0.5).sum() == 30


@given(seed=st.integers(0, 1000), falls=st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_curve_is_monotone_and_near_the_truth(seed, falls):
    rng = np.random.default_rng(seed)
    confidence = rng.normal(size=3000)
    odds = -1 + (-1.5 if falls else 1.5) * confidence
    losses = (rng.random(3000) < sigmoid(odds)).astype(float)
    curve = Curve.fit(confidence, losses)
    steps = np.diff(curve.levels)
    assert (steps <= 0).all() if falls else (steps >= 0).all()
    middle = np.abs(confidence) < 1.5
    assert np.abs(curve(confidence) - odds)[middle].mean() < 0.3
    assert curve(np.array([-np.inf]))[0] == curve.levels[0]


def test_an_offset_without_the_row_is_that_of_a_fit_without_it():
    rng = np.random.default_rng(1)
    codes = rng.integers(4, size=400)
    odds = rng.normal(size=400)
    losses = (rng.random(400) < sigmoid(odds + np.array([-1.5, 0, 0.5, 1.5])[codes])).astype(float)
    table, without_row = class_offsets(codes, 4, odds, losses)
    for row in range(0, 400, 37):
        others = np.arange(400) != row
        alone = class_offsets(codes[others], 4, odds[others], losses[others])[0][codes[row]]
        assert without_row[row] == pytest.approx(alone, abs=0.01)
        assert without_row[row] != table[codes[row]]


def test_offsets_that_are_noise_are_drawn_to_nothing():
    rng = np.random.default_rng(2)
    codes, losses = rng.integers(30, size=600), (rng.random(600) < 0.5).astype(float)
    assert np.abs(class_offsets(codes, 30, np.zeros(600), losses)[0]).mean() < 0.15


def arm(log, **options):
    names = tuple(map(str, range(log.losses.shape[1])))
    return CrossFit(names, log, BeliefOptions(), PlanOptions(**options))


def best_by_enumeration(log: Log, price: float) -> float:
    """Return the least mean objective of all policies on what was seen, by enumeration.

    A policy may depend on all confidences seen. The best answer is that of least mean loss among
    rows that look alike: with many rows of few confidences these are the conditional means.
    """
    nodes = log.losses.shape[1]

    def value(rows, asked):
        if not len(rows):
            return 0.0
        stop = min((log.losses[rows, v].sum() for v in asked), default=np.inf)
        onward = np.inf
        for v in set(range(nodes)) - set(asked):
            total = price * log.cost[rows, v].sum()
            for confidence in np.unique(log.confidence[rows, v]):
                some = rows[log.confidence[rows, v] == confidence]
                total += value(some, (*asked, v))
            onward = min(onward, total)
        return min(stop, onward)

    return value(np.arange(len(log)), ()) / len(log)


@pytest.mark.parametrize("seed", range(4))
def test_policies_are_near_the_best_of_all_policies(seed):
    rng = np.random.default_rng(seed)
    rows = 2500
    hard = rng.normal(size=(rows, 1))
    chances = sigmoid(1.5 * hard - np.array([0, 0.6, 1.2]))
    losses = (rng.random((rows, 3)) < chances).astype(float)
    confidence = np.digitize(-hard + 0.7 * rng.normal(size=(rows, 3)), [-0.7, 0.7]).astype(float)
    log = Log(losses, np.tile([1.0, 3.0, 9.0], (rows, 1)), confidence)
    fit = arm(log, points=16).fit()
    tables = fit.tables
    for j in range(0, 16, 3):
        price = float(tables.prices[j])
        done = tables.policy(j).play(Seen(confidence))
        lost = losses[np.arange(rows), done.answer]
        objective = (lost + price * (done.asked @ tables.costs)).mean()
        best = best_by_enumeration(log, price)
        assert best - 1e-9 <= objective <= best + 0.012
    single = (losses.mean(axis=0) + tables.prices[:, None] * [1, 3, 9]).min(axis=1)
    paid = (fit.asked @ tables.costs).mean(axis=1)
    estimated = losses[np.arange(rows), fit.answer].mean(axis=1) + tables.prices * paid
    assert (estimated <= single + 0.01).all()


def test_estimates_are_within_noise_of_new_rows():
    rng = np.random.default_rng(5)

    def rows(count):
        hard = rng.normal(size=(count, 1))
        losses = (rng.random((count, 3)) < sigmoid(1.5 * hard - [0, 0.6, 1.2])).astype(float)
        return losses, -hard + rng.normal(size=(count, 3))

    losses, confidence = rows(1500)
    fit = arm(Log(losses, np.tile([1.0, 3, 9], (1500, 1)), confidence), points=12).fit()
    new, seen = rows(20000)
    for j in range(12):
        done = fit.tables.policy(j).play(Seen(seen))
        error = new[np.arange(20000), done.answer].mean()
        lost = losses[np.arange(1500), fit.answer[j]]
        assert abs(error - lost.mean()) < 4 * lost.std() / 1500**0.5


@pytest.mark.parametrize(
    ("better", "worse", "kind"), [(0, 0, 0), (3, 2, 0), (20, 2, 1), (2, 20, 0)]
)
def test_a_router_replaces_chains_only_where_it_is_better_beyond_noise(better, worse, kind):
    losses = np.zeros((400, 2))
    losses[:better, 0] = losses[better : better + worse, 1] = 1
    fit = arm(Log(losses, np.ones((400, 2)), np.zeros((400, 2))), points=1)
    asked = np.ones((2, 1, 400, 2), bool)
    answer = np.repeat([0, 1], 400).reshape(2, 1, 400)  # of the two kinds of plan
    assert fit._kinds(asked, answer).tolist() == [kind]


def test_a_node_comes_after_its_parent_in_every_set():
    parents = (-1, 0, 1, -1)
    topology = Topology(np.array([1.0, 1, 1, 1]), parents, (0, 1, 2, 3), 4)
    closed = [
        s
        for size in range(1, 5)
        for s in itertools.combinations(range(4), size)
        if all(parents[v] in (-1, *s) for v in s)
    ]
    assert sorted(topology.sets) == sorted(closed)
    for plan in [topology.chain(s) for s in closed] + [topology.any_order((0, 1, 2, 3), 4)]:
        for step, ways in plan.items():
            assert all(parents[v] in (-1, *step) for v in ways)


def test_raked_rows_have_the_moments_of_all():
    rng = np.random.default_rng(0)
    odds = rng.normal(size=(2000, 2))
    losses = (rng.random((2000, 2)) < sigmoid(odds)).astype(float)
    picked = rng.random(2000) < 0.3 * (1 + losses[:, 0])  # complete rows are the hard ones
    gappy = losses.copy()
    gappy[~picked, 1] = np.nan
    complete = np.flatnonzero(picked)
    weight = raked(gappy, odds, complete)
    assert weight.mean() == pytest.approx(1)
    raw = abs(losses[complete, 0].mean() - losses[:, 0].mean())
    assert abs(weight @ losses[complete, 0] / len(complete) - losses[:, 0].mean()) < 0.3 * raw


def test_a_row_is_never_seen_by_what_it_is_judged_by():
    """Changing the losses of a fold changes no belief that was fitted without it."""
    rng = np.random.default_rng(0)
    losses = (rng.random((200, 2)) < 0.4).astype(float)
    confidence = rng.normal(size=(200, 2))
    cost = np.ones((200, 2))
    one = arm(Log(losses, cost, confidence))
    changed = losses.copy()
    changed[one.fold == 3] = 1 - changed[one.fold == 3]
    other = arm(Log(changed, cost, confidence))
    for left, same in ((frozenset([3]), True), (frozenset([1, 3]), True), (frozenset([1]), False)):
        levels = [np.concatenate(a.belief(left).levels) for a in (one, other)]
        assert np.array_equal(*levels) == same


def test_groups_are_never_split():
    log = Log(np.zeros((100, 1)), np.ones((100, 1)), np.ones((100, 1)), groups=np.arange(100) // 7)
    fold = folds_of(log.groups, 5, 0)
    assert all(len(set(fold[log.groups == g])) == 1 for g in range(15))


def test_patterns_of_answers_partition_the_rows():
    answered = np.random.default_rng(0).random((50, 3)) < 0.5
    parts = by_pattern(answered)
    assert sorted(np.concatenate([rows for _, rows in parts])) == list(range(50))
    assert all((answered[rows] == np.isin(range(3), step)).all() for step, rows in parts)


def test_answers_that_agree_share_the_mean_of_their_odds():
    zero = np.zeros(13)
    belief = Belief(
        classes=("x", "y"),
        bounds=(np.empty(0), np.empty(0)),
        levels=(np.array([-1.0]), np.array([-2.0])),
        offsets=(np.empty(0), np.empty(0)),
        pairs={},
        weights={},
        masked=np.array([[0, 1, 1, 0, *zero[:10]], [0, 1, 1, 0, *zero[:10]]]),
    )
    view = belief.view(Seen(np.zeros((2, 2)), np.array([[0, 0], [0, 1]])))
    assert view.odds((0, 1)).tolist() == [[-1.5, -1.5], [-1.0, -2.0]]
    assert view.best((0, 1))[1].tolist() == [0, 1]
