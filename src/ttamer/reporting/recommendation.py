"""The recommendation: one sentence, computed from a frontier and never assumed.

The families that could be deployed are compared by their cost at the accuracy of the reference. If
none is cheaper there, they are compared at the first of the frontier's margins of error at which
the saving is worth the errors. Our own family is named if it is the cheapest, or if the rows cannot
tell it from the cheapest; otherwise the other family is named. If nothing is worth it, the
recommendation is to use one model alone. Where all costs are zero, families are compared by their
least error instead, and one is recommended if the rows show that it errs less than the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import number, percent, require_whole
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import (
    SUMMARIES,
    Frontier,
    Point,
    Resampled,
    require_frontier,
    uses_labels,
)
from ttamer.evaluation.results import Interval, interval
from ttamer.fitting.ladder import FittedLadder, shown_error
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace

Outcome = Literal["wins", "ties", "loses", "unreached", "nothing"]

# A smaller saving, as a share of the reference's cost, is not recommended.
MIN_SAVING = 0.01
# A saving that takes more errors than the reference makes must be at least this large.
MIN_SAVING_FOR_ERRORS = 0.05
# A saving must be at least this many times the additional error rate: 20% for two points.
SAVING_PER_ERROR = 10.0
# Two settings are mixed only where that saves more than this share of the reference's cost.
MIN_GAIN_OF_MIXING = 0.02
# Savings further apart than this are not called level, even if the rows cannot tell them apart.
MAX_TIE = 0.05
# Errors are equal up to this difference.
_SLACK = 1e-9


@dataclass(frozen=True)
class Share:
    """A setting, and the share of inputs that it decides."""

    point: Point
    share: float


@dataclass(frozen=True)
class Recommendation:
    """What to deploy, and the three numbers that matter.

    Returned by :func:`recommend`.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> result = frontier(rows, families=["ttamer", "chain"], resamples=0)
    >>> advice = recommend(result, resamples=20)
    >>> advice.family in result.families, advice.cheapest in rows.names
    (True, True)
    """

    outcome: Outcome
    """How our family did; ``"nothing"``: no family is cheaper than the reference, or none clearly
    errs less where all costs are zero."""
    sentence: str
    """The recommendation in words."""
    notes: tuple[str, ...]
    """What the sentence leaves out."""
    family: str
    """The family recommended; the numbers below are its own."""
    against: str
    """What families are compared with, in words: "the full network", or "large alone"."""
    more_error: float
    """The margin: how much larger the error may be than that of ``against``."""
    settings: tuple[Share, ...]
    """One setting, or two to be mixed at random, the larger share first."""
    saving: float | None
    """The share of the reference's cost saved: negative if the family costs more, None if it does
    not reach the accuracy, or if the reference costs nothing."""
    saving_interval: Interval
    """The 95% interval of the saving; its lower end is -inf if too many resamples fall short."""
    falls_short: float
    """The share of resamples in which it does not reach that accuracy."""
    error_at_price: float | None
    """Its error at the reference's cost."""
    error_at_price_interval: Interval
    """The 95% interval of that error."""
    cheapest: str
    """The cheapest node."""
    cheapest_answers: float
    """The share of inputs which the cheapest node answers."""
    reference_unasked: float
    """The share of inputs answered without asking the reference."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields by name; each setting is a dictionary with its share and its numbers.
        """
        settings = [{"share": each.share, **each.point.to_dict()} for each in self.settings]
        return {**vars(self), "settings": settings}


def recommend(
    frontier: Frontier,
    *,
    family: str = "ttamer",
    resamples: int = 400,
    seed: int = 0,
) -> Recommendation:
    """Return what to deploy.

    Args:
        frontier: What :func:`ttamer.evaluation.frontier` returned.
        family: Our own family; all others of the frontier are its rivals.
        resamples: How many bootstrap resamples the intervals are taken from.
        seed: The seed of the resamples.

    Returns:
        The recommendation, with its numbers and their intervals.

    Raises:
        ArgumentError: If the frontier has no such family, or ``resamples`` is below 1.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> recommend(frontier(rows, families=["ttamer", "chain"], resamples=0)).against
    'lingua alone'
    """
    require_frontier(frontier, "recommend")
    require_whole(resamples, "resamples", least=1)
    require_whole(seed, "seed")
    test_trace = frontier.test_trace
    if family not in frontier.families:
        raise ArgumentError(
            f"the frontier has no family {family!r}; it has {', '.join(frontier.families)}"
        )
    saved = {more: _savings(frontier, more) for more in frontier.margins.values()}
    worth = (
        more
        for more, found in saved.items()
        if max(found.values(), default=0.0) >= _least_saving(frontier.as_points(more))
    )
    more = next(worth, 0.0)
    savings = saved[more]
    free = _is_free(frontier)
    if free:
        rivals = {
            name: -_least_error(frontier, name).result.error
            for name in frontier.families
            if name != family and not uses_labels(name)
        }
    else:
        rivals = {name: share for name, share in savings.items() if name != family}
    rival = max(rivals, key=lambda name: rivals[name], default=None)
    names = [family] if rival is None else [family, rival]
    draws = Resampled.of(frontier, names, resamples=resamples, seed=seed)

    if free:
        outcome, chosen, close = _outcome_by_error(frontier, draws, family, rival)
        settings: tuple[Share, ...] = (Share(_least_error(frontier, chosen), 1.0),)
    else:
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
        reference_unasked=sum(
            s.share * (1 - s.point.result.asked[frontier.reference.node]) for s in settings
        ),
    )


