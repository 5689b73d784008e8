"""Reading and writing traces: Parquet, CSV, JSON Lines, NPZ and data frames.

A source hands its rows over in batches of :class:`Cells`: Parquet, CSV, JSON Lines and frames by
way of Arrow, NPZ with NumPy alone. From there on there is one way: cells become the columns of the
schema, a log with one line per call becomes one with one line per input, and every value is
checked. Nothing is left out in silence: a row that cannot be used is refused by column and number,
or left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ttamer._checks import counted, require_path, shown
from ttamer._extras import require
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.trace.checks import ClassMatch, warn_of_variants
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.layout import KEYS, Layout, Use, check_names, infer_spec, is_long, plan, plan_long
from ttamer.trace.schema import (
    COST,
    INPUT,
    SCORE,
    ClassCodes,
    Column,
    faults,
    is_filled,
)
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

Floats = NDArray[np.float64]


class Cells(NamedTuple):
    """Some cells of a column."""

    values: NDArray[Any]
    """Numbers (NaN: no value), vectors, or positions in ``texts`` (-1: no value)."""
    type: str
    """The type, as the file names it."""
    texts: Sequence[Any] | None = None


class Source:
    """An open trace file or a data frame: its columns, and its rows in batches."""

    cascade: bytes | None = None
    """The text of the cascade.toml that is kept inside."""

    def __init__(self, where: str, columns: Sequence[str]) -> None:
        self.where, self.columns = where, tuple(columns)
        """What every message begins with; the names of the columns."""

    def batches(self, layout: Layout, rows: int | None) -> Iterator[dict[str, Cells]]:
        """Yield the columns in use, at most ``rows`` rows at a time (``None``: as is efficient)."""
        raise NotImplementedError


def arrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or a module of it, or raise how to install it."""
    require("pyarrow", "io")
    return require(module, "io")


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
    rows were all left out comes as a trace of no rows, so that its ``left_out`` is not lost. The
    arrays of an NPZ file are all in memory.

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
    start = count = 0
    for cells in source.batches(layout, rows):
        columns = _parsed(layout, cells, codes, start)
        trace = _assembled(layout, {k: [v] for k, v in columns.items()}, start, codes, on_bad)
        match.add(trace)
        start += _rows_in(columns)
        count += len(trace)
        yield trace
    _check_rows(layout.where, start, count)
    _check_classes(layout, match, codes)


def read_all(source: Source, cascade: Cascade, on_bad: OnBad) -> Trace:
    """Read all rows of a source: one line per input, one per call, or a decision log."""
    if is_decision_log(source.columns):
        return read_decisions(source.where, _spec_of(source, cascade, on_bad)).trace
    layout, codes, start = _layout_of(source, cascade, on_bad), _Codes(), 0
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in layout.uses}
    for cells in source.batches(layout, None):
        columns = _parsed(layout, cells, codes, start)
        for name, values in columns.items():
            parts[name].append(values)
        start += _rows_in(columns)
    _check_rows(layout.where, start, start)
    if layout.is_long:
        layout, parts = _by_input(layout, parts, codes)
    trace = _assembled(layout, parts, 0, codes, on_bad)
    _check_rows(layout.where, start, len(trace))
    match = ClassMatch()
    match.add(trace)
    _check_classes(layout, match, codes)
    return trace


class _Codes(dict[str, ClassCodes]):
    """The classes met so far, by list of texts."""

    def __missing__(self, key: str) -> ClassCodes:
        self[key] = ClassCodes()
        return self[key]


def _rows_in(columns: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(columns.values())))


def _check_classes(layout: Layout, match: ClassMatch, codes: _Codes) -> None:
    classes = codes["classes"].classes
    if layout.compares_classes:
        match.check(classes, layout.where)
    warn_of_variants(classes, layout.where)


