"""The rules of risk control for early exits (Jazbec et al., 2024), on many draws of rows at once.

A family's settings stand from the safest to the cheapest. What a row loses lies between 0 and 1. A
rule gives for each draw of rows the setting that it allows to lose at most that much on average;
-1 where it allows none.

- CRC, conformal risk control: the cheapest setting whose mean loss is low enough, one more row
  counted as lost. It holds on average over draws, and not with a stated confidence.
- UCB: settings in sequence while the upper bound by betting (Waudby-Smith and Ramdas) is low
  enough, which is to say while the test by betting passes.
- LTT, learn then test: with a test of each setting, either the cheapest one that passes at the
  level over the number of settings (Bonferroni), or in sequence the last one that passes at the
  full level. For drops the exact test is ours (``ttamer.stats.paired_p``), which the paper has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ttamer.stats.bounds import binomial_p
from ttamer.stats.paired import paired_p

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Test = Callable[["Sample", int, NDArray[np.intp], float], NDArray[np.bool_]]
    """Whether a setting passes at a level, in some of the splits."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What settings lose on the rows drawn, and how much they may on average."""

    losses: NDArray[np.float64]
    """Shape (population, settings): from 0 to 1."""
    rows: NDArray[np.intp]
    """Shape (splits, rows drawn), in the order drawn."""
    sums: NDArray[np.float64]
    """Shape (splits, settings): what is lost on the rows drawn."""
    level: float

    @property
    def count(self) -> int:
        """How many rows were drawn."""
        return self.rows.shape[1]


def crc(sample: Sample) -> NDArray[np.intp]:
    """Return the cheapest setting that conformal risk control allows."""
    allowed = sample.sums + 1 <= sample.level * (sample.count + 1)
    cheapest = allowed.shape[1] - 1 - np.argmax(allowed[:, ::-1], axis=1)
    return np.where(allowed.any(axis=1), cheapest, -1)


def in_sequence(sample: Sample, test: Test, alpha: float) -> NDArray[np.intp]:
    """Return the last setting that passes, from the safest on, each at the full level."""
    chosen = np.full(len(sample.rows), -1)
    left = np.arange(len(chosen))
    for setting in range(sample.losses.shape[1]):
        left = left[test(sample, setting, left, alpha)]
        if not left.size:
            break
        chosen[left] = setting
    return chosen


def corrected(sample: Sample, test: Test, alpha: float) -> NDArray[np.intp]:
    """Return the cheapest setting that passes at the level over the number of settings."""
    settings = sample.losses.shape[1]
    every, chosen = np.arange(len(sample.rows)), np.full(len(sample.rows), -1)
    for setting in range(settings):
        chosen[test(sample, setting, every, alpha / settings)] = setting
    return chosen


def exact(
    sample: Sample, setting: int, splits: NDArray[np.intp], alpha: float
) -> NDArray[np.bool_]:
    """Whether a setting, all of whose losses are 0 or 1, passes the exact binomial test."""
    most = most_wrong(sample.count, sample.level, alpha)
    return np.asarray(sample.sums[splits, setting] <= most + 0.5)


@cache
def most_wrong(count: int, level: float, alpha: float) -> int:
    """Return the most wrong rows that pass the exact binomial test; -1 where none do.

    >>> most_wrong(100, 0.05, 0.05)
    1
    """
    most = -1
    while binomial_p(most + 1, count, level) <= alpha:
        most += 1
    return most


def betting(
    sample: Sample, setting: int, splits: NDArray[np.intp], alpha: float
) -> NDArray[np.bool_]:
    """Whether a setting passes the test by betting, rows as drawn.

    This is the bound as risk control uses it: one order of the rows, and the largest stake on the
    way counts (Ville). Ours takes the mean over some orders of the last stake.
    """
    lost = sample.losses[sample.rows[splits], setting]
    count = np.arange(1, sample.count + 1)
    means = (0.5 + np.cumsum(lost, axis=1)) / (count + 1)
    spread = (0.25 + np.cumsum((lost - means) ** 2, axis=1)) / (count + 1)
    before = np.concatenate([np.full((len(lost), 1), 0.25), spread[:, :-1]], axis=1)
    bets = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (sample.count * before)), 1.0)
    grown = np.cumsum(np.log1p(bets * (sample.level - lost)), axis=1).max(axis=1)
    return np.asarray(grown >= math.log(1 / alpha))


def paired(
    sample: Sample, setting: int, splits: NDArray[np.intp], alpha: float
) -> NDArray[np.bool_]:
    """Whether a setting, all of whose losses are 0, 1/2 or 1, passes the exact paired test."""
    lost = sample.losses[sample.rows[splits], setting]
    counts = zip((lost > 0.75).sum(axis=1), (lost < 0.25).sum(axis=1), strict=True)
    level = 2 * sample.level - 1
    passed = [passes_paired(int(w), int(b), sample.count, level, alpha) for w, b in counts]
    return np.array(passed, bool)


@cache
def passes_paired(worse: int, better: int, count: int, level: float, alpha: float) -> bool:
    """Whether these counts pass the exact paired test.

    >>> passes_paired(2, 2, 1000, 0.01, 0.05), passes_paired(12, 2, 1000, 0.01, 0.05)
    (True, False)
    """
    return paired_p(worse, better, count, level, alpha=alpha) <= alpha
