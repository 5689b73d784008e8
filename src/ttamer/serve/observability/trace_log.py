"""One JSON line per request, from which the next trace can be made.

A row lists the nodes asked, their confidence and cost, and the node whose answer was returned.
Predictions are written on demand only: they are class labels or normalised answers.

One thread writes, from a bounded queue. A slow disk fills the queue and a full disk refuses the
row: either way the row is lost and counted, and the request is not affected. Full files are renamed
``log.1``, ``log.2``, ... and the oldest is removed: the log never takes more than
``(keep + 1) * max_bytes``.
"""

from __future__ import annotations

import glob
import json
import queue
import threading
import time
from contextlib import suppress
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.errors import ArgumentError
from ttamer.runtime.jsonl import JsonLines
from ttamer.serve.observability.record import failure_kind

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ttamer.serve.observability.record import RequestRecord

__all__ = ["TraceLog", "log_files", "read_rows"]

MAX_BATCH = 256
"""The most rows written at once."""


class TraceLog:
    """Appends rows to a file, in the background."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        predictions: bool = False,
        max_bytes: int = 64 * 2**20,
        keep: int = 4,
        queue_rows: int = 10_000,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        if max_bytes < 1024 or keep < 0 or queue_rows < 1:
            raise ArgumentError(
                "a trace log needs max_bytes >= 1024, keep >= 0 and queue_rows >= 1, not "
                f"{max_bytes}, {keep}, {queue_rows}"
            )
        self._predictions = predictions
        self._file = _Rotating(Path(path), max_bytes, keep)
        self._rows: queue.Queue[tuple[float, RequestRecord] | None] = queue.Queue(queue_rows)
        self._on_lost = on_lost
        self._closing = threading.Event()
        self.written = 0
        self.lost = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ttamer trace log", daemon=True)
        self._thread.start()

    def finished(self, record: RequestRecord) -> None:
        """Take the record of a request that asked a node; never waits, never raises."""
        if not record.asked:
            return
        if self._closing.is_set():
            self._lose(1)
            return
        try:
            self._rows.put_nowait((time.time(), record))
        except queue.Full:
            self._lose(1)

    def close(self, timeout: float = 5.0) -> None:
        """Write the rows that wait, for at most ``timeout`` seconds; the others count as lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        until = time.monotonic() + timeout
        with suppress(queue.Full):
            self._rows.put(None, timeout=timeout)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            with self._rows.mutex:
                waiting = sum(row is not None for row in self._rows.queue)
            self._lose(waiting)

    def _run(self) -> None:
        while True:
            batch = [self._rows.get()]
            with suppress(queue.Empty):
                while len(batch) < MAX_BATCH and batch[-1] is not None:
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

    def _line(self, when: float, record: RequestRecord) -> bytes:
        try:
            return _line(when, record, self._predictions)
        except Exception:  # no answer of a node may end the thread
            self._lose(1)
            return b""

    def _lose(self, count: int) -> None:
        with self._counting:
            self.lost += count
        for _ in range(count):
            self._on_lost()


class _Rotating:
    """A file that is appended to, and renamed when full."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._max_bytes, self._keep = max_bytes, keep
        self._file = JsonLines(path)

    def parts(self, lines: list[bytes]) -> Iterator[bytes]:
        """Join lines into texts that each fit into a file."""
        text = b""
        for line in lines:
            if text and len(text) + len(line) > self._max_bytes:
                yield text
                text = b""
            text += line
        if text:
            yield text

    def append(self, text: bytes) -> bool:
        """Write a text as a whole; return whether that succeeded."""
        try:
            if not self._file.is_open:
                self._file.open()
            if self._file.size and self._file.size + len(text) > self._max_bytes:
                self._rotate()
                self._file.open()
            self._file.append(text)
        except OSError:
            self.close()  # the next rows try again from the start
            return False
        return True

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self.close()
        path = self._file.path
        files = [path, *(path.with_name(f"{path.name}.{n + 1}") for n in range(self._keep))]
        for newer, older in reversed([*pairwise(files)]):
            if newer.exists():
                newer.replace(older)
        if not self._keep:
            path.unlink(missing_ok=True)


def _line(when: float, record: RequestRecord, predictions: bool) -> bytes:
    asked = []
    for one in record.asked:
        row: dict[str, Any] = {"node": one.node, "cost": one.cost}
        row["seconds"] = round(one.seconds, 6)
        if one.error is not None:
            row["failed"] = failure_kind(one.error)
        else:
            confidence = one.confidence
            is_number = confidence is not None and isfinite(confidence)
            row["confidence"] = confidence if is_number else None
            row |= one.columns or {}
            if predictions:
                row["prediction"] = one.prediction
        asked.append(row)
    row = {
        "time": round(when, 3),
        "request": record.request_id,
        "policy": record.policy,
        "asked": asked,
        "by": record.by,
        "cost": record.cost,
        "capped": record.capped,
    }
    return json.dumps(row, separators=(",", ":"), default=str).encode() + b"\n"


def log_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the existing files of a log, the oldest first.

    Args:
        path: The file named by ``trace_log``.

    Returns:
        The rotated files and the current one.

    >>> log_files("no-such-log.jsonl")
    []
    """
    last = Path(path)
    numbered = [
        (int(file.suffix[1:]), file)
        for file in last.parent.glob(f"{glob.escape(last.name)}.*")
        if file.suffix[1:].isdecimal() and file.stem == last.name
    ]
    older = [file for _, file in sorted(numbered, reverse=True)]
    return [*older, last] if last.exists() else older


def read_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    r"""Iterate over the rows of a log file, the oldest first; torn lines are skipped.

    Args:
        path: One of :func:`log_files`.

    Returns:
        The rows, as dictionaries.

    Raises:
        OSError: If the file cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.jsonl")
    ...     _ = path.write_text('{"request": "a"}\n{"requ')
    ...     [row["request"] for row in read_rows(path)]
    ['a']
    """
    with Path(path).open("rb") as file:
        for line in file:
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if isinstance(row, dict) and line.endswith(b"\n"):
                yield row
