"""The audited rows that ``ttamer drift`` has read, in SQLite: they outlast the log.

Once :meth:`AuditedRows.add` returns, the end of the process loses nothing of it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from ttamer._files import database_errors, open_database
from ttamer.errors import TraceError


class AuditedRow(NamedTuple):
    """An audited request, as the decision log has it with all that was said about it since."""

    number: int
    """Its number among the audited rows."""
    request: str
    time: float
    """In seconds since 1970."""
    line: Mapping[str, Any]


class AuditedRows:
    """Audited rows, and files beside them; to be used with ``with``.

    Args:
        path: The file of the database.

    Raises:
        TraceError: Where the file cannot be written, or is no database.
    """

    schema = """
    CREATE TABLE IF NOT EXISTS audited (
      number INTEGER PRIMARY KEY, request TEXT NOT NULL, time REAL NOT NULL, line BLOB NOT NULL,
      UNIQUE (request, time));
    CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, content BLOB NOT NULL);
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._base: sqlite3.Connection = open_database(self._path, self.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def __iter__(self) -> Iterator[AuditedRow]:
        """Yield the rows in the order in which they were added."""
        rows = self._base.execute("SELECT * FROM audited ORDER BY number")
        for number, request, time, line in rows:
            yield AuditedRow(number, request, time, msgspec.json.decode(line))

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a row of the decision log; one that is there, by this run or another, stays."""
        key = (str(line.get("request")), float(line.get("time") or 0.0))
        statement = "INSERT OR IGNORE INTO audited (request, time, line) VALUES (?, ?, ?)"
        with database_errors(self._path):
            self._base.execute(statement, (*key, msgspec.json.encode(line)))

    def keep(self, name: str, content: bytes) -> None:
        """Keep a file, such as a policy; one with the same name is replaced."""
        with database_errors(self._path):
            self._base.execute("REPLACE INTO files VALUES (?, ?)", (name, content))

    def kept(self, name: str) -> bytes | None:
        """Return a file that is kept; ``None`` where there is none."""
        row = self._base.execute("SELECT content FROM files WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def clear(self) -> None:
        """Delete all rows and files."""
        with database_errors(self._path):
            self._base.executescript("DELETE FROM audited; DELETE FROM files;")

    def forget(self, requests: Iterable[str]) -> int:
        """Delete the rows of some requests, and return their number."""
        keys = [(request,) for request in requests]
        with database_errors(self._path):
            return self._base.executemany("DELETE FROM audited WHERE request = ?", keys).rowcount


def forget_rows(path: str | os.PathLike[str], requests: Iterable[str]) -> int:
    """Delete what a job keeps of some requests.

    Args:
        path: The file of the job (``POLICY.drift``); another process may go on writing it.
        requests: The ids of the requests.

    Returns:
        The number of rows deleted.

    Raises:
        TraceError: Where there is no such file.
    """
    if not Path(path).is_file():
        raise TraceError(f"{path}: there is no file of audited rows")
    with AuditedRows(path) as rows:
        return rows.forget(requests)
