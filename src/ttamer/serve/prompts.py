"""Files of prompts: JSON lines, CSV, or text with one prompt a line.

::

    {"prompt": "What is 2 + 2?", "label": "4"}
    {"messages": [{"role": "user", "content": "..."}], "label": "B", "max_tokens": 1}

In JSON lines, further keys are sent with the request as they stand.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.classes import class_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

__all__ = ["Endpoint", "Prompt", "read_prompts"]

Endpoint = Literal["chat/completions", "completions", "classify"]
"""Which door of the upstreams is asked."""

_KEYS: dict[str, str] = {"chat/completions": "messages", "completions": "prompt"}


@dataclass(frozen=True)
class Prompt:
    """One request, and its reference answer where there is one."""

    body: Mapping[str, Any]
    label: str | None = None


def read_prompts(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    endpoint: Endpoint = "chat/completions",
    request: Mapping[str, Any] | None = None,
) -> list[Prompt]:
    """Read prompts; ``label`` names the field that holds the reference answer.

    ``request`` is sent with every prompt, but for what the prompt says itself.
    """
    if endpoint not in get_args(Endpoint):
        raise ArgumentError(
            f"endpoint is {endpoint!r}; it must be one of {', '.join(get_args(Endpoint))}"
        )
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not text in UTF-8") from None
    prompts = []
    for place, row in _rows(file, text, label):
        reference = _label(row.pop(label, None), place, label)
        body = dict(request or {}) | _body(row, endpoint, place)
        prompts.append(Prompt(body, reference))
    if not prompts:
        raise TraceError(f"{path}: there are no prompts in it")
    return prompts


def _rows(file: Path, text: str, label: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if file.suffix == ".csv":
        table = csv.DictReader(text.splitlines(keepends=True), restval="")
        if "prompt" not in (table.fieldnames or ()):
            raise TraceError(f"{file}: has no column prompt; its columns need a head")
        kept = ("prompt", label)  # the other columns are the reader's own
        for row in table:
            yield f"{file}: line {table.line_num}", {k: row[k] for k in kept if k in row}
        return
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{file}: line {number}"
        if not line.strip():
            continue
        if file.suffix not in (".jsonl", ".ndjson"):
            yield place, {"prompt": line}
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise TraceError(f"{place}: is not JSON; write one object a line") from None
        if not isinstance(row, dict):
            raise TraceError(f"{place}: is not an object; write one object a line")
        yield place, row


def _label(value: Any, place: str, field: str) -> str | None:
    try:
        return class_text(value) or None
    except TraceError as error:
        raise TraceError(f"{place}: {field}: {error}") from None


def _body(row: dict[str, Any], endpoint: Endpoint, place: str) -> dict[str, Any]:
    """Return the request that a row stands for."""
    if "messages" in row:
        if endpoint != "chat/completions":
            raise TraceError(f"{place}: has messages, and {endpoint} takes a prompt")
        if not isinstance(row["messages"], list) or not row["messages"]:
            raise TraceError(f"{place}: messages must be a list with at least one message")
        return row
    text = row.pop("prompt", None)
    if not isinstance(text, str) or not text:
        raise TraceError(f"{place}: has no prompt; write prompt, a text, or messages")
    if endpoint == "chat/completions":
        return {**row, "messages": [{"role": "user", "content": text}]}
    return {**row, _KEYS.get(endpoint, "input"): text}
