"""What people see while they work: objects as HTML in notebooks, and progress.

Every text is escaped: names of nodes and classes come from users.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, TypeAlias
from unicodedata import combining, east_asian_width

from ttamer.show.graph import Drawing as Drawing


def card(
    title: str,
    *,
    notes: Sequence[str] = (),
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    r"""Return a title, sentences and a table as HTML, in the style of the page.

    >>> card("Trace", notes=["2 rows"], head=["node", "right"], rows=[["<a>", "90%"]])[-62:]
    '<tr><td>&lt;a&gt;</td><td>90%</td></tr></tbody></table></div>\n'
    """
    parts = [f"<div><strong>{escape(title)}</strong>"]
    parts += [f"<div>{escape(note)}</div>" for note in notes]
    if rows:
        body = "".join(_row("td", row) for row in rows)
        parts.append(f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>")
    return "".join(parts) + "</div>\n"


def _row(kind: str, texts: Sequence[str]) -> str:
    cells = "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)
    return f"<tr>{cells}</tr>"


# What a function takes as progress: something to call, or whether to show the progress.
ProgressOption: TypeAlias = "Callable[[str], None] | bool | None"

# The time between two lines where a line cannot be overwritten.
_LINE_SECONDS = 2.0


class ProgressReport:
    """Shows lines of progress: on a terminal in one line, elsewhere one line now and then."""

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = -_LINE_SECONDS

    def __call__(self, text: str) -> None:
        """Show a line."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1  # a line that wraps is not overwritten
            print(f"\r\x1b[K{text[:width]}", end="", file=self._stream, flush=True)
        elif text and time.monotonic() - self._shown >= _LINE_SECONDS:
            self._shown = time.monotonic()
            print(f"... {text}", file=self._stream, flush=True)

    def close(self) -> None:
        """Remove what is shown."""
        if self._stream.isatty():
            print("\r\x1b[K", end="", file=self._stream, flush=True)


@contextmanager
def shown(progress: ProgressOption) -> Iterator[Callable[[str], None] | None]:
    """Give what to call with lines of progress; ``True`` shows them until the work ends."""
    if progress is not True:
        yield progress or None
        return
    report = ProgressReport()
    try:
        yield report
    finally:
        report.close()


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
        fill = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [row[0] + fill[0], *map("".join, zip(fill[1:], row[1:], strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes.

    >>> _width("größe"), _width("模型")
    (5, 4)
    """
    return sum(
        0 if combining(mark) else 2 if east_asian_width(mark) in "WF" else 1 for mark in text
    )
