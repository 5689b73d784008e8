"""Answers that may be returned unseen, against enumeration."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import assert_play_is_as_stated, available, cost_of, stop_loss, weighed
from support.strategies import costs, problems, rows, supports, tradeoffs
from ttamer import Edge, Node, ObservationError, Problem, ProblemError
from ttamer.cli import main
from ttamer.policy.surrogate import Surrogate
from ttamer.solvers import forest

CLOSE = 1e-12


@st.composite
def with_looks(draw, topology=None, informers=True, varied=False):
    """A problem in which looking at some answers costs something."""
    problem = draw(problems(topology, most=3, informers=informers, varied=varied))
    looks = st.one_of(st.none(), costs)
    edges = [replace(edge, verify_cost=draw(looks)) for edge in problem.edges]
    return Problem(problem.moves, problem.nodes, tuple(edges))


@st.composite
def boxes(draw):
    """Independent nodes without children, each of which may be returned unseen."""
    support = draw(supports(draw(st.integers(1, 3)), informers=False))
    tables = [draw(rows(1, len(own))) for own in support]
    names, prices = [f"n{k}" for k in range(len(support))], [draw(costs) for _ in support]
    roots = Problem.forest(support, prices, tables, [None] * len(support), names=names)
    edges = [replace(edge, verify_cost=draw(costs)) for edge in roots.edges]
    return Problem("precedence", roots.nodes, tuple(edges))


def best_unseen(problem, tradeoff, history=()):
    """The least expected weighed loss and further cost, looking or not; by full histories."""
    best = weighed(stop_loss(problem, history, recall=True), tradeoff)
    for number, law in available(problem, history):
        edge, target = problem.edges[number], problem.ends[number][1]
        looked = unseen = 0.0
        for state, chance in enumerate(law):
            if chance > 0:
                price = (1 - tradeoff) * cost_of(problem, number, history, state)
                look = (1 - tradeoff) * (edge.verify_cost or 0.0)
                after = best_unseen(problem, tradeoff, (*history, (target, state)))
                looked += chance * (price + look + after)
                own = weighed(float(problem.nodes[target].losses[state]), tradeoff)
                unseen += chance * (price + own)
        best = min(best, looked, unseen if edge.verify_cost is not None else math.inf)
    return best


def looked_at(problem):
    """The same problem without the right to return an answer unseen."""
    edges = [
        replace(edge, cost=edge.cost + (edge.verify_cost or 0.0), verify_cost=None)
        for edge in problem.edges
    ]
    return Problem(problem.moves, problem.nodes, tuple(edges))


@examples(120)
@given(st.data(), st.sampled_from(["line", "skip", "dag"]), tradeoffs)
def test_lines_and_walks_are_exact(data, topology, tradeoff):
    problem = data.draw(with_looks(topology, varied=True))
    best = best_unseen(problem, tradeoff)
    if best == math.inf:
        with pytest.raises(ProblemError, match="no policy is sure of an answer"):
            tt.solve(problem, tradeoff)
        return
    policy = tt.solve(problem, tradeoff)
    assert policy.value == pytest.approx(best, abs=CLOSE)
    assert_play_is_as_stated(policy)
    if problem.is_line:
        as_index = tt.solve(problem.with_moves("precedence"), tradeoff)
        assert as_index.value == pytest.approx(best, abs=CLOSE)


@examples(100)
@given(boxes(), tradeoffs)
def test_independent_nodes_are_within_four_thirds(problem, tradeoff):
    best = best_unseen(problem, tradeoff)
    policy = tt.solve(problem, tradeoff)
    assert best - CLOSE <= policy.value <= 4 / 3 * best + CLOSE
    assert problem.is_line or policy.bound <= best + CLOSE
    assert policy.value <= tt.solve(looked_at(problem), tradeoff).value + CLOSE
    assert_play_is_as_stated(policy)


@examples(60)
@given(st.data(), st.sampled_from(["multi_line", "tree", "forest"]), tradeoffs)
def test_forests_are_never_worse_than_always_looking(data, topology, tradeoff):
    problem = data.draw(with_looks(topology, informers=False, varied=True))
    policy = tt.solve(problem, tradeoff)
    best = best_unseen(problem, tradeoff)
    assert policy.value >= best - CLOSE
    if policy.bound is not None:
        assert policy.bound <= best + CLOSE
        assert policy.value <= policy.ratio * best * (1 + 1e-9) + CLOSE
    assert policy.value <= tt.solve(looked_at(problem), tradeoff).value + CLOSE
    assert_play_is_as_stated(policy)


def two_boxes():
    """The best policy first looks at one node, then may return the other unseen."""
    nodes = (Node("a", [0.0, 1.0]), Node("b", [0.2, 0.6]))
    edges = (
        Edge(None, "a", cost=0.01, probabilities=[0.5, 0.5], verify_cost=0.05),
        Edge(None, "b", cost=0.02, probabilities=[0.5, 0.5], verify_cost=0.3),
    )
    return Problem("precedence", nodes, edges)


def test_one_state_without_an_answer_does_not_rule_out_the_others():
    supports, table = [[0.5, 0.5], [0.0, 0.2, math.inf]], [[0.5, 0.5, 0.0], [0.4, 0.4, 0.2]]
    line = Problem.line(supports, [0.0, 0.01], [[0.5, 0.5], table])
    first, second = line.edges
    line = Problem("walk", line.nodes, (first, replace(second, verify_cost=0.2)))
    for moves in ("walk", "precedence"):
        assert tt.solve(line.with_moves(moves), 0.5).value == pytest.approx(0.125)
    assert best_unseen(line, 0.5) == pytest.approx(0.125)


def test_a_hedged_forest_pays_what_is_observed():
    edges = [
        Edge(None, "a", cost=[[0.0, 0.1]], verify_cost=0.05, probabilities=[[0.5, 0.5]]),
        Edge(None, "b", cost=0.05, verify_cost=0.1, probabilities=[[0.4, 0.6]]),
    ]
    forest = Problem("precedence", [Node("a", [0.0, 1.0]), Node("b", [0.1, 0.9])], edges)
    policy = tt.solve(forest, 0.8)
    turn = policy.session()
    assert turn.next == "a"
    turn.observe(1)
    assert turn.cost == pytest.approx(0.15)
    batch = policy.batch(2)
    batch.observe([0, 1])
    assert batch.cost == pytest.approx([0.05, 0.15])
    assert set(policy.future().costs.round(9)) <= {0.05, 0.2, 0.15, 0.3}


def test_a_session_accepts_what_is_not_looked_at():
    policy = tt.solve(two_boxes(), 0.6)
    turn = policy.session()
    assert turn.next == "a"
    assert not turn.is_certain
    with pytest.raises(ObservationError, match="looks at the answer of 'a'"):
        turn.accept()
    turn.observe(1)
    assert turn.next == "b"
    assert turn.is_certain
    turn.accept()
    assert (turn.next, turn.answer, turn.is_certain) == (None, "b", False)
    assert turn.cost == pytest.approx(0.08)
    with pytest.raises(ObservationError, match="has stopped"):
        turn.accept()
    assert policy.value < tt.solve(looked_at(two_boxes()), 0.6).value - 0.02


def test_a_walk_has_a_leaf_for_each_answer_returned_unseen():
    half = [0.5, 0.5]
    nodes = (Node("a", [0.1, 0.5]), Node("b", [0.0, 0.3]), Node("b (unseen after a)", [0.9]))
    edges = (
        Edge(None, "a", cost=0.1, probabilities=half, verify_cost=0.2),
        Edge(None, "b", cost=0.2, probabilities=half, verify_cost=0.2),
        Edge("a", "b", cost=0.2, probabilities=[half, half], verify_cost=0.2),
        Edge("b", "b (unseen after a)", cost=0.2, probabilities=[[1.0], [1.0]]),
    )
    policy = tt.solve(Problem("walk", nodes, edges), 0.5)
    assert policy.problem.names[3:] == (
        "a (unseen)",
        "b (unseen after the start)",
        "b (unseen after a)'",
    )
    turn = policy.session()
    assert turn.next == "b (unseen after the start)"
    turn.accept()
    assert turn.answer == "b (unseen after the start)"


def test_an_answer_that_may_be_missing_is_looked_at():
    edge = Edge(None, "a", cost=0.1, probabilities=[0.5, 0.5], verify_cost=0.2)
    other = Edge("a", "b", cost=0.1, probabilities=[[1.0], [1.0]], verify_cost=0.0)
    nodes = (Node("a", [0.1, math.inf]), Node("b", [0.4]))
    line = tt.solve(Problem("walk", nodes, (edge, other)), 0.5)
    assert line.problem.names == ("a", "b", "b (unseen)")
    tree = Problem(
        "precedence",
        (*nodes, Node("c", [0.4])),
        (edge, other, Edge("a", "c", cost=0.1, probabilities=[[1.0], [1.0]])),
    )
    assert tt.solve(tree, 0.5).value == pytest.approx(best_unseen(tree, 0.5), abs=CLOSE)


def test_a_file_keeps_what_looking_costs(tmp_path):
    problem = two_boxes()
    problem.to_file(tmp_path / "problem.json")
    again = Problem.from_file(tmp_path / "problem.json")
    assert [edge.verify_cost for edge in again.edges] == [0.05, 0.3]
    assert again.has_unseen_answers
    assert not looked_at(problem).has_unseen_answers
    line = Problem("walk", problem.nodes[:1], problem.edges[:1])
    assert [e.verify_cost for e in Problem.multi_line([line, line]).edges] == [0.05, 0.05]


@pytest.mark.parametrize("value", [-1.0, math.inf])
def test_a_price_that_cannot_be_is_refused(value):
    edge = Edge(None, "a", cost=0.1, probabilities=[1.0], verify_cost=value)
    with pytest.raises(ProblemError, match="it must be finite"):
        Problem("walk", (Node("a", [0.1]),), (edge,))


def test_what_is_not_solved_is_refused():
    half = [0.5, 0.5]
    nodes = tuple(Node(name, [0.1, 0.8]) for name in "abc")
    first = [Edge(None, name, cost=0.1, probabilities=half, verify_cost=0.1) for name in "ab"]
    judge = Edge(("a", "b"), "c", cost=0.1, probabilities=[[half, half]] * 2)
    with pytest.raises(ProblemError, match="asked after several others"):
        tt.solve(Problem("precedence", nodes, (*first, judge)), 0.5)
    looked = Edge(("a", "b"), "c", cost=0.1, probabilities=[[half, half]] * 2, verify_cost=0.1)
    with pytest.raises(ProblemError, match="several sources"):
        Problem("precedence", nodes, (*first, looked))
    data = two_boxes().to_dict()
    data["edges"][0]["verify_cost"] = "much"
    with pytest.raises(ProblemError, match=r"edges\[0\].verify_cost: expected `float"):
        Problem.from_dict(data)


def test_unseen_looks_where_that_is_never_worse_and_mixes_where_neither_is():
    def both(losses, chances, cost, mean):
        law = Surrogate.of_losses(np.array(losses)).mixed(np.array([chances]))
        return law.raised(law.index(cost)), Surrogate.of_losses(np.array([mean]))

    assert forest.hedge(*both([0.0, 1.0], [0.5, 0.5], 0.0, 0.5)) == 1.0
    assert forest.hedge(*both([0.5], [1.0], 0.3, 0.5)) == 0.0
    assert 0 < forest.hedge(*both([0.0, 1.0], [0.5, 0.5], 0.2, 0.5)) < 1
    assert forest.hedge(*both([0.0], [1.0], 0.0, 0.0)) == 1.0


def test_of_many_cells_none_is_tried_one_by_one(monkeypatch):
    exact = tt.solve(two_boxes(), 0.6).value
    monkeypatch.setattr(forest, "MAX_TRIED", 0)
    assert exact <= tt.solve(two_boxes(), 0.6).value <= 4 / 3 * exact
    monkeypatch.setattr(forest, "_hedged", lambda *_: dict.fromkeys(range(2), 0.0))
    looked = tt.solve(looked_at(two_boxes()), 0.95).value
    assert tt.solve(two_boxes(), 0.95).value <= looked + CLOSE


@pytest.mark.parametrize("moves", ["walk", "precedence"])
def test_the_command_solves_and_a_prophet_need_not_look(tmp_path, capsys, moves):
    problem = two_boxes()
    if moves == "walk":
        after = Edge("a", "b", cost=0.02, probabilities=[[0.5, 0.5]] * 2, verify_cost=0.3)
        problem = Problem("walk", problem.nodes, (problem.edges[0], after))
    problem.to_file(tmp_path / "problem.json")
    found = tt.optima(problem, 0.6)
    assert found.offline < found.online
    assert main(["solve", str(tmp_path / "problem.json"), "--tradeoff", "0.6", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["optima"]["offline"] == found.offline
    assert facts["value"] == pytest.approx(found.online)
    assert main(["solve", str(tmp_path / "problem.json"), "--tradeoff", "0.6"]) == 0
    assert "First ask a" in capsys.readouterr().out


def test_below_the_roots_looks_that_do_not_pay_are_left_out():
    half = [0.5, 0.5]
    nodes = (Node("a", [0.1, 0.9]), Node("b", [0.0, 0.3]), Node("c", [0.8, 0.9]))
    edges = (
        Edge(None, "a", cost=0.01, probabilities=half),
        Edge("a", "b", cost=0.05, probabilities=[half, half], verify_cost=0.4),
        Edge("a", "c", cost=0.05, probabilities=[half, half]),
    )
    tree = Problem("precedence", nodes, edges)
    policy = tt.solve(tree, 0.6)
    assert policy.value == pytest.approx(best_unseen(tree, 0.6), abs=CLOSE)
    assert policy.value < tt.solve(looked_at(tree), 0.6).value - 0.05
