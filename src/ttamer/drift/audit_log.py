"""A rolling log of audited rows: Parquet segments, each of them complete.

A folder holds segments, each an ordinary trace, and one journal. A row is a line in the journal as
soon as :meth:`AuditLog.add` returns; when there are enough, they are written as a segment under a
temporary name, synced, renamed, and the journal is removed. Journal k belongs to segment k, so the
files that a crash leaves behind are unambiguous: a journal whose segment exists is stale, and a
name that ends in ``.part`` is incomplete.

``kill -9`` loses no row that ``add`` has returned for; a loss of power loses at most the last
``sync_rows`` rows. Readers see complete segments only, so up to ``segment_rows`` rows reach them
late. The oldest segments are removed according to the retention.

Every row keeps its probability of being audited (``signal.audit_chance``), its number in the
traffic (``signal.audit_number``) and its time (``signal.audit_time``), beside the signals of its
input, where there are any.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ttamer._arguments import require_path
from ttamer._files import PART_SUFFIX, atomic_write
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitting.fits import BOOKKEEPING
from ttamer.runtime.jsonl import JsonLines, json_line
from ttamer.trace.classes import ClassCodes
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import BELIEF_FIELDS, Trace

NUMBER, TIME, CHANCE = BOOKKEEPING
_NAME = re.compile(r"(\d{8})-(\d+)-(\d+)\.parquet")
_JOURNAL = re.compile(r"(\d{8})\.journal")
# The number of times a reader starts again because retention removed a segment.
MAX_READS = 20


class NodeAnswer(NamedTuple):
    """A node's answer to an audited request.

    >>> NodeAnswer(confidence=0.4, prediction="a", cost=1.0).prediction
    'a'
    """

    confidence: float
    prediction: str | None
    cost: float
    """The cost of the call, in the cascade's units."""
    margin: float | None = None
    """The margin of the answer, where it is known."""
    entropy: float | None = None
    """The entropy of the answer, where it is known."""


