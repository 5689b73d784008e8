"""Evaluation: error, cost and the node that answered, with percentile bootstrap intervals.

Where answers have losses, the error is the mean loss, in the unit of the losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer._arguments import require_kind
from ttamer._display.notebook import card
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError
from ttamer.evaluation.bootstrap import (
    Interval,
    RowBootstrap,
    check_resampling,
    draw_counts,
    interval,
)
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import shown_error
from ttamer.fitted.replay import Played, Rule, full_cost, latency_of, paid
from ttamer.trace.checks import require_trace
from ttamer.trace.spec import Target
from ttamer.trace.trace import Losses, Measure, Trace

# The quantiles of the cost that a result holds.
QUANTILES = (0.5, 0.9, 0.99)

# The largest number of distinct pairs of (wrong, cost) that are drawn; with more, rows are drawn
# themselves.
MAX_GROUPS = 1000


@dataclass(frozen=True)
class Result:
    """How a rule did on a trace.

    >>> from ttamer import datasets, evaluate, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="none")
    >>> result = evaluate(ladder.at(0.9), datasets.load("langid", "test"), resamples=0)
    >>> result.rows, round(sum(result.answered.values()), 6)
    (14694, 1.0)
    >>> print(result)
    Measured on 14,694 rows
    error 14.01%, 95% interval 14.01% to 14.01%
    cost 44.61 per input, 95% interval 44.61 to 44.61; 7.1% of the full model's
    """

    rows: int
    error: float
    """The share of rows answered wrong, or the mean loss where answers have losses."""
    error_interval: Interval
    cost: float
    """Mean cost per row, in the units of the cascade."""
    cost_interval: Interval
    relative_cost: float
    """Mean cost over the full model's: the last exit of a network, or the most expensive model."""
    cost_quantiles: dict[float, float]
    answered: dict[str, float]
    """The share of rows each node answered."""
    asked: dict[str, float]
    """The share of rows each node was asked on."""
    recalled: float
    """The share of rows where an answer other than the last node's asked was returned."""
    recall_helped: float
    """The share of rows where that answer was right and the last one wrong, or lost less."""
    recall_hurt: float
    """The share of rows where it was wrong and the last one right, or lost more."""
    measure: Measure = "error"
    """What ``error`` is: the share of wrong answers, or ``"mean loss"``."""
    latency: float | None = None
    """The mean time per row, where the trace has latencies: nodes are asked one after another."""
    latency_p95: float | None = None
    """The time that 95% of rows do not exceed."""

    def __str__(self) -> str:
        return "\n".join([f"Measured on {counted(self.rows, 'row', ',')}", *self._sentences()])

    def _sentences(self) -> list[str]:
        """Return error, cost and latency in words."""
        error, *ends = (
            shown_error(value, self.measure) for value in (self.error, *self.error_interval)
        )
        low, high = map(number, self.cost_interval)
        notes = [
            f"{self.measure} {error}, 95% interval {ends[0]} to {ends[1]}",
            f"cost {number(self.cost)} per input, 95% interval {low} to {high}; "
            f"{percent(self.relative_cost)} of the full model's",
        ]
        if self.latency is not None and self.latency_p95 is not None:
            notes.append(
                f"latency {number(self.latency)} in the mean, 95% within {number(self.latency_p95)}"
            )
        return notes

    def _repr_html_(self) -> str:
        rows = [
            [name, percent(share), percent(self.answered[name])]
            for name, share in self.asked.items()
        ]
        head = ["node", "asked", "answered"]
        title = f"Measured on {counted(self.rows, 'row', ',')}"
        return card(title, notes=self._sentences(), head=head, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields by name; the quantiles of the cost have text keys, such as ``"0.5"``.
            ``measure`` is there only where answers have losses, latencies where they are known.
        """
        quantiles = {f"{q:g}": cost for q, cost in self.cost_quantiles.items()}
        values = {**vars(self), "cost_quantiles": quantiles}
        if self.measure == "error":
            del values["measure"]
        unknown = [name for name in ("latency", "latency_p95") if values[name] is None]
        return {name: value for name, value in values.items() if name not in unknown}


def evaluate(
    rule: Rule, trace: Trace, *, target: Target | None = None, resamples: int = 1000, seed: int = 0
) -> Result:
    """Replay a rule on a trace and measure it.

    Args:
        rule: A fitted policy, a mixture, or any other rule.
        trace: The rows to decide on; preferably not those it was fitted to.
        target: What counts as right: ``"label"``, or ``"last"`` for agreement with the last node,
            as in the paper. By default the cascade's own target.
        resamples: Bootstrap resamples for the intervals; 0 gives intervals of no width.
        seed: The seed of the resamples.

    Returns:
        Error and cost with intervals, and the share of rows that each node was asked on.

    Raises:
        ArgumentError: If the trace has no rows, the rule is no rule or a ladder of many policies,
            or ``resamples`` or ``seed`` is no whole number from 0 on.
        TraceError: If the trace lacks what the target needs.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="none")
    >>> result = evaluate(ladder.at(0.9), datasets.load("langid", "test"))
    >>> result.rows
    14694
    """
    require_trace(trace, "an evaluation")
    if len(trace) == 0:
        raise ArgumentError("the trace has no rows to evaluate on")
    if isinstance(rule, FittedLadder):
        raise ArgumentError(
            "a ladder holds many policies: evaluate one of them, such as ladder.default() or "
            "ladder.at(tradeoff)"
        )
    if not hasattr(rule, "play"):
        raise ArgumentError(
            f"an evaluation replays a fitted policy, not {type(rule).__name__}: give one of "
            "ttamer.fit(trace) or ttamer.load(path), such as ladder.default()"
        )
    trace = trace.with_verification()
    return measure(rule.play(trace), trace, target=target, resamples=resamples, seed=seed)


def measure(
    played: Played,
    trace: Trace,
    *,
    target: Target | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """Measure a replay; the arguments are those of :func:`evaluate`.

    Args:
        played: The replay of a rule on the trace.
        trace: The rows.
        target: What counts as right; by default the cascade's own target.
        resamples: Bootstrap resamples for the intervals; 0 gives intervals of no width.
        seed: The seed of the resamples.

    Returns:
        Error and cost with intervals, and the share of rows that each node was asked on.

    Raises:
        TraceError: If the trace lacks what the target needs.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="none")
    >>> test = datasets.load("langid", "test")
    >>> measure(ladder.at(0.9).play(test), test, resamples=0).rows
    14694
    """
    require_trace(trace, "measure")
    check_resampling(resamples, seed)
    require_kind(played, Played, "measure needs a replay", "call policy.play(trace)")
    rows = np.arange(len(trace))
    losses = trace.losses(target)
    mine = losses[rows, played.answer]
    cost = paid(played.asked, trace)
    names = trace.names
    recalled = played.last != played.answer
    theirs = losses[rows, played.last]
    error_interval, cost_interval = _intervals(mine, cost, resamples, seed)
    took = latency_of(played.asked, trace)
    shares = np.bincount(played.answer, minlength=len(names)) / len(rows)
    return Result(
        rows=len(rows),
        error=float(mine.mean()),
        error_interval=error_interval,
        cost=float(cost.mean()),
        cost_interval=cost_interval,
        relative_cost=float(cost.mean()) / full_cost(trace.spec, trace),
        cost_quantiles={q: float(np.quantile(cost, q)) for q in QUANTILES},
        answered=dict(zip(names, shares.tolist(), strict=True)),
        asked=dict(zip(names, played.asked.mean(axis=0).tolist(), strict=True)),
        recalled=float(recalled.mean()),
        recall_helped=float((recalled & (theirs > mine)).mean()),
        recall_hurt=float((recalled & (theirs < mine)).mean()),
        measure=trace.measure,
        latency=None if took is None else float(took.mean()),
        latency_p95=None if took is None else float(np.quantile(took, 0.95)),
    )


def _intervals(
    wrong: Losses, cost: NDArray[np.float64], resamples: int, seed: int
) -> tuple[Interval, Interval]:
    """95% bootstrap intervals of the two means."""
    rows = len(wrong)
    if not resamples:
        return (float(wrong.mean()),) * 2, (float(cost.mean()),) * 2
    both = np.column_stack([wrong.astype(float), cost])
    pairs, counts = np.unique(both, axis=0, return_counts=True)
    if len(pairs) > MAX_GROUPS:  # most rows have a cost or a loss of their own
        means = _row_bootstrap(rows, resamples, seed).column_means(both.T)
    else:
        means = draw_counts(counts, resamples, np.random.default_rng(seed)) @ pairs / rows
    low, high = interval(means, axis=0)
    return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))


@lru_cache(maxsize=1)
def _row_bootstrap(rows: int, resamples: int, seed: int) -> RowBootstrap:
    """Return resamples of rows; the last ones are kept, for the next rule on the same rows."""
    return RowBootstrap.of(rows, resamples=resamples, seed=seed)
