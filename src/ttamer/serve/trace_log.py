"""What was seen of every request, as JSON lines: the raw material of the next trace.

A row says whom the policy asked, how sure each was, what it cost, and whose answer was returned.
Predictions are written only if wanted: they are class labels or normalised answers.

One thread writes, from a bounded queue. A disk that is slow fills the queue, a disk that is full
refuses the row: either way the row is lost and counted, and the request notices nothing. Files
are renamed ``log.1``, ``log.2``, ... when full, the oldest is removed: the log never takes more
than ``(keep + 1) * most_bytes``.
"""

from __future__ import annotations

import glob
import json
import os
import queue
import threading
import time
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.errors import ArgumentError
from ttamer.serve.served import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ttamer.serve.served import Served

__all__ = ["TraceLog", "log_files", "read_rows"]

MOST_AT_ONCE = 256


class TraceLog:
    """Appends rows to a file, in the background."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        predictions: bool = False,
        most_bytes: int = 64 * 2**20,
        keep: int = 4,
        queue_rows: int = 10_000,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        if most_bytes < 1024 or keep < 0 or queue_rows < 1:
            raise ArgumentError(
                "a trace log needs most_bytes >= 1024, keep >= 0 and queue_rows >= 1, not "
                f"{most_bytes}, {keep}, {queue_rows}"
            )
        self._predictions = predictions
        self._file = _Rotating(Path(path), most_bytes, keep)
        self._rows: queue.Queue[tuple[float, Served] | None] = queue.Queue(queue_rows)
        self._on_lost = on_lost
        self._closing = threading.Event()
        self.written = 0
        self.lost = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ttamer trace log", daemon=True)
        self._thread.start()

    def finished(self, served: Served) -> None:
        """Take one request, if it asked anybody; never waits, never raises."""
        if not served.asked:
            return
        if self._closing.is_set():
            self._lose(1)
            return
        try:
            self._rows.put_nowait((time.time(), served))
        except queue.Full:
            self._lose(1)

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, for at most so many seconds; what is left then counts as lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        until = time.monotonic() + timeout
        with suppress(queue.Full):
            self._rows.put(None, timeout=timeout)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self._lose(self._rows.qsize())

    def _run(self) -> None:
        while True:
            batch = [self._rows.get()]
            with suppress(queue.Empty):
                while len(batch) < MOST_AT_ONCE and batch[-1] is not None:
                    batch.append(self._rows.get_nowait())
            lines = [self._line(*item) for item in batch if item is not None]
            for text in self._file.parts(lines):
                count = text.count(b"\n")
                if self._file.append(text):
                    self.written += count
                else:
                    self._lose(count)
            if batch[-1] is None:
                self._file.close()
                return

    def _line(self, when: float, served: Served) -> bytes:
        try:
            return _line(when, served, self._predictions)
        except Exception:  # whatever a node gave, the thread lives on
            self._lose(1)
            return b""

    def _lose(self, count: int) -> None:
        with self._counting:
            self.lost += count
        for _ in range(count):
            self._on_lost()


class _Rotating:
    """A file that is appended to, and set aside when full."""

    def __init__(self, path: Path, most: int, keep: int) -> None:
        self._path, self._most, self._keep = path, most, keep
        self._handle: int | None = None
        self._size = 0
        self._torn = False

    def parts(self, lines: list[bytes]) -> Iterator[bytes]:
        """Join lines to texts that fit into a file each."""
        text = b""
        for line in lines:
            if text and len(text) + len(line) > self._most:
                yield text
                text = b""
            text += line
        if text:
            yield text

    def append(self, text: bytes) -> bool:
        """Write a text as a whole; say whether that worked."""
        try:
            if self._handle is None:
                self._open()
            if self._size and self._size + len(text) > self._most:
                self._rotate()
                self._open()
            if self._torn:
                self._write(b"\n")
                self._torn = False
            self._write(text)
        except OSError:
            self.close()  # the next rows try again from the start
            return False
        return True

    def close(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size
        self._torn = False
        if self._size:  # what a kill or a full disk cut short must not run into the next row
            self._torn = os.pread(self._handle, 1, self._size - 1) != b"\n"

    def _write(self, text: bytes) -> None:
        assert self._handle is not None  # noqa: S101 - append opened it
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, self._size)  # all of it or nothing
            raise
        self._size += len(text)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _line(when: float, served: Served, predictions: bool) -> bytes:
    asked = []
    for seen in served.asked:
        row: dict[str, Any] = {"node": seen.node, "cost": seen.cost}
        row["seconds"] = round(seen.seconds, 6)
        if seen.error is not None:
            row["failed"] = kind_of(seen.error)
        else:
            sure = seen.confidence
            row["confidence"] = sure if sure is not None and isfinite(sure) else None
            if predictions:
                row["prediction"] = seen.prediction
        asked.append(row)
    row = {
        "time": round(when, 3),
        "request": served.request_id,
        "policy": served.policy,
        "asked": asked,
        "by": served.by,
        "cost": served.cost,
        "capped": served.capped,
    }
    return json.dumps(row, separators=(",", ":"), default=str).encode() + b"\n"


def log_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a log that there are, the oldest first."""
    last = Path(path)
    numbered = [
        (int(file.suffix[1:]), file)
        for file in last.parent.glob(f"{glob.escape(last.name)}.*")
        if file.suffix[1:].isdecimal() and file.stem == last.name
    ]
    older = [file for _, file in sorted(numbered, reverse=True)]
    return [*older, last] if last.exists() else older


def read_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Give the rows of a log file, oldest first; lines that were cut short are passed over."""
    with Path(path).open("rb") as file:
        for line in file:
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if isinstance(row, dict) and line.endswith(b"\n"):
                yield row
