"""The optimal policy of a walk: one choice per node, state and best loss so far."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import Policy
from ttamer.policy.batch import WalkBatch
from ttamer.policy.expected_walk import STOP, expected_walk, walk_future
from ttamer.policy.future import Expected, Future
from ttamer.policy.index import IndexPolicy
from ttamer.policy.session import LastAnswerSession, StateSession, WalkSession


class Layout(NamedTuple):
    """The tables of a walk as plain sequences; the last entry, without states, is "stopped"."""

    names: tuple[str | None, ...]
    first: int
    columns: int
    tables: tuple[tuple[tuple[int, ...], tuple[array[int], ...]], ...]
    """Per node: the grid column of each state's loss; for each state a row of choices."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WalkPolicy(Policy):
    """Tables of choices and of equivalent losses, one pair per node; the start's come last.

    >>> from ttamer import Problem, solve
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> solve(line, 0.5).choice("m1").tolist()  # columns: the best loss is 0, 1, or none yet
    [[-1, 1, 1], [-1, 1, 1]]
    """

    choices: tuple[NDArray[np.int32], ...]
    """Shape (states, columns) each: the node to ask next, or -1."""
    phi: tuple[NDArray[np.float64], ...]
    """Shape (states, columns) each: the equivalent loss, weighed."""
    line_indices: Callable[[], tuple[NDArray[np.float64], ...]] | None = None
    """Solves for the exact index of each node of a line; ``None`` for a policy from a file."""

    def index(self, node: str) -> NDArray[np.float64]:
        """Return the exact dynamic index of a node of a line, weighed.

        Args:
            node: The name of the node.

        Returns:
            Shape (states of the node before it,); one entry for the first node.

        Raises:
            ArgumentError: If there is no such node, the problem is not a line, the policy
                has no recall, or it was loaded from a file.
        """
        number = self.problem.index_of(node)
        if not (self.problem.is_line and self.recall):
            raise ArgumentError(
                "a node has an index of its own on a line or a forest, with recall; where routes "
                "meet or part, use policy.threshold(after) and policy.choice(after)"
            )
        return self._indices()[number]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the routing table: the number of the node to ask next, or -1 to stop.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns); one column without recall.

        Raises:
            ArgumentError: If there is no such node.
        """
        return self.choices[self._place(after)]

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi: the expected loss and further cost from there, weighed.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns), as :meth:`choice`.

        Raises:
            ArgumentError: If there is no such node.
        """
        return self.phi[self._place(after)]

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best future loss and the future cost.

        Args:
            after: The name of the node asked last; ``None`` for the start.
            state: The number of the state in which that node was observed.
            best: The best loss so far, in the problem's units; ``inf`` for none yet.

        Returns:
            The law, in the problem's units.

        Raises:
            ArgumentError: If there is no such node, state or loss, or the cost takes too
                many distinct values.
        """
        place = self._place(after)
        if self.recall and self.problem.is_line and best not in self.problem.grid.values:
            # Off the grid the tables say nothing, but the exact indices of a line do.
            same = IndexPolicy(
                problem=self.problem.with_moves("precedence"),
                tradeoff=self.tradeoff,
                value=self.value,
                sigma=self._indices(),
            )
            return same.future(after, state, best)
        columns = np.zeros(len(self.problem.grid), np.intp)
        if self.recall:
            columns = np.minimum(np.arange(len(columns)), self.problem.grid.column(best))
        choice = [table[:, columns] for table in self.choices]
        state = self._check_state(place, state)
        return walk_future(self.problem, choice, recall=self.recall, place=place, state=state)

    def session(self) -> StateSession:
        """Start deciding for one input.

        Returns:
            A session at the start.
        """
        return WalkSession(self) if self.recall else LastAnswerSession(self)

    def batch(self, size: int) -> WalkBatch:
        """Start deciding for many inputs at once.

        Args:
            size: The number of inputs.

        Returns:
            A batch at the start.

        Raises:
            ArgumentError: If the size is negative.
        """
        return WalkBatch(self, size)

    def going_on(self, after: str | None, state: int, column: int = 0) -> float:
        """Return the expected loss and cost of asking one more node, weighed.

        Args:
            after: The name of the node asked last; ``None`` for the start.
            state: The number of the state in which that node was observed.
            column: The column of the grid that the best loss so far heads; 0 without
                recall.

        Returns:
            The value of going on; ``inf`` when no node is left to ask.

        Raises:
            ArgumentError: If there is no such node.
        """
        place = self._place(after)
        if self.choices[place][state, column] != STOP:
            return float(self.phi[place][state, column])
        edges = self.problem.outgoing[place]
        return min((self._onward(edge, state, column) for edge in edges), default=np.inf)

    def onward(self, place: int, state: int) -> int:
        """Return the node to ask next where the policy must not stop, without recall.

        Args:
            place: The number of the node asked last.
            state: The number of the state in which it was observed.

        Returns:
            The number of the node; -1 when no node is left to ask.
        """
        edges = self.problem.outgoing[place]
        if not edges:
            return STOP
        return self.problem.ends[min(edges, key=lambda edge: self._onward(edge, state, 0))][1]

    @cached_property
    def layout(self) -> Layout:
        """The tables as a session reads them."""
        grid, names = self.problem.grid, self.problem.names
        tables = [
            (tuple(position.tolist()), tuple(array("i", row.tobytes()) for row in table))
            for position, table in zip(grid.positions, self.choices[:-1], strict=True)
        ]
        first = int(self.choices[-1][0, -1])
        return Layout((*names, None), first, len(grid) - 1, (*tables, ((), ())))

    def _onward(self, edge: int, state: int, column: int) -> float:
        """Return the value of taking an edge, when the best loss so far heads ``column``."""
        target = self.problem.ends[edge][1]
        after = self.phi[target]
        columns = np.minimum(column, self.problem.grid.positions[target]) if self.recall else 0
        values = after[np.arange(len(after)), columns]
        row = self.problem.edges[edge].probabilities[state]
        cost = (1 - self.tradeoff) * self.problem.edges[edge].expected_costs[state]
        return float(cost + row[row > 0] @ values[row > 0])

    @cached_property
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]:
        return expected_walk(self.problem, self.choices.__getitem__, recall=self.recall)

    def _indices(self) -> tuple[NDArray[np.float64], ...]:
        """Return the exact index of each node of a line, by the solver that made this policy."""
        if self.line_indices is None:
            raise ArgumentError(
                "the file of a walk holds its tables, and the exact index lies between two of "
                "their columns: use solve(policy.problem, policy.tradeoff).index(node), or "
                "policy.threshold(after), which is on the grid"
            )
        return self.line_indices()
