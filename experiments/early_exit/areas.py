"""Areas under error over latency on exits, which several experiments compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ttamer as tt
from ttamer.baselines.threshold import (
    EntropyThreshold,
    MarginThreshold,
    Threshold,
    ThresholdPerExit,
)
from ttamer.fitted.replay import full_cost
from ttamer.stats.envelope import area_under

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ttamer.trace import Trace

TARGETS = {"label": "label", "backbone": "last"}
FAMILIES = (Threshold, ThresholdPerExit, MarginThreshold, EntropyThreshold)


class ExitAreas:
    """Areas on some rows, from the cost of the first exit to that of the network."""

    def __init__(self, test: Trace) -> None:
        self.test, self.full = test, full_cost(test.spec, test)
        self._ends = (np.cumsum(test.costs, axis=1) / self.full).mean(axis=0)[[0, -1]]

    def of_points(self, costs: Sequence[float], errors: Sequence[float]) -> float:
        """Return the area of points, costs being shares of the network's."""
        return area_under(costs, errors, *self._ends)

    def of(self, rules: Iterable) -> float:
        """Return the area of policies or rules."""
        results = [tt.evaluate(rule, self.test, resamples=0) for rule in rules]
        return self.of_points(
            [each.cost / self.full for each in results], [each.error for each in results]
        )

    def best_threshold(self, known: Trace) -> float:
        """Return the least area of the kinds of threshold, each fitted to some rows."""
        return min(self.of(setting.rule for setting in family().fit(known)) for family in FAMILIES)
