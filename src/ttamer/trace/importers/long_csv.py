"""A long CSV: one line for each input and exit.

Columns ``sample``, ``exit`` and ``confidence``, and where known ``prediction``, ``label``,
``correct`` and ``cost``, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError
from ttamer.trace.builder import TraceBuilder
from ttamer.trace.checks import check_classes
from ttamer.trace.classes import ClassCodes, shown
from ttamer.trace.columns import Layout, infer_spec, plan
from ttamer.trace.files import open_source
from ttamer.trace.npz import ArrayBatch
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import OnBad, Trace

_NUMBERS = ("confidence", "cost")
_TEXTS = ("sample", "exit", "prediction", "label")


@dataclass(frozen=True)
class _Lines:
    """The lines of the file, as columns of equal length."""

    place: str
    sample: NDArray[np.int32]
    """Codes into ``samples``."""
    exit: NDArray[np.int32]
    """Codes into ``exits``."""
    samples: tuple[str, ...]
    exits: tuple[str, ...]
    values: Mapping[str, NDArray[Any]]
    """The other columns; prediction and label as codes into ``classes``."""
    classes: tuple[str, ...]


def import_long_csv(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | str | os.PathLike[str] | None = None,
    *,
    on_bad: OnBad = "refuse",
) -> Trace:
    r"""Read a long CSV as a trace; inputs and exits are numbered as they appear.

    An input that lacks the line of an exit has a gap there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "long.csv")
    ...     _ = path.write_text("sample,exit,confidence\n1,a,0.5\n1,b,0.9\n2,b,0.8\n2,a,0.3\n")
    ...     import_long_csv(path).confidence.tolist()
    [[0.5, 0.9], [0.3, 0.8]]
    """
    lines = _read(Path(path))
    place = lines.place
    notes: tuple[str, ...] = ()
    if cascade is None:
        names = [f"{name}.confidence" for name in lines.exits]
        spec, note = infer_spec(names, _mean_costs(lines), place)
        notes = (note,)
    else:
        spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
    strangers = [name for name in lines.exits if name not in spec.names]
    if strangers:
        raise TraceError(
            f"{place}: exits that are not in the cascade: {shown(strangers)}; "
            f"the cascade has {shown(spec.names)}"
        )
    node = np.array([spec.names.index(name) for name in lines.exits])[lines.exit]
    _check_lines(lines, node, spec)
    columns = _wide(lines, node, spec)
    codes = ClassCodes()
    layout = plan(list(columns), spec, place, notes=notes)
    builder = TraceBuilder(layout, len(lines.samples), codes)
    builder.add(ArrayBatch(place, 0, columns, lines.classes))
    trace = builder.finish(on_bad)
    if not len(trace):
        raise TraceError(
            f"{place}: every sample was left out ({len(lines.samples)} in all); fix the log"
        )
    check_classes(trace, place)
    return trace


def _read(path: Path) -> _Lines:
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        raise TraceError(f"{path}: the suffix must be .csv or .csv.gz")
    source = open_source(path)
    columns = [name for name in source.columns if name in (*_NUMBERS, *_TEXTS, "correct")]
    for needed in ("sample", "exit", "confidence"):
        if needed not in columns:
            raise TraceError(
                f"{path}: the column {needed!r} is missing; a long log has sample, exit and "
                "confidence, and may have prediction, label, correct and cost; this one has "
                f"{shown(source.columns)}"
            )
    for name in columns:
        if columns.count(name) > 1:
            raise TraceError(f"{path}: the column {name!r} appears twice; keep one")
    texts = [name for name in _TEXTS if name in columns]
    fields: dict[str, dict[int, str]] = {
        "confidence": {0: "confidence"},
        "cost": {0: "cost"} if "cost" in columns else {},
        "prediction": dict(enumerate(texts)),
        "correct": {0: "correct"} if "correct" in columns else {},
    }
    layout = Layout(str(path), CascadeSpec.of({"any": 1.0}), None, fields, {}, ())
    batches = list(source.batches(layout, None))
    count = sum(batch.rows for batch in batches)
    if not count:
        raise TraceError(f"{path}: has columns and no rows; bring a log with at least one input")
    samples, exits, codes = ClassCodes(), ClassCodes(), ClassCodes()
    values: dict[str, NDArray[Any]] = {}
    for name in columns:
        kind = np.int32 if name in _TEXTS else np.int8 if name == "correct" else np.float64
        out: NDArray[Any] = np.empty(count, kind)
        values[name] = out
        for batch in batches:
            part = out[batch.start : batch.start + batch.rows]
            if name in _TEXTS:
                batch.codes(name, part, {"sample": samples, "exit": exits}.get(name, codes))
            elif name == "correct":
                batch.flags(name, part)
            else:
                batch.numbers(name, part)
    sample, exit_ = values.pop("sample"), values.pop("exit")
    for name, column in (("sample", sample), ("exit", exit_)):
        if (column < 0).any():
            raise TraceError(
                f"{path}: column {name!r}: row {int((column < 0).argmax())} (counting from 0) is "
                f"empty; every line names its {name}"
            )
    return _Lines(str(path), sample, exit_, samples.classes, exits.classes, values, codes.classes)


def _mean_costs(lines: _Lines) -> dict[str, float]:
    if "cost" not in lines.values:
        return {}
    means = {}
    for number, name in enumerate(lines.exits):
        mine = lines.values["cost"][lines.exit == number]
        good = mine[np.isfinite(mine) & (mine >= 0)]  # the others are refused by name later
        means[name] = float(good.mean()) if good.size else 1.0
    return means


def _check_lines(lines: _Lines, node: NDArray[np.intp], spec: CascadeSpec) -> None:
    """Refuse two lines of one sample and exit."""
    pair = lines.sample.astype(np.int64) * len(spec) + node
    grid = np.bincount(pair, minlength=len(lines.samples) * len(spec))
    grid = grid.reshape(len(lines.samples), len(spec))
    if (grid > 1).any():
        sample, exit_ = np.argwhere(grid > 1)[0]
        raise TraceError(
            f"{lines.place}: sample {lines.samples[sample]!r} has {grid[sample, exit_]} lines for "
            f"exit {spec.names[exit_]!r}; keep one"
        )
    never = [name for name, count in zip(spec.names, grid.sum(axis=0), strict=True) if not count]
    if never:
        raise TraceError(
            f"{lines.place}: there is no line for exit {never[0]!r}; add its lines, or remove it "
            "from the cascade"
        )


def _wide(lines: _Lines, node: NDArray[np.intp], spec: CascadeSpec) -> dict[str, NDArray[Any]]:
    """Return the columns of a trace: one row for each sample; a line that is missing is a gap."""
    columns: dict[str, NDArray[Any]] = {}
    for name, values in lines.values.items():
        if name == "label":
            columns["label"] = _labels(lines)
            continue
        if name == "correct":
            values = np.where(values < 0, np.nan, values)
        missing = np.nan if values.dtype.kind == "f" else -1
        for number, exit_ in enumerate(spec.names):
            of_exit = node == number
            column = np.full(len(lines.samples), missing, values.dtype)
            column[lines.sample[of_exit]] = values[of_exit]
            columns[f"{exit_}.{name}"] = column
    return columns


def _labels(lines: _Lines) -> NDArray[np.int32]:
    """Return each sample's label; lines of one sample must not contradict each other."""
    given = lines.values["label"]
    known = given >= 0
    label = np.full(len(lines.samples), -1, np.int32)
    label[lines.sample[known]] = given[known]
    clash = known & (label[lines.sample] != given)
    if clash.any():
        sample = int(lines.sample[clash.argmax()])
        raise TraceError(
            f"{lines.place}: sample {lines.samples[sample]!r} has two labels; give it one"
        )
    return label
