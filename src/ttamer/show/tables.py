"""Tables of text: columns aligned, bold heads on terminals that have them."""

import os
import sys
from collections.abc import Sequence
from typing import Any
from unicodedata import combining, east_asian_width

# The codes of terminal styles.
_STYLES = {"bold": "1", "red": "31", "green": "32", "faint": "2"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a head: the first column aligned to the left, the others to the right.

    >>> print(table(["node", "asked"], [["small", "100%"], ["large", "4%"]]))
      node   asked
      small   100%
      large     4%
    """
    widths = [max(_width(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        first, *cells = [
            f"{space}{cell}" if i else f"{cell}{space}"
            for i, (cell, space) in enumerate(zip(row, spaces, strict=True))
        ]
        lines.append("  " + "  ".join([first, *cells]).rstrip())
    return "\n".join([paint(lines[0], "bold"), *lines[1:]])


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    >>> _width("größe"), _width("模型")
    (5, 4)
    """
    return sum(
        0 if combining(mark) else 2 if east_asian_width(mark) in "WF" else 1 for mark in text
    )


def paint(text: str, style: str, stream: Any = None) -> str:
    """Return text in a style where the stream is a terminal that has it.

    ``NO_COLOR`` (any value) turns styles off, ``FORCE_COLOR`` on.

    >>> paint("plain", "bold")
    'plain'
    """
    stream = stream or sys.stdout
    wanted = bool(os.environ.get("FORCE_COLOR")) or (
        stream.isatty() and os.environ.get("TERM") != "dumb"
    )
    if not wanted or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
