"""One confidence threshold per exit, tuned on the fit rows for a range of prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines.descent import descend
from ttamer.baselines.isotonic import level_starts
from ttamer.baselines.moves import Moves
from ttamer.baselines.selection import Ruler, sweep_prices
from ttamer.baselines.stop_rule import StopRule, plain
from ttamer.baselines.threshold import Confidence, common_thresholds
from ttamer.fitted.replay import Setting

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

__all__ = ["ThresholdPerExit"]

MOST_LEVELS = 200


class ThresholdPerExit:
    """For each price, thresholds that make error + price * cost small on the fit rows.

    The descent begins from the best common threshold at that price, and from never stopping; so on
    the fit rows it is nowhere worse than one threshold for all.
    """

    name = "threshold-per-exit"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the sets of thresholds on the envelope."""
        ruler, walk = Ruler.of(trace), Moves.of(trace).walk
        common = common_thresholds(trace, Confidence(), walk)
        said = [trace.confidence[:, node] for node in walk[:-1]]
        starts = [np.union1d(level_starts(x, MOST_LEVELS), common[:-1]) for x in said]
        levels = [
            np.searchsorted(s, x, side="right") - 1 for s, x in zip(starts, said, strict=True)
        ]
        sizes = [len(s) for s in starts]
        wrong = ruler.wrong[:, walk]
        spent = np.cumsum(trace.costs[:, walk], axis=1)
        rules = [StopRule(Confidence(), walk, np.full(len(said), cut)) for cut in common]
        points = np.array([ruler.measure(rule) for rule in rules])

        def solve(price: float) -> Setting:
            losses = list((wrong + price * spent).T)
            cut = common[(points[:, 1] + price * points[:, 0]).argmin()]
            begin = [[int(np.searchsorted(s, cut)) for s in starts], sizes]
            cuts, _ = min(
                (descend(levels, sizes, losses, b) for b in begin), key=lambda end: end[1]
            )
            thresholds = np.array(
                [np.append(s, np.inf)[cut] for s, cut in zip(starts, cuts, strict=True)]
            )
            names = [trace.names[node] for node in walk[:-1]]
            knob = {
                "price": price,
                "thresholds": dict(zip(names, map(plain, thresholds), strict=True)),
            }
            return Setting(knob, StopRule(Confidence(), walk, thresholds))

        return sweep_prices(trace, solve)
