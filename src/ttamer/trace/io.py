"""Reading and writing traces: Parquet, CSV, JSON Lines and data frames.

A source hands its rows over in record batches of Arrow. From there on there is one way: cells
become the columns of the schema, and every value is checked. A log with one line per call is made
one with one row per input before. Nothing is left out in silence: a row that cannot be used is
refused by column and number, or left out and counted.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer._checks import require, require_path, shown
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, TraceError, TTamerError
from ttamer.trace.checks import ClassMatch, warn_of_variants
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.schema import (
    BY_NAME,
    CONFIDENCE,
    COST,
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
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl")
# Codes of the classes met so far, by list of texts.
Codes = defaultdict[str, ClassCodes]
# Of each kind of column: what it needs, and the forms of cells that it takes.
TAKES = {
    "number": ("numbers", ("number", "text")),
    "flag": ("truth values, or 0 and 1", ("truth", "number", "text")),
    "classes": ("text, whole numbers or truth values", ("text", "number", "truth")),
    "groups": ("text, whole numbers or truth values", ("text", "number", "truth")),
    "text": ("text", ("text",)),
    "vector": ("vectors", ("vector",)),
    "input": ("numbers, text or vectors", ("number", "text", "truth", "vector")),
}
# What cells of a CSV file look like, which has no types.
LOOKS = {
    "number": r"^(?i:\s*([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?inf(inity)?|nan)\s*)$",
    "vector": r"^\[[-+0-9.eE, ]*\]$",
}


class Source(ABC):
    """An open trace file or a data frame: its columns, and its rows in batches."""

    def __init__(self, where: str, columns: Sequence[str], cascade: bytes | None = None) -> None:
        self.where, self.columns = where, tuple(columns)  # every message begins with the first
        self.cascade = cascade  # the text of the cascade.toml that is kept inside

    @abstractmethod
    def arrays(
        self, columns: Mapping[str, Column], rows: int, codes: Codes
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield batches of at most ``rows`` rows, each column as an array of its type."""


