"""Patience: stop once the same answer was given k times in a row (Zhou et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import predictions_of, walk_of, walked
from ttamer.baselines.selection import pareto_settings
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class PatienceRule:
    """Stop at the first node that makes it ``times`` equal answers in a row, else at the last.

    A node that gives no answer breaks the row.
    """

    walk: NDArray[np.intp]
    times: int

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        predicted = predictions_of(trace)
        stop = np.full(len(trace), len(self.walk) - 1)
        row = np.zeros(len(trace), np.intp)
        going = np.ones(len(trace), bool)
        before = np.full(len(trace), -1, predicted.dtype)
        for step, node in enumerate(self.walk):
            now = predicted[:, node]
            row = np.where(now == before, row + 1, 1)
            row[now < 0] = 0
            enough = going & (row >= self.times)
            stop[enough] = step
            going &= ~enough
            before = now
        return walked(stop, self.walk, len(trace.spec))


class Patience:
    """All patiences from 1 (the first answer) to n (all agree)."""

    name = "patience"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the patiences on the envelope."""
        predictions_of(trace)
        walk = walk_of(trace)
        settings = [
            Setting({"patience": times}, PatienceRule(walk, times))
            for times in range(1, len(walk) + 1)
        ]
        return pareto_settings(trace, settings)
