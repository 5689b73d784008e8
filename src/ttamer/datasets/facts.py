"""Which traces come with the package, and the facts of each; read without NumPy.

A trace is found by its files in ``data``: ``<name>.json`` describes how it was made. One of the
exits of a network is ``<name>.parquet``, rows to fit on before rows to test on; one of separate
models has a file for each part.

>>> names()[0]
'langid'
>>> is_network("llm-mmlu"), is_network("minilm-imdb")
(False, True)
"""

from __future__ import annotations

import json
import reprlib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ttamer.errors import ArgumentError

_SEPARATE_MODELS = ("langid", "llm-mmlu", "llm-triviaqa")


def names() -> tuple[str, ...]:
    """Return the names of the traces: of separate models first, then of networks.

    Returns:
        The names that :func:`ttamer.datasets.load` accepts.

    >>> names()[:3]
    ('langid', 'llm-mmlu', 'llm-triviaqa')
    """
    networks = (file.name for file in _folder().iterdir() if file.name.endswith(".parquet"))
    return (*_SEPARATE_MODELS, *sorted(name.removesuffix(".parquet") for name in networks))


def is_network(name: str) -> bool:
    """Whether a trace is of the exits of one network; refuses a name that is none."""
    if not isinstance(name, str) or name not in names():
        raise ArgumentError(
            f"there is no trace {reprlib.repr(name)}; the traces are {', '.join(names())}"
        )
    return name not in _SEPARATE_MODELS


def about(name: str) -> dict[str, Any]:
    """Return how a trace was made, under which licence, and what its columns mean.

    Args:
        name: The name of a trace, one of :func:`ttamer.datasets.names`.

    Returns:
        The facts by key, such as ``"title"``, ``"licence"``, ``"rows"`` and ``"nodes"``.

    Raises:
        ArgumentError: If there is no trace of that name.

    >>> sorted(about("langid")["rows"])
    ['fit', 'test']
    """
    is_network(name)
    facts: dict[str, Any] = json.loads(file_of(f"{name}.json").read_text("utf-8"))
    return facts


def file_of(name: str) -> Traversable:
    """Return one file of the package's data."""
    return _folder() / name


def _folder() -> Traversable:
    return resources.files("ttamer.datasets") / "data"
