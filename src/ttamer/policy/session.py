"""A session: deciding for one input, in constant time per step.

::

    turn = policy.session()
    while turn.next is not None:
        turn.observe(state)     # what turn.next was seen in
    turn.answer                 # whose answer to return

The tables are laid out once per policy as plain Python sequences: for single numbers they are
several times faster to read than arrays.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from ttamer._display.drawing import Drawing
from ttamer._display.notebook import card
from ttamer._numbers import number, percent
from ttamer.errors import ObservationError
from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import weigh_losses

if TYPE_CHECKING:
    from ttamer.policy.base import Policy
    from ttamer.policy.index import Children, IndexPolicy
    from ttamer.policy.walk import WalkPolicy


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
    """The chance that each answer in hand is wrong, or its expected loss, where the policy is one
    on beliefs."""
    has_losses: bool = False
    """Whether ``beliefs`` are expected losses."""

    def _repr_html_(self) -> str:
        rows = [
            [name, number(value) if self.has_losses else percent(value, digits=1)]
            for name, value in self.beliefs.items()
        ]
        if self.next is None:
            decision = f"stop and return the answer of {self.answer!r}"
        else:
            decision = f"ask {self.next!r}, which costs {number(self.price)}"
        head = ["answer of", "expected loss" if self.has_losses else "chance that it is wrong"]
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
            The fields and ``gain``, by name; ``has_losses`` only where it is true.
        """
        values = {**vars(self), "beliefs": dict(self.beliefs), "gain": self.gain}
        if not self.has_losses:
            del values["has_losses"]
        fields = values.items()
        return {k: None if isinstance(v, float) and abs(v) == INFINITY else v for k, v in fields}


class Session(ABC):
    """The decisions for one input, by any kind of policy.

    A solved policy gives a :class:`StateSession`, which takes states. A fitted policy gives a
    :class:`~ttamer.fitted.sessions.FittedSession`, which takes confidences and predictions.

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

    @property
    @abstractmethod
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and what each costs."""

    @abstractmethod
    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy's choice.

        Args:
            node: One of ``starts``.
        """

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
        from ttamer.policy.drawing import draw_session

        return draw_session(self).written(path)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    @property
    def stopped(self) -> bool:
        """Whether no further node is asked."""
        return self.next is None

    @property
    def capped(self) -> bool:
        """Whether a cap on the cost ended the session, or changed where it started."""
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

    __slots__ = ("_answer", "_node", "_path", "_policy", "next")

    _policy: Policy
    _node: int
    next: str | None

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._path: list[tuple[int, int]] = []
        self._answer = -1

    @abstractmethod
    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on.

        Args:
            state: The number of the state.

        Raises:
            ObservationError: The session has stopped, or the node has no such state.
        """

    @abstractmethod
    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice.

        Args:
            node: The number of a node of the problem that may be asked first.
        """

    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy's choice.

        Args:
            node: The name of one of ``starts``.

        Raises:
            ArgumentError: If there is no such node.
        """
        self.start_at(self._policy.problem.index_of(node))

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and what each is expected to cost."""
        problem = self._policy.problem
        return {
            problem.names[problem.ends[edge][1]]: float(problem.edges[edge].expected_costs[0])
            for edge in problem.starts
        }

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

    def _certain_state(self) -> int | None:
        """The only state in which ``next`` can be; ``None`` where there are several."""
        problem, states = self._policy.problem, dict(self._path)
        number = self._edge_to(self._node, self._path[-1][0] if self._path else -1)
        given = tuple(states.get(source, 0) for source in problem.sources[number])
        row = problem.edges[number].probabilities[given]
        return int(row.argmax()) if row.max() == 1 else None

    def observe_loss(self, loss: float) -> None:
        """Give the loss with which ``next`` is observed, and move on.

        Args:
            loss: In the problem's units; exactly one state of the node has it.

        Raises:
            ObservationError: The session has stopped, or not exactly one state has this
                loss.
        """
        if self.next is None:
            raise self._ended()
        losses = self._policy.problem.nodes[self._node].losses.tolist()
        if losses.count(loss) != 1:
            raise ObservationError(
                f"node {self.next!r} has {losses.count(loss)} states of loss {loss!r}: give the "
                f"state's number, or one of its losses, {', '.join(map(repr, losses))}"
            )
        self.observe(losses.index(loss))

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of the problem, in order."""
        return self._policy.problem.names

    @property
    def number(self) -> int:
        """The number of the node to ask now; -1 once stopped."""
        return self._node

    @property
    def tradeoff(self) -> float:
        """The tradeoff of the policy."""
        return self._policy.tradeoff

    @property
    def problem(self) -> Problem:
        """The problem of the policy."""
        return self._policy.problem

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
        """What they cost, in the problem's units."""
        problem, total, last, states = self._policy.problem, 0.0, -1, {-1: 0}
        for node, state in self._path:
            number = self._edge_to(node, last)
            total += problem.edges[number].cost_at(states[problem.ends[number][0]], state)
            states[node], last = state, node
        return total

    @property
    def price(self) -> float:
        """What asking ``next`` is expected to cost; 0 once stopped."""
        if self.next is None:
            return 0.0
        number = self._edge_to(self._node, self._path[-1][0] if self._path else -1)
        state = dict(self._path).get(self._policy.problem.ends[number][0], 0)
        return float(self._policy.problem.edges[number].expected_costs[state])

    def _edge_to(self, node: int, last: int) -> int:
        """The number of the edge by which a node is asked after the one asked last."""
        problem = self._policy.problem
        if problem.moves == "walk":
            return next(e for e in problem.incoming[node] if problem.ends[e][0] == last)
        return problem.incoming[node][0]

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

    def _worst(self) -> int:
        """The state of ``next`` that loses most."""
        return int(self._policy.problem.nodes[self._node].losses.argmax())

    def _last(self) -> tuple[str | None, int]:
        """The node asked last and its state."""
        if not self._path:
            return None, 0
        node, state = self._path[-1]
        return self._policy.problem.names[node], state


