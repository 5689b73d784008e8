"""Drawings are well-formed SVG that shows every node, and nothing unescaped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from support.oracles import outcomes
from support.strategies import TOPOLOGIES, joint_problems, problems, tradeoffs
from support.traces import answering_trace
from ttamer import ProblemError
from ttamer.cli import main


def texts(svg):
    root = ET.fromstring(svg)  # noqa: S314 - our own text
    return [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_policy_is_drawn_with_all_its_nodes(topology):
    @examples(20)
    @given(problems(topology, varied=True), tradeoffs)
    def check(problem, tradeoff):
        try:
            policy = tt.solve(problem, tradeoff)
        except ProblemError:
            return
        assert set(problem.names) <= set(texts(policy.plot()))

    check()


@examples(10)
@given(joint_problems(informers=False))
def test_with_several_parents_the_nodes_are_drawn_and_what_is_played_after_them(problem):
    policy = tt.solve(problem, 0.5)
    shown = texts(policy.plot())
    assert set(problem.names) <= set(shown)
    played = {node for _, history, _ in outcomes(policy) for node, _ in history}
    asked = {problem.number[name] for name, chance in policy.asked.items() if chance > 0}
    assert asked <= played


@pytest.mark.parametrize("kind", ["tree", "forest", "multi_line", "line", "dag"])
def test_the_rules_shown_are_those_that_are_played(kind):
    @examples(40)
    @given(problems(kind, informers=False), st.floats(0.1, 0.9))
    def check(problem, tradeoff):
        policy = tt.solve(problem, tradeoff)
        rules = {name: policy.rules(name) for name in problem.names}
        for _, history, _ in outcomes(policy):
            turn, best = policy.session(), np.inf
            for node, state in history:
                turn.observe(state)
                rule = rules[problem.names[node]][state]
                best = min(best, rule.loss)
                low, high = rule.stop
                if turn.next is None:
                    assert best <= high * (1 + 1e-9)
                else:
                    assert turn.next in rule.ask
                    assert best > low * (1 - 1e-9)

    check()


def test_boxes_show_who_is_asked_after_whom_in_units_of_loss():
    half = [[0.5, 0.5]]
    boxes = tt.Problem.forest([0.0, 1.0], [0.1, 0.2], half * 2, [None] * 2, names=["a", "b"])
    policy = tt.solve(boxes, 0.5)
    assert [str(rule) for rule in policy.rules("a")] == ["stop", "stop at 0.4, else ask b"]
    assert "1: loss 1, stop at 0.4, else ask b" in texts(policy.plot())
    assert "first ask a" in texts(policy.plot())


def line(states=2):
    losses = np.linspace(0, 1, states)
    rows = np.full((states, states), 1 / states)
    return tt.Problem.line(losses, [0.01, 0.02], [rows[0], rows], names=["<small>", "large & slow"])


@pytest.mark.parametrize("recall", [True, False])
def test_many_states_are_cut_and_names_escaped(recall, tmp_path):
    policy = tt.solve(line(20), 0.5, recall=recall)
    svg = policy.plot(tmp_path / "policy.svg")
    assert (tmp_path / "policy.svg").read_text("utf-8") == svg
    assert {"<small>", "large & slow", "... 20 states"} <= set(texts(svg))
    index = tt.solve(line(20).with_moves("precedence"), 0.5)
    assert "... 20 states" in texts(index.plot())


def test_too_many_courses_of_events_leave_the_rules_open():
    boxes = tt.Problem.forest(np.linspace(0, 1, 9), [1e-3] * 6, [np.full(9, 1 / 9)] * 6, [None] * 6)
    rules = tt.solve(boxes, 0.9).rules("m1")
    assert {(str(rule), rule.stop_text) for rule in rules} == {("-", "-")}


def test_at_tradeoff_0_every_loss_is_good_enough():
    boxes = tt.Problem.forest([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5]] * 2, [None] * 2)
    assert [str(rule) for rule in tt.solve(boxes, 0.0).rules("m1")] == ["stop"] * 2


def test_many_costs_of_an_edge_are_drawn_as_their_range():
    problem = tt.Problem.line([0.0, 0.2, 0.5, 1.0], [[[0.1, 0.2, 0.3, 0.4]]], [np.full(4, 0.25)])
    assert "0.1 to 0.4" in texts(tt.solve(problem, 0.5).plot())


def test_a_session_is_drawn_as_its_path(tmp_path):
    turn = tt.solve(line(), 0.9).session()
    assert "next, costs 0.01" in texts(turn.plot())
    turn.observe(1)
    assert "the best answer so far" in texts(turn.plot())
    turn.observe(0)
    shown = texts(turn.plot(tmp_path / "path.svg"))
    assert "the answer" in shown
    assert "no node is left to ask" in shown[-1]
    assert (tmp_path / "path.svg").exists()


def test_the_command_draws_one_policy(tmp_path, capsys):
    path, drawing = str(tmp_path / "line.json"), str(tmp_path / "line.svg")
    line().to_file(path)
    assert main(["solve", path, "--tradeoff", "0.5", "--draw", drawing]) == 0
    assert f"drawn in {drawing}" in capsys.readouterr().out
    assert main(["solve", path, "--tradeoff", "0.5", "--draw", drawing, "--json"]) == 0
    assert main(["solve", path, "--ladder", "3", "--draw", drawing]) == 2
    assert main(["solve", path, "--tradeoff", "0.5", "--draw", str(tmp_path / "no" / "a.svg")]) == 2


def test_the_path_of_a_fitted_policy_shows_its_beliefs():
    session = tt.fit(answering_trace(300)).at(0.99).session()
    session.observe(confidence=0.5, prediction="a")
    belief = session.explain().beliefs[session.asked[0]]
    assert f"wrong with chance {belief:.2%}" in texts(session.plot())
