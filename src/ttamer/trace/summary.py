"""What a person sees of a trace: how complete it is, a table of its nodes, and curves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, in_unit, number, percent
from ttamer.errors import TraceError
from ttamer.show import card
from ttamer.show.curves import draw_curves

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
    more = f"{len(gaps) - 6} more nodes have gaps"
    # One line even with hundreds of nodes.
    parts = [*gaps[:6], more] if len(gaps) > 7 else list(gaps)
    head = counted(len(trace), "row", ",") + ("" if gaps else ", each with an answer of every node")
    if trace.label is not None:
        parts.append(f"a label on {share(trace.label >= 0)}")
    if trace.chance is not None:
        parts.append(f"the chance of {share(trace.chance >= 0)}")
    if trace.group is not None:
        parts.append(counted(len(np.unique(trace.group)), "group", ","))
    try:
        losses = share(trace.loss >= 0, int(trace.answered.sum()))
    except TraceError:
        parts.append("no losses are known")
    else:
        of = "every answer" if losses == "all" else f"{losses} of the answers"
        parts.append(f"the loss of {of} is known")
    return "; ".join([head, *parts])


def table(trace: Trace) -> str:
    """Return the table that notebooks show."""

    def means(values: NDArray[np.float64]) -> list[float]:
        present = ~np.isnan(values)
        with np.errstate(invalid="ignore"):  # NaN where nothing is known
            mean: list[float] = (np.nansum(values, axis=0) / present.sum(axis=0)).tolist()
        return mean

    columns = {
        "node": list(trace.names),
        "answers": [percent(share) for share in means(trace.answered.astype(float))],
        in_unit("cost", trace.spec.unit): map(number, means(trace.costs)),
        "mean confidence": map(number, means(trace.confidence)),
    }
    try:
        losses = means(trace.loss * trace.unit)
        if trace.is_graded:
            columns[trace.measure] = map(number, losses)
        else:
            columns["right"] = [percent(1 - loss, digits=1) for loss in losses]
    except TraceError:  # it does not have which answers are right
        pass
    rows = [list(row) for row in zip(*columns.values(), strict=True)] if len(trace) else []
    title = f"Trace: {counted(len(trace), 'row', ',')}, {counted(len(trace.spec), 'node')}"
    return card(title, notes=[*trace.notes, coverage(trace)], head=list(columns), rows=rows)


def curves(trace: Trace, path: str | os.PathLike[str] | None) -> Any:
    """Draw how often each node is right (or what it loses), by how certain it is."""
    shown = trace.loss * trace.unit if trace.is_graded else 1 - trace.loss
    lines = {}
    for node, name in enumerate(trace.names):
        rows = np.flatnonzero(~np.isnan(shown[:, node]))
        order = rows[np.argsort(trace.confidence[rows, node], kind="stable")]
        # Groups of equal size, not of equal width: confidences crowd near their largest value.
        parts = [part for part in np.array_split(order, 20) if len(part)]
        means = [float(shown[part, node].mean()) for part in parts]
        lines[name] = ([(k + 0.5) / len(parts) for k in range(len(parts))], means)
    what = trace.measure if trace.is_graded else "right"
    axis = "rows, from the least certain to the most certain"
    percents = not trace.is_graded
    return draw_curves(lines, axis, what, x_percent=True, y_percent=percents, path=path)
