"""How commands print: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from ttamer.reporting.style import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["as_json", "number", "progress_line", "table"]

SECONDS_BETWEEN_LINES = 2.0
"""The time between two lines of progress where a line cannot be overwritten."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a head: the first column aligned to the left, the others to the right.

    >>> print(table(["node", "asked"], [["small", "100%"], ["large", "4%"]]))
      node   asked
      small   100%
      large     4%
    """
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        first, *rest = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def as_json(data: Any) -> str:
    """Return JSON; infinities as ``"inf"`` and ``"-inf"``, as in problem.json.

    >>> print(as_json({"losses": [0.5, float("inf")]}))
    {
     "losses": [
      0.5,
      "inf"
     ]
    }
    """
    return json.dumps(_plain(data), indent=1, allow_nan=False)


def progress_line(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that shows on stderr what is being done; call it with "" at the end.

    On a terminal one line is overwritten; elsewhere a new line is written every two seconds.
    """
    terminal = sys.stderr.isatty()
    last = [-math.inf]

    def show(text: str) -> None:
        if quiet:
            return
        if terminal:
            print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
        elif text and time.monotonic() - last[0] >= SECONDS_BETWEEN_LINES:
            last[0] = time.monotonic()
            print(f"... {text}", file=sys.stderr, flush=True)

    return show


def _plain(item: Any) -> Any:
    """Return plain values that JSON can hold."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if hasattr(item, "tolist"):
        return _plain(item.tolist())
    if isinstance(item, float) and not math.isfinite(item):
        return "inf" if item > 0 else "-inf"
    return item
