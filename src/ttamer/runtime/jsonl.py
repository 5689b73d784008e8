"""JSON lines that survive a crash: an append writes whole lines, and opening repairs a torn one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ttamer._files import sync

_BLOCK = 1 << 16


def json_line(value: Any) -> bytes:
    r"""Return a value as one line of JSON, with its line feed.

    Raises:
        ValueError: If the value holds NaN or an infinity, which JSON has no form for.
        TypeError: If the value holds something else that JSON has no form for.

    >>> json_line({"node": "small", "cost": 1.5})
    b'{"node": "small", "cost": 1.5}\n'
    """
    return json.dumps(value, allow_nan=False).encode() + b"\n"


class JsonLines:
    r"""A file of JSON lines that is appended to. Only its owner may read it (mode 600).

    A process that is killed can leave half a line at the end; opening the file removes it. A write
    that fails (a full disk) or is interrupted leaves the file as it was.

    Args:
        path: The file; it is created if it does not exist.
        sync_lines: Flush to the disk after this many lines; ``None`` leaves it to the system.

    Raises:
        OSError: From ``open`` and ``append``, if the file cannot be opened or written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.jsonl")
    ...     _ = path.write_bytes(b'{"row": 1}\n{"row": 2')
    ...     with JsonLines(path) as file:
    ...         file.append(json_line({"row": 3}))
    ...         [json.loads(line) for _, line in file.lines()]
    [{'row': 1}, {'row': 3}]
    """

    def __init__(self, path: str | os.PathLike[str], *, sync_lines: int | None = None) -> None:
        self.path = Path(path)
        self.size = 0
        """How many bytes the file holds."""
        self._sync_lines = sync_lines
        self._unsynced = 0
        self._handle = -1

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._handle >= 0

    def open(self) -> Self:
        """Open the file for appending and remove a torn last line; return the object itself."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0)  # a link could point the rows elsewhere
        self._handle = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(self._handle).st_size
            self.size = _whole(self._handle, size)
            if self.size < size:
                os.truncate(self._handle, self.size)
            if self._sync_lines is not None:
                sync(self.path.parent)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the file; closing it twice does nothing."""
        if self._handle >= 0:
            with suppress(OSError):
                os.close(self._handle)
        self._handle = -1

    def __enter__(self) -> Self:
        return self if self.is_open else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its number, from 1 on, as it is in the file now."""
        with self.path.open("rb") as file:
            content = file.read(self.size)  # not to its end, which a device may not have
        yield from enumerate(content.splitlines(), start=1)

    def append(self, lines: bytes) -> None:
        """Write one or more whole lines, or nothing: each ends with a line feed."""
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
            unsynced = self._unsynced + lines.count(b"\n")
            if self._sync_lines is not None and unsynced >= self._sync_lines:
                os.fsync(self._handle)
                unsynced = 0
            self.size, self._unsynced = self.size + len(lines), unsynced
        except BaseException:  # a signal, too, may come between two writes
            with suppress(OSError):
                os.truncate(self._handle, self.size)
            raise


def _whole(handle: int, size: int) -> int:
    """Return how many bytes there are up to the last line feed, read from the end."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
