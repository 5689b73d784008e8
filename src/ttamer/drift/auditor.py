"""Audits beside the traffic: which requests, and two threads that keep the rows and run the loop.

A request is audited if a hash of its id and a seed, as a number from 0 to 1, is below the current
chance: the draw does not depend on the content of the request. The chance is the stated share while
the budget allows it, and falls in proportion to what remains as the budget runs low. It is kept
with every row, so that rows can be weighted by its inverse.

A server draws for every request, asks the other nodes outside the request where it is audited, and
passes on the answers of all nodes. Nothing here waits or raises in a request: rows that cannot be
taken are counted. While the loop re-fits, rows wait for it in memory; they are in the log already.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from ttamer.cascade import CascadeSpec
from ttamer.drift.audits import AuditLog, AuditRow, NodeAnswer, failure_text, trace_of_rows
from ttamer.drift.loop import Loop
from ttamer.errors import ArgumentError


@dataclass(frozen=True)
class Budget:
    """The largest cost of audits, in the cascade's units.

    >>> Budget(per_hour=500.0).total
    inf

    Raises:
        ArgumentError: Where a limit is not above 0.
    """

    per_hour: float = math.inf
    total: float = math.inf

    def __post_init__(self) -> None:
        if not (self.per_hour > 0 and self.total > 0):
            raise ArgumentError(
                f"a budget must be above 0, not {self.per_hour} per hour and {self.total} in total"
            )


class Draw(NamedTuple):
    """The result of the draw for one request."""

    audited: bool
    """Whether the request is audited."""
    chance: float
    """The chance with which it was drawn."""


class AuditSampler:
    """Draws the requests that are audited.

    >>> audit = AuditSampler(0.25, seed=7)
    >>> sum(audit.draw(f"request-{k}", seconds=0.0).audited for k in range(1000))
    246

    Args:
        share: The share of requests that is audited while the budget allows it.
        cost: The largest expected cost of one audit: that of asking every node.
        budget: The largest cost of audits. After a quiet hour, the budget of one hour may be spent
            at once.
        seed: The seed of the draws.

    Raises:
        ArgumentError: Where an argument is out of range, or the budget does not allow one audit.
    """

    def __init__(
        self, share: float, *, cost: float = 0.0, budget: Budget | None = None, seed: int = 0
    ) -> None:
        if not 0 < share <= 1:
            raise ArgumentError(f"share is {share!r}; it must be above 0 and at most 1")
        if not 0 <= cost < math.inf:
            raise ArgumentError(f"cost is {cost!r}; it must be finite and not negative")
        self.share, self.cost, self.seed = share, cost, seed
        self.budget = budget or Budget()
        for what, limit in (("per hour", self.budget.per_hour), ("in total", self.budget.total)):
            if limit <= cost:
                raise ArgumentError(
                    f"the budget is {limit:g} {what} and one audit may cost {cost:g}; allow more"
                )
        self.requests = 0
        """The number of requests drawn for."""
        self.uncovered = 0
        """The number of requests that came when the budget was spent; no estimate covers them."""
        self.spent = 0.0
        """The cost of all audits, in the cascade's units."""
        self._hour = self.budget.per_hour
        self._last_time: float | None = None

    def draw(self, request: str | int, seconds: float) -> Draw:
        """Draw whether a request is audited, and reserve the expected cost if it is.

        Args:
            request: What the draw is made of, such as the id of the request.
            seconds: The time; it never decreases.

        Returns:
            Whether the request is audited, and with which chance.
        """
        chance = self._chance(seconds)
        self.requests += 1
        self.uncovered += chance == 0
        digest = blake2b(f"{self.seed}:{request}".encode(), digest_size=7).digest()
        audited = (int.from_bytes(digest) >> 3) / 2**53 < chance
        if audited:
            self._spend(self.cost)
        return Draw(audited, chance)

    def settle(self, cost: float) -> None:
        """Replace the reserved cost of one audit by its actual cost.

        Args:
            cost: The actual cost, in the cascade's units.
        """
        self._spend(cost - self.cost)

    def _spend(self, cost: float) -> None:
        self.spent += cost
        self._hour -= cost

    def _chance(self, seconds: float) -> float:
        budget = self.budget
        if (
            self._last_time is not None
            and seconds > self._last_time
            and math.isfinite(budget.per_hour)
        ):
            gained = (seconds - self._last_time) / 3600 * budget.per_hour
            self._hour = min(budget.per_hour, self._hour + gained)
        self._last_time = seconds if self._last_time is None else max(seconds, self._last_time)
        share = 1.0
        for unspent, limit in (
            (self._hour, budget.per_hour),
            (budget.total - self.spent, budget.total),
        ):
            if math.isfinite(limit):
                share = min(share, max(0.0, (unspent - self.cost) / (limit - self.cost)))
        # The stated share holds until half of the budget is spent.
        return self.share * min(1.0, 2 * share)


