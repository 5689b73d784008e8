"""The recommendation: one sentence, computed from a frontier and never assumed.

At the reference's accuracy (or, where nobody is cheaper there, at the first of the frontier's
margins where somebody is) the families that could be deployed are compared by what they cost. Our
own is named if it is cheapest, or so near that the rows cannot tell; else the other one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ttamer.baselines import FAMILIES
from ttamer.baselines.moves import Moves
from ttamer.errors import ArgumentError
from ttamer.evaluation.bootstrap import Resampled
from ttamer.evaluation.frontiers import MORE_ERROR
from ttamer.reporting.wording import less, points
from ttamer.stats.envelope import lower_envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ttamer.evaluation.frontiers import Frontier, Point
    from ttamer.evaluation.results import Interval
    from ttamer.trace.trace import Trace

__all__ = ["Recommendation", "Share", "peeks", "recommend", "reference_in_words", "settings_at"]

Outcome = Literal["wins", "ties", "loses", "unreached", "nothing"]

WORTH_SAYING = 0.01
"""A saving below one percent is none."""
WORTH_ERRING = 0.05
"""Nor is one below five percent, where it takes more errors to have it."""
ONE_IS_ENOUGH = 0.02
"""Two settings are mixed only where that saves more than this share of the reference's cost."""
NEAR = 0.05
"""Savings further apart than this are not called level, however few the rows."""
_SLACK = 1e-9


@dataclass(frozen=True)
class Share:
    """A setting, and the share of inputs to play it on."""

    point: Point
    share: float


