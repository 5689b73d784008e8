"""Is the next row like the ones before? Its rank among them, as a number from 0 to 1.

While rows are exchangeable (drawn alike, in whatever way), the rank of each new row among all rows
before it is uniform and says nothing about the next rank; this holds exactly, however few rows the
reference has. Ties are broken by a draw. After Vovk, Gammerman and Shafer (2005).

Whoever bets on ranks bets against exchangeability: low ranks or high ones (the rows moved), both or
neither (they spread or drew together), and finer changes of shape.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BETS", "Ranks", "pays_on"]

WAVES = (1, 2, 3)
HEIGHTS = (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9)
BETS = len(WAVES) * len(HEIGHTS)


class Ranks:
    """The rows seen so far, counted, for several scores at once.

    The seed must not be one by which the rows themselves were drawn, as in a simulation.
    """

    def __init__(self, reference: NDArray[np.float64], seed: int) -> None:
        self._rows = len(reference)
        self._values: list[list[float]] = []
        """By score, the distinct values seen, increasing: states are few, however many the rows."""
        self._counts: list[list[int]] = []
        for column in reference.T:
            values, counts = np.unique(column, return_counts=True)
            self._values.append(values.tolist())
            self._counts.append(counts.tolist())
        self._draws = np.random.default_rng(seed)

    def take(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rank of one row by each score, from 0 to 1, and remember the row."""
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


def pays_on(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each bet pays on ranks, shape (scores, BETS): 1 on average if they are uniform.

    >>> pays_on(np.array([0.0, 0.5]))[:, :2].round(2).tolist()
    [[0.1, 0.4], [1.0, 1.0]]
    """
    waves = np.cos(np.pi * np.multiply.outer(ranks, WAVES))
    pays = 1 + np.multiply.outer(waves, HEIGHTS)
    return np.asarray(pays.reshape(len(ranks), BETS))
