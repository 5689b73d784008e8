"""Betting that something changed, at a time that nobody knows.

A gambler starts with one unit of cash. Before every row he puts a share of the cash that is left
on the table, spread evenly over some bets; from then on it is multiplied, row after row, by what
each bet pays. If nothing changed no bet pays more than one on average, so what he owns grows to
``1 / a`` with a chance of at most ``a``, at any time (Ville's inequality). If something changed at
row k, what was put down about then grows, and costs only the small share it was: late changes are
found almost as soon as early ones. This equals a mixture over all times at which betting could have
begun, at the price of one (compare the e-detectors of Shin, Ramdas and Rinaldo, 2022).

Several gamblers bet side by side, each on what he sees; they share nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MEMORY", "SIZES", "ChangeBet", "Growth", "stakes_against"]

CAUTION = 100
"""Row t takes one part in ``t + CAUTION`` of the cash: of n rows, about CAUTION / n is kept."""
MOST = 1e250
"""What is owned is not counted beyond this."""
MEMORY = 5000
"""Rows looked back on for when the change was."""
DOUBT = 2.0
"""Of all times that explain the rows as well, but for this (in logarithms), the latest is taken."""
BOLDNESS = 0.9
"""The boldest bet loses at most this share of what it stands at, ..."""
SIZES = 7
"""... the next half as much, and so on: so many bets."""


@dataclass(frozen=True)
class Growth:
    """What became of one gambler."""

    owned: float
    """All he owns: evidence against there being no change; 1 at the start."""
    since: int
    """Rows since the change, as it seems; rather too few than too many: what was before the change
    must not be taken for what came after."""


class ChangeBet:
    """Some gamblers, with some bets each.

    >>> bet = ChangeBet(gamblers=1, bets=2)
    >>> for _ in range(50):
    ...     bet.take(np.array([[1.0, 1.0]]))  # nothing is won or lost
    >>> float(bet.owned[0])
    1.0
    >>> for _ in range(50):
    ...     bet.take(np.array([[1.5, 0.5]]))
    >>> bool(bet.owned[0] > 1e3), bet.growth(0).since
    (True, 46)
    """

    def __init__(self, gamblers: int, bets: int) -> None:
        self.rows = 0
        self._cash = 1.0
        self._stakes = np.zeros((gamblers, bets))
        self._logs: deque[NDArray[np.float32]] = deque(maxlen=MEMORY)

    @property
    def owned(self) -> NDArray[np.float64]:
        """Shape (gamblers,): what each owns."""
        return np.asarray(self._cash + self._stakes.sum(axis=1))

    def take(self, pays: NDArray[np.float64]) -> None:
        """Take one row: what each bet pays, shape (gamblers, bets), on average at most 1."""
        laid = self._cash / (self.rows + CAUTION)
        self._cash -= laid
        self.rows += 1
        stakes = (self._stakes + laid / self._stakes.shape[1]) * pays
        self._stakes = np.minimum(stakes, MOST)
        self._logs.append(np.log(np.maximum(pays, 1e-12)).astype(np.float32))

    def growth(self, gambler: int) -> Growth:
        """Say what one gambler owns, and since when his bets have paid."""
        logs = np.array([pays[gambler] for pays in self._logs], np.float64)
        if not len(logs):
            return Growth(float(self.owned[gambler]), 0)
        grown = np.cumsum(logs[::-1], axis=0)[::-1]  # since each row, by each bet
        top = grown.max(axis=1)
        score = top + np.log(np.exp(grown - top[:, np.newaxis]).sum(axis=1))
        began = int(np.flatnonzero(score >= score.max() - DOUBT)[-1])
        return Growth(float(self.owned[gambler]), len(logs) - began)


def stakes_against(least: float) -> NDArray[np.float64]:
    """Return sizes of bets on a number that is ``least`` at least, so that none can be lost whole.

    A bet of size s on x pays ``1 + s * x``.

    >>> [round(float(size), 3) for size in stakes_against(-0.5)][:3]
    [1.8, 0.9, 0.45]
    """
    return np.asarray(BOLDNESS / max(-least, 1e-6) / 2.0 ** np.arange(SIZES))
