"""Audits beside the traffic: one thread writes the log, and another runs the drift loop.

A server draws for every request, asks the other nodes outside the request where it is audited, and
passes on the answers of all nodes. Nothing here waits or raises in a request: rows that cannot be
taken are counted. During a re-fit rows wait for the loop in a queue; they are in the log already.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ttamer.cascade import CascadeSpec
from ttamer.drift.audits import AuditLog, AuditRow, NodeAnswer, trace_of_rows
from ttamer.drift.loop import Loop, status_of
from ttamer.drift.sampling import AuditSampler, Draw
from ttamer.drift.worker import Worker


class Auditor:
    """Takes audited rows from a server.

    >>> from ttamer.drift import AuditSampler, NodeAnswer
    >>> from ttamer.trace import CascadeSpec
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> auditor = Auditor(spec, AuditSampler(1.0))
    >>> drawn, number = auditor.draw("request-1")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> auditor.add("request-1", number, drawn.chance, answers)
    True
    >>> auditor.close()
    >>> auditor.status()["spent"]
    6.0

    Args:
        spec: The cascade.
        sampler: Draws the requests that are audited.
        log: An open log that keeps the rows, or ``None``.
        loop: The drift loop, or ``None``. It takes rows whose right answer is known: all rows for
            ``target = "last"``, otherwise those with a label.
        queue_rows: The number of rows that may wait in each queue.
        label_rows: The number of rows that may wait for their label.
        match_label: Called in a thread with a label and the predictions of its row; returns the
            prediction that is right, or the label itself. By default a label is compared as text.
        conceal: Called with each answer and label before it is written to the log; returns the text
            to write instead. The loop receives the answers themselves.
        failed: Called with one line of text for each row, or step of the loop, that failed.
        clock: The time in seconds since 1970.
    """

    def __init__(
        self,
        spec: CascadeSpec,
        sampler: AuditSampler,
        *,
        log: AuditLog | None = None,
        loop: Loop | None = None,
        queue_rows: int = 10_000,
        label_rows: int = 100_000,
        match_label: Callable[[str, Sequence[str | None]], str] | None = None,
        conceal: Callable[[str], str] | None = None,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sampler, self.log, self.loop = sampler, log, loop
        self.audited = 0
        """The number of requests drawn to be audited."""
        self.written = self.seen = 0
        """The number of rows in the log, and of rows that the loop has taken."""
        self.outdated = 0
        """The number of rows, most often with late labels, from before the last change of traffic:
        the loop does not take them."""
        self.lost = self.failed = 0
        """The number of rows that were lost, and of audits in which a node failed."""
        self._spec, self._report_failure, self._clock = spec, failed, clock
        self._match_label, self._conceal = match_label, conceal
        self._pending = PendingLabels(label_rows) if spec.target == "label" else None
        self._lock = threading.Lock()
        self._closing = False
        # The log has its own thread: it does not wait for a loop that fits.
        work: dict[str, Callable[[_Item], None]] = {}
        if log is not None:
            work["log"] = partial(self._write, log)
        if loop is not None:
            work["loop"] = partial(self._update, loop)
        self._workers = [
            Worker(each, size=queue_rows, lost=self._row_lost, name=f"ttamer audits, {name}")
            for name, each in work.items()
        ]

    def draw(self, request: str, key: str | None = None) -> tuple[Draw, int]:
        """Draw whether a request is audited, and number it.

        Args:
            request: The id of the request.
            key: What the draw is made of, by default the id: where clients choose their ids, use a
                random one.

        Returns:
            The draw, and the number of the request in the traffic.
        """
        with self._lock:
            drawn = self.sampler.draw(request if key is None else key, self._clock())
            if drawn.audited and self._pending is not None and request in self._pending:
                self.sampler.settle(0.0)  # an id used twice must not replace the first row
                drawn = drawn._replace(audited=False)
            if drawn.audited:
                self.audited += 1
                if self._pending is not None:
                    self._pending.expect(request)
            return drawn, self.sampler.requests - 1

    def skip(self, count: int) -> None:
        """Count requests of the traffic that cannot be drawn; see ``AuditSampler.skip``.

        Args:
            count: The number of requests.
        """
        with self._lock:
            self.sampler.skip(count, self._clock())

    def add(
        self,
        request: str,
        number: int,
        chance: float,
        answers: Mapping[str, NodeAnswer],
        label: str | None = None,
        *,
        spent: float | None = None,
        inputs: Mapping[str, float] | None = None,
    ) -> bool:
        """Take the answers to an audited request; never waits, never raises.

        Args:
            request: The id of the request.
            number: Its number in the traffic.
            chance: The probability with which it was drawn.
            answers: The answer of every node.
            label: The right answer, where it is known.
            spent: The cost of the audit itself, by default the cost of all answers.
            inputs: What was known before any node was asked: the same names for every request.

        Returns:
            Whether there was room for the row.
        """
        total = sum(each.cost for each in answers.values()) if spent is None else spent
        with self._lock:
            self.sampler.settle(total)
            row = AuditRow(
                number, self._clock(), chance, dict(answers), label, inputs or {}, request
            )
            if self._pending is not None:
                row = self._pending.add(request, row)
        return self._enqueue(request, row)

    def fail(self, request: str, spent: float = 0.0) -> None:
        """Record that a node failed during an audit.

        Args:
            request: The id of the request.
            spent: The cost of the audit.
        """
        with self._lock:
            self.sampler.settle(spent)
            self.failed += 1
            if self._pending is not None:
                self._pending.forget(request)

    def label(self, request: str, label: str) -> bool:
        """Record the right answer to a request.

        Args:
            request: The id of the request.
            label: The right answer.

        Returns:
            Whether the label is used: the request was audited, has no label yet, and is not among
            the oldest, which were dropped.
        """
        if self._pending is None:
            return False
        with self._lock:
            is_expected, row = self._pending.label(request, label)
        return is_expected and (row is None or self._enqueue(request, row))

    def status(self) -> dict[str, Any]:
        """Return the counts and the loop's status as plain values, for a status page.

        Returns:
            Counts of requests and rows, the cost of all audits under ``"spent"`` in the cascade's
            units, and the result of :func:`status_of` under ``"loop"``.
        """
        audit = self.sampler
        return {
            "share": audit.share,
            "requests": audit.requests,
            "audited": self.audited,
            "uncovered": audit.uncovered,
            "spent": audit.spent,
            "written": self.written,
            "seen": self.seen,
            "outdated": self.outdated,
            "waiting": max((each.waiting for each in self._workers), default=0),
            "unlabelled": 0 if self._pending is None else len(self._pending),
            "failed": self.failed,
            "lost": self.lost,
            "loop": None if self.loop is None else status_of(self.loop),
        }

    def close(self, timeout: float | None = None) -> None:
        """Work off the rows that wait, and end both threads; the log stays open.

        Args:
            timeout: The number of seconds to wait for each thread; rows left then are lost, and
                counted.
        """
        with self._lock:
            closing, self._closing = self._closing, True
        if not closing:
            for worker in self._workers:
                self._count_lost(worker.close(timeout))

    def _enqueue(self, request: str, row: AuditRow) -> bool:
        """Put a row into all queues; return whether there was room in each."""
        with self._lock:
            workers = [] if self._closing else self._workers
            item = _Item(request, row, self._match_label)
            taken = [worker.put(item) for worker in workers]  # each has its own room
            is_taken = not self._closing and all(taken)
            self.lost += not is_taken
            return is_taken

    def _row_lost(self, reason: str) -> None:
        """Count a row that was lost, and report the reason."""
        self._count_lost(1)
        self._report_failure(reason)

    def _count_lost(self, count: int) -> None:
        """Count rows that were lost."""
        with self._lock:
            self.lost += count

    def _write(self, log: AuditLog, item: _Item) -> None:
        """Add a row to the log."""
        row = item.with_right_label()
        log.add(row if self._conceal is None else row.concealed(self._conceal))
        self.written += 1

    def _update(self, loop: Loop, item: _Item) -> None:
        """Pass a row to the loop, if its right answer is known."""
        row = item.with_right_label()
        if self._spec.target == "label" and row.label is None:
            return
        if loop.change is not None and row.number < loop.change:
            self.outdated += 1  # a policy for the traffic since must not be certified on it
            return
        trace = trace_of_rows(self._spec, [row], {})
        # Audits do not end in the order in which they began.
        loop.update(trace, [max(row.number, loop.number + 1)], [item.request])
        self.seen += 1


class _Item:
    """An audited row in the queues of both threads; the first one matches its label."""

    def __init__(
        self,
        request: str,
        row: AuditRow,
        match_label: Callable[[str, Sequence[str | None]], str] | None,
    ) -> None:
        self.request = request
        self._row, self._match_label = row, match_label
        self._lock = threading.Lock()

    def with_right_label(self) -> AuditRow:
        """Return the row; its label is the prediction that is right, if one is."""
        with self._lock:
            row = self._row
            if self._match_label is not None and row.label is not None:
                predictions = [answer.prediction for answer in row.answers.values()]
                label = self._match_label(row.label, predictions)
                self._row, self._match_label = dataclasses.replace(row, label=label), None
            return self._row


class PendingLabels:
    """Joins rows and labels by the request's id; a label may come before the row.

    The oldest requests are dropped when there are too many.

    >>> pending = PendingLabels(size=100)
    >>> pending.expect("request-1")
    >>> pending.label("request-2", "B")
    (False, None)

    Args:
        size: The number of requests that may wait.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._expected: OrderedDict[str, AuditRow | str | None] = OrderedDict()
        """By id: a row that waits, a label that came first, or neither."""

    def __len__(self) -> int:
        return len(self._expected)

    def __contains__(self, request: object) -> bool:
        return request in self._expected

    def expect(self, request: str) -> None:
        """Record that a request is being audited."""
        self._expected[request] = None
        while len(self._expected) > self._size:
            self._expected.popitem(last=False)

    def add(self, request: str, row: AuditRow) -> AuditRow:
        """Take an audited row; return it, with its label if that came first."""
        found = self._expected.get(request)
        if row.label is None and isinstance(found, str):
            row = dataclasses.replace(row, label=found)
        if row.label is not None:
            self.forget(request)
        elif request in self._expected:
            self._expected[request] = row
        return row

    def label(self, request: str, label: str) -> tuple[bool, AuditRow | None]:
        """Take a label; return whether it is expected, and its row if that came first."""
        row = self._expected.get(request)
        if request not in self._expected or isinstance(row, str):
            return False, None
        if row is None:
            self._expected[request] = label
            return True, None
        del self._expected[request]
        return True, dataclasses.replace(row, label=label)

    def forget(self, request: str) -> None:
        """Drop a request whose audit failed, or whose label is known."""
        self._expected.pop(request, None)
