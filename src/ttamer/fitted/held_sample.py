"""What rows held out show of one mix: a sample of bounded numbers, and the tests on it.

The number of a row is its loss, or by how much it exceeds the loss of another node. Rows enter as
distinct values, moved to lie between 0 and 1, and how often each occurs. Rows that are right or
wrong are tested by the exact binomial tail, and their differences by the exact paired test
(:mod:`ttamer.stats.paired`); all others by betting (:mod:`ttamer.stats.bounds`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from ttamer.stats.bounds import betting_p, betting_upper, binomial_p, binomial_upper
from ttamer.stats.paired import paired_p, paired_upper

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["HeldSample", "Test"]

Test = Literal["binomial", "paired", "betting"]
"""How a sample is tested."""


@dataclass(frozen=True, eq=False)
class HeldSample:
    """The numbers of rows held out.

    >>> import numpy as np
    >>> values, counts = np.array([0.0, 1.0]), np.array([97, 3])
    >>> rows = HeldSample(values, counts, 0.0, 1.0, observed=0.03, test="binomial")
    >>> rows.p_value(0.1, 0.05, 0) < 0.05, rows.refutes(0.01, 0.05, 0)
    (True, False)
    """

    values: NDArray[np.float64]
    """Shape (k,), increasing, from 0 to 1: what ``low`` to ``high`` is moved to."""
    counts: NDArray[np.int64]
    """Shape (k,): the number of rows with each value."""
    low: float
    high: float
    observed: float
    """The mean, between ``low`` and ``high``."""
    test: Test
    """``"binomial"``: the values are right (0) and wrong (1); ``"paired"``: they are better (0),
    the same (1/2) and worse (1)."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def p_value(self, at_most: float, alpha: float, seed: int) -> float:
        """Return the p-value of the mean being above ``at_most``."""
        if self.test == "binomial":
            return binomial_p(int(self.counts[1]), self.rows, at_most)
        if self.test == "paired":
            return paired_p(*self._differing, self.rows, at_most, alpha=alpha)
        return betting_p(self.values, self.counts, self._place(at_most), alpha=alpha, seed=seed)

    def refutes(self, at_most: float, alpha: float, seed: int) -> bool:
        """Return whether the rows show that the mean is above ``at_most``."""
        if self.test == "binomial":  # many wrong answers are as unlikely as few right ones
            return binomial_p(int(self.counts[0]), self.rows, 1 - at_most) <= alpha
        if self.test == "paired":
            worse, better = self._differing
            return paired_p(better, worse, self.rows, -at_most, alpha=alpha) <= alpha
        mirrored, counts = (1 - self.values)[::-1], self.counts[::-1]
        return (
            betting_p(mirrored, counts, self._place(self.low + self.high - at_most),
                      alpha=alpha, seed=seed) <= alpha
        )  # fmt: skip

    def upper(self, alpha: float, seed: int) -> float:
        """Return the least mean that the rows refute at this level."""
        if self.test == "binomial":
            return binomial_upper(int(self.counts[1]), self.rows, alpha)
        if self.test == "paired":
            return paired_upper(*self._differing, self.rows, alpha=alpha)
        share = betting_upper(self.values, self.counts, alpha=alpha, seed=seed)
        return self.low + (self.high - self.low) * share

    def rows_needed(self, at_most: float, alpha: float) -> int | None:
        """Return about how many rows would pass the test, if what was observed is the truth."""
        gap = at_most - self.observed
        if gap <= 0:
            return None
        normal = NormalDist().inv_cdf(1 - alpha) ** 2
        if self.test == "binomial":
            normal *= at_most * (1 - at_most) / gap**2
            without_one = math.log(alpha) / math.log1p(-at_most)  # rows that pass if none is wrong
            return max(math.ceil(max(normal + 1 / gap, without_one)), self.rows + 1)
        gap /= (self.high - self.low) / 2
        share = self.counts / self.rows
        spread = 4 * float(share @ (self.values - share @ self.values) ** 2)
        weight = 1.2 * normal if self.test == "paired" else 2 * math.log(1 / alpha)
        needed = math.ceil((spread + gap / 3) * weight / gap**2)
        return max(needed, self.rows + 1)

    @property
    def _differing(self) -> tuple[int, int]:
        """The number of worse rows, and of better ones."""
        return int(self.counts[2]), int(self.counts[0])

    def _place(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)
