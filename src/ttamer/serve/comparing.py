"""From an answer's text to the ``prediction`` that is compared: the rule ``[serve] compare``.

exact: as it stands. normalised: letter case, spacing, and punctuation at the ends do not count.
choice: the letter of a multiple-choice answer, wherever the answer names it.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttamer.serve.settings import Compare

__all__ = ["prediction_of"]

_FIRST = re.compile(r"[\s(\[*\"']*([A-Za-z])(?:[)\].:,*\"']|\s*$|\s*\n|\s+-)")
_NAMED = re.compile(r"(?i:answer|choice|option)(?i:\s+is)?[\s:*(\[\"']*\b([A-Z])\b")
_BRACKETED = re.compile(r"[(\[]([A-Z])[)\]]")
_ALONE = re.compile(r"\b([B-HJ-Z])\b")  # neither the article nor the pronoun


def prediction_of(text: str, compare: Compare) -> str | None:
    """Return what is compared of an answer; ``None`` where it answers nothing.

    >>> prediction_of(" The  Moon. ", "normalised"), prediction_of("The answer is (B).", "choice")
    ('the moon', 'B')
    """
    text = text.encode("utf-8", "replace").decode()  # JSON may hold half a character
    if compare == "exact":
        return text or None
    if compare == "normalised":
        return _normalised(text) or None
    return _choice(text)


def _normalised(text: str) -> str:
    words = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    start, end = 0, len(words)
    while start < end and not _counts(words[start]):
        start += 1
    while start < end and not _counts(words[end - 1]):
        end -= 1
    return words[start:end]


def _counts(character: str) -> bool:
    """Whether a character at an end of an answer says something: signs of money and number do."""
    return unicodedata.category(character)[0] not in "PZ" or character in "-%"


def _choice(text: str) -> str | None:
    if first := _FIRST.match(text):
        return first[1].upper()
    if named := _NAMED.findall(text):
        return str(named[-1])
    for pattern in (_BRACKETED, _ALONE):
        letters = set(pattern.findall(text))
        if len(letters) == 1:
            return str(letters.pop())
    return None
