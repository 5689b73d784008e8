"""Large and badly scaled problems: memory, long lines, wide trees, wide ranges of losses."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import ttamer as tt
from support.oracles import best_value, outcomes, path_cost, stop_loss
from ttamer import ProblemError
from ttamer.policy.surrogate import subtree_law
from ttamer.solvers import walk


def long_line(nodes, states, *, moves="walk", seed=0):
    """A line whose nodes have supports of their own."""
    rng = np.random.default_rng(seed)
    return tt.Problem.line(
        list(np.sort(rng.random((nodes, states)), axis=1)),
        rng.uniform(0.005, 0.02, nodes),
        [rng.dirichlet(np.ones(states)), *rng.dirichlet(np.ones(states), size=(nodes - 1, states))],
        moves=moves,
    )


def test_a_long_line_is_solved_by_its_indices_and_decides_the_same(monkeypatch):
    problem = long_line(12, 4)
    table = tt.solve(problem, 0.6)
    monkeypatch.setattr("ttamer.solvers.LINE_BYTES", 1)
    index = tt.solve(problem, 0.6)
    assert (type(table), type(index)) == (tt.WalkPolicy, tt.IndexPolicy)
    assert index.value == pytest.approx(table.value, rel=1e-14)
    assert index.expected_loss == pytest.approx(table.expected_loss)
    assert index.expected_cost == pytest.approx(table.expected_cost)
    for name in problem.names:
        assert index.if_stop(name).tolist() == table.if_stop(name).tolist()
        np.testing.assert_allclose(index.equivalent_loss(name), table.equivalent_loss(name))


def test_the_memory_of_a_long_line_grows_with_its_nodes():
    problem = long_line(200, 16)
    assert walk.table_bytes(problem, 1, recall=True) > 2e8
    tracemalloc.start()
    policy = tt.solve(problem.with_moves("precedence"), 0.6)
    _, peak = tracemalloc.get_traced_memory()
    assert policy.expected_cost > 0
    _, with_means = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e7
    assert with_means < 5e7


def test_the_breakpoints_of_a_long_line_do_not_grow_with_its_nodes(monkeypatch):
    points = []

    def counted(*args):
        law = subtree_law(*args)
        points.append(len(law.points))
        return law

    monkeypatch.setattr("ttamer.policy.surrogate.subtree_law", counted)
    problem = tt.Problem.line(
        np.linspace(0, 1, 16), [0.01] * 240, [np.ones(16) / 16, *noisy_rows(239, 16)]
    )
    found = tt.solve(problem.with_moves("precedence"), 0.6)
    assert max(points[120:]) < 1.2 * max(points[:120])  # without dropping any: twice as many
    assert found.value == pytest.approx(tt.solve(problem, 0.6).value, rel=1e-14)


def noisy_rows(count, states):
    """Rows of transitions, the same every time."""
    return np.random.default_rng(0).dirichlet(np.ones(states), size=(count, states))


def test_tables_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    problem = tt.Problem.skip_of(long_line(4, 3))
    monkeypatch.setattr(walk, "MAX_BYTES", 1)
    with pytest.raises(ProblemError, match=r"take 0.0 GB.*12 here.*round the losses"):
        tt.solve(problem, 0.5)


def test_of_many_children_only_the_next_is_put_on_the_heap():
    children = 2_000
    problem = tt.Problem.forest(
        losses=[[1.0], *[[0.9, 1.0]] * children],
        costs=[0.01, *np.linspace(0.001, 0.01, children)],
        probabilities=[[1.0], *[[[0.1, 0.9]]] * children],
        parents=[None, *[0] * children],
    )
    turn = tt.solve(problem, 0.5).session()
    turn.observe(0)
    assert len(turn._open) == 1
    turn.observe(1)
    assert (turn.asked, turn.next, len(turn._open)) == (("m1", "m2"), "m3", 1)
    turn.fail()
    assert (turn.next, len(turn._open)) == ("m4", 1)


@pytest.mark.parametrize("moves", ["walk", "precedence"])
@pytest.mark.parametrize("huge", [1e13, 1e100])
def test_a_huge_loss_does_not_hide_the_gains_of_ordinary_ones(moves, huge):
    problem = tt.Problem.line(
        losses=[[0.5, huge], [0.1, 0.5]],
        costs=[0.01, 0.01],
        probabilities=[[1.0, 0.0], [[0.9, 0.1], [0.9, 0.1]]],
        moves=moves,
    )
    policy = tt.solve(problem, 0.5)
    played = sum(
        chance
        * (0.5 * stop_loss(problem, history, recall=True) + 0.5 * path_cost(problem, history))
        for chance, history, _ in outcomes(policy)
    )
    assert played == pytest.approx(policy.value)
    assert policy.value == pytest.approx(best_value(problem, 0.5))
