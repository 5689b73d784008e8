"""Reading and writing traces: Parquet, CSV, JSON Lines, NPZ and data frames.

A source hands its rows over in batches of :class:`Cells`: Parquet, CSV, JSON Lines and frames by
way of Arrow, NPZ with NumPy alone. From there on there is one way: cells become the columns of the
schema, and every value is checked. A log with one line per call is made one with one row per input
before. Nothing is left out in silence: a row that cannot be used is refused by column and number,
or left out and counted.
"""

from __future__ import annotations

import csv
import io
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

from ttamer._checks import require_path, shown
from ttamer._extras import require
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, TraceError, TTamerError
from ttamer.trace.checks import ClassMatch, warn_of_variants
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.schema import (
    BY_NAME,
    CONFIDENCE,
    COST,
    INPUT,
    SCORE,
    TYPES,
    ClassCodes,
    Column,
    Layout,
    check_names,
    column_by_row,
    faults,
    fields_of,
    flags_of,
    infer_spec,
    is_filled,
    is_long,
    is_of_node,
    located,
    plan,
)
from ttamer.trace.trace import Cascade, OnBad, Trace, graded

# The suffixes of trace files.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".npz")
# Codes of the classes met so far, by list of texts.
Codes = defaultdict[str, ClassCodes]


class Cells(NamedTuple):
    """Some cells of a column."""

    values: NDArray[Any]  # numbers (NaN: no value), vectors, or positions in texts (-1: no value)
    type: str  # as the file names it
    texts: Sequence[Any] | None = None

    @property
    def form(self) -> str:
        """What they are, whatever the type."""
        kind = self.values.dtype.kind
        if self.texts is not None:
            return "text"
        if kind == "b" or self.type == "bool":
            return "truth"
        forms = {1: "number", 2: "vector"} if kind in "iuf" else {}
        return forms.get(self.values.ndim, "other")


