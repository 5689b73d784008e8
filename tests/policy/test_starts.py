"""Where a session may start, and starting elsewhere than the policy would."""

from __future__ import annotations

import pytest

import ttamer as tt

COSTS = {"a": 0.1, "b": 0.2, "c": 0.3}


def problem(moves: str) -> tt.Problem:
    nodes = [tt.Node(name, [0.0, 0.5]) for name in COSTS]
    edges = [
        tt.Edge(None, name, cost=cost, probabilities=[[0.5, 0.5]]) for name, cost in COSTS.items()
    ]
    if moves == "walk":
        rows = [[0.9, 0.1], [0.2, 0.8]]
        pairs = [("a", "b"), ("a", "c"), ("b", "c")]
        edges += [
            tt.Edge(first, then, cost=COSTS[then], probabilities=rows) for first, then in pairs
        ]
    return tt.Problem(moves, nodes, edges)


@pytest.mark.parametrize(
    ("moves", "recall"), [("walk", True), ("walk", False), ("precedence", True)]
)
@pytest.mark.parametrize("first", COSTS)
def test_a_session_starts_at_the_state_given(moves, recall, first):
    of = problem(moves)
    session = tt.solve(of, 0.9, recall=recall).session()
    assert session.starts == COSTS
    assert session.names == tuple(COSTS)
    assert session.problem is of
    session.start_with(first)
    assert session.next == first
    assert session.price == COSTS[first]
    session.observe(0)  # nothing is better than a loss of 0
    assert (session.next, session.answer) == (None, first)
    assert session.cost == COSTS[first]
    assert not session.capped


def test_other_roots_are_still_asked_after_the_first():
    session = tt.solve(problem("precedence"), 0.9).session()
    session.start_with("c")
    session.observe(1)
    asked = [session.next]
    session.observe(1)
    asked.append(session.next)
    assert asked == ["a", "b"]


def test_without_recall_a_node_that_fails_is_passed_on_the_way_to_the_best_next():
    session = tt.solve(problem("walk"), 0.9, recall=False).session()
    session.start_with("a")
    session.fail()
    assert session.next in ("b", "c")
    while session.next is not None:
        session.fail()
    assert (session.next, session.answer) == (None, None)
