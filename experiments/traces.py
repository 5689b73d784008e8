"""The traces of experiments: those of the package, and those in ``experiments/data``.

``NAME.json`` says how a trace was made. Rows to fit on come before rows to test on; in a stream
they come before the stream, which is quiet until ``shift`` and changed from there on.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ttamer as tt
from ttamer import datasets

DATA = Path(__file__).parent / "data"
STREAMS = ("minilm-imdb-to-amazon", "vgg16-to-jpeg", "vgg16-to-noise")


def names() -> list[str]:
    """Return the names of the traces; streams are left out."""
    here = (path.stem for path in DATA.glob("*.parquet") if path.stem not in STREAMS)
    return [*datasets.names(), *sorted(here)]


def about(name: str) -> dict[str, Any]:
    """Return how a trace or a stream was made."""
    if name in datasets.names():
        return datasets.about(name)
    facts: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    return facts


def load(name: str, part: str | None = None) -> tt.Trace:
    """Return a trace, or its part ``"fit"`` or ``"test"``."""
    if name in datasets.names():
        return datasets.load(name, part)
    trace, first = tt.Trace.read(DATA / f"{name}.parquet"), about(name)["rows"]["fit"]
    parts = {"fit": slice(first), "test": slice(first, None), None: slice(None)}
    return trace.take(parts[part])


@dataclasses.dataclass(frozen=True)
class Stream:
    """A recorded stream: earlier rows, the stream, and the row where it changes."""

    fit: tt.Trace
    rows: tt.Trace
    shift: int


def stream(name: str, target: str = "last") -> Stream:
    """Return a stream; ``target`` is what counts as right."""
    fit, rows = load(name, "fit"), load(name, "test")
    spec = dataclasses.replace(rows.spec, target=target)
    fit, rows = fit.with_spec(spec), rows.with_spec(spec)
    return Stream(fit, rows, about(name)["rows"]["quiet"])