class Source:
    """An open trace file or a data frame: its columns, and its rows in batches."""

    cascade: bytes | None = None  # the text of the cascade.toml that is kept inside
    batch_rows = 1 << 17  # handed over at a time, where no number is asked for

    def __init__(self, where: str, columns: Sequence[str]) -> None:
        self.where, self.columns = where, tuple(columns)  # every message begins with the first

    def kinds(self, columns: Mapping[str, Column]) -> dict[str, str]:
        """Return how the cells of each column are read; inputs may turn out to be of one kind."""
        return {name: column.kind for name, column in columns.items()}

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
                part, cells = batch.slice(first, size), {}
                for name in kinds:
                    with located(f"{self.where}: column {name!r}"):
                        cells[name] = _cells_of(part.column(name), kinds[name])
                yield cells
            start += batch.num_rows

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        """Yield record batches of Arrow, of at most ``rows`` rows where that takes less memory."""
        raise NotImplementedError


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


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file by its suffix, and read its header."""
    require_path(path, "reading a trace")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name one file in it")
    kinds: dict[str, Any] = {".parquet": _Parquet, ".jsonl": _JsonLines, ".npz": _npz}
    kind = kinds.get(suffix_of(path), _Csv)
    with damage(f"{path}: cannot be read"):
        if not path.stat().st_size:
            raise TraceError(f"{path}: is empty")
    source: Source = kind(path)
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
    spec, notes = _spec_of(source, cascade, on_bad), list[str]()
    if spec is None:
        spec, note = _inferred(source)
        notes = [note]
    with located(source.where):
        return plan(source.columns, spec, notes)


def _inferred(source: Source) -> tuple[CascadeSpec, str]:
    """Return a cascade of the columns, each node at the mean of its cost column."""
    with located(source.where):
        spec, note = infer_spec(source.columns)
        priced = [name for name in spec.names if f"{name}.cost" in source.columns]
        if not priced:
            return spec, note
        sure = [f"{name}.confidence" for name in spec.names]
        layout = plan([*sure, *(f"{name}.cost" for name in priced)], spec)
    total, count = np.zeros(len(spec)), np.zeros(len(spec))
    # Always batches of the same size: the mean must not depend on how the file is read.
    for trace in _traces(source, layout, 1 << 16, "skip"):
        total += np.nansum(trace.costs, axis=0)
        count += (~np.isnan(trace.costs)).sum(axis=0)
    means = np.where(count > 0, total / np.maximum(count, 1), 1.0)  # of a node never asked: 1
    costs = dict(zip(spec.names, means.tolist(), strict=True))
    return infer_spec(source.columns, {name: costs[name] for name in priced})


def _traces(source: Source, layout: Layout, rows: int | None, on_bad: OnBad) -> Iterator[Trace]:
    """Yield traces of at most ``rows`` rows, or one of all; then check what they are together."""
    codes: Codes = defaultdict(ClassCodes)
    match, start, count = ClassMatch(), 0, 0
    columns = {name: column for name, (column, _) in layout.uses.items()}
    batches = _arrays(source, columns, rows, codes)
    # Read whole, columns are joined once at the end: no second copy of a long log.
    for parts in ([batch] for batch in batches) if rows else filter(None, [list(batches)]):
        length = sum(len(next(iter(part.values()))) for part in parts)
        with located(source.where):
            trace = _trace_of(layout, parts, range(start, start + length), codes, on_bad)
        match.add(trace)
        start, count = start + length, count + len(trace)
        yield trace
    with located(source.where):
        if not start:
            raise TraceError("has columns and no rows; bring a log with at least one input")
        if not count:
            raise TraceError(f"every row was left out ({start} in all); fix the log")
        match.check(codes["classes"].classes)
    warn_of_variants(codes["classes"].classes, source.where)


def _arrays(
    source: Source, columns: Mapping[str, Column], rows: int | None, codes: Codes
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches of rows, each column as an array of its type."""
    kinds, start = source.kinds(columns), 0
    for batch in source.batches(kinds, rows):
        arrays = {}
        for name, column in columns.items():
            with located(f"{source.where}: column {name!r}"):
                arrays[name] = _values(batch[name], kinds[name], codes[column.texts], start)
        start += len(arrays[name])
        yield arrays


def _trace_of(
    layout: Layout,
    parts: Sequence[dict[str, NDArray[Any]]],
    rows: range,
    codes: Codes,
    on_bad: OnBad,
) -> Trace:
    """Return the trace of batches, which are emptied; refuse bad rows, or count them."""
    spec, arrays, left_out = layout.spec, dict[Column, NDArray[Any]](), Counter[str]()
    for name, (column, node) in layout.uses.items():
        values = [part.pop(name) for part in parts]
        if node is None:
            with located(f"column {name!r}"), damage("give it one type"):  # vectors of many lengths
                arrays[column] = np.concatenate(values)
            continue
        if column not in arrays:
            dtype, missing = TYPES[column.kind]
            # Nodes contiguous: files come by column, and most work goes node by node.
            arrays[column] = np.full((len(spec), len(rows)), missing, dtype).T
            if column is COST:
                arrays[column][:] = spec.costs
        np.concatenate(values, out=arrays[column][:, node])
    keep = np.ones(len(arrays[CONFIDENCE]), bool)
    for fault in faults(arrays, spec.names):
        if on_bad == "refuse" or not fault.is_gap:
            raise fault.error(rows.start)
        # A row with several faults is counted with the first.
        left_out[f"{fault.column} is missing, NaN or infinite"] += int((fault.rows & keep).sum())
        keep &= ~fault.rows
    if not keep.all():
        arrays = {c: v[keep] if c.by == "row" else v.T[:, keep].T for c, v in arrays.items()}
    if SCORE in arrays:
        spec, arrays[SCORE] = graded(spec, arrays[SCORE])
    texts = {name: codes[name].classes for name in ("classes", "groups")}
    fields = fields_of(arrays) | texts
    return Trace(spec, **fields, left_out=+left_out, notes=layout.notes)


