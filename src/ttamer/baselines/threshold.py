"""One threshold for all nodes: on confidence, entropy, margin, or the calibrated confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines.isotonic import Calibrated, level_starts
from ttamer.baselines.moves import Moves
from ttamer.baselines.selection import Ruler, worth_having
from ttamer.baselines.stop_rule import StopRule, plain
from ttamer.baselines.unsuitable import Unsuitable
from ttamer.fitted.replay import Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.baselines.stop_rule import Score
    from ttamer.trace.trace import Trace

__all__ = ["CalibratedThreshold", "Confidence", "EntropyThreshold", "MarginThreshold", "Threshold"]

MOST_THRESHOLDS = 60


@dataclass(frozen=True)
class Confidence:
    """The confidence as it stands in the trace."""

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), how sure the node is."""
        return trace.confidence[:, node]


@dataclass(frozen=True)
class Extra:
    """What a node says about itself besides; the sign is -1 where less of it is surer."""

    field: str
    sign: float

    def __call__(self, trace: Trace, node: int) -> NDArray[np.float64]:
        """Return, shape (T,), how sure the node is; NaN where it does not say."""
        return self.sign * _extra(trace, self.field)[:, node]


def common_thresholds(
    trace: Trace, score: Score, walk: NDArray[np.intp], most: int = MOST_THRESHOLDS
) -> NDArray[np.float64]:
    """Return thresholds to try: every score that could stop a walk, or quantiles; then ``inf``."""
    scores = [score(trace, int(node)) for node in walk[:-1]]
    pool = np.concatenate([values[~np.isnan(values)] for values in scores] or [np.empty(0)])
    levels = level_starts(pool, most - 1) if pool.size else pool
    return np.append(levels, np.inf)


def _sweep(trace: Trace, score: Score, sign: float = 1.0) -> list[Setting]:
    walk = Moves.of(trace).walk
    steps = len(walk) - 1
    settings = [
        Setting({"threshold": plain(sign * cut)}, StopRule(score, walk, np.full(steps, cut)))
        for cut in common_thresholds(trace, score, walk)
    ]
    return worth_having(trace, settings)


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
        ruler = Ruler.of(trace)
        return _sweep(trace, Calibrated.fit(trace, ruler.wrong))


def _extra(trace: Trace, field: str) -> NDArray[np.float64]:
    """Return, shape (T, n), what the nodes say, or say that none of them does."""
    if field not in trace.extras or np.isnan(trace.extras[field]).all():
        raise Unsuitable(f"no node of the trace says its {field}: add columns <node>.{field}")
    return trace.extras[field]
