"""What baselines share: rules that stop at the first certain node, and the settings worth having.

Two settings can always be mixed, so one inside the lower convex envelope of (cost, error) adds
nothing. A family that can be optimised for a *price* (error + price * cost) finds the corners of
its envelope one by one: the price at which two neighbouring corners are equal either brings a
corner between them, or there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TTamerError
from ttamer.fitting.fits import fit
from ttamer.fitting.fitted import FitRecord, Fitted
from ttamer.fitting.ladder import FittedLadder, FittedPolicy
from ttamer.fitting.replay import Played, Rule, Setting, asked_up_to, paid
from ttamer.fitting.threshold import stop_tables
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.checks import require_rows
from ttamer.trace.losses import complete_losses
from ttamer.trace.trace import Trace

# The certainty of a node on each row, shape (T,), from its own columns; NaN never stops. With
# ``least_confidence(node, threshold)`` its rules can be served (as_policies).
Score = Callable[[Trace, int], NDArray[np.float64]]


class Unsuitable(TTamerError):  # noqa: N818 - named after what happened
    """A family cannot be fitted to this kind of trace; the message has the reason."""


def require_models(spec: CascadeSpec) -> None:
    """Refuse exits of one network."""
    if spec.kind == "exits":
        raise Unsuitable("it takes nodes for separate models, and these are exits of one network")


def predictions_of(trace: Trace) -> NDArray[np.int32]:
    """Return the predictions, shape (T, n); a trace without them is unsuitable."""
    if trace.prediction is None:
        raise Unsuitable("it compares predictions, and the trace has none")
    return trace.prediction


def walk_of(trace: Trace) -> NDArray[np.intp]:
    """Return, shape (n,), the order of asking at the mean costs of a trace's rows.

    >>> from ttamer.cascade import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> walk_of(Trace(CascadeSpec.of({"large": 9.0, "small": 1.0}), [[0.9, 0.8]])).tolist()
    [1, 0]
    """
    require_rows(trace, 1, "a baseline")
    return np.array(trace.spec.asking_order(trace.costs.mean(axis=0)), np.intp)


@dataclass(frozen=True, eq=False)
class StopRule:
    """Stop at the first node of a walk whose score reaches its threshold, else at the last."""

    score: Score
    walk: NDArray[np.intp]  # shape (m,): the nodes to ask, in order
    # Shape (m - 1,): ``inf`` where it never stops. The last node of the walk always answers.
    thresholds: NDArray[np.float64]

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        stop = np.full(len(trace), len(self.walk) - 1)
        for step in range(len(self.walk) - 2, -1, -1):  # backwards, so that the first stop stands
            stop[self.score(trace, int(self.walk[step])) >= self.thresholds[step]] = step
        asked = np.zeros((len(stop), len(trace.spec)), bool)
        asked[:, self.walk] = asked_up_to(stop, len(self.walk))
        return Played(self.walk[stop], asked, self.walk[stop])

    def confidences(self) -> list[float] | None:
        """Return the least confidence that stops at each step but the last, where that decides."""
        least = getattr(self.score, "least_confidence", None)
        steps = zip(self.walk[:-1].tolist(), self.thresholds.tolist(), strict=True)
        return None if least is None else [least(node, threshold) for node, threshold in steps]


def plain(threshold: float) -> float | None:
    """Return a threshold for reports and JSON: None where it never stops.

    >>> plain(0.5), plain(np.inf)
    (0.5, None)
    """
    return float(threshold) if np.isfinite(threshold) else None


class FitFamily:
    """The policies of one kind of fit, one per tradeoff."""

    def __init__(self, name: str, ladder: FittedLadder | None = None, **options: Any) -> None:
        self.name, self._ladder, self._options = name, ladder, options

    def fit(self, trace: Trace) -> list[Setting]:
        """Fit a ladder, unless it is given; its policies are the settings."""
        try:
            ladder = self._ladder or fit(trace, **self._options)
        except ArgumentError as error:
            raise Unsuitable(str(error)) from None
        return [Setting({"tradeoff": policy.tradeoff}, policy) for policy in ladder]


class Router(FitFamily):
    """One model for each input, by the errors and costs that the input predicts.

    Its settings are fitted policies: they can be saved and served.
    """

    def fit(self, trace: Trace) -> list[Setting]:
        """Return one policy for each tradeoff."""
        require_models(trace.spec)
        if trace.prompt is None and not trace.inputs:
            raise Unsuitable("it reads the input, and the trace has no prompt and no inputs")
        return super().fit(trace)


class RuleScorer:
    """Cost and error of rules on a trace of at least one row, as ``evaluation.measure`` has them.

    Attributes:
        trace: The rows.
        wrong: Shape (T, n), from 0 to 1: where answers have losses, as shares of the largest.
        whole_cost: What asking every node costs per row; 1 where everything is free.
    """

    def __init__(self, trace: Trace) -> None:
        require_rows(trace, 1, "a baseline")
        self.trace, self.wrong = trace, complete_losses(trace)
        self.whole_cost = float(trace.costs.mean(axis=0).sum()) or 1.0

    def score(self, rule: Rule) -> tuple[float, float]:
        """Return (mean cost, error) of a rule."""
        played = rule.play(self.trace)
        wrong = self.wrong[np.arange(len(self.trace)), played.answer]
        return float(paid(played.asked, self.trace).mean()), float(wrong.mean())


def as_policies(trace: Trace, settings: list[Setting]) -> list[Setting]:
    """Return settings whose rules stop by confidences as policies, that can be saved and served.

    They do on every row what the rules do. Others are returned as they are.
    """
    rules = [setting.rule for setting in settings if isinstance(setting.rule, StopRule)]
    cuts = [cut for cut in (rule.confidences() for rule in rules) if cut is not None]
    if not cuts or len(cuts) < len(settings):
        return settings
    count = len(settings)
    tables = stop_tables(trace, [rule.walk.tolist() for rule in rules], cuts)
    record = FitRecord(
        belief="threshold", rows=len(trace), complete=len(trace), trace_digest=trace.digest
    )
    # These rules have no tradeoff; a ladder needs increasing ones, from cheap to accurate.
    tradeoffs = np.arange(1, count + 1) / (count + 1)
    fitted = Fitted.of(trace, tables, tradeoffs, record)
    return [
        Setting(setting.knob, FittedPolicy(fitted, fitted.rule(number), number))
        for number, setting in enumerate(settings)
    ]


def pareto_settings(trace: Trace, settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings on the envelope over the rows of a trace, the cheapest first."""
    scorer = RuleScorer(trace)
    return _on_envelope(trace, [(*scorer.score(setting.rule), setting) for setting in settings])


