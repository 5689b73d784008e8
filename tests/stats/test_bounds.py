"""Bounds against scipy's exact distributions, and by what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from ttamer.errors import ArgumentError
from ttamer.stats.bounds import (
    betting_p,
    betting_upper,
    binomial_p,
    binomial_upper,
    check_confidence,
)

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.floats(0.001, 0.999))
def test_the_binomial_tail_is_scipys(count, at_most):
    wrong, rows = count
    assert binomial_p(wrong, rows, at_most) == pytest.approx(
        stats.binom.cdf(wrong, rows, at_most), rel=1e-9, abs=1e-300
    )


@given(counts, st.floats(0.001, 0.5))
def test_the_binomial_bound_is_clopper_and_pearsons(count, alpha):
    wrong, rows = count
    exact = stats.beta.ppf(1 - alpha, wrong + 1, rows - wrong) if wrong < rows else 1.0
    assert binomial_upper(wrong, rows, alpha) == pytest.approx(exact, abs=1e-9)


def test_a_million_rows_neither_underflow_nor_take_long():
    assert binomial_p(10_000, 1_000_000, 0.02) == 0.0
    assert binomial_p(20_000, 1_000_000, 0.02) == pytest.approx(
        stats.binom.cdf(20_000, 1_000_000, 0.02), rel=1e-6
    )


@pytest.mark.parametrize(
    ("wrong", "rows", "at_most", "p"),
    [(0, 5, 0.0, 1.0), (5, 5, 0.9, 1.0), (5, 5, 1.0, 1.0), (2, 5, 1.0, 0.0), (0, 5, 1.0, 0.0)],
)
def test_the_ends(wrong, rows, at_most, p):
    assert binomial_p(wrong, rows, at_most) == p


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.5])
@pytest.mark.parametrize("rows", [40, 700])
def test_betting_refutes_the_truth_no_more_often_than_its_level(mean, rows):
    alpha, times = 0.1, 1500
    generator = np.random.default_rng(7)
    # Half the loss on twice the rows: a law that is neither the binomial nor symmetric.
    law = [1 - 1.5 * mean, mean, mean / 2]
    drawn = generator.multinomial(rows, law, size=times)
    refuted = sum(
        betting_p([0.0, 0.5, 1.0], each, mean, alpha=alpha, seed=seed) <= alpha
        for seed, each in enumerate(drawn)
    )
    assert refuted / times <= alpha + 3 * (alpha * (1 - alpha) / times) ** 0.5


def test_betting_is_not_idle():
    assert betting_p([0.0, 0.5, 1.0], [10, 980, 10], 0.52, alpha=0.05) < 0.01
    assert betting_upper([0.0, 0.5, 1.0], [10, 980, 10], alpha=0.05) < 0.51


@given(counts, st.integers(0, 5))
def test_the_bound_itself_is_refuted_and_little_less_is_not(count, seed):
    wrong, rows = count
    upper = betting_upper([0.0, 1.0], [rows - wrong, wrong], alpha=0.05, seed=seed)
    assert wrong / rows <= upper <= 1
    if upper < 1:
        args = ([0.0, 1.0], [rows - wrong, wrong])
        assert betting_p(*args, upper, alpha=0.05, seed=seed) <= 0.05
        less = upper - 1e-6
        # No bound lies below the mean of the rows, even if their order happens to refute it.
        assert less < wrong / rows or betting_p(*args, less, alpha=0.05, seed=seed) > 0.05


def test_the_same_counts_give_the_same_bound():
    one, two = (betting_upper([0.0, 1.0], [90, 10], alpha=0.05) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("confidence", [0.4, 1.0, float("nan"), -1])
def test_a_confidence_that_is_none(confidence):
    with pytest.raises(ArgumentError, match=r"from 0\.5 to below 1"):
        check_confidence(confidence)
