"""Progress of long work, on stderr: one line that renews itself on a terminal, else plain lines."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["teller"]

PLAIN_EVERY = 2.0
"""Seconds between lines where they cannot renew themselves."""


def teller(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function to call with what is being done; call it with "" at the end."""
    terminal = sys.stderr.isatty()
    last = [0.0]

    def tell(text: str) -> None:
        if quiet:
            return
        if terminal:
            print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
        elif text and time.monotonic() - last[0] >= PLAIN_EVERY:
            last[0] = time.monotonic()
            print(f"... {text}", file=sys.stderr, flush=True)

    return tell
