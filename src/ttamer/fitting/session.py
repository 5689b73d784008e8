"""Sessions of fitted policies: deciding for one input.

::

    turn = policy.session()
    while turn.next is not None:
        turn.observe(confidence=..., prediction=...)   # the answer of turn.next; or turn.fail()
    turn.answer                                        # the node whose answer to return

The sums are those of :mod:`ttamer.fitting.belief` and :mod:`ttamer.fitting.policy`, in the same
order, from plain Python numbers: for single numbers these are several times faster than arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ttamer._checks import as_float, is_number, number, percent
from ttamer.errors import ArgumentError, ObservationError, TraceError
from ttamer.fitting.belief import Step, chance_of
from ttamer.fitting.policy import NOTHING, SingleNode, StepPolicy
from ttamer.fitting.replay import SLACK
from ttamer.policy.session import NO_ANSWER, Explanation, Session
from ttamer.trace.schema import class_text


@dataclass(frozen=True)
class StepExplanation(Explanation):
    """The reasons for the current decision, with what the input says and every way there is.

    ``best`` is the chance that the answer in hand is wrong, or its expected loss; ``index`` is what
    going on is expected to lose, its price counted in losses.
    """

    prior: Mapping[str, float] = field(default_factory=dict)
    """By node not asked: the chance that it errs, as the input and the answers so far say; empty
    where inputs are not used."""
    from_input: float = 0.0
    """What the input contributes to the gain of ``next``, in losses; 0 once stopped."""
    gains: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now: how much loss asking it saves."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now: what it costs, in losses."""
    indices: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now, once there is an answer: asking it pays where the answer in
    hand is wrong with more than this chance, of an input of which nothing is known."""


class FittedSession(Session):
    """A session that takes what each node answers: a confidence and a prediction."""

    __slots__ = ("_asked", "_cost", "_costs", "_limit", "_names", "_next", "unclear")

    unclear: int
    """How many answers came without a confidence, and had the lowest."""

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
        self._cost = 0.0
        self._next = -1
        self.unclear = 0

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
            columns: Further columns of the answer; nothing is read of them.

        Raises:
            ObservationError: The session has stopped, or the confidence is not a number.
        """
        del columns
        node = self._require_next()
        try:
            value, text = as_float(confidence), class_text(prediction)
        except TypeError:
            raise ObservationError(
                f"node {self.next!r}: confidence must be a number, not {confidence!r}"
            ) from None
        except TraceError as error:
            raise ObservationError(f"node {self.next!r}: {error}") from None
        if value != value:
            # A model that gave no confidence gave an answer all the same.
            value = -inf
            self.unclear += 1
        self._pay(node)
        self._advance(node, value, text)

    def fail(self) -> None:
        """Record that ``next`` gave no answer, and move on; other answers keep their belief."""
        node = self._require_next()
        self._pay(node)
        self._advance(node, None, None)

    def _require_next(self) -> int:
        if self._next < 0:
            raise ObservationError("the session has stopped: start a new one")
        return self._next

    def _pay(self, node: int) -> None:
        self._cost += self._costs[node]
        self._asked.append(node)

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return None if self._next < 0 else self._names[self._next]

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
    @abstractmethod
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""


