"""Traces from and to data frames, by Arrow: pandas, polars, and objects with its protocols.

A frame has the columns of a trace file: ``<node>.confidence`` and, where known,
``<node>.prediction``, ``<node>.correct``, ``<node>.cost``, ``label``,
``group``, ``prompt`` and ``input.<name>``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from ttamer.cascade import CascadeSpec, Kind, Target
from ttamer.errors import ArgumentError, MissingExtra, TraceError
from ttamer.trace.arrow import ArrowBatch, arrow
from ttamer.trace.columns import Layout, check_names
from ttamer.trace.files import read_all
from ttamer.trace.trace import OnBad, Trace

FrameLibrary = Literal["pandas", "polars", "arrow"]
# Every message about a frame begins with this.
PLACE = "the frame"


class _Frame:
    """A data frame as a source of rows."""

    cascade: bytes | None = None

    def __init__(self, frame: Any) -> None:
        self._table = _table(frame)
        self.columns: tuple[str, ...] = tuple(map(str, self._table.column_names))
        self.rows: int | None = self._table.num_rows

    def batches(self, layout: Layout, rows: int | None) -> Iterator[ArrowBatch]:
        """Yield batches of at most ``rows`` rows, or everything at once."""
        table = self._table.select(list(layout.columns))
        for start in range(0, table.num_rows, rows or table.num_rows or 1):
            yield ArrowBatch(PLACE, start, table.slice(start, rows))


def is_frame(value: object) -> bool:
    """Return whether a value is a data frame: it exports an Arrow stream or ``__dataframe__``.

    >>> is_frame(arrow().table({"a.confidence": [0.5]})), is_frame("log.csv")
    (True, False)
    """
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")


def trace_from_frame(
    frame: Any,
    cascade: CascadeSpec | str | os.PathLike[str] | None,
    *,
    costs: Mapping[str, float] | None,
    kind: Kind,
    target: Target,
    on_bad: OnBad,
) -> Trace:
    """Build a trace from a data frame; see :meth:`ttamer.Trace.from_frame`."""
    if hasattr(frame, "to_frame"):  # as a column of pandas and polars has, which exports a stream
        raise ArgumentError(
            f"from_frame needs a data frame, and a {type(frame).__name__} is one column: give the "
            "frame with a column <node>.confidence for each node"
        )
    if not is_frame(frame):
        remedy = "read a file with Trace.read, build from arrays with Trace.from_arrays"
        if hasattr(frame, "collect"):  # polars computes it only then
            remedy = "give frame.collect()"
        raise ArgumentError(
            f"from_frame needs a data frame (pandas, polars, Arrow), not {type(frame).__name__}; "
            f"{remedy}"
        )
    if costs is not None:
        if cascade is not None:
            raise ArgumentError("give a cascade or costs, not both: a cascade has its own costs")
        cascade = CascadeSpec.of(costs, kind=kind, target=target)
    columns = getattr(frame, "columns", ())  # of an Arrow table these are no names
    check_names([name for name in columns if isinstance(name, str)], PLACE)
    source = _Frame(frame)
    return read_all(source, cascade, PLACE, on_bad)


def _table(frame: Any) -> Any:
    """Return a frame as an Arrow table, without a copy where its memory allows."""
    pa = arrow()
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            table = pa.table(frame)
        else:
            table = importlib.import_module("pyarrow.interchange").from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        why = "; ".join(map(str, error.args)) or type(error).__name__
        raise TraceError(
            f"{PLACE}: cannot be read as an Arrow table: {why.splitlines()[0][:200]}; give each "
            "column one type"
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


def frame_of(trace: Trace, library: FrameLibrary) -> Any:
    """Return a trace as a data frame; see :meth:`ttamer.Trace.to_frame`."""
    from ttamer.trace.columns import columns_of

    if library not in ("pandas", "polars", "arrow"):
        raise ArgumentError(f'library is {library!r}; it must be "pandas", "polars" or "arrow"')
    columns: dict[str, Any] = {}
    texts = np.array([*trace.classes, None], object)
    groups = np.array([*trace.groups, None], object)
    for name, values in columns_of(trace, slice(None)).items():
        # A list: of an array that begins with None, polars makes a column of Python objects.
        if values.dtype == np.int32:
            of = groups if name == "group" else texts
            columns[name] = of[values].tolist()
        elif values.dtype == np.int8:
            is_known = bool((values >= 0).all())
            columns[name] = (
                values == 1 if is_known else [None if v < 0 else bool(v) for v in values]
            )
        else:
            columns[name] = (
                values.tolist() if values.dtype == object or values.ndim == 2 else values
            )
    if library == "arrow":
        return arrow().table(columns)
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError:
        raise MissingExtra(library, "frames") from None
    return module.DataFrame(columns)