def _check_rows(where: str, read: int, used: int) -> None:
    if not read:
        raise TraceError(f"{where}: has columns and no rows; bring a log with at least one input")
    if not used:
        raise TraceError(f"{where}: every row was left out ({read} in all); fix the log")


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file by its suffix, and read its header."""
    require_path(path, "reading a trace")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name one file in it")
    convertible = {".json": "json", ".tsv": "table", ".xlsx": "excel"}
    try:
        suffix = suffix_of(path)
    except TraceError as error:
        if (reader := convertible.get(path.suffix.lower())) is None:
            raise
        raise TraceError(
            f"{error}; convert it first, as with pandas.read_{reader}(path).to_parquet(...)"
        ) from None
    try:
        if not path.stat().st_size:
            raise TraceError(f"{path}: is empty")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {_line(error)}") from None
    kinds: dict[str, Any] = {".parquet": _Parquet, ".jsonl": _JsonLines, ".npz": _Npz}
    source: Source = kinds.get(suffix, _Csv)(path)
    return source


def _spec_of(source: Source, cascade: Cascade, on_bad: OnBad) -> CascadeSpec | None:
    """Return the cascade that the user names, or the source's own."""
    if on_bad not in ("refuse", "skip"):
        raise ArgumentError(f'on_bad is {on_bad!r}; it must be "refuse" or "skip"', param="on_bad")
    if isinstance(cascade, CascadeSpec):
        return cascade
    if isinstance(cascade, Mapping):
        return CascadeSpec.of(cascade)
    if cascade is not None:
        return CascadeSpec.from_file(cascade)
    if source.cascade is None:
        return None
    try:
        return CascadeSpec.from_toml(source.cascade.decode("utf-8", "replace"))
    except CascadeError as error:
        raise TraceError(
            f"{source.where}: the cascade kept in the file cannot be used: {error}; give a "
            "cascade.toml"
        ) from None


def _layout_of(source: Source, cascade: Cascade, on_bad: OnBad) -> Layout:
    """Return which column of a source is used for what."""
    spec = _spec_of(source, cascade, on_bad)
    if is_long(source.columns):
        return plan_long(source.columns, spec, source.where)
    if spec is not None:
        return plan(source.columns, spec, source.where)
    spec, note = infer_spec(source.columns, _mean_costs(source), source.where)
    return plan(source.columns, spec, source.where, [note])


def _mean_costs(source: Source) -> dict[str, float]:
    """Return the mean of each cost column by node: a pass over those columns alone."""
    spec, _ = infer_spec(source.columns, {}, source.where)
    uses = plan(source.columns, spec, source.where).uses
    layout = Layout(source.where, spec, {k: u for k, u in uses.items() if u.column is COST})
    total, count = dict.fromkeys(layout.uses, 0.0), dict.fromkeys(layout.uses, 0)
    # Always batches of the same size: the mean must not depend on how the file is read.
    for cells in source.batches(layout, 1 << 16) if layout.uses else ():
        for name, values in _parsed(layout, cells, _Codes(), 0).items():
            good = np.isfinite(values) & (values >= 0)  # the others are refused by name later
            total[name] += float(values[good].sum())
            count[name] += int(good.sum())
    return {name.removesuffix(".cost"): total[name] / max(count[name], 1) for name in total}


# Parsing: cells to typed arrays.


def _parsed(
    layout: Layout, cells: Mapping[str, Cells], codes: _Codes, start: int
) -> dict[str, NDArray[Any]]:
    """Return the columns of a batch as arrays of the schema's types."""
    columns = {}
    for name, use in layout.uses.items():
        try:
            columns[name] = _values(cells[name], use, codes, start)
        except TraceError as error:
            raise TraceError(f"{layout.where}: column {name!r}: {error}") from None
    return columns


def _values(cells: Cells, use: Use, codes: _Codes, start: int) -> NDArray[Any]:
    values, texts = cells.values, cells.texts
    is_numeric = texts is None and values.dtype.kind in "biuf"
    is_plain = is_numeric and values.ndim == 1
    is_number = is_plain and values.dtype.kind != "b" and cells.type != "bool"
    if use.column is None:
        if texts is None and not (is_numeric and values.ndim <= 2):
            raise _wrong_type(cells, "numbers, text or lists of numbers")
        if texts is None:
            is_single = values.ndim == 2 and values.dtype == np.float32
            return values if is_single else values.astype(np.float64)
    elif use.kind == "number":
        if not is_number:
            raise _wrong_type(cells, "numbers")
        return values.astype(np.float64, copy=False)
    elif use.kind == "class":
        if texts is None and not is_plain:
            raise _wrong_type(cells, "text, whole numbers or truth values")
        coder = codes[use.column.texts]
        return coder.encode(values) if texts is None else coder.recode(values, texts)
    elif use.kind == "flag":
        if not is_plain:
            raise _wrong_type(cells, "truth values, or 0 and 1")
        return _flags_of(values.astype(np.float64), start)
    elif texts is None:
        if not (is_number and np.isnan(values.astype(np.float64)).all()):
            raise TraceError(f"holds {cells.type}, and text is needed; convert the column")
        return np.full(len(values), None, object)
    return _texts_at(values, texts or ())


