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
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ttamer._checks import counted
from ttamer._files import atomic_write
from ttamer.artefact.file import open_artefact, pack, unpack
from ttamer.artefact.records import restore
from ttamer.cascade import CascadeSpec
from ttamer.drift.audits import AuditedRow, AuditedRows
from ttamer.drift.loop import Event, Loop, LoopSettings, serving_of
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.decisions import LoggedDecisions, decisions_of, read_decisions
from ttamer.trace.trace import Trace


@dataclass(frozen=True)
class WatchResult:
    """What a run of the job found."""

    # The audited rows that were tested, in all runs
    rows: int
    # The rows that are still needed as a reference; then nothing is tested
    waiting: int
    # The new events of the loop
    events: tuple[Event, ...]
    state: str
    # How near each test is to an alarm, from 0 to 1
    progress: dict[str, float]
    # The policy that should serve
    serving: str
    replaced: bool
    # Whether the file has the policy that should serve
    is_current: bool

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
    with AuditedRows(f"{policy}.drift") as kept:
        if _digest(content) not in (kept.kept("installed"), kept.kept("next")):
            open_artefact(policy)  # refused before what is kept of the former one is deleted
            _opened(content)
            kept.clear()  # the first run, or an operator's policy
            kept.keep("first", content)
            kept.keep("installed", _digest(content))
        ladder, version = _opened(kept.kept("first"))
        _add_new(kept, decisions, version)
        rows, spec = list(kept), decisions.trace.spec
        if reference is None:
            missing = settings.refit_rows - len(rows)
            if missing > 0:
                return WatchResult(0, missing, (), "watching", {}, str(ladder), False, True)
            reference = _trace_of(rows[: settings.refit_rows], spec)
            del rows[: settings.refit_rows]
        loop = Loop(
            serving_of(ladder, reference, settings), settings, refit=partial(_refit, kept, refit)
        )
        _feed(loop, rows, spec)
        reported = int(kept.kept("events") or b"0")
        changes = [n for n, event in enumerate(loop.events) if event.kind in ("fallback", "swap")]
        wanted = str(changes[-1]).encode() if changes else b""
        is_current = kept.kept("serving") == wanted
        replaced = replace and not is_current
        if replaced:
            _install(kept, policy, loop)
            kept.keep("serving", wanted)
        kept.keep("events", str(len(loop.events)).encode())
    return WatchResult(
        loop.audited,
        0,
        tuple(loop.events[reported:]),
        loop.state,
        loop.monitor.progress,
        loop.described,
        replaced,
        is_current or replaced,
    )


def _add_new(kept: AuditedRows, decisions: LoggedDecisions, version: str) -> None:
    """Keep the audited rows that are complete, and known to be right or wrong."""
    trace = decisions.trace
    is_complete = ~np.isnan(decisions.drawn) & trace.answered.all(axis=1)
    is_complete &= ~np.isnan(trace.loss).any(axis=1)
    earliest = min((row.time for row in kept), default=None)
    if earliest is None:  # later the log may have been rotated
        decided = np.array(decisions.versions) == version
        earliest = decisions.times[decided].min(initial=np.inf)
    for row in np.flatnonzero(is_complete & (decisions.times >= earliest)).tolist():
        kept.add(decisions.lines[row])


def _feed(loop: Loop, rows: Sequence[AuditedRow], spec: CascadeSpec) -> None:
    """Give rows to a loop, always the same ones at once, however often the job is run."""
    size = 20
    times = {row.number: row.time for row in rows}
    for begin in range(0, len(rows) - size + 1, size):
        batch = rows[begin : begin + size]
        if loop.change is not None:  # labels of rows from before a change may come late
            batch = [row for row in batch if row.time >= times[loop.change]]
        if batch:
            numbers, keys = [row.number for row in batch], [row.request for row in batch]
            loop.update(_trace_of(batch, spec), numbers, keys)


def _trace_of(rows: Sequence[AuditedRow], spec: CascadeSpec) -> Trace:
    is_graded = spec.loss_bound is not None and not spec.mistakes
    trace = decisions_of([row.line for row in rows], spec, is_graded=is_graded).trace
    # Every node answered on each of them: no row stands for others.
    return dataclasses.replace(trace, chance=None)


def _install(kept: AuditedRows, policy: Path, loop: Loop) -> None:
    """Put the policy that serves into the file."""
    serving = loop.serving
    ladder = None if serving is None else serving.ladder.with_holdout(serving.reference)
    content = pack(ladder or loop.policy, {})
    # The digest first: where the run is killed next, the file is not taken for an operator's.
    kept.keep("next", _digest(content))
    with atomic_write(policy, durable=True) as part:
        part.write_bytes(content)
    kept.keep("installed", _digest(content))


def _refit(kept: AuditedRows, refit: Callable[[Trace], FittedLadder], rows: Trace) -> FittedLadder:
    """Fit, or return the fit of a former run to the same rows."""
    name = f"fit {rows.digest}"
    if not kept.kept(name):
        kept.keep(name, pack(refit(rows), {}))
    return _opened(kept.kept(name))[0]


def _digest(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()


def _opened(content: bytes) -> tuple[FittedLadder, str]:
    """Return a ladder, and the version that the server calls it."""
    record, arrays = unpack(content)
    if record.kind != "ladder" or record.fitted is None:
        raise ArgumentError(
            "the file holds one policy, and the loop chooses among those of a ladder: put the "
            "ladder that ttamer fit wrote there"
        )
    ladder: Any = restore(record, arrays)
    return ladder, record.sha256[:16]
