"""The optimal policy under precedence: one index per node and parent state.

Ask the available node of least index; stop when the best loss so far is at or below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer.policy.base import Policy
from ttamer.policy.batch import IndexBatch
from ttamer.policy.expected_forest import expected_forest, forest_future
from ttamer.policy.expected_walk import STOP, expected_walk, walk_future
from ttamer.policy.session import IndexSession
from ttamer.policy.surrogate import sweep
from ttamer.problem.tradeoff import weigh_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.policy.future import Expected, Future

__all__ = ["IndexPolicy"]


class Layout(NamedTuple):
    """The table of indices as plain sequences; the last entry, without states, is "stopped"."""

    names: tuple[str | None, ...]
    tables: tuple[tuple[tuple[float, ...], tuple[tuple[int, tuple[float, ...]], ...]], ...]
    """Per node: the weighed loss of each state; per child, its number and its indices."""
    roots: tuple[tuple[float, int], ...]
    """(index, node) for every root, the least last; the first stands for nobody."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IndexPolicy(Policy):
    """A table of indices."""

    sigma: tuple[NDArray[np.float64], ...]
    """Per node, its index for each state of its parent; weighed."""

    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node for each state of its parent, weighed."""
        return self.sigma[self.problem.index_of(node)]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the child of least index, or -1 where no child is worth asking."""
        return self._choice(self._place(after), self.fallbacks)

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi for what lies below a node: ``E[min(x, kappa)]``."""
        place = self._place(after)
        below = sweep(self.problem, self.tradeoff)[1][place]
        if below is None:
            return np.tile(self.fallbacks, (self._states(place), 1))
        return below.least_mean(self.fallbacks)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best loss and the cost below a node."""
        place = self._place(after)
        state = self._check_state(place, state)
        weighed = weigh_losses(np.array([best]), self.tradeoff)
        if self.problem.is_line:
            columns = np.minimum(self.fallbacks, weighed)
            choice = [self._choice(at, columns) for at in (*range(len(self.sigma)), -1)]
            return walk_future(self.problem, choice, recall=True, place=place, state=state)
        return forest_future(
            self.problem, self.tradeoff, self.sigma, place=place, state=state, best=weighed[0]
        )

    def session(self) -> IndexSession:
        """Start deciding for one input."""
        return IndexSession(self)

    def batch(self, size: int) -> IndexBatch:
        """Start deciding for many inputs at once."""
        return IndexBatch(self, size)

    @cached_property
    def weighed_losses(self) -> tuple[NDArray[np.float64], ...]:
        """Per node, the loss of each of its states, weighed."""
        return tuple(weigh_losses(node.losses, self.tradeoff) for node in self.problem.nodes)

    @cached_property
    def layout(self) -> Layout:
        """The tables as a session reads them."""
        tables = []
        for node in range(len(self.sigma)):
            children = [self.problem.ends[edge][1] for edge in self.problem.outgoing[node]]
            indices = tuple((child, tuple(self.sigma[child].tolist())) for child in children)
            tables.append((tuple(self.weighed_losses[node].tolist()), indices))
        roots = [self.problem.ends[edge][1] for edge in self.problem.starts]
        least_last = sorted(((float(self.sigma[root][0]), root) for root in roots), reverse=True)
        nobody = (float("inf"), len(tables))
        return Layout((*self.problem.names, None), (*tables, ((), ())), (nobody, *least_last))

    @cached_property
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]:
        if self.problem.is_line:
            places = (*range(len(self.sigma)), -1)
            choice = [self._choice(place, self.fallbacks) for place in places]
            return expected_walk(self.problem, choice, recall=True)
        return expected_forest(self.problem, self.tradeoff, self.sigma)

    def _choice(self, place: int, columns: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return the choice among a node's children when the best so far is each of ``columns``."""
        children = sorted(self.problem.ends[edge][1] for edge in self.problem.outgoing[place])
        if not children:
            return np.full((self._states(place), len(columns)), STOP, np.int32)
        sigma = np.stack([self.sigma[child] for child in children])
        least = np.array(children, np.int32)[sigma.argmin(axis=0)]  # ties: the node given first
        goes_on = columns > sigma.min(axis=0)[:, np.newaxis]
        return np.where(goes_on, least[:, np.newaxis], np.int32(STOP))
