"""Reading and writing traces: Parquet, CSV, JSON Lines, NPZ and data frames.

A source hands its rows over in batches of :class:`Cells`: Parquet, CSV, JSON Lines and frames as
columns of Arrow, NPZ as arrays, which needs NumPy only. From there on there is one way: cells are
parsed by the schema, put together by node and row, and every value is checked. Nothing is left out
in silence: a row that cannot be used is refused by column and number, or left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ttamer._checks import counted, require_path, shown
from ttamer._extras import require
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, MissingExtra, TraceError
from ttamer.trace.checks import ClassMatch, warn_of_variants
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.layout import KEYS, Layout, Use, check_names, infer_spec, is_long, plan, plan_long
from ttamer.trace.schema import BY_NAME, INPUT, ClassCodes, Column
from ttamer.trace.trace import Cascade, FrameLibrary, OnBad, Trace, graded

# The suffixes of trace files.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".npz")
# Rows handed over at a time, where no number is asked for.
BATCH_ROWS = 1 << 17
# What a damaged file can make its reader raise, besides errors of Arrow.
DAMAGE = (OSError, EOFError, ValueError, LookupError, TypeError, OverflowError, MemoryError,
          RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error)  # fmt: skip
# Where Parquet keeps the cascade.
CASCADE = b"ttamer.cascade"


class Cells(NamedTuple):
    """Some cells of a column."""

    values: NDArray[Any]
    """Numbers (NaN: no value), vectors, or positions in ``texts`` (-1: no value)."""
    type: str
    """The type, as the file names it."""
    texts: Sequence[Any] | None = None


class Batch(NamedTuple):
    """Some consecutive rows of a file."""

    start: int
    """The number of the first row, from 0."""
    rows: int
    cells: Mapping[str, Cells]


class Source(Protocol):
    """An open trace file or a data frame: its columns, and its rows in batches."""

    place: str
    """What every message begins with."""
    columns: tuple[str, ...]
    cascade: bytes | None
    """The text of the cascade.toml kept inside, if there is one."""

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows (``None``: as many as is efficient)."""


def arrow(name: str = "pyarrow") -> Any:
    """Return pyarrow or a module of it, or raise how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", "io") from None


# Reading.


def read_batches(
    path: str | os.PathLike[str],
    cascade: Cascade = None,
    *,
    rows: int = 1 << 18,
    on_bad: OnBad = "refuse",
) -> Iterator[Trace]:
    r"""Read a trace as traces of at most ``rows`` rows, in order, one in memory at a time.

    A class has the same code in every batch; ``classes`` grows as new ones are met. A batch whose
    rows were all left out comes as a trace of no rows, so that its ``left_out`` is not lost.

    Args:
        path: The file; its suffix determines the format.
        cascade: A ``cascade.toml``, a :class:`CascadeSpec` or costs, as for :meth:`Trace.read`.
        rows: The most rows in one batch, at least 1.
        on_bad: As for :meth:`Trace.read`.

    Returns:
        An iterator over the batches.

    Raises:
        ArgumentError: If ``rows`` is below 1.
        TraceError: If the file cannot be read or used; also raised while iterating.
        CascadeError: If the ``cascade.toml`` cannot be used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.csv")
    ...     _ = path.write_text("a.confidence\n0.5\n0.9\n0.7\n")
    ...     [len(trace) for trace in read_batches(path, rows=2)]
    [2, 1]
    """
    if rows < 1:
        raise ArgumentError(f"rows is {rows}; a batch needs at least 1", param="rows")
    source = open_source(path)
    if is_decision_log(source.columns):
        raise TraceError(f"{path}: is a decision log: read it whole, with Trace.read")
    if is_long(source.columns):
        raise TraceError(
            f"{path}: has one line per call, and lines of one input need not stand together: read "
            "it whole, with Trace.read"
        )
    return _traces(source, _layout_of(source, cascade, on_bad), rows, on_bad)


def _traces(source: Source, layout: Layout, rows: int, on_bad: OnBad) -> Iterator[Trace]:
    codes, match = _Codes(), ClassMatch()
    read = kept = 0
    for batch in source.batches(layout, rows):
        trace = _assembled(layout, _parsed(layout, batch, codes), batch.start, codes, on_bad)
        match.add(trace)
        read += batch.rows
        kept += len(trace)
        yield trace
    _check_rows(layout.place, read, kept)
    _check_classes(layout, match, codes)


def read_all(source: Source, cascade: Cascade, on_bad: OnBad) -> Trace:
    """Read all rows of a source: one line per input, one per call, or a decision log."""
    if is_decision_log(source.columns):
        return read_decisions(source.place, _spec_of(source, cascade, on_bad)).trace
    layout, codes = _layout_of(source, cascade, on_bad), _Codes()
    batches = [_parsed(layout, batch, codes) for batch in source.batches(layout, None)]
    columns = {}
    for name in layout.uses if batches else ():  # one by one: parts are freed as they are joined
        columns[name] = _joined(name, [batch.pop(name) for batch in batches], layout)
    read = len(next(iter(columns.values()))) if columns else 0
    _check_rows(layout.place, read, read)
    make = _assembled_calls if layout.is_long else _assembled
    trace = make(layout, columns, 0, codes, on_bad)
    _check_rows(layout.place, len(trace) + sum(trace.left_out.values()), len(trace))
    match = ClassMatch()
    match.add(trace)
    _check_classes(layout, match, codes)
    return trace


class _Codes(dict[str, ClassCodes]):
    """The classes met so far, by list of texts."""

    def __missing__(self, key: str) -> ClassCodes:
        self[key] = ClassCodes()
        return self[key]


def _check_classes(layout: Layout, match: ClassMatch, codes: _Codes) -> None:
    classes = codes["classes"].classes
    if layout.compares_classes:
        match.check(classes, layout.place)
    warn_of_variants(classes, layout.place)


def _check_rows(place: str, read: int, kept: int) -> None:
    if not read:
        raise TraceError(f"{place}: has columns and no rows; bring a log with at least one input")
    if not kept:
        raise TraceError(f"{place}: every row was left out ({read} in all); fix the log")


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file by its suffix, and read its header."""
    require_path(path, "reading a trace")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name one file in it")
    readers = {".json": "json", ".tsv": "table", ".xlsx": "excel"}
    try:
        suffix = suffix_of(path)
    except TraceError as error:
        if (reader := readers.get(path.suffix.lower())) is None:
            raise
        raise TraceError(
            f"{error}; convert it first, as with pandas.read_{reader}(path).to_parquet(...)"
        ) from None
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not size:
        raise TraceError(f"{path}: is empty")
    kinds: dict[str, Any] = {".parquet": _Parquet, ".jsonl": _JsonLines, ".npz": _Npz}
    source: Source = kinds.get(suffix, _Csv)(path)
    return source


