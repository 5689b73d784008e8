"""A rolling log of audited rows: Parquet segments that are whole or not there.

A folder holds segments, each an ordinary trace, and one journal. A row is a line in the journal as
soon as :meth:`AuditLog.add` returns; when there are enough, they are written as a segment under
another name, synced, renamed, and the journal is removed. Journal k belongs to segment k, so
whatever a crash leaves behind says what it is: a segment that is there makes its journal stale, a
name that ends in ``.tmp`` was never finished.

What a crash costs: after ``kill -9``, nothing that ``add`` has returned for; after a loss of power,
at most the last ``sync_rows`` rows. Readers see whole segments alone, so up to ``segment_rows``
rows come late to them. The oldest segments are removed as retention says.

Every row keeps the chance it had of being audited (``signal.audit_chance``), its number in the
traffic (``signal.audit_number``) and its time (``signal.audit_time``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ttamer.errors import ArgumentError, TraceError
from ttamer.fitted.signals import BOOKKEEPING
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.spec import CascadeSpec

__all__ = ["AuditLog", "AuditRow", "Retention", "Said", "Segment", "read_log", "segments"]

NUMBER, TIME, CHANCE = BOOKKEEPING
_NAME = re.compile(r"(\d{8})-(\d+)-(\d+)\.parquet")
_JOURNAL = re.compile(r"(\d{8})\.journal")
TRIES = 20
"""How often a reader starts again because retention removed what it was about to read."""


class Said(NamedTuple):
    """What a node said."""

    confidence: float
    prediction: str | None
    cost: float


@dataclass(frozen=True)
class AuditRow:
    """One audited request: what every node said."""

    number: int
    """Its place in the traffic."""
    time: float
    """Seconds since 1970."""
    chance: float
    """The chance it had of being audited."""
    said: Mapping[str, Said]
    label: str | None = None
    """The right answer, where it is known."""


@dataclass(frozen=True)
class Retention:
    """What is kept; the oldest segments go first, whole."""

    rows: int | None = None
    """At least so many, and less than a segment more."""
    bytes: int | None = None
    """At most so many, in segments."""
    seconds: float | None = None
    """No segment whose last row is older than this."""


class Segment(NamedTuple):
    """One file of the log."""

    path: Path
    number: int
    rows: int
    last: int
    """The time of its last row, in whole seconds since 1970."""


class AuditLog:
    """Writes audited rows into a folder. One at a time may; use it with ``with``."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        spec: CascadeSpec,
        *,
        segment_rows: int = 500,
        sync_rows: int = 50,
        retention: Retention | None = None,
    ) -> None:
        if segment_rows < 1 or sync_rows < 1:
            raise ArgumentError(
                f"a log needs segment_rows and sync_rows of 1 at least, not {segment_rows}, "
                f"{sync_rows}"
            )
        self.folder = Path(folder)
        self._spec = spec
        self._segment_rows, self._sync_rows = segment_rows, sync_rows
        self._retention = retention or Retention()
        self._waiting: list[AuditRow] = []
        self._unsynced = 0
        self._index = 0
        self._journal = self._lock = -1
        self.recovered = 0
        """Rows found in the journal of a log that was not closed."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        for unfinished in self.folder.glob("*.tmp"):
            unfinished.unlink()
        self._index = 1 + max((each.number for each in segments(self.folder)), default=0)
        for path in sorted(self.folder.iterdir()):
            if (found := _JOURNAL.fullmatch(path.name)) is None:
                continue
            if int(found[1]) < self._index:
                path.unlink()  # its segment is there
            else:
                self._index = int(found[1])
        path = self._journal_path()
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        self._waiting = [
            self._parsed(line, number)
            for number, line in enumerate(content[:whole].splitlines(), start=1)
        ]
        self.recovered = len(self._waiting)
        self._open_journal(whole)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            for file in (self._journal, self._lock):
                if file >= 0:
                    os.close(file)
            self._journal = self._lock = -1

    @property
    def waiting(self) -> int:
        """Rows in the journal, not yet in a segment."""
        return len(self._waiting)

    def add(self, row: AuditRow) -> None:
        """Take one row. Once this returns, the end of this process does not lose it."""
        if self._journal < 0:
            raise ArgumentError(f"{self.folder}: the log is not open; use it with `with`")
        line = self._line(row)
        try:
            while line:
                line = line[os.write(self._journal, line) :]
            self._unsynced += 1
            if self._unsynced >= self._sync_rows:
                os.fsync(self._journal)
                self._unsynced = 0
        except OSError as error:
            raise TraceError(f"{self.folder}: cannot be written: {error.strerror}") from None
        self._waiting.append(row)
        if len(self._waiting) >= self._segment_rows:
            self.flush()

    def flush(self) -> None:
        """Write what waits as a segment, and remove what is too old."""
        if not self._waiting:
            return
        rows = self._waiting
        name = f"{self._index:08d}-{len(rows)}-{int(rows[-1].time)}.parquet"
        unfinished = self.folder / f"{name}.tmp"
        trace = _trace(self._spec, rows)
        try:
            from ttamer.trace.arrow import write_parquet

            write_parquet(trace, unfinished)
            _synced(unfinished)
            unfinished.replace(self.folder / name)
            _synced(self.folder)
        except OSError as error:
            raise TraceError(f"{self.folder}: cannot be written: {error.strerror}") from None
        os.close(self._journal)
        self._journal_path().unlink()
        self._waiting, self._unsynced = [], 0
        self._index += 1
        self._open_journal(0)
        self._retire(rows[-1].time)

    def _retire(self, now: float) -> None:
        kept = segments(self.folder)
        limits = self._retention
        sizes = [each.path.stat().st_size for each in kept]
        for k, each in enumerate(kept[:-1]):
            too_many = limits.rows is not None and sum(s.rows for s in kept[k + 1 :]) >= limits.rows
            too_large = limits.bytes is not None and sum(sizes[k:]) > limits.bytes
            too_old = limits.seconds is not None and each.last < now - limits.seconds
            if not (too_many or too_large or too_old):
                return
            each.path.unlink()

    def _line(self, row: AuditRow) -> bytes:
        names = self._spec.names
        if set(row.said) != set(names):
            raise ArgumentError(
                f"an audited row needs what every node said ({', '.join(names)}); there is "
                f"{', '.join(row.said) or 'nothing'}"
            )
        if not 0 < row.chance <= 1:
            raise ArgumentError(f"the chance of a row is {row.chance}; it is above 0, at most 1")
        said = [row.said[name] for name in names]
        if not all(math.isfinite(each.confidence) and each.cost >= 0 for each in said):
            raise ArgumentError("an audited row needs finite confidences, and no negative cost")
        plain = [row.number, row.time, row.chance, [list(each) for each in said], row.label]
        return json.dumps(plain, allow_nan=False).encode() + b"\n"

    def _open_journal(self, whole: int) -> None:
        path = self._journal_path()
        self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.truncate(self._journal, whole)  # a line cut short
        _synced(self.folder)

    def _parsed(self, line: bytes, number: int) -> AuditRow:
        try:
            place, time, chance, said, label = json.loads(line)
            known = [Said(*each) for each in said]
            row = AuditRow(place, time, chance, dict(zip(self._spec.names, known, strict=True)),
                           label)  # fmt: skip
            self._line(row)
        except (ValueError, TypeError):
            raise TraceError(
                f"{self._journal_path()}: line {number} is not a row of this cascade; move the "
                "file away to go on without it"
            ) from None
        return row

    def _journal_path(self) -> Path:
        return self.folder / f"{self._index:08d}.journal"


def segments(folder: str | os.PathLike[str]) -> list[Segment]:
    """Return the whole segments of a log, the oldest first."""
    found = [
        Segment(path, *(int(part) for part in name.groups()))
        for path in Path(folder).iterdir()
        if (name := _NAME.fullmatch(path.name)) is not None
    ]
    return sorted(found, key=lambda each: each.number)


def read_log(
    folder: str | os.PathLike[str], *, last: int | None = None, labelled: bool = False
) -> Trace:
    """Return the last so many rows of a log (default: all), from whole segments alone.

    With ``labelled`` only rows whose label is known, as ``target = "label"`` needs; else all of
    them, without labels. A row whose label came later stands in the log twice, and is read once.
    """
    for _ in range(TRIES):
        try:
            return _read(Path(folder), last, labelled=labelled)
        except FileNotFoundError:
            if not Path(folder).is_dir():
                break  # else retention was faster
    raise TraceError(f"{folder}: there is no log that could be read")


def _read(folder: Path, last: int | None, *, labelled: bool) -> Trace:
    parts: list[Trace] = []
    rows = 0
    read: set[tuple[float, float]] = set()
    for each in reversed(segments(folder)):
        if last is not None and rows >= last:
            break
        part = _read_one(each.path, labelled=labelled)
        if part is not None:
            part = part.take(_unread(part, read))
            parts.insert(0, part)
            rows += len(part)
    if not rows:
        what = "row with a label" if labelled else "row"
        raise TraceError(f"{folder}: there is no {what} in a whole segment yet; flush, or wait")
    whole = Trace.concat(parts)
    return whole if last is None else whole.take(slice(max(0, rows - last), None))


def _unread(part: Trace, read: set[tuple[float, float]]) -> NDArray[np.bool_]:
    """Say which rows of a segment were not read in a later place, and note them all."""
    places = list(zip(part.signals[NUMBER].tolist(), part.signals[TIME].tolist(), strict=True))
    is_new = np.zeros(len(places), bool)
    for row, place in reversed(list(enumerate(places))):
        is_new[row] = place not in read
        read.add(place)
    return is_new


def _read_one(path: Path, *, labelled: bool) -> Trace | None:
    from ttamer.trace.arrow import arrow

    parquet = arrow("pyarrow.parquet")
    labels = parquet.read_schema(path).get_field_index("label") >= 0
    if labelled:
        if not labels:
            return None
        part = Trace.read(path, on_bad="skip")
        known = np.ones(len(part), bool) if part.label is None else part.label >= 0
        return dataclasses.replace(part.take(known), left_out={}, notes=())
    if not labels:
        return Trace.read(path)
    with TemporaryDirectory() as aside:  # the reader of traces refuses rows that lack a label
        bare = Path(aside) / "bare.parquet"
        parquet.write_table(parquet.read_table(path).drop_columns(["label"]), bare)
        return Trace.read(bare)


def _trace(spec: CascadeSpec, rows: Sequence[AuditRow]) -> Trace:
    said = [[row.said[name] for name in spec.names] for row in rows]
    labels = [row.label for row in rows]
    known: dict[str, Any] = {} if all(label is None for label in labels) else {"label": labels}
    return Trace.from_arrays(
        spec,
        [[each.confidence for each in row] for row in said],
        prediction=[[each.prediction for each in row] for row in said],
        cost=np.array([[each.cost for each in row] for row in said], np.float64),
        signals={
            NUMBER: np.array([row.number for row in rows], np.float64),
            TIME: np.array([row.time for row in rows], np.float64),
            CHANCE: np.array([row.chance for row in rows], np.float64),
        },
        **known,
    )


def _synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _locked(folder: Path) -> int:
    """Keep other writers out, as long as this process lives."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl
    except ImportError:  # where there are no such locks
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise TraceError(
            f"{folder}: another process writes this log; give each its own folder"
        ) from None
    return file
