"""Resampling whole frontiers: intervals for what is read off an envelope.

The intervals of single points are in evaluation. What a family costs at the reference's error
depends on all its points and on the reference at once, all measured on the same rows, so rows are
resampled and the envelope is drawn anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.baselines.moves import Moves
from ttamer.fitted.replay import paid
from ttamer.stats.envelope import cost_at_error, error_at_cost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ttamer.evaluation.frontiers import Frontier
    from ttamer.trace.trace import Trace

__all__ = ["Resampled"]

MOST_BLOCKS = 4000
"""Rows beyond this many are grouped at random, and whole groups are drawn: the mean of a group
varies as much less as it is larger, so the spread of the drawn means stays what it is."""


@dataclass(frozen=True, eq=False)
class Resampled:
    """Errors and costs of some families over B resamples of the test rows."""

    error: NDArray[np.float64]
    """Shape (B,): the reference's."""
    cost: NDArray[np.float64]
    """Shape (B,): the reference's."""
    families: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    """Costs and errors, shape (B, settings) each."""

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
        generator = np.random.default_rng(seed)
        rows, blocks = len(trace), min(len(trace), MOST_BLOCKS)
        block = generator.permutation(np.arange(rows) % blocks)
        drawn = generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=resamples)
        share = drawn / (drawn @ np.bincount(block))[:, np.newaxis]

        def sums(values: NDArray[Any]) -> NDArray[np.float64]:
            total: NDArray[Any] = np.bincount(block, values, blocks)
            return total

        wrong, every = trace.wrong(), np.arange(rows)
        measured = {}
        for family in families:
            plays = frontier.played[family]
            cost = [sums(paid(played.asked, trace)) for played in plays]
            error = [sums(wrong[every, played.answer]) for played in plays]
            measured[family] = (share @ np.column_stack(cost), share @ np.column_stack(error))
        node = trace.names.index(frontier.reference.node)
        price = paid(np.tile(Moves.of(trace).needs[node], (rows, 1)), trace)
        return cls(share @ sums(wrong[:, node]), share @ sums(price), measured)

    def saving(self, family: str, more_error: float) -> tuple[float, float, float]:
        """Return a 95% interval of the saving, and the share of resamples that do not get there."""
        draws = self._savings(family, more_error)
        low, high = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")
        return float(low), float(high), float(np.isneginf(draws).mean())

    def error_at_price(self, family: str) -> tuple[float, float]:
        """Return a 95% interval of the family's error at the reference's cost."""
        found = (
            error_at_cost(costs, errors, price)
            for costs, errors, price in zip(*self.families[family], self.cost, strict=True)
        )
        draws = [1.0 if error is None else error for error in found]  # no answer is a wrong one
        low, high = np.quantile(draws, [0.025, 0.975])
        return float(low), float(high)

    def cannot_tell(self, one: str, other: str, more_error: float) -> bool:
        """Whether the 95% interval of the difference between two savings holds zero."""
        first, second = self._savings(one, more_error), self._savings(other, more_error)
        with np.errstate(invalid="ignore"):
            gap = np.nan_to_num(first - second, nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = np.quantile(gap, [0.025, 0.975], method="inverted_cdf")
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
