"""What was paid for is not asked again: a journal of answers, one JSON line each.

A line is written as soon as its answer is there, so that a run that was killed goes on where it
stopped. Lines are found again by what was asked of whom, so that changed prompts or nodes are asked
and the others are not.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Entry", "Journal", "key_of"]


@dataclass(frozen=True)
class Entry:
    """What a node said to a prompt."""

    prediction: str | None
    confidence: float
    cost: float


def key_of(*parts: Mapping[str, Any]) -> str:
    """Return a key for what was asked of whom.

    >>> key_of({"node": "small"}, {"prompt": "Hi"})
    '4ea5f20932d71dcbcbb9b26e'
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Journal:
    """Entries by key, kept in a file. Use it with ``with``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._entries: dict[str, Entry] = {}
        self._file = -1

    def __enter__(self) -> Journal:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(self.path, flags, 0o600)  # answers may be private
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.truncate(self._file, whole)  # a line cut short by the end of the last run
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            key, entry = self._parsed(line, number)
            self._entries[key] = entry
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: str) -> Entry | None:
        """Return what was said, or ``None`` where it was not asked yet."""
        return self._entries.get(key)

    def add(self, key: str, entry: Entry) -> None:
        """Keep an entry, and write it at once."""
        self._entries[key] = entry
        line = json.dumps({"key": key, **asdict(entry)}).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _parsed(self, line: bytes, number: int) -> tuple[str, Entry]:
        try:
            row = json.loads(line)
            entry = Entry(row["prediction"], float(row["confidence"]), float(row["cost"]))
            key = row["key"]
        except (ValueError, KeyError, TypeError):
            entry, key = None, ""
        if entry is None or not math.isfinite(entry.confidence + entry.cost):
            raise TraceError(
                f"{self.path}: line {number} is not one of a journal; move the file away to ask "
                "everything again"
            )
        return key, entry
