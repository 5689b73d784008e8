"""A ladder: policies along the frontier."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.strategies import problems
from ttamer.errors import ArgumentError, ProblemError
from ttamer.policy.base import Ladder

CASCADE = tt.Problem.line(
    losses=[0.05, 0.5],
    costs=[0.1, 0.2],
    probabilities=[[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
)
LADDER = tt.solve_ladder(CASCADE, [0.75, 0.0, 0.5, 1.0])


def test_a_ladder_is_a_sequence_of_policies_in_order_of_tradeoff():
    assert LADDER.tradeoffs == (0.0, 0.5, 0.75, 1.0)
    assert len(LADDER) == 4
    assert list(LADDER) == [LADDER[0], LADDER[1], LADDER[2], LADDER[3]]
    assert [policy.tradeoff for policy in LADDER] == [0.0, 0.5, 0.75, 1.0]
    assert LADDER.problem is CASCADE


def test_names_report_sizes_tradeoffs_and_values():
    assert repr(LADDER) == "Ladder(4 policies, tradeoffs 0 to 1)"
    assert repr(LADDER[1]) == f"WalkPolicy(2 nodes, tradeoff=0.5, value={LADDER[1].value:.6g})"
    last = tt.solve(CASCADE, 0.6, recall=False)
    assert repr(last) == "WalkPolicy(2 nodes, tradeoff=0.6, no recall, value=0.1344)"


def test_no_policies_and_policies_out_of_order_are_refused():
    with pytest.raises(ArgumentError, match="at least one policy"):
        Ladder(())
    with pytest.raises(ArgumentError, match="increasing order"):
        Ladder((LADDER[1], LADDER[0]))


@given(st.one_of(st.sampled_from([0, 0.25, 0.26, 0.875, 1]), st.floats(0, 1)))
def test_at_picks_the_nearest_tradeoff_and_the_lower_of_two_as_near(wanted):
    nearest = min(LADDER.tradeoffs, key=lambda tradeoff: (abs(tradeoff - wanted), tradeoff))
    assert LADDER.at(wanted).tradeoff == nearest


@pytest.mark.parametrize("wanted", [math.nan, -0.1, 1.1, "x", None])
def test_at_refuses_what_is_no_tradeoff(wanted):
    with pytest.raises(ArgumentError, match="tradeoff must be"):
        LADDER.at(wanted)


@examples(60)
@given(problems(informers=False), st.booleans())
def test_up_the_ladder_cost_rises_loss_falls_and_each_rung_is_that_of_solve(problem, recall):
    tradeoffs = [0.0, 0.2, 0.45, 0.6, 0.9, 1.0]
    recall = recall or not (problem.moves == "walk" or problem.is_line)
    ladder = tt.solve_ladder(problem, tradeoffs, recall=recall)
    for lower, upper in zip(ladder, list(ladder)[1:], strict=False):
        assert lower.expected_cost <= upper.expected_cost + 1e-9
        assert lower.expected_loss >= upper.expected_loss - 1e-9
    for tradeoff, rung in zip(tradeoffs, ladder, strict=True):
        assert rung.value == pytest.approx(
            tt.solve(problem, tradeoff, recall=recall).value, abs=1e-12
        )


def test_a_ladder_is_refused_where_no_policy_is_sure_of_an_answer():
    sometimes = tt.Problem.line([0.1, math.inf], [1.0], [[0.5, 0.5]])
    for problem in (sometimes, sometimes.with_moves("precedence")):
        with pytest.raises(ProblemError, match="no policy is sure of an answer"):
            tt.solve_ladder(problem, [0.0, 0.5])


def test_without_recall_open_branches_are_refused_with_both_remedies():
    branches = tt.Problem.forest([0.1], [1.0, 1.0], [[1.0], [1.0]], [None, None])
    with pytest.raises(ProblemError, match='use "moves": "walk", or keep recall'):
        tt.solve_ladder(branches, [0.5], recall=False)


def test_without_recall_a_line_is_a_walk_whatever_its_moves():
    ladder = tt.solve_ladder(CASCADE.with_moves("precedence"), [0.3, 0.6], recall=False)
    for policy in ladder:
        assert (policy.problem.moves, policy.recall) == ("walk", False)
        assert policy.value == tt.solve(CASCADE, policy.tradeoff, recall=False).value


# Where routes meet, what is paid on each of them must not be mixed up.


def detour(first, second, direct):
    """Join two informers and a node, which is asked last by two routes of these costs."""
    none = math.inf
    return tt.Problem.skip(
        [[none, none], [none], [0.0, 1.0]],
        {(None, 0): 0.1, (0, 1): first, (1, 2): second, (0, 2): direct, (None, 1): 9, (None, 2): 9},
        {
            (None, 0): [0.5, 0.5],
            (None, 1): [1.0],
            (None, 2): [0.0, 1.0],
            (0, 1): [[1.0], [1.0]],
            (0, 2): [[1.0, 0.0], [0.0, 1.0]],  # from state 1 the other route is better
            (1, 2): [[0.5, 0.5]],
        },
    )


def test_mass_that_comes_by_two_routes_is_added():
    policy = tt.solve(detour(0.1, 0.1, 0.1), 0.9)
    assert policy.asked == {"m1": 1.0, "m2": 0.5, "m3": 1.0}
    assert policy.expected_cost == pytest.approx(0.5 * 0.2 + 0.5 * 0.3)
    assert policy.expected_loss == pytest.approx(0.25)


def test_costs_that_differ_by_rounding_alone_are_one_cost_and_others_are_not():
    assert 0.1 + 0.7 != 0.1 + 0.3 + 0.4
    same = tt.solve(detour(0.3, 0.4, 0.7), 0.9).future()
    assert same.costs == pytest.approx([0.8, 0.8])
    assert same.probabilities == pytest.approx([0.75, 0.25])
    near = tt.solve(detour(0.3, 0.4 + 1e-7, 0.7), 0.9).future()
    assert near.costs == pytest.approx([0.8, 0.8 + 1e-7, 0.8 + 1e-7], abs=1e-12)
    assert near.probabilities == pytest.approx([0.5, 0.25, 0.25])


def test_a_future_of_too_many_costs_is_refused(monkeypatch):
    monkeypatch.setattr("ttamer.policy.base.MAX_COSTS", 1)
    branches = tt.Problem.forest(  # the second node is asked in one state of the first
        [[0.5, 0.6], [0.1, 0.7], [0.2]],
        [0.01, 0.01, 0.05],
        [[0.5, 0.5], [[0.5, 0.5], [0.0, 1.0]], [1.0]],
        [None, 0, None],
    )
    for problem in (detour(0.1, 0.1, 0.1), branches):
        policy = tt.solve(problem, 0.9)
        with pytest.raises(ArgumentError, match="more than 1 distinct values; round the costs"):
            policy.future()


def test_the_future_keeps_costs_far_below_the_largest():
    branches = tt.Problem.forest(
        [[0.0, 0.5]] * 3,
        [1e-13, 3e-13, 1.0],
        [[0.5, 0.5], [0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]]],
        [None, None, 1],
    )
    policy = tt.solve(branches, 0.6)
    future = policy.future()
    assert future.costs == pytest.approx([1e-13, 4e-13, 4e-13], rel=1e-9, abs=0)
    assert future.mean_cost == pytest.approx(policy.expected_cost, rel=1e-9, abs=0)
