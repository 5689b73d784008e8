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
from typing import TYPE_CHECKING

from ttamer._checks import as_float, is_number, number, percent
from ttamer.errors import ArgumentError, ObservationError, TraceError
from ttamer.fitting.belief import NOTHING, Floats, Step, bar_of, chance_of
from ttamer.fitting.replay import SLACK
from ttamer.policy.session import NO_ANSWER, Explanation, Session
from ttamer.trace.schema import class_text

if TYPE_CHECKING:  # policies start sessions
    from ttamer.fitting.policy import SingleNode, StepPolicy

NO_NODE_AFTER = "the policy asks no node after this: stop"


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


class StepSession(FittedSession):
    """A session of a fitted policy.

    >>> import ttamer as tt
    >>> trace = tt.datasets.load("minilm-imdb").take(slice(300))
    >>> turn = tt.fit(trace, belief="threshold").at(0.9).session()
    >>> turn.observe(confidence=0.95, prediction="pos")
    >>> turn.next, turn.answer
    (None, 'layer1')
    """

    def __init__(
        self, policy: StepPolicy, prior: Floats | None, costs: Floats | None, max_cost: float | None
    ) -> None:
        tables = policy.tables
        costs = tables.costs if costs is None else costs
        super().__init__(tables.names, costs.tolist(), max_cost)
        self._prior: list[float] | None = None
        self._bar = 0.0
        if prior is not None:
            self._prior, self._bar = prior.tolist(), float(bar_of(prior))
        elif tables.prior is not None:  # nothing is known of the input
            self._prior, self._bar = tables.prior.unknown
        count = len(self._names)
        self._policy, self._belief, self._scorer = policy, tables.belief, tables.belief.scorer
        self._curve, self._offset, self._codes = [0.0] * count, [0.0] * count, [-1] * count
        self._unknown: dict[str, int] = {}
        self._step: Step = ()
        self._came: Step = ()
        self._x = NOTHING
        self._choose()
        if max_cost is not None:
            self._require_start([*policy.ahead(()), *policy.remaining(())])

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        self._step = tuple(sorted((*self._step, node)))
        if confidence is not None:
            reads = prediction is not None and self._belief.agree
            self._codes[node] = code = self._code(str(prediction)) if reads else -1
            self._curve[node], self._offset[node] = self._scorer.evidence(
                node, confidence, code, self._prior, self._bar
            )
            self._came = tuple(sorted((*self._came, node)))
            context, odds = self._risks()
            self._x = min(odds)
            self._answer = context[odds.index(self._x)]
        self._choose()

    def _risks(self) -> tuple[Step, list[float]]:
        """Return the answers that count, and their log-odds of being wrong."""
        context = self._belief.context(self._came)
        odds = self._scorer.odds(context, self._curve, self._offset, self._codes, self._bar)
        return context, odds

    def _code(self, prediction: str) -> int:
        classes = self._belief.code_of
        code = classes.get(prediction)
        if code is None:  # a class of its own, for this input
            code = self._unknown.setdefault(prediction, len(classes) + len(self._unknown))
        return code

    def _choose(self) -> None:
        """Choose the node of the largest gain above its price, of those that the cap allows."""
        self._capped = False
        best, chosen = 0.0 if self._came else -inf, -1
        for node, gain, price in self._ways(self._prior, self._bar):
            net = gain - price
            if net > best:
                if self._cost + self._costs[node] <= self._limit:
                    best, chosen = net, node
                else:
                    self._capped = True
        if chosen < 0 and not self._came and self._limit < inf:
            # No way is within the cap: the most expensive node that is.
            nodes = self._policy.remaining(self._step)
            within = [v for v in nodes if self._cost + self._costs[v] <= self._limit]
            chosen = max(within, key=self._costs.__getitem__, default=-1)
        self._next = chosen

    def _ways(self, prior: Sequence[float] | None, bar: float) -> list[tuple[int, float, float]]:
        """Return each way with its gain and its price, in losses, for what an input says."""
        policy, step, x = self._policy, self._step, self._x
        piece = bisect_right(policy.knots(step), x)
        p = chance_of(x)
        gains = []
        for node, base, slope, u, v, wait in policy.after(step, self._came):
            gain = base[piece] + slope[piece] * x
            if u or v:
                q = self._scorer.q(self._came, node, x, prior, bar)
                gain = gain + u * q + v * (p * q if step else chance_of(bar))
            gains.append((node, gain, policy.price * (self._costs[node] + wait)))
        return gains

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        spent = self._cost + self.price
        following = self._policy.ahead(tuple(sorted((*self._step, self._next))))
        return all(spent + self._costs[node] > self._limit for node in following)

    @property
    def beliefs(self) -> dict[str, float]:
        """The chance that each answer is wrong, the least likely first; of thresholds none."""
        if not self._came or self._policy.tables.are_thresholds:
            return {}
        context, odds = self._risks()
        return {self._names[v]: chance_of(x) for x, v in sorted(zip(odds, context, strict=True))}

    def explain(self) -> StepExplanation:
        """Return the reasons for the current decision."""
        ways, prior, names = self._ways(self._prior, self._bar), {}, self._names
        gains = {names[v]: gain for v, gain, _ in ways}
        prices = {names[v]: price for v, _, price in ways}
        net = {name: gains[name] - prices[name] for name in gains}
        best = self.next or max(net, key=net.__getitem__, default=None)
        risk = chance_of(self._x) if self._came else inf
        if self._policy.tables.are_thresholds:  # they say no chance, and nothing that is gained
            why = self._threshold_in_words(best)
            return StepExplanation(self.next, self.answer, inf, inf, why, self.price)
        if self._prior is not None:
            evidence = self._x, self._prior, self._bar
            nodes = (v for v in range(len(names)) if v not in self._step)
            prior = {names[v]: self._scorer.q(self._came, v, *evidence) for v in nodes}
        indices = self._policy.indices.get(self._step, {}) if self._came else {}
        return StepExplanation(
            self.next,
            self.answer,
            risk,
            risk - net[best] if best in net else inf,
            self._in_words(risk, best, gains, prices),
            self.price,
            self.beliefs,
            prior=prior,
            from_input=self._from_input(gains.get(self.next or "", 0.0)),
            gains=gains,
            prices=prices,
            indices={names[v]: chance_of(index) for v, index in indices.items()},
        )

    def _from_input(self, gain: float) -> float:
        """Return what this input adds to the gain of ``next``, over one nothing is known of."""
        prior = self._policy.tables.prior
        if self._next < 0 or self._prior is None or prior is None:
            return 0.0
        typical = self._ways(*prior.unknown)
        return gain - next((base for v, base, _ in typical if v == self._next), 0.0)

    def _in_words(
        self, risk: float, node: str | None, gains: Mapping[str, float], prices: Mapping[str, float]
    ) -> str:
        """Return the decision in words, given the best way."""
        if not self._came:
            return self._before_any_answer()
        doubt = f"the answer of {self.answer!r} is wrong with chance {percent(risk, digits=1)}"
        if node is None:
            return f"{doubt}, and {NO_NODE_AFTER}"
        gain, price = 100 * gains.get(node, 0.0), 100 * prices.get(node, 0.0)
        reason = f"asking {node!r} saves {gain:.2f} points of loss at a price of {price:.2f}"
        return f"{doubt}; {reason}{self._decided()}"

    def _threshold_in_words(self, node: str | None) -> str:
        """Return the decision of thresholds in words."""
        if not self._came:
            return self._before_any_answer()
        if node is None:
            return NO_NODE_AFTER
        sure = "" if self.next is None and not self._capped else "not "
        return f"the answer of {self.answer!r} is {sure}confident enough{self._decided()}"

    def _before_any_answer(self) -> str:
        return NO_ANSWER if self.next is None else f"there is no answer yet{self._decided()}"

    def _decided(self) -> str:
        if self.next is not None:
            return f": ask {self.next!r}"
        cap = f", and asking on would cost more than is left of the cap of {number(self._limit)}"
        return f"{cap if self._capped else ''}: stop"


class SingleNodeSession(FittedSession):
    """A session of one node by itself.

    >>> import numpy as np
    >>> from ttamer.fitting.policy import SingleNode
    >>> turn = SingleNode(("a", "b"), np.array([1.0, 2.0]), 1, backups=(0,)).session()
    >>> turn.fail()
    >>> turn.observe(confidence=0.5)
    >>> turn.asked, turn.answer
    (('b', 'a'), 'a')
    """

    def __init__(self, policy: SingleNode, max_cost: float | None = None) -> None:
        super().__init__(policy.names, policy.costs.tolist(), max_cost)
        self._policy, self._order = policy, policy.order(max_cost)
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
        if self.next is None and self.answer is None:
            why = NO_ANSWER
        elif self.next is None and self.answer != name:
            why = f"the policy takes one answer alone, and {name!r} gave none: stop"
        return Explanation(self.next, self.answer, inf, inf, why, self.price)
