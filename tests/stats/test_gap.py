"""The gap to the best of a class: it covers the truth, and is tight."""

from __future__ import annotations

import numpy as np
import pytest

from ttamer import ArgumentError
from ttamer.stats import paired_gap


def thresholds(generator, rows):
    """Objectives of 101 thresholds on a chance of being wrong: ask a second model beyond them."""
    risk = generator.random(rows) ** 2
    wrong = generator.random(rows) < risk
    limits = np.linspace(0, 1, 101)
    asks = risk[:, np.newaxis] > limits
    return np.where(asks, 0.2, wrong[:, np.newaxis]), limits


def truth(limits):
    # P(risk > t) * 0.2 + E[risk; risk <= t], for risk = u ** 2
    root = np.sqrt(limits)
    return 0.2 * (1 - root) + root**3 / 3


def test_the_bound_covers_the_gap_and_is_far_below_that_of_unpaired_means():
    covered, uppers = [], []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        fitted = int(thresholds(generator, 300)[0].mean(axis=0).argmin())
        rows, limits = thresholds(generator, 300)
        gap = paired_gap(rows[:, fitted], rows, draws=300, seed=seed)
        value = truth(limits)
        covered.append(value[fitted] - value.min() <= gap.upper)
        uppers.append(gap.upper)
        assert gap.estimate <= gap.upper
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 200)
    assert np.median(uppers) < 0.05


def test_the_best_candidate_is_named():
    rows = np.random.default_rng(0).random(50)
    better = paired_gap(rows + 0.1, np.stack([rows + 0.2, rows], axis=1))
    assert better.best == 1
    assert better.estimate == pytest.approx(0.1)
    assert better.upper == pytest.approx(0.1)
    with pytest.raises(ArgumentError, match="paired_gap needs objectives"):
        paired_gap(rows, rows)