def _texts_at(positions: NDArray[Any], texts: Sequence[Any]) -> NDArray[Any]:
    table: NDArray[Any] = np.array([*texts, None], object)  # -1 picks the last entry
    picked: NDArray[Any] = table[positions]
    return picked


def _flags_of(numbers: Floats, start: int) -> NDArray[np.int8]:
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


def _joined(
    where: str, name: str, parts: list[NDArray[Any]], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the parts of a column as one array, freed at once."""
    try:
        return parts[0] if len(parts) == 1 and out is None else np.concatenate(parts, out=out)
    except ValueError:
        raise TraceError(
            f"{where}: column {name!r}: holds numbers, text or vectors of several lengths; "
            "give it one type"
        ) from None
    finally:
        parts.clear()


# A log with one line per call.


def _by_input(
    layout: Layout, parts: Mapping[str, list[NDArray[Any]]], codes: _Codes
) -> tuple[Layout, dict[str, list[NDArray[Any]]]]:
    """Return the columns with one line per input; inputs are numbered as they appear."""
    columns = {name: _joined(layout.where, name, values) for name, values in parts.items()}
    for key in KEYS:
        if (columns[key] < 0).any():
            raise TraceError(
                f"{layout.where}: column {key!r}: row {int((columns[key] < 0).argmax())} (counting "
                f"from 0) is empty; each line names its {key}"
            )
    row, ids, names = columns["id"], codes["id"].classes, codes["node"].classes
    spec, notes = layout.spec, layout.notes
    if spec is None:
        means = {}
        for code, name in enumerate(names) if "cost" in columns else ():
            costs = columns["cost"][(columns["node"] == code) & (columns["cost"] >= 0)]
            means[name] = float(costs.mean()) if costs.size else 1.0
        spec, note = infer_spec([f"{name}.confidence" for name in names], means, layout.where)
        notes = (note, *notes)
    if strangers := [name for name in names if name not in spec.names]:
        raise TraceError(
            f"{layout.where}: column 'node': nodes that are not in the cascade: {shown(strangers)};"
            f" the cascade has {shown(spec.names)}"
        )
    node = np.array([spec.names.index(name) for name in names], np.intp)[columns["node"]]
    _check_calls(row, node, ids, spec, layout.where)
    uses, by_input = {}, {}
    for name, use in layout.uses.items():
        if name in KEYS:
            continue
        if use.column is None or use.column.by == "row":
            uses[name] = use
            by_input[name] = [_of_inputs(name, columns[name], row, ids, layout.where)]
            continue
        shape = len(spec), len(ids)
        table: NDArray[Any] = np.full(shape, use.column.missing, use.column.dtype)
        table[node, row] = columns[name]
        for position, node_name in enumerate(spec.names):
            uses[f"{node_name}.{name}"] = Use(use.column, position)
            by_input[f"{node_name}.{name}"] = [table[position]]
    return Layout(layout.where, spec, uses, notes), by_input


def _check_calls(
    row: NDArray[Any], node: NDArray[Any], ids: Sequence[str], spec: CascadeSpec, where: str
) -> None:
    """Refuse two lines of one input and node, and a node without lines."""
    pair = row.astype(np.int64) * len(spec) + node
    lines = np.bincount(pair, minlength=len(ids) * len(spec)).reshape(len(ids), len(spec))
    if (lines > 1).any():
        at, of = np.argwhere(lines > 1)[0]
        raise TraceError(
            f"{where}: id {ids[at]!r} has {lines[at, of]} lines for node {spec.names[of]!r}; "
            "keep one"
        )
    if (silent := lines.sum(axis=0) == 0).any():
        raise TraceError(
            f"{where}: there is no line for node {spec.names[int(silent.argmax())]!r}; add its "
            "lines, or remove it from the cascade"
        )


def _of_inputs(
    name: str, values: NDArray[Any], row: NDArray[Any], ids: Sequence[str], where: str
) -> NDArray[Any]:
    """Return one value for each input; lines of one input must not contradict each other."""
    filled = is_filled(values).all(axis=tuple(range(1, values.ndim)))
    missing = {"O": None, "f": math.nan}.get(values.dtype.kind, -1)
    by_input = np.full((len(ids), *values.shape[1:]), missing, values.dtype)
    by_input[row[filled]] = values[filled]
    differ = (by_input[row] != values).any(axis=tuple(range(1, values.ndim)))
    if (clash := filled & differ).any():
        raise TraceError(
            f"{where}: column {name!r}: id {ids[row[int(clash.argmax())]]!r} has two values; give "
            "it one"
        )
    return by_input


# Assembling: typed columns with one line per input to a trace.


def _assembled(
    layout: Layout,
    parts: Mapping[str, list[NDArray[Any]]],
    start: int,
    codes: _Codes,
    on_bad: OnBad,
) -> Trace:
    """Return the trace of columns, each in parts; rows left out are counted."""
    spec = layout.spec
    assert spec is not None  # noqa: S101 - only a log with one line per call is read without
    arrays: dict[Column, NDArray[Any]] = {}
    inputs: dict[str, NDArray[Any]] = {}
    rows = sum(map(len, next(iter(parts.values()))))
    for name, use in layout.uses.items():
        column, out = use.column, None
        if column is not None and use.node is not None:
            if column not in arrays:
                # Columns contiguous: files come by column, and most work goes node by node.
                arrays[column] = np.full((len(spec), rows), column.missing, column.dtype).T
                if column is COST:
                    arrays[column][:] = spec.costs
            out = arrays[column][:, use.node]
        values = _joined(layout.where, name, parts[name], out)
        if column is None:
            inputs[use.input] = values
        elif out is None:
            arrays[column] = values

    def trace(left_out: Mapping[str, int]) -> Trace:
        fields: dict[str, Any] = {column.field: array for column, array in arrays.items()}
        priced = spec
        if SCORE in arrays:
            priced, fields[SCORE.field] = graded(spec, arrays[SCORE])
        return Trace(
            priced, **fields, inputs=inputs, classes=codes["classes"].classes,
            groups=codes["groups"].classes, left_out=left_out, notes=layout.notes,
        )  # fmt: skip

    try:
        return trace({})
    except TraceError:
        # A trace refuses the same in its own words; here the file and its columns are named.
        unusable = _unusable(layout, arrays, inputs, start)
        if not unusable:
            raise
    keep = np.ones(rows, bool)
    left_out: dict[str, int] = {}
    for name, bad in unusable.items():
        if on_bad == "refuse":
            raise TraceError(
                f"{layout.where}: column {name!r}: {_rows(bad, start)} missing, NaN or infinite; "
                'fix the log, or skip these rows with on_bad="skip" (they are counted)'
            )
        if count := int((bad & keep).sum()):
            left_out[f"{name} is missing, NaN or infinite"] = count
        keep &= ~bad
    for column, array in arrays.items():
        arrays[column] = array[keep] if array.ndim == 1 else array.T[:, keep].T
    for name, values in inputs.items():
        inputs[name] = values[keep]
    return trace(left_out)


def _unusable(
    layout: Layout,
    arrays: Mapping[Column, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]],
    start: int,
) -> dict[str, NDArray[np.bool_]]:
    """Return which rows cannot be used, by column; refuse values out of range."""
    unusable: dict[str, NDArray[np.bool_]] = {}
    for column, node, kind, bad in faults(arrays):
        name = f"{layout.names[node]}.{column.name}"
        where = f"{layout.where}: column {name!r}"
        if kind == "low":
            raise TraceError(
                f"{where}: {_rows(bad, start)} negative, and a {column.name} is not; correct the "
                "log"
            )
        if kind == "high":
            remedy = "give other grades as <node>.loss" if column is SCORE else "correct the log"
            raise TraceError(
                f"{where}: {_rows(bad, start)} above 1, and a {column.name} is from 0 to 1; "
                f"{remedy}"
            )
        if kind == "stray":  # of an answer without a confidence
            name = f"{layout.names[node]}.confidence"
        unusable[name] = unusable.get(name, False) | bad
    for name, values in inputs.items():
        if values.dtype == object:
            continue
        bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if bad.any():
            unusable[INPUT + name] = bad
    return unusable


def _rows(bad: NDArray[np.bool_], start: int) -> str:
    """Say where: the first row, how many in all, and of how many."""
    first, count = int(bad.argmax()) + start, int(bad.sum())
    more = f" and {count - 1} more of {len(bad)}" if count > 1 else ""
    return f"row {first} (counting from 0){more} {'are' if count > 1 else 'is'}"


# Sources of Arrow.


class _ArrowSource(Source):
    """A source that is read by way of record batches of Arrow."""

    def batches(self, layout: Layout, rows: int | None) -> Iterator[dict[str, Cells]]:
        """Yield the columns in use, at most ``rows`` rows at a time."""
        pa, start, size = arrow(), 0, rows or BATCH_ROWS
        try:
            for batch in self.record_batches(layout, rows):
                for first in range(0, batch.num_rows, size):
                    part = batch.slice(first, size)
                    yield {
                        name: _arrow_cells(pa, part.column(name), use.kind,
                                           f"{self.where}: column {name!r}")
                        for name, use in layout.uses.items()
                    }  # fmt: skip
                    start += part.num_rows
        except TraceError:
            raise
        except (pa.ArrowException, *DAMAGE) as error:
            raise TraceError(f"{self.where}: {self.fault(error, layout, start)}") from None

    def record_batches(self, layout: Layout, rows: int | None) -> Iterator[Any]:
        """Yield record batches, of at most ``rows`` rows where that takes less memory."""
        raise NotImplementedError

    def fault(self, error: BaseException, layout: Layout, start: int) -> str:
        """Say what is wrong with a file whose reading failed."""
        del layout
        return f"is damaged after row {start}: {_line(error)}"


def _arrow_cells(pa: Any, array: Any, use: str, where: str) -> Cells:
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
            filled = used[used >= 0]
            texts, positions = texts.take(pa.array(filled)), positions - (len(used) - len(filled))
        return Cells(positions, name, texts.to_pylist())
    if types.is_null(kind):
        return Cells(np.full(len(array), math.nan), name)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = arrow("pyarrow.compute").list_value_length(array)
        if array.null_count or len(lengths.unique()) > 1:
            raise TraceError(
                f"{where}: holds vectors of several lengths, or rows without one; give each row a "
                "vector of one length"
            )
        values = array.flatten().to_numpy(zero_copy_only=False)
        return Cells(values.reshape(len(array), -1), name)
    if types.is_boolean(kind) or types.is_decimal(kind):
        array = array.cast(pa.int8() if types.is_boolean(kind) else pa.float64())
    elif not (types.is_floating(kind) or types.is_integer(kind)):
        return Cells(np.empty(len(array), object), name)
    return Cells(array.to_numpy(zero_copy_only=False), name)


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _line(error: BaseException) -> str:
    """Return the first line of a foreign message."""
    text = str(getattr(error, "strerror", None) or error) or type(error).__name__
    return text.splitlines()[0][:200]


class _Parquet(_ArrowSource):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self._path, pa = path, arrow()
        try:
            self._schema = self._open([]).schema_arrow
        except (pa.ArrowException, *DAMAGE) as error:
            raise TraceError(
                f"{path}: is not a Parquet file, or was cut short: {_line(error)}"
            ) from None
        super().__init__(str(path), self._schema.names)
        self.cascade = (self._schema.metadata or {}).get(CASCADE)

    def _open(self, as_dictionary: Sequence[str]) -> Any:
        # Read in pieces: otherwise whole row groups are held, however large they are.
        return arrow("pyarrow.parquet").ParquetFile(
            self._path,
            read_dictionary=list(as_dictionary),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )

    def record_batches(self, layout: Layout, rows: int | None) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows."""
        types = arrow().types
        text = [c for c in layout.named("class") if _is_text(types, self._schema.field(c).type)]
        file = self._open(text)
        yield from file.iter_batches(rows or BATCH_ROWS, columns=list(layout.uses))


class _Csv(_ArrowSource):
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    def __init__(self, path: Path) -> None:
        self._path = path
        arrow()
        try:
            with self._open() as file:
                header = next(csv.reader(file), [])
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: cannot be read: {_line(error)}") from None
        except (UnicodeDecodeError, csv.Error):
            raise TraceError(f"{path}: is not CSV text in UTF-8") from None
        super().__init__(str(path), header)

    def _open(self) -> Any:
        is_zipped = self._path.suffix.lower() == ".gz"
        return (gzip.open if is_zipped else open)(
            self._path, "rt", encoding="utf-8-sig", newline=""
        )

    def record_batches(self, layout: Layout, rows: int | None) -> Iterator[Any]:
        """Yield record batches."""
        pa = arrow()
        text = pa.dictionary(pa.int32(), pa.string())
        types = {"number": pa.float64(), "class": text, "flag": pa.bool_(), "text": text}
        inputs = self._kinds_of(layout.named("input"))
        vectors = [name for name, kind in inputs.items() if kind == "vector"]
        types |= {"vector": pa.string()}
        kinds = {name: inputs.get(name, use.kind) for name, use in layout.uses.items()}
        for batch in self._cells({n: types[k] for n, k in kinds.items()}, at_once=rows is None):
            for name in vectors:  # cells such as [0.5, 1]
                cells = [json.loads(cell or "null") for cell in batch.column(name).to_pylist()]
                at = batch.schema.names.index(name)
                batch = batch.set_column(at, name, pa.array(cells, pa.list_(pa.float64())))
            yield batch

    def _kinds_of(self, names: list[str]) -> dict[str, str]:
        """Return what the cells of each input are: CSV has no types."""
        pa, compute = arrow(), arrow("pyarrow.compute")
        kinds = dict.fromkeys(names, "number")
        for batch in self._cells(dict.fromkeys(names, pa.string())) if names else ():
            for name in names:
                cells = batch.column(name).drop_null()
                if kinds[name] == "number":
                    try:
                        cells.cast(pa.float64())
                    except pa.ArrowInvalid:
                        kinds[name] = "vector"
                if kinds[name] == "vector":
                    lists = compute.match_substring_regex(cells, r"^\[[-+0-9.eE, ]*\]$")
                    kinds[name] = "vector" if compute.all(lists).as_py() else "text"
        return kinds

    def _cells(self, types: Mapping[str, Any], *, at_once: bool = False) -> Iterator[Any]:
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
        try:
            if at_once:  # in several threads
                yield from module.read_csv(self._path, **options).to_batches()
            else:
                with module.open_csv(self._path, **options) as reader:
                    yield from reader
        except arrow().ArrowInvalid as error:
            if "Empty CSV" not in str(error):  # a header, and not even the end of its line
                raise

    def fault(self, error: BaseException, layout: Layout, start: int) -> str:
        """Read again, slowly, to find the cell or the line that would not do."""
        del start
        kinds = {"number": "number", "flag": "truth value"}
        checks = [
            (position, name, kinds[layout.uses[name].kind])
            for position, name in enumerate(self.columns)
            if name in layout.uses and layout.uses[name].kind in kinds
        ]
        row = -2  # the header comes first
        try:
            with self._open() as file:
                lines = csv.reader(file)
                for cells in filter(None, lines):
                    row += 1
                    if len(cells) != len(self.columns):
                        return (
                            f"line {lines.line_num} has {len(cells)} cells, and the header has "
                            f"{len(self.columns)}; correct the log"
                        )
                    for position, name, kind in checks if row >= 0 else ():
                        cell = cells[position]
                        if cell and not _is_cell_of(cell, kind):
                            return (
                                f"column {name!r}: row {row} (counting from 0) holds "
                                f"{cell[:80]!r}, which is not a {kind}; "
                                f"{_remedy(cell.strip(), kind)}"
                            )
        except UnicodeDecodeError:
            return f"is not text in UTF-8 after row {row}"
        except (OSError, EOFError, zlib.error, csv.Error):
            pass
        return _line(error)


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


class _JsonLines(_ArrowSource):
    """A file with one JSON object on each line; its keys are columns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        arrow()
        keys: dict[str, None] = {}
        self._texts: set[str] = set()  # a batch need not show what a column holds
        for line in self._lines():
            keys.update(dict.fromkeys(line))
            if is_decision_log(tuple(keys)):  # read by a reader of its own
                self.cascade = str(line["cascade"]).encode() if "cascade" in line else None
                break
            self._texts.update(name for name, value in line.items() if type(value) is str)
        super().__init__(str(path), tuple(keys))

    def _lines(self) -> Iterator[dict[str, Any]]:
        decoder = msgspec.json.Decoder(dict[str, Any])
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    try:
                        if line.strip():
                            yield decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise TraceError(
                            f"{self._path}: line {number} is not a JSON object: {error}; correct "
                            "the log"
                        ) from None
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be read: {_line(error)}") from None

    def record_batches(self, layout: Layout, rows: int | None) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows."""
        pa, lines = arrow(), self._lines()
        while part := list(islice(lines, rows or BATCH_ROWS)):
            columns = {}
            for name in layout.uses:
                kind = pa.string() if name in self._texts else None
                try:
                    columns[name] = pa.array([line.get(name) for line in part], kind)
                except pa.ArrowException:
                    raise TraceError(
                        f"{self.where}: column {name!r}: holds values of several types; give it "
                        "one type"
                    ) from None
            yield pa.record_batch(columns)


class _Frame(_ArrowSource):
    """A data frame of pandas or polars, an Arrow table, or what exports one of their protocols."""

    def __init__(self, frame: Any, where: str) -> None:
        pa = arrow()
        try:
            if hasattr(frame, "__arrow_c_stream__"):
                table = pa.table(frame)
            else:
                table = arrow("pyarrow.interchange").from_dataframe(frame)
        except (pa.ArrowException, *DAMAGE) as error:
            why = "; ".join(map(str, error.args)) or type(error).__name__
            raise TraceError(
                f"{where}: cannot be read as an Arrow table: {why.splitlines()[0][:200]}; give "
                "each column one type"
            ) from None
        for number, field in enumerate(table.schema):
            if "string_view" in str(field.type):  # as polars exports text and categories
                text = pa.large_string()
                is_coded = pa.types.is_dictionary(field.type)
                kind = pa.dictionary(pa.int32(), text) if is_coded else text
                table = table.set_column(number, field.name, table.column(number).cast(kind))
        self._table = table
        super().__init__(where, table.column_names)

    def record_batches(self, layout: Layout, rows: int | None) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows."""
        yield from self._table.select(list(layout.uses)).to_batches(rows or BATCH_ROWS)


def read_frame(frame: Any, cascade: Cascade, on_bad: OnBad) -> Trace:
    """Build a trace from a data frame; see :meth:`ttamer.Trace.from_frame`."""
    if hasattr(frame, "to_frame"):  # as a column of pandas and polars has, which exports a stream
        raise ArgumentError(
            f"from_frame needs a data frame, and a {type(frame).__name__} is one column: give the "
            "frame with a column <node>.confidence for each node",
            param="frame",
        )
    if not (hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__dataframe__")):
        remedy = "read a file with Trace.read, build from arrays with Trace.from_arrays"
        if hasattr(frame, "collect"):  # polars computes it only then
            remedy = "give frame.collect()"
        raise ArgumentError(
            f"from_frame needs a data frame (pandas, polars, Arrow), not {type(frame).__name__}; "
            f"{remedy}",
            param="frame",
        )
    where, columns = "the frame", getattr(frame, "columns", ())
    check_names([name for name in columns if isinstance(name, str)], where)  # pandas refuses twins
    return read_all(_Frame(frame, where), cascade, on_bad)


# NPZ: one array for each column; needs NumPy only.


class _Npz(Source):
    """An NPZ file. Nothing is unpickled.

    Further arrays may stand there: ``classes``, the text of each class, when predictions and label
    are codes into it (-1: no answer), ``groups``, ``texts`` (columns of text, as JSON) and
    ``cascade``, the text of a ``cascade.toml``.
    """

    def __init__(self, path: Path) -> None:
        self._tables: dict[str, list[str]] = {}
        self._columns: dict[str, Any] = {}
        name = ""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                check_names(archive.files, str(path))
                for name in archive.files:
                    self._take(str(path), name, archive[name])
        except TraceError:
            raise
        except DAMAGE as error:
            if "Object arrays" in str(error):
                raise TraceError(
                    f"{path}: column {name!r}: holds Python objects, which are never opened "
                    "(mixed types, or None among numbers); store numbers, or text of one type"
                ) from None
            raise TraceError(f"{path}: is not an NPZ file, or is damaged: {_line(error)}") from None
        super().__init__(str(path), tuple(self._columns))
        first = next(iter(self._columns), "")
        for name, values in self._columns.items():
            if len(values) != len(self._columns[first]):
                raise TraceError(
                    f"{path}: columns of unequal length: {first!r} has "
                    f"{counted(len(self._columns[first]), 'row')}, {name!r} has {len(values)}; "
                    "every array must have one value for each input"
                )

    def _take(self, where: str, name: str, values: NDArray[Any]) -> None:
        if name == "texts":
            self._columns |= json.loads(values.tobytes())
        elif name in ("classes", "groups", "cascade"):
            if values.dtype.kind != "U" or values.ndim != (name != "cascade"):
                raise TraceError(f"{where}: the array {name!r} must hold text")
            if name == "cascade":
                self.cascade = str(values).encode()
            else:
                self._tables[name] = values.tolist()
        elif values.ndim != 1 and not (name.startswith(INPUT) and values.ndim == 2):
            raise TraceError(
                f"{where}: column {name!r}: has shape {values.shape}; each array must be one "
                "column, of shape (rows,)"
            )
        else:
            self._columns[name] = values

    def batches(self, layout: Layout, rows: int | None) -> Iterator[dict[str, Cells]]:
        """Yield the columns in use, at most ``rows`` rows at a time."""
        count = len(next(iter(self._columns.values()), ()))
        size = rows or count
        for start in range(0, count, size or 1):
            yield {
                name: self._cells(name, self._columns[name][start : start + size], use)
                for name, use in layout.uses.items()
            }

    def _cells(self, name: str, values: Any, use: Use) -> Cells:
        if isinstance(values, list):  # text
            positions = [-1 if text is None else k for k, text in enumerate(values)]
            return Cells(np.array(positions, np.intp), "text", values)
        kind, table = str(values.dtype), use.column.texts if use.column else ""
        if table in self._tables:
            texts = self._tables[table]
            where = f"{self.where}: column {name!r}:"
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
        return Cells(values, kind)


# Writing.


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace by the suffix: the file appears whole or not at all."""
    require_path(path, "writing a trace")
    path, suffix = Path(path), suffix_of(path)
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
        raise TraceError(f"{path}: cannot be written: {_line(error)}") from None


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
                filled = is_filled(values)
                if filled.any() and not filled[:, node].any():
                    continue
            columns[f"{name}.{column.name}"] = values[rows, node]
    columns |= {c.name: values[rows] for c, values in trace.columns() if c.by == "row"}
    columns |= {INPUT + name: values[rows] for name, values in trace.inputs.items()}
    return {name: np.ascontiguousarray(values) for name, values in columns.items()}


def _table(trace: Trace, rows: slice = slice(None)) -> Any:
    """Return rows of a trace as an Arrow table; what is not known is null."""
    pa = arrow()

    def column(name: str, values: NDArray[Any]) -> Any:
        if values.dtype == np.int32:
            texts = pa.array(trace.groups if name == "group" else trace.classes, pa.string())
            index = pa.array(values, pa.int32(), mask=values < 0)
            return pa.DictionaryArray.from_arrays(index, texts)
        if values.dtype == np.int8:
            return pa.array(values == 1, pa.bool_(), mask=values < 0)
        if values.dtype == object:
            return pa.array(values, pa.string())
        if values.ndim == 2:
            ends = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
            return pa.LargeListArray.from_arrays(ends, values.ravel())
        return pa.array(values, from_pandas=True)  # NaN is no value

    columns = {name: column(name, values) for name, values in columns_of(trace, rows).items()}
    return pa.table(columns, metadata={CASCADE: trace.spec.to_toml().encode()})


def _tables(trace: Trace) -> Iterator[Any]:
    for start in range(0, len(trace), BATCH_ROWS):
        yield _table(trace, slice(start, start + BATCH_ROWS))


def _plain(table: Any) -> Any:
    """Return a table whose text is not coded."""
    types = arrow().types
    for number, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            text = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, text)
    return table


