"""Traces in Parquet and CSV, by pyarrow: batches of rows, so memory stays bounded."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer.errors import MissingExtra, TraceError
from ttamer.trace.builder import fill_flags
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout, columns_of
from ttamer.trace.decisions import is_decision_log
from ttamer.trace.trace import Trace

_CASCADE = b"ttamer.cascade"
_BATCH_ROWS = 1 << 17
# What other programs write where there is no value.
_MISSING = ("na", "n/a", "none", "null", "-", "?")
# What a damaged file can make pyarrow raise, besides its own.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError)


def arrow(name: str = "pyarrow") -> Any:
    """Return pyarrow or a module of it, or raise how to install it.

    >>> arrow("pyarrow.csv").__name__
    'pyarrow.csv'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", "io") from None


class ArrowBatch:
    """Rows of an Arrow table, read out as NumPy arrays."""

    def __init__(self, place: str, start: int, table: Any) -> None:
        self._place, self.start, self._table = place, start, table

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def _chunks(self, column: str) -> Iterator[tuple[slice, Any]]:
        """Yield the pieces a column is stored in, and where in the column they stand."""
        stored = self._table.column(column)
        start = 0
        for chunk in getattr(stored, "chunks", [stored]):
            yield slice(start, start + len(chunk)), chunk
            start += len(chunk)

    def numbers(self, column: str, out: NDArray[np.float64]) -> None:
        """Fill in a column of numbers; NaN where there is no value."""
        with self._sound(column) as pa:
            self._numbers(pa, column, out)

    def _numbers(
        self, pa: Any, column: str, out: NDArray[np.float64], needed: str = "numbers"
    ) -> None:
        for part, chunk in self._chunks(column):
            values = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
            if pa.types.is_null(values.type):
                out[part] = math.nan
                continue
            if pa.types.is_decimal(values.type):
                values = values.cast(pa.float64())
            if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
                raise self._wrong_type(values, needed)
            out[part] = values.to_numpy(zero_copy_only=False)

    def codes(self, column: str, out: NDArray[np.int32], codes: ClassCodes) -> None:
        """Fill in a column of classes; -1 where there is no value."""
        with self._sound(column) as pa:
            self._codes(pa, column, out, codes)

    def _codes(self, pa: Any, column: str, out: NDArray[np.int32], codes: ClassCodes) -> None:
        for part, chunk in self._chunks(column):
            if pa.types.is_integer(chunk.type) and not chunk.null_count:
                out[part] = codes.encode(chunk.to_numpy())
                continue
            is_coded, types = pa.types.is_dictionary(chunk.type), pa.types
            of = chunk.type.value_type if is_coded else chunk.type
            if not (
                types.is_string(of)
                or types.is_large_string(of)
                or types.is_integer(of)
                or types.is_floating(of)
                or types.is_boolean(of)
                or types.is_null(of)
            ):
                raise self._wrong_type(chunk, "text, whole numbers or truth values")
            coded = chunk if is_coded else chunk.dictionary_encode()
            index = coded.indices
            if types.is_unsigned_integer(index.type):  # as polars and DuckDB write categories
                index = index.cast(pa.int64())
            index = index.fill_null(-1).to_numpy(zero_copy_only=False)
            met = np.zeros(len(coded.dictionary) + 1, bool)  # the last entry stands for null
            met[index] = True
            table = np.full(met.size, -1, np.int32)
            used = np.flatnonzero(met[:-1])
            table[used] = [codes.code(v) for v in coded.dictionary.take(used).to_pylist()]
            out[part] = table[index]

    def flags(self, column: str, out: NDArray[np.int8]) -> None:
        """Fill in a column of truth values as 0 and 1; -1 where there is no value."""
        kind = self._table.schema.field(column).type
        numbers = np.empty(self.rows)
        with self._sound(column) as pa:
            if pa.types.is_boolean(kind):
                for part, chunk in self._chunks(column):
                    values = chunk.cast(pa.int8()).fill_null(-1)
                    out[part] = values.to_numpy(zero_copy_only=False)
                return
            self._numbers(pa, column, numbers, "truth values, or 0 and 1")
        fill_flags(numbers, out, f"{self._place}: column {column!r}", self.start)

    def values(self, column: str) -> NDArray[Any]:
        """Return a column of numbers (NaN: no value), text (``None``), or vectors."""
        with self._sound(column) as pa:
            parts = [self._values(pa, chunk) for _, chunk in self._chunks(column)]
            return np.concatenate(parts) if parts else np.empty(0)

    def _values(self, pa: Any, chunk: Any) -> NDArray[Any]:
        types = pa.types
        if types.is_dictionary(chunk.type):
            texts = np.array([*chunk.dictionary.to_pylist(), None], object)
            values: NDArray[Any] = texts[chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy()]
            return values
        if types.is_string(chunk.type) or types.is_large_string(chunk.type):
            return self._values(pa, chunk.dictionary_encode())
        if (
            types.is_list(chunk.type)
            or types.is_large_list(chunk.type)
            or (types.is_fixed_size_list(chunk.type))
        ):
            rows = chunk.to_pylist()
            lengths = {len(row) if row is not None else 0 for row in rows}
            if len(lengths) > 1 or None in rows:
                raise TraceError(
                    "holds vectors of several lengths, or rows without one; give each row a vector "
                    "of one length"
                )
            single = types.is_float32(chunk.type.value_type)
            return np.array(rows, np.float32 if single else np.float64).reshape(len(rows), -1)
        out = np.empty(len(chunk))
        if types.is_boolean(chunk.type):
            chunk = chunk.cast(pa.int8())
        if not (types.is_floating(chunk.type) or types.is_integer(chunk.type)
                or types.is_null(chunk.type) or types.is_decimal(chunk.type)):  # fmt: skip
            raise self._wrong_type(chunk, "numbers, text or lists of numbers")
        if types.is_null(chunk.type):
            out[:] = math.nan
        else:
            out[:] = chunk.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return out

    @contextmanager
    def _sound(self, column: str) -> Iterator[Any]:
        """Yield pyarrow, and name the column in every error."""
        pa = arrow()
        try:
            yield pa
        except TraceError as error:
            raise TraceError(f"{self._place}: column {column!r}: {error}") from None
        except (pa.ArrowException, *_DAMAGE) as error:
            raise TraceError(
                f"{self._place}: column {column!r}: is damaged: {_line(error)}"
            ) from None

    @staticmethod
    def _wrong_type(values: Any, needed: str) -> TraceError:
        given, found = values.drop_null(), str(values.type)
        if found in ("string", "large_string") and len(given):
            found = f"text such as {given[0].as_py()[:80]!r}"
        return TraceError(f"holds {found}, and {needed} are needed; convert the column")


