"""The log: one JSON object per line on standard error.

What may stand in it is listed here, field by field. Prompts, answers, keys, headers, paths as
they were sent and the texts of foreign errors are not on the list.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ttamer.serve.served import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ttamer.serve.served import Served

__all__ = ["RequestLog"]

MOST_FRAMES = 8
_json = json.JSONEncoder(separators=(",", ":"), default=str).encode
_text = json.encoder.encode_basestring_ascii


class RequestLog:
    """Writes lines; a log that cannot be written never hurts a request.

    >>> import sys
    >>> RequestLog(sys.stdout, clock=lambda: 0.0).event("start", nodes=2)
    {"time":"1970-01-01T00:00:00.000Z","event":"start","nodes":2}
    """

    def __init__(self, stream: TextIO | None = None, clock: Any = time.time) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self.lost = 0
        """Lines that could not be written."""

    def finished(self, every: Iterable[Served]) -> None:
        """Write what each of some requests did, all at once."""
        time = self._time()
        self._write("".join([f'{{"time":"{time}",{_said(served)}\n' for served in every]))

    def event(self, event: str, /, **facts: Any) -> None:
        """Write that something happened to the gateway itself: a start, a reload, a drain."""
        self._write(self._line(event, facts))

    def failure(self, request_id: str, error: BaseException) -> None:
        """Write what an unexpected error is and where it arose; its text might hold a prompt."""
        frames = []
        trace = error.__traceback__
        while trace is not None:
            name = Path(trace.tb_frame.f_code.co_filename).name
            frames.append(f"{name}:{trace.tb_lineno}")
            trace = trace.tb_next
        facts = {"request": request_id, "type": type(error).__name__, "at": frames[-MOST_FRAMES:]}
        self._write(self._line("failure", facts))

    def handler(self) -> logging.Handler:
        """Return a handler for the loggers of libraries, such as the server's own."""
        return _Foreign(self)

    def _line(self, event: str, facts: dict[str, Any]) -> str:
        return f"{_json({'time': self._time(), 'event': event, **facts})}\n"

    def _time(self) -> str:
        now = self._clock()
        return f"{_stamp(int(now))}.{int(now % 1 * 1000):03}Z"

    def _write(self, lines: str) -> None:
        if not lines:
            return
        try:
            self._stream.write(lines)
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a full disk, a closed stream
            self.lost += lines.count("\n")


def _said(served: Served) -> str:
    """What is said of a request, as JSON but for its first brace and its time.

    Written out, since a line of each request is what a busy gateway writes most.
    """
    said = (
        f'"event":"request","request":{_text(served.request_id)},'
        f'"endpoint":{_text(served.endpoint)},"status":{served.status},'
        f'"seconds":{served.seconds:.6f}'
    )
    if served.asked:
        path = ",".join([_name(seen.node) for seen in served.asked])
        by = "null" if served.by is None else _name(served.by)
        said += f',"path":[{path}],"by":{by},"cost":{_json(served.cost)},"policy":"{served.policy}"'
    facts: dict[str, Any] = {}
    failed = {s.node: kind_of(s.error) for s in served.asked if s.error is not None}
    if failed:
        facts["failed"] = failed
    if served.capped:
        facts["capped"] = True
    if served.hedged:
        facts["hedged"] = served.hedged
    if served.error is not None:
        facts["error"] = served.error
    return f"{said},{_json(facts)[1:]}" if facts else f"{said}}}"


@lru_cache(maxsize=1024)
def _name(node: str) -> str:
    return _text(node)


@lru_cache(maxsize=4)
def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class _Foreign(logging.Handler):
    """Passes on which message it is, never what was filled into it, nor an error's text."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        if isinstance(record.msg, str) and record.name != "py.warnings":  # that is all text
            facts["message"] = record.msg.strip().partition("\n")[0]
        if record.exc_info and record.exc_info[0] is not None:
            facts["type"] = record.exc_info[0].__name__
        self._log.event("log", **facts)