class StepSession(FittedSession):
    """A session of a fitted policy.

    >>> import ttamer as tt
    >>> trace = tt.datasets.load("minilm-imdb").take(slice(300))
    >>> turn = tt.fit(trace, belief="threshold").at(0.9).session()
    >>> turn.observe(confidence=0.95, prediction="pos")
    >>> turn.next, turn.answer
    (None, 'layer1')
    """

    __slots__ = (
        "_bar",
        "_came",
        "_capped",
        "_codes",
        "_curve",
        "_offset",
        "_owner",
        "_policy",
        "_prior",
        "_scorer",
        "_step",
        "_unknown",
        "_x",
    )

    def __init__(
        self,
        policy: StepPolicy,
        prior: Sequence[float] | None = None,
        bar: float = 0.0,
        costs: Sequence[float] | None = None,
        max_cost: float | None = None,
    ) -> None:
        super().__init__(policy.names, policy.costs if costs is None else costs, max_cost)
        count = len(policy.names)
        self._policy, self._scorer = policy, policy.tables.belief.scorer
        self._prior, self._bar = prior, bar
        self._curve, self._offset, self._codes = [0.0] * count, [0.0] * count, [-1] * count
        self._unknown: dict[str, int] = {}
        self._step: Step = ()
        self._came: Step = ()
        self._x, self._owner, self._capped = NOTHING, -1, False
        self._choose()
        self._require_start([*(way.node for way in policy.ways[()]), *policy.remaining(())])

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        self._step = tuple(sorted((*self._step, node)))
        if confidence is not None:
            reads = prediction is not None and self._policy.tables.belief.agree
            code = self._code(str(prediction)) if reads else -1
            self._codes[node] = code
            self._curve[node], self._offset[node] = self._scorer.evidence(
                node, confidence, code, self._prior, self._bar
            )
            self._came = tuple(sorted((*self._came, node)))
            context, odds = self._risks()
            self._x = min(odds)
            self._owner = context[odds.index(self._x)]
        self._choose()

    def _risks(self) -> tuple[Step, list[float]]:
        """Return the answers that count, and their log-odds of being wrong."""
        context = self._policy.tables.belief.context(self._came)
        odds = self._scorer.odds(context, self._curve, self._offset, self._codes, self._bar)
        return context, odds

    def _code(self, prediction: str) -> int:
        code = self._policy.codes.get(prediction)
        if code is None:  # a class of its own, for this input
            new = len(self._policy.codes) + len(self._unknown)
            code = self._unknown.setdefault(prediction, new)
        return code

    def _choose(self) -> None:
        """Choose the node of the largest gain above its price, of those that the cap allows."""
        self._capped = False
        best, chosen = 0.0 if self._came else -inf, -1
        for node, gain, price in self._ways():
            net = gain - price
            if net > best:
                if self._cost + self._costs[node] <= self._limit:
                    best, chosen = net, node
                else:
                    self._capped = True
        if chosen < 0 and not self._came and self._limit < inf:
            # No way is within the cap: the most expensive node that is.
            within = [
                node
                for node in self._policy.remaining(self._step)
                if self._cost + self._costs[node] <= self._limit
            ]
            chosen = max(within, key=self._costs.__getitem__, default=-1)
        self._next = chosen

    def _ways(self) -> list[tuple[int, float, float]]:
        """Return each way with its gain and its price, in losses."""
        policy, step, x = self._policy, self._step, self._x
        knots, ways = policy.listed(step, self._came)
        if not ways:
            return []
        piece = bisect_right(knots, x)
        p = chance_of(x)
        gains = []
        for node, base, slope, u, v, wait in ways:
            gain = base[piece] + slope[piece] * x
            if u or v:
                q = self._scorer.q(self._came, node, x, self._prior, self._bar)
                gain = gain + u * q + v * (p * q if step else chance_of(self._bar))
            gains.append((node, gain, policy.price * (self._costs[node] + wait)))
        return gains

    @property
    def answer(self) -> str | None:
        """The node whose answer to return; ``None`` before any has answered."""
        return None if self._owner < 0 else self._names[self._owner]

    @property
    def capped(self) -> bool:
        """Whether the cap on the cost changed what is asked now."""
        return self._capped

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        spent = self._cost + self.price
        following = self._policy.ahead(tuple(sorted((*self._step, self._next))))
        return all(spent + self._costs[node] > self._limit for node in following)

    @property
    def beliefs(self) -> dict[str, float]:
        """The chance that each answer is wrong, the least likely first."""
        if not self._came:
            return {}
        context, odds = self._risks()
        return {self._names[v]: chance_of(x) for x, v in sorted(zip(odds, context, strict=True))}

    def explain(self) -> StepExplanation:
        """Return the reasons for the current decision."""
        ways = self._ways()
        gains = {self._names[v]: gain for v, gain, _ in ways}
        prices = {self._names[v]: price for v, _, price in ways}
        risk, index = chance_of(self._x) if self._came else inf, inf
        if self.next is None and ways:
            index = risk - max(gain - price for _, gain, price in ways)
        elif self.next in gains:
            index = risk - (gains[self.next] - prices[self.next])
        prior = {}
        if self._prior is not None:
            prior = {
                name: self._scorer.q(self._came, v, self._x, self._prior, self._bar)
                for v, name in enumerate(self._names)
                if v not in self._step
            }
        return StepExplanation(
            self.next,
            self.answer,
            risk,
            index,
            self._in_words(risk, gains, prices),
            self.price,
            self.beliefs,
            prior=prior,
            from_input=self._from_input(),
            gains=gains,
            prices=prices,
            indices={self._names[v]: chance_of(i) for v, i in self._indices().items()},
        )

    def _indices(self) -> Mapping[int, float]:
        return self._policy.indices.get(self._step, {}) if self._came else {}

    def _from_input(self) -> float:
        """Return what this input adds to the gain of ``next``, over one nothing is known of."""
        prior = self._policy.tables.prior
        if self._next < 0 or self._prior is None or prior is None:
            return 0.0
        turn = StepSession(self._policy, *prior.unknown)
        turn._step, turn._came, turn._x = self._step, self._came, self._x
        gains, typical = ({v: gain for v, gain, _ in session._ways()} for session in (self, turn))
        return gains.get(self._next, 0.0) - typical.get(self._next, 0.0)

    def _in_words(
        self, risk: float, gains: Mapping[str, float], prices: Mapping[str, float]
    ) -> str:
        """Return the decision in words."""
        decision = "stop" if self.next is None else f"ask {self.next!r}"
        if not self._came:
            return NO_ANSWER if self.next is None else f"there is no answer yet: {decision}"
        doubt = f"the answer of {self.answer!r} is wrong with chance {percent(risk, digits=1)}"
        if not gains:
            return f"{doubt}, and the policy asks no node after this: stop"
        node = self.next or max(gains, key=lambda name: gains[name] - prices[name])
        gain, price = 100 * gains.get(node, 0.0), 100 * prices.get(node, 0.0)
        reason = f"asking {node!r} saves {gain:.2f} points of loss at a price of {price:.2f}"
        if self._capped and self.next is None:
            reason += f", and would cost more than is left of the cap of {number(self._limit)}"
        return f"{doubt}; {reason}: {decision}"


