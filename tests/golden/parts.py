"""What the groups share: their list, rows, files in memory, and what a command prints."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ttamer as tt
from ttamer import datasets
from ttamer.cli import main

Entries = Iterator[tuple[str, Any]]
GROUPS: dict[str, Callable[[], Entries]] = {}


def group(name: str) -> Callable[[Callable[[], Entries]], Callable[[], Entries]]:
    """Put a function among the groups; the name stands before those of its entries."""

    def put(entries: Callable[[], Entries]) -> Callable[[], Entries]:
        GROUPS[name] = entries
        return entries

    return put


@functools.cache
def rows_of(name: str, part: str, count: int) -> tt.Trace:
    return datasets.load(name, part).take(slice(count))


def saved_bytes(policy: Any, **options: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.ttamer")
        tt.save(policy, path, **options)
        return path.read_bytes()


def loaded(raw: bytes) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "policy.ttamer")
        path.write_bytes(raw)
        return tt.load(path)


def reported(*arguments: object) -> Any:
    """Return the JSON that a command prints, and its exit code where that is 1: not certified."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*map(str, arguments), "--json"])
    if code > 1:
        raise RuntimeError(f"ttamer {arguments[0]} ended with {code}")
    return json.loads(out.getvalue()) | ({"exit code": code} if code else {})


def flat(name: str, facts: dict[str, Any]) -> Entries:
    for key, value in facts.items():
        yield f"{name}, {key}", value
