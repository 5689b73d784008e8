"""The bootstrap: resampled rows, for the intervals of points, frontiers and comparisons.

A resampled mean depends only on how often each group of rows is drawn, so rows are grouped, and
resamples are drawn as counts of the groups. Points are grouped by their distinct pairs of (wrong,
cost): a million rows cost no more than a thousand. Where there are many pairs, rows are grouped at
random: groups of rows that are alike would hide how far large costs and losses differ. What is read
off an envelope depends on all points of a family and on the reference at once, so there rows are
grouped at random too, and the envelope is computed for each resample.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._arguments import require_whole
from ttamer.fitted.replay import paid
from ttamer.stats.envelope import cost_at_error, error_at_cost
from ttamer.trace.trace import Measure, Trace

if TYPE_CHECKING:
    from ttamer.evaluation.frontiers import Frontier


# The largest number of groups of rows that are drawn. More rows are grouped at random: the mean
# of a group varies less in proportion to its size, so the spread of the drawn means does not
# change.
MAX_BLOCKS = 4000

Interval = tuple[float, float]


def check_resampling(resamples: int, seed: int) -> None:
    """Refuse numbers that nothing can be drawn by.

    >>> check_resampling(-1, 0)
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: resamples is -1; it must be a whole number from 0 on
    """
    require_whole(resamples, "resamples")
    require_whole(seed, "seed")


def draw_counts(
    counts: NDArray[Any], resamples: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return, shape (resamples, groups), how often each group is drawn.

    Args:
        counts: Shape (groups,): the number of units in each group; as many units are drawn.
        resamples: How many resamples to draw.
        generator: The source of randomness.

    >>> draw_counts(np.array([2, 1]), 3, np.random.default_rng(0)).sum(axis=1).tolist()
    [3, 3, 3]
    """
    total = int(counts.sum())
    return generator.multinomial(total, counts / total, size=resamples)


def interval(draws: Any, *, method: Any = "linear", axis: int | None = None) -> Any:
    """Return the ends of the 95% percentile interval of resampled values.

    >>> [float(end) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    return np.quantile(draws, [0.025, 0.975], method=method, axis=axis)


@dataclass(frozen=True, eq=False)
class RowBootstrap:
    """Resamples of T rows, drawn in at most ``MAX_BLOCKS`` groups made at random.

    >>> rows = RowBootstrap.of(3, resamples=2, seed=0)
    >>> rows.means(np.ones(3)).tolist()
    [1.0, 1.0]
    """

    group: NDArray[np.intp]
    """Shape (T,): the group of each row."""
    share: NDArray[np.float64]
    """Shape (B, groups): the weight of a group's sum in each resampled mean."""

    @classmethod
    def of(cls, rows: int, *, resamples: int, seed: int) -> RowBootstrap:
        """Draw resamples of ``rows`` rows."""
        generator = np.random.default_rng(seed)
        groups = min(rows, MAX_BLOCKS)
        group = generator.permutation(np.arange(rows) % groups)
        drawn = draw_counts(np.ones(groups, np.int64), resamples, generator)
        return cls(group, drawn / (drawn @ np.bincount(group))[:, np.newaxis])

    def means(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return, shape (B,), the mean of values, shape (T,), in each resample."""
        return self.share @ self._sums(values)

    def column_means(self, columns: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
        """Return, shape (B, k), the mean of each of k columns in each resample."""
        return self.share @ np.column_stack([self._sums(values) for values in columns])

    def _sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        total: NDArray[Any] = np.bincount(self.group, values, self.share.shape[1])
        return total


@dataclass(frozen=True, eq=False)
class Resampled:
    """Errors and costs of some families over B resamples of the test rows."""

    error: NDArray[np.float64]
    """Shape (B,): the reference's."""
    cost: NDArray[np.float64]
    """Shape (B,): the reference's."""
    families: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    """Costs and errors, shape (B, settings) each."""
    measure: Measure = "error"
    """What an error is."""

    @classmethod
    def of(
        cls,
        frontier: Frontier,
        trace: Trace,
        families: Iterable[str],
        *,
        resamples: int = 400,
        seed: int = 0,
    ) -> Resampled:
        """Draw the rows of the trace on which the frontier was measured."""
        rows = RowBootstrap.of(len(trace), resamples=resamples, seed=seed)
        wrong, every = trace.losses(), np.arange(len(trace))
        measured = {}
        for family in families:
            plays = frontier.played[family]
            costs = rows.column_means(paid(played.asked, trace) for played in plays)
            errors = rows.column_means(wrong[every, played.answer] for played in plays)
            measured[family] = (costs, errors)
        node = trace.names.index(frontier.reference.node)
        price = paid(np.tile(trace.spec.required[node], (len(trace), 1)), trace)
        return cls(rows.means(wrong[:, node]), rows.means(price), measured, trace.measure)

    def saving(self, family: str, more_error: float) -> tuple[float, float, float]:
        """Return a 95% interval of the saving, and the share of resamples that do not get there."""
        draws = self._savings(family, more_error)
        low, high = interval(draws, method="inverted_cdf")
        return float(low), float(high), float(np.isneginf(draws).mean())

    def error_at_price(self, family: str) -> tuple[float, float]:
        """Return a 95% interval of the family's error at the reference's cost."""
        found = (
            error_at_cost(costs, errors, price)
            for costs, errors, price in zip(*self.families[family], self.cost, strict=True)
        )
        # No answer is a wrong one, or loses as much as the worst setting.
        worst = 1.0 if self.measure == "error" else float(self.families[family][1].max())
        draws = [worst if error is None else error for error in found]
        low, high = interval(draws)
        return float(low), float(high)

    def cannot_tell(self, one: str, other: str, more_error: float) -> bool:
        """Whether the 95% interval of the difference between two savings holds zero."""
        first, second = self._savings(one, more_error), self._savings(other, more_error)
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(first - second, nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = interval(gap, method="inverted_cdf")
        return bool(low <= 0 <= high)

    def _savings(self, family: str, more_error: float) -> NDArray[np.float64]:
        """Shape (B,); -inf where the family does not get there."""
        costs, errors = self.families[family]
        saved = np.full(len(self.cost), -np.inf)
        for i, price in enumerate(self.cost):
            cost = cost_at_error(costs[i], errors[i], self.error[i] + more_error)
            if cost is not None and price > 0:
                saved[i] = 1 - cost / price
        return saved
