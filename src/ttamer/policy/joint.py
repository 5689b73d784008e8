"""The optimal policy where a node is asked after several others: a walk over down-sets.

A *step* is the set of nodes asked so far, of which one was asked last. Its state holds the states
of the nodes that can still matter: parents of nodes not asked yet, and the node asked last. Over
these steps the problem is a walk (solvers/downsets.py makes it), and its policy decides. Here its
steps are translated back to nodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._display.drawing import Drawing
from ttamer.errors import ArgumentError
from ttamer.policy.base import Policy
from ttamer.policy.batch import Batch, WalkBatch
from ttamer.policy.expected_walk import STOP
from ttamer.policy.future import Expected, Future
from ttamer.policy.session import Explanation, StateSession, WalkSession
from ttamer.policy.walk import WalkPolicy


@dataclass(frozen=True)
class Step:
    """A place of the walk over down-sets."""

    node: int
    """The number of the node asked last."""
    kept: tuple[int, ...]
    """The nodes whose states matter, in increasing order; the node asked last is one of them."""
    sizes: tuple[int, ...]
    """How many states each of them has."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class JointPolicy(Policy):
    """A policy for nodes with several parents. Made by :func:`ttamer.solve`.

    >>> from ttamer import Edge, Node, Problem, solve
    >>> half = [0.5, 0.5]
    >>> judge = Edge(("a", "b"), "judge", cost=0.1, probabilities=[[[1, 0], half], [half, half]])
    >>> edges = [Edge(None, name, cost=0.1, probabilities=half) for name in ("a", "b")]
    >>> nodes = [Node(name, [0.0, 1.0]) for name in ("a", "b", "judge")]
    >>> policy = solve(Problem("precedence", tuple(nodes), (*edges, judge)), tradeoff=0.5)
    >>> policy
    JointPolicy(3 nodes, tradeoff=0.5, value=0.15)
    """

    walk: WalkPolicy
    """The policy of the walk over down-sets; its problem names each step."""
    steps: tuple[Step, ...]
    """What each node of that walk stands for."""

    def index(self, node: str) -> NDArray[np.float64]:
        """Raise an error: with several parents no node has an index of its own.

        Args:
            node: The name of the node.

        Returns:
            Nothing; it always raises.

        Raises:
            ArgumentError: Always.
        """
        self._refuse(node)

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the node to ask first; later choices depend on all that was asked.

        Args:
            after: ``None``, the start; tables after a node are those of ``walk``.

        Returns:
            Shape (1, columns): numbers of nodes, or -1 to stop.

        Raises:
            ArgumentError: If a node is given.
        """
        if after is not None:
            self._refuse(after)
        nodes = np.array([*(step.node for step in self.steps), STOP], np.int32)
        return nodes[self.walk.choice(None)]

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi at the start; later values depend on all that was asked.

        Args:
            after: ``None``, the start; tables after a node are those of ``walk``.

        Returns:
            Shape (1, columns), weighed.

        Raises:
            ArgumentError: If a node is given.
        """
        if after is not None:
            self._refuse(after)
        return self.walk.equivalent_loss(None)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best loss and the cost, from the start.

        Args:
            after: ``None``, the start; tables after a node are those of ``walk``.
            state: 0, the only state of the start.
            best: The best loss so far, in the problem's units; ``inf`` for none yet.

        Returns:
            The law, in the problem's units.

        Raises:
            ArgumentError: If a node is given, there is no such state or loss, or the cost
                takes too many distinct values.
        """
        if after is not None:
            self._refuse(after)
        return self.walk.future(None, state, best)

    def session(self) -> JointSession:
        """Start deciding for one input.

        Returns:
            A session at the start.
        """
        return JointSession(self)

    def batch(self, size: int) -> JointBatch:
        """Start deciding for many inputs at once.

        Args:
            size: The number of inputs.

        Returns:
            A batch at the start.

        Raises:
            ArgumentError: If the size is negative.
        """
        return JointBatch(self, size)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the walk over the sets of nodes asked so far.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        return self.walk.plot(path)

    @cached_property
    def first_steps(self) -> dict[int, int]:
        """The step of each node that is asked first, by its number."""
        walk = self.walk.problem
        return {self.steps[step].node: step for step in (walk.ends[e][1] for e in walk.starts)}

    @cached_property
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]:
        mean, chances = self.walk._expected
        asked = np.zeros(len(self.problem.nodes))
        np.add.at(asked, [step.node for step in self.steps], chances)
        return mean, asked

    def _refuse(self, node: str) -> NoReturn:
        self.problem.index_of(node)
        raise ArgumentError(
            "where a node has several parents, a decision depends on all that was asked: use a "
            "session, or the tables of policy.walk, whose nodes are the sets asked so far"
        )


class JointSession(StateSession):
    """A session where a node is asked after several others."""

    __slots__ = ("_inner", "_states")

    _policy: JointPolicy

    def __init__(self, policy: JointPolicy) -> None:
        super().__init__(policy)
        self._inner = WalkSession(policy.walk)
        self._states: dict[int, int] = {}
        self._follow()

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        self._inner.observe(self._joint(state))
        self._follow()

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on."""
        if self.next is None:
            raise self._ended()
        self._inner.fail_in(self._joint(self._worst()))
        self._follow()

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        self._inner.start_at(self._policy.first_steps[node])
        self._follow()

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        return self._explained(*self._inner.compared())

    @property
    def cost(self) -> float:
        """What the nodes asked cost, in the problem's units."""
        return self._inner.cost

    @property
    def price(self) -> float:
        """What asking ``next`` is expected to cost; 0 once stopped."""
        return self._inner.price

    def _joint(self, state: int) -> int:
        """Return the state of the walk, once ``next`` is seen in a state."""
        if (
            self.next is None
            or not isinstance(state, int | np.integer)
            or not (0 <= state < len(self._policy.problem.nodes[self._node].losses))
        ):
            raise self._refuse(state)
        step = self._policy.steps[self._inner.number]
        self._states[step.node] = int(state)
        self._path.append((step.node, int(state)))
        seen = [self._states[node] for node in step.kept]
        return int(np.ravel_multi_index(seen, step.sizes))

    def _follow(self) -> None:
        """Take over what the walk decided."""
        steps, problem = self._policy.steps, self._policy.problem
        number = self._inner.number
        self._node = steps[number].node if number >= 0 else -1
        self.next = problem.names[self._node] if number >= 0 else None
        answer = self._inner._answer
        self._answer = steps[answer].node if answer >= 0 else -1