def _spec_of(source: Source, cascade: Cascade, on_bad: OnBad) -> CascadeSpec | None:
    """Return the cascade that is given, or the source's own."""
    if on_bad not in ("refuse", "skip"):
        raise ArgumentError(f'on_bad is {on_bad!r}; it must be "refuse" or "skip"', param="on_bad")
    spec = cascade
    if isinstance(spec, Mapping):
        spec = CascadeSpec.of(spec)
    if spec is not None and not isinstance(spec, CascadeSpec):
        spec = CascadeSpec.from_file(spec)
    if spec is None and source.cascade is not None:
        try:
            spec = CascadeSpec.from_toml(source.cascade.decode("utf-8", "replace"))
        except CascadeError as error:
            raise TraceError(
                f"{source.place}: the cascade kept in the file cannot be used: {error}; give a "
                "cascade.toml"
            ) from None
    return spec


def _layout_of(source: Source, cascade: Cascade, on_bad: OnBad) -> Layout:
    """Return which column of a source is used for what, given the cascade or the source's own."""
    spec = _spec_of(source, cascade, on_bad)
    if is_long(source.columns):
        return plan_long(source.columns, spec, source.place)
    if spec is not None:
        return plan(source.columns, spec, source.place)
    spec, note = infer_spec(source.columns, _mean_costs(source), source.place)
    return plan(source.columns, spec, source.place, [note])


def _mean_costs(source: Source) -> dict[str, float]:
    """Return the mean of each cost column by node: a pass over those columns alone."""
    spec, _ = infer_spec(source.columns, {}, source.place)
    uses = plan(source.columns, spec, source.place).uses
    layout = Layout(source.place, spec, {k: u for k, u in uses.items() if u.column is COST})
    total, count = np.zeros(len(spec)), np.zeros(len(spec))
    # Always batches of the same size: the mean must not depend on how the file is read.
    for batch in source.batches(layout, 1 << 16) if layout.uses else ():
        for name, values in _parsed(layout, batch, _Codes()).items():
            node = layout.uses[name].node
            good = np.isfinite(values) & (values >= 0)  # the others are refused by name later
            total[node] += values[good].sum()
            count[node] += good.sum()
    nodes = sorted(use.node for use in layout.uses.values() if use.node is not None)
    return {spec.names[node]: float(total[node] / max(count[node], 1)) for node in nodes}


COST = BY_NAME["cost"]


# Parsing: cells to typed arrays.


def _parsed(layout: Layout, batch: Batch, codes: _Codes) -> dict[str, NDArray[Any]]:
    """Return the columns of a batch as arrays of the schema's types."""
    columns = {}
    for name, use in layout.uses.items():
        try:
            columns[name] = _values(batch.cells[name], use, codes, batch.start)
        except TraceError as error:
            raise TraceError(f"{layout.place}: column {name!r}: {error}") from None
    return columns


def _values(cells: Cells, use: Use, codes: _Codes, start: int) -> NDArray[Any]:
    values, texts, column = cells.values, cells.texts, use.column
    is_plain = texts is None and values.ndim == 1
    is_number = is_plain and values.dtype.kind in "iuf" and cells.type != "bool"
    if column is None:
        return _input(cells)
    if column.kind == "number":
        if not is_number:
            raise _wrong_type(cells, "numbers")
        return values.astype(np.float64, copy=False)
    if column.kind == "class":
        if texts is None and not is_plain:
            raise _wrong_type(cells, "text, whole numbers or truth values")
        coder = codes[column.texts]
        return coder.encode(values) if texts is None else coder.recode(values, texts)
    if column.kind == "flag":
        if not is_plain:
            raise _wrong_type(cells, "truth values, or 0 and 1")
        return _read_flags(values.astype(np.float64), start)
    if texts is None and not (is_number and np.isnan(values.astype(np.float64)).all()):
        raise TraceError(f"holds {cells.type}, and text is needed; convert the column")
    return _objects(values, texts)


def _input(cells: Cells) -> NDArray[Any]:
    """Return cells of an input: numbers (NaN: no value), text (``None``), or vectors."""
    values = cells.values
    if cells.texts is not None:
        return _objects(values, cells.texts)
    if values.ndim > 2:
        raise _wrong_type(cells, "numbers, text or lists of numbers")
    return values if values.ndim == 2 and values.dtype == np.float32 else values.astype(np.float64)


def _objects(values: NDArray[Any], texts: Sequence[Any] | None) -> NDArray[Any]:
    if texts is None:
        return np.full(len(values), None, object)
    table: NDArray[Any] = np.array([*texts, None], object)  # -1 picks the last entry
    picked: NDArray[Any] = table[values]
    return picked