@dataclass(frozen=True)
class AuditRow:
    """One audited request, with the answers of all nodes.

    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> AuditRow(number=7, time=0.0, chance=0.05, answers=answers).label is None
    True
    """

    number: int
    """The number of the request in the traffic."""
    time: float
    """The time in seconds since 1970."""
    chance: float
    """The probability with which it was audited."""
    answers: Mapping[str, NodeAnswer]
    """The answer of every node, by name."""
    label: str | None = None
    """The right answer, where it is known."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """What was known before any node was asked, by name."""

    def concealed(self, conceal: Callable[[str], str]) -> AuditRow:
        """Return the row with other texts for its answers and its label.

        >>> row = AuditRow(7, 0.0, 0.05, {"small": NodeAnswer(0.4, "a", 1.0)}, label="b")
        >>> row.concealed(str.upper).answers["small"].prediction
        'A'

        Args:
            conceal: From a text to another; equal texts must stay equal.

        Returns:
            The new row.
        """
        answers = {
            name: each._replace(prediction=None if each.prediction is None
                                else conceal(each.prediction))
            for name, each in self.answers.items()
        }  # fmt: skip
        label = None if self.label is None else conceal(self.label)
        return dataclasses.replace(self, answers=answers, label=label)


@dataclass(frozen=True)
class Retention:
    """How much of a log is kept; whole segments are removed, the oldest first.

    >>> Retention(rows=10_000).bytes is None
    True
    """

    rows: int | None = None
    """At least this many rows are kept, and less than one segment more; a row whose label came
    later is in the log twice, and counts twice."""
    bytes: int | None = None
    """The segments have at most this size together."""
    seconds: float | None = None
    """A segment whose last row is older than this is removed."""


class Segment(NamedTuple):
    """One segment of a log.

    >>> Segment(Path("00000001-500-60.parquet"), number=1, rows=500, last=60).rows
    500
    """

    path: Path
    number: int
    """The number of the segment, from 1."""
    rows: int
    last: int
    """The time of its last row, in whole seconds since 1970."""


class AuditLog:
    """Writes audited rows into a folder; to be used with ``with``, by one process at a time.

    >>> from tempfile import TemporaryDirectory
    >>> from ttamer.trace import CascadeSpec
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> with TemporaryDirectory() as folder:
    ...     with AuditLog(folder, spec) as log:
    ...         log.add(AuditRow(0, 0.0, 0.05, answers))
    ...     len(read_log(folder))
    1

    Args:
        folder: The folder of the log; created where it does not exist.
        spec: The cascade.
        segment_rows: The number of rows in a segment.
        sync_rows: The number of rows after which the journal is synced.
        retention: How much is kept; by default everything.

    Raises:
        ArgumentError: Where ``segment_rows`` or ``sync_rows`` is below 1.
        MissingExtra: On entering, where pyarrow is not installed.
        TraceError: On entering, where the folder cannot be written, another process writes the log,
            or its journal is damaged.
    """

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
                f"segment_rows is {segment_rows} and sync_rows {sync_rows}; both must be at least 1"
            )
        self.folder = Path(folder)
        self._spec = spec
        self._segment_rows, self._sync_rows = segment_rows, sync_rows
        self._retention = retention or Retention()
        self._waiting: list[AuditRow] = []
        self._due = segment_rows
        """The number of rows in the journal at which a segment is written."""
        self._index = 0
        self._journal = JsonLines(self._journal_path(), sync_lines=sync_rows)
        self._lock = -1
        self.recovered = 0
        """The number of rows found in the journal of a log that was not closed."""

    def __enter__(self) -> Self:
        from ttamer.trace.arrow import arrow

        arrow()  # not at the first segment, when rows have been taken
        with self._writing():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self.folder)
            try:
                self._recover()
            except BaseException:
                self._close()
                raise
        return self

    def _recover(self) -> None:
        """Remove what a crash left unfinished, and take the rows of the journal."""
        for unfinished in self.folder.glob(f".*{PART_SUFFIX}"):
            unfinished.unlink()
        self._index = 1 + max((each.number for each in segments(self.folder)), default=0)
        for path in sorted(self.folder.iterdir()):
            if (found := _JOURNAL.fullmatch(path.name)) is None:
                continue
            if int(found[1]) < self._index:
                path.unlink()  # its segment exists
            else:
                self._index = int(found[1])
        self._open_journal()
        self._waiting = [self._parsed(line, number) for number, line in self._journal.lines()]
        self.recovered = len(self._waiting)

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self._close()

    def _close(self) -> None:
        """Close the journal, and let other processes write the log."""
        self._journal.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    @property
    def waiting(self) -> int:
        """The number of rows in the journal that are not in a segment yet."""
        return len(self._waiting)

    def add(self, row: AuditRow) -> None:
        """Add one row. Once this returns, the end of this process does not lose it.

        Args:
            row: The row, with the answers of all nodes.

        Raises:
            ArgumentError: Where the log is not open, or the row is not complete.
            TraceError: Where the folder cannot be written. Where only a segment cannot, its rows
                stay in the journal, and it is tried again ``segment_rows`` rows later.
        """
        if self._lock < 0:
            raise ArgumentError(f"{self.folder}: the log is not open; use it with `with`")
        line = self._line(row)
        with self._writing():
            if not self._journal.is_open:  # it could not be opened after the last segment
                self._open_journal()
            self._journal.append(line)
        self._waiting.append(row)
        if len(self._waiting) >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the rows of the journal as a segment, and apply the retention.

        Raises:
            TraceError: Where the folder cannot be written.
        """
        if not self._waiting:
            return
        rows = self._waiting
        self._due = len(rows) + self._segment_rows  # where this fails
        name = f"{self._index:08d}-{len(rows)}-{int(rows[-1].time)}.parquet"
        signals = {
            NUMBER: np.array([row.number for row in rows], np.float64),
            TIME: np.array([row.time for row in rows], np.float64),
            CHANCE: np.array([row.chance for row in rows], np.float64),
        }
        trace = trace_of_rows(self._spec, rows, signals)
        from ttamer.trace.arrow import write_parquet

        with self._writing():
            with atomic_write(self.folder / name, durable=True, private=True) as part:
                write_parquet(trace, part)
            self._waiting, self._due = [], self._segment_rows
            self._index += 1
            self._journal.close()
            self._journal.path.unlink(missing_ok=True)
            self._open_journal()
            self._retire(rows[-1].time)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Report what the system refuses in the words of this log."""
        try:
            yield
        except OSError as error:
            raise TraceError(f"{self.folder}: cannot be written: {error.strerror}") from None

    def _retire(self, now: float) -> None:
        """Remove the segments that the retention does not keep."""
        kept = segments(self.folder)
        limits = self._retention
        sizes = [each.path.stat().st_size for each in kept]
        for k, each in enumerate(kept[:-1]):
            too_many = limits.rows is not None and sum(s.rows for s in kept[k + 1 :]) >= limits.rows
            too_large = limits.bytes is not None and sum(sizes[k:]) > limits.bytes
            too_old = limits.seconds is not None and each.last < now - limits.seconds
            if not (too_many or too_large or too_old):
                return
            each.path.unlink(missing_ok=True)

    def _line(self, row: AuditRow) -> bytes:
        """Return the line of the journal for a row, which is checked."""
        names = self._spec.names
        if set(row.answers) != set(names):
            raise ArgumentError(
                f"an audited row needs the answers of every node ({', '.join(names)}); it has "
                f"{', '.join(row.answers) or 'none'}"
            )
        if not 0 < row.chance <= 1:
            raise ArgumentError(
                f"the chance of an audited row is {row.chance}; it must be above 0 and at most 1"
            )
        if not 0 <= row.time < math.inf:
            raise ArgumentError(
                f"the time of an audited row is {row.time}; it must be in seconds since 1970"
            )
        answers = [row.answers[name] for name in names]
        if not all(math.isfinite(each.confidence) and 0 <= each.cost < math.inf
                   for each in answers):  # fmt: skip
            raise ArgumentError(
                "an audited row needs finite confidences, and costs that are finite and not "
                "negative"
            )
        columns = [value for each in answers for value in each[3:] if value is not None]
        if not all(map(math.isfinite, columns)):
            raise ArgumentError("an audited row needs finite margins and entropies, or None")
        if not all(map(math.isfinite, row.signals.values())):
            raise ArgumentError("an audited row needs finite signals")
        short = [each[:3] if each[3:] == (None, None) else each for each in answers]
        plain = [row.number, row.time, row.chance, short, row.label]
        return json_line([*plain, dict(row.signals)])

    def _open_journal(self) -> None:
        """Open the journal for appending."""
        self._journal = JsonLines(self._journal_path(), sync_lines=self._sync_rows).open()

    def _parsed(self, line: bytes, number: int) -> AuditRow:
        """Return the row of a line of the journal."""
        try:
            place, time, chance, answers, label, *rest = json.loads(line)
            known = [NodeAnswer(*each) for each in answers]
            signals = rest[0] if rest else {}  # earlier versions kept none
            row = AuditRow(place, time, chance, dict(zip(self._spec.names, known, strict=True)),
                           label, signals)  # fmt: skip
            self._line(row)
        except (ValueError, TypeError, AttributeError):
            raise TraceError(
                f"{self._journal_path()}: line {number} is not a row of this cascade; move the "
                "file away to continue without it"
            ) from None
        return row

    def _journal_path(self) -> Path:
        """Return the path of the current journal."""
        return self.folder / f"{self._index:08d}.journal"


def segments(folder: str | os.PathLike[str]) -> list[Segment]:
    """Return the complete segments of a log, the oldest first.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     segments(folder)
    []

    Args:
        folder: The folder of the log.

    Returns:
        The segments, from their names alone.
    """
    require_path(folder, "segments", "give the folder of a log")
    found = [
        Segment(path, *(int(part) for part in name.groups()))
        for path in Path(folder).iterdir()
        if (name := _NAME.fullmatch(path.name)) is not None
    ]
    return sorted(found, key=lambda each: each.number)


def read_log(
    folder: str | os.PathLike[str], *, last: int | None = None, labelled: bool = False
) -> Trace:
    """Return the rows of a log as a trace, from complete segments only.

    A row whose label came later is in the log twice, and is read once. Where the cascade was
    changed, the rows have the cascade of the newest segment.

    >>> from tempfile import TemporaryDirectory
    >>> from ttamer.trace import CascadeSpec
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> with TemporaryDirectory() as folder:
    ...     with AuditLog(folder, spec) as log:
    ...         for number in range(3):
    ...             log.add(AuditRow(number, 0.0, 0.05, answers))
    ...     read_log(folder, last=2).signals["audit_number"].tolist()
    [1.0, 2.0]

    Args:
        folder: The folder of the log.
        last: Only the last rows, this many; by default all.
        labelled: Whether to return only rows with a label, as ``target = "label"`` needs; otherwise
            all rows are returned, without labels.

    Returns:
        The rows, in the order in which they were added.

    Raises:
        ArgumentError: Where ``last`` is below 1.
        TraceError: Where there is no log, no row in a complete segment, or segments have other
            nodes than later ones.
    """
    require_path(folder, "read_log", "give the folder of a log")
    if last is not None and last < 1:
        raise ArgumentError(f"last is {last}; it must be at least 1")
    for _ in range(MAX_READS):
        try:
            return _read(Path(folder), last, labelled=labelled)
        except (FileNotFoundError, NotADirectoryError):
            if not Path(folder).is_dir():
                break  # else retention removed a segment
    raise TraceError(f"{folder}: there is no log to read")


def _read(folder: Path, last: int | None, *, labelled: bool) -> Trace:
    """Return the rows of a log once; a segment may vanish meanwhile."""
    parts: list[Trace] = []
    rows = 0
    read: set[tuple[float, float]] = set()
    for each in reversed(segments(folder)):
        if last is not None and rows >= last:
            break
        part = _read_one(each.path, labelled=labelled)
        if part is not None:
            if parts and part.names != parts[0].names:
                raise TraceError(
                    f"{each.path}: has the nodes {', '.join(part.names)}, and later segments have "
                    f"{', '.join(parts[0].names)}; read the rows since with last={rows}"
                )
            part = part.take(_unread(part, read))
            parts.insert(0, part)
            rows += len(part)
    if not rows:
        what = "row with a label" if labelled else "row"
        raise TraceError(
            f"{folder}: there is no {what} in a complete segment yet; wait for more rows, or flush "
            "the log (a gateway does when it stops)"
        )
    whole = dataclasses.replace(joined(parts), spec=parts[-1].spec)
    return whole if last is None else whole.take(slice(max(0, rows - last), None))


def joined(parts: Sequence[Trace]) -> Trace:
    """Return audited rows one after the other, with the columns that all of them have.

    >>> from ttamer.datasets import load
    >>> rows = load("minilm-imdb").take(slice(2))
    >>> joined([rows, dataclasses.replace(rows, margin=None, inputs={})]).extras
    {}

    Args:
        parts: At least one trace of the same cascade.

    Returns:
        One trace: the signals that all parts have, and of each node the extra columns that all
        have.
    """
    signals = [name for name in parts[0].signals if all(name in part.signals for part in parts)]
    known = {
        name: np.all([np.isfinite(part.extras[name]).all(axis=0) for part in parts], axis=0)
        for name in parts[0].extras
        if all(name in part.extras for part in parts)
    }
    known = {name: nodes for name, nodes in known.items() if nodes.any()}
    return Trace.concat([_with_columns(part, signals, known) for part in parts])


def _with_columns(
    part: Trace, signals: Sequence[str], known: Mapping[str, NDArray[np.bool_]]
) -> Trace:
    """Return rows with some of their signals, and the extra columns of some nodes."""
    same = all(not np.isfinite(part.extras[name][:, ~nodes]).any() for name, nodes in known.items())
    if same and set(part.signals) == set(signals) and set(part.extras) == set(known):
        return part
    extras = {name: np.where(nodes, part.extras[name], math.nan) for name, nodes in known.items()}
    return dataclasses.replace(
        part,
        inputs={name: part.signals[name] for name in signals},
        margin=extras.get("margin"),
        entropy=extras.get("entropy"),
        latency=extras.get("latency"),
    )


def _unread(part: Trace, read: set[tuple[float, float]]) -> NDArray[np.bool_]:
    """Return which rows of a segment were not read in a later place, and note them all."""
    places = list(zip(part.signals[NUMBER].tolist(), part.signals[TIME].tolist(), strict=True))
    is_new = np.zeros(len(places), bool)
    for row, place in reversed(list(enumerate(places))):
        is_new[row] = place not in read
        read.add(place)
    return is_new


def _read_one(path: Path, *, labelled: bool) -> Trace | None:
    """Return the rows of a segment; ``None`` where labels are wanted and it has none."""
    try:
        part = _read_segment(path, labelled=labelled)
    except TraceError:
        if path.exists():
            raise
        raise FileNotFoundError(path) from None  # removed by retention meanwhile
    if not labelled:
        return part
    if part.label is None:
        return None
    return dataclasses.replace(part.take(part.label >= 0), left_out={}, notes=())


def _read_segment(path: Path, *, labelled: bool) -> Trace:
    """Return the rows of a segment, with or without the column of labels.

    Few rows have labels, and perhaps none that a node predicted: unlike a trace of its own, a
    segment is not refused for that.
    """
    from ttamer.trace.builder import TraceBuilder
    from ttamer.trace.columns import plan
    from ttamer.trace.files import open_source

    source = open_source(path)
    if source.cascade is None or source.rows is None:
        raise TraceError(f"{path}: has no cascade inside, so it is not a segment of an audit log")
    spec = CascadeSpec.from_toml(source.cascade.decode("utf-8", "replace"))
    columns = [column for column in source.columns if labelled or column != "label"]
    layout = plan(columns, spec, str(path))
    builder = TraceBuilder(layout, source.rows, ClassCodes())
    for batch in source.batches(layout, None):
        builder.add(batch)
    return builder.finish("skip" if labelled else "refuse")


def trace_of_rows(
    spec: CascadeSpec, rows: Sequence[AuditRow], signals: Mapping[str, NDArray[np.float64]]
) -> Trace:
    """Return audited rows as a trace; labels need not match any answer.

    The signals are those given, and those of the inputs that every row has; the extra columns of a
    node are those that every row has.
    """
    codes = ClassCodes()
    of_inputs = {
        name: np.array([row.signals[name] for row in rows], np.float64)
        for name in rows[0].signals
        if all(name in row.signals for row in rows)
    }
    answers = [[row.answers[name] for name in spec.names] for row in rows]
    extras = {}
    for name in BELIEF_FIELDS:
        values = np.array([[getattr(each, name) for each in row] for row in answers], np.float64)
        values[:, np.isnan(values).any(axis=0)] = math.nan
        if np.isfinite(values).any():
            extras[name] = values
    labels = [row.label for row in rows]
    label = None if all(each is None for each in labels) else codes.encode(labels)
    return Trace(
        spec,
        np.array([[each.confidence for each in row] for row in answers], np.float64),
        prediction=codes.encode([[each.prediction for each in row] for row in answers]),
        label=label,
        cost=np.array([[each.cost for each in row] for row in answers], np.float64),
        inputs=of_inputs | dict(signals),
        margin=extras.get("margin"),
        entropy=extras.get("entropy"),
        latency=extras.get("latency"),
        classes=codes.classes,
    )


def is_locked(folder: str | os.PathLike[str]) -> bool:
    """Return whether another process writes a log.

    >>> is_locked("no-such-folder")
    False

    Args:
        folder: The folder of the log.

    Returns:
        Whether entering it would be refused now.
    """
    if not Path(folder, "lock").exists():
        return False
    try:
        os.close(_locked(Path(folder)))
    except TraceError:
        return True
    return False


def _locked(folder: Path) -> int:
    """Exclude other writers while this process lives."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        import fcntl
    except ImportError:  # where the system has no such locks
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise TraceError(
            f"{folder}: another process writes this log; give each process its own folder"
        ) from None
    return file