# Parsing: cells to arrays.


def _values(cells: Cells, kind: str, codes: ClassCodes, start: int) -> NDArray[Any]:
    """Return cells as their kind needs them, the first of row ``start``; refuse other forms."""
    values, texts, form = cells.values, cells.texts, cells.form
    if texts is not None and kind in ("number", "flag"):
        return _parsed(cells, texts, kind, start)
    # A column of text that is empty throughout may be of any type.
    if kind == "text" and form == "number" and np.isnan(values.astype(np.float64)).all():
        return np.full(len(values), None, object)
    needed, forms = {
        "number": ("numbers", "number"),
        "flag": ("truth values, or 0 and 1", "number truth"),
        "text": ("text", "text"),
        "vector": ("vectors", "vector"),
        "input": ("numbers, text or vectors", "number text truth vector"),
    }.get(kind, ("text, whole numbers or truth values", "number text truth"))
    if form not in forms.split():
        raise TraceError(f"holds {cells.type}, and {needed} are needed; convert the column")
    if kind in ("classes", "groups"):
        return codes.encode(values) if texts is None else codes.recode(values, texts)
    if kind == "flag":
        return flags_of(values, start=start)
    if texts is not None:
        return np.asarray(np.array([*texts, None], object)[values])  # -1 picks the last entry
    is_single = form == "vector" and values.dtype == np.float32
    return values if is_single else values.astype(np.float64, copy=False)


def _parsed(cells: Cells, texts: Sequence[Any], kind: str, start: int) -> NDArray[Any]:
    """Return the numbers or truth values that text stands for; refuse the first other cell."""
    truths = dict.fromkeys(("1", "true", "1.0"), 1.0) | dict.fromkeys(("0", "false", "0.0"), 0.0)
    table = np.full(len(texts) + 1, math.nan)  # -1 picks the last entry
    for position, text in enumerate(map(str, texts)):
        try:
            # Python would read 1_0 as 10.
            table[position] = (
                truths[text.lower()] if kind == "flag" else float(text.replace("_", "?"))
            )
        except (KeyError, ValueError):
            rows = np.flatnonzero(cells.values == position)
            if len(rows):
                what = "truth value" if kind == "flag" else "number"
                raise TraceError(
                    f"row {rows[0] + start} (counting from 0) holds {text[:80]!r}, which is not a "
                    f"{what}; {_remedy(text.strip(), kind)}"
                ) from None
    values: NDArray[Any] = table[cells.values]
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
    """Return a log with one line per call as columns with a row for each input, as they appear."""
    keys = {name: Column(name, "row", "groups") for name in ("id", "node")}
    columns, unused = dict[str, Column](), list[str]()
    codes: Codes = defaultdict(ClassCodes)
    with located(source.where):
        check_names(source.columns)
        for name in source.columns:
            column = BY_NAME[name] if is_of_node(name) else column_by_row(name) or keys.get(name)
            last = name.rpartition(".")[2]
            if column is not None:
                columns[name] = column
            elif is_of_node(last):
                raise TraceError(f"the column {name!r} is named {last!r} with one line per call")
            else:
                unused.append(name)
        if "confidence" not in columns:
            raise TraceError(
                "the column 'confidence' is missing; a log with one line per call has id, node "
                f"and confidence; this one has {shown(source.columns, 12)}"
            )
    batches = list(_arrays(source, columns, None, codes))
    with located(source.where):
        if not batches:
            raise TraceError("has columns and no rows")
        lines = {name: np.concatenate([batch[name] for batch in batches]) for name in columns}
        for name in keys:
            if (lines[name] < 0).any():
                empty = lines[name].argmin()
                raise TraceError(f"column {name!r}: row {empty} (counting from 0) is empty")
        texts = codes["groups"].classes
        ids, row = np.unique(lines.pop("id"), return_inverse=True)
        names, node = np.unique(lines.pop("node"), return_inverse=True)
        _, once = np.unique(row * len(names) + node, return_index=True)
        for line in np.setdiff1d(np.arange(len(row)), once)[:1]:
            name, of_node = texts[ids[row[line]]], texts[names[node[line]]]
            raise TraceError(f"id {name!r} has two lines for node {of_node!r}; keep one")
        arrays: dict[str, NDArray[Any]] = {}
        for name, values in lines.items():
            if is_of_node(name):
                for number, code in enumerate(names.tolist()):
                    asked = node == number
                    of_rows = _of_rows(values[asked], row[asked], len(ids))
                    arrays[f"{texts[code]}.{name}"] = of_rows
            else:
                with located(f"column {name!r}"):
                    arrays[name] = _of_inputs(values, row, [texts[code] for code in ids.tolist()])
    coded = {name: codes[name].classes for name in ("classes", "groups")}
    return _Arrays(f"{source.where} (one row per input)", arrays, coded, unused, source.cascade)


