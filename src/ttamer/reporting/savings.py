"""What a policy would have saved on logged traffic, where one model answers everything today.

The audited requests are halved at random; a policy is fitted to either half and measured on the
other. Rows are weighted by one over the chance that every node answered. The control deals the same
asks and answers to the same requests at random: it costs the same, and a policy that is no better
than it knows nothing about requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttamer._checks import counted, percent
from ttamer.errors import ArgumentError, TraceError
from ttamer.evaluation.results import RowBootstrap, interval
from ttamer.fitting.fits import fit
from ttamer.fitting.points import cheapest
from ttamer.fitting.replay import alone_paid, paid
from ttamer.trace.trace import Trace

Interval = tuple[float, float]


@dataclass(frozen=True)
class Savings:
    """What a policy would have saved, and at what error; intervals are of 95%."""

    against: str
    """The model that answers everything today."""
    requests: int
    """The number of requests in the log."""
    rows: int
    """The number of those on which every node answered and what is right is known."""
    is_judged: bool
    """Whether labels or verdicts say which answers are right; else agreement with the model."""
    saved: float
    """The share of the cost of that model that is saved."""
    saved_interval: Interval
    error: float
    more_error: float
    """The error above that of the model."""
    more_error_interval: Interval
    control_error: float
    """The error where the same asks are dealt at random."""
    control_interval: Interval
    """Of the error of the control above that of the policy."""
    spent: float
    """The cost of audits and of a judge."""
    net_saved: float
    """The share that is saved on the requests of the log, less what was spent."""
    measure: str = "error"

    @property
    def is_better(self) -> bool:
        """Whether something is saved, and the policy is clearly better than the control."""
        return self.saved_interval[0] > 0 and self.control_interval[0] > 0

    def __str__(self) -> str:
        low, high = (percent(value) for value in self.saved_interval)
        lines = [
            f"On {counted(self.rows, 'audited request', ',')} of {self.requests:,} a policy would "
            f"have cost {percent(self.saved)} less than {self.against!r} ({low} to {high}), with "
            f"{self._shown(self.error)} {self._what}, {self._difference(self.more_error)} "
            f"({self._range(self.more_error_interval)}).",
            f"Audits and judging cost {self.spent:.4g}: net of them, {percent(self.net_saved)} of "
            "the cost of these requests would have been saved.",
            f"The same calls dealt at random: {self._shown(self.control_error)} {self._what}, "
            f"{self._range(self.control_interval)} more than the policy.",
        ]
        if not self.is_better:
            lines.append("That is not clearly better than chance: do not adopt a policy yet.")
        return "\n".join(lines)

    @property
    def _what(self) -> str:
        return self.measure if self.is_judged else f"disagreement with {self.against!r}"

    def _shown(self, value: float) -> str:
        return percent(value, digits=1) if self.measure == "error" else f"{value:.3g}"

    def _difference(self, value: float) -> str:
        size = f"{100 * abs(value):.1f} points" if self.measure == "error" else f"{abs(value):.3g}"
        return f"{size} {'more' if value > 0 else 'less'}"

    def _range(self, ends: Interval) -> str:
        low, high = ends
        if self.measure == "error":
            return f"{100 * low:+.1f} to {100 * high:+.1f} points"
        return f"{low:+.3g} to {high:+.3g}"


def savings(
    trace: Trace,
    against: str,
    *,
    spent: float = 0.0,
    allowed: float = 0.0,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Savings:
    """Return what a policy would have saved on the requests of a log.

    Args:
        trace: The log; rows on which a node was not asked count as requests only.
        against: The model that answers everything today.
        spent: What audits and judging cost.
        allowed: How much more than that model the policy may err. Where nothing says which answers
            are right, this is how often it may disagree with it, and at least 0.01.
        resamples: Bootstrap resamples for the intervals.
        seed: Of the halves, and of the resamples.
        progress: Called with a line of text as the work proceeds.

    Returns:
        The savings, with intervals and the control.

    Raises:
        ArgumentError: If there is no such model, or too few rows are complete.

    >>> from ttamer import datasets
    >>> result = savings(datasets.load("minilm-imdb").take(slice(300)), "full")
    >>> result.saved > 0, result.is_better
    (True, True)
    """
    node, requests = trace.spec.index_of(against), len(trace)
    trace, is_judged = _known(trace, node)
    if not is_judged:
        allowed = max(allowed, 0.01)
    trace = trace.take(~np.isnan(trace.loss).any(axis=1))
    if len(trace) < 40:
        raise ArgumentError(
            f"{counted(len(trace), 'request')} of {requests} have an answer of every node that is "
            "known to be right or wrong, and 40 are needed: audit a larger share, or wait"
        )
    weight = np.ones(len(trace))
    if trace.chance is not None:
        chance = np.where(np.isnan(trace.chance), 1.0, trace.chance).min(axis=1)
        weight = 1 / np.where(chance > 0, chance, 1.0)
    group = np.arange(len(trace)) if trace.group is None else trace.group
    drawn_groups = np.random.default_rng(seed).permutation(np.unique(group))
    first = np.isin(group, drawn_groups[: len(drawn_groups) // 2])
    columns = np.zeros((5, len(trace)))
    for half in (first, ~first):
        columns[:, ~half] = _measured(trace.take(half), trace.take(~half), node, allowed, progress)
    weighted, units = [*(weight * columns), weight], np.unique(group, return_inverse=True)[1]
    means = RowBootstrap.of(units, resamples=resamples, seed=seed).column_means(weighted)
    point = (columns @ weight / weight.sum()).tolist()
    drawn = means[:, :5].T / means[:, 5]
    saved = 1 - point[1] / point[3]
    total = requests * point[3]
    return Savings(
        against=against,
        requests=requests,
        rows=len(trace),
        is_judged=is_judged,
        saved=saved,
        saved_interval=_ends(1 - drawn[1] / drawn[3]),
        error=point[0],
        more_error=point[0] - point[2],
        more_error_interval=_ends(drawn[0] - drawn[2]),
        control_error=point[4],
        control_interval=_ends(drawn[4] - drawn[0]),
        spent=spent,
        net_saved=saved - spent / total if total else 0.0,
        measure=trace.measure,
    )


def _known(trace: Trace, node: int) -> tuple[Trace, bool]:
    """Return the trace with losses, and where they are from; agreement where nothing is known."""
    try:
        is_known = bool((~np.isnan(trace.loss).any(axis=1)).any())
    except TraceError:
        is_known = False
    if is_known:
        return trace, True
    if trace.prediction is None:
        raise ArgumentError("the log has no answers to compare: nothing says which are right")
    theirs = trace.prediction[:, [node]]
    agrees = np.where(
        trace.answered & trace.answered[:, [node]], trace.prediction == theirs, np.nan
    )
    spec = dataclasses.replace(trace.spec, target="label")
    return dataclasses.replace(trace, spec=spec, correct=agrees, label=None), False


def _measured(
    fitted: Trace,
    rows: Trace,
    node: int,
    allowed: float,
    progress: Callable[[str], None] | None,
) -> Any:
    """Return loss and cost of a policy and of the node, and the loss of the control."""
    ladder = fit(fitted, progress=progress)
    points = ladder.points
    limit = float(points.alone_error[node]) + allowed
    able = points.costs <= points.costs[points.alone(node)]
    mix = cheapest(points.costs[able], points.errors[able], limit)
    assert mix is not None  # noqa: S101 - the node itself is able
    numbers = np.flatnonzero(able)
    cheap, expensive = int(numbers[mix.cheap]), int(numbers[mix.expensive])
    policy = ladder.mixed(mix._replace(cheap=cheap, expensive=expensive))
    played, loss = policy.play(rows), np.asarray(rows.loss)
    index = np.arange(len(rows))
    shares = np.bincount(played.answer, minlength=loss.shape[1]) / len(rows)
    return np.stack(
        [
            loss[index, played.answer],
            paid(played.asked, rows),
            loss[:, node],
            alone_paid(rows)[:, node],
            loss @ shares,
        ]
    )


def _ends(drawn: Any) -> Interval:
    low, high = interval(drawn)
    return float(low), float(high)