class WalkSession(StateSession):
    """A session of a walk with recall."""

    __slots__ = ("_best", "_names", "_tables")

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy) -> None:
        super().__init__(policy)
        self._names, first, self._best, self._tables = policy.layout
        self._node = first
        self.next = self._names[first]

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        node = self._node
        try:
            columns, choices = self._tables[node]
            if state < 0:
                raise self._refuse(state)
            best = columns[state]
            if best < self._best:
                self._best = best
                self._answer = node
            else:
                best = self._best
            self._node = following = choices[state][best]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        self._path.append((node, state))
        self.next = self._names[following]

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on."""
        if self.next is None:
            raise self._ended()
        self.fail_in(self._worst())

    def fail_in(self, state: int) -> None:
        """Count ``next`` as seen in a state, without an answer."""
        node = self._node
        self._node = self._tables[node][1][state][self._best]
        self._path.append((node, state))
        self.next = self._names[self._node]

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        self._node, self.next = node, self._names[node]

    def prefers_next(self) -> bool:
        """Return whether ``next`` has a lower loss than the best so far in every state."""
        return max(self._tables[self._node][0]) < self._best

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        return self._explained(*self.compared())

    def compared(self) -> tuple[float, float]:
        """Return the loss in hand and the value of going on, weighed."""
        after, state = self._last()
        best = float(self._policy.fallbacks[self._best])
        return best, self._policy.going_on(after, state, self._best)


class LastAnswerSession(StateSession):
    """A session of a walk without recall: the answer is that of the node asked last."""

    __slots__ = ("_names", "_nothing", "_tables")

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy) -> None:
        super().__init__(policy)
        self._names, first, self._nothing, self._tables = policy.layout
        self._node = first
        self.next = self._names[first]

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        node = self._node
        try:
            if state < 0:
                raise self._refuse(state)
            self._node = following = self._tables[node][1][state][0]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        answers = self._tables[node][0][state] < self._nothing
        self._answer = node if answers else -1
        self._path.append((node, state))
        self.next = self._names[following]

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on."""
        if self.next is None:
            raise self._ended()
        self.observe(self._worst())
        self._answer = -1
        self.go_on()

    def go_on(self) -> None:
        """Where the policy stops, ask the best next node, if any is left."""
        if self.next is None:
            self._node = self._policy.onward(*self._path[-1])
            self.next = self._names[self._node]

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        self._node, self.next = node, self._names[node]

    def gains(self, place: int, state: int) -> dict[int, float]:
        """Return what asking one more node after a place gains, weighed, if it stops there.

        Args:
            place: The number of the node asked last.
            state: The number of the state in which it was observed.

        Returns:
            Gains by the number of the node; negative where it costs more than it gains.
        """
        problem, tradeoff = self._policy.problem, self._policy.tradeoff
        best = weigh_losses(problem.nodes[place].losses[state : state + 1], tradeoff)[0]
        found = {}
        for way in problem.outgoing[place]:
            edge, target = problem.edges[way], problem.ends[way][1]
            row, losses = edge.probabilities[state], problem.nodes[target].losses
            after = row[row > 0] @ weigh_losses(losses[row > 0], tradeoff)
            found[target] = float(best - after - (1 - tradeoff) * edge.expected_costs[state])
        return found

    def ahead(self) -> dict[int, float]:
        """Return the chance of each node to be asked right after ``next``; -1 is to stop.

        Returns:
            Chances by the number of the node, above 0; empty once stopped.
        """
        if self.next is None:
            return {}
        problem = self._policy.problem
        number = self._edge_to(self._node, self._path[-1][0] if self._path else -1)
        state = dict(self._path).get(problem.ends[number][0], 0)
        following, found = self._tables[self._node][1], dict[int, float]()
        for after, chance in enumerate(problem.edges[number].probabilities[state].tolist()):
            if chance > 0:
                node = following[after][0]
                found[node] = found.get(node, 0.0) + chance
        return found

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        after, state = self._last()
        best = INFINITY
        if self._answer >= 0:
            losses = self._policy.problem.nodes[self._path[-1][0]].losses[state : state + 1]
            best = float(weigh_losses(losses, self._policy.tradeoff)[0])
        return self._explained(best, self._policy.going_on(after, state))


