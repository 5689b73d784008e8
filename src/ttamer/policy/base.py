"""What a policy is: solved tables, and the sessions and batches that look decisions up in them.

A policy answers three questions: stop or go on, which node to ask next, and which answer to return.
There is one kind per module: :class:`~ttamer.policy.WalkPolicy`,
:class:`~ttamer.policy.IndexPolicy` under precedence, :class:`~ttamer.policy.JointPolicy` where all
that was asked matters. A decision takes constant time on a walk, and under precedence a time
logarithmic in the nodes asked so far.

::

    turn = policy.session()             batch = policy.batch(size)
    while turn.next is not None:        while batch.running:
        turn.observe(state)                 batch.observe(states)   # those of batch.next
    turn.answer                         batch.answer

Units: ``value``, indices, thresholds and equivalent losses are weighed (tradeoff * loss +
(1 - tradeoff) * cost); ``expected_loss``, ``expected_cost`` and futures are in the problem's own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, number, percent, require_whole
from ttamer.errors import ArgumentError, ObservationError
from ttamer.policy.expected import START, STOP
from ttamer.policy.future import Expected, Future
from ttamer.problem.checks import check_tradeoff, weigh_losses
from ttamer.problem.graph import Edge
from ttamer.problem.problem import Problem
from ttamer.show import card
from ttamer.show.curves import draw_curves
from ttamer.show.graph import Arrow, Box, Drawing, draw_graph, draw_path

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
    """The decision in words."""
    price: float = 0.0
    """What asking ``next`` costs, in the problem's units; 0 once stopped."""
    beliefs: Mapping[str, float] = field(default_factory=dict)
    """The chance that each answer in hand is wrong, where the policy is one on beliefs."""

    def _repr_html_(self) -> str:
        rows = [[name, percent(value, digits=1)] for name, value in self.beliefs.items()]
        if self.next is None:
            decision = f"stop and return the answer of {self.answer!r}"
        else:
            decision = f"ask {self.next!r}, which costs {number(self.price)}"
        head = ["answer of", "chance that it is wrong"]
        return card(decision, notes=[self.why], head=head, rows=rows)

    @property
    def gain(self) -> float | None:
        """How far the loss in hand lies above ``index``: on a walk, what going on gains, cost paid.

        Weighed; negative where it stops, ``None`` where there is nothing to compare.
        """
        if INFINITY in (self.best, self.index):
            return None
        return self.best - self.index

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; infinite ones as ``None``, since JSON has none.

        Returns:
            The fields and ``gain``, by name.
        """
        values = {**vars(self), "beliefs": dict(self.beliefs), "gain": self.gain}
        return {
            k: None if isinstance(v, float) and abs(v) == INFINITY else v for k, v in values.items()
        }


class Session(ABC):
    """The decisions for one input, by any kind of policy.

    A solved policy gives a :class:`StateSession`, which takes states. A fitted policy gives a
    :class:`~ttamer.fitting.session.FittedSession`, which takes confidences and predictions.

    >>> from ttamer import Problem, solve
    >>> turn = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5).session()
    >>> isinstance(turn, Session), turn.next, turn.answer
    (True, 'm1', None)
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
        """What they cost."""

    @property
    @abstractmethod
    def price(self) -> float:
        """What asking ``next`` costs; 0 once stopped."""

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

        >>> from ttamer import Problem, solve
        >>> turn = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5).session()
        >>> turn.observe(0)
        >>> "the answer" in turn.plot()
        True
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

    __slots__ = ("_answer", "_failed", "_node", "_path", "_policy", "next")

    _policy: Policy
    _node: int
    next: str | None

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
        return self.next is not None and self._certain_state() is not None

    def accept(self) -> None:
        """Record that ``next`` was asked and not looked at, and move on.

        Raises:
            ObservationError: The session has stopped, or the state of ``next`` does not follow
                from what has been seen.
        """
        if self.next is None:
            raise self._ended()
        state = self._certain_state()
        if state is None:
            raise ObservationError(
                f"the policy looks at the answer of {self.next!r}: give its state to observe"
            )
        self.observe(state)

    @property
    def number(self) -> int:
        """The number of the node to ask now; -1 once stopped."""
        return self._node

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
        """What they cost, in the problem's units; where a node failed, what it costs on average."""
        total, last = 0.0, START
        for node, state in self._path:
            edge, chances = self._entered(node, last)
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
        return self._entered(self._node, self._path[-1][0] if self._path else START)

    def _entered(self, node: int, last: int) -> tuple[Edge, NDArray[np.float64]]:
        """The edge by which a node is asked after the last, and the chances of its sources."""
        problem = self._policy.problem
        numbers = list(problem.incoming[node])
        if problem.moves == "walk":
            numbers = [number for number in numbers if problem.ends[number][0] == last]
        edge, states = problem.edges[numbers[0]], dict(self._path)
        chances = np.ones(())
        sizes = edge.probabilities.shape[:-1]
        for source, size in zip(problem.sources[numbers[0]], sizes, strict=True):
            one = (self._failed or {}).get(source)
            if one is None:
                one = np.zeros(size)
                one[states.get(source, 0)] = 1.0
            chances = np.multiply.outer(chances, one)
        return edge, chances

    def _chances(self) -> NDArray[np.float64]:
        """The chance of each state of ``next``, given what has been seen."""
        edge, chances = self._next_edge()
        return np.asarray(np.tensordot(chances, edge.probabilities, axes=chances.ndim))

    def _certain_state(self) -> int | None:
        """The only state in which ``next`` can be; ``None`` where there are several."""
        row = self._chances()
        return int(row.argmax()) if row.max() == 1 else None

    def _fail(self) -> NDArray[np.float64]:
        """Record that ``next`` was asked in a state that is not known; return its chances."""
        if self.next is None:
            raise self._ended()
        chances = self._chances()
        self._failed = {**(self._failed or {}), self._node: chances}
        self._path.append((self._node, -1))
        return chances

    def _ended(self) -> ObservationError:
        return ObservationError(
            f"the session has stopped and answers with {self.answer!r}: start a new one"
        )

    def _refuse(self, state: object) -> ObservationError:
        if self.next is None:
            return self._ended()
        states = len(self._policy.problem.nodes[self._node].losses)
        return ObservationError(f"node {self.next!r} has states 0 to {states - 1}, not {state!r}")

    def _explained(self, best: float, index: float) -> Explanation:
        answer, loses = self.answer, f"{best:.4g}"
        if self.next is None and best < INFINITY:
            index = max(index, best)  # a tie within rounding stops
        if best == INFINITY and self.next is None:
            why = NO_ANSWER
        elif best == INFINITY:
            why = f"there is no answer yet: ask {self.next!r}"
        elif self.next is not None:
            why = f"the answer of {answer!r} loses {loses}, above {index:.4g}: ask {self.next!r}"
        elif index == INFINITY:
            why = f"no node is left to ask: answer with {answer!r}"
        else:
            why = f"the answer of {answer!r} loses {loses}, at or below {index:.4g}: stop"
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

    def _pay(
        self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]
    ) -> NDArray[np.float64]:
        """Add what asking a node costs, seen in these states, and return it."""
        problem, prices = self._policy.problem, np.zeros(len(rows))
        for entering in problem.incoming[node]:
            edge, sources = problem.edges[entering], problem.sources[entering]
            # On a walk one of the edges was taken; under precedence there is one.
            taken = problem.moves != "walk" or self._last[rows] == sources[0]
            cost: float | NDArray[np.float64] = edge.cost
            if not isinstance(cost, float):
                before = tuple(np.where(taken, self._seen[rows, v], 0) for v in sources)
                cost = edge.cost_table[(*before, states)]
            prices += np.where(taken, cost, 0.0)
        self.cost[rows] += prices
        if self._seen.shape[1]:
            self._seen[rows, node] = states
        self.steps[rows] += 1
        return prices


