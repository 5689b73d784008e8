"""The policy artefact, a ``.ttamer`` file: save, load, inspect (docs/format.md).

It is a safetensors file: named arrays, and one JSON record (:class:`Record`) in its metadata. The
record holds a SHA-256 over the arrays and the record without it.

It is safe to open a stranger's: nothing in it is executed or decompressed, no size is believed, and
every table is checked before a policy is made of it. A file must be, byte for byte, what saving its
contents gives: nothing can be hidden in it. The checksum finds damage. It does not tell who wrote
the file: a forger can compute it as well, and what he can do is to make a policy that decides
badly. The same policy gives the same bytes: there are no timestamps.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors import numpy as safetensors_numpy

from ttamer import __version__
from ttamer._checks import require_path
from ttamer._files import atomic_write
from ttamer.artefact.arrays import Arrays
from ttamer.artefact.records import FORMAT, Record, Savable, describe, facts_of, restore
from ttamer.errors import ArgumentError, ArtefactDamaged, ArtefactError, ArtefactTooNew

MAX_BYTES = 2**31
MAX_HEADER = 32 * 2**20


@dataclass(frozen=True, eq=False)
class Artefact:
    """A ``.ttamer`` file, read and checked once. Made by :func:`open_artefact`."""

    # What was saved
    policy: Savable
    # Its description, as :func:`inspect` gives it
    facts: dict[str, Any]


def save(
    policy: Savable,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a policy, a ladder or a mixture, solved or fitted, to a ``.ttamer`` file.

    The file appears whole or not at all.

    Args:
        policy: What to save.
        path: Where to; an existing file is replaced.
        notes: Text to keep with it, such as where the trace came from.

    Raises:
        ArgumentError: It cannot be saved.
        ArtefactError: The file cannot be written.

    >>> import tempfile
    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(policy, Path(folder, "small.ttamer"), notes={"trace": "july"})
    ...     inspect(Path(folder, "small.ttamer"))["notes"]
    {'trace': 'july'}
    """
    require_path(path, "saving a policy")
    with _about(path):
        data = pack(policy, dict(notes or {}))
        try:
            target = Path(os.path.realpath(path))  # a link stays a link
            if target.exists() and not target.is_file():
                raise ArtefactError("is not a regular file: give another path to write to")
            # A half-written policy must never take the place of a good one.
            with atomic_write(target, durable=True) as part, part.open("xb") as file:
                file.write(data)
        except OSError as error:
            raise ArtefactError(f"cannot be written: {error.strerror or error}") from None
        except ValueError as error:
            raise ArtefactError(f"is not the name of a file: {error}") from None


def load(path: str | os.PathLike[str]) -> Savable:
    """Read what :func:`save` wrote.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        The policy, the ladder or the mixture.

    Raises:
        ArtefactDamaged: The file is not one, or was altered.
        ArtefactTooNew: It is in a later version of the format.
        ArtefactError: It cannot be read.

    >>> load("no-such.ttamer")
    Traceback (most recent call last):
        ...
    ttamer.errors.ArtefactError: no-such.ttamer: cannot be read: No such file or directory
    """
    return open_artefact(path).policy


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a file, once all of it is checked.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        Plain values: what it is, how it was fitted, its nodes, tradeoffs and promises.

    Raises:
        ArtefactError: As for :func:`load`.

    >>> import tempfile
    >>> from ttamer import Problem, solve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.ttamer")
    ...     save(solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5), path)
    ...     facts = inspect(path)
    >>> facts["kind"], facts["nodes"], facts["states"], facts["tradeoffs"]
    ('policy', ['m1'], [2], [0.5])
    """
    return open_artefact(path).facts


def open_artefact(path: str | os.PathLike[str]) -> Artefact:
    """Read and check a file once; return what was saved and its description.

    Args:
        path: A ``.ttamer`` file.

    Returns:
        The policy and the facts of the same bytes.

    Raises:
        ArtefactError: As for :func:`load`.

    >>> import tempfile
    >>> from ttamer import Problem, solve
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "small.ttamer")
    ...     save(solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5), path)
    ...     artefact = open_artefact(path)
    >>> artefact.policy, artefact.facts["kind"]
    (WalkPolicy(1 node, tradeoff=0.5, value=0.175), 'policy')
    """
    with _about(path):
        data = _bytes_of(path)
        record, arrays = unpack(data)
        policy = restore(record, arrays)
        facts = {
            "kind": record.kind,
            "format_version": record.format,
            "library_version": record.library,
            "notes": dict(record.notes),
            "bytes": len(data),
            "sha256": record.sha256,
        }
        return Artefact(policy, facts | facts_of(policy))


def pack(policy: Savable, notes: dict[str, str]) -> bytes:
    """Return the bytes of a file, having checked that they can be read back."""
    for word in (*notes, *notes.values()):
        if not isinstance(word, str):
            raise ArgumentError(f"notes must map strings to strings, and one of them is {word!r}")
    data = _written(*describe(policy, notes))
    if len(data) > MAX_BYTES or int.from_bytes(data[:8], "little") > MAX_HEADER:
        raise ArgumentError(f"it is too large for a file: {len(data)} bytes, at most {MAX_BYTES}")
    return data


def _written(record: Record | dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a record and arrays as bytes, with their checksum."""
    # The digest is over the record without it, so it can stand in the record.
    content = msgspec.to_builtins(record) | {"sha256": ""}
    checksum = hashlib.sha256(_json(content))
    for name in sorted(arrays):
        array = arrays[name]
        checksum.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        checksum.update(np.ascontiguousarray(array).tobytes())
    content["sha256"] = checksum.hexdigest()
    return safetensors_numpy.save(dict(arrays), metadata={"ttamer": _json(content).decode()})


