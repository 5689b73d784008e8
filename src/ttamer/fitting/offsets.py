"""What codes add to log-odds, such as predicted classes or the bins of a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import WEIGHT_RESOLUTION
from ttamer.stats.logistic import sigmoid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Losses

__all__ = [
    "MAX_ODDS",
    "MIN_INFORMATION",
    "MIN_WEIGHT",
    "NEWTON_ROUNDS",
    "OFFSET_RIDGE",
    "WEIGHT_RIDGE",
    "dispersion",
    "is_clear",
    "limited_step",
    "offsets_by_code",
    "ridge_of",
    "rounded",
    "scores_of",
]

OFFSET_RIDGE = 2.0
"""The penalty on the squared offset of each code."""
MAX_OFFSET_RIDGE = 1e4
"""The largest penalty on the squared offset of a bin."""
MIN_INFORMATION = 1e-9
"""A bin without rows counts as if it had this much information."""
WEIGHT_RIDGE = 1.0
"""The penalty on the squared distance from 1 of the weight of log-odds that a shift is added to."""
MIN_WEIGHT = 0.3
"""A lower weight of X counts as this one, so that no shift is divided by nearly 0."""
MAX_ODDS = 8.0
"""Shifts are fitted to X within this many log-odds of 0."""
NEWTON_ROUNDS = 25
"""The number of Newton steps."""
MIN_DISPERSION = 1e-3
"""Losses are taken to spread at least this much, relative to right and wrong."""


def dispersion(shares: Losses) -> float:
    """Return the spread of losses relative to right and wrong of the same mean; 1 for those.

    >>> dispersion(np.array([True, False])), dispersion(np.array([0.25, 0.75]))
    (1.0, 0.25)
    """
    if shares.dtype == np.bool_:
        return 1.0
    mean = float(shares.mean())
    return float(np.clip(shares.var() / max(mean * (1 - mean), 1e-12), MIN_DISPERSION, 1.0))


def offsets_by_code(
    codes: NDArray[np.int32],
    odds: NDArray[np.float64],
    wrong: Losses,
    ridge: float,
) -> dict[int, float]:
    """Return what each code adds to the log-odds that confidence gives."""
    count = np.bincount(codes + 1)  # the first is no answer
    offset = np.zeros(len(count))
    for _ in range(NEWTON_ROUNDS):
        chance = sigmoid(odds + offset[codes + 1])
        slope = np.bincount(codes + 1, chance - wrong) + ridge * offset
        bend = np.bincount(codes + 1, chance * (1 - chance)) + ridge
        offset -= limited_step(slope / bend)
    offset = rounded(offset)
    return {int(code): float(offset[code + 1]) for code in np.flatnonzero(count[1:])}


def limited_step(step: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a Newton step, limited in size so that it cannot diverge."""
    return np.clip(step, -2.0, 2.0)


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to multiples of ``WEIGHT_RESOLUTION``."""
    return np.asarray(np.rint(values / WEIGHT_RESOLUTION) * WEIGHT_RESOLUTION)


def scores_of(
    bins: NDArray[np.int32], odds: NDArray[np.float64], wrong: Losses
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the score and the information of an offset of 0, shape (bins, nodes) each."""
    chance = sigmoid(odds)
    each = [np.bincount(bins, own) for own in (wrong - chance).T]
    spread = [np.bincount(bins, own) for own in (chance * (1 - chance)).T]
    return np.stack(each, axis=1), np.stack(spread, axis=1)


def is_clear(
    score: NDArray[np.float64], information: NDArray[np.float64], spread: float, errors: float
) -> bool:
    """Return whether scores of bins, shape (bins, nodes), are larger than by chance.

    The mean over nodes of a chi-squared statistic is compared with the law of one.
    """
    free = len(score) - 1
    statistic = (score**2 / np.maximum(information, MIN_INFORMATION)).sum(axis=0).mean() / spread
    return bool(free and statistic - free > errors * (2 * free) ** 0.5)


def ridge_of(
    bins: NDArray[np.int32],
    odds: NDArray[np.float64],
    wrong: Losses,
    dispersion: float,
) -> float:
    """Return the ridge that suits the spread of a signal's offsets, by the method of moments.

    An offset of variance t adds ``t * information**2`` to the variance of the score, which is the
    information times the dispersion without it.
    """
    score, information = scores_of(bins, odds, wrong)
    excess = (score**2 - dispersion * information).sum()
    spread = excess / max(MIN_INFORMATION, (information**2).sum())
    ridge = np.clip(dispersion / max(spread, 1e-9), dispersion * OFFSET_RIDGE, MAX_OFFSET_RIDGE)
    return float(ridge)