def _read_flags(numbers: NDArray[np.float64], start: int) -> NDArray[np.int8]:
    missing = np.isnan(numbers)
    odd = ~missing & (numbers != 0) & (numbers != 1)
    if odd.any():
        row = int(odd.argmax())
        raise TraceError(
            f"row {row + start} (counting from 0) is {numbers[row]}; "
            "right is 1 or true, wrong is 0 or false"
        )
    return np.where(missing, -1, numbers).astype(np.int8)


def _wrong_type(cells: Cells, needed: str) -> TraceError:
    held = cells.type
    if cells.texts is not None and len(cells.texts):
        held = f"text such as {str(cells.texts[0])[:80]!r}"
    return TraceError(f"holds {held}, and {needed} are needed; convert the column")


def _joined(name: str, parts: list[NDArray[Any]], layout: Layout) -> NDArray[Any]:
    """Return the parts of a column as one array; a part without a value has no type."""
    if len(parts) == 1:
        return parts[0]
    if any(part.dtype == object for part in parts):
        parts = [
            _objects(part, None) if part.dtype == np.float64 and np.isnan(part).all() else part
            for part in parts
        ]
    if len({(part.dtype == object, part.shape[1:]) for part in parts}) > 1:
        raise TraceError(
            f"{layout.place}: column {name!r}: holds numbers, text or vectors of several lengths; "
            "give it one type"
        )
    return np.concatenate(parts)


# Assembling: typed columns to a trace.


class _Block(NamedTuple):
    """The array of a column, and the file's column of each node that has one."""

    column: Column
    array: NDArray[Any]
    labels: dict[int, str]


def _assembled(
    layout: Layout,
    columns: Mapping[str, NDArray[Any]],
    start: int,
    codes: _Codes,
    on_bad: OnBad,
) -> Trace:
    """Return the trace of columns with one line per input."""
    spec, blocks, inputs = layout.spec, {}, {}
    assert spec is not None  # noqa: S101 - planned with one
    for name, use in layout.uses.items():
        values, column = columns[name], use.column
        if column is None:
            inputs[name] = values
        elif use.node is None:
            blocks[column.name] = _Block(column, values, {})
        else:
            block = blocks.setdefault(column.name, _empty(column, spec, len(values)))
            block.array[:, use.node] = values
            block.labels[use.node] = name
    return _finished(layout, spec, blocks, inputs, start, codes, on_bad)


def _empty(column: Column, spec: CascadeSpec, rows: int) -> _Block:
    # Columns contiguous: files come by column, and most work goes node by node.
    array: NDArray[Any] = np.full((len(spec), rows), column.missing, column.dtype).T
    if column is COST:
        array[:] = spec.costs
    return _Block(column, array, {})


def _assembled_calls(
    layout: Layout,
    columns: Mapping[str, NDArray[Any]],
    start: int,
    codes: _Codes,
    on_bad: OnBad,
) -> Trace:
    """Return the trace of columns with one line per call; inputs are numbered as they appear."""
    place = layout.place
    for key in KEYS:
        if (columns[key] < 0).any():
            raise TraceError(
                f"{place}: column {key!r}: row {int((columns[key] < 0).argmax())} (counting from "
                f"0) is empty; each line names its {key}"
            )
    row, asked = columns["id"], columns["node"]
    ids, names = codes["id"].classes, codes["node"].classes
    spec, notes = layout.spec, layout.notes
    if spec is None:
        means = {}
        for number, name in enumerate(names) if "cost" in columns else ():
            known = columns["cost"][(asked == number) & (columns["cost"] >= 0)]
            means[name] = float(known.mean()) if known.size else 1.0
        spec, note = infer_spec([f"{name}.confidence" for name in names], means, place)
        notes = (note, *notes)
    if strangers := [name for name in names if name not in spec.names]:
        raise TraceError(
            f"{place}: column 'node': nodes that are not in the cascade: {shown(strangers)}; "
            f"the cascade has {shown(spec.names)}"
        )
    node = np.array([spec.names.index(name) for name in names], np.intp)[asked]
    _check_calls(row, node, ids, spec, place)
    blocks, inputs = {}, {}
    for name, use in layout.uses.items():
        if name in KEYS:
            continue
        column = use.column
        if column is None or column.by == "row":
            values = _of_inputs(name, columns[name], row, ids, place)
            if column is None:
                inputs[name] = values
            else:
                blocks[name] = _Block(column, values, {})
            continue
        array = _empty(column, spec, len(ids)).array
        array[:] = column.missing
        array[row, node] = columns[name]
        labels = {number: f"{node_name}.{name}" for number, node_name in enumerate(spec.names)}
        blocks[name] = _Block(column, array, labels)
    return _finished(Layout(place, spec, layout.uses, notes), spec, blocks, inputs, start, codes,
                     on_bad)  # fmt: skip


