"""Traces in NPZ: one array for each column; needs NumPy only.

Arrays are read in step through the archive, so a file larger than memory can be streamed. Nothing
is unpickled. Two arrays more may stand there: ``classes``, the text of each class, when predictions
and label are codes into it (-1: no answer); and ``cascade``, the text of a ``cascade.toml``.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ttamer._checks import counted
from ttamer.errors import TraceError
from ttamer.trace.builder import fill_flags
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout, columns_of
from ttamer.trace.schema import INPUT
from ttamer.trace.trace import Trace

_DAMAGE = (
    *(OSError, EOFError, ValueError, RuntimeError, KeyError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error),
)
_BESIDES = ("classes", "groups", "texts", "cascade")


@dataclass(frozen=True)
class _Member:
    """One array of the archive, as its header describes it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    def read(self, file: IO[bytes], rows: int) -> NDArray[Any]:
        shape = (rows, *self.shape[1:])
        size = math.prod(shape) * self.dtype.itemsize
        data = file.read(size)
        if len(data) != size:
            raise EOFError("the data ends early")
        return np.frombuffer(data, self.dtype).reshape(shape)


class ArrayBatch:
    """Rows of columns that are NumPy arrays.

    Where ``classes`` is given, predictions and label are codes into it; -1 is no answer.
    """

    def __init__(
        self,
        place: str,
        start: int,
        arrays: Mapping[str, NDArray[Any]],
        classes: Any,
        groups: Any = None,
    ) -> None:
        self._place, self.start, self._arrays = place, start, arrays
        self._classes, self._groups = classes, groups

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._arrays.values())))

    def numbers(self, column: str, out: NDArray[np.float64]) -> None:
        """Fill in a column of numbers."""
        values = self._arrays[column]
        if values.dtype.kind not in "iuf":
            raise self._wrong_type(column, "numbers")
        out[:] = values

    def codes(self, column: str, out: NDArray[np.int32], codes: ClassCodes) -> None:
        """Fill in a column of classes; -1 where there is no value."""
        values = self._arrays[column]
        classes, name = self._classes, "classes"
        if column == "group":
            classes, name = self._groups, "groups"
        if classes is not None:
            if values.dtype.kind not in "iu":
                raise self._wrong_type(column, f"codes into the array {name!r}")
            count = len(classes)
            if values.size and not -1 <= values.min() <= values.max() < count:
                raise TraceError(
                    f"{self._place}: column {column!r}: codes run from {values.min()} to "
                    f"{values.max()}, and {name!r} has {count} (-1 is no answer)"
                )
            out[:] = np.array([*map(codes.code, classes), -1], np.int32)[values]
            return
        if values.dtype.kind not in "biufU":
            raise self._wrong_type(column, "text, whole numbers or truth values")
        if values.dtype.kind == "U":
            distinct, inverse = np.unique(values, return_inverse=True)
            out[:] = np.array([*map(codes.code, distinct.tolist())], np.int32)[inverse]
        else:
            out[:] = codes.encode(values)

    def flags(self, column: str, out: NDArray[np.int8]) -> None:
        """Fill in a column of truth values as 0 and 1; -1 where there is no value."""
        values = self._arrays[column]
        if values.dtype.kind not in "biuf":
            raise self._wrong_type(column, "truth values, or 0 and 1")
        fill_flags(values.astype(np.float64), out, f"{self._place}: column {column!r}", self.start)

    def values(self, column: str) -> NDArray[Any]:
        """Return a column of numbers, text or vectors."""
        values = self._arrays[column]
        if values.dtype.kind in "UO":
            return values.astype(object)
        if values.dtype.kind not in "biuf":
            raise self._wrong_type(column, "numbers or text")
        return values if values.dtype == np.float32 and values.ndim == 2 else values.astype(float)

    def _wrong_type(self, column: str, needed: str) -> TraceError:
        return TraceError(
            f"{self._place}: column {column!r}: holds {self._arrays[column].dtype}, and {needed} "
            "are needed; convert the array"
        )


