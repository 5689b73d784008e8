"""The optimal policy under precedence: one index per node and parent state.

Ask the available node of least index; stop when the best loss so far is at or below it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import INFINITY, Batch, Explanation, Policy, StateSession
from ttamer.policy.expected import (
    START,
    STOP,
    expected_forest,
    expected_walk,
    forest_future,
    walk_future,
)
from ttamer.policy.future import Expected, Future, index_unsure, surrogate_below
from ttamer.problem.problem import Problem
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
    """(index, node) for every root, the least first; the last stands for "no node is left"."""


class Queues(NamedTuple):
    """The children of each node and state as queues one after another, the least index first."""

    node: NDArray[np.intp]
    """The node at each place; -1 after the last one of a queue."""
    indices: NDArray[np.float64]
    rank: NDArray[np.intp]
    """The place in the order of asking; of equal indices the node given first."""
    starts: dict[int, NDArray[np.intp]]
    """Where the queue of each state of a node with children begins; -1 has the roots."""
    column: dict[int, int]
    """The column of each of them in a batch."""
    group_of: NDArray[np.intp]
    """The column in which each node waits."""


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
    original: Problem | None = None
    """Where answers may be returned unseen, the problem that was committed to look or not."""

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
        by_index = sorted((float(self.sigma[root][0]), root) for root in roots)
        none_left = (INFINITY, len(tables))
        return Layout((*self.problem.names, None), (*tables, ((), ())), (*by_index, none_left))

    @cached_property
    def queues(self) -> Queues:
        """The same as arrays, for batches."""
        groups = [START, *(v for v in range(len(self.sigma)) if self.problem.outgoing[v])]
        sizes = [1, *(len(losses) for losses in self.weighed_losses)]
        nodes: list[NDArray[np.intp]] = []
        indices: list[NDArray[np.float64]] = []
        starts: dict[int, NDArray[np.intp]] = {}
        at = 0
        for group in groups:
            children = np.array([self.problem.ends[e][1] for e in self.problem.outgoing[group]])
            states = sizes[group + 1]
            sigma = np.stack([self.sigma[child] for child in children], axis=1)
            order = np.lexsort((np.broadcast_to(children, sigma.shape), sigma), axis=1)
            width = len(children) + 1  # after the last one there is none
            starts[group] = at + width * np.arange(states)
            at += width * states
            nodes.append(np.pad(children[order], ((0, 0), (0, 1)), constant_values=STOP).ravel())
            sigma = np.take_along_axis(sigma, order, axis=1)
            indices.append(np.pad(sigma, ((0, 0), (0, 1)), constant_values=np.inf).ravel())
        node, index = np.concatenate(nodes), np.concatenate(indices)
        rank = np.empty(len(node), np.intp)
        rank[np.lexsort((node, node == STOP, index))] = np.arange(len(node))
        column = {group: number for number, group in enumerate(groups)}
        group_of = np.array(
            [column[self.problem.ends[edges[0]][0]] for edges in self.problem.incoming]
        )
        return Queues(node, index, rank, starts, column, group_of)

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


class IndexSession(StateSession):
    """A session under precedence: the available node of least index comes next.

    It opens in constant time; a step takes a time that is logarithmic in the nodes asked so far.
    """

    __slots__ = ("_at", "_below", "_best", "_names", "_roots", "_started", "_tables")

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy) -> None:
        super().__init__(policy)
        # Roots come in a known order, so a place will do; what opens below them goes on a heap.
        self._names, self._tables, self._roots = policy.layout
        self._at = 0
        self._started = STOP  # the root that was asked first out of order
        # (index, node, its siblings, its place among them): of siblings the least is on the heap.
        self._below: list[tuple[float, int, Children, int]] = []
        self._best = INFINITY
        self._node = self._roots[0][1]
        self.next = self._names[self._node]

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        node = self._node
        try:
            losses, children = self._tables[node]
            if state < 0:
                raise self._refuse(state)
            loss = losses[state]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        if loss < self._best:
            self._best = loss
            self._answer = node
        self._leave(node)
        if children:
            opened = children[state]
            heappush(self._below, (opened.indices[0], opened.nodes[0], opened, 0))
        self._path.append((node, state))
        self._go_on()

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on.

        Its state stays unknown: the indices of its children are those of their average law.
        """
        chances, node = self._fail(), self._node
        self._leave(node)
        policy, problem = self._policy, self._policy.problem
        children = [problem.ends[edge][1] for edge in problem.outgoing[node]]
        if children:
            by_index = sorted(
                (index_unsure(problem, policy.tradeoff, policy.sigma, child, chances), child)
                for child in children
            )
            opened = Children(
                array("d", [index for index, _ in by_index]), array("i", [v for _, v in by_index])
            )
            heappush(self._below, (opened.indices[0], opened.nodes[0], opened, 0))
        self._go_on()

    def _leave(self, node: int) -> None:
        """Take a node that was asked off the nodes that may be asked."""
        if self._roots[self._at][1] == node:
            self._at += 1
        elif node == self._started:
            self._started = STOP - 1 - node  # met again among the roots, where it is passed over
        else:
            _, _, siblings, at = heappop(self._below)
            if (at := at + 1) < len(siblings.nodes):
                heappush(self._below, (siblings.indices[at], siblings.nodes[at], siblings, at))
        if STOP - 1 - self._roots[self._at][1] == self._started:
            self._at += 1

    def _go_on(self) -> None:
        """Ask the node of least index, or stop."""
        index, following = self._least()
        self._node = STOP if self._best <= index else following
        self.next = self._names[self._node]

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        self._started = STOP if self._roots[0][1] == node else node
        self._node, self.next = node, self._names[node]

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        return self._explained(self._best, self._least()[0])

    def _least(self) -> tuple[float, int]:
        """The least index of the nodes that may be asked, and its node."""
        least = self._roots[self._at]
        return min(least, self._below[0][:2]) if self._below else least


class IndexBatch(Batch):
    """A batch under precedence.

    A step takes, per input, a time proportional to the nodes that have children.
    """

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy, size: int) -> None:
        super().__init__(policy, size)
        queues = policy.queues
        self._best = np.full(size, np.inf)
        # The place of the next node of each queue; queues that have not opened stand at the end.
        self._heads = np.full(
            (size, len(queues.column)), queues.starts[START][0] + len(policy.problem.starts)
        )
        self._heads[:, 0] = queues.starts[START][0]
        self.next[:] = queues.node[queues.starts[START][0]]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        queues = self._policy.queues
        own, best = self._policy.weighed_losses[node][states], self._best[rows]
        self.answer[rows[own < best]] = node
        best = np.minimum(best, own)
        self._best[rows] = best
        self._heads[rows, queues.group_of[node]] += 1
        if node in queues.column:
            self._heads[rows, queues.column[node]] = queues.starts[node][states]
        heads = self._heads[rows]
        least = heads[np.arange(len(rows)), queues.rank[heads].argmin(axis=1)]
        goes_on = best > queues.indices[least]
        self.next[rows] = np.where(goes_on, queues.node[least], STOP)