class SingleNodeSession(FittedSession):
    """A session of one node by itself.

    >>> import numpy as np
    >>> turn = SingleNode(("a", "b"), np.array([1.0, 2.0]), 1, backups=(0,)).session()
    >>> turn.fail()
    >>> turn.observe(confidence=0.5)
    >>> turn.asked, turn.answer
    (('b', 'a'), 'a')
    """

    __slots__ = ("_answer", "_order", "_policy")

    def __init__(self, policy: SingleNode, max_cost: float | None = None) -> None:
        super().__init__(policy.names, policy.costs.tolist(), max_cost)
        self._policy, self._answer, self._order = policy, -1, policy.order(max_cost)
        self._next = next(self._order, -1)
        self._require_start([*(policy.before[:1] or (policy.node,)), *policy.backups])

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        del prediction
        if confidence is not None:
            self._answer = node
        done = confidence is not None and node not in self._policy.before
        self._next = -1 if done else next(self._order, -1)

    @property
    def answer(self) -> str | None:
        """The node whose answer to return."""
        return None if self._answer < 0 else self._names[self._answer]

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        return self._next not in self._policy.before

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        decision = "stop" if self.next is None else f"ask {self.next!r}"
        name = self._names[self._policy.node]
        why = f"the policy takes the answer of {name!r} alone: {decision}"
        if self.next is None and self.answer is None:
            why = NO_ANSWER
        elif self.next is None and self.answer != name:
            why = f"the policy takes one answer alone, and {name!r} gave none: stop"
        return Explanation(self.next, self.answer, inf, inf, why, self.price)