class NpzFile:
    """An NPZ file, read by rows through all of its arrays at once."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, str(path)
        self._members: dict[str, _Member] = {}
        self._classes: list[str] | None = None
        self._groups: list[str] | None = None
        self._texts: dict[str, NDArray[Any]] = {}
        self.cascade: bytes | None = None
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                for name in dict.fromkeys(names):
                    with archive.open(f"{name}.npy") as file:
                        self._describe(name, file)
                columns = [name for name in names if name not in _BESIDES]
                self.columns = (*columns, *self._texts)
        except _DAMAGE as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(
                f"{path}: is not an NPZ file, or is damaged: {str(error)[:200]}"
            ) from None
        self.rows: int | None = self._equal_rows()

    def _describe(self, name: str, file: IO[bytes]) -> None:
        member = _header(name, file)
        if member.dtype.hasobject:
            raise TraceError(
                f"{self._place}: column {name!r}: holds Python objects, which are never opened "
                "(mixed types, or None among numbers); store numbers, or text of one type"
            )
        if name == "texts":
            data = json.loads(member.read(file, member.rows).tobytes())
            self._texts = {key: np.array(values, object) for key, values in data.items()}
            return
        if name in _BESIDES:
            if member.dtype.kind != "U" or len(member.shape) != (name != "cascade"):
                raise TraceError(f"{self._place}: the array {name!r} must hold text")
            values = member.read(file, member.rows).tolist()
            if name == "classes":
                self._classes = values
            elif name == "groups":
                self._groups = values
            else:
                self.cascade = "".join(values).encode()
            return
        if len(member.shape) != 1 and not (name.startswith(INPUT) and len(member.shape) == 2):
            raise TraceError(
                f"{self._place}: column {name!r}: has shape {member.shape}; each array must be "
                "one column, of shape (rows,)"
            )
        self._members[name] = member

    def _equal_rows(self) -> int:
        rows = 0
        counts = {name: member.rows for name, member in self._members.items()}
        counts |= {name: len(values) for name, values in self._texts.items()}
        for position, (name, count) in enumerate(counts.items()):
            if position and count != rows:
                first = next(iter(self._members))
                raise TraceError(
                    f"{self._place}: columns of unequal length: {first!r} has "
                    f"{counted(rows, 'row')}, {name!r} has {count}; every array must have "
                    "one value for each input"
                )
            rows = count
        return rows

    def batches(self, layout: Layout, rows: int | None) -> Iterator[ArrayBatch]:
        """Yield batches of at most ``rows`` rows."""
        total = self.rows or 0
        start = 0
        try:
            with ExitStack() as stack:
                archive = stack.enter_context(zipfile.ZipFile(self._path))
                files = {}
                for name in layout.columns:
                    if name in self._texts:
                        continue
                    files[name] = stack.enter_context(archive.open(f"{name}.npy"))
                    _header(name, files[name])
                for start in range(0, total, rows or total or 1):
                    count = min(rows or total, total - start)
                    arrays = {n: self._members[n].read(f, count) for n, f in files.items()}
                    arrays |= {
                        name: self._texts[name][start : start + count]
                        for name in layout.columns
                        if name in self._texts
                    }
                    yield ArrayBatch(self._place, start, arrays, self._classes, self._groups)
        except _DAMAGE as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(
                f"{self._place}: is damaged after row {start}: {str(error)[:200]}"
            ) from None


def _header(name: str, file: IO[bytes]) -> _Member:
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:
        raise ValueError(f"{name}: version {version} of the array format is for records")
    return _Member(name, dtype, shape)


def write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as arrays, with its classes and its cascade.

    Only codes and truth values are compressed: numbers take long and hardly shrink.
    """
    columns: dict[str, Any] = {"cascade": np.array(trace.spec.to_toml())}
    if trace.prediction is not None or trace.label is not None:
        columns["classes"] = np.array(trace.classes, dtype=np.str_)
    if trace.group is not None:
        columns["groups"] = np.array(trace.groups, dtype=np.str_)
    texts = {}
    for name, values in columns_of(trace, slice(None)).items():
        if values.dtype == object:
            texts[name] = values.tolist()
        elif values.dtype == np.int8:
            known = values >= 0
            columns[name] = values == 1 if known.all() else np.where(known, values, np.nan)
        else:
            columns[name] = values
    if texts:
        columns["texts"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        for name, values in columns.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # a fixed date: equal traces, equal files
            if values.dtype.kind != "f":
                member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as file:
                npy.write_array(file, values, allow_pickle=False)
