"""Evaluation: error, cost and the node that answered, with percentile bootstrap intervals.

Where answers have losses, the error is the mean loss, in the unit of the losses. Resamples draw
whole groups of rows: those that the trace names, or groups made at random where rows are many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, number, percent, priced, require, require_kind, require_whole
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitting.ladder import FittedLadder, shown_error
from ttamer.fitting.replay import Played, Rule, full_cost, latency_of, paid
from ttamer.show import card
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

Interval = tuple[float, float]


def check_resampling(resamples: int, seed: int) -> None:
    """Refuse numbers that nothing can be drawn by, before any work."""
    require_whole(resamples, "resamples")
    require_whole(seed, "seed")


def interval(draws: Any, *, method: Any = "linear") -> Interval:
    """Return the ends of the 95% percentile interval of resampled values."""
    low, high = np.quantile(draws, [0.025, 0.975], method=method).tolist()
    return low, high


def units_of(trace: Trace) -> NDArray[np.intp]:
    """Return, shape (T,), the number of the unit that each row is drawn with: its group."""
    return np.unique(trace.units, return_inverse=True)[1]


@dataclass(frozen=True, eq=False)
class RowBootstrap:
    """Resamples of T rows, drawn in at most ``max_blocks`` blocks; a group is never split.

    More rows are put into blocks at random: the mean of a block varies less in proportion to its
    size, so the spread of the drawn means does not change.
    """

    block: NDArray[np.intp]  # shape (T,): the block of each row
    # Shape (B, blocks): the weight of a block's sum in each resampled mean.
    share: NDArray[np.float64]

    max_blocks: ClassVar[int] = 4000

    @classmethod
    def of(cls, unit: NDArray[np.intp], *, resamples: int, seed: int) -> RowBootstrap:
        """Draw resamples of rows; ``unit`` has which of them belong together."""
        generator = np.random.default_rng(seed)
        units = int(unit.max()) + 1
        blocks = min(units, cls.max_blocks)
        block = generator.permutation(np.arange(units) % blocks)[unit]
        drawn = generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples)
        return cls(block, drawn / (drawn @ np.bincount(block))[:, np.newaxis])

    def means(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return, shape (B,), the mean of values, shape (T,), in each resample."""
        return self.share @ self._sums(values)

    def column_means(self, columns: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
        """Return, shape (B, k), the mean of each of k columns in each resample."""
        return self.share @ np.column_stack([self._sums(values) for values in columns])

    def interval(self, values: NDArray[Any]) -> Interval:
        """Return the 95% interval of the mean of values, shape (T,)."""
        return interval(self.means(values))

    def _sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        total: NDArray[Any] = np.bincount(self.block, values, self.share.shape[1])
        return total


@lru_cache(maxsize=1)  # for the next rule on the same rows
def _drawn(unit: bytes, resamples: int, seed: int) -> RowBootstrap:
    return RowBootstrap.of(np.frombuffer(unit, np.intp), resamples=resamples, seed=seed)


def standard_error(values: NDArray[Any], unit: NDArray[np.intp]) -> float:
    """Return the standard error of a mean over rows; rows of one unit belong together."""
    # Errors of rows of one unit add up; those of different units average out.
    sums = np.bincount(unit, values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))


class Numbers:
    """What was measured, as plain values and as a data frame."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields by name, without those that are not known.
        """
        return {name: value for name, value in vars(self).items() if value is not None}

    def _repr_html_(self) -> str:
        title, *notes = str(self).splitlines()
        return card(title, notes=notes, **self._table())

    def _table(self) -> dict[str, Any]:
        return {}

    def to_frame(self) -> Any:
        """Return a pandas frame of one row.

        Returns:
            A column for each number: ``error``, ``error_interval.low``, ``asked.small`` ...

        Raises:
            MissingExtra: If pandas is not installed.
        """
        return frame_of([self.to_dict()])


def frame_of(rows: Iterable[dict[str, Any]]) -> Any:
    """Return rows of nested values as a pandas frame whose columns have names with dots."""
    ends = ("low", "high")
    named = [
        {k: dict(zip(ends, v, strict=True)) if isinstance(v, tuple) else v for k, v in row.items()}
        for row in rows
    ]
    return require("pandas", "frames").json_normalize(named)