def _check_calls(
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


def _of_inputs(
    name: str, values: NDArray[Any], row: NDArray[Any], ids: Sequence[str], place: str
) -> NDArray[Any]:
    """Return one value for each input; lines of one input must not contradict each other."""
    kind = {"O": "text", "f": "number"}.get(values.dtype.kind, "class")
    column = Column(name, "row", kind, "", name)  # type: ignore[arg-type]
    known = column.known(values if values.ndim == 1 else values.sum(axis=1))
    out = np.full((len(ids), *values.shape[1:]), column.missing, values.dtype)
    out[row[known]] = values[known]
    differ = (out[row] != values).any(axis=tuple(range(1, values.ndim)))
    if (clash := known & differ).any():
        raise TraceError(
            f"{place}: column {name!r}: id {ids[row[int(clash.argmax())]]!r} has two values; give "
            "it one"
        )
    return out


def _finished(
    layout: Layout,
    spec: CascadeSpec,
    blocks: Mapping[str, _Block],
    inputs: Mapping[str, NDArray[Any]],
    start: int,
    codes: _Codes,
    on_bad: OnBad,
) -> Trace:
    """Check every value, and return the trace; rows left out are counted."""
    faults = _faults(layout.place, blocks, inputs, start)
    keep = np.ones(len(blocks["confidence"].array), bool)
    left_out: dict[str, int] = {}
    for column, bad in faults:
        if on_bad == "refuse":
            raise TraceError(
                f"{layout.place}: column {column!r}: {_rows(bad, start)} missing, NaN or infinite; "
                'fix the log, or skip these rows with on_bad="skip" (they are counted)'
            )
        if count := int((bad & keep).sum()):
            left_out[f"{column} is missing, NaN or infinite"] = count
        keep &= ~bad
    arrays: dict[str, Any] = {block.column.name: block.array for block in blocks.values()}
    if not keep.all():
        arrays = {
            name: array[keep] if array.ndim == 1 else array.T[:, keep].T
            for name, array in arrays.items()
        }
        inputs = {name: values[keep] for name, values in inputs.items()}
    if "score" in arrays:
        spec, arrays["loss"] = graded(spec, arrays.pop("score"))
    return Trace(
        spec,
        **{BY_NAME[name].field: array for name, array in arrays.items()},
        inputs={name.removeprefix(INPUT): values for name, values in inputs.items()},
        classes=codes["classes"].classes,
        groups=codes["groups"].classes,
        left_out=left_out,
        notes=layout.notes,
    )


def _faults(
    place: str, blocks: Mapping[str, _Block], inputs: Mapping[str, NDArray[Any]], start: int
) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return the columns with values that cannot be used, and on which rows; refuse others."""
    faults = []
    present = ~np.isnan(blocks["confidence"].array)  # where any column has something of an answer
    for column, array, labels in blocks.values():
        for node in labels if column.of_answer else ():
            present[:, node] |= column.known(array[:, node])
    for column, array, labels in blocks.values():
        for node, label in labels.items() if column.kind == "number" else ():
            values = array[:, node]
            bad = np.isinf(values)
            if column.each_answer:
                bad |= np.isnan(values) & present[:, node]
            if bad.any():
                faults.append((label, bad))
            _check_range(values, column, f"{place}: column {label!r}", start)
    for name, values in inputs.items():
        if values.dtype != object:
            bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            if bad.any():
                faults.append((name, bad))
    return faults


def _check_range(values: NDArray[np.float64], column: Column, where: str, start: int) -> None:
    low, high = values < column.low, values > column.high
    if low.any():
        raise TraceError(
            f"{where}: {_rows(low, start)} negative, and a {column.name} is not; correct the log"
        )
    if column.high < math.inf and high.any():
        score = column.name == "score"
        remedy = "give other grades as <node>.loss" if score else "correct the log"
        raise TraceError(
            f"{where}: {_rows(high, start)} above 1, and a {column.name} is from 0 to 1; {remedy}"
        )


def _rows(bad: NDArray[np.bool_], start: int) -> str:
    """Say where: the first row, how many in all, and of how many."""
    first, count = int(bad.argmax()) + start, int(bad.sum())
    more = f" and {count - 1} more of {len(bad)}" if count > 1 else ""
    return f"row {first} (counting from 0){more} {'are' if count > 1 else 'is'}"


# Sources of Arrow.


def _arrow_batch(place: str, start: int, batch: Any, layout: Layout) -> Batch:
    """Return rows of an Arrow record batch as cells."""
    pa = arrow()
    cells = {}
    for name, use in layout.uses.items():
        try:
            cells[name] = _arrow_cells(pa, batch.column(name), use.kind)
        except TraceError as error:
            raise TraceError(f"{place}: column {name!r}: {error}") from None
        except (pa.ArrowException, *DAMAGE) as error:
            raise TraceError(f"{place}: column {name!r}: is damaged: {_line(error)}") from None
    return Batch(start, batch.num_rows, cells)


def _arrow_cells(pa: Any, array: Any, use: str) -> Cells:
    types, kind = pa.types, array.type
    if types.is_dictionary(kind) and not _is_text(types, kind.value_type):
        array = array.dictionary_decode()
        kind = array.type
    name = str(kind)
    # Whole numbers with gaps would lose digits as floats, and as classes they are text.
    if _is_text(types, kind) or (use == "class" and types.is_integer(kind) and array.null_count):
        array = array.dictionary_encode()
    if types.is_dictionary(array.type):
        index = array.indices
        if types.is_unsigned_integer(index.type):  # as polars and DuckDB write categories
            index = index.cast(pa.int64())
        positions = index.fill_null(-1).to_numpy(zero_copy_only=False)
        texts = array.dictionary
        if len(texts) > len(positions):  # a slice of a longer column
            used, positions = np.unique(positions, return_inverse=True)
            present = used[used >= 0]
            texts, positions = texts.take(pa.array(present)), positions - (len(used) - len(present))
        return Cells(positions, name, texts.to_pylist())
    if types.is_null(kind):
        return Cells(np.full(len(array), math.nan), name)
    if types.is_boolean(kind):
        return Cells(array.cast(pa.int8()).to_numpy(zero_copy_only=False), name)
    if types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        rows = array.to_pylist()
        if None in rows or len({len(row) for row in rows}) > 1:
            raise TraceError(
                "holds vectors of several lengths, or rows without one; give each row a vector "
                "of one length"
            )
        single = types.is_float32(kind.value_type)
        table = np.array(rows, np.float32 if single else np.float64)
        return Cells(table.reshape(len(rows), -1), name)
    elif not (types.is_floating(kind) or types.is_integer(kind)):
        return Cells(np.empty((len(array), 0, 0)), name)
    return Cells(array.to_numpy(zero_copy_only=False), name)


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


class _Parquet:
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)
        pa = arrow()
        try:
            self._schema = self._open([]).schema_arrow
        except (pa.ArrowException, *DAMAGE) as error:
            raise TraceError(
                f"{self.place}: is not a Parquet file, or was cut short: {_line(error)}"
            ) from None
        self.columns: tuple[str, ...] = tuple(self._schema.names)
        self.cascade: bytes | None = (self._schema.metadata or {}).get(CASCADE)

    def _open(self, as_dictionary: Sequence[str]) -> Any:
        # Read in pieces: otherwise whole row groups are held, however large they are.
        return arrow("pyarrow.parquet").ParquetFile(
            self._path,
            read_dictionary=list(as_dictionary),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows."""
        pa = arrow()
        text = [c for c in layout.named("class") if _is_text(pa.types, self._schema.field(c).type)]
        start = 0
        try:
            batches = self._open(text).iter_batches(rows or BATCH_ROWS, columns=list(layout.uses))
            for batch in batches:
                yield _arrow_batch(self.place, start, batch, layout)
                start += batch.num_rows
        except TraceError:
            raise
        except (pa.ArrowException, *DAMAGE) as error:
            raise TraceError(
                f"{self.place}: is damaged after row {start}: {_line(error)}"
            ) from None


class _Csv:
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    cascade: bytes | None = None

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)
        arrow()
        try:
            with _open_text(path) as file:
                header = next(csv.reader(file), [])
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: cannot be read: {_line(error)}") from None
        except (UnicodeDecodeError, csv.Error):
            raise TraceError(f"{path}: is not CSV text in UTF-8") from None
        self.columns: tuple[str, ...] = tuple(header)

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows."""
        pa = arrow()
        text = pa.dictionary(pa.int32(), pa.string())
        by_kind = {"number": pa.float64(), "class": text, "flag": pa.bool_(), "text": pa.string()}
        inputs = self._inputs(layout.named("input"))
        types = {n: by_kind.get(use.kind) or inputs[n][0] for n, use in layout.uses.items()}
        vectors = [name for name, (_, is_vector) in inputs.items() if is_vector]
        start = 0
        try:
            for table in self._tables(types, whole=rows is None):
                for first in range(0, table.num_rows, rows or BATCH_ROWS):
                    part = _with_vectors(pa, table.slice(first, rows or BATCH_ROWS), vectors)
                    yield _arrow_batch(self.place, start, part, layout)
                    start += part.num_rows
        except (pa.ArrowException, OSError) as error:
            if not start and "Empty CSV" in str(error):
                return  # a header, and not even the end of its line
            bad = self._first_bad_cell(layout)
            raise TraceError(f"{self.place}: {bad or _line(error)}") from None

    def _inputs(self, names: list[str]) -> dict[str, tuple[Any, bool]]:
        """Return the type of each input and whether it is of vectors: CSV has no types."""
        pa, compute = arrow(), arrow("pyarrow.compute")
        text = pa.dictionary(pa.int32(), pa.string())
        kinds = dict.fromkeys(names, "number")
        for table in self._tables(dict.fromkeys(names, pa.string()), whole=False) if names else ():
            for name in names:
                cells = table.column(name).drop_null()
                if kinds[name] == "number":
                    try:
                        cells.cast(pa.float64())
                    except pa.ArrowInvalid:
                        kinds[name] = "vector"
                if kinds[name] == "vector":
                    lists = compute.match_substring_regex(cells, r"^\[[-+0-9.eE, ]*\]$")
                    kinds[name] = "vector" if compute.all(lists).as_py() else "text"
        return {
            name: (pa.float64() if kind == "number" else text, kind == "vector")
            for name, kind in kinds.items()
        }

    def _tables(self, types: dict[str, Any], *, whole: bool) -> Iterator[Any]:
        """Yield record batches of the named columns."""
        module = arrow("pyarrow.csv")
        options: dict[str, Any] = {
            "parse_options": module.ParseOptions(
                newlines_in_values=True,
                # In a file of one column an empty line is a row without a value.
                ignore_empty_lines=len(self.columns) > 1,
            ),
            "convert_options": module.ConvertOptions(
                include_columns=list(types),
                column_types=types,
                null_values=[""],
                true_values=["1", "true", "True", "TRUE", "1.0"],
                false_values=["0", "false", "False", "FALSE", "0.0"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        }
        if whole:  # in several threads
            yield from module.read_csv(self._path, **options).to_batches()
        else:
            with module.open_csv(self._path, **options) as reader:
                yield from reader

    def _first_bad_cell(self, layout: Layout) -> str | None:
        """Read again, slowly, to find the cell or the line that would not do."""
        kinds = {"number": "number", "flag": "truth value"}
        checks = [
            (at, name, kinds[layout.uses[name].kind])
            for at, name in enumerate(self.columns)
            if name in layout.uses and layout.uses[name].kind in kinds
        ]
        row = -2  # the header comes first
        try:
            with _open_text(self._path) as file:
                lines = csv.reader(file)
                for cells in lines:
                    if not cells:
                        continue
                    row += 1
                    if len(cells) != len(self.columns):
                        return (
                            f"line {lines.line_num} has {len(cells)} cells, and the header has "
                            f"{len(self.columns)}; correct the log"
                        )
                    for at, name, kind in checks if row >= 0 else ():
                        if cells[at] and not _is_cell_of(cells[at], kind):
                            return (
                                f"column {name!r}: row {row} (counting from 0) holds "
                                f"{cells[at][:80]!r}, which is not a {kind}; "
                                f"{_remedy(cells[at].strip(), kind)}"
                            )
        except UnicodeDecodeError:
            return f"is not text in UTF-8 after row {row}"
        except (OSError, EOFError, zlib.error, csv.Error):
            return None
        return None


def _remedy(cell: str, kind: str) -> str:
    """Return what to write in place of a cell that cannot be read.

    >>> _remedy("NA", "number"), _remedy("91%", "number"), _remedy("0,9", "number")
    ('leave a cell without a value empty', 'leave out the "%"', 'write decimals with a point')
    """
    if cell.casefold() in ("na", "n/a", "none", "null", "-", "?"):
        return "leave a cell without a value empty"
    if kind == "truth value":
        return "write true or false, or 1 or 0"
    if cell.endswith("%"):
        return 'leave out the "%"'
    return "write decimals with a point" if "," in cell else "correct the log"


def _is_cell_of(cell: str, kind: str) -> bool:
    if kind == "truth value":
        return cell.lower() in ("0", "1", "true", "false", "0.0", "1.0")
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _open_text(path: Path) -> Any:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _line(error: BaseException) -> str:
    """Return the first line of a foreign message."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return text.splitlines()[0][:200]


