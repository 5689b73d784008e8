"""The optimal policy under precedence: one index per node and parent state.

Ask the available node of least index; stop when the best loss so far is at or below it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import Policy, check_state, number_of
from ttamer.policy.future import Future, Means, joint_law
from ttamer.policy.outcome import forest_outcome
from ttamer.policy.session import INFINITY, Batch, Explanation, StateSession
from ttamer.policy.surrogate import index_unsure, surrogate_below
from ttamer.problem.checks import weigh_losses
from ttamer.problem.graph import START, STOP


class Queue(NamedTuple):
    """Nodes waiting to be asked, the least index first, as plain sequences."""

    indices: array[float]
    nodes: array[int]
    """A queue ends with -1."""


class IndexTables(NamedTuple):
    """The children of each node and state as queues one after another, the least index first."""

    nodes: NDArray[np.int32]
    """The node at each position; -1 after the last one of a queue."""
    indices: NDArray[np.float64]
    rank: NDArray[np.intp]
    """The position in the order of asking; of equal indices the node given first."""
    starts: dict[int, NDArray[np.intp]]
    """Where the queue of each state of a node with children begins; -1 has the roots."""
    column: dict[int, int]
    """The column of each of them in a batch."""
    group_of: NDArray[np.intp]
    """The column in which each node waits."""
    queue: Queue
    """The queues again, for sessions: single numbers are read faster so."""
    opens: tuple[tuple[int, ...], ...]
    """Per node, where the queue of its children begins for each state; none for a leaf."""
    losses: tuple[tuple[float, ...], ...]
    """Per node, the weighed loss of each state; the last entry is "stopped"."""
    names: tuple[str | None, ...]


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
        return self.sigma[self.problem.index_of(node)]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        children = sorted(self.problem.targets(number_of(self.problem, after)))
        states = (
            1 if after is None else len(self.problem.nodes[self.problem.index_of(after)].losses)
        )
        sigma = np.full((len(children) + 1, states), np.inf)  # the last one is to stop
        for row, child in enumerate(children):
            sigma[row] = self.sigma[child]
        least = np.array([*children, STOP], np.int32)[sigma.argmin(axis=0)]  # ties: given first
        goes_on = self.fallbacks > sigma.min(axis=0)[:, np.newaxis]
        return np.where(goes_on, least[:, np.newaxis], np.int32(STOP))

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        node = number_of(self.problem, after)
        below = surrogate_below(self.problem, self.tradeoff, self.sigma, node)
        return below.expected_minimum(self.fallbacks)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        node = number_of(self.problem, after)
        state = check_state(self.problem, node, state)
        if not best >= 0:  # also NaN
            raise ArgumentError(f"the best loss so far is from 0 up, or inf for none, not {best!r}")
        weighed = float(weigh_losses(np.array([best]), self.tradeoff)[0])
        answers, *_ = forest_outcome(
            self.problem, self.tradeoff, self.sigma, node, state, best=weighed, by_cost=True
        )
        return joint_law(answers)

    def session(self) -> IndexSession:
        return IndexSession(self)

    def batch(self, size: int) -> IndexBatch:
        return IndexBatch(self, size)

    @cached_property
    def weighed_losses(self) -> tuple[NDArray[np.float64], ...]:
        """Per node, the loss of each of its states, weighed."""
        return tuple(weigh_losses(node.losses, self.tradeoff) for node in self.problem.nodes)

    @cached_property
    def tables(self) -> IndexTables:
        """The indices as sessions and batches read them."""
        groups = [START, *(v for v in range(len(self.sigma)) if self.problem.outgoing[v])]
        parts: list[tuple[NDArray[np.intp], NDArray[np.float64]]] = []
        starts: dict[int, NDArray[np.intp]] = {}
        size = 0
        for group in groups:
            children = np.array(self.problem.targets(group))
            sigma = np.stack([self.sigma[child] for child in children], axis=1)
            order = np.lexsort((np.broadcast_to(children, sigma.shape), sigma), axis=1)
            end = ((0, 0), (0, 1))  # after the last one there is none
            nodes = np.pad(children[order], end, constant_values=STOP)
            indices = np.take_along_axis(sigma, order, axis=1)
            parts.append((nodes.ravel(), np.pad(indices, end, constant_values=np.inf).ravel()))
            starts[group] = size + nodes.shape[1] * np.arange(len(nodes))
            size += nodes.size
        node, index = (np.concatenate(part) for part in zip(*parts, strict=True))
        rank = np.empty(size, np.intp)
        rank[np.lexsort((node, node == STOP, index))] = np.arange(size)
        column = {group: number for number, group in enumerate(groups)}
        return IndexTables(
            nodes=node.astype(np.int32),
            indices=index,
            rank=rank,
            starts=starts,
            column=column,
            group_of=np.array([column[parent] for parent in self.problem.parents]),
            queue=Queue(array("d", index.tobytes()), array("i", node.astype(np.int32).tobytes())),
            opens=tuple(
                tuple(starts[v].tolist()) if v in starts else () for v in range(len(self.sigma))
            ),
            losses=(*(tuple(losses.tolist()) for losses in self.weighed_losses), ()),
            names=(*self.problem.names, None),
        )

    @cached_property
    def _means(self) -> Means:
        answers, cost, asked = forest_outcome(self.problem, self.tradeoff, self.sigma)
        # The chance that nothing answers is rounding: the solver refuses what is not sure to.
        return Means.of(answers[1:], cost, asked)


class IndexSession(StateSession):
    """A session under precedence: the available node of least index comes next.

    It opens in constant time; a step takes a time that is logarithmic in the nodes asked so far.
    """

    __slots__ = ("_best", "_names", "_open")

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy) -> None:
        super().__init__(policy)
        self._names, queue = policy.tables.names, policy.tables.queue
        # A heap with the first of every queue: (index, node, its place, the queue).
        self._open = [(queue.indices[0], queue.nodes[0], 0, queue)]
        self._best = INFINITY
        self._node = queue.nodes[0]
        self.next = self._names[self._node]

    def observe(self, state: int) -> None:
        node, tables = self._node, self._policy.tables
        try:
            if state < 0:
                raise self._refuse(state)
            loss = tables.losses[node][state]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        if loss < self._best:
            self._best = loss
            self._answer = node
        self._path.append((node, state))
        opens = tables.opens[node]
        if opens:
            self._go_on(opens[state], tables.queue)
        else:
            self._go_on()

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on.

        Its state stays unknown: the indices of its children are those of their average law.
        """
        node, chances = self._node, self._fail()
        problem, tradeoff, sigma = self._policy.problem, self._policy.tradeoff, self._policy.sigma
        children = problem.targets(node)
        by_index = sorted((index_unsure(problem, tradeoff, sigma, v, chances), v) for v in children)
        indices, nodes = zip(*by_index, (INFINITY, STOP), strict=True)
        self._go_on(0, Queue(array("d", indices), array("i", nodes)) if children else None)

    def _go_on(self, start: int = 0, opened: Queue | None = None) -> None:
        """Take the node asked off its queue, add the queue that it opens, and choose the next."""
        _, _, position, queue = self._open[0]
        position += 1
        following = queue.nodes[position]
        if following >= 0:
            heapreplace(self._open, (queue.indices[position], following, position, queue))
        else:
            heappop(self._open)
        if opened is not None:
            heappush(self._open, (opened.indices[start], opened.nodes[start], start, opened))
        index, node = self._open[0][:2] if self._open else (INFINITY, STOP)
        self._node = STOP if self._best <= index else node
        self.next = self._names[self._node]

    def explain(self) -> Explanation:
        return self._explained(self._best, self._open[0][0] if self._open else INFINITY)


class IndexBatch(Batch):
    """A batch under precedence.

    A step takes, per input, a time proportional to the nodes that have children.
    """

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy, size: int) -> None:
        super().__init__(policy, size)
        queues = policy.tables
        self._best = np.full(size, np.inf)
        # The place of the next node of each queue; queues that have not opened stand at the end.
        self._heads = np.full(
            (size, len(queues.column)), queues.starts[START][0] + len(policy.problem.starts)
        )
        self._heads[:, 0] = queues.starts[START][0]
        self.next[:] = queues.nodes[queues.starts[START][0]]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        queues = self._policy.tables
        losses, best = self._policy.weighed_losses[node][states], self._best[rows]
        self.answer[rows[losses < best]] = node
        best = np.minimum(best, losses)
        self._best[rows] = best
        # Only the head of each queue competes: the others of it have larger indices.
        self._heads[rows, queues.group_of[node]] += 1
        if node in queues.column:
            self._heads[rows, queues.column[node]] = queues.starts[node][states]
        heads = self._heads[rows]
        first = heads[np.arange(len(rows)), queues.rank[heads].argmin(axis=1)]
        goes_on = best > queues.indices[first]
        self.next[rows] = np.where(goes_on, queues.nodes[first], STOP)
