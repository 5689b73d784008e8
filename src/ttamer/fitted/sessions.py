"""Sessions of fitted policies: deciding for one input from confidences and predictions.

::

    turn = policy.session()
    while turn.next is not None:
        turn.observe(confidence=..., prediction=...)   # the answer of turn.next
    turn.answer                                        # the node whose answer to return
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from math import exp, inf, isfinite, nan
from typing import TYPE_CHECKING

from ttamer._numbers import as_float, is_number, number, percent
from ttamer.errors import ArgumentError, ObservationError, TraceError
from ttamer.fitted.belief import EXCLUDED_LOGIT
from ttamer.policy.session import NO_ANSWER, Explanation, IndexSession, Session, WalkSession
from ttamer.trace.classes import class_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ttamer.fitted.belief import Extras
    from ttamer.fitted.models import BeliefModel, ConfidenceModel, Model
    from ttamer.policy.session import LastAnswerSession, StateSession

__all__ = ["BeliefSession", "CappedSession", "ConfidenceSession", "FittedSession"]

SLACK = 1e-9
"""A cap on the cost counts as met up to this relative error of summation."""
MAX_PREDICTIONS = 64
"""With more possible predictions than this, it is not computed whether the next is preferred."""


class FittedSession(Session):
    """A session that takes what each node answers: a confidence and a prediction."""

    __slots__ = ("unclear",)

    unclear: int
    """How many confidences were NaN, and counted as the lowest; how many signals were missing or
    NaN, and counted for nothing; and how many answers lacked a column of ``reads``, and were judged
    by their confidence alone."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the policy reads of the answer of ``next`` beside its confidence.

        Some of ``margin`` and ``entropy``; empty for most policies.
        """
        return ()

    @abstractmethod
    def observe(
        self,
        *,
        confidence: float,
        prediction: object = None,
        margin: float = nan,
        entropy: float = nan,
    ) -> None:
        """Give the answer of ``next``, and move on.

        Args:
            confidence: Any number; NaN counts as the lowest confidence, and in ``unclear``.
            prediction: Compared as text with the other nodes' predictions and with the classes
                fitted to. A class that the fit never saw is a class of its own, and no error.
            margin: How far the answer is ahead of the next best one, as in the trace fitted to;
                used where ``reads`` names it. Where a column that is read is not finite, the
                confidence alone counts.
            entropy: The entropy of the answer; likewise.

        Raises:
            ObservationError: The session has stopped, or the confidence or a column that is read
                is not a number.
        """

    @abstractmethod
    def ahead(self) -> dict[str | None, float]:
        """Return the chance of each node to be asked right after ``next``.

        Returns:
            Chances by name, above 0, with ``None`` for stopping; empty where they are not known.
        """

    def prefers_next(self) -> bool:
        """Return whether the answer of ``next``, or an equal one, is the best whatever it is.

        If the session stops then, that answer may be returned before it is complete: no confidence
        and no prediction would make the session return another.

        Returns:
            ``False`` where it depends on the answer, or is not known.
        """
        return False

    @abstractmethod
    def price_after(self, node: str) -> float:
        """Return what asking a node right after ``next`` costs.

        Args:
            node: The name of the node.

        Returns:
            The cost, in the cascade's units.
        """


class _ModelSession(FittedSession):
    """What sessions of both models share: the nodes asked, and what they cost."""

    __slots__ = ("_asked", "_inner", "_model")

    _model: Model
    _inner: StateSession

    def __init__(self, model: Model, inner: StateSession) -> None:
        self._model = model
        self._inner = inner
        self._asked: list[int] = []
        self.unclear = 0

    def _next_node(self) -> int:
        """Return the number of the node to ask now; -1 once stopped."""
        place, asked = self._inner.number, self._asked
        if place >= 0:
            for node in self._model.steps[place]:
                if node not in asked:
                    return node
        return -1

    def _require_next(self) -> int:
        node = self._next_node()
        if node < 0:
            raise ObservationError("the session has stopped: start a new one")
        return node

    def _number(self, name: str, value: object) -> float:
        """Return a value of the answer of ``next`` as a number, or refuse it."""
        try:
            return as_float(value)
        except TypeError:
            raise ObservationError(
                f"node {self.next!r}: {name} must be a number, not {value!r}"
            ) from None

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        node = self._next_node()
        return None if node < 0 else self._model.spec.names[node]

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(self._model.spec.names[node] for node in self._asked)

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units."""
        spec = self._model.spec
        last = self._asked[-1] if self._asked else -1
        passed = [node for node in range(last) if node not in self._asked]
        return float(spec.costs[self._asked].sum() + spec.passing[passed].sum())

    @property
    def price(self) -> float:
        """What asking ``next`` costs, in the cascade's units; 0 once stopped."""
        node, last = self._next_node(), self._asked[-1] if self._asked else -1
        return 0.0 if node < 0 else self._model.spec.step_cost(last, node)

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and what each costs."""
        problem, steps, spec = self._inner.problem, self._model.steps, self._model.spec
        first = [steps[problem.ends[edge][1]] for edge in problem.starts]
        if first == [()]:  # a router comes before them
            first = [step for step in steps if len(step) == 1]
        return {spec.names[step[0]]: spec.step_cost(-1, step[0]) for step in first}

    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy's choice."""
        place = self._model.steps.index((self._model.spec.index_of(node),))
        self._inner.start_at(place)

    def _in_words(self, inner: Explanation, loss: float) -> str:
        """Return why to stop or go on, in the units of the cascade.

        Args:
            inner: The explanation of the solved policy, weighed.
            loss: What the answer in hand is expected to lose, as a share of the largest loss.
        """
        model, tradeoff = self._model, self._inner.tradeoff
        graded = model.loss_scale is not None

        def lost(share: float) -> str:
            return number(share * model.loss_unit) if graded else percent(share, digits=1)

        doubt = f"the answer of {self.answer!r} " + (
            f"loses {lost(loss)} on average" if graded else f"is wrong with chance {lost(loss)}"
        )
        decision = "stop" if self.next is None else f"ask {self.next!r}"
        if tradeoff == 0:
            return f"mistakes count for nothing: {decision}"
        if isinstance(self._inner, IndexSession):
            bound = lost(inner.index / tradeoff)
            return f"{doubt}, and asking on pays while that is above {bound}: {decision}"
        gain = inner.best - inner.index
        if gain < 0 < tradeoff < 1 and self.next is not None:  # beyond what the objective asks for
            return f"{doubt}, and a cautious policy stops only where that is lower: {decision}"
        if gain > 0 and tradeoff < 1 and self.next is None:
            return f"{doubt}, and a cautious policy goes on only where that is higher: {decision}"
        if tradeoff == 1 and self.next is None:
            return f"{doubt}, and further answers are not expected to lower that: {decision}"
        if tradeoff == 1:
            less = lost(gain) if graded else f"{100 * gain:.1f} points"
            return f"{doubt}, and further answers lower that by {less} on average: {decision}"
        unit = model.full_cost / (1 - tradeoff)
        worth = number(tradeoff * unit / model.loss_unit)
        where = f"where {'a loss of 1' if graded else 'a mistake'} costs {worth}"
        if self.next is None:
            return f"{doubt}; {where}, asking on costs {number(-gain * unit)} too much: {decision}"
        saved = number(gain * unit)
        return f"{doubt}; {where}, asking on saves {saved} on average: {decision}"

    def price_after(self, node: str) -> float:
        """Return what asking a node right after ``next`` costs, in the cascade's units."""
        spec = self._model.spec
        return spec.step_cost(self._next_node(), spec.index_of(node))

    def ahead(self) -> dict[str | None, float]:
        """Return the chance of each node to be asked right after ``next``, where it is known."""
        is_last = len(self._asked) + 1 == len(self._model.spec.names)
        return {None: 1.0} if is_last and self.next is not None else {}