def _json(content: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(content, order="sorted")
    except UnicodeEncodeError:
        raise ArgumentError("a name or a note holds half a character (a lone surrogate)") from None


def unpack(data: bytes) -> tuple[Record, Arrays]:
    """Check the container of a file; return its record and its read-only arrays."""
    start = int.from_bytes(data[:8], "little")
    # Before anything is parsed: most files that are not ours end here.
    if len(data) < 10 or data[8:9] != b"{" or start < 2:
        raise ArtefactDamaged("is not a ttamer file, which ttamer fit and ttamer.save write")
    if start > MAX_HEADER:
        raise ArtefactDamaged(f"the header is too long: {start} bytes, at most {MAX_HEADER}")
    if 8 + start > len(data):
        raise ArtefactDamaged(f"is cut short: the header alone has {start} bytes")
    try:
        text = msgspec.json.decode(data[8 : 8 + start])["__metadata__"]["ttamer"]
        content = msgspec.json.decode(text)
        is_newer = content["format"] > FORMAT
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, RecursionError):
        raise ArtefactDamaged(
            "is not a ttamer file: its record is missing or cannot be read"
        ) from None
    if is_newer:
        raise ArtefactTooNew(
            f"is in version {content['format']} of the format, and ttamer {__version__} reads up "
            f"to version {FORMAT}: upgrade ttamer"
        )
    try:
        record = msgspec.convert(content, Record)
        arrays = safetensors_numpy.load(data)
    except msgspec.DecodeError as error:
        raise ArtefactDamaged(f"its record cannot be: {error}") from None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ArtefactDamaged(f"its arrays cannot be: {error}") from None
    for name, array in arrays.items():
        if array.dtype.name not in ("float64", "float32", "int64", "int32", "int16", "int8"):
            raise ArtefactDamaged(f"array {name!r} cannot hold numbers of type {array.dtype.name}")
    try:
        # Of the content as it stands: a file from before a field was added has none.
        written = _written(content, arrays)
    except (ArgumentError, RecursionError) as error:
        raise ArtefactDamaged(str(error)) from None
    # One form for each content: nothing can be hidden between or behind the arrays.
    if written != data:
        raise ArtefactDamaged("was altered: its checksum is not that of its contents")
    for array in arrays.values():
        array.setflags(write=False)
    return record, arrays


def _bytes_of(path: str | os.PathLike[str]) -> bytes:
    require_path(path, "opening a policy")
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise ArtefactError("is not a regular file: give the path of a .ttamer file")
        if status.st_size > MAX_BYTES:
            raise ArtefactDamaged(
                f"is too large: {status.st_size} bytes, and at most {MAX_BYTES} are read"
            )
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)  # it may grow meanwhile, and is then refused as altered
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ArtefactError(f"is not the name of a file: {error}") from None


@contextmanager
def _about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before, and the remedy after, what is raised."""
    try:
        yield
    except ArtefactDamaged as error:
        remedy = "copy the file again from where it came, or save the policy again"
        raise ArtefactDamaged(f"{path}: {_shown(error)}; {remedy}") from None
    except ArtefactError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError:
        raise ArtefactError(f"{path}: does not fit into the memory of this machine") from None


def _shown(error: Exception) -> str:
    """Cut a message, and escape what does not print: a stranger's names may stand in it."""
    text = str(error)
    text = text if len(text) <= 300 else f"{text[:300]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