class ParquetFile:
    """A Parquet file, read by batches of its row groups."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, str(path)
        pa = arrow()
        try:
            self._file = self._open(())
            self._schema = self._file.schema_arrow
            self.columns: tuple[str, ...] = tuple(self._schema.names)
            self.rows: int | None = self._file.metadata.num_rows
            self.cascade: bytes | None = (self._schema.metadata or {}).get(_CASCADE)
        except (pa.ArrowException, *_DAMAGE) as error:
            raise TraceError(
                f"{self._place}: is not a Parquet file, or was cut short: {_line(error)}"
            ) from None

    def _open(self, as_dictionary: Sequence[str]) -> Any:
        # Read in pieces: otherwise whole row groups are held, however large they are.
        return arrow("pyarrow.parquet").ParquetFile(
            self._path,
            read_dictionary=list(as_dictionary),
            pre_buffer=False,
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )

    def batches(self, layout: Layout, rows: int | None) -> Iterator[ArrowBatch]:
        """Yield batches of at most ``rows`` rows."""
        pa = arrow()
        text = [c for c in layout.classes if pa.types.is_string(self._schema.field(c).type)]
        file = self._open(text) if text else self._file
        batches = file.iter_batches(rows or _BATCH_ROWS, columns=list(layout.columns))
        start = 0
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, *_DAMAGE) as error:
                raise TraceError(
                    f"{self._place}: is damaged after row {start}: {_line(error)}"
                ) from None
            if batch is None:
                return
            yield ArrowBatch(self._place, start, batch)
            start += batch.num_rows


class CsvFile:
    """A CSV file, plain or gzipped; only an empty cell without quotes is no value."""

    rows: int | None = None
    cascade: bytes | None = None

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, str(path)
        arrow()
        try:
            with _open_text(path) as file:
                header = next(csv.reader(file), [])
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: cannot be read: {_line(error)}") from None
        except (UnicodeDecodeError, csv.Error):
            raise TraceError(f"{path}: is not CSV text in UTF-8") from None
        self.columns: tuple[str, ...] = tuple(header)

    def batches(self, layout: Layout, rows: int | None) -> Iterator[ArrowBatch]:
        """Yield batches of at most ``rows`` rows, or everything at once."""
        pa = arrow()
        text = pa.dictionary(pa.int32(), pa.string())
        types = dict.fromkeys(layout.numbers, pa.float64()) | dict.fromkeys(layout.classes, text)
        types |= dict.fromkeys(layout.flags, pa.bool_())
        if layout.prompt:
            types[layout.prompt] = pa.string()
        kinds = self._kinds(list(layout.inputs.values()))
        types |= {name: pa.float64() if kinds[name] == "number" else text for name in kinds}
        vectors = [name for name, kind in kinds.items() if kind == "vector"]
        start = 0
        try:
            for table in self._tables(types, whole=rows is None):
                for first in range(0, table.num_rows, rows or table.num_rows or 1):
                    part = _with_vectors(pa, table.slice(first, rows), vectors)
                    yield ArrowBatch(self._place, start, part)
                    start += part.num_rows
        except (pa.ArrowException, OSError) as error:
            if not start and "Empty CSV" in str(error):
                return  # a header, and not even the end of its line
            bad = self._first_bad_cell(layout)
            raise TraceError(f"{self._place}: {bad or _line(error)}") from None

    def _kinds(self, names: list[str]) -> dict[str, str]:
        """Return what each input holds: CSV has no types, so every cell is looked at."""
        pa, compute = arrow(), arrow("pyarrow.compute")
        kinds = dict.fromkeys(names, "number")
        for table in self._tables(dict.fromkeys(names, pa.string()), whole=False) if names else ():
            for name in names:
                cells = table.column(name).drop_null()
                if kinds[name] == "number":
                    try:
                        cells.cast(pa.float64())
                    except pa.ArrowInvalid:
                        kinds[name] = "vector"
                if (
                    kinds[name] == "vector"
                    and not compute.all(
                        compute.match_substring_regex(cells, r"^\[[-+0-9.eE, ]*\]$")
                    ).as_py()
                ):
                    kinds[name] = "text"
        return kinds

    def _tables(self, types: dict[str, Any], *, whole: bool) -> Iterator[Any]:
        """Yield Arrow tables or batches of the named columns."""
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
        if whole:
            yield module.read_csv(self._path, **options)
        else:
            with module.open_csv(self._path, **options) as reader:
                yield from reader

    def _first_bad_cell(self, layout: Layout) -> str | None:
        """Read again, slowly, to find the cell or the line that would not do."""
        kinds = dict.fromkeys(layout.numbers, "number") | dict.fromkeys(layout.flags, "truth value")
        checks = [(i, name, kinds[name]) for i, name in enumerate(self.columns) if name in kinds]
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
                        if cells[at] and not _parses(cells[at], kind):
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


class JsonLinesFile:
    """A file with one JSON object on each line; its keys are columns."""

    cascade: bytes | None = None

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, str(path)
        arrow()
        keys: dict[str, None] = {}
        self._texts: set[str] = set()  # a batch need not show what a column holds
        self.rows: int | None = 0
        for line in self._lines():
            keys.update(dict.fromkeys(line))
            if is_decision_log(tuple(keys)):  # read by its own reader
                self.cascade = str(line["cascade"]).encode() if "cascade" in line else None
                break
            self._texts.update(name for name, value in line.items() if type(value) is str)
            self.rows += 1
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
                                f"{self._place}: line {number} is not a JSON object: {error}; "
                                "correct the log"
                            ) from None
        except OSError as error:
            raise TraceError(f"{self._place}: cannot be read: {_line(error)}") from None

    def batches(self, layout: Layout, rows: int | None) -> Iterator[ArrowBatch]:
        """Yield batches of at most ``rows`` rows."""
        lines, start = self._lines(), 0
        while part := list(islice(lines, rows or _BATCH_ROWS)):
            columns = {name: self._column(name, part) for name in layout.columns}
            yield ArrowBatch(self._place, start, arrow().table(columns))
            start += len(part)

    def _column(self, name: str, lines: Sequence[Mapping[str, Any]]) -> Any:
        pa = arrow()
        try:
            kind = pa.string() if name in self._texts else None
            return pa.array([line.get(name) for line in lines], kind)
        except pa.ArrowException:
            raise TraceError(
                f"{self._place}: column {name!r}: holds values of several types; give it one type"
            ) from None


def write_json_lines(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, one object to a row; what is not known is null."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for table in _tables(trace, dictionaries=True):
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            for row in zip(*columns.values(), strict=True):
                file.write(encoder.encode(dict(zip(columns, row, strict=True))) + b"\n")


def _remedy(cell: str, kind: str) -> str:
    """Return what to write in place of a cell that cannot be read.

    >>> _remedy("NA", "number"), _remedy("91%", "number"), _remedy("0,9", "number")
    ('leave a cell without a value empty', 'leave out the "%"', 'write decimals with a point')
    """
    if cell.casefold() in _MISSING:
        return "leave a cell without a value empty"
    if kind == "truth value":
        return "write true or false, or 1 or 0"
    if cell.endswith("%"):
        return 'leave out the "%"'
    return "write decimals with a point" if "," in cell else "correct the log"


def _parses(cell: str, kind: str) -> bool:
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


def _with_vectors(pa: Any, table: Any, names: Sequence[str]) -> Any:
    """Return a table in which cells such as ``[0.5, 1]`` are vectors."""
    if names and not hasattr(table, "set_column"):
        table = pa.Table.from_batches([table])
    for name in names:
        cells = table.column(name).to_pylist()
        vectors = [None if cell is None else json.loads(cell) for cell in cells]
        kind = pa.list_(pa.float64())
        table = table.set_column(
            table.column_names.index(name), name, pa.chunked_array([pa.array(vectors, kind)])
        )
    return table


def _tables(trace: Trace, *, dictionaries: bool) -> Iterator[Any]:
    """Yield a trace as Arrow tables of some rows each."""
    pa = arrow()

    def column(name: str, values: NDArray[Any]) -> Any:
        if values.dtype == np.int32:
            texts = pa.array(trace.groups if name == "group" else trace.classes, pa.string())
            index = pa.array(values, pa.int32(), mask=values < 0)
            coded = pa.DictionaryArray.from_arrays(index, texts)
            return coded if dictionaries else coded.dictionary_decode()
        if values.dtype == np.int8:
            return pa.array(values == 1, pa.bool_(), mask=values < 0)
        if values.dtype == object:
            return pa.array(values, pa.string())
        if values.ndim == 2:
            if not dictionaries:  # CSV has no lists
                return pa.array([json.dumps(row) for row in values.tolist()], pa.string())
            kind = pa.float32() if values.dtype == np.float32 else pa.float64()
            return pa.array(values.tolist(), pa.list_(kind))
        return pa.array(values, from_pandas=True)  # NaN is no value

    metadata = {_CASCADE: trace.spec.to_toml().encode()}
    for start in range(0, len(trace), _BATCH_ROWS):
        part = columns_of(trace, slice(start, start + _BATCH_ROWS))
        columns = {name: column(name, values) for name, values in part.items()}
        yield pa.table(columns, metadata=metadata)


def write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace, one row group to 131,072 rows, the cascade in the file's metadata.

    Numbers are stored byte by byte (``BYTE_STREAM_SPLIT``): those that were single precision once
    end in the same zeros, which then take next to no room.
    """
    pa, writer = arrow(), None
    try:
        for table in _tables(trace, dictionaries=True):
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


def write_csv(trace: Trace, path: Path, *, gzipped: bool) -> None:
    """Write a trace as text. The cascade is not in it: keep a ``cascade.toml`` beside it."""
    with arrow().output_stream(path, compression="gzip" if gzipped else None) as stream:
        writer = None
        for table in _tables(trace, dictionaries=False):
            writer = writer or arrow("pyarrow.csv").CSVWriter(stream, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
