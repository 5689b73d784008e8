"""Rows of CSV and of JSON lines, each with its place in the file, for errors; and their labels."""

from __future__ import annotations

import csv
import io
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ttamer._files import lines_of
from ttamer.errors import TraceError
from ttamer.trace.classes import class_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["csv_rows", "json_rows", "label_of", "read_text"]


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


def csv_rows(file: Path, text: str) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield the place and the cells of each row of CSV, by column; ``None`` for an empty cell.

    Raises:
        TraceError: If the text is not CSV, or a row has more cells than the first line has names.
    """
    table = csv.reader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in next(table, [])]
        for cells in table:
            if not cells:
                continue
            place = f"{file}: line {table.line_num}"
            if any(cells[len(names) :]):
                raise TraceError(
                    f"{place}: has {len(cells)} cells, and the first line names {len(names)}; put "
                    "texts that contain commas in double quotes"
                )
            found = zip_longest(names, cells[: len(names)])
            yield place, {name: cell or None for name, cell in found}
    except csv.Error as error:
        raise TraceError(
            f"{file}: line {table.line_num}: is not CSV that can be read ({error}); give long "
            "texts as JSON lines"
        ) from None


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


def label_of(value: Any) -> str | tuple[str, ...] | None:
    """Return a label as text, a list of texts or numbers as its aliases; ``None`` for no label.

    Raises:
        TraceError: If it is another list.

    >>> [label_of(value) for value in (" ", 4.0, True, {"a": 1}, ["Paris", "Paname"])]
    [None, '4', 'true', '{"a": 1}', ('Paris', 'Paname')]
    """
    if isinstance(value, list):
        aliases = [None if isinstance(each, bool | list | dict) else label_of(each)
                   for each in value]  # fmt: skip
        if not value or None in aliases:
            raise TraceError(f"{value!r} is not a list of aliases; write texts or numbers")
        return tuple(map(str, aliases))
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict) else value
    text = class_text(text)
    return text if text and text.strip() else None
