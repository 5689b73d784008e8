"""The container of a ``.ttamer`` file: a header and named arrays (docs/format.md).

::

    magic, 8 bytes | version, u32 | header length, u64 | header, JSON | arrays | SHA-256

The bytes may come from a stranger. Every size is compared with the size of the file before
anything is allocated for it, and the arrays must fill their area exactly: in order, aligned, with
zeros between them, so that there is no room for overlaps or for anything hidden.

Errors raised here give the reason alone; :mod:`ttamer.artefact.files` adds file and remedy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ttamer import __version__
from ttamer._arguments import require_path
from ttamer._files import atomic_write
from ttamer.errors import ArtefactDamaged, ArtefactError, ArtefactTooNew

# Not text, so that nothing takes it for text; the line end shows when it was treated as such.
MAGIC = b"\x89ttamer\n"
# The version that is written; versions from 1 on are read.
VERSION = 2
PREFIX = struct.Struct("<8sIQ")
DIGEST = 32
ALIGNMENT = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype("<f8"),
    "i8": np.dtype("i1"),
    "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"),
}
MAX_HEADER = 16 * 2**20
MAX_BYTES = 4 * 2**30
# Lists and objects in a header, which bounds the parser's memory: a list for each pair of
# classes, where mistakes are unequal.
MAX_CONTAINERS = 2**17
# Lists and objects of a header within one another, which bounds the parser's recursion.
MAX_DEPTH = 16
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_DIGITS = 19
MAX_DIMENSIONS = 3


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file holds, its container checked; the arrays are read-only."""

    header: dict[str, Any]
    """All of the header but ``arrays``."""
    arrays: dict[str, NDArray[Any]]
    version: int
    size: int
    checksum: str


@dataclass(frozen=True)
class Place:
    """Where an array lies in the data area."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def stop(self) -> int:
        """Where its last byte lies, plus one."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a file and check all that does not depend on what the arrays mean."""
    require_path(path, "opening a policy")
    try:
        if not stat.S_ISREG(_status(path).st_mode):  # opening a pipe would wait for ever
            raise ArtefactError("is not a regular file: give the path of a .ttamer file")
        with Path(path).open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror or error}") from None


def _status(path: str | os.PathLike[str]) -> os.stat_result:
    try:
        return Path(path).stat()
    except ValueError as error:
        raise ArtefactError(f"is not the name of a file: {error}") from None


def _read(file: BinaryIO, size: int) -> Contents:
    start = file.read(PREFIX.size)
    if start[: len(MAGIC)] != MAGIC[: len(start)] or not size:
        raise ArtefactDamaged("is not a ttamer file, which ttamer fit and ttamer.save write")
    if size < PREFIX.size + DIGEST:
        raise ArtefactDamaged(f"is cut short: {size} bytes are too few for any policy")
    _, version, length = PREFIX.unpack(start)
    if version > VERSION:
        raise ArtefactTooNew(
            f"is in version {version} of the format, and ttamer {__version__} reads up to version "
            f"{VERSION}: upgrade ttamer"
        )
    if not version:
        raise ArtefactDamaged("has format version 0, which there never was")
    if size > MAX_BYTES:
        raise ArtefactDamaged(f"is too large: {size} bytes, and at most {MAX_BYTES} are read")
    if length > MAX_HEADER:
        raise ArtefactDamaged(f"the header is too long: {length} bytes, at most {MAX_HEADER}")
    if PREFIX.size + length + DIGEST > size:
        raise ArtefactDamaged(f"is cut short: the header alone has {length} bytes")
    raw = _exactly(file, length)
    header, places = _parse(raw)
    end = _aligned(places[-1].stop)
    due = PREFIX.size + length + end + DIGEST
    if due != size:
        wrong = "is cut short" if size < due else "has bytes too many"
        raise ArtefactDamaged(f"{wrong}: {size} bytes, and the header announces {due}")
    data, digest = _exactly(file, end), _exactly(file, DIGEST)
    checksum = hashlib.sha256(start)
    checksum.update(raw)
    checksum.update(data)
    if checksum.digest() != digest:
        raise ArtefactDamaged("was altered: its checksum is not that of its contents")
    arrays = {}
    for place in places:
        if any(data[place.stop : _aligned(place.stop)]):
            raise ArtefactDamaged(f"has bytes other than zero after array {place.name!r}")
        count = math.prod(place.shape)
        flat: NDArray[Any] = np.frombuffer(data, place.dtype, count, place.offset)
        arrays[place.name] = flat.reshape(place.shape)
    return Contents(header, arrays, version, size, digest.hex())


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """Return the parts of a file, having checked that they can be read back."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    directory, parts, offset = {}, list[bytes | memoryview](), 0
    for name, array in sorted(arrays.items()):
        entry = {"dtype": codes[array.dtype], "offset": offset, "shape": list(array.shape)}
        directory[name] = entry
        parts += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % ALIGNMENT)]
        offset += _aligned(array.nbytes)
    raw = json.dumps(
        {**header, "arrays": directory}, ensure_ascii=False, sort_keys=True, separators=(",", ":")
    ).encode()
    raw += b" " * (-(PREFIX.size + len(raw)) % ALIGNMENT)
    size = PREFIX.size + len(raw) + offset + DIGEST
    if len(raw) > MAX_HEADER or size > MAX_BYTES:
        raise ArtefactDamaged(
            f"is too large: a header of {len(raw)} bytes (at most {MAX_HEADER}), {size} bytes in "
            f"all (at most {MAX_BYTES})"
        )
    _parse(raw)
    parts = [PREFIX.pack(MAGIC, VERSION, len(raw)), raw, *parts]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return [*parts, checksum.digest()]


def write(path: str | os.PathLike[str], parts: list[bytes | memoryview]) -> None:
    """Write a file whole or not at all; what was there before stays until all is written."""
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        if target.exists() and not target.is_file():
            raise ArtefactError("is not a regular file: give another path to write to")
        with atomic_write(target, durable=True) as part, part.open("xb") as file:
            file.writelines(parts)
    except OSError as error:
        raise ArtefactError(f"cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise ArtefactError(f"is not the name of a file: {error}") from None


def fields_of(item: object, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return an object of the header that has these fields, all of them and no others."""
    if not isinstance(item, dict):
        raise ArtefactDamaged(f"{what} must be an object")
    for name in names:
        if name not in item:
            raise ArtefactDamaged(f"{what} lacks {name!r}")
    for name in item:
        if name not in names:
            raise ArtefactDamaged(f"{what} has an unknown {name!r}")
    return item


