"""E-processes are fair without a change, and find late changes as soon as early ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.drift.monitor import (
    ConformalPValues,
    MixtureEProcess,
    bet_sizes,
    pvalue_increments,
)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    st.floats(0.05, 0.95),
    st.integers(1, 6),
)
def test_wealth_is_one_on_average_over_all_outcomes_of_a_fair_game(sizes, chance, rows):
    # A bet on 1 with this chance gains (1 - chance) / chance per unit.
    win, lose = 1 + np.array(sizes) * (1 - chance) / chance, 1 - np.array(sizes)
    mean = 0.0
    for way in itertools.product([True, False], repeat=rows):
        process = MixtureEProcess(1, len(sizes))
        for won in way:
            process.update((win if won else lose)[np.newaxis])
        mean += float(np.prod([chance if won else 1 - chance for won in way]) * process.wealth[0])
    assert mean == pytest.approx(1.0)


@given(st.floats(-3.0, -0.01), st.floats(0.0, 1.0))
def test_no_bet_can_lose_everything(least, between):
    value = least * between
    assert (1 + bet_sizes(least) * value >= 0.1 - 1e-9).all()


def rows_until(wealth: float, quiet: int) -> int:
    rng = np.random.default_rng(3)
    process = MixtureEProcess(1, len(bet_sizes(-0.1)))
    for row in range(quiet + 2000):
        wrong = rng.random() < (0.08 if row < quiet else 0.3)
        process.update(1 + bet_sizes(-0.1) * (np.array([[wrong]]) - 0.1))
        if process.wealth[0] >= wealth:
            return row - quiet
    return 2000


def test_a_late_change_is_found_almost_as_soon_as_an_early_one():
    assert 0 < rows_until(100, 0) < 100
    assert 0 < rows_until(100, 3000) < 150


def test_the_time_of_the_change_is_estimated():
    rng = np.random.default_rng(0)
    process = MixtureEProcess(1, 7)
    for row in range(400):
        wrong = rng.random() < (0.05 if row < 300 else 0.5)
        process.update(1 + bet_sizes(-0.1) * (np.array([[wrong]]) - 0.1))
    assert 85 <= process.since_change(0) <= 102


def test_streams_are_independent():
    process = MixtureEProcess(2, 1)
    for _ in range(100):
        process.update(np.array([[1.5], [1.0]]))
    assert process.wealth[0] > 1e6
    assert process.wealth[1] == pytest.approx(1.0)


def test_wealth_stays_finite():
    process = MixtureEProcess(1, 1)
    for _ in range(5000):
        process.update(np.array([[2.0]]))
    assert np.isfinite(process.wealth[0])


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("reference", [1, 10])
def test_pvalues_are_uniform_and_independent(levels, reference):
    first, second = [], []
    for seed in range(3000):
        rows = np.random.default_rng(seed).integers(0, levels, (reference + 2, 1)).astype(float)
        ranks = ConformalPValues(rows[:reference], seed + 10_000)
        ((one,), (two,)) = ranks.update(rows[reference:])
        first.append(one)
        second.append(two)
    for found in (first, second):
        counts = np.histogram(found, bins=10, range=(0, 1))[0]
        assert (
            (counts - 300) ** 2 / 300
        ).sum() < 28  # chi square with 9 degrees, one in a thousand
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


def test_a_pvalue_is_the_share_of_rows_below():
    ranks = ConformalPValues(np.array([[1.0], [2.0], [3.0]]), 0)
    high, low, between = ranks.update(np.array([[9.0], [0.0], [1.5]]))[:, 0]
    assert 0.75 <= high <= 1.0
    assert 0.0 <= low <= 0.2
    assert 2 / 6 <= between <= 3 / 6  # the rows before count too


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_every_increment_is_positive_and_finite(ranks):
    pays = pvalue_increments(np.array(ranks))
    assert pays.shape == (len(ranks), 18)
    assert (pays > 0).all()
    assert np.isfinite(pays).all()


def test_every_bet_is_fair():
    grid = (np.arange(200_000) + 0.5) / 200_000
    np.testing.assert_allclose(pvalue_increments(grid).mean(axis=0), 1.0, atol=1e-9)
