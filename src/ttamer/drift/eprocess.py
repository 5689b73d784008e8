"""E-processes: evidence of a change at an unknown time, valid however often it is looked at.

:class:`MixtureEProcess` keeps the wealth of several independent *streams*. A stream starts with a
wealth of 1, held back as a reserve. Before every row it invests a share of the reserve, spread
evenly over its bets; from then on each investment is multiplied, row after row, by its bet's
increment. Without a change no increment exceeds 1 on average, so the wealth ever reaches ``1 / a``
with probability at most ``a`` (Ville's inequality). After a change at row k, what was invested
around row k grows, so a late change is found almost as soon as an early one. This is a mixture over
all times at which betting could have begun (compare the e-detectors of Shin, Ramdas and Rinaldo,
2022).

:class:`ConformalPValues` turns rows into numbers to bet on: the rank of each row among all rows
before it, as a number from 0 to 1, ties broken at random. While rows are exchangeable each rank is
uniform and independent of the ranks before it, exactly, however short the reference (Vovk,
Gammerman and Shafer, 2005). :func:`pvalue_increments` bets against that: on low or high ranks (the
rows moved), on both or neither (they spread or contracted), and on finer changes of shape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Row t invests one part in t + INVESTMENT_DELAY of the reserve.
INVESTMENT_DELAY = 100
# The value of an investment is capped here, so that wealth stays finite.
MAX_WEALTH = 1e250
# The number of recent rows searched for the time of the change.
MEMORY = 5000
# The latest time whose log-evidence is within this of the maximum is taken as the change.
CHANGE_TOLERANCE = 2.0
# The largest bet loses at most this share of its value in one row.
MAX_LOSS = 0.9
# The number of bet sizes; each is half of the one before.
BET_SIZES = 7
# The frequencies of the cosines that bet on a p-value.
FREQUENCIES = (1, 2, 3)
# The amplitudes of the cosines that bet on a p-value.
AMPLITUDES = (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9)
# The number of bets on one p-value.
PVALUE_BETS = len(FREQUENCIES) * len(AMPLITUDES)


@dataclass(frozen=True)
class Growth:
    """The evidence of one stream.

    >>> MixtureEProcess(streams=1, bets=2).growth(0)
    Growth(wealth=1.0, since=0)
    """

    wealth: float
    """Evidence against there being no change; 1 at the start."""
    since: int
    """The estimated number of rows since the change, rather too few than too many: rows from before
    the change must not be used as rows from after it."""


class MixtureEProcess:
    """The wealth of several streams, each with the same number of bets.

    >>> process = MixtureEProcess(streams=1, bets=2)
    >>> for _ in range(50):
    ...     process.update(np.array([[1.0, 1.0]]))  # nothing is won or lost
    >>> float(process.wealth[0])
    1.0
    >>> for _ in range(50):
    ...     process.update(np.array([[1.5, 0.5]]))
    >>> bool(process.wealth[0] > 1e3), process.growth(0).since
    (True, 46)

    Args:
        streams: The number of independent streams.
        bets: The number of bets of each stream.
    """

    def __init__(self, streams: int, bets: int) -> None:
        self.rows = 0
        """The number of rows taken."""
        self._reserve = 1.0
        self._invested = np.zeros((streams, bets))
        self._logs: deque[NDArray[np.float32]] = deque(maxlen=MEMORY)

    @property
    def wealth(self) -> NDArray[np.float64]:
        """Shape (streams,): the wealth of each stream."""
        return np.asarray(self._reserve + self._invested.sum(axis=1))

    def update(self, increments: NDArray[np.float64]) -> None:
        """Take one row.

        Args:
            increments: Shape (streams, bets): the factor by which each bet's investment is
                multiplied; without a change, at most 1 on average.
        """
        invested = self._reserve / (self.rows + INVESTMENT_DELAY)
        self._reserve -= invested
        self.rows += 1
        grown = (self._invested + invested / self._invested.shape[1]) * increments
        self._invested = np.minimum(grown, MAX_WEALTH)
        self._logs.append(np.log(np.maximum(increments, 1e-12)).astype(np.float32))

    def growth(self, stream: int) -> Growth:
        """Return the wealth of one stream, and the estimated rows since the change.

        Args:
            stream: The number of the stream, from 0.

        Returns:
            Its wealth, and the number of rows since its bets began to pay.
        """
        logs = np.array([increments[stream] for increments in self._logs], np.float64)
        if not len(logs):
            return Growth(float(self.wealth[stream]), 0)
        grown = np.cumsum(logs[::-1], axis=0)[::-1]  # since each row, by each bet
        top = grown.max(axis=1)
        score = top + np.log(np.exp(grown - top[:, np.newaxis]).sum(axis=1))
        began = int(np.flatnonzero(score >= score.max() - CHANGE_TOLERANCE)[-1])
        return Growth(float(self.wealth[stream]), len(logs) - began)


def bet_sizes(lowest: float) -> NDArray[np.float64]:
    """Return sizes of bets on a number x, such that no bet can lose everything.

    A bet of size s on x has the increment ``1 + s * x``.

    >>> [round(float(size), 3) for size in bet_sizes(-0.5)][:3]
    [1.8, 0.9, 0.45]

    Args:
        lowest: The smallest value that x can take; negative.

    Returns:
        Shape (BET_SIZES,): the sizes, decreasing.
    """
    return np.asarray(MAX_LOSS / max(-lowest, 1e-6) / 2.0 ** np.arange(BET_SIZES))


class ConformalPValues:
    """The rank of each row among all rows before it, for several scores at once.

    >>> ranks = ConformalPValues(np.array([[1.0], [2.0], [3.0]]), seed=0)
    >>> bool(ranks.update(np.array([9.0]))[0] >= 0.75)
    True

    Args:
        reference: Shape (T, scores): the scores of rows drawn as rows should be.
        seed: For ties. It must not be the seed that the rows themselves were drawn with, as in a
            simulation.
    """

    def __init__(self, reference: NDArray[np.float64], seed: int) -> None:
        self._rows = len(reference)
        self._values: list[list[float]] = []
        """By score, the distinct values seen, increasing: scores take few values."""
        self._counts: list[list[int]] = []
        for column in reference.T:
            values, counts = np.unique(column, return_counts=True)
            self._values.append(values.tolist())
            self._counts.append(counts.tolist())
        self._draws = np.random.default_rng(seed)

    def update(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take one row.

        Args:
            scores: Shape (scores,): the scores of the row.

        Returns:
            Shape (scores,): the rank of the row by each score, from 0 to 1.
        """
        draws = self._draws.random(len(self._values)).tolist()
        found = []
        for values, counts, score, draw in zip(
            self._values, self._counts, scores.tolist(), draws, strict=True
        ):
            place = bisect_left(values, score)
            if place == len(values) or values[place] != score:
                values.insert(place, score)
                counts.insert(place, 0)
            counts[place] += 1
            found.append((sum(counts[:place]) + draw * counts[place]) / (self._rows + 1))
        self._rows += 1
        return np.array(found)


def pvalue_increments(pvalues: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the increments of all bets on p-values; 1 on average where they are uniform.

    >>> pvalue_increments(np.array([0.0, 0.5]))[:, :2].round(2).tolist()
    [[0.1, 0.4], [1.0, 1.0]]

    Args:
        pvalues: Shape (scores,): numbers from 0 to 1.

    Returns:
        Shape (scores, PVALUE_BETS): the increments.
    """
    waves = np.cos(np.pi * np.multiply.outer(pvalues, FREQUENCIES))
    increments = 1 + np.multiply.outer(waves, AMPLITUDES)
    return np.asarray(increments.reshape(len(pvalues), PVALUE_BETS))
