"""Audited rows in SQLite: what every node answered on a share of the traffic.

One table holds a row for each audited request. Once :meth:`AuditLog.add` returns, the end of this
process does not lose the row. Several processes may write one log. A label that comes later is set
in its row; rows are deleted by the retention, or by the id of their request on demand.

Every row keeps the probability with which it was audited, its number in the traffic and its time:
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import require_path
from ttamer._files import database_errors, open_database
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.fitting.fits import BOOKKEEPING
from ttamer.trace.classes import ClassCodes
from ttamer.trace.trace import Trace

NUMBER, TIME, CHANCE = BOOKKEEPING
SCHEMA = """
CREATE TABLE IF NOT EXISTS cascade (id INTEGER PRIMARY KEY CHECK (id = 0), toml TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS audits (
  id INTEGER PRIMARY KEY, request TEXT, number INTEGER NOT NULL, time REAL NOT NULL,
  chance REAL NOT NULL, label TEXT, answers TEXT NOT NULL, inputs TEXT NOT NULL,
  UNIQUE (number, time));
CREATE INDEX IF NOT EXISTS audits_of_request ON audits (request);
"""


class NodeAnswer(NamedTuple):
    """A node's answer to an audited request.

    >>> NodeAnswer(confidence=0.4, prediction="a", cost=1.0).prediction
    'a'
    """

    confidence: float
    prediction: str | None
    cost: float
    """The cost of the call, in the cascade's units."""


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
    inputs: Mapping[str, float] = field(default_factory=dict)
    """What was known before any node was asked, by name."""
    request: str = ""
    """The id of the request."""

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
            name: answer._replace(
                prediction=None if answer.prediction is None else conceal(answer.prediction)
            )
            for name, answer in self.answers.items()
        }
        label = None if self.label is None else conceal(self.label)
        return dataclasses.replace(self, answers=answers, label=label)


@dataclass(frozen=True)
class Retention:
    """How much of a log is kept; the oldest rows are deleted first.

    >>> Retention(rows=10_000).seconds is None
    True
    """

    rows: int | None = None
    """The number of rows that are kept."""
    seconds: float | None = None
    """The age, against the newest row, at which rows are deleted."""


class AuditLog:
    """Writes audited rows into a database; to be used with ``with``, by any number of threads.

    >>> from tempfile import TemporaryDirectory
    >>> from ttamer.trace import CascadeSpec
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> with TemporaryDirectory() as folder:
    ...     with AuditLog(Path(folder, "audits.db"), spec) as log:
    ...         log.add(AuditRow(0, 0.0, 0.05, answers))
    ...     len(read_log(Path(folder, "audits.db")))
    1

    Args:
        path: The file of the database.
        spec: The cascade; where the log has another one, this one replaces it.
        retention: How much is kept; by default everything.

    Raises:
        TraceError: On entering, where the file cannot be written, is no log, or has rows of other
            nodes.
    """

    # Rows between two applications of the retention.
    RETENTION_ROWS = 100

    def __init__(
        self,
        path: str | os.PathLike[str],
        spec: CascadeSpec,
        *,
        retention: Retention | None = None,
    ) -> None:
        self.path = Path(path)
        self._spec, self._retention = spec, retention or Retention()
        self._base: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._added = 0

    def __enter__(self) -> Self:
        base = open_database(self.path, SCHEMA)
        try:
            self._take_cascade(base)
        except BaseException:
            base.close()
            raise
        self._base = base
        return self

    def _take_cascade(self, base: sqlite3.Connection) -> None:
        """Put the cascade into the log; refuse a log with rows of other nodes."""
        with database_errors(self.path):
            former = _cascade(base)
            if former is not None and former.names != self._spec.names and _count(base):
                raise TraceError(
                    f"{self.path}: has rows of the nodes {', '.join(former.names)}, not of "
                    f"{', '.join(self._spec.names)}; give the log another file"
                )
            base.execute("REPLACE INTO cascade VALUES (0, ?)", (self._spec.to_toml(),))

    def __exit__(self, *_: object) -> None:
        if self._base is not None:
            self._base.close()
        self._base = None

    def __len__(self) -> int:
        return _count(self._open())

    def add(self, row: AuditRow) -> None:
        """Add a row; one with the same number and time is replaced (its label is known now).

        Args:
            row: The row, with the answers of all nodes.

        Raises:
            ArgumentError: Where the log is not open, or the row is not complete.
            TraceError: Where the file cannot be written.
        """
        base = self._open()
        values = self._values(row)
        with self._lock, database_errors(self.path):
            base.execute(
                "INSERT INTO audits (request, number, time, chance, label, answers, inputs) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number, time) DO UPDATE SET "
                "label = excluded.label, answers = excluded.answers, inputs = excluded.inputs",
                values,
            )
            self._added += 1
            if self._added % self.RETENTION_ROWS == 0:
                self._retire(base)

    def forget(self, request: str) -> int:
        """Delete the rows of a request.

        Args:
            request: The id of the request.

        Returns:
            The number of rows deleted.
        """
        base = self._open()
        with self._lock, database_errors(self.path):
            return base.execute("DELETE FROM audits WHERE request = ?", (request,)).rowcount

    def _open(self) -> sqlite3.Connection:
        if self._base is None:
            raise ArgumentError(f"{self.path}: the log is not open; use it with `with`")
        return self._base

    def _retire(self, base: sqlite3.Connection) -> None:
        """Delete the rows that the retention does not keep."""
        if self._retention.rows is not None:
            base.execute(
                "DELETE FROM audits WHERE id <= (SELECT max(id) FROM audits) - ?",
                (self._retention.rows,),
            )
        if self._retention.seconds is not None:
            base.execute(
                "DELETE FROM audits WHERE time < (SELECT max(time) FROM audits) - ?",
                (self._retention.seconds,),
            )

    def _values(self, row: AuditRow) -> tuple[Any, ...]:
        """Return the columns of a row, which is checked."""
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
        for answer in answers:
            if not (math.isfinite(answer.confidence) and 0 <= answer.cost < math.inf):
                raise ArgumentError(
                    "an audited row needs finite confidences, and costs that are finite and not "
                    "negative"
                )
        if not all(map(math.isfinite, row.inputs.values())):
            raise ArgumentError("an audited row needs finite inputs")
        texts = json.dumps(answers), json.dumps(dict(row.inputs))
        return (row.request, row.number, row.time, row.chance, row.label, *texts)


