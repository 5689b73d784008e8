"""Frontiers to report on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttamer.evaluation.frontiers import frontier
from ttamer.fitting.plans import fit

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace

SOME = ("ttamer", "paper", "always-first", "always-last", "always-best", "threshold",
        "entropy", "chain", "frugalml", "oracle")  # fmt: skip
NAMES = ["answered", "calibration", "frontier", "recall", "stop"]


def measured(trace: Trace, families=("ttamer", "always-last", "threshold"), belief="full"):
    """A frontier, the ladder of its own fit, and its test rows."""
    fit_rows, test_rows = trace.split(0.5, 0)
    ladder = fit(fit_rows, belief=belief)
    known = ladder if belief == "full" else None  # not fitted twice
    front = frontier(fit_rows, test_rows, families=families, ladder=known, resamples=40)
    return front, ladder, test_rows
