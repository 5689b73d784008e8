"""Audits: which requests are drawn for one, and the rows that ``ttamer drift`` has read of a log.

A request is drawn by a hash of its key and a seed, as a number from 0 to 1, so the draw does not
depend on its content. The chance is logged with every row: rows can be weighted by its inverse.

The rows are in SQLite, where they outlast the log.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from ttamer._files import database_errors, open_database
from ttamer.errors import ArgumentError, TraceError


class AuditSampler:
    """Draws the requests that are audited: a share of them, while a budget lasts.

    >>> audit = AuditSampler(0.25, seed=7)
    >>> sum(audit.draw(f"request-{k}", seconds=0.0)[0] for k in range(1000))
    246

    Args:
        share: The share of requests that is audited until half of the budget is spent; from there
            on it falls in proportion to what is left.
        cost: The largest expected cost of one audit: that of asking every node.
        budget: The largest cost of audits per hour. After a quiet hour, that of one hour may be
            spent at once.
        seed: The seed of the draws.

    Raises:
        ArgumentError: Where the budget does not allow one audit.
    """

    def __init__(
        self, share: float, *, cost: float = 0.0, budget: float = math.inf, seed: int = 0
    ) -> None:
        if not budget > cost:
            raise ArgumentError(
                f"the budget is {budget:g} per hour and one audit may cost {cost:g}; allow more"
            )
        self.share, self.cost, self.budget, self.seed = share, cost, budget, seed
        self._unspent, self._last_time = budget, math.inf

    def draw(self, key: str | int, seconds: float) -> tuple[bool, float]:
        """Return whether a request is audited, and the chance of that; reserve what it may cost.

        ``key`` must not be one that clients choose; ``seconds`` is the time.
        """
        chance = self._chance(seconds)
        digest = blake2b(f"{self.seed}:{key}".encode(), digest_size=7).digest()
        # 53 bits of the hash: each number is a float exactly, and a chance of 1 is always drawn.
        is_drawn = (int.from_bytes(digest) >> 3) / 2**53 < chance
        if is_drawn:
            self._unspent -= self.cost
        return is_drawn, chance

    def settle(self, cost: float) -> None:
        """Replace the reserved cost of one audit by its actual cost."""
        self._unspent -= cost - self.cost

    def _chance(self, seconds: float) -> float:
        if self.budget == math.inf:
            return self.share
        gained = max(0.0, seconds - self._last_time) / 3600 * self.budget
        self._unspent = min(self.budget, self._unspent + gained)
        self._last_time = seconds
        # Falls before the budget is spent: else calm hours would be over-represented.
        part = max(0.0, self._unspent - self.cost) / (self.budget - self.cost)
        return self.share * min(1.0, 2 * part)


class AuditedRow(NamedTuple):
    """An audited request, as the decision log has it with all that was said about it since."""

    number: int  # its number among the audited rows
    request: str
    time: float  # in seconds since 1970
    line: Mapping[str, Any]


class AuditedRows:
    """Audited rows, and files beside them, in a database; to be used with ``with``.

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
        row = str(line.get("request")), float(line.get("time") or 0.0), msgspec.json.encode(line)
        with database_errors(self._path):  # committed at once: the end of the process loses nothing
            self._base.execute(
                "INSERT OR IGNORE INTO audited (request, time, line) VALUES (?, ?, ?)", row
            )

    def keep(self, name: str, content: bytes) -> None:
        """Keep a file, such as a policy; one with the same name is replaced."""
        with database_errors(self._path):
            self._base.execute("REPLACE INTO files VALUES (?, ?)", (name, content))

    def kept(self, name: str) -> bytes:
        """Return a file that is kept; nothing where there is none."""
        row = self._base.execute("SELECT content FROM files WHERE name = ?", (name,)).fetchone()
        return b"" if row is None else bytes(row[0])

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
    """Delete what a job keeps of some requests (``POLICY.drift``), and return how many rows.

    Another process may go on writing the file.

    Raises:
        TraceError: Where there is no such file.
    """
    if not Path(path).is_file():
        raise TraceError(f"{path}: there is no file of audited rows")
    with AuditedRows(path) as rows:
        return rows.forget(requests)