def settings_at(frontier: Frontier, family: str, more_error: float) -> tuple[Share, ...]:
    """Return the settings of a family that err at most ``more_error`` more than the reference.

    One setting, if the cheapest that reaches this error alone costs little more than a mixture;
    otherwise two neighbours on the envelope. If none reaches it, the setting of least error.
    """
    points = frontier.of(family)
    limit = frontier.reference.error + more_error
    within = [point for point in points if point.result.error <= limit + _SLACK]
    if not within:
        least = min(points, key=lambda point: (point.result.error, point.result.cost))
        return (Share(least, 1.0),)
    alone = min(within, key=lambda point: point.result.cost)
    cost = frontier.cost_at(family, more_error)
    if cost is None or alone.result.cost - cost <= MIN_GAIN_OF_MIXING * frontier.reference.cost:
        return (Share(alone, 1.0),)
    edge = [points[i] for i in lower_envelope(*frontier.curve(family))]
    right = next(i for i, point in enumerate(edge) if point.result.error <= limit + _SLACK)
    cheap, accurate = edge[right - 1], edge[right]
    share = (cheap.result.error - limit) / (cheap.result.error - accurate.result.error)
    mixed = Share(accurate, share), Share(cheap, 1 - share)
    return mixed if share >= 0.5 else mixed[::-1]


def less(share: float) -> str:
    """Return a saving in words.

    >>> less(0.421), less(-0.03), less(0.001), less(0.9871)
    ('42% less', '3% more', 'the same', '98.7% less')
    """
    if abs(share) < 0.005:
        return "the same"
    size = f"{abs(share):.0%}" if abs(share) < 0.1 else percent(abs(share))
    return f"{size} {'less' if share > 0 else 'more'}"


def points_in_words(share: float) -> str:
    """Return a difference of error rates in percentage points.

    >>> points_in_words(0.005), points_in_words(0.01), points_in_words(0.0123)
    ('0.5 points', '1 point', '1.23 points')
    """
    size = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{size} {'point' if size == '1' else 'points'}"


def point_in_words(*points: Share) -> str:
    """Return a policy as people name it: by what it costs and how often it errs."""
    cost = sum(each.share * each.point.result.cost for each in points)
    error = sum(each.share * each.point.result.error for each in points)
    measure = points[0].point.result.measure
    return f"{number(cost)} per input ({measure} {shown_error(error, measure, digits=1)})"


def budget_of(ladder: FittedLadder, *points: Share) -> str:
    """Return the budget by which the ladder chooses these settings.

    It is their expected cost by the fit: ``for_budget`` compares with that one, and not with what
    they cost on the rows measured.
    """
    policies = {policy.tradeoff: policy for policy in ladder}
    budget = sum(
        each.share * (policies[each.point.knob["tradeoff"]].cost or 0.0) for each in points
    )
    return f"{budget:.6g}"


def quality(frontier: Frontier) -> str:
    """Return what families are compared at: "accuracy", or "mean loss"."""
    return "accuracy" if frontier.measure == "error" else "mean loss"


def difference(more_error: float, frontier: Frontier) -> str:
    """Return a difference of errors in points, or of mean losses as a number."""
    return points_in_words(more_error) if frontier.measure == "error" else f"{more_error:.3g}"


def _least_saving(more: float) -> float:
    """Return the saving that makes a margin of error worth it."""
    return max(MIN_SAVING_FOR_ERRORS, SAVING_PER_ERROR * more) if more else MIN_SAVING


