"""Thresholds: one for all nodes, on any score, or one per exit; and patience.

One threshold per step of a walk is tuned by coordinate descent. Given all other thresholds, every
row that reaches a step has a loss if it stops there and a loss if it goes on, so the best threshold
of the step is the minimum of one running sum over its levels. Steps are taken from the last to the
first, again and again until nothing moves. No round raises the loss; the end is a local optimum,
and the optimum itself where the walk has two nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.calibration import Calibrated, level_starts
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
    walked,
)
from ttamer.fitting.replay import Played, Setting
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
class Extra:
    """A further column of a node; the sign is -1 where less of it is more certain."""

    field: str
    sign: float

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), the certainty of the node; NaN where it has none."""
        return self.sign * _extra(trace, self.field)[:, node]


def common_thresholds(
    trace: Trace, score: Score, walk: NDArray[np.intp], limit: int = 60
) -> NDArray[np.float64]:
    """Return thresholds to try: every score that could stop a walk, or quantiles; then ``inf``."""
    scores = [score(trace, int(node)) for node in walk[:-1]]
    pool = np.concatenate([values[~np.isnan(values)] for values in scores] or [np.empty(0)])
    levels = level_starts(pool, limit - 1) if pool.size else pool
    return np.append(levels, np.inf)


def _sweep(trace: Trace, score: Score, sign: float = 1.0) -> list[Setting]:
    walk = walk_of(trace)
    steps = len(walk) - 1
    settings = [
        Setting({"threshold": plain(sign * cut)}, StopRule(score, walk, np.full(steps, cut)))
        for cut in common_thresholds(trace, score, walk)
    ]
    return pareto_settings(trace, settings)


class Threshold:
    """Stop at the first node whose confidence reaches one threshold; else the last answers."""

    name = "threshold"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the thresholds on the envelope."""
        return _sweep(trace, Confidence())


class EntropyThreshold:
    """Stop at the first node whose entropy is at most the threshold."""

    name = "entropy"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the thresholds on the envelope, in units of entropy."""
        _extra(trace, "entropy")
        return _sweep(trace, Extra("entropy", -1.0), -1.0)


class MarginThreshold:
    """Stop at the first node whose margin (best class over the second) reaches the threshold."""

    name = "margin"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the thresholds on the envelope."""
        _extra(trace, "margin")
        return _sweep(trace, Extra("margin", 1.0))


class CalibratedThreshold:
    """Stop at the first node whose calibrated chance of being right reaches the threshold."""

    name = "calibrated"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the thresholds on the envelope, as probabilities."""
        scorer = RuleScorer.of(trace)
        return _sweep(trace, Calibrated.fit(trace, scorer.wrong))


class ThresholdPerExit:
    """For each price, thresholds that make error + price * cost small on the fit rows.

    The descent begins from the best common threshold at that price, and from never stopping; so on
    the fit rows it is nowhere worse than one threshold for all.
    """

    name = "threshold-per-exit"
    most_levels = 200
    """The most thresholds that are tried at each exit."""

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the sets of thresholds on the envelope."""
        scorer, walk = RuleScorer.of(trace), walk_of(trace)
        common = common_thresholds(trace, Confidence(), walk)
        scores = [trace.confidence[:, node] for node in walk[:-1]]
        starts = [np.union1d(level_starts(x, self.most_levels), common[:-1]) for x in scores]
        levels = [
            np.searchsorted(s, x, side="right") - 1 for s, x in zip(starts, scores, strict=True)
        ]
        sizes = [len(s) for s in starts]
        wrong = scorer.wrong[:, walk]
        spent = np.cumsum(trace.costs[:, walk], axis=1)
        rules = [StopRule(Confidence(), walk, np.full(len(scores), cut)) for cut in common]
        points = np.array([scorer.score(rule) for rule in rules])

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


def descend(
    levels: Sequence[NDArray[np.intp]],
    sizes: Sequence[int],
    losses: Sequence[NDArray[np.float64]],
    cuts: Sequence[int],
) -> tuple[list[int], float]:
    """Return the level from which each step stops, and the mean loss.

    Args:
        levels: Per step but the last, shape (T,): the level of the score on each row.
        sizes: Per step but the last: how many levels there are; a cut at ``size`` never stops.
        losses: Per step, shape (T,): what stopping there loses on each row, costs included.
        cuts: Where to begin.

    >>> stop, go = np.array([0.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5])
    >>> descend([np.array([2, 0, 1])], [3], [stop, go], [0])
    ([2], 0.3333333333333333)

    """
    levels_from = list(cuts)
    onward = losses[-1]
    for _ in range(12):  # rounds; it has settled after a few
        before = list(levels_from)
        reached = [np.ones(len(losses[0]), bool)]
        for step in range(len(levels) - 1):
            reached.append(reached[step] & (levels[step] < levels_from[step]))
        onward = losses[-1]
        for step in range(len(levels) - 1, -1, -1):
            change = np.where(reached[step], losses[step] - onward, 0.0)
            by_level = np.bincount(levels[step], change, minlength=sizes[step])
            total = np.append(np.cumsum(by_level[::-1])[::-1], 0.0)  # of stopping from a level on
            best = int(total.argmin())
            if total[best] < total[levels_from[step]] - 1e-12:
                levels_from[step] = best
            onward = np.where(levels[step] >= levels_from[step], losses[step], onward)
        if levels_from == before:
            break
    return levels_from, float(onward.mean())


def _extra(trace: Trace, field: str) -> NDArray[np.float64]:
    """Return a column of all nodes, shape (T, n); a trace without it is unsuitable."""
    values: NDArray[np.float64] | None = getattr(trace, field)
    if values is None or np.isnan(values).all():
        raise Unsuitable(f"no node of the trace has {field}: add columns <node>.{field}")
    return values


@dataclass(frozen=True, eq=False)
class PatienceRule:
    """Stop at the first node that makes it ``times`` equal answers in a row, else at the last.

    A node that gives no answer breaks the row.
    """

    walk: NDArray[np.intp]
    times: int

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        answers, last = predictions_of(trace)[:, self.walk], len(self.walk) - 1
        stop, row = np.full(len(trace), last), np.zeros(len(trace), np.intp)
        for step in range(len(self.walk)):
            same = answers[:, step] == answers[:, step - 1] if step else np.False_
            row = np.where(answers[:, step] < 0, 0, np.where(same, row + 1, 1))
            stop = np.where((row >= self.times) & (stop == last), step, stop)
        return walked(stop, self.walk, len(trace.spec))


class Patience:
    """All patiences from 1 (the first answer) to n (all agree): Zhou et al., 2020."""

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