def _of_inputs(values: NDArray[Any], row: NDArray[Any], ids: Sequence[str]) -> NDArray[Any]:
    """Return one value for each input, which may stand on any of its lines, and on all alike."""
    filled = is_filled(values)
    lines = np.flatnonzero(filled if values.ndim == 1 else filled.all(axis=1))
    rows, first, of_line = np.unique(row[lines], return_index=True, return_inverse=True)
    for unlike in np.argwhere(values[lines] != values[lines[first]][of_line])[:1]:
        raise TraceError(f"id {ids[row[lines[unlike[0]]]]!r} has two values; give it one")
    return _of_rows(values[lines[first]], rows, len(ids))


def _of_rows(values: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Return values of some rows as a column of all: no value on the others."""
    missing = {"O": None, "f": math.nan}.get(values.dtype.kind, -1)
    column = np.full((count, *values.shape[1:]), missing, values.dtype)
    column[rows] = values
    return column


# Sources.


def _cells_of(array: Any, kind: str) -> Cells:
    """Return an array of Arrow as cells, which are read as a kind."""
    pa = arrow()
    types, name = pa.types, str(array.type)
    if kind == "vector" and name != "null" and not types.is_nested(array.type):  # text in CSV
        cells = [None if cell is None else json.loads(cell) for cell in array.to_pylist()]
        array = pa.array(cells, pa.list_(pa.float64()))
    if types.is_dictionary(array.type) and not _is_text(array.type.value_type):
        array = array.dictionary_decode()
    is_code = kind in ("classes", "groups") and types.is_integer(array.type)
    # Whole numbers with gaps would lose digits as floats, and as classes they are text.
    if _is_text(array.type) or (is_code and array.null_count):
        array = array.dictionary_encode()
    if types.is_dictionary(array.type):
        # The numbers may be unsigned, as polars and DuckDB write categories.
        positions = array.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        return Cells(positions, name, array.dictionary.to_pylist())
    of = array.type
    if types.is_null(of):
        return Cells(np.full(len(array), math.nan), name)
    if types.is_list(of) or types.is_large_list(of) or types.is_fixed_size_list(of):
        lengths = arrow("pyarrow.compute").list_value_length(array).drop_null().unique().to_pylist()
        if len(lengths) > 1:
            raise TraceError("holds vectors of several lengths; give each row a vector of one")
        width = lengths[0] if lengths else 1
        vectors = array.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        if vectors.dtype.kind in "iu":
            vectors = vectors.astype(np.float64)
        filled = array.is_valid().to_numpy(zero_copy_only=False)
        return Cells(_of_rows(vectors, filled, len(array)), name)
    if types.is_boolean(of) or types.is_decimal(of):
        array = array.cast(pa.int8() if types.is_boolean(of) else pa.float64())
    elif not (types.is_floating(of) or types.is_integer(of)):
        return Cells(np.empty(len(array), object), name)  # refused by its type
    return Cells(array.to_numpy(zero_copy_only=False), name)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


class _Table(Source):
    """A table of Arrow."""

    def __init__(self, table: Any, where: str) -> None:
        self._table = table
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
        coded = [name for name, kind in kinds.items() if kind in ("classes", "groups")]
        text = [name for name in coded if _is_text(self._schema.field(name).type)]
        yield from self._open(text).iter_batches(rows or self.batch_rows, columns=list(kinds))


class _Csv(Source):
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    def __init__(self, path: Path) -> None:
        self._path = path
        pa = arrow()
        with damage(f"{path}: is not CSV text in UTF-8"), pa.input_stream(str(path)) as file:
            lines = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
            super().__init__(str(path), next(lines, []))

    def kinds(self, columns: Mapping[str, Column]) -> dict[str, str]:
        """Look at the cells of inputs, as CSV has no types."""
        kinds, pa, compute = super().kinds(columns), arrow(), arrow("pyarrow.compute")

        def is_number(cells: Any) -> bool:
            try:
                cells.cast(pa.float64())
            except pa.ArrowInvalid:
                return False
            return True

        def is_vector(cells: Any) -> Any:
            lists = compute.match_substring_regex(cells, r"^\[[-+0-9.eE, ]*\]$")
            return compute.all(lists, min_count=0).as_py()

        forms = {"number": is_number, "vector": is_vector}
        left = {name: [*forms] for name, kind in kinds.items() if kind == "input"}
        with damage(f"{self.where}: cannot be read"):
            for batch in self._read(dict.fromkeys(left, pa.string())) if left else ():
                for name, possible in left.items():
                    cells = batch.column(name).drop_null()
                    possible[:] = [form for form in possible if forms[form](cells)]
        return kinds | {name: [*possible, "text"][0] for name, possible in left.items()}

    def record_batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[Any]:
        del rows  # blocks of Arrow are small
        pa, count = arrow(), 0
        text = pa.dictionary(pa.int32(), pa.string())
        types = {name: pa.float64() if kinds[name] == "number" else text for name in kinds}
        try:
            for batch in self._read(types):
                yield batch
                count += batch.num_rows
        except pa.ArrowInvalid:
            # A cell that is no number for Arrow: as text it is read by Python, or named.
            for batch in self._read(dict.fromkeys(kinds, text)):
                yield batch.slice(count)
                count = max(0, count - batch.num_rows)

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
        keys: dict[str, None] = {}
        self._texts: set[str] = set()
        for line in self._lines():
            keys.update(dict.fromkeys(line))
            if is_decision_log(tuple(keys)):  # read by a reader of its own
                self.cascade = str(line["cascade"]).encode() if "cascade" in line else None
                break
            self._texts.update(name for name, value in line.items() if type(value) is str)
        super().__init__(str(path), tuple(keys))

    def kinds(self, columns: Mapping[str, Column]) -> dict[str, str]:
        """Look at all lines: a batch need not show what an input is."""
        kinds = super().kinds(columns)
        texts = [name for name in self._texts & kinds.keys() if kinds[name] == "input"]
        return kinds | dict.fromkeys(texts, "text")

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
                with damage(f"{self.where}: column {name!r}: holds values of several types"):
                    columns[name] = pa.array([line.get(name) for line in part])
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
    with located("the frame"):  # pandas refuses twins
        check_names([name for name in getattr(frame, "columns", ()) if isinstance(name, str)])
    with damage("the frame: cannot be read as an Arrow table; give each column one type"):
        return _Table(arrow().table(frame), "the frame")


class _Arrays(Source):
    """Columns as arrays of NumPy; predictions, label and group may be codes into texts."""

    def __init__(
        self,
        where: str,
        arrays: Mapping[str, NDArray[Any]],
        texts: Mapping[str, Sequence[str]],
        unused: Sequence[str] = (),
        cascade: bytes | None = None,
    ) -> None:
        super().__init__(where, [*arrays, *unused])
        self._arrays, self._texts, self.cascade = arrays, texts, cascade

    def batches(self, kinds: Mapping[str, str], rows: int | None) -> Iterator[dict[str, Cells]]:
        length = len(next(iter(self._arrays.values()), ()))
        for start in range(0, length, rows or length or 1):
            part = slice(start, start + (rows or length))
            yield {name: self._cells(self._arrays[name][part], name, kinds[name]) for name in kinds}

    def _cells(self, array: NDArray[Any], name: str, kind: str) -> Cells:
        if array.dtype == object:  # text
            positions = np.where(is_filled(array), np.arange(len(array)), -1)
            return Cells(positions, "text", array.tolist())
        if kind in self._texts:
            top = len(self._texts[kind]) - 1
            is_code = array.dtype.kind in "iu"
            if not is_code or (array.size and not -1 <= array.min() <= array.max() <= top):
                raise TraceError(
                    f"{self.where}: column {name!r}: codes into the array {kind!r} are needed, "
                    f"from -1 (no answer) to {top}; it holds {array.dtype}, as {array[:1]}"
                )
            return Cells(array, str(array.dtype), self._texts[kind])
        if array.dtype.kind == "U":
            distinct, inverse = np.unique(array, return_inverse=True)
            return Cells(inverse, "text", distinct.tolist())
        return Cells(array, str(array.dtype))


def _npz(path: Path) -> Source:
    """Open an NPZ file: one array for each column; nothing is unpickled, and NumPy is enough.

    Further arrays may be there: ``classes``, the text of each class, when predictions and label are
    codes into it (-1: no answer), ``groups``, ``texts`` (columns of text, as JSON) and ``cascade``,
    the text of a ``cascade.toml``.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with (
        located(path),
        damage("is not an NPZ file, or is damaged"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        check_names(archive.files)
        for name in archive.files:
            with damage(
                f"column {name!r}: is damaged, or holds Python objects, which are never opened "
                "(mixed types, or None among numbers)"
            ):
                arrays[name] = archive[name]
        names = arrays.keys() & {"classes", "groups", "cascade"}
        tables = {name: arrays.pop(name) for name in names}
        for name, values in tables.items():
            if values.dtype.kind != "U" or values.ndim != (name != "cascade"):
                raise TraceError(f"the array {name!r} must hold text")
        text = json.loads(arrays.pop("texts", np.frombuffer(b"{}", np.uint8)).tobytes())
        arrays |= {name: np.array(values, object) for name, values in text.items()}
        shapes = {name: values.shape for name, values in arrays.items()}
        for name, shape in shapes.items():
            if not 1 <= len(shape) <= 1 + name.startswith(INPUT):
                raise TraceError(f"column {name!r}: has shape {shape}, and (rows,) is needed")
            first = next(iter(shapes))
            if shape[0] != shapes[first][0]:
                raise TraceError(
                    f"columns of unequal length: {first!r} has {shapes[first][0]} rows, {name!r} "
                    f"has {shape[0]}; every array must have one value for each input"
                )
    cascade = str(tables.pop("cascade")).encode() if "cascade" in tables else None
    texts: dict[str, list[str]] = {name: values.tolist() for name, values in tables.items()}
    return _Arrays(str(path), arrays, texts, cascade=cascade)


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
    raise TraceError(
        f"{path}: the suffix must be one of {', '.join(SUFFIXES)}; convert another table, as with "
        "pandas.read_excel(path).to_parquet(...)"
    )


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
    columns = {
        f"{name}.{column.name}": values[:, node]
        for node, name in enumerate(trace.names)
        for column, values in trace.columns()
        if column.by == "node"
    }
    columns |= {column.name: values for column, values in trace.columns() if column.by == "row"}
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


def frame_of(trace: Trace) -> Any:
    """Return a trace as a data frame; see :meth:`ttamer.Trace.to_frame`."""
    require("pandas", "frames")
    return _table(trace).to_pandas()