class ConfidenceSession(_ModelSession):
    """A session of a policy on confidence alone.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)), belief="calibrated", states=4)
    >>> turn = ladder.at(0.9).session()
    >>> while turn.next is not None:
    ...     turn.observe(confidence=0.99)
    >>> turn.asked, turn.answer
    (('layer1',), 'layer1')
    """

    __slots__ = ()

    _model: ConfidenceModel

    def observe(
        self,
        *,
        confidence: float,
        prediction: object = None,
        margin: float = nan,
        entropy: float = nan,
    ) -> None:
        """Give the confidence of ``next``, and move on; nothing else is used."""
        del prediction, margin, entropy
        node = self._require_next()
        value = self._number("confidence", confidence)
        self.unclear += value != value
        self._inner.observe(self._model.quantiser.state(node, value))
        self._asked.append(node)

    def prefers_next(self) -> bool:
        """Return whether the answer of ``next`` is the best in every state."""
        self._require_next()
        return isinstance(self._inner, WalkSession) and self._inner.prefers_next()

    def fail(self) -> None:
        """Record that ``next`` gave no answer, and move on."""
        node = self._require_next()
        self._inner.fail()
        self._asked.append(node)

    @property
    def answer(self) -> str | None:
        """The node whose answer to return."""
        return self._inner.answer

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        inner = self._inner.explain()
        why, alone = inner.why, self._model.plan.get("alone")
        if alone is not None and self.answer is not None:
            decision = "stop" if self.next is None else f"ask {self.next!r}"
            why = f"the policy takes the answer of {alone!r} alone: {decision}"
            if self.next is None and self.answer != alone:
                why = f"the policy takes one answer alone, and {alone!r} gave none: stop"
        elif isfinite(inner.best) and isfinite(inner.index):
            tradeoff = self._inner.tradeoff
            if self._model.has_thresholds:
                why = self._threshold_in_words(tradeoff)
            else:
                why = self._in_words(inner, inner.best / tradeoff if tradeoff else 0.0)
        return dataclasses.replace(inner, price=self.price, why=why)

    def _threshold_in_words(self, threshold: float) -> str:
        """Return why to stop or go on, where the policy is one threshold on the confidence."""
        if self.next is not None and threshold == 1:
            return f"the policy asks every node: ask {self.next!r}"
        stands, decision = "reaches", "stop"
        if self.next is not None:
            stands, decision = "is below", f"ask {self.next!r}"
        last = self.asked[-1]
        return f"the confidence of {last!r} {stands} the threshold {threshold:.6g}: {decision}"


