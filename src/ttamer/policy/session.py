"""Decisions by lookup: sessions for one input, batches for many.

::

    turn = policy.session()             batch = policy.batch(size)
    while turn.next is not None:        while batch.running:
        turn.observe(state)                 batch.observe(states)   # those of batch.next
    turn.answer                         batch.answer

A decision takes constant time on a walk, and under precedence a time logarithmic in the nodes asked
so far.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, require_whole
from ttamer.errors import ObservationError
from ttamer.problem.problem import START, STOP, Edge
from ttamer.show.graph import Drawing, draw_path

if TYPE_CHECKING:
    from ttamer.policy.base import Policy

INFINITY = float("inf")
NO_ANSWER = "no node asked has an answer, and no node is left that might: stop"


@dataclass(frozen=True)
class Explanation:
    """The reasons for the current decision of a session.

    >>> from ttamer import Problem, solve
    >>> turn = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5).session()
    >>> turn.explain().why
    "there is no answer yet: ask 'm1'"
    """

    next: str | None
    """The node to ask now; ``None`` once stopped."""
    answer: str | None
    """Whose answer would be returned now."""
    best: float
    """The loss of that answer, weighed by the tradeoff; ``inf`` before any answer."""
    index: float
    """What that loss is compared with: at or below it, stop; ``inf`` when no node is left to ask.

    On a walk the expected loss and cost of going on; under precedence the least dynamic index
    of the nodes that may be asked. Weighed.
    """
    why: str
    """The decision in words; losses in the unit of the problem."""
    price: float = 0.0
    """What asking ``next`` costs, in the problem's units; 0 once stopped."""
    beliefs: Mapping[str, float] = field(default_factory=dict)
    """The chance that each answer in hand is wrong, where the policy is one on beliefs."""


