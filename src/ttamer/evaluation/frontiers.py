"""Frontiers: the costs and errors of each family on rows it was not fitted to.

Every setting is chosen on the fit rows; every number is measured on the test rows. Two settings can
always be mixed at random, so families are compared by the lower convex envelope of their points.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ttamer._checks import counted, in_unit, number, percent, priced, require_kind
from ttamer.baselines import FAMILIES, fit_families, known_names
from ttamer.baselines.rules import FitFamily, Unsuitable
from ttamer.errors import ArgumentError, TraceWarning
from ttamer.evaluation.results import Result, check_resampling, frame_of, known_losses, measure
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, shown_error
from ttamer.fitting.replay import Family, Played, Rule, Setting, full_cost
from ttamer.show import ProgressOption, card, shown, table
from ttamer.show.curves import draw_curves
from ttamer.stats.envelope import area_under, cost_at_error, lower_envelope
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

# Mean losses are compared at increases that are this many times as large, relative to the
# reference's loss: from 1% to 10% of it.
LOSS_PER_ERROR = 2.0


# Our own fits as families; ``paper`` is the paper as written.
OURS: dict[str, Family] = {
    "ttamer": FitFamily("ttamer"),
    "paper": FitFamily("paper", belief="markov"),
}


def family_names(names: Iterable[str]) -> list[str]:
    """Return the names of families to fit as a list, each once; refuse others before any fit."""
    return known_names(names, {**OURS, **FAMILIES})


@dataclass(frozen=True, eq=False)
class Point:
    """One setting of one family, measured on the test rows."""

    policy: str
    """The family's name."""
    knob: dict[str, Any]
    result: Result
    rule: Rule
    """What decided."""
    played: Played
    """Its replay on the test rows."""

    def to_dict(self) -> dict[str, Any]:
        """Return the family, the knob, and error and cost with their intervals.

        Returns:
            Plain values by name.
        """
        names = ("cost", "relative_cost", "error", "cost_interval", "error_interval")
        numbers = {name: getattr(self.result, name) for name in names}
        return {"policy": self.policy, "knob": self.knob, **numbers}


@dataclass(frozen=True)
class Reference:
    """What families are compared with: the full network, or the best single model."""

    node: str
    error: float
    cost: float


