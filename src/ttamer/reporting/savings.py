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
from ttamer.evaluation.results import Interval, RowBootstrap, interval, units_of
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import shown_error
from ttamer.fitting.points import cheapest
from ttamer.fitting.replay import alone_paid, paid
from ttamer.trace.trace import Measure, Trace


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
    measure: Measure = "error"

    @property
    def is_better(self) -> bool:
        """Whether something is saved, and the policy is clearly better than the control."""
        return self.saved_interval[0] > 0 and self.control_interval[0] > 0

    def __str__(self) -> str:
        low, high = (percent(value) for value in self.saved_interval)
        noun = self.measure if self.is_judged else f"disagreement with {self.against!r}"
        error, control = (
            shown_error(value, self.measure, digits=1) for value in (self.error, self.control_error)
        )
        difference = (
            f"{self._points(abs(self.more_error))} {'more' if self.more_error > 0 else 'less'}"
        )
        lines = [
            f"On {counted(self.rows, 'audited request', ',')} of {self.requests:,} a policy would "
            f"have cost {percent(self.saved)} less than {self.against!r} ({low} to {high}), with "
            f"{error} {noun}, {difference} ({self._points(*self.more_error_interval, sign='+')}).",
            f"Audits and judging cost {self.spent:.4g}: net of them, {percent(self.net_saved)} of "
            "the cost of these requests would have been saved.",
            f"The same calls dealt at random: {control} {noun}, "
            f"{self._points(*self.control_interval, sign='+')} more than the policy.",
        ]
        if not self.is_better:
            lines.append("That is not clearly better than chance: do not adopt a policy yet.")
        return "\n".join(lines)

    def _points(self, *errors: float, sign: str = "") -> str:
        """Return differences of errors in points, or of mean losses as numbers."""
        if self.measure != "error":
            return " to ".join(f"{error:{sign}.3g}" for error in errors)
        return f"{' to '.join(f'{100 * error:{sign}.1f}' for error in errors)} points"


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
    if not is_judged:  # never to disagree would be to ask that model always
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
    # A group is in one half, and is drawn as a whole.
    unit = units_of(trace)
    shuffled = np.random.default_rng(seed).permutation(np.unique(unit))
    first = np.isin(unit, shuffled[: len(shuffled) // 2])
    columns = np.zeros((5, len(trace)))
    for half in (first, ~first):
        columns[:, ~half] = _measured(trace.take(half), trace.take(~half), node, allowed, progress)
    rows = RowBootstrap.of(unit, resamples=resamples, seed=seed)
    means = rows.column_means([*(weight * columns), weight])
    drawn = means[:, :5].T / means[:, 5]
    error, cost, theirs, price, control = (columns @ weight / weight.sum()).tolist()
    saved, total = 1 - cost / price, requests * price
    return Savings(
        against=against,
        requests=requests,
        rows=len(trace),
        is_judged=is_judged,
        saved=saved,
        saved_interval=interval(1 - drawn[1] / drawn[3]),
        error=error,
        more_error=error - theirs,
        more_error_interval=interval(drawn[0] - drawn[2]),
        control_error=control,
        control_interval=interval(drawn[4] - drawn[0]),
        spent=spent,
        net_saved=saved - spent / total if total else 0.0,
        measure=trace.measure,
    )


def _known(trace: Trace, node: int) -> tuple[Trace, bool]:
    """Return the trace with losses, and whether it had them: else agreement with the node."""
    try:
        if (~np.isnan(trace.loss).any(axis=1)).any():
            return trace, True
    except TraceError:  # nothing says what is right
        pass
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
    """Return loss and cost of a policy, loss and cost of the node, and the loss of the control."""
    ladder = fit(fitted, progress=progress)
    points = ladder.points
    limit = float(points.alone_error[node]) + allowed
    # A policy that costs more than the model saves nothing, whatever its error.
    numbers = np.flatnonzero(points.costs <= points.costs[points.alone(node)])
    mix = cheapest(points.costs[numbers], points.errors[numbers], limit)
    assert mix is not None  # noqa: S101 - the node itself is among them
    cheap, expensive = int(numbers[mix.cheap]), int(numbers[mix.expensive])
    policy = ladder.mixed(mix._replace(cheap=cheap, expensive=expensive))
    played, loss = policy.play(rows), np.asarray(rows.loss)
    returned = loss[np.arange(len(rows)), played.answer]
    # The control: the same shares of answers, dealt to any request.
    shares = np.bincount(played.answer, minlength=loss.shape[1]) / len(rows)
    cost, price = paid(played.asked, rows), alone_paid(rows)[:, node]
    return np.stack([returned, cost, loss[:, node], price, loss @ shares])
