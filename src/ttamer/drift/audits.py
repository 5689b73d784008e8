"""Audited rows in SQLite: what every node answered on a share of the traffic, and what is right.

Once :meth:`AuditLog.add` or :meth:`AuditLog.label` returns, the end of the process loses nothing of
it. Several processes may write one file. Rows are deleted by their age, or by the id of their
request on demand.

Every row keeps the chance with which it was audited, its number in the traffic and its time:
:func:`read_log` returns them as inputs of the trace (``audit_chance``, ``audit_number``,
``audit_time``), which no policy reads.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ttamer._checks import require_path
from ttamer._files import database_errors, open_database
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.fitting.fits import BOOKKEEPING
from ttamer.trace.schema import ClassCodes
from ttamer.trace.trace import Trace


class NodeAnswer(NamedTuple):
    """A node's answer to an audited request.

    >>> NodeAnswer(confidence=0.4, prediction="a", cost=1.0).prediction
    'a'
    """

    confidence: float
    prediction: str | None
    cost: float
    """The cost of the call, in the cascade's units."""
    score: float | None = None
    """From 0, wrong, to 1, right, where a judge or a person has said so."""


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
    """The chance with which it was audited."""
    answers: Mapping[str, NodeAnswer]
    """The answer of every node, by name."""
    label: str | None = None
    """The right answer, where it is known."""
    inputs: Mapping[str, float] = field(default_factory=dict)
    """Numbers known before any node was asked, by name."""
    request: str = ""
    """The id of the request."""
    prompt: str | None = None
    """Its text, or what stands in its place (:func:`ttamer.fitting.inputs.hashed_prompt`)."""

    @property
    def is_known(self) -> bool:
        """Whether there is a label, or a verdict on every answer."""
        return self.label is not None or all(a.score is not None for a in self.answers.values())

    def concealed(self, conceal: Callable[[str], str]) -> AuditRow:
        """Return the row with other texts for its answers and its label.

        Args:
            conceal: From a text to another; equal texts must stay equal.

        Returns:
            The new row.
        """
        answers = {
            name: answer._replace(
                prediction=None if answer.prediction is None else conceal(answer.prediction)
            )
            for name, answer in self.answers.items()
        }
        label = None if self.label is None else conceal(self.label)
        return dataclasses.replace(self, answers=answers, label=label)


