"""Drawings are well-formed SVG that shows every node, and nothing unescaped."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given

import ttamer as tt
from support.examples import examples
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
def test_with_several_parents_the_sets_asked_so_far_are_drawn(problem):
    policy = tt.solve(problem, 0.5)
    assert set(policy.walk.problem.names) <= set(texts(policy.plot()))


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
    assert any(text.endswith(", ...") for text in texts(index.plot()))


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
