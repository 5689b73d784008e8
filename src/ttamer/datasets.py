"""Real traces that come with the package; they are read with NumPy alone.

>>> names()
('langid',)
>>> load("langid", "fit").names
('cld2', 'cld3', 'fasttext', 'langid', 'lingua')

How each was made is in ``experiments/``. Fit and test parts share no message, so a policy fitted
on one has never seen what the other asks about.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.trace import Trace

if TYPE_CHECKING:
    import os
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

__all__ = ["Part", "Sample", "about", "describe", "export", "load", "messages", "names", "strings"]

Part = Literal["fit", "test"]
PARTS: tuple[Part, ...] = get_args(Part)

_NAMES = ("langid",)


@dataclass(frozen=True)
class Sample:
    """One input of a trace, where the input itself is shipped too."""

    row: int
    """Its place in the test part."""
    text: str


def names() -> tuple[str, ...]:
    """Return the names of the traces."""
    return _NAMES


def load(name: str, part: Part | None = None) -> Trace:
    """Return a trace: the part to fit on, the part to test on, or both, fit first.

    >>> fit, test = load("langid", "fit"), load("langid", "test")
    >>> len(fit) + len(test) == len(load("langid"))
    True
    """
    return Trace.concat([_read(name, one) for one in _parts(name, part)])


def messages(name: str, part: Part | None = None) -> NDArray[np.int16]:
    """Return, shape (T,), which message each row belongs to.

    Rows of one message are translations of one another: resample messages rather than rows where
    independence matters.
    """
    wanted = _parts(name, part)
    with _file(f"{name}-messages.npz").open("rb") as file, np.load(file) as numbers:
        return np.concatenate([numbers[one] for one in wanted])


def strings(name: str) -> tuple[Sample, ...]:
    """Return a few inputs of the test part, to ask the real models about again.

    >>> strings("langid")[0].row
    0
    """
    _parts(name, None)
    found = json.loads(_file(f"{name}-strings.json").read_text("utf-8"))
    return tuple(Sample(each["row"], each["text"]) for each in found)


def about(name: str) -> dict[str, Any]:
    """Return how a trace was made, under which licence, and what its columns mean.

    >>> sorted(about("langid")["rows"])
    ['fit', 'test']
    """
    _parts(name, None)
    facts: dict[str, Any] = json.loads(_file(f"{name}.json").read_text("utf-8"))
    return facts


def describe(name: str) -> str:
    """Return :func:`about` in lines for people."""
    facts = about(name)
    rows, groups = facts["rows"], facts["messages"]
    lines = [
        f"{name}: {facts['title']}",
        f"rows: {rows['fit']} to fit on ({groups['fit']} messages), "
        f"{rows['test']} to test on ({groups['test']} messages)",
        *(f"{key}: {facts[key]}" for key in ("source", "made", "label", "cost", "licence")),
        "nodes:",
    ]
    costs = _read(name, "test").spec
    for node in costs.nodes:
        said = facts["nodes"][node.name]
        lines.append(
            f"  {node.name}: {said['package']} ({said['licence']}), {node.cost:g} on average; "
            f"confidence is {said['confidence']}"
        )
    return "\n".join(lines)


def export(name: str, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write the fit part, the test part and the ``cascade.toml`` into a folder, for the commands.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in export("langid", folder)]
    ['fit.npz', 'test.npz', 'cascade.toml']
    """
    _parts(name, None)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = (target / "fit.npz", target / "test.npz", target / "cascade.toml")
    for path, source in zip(paths, ("fit.npz", "test.npz", "cascade.toml"), strict=True):
        path.write_bytes(_file(f"{name}-{source}").read_bytes())
    return paths


def _parts(name: str, part: Part | None) -> tuple[Part, ...]:
    """Return the parts asked for, if there are such a trace and such a part."""
    if name not in _NAMES:
        raise ArgumentError(f"there is no trace {name!r}; the traces are {', '.join(_NAMES)}")
    if part is None:
        return PARTS
    if part not in PARTS:
        raise ArgumentError(f"there is no part {part!r}; it is {' or '.join(map(repr, PARTS))}")
    return (part,)


def _read(name: str, part: Part) -> Trace:
    # A package may be imported from a zip file: the trace is read from a real one.
    with resources.as_file(_file(f"{name}-{part}.npz")) as path:
        return Trace.read(path)


def _file(name: str) -> Traversable:
    return resources.files("ttamer") / "data" / name
