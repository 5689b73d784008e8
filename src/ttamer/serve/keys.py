"""API keys: only their SHA-256 is kept, and all are compared, each in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ttamer.errors import TTamerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Keys", "KeysError"]

SHORTEST, LONGEST = 16, 512
_KEY = re.compile(r"[!-+\--~]+")
"""Visible ASCII but the comma, which stands between keys in a variable."""
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([!-~]{1,512})")


class KeysError(TTamerError, ValueError):
    """API keys cannot be had, or are no good. Its text never holds a key."""


class Keys:
    """Who may ask.

    >>> keys = Keys(["correct-horse-battery"])
    >>> keys.admit("Bearer correct-horse-battery"), keys.admit("Bearer guess"), keys.admit(None)
    (True, False, False)
    >>> keys
    Keys(1)
    """

    __slots__ = ("_hashes",)

    def __init__(self, keys: Iterable[str], source: str = "keys") -> None:
        given = list(keys)
        for number, key in enumerate(given, start=1):
            if not _KEY.fullmatch(key) or not SHORTEST <= len(key) <= LONGEST:
                raise KeysError(
                    f"{source}: key {number} must be {SHORTEST} to {LONGEST} visible ASCII "
                    "characters without comma; make one with: openssl rand -hex 24"
                )
        if not given:
            raise KeysError(f"{source}: there are no keys; add one, or leave the setting out")
        self._hashes = tuple({_hash(key): None for key in given})

    @classmethod
    def from_env(cls, name: str, environ: Mapping[str, str] | None = None) -> Keys:
        """Read keys from an environment variable, with commas between."""
        value = (os.environ if environ is None else environ).get(name)
        if value is None:
            raise KeysError(
                f"the environment variable {name} is not set; it must hold the API keys, with "
                "commas between"
            )
        keys = (key.strip() for key in value.split(","))
        return cls([key for key in keys if key], f"the environment variable {name}")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keys:
        """Read keys from a file, one a line; empty lines and lines with ``#`` first are skipped."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise KeysError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise KeysError(f"{path}: is not text; write one key a line") from None
        lines = (line.strip() for line in text.splitlines())
        return cls([line for line in lines if line and not line.startswith("#")], str(path))

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"Keys({len(self)})"

    def admit(self, authorization: str | None) -> bool:
        """Say whether a header ``Authorization: Bearer <key>`` holds one of the keys.

        How long it takes depends neither on which key it is nor on how much of one is right.
        """
        found = _BEARER.fullmatch(authorization or "")
        given = _hash(found[1] if found else "")  # no key is empty
        admitted = False
        for known in self._hashes:
            admitted |= hmac.compare_digest(known, given)
        return admitted


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
