"""Trace files: Parquet, CSV (plain or gzipped), JSON Lines and NPZ, by their suffix.

A whole file is read into arrays; a file larger than memory is read in batches, each a trace of its
own. Both go through the same columns, checks and class codes, and refuse the same things.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ttamer._checks import require_path
from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, CascadeError, TraceError
from ttamer.trace.builder import Batch, TraceBuilder
from ttamer.trace.checks import Agreement, warn_of_variants
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout, infer_spec, plan
from ttamer.trace.decisions import is_decision_log, read_decisions
from ttamer.trace.long import is_long, read_long
from ttamer.trace.trace import OnBad, Trace

# The suffixes of trace files.
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".npz")
# How other files of tables become a trace file, by their suffix.
CONVERTED = {
    ".json": "pandas.read_json(path).to_parquet(...)",
    ".tsv": "pandas.read_table(path).to_parquet(...)",
    ".xlsx": "pandas.read_excel(path).to_parquet(...)",
}


class Source(Protocol):
    """An open trace file: its columns, and its rows in batches."""

    columns: tuple[str, ...]
    rows: int | None
    cascade: bytes | None
    """The text of the cascade.toml kept inside the file, if there is one."""

    def batches(self, layout: Layout, rows: int | None) -> Iterator[Batch]:
        """Yield batches of at most ``rows`` rows (``None``: as many as is efficient)."""


def read_batches(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None = None,
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
        raise ArgumentError(f"rows is {rows}; a batch needs at least 1")
    source = open_source(path)
    if is_decision_log(source.columns):
        raise TraceError(f"{path}: is a decision log: read it whole, with Trace.read")
    if is_long(source.columns):
        raise TraceError(
            f"{path}: has one line per call, and lines of one input need not stand together: read "
            "it whole, with Trace.read"
        )
    return _batches(source, open_layout(source, cascade, str(path), on_bad), rows, on_bad)


def _batches(source: Source, layout: Layout, rows: int, on_bad: OnBad) -> Iterator[Trace]:
    codes, groups, agreement = ClassCodes(), ClassCodes(), Agreement()
    read = kept = 0
    for batch in source.batches(layout, rows):
        builder = TraceBuilder(layout, batch.rows, codes, groups)
        builder.add(batch)
        trace = builder.finish(on_bad)
        agreement.add(trace)
        read += batch.rows
        kept += len(trace)
        yield trace
    _check_rows(layout.place, read, kept)
    _check_classes(agreement, layout, codes.classes)


def read_all(
    source: Source,
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None,
    place: str,
    on_bad: OnBad,
) -> Trace:
    """Read all rows of an open file: one line per input, or one per call."""
    if is_decision_log(source.columns):
        return read_decisions(place, _spec_of(source, cascade, place, on_bad)).trace
    if not is_long(source.columns):
        return read_source(source, open_layout(source, cascade, place, on_bad), on_bad)
    codes, agreement = ClassCodes(), Agreement()
    trace = read_long(source, _spec_of(source, cascade, place, on_bad), place, on_bad, codes)
    _check_rows(place, len(trace) + sum(trace.left_out.values()), len(trace))
    agreement.add(trace)
    if trace.correct is None and trace.raw_loss is None:
        agreement.check(codes.classes, place)
    warn_of_variants(codes.classes, place)
    return trace


def read_source(source: Source, layout: Layout, on_bad: OnBad) -> Trace:
    """Read all rows of an open file, laid out as planned."""
    codes, agreement = ClassCodes(), Agreement()
    batches = source.batches(layout, None)
    rows = source.rows
    if rows is None:
        batches = iter(all_of := list(batches))
        rows = sum(batch.rows for batch in all_of)
    try:
        builder = TraceBuilder(layout, rows, codes)
    except (MemoryError, ValueError):
        raise TraceError(
            f"{layout.place}: its header has {rows} rows, which do not fit in memory; "
            "if that is right, read it with read_batches"
        ) from None
    for batch in batches:
        builder.add(batch)
    if builder.filled != rows:
        raise TraceError(
            f"{layout.place}: is damaged: its header has {rows} rows, and the file {builder.filled}"
        )
    trace = builder.finish(on_bad)
    _check_rows(layout.place, rows, len(trace))
    agreement.add(trace)
    _check_classes(agreement, layout, codes.classes)
    return trace


def _check_classes(agreement: Agreement, layout: Layout, classes: Sequence[str]) -> None:
    if layout.compares_classes:
        agreement.check(classes, layout.place)
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
    try:
        suffix = suffix_of(path)
    except TraceError as error:
        if (advice := CONVERTED.get(path.suffix.lower())) is None:
            raise
        raise TraceError(f"{error}; convert it first, as with {advice}") from None
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not size:
        raise TraceError(f"{path}: is empty")
    if suffix == ".npz":
        from ttamer.trace.npz import NpzFile

        return NpzFile(path)
    from ttamer.trace.arrow import CsvFile, JsonLinesFile, ParquetFile

    kinds: dict[str, Any] = {".parquet": ParquetFile, ".jsonl": JsonLinesFile}
    source: Source = kinds.get(suffix, CsvFile)(path)
    return source


def open_layout(
    source: Source,
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None,
    place: str,
    on_bad: OnBad,
) -> Layout:
    """Return which column of a source is used for what, given the cascade or the source's own."""
    spec = _spec_of(source, cascade, place, on_bad)
    notes: tuple[str, ...] = ()
    if spec is None:
        spec, note = infer_spec(source.columns, _mean_costs(source, place), place)
        notes = (note,)
    return plan(source.columns, spec, place, notes=notes)