def read_log(
    path: str | os.PathLike[str], *, last: int | None = None, labelled: bool = False
) -> Trace:
    """Return the rows of a log as a trace; a process that writes it is not disturbed.

    >>> from tempfile import TemporaryDirectory
    >>> from ttamer.trace import CascadeSpec
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    >>> answers = {"small": NodeAnswer(0.4, "a", 1.0), "large": NodeAnswer(0.9, "b", 5.0)}
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "audits.db")
    ...     with AuditLog(path, spec) as log:
    ...         for number in range(3):
    ...             log.add(AuditRow(number, 0.0, 0.05, answers))
    ...     read_log(path, last=2).inputs["audit_number"].tolist()
    [1.0, 2.0]

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
    base = open_database(file, SCHEMA)
    try:
        with database_errors(file):
            spec = _cascade(base)
            rows = [] if spec is None else _rows(base, spec.names, last, labelled)
    finally:
        base.close()
    if spec is None or not rows:
        what = "row with a label" if labelled else "row"
        raise TraceError(f"{file}: there is no {what} yet")
    numbers = {
        NUMBER: np.array([row.number for row in rows], np.float64),
        TIME: np.array([row.time for row in rows], np.float64),
        CHANCE: np.array([row.chance for row in rows], np.float64),
    }
    return trace_of_rows(spec, rows, numbers)


def trace_of_rows(
    spec: CascadeSpec, rows: Sequence[AuditRow], inputs: Mapping[str, NDArray[np.float64]]
) -> Trace:
    """Return audited rows as a trace; labels need not match any answer.

    The inputs are those given, and those that every row has.
    """
    codes = ClassCodes()
    of_rows = {
        name: np.array([row.inputs[name] for row in rows], np.float64)
        for name in rows[0].inputs
        if all(name in row.inputs for row in rows)
    }
    answers = [[row.answers[name] for name in spec.names] for row in rows]
    labels = [row.label for row in rows]
    return Trace(
        spec,
        np.array([[answer.confidence for answer in row] for row in answers], np.float64),
        prediction=codes.encode([[answer.prediction for answer in row] for row in answers]),
        label=None if all(label is None for label in labels) else codes.encode(labels),
        cost=np.array([[answer.cost for answer in row] for row in answers], np.float64),
        inputs=of_rows | dict(inputs),
        classes=codes.classes,
    )


def joined(parts: Sequence[Trace]) -> Trace:
    """Return rows one after the other, with the inputs and columns that all parts have.

    >>> from ttamer.datasets import load
    >>> rows = load("minilm-imdb").take(slice(2))
    >>> joined([rows, dataclasses.replace(rows, inputs={"length": [3.0, 4.0]})]).inputs
    {}

    Args:
        parts: At least one trace of the same cascade.

    Returns:
        One trace.
    """
    names = [name for name in parts[0].inputs if all(name in part.inputs for part in parts)]
    optional = ("margin", "entropy", "latency")
    lacking: dict[str, Any] = {
        name: None for name in optional if any(getattr(part, name) is None for part in parts)
    }
    return Trace.concat(
        [
            dataclasses.replace(part, inputs={name: part.inputs[name] for name in names}, **lacking)
            for part in parts
        ]
    )


def _rows(
    base: sqlite3.Connection, names: Sequence[str], last: int | None, labelled: bool
) -> list[AuditRow]:
    """Return the newest rows, the oldest of them first."""
    found = base.execute(
        "SELECT number, time, chance, label, answers, inputs, request FROM audits "
        "WHERE label IS NOT NULL OR NOT ? ORDER BY id DESC LIMIT ?",
        (labelled, -1 if last is None else last),
    ).fetchall()
    return [
        AuditRow(
            number,
            time,
            chance,
            {n: NodeAnswer(*a) for n, a in zip(names, json.loads(answers), strict=True)},
            label if labelled else None,
            json.loads(inputs),
            request,
        )
        for number, time, chance, label, answers, inputs, request in reversed(found)
    ]


def _cascade(base: sqlite3.Connection) -> CascadeSpec | None:
    """Return the cascade in a log; a new one has none."""
    row = base.execute("SELECT toml FROM cascade").fetchone()
    return None if row is None else CascadeSpec.from_toml(row[0])


def _count(base: sqlite3.Connection) -> int:
    return int(base.execute("SELECT count(*) FROM audits").fetchone()[0])
