"""Reading and writing traces: Parquet, CSV, JSON Lines, NPZ and data frames.

A source hands its rows over in batches of :class:`Cells`: Parquet, CSV, JSON Lines and frames by
way of Arrow, NPZ with NumPy alone. From there on there is one way: cells become the columns of the
schema, and every value is checked. A log with one line per call is made one with one row per input
before. Nothing is left out in silence: a row that cannot be used is refused by column and number,
or left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ttamer._checks import require_path
from ttamer._extras import require
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, TraceError, TTamerError
from ttamer.trace.checks import ClassMatch, warn_of_variants
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.schema import (
    BY_NAME,
    COST,
    INPUT,
    SCORE,
    ClassCodes,
    Column,
    Layout,
    Use,
    check_names,
    faults,
    flags_of,
    infer_spec,
    is_filled,
    is_long,
    of_node,
    plan,
    used_codes,
)
from ttamer.trace.trace import Cascade, FrameLibrary, OnBad, Trace, graded

# The suffixes of trace files.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".npz")
# Codes of the classes met so far, by list of texts.
Codes = defaultdict[str, ClassCodes]


class Cells(NamedTuple):
    """Some cells of a column."""

    values: NDArray[Any]
    """Numbers (NaN: no value), vectors, or positions in ``texts`` (-1: no value)."""
    type: str
    """The type, as the file names it."""
    texts: Sequence[Any] | None = None

    @property
    def form(self) -> str:
        """What they are, whatever the type."""
        kind = self.values.dtype.kind
        if self.texts is not None:
            return "text"
        if kind == "b" or self.type == "bool":
            return "truth"
        if kind in "iuf" and self.values.ndim < 3:
            return "number" if self.values.ndim == 1 else "vector"
        return "other"


class Source:
    """An open trace file or a data frame: its columns, and its rows in batches."""

    cascade: bytes | None = None
    """The text of the cascade.toml that is kept inside."""
    batch_rows = 1 << 17
    """How many rows are handed over at a time, where no number is asked for."""

    def __init__(self, where: str, columns: Sequence[str]) -> None:
        self.where, self.columns = where, tuple(columns)
        """What every message begins with; the names of the columns."""

    def batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[dict[str, Cells]]:
        """Yield columns by name, each of a kind, at most ``rows`` rows at a time."""
        start, size = 0, rows or self.batch_rows
        batches = self.record_batches(kinds, rows)
        while True:
            # Reading alone: an error in parsing must not pass for a damaged file.
            with damage(f"{self.where}: is damaged after row {start}"):
                batch = next(batches, None)
            if batch is None:
                return
            for first in range(0, batch.num_rows, size):
                part = batch.slice(first, size)
                yield {n: _cells_of(part.column(n), kinds[n], self.column(n)) for n in kinds}
            start += batch.num_rows

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        """Yield record batches of Arrow, of at most ``rows`` rows where that takes less memory."""
        raise NotImplementedError

    def column(self, name: str) -> str:
        """Return the beginning of a message about a column."""
        return f"{self.where}: column {name!r}"


def arrow(module: str = "pyarrow") -> Any:
    """Return pyarrow or a module of it, or raise how to install it."""
    require("pyarrow", "io")
    return require(module, "io")


@contextmanager
def damage(what: str) -> Iterator[None]:
    """Report in one line what a reader raises: of a damaged file that may be nearly anything."""
    try:
        yield
    except TTamerError:
        raise
    except Exception as error:
        text = str(getattr(error, "strerror", None) or error) or type(error).__name__
        raise TraceError(f"{what}: {text.splitlines()[0][:200]}") from None


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
        cascade: As for :meth:`Trace.read`.
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
    for is_other, what in ((is_decision_log, "a decision log"), (is_long, "one line per call")):
        if is_other(source.columns):
            raise TraceError(
                f"{path}: has {what}, and lines of one input need not stand together: read it "
                "whole, with Trace.read"
            )
    return _traces(source, _layout_of(source, cascade, on_bad), rows, on_bad)


def read_all(source: Source, cascade: Cascade, on_bad: OnBad) -> Trace:
    """Read all rows of a source: one row per input, one line per call, or a decision log."""
    if is_decision_log(source.columns):
        return read_decisions(source.where, _spec_of(source, cascade, on_bad)).trace
    if is_long(source.columns):
        source = _by_input(source)
    (trace,) = _traces(source, _layout_of(source, cascade, on_bad), None, on_bad)
    return trace


def _traces(source: Source, layout: Layout, rows: int | None, on_bad: OnBad) -> Iterator[Trace]:
    """Yield traces of at most ``rows`` rows, or one of all; then check what they are together."""
    codes: Codes = defaultdict(ClassCodes)
    match, where = ClassMatch(), layout.where
    batches = source.batches(layout.kinds, rows)
    start = count = 0
    # Read whole, columns are joined once at the end: no second copy of a long log.
    for parts in ([part] for part in batches) if rows else filter(None, [list(batches)]):
        read = sum(len(next(iter(part.values())).values) for part in parts)
        trace = _assembled(layout, parts, range(start, start + read), codes, on_bad)
        match.add(trace)
        start, count = start + read, count + len(trace)
        yield trace
    if not start:
        raise TraceError(f"{where}: has columns and no rows; bring a log with at least one input")
    if not count:
        raise TraceError(f"{where}: every row was left out ({start} in all); fix the log")
    classes = codes["classes"].classes
    if layout.compares_classes:
        match.check(classes, where)
    warn_of_variants(classes, where)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file by its suffix, and read its header."""
    require_path(path, "reading a trace")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name one file in it")
    try:
        suffix = suffix_of(path)
    except TraceError as error:
        convertible = {".json": "json", ".tsv": "table", ".xlsx": "excel"}
        if (reader := convertible.get(path.suffix.lower())) is None:
            raise
        raise TraceError(
            f"{error}; convert it first, as with pandas.read_{reader}(path).to_parquet(...)"
        ) from None
    with damage(f"{path}: cannot be read"):
        if not path.stat().st_size:
            raise TraceError(f"{path}: is empty")
    kinds: dict[str, Any] = {".parquet": _Parquet, ".jsonl": _JsonLines, ".npz": _Npz}
    source: Source = kinds.get(suffix, _Csv)(path)
    return source