def integers_of(item: object, what: str, *, least: int, most: int) -> list[int]:
    """Return a list of whole numbers in a range."""
    if not isinstance(item, list):
        raise ArtefactDamaged(f"{what} must be a list")
    for number in item:
        if type(number) is not int or not least <= number <= most:  # True is an int as well
            raise ArtefactDamaged(
                f"{what} must hold whole numbers from {least} to {most}, not {number!r}"
            )
    return item


def text_of(item: object, what: str) -> str:
    """Return a string that can be written and shown: JSON can hold half characters."""
    try:
        if isinstance(item, str) and item.encode() is not None:
            return item
    except UnicodeEncodeError:
        pass
    raise ArtefactDamaged(f"{what} must be Unicode text")


def _parse(raw: bytes) -> tuple[dict[str, Any], list[Place]]:
    """Return the header without ``arrays``, and the arrays' places in order."""
    if (PREFIX.size + len(raw)) % ALIGNMENT:
        raise ArtefactDamaged(f"the header does not end on a multiple of {ALIGNMENT} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ArtefactDamaged("the header is not UTF-8") from None
    # What is left without strings; a parser that recurses must not see what is nested too deeply.
    bare = b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    brackets = bare.translate(None, NO_BRACKETS)
    if len(brackets) > 2 * MAX_CONTAINERS or _depth(brackets) > MAX_DEPTH:
        raise ArtefactDamaged("the header is nested too deeply, or has too many parts")
    try:
        header = json.loads(
            text,
            object_pairs_hook=_without_repeats,
            parse_int=_integer,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
        )
    except ValueError as error:
        raise ArtefactDamaged(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), dict):
        raise ArtefactDamaged("the header must be an object with an object 'arrays'")
    places = sorted(
        (_place(name, entry) for name, entry in header.pop("arrays").items()),
        key=lambda place: place.offset,
    )
    end = 0
    for place in places:
        if place.offset != end:
            raise ArtefactDamaged(
                f"array {place.name!r} starts at {place.offset} and not at {end}: arrays may "
                "neither overlap nor leave a gap"
            )
        end = _aligned(place.stop)
    if not places:
        raise ArtefactDamaged("the header names no arrays")
    return header, places


def _depth(brackets: bytes) -> int:
    """Return how many lists and objects are open at once, given all brackets of a text."""
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)


def _place(name: str, entry: object) -> Place:
    what = f"array {name!r}"
    fields = fields_of(entry, what, ("dtype", "offset", "shape"))
    code = fields["dtype"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ArtefactDamaged(f"{what} has dtype {code!r}; there are {', '.join(DTYPES)}")
    shape = fields["shape"]
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise ArtefactDamaged(f"{what} must have a shape of 1 to {MAX_DIMENSIONS} numbers")
    integers_of(shape, f"{what}: the shape", least=1, most=MAX_BYTES)
    (offset,) = integers_of([fields["offset"]], f"{what}: the offset", least=0, most=MAX_BYTES)
    return Place(name, DTYPES[code], tuple(shape), offset)


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ArtefactDamaged("is cut short: it shrank while it was read")
    return data


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item: dict[str, Any] = {}
    for name, value in pairs:
        if name in item:
            raise ArtefactDamaged(f"the header has the key {name!r} twice in one object")
        item[name] = value
    return item


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ArtefactDamaged(f"the header has a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _no_fraction(token: str) -> float:
    raise ArtefactDamaged(f"the header has the number {token}; it may hold whole numbers only")
