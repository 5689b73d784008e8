"""Ranks are uniform while rows are exchangeable, whatever the reference and the ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.drift.ranks import BETS, Ranks, pays_on


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("reference", [1, 10])
def test_ranks_are_uniform_and_tell_nothing_of_the_next(levels, reference):
    first, second = [], []
    for seed in range(3000):
        rows = np.random.default_rng(seed).integers(0, levels, (reference + 2, 1)).astype(float)
        ranks = Ranks(rows[:reference], seed + 10_000)
        first.append(ranks.take(rows[reference])[0])
        second.append(ranks.take(rows[reference + 1])[0])
    for found in (first, second):
        counts = np.histogram(found, bins=10, range=(0, 1))[0]
        assert (
            (counts - 300) ** 2 / 300
        ).sum() < 28  # chi square with 9 degrees, one in a thousand
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


def test_ranks_count_who_is_below():
    ranks = Ranks(np.array([[1.0], [2.0], [3.0]]), 0)
    assert 0.75 <= ranks.take(np.array([9.0]))[0] <= 1.0
    assert 0.0 <= ranks.take(np.array([0.0]))[0] <= 0.2
    assert 2 / 6 <= ranks.take(np.array([1.5]))[0] <= 3 / 6  # it remembers the row before


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_every_bet_pays_something_and_there_are_as_many_as_said(ranks):
    pays = pays_on(np.array(ranks))
    assert pays.shape == (len(ranks), BETS)
    assert (pays > 0).all()
    assert np.isfinite(pays).all()


def test_every_bet_is_fair():
    grid = (np.arange(200_000) + 0.5) / 200_000
    np.testing.assert_allclose(pays_on(grid).mean(axis=0), 1.0, atol=1e-9)