def _spec_of(source: Source, cascade: Cascade, on_bad: OnBad) -> CascadeSpec | None:
    """Return the cascade that the user names, or the source's own."""
    if on_bad not in ("refuse", "skip"):
        raise ArgumentError(f'on_bad is {on_bad!r}; it must be "refuse" or "skip"', param="on_bad")
    if isinstance(cascade, str | os.PathLike):
        return CascadeSpec.from_file(cascade)
    if cascade is not None:
        return cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.of(cascade)
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
    if (spec := _spec_of(source, cascade, on_bad)) is not None:
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
    for part in source.batches(layout.kinds, 1 << 16) if layout.uses else ():
        for name in layout.uses:
            values = _column(layout, name, part[name], defaultdict(ClassCodes), 0)
            good = values[np.isfinite(values) & (values >= 0)]  # others are refused by name later
            total[name] += float(good.sum())
            count[name] += len(good)
    # A node that was never asked has no mean.
    return {n.removesuffix(".cost"): total[n] / count[n] if count[n] else 1.0 for n in total}


# Parsing: cells to typed arrays.


def _column(layout: Layout, name: str, cells: Cells, codes: Codes, start: int) -> NDArray[Any]:
    """Return cells of a column as an array of the schema's type; the first is of row ``start``."""
    try:
        return _values(cells, layout.uses[name], codes, start)
    except TraceError as error:
        raise TraceError(f"{layout.where}: column {name!r}: {error}") from None