def sweep_prices(
    trace: Trace, solve: Callable[[float], Setting], *, limit: int = 40
) -> list[Setting]:
    """Return the settings on the envelope that ``solve(price)`` gives, for a number of prices.

    ``solve`` returns a setting that makes ``error + price * cost`` small on the trace; a price is
    error per unit of cost. Wide gaps are looked into first.
    """
    scorer = RuleScorer(trace)
    points: list[tuple[float, float, Setting]] = []

    def ask(price: float) -> int:
        setting = solve(price)
        points.append((*scorer.score(setting.rule), setting))
        return len(points) - 1

    gaps: list[tuple[float, int, int]] = []

    def open_gap(low: int, high: int) -> None:
        wider, lower = points[high][0] - points[low][0], points[low][1] - points[high][1]
        if wider > 0 and lower > 0:
            heapq.heappush(gaps, (-wider * lower, low, high))

    # The ends: whatever error, then whatever cost (but no cost for nothing).
    open_gap(ask(1e6 / scorer.whole_cost), ask(1e-3 / (len(trace) * scorer.whole_cost)))
    while gaps and len(points) < limit:
        _, low, high = heapq.heappop(gaps)
        (cost, error, _), (higher, better, _) = points[low], points[high]
        price = (error - better) / (higher - cost)
        middle = ask(price)
        gain = error + price * cost - (points[middle][1] + price * points[middle][0])
        if gain > 1e-12:  # above rounding
            open_gap(low, middle)
            open_gap(middle, high)
    return _on_envelope(trace, points)


def _on_envelope(trace: Trace, points: list[tuple[float, float, Setting]]) -> list[Setting]:
    corners = lower_envelope([cost for cost, _, _ in points], [error for _, error, _ in points])
    return as_policies(trace, [points[corner][2] for corner in corners])