@dataclass(frozen=True)
class Result(Numbers):
    """How a rule did on a trace.

    >>> from ttamer import datasets, evaluate, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="markov")
    >>> print(evaluate(ladder.at(0.9), datasets.load("langid", "test"), resamples=0))
    Measured on 14,694 rows
    error 14.16%, 95% interval 14.16% to 14.16%
    cost 37.13 per input, 95% interval 37.13 to 37.13; 5.9% of the full model's
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
    unit: str = ""
    """The unit of costs."""
    latency: float | None = None
    """The mean time per row, where the trace has latencies: nodes are asked one after another."""
    latency_p95: float | None = None
    """The time that 95% of rows do not exceed."""

    def __repr__(self) -> str:
        cost, error = priced(self.cost, self.unit), shown_error(self.error, self.measure)
        return f"Result({counted(self.rows, 'row')}; cost {cost} per input, {self.measure} {error})"

    def __str__(self) -> str:
        error, *ends = (
            shown_error(value, self.measure) for value in (self.error, *self.error_interval)
        )
        low, high = map(number, self.cost_interval)
        notes = [
            f"Measured on {counted(self.rows, 'row', ',')}",
            f"{self.measure} {error}, 95% interval {ends[0]} to {ends[1]}",
            f"cost {priced(self.cost, self.unit)} per input, 95% interval {low} to {high}; "
            f"{percent(self.relative_cost)} of the full model's",
        ]
        if self.latency is not None and self.latency_p95 is not None:
            notes.append(
                f"latency {number(self.latency)} in the mean, 95% within {number(self.latency_p95)}"
            )
        return "\n".join(notes)

    def _table(self) -> dict[str, Any]:
        shares = [(name, share, self.answered[name]) for name, share in self.asked.items()]
        rows = [[name, percent(asked), percent(answered)] for name, asked, answered in shares]
        return {"head": ["node", "asked", "answered"], "rows": rows}


def evaluate(rule: Rule, trace: Trace, *, resamples: int = 1000, seed: int = 0) -> Result:
    """Replay a rule on a trace and measure it.

    Args:
        rule: A fitted policy, a mixture, or any other rule.
        trace: The rows to decide on; preferably not those it was fitted to.
        resamples: Bootstrap resamples for the intervals; 0 gives intervals of no width.
        seed: The seed of the resamples.

    Returns:
        Error and cost with intervals, and the share of rows that each node was asked on.

    Raises:
        ArgumentError: If the trace has no rows, the rule is no rule or a ladder of many policies,
            or ``resamples`` or ``seed`` is no whole number from 0 on.
        TraceError: If it is not known which answers are right.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="markov")
    >>> evaluate(ladder.at(0.9), datasets.load("langid", "test")).rows
    14694
    """
    _require_rule(rule, trace)
    trace = trace.with_verification()  # a verified answer is a node of its own, with its cost
    return measure(rule.play(trace), trace, resamples=resamples, seed=seed)


def measure(played: Played, trace: Trace, *, resamples: int = 1000, seed: int = 0) -> Result:
    """Measure a replay of a rule on the trace, as :func:`evaluate` measures the rule.

    Raises:
        TraceError: If it is not known which answers are right.

    >>> from ttamer import datasets, fit
    >>> test = datasets.load("langid", "test")
    >>> measure(fit(test, belief="markov").at(0.9).play(test), test, resamples=0).rows
    14694
    """
    require_trace(trace, "measure")
    check_resampling(resamples, seed)
    require_kind(played, Played, "measure needs a replay", "call policy.play(trace)")
    losses = known_losses(trace)
    mine, theirs = (returned(losses, node, trace) for node in (played.answer, played.last))
    cost, took = paid(played.asked, trace), latency_of(played.asked, trace)
    recalled = played.last != played.answer
    error_interval, cost_interval = (float(mine.mean()),) * 2, (float(cost.mean()),) * 2
    if resamples:
        drawn = _drawn(units_of(trace).tobytes(), resamples, seed)
        error_interval, cost_interval = drawn.interval(mine), drawn.interval(cost)
    # Where no answer came, no node answered: the shares sum to less than 1.
    answers = np.bincount(played.answer[played.answer >= 0], minlength=len(trace.names))
    return Result(
        rows=len(trace),
        error=float(mine.mean()),
        error_interval=error_interval,
        cost=float(cost.mean()),
        cost_interval=cost_interval,
        relative_cost=float(cost.mean()) / full_cost(trace),
        answered=dict(zip(trace.names, (answers / len(trace)).tolist(), strict=True)),
        asked=dict(zip(trace.names, played.asked.mean(axis=0).tolist(), strict=True)),
        recalled=float(recalled.mean()),
        recall_helped=float((recalled & (theirs > mine)).mean()),
        recall_hurt=float((recalled & (theirs < mine)).mean()),
        measure=trace.measure,
        unit=trace.spec.unit,
        latency=None if took is None else float(took.mean()),
        latency_p95=None if took is None else float(np.quantile(took, 0.95)),
    )


@dataclass(frozen=True)
class Difference(Numbers):
    """What changes where one rule decides in place of another, on the same rows.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="markov")
    >>> print(compare(ladder.at(0.9), ladder.at(0.9), datasets.load("langid", "test")))
    On 14,694 rows the two return another node's answer on 0% of them, and ask other nodes on 0%
    error +0.00% (standard error 0.00%)
    cost +0 per input (standard error 0)
    """

    rows: int
    answers_differ: float
    """The share of rows where another node's answer is returned."""
    asks_differ: float
    """The share of rows where other nodes are asked."""
    error: float
    """The rule's error, or mean loss, minus the baseline's."""
    error_se: float
    """The standard error of that difference, over rows."""
    cost: float
    """The rule's mean cost minus the baseline's."""
    cost_se: float
    """The standard error of that difference, over rows."""
    measure: Measure = "error"
    unit: str = ""
    """The unit of costs."""

    def __str__(self) -> str:
        sign = "-" if self.error < 0 else "+"
        error, spread = (
            shown_error(abs(value), self.measure) for value in (self.error, self.error_se)
        )
        return (
            f"On {counted(self.rows, 'row', ',')} the two return another node's answer on "
            f"{percent(self.answers_differ)} of them, and ask other nodes on "
            f"{percent(self.asks_differ)}\n"
            f"{self.measure} {sign}{error} (standard error {spread})\n"
            f"cost {'-' if self.cost < 0 else '+'}{priced(abs(self.cost), self.unit)} per input "
            f"(standard error {number(self.cost_se)})"
        )


