"""Rules that ask one node after another and stop at the first that is certain enough.

Also here: why a family cannot be fitted to a trace, and the order in which its nodes are asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import CascadeSpec
from ttamer.errors import TTamerError
from ttamer.fitting.replay import Played, asked_up_to
from ttamer.trace.trace import Trace, require_rows


class Unsuitable(TTamerError):  # noqa: N818 - named after what happened
    """A family cannot be fitted to this kind of trace; the message has the reason."""


def separate_models(spec: CascadeSpec) -> None:
    """Refuse nodes that are passed at a cost: they are not separate models."""
    if spec.kind == "exits" and not spec.asks_each:
        raise Unsuitable("it takes nodes for separate models, and these are exits of one network")


def predictions_of(trace: Trace) -> NDArray[np.int32]:
    """Return the predictions, shape (T, n); a trace without them is unsuitable."""
    if trace.prediction is None:
        raise Unsuitable("it compares predictions, and the trace has none")
    return trace.prediction


def walk_of(trace: Trace) -> NDArray[np.intp]:
    """Return, shape (n,), the order of asking at the mean costs of a trace's rows.

    >>> from ttamer.cascade import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> walk_of(Trace(CascadeSpec.of({"large": 9.0, "small": 1.0}), [[0.9, 0.8]])).tolist()
    [1, 0]
    """
    require_rows(trace, 1, "a baseline")
    return np.array(trace.spec.asking_order(trace.costs.mean(axis=0)), np.intp)


class Score(Protocol):
    """The certainty of a node, from its own columns."""

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return one number per row; NaN, which never stops, where there is none."""
        ...


@dataclass(frozen=True, eq=False)
class StopRule:
    """Stop at the first node of a walk whose score reaches its threshold, else at the last."""

    score: Score
    walk: NDArray[np.intp]
    """Shape (m,): the nodes to ask, in order."""
    thresholds: NDArray[np.float64]
    """Shape (m - 1,): ``inf`` where it never stops. The last node of the walk always answers."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        stop = np.full(len(trace), len(self.walk) - 1)
        for step in range(len(self.walk) - 2, -1, -1):  # backwards, so that the first stop stands
            stop[self.score(trace, int(self.walk[step])) >= self.thresholds[step]] = step
        return walked(stop, self.walk, len(trace.spec))


def walked(stop: NDArray[np.intp], walk: NDArray[np.intp], nodes: int) -> Played:
    """Return the replay of a walk that stops at a step on each row and returns that answer."""
    asked = np.zeros((len(stop), nodes), bool)
    asked[:, walk] = asked_up_to(stop, len(walk))
    return Played(walk[stop], asked, walk[stop])


def plain(threshold: float) -> float | None:
    """Return a threshold for reports and JSON: None where it never stops.

    >>> plain(0.5), plain(np.inf)
    (0.5, None)
    """
    return float(threshold) if np.isfinite(threshold) else None
