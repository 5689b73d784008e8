"""``ttamer drift``: the loop as a job that is run now and then on a decision log.

What the job has read, the policy that it began with and every fit are kept in one SQLite file
beside the policy. Each run adds the rows that are new, in the order in which they became complete,
and runs the loop over all rows again: the same rows give the same events, so a run that was killed
loses nothing, and the tests go on as if they had never stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ttamer._checks import counted
from ttamer._files import atomic_write
from ttamer.artefact.file import open_artefact, save
from ttamer.drift.audits import AuditLog, AuditRow, NodeAnswer, trace_of_rows
from ttamer.drift.loop import CertifiedServing, Event, Loop, LoopSettings, Serving, serving_of
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.decisions import LoggedDecisions, read_decisions
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class WatchResult:
    """What a run of the job found."""

    rows: int
    """The number of audited rows that were tested, in all runs."""
    waiting: int
    """The number of rows that are still needed as a reference; then nothing is tested."""
    events: tuple[Event, ...]
    """The events of the loop that are new."""
    state: str
    """The state of the loop."""
    progress: dict[str, float]
    """How near each test is to an alarm, from 0 to 1."""
    serving: str
    """The policy that should serve."""
    replaced: bool
    """Whether the file was replaced."""
    is_current: bool
    """Whether the file has the policy that should serve."""

    def __str__(self) -> str:
        if self.waiting:
            return f"waiting for {counted(self.waiting, 'more audited row')} as a reference"
        tests = ", ".join(f"{name} {value:.0%}" for name, value in self.progress.items())
        lines = [
            *map(str, self.events),
            f"{self.state} after {counted(self.rows, 'audited row')}; towards an alarm: {tests}",
        ]
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
    reference: Trace | None = None,
    replace: bool = False,
    state: str | os.PathLike[str] | None = None,
    refit: Callable[[Trace], FittedLadder] = fit,
) -> WatchResult:
    """Test a policy on the audited rows of a decision log; re-fit, certify, and swap or fall back.

    ::

        print(watch("decisions.jsonl", "policy.ttamer", LoopSettings(0.05), replace=True))

    Args:
        log: The decision log of the server.
        policy: The file of the ladder that it serves.
        settings: The promise, and how many rows the loop waits for.
        reference: Rows that the ladder was not fitted to. By default the first ``refit_rows``
            audited rows of the log that this policy decided.
        replace: Whether to write the policy that should serve into the file.
        state: The file of the job; by default the policy's name with ``.drift`` after it. Another
            policy in the file begins anew.
        refit: The function from rows to a ladder.

    Returns:
        The new events, and what should serve.

    Raises:
        TTamerError: If a file cannot be read or written, or the policy is no ladder.
    """
    policy, decisions = Path(policy), read_decisions(log)
    content = _content(policy)
    with AuditLog(state or f"{policy}.drift", decisions.trace.spec) as base:
        if _digest(content) not in (base.kept("installed"), base.kept("next")):
            base.clear()  # the first run, or an operator's policy
            base.keep("first", content)
            base.keep("installed", _digest(content))
        job = _Job(base, policy, settings, refit)
        job.add(decisions)
        return job.run(reference, replace=replace)


class _Job:
    """One run."""

    batch_rows = 20  # always the same rows at once, however often the job is run

    def __init__(
        self,
        base: AuditLog,
        policy: Path,
        settings: LoopSettings,
        refit: Callable[[Trace], FittedLadder],
    ) -> None:
        self._base, self._policy, self._settings, self._fit = base, policy, settings, refit
        self._first, self._version = _opened(base.kept("first") or b"")

    def add(self, decisions: LoggedDecisions) -> None:
        """Keep the audited rows that are complete, and known to be right or wrong."""
        trace, former = decisions.trace, self._base.rows_after(-1)
        decided = [k for k, name in enumerate(decisions.versions) if name == self._version]
        begin = decided[0] if decided else len(trace)
        begin = 0 if former else begin  # the log may have been rotated since
        is_audited = ~np.isnan(decisions.drawn) & trace.answered.all(axis=1)
        is_audited &= ~np.isnan(trace.loss).any(axis=1)
        keys = {(row.request, row.time) for row in former}
        earliest = min((row.time for row in former), default=-1.0)
        number = max((row.number for row in former), default=-1)
        loss = 1 - trace.loss
        for row in (np.flatnonzero(is_audited[begin:]) + begin).tolist():
            request, time = decisions.requests[row], float(decisions.times[row])
            if (request, time) in keys or time < earliest:
                continue
            number += 1
            answers = {
                name: NodeAnswer(
                    float(trace.confidence[row, node]),
                    _text(trace, row, node),
                    float(trace.costs[row, node]),
                    float(loss[row, node]),
                )
                for node, name in enumerate(trace.names)
            }
            prompt = None if trace.prompt is None else trace.prompt[row]
            drawn = float(decisions.drawn[row])
            self._base.add(AuditRow(number, time, drawn, answers, None, {}, request, prompt))

    def run(self, reference: Trace | None, *, replace: bool) -> WatchResult:
        """Run the loop over all rows that are kept."""
        rows, settings, spec = self._base.rows_after(-1), self._settings, self._base.spec
        if reference is None:
            count = settings.refit_rows
            if len(rows) < count:
                return WatchResult(
                    0, count - len(rows), (), "watching", {}, str(self._first), False, True
                )
            reference, rows = trace_of_rows(spec, rows[:count]), rows[count:]
        installs: list[tuple[int, Serving]] = []
        loop = Loop(
            serving_of(self._first, reference, settings),
            settings,
            swap=lambda serving: installs.append((len(loop.events), serving)),
            refit=self._refit,
        )
        times = {row.number: row.time for row in rows}
        for begin in range(0, len(rows) - self.batch_rows + 1, self.batch_rows):
            batch = rows[begin : begin + self.batch_rows]
            if loop.change is not None:  # labels of rows from before a change may come late
                batch = [row for row in batch if row.time >= times[loop.change]]
            if batch:
                numbers = [row.number for row in batch]
                keys = [row.request or row.number for row in batch]
                loop.update(trace_of_rows(spec, batch), numbers, keys)
        reported = int(self._base.kept("events") or b"0")
        wanted = f"{installs[-1][0]}" if installs else ""
        is_current = (self._base.kept("serving") or b"").decode() == wanted
        replaced = replace and not is_current
        if replaced:
            self._install(loop.serving, wanted)
        self._base.keep("events", str(len(loop.events)).encode())
        return WatchResult(
            loop.audited, 0, tuple(loop.events)[reported:], loop.state,
            {test.test: test.progress for test in loop.monitor.evidence()},
            str(loop.serving), replaced, is_current or replaced,
        )  # fmt: skip

    def _install(self, serving: Serving, name: str) -> None:
        """Put a policy into the file."""
        if isinstance(serving, CertifiedServing):
            policy: Any = serving.ladder.with_holdout(serving.reference)
        else:
            policy = serving.policy
        content = _packed(policy)
        # The digest first: where the run is killed next, the file is not taken for an operator's.
        self._base.keep("next", _digest(content))
        with atomic_write(self._policy, durable=True) as part:
            part.write_bytes(content)
        self._base.keep("installed", _digest(content))
        self._base.keep("serving", name.encode())

    def _refit(self, rows: Trace) -> FittedLadder:
        """Fit, or return the fit of a former run to the same rows."""
        name = f"fit {rows.digest}"
        content = self._base.kept(name)
        if content is not None:
            return _opened(content)[0]
        ladder = self._fit(rows)
        self._base.keep(name, _packed(ladder))
        return ladder


def _text(trace: Trace, row: int, node: int) -> str | None:
    code = -1 if trace.prediction is None else int(trace.prediction[row, node])
    return None if code < 0 else trace.classes[code]


def _digest(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()


def _content(policy: Path) -> bytes:
    try:
        return policy.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{policy}: cannot be read: {error.strerror}") from None


def _packed(policy: Any) -> bytes:
    with TemporaryDirectory() as folder:
        save(policy, Path(folder, "policy.ttamer"))
        return Path(folder, "policy.ttamer").read_bytes()


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
