"""Parts of Parquet files that tasks read independently: blocks of traces, and spans of inputs.

A local reading (:func:`ttamer.trace.read_batches`) goes through a trace from its first row, batch
by batch. Digests and sums of floats depend on the boundaries of the batches. A *block* is one of
these batches, located from the file's footer alone and read without the rows before it; a *stretch*
is several consecutive blocks, the work of one task.

A *span* is consecutive rows of one or more files of inputs, read together and passed on in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ttamer._arguments import require_kind
from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.trace.arrow import ArrowBatch, ParquetFile, arrow
from ttamer.trace.builder import TraceBuilder
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout, plan
from ttamer.trace.files import open_source
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Stretch:
    """Consecutive blocks of one file: the work of one task."""

    file: int
    """The number of the file, from 0."""
    layout: Layout
    rows: int
    """The number of rows of the whole file."""
    first: int
    """The number of the file's first row among the rows of all files."""
    cuts: tuple[int, ...]
    """The first row of each block in the file, and the row after the last block."""

    def __str__(self) -> str:
        return f"{self.layout.place}, rows {self.cuts[0]} to {self.cuts[-1] - 1}"

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first row of each block, and the row after its last."""
        return list(pairwise(self.cuts))

    def read(self, wanted: Sequence[bool] | None = None) -> Iterator[Trace]:
        """Read all blocks, or those wanted, as a local reading does."""
        file = _Rows(Path(self.layout.place))
        if file.rows != self.rows:
            raise TraceError(
                f"{self.layout.place}: had {self.rows} rows and now has {file.rows}: the file has "
                "changed"
            )
        codes = ClassCodes()
        for start, table in file.blocks(self.layout, self.blocks, wanted):
            builder = TraceBuilder(self.layout, table.num_rows, codes)
            builder.add(ArrowBatch(self.layout.place, start, table))
            yield builder.finish("refuse")


def files_of(paths: Paths) -> list[Path]:
    """Return the files in order: those named, and those of a folder sorted by name."""
    given = paths if isinstance(paths, list | tuple) else [paths]
    found: list[Path] = []
    for each in given:
        what = "paths must be a file, a folder, or a list of them"
        require_kind(each, (str, os.PathLike), what, "give a str or a pathlib.Path")
        path = Path(each)  # type: ignore[arg-type]
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise TraceError(f"{path}: is a folder without *.parquet files; name another folder")
        found += inside
    for path in found:
        if path.suffix.lower() != ".parquet":
            raise TraceError(
                f"{path}: only Parquet files are read in parts; convert the file to Parquet"
            )
    if not found:
        raise ArgumentError("there are no files; name at least one")
    return [path.absolute() for path in found]


def spec_of(cascade: CascadeSpec | str | os.PathLike[str] | None, first: Path) -> CascadeSpec:
    """Return the cascade given, or the one inside the first file."""
    if isinstance(cascade, CascadeSpec):
        return cascade
    if cascade is not None:
        return CascadeSpec.from_file(cascade)
    kept = open_source(first).cascade
    if kept is None:
        raise ArgumentError(f"{first}: has no cascade inside; give a cascade.toml")
    try:
        return CascadeSpec.from_toml(kept.decode("utf-8", "replace"))
    except CascadeError as error:
        raise TraceError(
            f"{first}: the cascade inside the file is damaged: {error}; give a cascade.toml"
        ) from None


def stretches(files: Sequence[Path], spec: CascadeSpec, *, rows: int, blocks: int) -> list[Stretch]:
    """Cut files into stretches of about ``blocks`` blocks, each of at most ``rows`` rows.

    Only footers are read. A stretch begins at the first block that begins in a row group, so that
    few tasks read the same row group.
    """
    found: list[Stretch] = []
    first = 0
    for number, path in enumerate(files):
        open_source(path)  # raises the errors of a local reading
        file = _Rows(path)
        layout = plan(file.columns, spec, str(path))
        if not file.total:
            raise TraceError(f"{path}: has columns and no rows; a log needs at least one row")
        found += [
            Stretch(number, layout, file.total, first, cuts)
            for cuts in file.stretches(layout, rows, blocks)
        ]
        first += file.total
    return found


@dataclass(frozen=True)
class Span:
    """Consecutive rows of some files, as one list of inputs."""

    parts: tuple[tuple[str, int, int], ...]
    """The file, the first row in it, and the row after the last."""
    start: int
    """The number of the first row among the rows of all files."""
    stop: int
    chunk: int
    column: str
    label: str | None

    def read(self) -> Iterator[tuple[int, list[Any], list[Any]]]:
        """Yield chunks: the number of the first row, the inputs, and the labels or ``None``."""
        values: list[Any] = []
        labels: list[Any] = []
        for path, start, stop in self.parts:
            table = _rows(path, start, stop, [self.column, *([self.label] if self.label else [])])
            values += table.column(self.column).to_pylist()
            labels += table.column(self.label).to_pylist() if self.label else [None] * len(table)
        for at in range(0, len(values), self.chunk):
            part = slice(at, at + self.chunk)
            yield self.start + at, values[part], labels[part]


def spans_of(files: Sequence[Path], column: str, label: str | None, *, chunk: int) -> list[Span]:
    """Cut files into spans of whole chunks, about one for each row group, by their footers."""
    starts: list[int] = []  # of row groups, among all rows
    ends: list[tuple[str, int, int]] = []  # of files
    rows = 0
    for path in files:
        file = _open(str(path))
        for name in (column, *([label] if label else [])):
            if name not in file.schema_arrow.names:
                raise TraceError(
                    f"{path}: there is no column {name!r}; the file has "
                    f"{', '.join(file.schema_arrow.names[:12])}"
                )
        first = rows
        for number in range(file.metadata.num_row_groups):
            starts.append(rows)
            rows += file.metadata.row_group(number).num_rows
        ends.append((str(path), first, rows))
    cuts = sorted({min(-(-start // chunk) * chunk, rows) for start in starts} | {rows})
    return [
        Span(_parts(ends, start, stop), start, stop, chunk, column, label)
        for start, stop in pairwise(cuts)
    ]


def _parts(
    files: Sequence[tuple[str, int, int]], start: int, stop: int
) -> tuple[tuple[str, int, int], ...]:
    """Return the part of each file that lies between two rows of all files."""
    return tuple(
        (path, max(start, first) - first, min(stop, end) - first)
        for path, first, end in files
        if max(start, first) < min(stop, end)
    )


def _open(path: str) -> Any:
    """Open a Parquet file."""
    try:
        return arrow("pyarrow.parquet").ParquetFile(path)
    except (OSError, arrow().ArrowException) as error:
        line = str(error).partition("\n")[0][:200]
        raise TraceError(f"{path}: cannot be read as Parquet: {line}") from None


def _rows(path: str, start: int, stop: int, columns: list[str]) -> Any:
    """Return some rows of a file, reading only their row groups."""
    file = _open(path)
    groups, skipped, at = [], 0, 0
    for number in range(file.metadata.num_row_groups):
        end = at + file.metadata.row_group(number).num_rows
        if at < stop and start < end:
            groups.append(number)
            skipped = skipped if groups[1:] else at
        at = end
    return file.read_row_groups(groups, columns=columns).slice(start - skipped, stop - start)


class _Rows(ParquetFile):
    """A Parquet file with access to any range of rows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        footer = self._file.metadata
        sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        self._footer = footer
        self._groups = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self.total = int(self._groups[-1])

    def stretches(self, layout: Layout, rows: int, blocks: int) -> Iterator[tuple[int, ...]]:
        """Yield the cuts of each stretch: where its blocks begin, and where the last one ends."""
        cuts = self._cuts(layout, rows)
        group = np.searchsorted(self._groups, cuts[:-1], side="right")
        begin = 0
        for at in range(1, len(cuts)):
            is_last = at == len(cuts) - 1
            if is_last or (at - begin >= blocks and group[at] != group[at - 1]):
                yield tuple(cuts[begin : at + 1])
                begin = at

    def _cuts(self, layout: Layout, rows: int) -> list[int]:
        """Return the rows at which a local reading begins a batch, and the end.

        A batch begins after every ``rows`` rows, and where a row group has a new dictionary of
        text, since one batch of Arrow has one dictionary.
        """
        cuts = {*range(0, self.total, rows), self.total}
        text = set(self._text(layout))
        leaves = [self._footer.schema.column(i).path for i in range(self._footer.num_columns)]
        columns = [number for number, leaf in enumerate(leaves) if leaf in text]
        for number, start in enumerate(self._groups[:-1].tolist()):
            group = self._footer.row_group(number)
            if any(group.column(column).has_dictionary_page for column in columns):
                cuts.add(start)
        return sorted(cuts)

    def _text(self, layout: Layout) -> list[str]:
        """Return the columns that are read as dictionaries."""
        types = arrow().types
        kinds = {column: self._schema.field(column).type for column in layout.columns}
        plain = [c for c in layout.classes if types.is_string(kinds[c])]
        return plain + [c for c, kind in kinds.items() if types.is_dictionary(kind)]

    def blocks(
        self, layout: Layout, blocks: Sequence[tuple[int, int]], wanted: Sequence[bool] | None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the first row and the table of each block wanted; neighbours are read together."""
        run: list[tuple[int, int]] = []
        for number, block in enumerate(blocks):
            if wanted is None or wanted[number]:
                run.append(block)
            elif run:
                yield from self._run(layout, run)
                run = []
        if run:
            yield from self._run(layout, run)

    def _run(self, layout: Layout, run: Sequence[tuple[int, int]]) -> Iterator[tuple[int, Any]]:
        """Yield the first row and the table of each of some consecutive blocks."""
        pa = arrow()
        begin, end = run[0][0], run[-1][1]
        low = int(np.searchsorted(self._groups, begin, side="right")) - 1
        high = int(np.searchsorted(self._groups, end, side="left"))
        at = int(self._groups[low])
        batches = self._batches(layout, range(low, high), run[0][1] - begin)
        held: list[Any] = []  # rows from `at` on
        for start, stop in run:
            while at + sum(map(len, held)) < stop:
                held.append(next(batches))
            table = pa.Table.from_batches(held)
            yield start, table.slice(start - at, stop - start)
            held = table.slice(stop - at).to_batches()
            at = stop

    def _batches(self, layout: Layout, groups: range, rows: int) -> Iterator[Any]:
        """Yield the Arrow batches of some row groups."""
        text = [c for c in layout.classes if arrow().types.is_string(self._schema.field(c).type)]
        file = self._open(text) if text else self._file
        try:
            yield from file.iter_batches(
                max(rows, 1), row_groups=list(groups), columns=list(layout.columns),
                use_threads=False,
            )  # fmt: skip
        except (arrow().ArrowException, OSError, ValueError) as error:
            line = str(error).partition("\n")[0][:200]
            raise TraceError(f"{self._place}: is damaged: {line}") from None
        raise TraceError(f"{self._place}: is damaged: it has fewer rows than its footer states")
