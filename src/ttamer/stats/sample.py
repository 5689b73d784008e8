"""A test of whether the mean of independent rows is at most so much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ttamer.stats.bounds import (
    betting_p,
    betting_upper,
    binomial_p,
    binomial_upper,
    paired_p,
    paired_upper,
)

Test = Literal["binomial", "paired", "betting"]


@dataclass(frozen=True, eq=False)
class Sample:
    """The numbers of independent rows, moved from ``low`` .. ``high`` to 0 .. 1.

    >>> errors = Sample(np.repeat([0.0, 1.0], [97, 3]), 0.0, 1.0, "binomial")
    >>> errors.observed, errors.p_value(0.1, 0.05) < 0.05, errors.refutes(0.1, 0.05)
    (0.03, True, False)
    """

    values: NDArray[np.float64]
    """Shape (R,)."""
    low: float
    high: float
    test: Test
    """``"binomial"`` of values 0 and 1, ``"paired"`` of 0, 1/2 and 1, ``"betting"`` of any."""
    seed: int = 0
    """Of the order in which bets take the rows; it must not depend on them."""

    @cached_property
    def observed(self) -> float:
        """The mean, between ``low`` and ``high``."""
        return self.low + (self.high - self.low) * float(self.values.mean())

    @cached_property
    def _counts(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The distinct values, and how many rows have each."""
        return np.unique(self.values, return_counts=True)

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """How many rows have the value 1, and the value 0."""
        return int((self.values == 1).sum()), int((self.values == 0).sum())

    def p_value(self, at_most: float, alpha: float) -> float:
        """Return the p-value of the mean being above ``at_most``, at level ``alpha``."""
        rows, (ones, zeros) = len(self.values), self._ends
        if self.test == "binomial":
            return binomial_p(ones, rows, at_most)
        if self.test == "paired":
            return paired_p(ones, zeros, rows, at_most, alpha=alpha)
        share = (at_most - self.low) / (self.high - self.low)
        return betting_p(*self._counts, share, alpha=alpha, seed=self.seed)

    def refutes(self, at_most: float, alpha: float) -> bool:
        """Return whether the rows show, at level ``alpha``, that the mean is above ``at_most``."""
        if self.low not in (0.0, -1.0):
            return False  # clipped weights bound the loss from above only
        if self.test == "binomial":
            return binomial_p(self._ends[1], len(self.values), 1 - at_most) <= alpha
        mirrored = Sample(1 - self.values, -self.high, -self.low, self.test, self.seed)
        return mirrored.p_value(-at_most, alpha) <= alpha

    def upper(self, alpha: float) -> float:
        """Return the least mean that the rows refute at level ``alpha``."""
        rows, (ones, zeros) = len(self.values), self._ends
        if self.test == "binomial":
            return binomial_upper(ones, rows, alpha)
        if self.test == "paired":
            return paired_upper(ones, zeros, rows, alpha=alpha)
        share = betting_upper(*self._counts, alpha=alpha, seed=self.seed)
        return self.low + (self.high - self.low) * share

    def rows_needed(self, at_most: float, alpha: float) -> int | None:
        """Return about how many rows would pass the test, if what was observed is the truth."""
        gap, rows = at_most - self.observed, len(self.values)
        if gap <= 0:
            return None
        normal = NormalDist().inv_cdf(1 - alpha) ** 2
        if self.test == "binomial":
            without_one = math.log(alpha) / math.log1p(-at_most)  # rows that pass if none is wrong
            needed = max(normal * at_most * (1 - at_most) / gap**2 + 1 / gap, without_one)
        else:
            gap /= (self.high - self.low) / 2
            weight = 1.2 * normal if self.test == "paired" else 2 * math.log(1 / alpha)
            needed = (4 * float(self.values.var()) + gap / 3) * weight / gap**2
        return max(math.ceil(needed), rows + 1)