def _with_vectors(pa: Any, batch: Any, names: Sequence[str]) -> Any:
    """Return a record batch in which cells such as ``[0.5, 1]`` are vectors."""
    for name in names:
        cells = batch.column(name).to_pylist()
        vectors = [None if cell is None else json.loads(cell) for cell in cells]
        array = pa.array(vectors, pa.list_(pa.float64()))
        batch = batch.set_column(batch.schema.names.index(name), name, array)
    return batch


class _JsonLines:
    """A file with one JSON object on each line; its keys are columns."""

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)
        self.cascade: bytes | None = None
        arrow()
        keys: dict[str, None] = {}
        self._texts: set[str] = set()  # a batch need not show what a column holds
        for line in self._lines():
            keys.update(dict.fromkeys(line))
            if is_decision_log(tuple(keys)):  # read by a reader of its own
                self.cascade = str(line["cascade"]).encode() if "cascade" in line else None
                break
            self._texts.update(name for name, value in line.items() if type(value) is str)
        self.columns: tuple[str, ...] = tuple(keys)

    def _lines(self) -> Iterator[dict[str, Any]]:
        decoder = msgspec.json.Decoder(dict[str, Any])
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        try:
                            yield decoder.decode(line)
                        except (msgspec.DecodeError, UnicodeDecodeError) as error:
                            raise TraceError(
                                f"{self.place}: line {number} is not a JSON object: {error}; "
                                "correct the log"
                            ) from None
        except OSError as error:
            raise TraceError(f"{self.place}: cannot be read: {_line(error)}") from None

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows."""
        pa, lines, start = arrow(), self._lines(), 0
        while part := list(islice(lines, rows or BATCH_ROWS)):
            columns = {}
            for name in layout.uses:
                try:
                    kind = pa.string() if name in self._texts else None
                    columns[name] = pa.array([line.get(name) for line in part], kind)
                except pa.ArrowException:
                    raise TraceError(
                        f"{self.place}: column {name!r}: holds values of several types; give it "
                        "one type"
                    ) from None
            yield _arrow_batch(self.place, start, pa.record_batch(columns), layout)
            start += len(part)


class _Frame:
    """A data frame of pandas or polars, an Arrow table, or what exports one of their protocols."""

    cascade: bytes | None = None
    place = "the frame"

    def __init__(self, frame: Any) -> None:
        self._table = _table_of(frame)
        self.columns: tuple[str, ...] = tuple(map(str, self._table.column_names))

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows."""
        start = 0
        for batch in self._table.select(list(layout.uses)).to_batches(rows or BATCH_ROWS):
            yield _arrow_batch(self.place, start, batch, layout)
            start += batch.num_rows


