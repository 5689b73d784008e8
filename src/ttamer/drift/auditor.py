"""Audits beside the traffic: one thread writes the log, and one drives the loop.

A server draws for every request, asks the other nodes off the user's path where the draw says so,
and hands over what all of them said. Nothing here ever waits or raises in a request: what cannot be
taken is counted. A re-fit takes as long as it takes; rows wait for the loop meanwhile, in a queue,
and are in the log already.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from ttamer.drift.audit_log import AuditRow
from ttamer.drift.status import status_of
from ttamer.drift.unlabelled import Unlabelled
from ttamer.drift.worker import Worker
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ttamer.drift.audit import Audit, Draw
    from ttamer.drift.audit_log import AuditLog, Said
    from ttamer.drift.loop import Loop
    from ttamer.trace.spec import CascadeSpec

    _Item = tuple[str, AuditRow]
    """A request, and its row."""

__all__ = ["Auditor"]


class Auditor:
    """Takes audited rows from a server.

    Args:
        spec: The cascade.
        audit: Who is audited.
        log: An open log that keeps the rows, or none.
        loop: The loop they are shown to, or none. It sees rows of which it is known who was right:
            all of them for ``target = "last"``, those with a label else.
        queue_rows: Rows that may wait to be worked on.
        label_rows: Rows that may wait for their label.
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
        label_rows: int = 100_000,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audit, self.log, self.loop = audit, log, loop
        self.audited = 0
        """Requests drawn to be audited."""
        self.written = self.seen = 0
        """Rows in the log, and rows shown to the loop."""
        self.lost = self.failed = 0
        """Rows that could not be taken or kept, and audits that a node did not answer."""
        self._spec, self._told_why, self._clock = spec, failed, clock
        self._unlabelled = Unlabelled(label_rows) if spec.target == "label" else None
        self._one_at_a_time = threading.Lock()
        self._closing = False
        # The log does not wait for a loop that fits.
        work = {"log": self._keep} if log is not None else {}
        work |= {"loop": self._show} if loop is not None else {}
        self._workers = [
            Worker(each, most=queue_rows, lost=self._came_to_nothing, name=f"ttamer audits, {name}")
            for name, each in work.items()
        ]

    def draw(self, request: str, key: str | None = None) -> tuple[Draw, int]:
        """Say whether a request is audited, and which number it has in the traffic.

        ``key`` is what the draw is made of, by default the request's id: where clients choose their
        ids, give another one.
        """
        with self._one_at_a_time:
            drawn = self.audit.draw(request if key is None else key, self._clock())
            if drawn.audited:
                self.audited += 1
                if self._unlabelled is not None:
                    self._unlabelled.expect(request)
            return drawn, self.audit.requests - 1

    def add(
        self,
        request: str,
        number: int,
        chance: float,
        said: Mapping[str, Said],
        label: str | None = None,
        *,
        spent: float | None = None,
    ) -> bool:
        """Take what every node said about an audited request; never waits, never raises.

        ``spent`` is what the audit itself cost, by default what all nodes cost.
        """
        every = sum(each.cost for each in said.values()) if spent is None else spent
        with self._one_at_a_time:
            self.audit.settle(every)
            row = AuditRow(number, self._clock(), chance, dict(said), label)
            if self._unlabelled is not None and label is None:
                row = self._unlabelled.add(request, row)
        return self._take_in(request, row)

    def fail(self, request: str, spent: float = 0.0) -> None:
        """Say that some node did not answer an audit, and what it cost all the same."""
        with self._one_at_a_time:
            self.audit.settle(spent)
            self.failed += 1
            if self._unlabelled is not None:
                self._unlabelled.forget(request)

    def label(self, request: str, label: str) -> bool:
        """Say what the right answer to a request was; return whether it is of use.

        It is where the request was audited, is not labelled yet, and is not forgotten.
        """
        if self._unlabelled is None:
            return False
        with self._one_at_a_time:
            is_expected, row = self._unlabelled.label(request, label)
        return is_expected and (row is None or self._take_in(request, row))

    def status(self) -> dict[str, Any]:
        """Return what the status page shows, in plain values."""
        audit = self.audit
        return {
            "share": audit.share,
            "requests": audit.requests,
            "audited": self.audited,
            "uncovered": audit.uncovered,
            "spent": audit.spent,
            "written": self.written,
            "seen": self.seen,
            "waiting": max((each.waiting for each in self._workers), default=0),
            "unlabelled": 0 if self._unlabelled is None else len(self._unlabelled),
            "failed": self.failed,
            "lost": self.lost,
            "loop": None if self.loop is None else status_of(self.loop),
        }

    def close(self, timeout: float | None = None) -> None:
        """Work off what waits, and end both threads. The log is closed by whoever opened it.

        What is left after so many seconds is lost, and counted.
        """
        with self._one_at_a_time:
            closing, self._closing = self._closing, True
        if not closing:
            for worker in self._workers:
                self._count_lost(worker.close(timeout))

    def _take_in(self, request: str, row: AuditRow) -> bool:
        with self._one_at_a_time:
            workers = [] if self._closing else self._workers
            taken = [worker.put((request, row)) for worker in workers]  # one may have no room
            is_taken = not self._closing and all(taken)
            self.lost += not is_taken
            return is_taken

    def _came_to_nothing(self, why: str) -> None:
        self._count_lost(1)
        self._told_why(why)

    def _count_lost(self, count: int) -> None:
        with self._one_at_a_time:
            self.lost += count

    def _keep(self, item: _Item) -> None:
        assert self.log is not None  # noqa: S101 - else nobody calls this
        self.log.add(item[1])
        self.written += 1

    def _show(self, item: _Item) -> None:
        (request, row), loop = item, self.loop
        assert loop is not None  # noqa: S101 - else nobody calls this
        if self._spec.target == "label" and row.label is None:
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