def _values(cells: Cells, use: Use, codes: Codes, start: int) -> NDArray[Any]:
    """Return cells as their use needs them; refuse those of another form."""
    if cells.form == "text" and use.kind in ("number", "flag"):
        return _numbers_in(cells, use.kind, start)
    values, texts, form = cells.values, cells.texts, cells.form
    # A column of text that is empty throughout may be of any type.
    if use.kind == "text" and form == "number" and np.isnan(values.astype(np.float64)).all():
        return np.full(len(values), None, object)
    needed, forms = {
        "number": ("numbers", ["number"]),
        "flag": ("truth values, or 0 and 1", ["number", "truth"]),
        "class": ("text, whole numbers or truth values", ["text", "number", "truth"]),
        "text": ("text", ["text"]),
        "input": ("numbers, text or vectors", ["text", "number", "truth", "vector"]),
    }[use.kind]
    if form not in forms:
        raise TraceError(f"holds {cells.type}, and {needed} are needed; convert the column")
    if use.kind == "class":
        coder = codes[use.column.texts if use.column else ""]
        return coder.encode(values) if texts is None else coder.recode(values, texts)
    if use.kind == "flag":
        return flags_of(values, start=start)
    if texts is not None:
        table: NDArray[Any] = np.array([*texts, None], object)  # -1 picks the last entry
        return np.asarray(table[values])
    is_single = form == "vector" and values.dtype == np.float32
    return values if is_single else values.astype(np.float64, copy=False)


def _numbers_in(cells: Cells, kind: str, start: int) -> NDArray[Any]:
    """Return the numbers or truth values that text stands for; refuse the first other cell."""
    truths = dict.fromkeys(("1", "true", "1.0"), 1.0) | dict.fromkeys(("0", "false", "0.0"), 0.0)
    texts = [str(text) for text in cells.texts or ()]
    numbers = np.full(len(texts) + 1, math.nan)  # -1 picks the last entry
    for position, text in enumerate(texts):
        try:
            numbers[position] = truths[text.lower()] if kind == "flag" else float(text)
            if "_" not in text:
                continue
        except (KeyError, ValueError):
            pass
        rows = np.flatnonzero(cells.values == position)
        if len(rows):
            what = "truth value" if kind == "flag" else "number"
            raise TraceError(
                f"row {rows[0] + start} (counting from 0) holds {text[:80]!r}, which is not a "
                f"{what}; {_remedy(text.strip(), kind)}"
            )
    values: NDArray[Any] = numbers[cells.values]
    return flags_of(values, start=start) if kind == "flag" else values


def _remedy(cell: str, kind: str) -> str:
    """Return what to write in place of a cell that cannot be read.

    >>> _remedy("NA", "number"), _remedy("91%", "number"), _remedy("0,9", "number")
    ('leave a cell without a value empty', 'leave out the "%"', 'write decimals with a point')
    """
    if cell.casefold() in ("na", "n/a", "none", "null", "-", "?"):
        return "leave a cell without a value empty"
    if kind == "flag":
        return "write true or false, or 1 or 0"
    if cell.endswith("%"):
        return 'leave out the "%"'
    return "write decimals with a point" if "," in cell else "correct the log"


# A log with one line per call.


