"""Isotonic calibration: P(right | confidence), never falling as confidence grows.

Least squares among nondecreasing functions, by pooling adjacent violators: a block of confidences
that is right less often than the block before is made one with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.stats.isotonic import rising

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["Calibrated", "Isotonic", "level_starts"]

MOST_LEVELS = 4096
"""Finer confidences are grouped by quantiles first, which bounds the time."""

_SAME = 1e-12  # shares nearer than this are equal but for rounding


def level_starts(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the distinct values in increasing order, or about as many quantiles as allowed.

    The least value is always among them, so every value has a level that starts at or below it.

    >>> level_starts(np.array([3.0, 1.0, 1.0]), 5).tolist()
    [1.0, 3.0]
    """
    distinct = np.unique(values)
    if len(distinct) <= most:
        return distinct
    return np.unique(np.quantile(values, np.linspace(0, 1, most), method="higher"))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """A rising step function of confidence.

    >>> curve = Isotonic.fit(np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, True, False, True]))
    >>> curve.starts.tolist(), curve.values.tolist()
    ([0.1, 0.2, 0.4], [0.0, 0.5, 1.0])
    >>> curve(np.array([-1.0, 0.25, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    starts: NDArray[np.float64]
    """Shape (k,), increasing: the least confidence of each block. Below the first, the first."""
    values: NDArray[np.float64]
    """Shape (k,), increasing: the share of right answers in each block."""

    @classmethod
    def fit(cls, confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Isotonic:
        """Fit to what was seen: shape (T,) each, at least one row."""
        levels = level_starts(confidence, MOST_LEVELS)
        level = np.searchsorted(levels, confidence, side="right") - 1
        count = np.bincount(level, minlength=len(levels))
        hits = np.bincount(level[right], minlength=len(levels))
        pooled = rising(hits / count, count.astype(np.float64))
        first = np.flatnonzero(np.append(True, np.diff(pooled) > _SAME))
        return cls(levels[first], np.add.reduceat(hits, first) / np.add.reduceat(count, first))

    def level(self, confidence: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the number of the block each confidence falls in."""
        return np.maximum(np.searchsorted(self.starts, confidence, side="right") - 1, 0)

    def __call__(self, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the calibrated chance of being right."""
        return self.values[self.level(confidence)]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The calibrated chance that a node is right, one curve per node."""

    curves: tuple[Isotonic, ...]

    @classmethod
    def fit(cls, trace: Trace, wrong: NDArray[np.bool_]) -> Calibrated:
        """Calibrate every node of a trace; ``wrong`` has shape (T, n)."""
        return cls(
            tuple(
                Isotonic.fit(trace.confidence[:, node], ~wrong[:, node])
                for node in range(len(trace.spec))
            )
        )

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the chance that this node is right."""
        return self.curves[node](trace.confidence[:, node])