def read_frame(frame: Any, cascade: Cascade, on_bad: OnBad) -> Trace:
    """Build a trace from a data frame; see :meth:`ttamer.Trace.from_frame`."""
    if hasattr(frame, "to_frame"):  # as a column of pandas and polars has, which exports a stream
        raise ArgumentError(
            f"from_frame needs a data frame, and a {type(frame).__name__} is one column: give the "
            "frame with a column <node>.confidence for each node"
        )
    if not (hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__")):
        remedy = "read a file with Trace.read, build from arrays with Trace.from_arrays"
        if hasattr(frame, "collect"):  # polars computes it only then
            remedy = "give frame.collect()"
        raise ArgumentError(
            f"from_frame needs a data frame (pandas, polars, Arrow), not {type(frame).__name__}; "
            f"{remedy}"
        )
    columns = getattr(frame, "columns", ())  # of an Arrow table these are no names
    check_names([name for name in columns if isinstance(name, str)], _Frame.place)
    return read_all(_Frame(frame), cascade, on_bad)


def _table_of(frame: Any) -> Any:
    """Return a frame as an Arrow table, without a copy where its memory allows."""
    pa = arrow()
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            table = arrow("pyarrow.interchange").from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        why = "; ".join(map(str, error.args)) or type(error).__name__
        raise TraceError(
            f"{_Frame.place}: cannot be read as an Arrow table: {why.splitlines()[0][:200]}; give "
            "each column one type"
        ) from None
    for number, field in enumerate(table.schema):
        if "string_view" in str(field.type):  # as polars exports text and categories
            chunks = [_without_views(pa, chunk) for chunk in table.column(number).chunks]
            kind = chunks[0].type if chunks else pa.large_string()
            table = table.set_column(number, field.name, pa.chunked_array(chunks, kind))
    return table


def _without_views(pa: Any, chunk: Any) -> Any:
    """Return text, plain or as a dictionary, in a type that all of Arrow's functions take."""
    if not pa.types.is_dictionary(chunk.type):
        return chunk.cast(pa.large_string())
    texts = chunk.dictionary.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), texts)


# NPZ: one array for each column; needs NumPy only.