class Auditor:
    """Takes audited rows and labels from a server.

    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> with AuditLog(None, spec) as log:
    ...     auditor = Auditor(spec, AuditSampler(1.0), log)
    ...     drawn, number = auditor.draw("request-1")
    ...     answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    ...     taken = auditor.add("request-1", number, drawn.chance, answers)
    ...     auditor.close()
    ...     taken, len(log)
    (True, 1)

    Args:
        spec: The cascade.
        sampler: Draws the requests that are audited.
        log: An open log that keeps the rows.
        loop: The drift loop, or ``None``. It takes rows whose right answer is known: all rows for
            ``target = "last"``, otherwise those with a label or verdicts.
        most_waiting: The number of rows that may wait for each thread, and of labels for a row.
        match_label: Called with a label and the predictions of its row; returns the prediction that
            is right, or the label itself. By default a label is compared as text.
        conceal: Called with each answer and label before it is written to the log; returns the text
            to write instead.
        failed: Called with one line of text for each row, or step of the loop, that failed.
        clock: The time in seconds since 1970.
    """

    def __init__(
        self,
        spec: CascadeSpec,
        sampler: AuditSampler,
        log: AuditLog,
        *,
        loop: Loop | None = None,
        most_waiting: int = 10_000,
        match_label: Callable[[str, Sequence[str | None]], str] | None = None,
        conceal: Callable[[str], str] | None = None,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.sampler, self.log, self.loop = sampler, log, loop
        self.audited = self.failed = self.lost = 0
        """The number of requests drawn to be audited, of those in which a node failed, and of rows
        that were lost."""
        self.written = self.seen = 0
        """The number of rows in the log, and of rows that the loop has taken."""
        self.outdated = 0
        """The number of rows, most often with late labels, from before the last change of traffic:
        the loop does not take them."""
        self._spec, self._report_failure, self._clock = spec, failed, clock
        self._match_label, self._conceal = match_label, conceal
        self._most_waiting = most_waiting
        # Requests that wait for their row or their label, with the row's predictions as they are.
        self._pending: OrderedDict[str, list[str | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = False
        # Each thread has its own queue: the log does not wait for a loop that fits.
        self._rows = _Worker(self._write, self, "ttamer audits, log")
        self._known = _Worker(self._update, self, "ttamer audits, loop")

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
            if drawn.audited and request in self._pending:
                self.sampler.settle(0.0)  # an id used twice would get the label of the first
                drawn = drawn._replace(audited=False)
            if drawn.audited:
                self.audited += 1
                if self._spec.target == "label":
                    self._pending[request] = []
                    while len(self._pending) > self._most_waiting:
                        self._pending.popitem(last=False)
            return drawn, self.sampler.requests - 1

    def add(
        self,
        request: str,
        number: int,
        chance: float,
        answers: Mapping[str, NodeAnswer],
        *,
        spent: float | None = None,
        inputs: Mapping[str, float] | None = None,
        prompt: str | None = None,
    ) -> bool:
        """Take the answers to an audited request; never waits, never raises.

        Args:
            request: The id of the request.
            number: Its number in the traffic.
            chance: The chance with which it was drawn.
            answers: The answer of every node.
            spent: The cost of the audit itself, by default the cost of all answers.
            inputs: Numbers known before any node was asked.
            prompt: The prompt, or what stands in its place.

        Returns:
            Whether there was room for the row.
        """
        row = AuditRow(number, self._clock(), chance, dict(answers), None, inputs or {}, request,
                       prompt)  # fmt: skip
        with self._lock:
            total = sum(a.cost for a in answers.values()) if spent is None else spent
            self.sampler.settle(total)
            if request in self._pending:
                self._pending[request] = [a.prediction for a in answers.values()]
                if row.is_known:  # a judge has decided
                    del self._pending[request]
            is_taken = not self._closing and self._rows.put(row)
            self.lost += not is_taken
        return is_taken

    def fail(self, request: str, spent: float = 0.0) -> None:
        """Record that a node failed during an audit.

        Args:
            request: The id of the request.
            spent: The cost of the audit.
        """
        with self._lock:
            self.sampler.settle(spent)
            self.failed += 1
            self._pending.pop(request, None)

    def label(self, request: str, label: str) -> bool:
        """Keep the right answer to a request; it is in the log when this returns.

        It may wait for the disk: call it in a thread.

        Args:
            request: The id of the request.
            label: The right answer.

        Returns:
            Whether the label is used: the request was audited, and has no label yet.
        """
        with self._lock:
            if self._spec.target != "label" or self._closing:
                return False
            predictions = self._pending.get(request)
        if self._match_label is not None and predictions:
            label = self._match_label(label, predictions)
        text = label if self._conceal is None else self._conceal(label)
        is_expected = predictions is not None
        row = self.log.label(request, text, is_expected=is_expected)
        with self._lock:
            self._pending.pop(request, None)
            if row is not None and self.loop is not None:
                self.lost += not self._known.put(row)
        return is_expected or row is not None

    def status(self) -> dict[str, Any]:
        """Return the counts and the loop's status as plain values.

        Returns:
            Counts of requests and rows, the cost of all audits under ``"spent"`` in the cascade's
            units, and the result of :meth:`Loop.status` under ``"loop"``.
        """
        counts = ("audited", "written", "seen", "outdated", "failed", "lost")
        return {
            "share": self.sampler.share,
            "requests": self.sampler.requests,
            "uncovered": self.sampler.uncovered,
            "spent": self.sampler.spent,
            **{name: getattr(self, name) for name in counts},
            "unlabelled": len(self._pending),
            "loop": None if self.loop is None else self.loop.status(),
        }

    def close(self, timeout: float | None = None) -> None:
        """Work off the rows that wait, and end both threads; the log stays open.

        Args:
            timeout: The number of seconds to wait for each thread; rows that then remain are lost
                to the loop, or to the log, and counted.
        """
        with self._lock:
            closing, self._closing = self._closing, True
        if not closing:
            self._count_lost(self._rows.close(timeout))
            self._count_lost(self._known.close(timeout))

    def _count_lost(self, count: int, reason: str = "") -> None:
        """Count rows that were lost, and report why."""
        with self._lock:
            self.lost += count
        if reason:
            self._report_failure(reason)

    def _write(self, row: AuditRow) -> None:
        """Add a row to the log; pass it on if its right answer is known."""
        row = self.log.add(row if self._conceal is None else row.concealed(self._conceal))
        self.written += 1
        is_known = self._spec.target == "last" or row.is_known
        if self.loop is not None and is_known and not self._known.put(row):
            self._count_lost(1)

    def _update(self, row: AuditRow) -> None:
        """Pass a row to the loop."""
        assert self.loop is not None  # noqa: S101 - rows are put where there is one
        if feed(self.loop, self._spec, row):
            self.seen += 1
        else:
            self.outdated += 1


def feed(loop: Loop, spec: CascadeSpec, row: AuditRow) -> bool:
    """Pass an audited row to a loop; return whether it was from after the last change.

    A policy for the traffic since then must not be certified on earlier rows.
    """
    if loop.change is not None and row.number < loop.change:
        return False
    # Audits do not end in the order in which they began.
    number = max(row.number, loop.number + 1)
    loop.update(trace_of_rows(spec, [row]), [number], [row.request or number])
    return True


class _Worker:
    """A queue and a thread that works it off, so that who adds a row never waits."""

    def __init__(self, work: Callable[[AuditRow], None], auditor: Auditor, name: str) -> None:
        self._work, self._auditor = work, auditor
        self._items: queue.SimpleQueue[AuditRow | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, row: AuditRow) -> bool:
        """Add a row; return whether there was room."""
        has_room = self._items.qsize() < self._auditor._most_waiting
        if has_room:
            self._items.put(row)
        return has_room

    def close(self, timeout: float | None) -> int:
        """End the thread once the queue is empty; return the number of rows that remain."""
        count = 0
        self._items.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():  # the current row is its last
            with suppress(queue.Empty):
                while True:
                    count += self._items.get_nowait() is not None
            self._items.put(None)
        return count

    def _run(self) -> None:
        while (row := self._items.get()) is not None:
            try:
                self._work(row)
            except Exception as error:  # the thread must survive any failure
                with suppress(Exception):
                    self._auditor._count_lost(1, f"an audited row was lost: {failure_text(error)}")
