"""The log: one JSON object per line on standard error.

The fields are listed here one by one. Prompts, answers, keys, headers, paths as they were sent and
the texts of foreign errors are not among them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ttamer.drift.worker import Worker
from ttamer.serve.observability.record import failure_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ttamer.serve.observability.record import RequestRecord

__all__ = ["JsonLog"]

MAX_WAITING = 10_000
"""The number of writes that may wait for a slow reader of the log."""
MAX_WRITE = 4096
"""The most characters that several processes write to one pipe at once, unless a line is longer."""
MAX_FRAMES = 8
"""The number of innermost frames logged of an unexpected error."""

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_text = json.encoder.encode_basestring_ascii


class JsonLog:
    """Writes log lines; a log that cannot be written never fails a request.

    >>> import sys
    >>> JsonLog(sys.stdout, clock=lambda: 0.0).event("start", nodes=2)
    {"time":"1970-01-01T00:00:00.000Z","event":"start","nodes":2}
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Any = time.time, worker: int | str | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._of_worker = {} if worker is None else {"worker": worker}
        """Which of several processes writes; in every line where it is set."""
        self._clock = clock
        self._worker: Worker[str] | None = None
        self.lost = 0
        """The number of lines that could not be written."""
        self.on_lost: Callable[[int], None] = lambda _: None
        """Called with the number of lines that were lost."""

    def start(self) -> None:
        """Write in a thread from now on, so that a slow reader delays no request."""
        self._worker = Worker(
            self._write_now, size=MAX_WAITING, lost=lambda _: self._lose(1), name="ttamer log"
        )

    def stop(self, timeout: float = 5.0) -> None:
        """Write the lines that wait, for at most ``timeout`` seconds, and end the thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._lose(worker.close(timeout))

    def finished(self, records: Iterable[RequestRecord]) -> None:
        """Write one line per request, in one write."""
        begin = f"{_encode({'time': self._time(), **self._of_worker})[:-1]},"
        self._write("".join([f"{begin}{_fields(record)}\n" for record in records]))

    def event(self, event: str, /, **facts: Any) -> None:
        """Write an event of the gateway itself, such as a start or a reload."""
        self._write(self._line(event, facts))

    def failure(self, request_id: str, error: BaseException) -> None:
        """Write the type and place of an unexpected error; its text may hold a prompt."""
        frames = []
        trace = error.__traceback__
        while trace is not None:
            name = Path(trace.tb_frame.f_code.co_filename).name
            frames.append(f"{name}:{trace.tb_lineno}")
            trace = trace.tb_next
        facts = {"request": request_id, "type": type(error).__name__, "at": frames[-MAX_FRAMES:]}
        self._write(self._line("failure", facts))

    def handler(self) -> logging.Handler:
        """Return a handler for the loggers of libraries."""
        return _LibraryHandler(self)

    def _line(self, event: str, facts: dict[str, Any]) -> str:
        return f"{_encode({'time': self._time(), **self._of_worker, 'event': event, **facts})}\n"

    def _time(self) -> str:
        now = self._clock()
        return f"{_stamp(int(now))}.{int(now % 1 * 1000):03}Z"

    def _write(self, lines: str) -> None:
        if not lines:
            return
        if self._worker is None:
            self._write_now(lines)
        elif not self._worker.put(lines):
            self._lose(lines.count("\n"))

    def _write_now(self, lines: str) -> None:
        try:
            for part in _short_parts(lines) if self._of_worker else [lines]:
                self._stream.write(part)
                self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a full disk, a closed stream
            self._lose(lines.count("\n"))

    def _lose(self, count: int) -> None:
        if count:
            self.lost += count
            self.on_lost(count)


def _fields(record: RequestRecord) -> str:
    """Return the fields of a request as JSON, without the opening brace and the time.

    Written by hand: a busy gateway writes one such line per request.
    """
    text = (
        f'"event":"request","request":{_text(record.request_id)},'
        f'"endpoint":{_text(record.endpoint)},"status":{record.status},'
        f'"seconds":{record.seconds:.6f}'
    )
    if record.client:
        text += f',"key":{_name(record.client)}'
    if record.asked:
        path = ",".join([_name(one.node) for one in record.asked])
        by = "null" if record.by is None else _name(record.by)
        text += (
            f',"path":[{path}],"by":{by},"cost":{float(record.cost)!r},"policy":"{record.policy}"'
        )
    elif record.cost:  # of embeddings
        text += f',"cost":{float(record.cost)!r}'
    facts: dict[str, Any] = {}
    if record.by is None or len(record.asked) > 1:
        failed = {s.node: failure_kind(s.error) for s in record.asked if s.error is not None}
        if failed:
            facts["failed"] = failed
    if estimated := record.estimated:
        facts["estimated"] = estimated
    if record.capped:
        facts["capped"] = True
    if record.hedged:
        facts["hedged"] = record.hedged
    if record.error is not None:
        facts["error"] = record.error
    return f"{text},{_encode(facts)[1:]}" if facts else f"{text}}}"


def _short_parts(lines: str) -> Iterator[str]:
    """Cut lines into short parts: several processes write to one pipe, which tears long writes."""
    start = 0
    while start < len(lines):
        end = lines.rfind("\n", start, start + MAX_WRITE) + 1
        if not end:  # one line is longer than that
            end = lines.index("\n", start) + 1
        yield lines[start:end]
        start = end


@lru_cache(maxsize=1024)
def _name(node: str) -> str:
    return _text(node)


@lru_cache(maxsize=4)
def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class _LibraryHandler(logging.Handler):
    """Logs the template of a library's message, never its arguments or an error's text."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        if isinstance(record.msg, str) and record.name != "py.warnings":  # that is all text
            facts["message"] = record.msg.strip().partition("\n")[0]
        if record.exc_info and record.exc_info[0] is not None:
            facts["type"] = record.exc_info[0].__name__
        self._log.event("log", **facts)
