"""Nodes that are asked after several others, against enumeration (Problem 2.4, Lem. C.6)."""

from __future__ import annotations

import numpy as np
import pytest

import ttamer as tt
from support.oracles import best_value
from ttamer import ArgumentError, ObservationError, ProblemError
from ttamer.cli import main

CLOSE = 1e-12


def judged(cost=0.05):
    """Two models, and a judge that reads both answers."""
    rows = [[[0.99, 0.01], [0.8, 0.2]], [[0.7, 0.3], [0.3, 0.7]]]
    return tt.Problem.from_dict(
        {
            "moves": "precedence",
            "nodes": [
                {"name": "a", "losses": [0.1, 0.6]},
                {"name": "b", "losses": [0.2, 0.5]},
                {"name": "judge", "losses": [0.0, 0.4]},
            ],
            "edges": [
                {"from": None, "to": "a", "cost": 0.02, "probabilities": [[0.5, 0.5]]},
                {"from": None, "to": "b", "cost": 0.04, "probabilities": [[0.5, 0.5]]},
                {"from": ["a", "b"], "to": "judge", "cost": cost, "probabilities": rows},
            ],
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_lemma_c6_with_increasing_indices_the_order_is_a_then_b_then_c(seed):
    """A and B independent, C after both: with sigma(A) < sigma(B) < sigma(C) ask A, B, C."""
    rng = np.random.default_rng(seed)
    problem = tt.Problem(
        "precedence",
        (tt.Node("a", [0.0, 1.0]), tt.Node("b", [0.3, 1.0]), tt.Node("c", [0.6, 1.0])),
        (
            tt.Edge(None, "a", cost=0.1, probabilities=[0.5, 0.5]),
            tt.Edge(None, "b", cost=0.1, probabilities=[0.5, 0.5]),
            tt.Edge(("a", "b"), "c", cost=0.02, probabilities=rng.dirichlet([2, 1], size=(2, 2))),
        ),
    )
    policy = tt.solve(problem, 0.5)
    assert policy.value == pytest.approx(best_value(problem, 0.5), abs=CLOSE)
    turn = policy.session()
    order = []
    while turn.next is not None:
        order.append(turn.next)
        turn.observe(1)
    assert order == ["a", "b", "c"]


def test_a_judge_is_asked_after_both_where_it_pays():
    policy = tt.solve(judged(), 0.7)
    assert policy.value == pytest.approx(best_value(judged(), 0.7), abs=CLOSE)
    turn = policy.session()
    assert turn.explain().why.startswith("there is no answer yet: ask")
    assert (turn.next, turn.price) == ("a", 0.02)
    turn.observe(1)
    assert (turn.next, turn.price) == ("b", 0.04)
    turn.observe(1)
    assert turn.next == "judge"
    assert "ask 'judge'" in turn.explain().why
    turn.fail()
    assert (turn.next, turn.answer, turn.asked) == (None, "b", ("a", "b", "judge"))
    assert turn.cost == pytest.approx(0.11)
    with pytest.raises(ObservationError, match="has stopped"):
        turn.fail()
    with pytest.raises(ObservationError, match="has states 0 to 1, not 2"):
        policy.session().observe(2)
    drawn = tt.simulate(policy, 20_000, seed=0)
    assert drawn.objective.mean() == pytest.approx(policy.value, abs=0.01)


def test_what_depends_on_all_that_was_asked_has_no_table_by_node():
    policy = tt.solve(judged(), 0.7)
    assert policy.problem.names[policy.choice()[0, -1]] in ("a", "b")
    assert policy.equivalent_loss()[0, -1] == pytest.approx(policy.value)
    for call in (policy.index, policy.choice, policy.equivalent_loss, policy.future):
        with pytest.raises(ArgumentError, match=r"use a session, or the tables of policy\.walk"):
            call("judge")
    assert "judge (after a, b)" in policy.walk.problem.names


def test_a_ladder_and_no_recall():
    ladder = tt.solve_ladder(judged(), [0.2, 0.7])
    assert [type(policy).__name__ for policy in ladder] == ["JointPolicy"] * 2
    with pytest.raises(ProblemError, match="without recall"):
        tt.solve(judged(), 0.5, recall=False)
    best = tt.optima(judged(), 0.5)
    assert (best.offline, best.no_recall) == (None, None)


def test_the_walk_can_be_saved_and_the_policy_names_it(tmp_path):
    policy = tt.solve(judged(), 0.7)
    with pytest.raises(ArgumentError, match=r"save policy\.walk"):
        tt.save(policy, tmp_path / "judge.ttamer")
    tt.save(policy.walk, tmp_path / "judge.ttamer")
    assert tt.load(tmp_path / "judge.ttamer").value == policy.value


def test_names_with_commas_tell_sets_apart():
    """The sets {a, b} and {"a, b"} have the same text."""
    half = [0.5, 0.5]
    names = ["a", "b", "a, b", "c"]
    judge = tt.Edge(("a", "b"), "judge", cost=0.1, probabilities=[[half, half], [half, half]])

    def value(names):
        nodes = tuple(tt.Node(name, [0.0, 1.0]) for name in (*names, "judge"))
        edges = [tt.Edge(None, name, cost=0.1, probabilities=half) for name in names]
        return tt.solve(tt.Problem("precedence", nodes, (*edges, judge)), 0.5).value

    assert value(names) == value(["a", "b", "d", "c"])


def test_too_many_sets_are_refused_with_the_limit():
    roots = [tt.Edge(None, f"n{i}", cost=0.1, probabilities=[0.5, 0.5]) for i in range(12)]
    last = tt.Edge(
        tuple(f"n{i}" for i in range(12)),
        "judge",
        cost=0.1,
        probabilities=np.full((2,) * 12 + (2,), 0.5),
    )
    nodes = [tt.Node(f"n{i}", [0.0, 1.0]) for i in range(12)]
    problem = tt.Problem("precedence", (*nodes, tt.Node("judge", [0.0, 1.0])), (*roots, last))
    with pytest.raises(ProblemError, match="more than 20000 states in all"):
        tt.solve(problem, 0.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"from": ["a", 1]}, r"edges\[2\].from\[1\]: expected `str`"),
        ({"from": ["a", "z"]}, "there is no node 'z'"),
        ({"from": ["a", "a"]}, "given twice as its source"),
        ({"probabilities": [[1.0, 0.0]] * 2}, "must have 2 x 2 row"),
    ],
)
def test_a_wrong_edge_from_several_nodes_is_refused(changes, words):
    data = judged().to_dict()
    data["edges"][2] = {**data["edges"][2], **changes}
    with pytest.raises(ProblemError, match=words):
        tt.Problem.from_dict(data)