class JointBatch(Batch):
    """A batch where a node is asked after several others."""

    _policy: JointPolicy

    def __init__(self, policy: JointPolicy, size: int) -> None:
        super().__init__(policy, size)
        self._inner = WalkBatch(policy.walk, size)
        self._states = np.zeros((size, len(policy.problem.nodes)), np.intp)
        self._nodes = np.array([*(step.node for step in policy.steps), STOP], np.int32)
        self.next = self._nodes[self._inner.next]

    def observe(self, states: ArrayLike) -> None:
        """Give the state in which each input's ``next`` is observed, and move all of them on.

        Args:
            states: Shape (inputs,), integers; entries of inputs that stopped are ignored.

        Raises:
            ObservationError: If there are too many or too few, or a node has no such state.
        """
        seen = self._as_states(states)
        asked = self._inner.next
        steps = np.unique(asked[asked != STOP]).tolist()
        groups = [(step, np.flatnonzero(asked == step)) for step in steps]
        for number, rows in groups:
            self._check(self._policy.steps[number].node, rows, seen[rows])
        joint = np.zeros(len(self), np.intp)
        for number, rows in groups:
            step = self._policy.steps[number]
            self._states[rows, step.node] = seen[rows]
            kept = tuple(self._states[rows, node] for node in step.kept)
            joint[rows] = np.ravel_multi_index(kept, step.sizes)
        self._inner.observe(joint)
        self.next = self._nodes[self._inner.next]
        self.answer = self._nodes[self._inner.answer]
        self.cost, self.steps = self._inner.cost, self._inner.steps

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        """Do nothing: the walk behind it moves the inputs on."""