def _write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace, one row group to 131,072 rows, the cascade in the file's metadata.

    Numbers are stored byte by byte (``BYTE_STREAM_SPLIT``): those that were single precision once
    end in the same zeros, which then take next to no room.
    """
    types, schema = arrow().types, _table(trace, slice(0, 1)).schema
    # Numbers seldom repeat: looking for a dictionary of them takes most of the time.
    text = [field.name for field in schema if types.is_dictionary(field.type)]
    numbers = [field.name for field in schema if types.is_floating(field.type)]
    with arrow("pyarrow.parquet").ParquetWriter(
        path, schema, compression="zstd", use_dictionary=text or False,
        use_byte_stream_split=numbers, write_page_checksum=True,
    ) as writer:  # fmt: skip
        for table in _tables(trace):
            writer.write_table(table)


def _write_csv(trace: Trace, path: Path, *, gzipped: bool) -> None:
    pa, writer = arrow(), None
    with pa.output_stream(path, compression="gzip" if gzipped else None) as stream:
        for coded in _tables(trace):
            table = _plain(coded)
            for number, field in enumerate(table.schema):
                if pa.types.is_large_list(field.type):
                    cells = [json.dumps(row) for row in table.column(number).to_pylist()]
                    table = table.set_column(number, field.name, pa.array(cells, pa.string()))
            writer = writer or arrow("pyarrow.csv").CSVWriter(stream, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _write_json_lines(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, one object to a row; what is not known is null."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for table in _tables(trace):
            for row in table.to_pylist():
                file.write(encoder.encode(row) + b"\n")


def _write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as arrays, with its classes and its cascade.

    Only codes and truth values are compressed: numbers take long and hardly shrink.
    """
    columns: dict[str, Any] = {"cascade": np.array(trace.spec.to_toml())}
    for texts in sorted({column.texts for column, _ in trace.columns()} - {""}):
        columns[texts] = np.array(getattr(trace, texts), dtype=np.str_)
    text = {}
    for name, values in columns_of(trace, slice(None)).items():
        if values.dtype == object:
            text[name] = values.tolist()
        elif values.dtype == np.int8:
            filled = is_filled(values)
            columns[name] = values == 1 if filled.all() else np.where(filled, values, np.nan)
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
    table = _plain(_table(trace))
    if library == "arrow":
        return table
    module = require(library, "frames")
    return table.to_pandas() if library == "pandas" else module.from_arrow(table)