class AuditLog:
    """Keeps audited rows; to be used with ``with``, by any number of threads.

    >>> from tempfile import TemporaryDirectory
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> with TemporaryDirectory() as folder:
    ...     with AuditLog(Path(folder, "audits.db"), spec) as log:
    ...         log.add(AuditRow(0, 0.0, 0.05, answers))
    ...     len(read_log(Path(folder, "audits.db")))
    1

    Args:
        path: The file of the database; ``None`` keeps the rows in memory.
        spec: The cascade; where the log has another one, this one replaces it.
        max_age: The age in seconds, against the newest row, at which rows are deleted.
        max_rows: The number of rows that are kept; the oldest are deleted.

    Raises:
        TraceError: On entering, where the file cannot be written, is no log, or has rows of other
            nodes.
    """

    retire_every = 100  # rows between two deletions of old ones
    schema = """
    CREATE TABLE IF NOT EXISTS cascade (id INTEGER PRIMARY KEY CHECK (id = 0), toml TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS audits (
      id INTEGER PRIMARY KEY, request TEXT, number INTEGER NOT NULL, time REAL NOT NULL,
      chance REAL NOT NULL, label TEXT, answers TEXT NOT NULL, inputs TEXT NOT NULL, prompt TEXT,
      UNIQUE (number, time));
    CREATE INDEX IF NOT EXISTS audits_of_request ON audits (request);
    CREATE TABLE IF NOT EXISTS labels (request TEXT PRIMARY KEY, label TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, content BLOB NOT NULL);
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        spec: CascadeSpec,
        *,
        max_age: float | None = None,
        max_rows: int | None = None,
    ) -> None:
        self.path = Path(":memory:" if path is None else path)
        self._spec, self._max_age, self._max_rows = spec, max_age, max_rows
        self._base: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._added = 0

    def __enter__(self) -> Self:
        base = open_database(self.path, self.schema)
        try:
            with database_errors(self.path):
                former = _cascade(base)
                if former is not None and former.names != self._spec.names and _count(base):
                    raise TraceError(  # noqa: TRY301 - the connection is closed below
                        f"{self.path}: has rows of the nodes {', '.join(former.names)}, not of "
                        f"{', '.join(self._spec.names)}; give the log another file"
                    )
                base.execute("REPLACE INTO cascade VALUES (0, ?)", (self._spec.to_toml(),))
        except BaseException:
            base.close()
            raise
        self._base = base
        return self

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
        self._base = None

    def __len__(self) -> int:
        return _count(self._open())

    def add(self, row: AuditRow) -> AuditRow:
        """Add a row; one with the same number and time is replaced.

        Args:
            row: The row, with the answers of all nodes.

        Returns:
            The row, with its label if that came first (:meth:`label`).

        Raises:
            ArgumentError: Where the log is not open, or the row is not complete.
            TraceError: Where the file cannot be written.
        """
        base = self._open()
        self._check(row)
        with self._lock, database_errors(self.path), base:
            base.execute("BEGIN IMMEDIATE")
            if row.label is None and row.request:
                labels = "DELETE FROM labels WHERE request = ? RETURNING label"
                if early := base.execute(labels, (row.request,)).fetchall():
                    row = dataclasses.replace(row, label=early[0][0])
            answers = json.dumps([row.answers[name] for name in self._spec.names])
            base.execute(
                "REPLACE INTO audits (request, number, time, chance, label, answers, inputs, "
                "prompt) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (row.request, row.number, row.time, row.chance, row.label, answers,
                 json.dumps(dict(row.inputs)), row.prompt),
            )  # fmt: skip
            self._added += 1
            if self._added % self.retire_every == 0:
                self._retire(base)
        return row

    def label(self, request: str, label: str, *, is_expected: bool = False) -> AuditRow | None:
        """Set the right answer to a request in its row, if that has none.

        Args:
            request: The id of the request.
            label: The right answer.
            is_expected: Whether the row may come later: the label waits for it.

        Returns:
            The row, where there is one without a label.
        """
        base = self._open()
        with self._lock, database_errors(self.path), base:
            base.execute("BEGIN IMMEDIATE")
            number = base.execute(
                "SELECT max(id) FROM audits WHERE request = ? AND label IS NULL", (request,)
            ).fetchone()[0]
            if number is not None:
                base.execute("UPDATE audits SET label = ? WHERE id = ?", (label, number))
                return _rows(base, self._spec.names, "id = ?", number)[0]
            if is_expected:
                base.execute("INSERT OR IGNORE INTO labels VALUES (?, ?)", (request, label))
        return None

    def rows_after(self, number: int) -> list[AuditRow]:
        """Return some rows.

        Args:
            number: The rows are those with a higher number.

        Returns:
            The rows, in the order of their numbers.
        """
        rows = _rows(self._open(), self._spec.names, "number > ?", number)
        return sorted(rows, key=lambda row: row.number)

    def keep(self, name: str, content: bytes) -> None:
        """Keep a file beside the rows, such as a policy.

        Args:
            name: The name of the file; one with the same name is replaced.
            content: Its content.
        """
        with self._lock, database_errors(self.path):
            self._open().execute("REPLACE INTO files VALUES (?, ?)", (name, content))

    def kept(self, name: str) -> bytes | None:
        """Return a file that is kept.

        Args:
            name: The name of the file.

        Returns:
            Its content; ``None`` where there is none.
        """
        row = self._open().execute("SELECT content FROM files WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    @property
    def spec(self) -> CascadeSpec:
        """The cascade."""
        return self._spec

    def clear(self) -> None:
        """Delete all rows and files."""
        with self._lock, database_errors(self.path):
            self._open().executescript("DELETE FROM audits; DELETE FROM labels; DELETE FROM files;")

    def _open(self) -> sqlite3.Connection:
        if self._base is None:
            raise ArgumentError(f"{self.path}: the log is not open; use it with `with`")
        return self._base

    def _retire(self, base: sqlite3.Connection) -> None:
        if self._max_rows is not None:
            oldest = "DELETE FROM audits WHERE id <= (SELECT max(id) FROM audits) - ?"
            base.execute(oldest, (self._max_rows,))
        if self._max_age is not None:
            oldest = "DELETE FROM audits WHERE time < (SELECT max(time) FROM audits) - ?"
            base.execute(oldest, (self._max_age,))

    def _check(self, row: AuditRow) -> None:
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
        for answer in row.answers.values():
            if not (math.isfinite(answer.confidence) and 0 <= answer.cost < math.inf):
                raise ArgumentError(
                    "an audited row needs finite confidences, and costs that are finite and not "
                    "negative"
                )
        if not all(map(math.isfinite, row.inputs.values())):
            raise ArgumentError("an audited row needs finite inputs")


def read_log(
    path: str | os.PathLike[str], *, last: int | None = None, labelled: bool = False
) -> Trace:
    """Return the rows of a log as a trace; a process that writes it is not disturbed.

    ::

        read_log("audits.db", last=1000).write("held.parquet")

    Args:
        path: The file of the log.
        last: Only the last rows, this many; by default all.
        labelled: Whether to return only rows with a label, as ``target = "label"`` needs; otherwise
            all rows are returned, without labels.

    Returns:
        The rows, in the order in which they were added.

    Raises:
        ArgumentError: Where ``last`` is below 1.
        TraceError: Where there is no log, or it has no such row.
    """
    require_path(path, "read_log", "give the file of a log")
    if last is not None and last < 1:
        raise ArgumentError(f"last is {last}; it must be at least 1")
    file = Path(path)
    if not file.is_file():
        raise TraceError(f"{file}: there is no log to read")
    base = open_database(file, AuditLog.schema)
    try:
        with database_errors(file):
            spec = _cascade(base)
            where = "label IS NOT NULL OR NOT ?"
            rows = [] if spec is None else _rows(base, spec.names, where, labelled, last)
    finally:
        base.close()
    if spec is None or not rows:
        what = "row with a label" if labelled else "row"
        raise TraceError(f"{file}: there is no {what} yet")
    if not labelled:
        rows = [dataclasses.replace(row, label=None) for row in rows]
    trace = trace_of_rows(spec, rows)
    facts = ([row.number for row in rows], [row.time for row in rows], [row.chance for row in rows])
    numbers = {name: np.array(v, float) for name, v in zip(BOOKKEEPING, facts, strict=True)}
    return dataclasses.replace(trace, inputs={**trace.inputs, **numbers})


def forget_rows(path: str | os.PathLike[str], requests: Iterable[str]) -> int:
    """Delete the rows and labels of some requests from the file of a log.

    Args:
        path: The file; another process may go on writing it.
        requests: The ids of the requests.

    Returns:
        The number of rows deleted.

    Raises:
        TraceError: Where there is no log.
    """
    file, keys = Path(path), [(request,) for request in requests]
    if not file.is_file():
        raise TraceError(f"{file}: there is no log to read")
    base = open_database(file, AuditLog.schema)
    try:
        with database_errors(file):
            base.executemany("DELETE FROM labels WHERE request = ?", keys)
            return base.executemany("DELETE FROM audits WHERE request = ?", keys).rowcount
    finally:
        base.close()


def trace_of_rows(spec: CascadeSpec, rows: Sequence[AuditRow]) -> Trace:
    """Return audited rows as a trace, with the inputs that every row has.

    Labels need not match any answer.
    """
    codes = ClassCodes()
    inputs = {
        name: np.array([row.inputs[name] for row in rows], np.float64)
        for name in rows[0].inputs
        if all(name in row.inputs for row in rows)
    }
    answers = [[row.answers[name] for name in spec.names] for row in rows]
    labels = [row.label for row in rows]
    prompts = [row.prompt for row in rows]
    verdicts: dict[str, Any] = {}
    if any(answer.score is not None for row in answers for answer in row):
        numbers = [
            [float(a.prediction == label) if a.score is None and label is not None else a.score
             for a in row]
            for row, label in zip(answers, labels, strict=True)
        ]  # fmt: skip
        scores = np.array(numbers, float)  # None is NaN
        is_graded = spec.loss_bound is not None and not spec.mistakes
        right = np.where(scores >= 0, scores >= 0.5, np.nan)
        verdicts = {"raw_loss": 1 - scores} if is_graded else {"correct": right}
    return Trace(
        spec,
        np.array([[answer.confidence for answer in row] for row in answers], np.float64),
        prediction=codes.encode([[answer.prediction for answer in row] for row in answers]),
        label=None if all(label is None for label in labels) else codes.encode(labels),
        **verdicts,
        cost=np.array([[answer.cost for answer in row] for row in answers], np.float64),
        prompt=None if all(p is None for p in prompts) else np.array(prompts, object),
        inputs=inputs,
        classes=codes.classes,
    )


def joined(parts: Sequence[Trace]) -> Trace:
    """Return rows one after the other, with the inputs and columns that all parts have.

    Args:
        parts: At least one trace of the same cascade.
    """
    names = [name for name in parts[0].inputs if all(name in part.inputs for part in parts)]
    optional = ("margin", "entropy", "latency", "chance", "prompt", "group")
    lacking: dict[str, Any] = {
        name: None for name in optional if any(getattr(part, name) is None for part in parts)
    }
    return Trace.concat(
        [
            dataclasses.replace(part, inputs={name: part.inputs[name] for name in names}, **lacking)
            for part in parts
        ]
    )


def failure_text(error: Exception) -> str:
    """Return the text of an error of this package; of others their kind and place.

    The texts of others may hold prompts and answers.

    >>> failure_text(TTamerError("out of range"))
    'out of range'
    >>> failure_text(KeyError("an answer"))
    'KeyError'
    """
    if isinstance(error, TTamerError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + line


def _rows(
    base: sqlite3.Connection,
    names: Sequence[str],
    where: str,
    value: object,
    last: int | None = None,
) -> list[AuditRow]:
    """Return the newest rows for which a condition holds, the oldest of them first."""
    columns = "number, time, chance, answers, label, inputs, request, prompt"
    rows = base.execute(
        f"SELECT {columns} FROM audits WHERE {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 - ours
        (value, -1 if last is None else last),
    ).fetchall()
    return [
        AuditRow(
            number,
            time,
            chance,
            {n: NodeAnswer(*a) for n, a in zip(names, json.loads(answers), strict=True)},
            label,
            json.loads(inputs),
            request,
            prompt,
        )
        for number, time, chance, answers, label, inputs, request, prompt in reversed(rows)
    ]


def _cascade(base: sqlite3.Connection) -> CascadeSpec | None:
    """Return the cascade in a log; a new one has none."""
    row = base.execute("SELECT toml FROM cascade").fetchone()
    return None if row is None else CascadeSpec.from_toml(row[0])


def _count(base: sqlite3.Connection) -> int:
    return int(base.execute("SELECT count(*) FROM audits").fetchone()[0])
