"""The recommendation: one sentence, computed from a frontier and never assumed.

The families that can be served are compared by their cost at the accuracy of the reference. If none
is cheaper there, they are compared at the first of the frontier's margins of error at which the
saving is worth the errors. Our own family is named if it is the cheapest, or if the rows cannot
tell it from the cheapest; otherwise the other family is named. If nothing is worth it, the
recommendation is to use one model alone. A cheaper rule that cannot be served is a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ttamer._checks import percent, require_whole
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import (
    LOSS_PER_ERROR,
    SUMMARIES,
    Frontier,
    Point,
    Resampled,
    require_frontier,
)
from ttamer.evaluation.results import Interval
from ttamer.fitting.ladder import FittedLadder, shown_error
from ttamer.show import card
from ttamer.stats.envelope import error_at_cost, lower_envelope

Outcome = Literal["wins", "ties", "loses", "nothing"]

# A smaller saving, as a share of the reference's cost, is not recommended.
MIN_SAVING = 0.01
# Two settings are mixed only where that saves more than this share of the reference's cost.
MIN_GAIN_OF_MIXING = 0.02
# Savings further apart than this are not called level, even if the rows cannot tell them apart.
MAX_TIE = 0.05
# Errors are equal up to this difference.
SLACK = 1e-9


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
    >>> recommend(result, resamples=20).family
    'ttamer'
    """

    outcome: Outcome
    """How our family did; ``"nothing"``: no family that can be served is cheaper than the
    reference."""
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
    reference_unasked: float
    """The share of inputs answered without asking the reference."""

    def __repr__(self) -> str:
        return f"Recommendation({self.outcome!r}, {self.sentence!r})"

    def __str__(self) -> str:
        return " ".join([self.sentence, *self.notes])

    def _repr_html_(self) -> str:
        return card(self.sentence, notes=self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields by name; each setting is a dictionary with its share and its numbers.
        """
        settings = [{"share": part.share, **part.point.to_dict()} for part in self.settings]
        return {**vars(self), "settings": settings}


def recommend(frontier: Frontier, *, resamples: int = 400, seed: int = 0) -> Recommendation:
    """Return what to deploy.

    Args:
        frontier: What :func:`ttamer.evaluation.frontier` returned, with the family ``"ttamer"``.
        resamples: How many bootstrap resamples the intervals are taken from.
        seed: The seed of the resamples.

    Returns:
        The recommendation, with its numbers and their intervals.

    Raises:
        ArgumentError: If the frontier lacks ``"ttamer"``, or ``resamples`` is below 1.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> recommend(frontier(rows, families=["ttamer", "chain"], resamples=0)).against
    'lingua alone'
    """
    require_frontier(frontier, "recommend")
    require_whole(resamples, "resamples", least=1)
    require_whole(seed, "seed")
    if "ttamer" not in frontier.families:
        raise ArgumentError(
            "a recommendation is about the policies of ttamer, and the frontier has none: it has "
            f"{', '.join(frontier.families)}; add the family 'ttamer'"
        )
    more, savings = _margin(frontier)
    served = {name: saving for name, saving in savings.items() if frontier.can_serve(name)}
    rivals = {name: saving for name, saving in served.items() if name != "ttamer"}
    rival = max(rivals, key=rivals.__getitem__, default=None)
    draws = Resampled.of(
        frontier, ["ttamer", *([rival] if rival else [])], resamples=resamples, seed=seed
    )
    close = rival is not None and "ttamer" in served and draws.cannot_tell("ttamer", rival, more)
    outcome = _outcome(served.get("ttamer"), None if rival is None else rivals[rival], close=close)
    chosen = rival if outcome == "loses" and rival is not None else "ttamer"
    settings = settings_at(frontier, chosen, more)
    low, high, short = draws.saving(chosen, more)
    words = _Words(frontier, outcome, more, savings, rival, close, settings)
    return Recommendation(
        outcome=outcome,
        sentence=words.sentence(),
        notes=tuple(words.notes()),
        family=chosen,
        against=frontier.alone,
        more_error=more,
        settings=settings,
        saving=savings.get(chosen),
        saving_interval=(low, high),
        falls_short=short,
        error_at_price=error_at_cost(*frontier.curve(chosen), frontier.reference.cost),
        error_at_price_interval=draws.error_at_price(chosen),
        reference_unasked=sum(
            part.share * (1 - part.point.result.asked[frontier.reference.node]) for part in settings
        ),
    )


def _margin(frontier: Frontier) -> tuple[float, dict[str, float]]:
    """Return the margin of error at which families are compared, and what each saves there."""
    price = frontier.reference.cost
    at_equal_error: dict[str, float] = {}
    for more in frontier.margins.values():
        costs = {name: frontier.cost_at(name, more) for name in frontier.deciding}
        savings = {
            name: 1 - cost / price for name, cost in costs.items() if cost is not None and price > 0
        }
        if not more:
            at_equal_error = savings
        largest = max((s for name, s in savings.items() if frontier.can_serve(name)), default=0.0)
        # Errors are worth ten times as much cost, and 5% at least: 20% for two points. Of losses a
        # margin of 2% of the reference's is as much as a point.
        points = more
        if frontier.measure != "error" and frontier.reference.error:
            points = more / (LOSS_PER_ERROR * frontier.reference.error)
        if largest >= (max(0.05, 10.0 * points) if more else MIN_SAVING):
            return more, savings
    return 0.0, at_equal_error


def _outcome(mine: float | None, theirs: float | None, *, close: bool) -> Outcome:
    """Return how our family did against the best of the others."""
    if max((s for s in (mine, theirs) if s is not None), default=0.0) < MIN_SAVING:
        return "nothing"
    if theirs is None or (mine is not None and mine >= theirs):
        return "wins"
    if mine is None or mine < MIN_SAVING:
        return "loses"
    behind = theirs - mine
    return "ties" if behind < MIN_SAVING or (close and behind < MAX_TIE) else "loses"


def settings_at(frontier: Frontier, family: str, more_error: float) -> tuple[Share, ...]:
    """Return the settings of a family that err at most ``more_error`` more than the reference.

    One setting, if the cheapest that reaches this error alone costs little more than a mixture;
    otherwise two neighbours on the envelope. If none reaches it, the setting of least error.
    """
    points = frontier.of(family)
    limit = frontier.reference.error + more_error + SLACK
    within = [point for point in points if point.result.error <= limit]
    if not within:
        lowest = min(points, key=lambda point: (point.result.error, point.result.cost))
        return (Share(lowest, 1.0),)
    alone = min(within, key=lambda point: point.result.cost)
    cost = frontier.cost_at(family, more_error)
    if cost is None or alone.result.cost - cost <= MIN_GAIN_OF_MIXING * frontier.reference.cost:
        return (Share(alone, 1.0),)
    edge = [points[i] for i in lower_envelope(*frontier.curve(family))]
    right = next(i for i, point in enumerate(edge) if point.result.error <= limit)
    cheap, accurate = edge[right - 1], edge[right]
    gap = cheap.result.error - (limit - SLACK)
    share = gap / (cheap.result.error - accurate.result.error)
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


def budget_of(ladder: FittedLadder, *settings: Share) -> str:
    """Return the budget by which the ladder chooses these settings.

    It is their expected cost by the fit: ``for_budget`` compares with that one, and not with what
    they cost on the rows measured.
    """
    costs = {policy.tradeoff: policy.cost or 0.0 for policy in ladder}
    return f"{sum(part.share * costs[part.point.knob['tradeoff']] for part in settings):.6g}"


def quality(frontier: Frontier) -> str:
    """Return what families are compared at: "accuracy", or "mean loss"."""
    return "accuracy" if frontier.measure == "error" else "mean loss"


def difference(more_error: float, frontier: Frontier) -> str:
    """Return a difference of errors in points, or of mean losses as a number."""
    return points_in_words(more_error) if frontier.measure == "error" else f"{more_error:.3g}"


@dataclass(frozen=True)
class _Words:
    """The sentence and its notes."""

    frontier: Frontier
    outcome: Outcome
    more: float
    savings: Mapping[str, float]
    rival: str | None
    close: bool
    settings: tuple[Share, ...]

    def sentence(self) -> str:
        """Return the recommendation."""
        frontier, rival, alone = self.frontier, self.rival, self.frontier.alone
        if len(frontier.test_trace.names) == 1:
            return f"There is one node, {frontier.reference.node}: it answers every input."
        if frontier.reference.cost <= 0:
            return f"Asking {frontier.reference.node} costs nothing: there is nothing to save."
        near = f"Within {difference(self.more, frontier)} of" if self.more else "At"
        start = f"{near} the {quality(frontier)} of {alone}"
        if self.outcome == "nothing":
            return f"{start}, nothing that can be served costs less: use {alone}."
        level = ""
        if rival is not None and self.outcome == "loses":
            ours = (
                f"ttamer {less(self.savings['ttamer'])}"
                if "ttamer" in self.savings
                else (f"ttamer does not reach that {quality(frontier)}")
            )
            return f"{start}, {rival} costs {less(self.savings[rival])} and {ours}: use {rival}."
        if rival is not None and self.outcome == "ties":
            level = f", level with {rival} ({less(self.savings[rival])})"
        saved = less(self.savings["ttamer"])
        asked = {
            name
            for part in self.settings
            for name, share in part.point.result.asked.items()
            if share > 0
        }
        if len(asked) == 1:
            only = asked.pop()
            return f"{start}, {only} alone costs {saved}{level}: use {only} alone."
        kind = "policy" if len(self.settings) == 1 else "mixture of two policies"
        return f"{start}, ttamer costs {saved}{level}: use ttamer's {kind} at {self._price()}."

    def _price(self) -> str:
        """Return what the settings cost and how they err."""
        cost = sum(part.share * part.point.result.cost for part in self.settings)
        error = sum(part.share * part.point.result.error for part in self.settings)
        measure = self.frontier.measure
        error_in_words = shown_error(error, measure, digits=1)
        return f"{self.frontier.priced(cost)} per input ({measure} {error_in_words})"

    def notes(self) -> list[str]:
        """Return what the sentence leaves out."""
        frontier, outcome, rival = self.frontier, self.outcome, self.rival
        if len(frontier.test_trace.names) == 1 or frontier.reference.cost <= 0:
            return []
        lines = []
        if self.more:
            same = "full accuracy" if frontier.measure == "error" else "mean loss"
            lines.append(f"At its {same} nothing that can be served costs less.")
        if outcome != "nothing" and len(self.settings) == 2:
            family = self.settings[0].point.policy
            lines.append(f"A mixture draws one of two settings of {family} at random per input.")
        if outcome == "wins":
            lines += self._runner_up()
        if outcome == "loses":
            lines.append(f"The rule {rival} {SUMMARIES.get(rival or '', 'is another rule')}.")
        if outcome == "loses" and self.close:
            lines.append("These rows are too few to tell the two apart with confidence.")
        if "ttamer" not in self.savings:
            gap = min(frontier.curve("ttamer")[1]) - frontier.reference.error
            reached = difference(gap, frontier)
            lines.append(f"The best ttamer reaches is {reached} more {frontier.measure}.")
        return [*lines, *self._not_served()]

    def _runner_up(self) -> list[str]:
        """Return how the best of the other families does."""
        if self.rival is not None and self.savings[self.rival] >= MIN_SAVING:
            close = "; these rows cannot tell the two apart" if self.close else ""
            saved = less(self.savings[self.rival])
            return [f"The next rule that can be served is {self.rival}: {saved}{close}."]
        return [f"No other rule that can be served costs less than {self.frontier.alone}."]

    def _not_served(self) -> list[str]:
        """Return the best rule that is cheaper than the one recommended and cannot be served."""
        unserved = {n: s for n, s in self.savings.items() if not self.frontier.can_serve(n)}
        best = max(unserved, key=unserved.__getitem__, default=None)
        served = [s for name, s in self.savings.items() if name not in unserved]
        if best is None or unserved[best] < max([0.0, *served]) + MIN_SAVING:
            return []
        return [
            f"{best} would cost {less(unserved[best])}; ttamer measures it and does not serve it: "
            f"it {SUMMARIES.get(best, 'is another rule')}."
        ]
