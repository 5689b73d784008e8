"""Checks of a whole trace: mistakes that would otherwise give wrong numbers without an error."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
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
    if len(gaps) > 7:  # one line even with hundreds of nodes
        gaps[6:] = [f"{len(gaps) - 6} more nodes have gaps"]
    rows = counted(len(trace), "row", ",")
    parts = [rows, *gaps] if gaps else [f"{rows}, each with an answer of every node"]
    if trace.label is not None:
        parts.append(f"a label on {share(trace.label >= 0)}")
    if trace.chance is not None:
        parts.append(f"the chance of {share(trace.chance >= 0)}")
    if trace.group is not None:
        parts.append(counted(np.unique(trace.units).size, "group", ","))
    try:
        losses = share(trace.loss >= 0, int(trace.answered.sum()))
    except TraceError:
        return "; ".join([*parts, "no losses are known"])
    of = "every answer" if losses == "all" else f"{losses} of the answers"
    return "; ".join([*parts, f"the loss of {of} is known"])


class ClassMatch:
    """Whether predictions and labels ever name the same class.

    Where they never do, they are written differently (``1`` and ``spam``), and every answer would
    count as wrong.
    """

    def __init__(self) -> None:
        self._seen: dict[str, set[int]] = {"labels": set(), "predictions": set()}

    def add(self, trace: Columns) -> None:
        """Take more rows into account; columns that say what is right need no match."""
        if trace.correct is None and trace.raw_loss is None:
            for name, codes in (("labels", trace.label), ("predictions", trace.prediction)):
                used = used_codes([] if codes is None else [codes], len(trace.classes))
                self._seen[name].update(np.flatnonzero(used).tolist())

    def check(self, classes: Sequence[str]) -> None:
        """Refuse a trace in which no label is ever predicted by any node."""
        if set.intersection(*self._seen.values()) or not all(self._seen.values()):
            return
        texts = [
            f"{name} are {shown([classes[code] for code in sorted(codes)], 4)}"
            for name, codes in self._seen.items()
        ]
        raise TraceError(
            f"no label is ever predicted by any node: {', '.join(texts)}; write both the same way, "
            "or give <node>.correct columns"
        )


def check_classes(trace: Columns, where: str) -> None:
    """Refuse a trace whose labels are never predicted; warn of classes written in two ways."""
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
    first: dict[str, str] = {}
    for text in classes:
        plain = re.sub(r"^([+-]?\d+)\.0+$", r"\1", text.strip()).casefold()
        if (alike := first.setdefault(plain, text)) == text:
            continue
        how = "are the same number"
        if alike.strip() == text.strip():
            how = "differ only in white space"
        elif alike.strip().casefold() == text.strip().casefold():
            how = "differ only in capitals"
        longer, shorter = sorted((text, alike), key=len, reverse=True)
        message = f"{where}: the classes {longer!r} and {shorter!r} {how}, and count as two classes"
        warnings.warn(f"{message}; write them alike", TraceWarning, stacklevel=3)
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
    texts = []
    if len(trace) < enough:
        texts.append(
            f"the trace has {counted(len(trace), 'row')}; below {enough} the error and cost of a "
            "policy on new rows are hardly known: collect more"
        )
    if any(note.endswith("at cost 1") for note in trace.notes):  # as infer_spec writes
        texts.append(
            "no costs were given, so that nodes without a column of costs cost 1 each: give them, "
            'as in Trace.read(path, {"small": 1.0, "large": 12.5}) or from_frame(frame, {...})'
        )
    checks = (_label_warnings, _cost_warnings, _scale_warnings, _mistake_warnings)
    texts += [f"the trace: {text}" for check in checks for text in check(trace)]
    for text in texts:
        warnings.warn(text, TraceWarning, stacklevel=3)


def _cost_warnings(trace: Trace) -> Iterator[str]:
    """Yield a warning where costs of rows are not those of the cascade.

    By a factor of 30 they are in different units; by 1.5 on 100 rows, prices have changed. A
    price by tokens is only a part of a node's cost, and so is that of a row where calls cost, too.
    """
    ratios = []
    for node, costs in zip(trace.spec.nodes, trace.costs.T, strict=True):
        filled = costs[~np.isnan(costs)]
        # A ratio to a cost of 0 says nothing.
        is_part = node.cost_per_call or "cost_per_token" in node.options
        if node.cost and len(filled) and not is_part:
            mean = float(filled.mean())
            ratios.append((max(mean / node.cost, node.cost / mean if mean else 1.0), mean, node))
    ratio, mean, changed = max(ratios, key=lambda entry: entry[0], default=(1.0, 0.0, None))
    if changed is not None and ratio >= (1.5 if len(trace) >= 100 else 30):
        remedy = "write both in one unit" if ratio > 30 else "correct the one that is out of date"
        yield (
            f"the costs of rows of {changed.name!r} have mean {number(mean)}, and its cost in the "
            f"cascade is {number(changed.cost)}; {remedy}: rows count in fits and evaluations (the "
            "cascade's with --prices), the cascade's where a policy runs"
        )


def _scale_warnings(trace: Trace) -> Iterator[str]:
    """Yield a warning where a node's confidences are on two scales: shares and percentages."""
    for name, column in zip(trace.names, trace.confidence.T, strict=True):
        values = column[~np.isnan(column)]
        # Percentages lie within 0 to 100; log-probabilities and margins do not.
        if len(values) < 20 or values.min() < 0 or not 1 < values.max() <= 100:
            continue
        shares, percents = values <= 1, values > 10
        # 0 and 1 are on both scales; whole numbers beside shares are percentages or none.
        inside = shares & (values > 0) & (values < 1)
        if min(inside.mean(), percents.mean()) > 0.05 and (shares | percents).all():
            yield (
                f"confidences of {name!r} are on two scales: {int(shares.sum()):,} from 0 to 1, "
                f"and {int(percents.sum()):,} above 10, up to {number(float(values.max()))}; "
                "write all of them on one"
            )
            return


