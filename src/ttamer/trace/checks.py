"""Checks of a whole trace: mistakes that would otherwise give wrong numbers without an error."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ttamer._checks import counted, require_kind
from ttamer.cascade import ANY_CLASS
from ttamer.errors import TraceError, TraceWarning
from ttamer.trace.classes import shown

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace


# A whole number as a number with a point.
_WHOLE = re.compile(r"^([+-]?\d+)\.0+$")
# The end of the note on nodes whose costs were not given.
UNPRICED = "at cost 1"
# Mean costs of rows further from the cascade's cost, by this factor, are warned about.
UNIT_RATIO = 30.0
# A fit to fewer rows is warned about: its error and cost on new rows are hardly known.
MIN_RELIABLE_ROWS = 100
# With fewer rows, nothing is concluded from how often answers match.
MIN_COMPARED_ROWS = 20
# The share of rows on which some two nodes are expected to agree.
MIN_AGREEMENT = 0.2
# The error that the best node is expected to stay below.
MAX_BEST_ERROR = 0.5


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
    if trace.correct is None and trace.raw_loss is None:
        agreement = Agreement()
        agreement.add(trace)
        agreement.check(trace.classes, place)
    warn_of_variants(trace.classes, place)


def warn_of_variants(classes: Sequence[str], place: str) -> None:
    """Warn of a class that is written in two ways: ``"cat "`` and ``"cat"``, ``3.0`` and ``3``.

    Classes are compared as text, so that these count as two. A column of whole numbers with a
    missing value becomes one of ``3.0`` in many a CSV file.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_variants(("cat", "dog", "cat "), "log.csv")
    ...     warn_of_variants(("3.0", "3"), "log.csv")
    >>> for each in caught:
    ...     print(each.message)
    log.csv: the classes 'cat ' and 'cat' differ only in white space, and count as two
    classes; write them alike
    log.csv: the classes '3.0' and '3' are the same number, and count as two
    classes; write them alike
    """
    plain = [_WHOLE.sub(r"\1", text.strip()) for text in classes]
    if all(map(operator.eq, plain, classes)):
        return
    first: dict[str, str] = {}
    for key, text in zip(plain, classes, strict=True):
        other = first.setdefault(key, text)
        if other != text:
            one, two = sorted((text, other), key=len, reverse=True)
            is_space = one.strip() == two.strip()
            how = "differ only in white space" if is_space else "are the same number"
            warnings.warn(
                f"{place}: the classes {one!r} and {two!r} {how}, and count as two classes; "
                "write them alike",
                TraceWarning,
                stacklevel=3,
            )
            return


def require_trace(trace: object, what: str) -> None:
    """Refuse anything but a trace; a data frame is named with what to call."""
    from ttamer.trace.trace import Trace

    remedy = "Trace.from_frame(frame, costs={...}) for a data frame"
    remedy = f"make one with Trace.read(path), or {remedy}"
    require_kind(trace, Trace, f"{what} needs a Trace", remedy)


def check_for_fit(trace: Trace) -> None:
    """Check a trace before a fit: its classes, its answers, and whether there are enough rows.

    Raises:
        TraceError: If no label is ever predicted by any node and ``correct`` is not given.
    """
    require_trace(trace, "a fit")
    check_classes(trace, "the trace")
    if len(trace) < MIN_RELIABLE_ROWS:
        warnings.warn(
            f"the trace has {counted(len(trace), 'row')}; below {MIN_RELIABLE_ROWS} the error and "
            "cost of a policy on new rows are hardly known: collect more",
            TraceWarning,
            stacklevel=4,
        )
    if any(note.endswith(UNPRICED) for note in trace.notes):
        warnings.warn(
            "no costs were given, so that nodes without a column of costs cost 1 each: give them, "
            'as in Trace.read(path, {"small": 1.0, "large": 12.5}) or from_frame(..., costs={...})',
            TraceWarning,
            stacklevel=4,
        )
    for text in (*label_warnings(trace), *_unit_warnings(trace), *_mistake_warnings(trace)):
        warnings.warn(f"the trace: {text}", TraceWarning, stacklevel=4)


def _unit_warnings(trace: Trace) -> tuple[str, ...]:
    """Return a warning where costs of rows and the cascade's seem to be in different units."""
    means = trace.costs.mean(axis=0) if len(trace) else trace.spec.costs
    for node, mean in zip(trace.spec.nodes, means.tolist(), strict=True):
        is_fixed = node.cost > 0 and "cost_per_token" not in node.options  # else it is a part
        if is_fixed and mean > 0 and not 1 / UNIT_RATIO <= mean / node.cost <= UNIT_RATIO:
            return (
                f"the costs of rows of {node.name!r} have mean {mean:.4g}, and its cost in the "
                f"cascade is {node.cost:.4g}; write both in one unit: rows count in fits and "
                "evaluations, the cascade's where a policy runs",
            )
    return ()


