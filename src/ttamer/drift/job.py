"""``ttamer drift``: the loop as a job that is run now and then on a decision log.

What the job has read, the policy that it began with and every fit are kept in one SQLite file
beside the policy. Each run adds the rows that are new, in the order in which they became complete,
and runs the loop over all rows again: the same rows give the same events, so a run that was killed
loses nothing, and the tests go on as if they had never stopped.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ttamer._checks import counted
from ttamer._files import atomic_write
from ttamer.artefact.file import open_artefact, pack
from ttamer.drift.audits import AuditedRow, AuditedRows
from ttamer.drift.loop import CertifiedServing, Event, Loop, LoopSettings, Serving, serving_of
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.decisions import LoggedDecisions, decisions_of, read_decisions
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class WatchResult:
    """What a run of the job found."""

    rows: int
    """The audited rows that were tested, in all runs."""
    waiting: int
    """The rows that are still needed as a reference; then nothing is tested."""
    events: tuple[Event, ...]
    """The new events of the loop."""
    state: str
    progress: dict[str, float]
    """How near each test is to an alarm, from 0 to 1."""
    serving: str
    """The policy that should serve."""
    replaced: bool
    is_current: bool
    """Whether the file has the policy that should serve."""

    def __str__(self) -> str:
        if self.waiting:
            return f"waiting for {counted(self.waiting, 'more audited row')} as a reference"
        tests = ", ".join(f"{name} {value:.0%}" for name, value in self.progress.items())
        summary = f"{self.state} after {counted(self.rows, 'audited row')}; towards an alarm: "
        lines = [*map(str, self.events), summary + tests]
        if self.replaced:
            lines.append(f"replaced: {self.serving} serves from now on")
        elif not self.is_current:
            lines.append(f"{self.serving} should serve: run with --replace")
        return "\n".join(lines)


def watch(
    log: str | os.PathLike[str],
    policy: str | os.PathLike[str],
    settings: LoopSettings,
    *,
    reference: Trace | str | os.PathLike[str] | None = None,
    replace: bool = False,
    refit: Callable[[Trace], FittedLadder] = fit,
) -> WatchResult:
    """Test a policy on the audited rows of a decision log; re-fit, certify, and swap or fall back.

    ::

        print(watch("decisions.jsonl", "policy.ttamer", LoopSettings(0.05), replace=True))

    Args:
        log: The decision log of the server.
        policy: The file of the ladder that it serves.
        settings: The promise, and how many rows the loop waits for.
        reference: Rows that the ladder was not fitted to, or their file. By default the first
            ``refit_rows`` audited rows of the log that this policy decided.
        replace: Whether to write the policy that should serve into the file.
        refit: The function from rows to a ladder.

    Returns:
        The new events, and what should serve. ``POLICY.drift`` keeps what was read; another policy
        in the file begins anew.

    Raises:
        TTamerError: If a file cannot be read or written, or the policy is no ladder.
    """
    policy, decisions = Path(policy), read_decisions(log)
    if reference is not None and not isinstance(reference, Trace):
        reference = Trace.read(reference, decisions.trace.spec)
    try:
        content = policy.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{policy}: cannot be read: {error.strerror}") from None
    with AuditedRows(f"{policy}.drift") as rows:
        if _digest(content) not in (rows.kept("installed"), rows.kept("next")):
            _opened(content)  # refused before what is kept of the former one is deleted
            rows.clear()  # the first run, or an operator's policy
            rows.keep("first", content)
            rows.keep("installed", _digest(content))
        job = _Job(rows, policy, settings, refit, decisions)
        job.add_new()
        return job.run(reference, replace=replace)


class _Job:
    """One run."""

    batch_rows = 20  # always the same rows at once, however often the job is run

    def __init__(
        self,
        rows: AuditedRows,
        policy: Path,
        settings: LoopSettings,
        refit: Callable[[Trace], FittedLadder],
        decisions: LoggedDecisions,
    ) -> None:
        self._rows, self._policy, self._settings, self._fit = rows, policy, settings, refit
        self._decisions, self._spec = decisions, decisions.trace.spec
        self._first, self._version = _opened(rows.kept("first"))

    def add_new(self) -> None:
        """Keep the audited rows that are complete, and known to be right or wrong."""
        decisions, trace = self._decisions, self._decisions.trace
        is_complete = ~np.isnan(decisions.drawn) & trace.answered.all(axis=1)
        is_complete &= ~np.isnan(trace.loss).any(axis=1)
        earliest = min((row.time for row in self._rows), default=None)
        if earliest is None:  # later the log may have been rotated
            decided = np.array(decisions.versions) == self._version
            earliest = decisions.times[decided].min(initial=np.inf)
        for row in np.flatnonzero(is_complete & (decisions.times >= earliest)).tolist():
            self._rows.add(decisions.lines[row])

    def run(self, reference: Trace | None, *, replace: bool) -> WatchResult:
        """Run the loop over all rows that are kept."""
        rows, settings = list(self._rows), self._settings
        if reference is None:
            count = settings.refit_rows
            if len(rows) < count:
                missing, first = count - len(rows), str(self._first)
                return WatchResult(0, missing, (), "watching", {}, first, False, True)
            reference, rows = self._trace(rows[:count]), rows[count:]
        loop = Loop(serving_of(self._first, reference, settings), settings, refit=self._refit)
        times = {row.number: row.time for row in rows}
        for begin in range(0, len(rows) - self.batch_rows + 1, self.batch_rows):
            batch = rows[begin : begin + self.batch_rows]
            if loop.change is not None:  # labels of rows from before a change may come late
                batch = [row for row in batch if row.time >= times[loop.change]]
            if batch:
                numbers, keys = [row.number for row in batch], [row.request for row in batch]
                loop.update(self._trace(batch), numbers, keys)
        reported = int(self._rows.kept("events") or b"0")
        changes = [n for n, event in enumerate(loop.events) if event.kind in ("fallback", "swap")]
        wanted = f"{changes[-1]}" if changes else ""
        is_current = self._rows.kept("serving").decode() == wanted
        replaced = replace and not is_current
        if replaced:
            self._install(loop.serving, wanted)
        self._rows.keep("events", str(len(loop.events)).encode())
        return WatchResult(
            loop.audited,
            0,
            tuple(loop.events[reported:]),
            loop.state,
            {test.test: test.progress for test in loop.monitor.evidence()},
            str(loop.serving),
            replaced,
            is_current or replaced,
        )

    def _trace(self, rows: Sequence[AuditedRow]) -> Trace:
        spec = self._spec
        is_graded = spec.loss_bound is not None and not spec.mistakes
        trace = decisions_of([row.line for row in rows], spec, is_graded=is_graded).trace
        # Every node answered on each of them: no row stands for others.
        return dataclasses.replace(trace, chance=None)

    def _install(self, serving: Serving, name: str) -> None:
        """Put a policy into the file."""
        if isinstance(serving, CertifiedServing):
            policy: Any = serving.ladder.with_holdout(serving.reference)
        else:
            policy = serving.policy
        content = pack(policy, {})
        # The digest first: where the run is killed next, the file is not taken for an operator's.
        self._rows.keep("next", _digest(content))
        with atomic_write(self._policy, durable=True) as part:
            part.write_bytes(content)
        self._rows.keep("installed", _digest(content))
        self._rows.keep("serving", name.encode())

    def _refit(self, rows: Trace) -> FittedLadder:
        """Fit, or return the fit of a former run to the same rows."""
        name = f"fit {rows.digest}"
        content = self._rows.kept(name)
        if not content:
            content = pack(self._fit(rows), {})
            self._rows.keep(name, content)
        return _opened(content)[0]


def _digest(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()


def _opened(content: bytes) -> tuple[FittedLadder, str]:
    """Return a ladder, and the version that the server calls it."""
    with TemporaryDirectory() as folder:
        Path(folder, "policy.ttamer").write_bytes(content)
        artefact = open_artefact(Path(folder, "policy.ttamer"))
    if not isinstance(artefact.policy, FittedLadder):
        raise ArgumentError(
            "the file holds one policy, and the loop chooses among those of a ladder: put the "
            "ladder that ttamer fit wrote there"
        )
    return artefact.policy, str(artefact.facts["sha256"])[:16]
