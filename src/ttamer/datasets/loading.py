"""Real traces that come with the package.

>>> names()[0]
'langid'
>>> load("langid", "fit").names
('cld2', 'cld3', 'fasttext', 'langid', 'lingua')
>>> load("minilm-imdb", "test")
Trace(5000 rows, 6 nodes, prediction, label)

How each was made is in ``experiments/``, and in :func:`about`. Separate models (langid, llm-mmlu,
llm-triviaqa) are read with NumPy alone; the fit and test parts of langid share no message. Exits of
one network are kept as Parquet, which takes pyarrow (extra [io]); they were shuffled before they
were traced, and are halved as they stand. A policy fitted on one part has never seen what the other
asks about.
"""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ttamer.datasets.facts import about, file_of, is_network
from ttamer.errors import ArgumentError
from ttamer.trace.trace import Trace

Part = Literal["fit", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Sample:
    """One input of a trace, where the input itself is shipped too.

    >>> from ttamer import datasets
    >>> sample = datasets.strings("langid")[0]
    >>> sample.row, type(sample.text)
    (0, <class 'str'>)
    """

    row: int
    """Its place in the test part."""
    text: str


def load(name: str, part: Part | None = None) -> Trace:
    """Return a trace: the part to fit on, the part to test on, or both, fit first.

    Args:
        name: The name of a trace, one of :func:`names`.
        part: ``"fit"`` or ``"test"``; by default both.

    Returns:
        The trace.

    Raises:
        ArgumentError: If there is no trace of that name, or no such part.
        MissingExtra: If the trace is of a network and pyarrow is not installed.

    >>> fit, test = load("langid", "fit"), load("langid", "test")
    >>> len(fit) + len(test) == len(load("langid"))
    True
    """
    wanted = _parts(part)
    if not is_network(name):
        return Trace.concat([_read(f"{name}-{one}.npz") for one in wanted])
    whole = _read(f"{name}.parquet")
    if part is None:
        return whole
    first = about(name)["rows"]["fit"]
    return whole.take(slice(first) if part == "fit" else slice(first, None))


def messages(name: str, part: Part | None = None) -> NDArray[np.int16]:
    """Return, shape (T,), which message each row belongs to.

    Rows of one message are translations of one another: resample messages rather than rows where
    independence matters. The rows of a network are each an input of its own, and have no messages.

    Args:
        name: The name of a trace with messages; ``"langid"`` has them.
        part: ``"fit"`` or ``"test"``; by default both, fit first.

    Returns:
        Shape (T,): the number of each row's message, in the order of :func:`load`.

    Raises:
        ArgumentError: If there is no such trace or part, or the trace has no messages.

    >>> messages("langid", "test").shape
    (14694,)
    """
    wanted = _parts(part)
    _need_texts(name, "messages")
    with file_of(f"{name}-messages.npz").open("rb") as file, np.load(file) as numbers:
        return np.concatenate([numbers[one] for one in wanted])


def strings(name: str) -> tuple[Sample, ...]:
    """Return a few inputs of the test part, to ask the real models about again.

    Args:
        name: The name of a trace with inputs; ``"langid"`` has them.

    Returns:
        The inputs, each with its row in the test part.

    Raises:
        ArgumentError: If there is no such trace, or it has no inputs.

    >>> strings("langid")[0].row
    0
    """
    _need_texts(name, "strings")
    found = json.loads(file_of(f"{name}-strings.json").read_text("utf-8"))
    return tuple(Sample(each["row"], each["text"]) for each in found)


def describe(name: str) -> str:
    """Return :func:`about` as readable text.

    Args:
        name: The name of a trace, one of :func:`names`.

    Returns:
        Several lines: the title, the rows, the source, the licence, and one line per node.

    Raises:
        ArgumentError: If there is no trace of that name.

    >>> print(describe("minilm-imdb").splitlines()[0])
    minilm-imdb: MiniLM on IMDB reviews: 6 exits of one network
    """
    network, facts = is_network(name), about(name)
    keys = ("network", "made", "label", "confidence") if network else ("made", "label")
    return "\n".join(
        [
            f"{name}: {facts['title']}",
            f"rows: {_rows(facts)}",
            *(f"{key}: {facts[key]}" for key in ("source", *keys, "cost", "licence")),
            "nodes:",
            *(_exits(facts) if network else _models(name, facts)),
        ]
    )


def _rows(facts: dict[str, Any]) -> str:
    rows, groups = facts["rows"], facts.get("messages")
    fit, test = ("", "") if groups is None else (f" ({groups[one]} messages)" for one in PARTS)
    split = f"; {facts['split']}" if "split" in facts else ""
    return f"{rows['fit']} to fit on{fit}, {rows['test']} to test on{test}{split}"


def _exits(facts: dict[str, Any]) -> list[str]:
    """Return a line for each exit: how often it is right, and the cost of all up to it."""
    exits = facts["nodes"]
    spent = itertools.accumulate(each["cost"] for each in exits.values())
    return [
        f"  {exit_}: right on {each['accuracy']:.1%}, at a cost of {cost:.3f} from the start"
        for (exit_, each), cost in zip(exits.items(), spent, strict=True)
    ]


def _models(name: str, facts: dict[str, Any]) -> list[str]:
    """Return a line for each model: what it is or how often it is right, and its cost."""
    lines = []
    for node in load(name, "test").spec.nodes:
        model = facts["nodes"][node.name]
        what = (
            f"{model['package']} ({model['licence']})"
            if "package" in model
            else f"right on {model['accuracy']:.1%}"
        )
        lines.append(
            f"  {node.name}: {what}, {node.cost:g} on average; confidence is {model['confidence']}"
        )
    return lines


def export(name: str, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write the fit part, the test part and the ``cascade.toml`` into a folder, for the commands.

    Args:
        name: The name of a trace, one of :func:`names`.
        folder: The folder to write to; created if it does not exist.

    Returns:
        The paths of ``fit.npz``, ``test.npz`` and ``cascade.toml``.

    Raises:
        ArgumentError: If there is no trace of that name.
        MissingExtra: If the trace is of a network and pyarrow is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in export("langid", folder)]
    ['fit.npz', 'test.npz', 'cascade.toml']
    """
    fit, test = (load(name, part) for part in PARTS)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = (target / "fit.npz", target / "test.npz", target / "cascade.toml")
    fit.write(paths[0])
    test.write(paths[1])
    fit.spec.to_file(paths[2])
    return paths


def _parts(part: Part | None) -> tuple[Part, ...]:
    """Return the parts asked for, if there is such a part."""
    if part is None:
        return PARTS
    if part not in PARTS:
        raise ArgumentError(f"there is no part {part!r}; it is {' or '.join(map(repr, PARTS))}")
    return (part,)


def _need_texts(name: str, what: str) -> None:
    facts = about(name)
    if "messages" not in facts:
        raise ArgumentError(
            f"{name} has no {what}: it holds what the nodes returned, and none of the inputs; "
            "langid has them"
        )


def _read(name: str) -> Trace:
    # A package may be imported from a zip file: the trace is read from a real one.
    with resources.as_file(file_of(name)) as path:
        return Trace.read(path)