@dataclass(frozen=True, eq=False)
class Frontier:
    """All points, and what they are compared with.

    >>> from ttamer import datasets
    >>> from ttamer.evaluation import frontier
    >>> fit, test = datasets.load("langid", "fit"), datasets.load("langid", "test")
    >>> result = frontier(fit, test, families=["threshold", "always-best"], resamples=0)
    >>> result.cost_at("threshold", more_error=0.05) < result.reference.cost
    True
    >>> result
    Frontier(2 families, 14694 rows; lingua alone: cost 630.9, error 10.42%)
    """

    points: tuple[Point, ...]
    reference: Reference
    fit_rows: int
    left_out: dict[str, str]
    """Families that do not suit the trace, with the reason."""
    test_trace: Trace
    """The rows measured on."""
    ladder: FittedLadder | None = None
    """The default fit, where it is among the families."""
    same_rows: bool = False
    """Whether it was fitted and measured on the same rows: errors are then too low."""

    def __repr__(self) -> str:
        alone, measure = self.reference, self.measure
        return (
            f"Frontier({counted(len(self.families), 'family')}, "
            f"{counted(len(self.test_trace), 'row')}; {alone.node} alone: "
            f"cost {number(alone.cost)}, {measure} {shown_error(alone.error, measure)})"
        )

    @property
    def families(self) -> list[str]:
        """Names, in the order fitted."""
        return list(dict.fromkeys(point.policy for point in self.points))

    @cached_property
    def ranked(self) -> list[str]:
        """The families that decide without the labels, by :meth:`area`: rivals, not bounds."""
        rivals = [name for name in self.families if not hasattr(FAMILIES.get(name), "uses_labels")]
        return sorted(rivals, key=self.area)

    @property
    def servable(self) -> list[str]:
        """The families that can be saved and served: their rules decide in sessions too."""
        unserved = {p.policy for p in self.points if not hasattr(p.rule, "session")}
        return [name for name in self.families if name not in unserved]

    @property
    def alone(self) -> str:
        """What families are compared with: "the full network", or "large alone"."""
        if self.test_trace.spec.kind == "exits":
            return "the full network"
        return f"{self.reference.node} alone"

    @property
    def measure(self) -> Measure:
        """What an error is: the share of wrong answers, or the mean loss."""
        return self.test_trace.measure

    @property
    def margins(self) -> dict[str, float]:
        """The increases over the reference's error at which costs are compared, by name.

        They are points of error, or shares of the reference's mean loss.
        """
        points = (0.0, 0.005, 0.01, 0.02, 0.05)
        if self.measure == "error":
            return {f"+{100 * more:g}": more for more in points}
        shares = [LOSS_PER_ERROR * more for more in points]
        return {f"+{100 * share:g}%": share * self.reference.error for share in shares}

    def of(self, family: str) -> list[Point]:
        """Return the points of one family in the order measured.

        Args:
            family: The family's name.

        Returns:
            Its points; none if the frontier lacks the family.
        """
        return [point for point in self.points if point.policy == family]

    def curve(self, family: str) -> tuple[list[float], list[float]]:
        """Return the costs and errors of a family's points, in the order of :meth:`of`.

        Args:
            family: The family's name.

        Returns:
            Mean costs per row, and errors.
        """
        points = self.of(family)
        return [p.result.cost for p in points], [p.result.error for p in points]

    def cost_at(self, family: str, more_error: float = 0.0) -> float | None:
        """Return a family's least cost at an error ``more_error`` above the reference's.

        Args:
            family: The family's name.
            more_error: How far the error may exceed the reference's; 0.01 is one point.

        Returns:
            Mean cost per row, or None if the family does not reach the error.

        Raises:
            ArgumentError: If the frontier has no points of the family.
        """
        return cost_at_error(*self.curve(family), self.reference.error + more_error)

    def area(self, family: str) -> float:
        """Return the mean error over all costs from the cheapest answer's to the full model's.

        Args:
            family: The family's name; it may mix in the cheapest single answer.

        Returns:
            The mean error, from 0 to 1.
        """
        trace = self.test_trace
        prices = trace.spec.answer_costs(trace.costs.mean(axis=0))
        roots = [v for v, parents in enumerate(trace.spec.parents) if not parents]
        node = 0 if trace.spec.asks_each else min(roots, key=lambda v: float(prices[v]))
        # The cheapest single answer, which anyone may mix in without any rule.
        low, error = float(prices[node]), float(known_losses(trace)[:, node].mean())
        # Where all nodes cost the same the range must not be empty.
        high = max(full_cost(trace), low * (1 + 1e-9) + 1e-300)
        costs, errors = self.curve(family)
        return area_under([*costs, low], [*errors, error], low, high) / (high - low)

    @property
    def sentences(self) -> list[str]:
        """What was measured, what it is compared with, and what the table has, in words."""
        best, noun = self.reference, self.measure
        fit_rows = counted(self.fit_rows, "row", ",")
        rows = f"Fitted on {fit_rows}, measured on {counted(len(self.test_trace), 'other', ',')}."
        if self.same_rows:
            rows = f"Fitted and measured on the same {fit_rows}: errors are too low. Split them."
        wider = "0.5 to 5 points more" if noun == "error" else "1% to 10% more"
        mean = "mean error" if noun == "error" else noun
        return [
            rows,
            f"Compared with {self.alone}: {noun} {shown_error(best.error, noun)}, "
            f"cost {priced(best.cost, self.test_trace.spec.unit)} per input.",
            f"Cost as a share of what {self.alone} costs, at its {noun} and at {wider}\n"
            f"('-': not reached); {mean} over all costs:",
        ]

    def cells(self, families: Iterable[str]) -> list[list[str]]:
        """Return the table of costs, as shares of the reference's.

        Args:
            families: The families, in the order of the rows.

        Returns:
            The head, and a row for each family.
        """
        best, noun = self.reference, self.measure
        margins = [name if more else f"its {noun}" for name, more in self.margins.items()]
        rows = [["family", *margins, "mean error" if noun == "error" else noun]]
        for family in families:
            costs = [self.cost_at(family, more) for more in self.margins.values()]
            shares = [
                "-" if cost is None else f"{cost / best.cost:.1%}" if best.cost else "0"
                for cost in costs
            ]
            rows.append([family, *shares, shown_error(self.area(family), noun)])
        return rows

    def __str__(self) -> str:
        *facts, caption = self.sentences
        head, *rows = self.cells(self.families)
        lines = [*facts, "", caption, "", table(head, rows)]
        if self.left_out:
            lines += ["", *(f"  left out: {name}: {why}" for name, why in self.left_out.items())]
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each setting of each family.

        Returns:
            The numbers of :meth:`Point.to_dict`, intervals as ``error_interval.low`` and so on.

        Raises:
            MissingExtra: If pandas is not installed.
        """
        # Families have different knobs: as text they are one column.
        return frame_of({**point.to_dict(), "knob": str(point.knob)} for point in self.points)

    def _repr_html_(self) -> str:
        head, *rows = self.cells(self.ranked)
        return card("Frontier", notes=self.sentences, head=head, rows=rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the error against the cost of each family, where two settings may be mixed.

        The eight families of least mean error are drawn; :func:`ttamer.report` draws all.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            A matplotlib figure.

        Raises:
            MissingExtra: If matplotlib is not installed.
        """
        curves = {}
        for family in self.ranked[:8]:  # more lines cannot be distinguished
            costs, errors = self.curve(family)
            corners = lower_envelope(costs, errors).tolist()
            curves[family] = ([costs[k] for k in corners], [errors[k] for k in corners])
        alone, share = self.reference, self.measure == "error"
        marks = {f"{alone.node} alone": (alone.cost, alone.error)}
        labels = in_unit("cost per input", self.test_trace.spec.unit), self.measure
        return draw_curves(curves, *labels, marks=marks, y_percent=share, path=path)

    def to_dict(self) -> dict[str, Any]:
        """Return the points, the reference, and a summary of each family: ``frontier.json``.

        Returns:
            Plain values by name.
        """
        trace, families = self.test_trace, {}
        for family in self.families:
            costs = {name: self.cost_at(family, more) for name, more in self.margins.items()}
            families[family] = {"cost_at_error": costs, "area": self.area(family)}
        return {
            "points": [point.to_dict() for point in self.points],
            "reference": vars(self.reference),
            "full_cost": full_cost(trace),
            "fit_rows": self.fit_rows,
            "test_rows": len(trace),
            "families": families,
            "left_out": self.left_out,
            **({"same_rows": True} if self.same_rows else {}),
            **({} if self.measure == "error" else {"measure": self.measure}),
        }


