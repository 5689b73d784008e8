"""Costs that depend on the state before and on the state seen, against enumeration (Def. C.3)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
from support.oracles import law_of, realisations, weighed
from support.strategies import problems, tradeoffs
from ttamer import ProblemError

CLOSE = 1e-12


@examples(80)
@given(problems("tree", varied=True, informers=False), tradeoffs)
def test_the_one_node_that_stands_for_a_tree_is_the_future_of_the_tree(problem, tradeoff):
    policy = tt.solve(problem, tradeoff)
    alone, whole = policy.equivalent_node("n0"), policy.future()
    law = law_of(*vars(alone).values())
    assert law == pytest.approx(law_of(*vars(whole).values()), abs=CLOSE)


@examples(100)
@given(problems("forest", varied=True, most=3), tradeoffs)
def test_a_prophet_pays_for_the_way_at_its_own_costs(problem, tradeoff):
    value = 0.0
    for chance, states in realisations(problem):
        reach, best = {-1: 0.0}, math.inf
        for node in problem.order:
            parent = problem.ends[problem.incoming[node][0]][0]
            edge = problem.parent_edge(node)
            before = states[parent] if parent >= 0 else 0
            reach[node] = reach[parent] + edge.cost_table[before, states[node]]
            loss = weighed(float(problem.nodes[node].losses[states[node]]), tradeoff)
            best = min(best, loss + (1 - tradeoff) * reach[node])
        value += chance * best
    assert tt.offline_optimum(problem, tradeoff) == pytest.approx(value, abs=CLOSE)


def test_the_simulated_mean_is_the_expected_one():
    problem = tt.Problem.line(
        losses=[[0.1, 0.6], [0.0, 0.5]],
        costs=[[[0.1, 0.3]], [[0.1, 0.2], [0.0, 0.4]]],
        probabilities=[[0.5, 0.5], [[0.9, 0.1], [0.3, 0.7]]],
    )
    policy = tt.solve(problem, 0.8)
    drawn = tt.simulate(policy, 20_000, seed=0)
    assert drawn.cost.mean() == pytest.approx(policy.expected_cost, abs=0.01)
    assert drawn.objective.mean() == pytest.approx(policy.value, abs=0.01)


def test_solving_with_the_mean_cost_loses_where_the_cost_depends_on_the_state_before():
    """Going on is free after the bad state and expensive after the good one; the mean hides it."""
    varied = tt.Problem.line(
        losses=[[0.4, 0.5], [0.0]],
        costs=[0.0, [1.0, 0.0]],
        probabilities=[[0.5, 0.5], [[1.0], [1.0]]],
    )
    policy = tt.solve(varied, 0.5)
    assert policy.value == pytest.approx(0.5 * 0.5 * 0.4)
    assert policy.if_stop("m1")[:, -2].tolist() == [True, False]


def test_skips_of_a_line_with_such_costs_are_refused():
    line = tt.Problem.line([0.0, 1.0], [0.1, [0.1, 0.2]], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    with pytest.raises(ProblemError, match=r"use Problem\.skip with a cost for every pair"):
        tt.Problem.skip_of(line)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ([0.1, 0.2], r"costs have shape \(2,\); give one number, a list of 1"),
        ([[0.1, 0.2, 0.3]], r"shape \(1, 3\).*table of 1 row\(s\) of 2"),
        ([-1.0], "state 0: the cost is -1.0; it must be finite and not negative"),
        ([[0.1, math.inf]], "row 0, column 1: the cost is inf"),
    ],
)
def test_a_cost_of_another_shape_or_below_zero_is_refused(cost, words):
    edge = tt.Edge(None, "a", cost=cost, probabilities=[0.5, 0.5])
    with pytest.raises(ProblemError, match=words):
        tt.Problem("walk", (tt.Node("a", [0.1, 0.2]),), (edge,))
