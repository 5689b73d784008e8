"""Ask one node after another, stop at the first that scores high enough, return its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ttamer.fitted.replay import Played, asked_up_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["Score", "StopRule", "plain", "walked"]


class Score(Protocol):
    """How sure a node is, from what it said itself."""

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return one number per row; NaN where the node says nothing, which stops nobody."""
        ...


@dataclass(frozen=True, eq=False)
class StopRule:
    """Stop at the first node of a walk whose score reaches its threshold, else at the last."""

    score: Score
    walk: NDArray[np.intp]
    """Shape (m,): whom to ask, in order."""
    thresholds: NDArray[np.float64]
    """Shape (m - 1,): ``inf`` where it never stops. The last node of the walk always answers."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        stop = np.full(len(trace), len(self.walk) - 1)
        for step in range(len(self.walk) - 2, -1, -1):  # backwards, so that the first stop stands
            stop[self.score(trace, int(self.walk[step])) >= self.thresholds[step]] = step
        return walked(stop, self.walk, len(trace.spec))


def walked(stop: NDArray[np.intp], walk: NDArray[np.intp], nodes: int) -> Played:
    """Return what was done when a walk stops at a step on each row and returns that answer."""
    asked = np.zeros((len(stop), nodes), bool)
    asked[:, walk] = asked_up_to(stop, len(walk))
    return Played(walk[stop], asked, walk[stop])


def plain(threshold: float) -> float | None:
    """Return a threshold for people and JSON: None where it never stops.

    >>> plain(0.5), plain(np.inf)
    (0.5, None)
    """
    return float(threshold) if np.isfinite(threshold) else None
