"""Quantising: from a confidence to a state.

Each node has increasing *edges*; the state of a confidence is how many of them it reaches. So
state 0 is the least sure. No scale is assumed: only the order of confidences counts. A confidence
that is not a number carries no information, and gets state 0.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_STATES", "METHODS", "Method", "Quantiser", "edges_of"]

Method = Literal["uniform", "quantile", "kmeans"]
METHODS = ("uniform", "quantile", "kmeans")

MAX_STATES = 256
KMEANS_CELLS = 1024
LOOKUP_CELLS = 4096
CHUNK = 65_536
"""Rows at a time: what they need stays in the cache."""
MIN_FAR_SHARE = 0.2
"""Confidences are on another scale if at least this share of them is far outside the edges."""


@dataclass(frozen=True, eq=False)
class Quantiser:
    """Edges per node.

    >>> quantiser = Quantiser((np.array([0.5, 0.9]), np.array([])))
    >>> quantiser.state(0, 0.7), quantiser.state(0, 0.9), quantiser.state(1, 0.7)
    (1, 2, 0)
    """

    edges: tuple[NDArray[np.float64], ...]
    """Shape (states - 1,) each, strictly increasing, finite."""

    @classmethod
    def fit(cls, confidence: NDArray[np.float64], *, states: int, method: Method) -> Quantiser:
        """Choose at most ``states`` states for each column of confidences, of shape (T, n)."""
        if not 1 <= states <= MAX_STATES:
            raise ArgumentError(f"states must be from 1 to {MAX_STATES}, not {states!r}")
        if method not in METHODS:
            raise ArgumentError(f"quantise must be one of {', '.join(METHODS)}, not {method!r}")
        columns = confidence.T
        return cls(tuple(edges_of(column, states=states, method=method) for column in columns))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many states each node has."""
        return tuple(len(edges) + 1 for edges in self.edges)

    def state(self, node: int, confidence: float) -> int:
        """Return the state of one confidence."""
        if confidence != confidence:
            return 0
        return bisect_right(self._lists[node], confidence)

    def states(self, confidence: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the states of many, of shape (T, n), each node's in one stretch of memory."""
        rows, nodes = confidence.shape
        states = np.empty((nodes, rows), np.uint8)
        for at in range(0, rows, CHUNK):
            # A stretch of rows at a time, turned so that each node's lie together in the cache.
            part = np.ascontiguousarray(confidence[at : at + CHUNK].T)
            for node, lookup in enumerate(self._lookups):
                lookup.into(states[node, at : at + CHUNK], part[node])
        return states.T

    def rescaled(self, confidence: NDArray[np.float64]) -> list[int]:
        """Return the nodes whose confidences, of shape (T, n), seem to be on another scale.

        Far outside is further from the edges than the range of the edges is wide; edges from 0 to 1
        stand for that whole range. Edges above 1 and confidences from 0 to 1 are on two scales too.
        One edge alone does not show the scale of a node.

        >>> quantiser = Quantiser((np.array([0.5, 0.9]), np.array([0.5, 0.9])))
        >>> quantiser.rescaled(np.array([[0.1, 10.0], [1.0, 100.0]]))
        [1]
        """
        return [
            node
            for node, edges in enumerate(self.edges)
            if len(edges) > 1 and len(confidence) and _is_rescaled(edges, confidence[:, node])
        ]

    @cached_property
    def _lists(self) -> tuple[list[float], ...]:
        return tuple(edges.tolist() for edges in self.edges)

    @cached_property
    def _lookups(self) -> tuple[_Lookup, ...]:
        return tuple(_Lookup(edges) for edges in self.edges)


def _is_rescaled(edges: NDArray[np.float64], values: NDArray[np.float64]) -> bool:
    """Return whether values seem to be on another scale than those of the edges."""
    low, high = edges[0], edges[-1]
    if low > 1 and values.min() >= 0 and values.max() <= 1:
        return True
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    with np.errstate(over="ignore"):
        width = high - low
        far = (values < low - width) | (values > high + width)
    return bool(far.mean() >= MIN_FAR_SHARE)


class _Lookup:
    """States by lookup in equal cells, exact where each cell holds at most one edge."""

    def __init__(self, edges: NDArray[np.float64]) -> None:
        self._edges = edges
        self._usable = False
        if not 2 <= len(edges) <= LOOKUP_CELLS // 8:
            return
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self._scale = (LOOKUP_CELLS - 2) / (edges[-1] - edges[0])
            self._shift = 1 - edges[0] * self._scale
        if not (np.isfinite(self._scale) and np.isfinite(self._shift)):
            return
        cells = self._cells(edges)
        self._usable = len(np.unique(cells)) == len(cells)
        self._before = np.searchsorted(cells, np.arange(LOOKUP_CELLS)).astype(np.uint8)
        self._edge = np.full(LOOKUP_CELLS, np.nan)  # nothing reaches it where there is no edge
        self._edge[np.clip(cells, 0, LOOKUP_CELLS - 1)] = edges

    def _cells(self, values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the cell of each value: never smaller for a larger one, so no edge is missed.

        The first edge opens cell 1 or so, and the last one the last. What lies far below, or is
        not a number, gets a negative cell, which a lookup takes to the first.
        """
        place = values * self._scale
        place += self._shift
        np.minimum(place, LOOKUP_CELLS - 1, out=place)
        whole: NDArray[np.intp] = place.astype(np.intp)
        return whole

    def into(self, states: NDArray[np.uint8], values: NDArray[np.float64]) -> None:
        """Write the states of a stretch of values."""
        if not self._usable:
            states[:] = np.searchsorted(self._edges, values, side="right")
            states[np.isnan(values)] = 0
            return
        with np.errstate(invalid="ignore", over="ignore"):
            cells = self._cells(values)
        self._before.take(cells, out=states, mode="clip")
        states += values >= self._edge.take(cells, mode="clip")


def edges_of(values: NDArray[np.float64], *, states: int, method: Method) -> NDArray[np.float64]:
    """Return increasing edges that cut one column of confidences into at most ``states`` states.

    Every state holds at least one of the values: edges that would leave one empty are dropped.

    >>> edges_of(np.array([0.1, 0.2, 0.8, 0.9]), states=2, method="kmeans").tolist()
    [0.5]
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= 1 or states == 1:
        return np.empty(0)
    if len(distinct) <= states:
        return _between(distinct, np.arange(1, len(distinct)))
    if method == "uniform":
        edges = 2 * np.linspace(distinct[0] / 2, distinct[-1] / 2, states + 1)[1:-1]
        return _between(distinct, np.searchsorted(distinct, edges))
    if method == "quantile":
        ranks = np.arange(1, states) * len(values) / states
        return _between(distinct, np.searchsorted(np.cumsum(counts), ranks) + 1)
    return _between(distinct, _kmeans_cuts(distinct, counts, states))


def _between(distinct: NDArray[np.float64], cuts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Edges half way between the values on both sides of each cut."""
    cuts = np.unique(cuts[(cuts > 0) & (cuts < len(distinct))])
    edges = 0.5 * distinct[cuts - 1] + 0.5 * distinct[cuts]
    # Two neighbouring floats have no middle: the upper one is the edge then.
    return np.unique(np.where(edges > distinct[cuts - 1], edges, distinct[cuts]))


def _kmeans_cuts(
    distinct: NDArray[np.float64], counts: NDArray[np.intp], states: int
) -> NDArray[np.intp]:
    """Optimal one-dimensional k-means by dynamic programming: where each cluster but one begins.

    Exact up to ``KMEANS_CELLS`` distinct values; beyond, neighbours are merged by quantile first.
    """
    starts = np.arange(len(distinct))
    if len(distinct) > KMEANS_CELLS:
        ranks = np.linspace(0, counts.sum(), KMEANS_CELLS, endpoint=False)
        starts = np.unique(np.searchsorted(np.cumsum(counts), ranks, side="right"))
    # Moved to [0, 1]: squares of values far from 0 would lose how far they are apart.
    low, high = 0.5 * distinct[0], 0.5 * distinct[-1]
    place = (0.5 * distinct - low) / (high - low) if high > low else distinct - distinct[0]
    weight = np.add.reduceat(counts, starts).astype(float)
    total = np.add.reduceat(counts * place, starts)
    square = np.add.reduceat(counts * place**2, starts)
    w, t, q = (np.concatenate([[0.0], np.cumsum(part)]) for part in (weight, total, square))
    cells = len(starts)
    # cost[i, j]: within-cluster sum of squares of cells i to j - 1.
    mass = w[np.newaxis, :] - w[:, np.newaxis]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = (t[np.newaxis, :] - t[:, np.newaxis]) ** 2 / mass
        cost = q[np.newaxis, :] - q[:, np.newaxis] - spread
    cost = np.where(mass > 0, np.maximum(cost, 0.0), np.inf)
    best = cost[0].copy()
    back = []
    for _ in range(1, min(states, cells)):
        options = best[:, np.newaxis] + cost
        back.append(options.argmin(axis=0))
        best = options.min(axis=0)
    cuts, end = [], cells
    for choice in reversed(back):
        end = int(choice[end])
        cuts.append(starts[end] if end < cells else len(distinct))
    return np.array(cuts, np.intp)
