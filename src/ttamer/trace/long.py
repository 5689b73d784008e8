"""Logs with one line per call: columns ``id`` and ``node``, then those of an answer.

``id`` is the input's, ``node`` the name of the node that was asked. The other columns have the
names of a trace without the node: ``confidence`` and, where known, ``prediction``, ``correct``,
``cost`` and so on. ``label``, ``group``, ``prompt`` and ``input.<name>`` may stand on any line of
an input. A node without a line has a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.trace.builder import TraceBuilder
from ttamer.trace.classes import ClassCodes, shown
from ttamer.trace.columns import Layout, check_names, infer_spec
from ttamer.trace.schema import BY_NAME, INPUT, SCHEMA
from ttamer.trace.trace import OnBad, Trace

_NODE = (*(column.name for column in SCHEMA if column.by == "node"), "score")


def is_long(columns: Sequence[str]) -> bool:
    """Return whether the columns are those of a log with one line per call.

    >>> is_long(["id", "node", "confidence"]), is_long(["id", "a.confidence"])
    (True, False)
    """
    return {"id", "node"} <= set(columns) and not any(c.endswith(".confidence") for c in columns)


def read_long(
    source: Any, spec: CascadeSpec | None, place: str, on_bad: OnBad, codes: ClassCodes
) -> Trace:
    """Read a log with one line per call; inputs are numbered as they appear."""
    lines, ids, nodes, builder = _read_lines(source, place, codes)
    notes = _unused(source.columns)
    if spec is None:
        costs = builder.block("cost")
        means = {}
        if costs is not None:
            for number, name in enumerate(nodes.classes):
                known = costs[(lines[1] == number) & (costs[:, 0] >= 0), 0]
                means[name] = float(known.mean()) if known.size else 1.0
        columns = [f"{name}.confidence" for name in nodes.classes]
        spec, note = infer_spec(columns, means, place)
        notes = (note, *notes)
    strangers = [name for name in nodes.classes if name not in spec.names]
    if strangers:
        raise TraceError(
            f"{place}: column 'node': nodes that are not in the cascade: {shown(strangers)}; "
            f"the cascade has {shown(spec.names)}"
        )
    row = lines[0]
    node = np.array([spec.names.index(name) for name in nodes.classes], np.intp)[lines[1]]
    _check_once(row, node, ids.classes, spec, place)
    layout = Layout(
        place, spec, *_columns(source.columns, spec.names), notes, *_texts(source.columns)
    )
    wide = TraceBuilder(layout, len(ids.classes), codes, builder.groups)
    for name, block in builder.blocks():
        if name in _NODE:
            wide.block(name)[row, node] = block[:, 0]
        else:
            wide.block(name)[:] = _of_rows(name, block, row, ids.classes, place)
    for name, values in builder.inputs().items():
        wide.put_input(name, _of_rows(INPUT + name, values, row, ids.classes, place))
    wide.filled = len(ids.classes)
    return wide.finish(on_bad)


def _read_lines(
    source: Any, place: str, codes: ClassCodes
) -> tuple[NDArray[np.int32], ClassCodes, ClassCodes, TraceBuilder]:
    """Return the codes of id and node of each line, shape (2, lines), and the other columns."""
    check_names(source.columns, place)
    if "confidence" not in source.columns:
        raise TraceError(
            f"{place}: the column 'confidence' is missing; a log with one line per call has id, "
            f"node and confidence; this one has {shown(source.columns)}"
        )
    columns = _columns(source.columns, None)
    of_call = CascadeSpec.of({"call": 0.0})
    layout = Layout(place, of_call, *columns, (), *_texts(source.columns), keys=("id", "node"))
    batches = list(source.batches(layout, None))
    count = sum(batch.rows for batch in batches)
    if not count:
        raise TraceError(f"{place}: has columns and no rows; bring a log with at least one input")
    builder = TraceBuilder(layout, count, codes)
    lines = np.empty((2, count), np.int32)
    keys = ClassCodes(), ClassCodes()
    for batch in batches:
        part = slice(builder.filled, builder.filled + batch.rows)
        for name, of_key, out in zip(layout.keys, keys, lines, strict=True):
            batch.codes(name, out[part], of_key)
        builder.add(batch)
    for name, out in zip(layout.keys, lines, strict=True):
        if (out < 0).any():
            raise TraceError(
                f"{place}: column {name!r}: row {int((out < 0).argmax())} (counting from 0) is "
                f"empty; each line names its {name}"
            )
    return lines, *keys, builder


def _columns(
    columns: Sequence[str], names: Sequence[str] | None
) -> tuple[str | None, dict[str, dict[int, str]], dict[str, str]]:
    """Return the column of labels, those of answers by node, and those of inputs."""
    fields: dict[str, dict[int, str]] = {}
    for name in _NODE:
        if name in columns:
            by_node = {0: name} if names is None else dict(enumerate(f"{n}.{name}" for n in names))
            fields[name] = by_node
    inputs = {c.removeprefix(INPUT): c for c in columns if c.startswith(INPUT) and c != INPUT}
    return ("label" if "label" in columns else None), fields, inputs


def _texts(columns: Sequence[str]) -> tuple[str | None, str | None]:
    group, prompt = (name if name in columns else None for name in ("group", "prompt"))
    return group, prompt


def _unused(columns: Sequence[str]) -> tuple[str, ...]:
    unused = [c for c in columns if c not in (*BY_NAME, "score", "id", "node")]
    unused = [c for c in unused if not c.startswith(INPUT)]
    return (f"columns not used: {shown(unused)}",) if unused else ()


def _check_once(
    row: NDArray[Any], node: NDArray[Any], ids: Sequence[str], spec: CascadeSpec, place: str
) -> None:
    """Refuse two lines of one input and node, and a node without lines."""
    pair = row.astype(np.int64) * len(spec) + node
    lines = np.bincount(pair, minlength=len(ids) * len(spec)).reshape(len(ids), len(spec))
    if (lines > 1).any():
        at, of = np.argwhere(lines > 1)[0]
        raise TraceError(
            f"{place}: id {ids[at]!r} has {lines[at, of]} lines for node {spec.names[of]!r}; "
            "keep one"
        )
    for name, count in zip(spec.names, lines.sum(axis=0), strict=True):
        if not count:
            raise TraceError(
                f"{place}: there is no line for node {name!r}; add its lines, or remove it from "
                "the cascade"
            )


def _of_rows(
    name: str, values: NDArray[Any], row: NDArray[Any], ids: Sequence[str], place: str
) -> NDArray[Any]:
    """Return one value for each input; lines of one input must not contradict each other."""
    if values.dtype == object:
        known = np.array([value is not None for value in values], bool)
    elif values.dtype.kind == "f":
        known = ~np.isnan(values if values.ndim == 1 else values.sum(axis=1))
    else:
        known = values >= 0
    missing: Any = {"O": None, "f": np.nan}.get(values.dtype.kind, -1)
    out = np.full((len(ids), *values.shape[1:]), missing, values.dtype)
    out[row[known]] = values[known]
    differ = out[row] != values
    clash = known & (differ if differ.ndim == 1 else differ.any(axis=1))
    if clash.any():
        raise TraceError(
            f"{place}: column {name!r}: id {ids[row[int(clash.argmax())]]!r} has two values; give "
            "it one"
        )
    return out