@dataclass(frozen=True)
class StateRule:
    """What a policy does after a node was seen in a state, as it is played; losses in their unit.

    >>> from ttamer import Problem, solve
    >>> print(*solve(Problem.line([0.0, 0.5], [0.1] * 2, [[0.5, 0.5]] + [[[0.5, 0.5]] * 2]), 0.9)
    ...     .rules("m1"), sep="; ")
    stop; stop at 0, else ask m2
    """

    state: int
    loss: float
    """What the node's own answer loses there."""
    stop: tuple[float, float] | None
    """The best loss up to which it stops, least and most (where more than this state matters);
    ``None`` where the state is never reached, or there are too many courses of events to tell."""
    ask: tuple[str, ...]
    """The nodes that it may ask otherwise."""

    def __str__(self) -> str:
        if self.stop is None:
            return "-"
        onward = "ask " + " or ".join(self.ask)
        if not self.ask or self.stop[1] == -INFINITY:
            return onward if self.ask else "stop"
        return f"stop at {self.stop_text}, else {onward}"

    @property
    def stop_text(self) -> str:
        """The best loss up to which it stops, as text."""
        if self.stop is None:
            return "-"
        low, high = (number(end) for end in self.stop)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy(ABC):
    """The interface of every policy, as returned by :func:`ttamer.solve`.

    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> isinstance(policy, Policy), policy.value
    (True, 0.175)
    """

    problem: Problem
    tradeoff: float
    value: float
    """The least expected ``tradeoff * loss + (1 - tradeoff) * cost``."""
    recall: bool = True
    bound: float | None = None
    """No policy is below this; ``None`` where this one is the best."""

    def __repr__(self) -> str:
        recall = "" if self.recall else ", no recall"
        return (
            f"{type(self).__name__}({counted(len(self.problem.nodes), 'node')}, "
            f"tradeoff={self.tradeoff:g}{recall}, value={self.value:.6g})"
        )

    def _repr_html_(self) -> str:
        rows = [[name, percent(share)] for name, share in self.asked.items()]
        loss, cost = number(self.expected_loss), number(self.expected_cost)
        notes = [f"expected loss {loss}, expected cost {cost}"]
        return card(repr(self), notes=notes, head=["node", "asked"], rows=rows[:12])

    @property
    def ratio(self) -> float:
        """How many times the least possible value this policy's is, at most; 1 for the best."""
        if self.bound is None or self.value <= self.bound:
            return 1.0
        return self.value / self.bound if self.bound > 0 else INFINITY

    @cached_property
    def fallbacks(self) -> NDArray[np.float64]:
        """Shape (columns,): the weighed losses that head the columns of the tables."""
        return weigh_losses(self.problem.grid.values, self.tradeoff)

    @property
    def expected_loss(self) -> float:
        """The expected loss of the answer returned."""
        return self._expected[0].loss

    @property
    def expected_cost(self) -> float:
        """The expected cost of all that is asked."""
        return self._expected[0].cost

    @property
    def asked(self) -> dict[str, float]:
        """The chance that each node is asked."""
        return dict(zip(self.problem.names, self._expected[1].tolist(), strict=True))

    @abstractmethod
    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node for each state of its parent, weighed.

        The node is worth asking while the best loss so far is above its index.

        Args:
            node: Its name.

        Returns:
            Shape (states of the parent,); one entry for a root.

        Raises:
            ArgumentError: If there is no such node, or it has no index of its own.
        """

    @abstractmethod
    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the routing table: shape (states, columns), the node to ask next or -1.

        Rows are the states of ``after``, the node asked last (``None``: the start, one row);
        columns are the best loss so far (``fallbacks``), one only without recall. Under
        precedence, only what lies below ``after`` competes.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table.

        Raises:
            ArgumentError: If there is no such node.
        """

    @abstractmethod
    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi, shaped as :meth:`choice`: the expected loss and further cost from there.

        Under precedence, for what lies below ``after``.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table, weighed.

        Raises:
            ArgumentError: If there is no such node.
        """

    @abstractmethod
    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best future loss and the future cost.

        Under precedence, for what lies below ``after``.

        Args:
            after: The name of the node asked last; ``None`` for the start.
            state: The state in which it was seen.
            best: The best loss so far, in the problem's units.

        Returns:
            The law.

        Raises:
            ArgumentError: If there is no such node, state or loss, or the cost takes too many
                distinct values.
        """

    @abstractmethod
    def session(self) -> StateSession:
        """Start deciding for one input.

        Returns:
            A session at the start.
        """

    @abstractmethod
    def batch(self, size: int) -> Batch:
        """Start deciding for many inputs at once.

        Args:
            size: How many inputs.

        Returns:
            A batch at the start.
        """

    @property
    @abstractmethod
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]: ...

    def if_stop(self, after: str | None = None) -> NDArray[np.bool_]:
        """Return the if-stop matrix, shaped as :meth:`choice`: true where the policy stops.

        Under precedence, true means that nothing below ``after`` is worth asking.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table.
        """
        return np.equal(self.choice(after), STOP)

    def threshold(self, after: str | None = None) -> NDArray[np.float64]:
        """Return, per state of ``after``, the largest best loss so far at which to stop.

        On the grid of losses and weighed; -inf where the policy goes on from every loss.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``,).

        Raises:
            ArgumentError: If there is no such node, or the policy has no recall.
        """
        if not self.recall:
            raise ArgumentError(
                "without recall the best loss so far does not matter: use if_stop, one column"
            )
        last = self.if_stop(after).sum(axis=1) - 1  # it stops up to a column, and not beyond
        return np.where(last >= 0, self.fallbacks[last], -np.inf)

    def equivalent_node(self, node: str, parent_state: int = 0, fallback: float = np.inf) -> Future:
        """Return a node and all below it as one node of random loss and cost.

        The node is asked, then what lies below with ``fallback`` in hand. With its own index in
        hand, the one node has the same index.

        Args:
            node: The name of the node.
            parent_state: The state of its parent.
            fallback: The loss in hand, in the problem's units.

        Returns:
            The joint law of loss and cost.

        Raises:
            ArgumentError: If the node can be entered from several places, or there is no such
                node or state.
        """
        number = self.problem.index_of(node)
        entering = self.problem.incoming[number]
        if len(entering) > 1:
            raise ArgumentError(
                f"node {node!r} can be entered from {len(entering)} places, so no single node "
                "stands for it; use policy.future after one of them"
            )
        edge = self.problem.edges[entering[0]]
        parent = self.problem.ends[entering[0]][0]
        chances = edge.probabilities[check_state(self.problem, parent, parent_state)].tolist()
        atoms: dict[tuple[float, float], float] = {}
        for state, chance in enumerate(chances):
            if chance == 0:
                continue
            own = float(self.problem.nodes[number].losses[state])
            price = float(edge.cost_table[parent_state, state])
            ahead = self.future(node, state, min(own, fallback))
            for loss, cost, p in zip(ahead.losses, ahead.costs, ahead.probabilities, strict=True):
                key = (min(own, float(loss)), price + float(cost))
                atoms[key] = atoms.get(key, 0.0) + chance * float(p)
        return Future.of(atoms)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the graph: its nodes, what the policy does after each state, and costs.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.

        >>> from ttamer import Problem, solve
        >>> solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), 0.5).plot().startswith("<svg")
        True
        """
        return draw_policy(self).written(path)

    def rules(self, node: str) -> list[StateRule]:
        """Return what the policy does after a node was seen in each of its states.

        Args:
            node: Its name.

        Returns:
            One rule per state.

        Raises:
            ArgumentError: If there is no such node.
        """
        position = self.problem.index_of(node)
        rules = []
        for state, loss in enumerate(self.problem.nodes[position].losses.tolist()):
            stops, following = self._played.get((position, state), ((), ()))
            # At tradeoff 0 no loss counts: the first answer is as good as any.
            limits = [stop / self.tradeoff if self.tradeoff else INFINITY for stop in stops]
            ends = (min(limits), max(limits)) if limits else None
            ask = tuple(sorted(following, key=self.problem.index_of))
            rules.append(StateRule(state, loss, ends, ask))
        return rules

    @cached_property
    def _played(self) -> dict[tuple[int, int], tuple[list[float], set[str]]]:
        """By node and state: what the loss in hand was compared with, and the nodes asked next.

        Over all courses of events; empty where there are more than 2,000, a second's work.
        """
        played: dict[tuple[int, int], tuple[list[float], set[str]]] = {}
        histories: list[tuple[int, ...]] = [()]
        for states in histories:  # grows as it goes
            if len(histories) > 2000:
                return {}
            turn = self.session()
            for state in states:
                turn.observe(state)
            if states:
                stops, following = played.setdefault(turn._path[-1], ([], set()))
                stops.append(turn.explain().index)
                following |= set() if turn.next is None else {turn.next}
            if turn.next is not None:
                histories += [(*states, int(y)) for y in np.flatnonzero(turn._chances())]
        return played


def place_of(problem: Problem, node: str | None) -> int:
    """Return the number of a node; -1 for the start."""
    return START if node is None else problem.index_of(node)


def check_state(problem: Problem, place: int, state: int) -> int:
    """Refuse a state that a node (-1: the start) does not have."""
    states = 1 if place == START else len(problem.nodes[place].losses)
    if not isinstance(state, int | np.integer) or not 0 <= state < states:
        where = "the start" if place == START else f"node {problem.names[place]!r}"
        raise ArgumentError(f"{where} has states 0 to {states - 1}, not {state!r}")
    return state


@dataclass(frozen=True, eq=False)
class Ladder:
    """Policies in increasing order of tradeoff, so of expected cost.

    Args:
        policies: At least one, in increasing order of tradeoff.

    Raises:
        ArgumentError: If there is none, or they are in another order.

    >>> from ttamer import Problem, solve_ladder
    >>> solve_ladder(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), [0, 0.5, 1])
    Ladder(3 policies, tradeoffs 0 to 1)
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ArgumentError("a ladder needs at least one policy")
        if any(right <= left for left, right in pairwise(self.tradeoffs)):
            raise ArgumentError("a ladder needs its policies in increasing order of tradeoff")

    def __len__(self) -> int:
        return len(self.policies)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.policies)

    def __getitem__(self, rung: int) -> Policy:
        return self.policies[rung]

    def __repr__(self) -> str:
        first, last = self.tradeoffs[0], self.tradeoffs[-1]
        return f"Ladder({counted(len(self), 'policy')}, tradeoffs {first:g} to {last:g})"

    def _repr_html_(self) -> str:
        rows = [
            [f"{policy.tradeoff:.3g}", number(policy.expected_cost), number(policy.expected_loss)]
            for policy in self.policies[:: -(-len(self) // 12)]  # at most 12 rows
        ]
        head = ["tradeoff", "expected cost", "expected loss"]
        return card(repr(self), head=head, rows=rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the loss against the cost of every policy.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            A matplotlib figure.

        Raises:
            MissingExtra: If matplotlib is not installed.

        >>> from ttamer import Problem, solve_ladder
        >>> ladder = solve_ladder(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), [0, 0.5, 1])
        >>> ladder.plot().axes[0].get_ylabel()
        'expected loss'
        """
        costs = [policy.expected_cost for policy in self.policies]
        losses = [policy.expected_loss for policy in self.policies]
        curves = {"policies": (costs, losses)}
        labels = ("expected cost", "expected loss")
        return draw_curves(curves, *labels, y_percent=False, path=path)

    @property
    def problem(self) -> Problem:
        """The problem all policies solve."""
        return self.policies[0].problem

    @property
    def tradeoffs(self) -> tuple[float, ...]:
        """The tradeoff of each policy."""
        return tuple(policy.tradeoff for policy in self.policies)

    def at(self, tradeoff: float) -> Policy:
        """Return the policy solved for the nearest tradeoff; the lower one if two are as near.

        Args:
            tradeoff: From 0 (only cost counts) to 1 (only loss counts).

        Returns:
            The policy.

        Raises:
            ArgumentError: If the tradeoff is out of range.
        """
        wanted = check_tradeoff(tradeoff)
        return min(self.policies, key=lambda one: (abs(one.tradeoff - wanted), one.tradeoff))


def draw_policy(policy: Policy) -> Drawing:
    """Return the graph of a solved policy, and what it does after each state, as SVG.

    Losses, indices and thresholds are in units of loss. A box lists at most 8 states.
    """
    problem, asked = policy.problem, policy.asked
    columns = {START: 0}
    for node in problem.order:
        sources = [source for edge in problem.incoming[node] for source in problem.sources[edge]]
        columns[node] = 1 + max(columns[source] for source in sources)
    first = f"first ask {policy.session().next}"
    title = f"start: value {policy.value:.4g}"
    following: dict[int, set[str | None]] = {START: {policy.session().next}}
    boxes = [Box((title, f"tradeoff {policy.tradeoff:g}", first), 0)]
    for node, name in enumerate(problem.names):
        rules = policy.rules(name)
        following[node] = {other for rule in rules for other in rule.ask if asked[name] > 0}
        lines = [name, f"asked {asked[name]:.1%}"]
        lines += [f"{rule.state}: loss {rule.loss:.4g}, {rule}" for rule in rules[:8]]
        lines += [f"... {len(rules)} states"] * (len(rules) > 8)
        boxes.append(Box(tuple(lines), columns[node], "used" if asked[name] > 0 else "unused"))
    arrows = []
    for position, edge in enumerate(problem.edges):
        target, costs = problem.ends[position][1], np.unique(edge.cost).tolist()
        label = ", ".join(f"{cost:.4g}" for cost in costs)
        if len(costs) > 3:
            label = f"{costs[0]:.4g} to {costs[-1]:.4g}"
        for source in problem.sources[position]:
            is_taken = asked[problem.names[target]] > 0
            if problem.moves == "walk":  # under precedence an edge opens its target
                is_taken = problem.names[target] in following[source]
            colour = "used" if is_taken else "unused"
            arrows.append(Arrow(source + 1, target + 1, label, colour))
    return draw_graph(boxes, arrows)
