"""Evaluation: error, cost and who answered, with intervals.

The intervals are percentile bootstrap intervals. A resampled mean depends on how often each pair of
(wrong, cost) is drawn, so whole resamples are drawn as counts of the distinct pairs: a million
rows cost no more than a thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.cascade_spec import CascadeSpec, Target
    from ttamer.replay import Played, Rule
    from ttamer.trace import Trace

__all__ = ["Result", "evaluate", "full_cost", "measure", "paid"]

QUANTILES = (0.5, 0.9, 0.99)
MOST_GROUPS = 1000
"""Distinct pairs of (wrong, cost) to draw from; more are grouped by cost first."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Result:
    """How a rule did on a trace."""

    rows: int
    error: float
    """The share of rows answered wrong."""
    error_interval: Interval
    cost: float
    """Mean cost per row, in the units of the cascade."""
    cost_interval: Interval
    relative_cost: float
    """Mean cost over the full model's: of a network its last exit's, else the dearest model's."""
    cost_quantiles: dict[float, float]
    answered: dict[str, float]
    """The share of rows each node answered."""
    asked: dict[str, float]
    """The share of rows each node was asked on."""
    recalled: float
    """The share of rows where an answer other than the last node's asked was returned."""
    recall_helped: float
    """The share of rows where that answer was right and the last one wrong."""
    recall_hurt: float
    """The share of rows where it was wrong and the last one right."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        quantiles = {f"{q:g}": cost for q, cost in self.cost_quantiles.items()}
        return {**vars(self), "cost_quantiles": quantiles}


def evaluate(
    rule: Rule, trace: Trace, *, target: Target | None = None, resamples: int = 1000, seed: int = 0
) -> Result:
    """Replay a rule on a trace and measure it.

    ``target`` is ``"label"`` or ``"last"`` (agreement with the last node, as the paper has it); by
    default what the cascade says.
    """
    if len(trace) == 0:
        raise ArgumentError("the trace has no rows to evaluate on")
    return measure(rule.play(trace), trace, target=target, resamples=resamples, seed=seed)


def measure(
    played: Played,
    trace: Trace,
    *,
    target: Target | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """Measure what a rule did; ``resamples=0`` gives intervals of no width."""
    rows = np.arange(len(trace))
    wrong = trace.wrong(target)
    mine = wrong[rows, played.answer]
    cost = paid(played.asked, trace)
    names = trace.names
    recalled = played.last != played.answer
    theirs = wrong[rows, played.last]
    error_interval, cost_interval = _intervals(mine, cost, resamples, seed)
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
        recall_helped=float((recalled & theirs & ~mine).mean()),
        recall_hurt=float((recalled & ~theirs & mine).mean()),
    )


def paid(asked: NDArray[np.bool_], trace: Trace) -> NDArray[np.float64]:
    """Return, shape (T,), what each row paid, given whom it asked, shape (T, n).

    Every node asked costs what the row says; a node before the last one asked that was not asked
    itself was passed, and costs what the cascade says that does.

    >>> from ttamer.cascade_spec import CascadeSpec
    >>> from ttamer.trace import Trace
    >>> spec = CascadeSpec.of({"a": 3.0, "b": 5.0}, order="skip", passing={"a": 2.0})
    >>> trace = Trace(spec, np.zeros((3, 2)))
    >>> paid(np.array([[True, False], [True, True], [False, True]]), trace).tolist()
    [3.0, 8.0, 7.0]
    """
    cost = asked @ trace.cost if trace.cost.ndim == 1 else (asked * trace.cost).sum(axis=1)
    if trace.spec.has_passing:
        reached = np.logical_or.accumulate(asked[:, ::-1], axis=1)[:, ::-1]
        cost = cost + (reached & ~asked) @ trace.spec.passing
    return np.asarray(cost, np.float64)


def full_cost(spec: CascadeSpec, trace: Trace) -> float:
    """Return what the full model costs per row: the last exit's path, or the dearest model.

    With order "fixed" each exit is asked on the way to the next, so the last one costs the sum.
    Where exits may be passed, it is the bare network: the last exit, and all others passed.
    """
    means = trace.costs.mean(axis=0)
    if spec.has_passing:
        whole = spec.passed(-1, len(spec) - 1) + float(means[-1])
    else:
        whole = float(means.sum() if spec.order == "fixed" else means.max())
    return whole or 1.0  # everything is free: nothing to compare with


def _intervals(
    wrong: NDArray[np.bool_], cost: NDArray[np.float64], resamples: int, seed: int
) -> tuple[Interval, Interval]:
    """95% bootstrap intervals of the two means."""
    rows = len(wrong)
    if not resamples:
        return (float(wrong.mean()),) * 2, (float(cost.mean()),) * 2
    pairs, counts = np.unique(np.column_stack([wrong, cost]), axis=0, return_counts=True)
    if len(pairs) > MOST_GROUPS:  # costs of their own on every row: group them finely
        edges = np.quantile(cost, np.linspace(0, 1, MOST_GROUPS // 2))
        group = 2 * np.searchsorted(edges, cost) + wrong
        _, group = np.unique(group, return_inverse=True)
        counts = np.bincount(group)
        pairs = np.column_stack(
            [np.bincount(group, wrong) / counts, np.bincount(group, cost) / counts]
        )
    draws = np.random.default_rng(seed).multinomial(rows, counts / rows, size=resamples)
    means = draws @ pairs / rows
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))