def test_on_a_walk_an_edge_leaves_one_node():
    data = {**judged().to_dict(), "moves": "walk"}
    with pytest.raises(ProblemError, match="on a walk an edge leaves one node"):
        tt.Problem.from_dict(data)


def test_the_command_refuses_what_a_file_does_not_hold_before_it_solves(
    tmp_path, capsys, monkeypatch
):
    for solver in ("solve", "solve_ladder"):
        monkeypatch.setattr(f"ttamer.cli.solve.{solver}", lambda *_, **__: 1 / 0)
    half = [[0.5, 0.5]]
    nodes = [tt.Node(name, [0.0, 1.0]) for name in "abc"]
    edges = [tt.Edge(None, x, cost=0.1, verify_cost=0.1, probabilities=half) for x in "ab"]
    hedged = tt.Problem("precedence", nodes[:2], edges)
    plain = [tt.Edge(None, name, cost=0.1, probabilities=half) for name in "ab"]
    judge = tt.Edge(("a", "b"), "c", cost=0.1, probabilities=[half * 2] * 2)
    joint = tt.Problem("precedence", nodes, [*plain, judge])
    boxes = tt.Problem("precedence", nodes[:2], plain)
    path, output = tmp_path / "problem.json", str(tmp_path / "policy.ttamer")
    for problem, options, said in (
        (joint, ["--tradeoff", "0.5"], "a node with several parents"),
        (boxes, ["--tradeoff", "0.5", "--max-cost", "0.1"], "or --max-cost"),
        (hedged, ["--ladder", "3"], "each tradeoff has a problem of its own"),
    ):
        problem.to_file(path)
        assert main(["solve", str(path), *options, "-o", output]) == 2
        assert said in capsys.readouterr().err
