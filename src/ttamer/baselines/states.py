"""A few states per node, and how the state of one node tells of another's.

A state is a range of calibrated wrongness: the blocks of the isotonic fit, neighbours pooled until
at most ``most`` remain with about equal rows. Transitions are counts, smoothed with one row's
weight of the target's own shares, so no row of a matrix is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines.isotonic import Isotonic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["States", "transitions"]

MOST_STATES = 16


@dataclass(frozen=True, eq=False)
class States:
    """The states of one node, from the least confident to the most.

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
        wrong: NDArray[np.bool_],
        *,
        most: int = MOST_STATES,
    ) -> States:
        """Fit to what was seen: shape (T,) each, at least one row."""
        curve = Isotonic.fit(confidence, ~wrong)
        block = curve.level(confidence)
        count = np.bincount(block, minlength=len(curve.starts))
        middle = np.cumsum(count) - count / 2
        _, first, pooled = np.unique(
            np.floor(most * middle / len(confidence)), return_index=True, return_inverse=True
        )
        state = pooled[block]
        losses = np.bincount(state, wrong) / np.bincount(state)
        return cls(curve.starts[first], losses)

    def of(self, confidence: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the state of each confidence."""
        return np.maximum(np.searchsorted(self.starts, confidence, side="right") - 1, 0)


def fit_states(trace: Trace, wrong: NDArray[np.bool_]) -> tuple[States, ...]:
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