class IndexSession(StateSession):
    """A session under precedence: the available node of least index comes next."""

    __slots__ = ("_below", "_best", "_names", "_roots", "_tables")

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy) -> None:
        super().__init__(policy)
        self._names, self._tables, roots = policy.layout
        # Roots come in a known order, so a list will do; what opens below them goes on a heap.
        self._roots = list(roots)  # (index, node), the least last, an infinite index first
        # (index, node, its siblings, its place among them): of siblings the least is on the heap.
        self._below: list[tuple[float, int, Children, int]] = []
        self._best = INFINITY
        self._node = self._roots[-1][1]
        self.next = self._names[self._node]

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        node, roots, below = self._node, self._roots, self._below
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
        if roots[-1][1] == node:
            roots.pop()
        else:
            _, _, siblings, at = heappop(below)
            if (at := at + 1) < len(siblings.nodes):
                heappush(below, (siblings.indices[at], siblings.nodes[at], siblings, at))
        if children:
            opened = children[state]
            heappush(below, (opened.indices[0], opened.nodes[0], opened, 0))
        index, following = roots[-1]
        if below and below[0] < (index, following):
            index, following = below[0][:2]
        if self._best <= index:
            following = -1
        self._path.append((node, state))
        self._node = following
        self.next = self._names[following]

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on."""
        if self.next is None:
            raise self._ended()
        best, answer = self._best, self._answer
        self._best = -INFINITY  # no loss is below it
        self.observe(self._worst())
        self._best, self._answer = best, answer
        index, following = self._least()
        self._node = following if best > index else -1
        self.next = self._names[self._node]

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        first = next(root for root in self._roots if root[1] == node)
        self._roots.remove(first)
        self._roots.append(first)  # the one to ask stands last; the others keep their order
        self._node, self.next = node, self._names[node]

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        return self._explained(self._best, self._least()[0])

    def _least(self) -> tuple[float, int]:
        """The least index of the nodes that may be asked, and its node."""
        least = self._roots[-1]
        return min(least, self._below[0][:2]) if self._below else least