class _Npz:
    """An NPZ file, read by rows through all of its arrays at once. Nothing is unpickled.

    Further arrays may stand there: ``classes``, the text of each class, when predictions and label
    are codes into it (-1: no answer), ``groups``, ``texts`` (columns of text, as JSON) and
    ``cascade``, the text of a ``cascade.toml``.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.place = path, str(path)
        self._arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._tables: dict[str, list[str]] = {}
        self._texts: dict[str, list[str | None]] = {}
        self.cascade: bytes | None = None
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                check_names(names, self.place)
                for name in names:
                    with archive.open(f"{name}.npy") as file:
                        self._describe(name, file)
        except TraceError:
            raise
        except DAMAGE as error:
            raise TraceError(
                f"{path}: is not an NPZ file, or is damaged: {str(error)[:200]}"
            ) from None
        self.columns: tuple[str, ...] = (*self._arrays, *self._texts)
        counts = {name: shape[0] for name, (_, shape) in self._arrays.items()}
        counts |= {name: len(values) for name, values in self._texts.items()}
        first = next(iter(counts), "")
        for name, count in counts.items():
            if count != counts[first]:
                raise TraceError(
                    f"{self.place}: columns of unequal length: {first!r} has "
                    f"{counted(counts[first], 'row')}, {name!r} has {count}; every array must have "
                    "one value for each input"
                )
        self._rows = counts.get(first, 0)

    def _describe(self, name: str, file: IO[bytes]) -> None:
        dtype, shape = _npy_header(name, file)
        if dtype.hasobject:
            raise TraceError(
                f"{self.place}: column {name!r}: holds Python objects, which are never opened "
                "(mixed types, or None among numbers); store numbers, or text of one type"
            )
        if name == "texts":
            self._texts = json.loads(_npy_rows(file, dtype, shape).tobytes())
        elif name in ("classes", "groups", "cascade"):
            if dtype.kind != "U" or len(shape) != (name != "cascade"):
                raise TraceError(f"{self.place}: the array {name!r} must hold text")
            values = _npy_rows(file, dtype, shape).tolist()
            if name == "cascade":
                self.cascade = str(values).encode()
            else:
                self._tables[name] = values
        elif len(shape) != 1 and not (name.startswith(INPUT) and len(shape) == 2):
            raise TraceError(
                f"{self.place}: column {name!r}: has shape {shape}; each array must be "
                "one column, of shape (rows,)"
            )
        else:
            self._arrays[name] = (dtype, shape)

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows."""
        start, step = 0, rows or BATCH_ROWS
        try:
            with ExitStack() as stack:
                archive = stack.enter_context(zipfile.ZipFile(self._path))
                files = {}
                for name in layout.uses.keys() & self._arrays.keys():
                    files[name] = stack.enter_context(archive.open(f"{name}.npy"))
                    _npy_header(name, files[name])
                for start in range(0, self._rows, step):
                    count = min(step, self._rows - start)
                    cells = {}
                    for name, use in layout.uses.items():
                        if name in self._texts:
                            texts = self._texts[name][start : start + count]
                            known = np.array([text is not None for text in texts], bool)
                            positions = np.where(known, np.arange(count), -1)
                            cells[name] = Cells(positions, "text", texts)
                            continue
                        dtype, shape = self._arrays[name]
                        values = _npy_rows(files[name], dtype, (count, *shape[1:]))
                        cells[name] = self._cells(name, values, use)
                    yield Batch(start, count, cells)
        except TraceError:
            raise
        except DAMAGE as error:
            raise TraceError(
                f"{self.place}: is damaged after row {start}: {str(error)[:200]}"
            ) from None

    def _cells(self, name: str, values: NDArray[Any], use: Use) -> Cells:
        kind = str(values.dtype)
        table = use.column.texts if use.column else ""
        if table in self._tables:
            texts = self._tables[table]
            where = f"{self.place}: column {name!r}:"
            if values.dtype.kind not in "iu":
                raise TraceError(
                    f"{where} holds {kind}, and codes into the array {table!r} are needed; convert "
                    "the array"
                )
            if values.size and not -1 <= values.min() <= values.max() < len(texts):
                raise TraceError(
                    f"{where} codes run from {values.min()} to {values.max()}, and {table!r} has "
                    f"{len(texts)} (-1 is no answer)"
                )
            return Cells(values, kind, texts)
        if values.dtype.kind == "U":
            distinct, inverse = np.unique(values, return_inverse=True)
            return Cells(inverse, kind, distinct.tolist())
        if values.dtype.kind not in "biuf":
            return Cells(np.empty((len(values), 0, 0)), kind)
        return Cells(values, kind)


def _npy_header(name: str, file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name}: version {version} of the array format is for records")
    shape, _, dtype = readers[version](file)
    return dtype, shape


def _npy_rows(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    data = file.read(size)
    if len(data) != size:
        raise EOFError("the data ends early")
    return np.frombuffer(data, dtype).reshape(shape)


# Writing.


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace by the suffix: the file appears whole or not at all."""
    require_path(path, "writing a trace")
    path = Path(path)
    suffix = suffix_of(path)
    if not len(trace):
        raise TraceError(f"{path}: a trace of no rows is not written")
    if not path.parent.is_dir():  # pyarrow would name the temporary file
        raise TraceError(f"{path}: cannot be written: there is no folder {path.parent}")
    writers = {".npz": _write_npz, ".parquet": _write_parquet, ".jsonl": _write_json_lines}
    try:
        with atomic_write(path) as part:
            if suffix in writers:
                writers[suffix](trace, part)
            else:
                _write_csv(trace, part, gzipped=suffix == ".csv.gz")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix that gives a file's format, or refuse the name.

    >>> suffix_of("log.CSV.gz")
    '.csv.gz'
    """
    name = Path(path).name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise TraceError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}")


def beside(path: str | os.PathLike[str], ending: str) -> Path:
    """Return a file beside a trace: the name of the trace without its suffix, then ``ending``.

    >>> beside("log.csv.gz", ".toml").name
    'log.toml'
    """
    return Path(path).with_name(Path(path).name[: -len(suffix_of(path))] + ending)


