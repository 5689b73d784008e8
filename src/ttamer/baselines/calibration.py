"""Calibration: P(right | confidence), and a few states of each node made from it.

Where answers have losses, "right" is one minus the loss as a share of the largest.

Isotonic calibration is least squares among nondecreasing functions, by pooling adjacent violators:
a block of confidences that is right less often than the block before is merged with it.

A state is a range of calibrated error: the blocks of the isotonic fit, neighbours pooled until at
most ``limit`` remain with about equal rows. Transitions between states are counts, smoothed with
one row's weight of the target's own shares, so no row of a matrix is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ttamer.stats.isotonic import rising
from ttamer.trace.losses import Losses
from ttamer.trace.trace import Trace


def level_starts(values: NDArray[np.float64], limit: int) -> NDArray[np.float64]:
    """Return the distinct values in increasing order, or about as many quantiles as allowed.

    The least value is always among them, so every value has a level that starts at or below it.

    >>> level_starts(np.array([3.0, 1.0, 1.0]), 5).tolist()
    [1.0, 3.0]
    """
    distinct = np.unique(values)
    if len(distinct) <= limit:
        return distinct
    return np.unique(np.quantile(values, np.linspace(0, 1, limit), method="higher"))


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

    max_levels: ClassVar[int] = 4096  # finer confidences are grouped by quantiles

    @classmethod
    def fit(cls, confidence: NDArray[np.float64], right: Losses) -> Isotonic:
        """Fit to rows: shape (T,) each, at least one row; ``right`` is from 0 to 1."""
        levels = level_starts(confidence, cls.max_levels)
        level = np.searchsorted(levels, confidence, side="right") - 1
        count = np.bincount(level, minlength=len(levels))
        hits = np.bincount(level, right, minlength=len(levels))
        pooled = rising(hits / count, count.astype(np.float64))
        # Shares nearer than that are equal but for rounding.
        first = np.flatnonzero(np.append(True, np.diff(pooled) > 1e-12))
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
    def fit(cls, trace: Trace, wrong: Losses) -> Calibrated:
        """Calibrate every node of a trace; ``wrong`` has shape (T, n)."""
        return cls(
            tuple(
                Isotonic.fit(trace.confidence[:, node], 1 - wrong[:, node].astype(float))
                for node in range(len(trace.spec))
            )
        )

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the chance that this node is right."""
        return self.curves[node](trace.confidence[:, node])

    def least_confidence(self, node: int, threshold: float) -> float:
        """Return the least confidence of a node that reaches a threshold; the first block has none.

        ``inf`` where none does.
        """
        curve = self.curves[node]
        block = int(np.searchsorted(curve.values, threshold))
        return float([-np.inf, *curve.starts[1:], np.inf][block])


@dataclass(frozen=True, eq=False)
class States:
    """The states of one node, from the lowest confidence to the highest.

    >>> confidence = np.array([0.1, 0.2, 0.8, 0.9])
    >>> states = States.fit(confidence, np.array([True, True, False, False]))
    >>> states.losses.tolist(), states.of(np.array([0.5, 0.85])).tolist()
    ([1.0, 0.0], [0, 1])
    """

    starts: NDArray[np.float64]
    """Shape (k,), increasing: the least confidence of each state. Below the first, the first."""
    losses: NDArray[np.float64]
    """Shape (k,), decreasing: the share of wrong answers in each state."""

    @classmethod
    def fit(
        cls,
        confidence: NDArray[np.float64],
        wrong: Losses,
        *,
        limit: int = 16,
    ) -> States:
        """Fit to rows: shape (T,) each, at least one row."""
        curve = Isotonic.fit(confidence, 1 - wrong.astype(float))
        block = curve.level(confidence)
        count = np.bincount(block, minlength=len(curve.starts))
        middle = np.cumsum(count) - count / 2
        _, first, pooled = np.unique(
            np.floor(limit * middle / len(confidence)), return_index=True, return_inverse=True
        )
        state = pooled[block]
        losses = np.bincount(state, wrong) / np.bincount(state)
        return cls(curve.starts[first], losses)

    def of(self, confidence: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the state of each confidence."""
        return np.maximum(np.searchsorted(self.starts, confidence, side="right") - 1, 0)


def fit_states(trace: Trace, wrong: Losses) -> tuple[States, ...]:
    """Return the states of every node; ``wrong`` has shape (T, n)."""
    return tuple(States.fit(trace.confidence[:, v], wrong[:, v]) for v in range(len(trace.spec)))


def transitions(
    source: NDArray[np.intp] | None, target: NDArray[np.intp], sizes: tuple[int, int]
) -> NDArray[np.float64]:
    """Return P(state of the target | state of the source), shape ``sizes``; from None, one row.

    >>> transitions(np.array([0, 0, 1]), np.array([1, 1, 0]), (2, 2)).round(3).tolist()
    [[0.111, 0.889], [0.667, 0.333]]
    """
    share = np.bincount(target, minlength=sizes[1]) / len(target)
    if source is None:
        return share[np.newaxis]
    pairs = np.bincount(source * sizes[1] + target, minlength=sizes[0] * sizes[1])
    counts = pairs.reshape(sizes) + share
    table: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return table
