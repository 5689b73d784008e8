"""Thresholds: one for all nodes, on any score, or one per exit; and patience.

One threshold per step of a walk is tuned by coordinate descent. Given all other thresholds, every
row that reaches a step has a loss if it stops there and a loss if it goes on, so the best threshold
of the step is the minimum of one running sum over its levels. Steps are taken from the last to the
first, again and again until nothing moves. No round raises the loss; the end is a local optimum,
and the optimum itself where the walk has two nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import (
    RuleScorer,
    Score,
    StopRule,
    Unsuitable,
    pareto_settings,
    plain,
    predictions_of,
    sweep_prices,
    walk_of,
)
from ttamer.fitting.replay import Setting
from ttamer.stats.envelope import rising
from ttamer.trace.losses import Losses, complete_losses
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class Confidence:
    """The confidence as it is in the trace."""

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the certainty of the node."""
        return trace.confidence[:, node]

    def least_confidence(self, node: int, threshold: float) -> float:
        """Return the least confidence of a node that reaches a threshold."""
        del node
        return threshold


@dataclass(frozen=True)
class TraceColumn:
    """A further column of the nodes."""

    field: str
    sign: float = 1.0  # -1 where less of it is more certain

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the certainty of the node; NaN where it has none."""
        values: NDArray[np.float64] | None = getattr(trace, self.field)
        if values is None or np.isnan(values).all():
            raise Unsuitable(
                f"no node of the trace has {self.field}: add columns <node>.{self.field}"
            )
        return self.sign * values[:, node]


@dataclass(frozen=True, eq=False)
class Isotonic:
    """A rising step function of confidence, least squares among all of them.

    >>> curve = Isotonic.fit(np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, True, False, True]))
    >>> curve.starts.tolist(), curve.values.tolist()
    ([0.1, 0.2, 0.4], [0.0, 0.5, 1.0])
    >>> curve(np.array([-1.0, 0.25, 9.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    # Shape (k,), increasing: the least confidence of each block. Below the first, the first.
    starts: NDArray[np.float64]
    values: NDArray[np.float64]  # shape (k,), increasing: the share of right answers in each block

    max_levels: ClassVar[int] = 4096  # finer confidences are grouped by quantiles

    @classmethod
    def fit(cls, confidence: NDArray[np.float64], right: Losses) -> Isotonic:
        """Fit to rows: shape (T,) each, at least one row; ``right`` is from 0 to 1."""
        levels = level_starts(confidence, cls.max_levels)
        level = np.searchsorted(levels, confidence, side="right") - 1
        count = np.bincount(level, minlength=len(levels))
        hits = np.bincount(level, right, minlength=len(levels))
        pooled = rising(hits / count, count.astype(np.float64))
        # Shares nearer than that are equal but for rounding: one block.
        first = np.flatnonzero(np.append(True, np.diff(pooled) > 1e-12))
        return cls(levels[first], np.add.reduceat(hits, first) / np.add.reduceat(count, first))

    def level(self, confidence: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the number of the block each confidence falls in."""
        return np.maximum(np.searchsorted(self.starts, confidence, side="right") - 1, 0)

    def __call__(self, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the calibrated chance of being right."""
        return self.values[self.level(confidence)]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The calibrated chance that a node is right, one curve per node.

    Where answers have losses, "right" is one minus the loss as a share of the largest.
    """

    curves: tuple[Isotonic, ...]

    @classmethod
    def fit(cls, trace: Trace) -> Calibrated:
        """Calibrate every node of a trace."""
        right = 1 - complete_losses(trace).T.astype(float)
        pairs = zip(trace.confidence.T, right, strict=True)
        return cls(tuple(Isotonic.fit(confidence, right) for confidence, right in pairs))

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the chance that this node is right."""
        return self.curves[node](trace.confidence[:, node])

    def least_confidence(self, node: int, threshold: float) -> float:
        """Return the least confidence of a node that reaches a threshold; ``inf`` if none does."""
        curve = self.curves[node]
        block = int(np.searchsorted(curve.values, threshold))
        # Confidences below the first block count as in it: it has no least one.
        return float([-np.inf, *curve.starts[1:], np.inf][block])


def level_starts(values: NDArray[np.float64], limit: int) -> NDArray[np.float64]:
    """Return the distinct values in increasing order, or about as many quantiles as allowed.

    The least value is always among them, so every value has a level that starts at or below it.

    >>> level_starts(np.array([3.0, 1.0, 1.0]), 5).tolist()
    [1.0, 3.0]
    """
    distinct = np.unique(values)
    if len(distinct) <= limit:
        return distinct
    return np.unique(np.quantile(values, np.linspace(0, 1, limit), method="higher"))


def common_thresholds(
    trace: Trace, score: Score, walk: NDArray[np.intp], limit: int = 60
) -> NDArray[np.float64]:
    """Return thresholds to try: every score that could stop a walk, or quantiles; then ``inf``."""
    scores = [score(trace, int(node)) for node in walk[:-1]]
    pool = np.concatenate([values[~np.isnan(values)] for values in scores] or [np.empty(0)])
    return np.append(level_starts(pool, limit - 1) if pool.size else pool, np.inf)


@dataclass
class Threshold:
    """Stop at the first node whose score reaches one threshold for all; else the last answers."""

    name: str
    score: Callable[[Trace], Score]  # makes the score from the rows fitted to
    sign: float = 1.0  # -1 where the score is minus what people know

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the thresholds on the envelope."""
        walk, score = walk_of(trace), self.score(trace)
        score(trace, 0)  # a trace without the column is unsuitable, one of one node too
        cuts = common_thresholds(trace, score, walk)
        rules = [StopRule(score, walk, np.full(len(walk) - 1, cut)) for cut in cuts]
        knobs = [{"threshold": plain(self.sign * cut)} for cut in cuts]
        return pareto_settings(trace, map(Setting, knobs, rules))


@dataclass(frozen=True, eq=False)
class Runs:
    """How many nodes in a row, up to this one, gave the same answer; NaN where it gave none."""

    walk: NDArray[np.intp]

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the length of the run that ends with a node."""
        steps = self.walk[int(np.flatnonzero(self.walk == node)[0]) :: -1]
        answers = predictions_of(trace)[:, steps]  # the newest first
        same = np.logical_and.accumulate(answers == answers[:, :1], axis=1)
        return np.where(answers[:, 0] >= 0, same.sum(axis=1), np.nan)


class Patience:
    """All patiences from 1 (the first answer) to n (all agree): Zhou et al., 2020."""

    name = "patience"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the patiences on the envelope."""
        predictions_of(trace)  # a trace without them is unsuitable, one of one node too
        walk = walk_of(trace)
        settings = []
        for times in range(1, len(walk) + 1):
            rule = StopRule(Runs(walk), walk, np.full(len(walk) - 1, float(times)))
            settings.append(Setting({"patience": times}, rule))
        return pareto_settings(trace, settings)


class ThresholdPerExit:
    """For each price, thresholds that make error + price * cost small on the fit rows.

    The descent begins from the best common threshold at that price, and from never stopping; so on
    the fit rows it is nowhere worse than one threshold for all.
    """

    name = "threshold-per-exit"
    most_levels = 200  # the most thresholds that are tried at each exit

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the sets of thresholds on the envelope."""
        scorer, walk = RuleScorer(trace), walk_of(trace)
        common = common_thresholds(trace, Confidence(), walk)
        starts = [
            np.union1d(level_starts(column, self.most_levels), common[:-1])
            for column in trace.confidence.T
        ]
        descent = Descent(scorer, trace.confidence, starts)
        rules = [StopRule(Confidence(), walk, np.full(len(walk) - 1, cut)) for cut in common]
        points = np.array([scorer.score(rule) for rule in rules])
        names = [trace.names[node] for node in walk[:-1]]

        def solve(price: float) -> Setting:
            best = common[(points[:, 1] + price * points[:, 0]).argmin()]
            ends = [descent.tuned(walk, price, cut) for cut in (best, np.inf)]
            _, thresholds = min(ends, key=lambda end: end[0])
            knob = dict(zip(names, map(plain, thresholds), strict=True))
            rule = StopRule(Confidence(), walk, thresholds)
            return Setting({"price": price, "thresholds": knob}, rule)

        return sweep_prices(trace, solve)


class Descent:
    """One threshold per step of a walk, tuned by coordinate descent.

    Args:
        scorer: The rows fitted to.
        scores: Shape (T, n).
        starts: Per node, increasing: the thresholds to try; behind the last one it never stops.
    """

    rounds = 12  # it has settled after a few

    def __init__(
        self, scorer: RuleScorer, scores: NDArray[np.float64], starts: Sequence[NDArray[np.float64]]
    ) -> None:
        self._wrong, self._costs = scorer.wrong, scorer.trace.costs
        self._ends = [np.append(start, np.inf) for start in starts]
        pairs = zip(starts, scores.T, strict=True)
        self._levels = [np.searchsorted(start, score, side="right") - 1 for start, score in pairs]

    def tuned(
        self, walk: NDArray[np.intp], price: float, cut: float
    ) -> tuple[float, NDArray[np.float64]]:
        """Return error + price * cost, and the thresholds, from a common threshold on."""
        *losses, onward = (self._wrong[:, walk] + price * self._costs[:, walk].cumsum(axis=1)).T
        last = onward
        steps = list(enumerate(walk[:-1].tolist()))
        cuts = [int(np.searchsorted(self._ends[node], cut)) for _, node in steps]
        for _ in range(self.rounds):
            before, onward = list(cuts), last
            reached = [np.ones(len(last), bool)]
            for step, node in steps:
                reached.append(reached[step] & (self._levels[node] < cuts[step]))
            for step, node in reversed(steps):
                level, size = self._levels[node], len(self._ends[node]) - 1
                change = np.where(reached[step], losses[step] - onward, 0.0)
                by_level = np.bincount(level, change, minlength=size)
                total = np.append(np.cumsum(by_level[::-1])[::-1], 0.0)  # of stopping from it on
                best = int(total.argmin())
                # A gain of rounding alone must not move it, or rounds might go in a circle.
                if total[best] < total[cuts[step]] - 1e-12:
                    cuts[step] = best
                onward = np.where(level >= cuts[step], losses[step], onward)
            if cuts == before:
                break
        thresholds = [self._ends[node][cuts[step]] for step, node in steps]
        return float(onward.mean()), np.array(thresholds)
