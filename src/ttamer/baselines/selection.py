"""Which settings of a family are kept: those on its envelope over the fit rows.

Two settings can always be mixed, so what lies inside the lower convex envelope of (cost, error) is
left out: a family gains nothing from more settings. A family that can be optimised for a *price*
(error + price * cost) finds the corners of its envelope one by one: the price at which two
neighbouring corners are equal either brings a corner between them, or there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ttamer.fitting.replay import Rule, Setting, paid
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Losses, Trace, require_rows

# The largest number of prices for which a family is optimised.
MAX_PRICES = 40

_NO_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class RuleScorer:
    """Cost and error of rules on a trace: the same numbers as ``evaluation.measure``.

    Where answers have losses, they are shares of the largest: baselines use them as chances.
    """

    trace: Trace
    wrong: Losses
    """Shape (T, n)."""

    @classmethod
    def of(cls, trace: Trace) -> RuleScorer:
        """Return the scorer of a trace with at least one row."""
        require_rows(trace, 1, "a baseline")
        return cls(trace, trace.loss_shares())

    @property
    def whole_cost(self) -> float:
        """What asking every node costs per row; 1 where everything is free."""
        return float(self.trace.costs.mean(axis=0).sum()) or 1.0

    def score(self, rule: Rule) -> tuple[float, float]:
        """Return (mean cost, error) of a rule."""
        played = rule.play(self.trace)
        wrong = self.wrong[np.arange(len(self.trace)), played.answer]
        return float(paid(played.asked, self.trace).mean()), float(wrong.mean())


def pareto_settings(trace: Trace, settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings on the envelope over the rows of a trace, the cheapest first."""
    scorer = RuleScorer.of(trace)
    return _on_envelope([(*scorer.score(setting.rule), setting) for setting in settings])


def sweep_prices(
    trace: Trace, solve: Callable[[float], Setting], *, most: int = MAX_PRICES
) -> list[Setting]:
    """Return the settings on the envelope that ``solve(price)`` gives, for at most ``most`` prices.

    ``solve`` returns a setting that makes ``error + price * cost`` small on the trace; a price is
    error per unit of cost. Wide gaps are looked into first.
    """
    scorer = RuleScorer.of(trace)
    found: list[tuple[float, float, Setting]] = []

    def ask(price: float) -> int:
        setting = solve(price)
        found.append((*scorer.score(setting.rule), setting))
        return len(found) - 1

    gaps: list[tuple[float, int, int]] = []

    def open_gap(left: int, right: int) -> None:
        wider, lower = found[right][0] - found[left][0], found[left][1] - found[right][1]
        if wider > 0 and lower > 0:
            heapq.heappush(gaps, (-wider * lower, left, right))

    # The ends: whatever error, then whatever cost (but no cost for nothing).
    open_gap(ask(1e6 / scorer.whole_cost), ask(1e-3 / (len(trace) * scorer.whole_cost)))
    while gaps and len(found) < most:
        _, left, right = heapq.heappop(gaps)
        (cost, error, _), (higher, better, _) = found[left], found[right]
        price = (error - better) / (higher - cost)
        middle = ask(price)
        gain = error + price * cost - (found[middle][1] + price * found[middle][0])
        if gain > _NO_GAIN:
            open_gap(left, middle)
            open_gap(middle, right)
    return _on_envelope(found)


def _on_envelope(found: list[tuple[float, float, Setting]]) -> list[Setting]:
    kept = lower_envelope([cost for cost, _, _ in found], [error for _, error, _ in found])
    return [found[point][2] for point in kept]
