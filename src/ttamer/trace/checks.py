"""Checks of a whole trace: mistakes that would otherwise give wrong numbers without an error."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import TraceError, TraceWarning
from ttamer.trace.classes import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ttamer.trace.trace import Trace

__all__ = ["Agreement", "check_classes", "check_for_fit", "warn_of_spaces"]

MIN_RELIABLE_ROWS = 100
"""A fit to fewer rows is warned about: its error and cost on new rows are hardly known."""


@dataclass
class Agreement:
    """Whether predictions and labels ever name the same class.

    Where they never do, they are written differently (``1`` and ``spam``), and every answer would
    count as wrong.
    """

    found: bool = False
    predicted: set[int] = field(default_factory=set)
    labels: set[int] = field(default_factory=set)

    def add(self, trace: Trace) -> None:
        """Take one more part of the trace into account."""
        if self.found or trace.prediction is None or trace.label is None:
            return
        known = trace.label >= 0
        columns = trace.prediction.T
        self.found = any(bool((known & (column == trace.label)).any()) for column in columns)
        if not self.found:
            self.predicted |= set(np.unique(trace.prediction).tolist()) - {-1}
            self.labels |= set(np.unique(trace.label).tolist()) - {-1}
            self.found = not self.predicted.isdisjoint(self.labels)

    def check(self, classes: Sequence[str], place: str) -> None:
        """Refuse a trace in which no label is ever predicted by any node."""
        if self.found or not self.predicted or not self.labels:
            return
        predicted = shown((classes[code] for code in sorted(self.predicted)), 4)
        labels = shown((classes[code] for code in sorted(self.labels)), 4)
        raise TraceError(
            f"{place}: no label is ever predicted by any node: labels are {labels}, "
            f"predictions are {predicted}; write both the same way, or give <node>.correct columns"
        )


def check_classes(trace: Trace, place: str) -> None:
    """Check the classes of a trace in memory as those of a file are checked.

    Args:
        trace: The trace.
        place: Where it comes from: every message begins with it.

    Raises:
        TraceError: If no label is ever predicted by any node and ``correct`` is not given.
    """
    if trace.correct is None:
        agreement = Agreement()
        agreement.add(trace)
        agreement.check(trace.classes, place)
    warn_of_spaces(trace.classes, place)


def warn_of_spaces(classes: Sequence[str], place: str) -> None:
    """Warn of classes that differ only in white space at their ends: they count as two.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_spaces(("cat", "dog", "cat "), "log.csv")
    >>> print(caught[0].message)
    log.csv: the classes 'cat ' and 'cat' differ only in white space, and are two
    classes; strip them
    """
    padded = [text for text in classes if text != text.strip()]
    if not padded:
        return
    first: dict[str, str] = {}
    for text in classes:
        other = first.setdefault(text.strip(), text)
        if other != text:
            one, two = sorted((text, other), key=len, reverse=True)
            warnings.warn(
                f"{place}: the classes {one!r} and {two!r} differ only in white space, and are two "
                "classes; strip them",
                TraceWarning,
                stacklevel=3,
            )
            return


def check_for_fit(trace: Trace) -> None:
    """Check a trace before a fit: its classes, and whether there are enough rows.

    Raises:
        TraceError: If no label is ever predicted by any node and ``correct`` is not given.
    """
    check_classes(trace, "the trace")
    if len(trace) < MIN_RELIABLE_ROWS:
        warnings.warn(
            f"the trace has {len(trace)} rows; below {MIN_RELIABLE_ROWS} the error and cost of a "
            "policy on new rows are hardly known: collect more",
            TraceWarning,
            stacklevel=3,
        )
