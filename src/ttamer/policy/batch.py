"""A batch: deciding for many inputs at once, over arrays.

::

    batch = policy.batch(size)
    while batch.running:
        batch.next              # per input, the number of the node to ask; -1 once stopped
        batch.observe(states)   # per input, the state observed; ignored once stopped
    batch.answer                # per input, the number of the node whose answer to return

It makes the same decisions as sessions do, bit for bit: the same numbers are compared in the same
way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._arguments import require_whole
from ttamer._numbers import counted
from ttamer.errors import ObservationError
from ttamer.policy.expected_walk import STOP

if TYPE_CHECKING:
    from ttamer.policy.base import Policy
    from ttamer.policy.index import IndexPolicy
    from ttamer.policy.walk import WalkPolicy


class Batch(ABC):
    """Many inputs' ways through a policy, step by step.

    >>> from ttamer import Problem, solve
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> batch = solve(line, 0.5).batch(2)
    >>> batch.observe([0, 1])
    >>> batch.next.tolist()
    [-1, 1]
    """

    def __init__(self, policy: Policy, size: int) -> None:
        require_whole(size, "size")
        self._policy = policy
        self.next: NDArray[np.int32] = np.full(size, STOP, np.int32)
        """Per input, the number of the node to ask now; -1 once stopped."""
        self.answer: NDArray[np.int32] = np.full(size, STOP, np.int32)
        """Per input, the number of the node whose answer to return; -1 before any answer."""
        self.cost: NDArray[np.float64] = np.zeros(size)
        """Per input, what it has cost so far, in the problem's units."""
        self.steps: NDArray[np.int32] = np.zeros(size, np.int32)
        """Per input, how many nodes were asked."""
        self._last: NDArray[np.int32] = np.full(size, -1, np.int32)
        nodes = 0 if policy.problem.has_fixed_costs else len(policy.problem.nodes) + 1
        self._seen: NDArray[np.intp] = np.zeros((size, nodes), np.intp)  # the start has state 0

    def __len__(self) -> int:
        return len(self.next)

    @property
    def running(self) -> bool:
        """Whether some input still has a node to ask."""
        return bool((self.next != STOP).any())

    def observe(self, states: ArrayLike) -> None:
        """Give the state in which each input's ``next`` is observed, and move all of them on.

        Args:
            states: Shape (inputs,), integers; entries of inputs that stopped are ignored.

        Raises:
            ObservationError: If there are too many or too few, or a node has no such state.
        """
        seen = self._as_states(states)
        asked = self.next.copy()
        nodes = np.flatnonzero(np.bincount(asked + 1)[1:]).tolist()  # STOP is -1
        groups = [(node, np.flatnonzero(asked == node)) for node in nodes]
        for node, rows in groups:
            self._check(node, rows, seen[rows])
        for node, rows in groups:
            self._pay(node, rows, seen[rows])
            self._step(node, rows, seen[rows])
        self._last = np.where(asked == STOP, self._last, asked)

    def _as_states(self, states: ArrayLike) -> NDArray[np.integer]:
        """Return the states of all inputs as an array, or refuse them."""
        try:
            seen = np.asarray(states)
        except ValueError:  # rows of unequal length
            seen = np.empty(0, object)
        if not seen.size and not len(self):
            return np.empty(0, np.intp)
        if seen.shape != self.next.shape or not np.issubdtype(seen.dtype, np.integer):
            raise ObservationError(
                f"states must be {counted(len(self), 'integer')}, one per input, not "
                f"{seen.dtype} of shape {seen.shape}"
            )
        return seen

    @abstractmethod
    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        """Move the inputs in ``rows``, all of which asked ``node``, on."""

    def _check(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        most = len(self._policy.problem.nodes[node].losses)
        if states.min() < 0 or states.max() >= most:
            at = int(np.argmax((states < 0) | (states >= most)))
            raise ObservationError(
                f"input {rows[at]}: node {self._policy.problem.names[node]!r} has states 0 to "
                f"{most - 1}, not {states[at]}"
            )

    def _pay(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        problem = self._policy.problem
        for number in problem.incoming[node]:
            edge, source = problem.edges[number], problem.ends[number][0]
            cost: float | NDArray[np.float64]
            if isinstance(edge.cost, float):
                cost = edge.cost
            elif problem.moves == "walk":
                last = np.where(self._last[rows] == source, self._seen[rows, source], 0)
                cost = edge.cost_table[last, states]
            else:
                cost = edge.cost_table[self._seen[rows, source], states]
            if problem.moves == "walk":
                cost = np.where(self._last[rows] == source, cost, 0.0)
            self.cost[rows] += cost
        if self._seen.shape[1]:
            self._seen[rows, node] = states
        self.steps[rows] += 1


class WalkBatch(Batch):
    """A batch of a walk, with recall or without."""

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy, size: int) -> None:
        super().__init__(policy, size)
        columns = len(policy.problem.grid) - 1
        self._best = np.full(size, columns, np.intp)
        self.next[:] = policy.choices[-1][0, -1]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        policy = self._policy
        if not policy.recall:
            answers = np.isfinite(policy.problem.nodes[node].losses)[states]
            self.answer[rows] = np.where(answers, node, STOP)
            self.next[rows] = policy.choices[node][states, 0]
            return
        own, best = policy.problem.grid.positions[node][states], self._best[rows]
        self.answer[rows[own < best]] = node
        best = np.minimum(best, own)
        self._best[rows] = best
        self.next[rows] = policy.choices[node][states, best]


class IndexBatch(Batch):
    """A batch under precedence."""

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._best = np.full(size, np.inf)
        self._open = np.full((size, len(policy.sigma)), np.inf)
        for index, root in policy.layout.roots[1:]:
            self._open[:, root] = index
        self.next[:] = policy.layout.roots[-1][1]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        problem = self._policy.problem
        own, best = self._policy.weighed_losses[node][states], self._best[rows]
        self.answer[rows[own < best]] = node
        best = np.minimum(best, own)
        self._best[rows] = best
        self._open[rows, node] = np.inf
        for edge in problem.outgoing[node]:
            child = problem.ends[edge][1]
            self._open[rows, child] = self._policy.sigma[child][states]
        available = self._open[rows]
        least = available.argmin(axis=1)  # equal indices: the node given first
        goes_on = best > available[np.arange(len(rows)), least]
        self.next[rows] = np.where(goes_on, least, STOP)