def require_frontier(value: object, what: str) -> None:
    """Refuse anything but a frontier."""
    remedy = "make one with ttamer.frontier(fit_trace, test_trace)"
    require_kind(value, Frontier, f"{what} needs a Frontier", remedy)


def frontier(
    fit_trace: Trace,
    test_trace: Trace | None = None,
    *,
    families: Iterable[str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
    progress: ProgressOption = None,
) -> Frontier:
    """Fit every family on some rows, and measure it on others.

    Args:
        fit_trace: The rows to fit on; every setting is chosen there. Without ``test_trace`` one
            random half is fitted to, and the other measured.
        test_trace: The rows to measure on. On the same rows errors are too low, and
            ``same_rows`` is set.
        families: The names of the families; by default the fits of this package and all baselines.
        resamples: Bootstrap resamples for the intervals of each point.
        seed: The seed of the resamples.
        progress: Called with a line of text as the work proceeds; ``True`` shows the progress.

    Returns:
        All points, and what they are compared with.

    Raises:
        ArgumentError: If the traces differ in their nodes, the test trace has no rows, a family is
            unknown, or none can be fitted.

    >>> from ttamer import datasets
    >>> rows = datasets.load("langid", "fit")
    >>> frontier(rows, families=["threshold", "always-best"], resamples=0).reference.node
    'lingua'
    """
    check_resampling(resamples, seed)
    require_trace(fit_trace, "a frontier")
    if test_trace is None:
        fit_trace, test_trace = fit_trace.split(0.5, seed=0)
    require_trace(test_trace, "a frontier")
    fit_trace, test_trace = fit_trace.with_verification(), test_trace.with_verification()
    if fit_trace.names != test_trace.names:
        raise ArgumentError(
            f"the traces differ in their nodes: {', '.join(fit_trace.names)} and "
            f"{', '.join(test_trace.names)}; use one cascade.toml for both"
        )
    if len(test_trace) == 0:
        raise ArgumentError("the test trace has no rows")
    names = None if families is None else family_names(families)
    known_losses(test_trace)  # refused before the work
    with shown(progress) as hook:
        # The ladder is fitted here, since the frontier keeps it: it chooses by budgets.
        is_ours = names is None or "ttamer" in names
        ladder = fit(fit_trace, progress=hook) if is_ours else None
        choices_of = {**OURS, **FAMILIES, "ttamer": FitFamily("ttamer", ladder)}
        settings, left_out = fit_families(fit_trace, names, families=choices_of, progress=hook)
        points = []
        for count, (name, choices) in enumerate(settings.items(), start=1):
            if hook:
                hook(f"measuring {name} ({count} of {len(settings)})")
            try:
                played = _play(choices, test_trace)
            except Unsuitable as reason:  # a column that only the rows fitted to have
                left_out[name] = f"on the test rows: {reason}"
                continue
            for choice, done in zip(choices, played, strict=True):
                result = measure(done, test_trace, resamples=resamples, seed=seed)
                points.append(Point(name, choice.knob, result, choice.rule, done))
    if not points:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ArgumentError(f"no family suits this trace ({reasons})")
    return Frontier(
        points=tuple(points),
        reference=_reference(fit_trace, test_trace),
        fit_rows=len(fit_trace),
        left_out=left_out,
        test_trace=test_trace,
        ladder=ladder,
        same_rows=fit_trace.digest == test_trace.digest,
    )


def _play(choices: list[Setting], trace: Trace) -> list[Played]:
    """Play the settings of a family; a fit's policies read the rows once."""
    first = choices[0].rule
    if isinstance(first, FittedPolicy) and all(isinstance(c.rule, FittedPolicy) for c in choices):
        rows = first.fitted.read(trace)
        return [rows.play(c.rule.rule) for c in choices if isinstance(c.rule, FittedPolicy)]
    return [choice.rule.play(trace) for choice in choices]


def _reference(fit_trace: Trace, test_trace: Trace) -> Reference:
    """The last exit of a network, or the single model that was best on the fit rows."""
    name = "always-last" if test_trace.spec.kind == "exits" else "always-best"
    # Chosen on the rows fitted to, as every family is: the best on the test rows has luck.
    [setting] = FAMILIES[name].fit(fit_trace)
    played = setting.rule.play(test_trace)
    result = measure(played, test_trace, resamples=0)
    return Reference(test_trace.names[int(played.answer[0])], result.error, result.cost)


def learning_curve(
    full: Frontier,
    fit_trace: Trace,
    *,
    more_error: float = 0.0,
    progress: Callable[[str], None] | None = None,
) -> str:
    """Return in words what ``ttamer`` costs when it is fitted to a quarter, half and all rows.

    ``full`` is the frontier of the fit to ``fit_trace``; costs are compared at its reference's
    error and ``more_error``.
    """
    shares: dict[int, float | None] = {}
    for count, share in enumerate((0.25, 0.5, 1.0), start=1):
        rows, measured = fit_trace.split(share, seed=0)[0] if share < 1 else fit_trace, full
        if share < 1:
            if progress is not None:
                progress(f"learning curve: fit {count} of 2")
            with warnings.catch_warnings():  # of few rows, which are meant
                warnings.simplefilter("ignore", TraceWarning)
                measured = frontier(rows, full.test_trace, families=["ttamer"], resamples=0)
        # All are compared with what the whole frontier is compared with.
        cost = replace(measured, reference=full.reference).cost_at("ttamer", more_error)
        price = full.reference.cost
        shares[len(rows)] = None if cost is None or not price else cost / price
    return learnt(shares, full.alone)


def learnt(shares: Mapping[int, float | None], against: str) -> str:
    """Return a learning curve in words: shares of what ``against`` costs, by rows fitted to.

    >>> print(learnt({250: None, 500: 0.5, 1000: 0.46}, "large alone"))
    Fitted to 250, 500 and 1,000 rows, ttamer costs (not reached), 50% and 46% of what large \
alone costs; 1,000 rows more would save about 2% more.
    """
    *rows, last_rows = (f"{count:,}" for count in shares)
    *texts, last = (
        "(not reached)" if share is None else percent(share) for share in shares.values()
    )
    curve = (
        f"Fitted to {', '.join(rows)} and {last_rows} rows, ttamer costs {', '.join(texts)} "
        f"and {last} of what {against} costs"
    )
    half, full = [*shares.values()][-2:]
    if half is None or full is None:
        return f"{curve}."
    # Costs fall about as a + b / rows: doubling them saves half of what the last doubling did.
    further = max((half - full) / 2, 0.0)
    saved = "nothing more" if further < 0.005 else f"about {percent(further)} more"
    return f"{curve}; {last_rows} rows more would save {saved}."
