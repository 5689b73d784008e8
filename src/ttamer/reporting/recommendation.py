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
from ttamer.evaluation.frontiers import LOSS_PER_ERROR, Frontier, require_frontier
from ttamer.evaluation.results import (
    Interval,
    RowBootstrap,
    interval,
    known_losses,
    returned,
    units_of,
)
from ttamer.fitting.ladder import FittedPolicy, Mixture, shown_error
from ttamer.fitting.points import Mix, cheapest
from ttamer.fitting.replay import paid
from ttamer.show import card
from ttamer.stats.envelope import cost_at_error
from ttamer.trace.trace import Measure

Outcome = Literal["wins", "ties", "loses", "nothing"]

# A smaller saving, as a share of the reference's cost, is not recommended.
MIN_SAVING = 0.01
# Savings further apart than this are not called level, even if the rows cannot tell them apart.
MAX_TIE = 0.05


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
    savings: Mapping[str, float]
    """What each family saves at that margin, as a share of the reference's cost; negative if it
    costs more. Families that do not reach the margin are not in it."""
    saving_interval: Interval
    """The 95% interval of the saving; its lower end is -inf if too many resamples fall short."""
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
            What it says by name, with the knobs of the two settings of its mix.
        """
        names = "outcome sentence notes family more_error saving saving_interval cost error budget"
        points = self.frontier.of(self.family)
        facts = {name: getattr(self, name) for name in names.split()}
        knobs = {end: points[getattr(self.mix, end)].knob for end in ("cheap", "expensive")}
        return {**facts, "against": self.frontier.alone, **knobs, "share": self.mix.share}

    @cached_property
    def mix(self) -> Mix:
        """The settings of the family, by number, that reach the error at the least cost.

        Of a family that does not reach it, the setting of least error.
        """
        costs, errors = map(np.array, self.frontier.curve(self.family))
        limit = self.frontier.reference.error + self.more_error
        errors[np.abs(errors - limit) < 1e-9] = limit  # means over many rows are not exact
        return cheapest(costs, errors, limit) or Mix.of(int(errors.argmin()))

    def _mean(self, values: list[float]) -> float:
        return self.mix.mean(np.array(values))

    @property
    def saving(self) -> float | None:
        """The share of the reference's cost saved; None if the family does not get there."""
        return self.savings.get(self.family)

    @property
    def cost(self) -> float:
        """What the mix costs per input."""
        return self._mean(self.frontier.curve(self.family)[0])

    @property
    def error(self) -> float:
        """The error of the mix, or its mean loss."""
        return self._mean(self.frontier.curve(self.family)[1])

    @property
    def asked(self) -> dict[str, float]:
        """The share of inputs on which each node is asked."""
        points = self.frontier.of(self.family)
        names = self.frontier.test_trace.names
        return {name: self._mean([point.result.asked[name] for point in points]) for name in names}

    @property
    def budget(self) -> str | None:
        """The budget by which the ladder chooses this mix; of other families None."""
        ladder = self.frontier.ladder
        if self.family != "ttamer" or self.outcome == "nothing" or ladder is None:
            return None
        return f"{self.mix.mean(ladder.points.costs):.6g}"

    @property
    def policy(self) -> FittedPolicy | Mixture:
        """What is recommended, to be saved and served."""
        ladder = self.frontier.ladder
        if ladder is not None and self.outcome == "nothing":
            return ladder.alone(self.frontier.reference.node)
        if ladder is not None and self.family == "ttamer":
            return ladder.mixed(self.mix)
        # Of two settings of another rule the more accurate one keeps the promise.
        rule = self.frontier.of(self.family)[self.mix.expensive].rule
        assert isinstance(rule, FittedPolicy)  # noqa: S101 - what is recommended can be served
        return rule

    @property
    def compared_at(self) -> str:
        """Where families are compared: "at the accuracy of large alone"."""
        measure = self.frontier.measure
        near = f"within {points(self.more_error, measure)} of" if self.more_error else "at"
        quality = "accuracy" if measure == "error" else measure
        return f"{near} the {quality} of {self.frontier.alone}"

    @cached_property
    def sentence(self) -> str:
        """The recommendation in words."""
        frontier, savings, rival = self.frontier, self.savings, self.rival
        node, alone = frontier.reference.node, frontier.alone
        if len(frontier.test_trace.names) == 1:
            return f"There is one node, {node}: it answers every input."
        if frontier.reference.cost <= 0:
            return f"Asking {node} costs nothing: there is nothing to save."
        start = self.compared_at[0].upper() + self.compared_at[1:]
        if self.outcome == "nothing":
            return f"{start}, nothing that can be served costs less: use {alone}."
        ours = less(savings["ttamer"]) if "ttamer" in savings else "does not reach that"
        if rival is not None and self.outcome == "loses":
            return f"{start}, {rival} costs {less(savings[rival])} and ttamer {ours}: use {rival}."
        level = ""
        if rival is not None and self.outcome == "ties":
            level = f", level with {rival} ({less(savings[rival])})"
        # A "policy" that asks one model is that model: it needs no policy file.
        asked = [name for name, share in self.asked.items() if share > 0]
        if len(asked) == 1:
            return f"{start}, {asked[0]} alone costs {ours}{level}: use {asked[0]} alone."
        kind = "policy" if self.mix.cheap == self.mix.expensive else "mixture of two policies"
        error = shown_error(self.error, frontier.measure, digits=1)
        price = f"{priced(self.cost, frontier.test_trace.spec.unit)} per input"
        return (
            f"{start}, ttamer costs {ours}{level}: use ttamer's {kind} at {price} "
            f"({frontier.measure} {error})."
        )

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the sentence leaves out."""
        frontier, outcome, rival = self.frontier, self.outcome, self.rival
        if len(frontier.test_trace.names) == 1 or frontier.reference.cost <= 0:
            return ()
        lines = []
        if outcome != "nothing" and np.isfinite(self.saving_interval[1]):
            low, high = (percent(end) if np.isfinite(end) else "" for end in self.saving_interval)
            ends = f"{low} to {high}" if low else f"up to {high}, and some resamples fall short"
            lines.append(f"The 95% interval of the saving: {ends}.")
        if self.more_error:
            same = "full accuracy" if frontier.measure == "error" else "mean loss"
            lines.append(f"At its {same} nothing that can be served costs less.")
        if outcome == "wins" and rival is not None and self.savings[rival] >= MIN_SAVING:
            close = "; these rows cannot tell the two apart" if self.is_close else ""
            saved = less(self.savings[rival])
            lines.append(f"The next rule that can be served is {rival}: {saved}{close}.")
        if outcome == "loses" and self.is_close:
            lines.append("These rows are too few to tell the two apart with confidence.")
        cheapest_rule = max(self.savings, key=self.savings.__getitem__, default="")
        if cheapest_rule and cheapest_rule not in frontier.servable:
            largest = self.savings[cheapest_rule]
            served = [s for name, s in self.savings.items() if name in frontier.servable]
            if largest >= max([0.0, *served]) + MIN_SAVING:
                lines.append(
                    f"{cheapest_rule} would cost {less(largest)}; ttamer measures it and does not "
                    "serve it."
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
    names = ["ttamer", *([rival] if rival else [])]
    drawn = resampled_savings(frontier, names, more, resamples=resamples, seed=seed)
    is_close = False
    if rival is not None and "ttamer" in savings:
        with np.errstate(invalid="ignore"):  # both fall short: no difference
            gap = np.nan_to_num(drawn["ttamer"] - drawn[rival], posinf=np.inf, neginf=-np.inf)
        low, high = interval(gap, method="inverted_cdf")
        is_close = low <= 0 <= high
    # A family that does not reach the error saves nothing there.
    ours, theirs = (savings.get(name or "", -np.inf) for name in ("ttamer", rival))
    outcome: Outcome = "loses"
    if max(ours, theirs) < MIN_SAVING:
        outcome = "nothing"
    elif ours >= theirs:
        outcome = "wins"
    elif ours >= MIN_SAVING and theirs - ours < (MAX_TIE if is_close else MIN_SAVING):
        outcome = "ties"
    family = rival if outcome == "loses" and rival is not None else "ttamer"
    ends = interval(drawn[family], method="inverted_cdf")
    return Recommendation(frontier, outcome, family, more, savings, ends, rival, is_close)


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
        worth = more
        if frontier.measure != "error" and frontier.reference.error:
            worth = more / (LOSS_PER_ERROR * frontier.reference.error)
        if largest >= (max(0.05, 10.0 * worth) if more else MIN_SAVING):
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
        plays = [point.played for point in frontier.of(family)]
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


def points(error: float, measure: Measure) -> str:
    """Return a difference of errors in points, or of mean losses as a number.

    >>> points(0.01, "error"), points(0.005, "error"), points(0.25, "mean loss")
    ('1 point', '0.5 points', '0.25')
    """
    if measure != "error":
        return f"{error:.3g}"
    size = f"{100 * error:.2f}".rstrip("0").rstrip(".")
    return f"{size} {'point' if size == '1' else 'points'}"


def less(share: float) -> str:
    """Return a saving in words.

    >>> less(0.421), less(-0.03), less(0.001), less(0.9871)
    ('42% less', '3% more', 'the same', '98.7% less')
    """
    if abs(share) < 0.005:
        return "the same"
    size = f"{abs(share):.0%}" if abs(share) < 0.1 else percent(abs(share))
    return f"{size} {'less' if share > 0 else 'more'}"
