"""The optimal policy where more than the last node matters: a walk over what was asked and spent.

So it is where a node is asked after several others, and under a cap on the cost of an input. A
*step* is what was asked, and what may have been spent. Its state holds the states of the nodes that
can still matter (the node asked last, and parents of nodes not asked yet) and the cost spent. Over
these steps the problem is a walk (solvers/joint.py makes it), and its policy decides. Here its
steps are translated back to nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import Future, Means, Policy
from ttamer.policy.session import INFINITY, Batch, Explanation, StateSession
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.checks import TIE
from ttamer.problem.problem import START, STOP


@dataclass(frozen=True)
class Cap:
    """The most that one input may cost.

    >>> cap = Cap(0.5, grid=0.1)
    >>> cap.counted(np.array([0.0, 0.12])).tolist()
    [0.0, 0.2]
    """

    # In the problem's units.
    limit: float
    # Costs count as spent in multiples of this, rounded up; 0: exactly.
    grid: float = 0.0
    # Whether they are rounded up; rounded down, no policy under the cap is left out.
    up: bool = True

    def counted(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what costs count as spent."""
        if not self.grid:
            return costs
        slack = 1e-9 if self.up else -1e-9
        rounded = np.ceil if self.up else np.floor
        return np.asarray(rounded(costs / self.grid - slack) * self.grid + 0.0)  # -0 becomes 0

    def allows(self, spent: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether sums of costs stay within the cap, up to their rounding."""
        return spent <= self.limit * (1 + 1e-12)


@dataclass(frozen=True)
class Step:
    """A place of the walk: what was asked, and what may have been spent."""

    # The number of the node asked last.
    node: int
    # The nodes whose states matter, in increasing order; the node asked last is one of them.
    relevant: tuple[int, ...]
    # How many states each of them has; last, how many sums may have been spent.
    sizes: tuple[int, ...]
    # The keys of these sums (cost_keys), increasing.
    spent: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class JointPolicy(Policy):
    """A policy for nodes with several parents, or under a cap. Made by :func:`ttamer.solve`.

    Choices, equivalent losses and futures are those at the start: later ones depend on all that was
    asked, and ``walk`` has their tables. No node has an index of its own.

    >>> from ttamer import Edge, Node, Problem, solve
    >>> half = [0.5, 0.5]
    >>> judge = Edge(("a", "b"), "judge", cost=0.1, probabilities=[[[1, 0], half], [half, half]])
    >>> edges = [Edge(None, name, cost=0.1, probabilities=half) for name in ("a", "b")]
    >>> nodes = [Node(name, [0.0, 1.0]) for name in ("a", "b", "judge")]
    >>> policy = solve(Problem("precedence", tuple(nodes), (*edges, judge)), tradeoff=0.5)
    >>> policy
    JointPolicy(3 nodes, tradeoff=0.5, value=0.15)
    """

    # The policy of the walk over the steps; its problem names each step
    walk: WalkPolicy
    # What each node of that walk stands for
    steps: tuple[Step, ...]
    # The most that one input may cost, failures included; ``None`` for no cap
    cap: Cap | None = None

    def index(self, node: str) -> NDArray[np.float64]:
        raise self._refusal(node)

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        nodes = np.array([*(step.node for step in self.steps), STOP], np.int32)
        return nodes[self.walk.choice(self._start(after))]

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        return self.walk.equivalent_loss(self._start(after))

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        return self.walk.future(self._start(after), state, best)

    def session(self) -> JointSession:
        return JointSession(self)

    def batch(self, size: int) -> JointBatch:
        return JointBatch(self, size)

    @cached_property
    def barred(self) -> tuple[int, ...]:
        """Per node of the walk, its state beyond the cap; -1 where it has none."""
        sizes = [math.prod(step.sizes) for step in self.steps]
        nodes = zip(self.walk.problem.nodes, sizes, strict=True)
        return tuple(size if len(node.losses) > size else -1 for node, size in nodes)

    @cached_property
    def _means(self) -> Means:
        means, asked = self.walk._means, np.zeros(len(self.problem.nodes))
        np.add.at(asked, [step.node for step in self.steps], means.asked)
        return replace(means, asked=asked)

    def _start(self, after: str | None) -> str | None:
        if after is not None:
            raise self._refusal(after)
        return after

    def _refusal(self, node: str) -> ArgumentError:
        self.problem.index_of(node)
        return ArgumentError(
            "where a node has several parents, or there is a cap, a decision depends on more than "
            "the node asked last: use a session, or the tables of policy.walk"
        )


class JointSession(StateSession):
    """A session where more than the last node matters: the chances of the states of its step."""

    __slots__ = ("_best", "_law", "_step", "_target", "_value")

    _policy: JointPolicy

    def __init__(self, policy: JointPolicy) -> None:
        super().__init__(policy)
        self._step, self._law = START, np.ones(1)
        self._best = len(policy.walk.problem.grid) - 1
        self._choose()

    def observe(self, state: int) -> None:
        states = self._policy.problem.count_states(self.number)
        if self.next is None or not isinstance(state, int | np.integer) or not 0 <= state < states:
            raise self._refuse(state)
        grid, node = self._policy.walk.problem.grid, self.number
        column = grid.column(float(self._policy.problem.nodes[node].losses[state]))
        if not self._policy.recall:
            self._best, self._answer = column, node if column < len(grid) - 1 else STOP
        elif column < self._best:
            self._best, self._answer = column, node
        self._path.append((node, int(state)))
        self._move(int(state))

    def fail(self) -> None:
        # Its state stays unknown. Under a cap it counts as having cost as much as it may.
        self._fail()
        if not self._policy.recall:
            self._best, self._answer = len(self._policy.walk.problem.grid) - 1, STOP
        self._move(None)

    def explain(self) -> Explanation:
        return self._explained(float(self._policy.walk.fallbacks[self._best]), self._value)

    def _move(self, state: int | None) -> None:
        """Take the step chosen; its node was seen in a state, or failed."""
        walk, step = self._policy.walk.problem, self._policy.steps[self._target]
        [edge] = [e for e in walk.outgoing[self._step] if walk.ends[e][1] == self._target]
        law = (self._law @ walk.edges[edge].probabilities)[: math.prod(step.sizes)]
        if state is not None:
            observed = np.indices(step.sizes)[step.relevant.index(step.node)].ravel() == state
            law = np.where(observed, law, 0.0)
            if not law.any():  # of chance 0 by the problem: all that it may come with are alike
                law = observed.astype(float)
        # As much counts as spent as may have been.
        table = law.reshape(-1, step.sizes[-1])
        law = np.zeros_like(table)
        law[:, np.flatnonzero(table.any(axis=0))[-1]] = table.sum(axis=1)
        self._step, self._law = self._target, np.zeros(len(walk.nodes[self._target].losses))
        self._law[: table.size] = law.ravel() / law.sum()
        self._choose()

    def _choose(self) -> None:
        """Decide what comes next."""
        walk = self._policy.walk
        column = self._best if walk.recall else 0
        self._value, target = walk._going_on(self._step, self._law, column, self._policy.barred)
        stop = float(walk.fallbacks[self._best])
        goes_on = stop == INFINITY or self._value < stop * (1 - TIE)
        self._target = target if goes_on else STOP
        self.number = self._policy.steps[self._target].node if self._target >= 0 else STOP


class JointBatch(Batch):
    """A batch where more than the last node matters: inputs of one course share a session."""

    _policy: JointPolicy

    def __init__(self, policy: JointPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._courses: list[tuple[int, ...]] = [()]  # the states observed, in order
        self._course = np.zeros(size, np.intp)
        self.next[:] = policy.session().number

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        del node  # it follows from the course
        pairs = np.stack([self._course[rows], states])
        pairs, members = np.unique(pairs, axis=1, return_inverse=True)
        for number, (course, state) in enumerate(pairs.T.tolist()):
            states_seen = (*self._courses[course], state)
            turn = self._policy.session()
            for observed in states_seen:
                turn.observe(observed)
            inputs = rows[members.ravel() == number]
            self._course[inputs] = len(self._courses)
            self._courses.append(states_seen)
            self.next[inputs], self.answer[inputs] = turn.number, turn._answer