def _spec_of(
    source: Source,
    cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None,
    place: str,
    on_bad: OnBad,
) -> CascadeSpec | None:
    if on_bad not in ("refuse", "skip"):
        raise ArgumentError(f'on_bad is {on_bad!r}; it must be "refuse" or "skip"')
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
                f"{place}: the cascade kept in the file is damaged: {error}; give a cascade.toml"
            ) from None
    return spec


def _mean_costs(source: Source, place: str) -> dict[str, float]:
    """Return the mean of each cost column by node: a pass over those columns alone."""
    spec, _ = infer_spec(source.columns, {}, place)
    layout = plan(source.columns, spec, place)
    columns = layout.fields["cost"]
    if not columns:
        return {}
    fields = {name: columns if name == "cost" else {} for name in layout.fields}
    only = Layout(place, spec, None, fields, {}, ())
    total, count = np.zeros(len(spec)), np.zeros(len(spec))
    # Always batches of the same size: the mean must not depend on how the file is read.
    for batch in source.batches(only, 1 << 16):
        values = np.empty(batch.rows)
        for node, column in columns.items():
            batch.numbers(column, values)
            good = np.isfinite(values) & (values >= 0)  # the others are refused by name later
            total[node] += values[good].sum()
            count[node] += good.sum()
    return {spec.names[node]: total[node] / max(count[node], 1) for node in columns}


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as Parquet, CSV or NPZ, by the suffix.

    The file appears whole or not at all. Parquet and NPZ keep the cascade inside; CSV cannot, so
    write it beside with ``trace.spec.to_file``.
    """
    require_path(path, "writing a trace")
    path = Path(path)
    suffix = suffix_of(path)
    if not len(trace):
        raise TraceError(f"{path}: a trace of no rows is not written")
    if not path.parent.is_dir():  # pyarrow would name a file of our own
        raise TraceError(f"{path}: cannot be written: there is no folder {path.parent}")
    try:
        with atomic_write(path) as part:
            if suffix == ".npz":
                from ttamer.trace.npz import write_npz

                write_npz(trace, part)
            elif suffix == ".parquet":
                from ttamer.trace.arrow import write_parquet

                write_parquet(trace, part)
            elif suffix == ".jsonl":
                from ttamer.trace.arrow import write_json_lines

                write_json_lines(trace, part)
            else:
                from ttamer.trace.arrow import write_csv

                write_csv(trace, part, gzipped=suffix == ".csv.gz")
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
