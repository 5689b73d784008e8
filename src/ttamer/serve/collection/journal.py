"""The journal of a collection: answers, verdicts and likenesses that are paid for once.

Entries are found by a key made of the settings and texts that they depend on, and are written at
once, so that a collection continues after an interruption of any kind.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ttamer.errors import TraceError
from ttamer.runtime.jsonl import JsonLines, json_line

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Self

__all__ = ["EXTRAS", "Journal", "JournalEntry", "journal_key"]

EXTRAS = ("margin", "entropy")
"""The further measures of an answer that are kept."""


@dataclass(frozen=True)
class JournalEntry:
    """A node's answer to a prompt."""

    text: str
    """The answer itself, so that it can be compared by another rule without asking again."""
    confidence: float
    cost: float
    margin: float | None = None
    entropy: float | None = None
    first: tuple[float, ...] = ()
    """The log-probabilities of the first tokens, for streams that are relayed early."""
    likelihoods: Mapping[str, float] | None = None
    """The confidence by each source that reads the same tokens, so that another one can be chosen
    without asking again."""
    verification: float = 0.0
    """The part of the cost that is for the confidence alone."""
    usage: tuple[int, int] | None = None
    """The tokens of the prompt and of the answer, where it is of one call: other prices need no
    further calls."""


def journal_key(*parts: Mapping[str, Any]) -> str:
    """Return the key of an entry, from the node's settings and the prompt.

    >>> journal_key({"node": "small"}, {"prompt": "Hi"})
    '4ea5f20932d71dcbcbb9b26e'
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Journal:
    """Entries by key, in a file of JSON lines (mode 600); use it with ``with``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._entries: dict[str, JournalEntry] = {}
        self._file = JsonLines(path)

    def __enter__(self) -> Self:
        self._file.open()
        try:
            for number, line in self._file.lines():
                key, entry = self._parsed(line, number)
                self._entries[key] = entry
        except TraceError:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: str) -> JournalEntry | None:
        """Return an entry, or ``None`` where there is none."""
        return self._entries.get(key)

    def add(self, key: str, entry: JournalEntry) -> None:
        """Add an entry, and write it at once."""
        self._entries[key] = entry
        try:
            self._file.append(json_line({"key": key, **asdict(entry)}))
        except OSError as error:
            raise TraceError(f"{self._file.path}: cannot be written: {error.strerror}") from None

    def _parsed(self, line: bytes, number: int) -> tuple[str, JournalEntry]:
        try:
            row = json.loads(line)
            confidence, cost = float(row["confidence"]), float(row["cost"])
            margin, entropy = (None if row[name] is None else float(row[name]) for name in EXTRAS)
            first = tuple(float(each) for each in row.get("first", ()))
            kept = row.get("likelihoods")
            likelihoods = None if kept is None else {k: float(v) for k, v in kept.items()}
            verification = float(row.get("verification", 0.0))
            tokens = row.get("usage")
            usage = None if tokens is None else (int(tokens[0]), int(tokens[1]))
            key, text = row["key"], row["text"]
            entry = JournalEntry(
                text, confidence, cost, margin, entropy, first, likelihoods, verification, usage
            )
            is_valid = isinstance(text, str) and math.isfinite(confidence) and math.isfinite(cost)
        except (ValueError, LookupError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise TraceError(
                f"{self._file.path}: line {number} is not a journal entry; remove the line (what "
                "it held is asked again), or name another file with --journal"
            )
        return key, entry
