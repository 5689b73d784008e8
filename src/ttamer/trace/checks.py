"""Checks of a whole trace: mistakes that would otherwise give wrong numbers without an error."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, number, percent, require_kind, shown
from ttamer.cascade import ANY_CLASS
from ttamer.errors import TraceError, TraceWarning
from ttamer.trace.schema import located, used_codes

if TYPE_CHECKING:
    from ttamer.trace.trace import Columns, Trace


def coverage(trace: Columns) -> str:
    """Say in one line how complete a trace is."""

    def share(part: NDArray[np.bool_], total: int | None = None) -> str:
        count, total = int(part.sum()), part.size if total is None else total
        return "all" if count == total else f"{count:,} ({percent(count / total)})"

    gaps = [
        f"{name!r} answered on {share(answered)}"
        for name, answered in zip(trace.names, trace.answered.T, strict=True)
        if not answered.all()
    ]
    head = counted(len(trace), "row", ",") + ("" if gaps else ", each with an answer of every node")
    if len(gaps) > 7:  # one line even with hundreds of nodes
        gaps[6:] = [f"{len(gaps) - 6} more nodes have gaps"]
    parts = [head, *gaps]
    if trace.label is not None:
        parts.append(f"a label on {share(trace.label >= 0)}")
    if trace.chance is not None:
        parts.append(f"the chance of {share(trace.chance >= 0)}")
    if trace.group is not None:
        parts.append(counted(len(np.unique(trace.group)), "group", ","))
    try:
        losses = share(trace.loss >= 0, int(trace.answered.sum()))
    except TraceError:
        return "; ".join([*parts, "no losses are known"])
    of = "every answer" if losses == "all" else f"{losses} of the answers"
    return "; ".join([*parts, f"the loss of {of} is known"])


@dataclass
class ClassMatch:
    """Whether predictions and labels ever name the same class.

    Where they never do, they are written differently (``1`` and ``spam``), and every answer would
    count as wrong.
    """

    predicted: set[int] = field(default_factory=set)
    labels: set[int] = field(default_factory=set)

    def add(self, trace: Columns) -> None:
        """Take more rows into account."""
        if trace.prediction is None or trace.label is None or self.predicted & self.labels:
            return
        for codes, seen in ((trace.prediction, self.predicted), (trace.label, self.labels)):
            seen.update(np.flatnonzero(used_codes([codes], len(trace.classes))).tolist())

    def check(self, classes: Sequence[str]) -> None:
        """Refuse a trace in which no label is ever predicted by any node."""
        if self.predicted & self.labels or not self.predicted or not self.labels:
            return
        predicted = shown([classes[code] for code in sorted(self.predicted)], 4)
        labels = shown([classes[code] for code in sorted(self.labels)], 4)
        raise TraceError(
            f"no label is ever predicted by any node: labels are {labels}, "
            f"predictions are {predicted}; write both the same way, or give <node>.correct columns"
        )


def check_classes(trace: Columns, where: str) -> None:
    """Refuse a trace whose labels are never predicted; warn of classes written in two ways."""
    if trace.correct is None and trace.raw_loss is None:
        match = ClassMatch()
        match.add(trace)
        with located(where):
            match.check(trace.classes)
    warn_of_variants(trace.classes, where)


def warn_of_variants(classes: Sequence[str], where: str) -> None:
    """Warn of a class written in two ways: ``"cat "`` and ``"Cat"``, ``3.0`` and ``3``.

    Classes are compared as text, so that these count as two. A column of whole numbers with a
    missing value becomes one of ``3.0`` in many a CSV file.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_variants(("cat", "dog", "cat "), "log.csv")
    >>> print(caught[0].message)
    log.csv: the classes 'cat ' and 'cat' differ only in white space, and count as two
    classes; write them alike
    """
    plain = [re.sub(r"^([+-]?\d+)\.0+$", r"\1", text.strip()).casefold() for text in classes]
    first: dict[str, str] = {}
    for key, text in zip(plain, classes, strict=True):
        alike = first.setdefault(key, text)
        if alike == text:
            continue
        if alike.strip() == text.strip():
            how = "differ only in white space"
        elif alike.strip().casefold() == text.strip().casefold():
            how = "differ only in capitals"
        else:
            how = "are the same number"
        longer, shorter = sorted((text, alike), key=len, reverse=True)
        warnings.warn(
            f"{where}: the classes {longer!r} and {shorter!r} {how}, and count as two classes; "
            "write them alike",
            TraceWarning,
            stacklevel=3,
        )
        return


def require_trace(trace: object, what: str) -> None:
    """Refuse anything but a trace; a data frame is named with what to call."""
    # The trace imports its checks.
    from ttamer.trace.trace import Trace

    remedy = "Trace.from_frame(frame, {...}) for a data frame"
    remedy = f"make one with Trace.read(path), or {remedy}"
    require_kind(trace, Trace, f"{what} needs a Trace", remedy)


def require_rows(trace: Sized, least: int, what_for: str) -> None:
    """Refuse a trace too short for what is asked."""
    if len(trace) < least:
        raise TraceError(
            f"the trace has {counted(len(trace), 'row')}, and {what_for} needs at least {least}: "
            "bring a longer trace"
        )


def check_for_fit(trace: Trace, enough: int = 100) -> None:
    """Check a trace before a fit: its classes, answers and units, and whether rows are enough.

    With fewer than ``enough`` rows, 100 being the smallest log of the experiments whose measured
    errors held on new rows, a fit warns.
    """
    require_trace(trace, "a fit")
    check_classes(trace, "the trace")
    if len(trace) < enough:
        _warn(
            f"the trace has {counted(len(trace), 'row')}; below {enough} the error and cost of a "
            "policy on new rows are hardly known: collect more"
        )
    if any(note.endswith("at cost 1") for note in trace.notes):  # as infer_spec writes
        _warn(
            "no costs were given, so that nodes without a column of costs cost 1 each: give them, "
            'as in Trace.read(path, {"small": 1.0, "large": 12.5}) or from_frame(frame, {...})'
        )
    checks = (label_warnings, _cost_warnings, _scale_warnings, _mistake_warnings)
    for text in (text for check in checks for text in check(trace)):
        _warn(f"the trace: {text}")


def _warn(text: str) -> None:
    warnings.warn(text, TraceWarning, stacklevel=4)


def _cost_warnings(trace: Trace) -> tuple[str, ...]:
    """Return a warning where costs of rows are not those of the cascade.

    By a factor of 30 they are in different units; by 3 on 100 rows or more, prices have changed. A
    price by tokens is only a part of a node's cost, and so is that of a row where calls cost, too.
    """
    if trace.cost.ndim == 1 or not len(trace):
        return ()
    means = []
    for node, costs in zip(trace.spec.nodes, trace.cost.T, strict=True):
        filled = costs[~np.isnan(costs)]
        # A ratio to a cost of 0 says nothing.
        is_part = node.cost_per_call or "cost_per_token" in node.options
        if node.cost and len(filled) and not is_part:
            mean = float(filled.mean())
            means.append((max(mean / node.cost, node.cost / mean if mean else 1.0), mean, node))
    ratio, mean, changed = max(means, key=lambda entry: entry[0], default=(1.0, 0.0, None))
    if changed is None or ratio < (3 if len(trace) >= 100 else 30):
        return ()
    remedy = "write both in one unit" if ratio > 30 else "correct the one that is out of date"
    return (
        f"the costs of rows of {changed.name!r} have mean {number(mean)}, and its cost in the "
        f"cascade is {number(changed.cost)}; {remedy}: rows count in fits and evaluations, the "
        "cascade's where a policy runs",
    )


def _scale_warnings(trace: Trace) -> tuple[str, ...]:
    """Return a warning where a node's confidences are on two scales: shares and percentages."""
    for name, column in zip(trace.names, trace.confidence.T, strict=True):
        values = column[~np.isnan(column)]
        # Percentages lie within 0 to 100; log-probabilities and margins do not.
        if len(values) < 20 or values.min() < 0 or not 1 < values.max() <= 100:
            continue
        shares = values <= 1
        # 0 and 1 are on both scales; whole numbers beside shares are percentages or none.
        inside = shares & (values > 0) & (values < 1)
        if (
            inside.mean() > 0.05
            and (values > 10).mean() > 0.05
            and not ((values > 1) & (values <= 10)).any()
        ):
            return (
                f"confidences of {name!r} are on two scales: {int(shares.sum()):,} from 0 to 1, "
                f"and {int((~shares).sum()):,} above 10, up to {number(float(values.max()))}; "
                "write all of them on one",
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
        One sentence for each problem; empty where there is none, or with fewer than 20 rows, too
        few to conclude anything from how often answers match.
    """
    require_trace(trace, "label_warnings")
    # Too few rows to conclude anything from how often answers match.
    if len(trace) < 20:
        return ()
    texts = []
    if trace.prediction is not None and len(trace.spec) > 1 and trace.raw_loss is None:
        pairs = [
            (*_agreement(trace, i, j), i, j) for i, j in combinations(range(len(trace.spec)), 2)
        ]
        # A log with gaps may hardly have two nodes on one row.
        pairs = [pair for pair in pairs if pair[0] >= 20]
        _, agreement, i, j = max(pairs, key=lambda pair: pair[1], default=(0, 1.0, 0, 0))
        if agreement < 0.2:
            names = f"{trace.names[i]!r} and {trace.names[j]!r}"
            texts.append(
                f"no two nodes give the same answer on more than {agreement:.1%} of rows ({names})"
                "; free text is seldom equal word for word: bring answers into one form by a rule "
                "(compare in [serve]), as ttamer collect and ttamer import answers do"
            )
    if trace.is_graded:
        return tuple(texts)  # no loss is too large
    texts += _strange_answers(trace)
    try:
        is_known = ~np.isnan(trace.loss)
    except TraceError:
        return tuple(texts)  # which answers are right is not known
    wrong = np.where(is_known, trace.loss, 0.0).sum(axis=0)
    errors = wrong / np.maximum(is_known.sum(axis=0), 1)
    # If even the best node is wrong on most rows, labels and answers do not fit together.
    best = int(errors.argmin())
    if errors[best] > 0.5:
        texts.append(
            f"every node is wrong on most rows; the best, {trace.names[best]!r}, on "
            f"{errors[best]:.1%}: check that labels and answers are written alike, and how they "
            "were compared (compare in [serve], when answers were collected or imported)"
        )
    return tuple(texts)


def _agreement(trace: Trace, i: int, j: int) -> tuple[int, float]:
    """Return on how many rows two nodes answered, and the share of these on which they agree."""
    assert trace.prediction is not None  # noqa: S101 - the caller has looked
    rows = trace.answered[:, i] & trace.answered[:, j]
    first, second = trace.prediction[rows, i], trace.prediction[rows, j]
    return int(rows.sum()), float(np.mean((first == second) & (first >= 0))) if rows.any() else 0.0


def _strange_answers(trace: Trace) -> list[str]:
    """Return a warning where one node never answers with a class that any label has."""
    if trace.correct is not None or trace.prediction is None or trace.label is None:
        return []
    if trace.spec.target != "label":
        return []
    labels = set(trace.label[trace.label >= 0].tolist())
    for name, column in zip(trace.names, trace.prediction.T, strict=True):
        answers = set(column[column >= 0].tolist())
        if answers and labels and answers.isdisjoint(labels):
            texts = [shown([trace.classes[c] for c in sorted(k)], 3) for k in (answers, labels)]
            return [
                f"no answer of {name!r} is the label of any row: its answers are {texts[0]}, "
                f"labels are {texts[1]}; write both the same way"
            ]
    return []
