"""Alg. 3 step by step: each one node has the index of the subtree it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.strategies import problems
from ttamer import ArgumentError, ProblemError
from ttamer.theory import contract


@examples(60)
@given(problems("forest", varied=True, informers=False), st.floats(0.05, 1))
def test_the_one_node_has_the_index_of_the_subtree(problem, tradeoff):
    steps = contract(problem, tradeoff)
    assert {step.node for step in steps} == set(problem.names)
    for step in steps:
        for index, law in zip(step.index.tolist(), step.laws, strict=True):
            gain = index / tradeoff - law.mean_loss(index / tradeoff)
            assert tradeoff * gain == pytest.approx((1 - tradeoff) * law.mean_cost, abs=1e-11)


def test_one_law_for_all_fallbacks_is_not_enough():
    """With a better fallback in hand the second node is not asked: another law."""
    line = tt.Problem.line([0.0, 1.0], [0.1, 0.3], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    policy = tt.solve(line.with_moves("precedence"), 0.5)
    costs = {f: policy.equivalent_node("m1", fallback=f).mean_cost for f in (0.2, 5.0)}
    assert costs[0.2] < costs[5.0]


def test_each_step_names_the_nodes_that_one_node_stands_for():
    line = tt.Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    assert [step.members for step in contract(line, 0.5)] == [("m2",), ("m1", "m2")]


def test_what_cannot_be_contracted_is_refused():
    line = tt.Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    with pytest.raises(ArgumentError, match="a tradeoff above 0"):
        contract(line, 0)
    with pytest.raises(ProblemError, match="no single node stands for"):
        contract(tt.Problem.skip_of(line), 0.5)
