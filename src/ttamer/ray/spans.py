"""Spans: consecutive inputs in Parquet files, read together and handed on in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ttamer.errors import TraceError
from ttamer.trace.arrow import arrow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Span", "spans_of"]


@dataclass(frozen=True)
class Span:
    """Rows of some files taken as one list of inputs."""

    parts: tuple[tuple[str, int, int], ...]
    """File, first row, and the row after the last."""
    start: int
    """The number of the first row among the rows of all files."""
    stop: int
    chunk: int
    column: str
    label: str | None

    def read(self) -> Iterator[tuple[int, list[Any], list[Any]]]:
        """Yield chunks: where each begins, its inputs, its labels (``None`` where unknown)."""
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
    """Cut files into spans of whole chunks, about one to a row group, by their footers alone."""
    starts: list[int] = []  # of row groups, among all rows
    ends: list[tuple[str, int, int]] = []  # of files
    rows = 0
    for path in files:
        file = _open(str(path))
        for name in (column, *([label] if label else [])):
            if name not in file.schema_arrow.names:
                raise TraceError(
                    f"{path}: there is no column {name!r}; it has "
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
    return tuple(
        (path, max(start, first) - first, min(stop, end) - first)
        for path, first, end in files
        if max(start, first) < min(stop, end)
    )


def _open(path: str) -> Any:
    try:
        return arrow("pyarrow.parquet").ParquetFile(path)
    except (OSError, arrow().ArrowException) as error:
        line = str(error).partition("\n")[0][:200]
        raise TraceError(f"{path}: cannot be read as Parquet: {line}") from None


def _rows(path: str, start: int, stop: int, columns: list[str]) -> Any:
    """Return some rows of a file, reading the row groups they lie in."""
    file = _open(path)
    groups, skipped, at = [], 0, 0
    for number in range(file.metadata.num_row_groups):
        end = at + file.metadata.row_group(number).num_rows
        if at < stop and start < end:
            groups.append(number)
            skipped = skipped if groups[1:] else at
        at = end
    return file.read_row_groups(groups, columns=columns).slice(start - skipped, stop - start)