def _by_input(source: Source) -> Source:
    """Return a log with one line per call as a table with a row for each input, as they appear."""
    pa, where = arrow(), source.where
    check_names(source.columns, where)
    if "confidence" not in source.columns:
        raise TraceError(
            f"{where}: the column 'confidence' is missing; a log with one line per call has id, "
            f"node and confidence; this one has {', '.join(map(repr, source.columns[:12]))}"
        )
    kinds = {n: "input" if n.startswith(INPUT) else "class" for n in source.columns}
    with damage(f"{where}: cannot be read"):
        tables = [pa.Table.from_batches([b]) for b in source.record_batches(kinds, None)]
        if not tables:
            raise TraceError(f"{where}: has columns and no rows")
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    codes = {}
    for key in ("id", "node"):
        column = table.column(key)
        with damage(f"{source.column(key)}: holds {column.type}, and text is needed"):
            text = column.cast(pa.string()).combine_chunks().dictionary_encode()
        if (row := column.is_null(nan_is_null=True).index(True).as_py()) >= 0:
            raise TraceError(
                f"{source.column(key)}: row {row} (counting from 0) is empty; each line names its "
                f"{key}"
            )
        codes[key] = text.indices.to_numpy(), text.dictionary.to_pylist()
    (row, ids), (node, names) = codes["id"], codes["node"]
    columns: dict[str, Any] = {}
    for number, name in enumerate(names):
        lines = np.flatnonzero(node == number)
        line = np.full(len(ids), -1)
        line[row[lines]] = lines
        if (twice := line[row[lines]] != lines).any():
            raise TraceError(
                f"{where}: id {ids[row[lines[twice.argmax()]]]!r} has two lines for node {name!r}; "
                "keep one"
            )
        # Taking no line gives null: a gap, in columns of any type.
        at = pa.array(line, mask=line < 0)
        for column in filter(of_node, kinds):
            with damage(f"{source.column(column)}: cannot be used"):
                columns[f"{name}.{column}"] = table.column(column).take(at)
    for name in kinds.keys() - {"id", "node"}:
        if name.startswith(INPUT) or (name in BY_NAME and BY_NAME[name].by == "row"):
            columns[name] = _of_inputs(table.column(name), row, ids, source.column(name))
        elif not of_node(name):
            columns[name] = pa.nulls(len(ids))  # named as not used
    return _Table(pa.table(columns), f"{where} (one row per input)", source.cascade)


def _of_inputs(column: Any, row: NDArray[Any], ids: Sequence[str], where: str) -> Any:
    """Return one value for each input; lines of one input must not contradict each other."""
    values: dict[int, Any] = {}
    for position, value in zip(row.tolist(), column.to_pylist(), strict=True):
        is_missing = value is None or value != value  # NaN
        if not is_missing and values.setdefault(position, value) != value:
            raise TraceError(f"{where}: id {ids[position]!r} has two values; give it one")
    return arrow().array([values.get(position) for position in range(len(ids))], column.type)


# Assembling: typed columns with one row per input to a trace.


def _assembled(
    layout: Layout, batches: list[dict[str, Cells]], rows: range, codes: Codes, on_bad: OnBad
) -> Trace:
    """Return the trace of batches, which are emptied; count rows left out."""
    spec, where = layout.spec, layout.where
    arrays: dict[Column, NDArray[Any]] = {}
    inputs: dict[str, NDArray[Any]] = {}
    for name, use in layout.uses.items():
        row, parts = rows.start, []
        for batch in batches:
            parts.append(_column(layout, name, batch.pop(name), codes, row))
            row += len(parts[-1])
        column, out = use.column, None
        if column is not None and use.node is not None:
            if column not in arrays:
                # Columns contiguous: files come by column, and most work goes node by node.
                arrays[column] = np.full((len(spec), len(rows)), column.missing, column.dtype).T
                if column is COST:
                    arrays[column][:] = spec.costs
            out = arrays[column][:, use.node]
        with damage(f"{where}: column {name!r}: give it one type"):  # vectors of several lengths
            values = np.concatenate(parts, out=out)
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
            priced,
            **fields,
            inputs=inputs,
            classes=codes["classes"].classes,
            groups=codes["groups"].classes,
            left_out=left_out,
            notes=layout.notes,
        )

    try:
        return trace({})  # checks all of it; what follows says where in the file
    except TraceError as error:
        wrong = list(faults(arrays, inputs, spec.names))
        if not wrong:
            raise TraceError(f"{where}: {error}") from None
    # A row with several faults is counted with the first.
    keep, left_out = np.ones(len(rows), bool), Counter[str]()
    for fault in sorted(wrong, key=lambda fault: fault.is_gap):  # those never left out first
        if on_bad == "refuse" or not fault.is_gap:
            remedy = "correct the log"
            if fault.is_gap:
                remedy = 'fix the log, or skip these rows with on_bad="skip" (they are counted)'
            elif fault.column.endswith(".score"):
                remedy = "give other grades as <node>.loss"
            raise TraceError(f"{where}: {fault.text(rows.start)}; {remedy}")
        left_out[f"{fault.column} is missing, NaN or infinite"] += int((fault.rows & keep).sum())
        keep &= ~fault.rows
    for column, array in arrays.items():
        arrays[column] = array[keep] if array.ndim == 1 else array.T[:, keep].T
    inputs = {name: values[keep] for name, values in inputs.items()}
    return trace(+left_out)