def compare(rule: Rule, baseline: Rule, trace: Trace) -> Difference:
    """Measure on the same rows what changes where one rule decides in place of another.

    Args:
        rule: A fitted policy, a mixture, or any other rule.
        baseline: The rule that it replaces, over the same nodes.
        trace: The rows to decide on; preferably not those that either was fitted to.

    Returns:
        The differences with standard errors.

    Raises:
        ArgumentError: If the trace has no rows, or a rule is no rule or a ladder of many policies.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)), belief="markov")
    >>> compare(ladder.at(0.5), ladder.at(0.9), datasets.load("langid", "test")).cost < 0
    True
    """
    _require_rule(rule, trace)
    _require_rule(baseline, trace)
    trace = trace.with_verification()
    mine, theirs, unit = rule.play(trace), baseline.play(trace), units_of(trace)
    losses = known_losses(trace)
    lost = returned(losses, mine.answer, trace) - returned(losses, theirs.answer, trace)
    cost = paid(mine.asked, trace) - paid(theirs.asked, trace)
    return Difference(
        rows=len(trace),
        answers_differ=float((mine.answer != theirs.answer).mean()),
        asks_differ=float((mine.asked != theirs.asked).any(axis=1).mean()),
        error=float(lost.mean()),
        error_se=standard_error(lost, unit),
        cost=float(cost.mean()),
        cost_se=standard_error(cost, unit),
        measure=trace.measure,
        unit=trace.spec.unit,
    )


def known_losses(trace: Trace) -> NDArray[np.float64]:
    """Return, shape (T, n), the loss of each answer, in the trace's unit; refuse gaps."""
    losses = trace.loss * trace.unit
    gaps = np.isnan(losses)
    if gaps.any():
        row, node = np.argwhere(gaps)[0]
        raise TraceError(
            f"row {row}: the loss of {trace.names[node]}'s answer is not known ({trace.coverage}); "
            "a policy is measured on rows where every node answered and every answer is judged: "
            "leave the others out"
        )
    return losses


def returned(
    losses: NDArray[np.float64], answer: NDArray[np.intp], trace: Trace
) -> NDArray[np.float64]:
    """Return, shape (T,), the loss of the answers returned; none at all loses most."""
    return np.where(answer < 0, trace.unit, losses[np.arange(len(losses)), answer])


def _require_rule(rule: object, trace: object) -> None:
    """Refuse what cannot be replayed on a trace."""
    require_trace(trace, "an evaluation")
    if isinstance(trace, Trace) and len(trace) == 0:
        raise ArgumentError("the trace has no rows to evaluate on", param="trace")
    if isinstance(rule, FittedLadder):
        raise ArgumentError(
            "a ladder holds many policies: evaluate one of them, such as ladder.default() or "
            "ladder.at(tradeoff)",
            param="rule",
        )
    if not hasattr(rule, "play"):
        raise ArgumentError(
            f"an evaluation replays a fitted policy, not {type(rule).__name__}: give one of "
            "ttamer.fit(trace) or ttamer.load(path), such as ladder.default()",
            param="rule",
        )
