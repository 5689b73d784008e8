"""Rows of JSON lines, each with its place in the file, for errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ttamer._files import lines_of
from ttamer.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["json_rows", "read_text"]


def read_text(file: Path) -> str:
    """Return the text of a file.

    Raises:
        TraceError: If it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")  # spreadsheets put a mark before the first letter
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{file}: is not text in UTF-8") from None


def json_rows(file: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each row of JSON lines; blank lines are skipped.

    Raises:
        TraceError: If a line is not a JSON object.
    """
    for number, line in enumerate(lines_of(text), start=1):
        if not line.strip():
            continue
        place = f"{file}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceError(f"{place}: is not JSON; write one object per line") from None
        if not isinstance(row, dict):
            raise TraceError(f"{place}: is not an object; write one object per line")
        yield place, row