# Sources.


def _cells_of(array: Any, use: str, where: str) -> Cells:
    """Return an array of Arrow as cells for a kind of use."""
    pa = arrow()
    types, name = pa.types, str(array.type)
    if types.is_dictionary(array.type) and not _is_text(array.type.value_type):
        array = array.dictionary_decode()
    kind = array.type
    # Whole numbers with gaps would lose digits as floats, and as classes they are text.
    if _is_text(kind) or (use == "class" and types.is_integer(kind) and array.null_count):
        array = array.dictionary_encode()
    if types.is_dictionary(array.type):
        # The numbers may be unsigned, as polars and DuckDB write categories.
        positions = array.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        texts = array.dictionary
        if len(texts) > len(positions):  # a slice of a longer column
            used = np.flatnonzero(used_codes([positions], len(texts)))
            texts = texts.take(pa.array(used))
            positions = np.where(positions < 0, -1, np.searchsorted(used, positions))
        return Cells(positions, name, texts.to_pylist())
    if types.is_null(kind):
        return Cells(np.full(len(array), math.nan), name)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        # A flat array is cut into rows by one length.
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
        return Cells(np.empty(len(array), object), name)  # refused by its type
    return Cells(array.to_numpy(zero_copy_only=False), name)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


class _Table(Source):
    """A table of Arrow."""

    def __init__(self, table: Any, where: str, cascade: bytes | None = None) -> None:
        self._table, self.cascade = table, cascade
        super().__init__(where, table.column_names)

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        yield from self._table.select(list(kinds)).to_batches(rows or self.batch_rows)


