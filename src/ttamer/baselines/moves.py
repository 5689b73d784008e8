"""Who may be asked, in which order: what the cascade allows a baseline.

- ``fixed``: the exits of one network. Each is asked, and paid for, on the way to the next.
- ``skip``: separate models, asked in the order they stand in; any may be left out. Where nodes say
  ``passing`` they are the exits of one network, and leaving one out costs that much.
- ``any``, ``auto``: separate models, in any order. A rule that walks goes from the cheapest to the
  dearest by mean cost on the fit rows.

Where nodes say ``after``, a parent comes before its children.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.trace.trace import require_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["Moves", "before"]


@dataclass(frozen=True, eq=False)
class Moves:
    """What a cascade of n nodes allows.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> spec = CascadeSpec.of({"large": 9.0, "small": 1.0})
    >>> moves = Moves.of(Trace(spec, [[0.9, 0.8]]))
    >>> moves.walk.tolist(), moves.needs.tolist()
    ([1, 0], [[True, False], [False, True]])
    """

    exits: bool
    """Whether the nodes are the exits of one network, each asked on the way to the next."""
    walk: NDArray[np.intp]
    """Shape (n,): all nodes, in the order a rule that walks asks them."""
    needs: NDArray[np.bool_]
    """Shape (n, n): row v marks who is asked if v alone is wanted, v included."""
    follows: NDArray[np.bool_]
    """Shape (n, n): row u marks who may be asked once u was the last one asked."""
    costs: NDArray[np.float64]
    """Shape (n,): mean cost of asking each node."""
    is_tree: bool
    """Whether, among separate models, some must be asked before others."""
    passing: NDArray[np.float64]
    """Shape (n,): what going past each node without asking it costs."""
    passes: bool
    """Whether the nodes are the exits of one network, and any may be passed."""

    @classmethod
    def of(cls, trace: Trace) -> Moves:
        """Return what the cascade of a trace allows, at the mean costs of its rows."""
        require_rows(trace, 1, "a baseline")
        spec, count = trace.spec, len(trace.spec)
        exits = spec.order == "fixed"
        costs = trace.costs.mean(axis=0)
        needs = np.tri(count, dtype=bool) if exits else _ancestors(spec.parents)
        follows = ~np.eye(count, dtype=bool)
        if exits:
            follows = np.eye(count, k=1, dtype=bool)
        elif spec.order == "skip":
            follows = np.tri(count, k=-1, dtype=bool).T
        in_order = exits or spec.order == "skip"
        walk = np.arange(count) if in_order else _cheapest_first(costs, needs)
        tree = spec.is_tree and not exits
        return cls(exits, walk, needs, follows, costs, tree, spec.passing, spec.has_passing)

    @property
    def prices(self) -> NDArray[np.float64]:
        """Shape (n,): the mean cost of each node's answer alone, all asked or passed before it."""
        return self.needs @ self.costs + before(self.passing)


def before(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what comes to each entry from those before it, along the last axis.

    >>> before(np.array([1.0, 2.0, 3.0])).tolist()
    [0.0, 1.0, 3.0]
    """
    running = np.cumsum(values, axis=-1)[..., :-1]
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), running], axis=-1)


def _ancestors(parents: tuple[int | None, ...]) -> NDArray[np.bool_]:
    needs = np.eye(len(parents), dtype=bool)
    for node in range(len(parents)):
        above = parents[node]
        while above is not None:
            needs[node, above] = True
            above = parents[above]
    return needs


def _cheapest_first(costs: NDArray[np.float64], needs: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the nodes from the cheapest to the dearest, each after all it needs."""
    walk: list[int] = []
    left = set(range(len(costs)))
    while left:
        ready = [v for v in left if not any(needs[v, u] for u in left if u != v)]
        walk.append(min(ready, key=lambda v: (costs[v], v)))
        left.remove(walk[-1])
    return np.array(walk, np.intp)
