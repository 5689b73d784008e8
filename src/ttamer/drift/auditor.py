"""Audits beside the traffic: one thread that writes the log and drives the loop.

A server draws for every request, asks the other nodes off the user's path where the draw says so,
and hands over what all of them said. Nothing here ever waits or raises in a request: what cannot be
taken is counted. Re-fitting happens in this thread too, and takes as long as it takes; rows wait in
a queue meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from ttamer.drift.audit_log import AuditRow
from ttamer.drift.status import status_of
from ttamer.errors import TTamerError
from ttamer.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ttamer.cascade_spec import CascadeSpec
    from ttamer.drift.audit import Audit, Draw
    from ttamer.drift.audit_log import AuditLog, Said
    from ttamer.drift.loop import Loop

__all__ = ["Auditor"]


class Auditor:
    """Takes audited rows from a server.

    Args:
        spec: The cascade.
        audit: Who is audited.
        log: An open log that keeps the rows, or none.
        loop: The loop they are shown to, or none. It sees rows of which it is known who was right:
            all of them for ``target = "last"``, those with a label else.
        queue_rows: Rows that may wait.
        failed: Told in one line why a row, or a step of the loop, came to nothing.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        spec: CascadeSpec,
        audit: Audit,
        *,
        log: AuditLog | None = None,
        loop: Loop | None = None,
        queue_rows: int = 10_000,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audit, self.log, self.loop = audit, log, loop
        self.written = self.seen = self.lost = 0
        self._spec, self._failed, self._clock = spec, failed, clock
        self._rows: queue.Queue[tuple[str, AuditRow] | None] = queue.Queue(queue_rows)
        self._drawing = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ttamer audits", daemon=True)
        self._thread.start()

    def draw(self, request: str) -> tuple[Draw, int]:
        """Say whether a request is audited, and which number it has in the traffic."""
        with self._drawing:
            drawn = self.audit.draw(request, self._clock())
            return drawn, self.audit.requests - 1

    def add(
        self,
        request: str,
        number: int,
        chance: float,
        said: Mapping[str, Said],
        label: str | None = None,
    ) -> bool:
        """Take what every node said about an audited request; never waits, never raises."""
        with self._drawing:
            self.audit.settle(sum(each.cost for each in said.values()))
            if self._closing:
                self.lost += 1
                return False
        try:
            self._rows.put_nowait(
                (request, AuditRow(number, self._clock(), chance, dict(said), label))
            )
        except queue.Full:
            self.lost += 1
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Return what the status page shows, in plain values."""
        audit = self.audit
        return {
            "share": audit.share,
            "requests": audit.requests,
            "uncovered": audit.uncovered,
            "spent": audit.spent,
            "written": self.written,
            "seen": self.seen,
            "waiting": self._rows.qsize(),
            "lost": self.lost,
            "loop": None if self.loop is None else status_of(self.loop),
        }

    def close(self) -> None:
        """Work off what waits, and end the thread. The log is closed by whoever opened it."""
        with self._drawing:
            closing, self._closing = self._closing, True
        if not closing:
            self._rows.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._rows.get()) is not None:
            request, row = item
            try:
                self._take(request, row)
            except TTamerError as error:
                self.lost += 1
                self._failed(str(error))
            except Exception as error:  # whatever a row can do, the thread lives on
                self.lost += 1
                self._failed(f"an audited row came to nothing: {type(error).__name__}")

    def _take(self, request: str, row: AuditRow) -> None:
        if self.log is not None:
            self.log.add(row)
            self.written += 1
        loop = self.loop
        if loop is None or (self._spec.target == "label" and row.label is None):
            return
        said = [row.said[name] for name in self._spec.names]
        trace = Trace.from_arrays(
            self._spec,
            [[each.confidence for each in said]],
            prediction=[[each.prediction for each in said]],
            label=None if row.label is None else [row.label],
            cost=[[each.cost for each in said]],
        )
        # Audits end in another order than they began.
        loop.see(trace, [max(row.number, loop.number + 1)], [request])
        self.seen += 1