class ArrowSource(Source):
    """A source that Arrow reads."""

    def kinds(self, columns: Mapping[str, Column]) -> dict[str, str]:
        """Return how the cells of each column are read; inputs may turn out to be of one kind."""
        return {name: column.kind for name, column in columns.items()}

    @abstractmethod
    def record_batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[Any]:
        """Yield record batches of Arrow, of at most ``rows`` rows where that takes less memory."""

    def arrays(
        self, columns: Mapping[str, Column], rows: int, codes: Codes
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Convert what Arrow reads; an error names the column and the row."""
        kinds, start = self.kinds(columns), 0
        batches = self.record_batches(kinds, rows)
        while True:
            # Reading alone: an error in parsing must not pass for a damaged file.
            with damage(f"{self.where}: is damaged after row {start}"):
                batch = next(batches, None)
            if batch is None:
                return
            for first in range(0, batch.num_rows, rows):
                part, arrays = batch.slice(first, rows), {}
                for name, column in columns.items():
                    with located(f"{self.where}: column {name!r}"):
                        arrays[name] = _values(
                            part.column(name), kinds[name], codes[column.texts], start + first
                        )
                yield arrays
            start += batch.num_rows


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


def read_all(source: Source, cascade: Cascade, on_bad: OnBad, sample: int | None = None) -> Trace:
    """Read a source: one row per input, one line per call, or a decision log."""
    if is_decision_log(source.columns):
        traces = iter([read_decisions(source.where, _spec_of(source, cascade, on_bad)).trace])
    else:
        if is_long(source.columns):
            source = _by_input(source)
        traces = batches_of(source, cascade, on_bad, sample and 1 << 18)
    if sample is not None:
        return sampled(traces, sample)
    (trace,) = traces
    return trace


def batches_of(
    source: Source, cascade: Cascade, on_bad: OnBad, rows: int | None
) -> Iterator[Trace]:
    """Yield traces of at most ``rows`` rows, or one of all; a class has one code in all of them."""
    return _traces(source, _layout_of(source, cascade, on_bad), rows, on_bad)


def sampled(traces: Iterable[Trace], count: int) -> Trace:
    """Return at most ``count`` rows of traces, drawn uniformly, in their order.

    At most twice as many, and a trace, are in memory at a time.
    """
    generator, keys = np.random.default_rng([0, 1]), np.empty(0)
    parts, total, left_out = list[Trace](), 0, Counter[str]()

    def smallest() -> NDArray[np.intp]:
        # The rows of the smallest keys are a uniform sample.
        return np.sort(np.argpartition(keys, count - 1)[:count])

    for part in traces:
        parts.append(part)
        keys = np.append(keys, generator.random(len(part)))
        total += len(part)
        left_out.update(part.left_out)
        if len(keys) > 2 * count:
            inside = smallest()
            parts, keys = [Trace.concat(parts).take(inside)], keys[inside]
    trace = Trace.concat(parts)
    if total <= count:
        return trace
    notes = (*trace.notes, f"a uniform sample of {count:,} of {total:,} rows")
    trace = trace.take(smallest())
    return replace(trace, left_out=left_out, notes=notes, sampled_of=total)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file by its suffix, and read its header."""
    require_path(path, "reading a trace")
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a folder; name one file in it")
    kind = {".parquet": _Parquet, ".jsonl": _JsonLines}.get(suffix_of(path), _Csv)
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
    with located(source.where):
        if spec is None:
            spec, note = infer_spec(source.columns)
            notes = [note]
            if priced := [name for name in spec.names if f"{name}.cost" in source.columns]:
                spec, notes[0] = infer_spec(source.columns, _mean_costs(source, spec, priced))
        return plan(source.columns, spec, notes)


def _mean_costs(source: Source, spec: CascadeSpec, priced: Sequence[str]) -> dict[str, float]:
    """Return the mean of each cost column; 1 for a node that was never asked."""
    used = [f"{name}.confidence" for name in spec.names] + [f"{name}.cost" for name in priced]
    totals = np.zeros((2, len(spec)))
    # Always batches of the same size: the mean must not depend on how the file is read.
    for trace in _traces(source, plan(used, spec), 1 << 16, "skip"):
        totals += np.nansum(trace.costs, axis=0), (~np.isnan(trace.costs)).sum(axis=0)
    total, count = totals
    means = np.where(count > 0, total / np.maximum(count, 1), 1.0)
    return {name: float(means[spec.index_of(name)]) for name in priced}


def _traces(source: Source, layout: Layout, rows: int | None, on_bad: OnBad) -> Iterator[Trace]:
    """Yield traces of at most ``rows`` rows, or one of all; then check what they are together."""
    codes: Codes = defaultdict(ClassCodes)
    match, start, count = ClassMatch(), 0, 0
    columns = {name: column for name, (column, _) in layout.uses.items()}
    batches = source.arrays(columns, rows or 1 << 17, codes)
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


def _form(kind: Any) -> str:
    """Return what the cells of a type of Arrow are, however they are stored."""
    types = arrow().types
    if types.is_dictionary(kind):
        return _form(kind.value_type)
    if str(kind) in ("string", "large_string", "string_view"):
        return "text"
    if types.is_boolean(kind):
        return "truth"
    if types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return "number"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "vector" if is_list else "other"


def _values(array: Any, kind: str, codes: ClassCodes, start: int) -> NDArray[Any]:
    """Return an array of Arrow as its kind needs it, its first row being row ``start``."""
    pa, form = arrow(), _form(array.type)
    if array.null_count == len(array):  # which may be of any type
        dtype, missing = TYPES.get(form if kind == "input" else kind, TYPES["number"])
        return np.full(len(array), missing, dtype)
    if kind == "vector" and form == "text":  # in CSV
        cells = [cell and json.loads(cell) for cell in array.to_pylist()]
        array, form = pa.array(cells, pa.list_(pa.float64())), "vector"
    (needed, forms), is_code = TAKES[kind], kind in ("classes", "groups")
    if form not in forms:
        raise TraceError(f"holds {array.type}, and {needed} are needed; convert the column")
    if form == "vector":
        return _vectors(array)
    is_coded = pa.types.is_dictionary(array.type)
    if is_coded and form != "text":
        array = array.dictionary_decode()
    # Whole numbers with gaps would lose digits as floats, and as classes they are text.
    if form == "text" or (is_code and array.null_count and pa.types.is_integer(array.type)):
        array = array if is_coded and form == "text" else array.dictionary_encode()
        # The numbers may be unsigned, as polars and DuckDB write categories.
        positions = array.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        texts = array.dictionary.to_pylist()
        if is_code:
            return codes.recode(positions, texts)
        if kind in ("number", "flag"):
            return _parsed(positions, texts, kind, start)
        return np.asarray(np.array([*texts, None], object)[positions])  # -1 picks the last entry
    if form == "truth" or pa.types.is_decimal(array.type):
        array = array.cast(pa.int8() if form == "truth" else pa.float64())
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if is_code:
        return codes.encode(values)
    return flags_of(values, start=start) if kind == "flag" else values.astype(float, copy=False)


def _vectors(array: Any) -> NDArray[Any]:
    """Return lists of one length as rows; NaN where there is none."""
    lengths = arrow("pyarrow.compute").list_value_length(array).drop_null().unique().to_pylist()
    if len(lengths) > 1:
        raise TraceError("holds vectors of several lengths; give each row a vector of one")
    vectors = array.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, *lengths)
    if vectors.dtype != np.float32:
        vectors = vectors.astype(np.float64)
    return _of_rows(vectors, array.is_valid().to_numpy(zero_copy_only=False), len(array))


