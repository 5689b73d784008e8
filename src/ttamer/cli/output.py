"""How commands print: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

from ttamer._display.progress import ProgressReport
from ttamer.errors import ArgumentError

# The codes of terminal styles.
STYLES = {"bold": "1", "red": "31", "green": "32", "faint": "2"}
# The characters of a sparkline, from the lowest to the highest.
BARS = "▁▂▃▄▅▆▇█"

# The options that name what a command writes.
OUTPUTS = {"output": "-o", "draw": "--draw", "plot": "--plot", "events": "--events"}


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
        first, *rest = [
            f"{space}{cell}" if i else f"{cell}{space}"
            for i, (cell, space) in enumerate(zip(row, spaces, strict=True))
        ]
        lines.append("  " + "  ".join([first, *rest]).rstrip())
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
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def sparkline(values: Sequence[float]) -> str:
    """Return a line of bars, the largest value the highest.

    >>> sparkline([0.3, 0.1, 0.05, 0.0])
    '█▃▂▁'
    >>> sparkline([1.0, 1.0])
    '▁▁'
    """
    low, high = min(values), max(values)
    steps = len(BARS) - 1
    scale = steps / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def check_output(args: argparse.Namespace) -> None:
    """Refuse an output that cannot be written, before any work is done."""
    for name, flag in OUTPUTS.items():
        output = getattr(args, name, None)
        if output and (problem := _problem(Path(output), args, name)):
            raise ArgumentError(f"{flag} {output}: {problem}; choose another")


def _problem(path: Path, args: argparse.Namespace, name: str) -> str | None:
    """Return why an output cannot be written, or nothing."""
    folder = path.parent
    if name == "plot" or getattr(args, "makes_folders", False):
        while not folder.exists():
            folder = folder.parent
    if not folder.is_dir():
        return f"there is no folder {folder}"
    writes_folder = getattr(args, "writes_folder", False)
    if path.exists() and path.is_dir() != writes_folder:
        return "it is a file, and a folder is written" if writes_folder else "it is a folder"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return "it is not writable"
    if _is_read(path, args):
        return "the command reads it, and would replace it"
    return None


def _is_read(path: Path, args: argparse.Namespace) -> bool:
    """Return whether a command reads the file that it is to write; a policy may be replaced."""
    given = [value for name, value in vars(args).items() if name not in (*OUTPUTS, "policy")]
    texts = [text for value in given for text in (value if isinstance(value, list) else [value])]
    files = [text for text in texts if isinstance(text, str) and Path(text).is_file()]
    return path.is_file() and any(path.samefile(file) for file in files)


def as_json(data: Any) -> str:
    """Return JSON; infinities as ``"inf"`` and ``"-inf"``, as in problem.json, and NaN as null.

    >>> print(as_json({"losses": [0.5, float("inf"), float("nan")]}))
    {
     "losses": [
      0.5,
      "inf",
      null
     ]
    }
    """
    return json.dumps(_plain(data), indent=1, allow_nan=False)


def progress_line(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that shows on stderr what is being done; call it with "" at the end.

    On a terminal one line is overwritten; elsewhere a new line is written every two seconds.
    """
    return (lambda _: None) if quiet else ProgressReport(bar=False)


def _plain(item: Any) -> Any:
    """Return plain values that JSON can hold."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if hasattr(item, "tolist"):
        return _plain(item.tolist())
    if isinstance(item, float) and math.isnan(item):
        return None
    if isinstance(item, float) and not math.isfinite(item):
        return "inf" if item > 0 else "-inf"
    return item
