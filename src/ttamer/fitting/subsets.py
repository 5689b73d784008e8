"""Policies for many separate models: for each tradeoff the best small subset of them.

With n models there are 2^n sets of models asked so far, and a policy that may go from each to every
larger one chooses among many noisy estimates at every step. Most of what there is to gain needs few
of the models: here each policy uses a subset of at most ``MAX_ASKED``, in any order, or asks all
models in order of cost. The subset is chosen for each tradeoff by the objective on the rows.

All candidates share one walk over the sets of models asked. A *plan* is the set of edges that a
policy may use. Chains, in which each subset is asked in order of cost, are cheap to compare; any
order is tried for the subsets whose chains are best.

Cost: a few milliseconds per subset and thousand rows; subsets are compared on at most
``MAX_SEARCH_ROWS`` rows.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Step
    from ttamer.fitting.row_policy import RowSolver

__all__ = [
    "MAX_SEARCH_ROWS",
    "MIN_MODELS",
    "Lattice",
    "Plan",
    "average_near",
    "choose_plans",
    "choose_pool",
    "subset_size",
]

MIN_MODELS = 5
"""From this many separate models on, policies are searched among subsets."""
MAX_POOL = 10
"""Of more models than this, subsets are formed of the ones that are best in pairs."""
MAX_ASKED = 4
"""A subset has at most this many models."""
MAX_WHOLE = 6
"""Given ``MANY_ROWS``, a subset may be all of at most this many models."""
MANY_ROWS = 2000
"""With fewer rows no subset has more than ``MAX_ASKED`` models."""
MAX_SEARCH_ROWS = 4000
"""Subsets are compared on at most this many rows."""
SHORTLIST = 6
"""For each tradeoff, any order is tried for this many subsets."""
CHOICE_REACH = 0.51
"""A plan is chosen by its mean objective over tradeoffs whose log-odds are at most this far."""
LOG_ODDS = (-2.5, 7.1)
"""Tradeoffs beyond these log-odds, 0 and 1 among them, count as if they were there."""
DECIMALS = 10
"""Objectives, which lie between 0 and 1, are compared to this many decimals."""
PAIRS_COUNTED = 3
"""For each tradeoff, the models of this many pairs count towards the pool."""

Way = tuple[int, int, int]
"""An edge of the walk over steps: from, to, and the node asked; the start is -1."""
Plan = frozenset[tuple[int, int]]
"""The edges that a policy may use, as (from, to)."""


def subset_size(models: int, rows: int) -> int:
    """Return the size of the largest subset to search.

    >>> subset_size(6, 2000), subset_size(6, 1999), subset_size(7, 10**6)
    (6, 4, 4)
    """
    return models if models <= MAX_WHOLE and rows >= MANY_ROWS else min(models, MAX_ASKED)


class Lattice:
    """The sets of models that may have been asked, and the edges between them.

    Args:
        costs: Mean cost of each model, which orders the chains.
        pool: The models that subsets are formed of, in increasing order.
        size: The size of the largest subset.
        router: Whether a router comes before all models.

    Steps are in increasing order of nodes; beside the subsets there are those of a line through all
    models.

    >>> lattice = Lattice([1.0, 9.0, 4.0], [0, 1, 2], 2)
    >>> lattice.steps
    [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    >>> sorted(lattice.chain((0, 1))), sorted(lattice.line())
    ([(-1, 0), (0, 3)], [(-1, 0), (0, 4), (4, 6)])
    """

    def __init__(
        self, costs: Sequence[float], pool: Sequence[int], size: int, *, router: bool = False
    ) -> None:
        self._costs, self._router = costs, router
        self.subsets: list[Step] = [s for k in range(size) for s in combinations(pool, k + 1)]
        line = self._by_cost(range(len(costs)))
        self.prefixes: list[Step] = [tuple(sorted(line[: k + 1])) for k in range(len(line))]
        self.steps: list[Step] = [()] if router else []
        self.steps += dict.fromkeys([*self.subsets, *self.prefixes])
        self._number = {step: place for place, step in enumerate(self.steps)}
        plans = [
            self.any_order(subset) for subset in self.subsets if len(subset) == min(size, len(pool))
        ]
        edges = sorted(frozenset.union(*plans, self.line()))
        self.ways: list[Way] = [
            (source, target, self._asked(source, target)) for source, target in edges
        ]

    def chain(self, subset: Step) -> Plan:
        """Return the plan that asks a subset in order of cost."""
        nodes = self._by_cost(subset)
        return self._path([tuple(sorted(nodes[: k + 1])) for k in range(len(nodes))])

    def line(self) -> Plan:
        """Return the plan that asks all models in order of cost."""
        return self._path(self.prefixes)

    def any_order(self, subset: Step) -> Plan:
        """Return the plan that asks a subset in any order."""
        steps = [s for k in range(len(subset)) for s in combinations(subset, k + 1)]
        number = self._number
        inner = {
            (number[step], number[tuple(sorted((*step, node)))])
            for step in steps
            for node in subset
            if node not in step
        }
        return self._start(steps[: len(subset)]) | inner

    def _path(self, steps: Sequence[Step]) -> Plan:
        places = [self._number[step] for step in steps]
        return self._start(steps[:1]) | set(pairwise(places))

    def _start(self, steps: Sequence[Step]) -> Plan:
        root = 0 if self._router else -1
        first = {(root, self._number[step]) for step in steps}
        return frozenset(first | {(-1, 0)} if self._router else first)

    def _asked(self, source: int, target: int) -> int:
        before = self.steps[source] if source >= 0 else ()
        return next((node for node in self.steps[target] if node not in before), -1)

    def _by_cost(self, nodes: Collection[int]) -> list[int]:
        return sorted(nodes, key=lambda node: (self._costs[node], node))


def choose_plans(solver: RowSolver, lattice: Lattice, weights: NDArray[np.float64]) -> list[Plan]:
    """Return for each tradeoff the plan with the least objective on the solver's rows.

    The best of many noisy values is too good to be true; one that is best at neighbouring
    tradeoffs too is less so.
    """
    plans = [lattice.chain(subset) for subset in lattice.subsets]
    found = _objectives(solver, lattice, weights, plans)
    ranked = np.argsort(average_near(found, weights, CHOICE_REACH), axis=0, kind="stable")
    best = np.unique(ranked[:SHORTLIST])
    wider = [lattice.any_order(lattice.subsets[k]) for k in best if len(lattice.subsets[k]) > 1]
    wider.append(lattice.line())
    plans += wider
    found = np.concatenate([found, _objectives(solver, lattice, weights, wider)])
    return [plans[k] for k in average_near(found, weights, CHOICE_REACH).argmin(axis=0)]


def average_near(
    values: NDArray[np.float64], tradeoffs: NDArray[np.float64], reach: float
) -> NDArray[np.float64]:
    """Return values, shape (..., tradeoffs), averaged over tradeoffs within reach in log-odds.

    They are rounded: values that are equal but for rounding stay equal.

    >>> average_near(np.array([1.0, 3.0, 8.0]), np.array([0.5, 0.6, 0.9]), 0.51).tolist()
    [2.0, 2.0, 8.0]
    """
    inside = np.clip(tradeoffs, 1e-9, 1 - 1e-9)
    place = np.clip(np.log(inside / (1 - inside)), *LOG_ODDS)
    near = np.abs(place - place[:, np.newaxis]) <= reach
    return np.asarray(np.round(values @ (near / near.sum(axis=0)), DECIMALS), np.float64)


def choose_pool(solver: RowSolver, lattice: Lattice, weights: NDArray[np.float64]) -> list[int]:
    """Return the models that are most often in the best pairs, in increasing order."""
    chains = [lattice.chain(subset) for subset in lattice.subsets]
    found = _objectives(solver, lattice, weights, chains)
    best = np.argsort(found, axis=0, kind="stable")[:PAIRS_COUNTED].ravel()
    count = np.bincount([node for k in best for node in lattice.subsets[k]])
    return sorted(np.argsort(-count, kind="stable")[:MAX_POOL].tolist())


def _objectives(
    solver: RowSolver, lattice: Lattice, weights: NDArray[np.float64], plans: Sequence[Plan]
) -> NDArray[np.float64]:
    """Return the objective of each plan on the solver's rows, shape (plans, tradeoffs)."""
    number = {way[:2]: edge for edge, way in enumerate(lattice.ways)}
    return np.array([solver.values(weights, {number[way] for way in plan}) for plan in plans])