class _Parquet(Source):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with damage(f"{path}: is not a Parquet file, or was cut short"):
            self._schema = self._open([]).schema_arrow
        super().__init__(str(path), self._schema.names)
        self.cascade = (self._schema.metadata or {}).get(b"ttamer.cascade")

    def _open(self, as_dictionary: Sequence[str]) -> Any:
        # Read in pieces: otherwise whole row groups are held, however large they are.
        return arrow("pyarrow.parquet").ParquetFile(
            self._path,
            read_dictionary=list(as_dictionary),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        text = [n for n in kinds if kinds[n] == "class" and _is_text(self._schema.field(n).type)]
        yield from self._open(text).iter_batches(rows or self.batch_rows, columns=list(kinds))


class _Csv(Source):
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    def __init__(self, path: Path) -> None:
        self._path = path
        arrow()
        opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
        with (
            damage(f"{path}: is not CSV text in UTF-8"),
            opened(path, "rt", encoding="utf-8-sig", newline="") as file,
        ):
            super().__init__(str(path), next(csv.reader(file), []))

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        del rows  # blocks of Arrow are small
        pa, count = arrow(), 0
        text = pa.dictionary(pa.int32(), pa.string())
        kinds = dict(kinds) | self._kinds_of([name for name in kinds if kinds[name] == "input"])
        vectors = [name for name in kinds if kinds[name] == "vector"]
        types = {"number": pa.float64(), "vector": pa.string()}
        try:
            for batch in self._read({name: types.get(kinds[name], text) for name in kinds}):
                for name in vectors:  # cells such as [0.5, 1]
                    cells = [json.loads(cell or "null") for cell in batch.column(name).to_pylist()]
                    at = batch.schema.names.index(name)
                    batch = batch.set_column(at, name, pa.array(cells, pa.list_(pa.float64())))
                yield batch
                count += batch.num_rows
        except pa.ArrowInvalid:
            # A cell that is no number: read as text, it is named, or has spaces around it.
            for batch in self._read(dict.fromkeys(kinds, text)):
                yield batch.slice(count)
                count = max(0, count - batch.num_rows)

    def _kinds_of(self, names: list[str]) -> dict[str, str]:
        """Return what the cells of each input are: CSV has no types."""
        pa, compute = arrow(), arrow("pyarrow.compute")
        kinds = dict.fromkeys(names, "number")
        for batch in self._read(dict.fromkeys(names, pa.string())) if names else ():
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

    def _read(self, types: Mapping[str, Any], *, threads: bool = True) -> Iterator[Any]:
        """Yield record batches of the named columns."""
        module, odd = arrow("pyarrow.csv"), list[Any]()

        def refuse(row: Any) -> str:
            odd.append(row)
            return "error"

        try:
            with module.open_csv(
                self._path,
                read_options=module.ReadOptions(use_threads=threads),
                parse_options=module.ParseOptions(
                    newlines_in_values=True,
                    # In a file of one column an empty line is a row without a value.
                    ignore_empty_lines=len(self.columns) > 1,
                    invalid_row_handler=refuse,
                ),
                convert_options=module.ConvertOptions(
                    include_columns=list(types),
                    column_types=types,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            ) as reader:
                yield from reader
        except arrow().ArrowInvalid as error:
            for row in odd:
                if threads:  # they do not know the number of a line
                    list(self._read(types, threads=False))
                raise TraceError(
                    f"{self.where}: line {row.number} has {row.actual_columns} cells, and the "
                    f"header has {row.expected_columns}; correct the log"
                ) from None
            if "Empty CSV" not in str(error):  # a header, and not even the end of its line
                raise


class _JsonLines(Source):
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
        decoder, line = msgspec.json.Decoder(dict[str, Any]), 0
        try:
            with self._path.open("rb") as file:
                for text in file:
                    line += 1
                    if text.strip():
                        yield decoder.decode(text)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(
                f"{self._path}: line {line} is not a JSON object: {error}; correct the log"
            ) from None

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        pa, lines = arrow(), self._lines()
        while part := list(islice(lines, rows or self.batch_rows)):
            columns = {}
            for name in kinds:
                kind = pa.string() if name in self._texts else None
                with damage(f"{self.column(name)}: holds values of several types"):
                    columns[name] = pa.array([line.get(name) for line in part], kind)
            yield pa.record_batch(columns)


def source_of_frame(frame: Any) -> Source:
    """Return a data frame as a source; see :meth:`ttamer.Trace.from_frame`."""
    # A column of pandas and polars exports a stream too.
    if hasattr(frame, "to_frame") or not hasattr(frame, "__arrow_c_stream__"):
        name, remedy = type(frame).__name__, "read a file with Trace.read, arrays with from_arrays"
        if hasattr(frame, "to_frame"):
            remedy = f"a {name} is one column: give the frame with a column <node>.confidence"
        elif hasattr(frame, "collect"):  # polars computes it only then
            remedy = "give frame.collect()"
        raise ArgumentError(
            f"from_frame needs a data frame (pandas, polars, Arrow), not {name}; {remedy}",
            param="frame",
        )
    where, columns = "the frame", getattr(frame, "columns", ())
    check_names([name for name in columns if isinstance(name, str)], where)  # pandas refuses twins
    with damage(f"{where}: cannot be read as an Arrow table; give each column one type"):
        return _Table(arrow().table(frame), where)


class _Npz(Source):
    """An NPZ file: one array for each column; nothing is unpickled, and NumPy alone is needed.

    Further arrays may stand there: ``classes``, the text of each class, when predictions and label
    are codes into it (-1: no answer), ``groups``, ``texts`` (columns of text, as JSON) and
    ``cascade``, the text of a ``cascade.toml``.
    """

    def __init__(self, path: Path) -> None:
        where, self._tables, arrays = str(path), dict[str, list[str]](), dict[str, Any]()
        with (
            damage(f"{where}: is not an NPZ file, or is damaged"),
            path.open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            super().__init__(where, archive.files)
            check_names(archive.files, where)
            for name in archive.files:
                with damage(
                    f"{self.column(name)}: is damaged, or holds Python objects, which are never "
                    "opened (mixed types, or None among numbers)"
                ):
                    arrays[name] = archive[name]
            for name in arrays.keys() & {"classes", "groups", "cascade"}:
                values = arrays.pop(name)
                if values.dtype.kind != "U" or values.ndim != (name != "cascade"):
                    raise TraceError(f"{where}: the array {name!r} must hold text")
                if name == "cascade":
                    self.cascade = str(values).encode()
                else:
                    self._tables[name] = values.tolist()
            arrays |= json.loads(arrays.pop("texts", np.frombuffer(b"{}", "u1")).tobytes())
        for name, values in arrays.items():
            if np.ndim(values) != 1 and not (name.startswith(INPUT) and np.ndim(values) == 2):
                raise TraceError(
                    f"{self.column(name)}: has shape {np.shape(values)}; each array must be one "
                    "column, of shape (rows,)"
                )
        first, self._rows = next(((name, len(v)) for name, v in arrays.items()), ("", 0))
        for name, values in arrays.items():
            if len(values) != self._rows:
                raise TraceError(
                    f"{where}: columns of unequal length: {first!r} has {self._rows} rows, "
                    f"{name!r} has {len(values)}; every array must have one value for each input"
                )
        self._arrays, self.columns = arrays, tuple(arrays)

    def batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[dict[str, Cells]]:
        for start in range(0, self._rows, rows or self._rows or 1):
            part = slice(start, start + (rows or self._rows))
            yield {name: self._cells(name, self._arrays[name][part], kinds[name]) for name in kinds}

    def _cells(self, name: str, values: Any, kind: str) -> Cells:
        if isinstance(values, list):  # text
            positions = [-1 if text is None else k for k, text in enumerate(values)]
            return Cells(np.array(positions, np.intp), "text", values)
        table = "groups" if name == "group" else "classes"
        if kind == "class" and table in self._tables:
            where, texts = f"{self.column(name)}:", self._tables[table]
            if values.dtype.kind not in "iu":
                raise TraceError(
                    f"{where} holds {values.dtype}, and codes into the array {table!r} are needed; "
                    "convert the array"
                )
            if values.size and not -1 <= values.min() <= values.max() < len(texts):
                raise TraceError(
                    f"{where} codes run from {values.min()} to {values.max()}, and {table!r} has "
                    f"{len(texts)} (-1 is no answer)"
                )
            return Cells(values, str(values.dtype), texts)
        if values.dtype.kind == "U":
            distinct, inverse = np.unique(values, return_inverse=True)
            return Cells(inverse, "text", distinct.tolist())
        return Cells(values, str(values.dtype))


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
                _write_csv(trace, part, "gzip" if suffix == ".csv.gz" else None)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Return the suffix that gives a file's format, or refuse the name.

    >>> suffix_of("log.CSV.gz")
    '.csv.gz'
    """
    for suffix in SUFFIXES:
        if Path(path).name.lower().endswith(suffix):
            return suffix
    raise TraceError(f"{path}: the suffix must be one of {', '.join(SUFFIXES)}")


def beside(path: str | os.PathLike[str], ending: str) -> Path:
    """Return a file beside a trace: the name of the trace without its suffix, then ``ending``.

    >>> beside("log.csv.gz", ".toml").name
    'log.toml'
    """
    return Path(path).with_name(Path(path).name[: -len(suffix_of(path))] + ending)


def columns_of(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return a trace as named columns; predictions, label and group as codes.

    >>> trace = Trace(CascadeSpec.of({"a": 1.0}), [[0.5]], inputs={"length": [3.0]})
    >>> columns_of(trace)
    {'a.confidence': array([0.5]), 'input.length': array([3.])}
    """
    columns: dict[str, Any] = {}
    for node, name in enumerate(trace.names):
        for column, values in trace.columns():
            # A node may lack a column that others have. Confidences, predictions and costs are
            # there for all nodes.
            is_for_all = column.name in ("confidence", "prediction", "cost")
            if column.by == "node" and (
                is_for_all or is_filled(values[:, node]).any() or not is_filled(values).any()
            ):
                columns[f"{name}.{column.name}"] = values[:, node]
    columns |= {c.name: values for c, values in trace.columns() if c.by == "row"}
    columns |= {INPUT + name: values for name, values in trace.inputs.items()}
    return {name: np.ascontiguousarray(values) for name, values in columns.items()}


def _table(trace: Trace, *, coded: bool = False) -> Any:
    """Return a trace as an Arrow table; what is not known is null. Classes are coded, or text."""
    pa = arrow()

    def column(name: str, values: NDArray[Any]) -> Any:
        if values.dtype == np.int32:
            texts = pa.array(trace.groups if name == "group" else trace.classes, pa.string())
            index = pa.array(values, pa.int32(), mask=values < 0)
            return pa.DictionaryArray.from_arrays(index, texts) if coded else texts.take(index)
        if values.dtype == np.int8:
            return pa.array(values == 1, pa.bool_(), mask=values < 0)
        if values.dtype == object:
            return pa.array(values, pa.string())
        if values.ndim == 2:
            ends = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
            return pa.LargeListArray.from_arrays(ends, values.ravel())
        return pa.array(values, from_pandas=True)  # NaN is no value

    columns = {name: column(name, values) for name, values in columns_of(trace).items()}
    return pa.table(columns, metadata={"ttamer.cascade": trace.spec.to_toml()})


def _write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace, one row group to 131,072 rows, the cascade in the file's metadata."""
    types, table = arrow().types, _table(trace, coded=True)
    arrow("pyarrow.parquet").write_table(
        table,
        path,
        row_group_size=1 << 17,
        compression="zstd",
        write_page_checksum=True,
        # Numbers seldom repeat: looking for a dictionary of them takes most of the time. Byte by
        # byte, those that were single precision once end in zeros, which take next to no room.
        use_dictionary=[f.name for f in table.schema if types.is_dictionary(f.type)] or False,
        use_byte_stream_split=[f.name for f in table.schema if types.is_floating(f.type)],
    )


def _write_csv(trace: Trace, path: Path, compression: str | None) -> None:
    pa, table = arrow(), _table(trace)
    for number, field in enumerate(table.schema):
        if pa.types.is_large_list(field.type):
            cells = [json.dumps(row) for row in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(cells, pa.string()))
    with pa.output_stream(path, compression=compression) as stream:
        arrow("pyarrow.csv").write_csv(table, stream)


def _write_json_lines(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, one object to a row; what is not known is null."""
    # Batches of a few thousand rows: as Python objects they take much memory.
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for batch in _table(trace).to_batches(1 << 12):
            file.writelines(encoder.encode(row) + b"\n" for row in batch.to_pylist())


def _write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as arrays, with its classes and its cascade."""
    columns: dict[str, Any] = {"cascade": np.array(trace.spec.to_toml())}
    for texts in sorted({column.texts for column, _ in trace.columns()} - {""}):
        columns[texts] = np.array(getattr(trace, texts), dtype=np.str_)
    text = {}
    for name, values in columns_of(trace).items():
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
            if values.dtype.kind != "f":  # numbers take long to compress, and hardly shrink
                member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as file:
                npy.write_array(file, values, allow_pickle=False)


def frame_of(trace: Trace, library: FrameLibrary) -> Any:
    """Return a trace as a data frame; see :meth:`ttamer.Trace.to_frame`."""
    if library not in ("pandas", "polars", "arrow"):
        raise ArgumentError(
            f'library is {library!r}; it must be "pandas", "polars" or "arrow"', param="library"
        )
    table = _table(trace)
    if library == "arrow":
        return table
    module = require(library, "frames")
    return table.to_pandas() if library == "pandas" else module.from_arrow(table)
