"""Betting on a change: fair, and as good late as early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.drift.wager import ChangeBet, stakes_against


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    st.floats(0.05, 0.95),
    st.integers(1, 6),
)
def test_what_is_owned_is_one_on_average_over_all_ways_a_fair_game_can_go(sizes, chance, rows):
    # A bet on 1 with this chance pays (1 - chance) / chance per unit staked.
    win, lose = 1 + np.array(sizes) * (1 - chance) / chance, 1 - np.array(sizes)
    mean = 0.0
    for way in itertools.product([True, False], repeat=rows):
        bet = ChangeBet(1, len(sizes))
        for won in way:
            bet.take((win if won else lose)[np.newaxis])
        mean += float(np.prod([chance if won else 1 - chance for won in way]) * bet.owned[0])
    assert mean == pytest.approx(1.0)


@given(st.floats(-3.0, -0.01), st.floats(0.0, 1.0))
def test_no_bet_can_be_lost_whole(least, between):
    value = least * between
    assert (1 + stakes_against(least) * value >= 0.1 - 1e-9).all()


def rows_until(owned: float, quiet: int) -> int:
    rng = np.random.default_rng(3)
    bet = ChangeBet(1, len(stakes_against(-0.1)))
    for row in range(quiet + 2000):
        wrong = rng.random() < (0.08 if row < quiet else 0.3)
        bet.take(1 + stakes_against(-0.1) * (np.array([[wrong]]) - 0.1))
        if bet.owned[0] >= owned:
            return row - quiet
    return 2000


def test_a_late_change_is_found_almost_as_soon_as_an_early_one():
    assert 0 < rows_until(100, 0) < 100
    assert 0 < rows_until(100, 3000) < 150


def test_it_says_since_when_there_was_a_change():
    rng = np.random.default_rng(0)
    bet = ChangeBet(1, 7)
    for row in range(400):
        wrong = rng.random() < (0.05 if row < 300 else 0.5)
        bet.take(1 + stakes_against(-0.1) * (np.array([[wrong]]) - 0.1))
    assert 85 <= bet.growth(0).since <= 102


def test_gamblers_do_not_share():
    bet = ChangeBet(2, 1)
    for _ in range(100):
        bet.take(np.array([[1.5], [1.0]]))
    assert bet.owned[0] > 1e6
    assert bet.owned[1] == pytest.approx(1.0)


def test_what_is_owned_stays_a_number_however_long_it_grows():
    bet = ChangeBet(1, 1)
    for _ in range(5000):
        bet.take(np.array([[2.0]]))
    assert np.isfinite(bet.owned[0])
