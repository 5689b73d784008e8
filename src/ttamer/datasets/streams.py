"""Streams with a real shift that come with the package.

Each is one trace: rows to fit on first, then the stream in its order, quiet until ``shift`` and
changed from there on. They are kept as Parquet, which takes pyarrow (extra [io]); how each was made
is in ``experiments/drift`` and in :func:`about`.

>>> names()
('minilm-imdb-to-amazon', 'vgg16-to-jpeg', 'vgg16-to-noise')
>>> stream = load("vgg16-to-noise")
>>> len(stream.fit), len(stream.rows), stream.shift
(4000, 10000, 3000)
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ttamer.errors import ArgumentError
from ttamer.trace.spec import Target
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Stream:
    """A recorded stream.

    >>> from ttamer.datasets import streams
    >>> streams.load("vgg16-to-noise").shift
    3000
    """

    name: str
    fit: Trace
    """Rows from before, to fit on and to hold out."""
    rows: Trace
    """The stream, in its order."""
    shift: int
    """The row of the stream from which on it is changed."""


def names() -> tuple[str, ...]:
    """Return the names of the streams.

    Returns:
        The names that :func:`load` accepts, in alphabetical order.

    >>> names()[0]
    'minilm-imdb-to-amazon'
    """
    files = (file.name for file in _folder().iterdir())
    return tuple(sorted(f.removesuffix(".parquet") for f in files if f.endswith(".parquet")))


def about(name: str) -> dict[str, Any]:
    """Return how a stream was made, under which licence, and what changes in it.

    Args:
        name: The name of a stream, one of :func:`names`.

    Returns:
        The facts by key, such as ``"rows"``.

    Raises:
        ArgumentError: If there is no stream of that name.

    >>> about("vgg16-to-noise")["rows"]["fit"]
    4000
    """
    if name not in names():
        raise ArgumentError(f"there is no stream {name!r}; the streams are {', '.join(names())}")
    facts: dict[str, Any] = json.loads((_folder() / f"{name}.json").read_text("utf-8"))
    return facts


def load(name: str, *, target: Target | None = None) -> Stream:
    """Return a stream.

    Args:
        name: The name of a stream, one of :func:`names`.
        target: What counts as right: ``"label"`` or ``"last"``. By default the cascade's own.

    Returns:
        The rows to fit on, the rows of the stream, and the row of the shift.

    Raises:
        ArgumentError: If there is no stream of that name.
        MissingExtra: If pyarrow is not installed.

    >>> len(load("vgg16-to-noise").rows)
    10000
    """
    facts = about(name)
    # A package may be imported from a zip file: the trace is read from a real one.
    with resources.as_file(_folder() / f"{name}.parquet") as path:
        whole = Trace.read(path)
    if target is not None:
        whole = whole.with_spec(dataclasses.replace(whole.spec, target=target))
    first = facts["rows"]["fit"]
    return Stream(
        name, whole.take(slice(first)), whole.take(slice(first, None)), facts["rows"]["quiet"]
    )


def _folder() -> Traversable:
    return resources.files("ttamer.datasets") / "data" / "streams"
