"""The gap to the best of a class: its bound covers the truth at the stated rate, and is tight."""

from __future__ import annotations

import numpy as np
import pytest

from ttamer import ArgumentError
from ttamer.stats import paired_gap

DRAWS, CONFIDENCE = 200, 0.95
LIMITS = np.linspace(0, 1, 26)


def thresholds(generator, rows):
    """Objectives of 26 thresholds on a chance of being wrong: ask a second model beyond them."""
    risk = generator.random(rows) ** 2
    wrong = generator.random(rows) < risk
    asks = risk[:, np.newaxis] > LIMITS
    return np.where(asks, 0.2, wrong[:, np.newaxis])


# P(risk > t) * 0.2 + E[risk; risk <= t], for risk = u ** 2
TRUTH = 0.2 * (1 - np.sqrt(LIMITS)) + np.sqrt(LIMITS) ** 3 / 3


def of_thresholds(generator, rows):
    """The best threshold on some rows, beside all of them on others."""
    fitted = int(thresholds(generator, rows).mean(axis=0).argmin())
    objectives = thresholds(generator, rows)
    return objectives[:, fitted], objectives, TRUTH[fitted] - TRUTH.min()


def of_rare(generator, rows):
    """A policy that is wrong on one row of a hundred, where another is right."""
    return (generator.random(rows) < 0.01).astype(float), np.zeros((rows, 1)), 0.01


@pytest.mark.parametrize(
    ("world", "rows", "widest"),
    [
        (of_thresholds, 300, 0.025),  # the gap itself is 0.002 on average
        (of_thresholds, 1000, 0.012),  # and here 0.001
        (of_rare, 300, 0.03),
        (of_rare, 1000, 0.026),
    ],
)
def test_the_bound_covers_the_gap_at_its_rate_and_is_tight(world, rows, widest):
    covered, uppers = [], []
    for seed in range(DRAWS):
        policy, candidates, truth = world(np.random.default_rng(seed), rows)
        gap = paired_gap(policy, candidates, confidence=CONFIDENCE, seed=seed)
        covered.append(truth <= gap.upper)
        uppers.append(gap.upper)
        assert gap.estimate <= gap.upper
    error = np.sqrt(CONFIDENCE * (1 - CONFIDENCE) / DRAWS)
    assert np.mean(covered) >= CONFIDENCE - 2 * error
    assert np.median(uppers) < widest


def test_the_best_candidate_is_named():
    rows = np.random.default_rng(0).random(50)
    better = paired_gap(rows + 0.1, np.stack([rows + 0.2, rows], axis=1))
    assert better.best == 1
    assert better.estimate == pytest.approx(0.1)
    assert 0.1 < better.upper < 0.3


def test_wrong_shapes_and_ranges_are_refused():
    rows = np.zeros(50)
    with pytest.raises(ArgumentError, match="paired_gap needs objectives"):
        paired_gap(rows, rows)
    with pytest.raises(ArgumentError, match="differ by 2 on a row, above largest = 1"):
        paired_gap(rows + 2, rows[:, np.newaxis])
