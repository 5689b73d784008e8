"""Budgets: what a mean cost that was asked for comes to on rows that were not fitted to.

The fit estimates costs from its own rows, and new rows are few too, so chance alone moves one
from the other: by one standard error of the difference of two means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.fitting.replay import paid
from ttamer.show.tables import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ttamer.trace.trace import Trace

BUDGETS = 10


@dataclass(frozen=True)
class Spent:
    """What a budget came to on rows not fitted to."""

    trace: str
    budget: float
    cost: float
    error_fit: float
    """The standard error of the fit's estimate of cost: its rows are as random as others."""
    error_new: float
    """The standard error of the mean cost of the rows not fitted to."""

    @property
    def off(self) -> float:
        """How much more was spent than asked for, as a share."""
        return self.cost / self.budget - 1

    @property
    def noise(self) -> float:
        """What chance alone moves it by: one standard error, as a share."""
        return math.hypot(self.error_fit, self.error_new) / self.budget


def measure_budgets(name: str, trace: Trace, share: float, fits: int) -> list[Spent]:
    """Ask for ten budgets from the cheapest policy's cost to the most expensive's.

    Some fits are asked, each to another share of the rows.
    """
    found = []
    for seed in range(fits):
        fit_part, new = trace.split(share, seed)
        ladder = tt.fit(fit_part)
        rungs = ladder.require_rungs()
        ends = rungs.costs[[rungs.corners[0], rungs.corners[-1]]]
        for budget in np.linspace(*ends, BUDGETS):
            cost = paid(ladder.for_budget(budget).play(new).asked, new)
            spread = float(cost.std())
            errors = (spread / len(part) ** 0.5 for part in (fit_part, new))
            found.append(Spent(name, float(budget), float(cost.mean()), *errors))
    return found


def kept(spent: Sequence[Spent]) -> str:
    """Return how budgets were kept, trace by trace and over all."""
    rows = []
    for name in (*dict.fromkeys(each.trace for each in spent), "all"):
        found = [each for each in spent if name in ("all", each.trace)]
        off, noise = np.array([e.off for e in found]), np.array([e.noise for e in found])
        rows.append([
            name, f"{off.mean():+.2%}", f"{np.abs(off).mean():.2%}", f"{np.abs(off).max():.2%}",
            f"{np.mean(np.abs(off) <= 0.01):.0%}", f"{noise.mean():.2%}",
            f"{np.sqrt(2 / np.pi) * noise.mean():.2%}", f"{np.mean(np.abs(off) <= 2 * noise):.0%}",
        ])  # fmt: skip
    head = ["budgets", "mean", "mean |off|", "worst", "within 1%", "standard error",
            "|off| by chance", "within 2 errors"]  # fmt: skip
    return table(head, rows)