def _mistake_warnings(trace: Trace) -> tuple[str, ...]:
    """Return a warning where classes of the table of mistakes seem to be written differently.

    A table may have classes that these rows lack; but not only such, and none that a row has in
    other letters.
    """
    table = trace.spec.mistakes
    named = {*table, *(prediction for row in table.values() for prediction in row)} - {ANY_CLASS}
    unknown = sorted(named.difference(trace.classes))
    if named.intersection(trace.classes):
        alike = {name.strip().casefold() for name in trace.classes}
        unknown = [name for name in unknown if name.strip().casefold() in alike]
    if not unknown or trace.prediction is None:
        return ()
    return (
        f"the table of mistakes has {shown(unknown)}, which no row has as label or prediction; the "
        f"classes are {shown(trace.classes)}: check how they are written",
    )


def label_warnings(trace: Trace) -> tuple[str, ...]:
    """Return warnings about answers that hardly ever match.

    Long answers in prose are almost never equal as text. A fit then offers one node or another, and
    nothing in between, however good the nodes are.

    >>> from ttamer.trace import CascadeSpec, Trace
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = [[f"answer {row}", f"the answer is {row}"] for row in range(30)]
    >>> (warning,) = label_warnings(Trace.from_arrays(spec, np.ones((30, 2)), prediction=answers))
    >>> warning.partition(";")[0]
    "no two nodes give the same answer on more than 0.0% of rows ('small' and 'large')"

    Args:
        trace: The rows to be fitted.

    Returns:
        One sentence for each problem; empty where there is none, or with fewer than 20 rows.
    """
    require_trace(trace, "label_warnings")
    if len(trace) < MIN_COMPARED_ROWS:
        return ()
    found = []
    if trace.prediction is not None and len(trace.spec) > 1 and trace.raw_loss is None:
        answers = trace.prediction
        agreement, one, two = max(
            (float(np.mean((answers[:, i] == answers[:, j]) & (answers[:, i] >= 0))), i, j)
            for i, j in combinations(range(len(trace.spec)), 2)
        )
        if agreement < MIN_AGREEMENT:
            names = f"{trace.names[one]!r} and {trace.names[two]!r}"
            found.append(
                f"no two nodes give the same answer on more than {agreement:.1%} of rows ({names})"
                "; free text is seldom equal word for word: bring answers into one form by a rule "
                "(compare in [serve]), as ttamer collect and ttamer import answers do"
            )
    if trace.is_graded:
        return tuple(found)  # no loss is too large
    found += _strange_answers(trace)
    try:
        errors = trace.wrong().mean(axis=0)
    except TraceError:
        return tuple(found)  # which answers are right is not known
    best = int(errors.argmin())
    if errors[best] > MAX_BEST_ERROR:
        found.append(
            f"every node is wrong on most rows; the best, {trace.names[best]!r}, on "
            f"{errors[best]:.1%}: check that labels and answers are written alike, and how they "
            "were compared (compare in [serve], when answers were collected or imported)"
        )
    return tuple(found)


def _strange_answers(trace: Trace) -> list[str]:
    """Return a warning where one node never answers with a class that any label has."""
    if trace.correct is not None or trace.prediction is None or trace.label is None:
        return []
    if trace.spec.target != "label":
        return []
    labels = np.unique(trace.label[trace.label >= 0])
    for name, column in zip(trace.names, trace.prediction.T, strict=True):
        answers = np.unique(column[column >= 0])
        if len(answers) and len(labels) and not np.isin(answers, labels).any():
            given, right = (
                shown((trace.classes[code] for code in codes.tolist()), 3)
                for codes in (answers, labels)
            )
            return [
                f"no answer of {name!r} is the label of any row: its answers are {given}, labels "
                f"are {right}; write both the same way"
            ]
    return []
