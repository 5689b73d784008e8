"""Prompts from a file: JSON lines, CSV, or text with one prompt per line.

::

    {"prompt": "What is 2 + 2?", "label": "4"}
    {"messages": [{"role": "user", "content": "..."}], "label": "B", "max_tokens": 1}

In JSON lines, further keys are sent with the request unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ttamer._arguments import require_path
from ttamer._files import lines_of
from ttamer.errors import ArgumentError, TraceError
from ttamer.serve.collection.rows import csv_rows, json_rows, label_of, read_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

__all__ = ["Endpoint", "Prompt", "read_prompts"]

Endpoint = Literal["chat/completions", "completions", "classify"]
"""The endpoint of the upstreams that is called."""

_BODY_KEYS: dict[str, str] = {"chat/completions": "messages", "completions": "prompt"}


@dataclass(frozen=True)
class Prompt:
    """One request body, and its reference answer if there is one.

    >>> Prompt({"prompt": "2 + 2?"}, label="4").label
    '4'
    """

    body: Mapping[str, Any]
    label: str | tuple[str, ...] | None = None
    """The reference answer, or its aliases where ``compare`` is "contains"."""


def read_prompts(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    endpoint: Endpoint = "chat/completions",
    request: Mapping[str, Any] | None = None,
) -> list[Prompt]:
    """Read prompts from a file.

    Args:
        path: JSON lines (.jsonl, .ndjson), CSV, or text with one prompt per line.
        label: The field that holds the reference answer; in JSON lines, a list of texts holds its
            aliases, and an object is JSON text.
        endpoint: The endpoint that the prompts are for.
        request: Fields sent with every prompt, unless the prompt sets them itself.

    Returns:
        The prompts, in the order of the file.

    Raises:
        ArgumentError: If the endpoint is unknown.
        TraceError: If the file cannot be read, or a line is not a prompt.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "prompts.txt")
    ...     _ = path.write_text("2 + 2?")
    ...     read_prompts(path, endpoint="completions")
    [Prompt(body={'prompt': '2 + 2?'}, label=None)]
    """
    if endpoint not in get_args(Endpoint):
        raise ArgumentError(
            f"endpoint is {endpoint!r}; it must be one of {', '.join(get_args(Endpoint))}"
        )
    require_path(path, "read_prompts")
    prompts = []
    for place, row in _rows(Path(path), label):
        try:
            reference = label_of(row.pop(label, None))
        except TraceError as error:
            raise TraceError(f"{place}: {label}: {error}") from None
        body = dict(request or {}) | _body(row, endpoint, place)
        prompts.append(Prompt(body, reference))
    if not prompts:
        raise TraceError(f"{path}: holds no prompts")
    return prompts


def _rows(file: Path, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each prompt."""
    text = read_text(file)
    if file.suffix == ".csv":
        for place, row in csv_rows(file, text):
            if "prompt" not in row:
                raise TraceError(
                    f"{file}: has no column prompt, and its first line names {', '.join(row)}; "
                    "call the column of the prompts prompt"
                )
            yield place, {k: row[k] for k in ("prompt", label) if k in row}  # others are ignored
        return
    if file.suffix == ".json":
        raise TraceError(
            f"{file}: JSON is read as JSON lines, from a file called .jsonl: write one object per "
            "line"
        )
    if file.suffix == ".tsv":
        raise TraceError(f"{file}: tables are read as CSV, with commas, from a file called .csv")
    if file.suffix in (".jsonl", ".ndjson"):
        yield from json_rows(file, text)
        return
    for number, line in enumerate(lines_of(text), start=1):
        if line.strip():
            yield f"{file}: line {number}", {"prompt": line}


def _body(row: dict[str, Any], endpoint: Endpoint, place: str) -> dict[str, Any]:
    """Return the request body of a row."""
    if "messages" in row:
        if endpoint != "chat/completions":
            raise TraceError(f"{place}: has messages, and {endpoint} takes a prompt")
        if not isinstance(row["messages"], list) or not row["messages"]:
            raise TraceError(f"{place}: messages must be a list with at least one message")
        return row
    text = row.pop("prompt", None)
    if not isinstance(text, str) or not text:
        fields = ", ".join(map(repr, row)) or "none"
        raise TraceError(
            f"{place}: has no prompt; write prompt, a text, or messages; its other fields: {fields}"
        )
    if endpoint == "chat/completions":
        return {**row, "messages": [{"role": "user", "content": text}]}
    return {**row, _BODY_KEYS.get(endpoint, "input"): text}