def _parsed(positions: NDArray[Any], texts: Sequence[Any], kind: str, start: int) -> NDArray[Any]:
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
            rows = np.flatnonzero(positions == position)
            if len(rows):
                what = "truth value" if kind == "flag" else "number"
                raise TraceError(
                    f"row {rows[0] + start} (counting from 0) holds {text[:80]!r}, which is not a "
                    f"{what}; {_remedy(text.strip(), kind)}"
                ) from None
    values: NDArray[Any] = table[positions]
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


class Rows(Source):
    """Columns as arrays, whose codes are positions in lists of texts."""

    def __init__(
        self,
        where: str,
        values: Mapping[str, NDArray[Any]],
        texts: Mapping[str, Sequence[str]],
        cascade: bytes | None = None,
        unused: Sequence[str] = (),
    ) -> None:
        super().__init__(where, [*values, *unused], cascade)
        self._values, self._texts = values, texts

    def arrays(
        self, columns: Mapping[str, Column], rows: int, codes: Codes
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Recode what is coded."""
        for start in range(0, len(self._values[self.columns[0]]), rows):
            part = {name: self._values[name][start : start + rows] for name in columns}
            for name, texts in ((name, column.texts) for name, column in columns.items()):
                if texts:
                    part[name] = codes[texts].recode(part[name], self._texts[texts])
            yield part


def _by_input(source: Source) -> Rows:
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
    batches = list(source.arrays(columns, 1 << 17, codes))
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
                continue
            # What is about the input may stand on any of its lines, and on all alike.
            filled = is_filled(values) if values.ndim == 1 else is_filled(values).all(axis=1)
            values, of = values[filled], row[filled]
            arrays[name] = _of_rows(values, of, len(ids))
            for unlike in np.argwhere(arrays[name][of] != values)[:1, 0]:
                raise TraceError(
                    f"column {name!r}: id {texts[ids[of[unlike]]]!r} has two values; give it one"
                )
    lists = {name: codes[name].classes for name in ("classes", "groups")}
    where = f"{source.where} (one row per input)"
    return Rows(where, arrays, lists, source.cascade, unused)


def _of_rows(values: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Return values of some rows as a column of all: no value on the others."""
    missing = {"O": None, "f": math.nan}.get(values.dtype.kind, -1)
    column = np.full((count, *values.shape[1:]), missing, values.dtype)
    column[rows] = values
    return column


# Sources.


class _Table(ArrowSource):
    """A table of Arrow."""

    def __init__(self, table: Any, where: str) -> None:
        self._table = table
        super().__init__(where, table.column_names)

    def record_batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[Any]:
        yield from self._table.select(list(kinds)).to_batches(rows)


class _Parquet(ArrowSource):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with damage(f"{path}: is not a Parquet file, or was cut short"):
            self._schema = self._open([]).schema_arrow
        cascade = (self._schema.metadata or {}).get(b"ttamer.cascade")
        super().__init__(str(path), self._schema.names, cascade)

    def _open(self, as_dictionary: Sequence[str]) -> Any:
        # Read in pieces: otherwise whole row groups are held, however large they are.
        return arrow("pyarrow.parquet").ParquetFile(
            self._path,
            read_dictionary=list(as_dictionary),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )

    def record_batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[Any]:
        coded = [name for name, kind in kinds.items() if kind in ("classes", "groups")]
        text = [name for name in coded if _form(self._schema.field(name).type) == "text"]
        yield from self._open(text).iter_batches(rows, columns=list(kinds))


class _Csv(ArrowSource):
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    def __init__(self, path: Path) -> None:
        self._path = path
        pa = arrow()
        with damage(f"{path}: is not CSV text in UTF-8"), pa.input_stream(str(path)) as file:
            lines = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""))
            super().__init__(str(path), next(lines, []))

    def kinds(self, columns: Mapping[str, Column]) -> dict[str, str]:
        """Look at all cells of inputs."""
        kinds, compute = super().kinds(columns), arrow("pyarrow.compute")
        looks = {name: [*LOOKS, "text"] for name, kind in kinds.items() if kind == "input"}
        with damage(f"{self.where}: cannot be read"):
            for batch in self._read(dict.fromkeys(looks, arrow().string())) if looks else ():
                for name, possible in looks.items():
                    while (
                        possible[0] in LOOKS
                        and not compute.all(
                            compute.match_substring_regex(batch.column(name), LOOKS[possible[0]]),
                            min_count=0,
                        ).as_py()
                    ):
                        del possible[0]
        return kinds | {name: possible[0] for name, possible in looks.items()}

    def record_batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[Any]:
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

    def _read(self, types: Mapping[str, Any]) -> Iterator[Any]:
        """Yield record batches of the named columns."""
        module, odd = arrow("pyarrow.csv"), list[Any]()

        def refuse(row: Any) -> str:
            odd.append(row)
            return "error"

        parsing = module.ParseOptions(
            newlines_in_values=True,
            # In a file of one column an empty line is a row without a value.
            ignore_empty_lines=len(self.columns) > 1,
            invalid_row_handler=refuse,
        )
        cells = module.ConvertOptions(
            include_columns=list(types),
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        # Without threads, which know no numbers of lines; here they would gain nothing.
        reading = module.ReadOptions(use_threads=False)
        try:
            with module.open_csv(self._path, reading, parsing, cells) as reader:
                yield from reader
        except arrow().ArrowInvalid as error:
            for row in odd:
                raise TraceError(
                    f"{self.where}: line {row.number} has {row.actual_columns} cells, and the "
                    f"header has {row.expected_columns}; correct the log"
                ) from None
            if "Empty CSV" not in str(error):  # a header, and not even the end of its line
                raise


class _JsonLines(ArrowSource):
    """A file with one JSON object on each line; its keys are columns."""

    def __init__(self, path: Path) -> None:
        self._path, cascade = path, None
        keys: dict[str, None] = {}
        self._texts: set[str] = set()
        for line in self._lines():
            keys.update(dict.fromkeys(line))
            if is_decision_log(tuple(keys)):  # read by a reader of its own
                cascade = str(line["cascade"]).encode() if "cascade" in line else None
                break
            self._texts.update(name for name, value in line.items() if type(value) is str)
        super().__init__(str(path), tuple(keys), cascade)

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

    def record_batches(self, kinds: Mapping[str, str], rows: int) -> Iterator[Any]:
        pa, lines = arrow(), self._lines()
        while part := list(islice(lines, rows)):
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


# Writing.


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace by the suffix: the file appears whole or not at all."""
    require_path(path, "writing a trace")
    path, suffix = Path(path), suffix_of(path)
    if not len(trace):
        raise TraceError(f"{path}: a trace of no rows is not written")
    if not path.parent.is_dir():  # pyarrow would name the temporary file
        raise TraceError(f"{path}: cannot be written: there is no folder {path.parent}")
    write = {".parquet": _write_parquet, ".jsonl": _write_json_lines}.get(suffix, _write_csv)
    table = table_of(trace, coded=write is _write_parquet)
    try:
        with (
            atomic_write(path) as part,
            arrow().output_stream(
                part, compression="gzip" if suffix == ".csv.gz" else None
            ) as file,
        ):
            write(table, file)
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


def table_of(trace: Trace, *, coded: bool = False) -> Any:
    """Return a trace as an Arrow table; what is not known is null. Classes are coded, or text."""
    pa = arrow()

    def cells(column: Column, values: NDArray[Any]) -> Any:
        if column.texts:
            texts = pa.array(getattr(trace, column.texts), pa.string())
            index = pa.array(values, pa.int32(), mask=values < 0)
            return pa.DictionaryArray.from_arrays(index, texts) if coded else texts.take(index)
        if column.kind == "flag":
            return pa.array(values == 1, pa.bool_(), mask=values < 0)
        if values.dtype == object:
            return pa.array(values, pa.string())
        if values.ndim == 2:
            ends = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
            return pa.LargeListArray.from_arrays(ends, values.ravel())
        return pa.array(values, from_pandas=True)  # NaN is no value

    columns = {
        f"{name}.{column.name}": cells(column, np.ascontiguousarray(values[:, node]))
        for node, name in enumerate(trace.names)
        for column, values in trace.columns()
        if column.by == "node"
    }
    for column, values in trace.columns():
        if column.by == "row":
            columns[column.name] = cells(column, values)
    return pa.table(columns, metadata={"ttamer.cascade": trace.spec.to_toml()})


def _write_parquet(table: Any, file: Any) -> None:
    types = arrow().types
    arrow("pyarrow.parquet").write_table(
        table,
        file,
        row_group_size=1 << 17,
        compression="zstd",
        write_page_checksum=True,
        # Numbers seldom repeat: looking for a dictionary of them takes most of the time. Byte by
        # byte, those that were single precision once end in zeros, which take next to no room.
        use_dictionary=[f.name for f in table.schema if types.is_dictionary(f.type)] or False,
        use_byte_stream_split=[f.name for f in table.schema if types.is_floating(f.type)],
    )


def _write_csv(table: Any, file: Any) -> None:
    pa = arrow()
    for number, field in enumerate(table.schema):
        if pa.types.is_large_list(field.type):
            cells = [json.dumps(row) for row in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(cells, pa.string()))
    arrow("pyarrow.csv").write_csv(table, file)


def _write_json_lines(table: Any, file: Any) -> None:
    # Batches of a few thousand rows: as Python objects they take much memory.
    for batch in table.to_batches(1 << 12):
        for row in batch.to_pylist():
            file.write(msgspec.json.encode(row) + b"\n")