class BeliefSession(_ModelSession):
    """A session of a policy on beliefs.

    >>> from ttamer import datasets, fit
    >>> turn = fit(datasets.load("minilm-imdb").take(slice(2000))).at(0.9).session()
    >>> while turn.next is not None:
    ...     turn.observe(confidence=0.99, prediction="pos")
    >>> turn.answer in turn.asked
    True
    """

    __slots__ = ("_failed", "_gain", "_least", "_odds", "_offset", "_owner", "_place",
                 "_predictions", "_shift", "_unknown")  # fmt: skip

    _model: BeliefModel
    _inner: LastAnswerSession

    def __init__(
        self,
        model: BeliefModel,
        inner: LastAnswerSession,
        signals: Mapping[str, float] | None,
    ) -> None:
        super().__init__(model, inner)
        count = len(model.spec.names)
        self._odds = [0.0] * count
        self._offset = [0.0] * count
        self._predictions = [-1] * count
        self._unknown: dict[str, int] = {}
        self._owner = -1
        self._least = inf
        self._failed: tuple[int, ...] = ()
        self._gain = 0.0  # of asking on where the policy would stop after a failure
        self._place = -1
        self._shift = 0.0
        known = model.belief.signals
        if known is not None:
            added = known.contribution(signals or {})
            self._offset, self._shift, self.unclear = added.offset, added.shift, added.unknown
            router = self._inner.number
            if not model.steps[router]:
                self._inner.observe(model.scorer.state(router, added.router_logit))

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the belief reads of the answer of ``next`` beside its confidence."""
        extras = self._model.belief.extras
        node = self._next_node() if extras else -1
        return extras[node].names if node in extras else ()

    def observe(
        self,
        *,
        confidence: float,
        prediction: object = None,
        margin: float = nan,
        entropy: float = nan,
    ) -> None:
        """Give the answer of ``next`` and its confidence, and move on.

        Without a prediction the node counts as having given none, where the fit had predictions.
        Without a column that the belief reads, the answer is judged by its confidence alone.
        """
        node = self._require_next()
        value = self._number("confidence", confidence)
        model, scorer = self._model, self._model.scorer
        try:
            text = class_text(prediction)
        except TraceError as error:
            raise ObservationError(f"node {self.next!r}: {error}") from None
        read = model.belief.extras.get(node)
        columns = () if read is None else self._columns(read, margin, entropy)
        self.unclear += value != value or (read is not None and not columns)
        self._odds[node] = scorer.odds(node, value, columns)
        if text is not None:
            known = model.codes
            new = len(known) + len(self._unknown)  # a class of its own, for this input
            code = known[text] if text in known else self._unknown.setdefault(text, new)
            self._predictions[node] = code
            self._offset[node] += scorer.offsets[node].get(code, 0.0)
        self._asked.append(node)
        place = self._place = self._inner.number
        self._least, self._owner = scorer.least(
            place, self._odds, self._offset, self._predictions, self._failed
        )
        self._gain = 0.0
        self._inner.observe(self._state_at(place))

    def _state_at(self, place: int) -> int:
        """Return the state of X after a step."""
        prediction = self._predictions[self._owner] if self._owner >= 0 else -1
        return self._model.scorer.state(place, self._least + self._shift, prediction)

    def _columns(self, read: Extras, margin: object, entropy: object) -> tuple[float, ...]:
        """Return the columns that the belief reads; none where one of them is unknown."""
        given = {"margin": margin, "entropy": entropy}
        found = tuple(self._number(name, given[name]) for name in read.names)
        return found if all(map(isfinite, found)) else ()

    def prefers_next(self) -> bool:
        """Return whether the answer of ``next``, or an equal one, is the best whatever it is.

        Beliefs are linear in the log-odds of ``next``: an answer that is the best at both ends of
        their range is the best in between.
        """
        node = self._require_next()
        if all(other in self._failed for other in self._asked):
            return True
        model, scorer, place = self._model, self._model.scorer, self._inner.number
        codes = {-1}
        if model.belief.has_predictions:
            unseen = len(model.codes) + len(self._unknown)
            codes |= {*self._predictions, *range(len(model.codes)), unseen}
        if len(codes) > MAX_PREDICTIONS:
            return False
        odds, offset, predictions = self._odds.copy(), self._offset.copy(), self._predictions.copy()
        ends = scorer.range_of(node)
        for code in codes:
            predictions[node] = code
            offset[node] = self._offset[node] + scorer.offsets[node].get(code, 0.0)
            owners = set()
            for end in ends:
                odds[node] = end
                owners.add(scorer.least(place, odds, offset, predictions, self._failed)[1])
            owner = owners.pop()
            is_equal = code >= 0 and predictions[owner] == code
            if owners or not (owner == node or is_equal):
                return False
        return True

    def fail(self) -> None:
        """Record that ``next`` gave no answer, and move on; earlier answers keep their belief."""
        node = self._require_next()
        scorer = self._model.scorer
        place = self._place = self._inner.number
        self._odds[node] = scorer.odds(node, nan)
        self._failed = (*self._failed, node)
        self._asked.append(node)
        self._inner.observe(self._state_at(place))
        if self._owner < 0:
            self._inner.go_on()
        else:
            self._go_on_without()

    def _go_on_without(self) -> None:
        """Where the policy stops after a failure, ask the node that gains most, if one does.

        The tables after a node assume its answer, with which the others may be worth nothing. So
        the gain is that of asking after the nodes that did answer, as if the others were not there.
        """
        self._gain = 0.0
        if self.next is not None or self._model.spec.is_network:
            return
        steps, asked, failed = self._model.steps, self._asked, self._failed
        places = {frozenset(step): place for place, step in enumerate(steps)}
        answered = frozenset(asked) - frozenset(failed)
        source = places.get(answered)
        if source is None:
            return
        onward = self._inner.gains(self._place, self._state_at(self._place))
        gains = {}
        for target, gain in self._inner.gains(source, self._state_at(source)).items():
            added = frozenset(steps[target]) - answered
            reached = places.get(frozenset(asked) | added, -1)
            if gain > 0 and reached in onward and not added & {*asked}:
                gains[reached] = gain
        if gains:
            best = max(gains, key=lambda place: gains[place])
            self._gain = gains[best]
            self._inner.start_at(best)

    def ahead(self) -> dict[str | None, float]:
        """Return the chance of each node to be asked right after ``next``."""
        asked = {*self._asked, self._next_node()}
        names, steps = self._model.spec.names, self._model.steps
        found: dict[str | None, float] = {}
        for place, chance in self._inner.ahead().items():
            name = None
            if place >= 0:
                name = names[next(node for node in steps[place] if node not in asked)]
            found[name] = found.get(name, 0.0) + chance
        return found

    @property
    def answer(self) -> str | None:
        """The node whose answer to return."""
        return None if self._owner < 0 else self._model.spec.names[self._owner]

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        inner = self._inner.explain()
        if self._owner < 0:
            inner = dataclasses.replace(inner, best=inf)
        elif self._gain:
            inner = dataclasses.replace(inner, index=inner.best - self._gain)
        if self._owner < 0 and self.next is None:
            why = NO_ANSWER
        elif self._owner < 0:
            why = f"there is no answer yet: ask {self.next!r}"
        elif inner.index == inf:
            why = f"no node is left to ask: answer with {self.answer!r}"
        else:
            why = self._in_words(inner, _chance(self._least))
        return Explanation(
            self.next,
            self.answer,
            inner.best,
            inner.index,
            why,
            self.price,
            self.beliefs,
            has_losses=self._model.loss_scale is not None,
        )

    @property
    def beliefs(self) -> dict[str, float]:
        """The chance that each available answer is wrong, the least likely first.

        Where answers have losses, it is the expected loss.

        An answer that several nodes gave is listed once: under the node with the lowest chance, or
        where the belief has no class terms, under the one with the lowest error.
        """
        if self._place < 0:
            return {}
        names = self._model.spec.names
        odds = self._model.scorer.every(
            self._place, self._odds, self._offset, self._predictions, self._failed
        )
        chances = {v: _chance(x) for v, x in odds.items() if x < EXCLUDED_LOGIT / 2}
        listed: dict[str, float] = {}
        codes: set[int] = set()
        for v in sorted(chances, key=chances.__getitem__):
            if self._predictions[v] not in codes:
                listed[names[v]] = chances[v] * self._model.loss_unit
            codes |= {self._predictions[v]} - {-1}
        return listed


def _chance(odds: float) -> float:
    """Return the chance of these log-odds."""
    return 1 / (1 + exp(-odds)) if odds > 0 else exp(odds) / (1 + exp(odds))


class CappedSession(FittedSession):
    """A session under a cap on its cost, in the cascade's units.

    It follows the policy as far as the cap allows. Where the policy would start with a node that
    costs more than the cap, the most expensive one that fits is asked first instead.
    """

    __slots__ = ("_cap", "_ended", "_limit", "_redirected", "_turn")

    def __init__(self, turn: FittedSession, max_cost: float) -> None:
        if not is_number(max_cost) or not max_cost > 0:
            raise ArgumentError(f"max_cost is {max_cost!r}; it must be a number above 0")
        self._turn = turn
        self._cap = float(max_cost)
        self._limit = self._cap * (1 + SLACK)
        self._ended = False
        self._redirected = turn.price > self._limit
        if self._redirected:
            affordable = {node: cost for node, cost in turn.starts.items() if cost <= self._limit}
            if not affordable:
                least = min(turn.starts, key=turn.starts.__getitem__)
                raise ArgumentError(
                    f"no node can be asked for max_cost = {self._cap:g}: the cheapest to start "
                    f"with, {least!r}, costs {turn.starts[least]:g}"
                )
            turn.start_with(max(affordable, key=affordable.__getitem__))

    def __repr__(self) -> str:
        return f"CappedSession(next={self.next!r}, answer={self.answer!r}, max_cost={self._cap:g})"

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that the policy reads of the answer of ``next`` beside its confidence."""
        return self._turn.reads

    def observe(
        self,
        *,
        confidence: float,
        prediction: object = None,
        margin: float = nan,
        entropy: float = nan,
    ) -> None:
        """Give the answer of ``next`` and its confidence, and move on."""
        self._require_next()
        self._turn.observe(
            confidence=confidence, prediction=prediction, margin=margin, entropy=entropy
        )
        self._ended = self._turn.cost + self._turn.price > self._limit

    def fail(self) -> None:
        """Record that ``next`` gave no answer, and move on."""
        self._require_next()
        self._turn.fail()
        self._ended = self._turn.cost + self._turn.price > self._limit

    def _require_next(self) -> None:
        if self.next is None:
            raise ObservationError("the session has stopped: start a new one")

    def ahead(self) -> dict[str | None, float]:
        """Return the chance of each node to be asked right after ``next``, within the cap."""
        found: dict[str | None, float] = {}
        for name, chance in self._turn.ahead().items():
            spent = self._turn.cost + self._turn.price
            more = 0.0 if name is None else self._turn.price_after(name)
            kept = None if spent + more > self._limit else name
            found[kept] = found.get(kept, 0.0) + chance
        return found

    def prefers_next(self) -> bool:
        """Return whether the answer of ``next``, or an equal one, is the best whatever it is."""
        return self.next is not None and self._turn.prefers_next()

    def price_after(self, node: str) -> float:
        """Return what asking a node right after ``next`` costs, in the cascade's units."""
        return self._turn.price_after(node)

    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy's choice."""
        self._turn.start_with(node)

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first within the cap, and what each costs."""
        return {node: cost for node, cost in self._turn.starts.items() if cost <= self._limit}

    @property
    def capped(self) -> bool:
        """Whether the cap ended the session, or changed where it started."""
        return self._ended or self._redirected

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return None if self._ended else self._turn.next

    @property
    def answer(self) -> str | None:
        """The node whose answer to return: the best so far."""
        return self._turn.answer

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return self._turn.asked

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units."""
        return self._turn.cost

    @property
    def price(self) -> float:
        """What asking ``next`` costs, in the cascade's units; 0 once stopped."""
        return 0.0 if self._ended else self._turn.price

    @property
    def unclear(self) -> int:  # type: ignore[override]  # counted by the session inside
        """How many confidences were NaN, and counted as the lowest."""
        return self._turn.unclear

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        inner = self._turn.explain()
        if not self._ended:
            return inner
        why = (
            f"asking {inner.next!r} would cost {self._turn.price:g} on top of {self.cost:g}, above "
            f"the cap of {self._cap:g}: stop"
        )
        return dataclasses.replace(inner, next=None, why=why)