@dataclass(frozen=True)
class Recommendation:
    """What to deploy, and the three numbers that matter."""

    outcome: Outcome
    """How our family did; ``"nothing"``: no family is cheaper than the reference."""
    sentence: str
    notes: tuple[str, ...]
    """Small print: what the sentence leaves out."""
    family: str
    """The family recommended; the numbers below are its own."""
    against: str
    """What families are compared with, in words: "the full network", or "large alone"."""
    more_error: float
    """How much more than that it may err."""
    settings: tuple[Share, ...]
    """One setting, or two to be mixed at random, the larger share first."""
    saving: float | None
    """The share of the reference's cost saved; negative if dearer, None if it does not reach."""
    saving_interval: Interval
    """95%; the lower end is -inf if too many resamples fall short."""
    falls_short: float
    """The share of resamples in which it does not reach that accuracy."""
    error_at_price: float | None
    """Its error at the reference's cost."""
    error_at_price_interval: Interval
    cheapest: str
    """The cheapest node."""
    cheapest_answers: float
    """The share of inputs which the cheapest node answers."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        settings = [{"share": each.share, **each.point.to_dict()} for each in self.settings]
        return {**vars(self), "settings": settings}


def recommend(
    frontier: Frontier,
    test_trace: Trace,
    *,
    family: str = "ttamer",
    resamples: int = 400,
    seed: int = 0,
) -> Recommendation:
    """Return what to deploy; ``family`` is our own, the others are its rivals."""
    if family not in frontier.families:
        raise ArgumentError(
            f"the frontier has no family {family!r}; it has {', '.join(frontier.families)}"
        )
    saved = {more: _savings(frontier, more) for more in MORE_ERROR}
    worth = {more: WORTH_ERRING if more else WORTH_SAYING for more in MORE_ERROR}
    more = next((m for m in MORE_ERROR if max(saved[m].values(), default=0.0) >= worth[m]), 0.0)
    savings = saved[more]
    rivals = {name: share for name, share in savings.items() if name != family}
    rival = max(rivals, key=lambda name: rivals[name], default=None)
    names = [family] if rival is None else [family, rival]
    draws = Resampled.of(frontier, test_trace, names, resamples=resamples, seed=seed)

    mine, theirs = savings.get(family), None if rival is None else rivals[rival]
    close = not (mine is None or rival is None) and draws.cannot_tell(family, rival, more)
    outcome, chosen = _outcome(family, mine, rival, theirs, close=close)
    settings = settings_at(frontier, chosen, more)
    cheapest = _cheapest_node(test_trace)
    low, high, short = draws.saving(chosen, more)
    words = _Words(frontier, test_trace, family, more, savings, rival, close, settings)
    return Recommendation(
        outcome=outcome,
        sentence=words.sentence(outcome),
        notes=tuple(words.notes(outcome)),
        family=chosen,
        against=words.alone,
        more_error=more,
        settings=settings,
        saving=savings.get(chosen),
        saving_interval=(low, high),
        falls_short=short,
        error_at_price=frontier.error_at(chosen, frontier.reference.cost),
        error_at_price_interval=draws.error_at_price(chosen),
        cheapest=cheapest,
        cheapest_answers=sum(s.share * s.point.result.answered[cheapest] for s in settings),
    )


def settings_at(frontier: Frontier, family: str, more_error: float = 0.0) -> tuple[Share, ...]:
    """Return the settings that reach a margin of the reference's error at the envelope's cost.

    One, where the cheapest setting that reaches it alone costs little more than the mixture; two
    neighbours on the envelope otherwise. Where none reaches it, the one of least error.
    """
    points = frontier.of(family)
    limit = frontier.reference.error + more_error
    within = [point for point in points if point.result.error <= limit + _SLACK]
    if not within:
        least = min(points, key=lambda point: (point.result.error, point.result.cost))
        return (Share(least, 1.0),)
    alone = min(within, key=lambda point: point.result.cost)
    cost = frontier.cost_at(family, more_error)
    if cost is None or alone.result.cost - cost <= ONE_IS_ENOUGH * frontier.reference.cost:
        return (Share(alone, 1.0),)
    edge = [points[i] for i in lower_envelope(*frontier.curve(family))]
    right = next(i for i, point in enumerate(edge) if point.result.error <= limit + _SLACK)
    cheap, dear = edge[right - 1], edge[right]
    share = (cheap.result.error - limit) / (cheap.result.error - dear.result.error)
    mixed = Share(dear, share), Share(cheap, 1 - share)
    return mixed if share >= 0.5 else mixed[::-1]


def reference_in_words(frontier: Frontier, trace: Trace) -> str:
    """Return what families are compared with: "the full network", or "large alone"."""
    return "the full network" if trace.spec.is_network else f"{frontier.reference.node} alone"


def peeks(family: str) -> bool:
    """Whether a family looks at what it could not know, as the oracle does.

    >>> peeks("oracle"), peeks("ttamer")
    (True, False)
    """
    return bool(getattr(FAMILIES.get(family), "peeks", False))


def _outcome(
    family: str, mine: float | None, rival: str | None, theirs: float | None, *, close: bool
) -> tuple[Outcome, str]:
    """How our family did, and which one to recommend."""
    if max((s for s in (mine, theirs) if s is not None), default=0.0) < WORTH_SAYING:
        return "nothing", family
    if rival is None or theirs is None or (mine is not None and mine >= theirs):
        return "wins", family
    if mine is None:
        return "unreached", rival
    behind = theirs - mine
    if mine >= WORTH_SAYING and (behind < WORTH_SAYING or (close and behind < NEAR)):
        return "ties", family
    return "loses", rival


def _savings(frontier: Frontier, more: float) -> dict[str, float]:
    """The share of the reference's cost that each family saves; of those that get there.

    A family that peeks, as the oracle does, cannot be deployed and does not count.
    """
    price = frontier.reference.cost
    costs = {f: frontier.cost_at(f, more) for f in frontier.families if not peeks(f)}
    return {f: 1 - cost / price for f, cost in costs.items() if cost is not None and price > 0}


def _cheapest_node(trace: Trace) -> str:
    """The node whose answer is cheapest to have, with all that is asked or passed before it."""
    return trace.names[int(np.argmin(Moves.of(trace).prices))]


@dataclass(frozen=True)
class _Words:
    """The sentence and its small print."""

    frontier: Frontier
    trace: Trace
    family: str
    more: float
    savings: dict[str, float]
    rival: str | None
    close: bool
    settings: tuple[Share, ...]

    @property
    def alone(self) -> str:
        return reference_in_words(self.frontier, self.trace)

    @property
    def place(self) -> str:
        near = f"Within {points(self.more)} of" if self.more else "At"
        return f"{near} the accuracy of {self.alone}"

    def sentence(self, outcome: Outcome) -> str:
        """Return the recommendation."""
        node, family, rival = self.frontier.reference.node, self.family, self.rival
        if len(self.trace.names) == 1:
            return f"There is one node, {node}: it answers everything."
        if self.frontier.reference.cost <= 0:
            return f"Asking {node} costs nothing: there is nothing to save."
        if outcome == "nothing":
            return f"{self.place}, nothing tried here costs less: ask {node} every time."
        mine = less(self.savings.get(family, 0.0))
        theirs = "" if rival is None else less(self.savings.get(rival, 0.0))
        if outcome == "unreached":
            return (
                f"{self.place}, {rival} costs {theirs}: use {rival}; "
                f"{family} does not reach that accuracy."
            )
        if outcome == "loses":
            return f"{self.place}, {rival} costs {theirs} and {family} {mine}: use {rival}."
        level = f", level with {rival} ({theirs})" if outcome == "ties" else ""
        return f"{self.place}, {family} costs {mine}{level}: use {self.knobs}."

    def notes(self, outcome: Outcome) -> list[str]:
        """Return what the sentence leaves out."""
        if len(self.trace.names) == 1 or self.frontier.reference.cost <= 0:
            return []
        said = []
        if self.more and outcome != "nothing":
            said.append(f"At its full accuracy nothing tried here costs less than {self.alone}.")
        if outcome != "nothing":
            said += self._mixing()
        if outcome == "wins" and self.rival is not None:
            close = "; these rows cannot tell the two apart" if self.close else ""
            said.append(f"Next comes {self.rival}: {less(self.savings[self.rival])}{close}.")
        if outcome == "loses" and self.close:
            said.append("These rows are too few to tell the two apart for certain.")
        if outcome in ("ties", "loses") and self.rival is not None:
            mine, theirs = self.frontier.area(self.family), self.frontier.area(self.rival)
            if round(mine, 3) < round(theirs, 3):
                said.append(f"Over all costs {self.family} errs less: {mine:.1%} on average, "
                            f"{self.rival} {theirs:.1%}.")  # fmt: skip
        if outcome in ("unreached", "nothing") and self.family not in self.savings:
            least = min(point.result.error for point in self.frontier.of(self.family))
            short = least - self.frontier.reference.error
            said.append(f"The best {self.family} reaches is {points(short)} more error.")
        return said

    def _mixing(self) -> list[str]:
        """What mixing has to do with the saving, if anything."""
        point = self.settings[0].point
        if len(self.settings) == 2:
            return [f"That is {point.policy} with two settings, drawn at random per input."]
        alone = less(1 - point.result.cost / self.frontier.reference.cost)
        if alone == less(self.savings[point.policy]):
            return []
        return [f"By itself that setting costs {alone}; mixing in a cheaper one gives the rest."]

    @property
    def knobs(self) -> str:
        first, *second = self.settings
        every = self.frontier.of(self.family)
        text = knob_text(first.point, every)
        if not second:
            return text
        other = knob_text(second[0].point, every)
        return f"{text} on {first.share:.0%} of inputs, {other} on the others"


def knob_text(point: Point, family: Sequence[Point]) -> str:
    """Return a knob in words; a tradeoff in as few digits as tell it from the family's others."""
    if set(point.knob) != {"tradeoff"}:
        return ", ".join(f"{name} {value}" for name, value in point.knob.items())
    wanted = float(point.knob["tradeoff"])
    every = [float(each.knob["tradeoff"]) for each in family]
    for digits in range(2, 17):
        text = f"{wanted:.{digits}g}"
        nearest = min(every, key=lambda each: abs(each - float(text)))
        # Within 1% of its distance to the nearer end: a ladder's rungs are in equal ratios there.
        if abs(float(text) - wanted) <= 0.01 * min(wanted, 1 - wanted) and nearest == wanted:
            return f"tradeoff {text}"
    return f"tradeoff {wanted!r}"
