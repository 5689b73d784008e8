"""Many models: for each tradeoff the best small subset, or all in order of cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ttamer.artefact import load, save
from ttamer.fitted.replay import paid
from ttamer.fitting import subset_search
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.plans import default_tradeoffs, fit
from ttamer.fitting.subset_search import searches_subsets, subset_states
from ttamer.fitting.subsets import CHOICE_REACH, MAX_ASKED, MAX_POOL, Lattice, average_near
from ttamer.stats.envelope import area_under
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

SOME = np.array([0.0, 0.5, 0.8, 0.95, 1.0])
QUARTER = default_tradeoffs()[::4]


def models(rows, *, nodes=7, seed=0, signals=None, costs=None, order="auto"):
    """Models of growing skill and cost that share the difficulty of an input."""
    rng = np.random.default_rng([seed, nodes])
    difficulty, label = rng.normal(size=rows), rng.integers(0, 4, rows)
    costs = np.geomspace(1, 50, nodes) if costs is None else costs
    margin = np.linspace(-0.2, 2.0, nodes) - difficulty[:, np.newaxis]
    margin = margin + rng.normal(size=(rows, nodes))
    right = margin > 0
    other = (label[:, np.newaxis] + rng.integers(1, 4, (rows, nodes))) % 4
    return Trace.from_arrays(
        CascadeSpec.of({f"m{v}": float(cost) for v, cost in enumerate(costs)}, order=order),
        np.abs(margin) + 0.5 * rng.normal(size=(rows, nodes)),
        prediction=np.where(right, label[:, np.newaxis], other).astype(str),
        label=label.astype(str),
        **({} if signals is None else {"inputs": signals(difficulty)}),
    )


def points(ladder, trace):
    wrong, rows = trace.wrong(), np.arange(len(trace))
    played = list(ladder.play_all(trace))
    costs = [paid(own.asked, trace).mean() for own in played]
    return costs, [wrong[rows, own.answer].mean() for own in played]


def area(ladder, trace):
    means = trace.costs.mean(axis=0)
    costs, errors = points(ladder, trace)
    cheapest = trace.wrong()[:, means.argmin()].mean()
    return area_under([*costs, means.min()], [*errors, cheapest], means.min(), means.max())


def test_the_lattice_holds_every_subset_and_the_line():
    lattice = Lattice([3.0, 1.0, 2.0, 5.0, 4.0, 6.0], range(6), 2)
    assert len(lattice.subsets) == 6 + 15
    assert lattice.steps[len(lattice.subsets) :] == [
        (0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)
    ]  # fmt: skip
    for source, target, node in lattice.ways:
        before = set() if source < 0 else set(lattice.steps[source])
        assert set(lattice.steps[target]) - before == {node}
    edges = {way[:2] for way in lattice.ways}
    assert lattice.line() <= edges
    place = {step: k for k, step in enumerate(lattice.steps)}
    assert lattice.chain((0, 1)) == {(-1, place[(1,)]), (place[(1,)], place[(0, 1)])}
    assert lattice.any_order((0, 1)) == lattice.chain((0, 1)) | {
        (-1, place[(0,)]), (place[(0,)], place[(0, 1)])
    }  # fmt: skip


def test_a_router_comes_before_every_plan():
    lattice = Lattice([1.0, 2.0], range(2), 2, router=True)
    assert lattice.steps[0] == ()
    for plan in (lattice.line(), lattice.chain((0, 1)), lattice.any_order((0, 1))):
        assert [way for way in plan if way[0] == -1] == [(-1, 0)]


def test_which_traces_are_searched():
    assert searches_subsets(models(20, nodes=5))
    assert searches_subsets(models(20, nodes=5), "any")
    assert not searches_subsets(models(20, nodes=5), "fixed")
    assert not searches_subsets(models(20, nodes=4))
    assert not searches_subsets(models(20, nodes=6, order="fixed"))


def test_each_policy_asks_a_small_subset_or_the_line():
    trace = models(500)
    ladder = build_belief(trace, SOME)
    for policy in ladder:
        asked = policy.play(trace).asked
        most = asked.sum(axis=1).max()
        used = asked.any(axis=0)
        assert most <= MAX_ASKED or most == used.sum()
        assert used.sum() <= MAX_ASKED or (np.diff(asked.astype(int), axis=1) <= 0).all()


@pytest.mark.parametrize(
    "signals", [None, lambda hard: {"hint": hard, "noise": np.sin(9e3 * hard)}]
)
def test_sessions_decide_as_traces_do_and_files_keep_it(signals, tmp_path):
    trace = models(400, signals=signals)
    ladder = build_belief(trace, SOME)
    save(ladder, tmp_path / "many.ttamer")
    loaded = load(tmp_path / "many.ttamer")
    new = models(60, seed=1, signals=signals)
    for policy, again in zip(ladder, loaded, strict=True):
        played, replayed = policy.play(new), again.play(new)
        np.testing.assert_array_equal(played.asked, replayed.asked)
        np.testing.assert_array_equal(played.answer, replayed.answer)
        for row in range(len(new)):
            known = {name: float(values[row]) for name, values in new.signals.items()}
            turn = again.session(signals=known)
            while (node := turn.next) is not None:
                column = new.spec.index_of(node)
                said = new.classes[new.prediction[row, column]]
                turn.observe(confidence=float(new.confidence[row, column]), prediction=said)
            assert turn.answer == new.names[played.answer[row]]
            assert {new.spec.index_of(name) for name in turn.asked} == set(
                np.flatnonzero(played.asked[row])
            )


def test_the_search_is_not_worse_than_a_fixed_order_or_skipping():
    trace, new = models(600), models(4000, seed=1)
    found = area(fit(trace, tradeoffs=QUARTER), new)
    for order in ("fixed", "skip"):
        assert found <= 1.02 * area(fit(trace, order=order, tradeoffs=QUARTER), new)


def test_nothing_changes_between_1999_and_2000_rows():
    trace, new = models(2000, nodes=6), models(4000, nodes=6, seed=1)
    few, many = (
        area(fit(trace.take(np.arange(rows)), tradeoffs=QUARTER), new) for rows in (1999, 2000)
    )
    assert abs(few / many - 1) < 0.02


def test_plans_are_compared_over_near_tradeoffs_only():
    weights = default_tradeoffs()
    found = np.zeros(len(weights))
    found[20] = 1.0
    assert np.flatnonzero(average_near(found, weights, CHOICE_REACH)).tolist() == [
        18, 19, 20, 21, 22
    ]  # fmt: skip
    coarse = np.array([0.0, 0.5, 0.9, 0.99, 1.0])
    np.testing.assert_array_equal(average_near(coarse, coarse, CHOICE_REACH), coarse)


def test_twenty_models_are_more_than_the_pool_holds():
    trace = models(200, nodes=20)
    ladder = fit(trace, order="any", tradeoffs=[0.95, 1.0])
    assert len(ladder.fitted.spec.names) == 20 > MAX_POOL
    played = ladder[-1].play(trace)
    assert played.asked.sum(axis=1).max() > 1


def test_the_pool_is_chosen_on_rows_from_all_of_a_sorted_trace(monkeypatch):
    monkeypatch.setattr(subset_search, "MAX_SEARCH_ROWS", 200)
    rng = np.random.default_rng(0)
    right = rng.uniform(size=(400, MAX_POOL + 1)) < 0.3
    right[:, -1] = np.arange(400) >= 200  # no use on the first half, the best of all on the second
    costs = {f"m{v}": 1.0 for v in range(MAX_POOL)} | {"best": 1.5}
    trace = Trace(CascadeSpec.of(costs, order="any"), rng.uniform(size=right.shape), correct=right)
    [policy] = fit(trace, states=4, tradeoffs=[0.9])
    assert policy.spec.names == trace.names  # more than the pool holds
    assert policy.play(trace).asked[:, -1].all()


def test_no_error_is_expected_to_be_above_one_where_costs_have_a_heavy_tail():
    trace = models(250, seed=1)
    spread = np.random.default_rng(1).lognormal(sigma=4.0, size=trace.confidence.shape)
    spread /= spread.mean(axis=0)
    rungs = fit(dataclasses.replace(trace, cost=trace.costs * spread)).rungs
    assert rungs.errors.max() <= 1
    assert rungs.smoothed_errors.max() <= 1


def test_the_optimism_of_a_search_is_that_with_the_states_given(monkeypatch):
    given = []

    def spy(rows, states=None):
        given.append(states)
        return subset_states(rows, states)

    monkeypatch.setattr(subset_search, "subset_states", spy)
    fit(models(100, nodes=5), states=5, tradeoffs=[0.5])
    assert set(given) == {5}


def test_models_that_cost_more_where_the_first_is_unsure_are_asked_less_there():
    """Only E[cost | state] tells the two halves apart."""
    rows = 3000
    trace = models(rows, nodes=5)
    sure = trace.confidence[:, 0] > np.median(trace.confidence[:, 0])
    cost = np.tile(trace.spec.costs, (rows, 1))
    cost[:, 1:] *= np.where(sure, 0.5, 20.0)[:, np.newaxis]
    by_row = Trace(
        trace.spec, trace.confidence, prediction=trace.prediction, label=trace.label,
        classes=trace.classes, cost=cost,
    )  # fmt: skip
    by_mean = Trace(
        trace.spec, trace.confidence, prediction=trace.prediction, label=trace.label,
        classes=trace.classes, cost=np.tile(cost.mean(axis=0), (rows, 1)),
    )  # fmt: skip

    def objectives(ladder, weight):
        costs, errors = points(ladder, by_row)
        full = by_row.costs.mean(axis=0).max()
        return min(weight * e + (1 - weight) * c / full for c, e in zip(costs, errors, strict=True))

    aware, blind = fit(by_row), fit(by_mean)
    assert objectives(aware, 0.8) < 0.97 * objectives(blind, 0.8)


def test_what_rungs_say_holds_on_new_rows():
    gaps = []
    for seed in range(4):
        trace, new = models(700, nodes=5, seed=seed), models(6000, nodes=5, seed=seed + 50)
        ladder = build_belief(trace, np.linspace(0.5, 0.99, 12))
        _, errors = points(ladder, new)
        gaps.append(np.mean(ladder.rungs.errors - errors))
    assert np.mean(gaps) > -0.005


def test_answers_in_free_text_leave_no_text_in_the_fit():
    trace = models(300, nodes=5)
    rng = np.random.default_rng(0)
    own = np.array([f"{k}" for k in range(300)])
    right = ~trace.wrong()
    said = np.where(right, own[:, np.newaxis], rng.integers(1000, 2000, right.shape).astype(str))
    free = Trace.from_arrays(trace.spec, trace.confidence, prediction=said, label=own)
    ladder = build_belief(free, SOME)
    assert len(ladder.fitted.classes) <= 1
    assert ladder.fitted.belief.has_predictions
