"""Whether a chain is Markov, and what assuming it costs, on chains that are known."""

from __future__ import annotations

import numpy as np
import pytest

from ttamer import ArgumentError, Problem, solve
from ttamer.stats import markov_cost, markov_test


def chain(seed, rows=2000):
    generator = np.random.default_rng(seed)
    tables = [generator.dirichlet(np.ones(3), size=3) for _ in range(3)]
    states = np.zeros((rows, 4), int)
    states[:, 0] = generator.integers(3, size=rows)
    for node, table in enumerate(tables):
        uniform = generator.random((rows, 1))
        states[:, node + 1] = (
            (table[states[:, node]].cumsum(axis=1) < uniform).sum(axis=1).clip(0, 2)
        )
    return states


def hidden(seed, rows=2000):
    """The last state is the first one's: the middle says nothing of it."""
    generator = np.random.default_rng(seed)
    first = generator.integers(2, size=rows)
    return np.stack([first, generator.integers(2, size=rows), first], axis=1)


def test_markov_chains_are_rarely_called_otherwise_and_others_always():
    p_values = [markov_test(chain(seed, 300), permutations=99).p_value for seed in range(60)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1
    found = markov_test(hidden(0), permutations=99)
    assert found.p_value == 0.01
    assert found.information == pytest.approx((1.0,), abs=0.01)


def test_unknown_states_are_left_out():
    states = hidden(1, 400)
    states[:100, 0] = -1
    assert markov_test(states, permutations=19).p_value == pytest.approx(1 / 20)
    assert markov_test(np.full((3, 3), -1)).p_value == 1.0
    assert markov_test(states[:, :2]).p_value == 1.0


def test_what_the_assumption_costs_is_the_difference_of_two_optima():
    # Asking the last node pays only where the first state was 0, and only memory knows it.
    losses = [np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([0.0, 1.0])]
    costs = np.array([0.0, 0.0, 0.3])
    found = markov_cost(hidden(0, 20_000), losses, costs, 0.5)
    blind = Problem.line(losses, costs, [[0.5, 0.5], [[0.5, 0.5]] * 2, [[0.5, 0.5]] * 2])
    known = 0.5 * (0.5 * 0.3) + 0.5 * (0.5 * 0.5)
    assert found.mean == pytest.approx(
        solve(blind, 0.5).value - known, abs=4 * found.standard_error
    )
    honest = markov_cost(chain(1, 5000), [np.linspace(0, 1, 3)] * 4, np.full(4, 0.05), 0.6)
    assert abs(honest.mean) <= max(4 * honest.standard_error, 0.002)


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ArgumentError, match="integers of shape"):
        markov_test(np.zeros((3, 3)))
    with pytest.raises(ArgumentError, match="every state is known"):
        markov_cost(np.full((3, 2), -1), [np.zeros(1)] * 2, np.zeros(2), 0.5)
