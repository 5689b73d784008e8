"""Sessions of fitted policies: deciding for one input; and policies of one node.

::

    turn = policy.session()
    while turn.next is not None:
        turn.observe(confidence=..., prediction=...)   # the answer of turn.next; or turn.fail()
    turn.answer                                        # the node whose answer to return
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ttamer._checks import as_float, is_number, number
from ttamer.errors import ArgumentError, ObservationError, TraceError
from ttamer.fitting.belief import Floats, Seen, Step
from ttamer.fitting.replay import SLACK, Played
from ttamer.policy.session import NO_ANSWER, Explanation, Session
from ttamer.trace.schema import class_text


class FittedSession(Session):
    """A session that takes what each node answers: a confidence and a prediction."""

    reads = "confidence"  # or "margin": the column that decides

    def __init__(
        self, names: tuple[str, ...], costs: Sequence[float], max_cost: float | None
    ) -> None:
        if max_cost is not None and not (is_number(max_cost) and max_cost > 0):
            raise ArgumentError(
                f"max_cost is {max_cost!r}; it must be a number above 0", param="max_cost"
            )
        self._names, self._costs = names, costs
        self._limit = inf if max_cost is None else max_cost * (1 + SLACK)
        self._asked: list[int] = []
        self._cost, self._capped = 0.0, False
        self._next = self._answer = -1
        self.unclear = 0  # how many answers came without a confidence, and had the lowest

    @abstractmethod
    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        """Take the answer of a node, ``None`` where it failed, and choose the next."""

    def _require_start(self, nodes: Iterable[int]) -> None:
        """Refuse a cap below the cost of all of the nodes that may be asked first."""
        if self._next < 0 and self._limit < inf:
            cheapest = min(nodes, key=self._costs.__getitem__)
            raise ArgumentError(
                f"no node can be asked for max_cost = {number(self._limit)}: the cheapest to start "
                f"with, {self._names[cheapest]!r}, costs {number(self._costs[cheapest])}",
                param="max_cost",
            )

    def observe(self, *, confidence: float, prediction: object = None, **columns: float) -> None:
        """Give the answer of ``next``, and move on.

        Args:
            confidence: Any number; NaN counts as the lowest confidence, and in ``unclear``.
            prediction: Compared as text with the other nodes' predictions and with the classes
                fitted to. A class that the fit never saw is a class of its own, and no error.
            columns: Further columns of the answer; policies that were fitted to margins of exits
                read ``margin`` in place of the confidence.

        Raises:
            ObservationError: The session has stopped, or what is read is not a number.
        """
        node = self._require_next()
        try:
            value = confidence if self.reads == "confidence" else columns.get(self.reads)
            value, text = as_float(value), class_text(prediction)
        except TypeError:
            raise ObservationError(
                f"node {self.next!r}: {self.reads} must be a number, not {value!r}"
            ) from None
        except TraceError as error:
            raise ObservationError(f"node {self.next!r}: {error}") from None
        if value != value:
            # A model that gave no confidence gave an answer all the same.
            value = -inf
            self.unclear += 1
        self._record(node, value, text)

    def fail(self) -> None:
        """Record that ``next`` gave no answer, and move on; other answers keep their belief."""
        self._record(self._require_next(), None, None)

    def _require_next(self) -> int:
        if self._next < 0:
            raise ObservationError("the session has stopped: start a new one")
        return self._next

    def _record(self, node: int, confidence: float | None, prediction: str | None) -> None:
        self._cost += self._costs[node]
        self._asked.append(node)
        self._advance(node, confidence, prediction)

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return None if self._next < 0 else self._names[self._next]

    @property
    def answer(self) -> str | None:
        """The node whose answer to return; ``None`` before any has answered."""
        return None if self._answer < 0 else self._names[self._answer]

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(self._names[node] for node in self._asked)

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units: as the input predicts, or on average."""
        return self._cost

    @property
    def price(self) -> float:
        """What asking ``next`` costs; 0 once stopped."""
        return 0.0 if self._next < 0 else self._costs[self._next]

    @property
    def capped(self) -> bool:
        """Whether the cap on the cost changed what is asked."""
        return self._capped

    @property
    @abstractmethod
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""


@dataclass(frozen=True, eq=False)
class SingleNode:
    """One node by itself: what every cascade has to be better than.

    Where it fails, the others are asked in the order of ``backups`` until one answers. Where it
    costs more than a cap, the first that fits is asked.
    """

    names: tuple[str, ...]
    costs: Floats  # (n,)
    node: int
    before: Step = ()  # the nodes that must be asked before it
    backups: tuple[int, ...] = ()

    def session(self, max_cost: float | None = None) -> SingleNodeSession:
        """Start deciding for one input."""
        return SingleNodeSession(self, max_cost)

    def order(self, max_cost: float = inf) -> Iterator[int]:
        """Yield the nodes to ask until one at or after ``node`` has answered."""
        spent = 0.0
        for node in (*self.before, self.node, *self.backups):
            if spent + self.costs[node] <= max_cost:
                spent += float(self.costs[node])
                yield node

    def play(self, answers: Seen) -> Played:
        """Decide for rows: what sessions would do, one for each."""
        asked, answer = np.zeros(answers.answered.shape, bool), np.full(len(answers), -1, np.intp)
        last, going = answer.copy(), np.ones(len(answers), bool)
        for node in self.order():
            asked[going, node], last[going] = True, node
            answer[going & answers.answered[:, node]] = node
            if node not in self.before:
                going &= ~answers.answered[:, node]
        return Played(answer, asked, last)


class SingleNodeSession(FittedSession):
    """A session of one node by itself.

    >>> turn = SingleNode(("a", "b"), np.array([1.0, 2.0]), 1, backups=(0,)).session()
    >>> turn.fail()
    >>> turn.observe(confidence=0.5)
    >>> turn.asked, turn.answer
    (('b', 'a'), 'a')
    """

    def __init__(self, policy: SingleNode, max_cost: float | None = None) -> None:
        super().__init__(policy.names, policy.costs.tolist(), max_cost)
        self._policy, self._order = policy, policy.order(self._limit)
        self._next = next(self._order, -1)
        self._require_start([*(policy.before[:1] or (policy.node,)), *policy.backups])

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        del prediction
        if confidence is not None:
            self._answer = node
        done = confidence is not None and node not in self._policy.before
        self._next = -1 if done else next(self._order, -1)

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        return self._next not in self._policy.before

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        decision = "stop" if self.next is None else f"ask {self.next!r}"
        name = self._names[self._policy.node]
        why = f"the policy takes the answer of {name!r} alone: {decision}"
        if self.next is None and self.answer != name:
            gave_none = f"the policy takes one answer alone, and {name!r} gave none: stop"
            why = NO_ANSWER if self.answer is None else gave_none
        return Explanation(self.next, self.answer, inf, inf, why, self.price)
