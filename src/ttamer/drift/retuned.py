"""Thresholds re-tuned on the recent window, as Apparate does it: what people do about drift today.

One threshold per exit on ``1 - confidence``. From no exit at all, the threshold whose rise saves
most per wrong answer it adds is raised, step by step, while the error on the window stays within
what is allowed; where no step is possible steps are halved, down to the smallest. (Y. Dai et al.,
Apparate: Rethinking Early Exits to Tame Latency-Throughput Tensions in ML Serving, SOSP 2024,
section 3.2.) It is tuned again every so many audited rows, on the last so many. Nothing is
certified: what the window did not show is not known.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ttamer.baselines.moves import Moves
from ttamer.baselines.stop_rule import StopRule
from ttamer.baselines.threshold import Confidence
from ttamer.errors import ArgumentError
from ttamer.fitted.replay import paid
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.drift.watch import Bound
    from ttamer.fitted.replay import Rule

__all__ = ["Retuned", "tune"]

FIRST_STEP, LAST_STEP = 0.1, 0.01


class Retuned:
    """A rule that is tuned again as audited rows come in."""

    def __init__(self, fit: Trace, bound: Bound, *, window: int = 400, every: int = 50) -> None:
        self._bound, self._window, self._every = bound, window, every
        self._rows: deque[Trace] = deque()
        self._kept = self._since = 0
        self.rule: Rule = tune(fit, bound)
        self._keep(fit.take(slice(max(0, len(fit) - window), None)))

    def see(self, rows: Trace) -> None:
        """Take audited rows, and tune again when it is time."""
        self._keep(rows)
        self._since += len(rows)
        if self._since >= self._every:
            self._since = 0
            recent = Trace.concat(list(self._rows))
            self.rule = tune(recent.take(slice(max(0, len(recent) - self._window), None)),
                             self._bound)  # fmt: skip

    def _keep(self, rows: Trace) -> None:
        self._rows.append(rows)
        self._kept += len(rows)
        while self._kept - len(self._rows[0]) >= self._window:
            self._kept -= len(self._rows.popleft())


def tune(window: Trace, bound: Bound) -> StopRule:
    """Return thresholds that save much on a window, and err no more there than is allowed."""
    if not 0 <= window.confidence.min() <= window.confidence.max() <= 1:
        raise ArgumentError(
            "thresholds are tuned on confidences from 0 to 1, and these are not: leave re-tuned "
            "thresholds out"
        )
    walk = Moves.of(window).walk
    lost = window.wrong()
    allowed = bound.at_most * len(window)
    if bound.kind == "drop":
        allowed += float(lost[:, bound.node].sum())
    doubt = np.zeros(len(walk) - 1)  # an exit answers where 1 - confidence is below this
    errors, spent = _measured(window, walk, doubt, lost)
    step = FIRST_STEP
    while step >= LAST_STEP - 1e-12:
        best: tuple[float, int, float, float] | None = None
        for exit_ in range(len(doubt)):
            if doubt[exit_] >= 1:
                continue
            tried = doubt.copy()
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
        doubt[exit_] = min(1.0, doubt[exit_] + step)
    return _rule(walk, doubt)


def _rule(walk: NDArray[np.intp], doubt: NDArray[np.float64]) -> StopRule:
    return StopRule(Confidence(), walk, np.where(doubt > 0, 1 - doubt, np.inf))


def _measured(
    window: Trace, walk: NDArray[np.intp], doubt: NDArray[np.float64], lost: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return how many rows are wrong, and what all of them cost."""
    played = _rule(walk, doubt).play(window)
    wrong = lost[np.arange(len(window)), played.answer].sum()
    return float(wrong), float(paid(played.asked, window).sum())
