"""Thresholds that are re-tuned on a window of recent rows, as in Apparate: a baseline for drift.

There is one threshold per exit, on ``1 - confidence``; all start at 0, where no exit answers. In
every step the threshold that saves most cost per additional wrong answer is raised, while the error
on the window stays within the bound; where no step is possible the step size is halved, down to the
smallest (Y. Dai et al., Apparate: Rethinking Early Exits to Tame Latency-Throughput Tensions in ML
Serving, SOSP 2024, section 3.2). The thresholds are tuned again at a fixed interval of audited
rows. They carry no certificate.
"""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np
from numpy.typing import NDArray
from replay import BATCH_ROWS, Arm, ReplayResult, arm_of

from ttamer.baselines.rules import StopRule, walk_of
from ttamer.baselines.threshold import Confidence
from ttamer.drift.monitor import Bound
from ttamer.errors import ArgumentError
from ttamer.fitting.replay import Rule, paid
from ttamer.trace.checks import require_trace
from ttamer.trace.losses import Losses
from ttamer.trace.trace import Trace

# The first step size.
FIRST_STEP = 0.1
# The smallest step size.
MIN_STEP = 0.01


def beside(replayed: ReplayResult, fit: Trace, rows: Trace, *, window: int = 400) -> ReplayResult:
    """Return a replay with thresholds that are tuned again on the same audited rows.

    Args:
        replayed: The replay.
        fit: The rows on which the thresholds are tuned first.
        rows: The rows of the stream.
        window: The number of recent rows on which they are tuned.
    """
    bound = Bound(replayed.settings.kind, replayed.settings.at_most)
    rival, parts = RetunedThresholds(fit, bound, window=window), []
    for begin in range(0, len(rows), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        batch, audited = rows.take(part), replayed.audited[part]
        parts.append(arm_of(rival.rule, batch, replayed.settings))
        if audited.any():
            rival.update(batch.take(audited))
    return dataclasses.replace(replayed, arms={**replayed.arms, "retuned": Arm.joined(parts)})


class RetunedThresholds:
    """Thresholds that are tuned again as audited rows come in.

    Args:
        fit: The rows on which the thresholds are tuned first.
        bound: The error, or the drop, that is allowed on the window.
        window: The number of recent rows on which they are tuned.
        interval: The number of audited rows after which they are tuned again.

    Raises:
        ArgumentError: Where confidences are not between 0 and 1.
    """

    def __init__(self, fit: Trace, bound: Bound, *, window: int = 400, interval: int = 50) -> None:
        self._bound, self._window, self._interval = bound, window, interval
        self._rows: deque[Trace] = deque()
        self._kept = self._since = 0
        self.rule: Rule = tune_thresholds(fit, bound)
        """The current thresholds."""
        self._keep(fit.take(slice(max(0, len(fit) - window), None)))

    def update(self, rows: Trace) -> None:
        """Take audited rows, and tune again at the end of an interval.

        Args:
            rows: The rows, in their order.
        """
        self._keep(rows)
        self._since += len(rows)
        if self._since >= self._interval:
            self._since = 0
            recent = Trace.concat(list(self._rows))
            window = recent.take(slice(max(0, len(recent) - self._window), None))
            self.rule = tune_thresholds(window, self._bound)

    def _keep(self, rows: Trace) -> None:
        """Keep rows, and drop the oldest ones outside the window."""
        self._rows.append(rows)
        self._kept += len(rows)
        while self._kept - len(self._rows[0]) >= self._window:
            self._kept -= len(self._rows.popleft())


def tune_thresholds(window: Trace, bound: Bound) -> StopRule:
    """Return thresholds that save cost on a window while its error stays within a bound.

    Args:
        window: The rows, with confidences between 0 and 1.
        bound: The error, or the drop, that is allowed.

    Returns:
        The thresholds, as a rule.

    Raises:
        ArgumentError: Where confidences are not between 0 and 1.
    """
    require_trace(window, "tune_thresholds")
    if not 0 <= window.confidence.min() <= window.confidence.max() <= 1:
        raise ArgumentError(
            "thresholds are tuned on confidences from 0 to 1; these run from "
            f"{window.confidence.min():.4g} to {window.confidence.max():.4g}: compare without "
            "re-tuned thresholds"
        )
    walk = walk_of(window)
    lost = window.loss * window.unit
    allowed = bound.at_most * len(window)
    if bound.kind == "drop":
        allowed += float(lost[:, bound.node].sum())
    limits = np.zeros(len(walk) - 1)  # an exit answers where 1 - confidence is below this
    errors, spent = _measured(window, walk, limits, lost)
    step = FIRST_STEP
    while step >= MIN_STEP - 1e-12:
        best: tuple[float, int, float, float] | None = None
        for exit_ in range(len(limits)):
            if limits[exit_] >= 1:
                continue
            tried = limits.copy()
            tried[exit_] = min(1.0, tried[exit_] + step)
            wrong, cost = _measured(window, walk, tried, lost)
            saved = spent - cost
            if wrong > allowed or saved <= 0:
                continue
            worth = saved / max(wrong - errors, 0.5)
            if best is None or worth > best[0]:
                best = worth, exit_, wrong, cost
        if best is None:
            step /= 2
            continue
        _, exit_, errors, spent = best
        limits[exit_] = min(1.0, limits[exit_] + step)
    return _rule(walk, limits)


def _rule(walk: NDArray[np.intp], limits: NDArray[np.float64]) -> StopRule:
    """Return the rule with these limits on ``1 - confidence``."""
    return StopRule(Confidence(), walk, np.where(limits > 0, 1 - limits, np.inf))


def _measured(
    window: Trace, walk: NDArray[np.intp], limits: NDArray[np.float64], lost: Losses
) -> tuple[float, float]:
    """Return the number of wrong rows, and the cost of all rows."""
    played = _rule(walk, limits).play(window)
    wrong = lost[np.arange(len(window)), played.answer].sum()
    return float(wrong), float(paid(played.asked, window).sum())
