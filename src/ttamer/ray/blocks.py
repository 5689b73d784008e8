"""Blocks of Parquet files: the batches of a local reading, each to be had by itself.

A local reading (``ttamer.trace.read_batches``) goes through a file from its first row, so many
rows at a time. Digests and sums of floats depend on where one batch ends and the next begins; a
block is such a batch, found from the file's footer alone and read without what comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.trace.arrow import ArrowBatch, ParquetFile, arrow
from ttamer.trace.builder import TraceBuilder
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import plan
from ttamer.trace.files import open_source
from ttamer.trace.spec import CascadeSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from ttamer.trace.columns import Layout
    from ttamer.trace.trace import Trace

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

__all__ = ["Stretch", "files_of", "spec_of", "stretches"]


@dataclass(frozen=True)
class Stretch:
    """Consecutive blocks of one file: what one task reads."""

    file: int
    """The number of the file, from 0."""
    layout: Layout
    rows: int
    """Of the whole file."""
    first: int
    """The number of the file's first row among the rows of all files."""
    cuts: tuple[int, ...]
    """Rows of the file at which blocks begin, and the one at which the last of them ends."""

    def __str__(self) -> str:
        return f"{self.layout.place}, rows {self.cuts[0]} to {self.cuts[-1] - 1}"

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The blocks: first row, and the row after the last."""
        return list(pairwise(self.cuts))

    def read(self, wanted: Sequence[bool] | None = None) -> Iterator[Trace]:
        """Read the blocks, or those wanted, as a local reading has them."""
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
    """Return the files meant, in order: those named, and those of a folder by name."""
    given = [paths] if isinstance(paths, str) or not isinstance(paths, list | tuple) else paths
    found: list[Path] = []
    for each in given:
        path = Path(each)  # type: ignore[arg-type]
        inside = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not inside:
            raise TraceError(f"{path}: is a folder without *.parquet files; name another")
        found += inside
    for path in found:
        if path.suffix.lower() != ".parquet":
            raise TraceError(f"{path}: only Parquet files are read in parts; convert it")
    if not found:
        raise ArgumentError("there are no files: name at least one")
    return [path.absolute() for path in found]


def spec_of(cascade: CascadeSpec | str | os.PathLike[str] | None, first: Path) -> CascadeSpec:
    """Return the cascade given, or else the one kept in the first file."""
    if isinstance(cascade, CascadeSpec):
        return cascade
    if cascade is not None:
        return CascadeSpec.from_file(cascade)
    kept = open_source(first).cascade
    if kept is None:
        raise ArgumentError(f"{first}: keeps no cascade; give a cascade.toml")
    try:
        return CascadeSpec.from_toml(kept.decode("utf-8", "replace"))
    except CascadeError as error:
        raise TraceError(
            f"{first}: the cascade kept in the file is damaged: {error}; give a cascade.toml"
        ) from None


def stretches(files: Sequence[Path], spec: CascadeSpec, *, rows: int, blocks: int) -> list[Stretch]:
    """Cut files into stretches of about so many blocks, each of at most ``rows`` rows.

    Only footers are read. A stretch begins at the first block that begins in a row group, so that
    no row group is read by many.
    """
    found: list[Stretch] = []
    first = 0
    for number, path in enumerate(files):
        open_source(path)  # says what is wrong with a file in the words of a local reading
        file = _Rows(path)
        layout = plan(file.columns, spec, str(path))
        if not file.total:
            raise TraceError(
                f"{path}: has columns and no rows; bring a log with at least one input"
            )
        found += [
            Stretch(number, layout, file.total, first, cuts)
            for cuts in file.stretches(layout, rows, blocks)
        ]
        first += file.total
    return found


class _Rows(ParquetFile):
    """A Parquet file of which any rows can be had."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        footer = self._file.metadata
        sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        self._footer = footer
        self._groups = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self.total = int(self._groups[-1])

    def stretches(self, layout: Layout, rows: int, blocks: int) -> Iterator[tuple[int, ...]]:
        """Yield where the blocks of each stretch begin, and where its last one ends."""
        cuts = self._cuts(layout, rows)
        group = np.searchsorted(self._groups, cuts[:-1], side="right")
        begin = 0
        for at in range(1, len(cuts)):
            is_last = at == len(cuts) - 1
            if is_last or (at - begin >= blocks and group[at] != group[at - 1]):
                yield tuple(cuts[begin : at + 1])
                begin = at

    def _cuts(self, layout: Layout, rows: int) -> list[int]:
        """Return where a local reading begins a batch, and the end.

        Every so many rows; and where a row group brings a new dictionary of text, since one batch
        of Arrow has one dictionary.
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
        """Yield (first row, table) of each block wanted; neighbours are read in one go."""
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
        raise TraceError(f"{self._place}: is damaged: it has fewer rows than it says")