class Session(ABC):
    """The decisions for one input, by any kind of policy.

    A solved policy gives a :class:`StateSession`, which takes states. A fitted policy gives a
    :class:`~ttamer.fitting.session.FittedSession`, which takes confidences and predictions.

    >>> issubclass(StateSession, Session)
    True
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(next={self.next!r}, answer={self.answer!r})"

    @property
    @abstractmethod
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""

    @property
    @abstractmethod
    def answer(self) -> str | None:
        """The node whose answer to return; ``None`` before any node has answered."""

    @property
    @abstractmethod
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """What they cost, in the problem's units."""

    @property
    @abstractmethod
    def price(self) -> float:
        """What asking ``next`` costs, or is expected to; 0 once stopped."""

    @abstractmethod
    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on.

        While there is no answer, nodes are asked as long as any is left.
        """

    @abstractmethod
    def explain(self) -> Explanation:
        """Return the reasons for the current decision.

        Returns:
            The node to ask now, the answer in hand, and the losses compared.
        """

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the path of the input so far: nodes asked, the answer, and why it stands there.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        reasons = self.explain()
        steps = []
        for name in self.asked:
            lines = [name]
            if name in reasons.beliefs:
                lines.append(f"wrong with chance {reasons.beliefs[name]:.2%}")
            if name == self.answer:
                lines.append("the answer" if self.next is None else "the best answer so far")
            steps.append((lines, "answer" if name == self.answer else "used"))
        if self.next is not None:
            steps.append(([self.next, f"next, costs {self.price:.4g}"], "unused"))
        return draw_path(steps, f"cost {self.cost:.4g}; {reasons.why}").written(path)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    @property
    def capped(self) -> bool:
        """Whether a cap on the cost changed what was asked."""
        return False


class StateSession(Session):
    """A session of a solved policy: it takes the state in which each node is observed.

    >>> from ttamer import Problem, solve
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> turn = solve(line, tradeoff=0.5).session()
    >>> turn.observe(1)
    >>> turn.next
    'm2'
    >>> turn.observe(0)
    >>> turn.next, turn.answer, turn.asked, turn.cost
    (None, 'm2', ('m1', 'm2'), 0.2)
    """

    __slots__ = ("_answer", "_failed", "_path", "_policy", "number")

    _policy: Policy
    number: int
    """The number of the node to ask now; -1 once stopped."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._path: list[tuple[int, int]] = []  # (node, state), the state of a failure is -1
        # Of nodes that failed: the chances of their states. A dict takes time; most never fail.
        self._failed: dict[int, NDArray[np.float64]] | None = None
        self._answer = STOP

    @abstractmethod
    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on.

        Args:
            state: The number of the state.

        Raises:
            ObservationError: The session has stopped, or the node has no such state.
        """

    @property
    def is_certain(self) -> bool:
        """Whether the state of ``next`` follows from what has been seen: there is no need to look.

        So it is for an answer that the policy returns unseen; go on with :meth:`accept`.
        """
        return self.next is not None and bool(self._chances().max() == 1)

    def accept(self) -> None:
        """Record that ``next`` was asked and not looked at, and move on.

        Raises:
            ObservationError: The session has stopped, or the state of ``next`` does not follow
                from what has been seen.
        """
        if self.next is None:
            raise self._ended()
        if not self.is_certain:
            raise ObservationError(
                f"the policy looks at the answer of {self.next!r}: give its state to observe"
            )
        self.observe(int(self._chances().argmax()))

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return self._policy.problem.names[self.number] if self.number >= 0 else None

    @property
    def answer(self) -> str | None:
        """The node whose answer to return; ``None`` before any node that can answer was asked."""
        return self._policy.problem.names[self._answer] if self._answer >= 0 else None

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(self._policy.problem.names[node] for node, _ in self._path)

    @property
    def cost(self) -> float:
        """What they cost; where a node failed, what it costs on average."""
        total, last = 0.0, START
        for node, state in self._path:
            edge, chances = self._edge_into(node, last)
            last = node
            if isinstance(edge.cost, float):
                total += edge.cost
            elif state < 0:
                total += float((chances * edge.expected_costs).sum())
            else:
                if chances.max() < 1:  # the source failed; its state is now less unsure
                    chances = chances * edge.probabilities[..., state]
                total += float((chances * edge.cost_table[..., state]).sum() / chances.sum())
        return total

    @property
    def price(self) -> float:
        """What asking ``next`` is expected to cost; 0 once stopped."""
        if self.next is None:
            return 0.0
        edge, chances = self._next_edge()
        return float((chances * edge.expected_costs).sum())

    def _next_edge(self) -> tuple[Edge, NDArray[np.float64]]:
        return self._edge_into(self.number, self._path[-1][0] if self._path else START)

    def _edge_into(self, node: int, last: int) -> tuple[Edge, NDArray[np.float64]]:
        """The edge by which a node is asked after the last, and the chances of its sources."""
        problem = self._policy.problem
        edges = iter(problem.incoming[node])
        number = next(e for e in edges if problem.moves != "walk" or problem.ends[e][0] == last)
        edge, states, chances = problem.edges[number], dict(self._path), np.ones(())
        sizes = edge.probabilities.shape[:-1]
        for source, size in zip(problem.sources[number], sizes, strict=True):
            law = (self._failed or {}).get(source)
            if law is None:
                law = np.zeros(size)
                law[states.get(source, 0)] = 1.0
            chances = np.multiply.outer(chances, law)
        return edge, chances

    def _chances(self) -> NDArray[np.float64]:
        """The chance of each state of ``next``, given what has been seen."""
        edge, chances = self._next_edge()
        return np.asarray(np.tensordot(chances, edge.probabilities, axes=chances.ndim))

    def _fail(self) -> NDArray[np.float64]:
        """Record that ``next`` was asked in a state that is not known; return its chances."""
        if self.next is None:
            raise self._ended()
        chances = self._chances()
        self._failed = {**(self._failed or {}), self.number: chances}
        self._path.append((self.number, -1))
        return chances

    def _ended(self) -> ObservationError:
        return ObservationError(
            f"the session has stopped and answers with {self.answer!r}: start a new one"
        )

    def _refuse(self, state: object) -> ObservationError:
        if self.next is None:
            return self._ended()
        states = len(self._policy.problem.nodes[self.number].losses)
        return ObservationError(f"node {self.next!r} has states 0 to {states - 1}, not {state!r}")

    def _explained(self, best: float, index: float) -> Explanation:
        if self.next is None and best < INFINITY:
            index = max(index, best)  # a tie within rounding stops
        # In units of loss, as in a problem; at tradeoff 0 no loss counts.
        unit, answer = self._policy.tradeoff or 1.0, self.answer
        loses, limit = f"{best / unit:.4g}", f"{index / unit:.4g}"
        if best == INFINITY and self.next is None:
            why = NO_ANSWER
        elif best == INFINITY:
            why = f"there is no answer yet: ask {self.next!r}"
        elif self.next is not None:
            why = f"the answer of {answer!r} loses {loses}, above {limit}: ask {self.next!r}"
        elif index == INFINITY:
            why = f"no node is left to ask: answer with {answer!r}"
        else:
            why = f"the answer of {answer!r} loses {loses}, at or below {limit}: stop"
        return Explanation(self.next, answer, best, index, why, self.price)


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
        # Where costs depend on states: those observed; the start has state 0.
        self._observed: NDArray[np.intp] = np.zeros((size, nodes), np.intp)

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
        try:
            observed = np.asarray(states)
        except ValueError:  # rows of unequal length
            observed = np.empty(0, object)
        if not observed.size and not len(self):
            return
        if observed.shape != self.next.shape or not np.issubdtype(observed.dtype, np.integer):
            raise ObservationError(
                f"states must be {counted(len(self), 'integer')}, one per input, not "
                f"{observed.dtype} of shape {observed.shape}"
            )
        asked = self.next.copy()
        nodes = np.flatnonzero(np.bincount(asked + 1)[1:]).tolist()  # STOP is -1
        groups = [(node, np.flatnonzero(asked == node)) for node in nodes]
        for node, rows in groups:
            self._check(node, rows, observed[rows])
        for node, rows in groups:
            self._pay(node, rows, observed[rows])
            self._step(node, rows, observed[rows])
        self._last = np.where(asked == STOP, self._last, asked)

    @abstractmethod
    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        """Move the inputs in ``rows``, all of which asked ``node``, on."""

    def _check(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        count = len(self._policy.problem.nodes[node].losses)
        wrong = np.flatnonzero((states < 0) | (states >= count))
        if len(wrong):
            raise ObservationError(
                f"input {rows[wrong[0]]}: node {self._policy.problem.names[node]!r} has states 0 "
                f"to {count - 1}, not {states[wrong[0]]}"
            )

    def _pay(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        """Add what asking a node costs, seen in these states."""
        problem, prices = self._policy.problem, np.zeros(len(rows))
        for entering in problem.incoming[node]:
            edge, sources = problem.edges[entering], problem.sources[entering]
            # On a walk one of the edges was taken; under precedence there is one.
            is_taken = problem.moves != "walk" or self._last[rows] == sources[0]
            cost: float | NDArray[np.float64] = edge.cost
            if not isinstance(cost, float):
                before = tuple(np.where(is_taken, self._observed[rows, v], 0) for v in sources)
                cost = edge.cost_table[(*before, states)]
            prices += np.where(is_taken, cost, 0.0)
        self.cost[rows] += prices
        if self._observed.shape[1]:
            self._observed[rows, node] = states
        self.steps[rows] += 1
