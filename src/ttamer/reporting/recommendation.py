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
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import percent, priced, require_whole
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import (
    LOSS_PER_ERROR,
    SUMMARIES,
    Frontier,
    Point,
    require_frontier,
)
from ttamer.evaluation.results import (
    Interval,
    RowBootstrap,
    interval,
    known_losses,
    returned,
    units_of,
)
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture, shown_error
from ttamer.fitting.replay import paid
from ttamer.show import card
from ttamer.stats.envelope import cost_at_error, lower_envelope

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


@dataclass(frozen=True, eq=False)
class Recommendation:
    """What to deploy, and the numbers that matter.

    Returned by :func:`recommend`.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> rows = datasets.load("langid", "fit").take(slice(400))
    >>> result = frontier(rows, families=["ttamer", "chain"], resamples=0)
    >>> recommend(result, resamples=20).family
    'ttamer'
    """

    frontier: Frontier
    outcome: Outcome
    """How our family did; ``"nothing"``: no family that can be served is cheaper than the
    reference."""
    family: str
    """The family recommended; the numbers are its own."""
    more_error: float
    """The margin: how much larger the error may be than that of the reference."""
    settings: tuple[Share, ...]
    """One setting, or two to be mixed at random, the larger share first."""
    savings: Mapping[str, float]
    """What each family saves at that margin, as a share of the reference's cost; negative if it
    costs more. Families that do not reach the margin are not in it."""
    saving_interval: Interval
    """The 95% interval of the saving; its lower end is -inf if too many resamples fall short."""
    falls_short: float
    """The share of resamples in which it does not reach that accuracy."""
    rival: str | None
    """The best of the other families that can be served."""
    is_close: bool
    """Whether the rows cannot tell our family from the rival."""

    def __repr__(self) -> str:
        return f"Recommendation({self.outcome!r}, {self.sentence!r})"

    def __str__(self) -> str:
        return " ".join([self.sentence, *self.notes])

    def _repr_html_(self) -> str:
        return card(self.sentence, notes=self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            What it says by name; each setting is a dictionary with its share and its numbers.
        """
        names = ("outcome", "sentence", "notes", "family", "more_error", "saving", "budget")
        facts = {name: getattr(self, name) for name in (*names, "saving_interval", "falls_short")}
        settings = [{"share": part.share, **part.point.to_dict()} for part in self.settings]
        return {**facts, "against": self.frontier.alone, "settings": settings}

    @property
    def saving(self) -> float | None:
        """The share of the reference's cost saved; None if the family does not get there."""
        return self.savings.get(self.family)

    @property
    def cost(self) -> float:
        """What the settings cost per input."""
        return sum(part.share * part.point.result.cost for part in self.settings)

    @property
    def error(self) -> float:
        """The error of the settings, or their mean loss."""
        return sum(part.share * part.point.result.error for part in self.settings)

    @property
    def asked(self) -> dict[str, float]:
        """The share of inputs on which each node is asked."""
        asks = [(part.share, part.point.result.asked) for part in self.settings]
        names = self.frontier.test_trace.names
        return {name: sum(share * asked[name] for share, asked in asks) for name in names}

    @property
    def budget(self) -> str | None:
        """The budget by which the ladder chooses these settings; of other families None."""
        ladder = self.frontier.ladder
        if self.family != "ttamer" or self.outcome == "nothing" or ladder is None:
            return None
        return budget_of(ladder, *self.settings)

    @property
    def policy(self) -> FittedPolicy | Mixture:
        """What is recommended, to be saved and served."""
        ladder = self.frontier.ladder
        if self.outcome == "nothing" and ladder is not None:
            return ladder.alone(self.frontier.reference.node)
        if self.budget is not None and ladder is not None:
            return ladder.for_budget(float(self.budget))
        # Of two settings of a rule without budgets the more accurate one keeps the promise.
        point = min((part.point for part in self.settings), key=lambda point: point.result.error)
        assert isinstance(point.rule, FittedPolicy)  # noqa: S101 - what is recommended can be served
        return point.rule

    @property
    def compared_at(self) -> str:
        """Where families are compared: "at the accuracy of large alone"."""
        near = f"within {self._points(self.more_error)} of" if self.more_error else "at"
        return f"{near} the {self.quality} of {self.frontier.alone}"

    @property
    def quality(self) -> str:
        """What families are compared at: "accuracy", or "mean loss"."""
        return "accuracy" if self.frontier.measure == "error" else "mean loss"

    def _points(self, error: float) -> str:
        """Return a difference of errors in points, or of mean losses as a number."""
        if self.frontier.measure != "error":
            return f"{error:.3g}"
        size = f"{100 * error:.2f}".rstrip("0").rstrip(".")
        return f"{size} {'point' if size == '1' else 'points'}"

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to choose, or nothing to save."""
        return len(self.frontier.test_trace.names) == 1 or self.frontier.reference.cost <= 0

    @cached_property
    def sentence(self) -> str:
        """The recommendation in words."""
        frontier, savings, rival = self.frontier, self.savings, self.rival
        node, alone = frontier.reference.node, frontier.alone
        if self._is_idle:
            one = f"There is one node, {node}: it answers every input."
            free = f"Asking {node} costs nothing: there is nothing to save."
            return one if len(frontier.test_trace.names) == 1 else free
        start = self.compared_at[0].upper() + self.compared_at[1:]
        if self.outcome == "nothing":
            return f"{start}, nothing that can be served costs less: use {alone}."
        ours = f"ttamer does not reach that {self.quality}"
        if "ttamer" in savings:
            ours = f"ttamer {less(savings['ttamer'])}"
        if rival is not None and self.outcome == "loses":
            return f"{start}, {rival} costs {less(savings[rival])} and {ours}: use {rival}."
        level = ""
        if rival is not None and self.outcome == "ties":
            level = f", level with {rival} ({less(savings[rival])})"
        saved = less(savings["ttamer"])
        # A "policy" that asks one model is that model: it needs no policy file.
        asked = [name for name, share in self.asked.items() if share > 0]
        if len(asked) == 1:
            return f"{start}, {asked[0]} alone costs {saved}{level}: use {asked[0]} alone."
        kind = "policy" if len(self.settings) == 1 else "mixture of two policies"
        error = shown_error(self.error, frontier.measure, digits=1)
        price = f"{priced(self.cost, frontier.unit)} per input ({frontier.measure} {error})"
        return f"{start}, ttamer costs {saved}{level}: use ttamer's {kind} at {price}."

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the sentence leaves out."""
        if self._is_idle:
            return ()
        frontier, outcome, rival, lines = self.frontier, self.outcome, self.rival, []
        if self.more_error:
            same = "full accuracy" if frontier.measure == "error" else "mean loss"
            lines.append(f"At its {same} nothing that can be served costs less.")
        if outcome != "nothing" and len(self.settings) == 2:
            lines.append(
                f"A mixture draws one of two settings of {self.family} at random per input."
            )
        if outcome == "wins" and rival is not None and self.savings[rival] >= MIN_SAVING:
            close = "; these rows cannot tell the two apart" if self.is_close else ""
            saved = less(self.savings[rival])
            lines.append(f"The next rule that can be served is {rival}: {saved}{close}.")
        elif outcome == "wins":
            lines.append(f"No other rule that can be served costs less than {frontier.alone}.")
        if outcome == "loses":
            lines.append(f"The rule {rival} {SUMMARIES.get(rival or '', 'is another rule')}.")
        if outcome == "loses" and self.is_close:
            lines.append("These rows are too few to tell the two apart with confidence.")
        if "ttamer" not in self.savings:
            reached = self._points(min(frontier.curve("ttamer")[1]) - frontier.reference.error)
            lines.append(f"The best ttamer reaches is {reached} more {frontier.measure}.")
        unserved = {n: s for n, s in self.savings.items() if n not in frontier.servable}
        best = max(unserved, key=unserved.__getitem__, default=None)
        served = [s for name, s in self.savings.items() if name not in unserved]
        if best is not None and unserved[best] >= max([0.0, *served]) + MIN_SAVING:
            lines.append(
                f"{best} would cost {less(unserved[best])}; ttamer measures it and does not serve "
                f"it: it {SUMMARIES.get(best, 'is another rule')}."
            )
        return tuple(lines)


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
    >>> recommend(frontier(rows, families=["ttamer", "chain"], resamples=0)).budget is None
    False
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
    # What cannot be served cannot be recommended, however cheap.
    rivals = {n: s for n, s in savings.items() if n != "ttamer" and n in frontier.servable}
    rival = max(rivals, key=rivals.__getitem__, default=None)
    drawn = resampled_savings(
        frontier, ["ttamer", *([rival] if rival else [])], more, resamples=resamples, seed=seed
    )
    is_close = False
    if rival is not None and "ttamer" in savings:
        with np.errstate(invalid="ignore"):  # both fall short: no difference
            gap = np.nan_to_num(drawn["ttamer"] - drawn[rival], posinf=np.inf, neginf=-np.inf)
        low, high = interval(gap, method="inverted_cdf")
        is_close = low <= 0 <= high
    ours, theirs = savings.get("ttamer"), None if rival is None else rivals[rival]
    outcome = _outcome(ours, theirs, is_close=is_close)
    family = rival if outcome == "loses" and rival is not None else "ttamer"
    return Recommendation(
        frontier=frontier,
        outcome=outcome,
        family=family,
        more_error=more,
        settings=settings_at(frontier, family, more),
        savings=savings,
        saving_interval=interval(drawn[family], method="inverted_cdf"),
        falls_short=float(np.isneginf(drawn[family]).mean()),
        rival=rival,
        is_close=is_close,
    )


def _margin(frontier: Frontier) -> tuple[float, dict[str, float]]:
    """Return the margin of error at which families are compared, and what each saves there."""
    price = frontier.reference.cost
    # If no margin is worth its errors, families are compared at equal error.
    at_equal_error: dict[str, float] = {}
    for more in frontier.margins.values():
        costs = {name: frontier.cost_at(name, more) for name in frontier.ranked}
        savings = {
            name: 1 - cost / price for name, cost in costs.items() if cost is not None and price > 0
        }
        if not more:
            at_equal_error = savings
        largest = max((s for name, s in savings.items() if name in frontier.servable), default=0.0)
        # Errors are worth ten times as much cost, and 5% at least: 20% for two points. Of losses a
        # margin of 2% of the reference's is as much as a point.
        points = more
        if frontier.measure != "error" and frontier.reference.error:
            points = more / (LOSS_PER_ERROR * frontier.reference.error)
        if largest >= (max(0.05, 10.0 * points) if more else MIN_SAVING):
            return more, savings
    return 0.0, at_equal_error


def resampled_savings(
    frontier: Frontier, families: list[str], more_error: float, *, resamples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Return, by family, the saving in each resample of the test rows; -inf where it falls short.

    What is read off an envelope depends on all points of a family and on the reference at once, so
    the envelope is computed for each resample.
    """
    trace = frontier.test_trace
    rows = RowBootstrap.of(units_of(trace), resamples=resamples, seed=seed)
    losses, node = known_losses(trace), trace.names.index(frontier.reference.node)
    # The reference is drawn with the families: its luck on the rows is theirs.
    limits = rows.means(losses[:, node]) + more_error
    prices = rows.means(paid(np.tile(trace.spec.required[node], (len(trace), 1)), trace))
    drawn = {}
    for family in families:
        plays = frontier.played[family]
        costs = rows.column_means(paid(played.asked, trace) for played in plays)
        errors = rows.column_means(returned(losses, played.answer, trace) for played in plays)
        least = [cost_at_error(*curve) for curve in zip(costs, errors, limits, strict=True)]
        drawn[family] = np.array(
            [
                -np.inf if cost is None or price <= 0 else 1 - cost / price
                for cost, price in zip(least, prices, strict=True)
            ]
        )
    return drawn


def _outcome(ours: float | None, theirs: float | None, *, is_close: bool) -> Outcome:
    """Return how our family did against the best of the others."""
    if max((s for s in (ours, theirs) if s is not None), default=0.0) < MIN_SAVING:
        return "nothing"
    if theirs is None or (ours is not None and ours >= theirs):
        return "wins"
    if ours is None or ours < MIN_SAVING:
        return "loses"
    behind = theirs - ours
    return "ties" if behind < MIN_SAVING or (is_close and behind < MAX_TIE) else "loses"


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


def budget_of(ladder: FittedLadder, *settings: Share) -> str:
    """Return the budget by which the ladder chooses these settings.

    It is their expected cost by the fit: ``for_budget`` compares with that one, and not with what
    they cost on the rows measured.
    """
    costs = {policy.tradeoff: policy.cost or 0.0 for policy in ladder}
    return f"{sum(part.share * costs[part.point.knob['tradeoff']] for part in settings):.6g}"
