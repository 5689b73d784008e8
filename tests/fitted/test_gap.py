"""How far from the optimum a policy is: the bound covers where the optimum is known."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest

import ttamer as tt
from ttamer import ArgumentError, CascadeSpec
from ttamer.cli import main
from ttamer.fitted.gap import _kl, _lower, gap_of

TRADEOFF = 0.8
LOSSES = np.array([[0.02, 0.15, 0.4], [0.01, 0.1, 0.3]])
COSTS = np.array([1.0, 3.0])
FIRST, SECOND = np.array([0.5, 0.3, 0.2]), np.array([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.2] * 3])
SECOND[2] = [0.2, 0.3, 0.5]


def drawn(order, count, seed):
    """Rows of two nodes: a chain for a fixed order, and independent models for any."""
    rng = np.random.default_rng(seed)
    one = rng.choice(3, count, p=FIRST)
    rows = SECOND[one] if order == "fixed" else np.tile(FIRST, (count, 1))
    two = (rng.random((count, 1)) > np.cumsum(rows, axis=1)).sum(axis=1)
    wrong = rng.random((count, 2)) < np.stack([LOSSES[0][one], LOSSES[1][two]], axis=1)
    spec = CascadeSpec.of(dict(zip("ab", COSTS.tolist(), strict=True)), order=order)
    return tt.Trace(spec, 1 - np.stack([one, two], 1) / 3, correct=~wrong)


@cache
def optimum(order):
    if order == "fixed":
        costs = (COSTS / COSTS.sum()).tolist()
        problem = tt.Problem.line(list(LOSSES), costs, [FIRST, SECOND])
    else:
        costs = (COSTS / COSTS.max()).tolist()
        problem = tt.Problem.forest(list(LOSSES), costs, [FIRST, FIRST], [None, None])
    return tt.solve(problem, TRADEOFF).value


@cache
def fitted(order):
    belief = {"belief": "calibrated", "states": 3} if order == "fixed" else {}
    return tt.fit(drawn(order, 3000, 0), tradeoffs=[TRADEOFF], folds=2, **belief)


@cache
def true_value(order):
    """What the fitted policy does on many rows."""
    played = tt.evaluate(fitted(order)[0], drawn(order, 300_000, 1), resamples=0)
    return TRADEOFF * played.error + (1 - TRADEOFF) * played.cost / fitted(order).fitted.full_cost


@pytest.mark.parametrize("order", ["fixed", "any"])
def test_it_covers_as_often_as_stated_and_is_not_vacuous(order):
    best, mine = optimum(order), true_value(order)
    gaps = [
        fitted(order).gap(confidence=0.9, tradeoff=TRADEOFF, on=drawn(order, 1500, 10 + k))
        for k in range(60)
    ]
    missed = sum(mine - best > gap.bound for gap in gaps)
    low = sum(gap.lower > best for gap in gaps)
    high = sum(gap.upper < mine for gap in gaps)
    assert missed <= 6  # 10% at most, on average; here it is far fewer
    assert max(low, high) <= 6  # each side has half of that
    assert {gap.lines for gap in gaps} == {1}
    assert all(0 < gap.any_policy < gap.lower < gap.best_on_rows for gap in gaps)
    assert np.mean([gap.bound for gap in gaps]) < 0.06
    # Too low on average, since it is a minimum, but by little.
    bias = np.mean([gap.best_on_rows for gap in gaps]) - best
    assert -0.006 < bias < 0.002


def test_a_bad_policy_has_a_gap_that_more_rows_do_not_close():
    ladder = tt.fit(drawn("fixed", 3000, 0), tradeoffs=[0.0, TRADEOFF], belief="calibrated")
    wrong = ladder[0]  # the cheapest answer, measured by another tradeoff
    bad = tt.FittedPolicy.of(wrong.policy, wrong.fitted)
    object.__setattr__(bad, "tradeoff", 0.97)

    gap = gap_of(bad, drawn("fixed", 20_000, 3), confidence=0.95)
    assert gap.from_policy > gap.from_rows
    assert "a better policy on the same states" in gap.advice
    assert gap.bound == pytest.approx(gap.from_rows + gap.from_policy)


def test_three_models_in_any_order_are_covered_by_two_lines():
    trace = drawn("any", 2400, 5)
    spec = CascadeSpec.of({"a": 1.0, "b": 3.0, "c": 3.0})
    sure = np.column_stack([trace.confidence, trace.confidence[:, 1]])
    correct = np.column_stack([~trace.wrong(), ~trace.wrong()[:, 1]])
    wider = tt.Trace(spec, sure, correct=correct)
    ladder = tt.fit(wider, tradeoffs=[TRADEOFF], hold_out=0.5)
    gap = ladder.gap(tradeoff=TRADEOFF)
    assert (gap.lines, gap.rows) == (2, 1200)
    assert gap.lower < gap.best_on_rows
    assert "due to the number of rows" in gap.advice


def test_the_lower_side_solves_its_inequality():
    n, alpha, most = 1000, 0.025, 1.5
    low = _lower(0.2, most, n, 1, alpha)
    assert n * _kl(0.2 / most, low / most) == pytest.approx(math.log(1 / alpha), rel=1e-6)
    several = _lower(0.2, most, n, 3, alpha)
    x = math.log(3 / alpha)
    again = several + math.sqrt(2 * 3 * several * most * x / n) + 3 * most * x / (3 * n)
    assert again == pytest.approx(0.2)
    assert several < low < 0.2
    assert _lower(0.0, most, n, 1, alpha) == _lower(0.001, most, n, 9, alpha) == 0.0
    assert _kl(0.5, 0.0) == math.inf


def test_costs_by_row_and_losses_count():
    rng = np.random.default_rng(0)
    spec = CascadeSpec.of({"a": 1.0, "b": 3.0}, order="fixed", max_loss=2.0)
    loss, cost = 2 * rng.random((800, 2)) ** 4, rng.uniform(0.5, 1.5, (800, 2)) * [1.0, 3.0]
    trace = tt.Trace(spec, 1 - loss / 2, raw_loss=loss, cost=cost)
    ladder = tt.fit(trace.take(slice(400)), tradeoffs=[0.5], belief="calibrated", states=4)
    gap = ladder.gap(tradeoff=0.5, on=trace.take(slice(400, 800)))
    assert 0 < gap.lower < gap.observed < gap.upper
    free = tt.Trace(
        CascadeSpec.of({"a": 1.0, "b": 3.0}, order="fixed"), 1 - loss / 2, raw_loss=loss
    )
    unbounded = tt.fit(free.take(slice(400)), tradeoffs=[0.5], belief="calibrated", states=4)
    with pytest.raises(ArgumentError, match="max_loss"):
        unbounded.gap(tradeoff=0.5, on=free.take(slice(400, 800)))


def test_where_costs_alone_count_and_all_is_free_there_is_no_gap():
    rows = drawn("fixed", 200, 0)
    free = rows.with_spec(rows.spec.with_costs({"a": 0.0, "b": 0.0}))
    gap = tt.fit(free, hold_out=0.5, tradeoffs=[0.0, 1.0], belief="calibrated").gap(tradeoff=0.0)
    assert (gap.upper, gap.lower, gap.any_policy, gap.bound) == (0.0, 0.0, 0.0, 0.0)


def test_what_it_needs_is_said():
    ladder = fitted("fixed")
    with pytest.raises(ArgumentError, match="needs rows the ladder was not fitted to"):
        ladder.gap()
    with pytest.raises(ArgumentError, match="are the rows the ladder was fitted to"):
        ladder.gap(tradeoff=0.5, on=drawn("fixed", 3000, 0))
    with pytest.raises(ArgumentError, match="no rows"):
        ladder.gap(tradeoff=0.5, on=drawn("fixed", 10, 0).take(slice(0)))
    several = tt.fit(drawn("any", 500, 0), belief="calibrated", order="any", states=3)
    with pytest.raises(ArgumentError, match=r'belief="full"'):
        several.gap(tradeoff=0.5, on=drawn("any", 100, 1))


def test_where_one_node_alone_is_the_default_a_policy_of_the_ladder_is_compared():
    rng = np.random.default_rng(0)
    correct = rng.random((400, 2)) < [0.6, 0.9]  # confidences say nothing
    trace = tt.Trace(CascadeSpec.of({"a": 1.0, "b": 1.0}), rng.random((400, 2)), correct=correct)
    ladder = tt.fit(trace, hold_out=0.5)
    assert ladder.default().single_node == "b"
    assert ladder.default().expensive.fitted is not ladder.fitted  # its states see nothing
    found = ladder.gap()
    assert found.tradeoff in ladder.tradeoffs
    assert found == ladder.gap(tradeoff=found.tradeoff)


def test_the_default_policy_and_the_command(tmp_path, capsys):
    ladder = tt.fit(drawn("fixed", 1500, 0), belief="calibrated", states=3, hold_out=0.3)
    gap = ladder.gap()
    assert gap.tradeoff in ladder.tradeoffs
    tt.save(ladder, tmp_path / "policies.ttamer")
    drawn("fixed", 700, 2).write(tmp_path / "rows.npz")
    files = [str(tmp_path / "policies.ttamer"), str(tmp_path / "rows.npz")]
    assert main(["certify", *files, "--gap", "--tradeoff", "0.8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == pytest.approx(found["upper"] - found["lower"])
    assert main(["certify", *files, "--gap"]) == 0
    text = capsys.readouterr().out
    assert "above the best policy of its class, with confidence 0.95" in text
    assert "no policy that asks these nodes is below" in text
    for wrong, says in (
        ([files[0], "--gap"], "--gap needs rows"),
        ([*files, "--gap", "-o", str(tmp_path / "x.ttamer")], "-o is for a new promise"),
        ([*files, "--tradeoff", "0.5"], "--tradeoff is for --gap"),
    ):
        assert main(["certify", *wrong]) == 2
        assert says in capsys.readouterr().err