def columns_of(trace: Trace, rows: slice) -> dict[str, NDArray[Any]]:
    """Return some rows of a trace as named columns; predictions, label and group as codes.

    >>> trace = Trace(CascadeSpec.of({"a": 1.0}), [[0.5]], inputs={"length": [3.0]})
    >>> columns_of(trace, slice(None))
    {'a.confidence': array([0.5]), 'input.length': array([3.])}
    """
    columns: dict[str, Any] = {}
    for node, name in enumerate(trace.names):
        for column, values in trace.columns():
            if column.by == "row":
                continue
            # A node may lack a column that others have. Confidences, predictions and costs are
            # there for all nodes.
            if column.name not in ("confidence", "prediction", "cost"):
                known = column.known(values)
                if known.any() and not known[:, node].any():
                    continue
            columns[f"{name}.{column.name}"] = values[rows, node]
    columns |= {c.name: values[rows] for c, values in trace.columns() if c.by == "row"}
    columns |= {INPUT + name: values[rows] for name, values in trace.inputs.items()}
    return {name: np.ascontiguousarray(values) for name, values in columns.items()}


def _tables(trace: Trace, *, typed: bool) -> Iterator[Any]:
    """Yield a trace as Arrow tables of some rows each; CSV has neither dictionaries nor lists."""
    pa = arrow()

    def column(name: str, values: NDArray[Any]) -> Any:
        if values.dtype == np.int32:
            texts = pa.array(trace.groups if name == "group" else trace.classes, pa.string())
            index = pa.array(values, pa.int32(), mask=values < 0)
            coded = pa.DictionaryArray.from_arrays(index, texts)
            return coded if typed else coded.dictionary_decode()
        if values.dtype == np.int8:
            return pa.array(values == 1, pa.bool_(), mask=values < 0)
        if values.dtype == object:
            return pa.array(values, pa.string())
        if values.ndim == 2:
            if not typed:
                return pa.array([json.dumps(row) for row in values.tolist()], pa.string())
            kind = pa.float32() if values.dtype == np.float32 else pa.float64()
            return pa.array(values.tolist(), pa.list_(kind))
        return pa.array(values, from_pandas=True)  # NaN is no value

    metadata = {CASCADE: trace.spec.to_toml().encode()}
    for start in range(0, len(trace), BATCH_ROWS):
        part = columns_of(trace, slice(start, start + BATCH_ROWS))
        columns = {name: column(name, values) for name, values in part.items()}
        yield pa.table(columns, metadata=metadata)


def _write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace, one row group to 131,072 rows, the cascade in the file's metadata.

    Numbers are stored byte by byte (``BYTE_STREAM_SPLIT``): those that were single precision once
    end in the same zeros, which then take next to no room.
    """
    pa, writer = arrow(), None
    try:
        for table in _tables(trace, typed=True):
            if writer is None:
                # Numbers seldom repeat: looking for a dictionary of them takes most of the time.
                text = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
                numbers = [f.name for f in table.schema if pa.types.is_floating(f.type)]
                writer = arrow("pyarrow.parquet").ParquetWriter(
                    path,
                    table.schema,
                    compression="zstd",
                    use_dictionary=text or False,
                    use_byte_stream_split=numbers,
                    write_page_checksum=True,
                )
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _write_csv(trace: Trace, path: Path, *, gzipped: bool) -> None:
    with arrow().output_stream(path, compression="gzip" if gzipped else None) as stream:
        writer = None
        for table in _tables(trace, typed=False):
            writer = writer or arrow("pyarrow.csv").CSVWriter(stream, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _write_json_lines(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, one object to a row; what is not known is null."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for table in _tables(trace, typed=True):
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            for row in zip(*columns.values(), strict=True):
                file.write(encoder.encode(dict(zip(columns, row, strict=True))) + b"\n")


def _write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as arrays, with its classes and its cascade.

    Only codes and truth values are compressed: numbers take long and hardly shrink.
    """
    columns: dict[str, Any] = {"cascade": np.array(trace.spec.to_toml())}
    present = {column.texts for column, _ in trace.columns()}
    for texts in ("classes", "groups"):
        if texts in present:
            columns[texts] = np.array(getattr(trace, texts), dtype=np.str_)
    text = {}
    for name, values in columns_of(trace, slice(None)).items():
        if values.dtype == object:
            text[name] = values.tolist()
        elif values.dtype == np.int8:
            known = values >= 0
            columns[name] = values == 1 if known.all() else np.where(known, values, np.nan)
        else:
            columns[name] = values
    if text:
        columns["texts"] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        for name, values in columns.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal traces, equal files
            if values.dtype.kind != "f":
                member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as file:
                npy.write_array(file, values, allow_pickle=False)


def frame_of(trace: Trace, library: FrameLibrary) -> Any:
    """Return a trace as a data frame; see :meth:`ttamer.Trace.to_frame`."""
    if library not in ("pandas", "polars", "arrow"):
        raise ArgumentError(
            f'library is {library!r}; it must be "pandas", "polars" or "arrow"', param="library"
        )
    columns: dict[str, Any] = {}
    for name, values in columns_of(trace, slice(None)).items():
        # A list: of an array that begins with None, polars makes a column of Python objects.
        if values.dtype == np.int32:
            texts = trace.groups if name == "group" else trace.classes
            columns[name] = _objects(values, texts).tolist()
        elif values.dtype == np.int8 and (values < 0).any():
            columns[name] = [None if value < 0 else bool(value) for value in values]
        elif values.dtype == np.int8:
            columns[name] = values == 1
        else:
            is_list = values.dtype == object or values.ndim == 2
            columns[name] = values.tolist() if is_list else values
    if library == "arrow":
        return arrow().table(columns)
    return require(library, "frames").DataFrame(columns)
