"""The optimal policy under precedence: one index per node and parent state.

Ask the available node of least index; stop when the best loss so far is at or below it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import Policy
from ttamer.policy.batch import IndexBatch
from ttamer.policy.expected_forest import expected_forest, forest_future
from ttamer.policy.expected_walk import STOP, expected_walk, walk_future
from ttamer.policy.future import Expected, Future
from ttamer.policy.session import IndexSession
from ttamer.policy.surrogate import surrogate_below
from ttamer.problem.tradeoff import weigh_losses


class Children(NamedTuple):
    """The children of a node seen in one state, the least index first."""

    indices: array[float]
    nodes: array[int]


class Layout(NamedTuple):
    """The table of indices as plain sequences; the last entry, without states, is "stopped"."""

    names: tuple[str | None, ...]
    tables: tuple[tuple[tuple[float, ...], tuple[Children, ...]], ...]
    """Per node: the weighed loss, and the children, of each state; no children for a leaf."""
    roots: tuple[tuple[float, int], ...]
    """(index, node) for every root, the least last; the first stands for "no node is left"."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IndexPolicy(Policy):
    """A table of indices.

    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.forest([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5]] * 2, [None] * 2), 0.5)
    >>> policy.index("m1").round(9).tolist(), policy.index("m2").round(9).tolist()
    ([0.1], [0.2])
    """

    sigma: tuple[NDArray[np.float64], ...]
    """Per node, its index for each state of its parent; weighed."""

    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node for each state of its parent, weighed.

        Args:
            node: The name of the node.

        Returns:
            Shape (states of the parent,); one entry for a root.

        Raises:
            ArgumentError: If there is no such node.
        """
        return self.sigma[self.problem.index_of(node)]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the child of least index, or -1 where no child is worth asking.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns): numbers of nodes.

        Raises:
            ArgumentError: If there is no such node.
        """
        return self._choice(self._place(after), self.fallbacks)

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi for what lies below a node: ``E[min(x, kappa)]``, weighed.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns), as :meth:`choice`.

        Raises:
            ArgumentError: If there is no such node.
        """
        place = self._place(after)
        below = surrogate_below(self.problem, self.tradeoff, self.sigma, place)
        if below is None:
            return np.tile(self.fallbacks, (self._states(place), 1))
        return below.expected_minimum(self.fallbacks)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best loss and the cost below a node.

        Args:
            after: The name of the node asked last; ``None`` for the start.
            state: The number of the state in which that node was observed.
            best: The best loss so far, in the problem's units; ``inf`` for none yet.

        Returns:
            The law, in the problem's units.

        Raises:
            ArgumentError: If there is no such node or state, the loss is negative or not a
                number, or the cost takes too many distinct values.
        """
        place = self._place(after)
        state = self._check_state(place, state)
        if not best >= 0:  # also NaN
            raise ArgumentError(f"the best loss so far is from 0 up, or inf for none, not {best!r}")
        weighed = weigh_losses(np.array([best]), self.tradeoff)
        if self.problem.is_line:
            columns = np.minimum(self.fallbacks, weighed)
            choice = [self._choice(at, columns) for at in (*range(len(self.sigma)), -1)]
            return walk_future(self.problem, choice, recall=True, place=place, state=state)
        return forest_future(
            self.problem, self.tradeoff, self.sigma, place=place, state=state, best=weighed[0]
        )

    def session(self) -> IndexSession:
        """Start deciding for one input.

        Returns:
            A session at the start.
        """
        return IndexSession(self)

    def batch(self, size: int) -> IndexBatch:
        """Start deciding for many inputs at once.

        Args:
            size: The number of inputs.

        Returns:
            A batch at the start.

        Raises:
            ArgumentError: If the size is negative.
        """
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
            children = sorted(self.problem.ends[edge][1] for edge in self.problem.outgoing[node])
            ordered: tuple[Children, ...] = ()
            if children:
                sigma = np.stack([self.sigma[child] for child in children], axis=1)
                least_first = sigma.argsort(axis=1, kind="stable")  # ties: the node given first
                numbers = np.array(children, np.int32)[least_first]
                sigma = np.take_along_axis(sigma, least_first, axis=1)
                ordered = tuple(
                    Children(array("d", row.tobytes()), array("i", nodes.tobytes()))
                    for row, nodes in zip(sigma, numbers, strict=True)
                )
            tables.append((tuple(self.weighed_losses[node].tolist()), ordered))
        roots = [self.problem.ends[edge][1] for edge in self.problem.starts]
        least_last = sorted(((float(self.sigma[root][0]), root) for root in roots), reverse=True)
        none_left = (float("inf"), len(tables))
        return Layout((*self.problem.names, None), (*tables, ((), ())), (none_left, *least_last))

    @cached_property
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]:
        if self.problem.is_line:
            return expected_walk(
                self.problem, lambda place: self._choice(place, self.fallbacks), recall=True
            )
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
