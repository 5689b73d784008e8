"""Prompts from a file: JSON lines, CSV, or text with one prompt per line.

::

    {"prompt": "What is 2 + 2?", "label": "4"}
    {"messages": [{"role": "user", "content": "..."}], "label": "B", "max_tokens": 1}

In JSON lines, further keys are sent with the request unchanged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ttamer._checks import require_path
from ttamer._files import atomic_write, lines_of
from ttamer.errors import TraceError
from ttamer.llm.compare import ALIAS_SEPARATOR
from ttamer.llm.confidence import question_text
from ttamer.trace.schema import class_text


@dataclass(frozen=True)
class Prompt:
    """One request body, and its reference answer if there is one.

    >>> Prompt({"prompt": "2 + 2?"}, label="4").label
    '4'
    """

    body: Mapping[str, Any]
    label: str | tuple[str, ...] | None = None
    """The reference answer, or its aliases where ``compare`` is "contains"."""


@dataclass(frozen=True)
class AnsweredPrompt:
    """The prompt of a row, its reference answer if there is one, and the nodes' answers."""

    prompt: str
    reference: str | None
    """Aliases are separated by "|"."""
    answers: Mapping[str, str | None]
    """By node; ``None`` where it gave none."""

    @property
    def key(self) -> str:
        """Identifies the prompt and its answers, whatever the row's number."""
        text = json.dumps([self.prompt, dict(sorted(self.answers.items()))])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def texts(self) -> list[str]:
        """The different answers with text."""
        return [*filter(None, dict.fromkeys((t or "").strip() for t in self.answers.values()))]

    @property
    def aliases(self) -> list[str]:
        """The right answers that the reference names."""
        return [*filter(None, map(str.strip, (self.reference or "").split(ALIAS_SEPARATOR)))]


def write_answers(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write prompts and answers as JSON lines (mode 600), for people to read and to label."""
    try:
        with atomic_write(path, private=True) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


def read_answers(path: str | os.PathLike[str], names: Sequence[str]) -> list[AnsweredPrompt]:
    """Read the prompts and answers that ``ttamer collect`` keeps in ``<trace>.answers.jsonl``.

    Raises:
        TraceError: If the file cannot be read, or lacks a prompt or a node.
    """
    file, rows = Path(path), []
    if not file.exists():
        raise TraceError(
            f"{path}: there is no such file; ttamer collect writes it beside the trace, "
            "and ttamer import answers where the log has prompts"
        )
    for where, row in json_rows(file, read_text(file)):
        try:
            texts = {name: row["answers"][name] for name in names}
            answers = {name: None if text is None else str(text) for name, text in texts.items()}
            label = row.get("label")
            reference = " | ".join(label) if isinstance(label, list) else label
            rows.append(AnsweredPrompt(question_text(row["request"]), reference, answers))
        except (KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{where} lacks the prompt or an answer of a node; collect the trace again (its "
                "responses are kept)"
            ) from None
    return rows


def read_prompts(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    request: Mapping[str, Any] | None = None,
) -> list[Prompt]:
    """Read prompts from a file.

    Args:
        path: JSON lines (.jsonl, .ndjson), CSV, or text with one prompt per line.
        label: The field that holds the reference answer; in JSON lines, a list of texts holds its
            aliases, and an object is JSON text.
        request: Fields sent with every prompt, unless the prompt sets them itself.

    Returns:
        The prompts, in the order of the file.

    Raises:
        TraceError: If the file cannot be read, or a line is not a prompt.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "prompts.txt")
    ...     _ = path.write_text("2 + 2?")
    ...     read_prompts(path)
    [Prompt(body={'messages': [{'role': 'user', 'content': '2 + 2?'}]}, label=None)]
    """
    require_path(path, "read_prompts")
    prompts = []
    for where, row in _rows(Path(path), label):
        try:
            reference = label_of(row.pop(label, None))
        except TraceError as error:
            raise TraceError(f"{where}: {label}: {error}") from None
        body = dict(request or {}) | _body(row, where)
        prompts.append(Prompt(body, reference))
    if not prompts:
        raise TraceError(f"{path}: holds no prompts")
    return prompts


def _rows(file: Path, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each prompt."""
    remedies = {
        ".json": "JSON is read as JSON lines, from a file called .jsonl: write one object per line",
        ".tsv": "tables are read as CSV, with commas, from a file called .csv",
    }
    if file.suffix in remedies:
        raise TraceError(f"{file}: {remedies[file.suffix]}")
    if file.suffix not in (".jsonl", ".ndjson", ".csv"):
        for number, line in enumerate(lines_of(read_text(file)), start=1):
            if line.strip():
                yield f"{file}: line {number}", {"prompt": line}
        return
    for where, row in rows_of(file):
        if file.suffix == ".csv" and "prompt" not in row:
            raise TraceError(
                f"{file}: has no column prompt, and its first line names {', '.join(row)}; call "
                "the column of the prompts prompt"
            )
        if file.suffix == ".csv":  # other columns are ignored; other fields of JSON are sent
            row = {name: row[name] for name in ("prompt", label) if name in row}
        yield where, row


def _body(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the request body of a row."""
    if "messages" in row:
        if not isinstance(row["messages"], list) or not row["messages"]:
            raise TraceError(f"{where}: messages must be a list with at least one message")
        return row
    text = row.pop("prompt", None)
    if not isinstance(text, str) or not text:
        fields = ", ".join(map(repr, row)) or "none"
        raise TraceError(
            f"{where}: has no prompt; write prompt, a text, or messages; its other fields: {fields}"
        )
    return {**row, "messages": [{"role": "user", "content": text}]}


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


def rows_of(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each row of JSON lines or CSV.

    Raises:
        TraceError: If the file is neither, or cannot be read.
    """
    if file.suffix not in (".jsonl", ".ndjson", ".csv"):
        raise TraceError(f"{file}: the suffix must be one of .jsonl, .ndjson, .csv")
    return (_csv_rows if file.suffix == ".csv" else json_rows)(file, read_text(file))


def _csv_rows(file: Path, text: str) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield the place and the cells of each row, by column; ``None`` for an empty cell."""
    # Line breaks stay as they are: csv ends lines itself, outside of quotes.
    table = csv.reader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in next(table, [])]
        for cells in filter(None, table):
            where = f"{file}: line {table.line_num}"
            if any(cells[len(names) :]):
                raise TraceError(
                    f"{where}: has {len(cells)} cells, and the first line names {len(names)}; put "
                    "texts that contain commas in double quotes"
                )
            row = zip_longest(names, cells[: len(names)])
            yield where, {name: cell or None for name, cell in row}
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
        where = f"{file}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceError(f"{where}: is not JSON; write one object per line") from None
        if not isinstance(row, dict):
            raise TraceError(f"{where}: is not an object; write one object per line")
        yield where, row


def label_of(value: Any) -> str | tuple[str, ...] | None:
    """Return a label as text, a list of texts or numbers as its aliases; ``None`` for no label.

    Raises:
        TraceError: If it is another list.

    >>> [label_of(value) for value in (" ", 4.0, True, {"a": 1}, ["Paris", "Paname"])]
    [None, '4', 'true', '{"a": 1}', ('Paris', 'Paname')]
    """
    if isinstance(value, list):
        aliases = [None if isinstance(alias, bool | list | dict) else label_of(alias)
                   for alias in value]  # fmt: skip
        if not value or None in aliases:
            raise TraceError(f"{value!r} is not a list of aliases; write texts or numbers")
        return tuple(map(str, aliases))
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict) else value
    text = class_text(text)
    return text if text and text.strip() else None