def _mistake_warnings(trace: Trace) -> Iterator[str]:
    """Yield a warning where classes of the table of mistakes seem to be written differently.

    A table may have classes that these rows lack; but not only such, and none that a row has in
    other letters.
    """
    table = trace.spec.mistakes
    named = {name for label, costs in table.items() for name in (label, *costs)} - {ANY_CLASS}
    unknown = sorted(named.difference(trace.classes))
    if len(unknown) < len(named):
        alike = {text.strip().casefold() for text in trace.classes}
        unknown = [name for name in unknown if name.strip().casefold() in alike]
    if unknown and trace.prediction is not None:
        yield (
            f"the table of mistakes has {shown(unknown)}, which no row has as label or prediction; "
            f"the classes are {shown(trace.classes)}: check how they are written"
        )


def _label_warnings(trace: Trace) -> Iterator[str]:
    """Yield warnings about answers that hardly ever match; none where losses say what is right.

    Long answers in prose are almost never equal as text. A fit then offers one node or another, and
    nothing in between, however good the nodes are. With fewer than 20 rows how often answers match
    says nothing.
    """
    if len(trace) < 20:
        return
    if trace.prediction is not None and trace.raw_loss is None:
        pairs = combinations(zip(trace.names, trace.prediction.T, trace.answered.T, strict=True), 2)
        shares = [
            (float(np.mean((first == second)[rows] & (first >= 0)[rows])), one, other)
            for (one, first, asked), (other, second, also) in pairs
            # A log with gaps may hardly have two nodes on one row.
            if (rows := asked & also).sum() >= 20
        ]
        share, one, other = max(shares, default=(1.0, "", ""))
        if share < 0.2:
            yield (
                f"no two nodes give the same answer on more than {share:.1%} of rows ({one!r} and "
                f"{other!r}); free text is seldom equal word for word: bring answers into one form "
                "by a rule (compare in [serve]), as ttamer collect and ttamer import answers do"
            )
    if trace.is_graded:
        return  # no loss is too large
    yield from _strange_answers(trace)
    with suppress(TraceError):  # which answers are right is not known
        wrong = np.ma.masked_invalid(trace.loss).mean(axis=0).filled(0.0)
        # If even the best node is wrong on most rows, labels and answers do not fit together.
        best = int(wrong.argmin())
        if wrong[best] > 0.5:
            yield (
                f"every node is wrong on most rows; the best, {trace.names[best]!r}, on "
                f"{wrong[best]:.1%}: check that labels and answers are written alike, and how they "
                "were compared (compare in [serve], when answers were collected or imported)"
            )


def _strange_answers(trace: Trace) -> Iterator[str]:
    """Yield a warning where one node never answers with a class that any label has."""
    if trace.correct is not None or trace.prediction is None or trace.label is None:
        return
    labels = set(trace.label[trace.label >= 0].tolist())
    for name, column in zip(trace.names, trace.prediction.T, strict=True):
        answers = set(column[column >= 0].tolist())
        if answers and labels and answers.isdisjoint(labels) and trace.spec.target == "label":
            texts = [shown([trace.classes[c] for c in sorted(k)], 3) for k in (answers, labels)]
            yield (
                f"no answer of {name!r} is the label of any row: its answers are {texts[0]}, "
                f"labels are {texts[1]}; write both the same way"
            )
            return