def _outcome(
    family: str, mine: float | None, rival: str | None, theirs: float | None, *, close: bool
) -> tuple[Outcome, str]:
    """Return how our family did, and which one to recommend."""
    if max((s for s in (mine, theirs) if s is not None), default=0.0) < MIN_SAVING:
        return "nothing", family
    if rival is None or theirs is None or (mine is not None and mine >= theirs):
        return "wins", family
    if mine is None:
        return "unreached", rival
    behind = theirs - mine
    if mine >= MIN_SAVING and (behind < MIN_SAVING or (close and behind < MAX_TIE)):
        return "ties", family
    return "loses", rival


def _is_free(frontier: Frontier) -> bool:
    """Return whether nothing costs anything, so that errors are all there is to compare."""
    costs = [frontier.reference.cost, *(point.result.cost for point in frontier.points)]
    return max(costs) <= 0


def _least_error(frontier: Frontier, family: str) -> Point:
    """Return the setting of a family that errs least."""
    return min(frontier.of(family), key=lambda point: point.result.error)


def _outcome_by_error(
    frontier: Frontier, draws: Resampled, family: str, rival: str | None
) -> tuple[Outcome, str, bool]:
    """Return how our family did where all is free, which to recommend, and if the two are close.

    What the rows do not show with 95% confidence does not count.
    """

    def errors(name: str) -> NDArray[np.float64]:
        """Return, shape (B,), the error of a family's best setting in each resample."""
        place = frontier.of(name).index(_least_error(frontier, name))
        return draws.families[name][1][:, place]

    def clearly_less(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
        return bool(interval(one - other)[1] < 0)

    mine, alone = errors(family), draws.error
    theirs = mine if rival is None else errors(rival)
    close = rival is not None and not (clearly_less(mine, theirs) or clearly_less(theirs, mine))
    if rival is not None and clearly_less(theirs, mine) and clearly_less(theirs, alone):
        return "loses", rival, close
    if not clearly_less(mine, alone):
        return "nothing", family, close
    is_behind = rival is not None and (
        _least_error(frontier, rival).result.error < _least_error(frontier, family).result.error
    )
    return ("ties" if is_behind else "wins"), family, close


def _savings(frontier: Frontier, more: float) -> dict[str, float]:
    """Return the share of the reference's cost that each family saves, if it reaches the accuracy.

    A family that uses labels, as the oracle does, cannot be deployed and is left out.
    """
    price = frontier.reference.cost
    costs = {f: frontier.cost_at(f, more) for f in frontier.families if not uses_labels(f)}
    return {f: 1 - cost / price for f, cost in costs.items() if cost is not None and price > 0}


def _cheapest_node(trace: Trace) -> str:
    """Return the node whose answer costs least, with all that is asked or passed before it."""
    return trace.names[int(np.argmin(trace.spec.answer_costs(trace.costs.mean(axis=0))))]


@dataclass(frozen=True)
class _Words:
    """The sentence and its notes."""

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
        return self.frontier.alone

    @property
    def place(self) -> str:
        near = f"Within {difference(self.more, self.frontier)} of" if self.more else "At"
        return f"{near} the {quality(self.frontier)} of {self.alone}"

    def sentence(self, outcome: Outcome) -> str:
        """Return the recommendation."""
        node, family, rival = self.frontier.reference.node, self.family, self.rival
        if len(self.trace.names) == 1:
            return f"There is one node, {node}: it answers every input."
        if _is_free(self.frontier):
            return self._free_sentence(outcome)
        if self.frontier.reference.cost <= 0:
            return f"Asking {node} costs nothing: there is nothing to save."
        if outcome == "nothing":
            return f"{self.place}, nothing measured here costs less: use {self.alone}."
        mine = less(self.savings.get(family, 0.0))
        theirs = "" if rival is None else less(self.savings.get(rival, 0.0))
        if outcome == "unreached":
            return (
                f"{self.place}, {rival} costs {theirs}: use {rival}; "
                f"{family} does not reach that {quality(self.frontier)}."
            )
        if outcome == "loses":
            return f"{self.place}, {rival} costs {theirs} and {family} {mine}: use {rival}."
        level = f", level with {rival} ({theirs})" if outcome == "ties" else ""
        if (only := self.only_node) is not None:
            return f"{self.place}, {only} alone costs {mine}{level}: use {only} alone."
        kind = "policy" if len(self.settings) == 1 else "mixture of two policies"
        return (
            f"{self.place}, {family} costs {mine}{level}: use its {kind} at "
            f"{point_in_words(*self.settings)}."
        )

    def _free_sentence(self, outcome: Outcome) -> str:
        """Return the recommendation where all costs are zero."""
        family, rival, measure = self.family, self.rival, self.frontier.measure
        if outcome == "nothing":
            return (
                f"All costs are zero, and nothing measured here clearly has a lower {measure} than "
                f"{self.alone}: use {self.alone}."
            )
        alone = shown_error(self.frontier.reference.error, measure)
        mine = self._least(family)
        if outcome == "loses" and rival is not None:
            return (
                f"All costs are zero. The {measure} of {rival} is {self._least(rival)}, that of "
                f"{family} {mine} and that of {self.alone} {alone}: use {rival}."
            )
        level = ""
        if outcome == "ties" and rival is not None:
            level = f", level with {rival} ({self._least(rival)})"
        only = self.only_node
        use = f"its policy of least {measure}" if only is None else f"{only} alone"
        return (
            f"All costs are zero. The {measure} of {family} is {mine}{level}, and that of "
            f"{self.alone} {alone}: use {use}."
        )

    def _free_notes(self, outcome: Outcome) -> list[str]:
        """Return what the sentence leaves out where all costs are zero."""
        rival = self.rival
        if rival is not None and outcome == "loses" and rival in SUMMARIES:
            return [f"The rule {rival} {SUMMARIES[rival]}."]
        if rival is not None and outcome == "wins":
            close = "; these rows cannot tell the two apart" if self.close else ""
            return [f"Next comes {rival}: {self._least(rival)}{close}."]
        return []

    def _least(self, family: str) -> str:
        """Return the least error of a family in words."""
        return shown_error(_least_error(self.frontier, family).result.error, self.frontier.measure)

    @property
    def only_node(self) -> str | None:
        """The node that the settings ask on every input, if they ask no other."""
        asked = {
            name
            for each in self.settings
            for name, share in each.point.result.asked.items()
            if share > 0
        }
        return asked.pop() if len(asked) == 1 else None

    def notes(self, outcome: Outcome) -> list[str]:
        """Return what the sentence leaves out."""
        if len(self.trace.names) > 1 and _is_free(self.frontier):
            return self._free_notes(outcome)
        if len(self.trace.names) == 1 or self.frontier.reference.cost <= 0:
            return []
        lines = []
        if self.more and outcome != "nothing":
            lines.append(
                f"At its full accuracy nothing measured here costs less than {self.alone}."
                if self.frontier.measure == "error"
                else f"At its mean loss nothing measured here costs less than {self.alone}."
            )
        if outcome != "nothing":
            lines += self._mixing()
        if outcome == "wins" and self.rival is not None:
            lines += self._next(self.rival)
        if outcome in ("loses", "unreached") and self.rival in SUMMARIES:
            lines.append(f"The rule {self.rival} {SUMMARIES[self.rival]}.")
        if outcome == "loses" and self.close:
            lines.append("These rows are too few to tell the two apart with confidence.")
        if outcome in ("ties", "loses") and self.rival is not None:
            mine, theirs = self.frontier.area(self.family), self.frontier.area(self.rival)
            if round(mine, 3) < round(theirs, 3):
                ours, other = (
                    shown_error(area, self.frontier.measure, digits=1) for area in (mine, theirs)
                )
                verb = "errs" if self.frontier.measure == "error" else "loses"
                lines.append(
                    f"Over all costs {self.family} {verb} less: {ours} on average, "
                    f"{self.rival} {other}."
                )
        if outcome in ("unreached", "nothing") and self.family not in self.savings:
            least = min(point.result.error for point in self.frontier.of(self.family))
            short = least - self.frontier.reference.error
            more = difference(short, self.frontier)
            lines.append(f"The best {self.family} reaches is {more} more {self.frontier.measure}.")
        return lines

    def _next(self, rival: str) -> list[str]:
        """Return how the best of the other families does."""
        if self.savings[rival] >= MIN_SAVING:
            close = "; these rows cannot tell the two apart" if self.close else ""
            return [f"Next comes {rival}: {less(self.savings[rival])}{close}."]
        lines = [f"No other rule measured here costs less than {self.alone}."]
        if self.close:
            lines.append("These rows are too few to be certain of the saving.")
        return lines

    def _mixing(self) -> list[str]:
        """Return what mixing has to do with the saving, if anything."""
        point = self.settings[0].point
        if len(self.settings) == 2:
            return [f"A mixture draws one of two settings of {point.policy} at random per input."]
        alone = less(1 - point.result.cost / self.frontier.reference.cost)
        if alone == less(self.savings[point.policy]):
            return []
        return [f"By itself that setting costs {alone}; mixing in a cheaper one saves the rest."]
