"""Real traces that come with the package.

>>> names()
('langid', 'llm-mmlu', 'llm-triviaqa', 'minilm-imdb', 'routerbench')
>>> load("langid", "fit").names
('cld2', 'cld3', 'fasttext', 'langid', 'lingua')

Five language detectors, nine LLMs on two benchmarks, eleven LLMs on prompts of many tasks, and the
exits of a text network. Each has rows to fit on and rows to test on, which share no input.
``experiments/`` has further traces, and how all of them were made.
"""

import json
import os
import reprlib
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

from ttamer.errors import ArgumentError
from ttamer.trace.trace import Trace

Part = Literal["fit", "test"]
_DATA = resources.files("ttamer.datasets") / "data"


def names() -> tuple[str, ...]:
    """Return the names of the traces.

    Returns:
        The names that :func:`load` accepts, in alphabetical order.

    >>> names()[0]
    'langid'
    """
    files = (file.name for file in _DATA.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def about(name: str) -> dict[str, Any]:
    """Return how a trace was made, under which licence, and what its columns mean.

    Args:
        name: The name of a trace, one of :func:`names`.

    Returns:
        The facts by key, such as ``"title"``, ``"licence"``, ``"rows"`` and ``"nodes"``.

    Raises:
        ArgumentError: If there is no trace of that name.

    >>> about("langid")["rows"]
    {'fit': 16337, 'test': 14694}
    """
    if not isinstance(name, str) or name not in names():
        raise ArgumentError(
            f"there is no trace {reprlib.repr(name)}; the traces are {', '.join(names())}",
            param="name",
        )
    facts: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text("utf-8"))
    return facts


def load(name: str, part: Part | None = None) -> Trace:
    """Return a trace: the part to fit on, the part to test on, or both, fit first.

    Args:
        name: The name of a trace, one of :func:`names`.
        part: ``"fit"`` or ``"test"``; by default both.

    Returns:
        The trace.

    Raises:
        ArgumentError: If there is no trace of that name, or no such part.

    >>> fit, test = load("langid", "fit"), load("langid", "test")
    >>> len(fit) + len(test) == len(load("langid"))
    True
    """
    about(name)  # refuses a name that is none
    parts = get_args(Part)
    if part not in (None, *parts):
        raise ArgumentError(f"there is no part {part!r}; it is 'fit' or 'test'", param="part")
    traces = []
    for suffix in parts if part is None else (part,):
        # A package may be imported from a zip file: the trace is read from a real one.
        with resources.as_file(_DATA / f"{name}-{suffix}.npz") as path:
            traces.append(Trace.read(path))
    return traces[0] if part else Trace.concat(traces)


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
    facts = about(name)
    lines = [
        f"{name}: {facts['title']}",
        "rows: {fit} to fit on, {test} to test on".format_map(facts["rows"]),
    ]
    keys = ("source", "network", "made", "label", "inputs", "confidence", "cost", "licence")
    lines += [f"{key}: {facts[key]}" for key in keys if key in facts]
    nodes = facts["nodes"]
    spent = list(accumulate(node.get("cost", 0.0) for node in nodes.values()))
    for (node, fact), cost in zip(nodes.items(), spent, strict=True):
        words = [f"{fact['package']} ({fact['licence']})"] if "package" in fact else []
        words += [f"right on {fact['accuracy']:.1%}"] if "accuracy" in fact else []
        words += [f"at a cost of {cost:.3f} from the start"] if "cost" in fact else []
        words += [f"confidence is {fact['confidence']}"] if "confidence" in fact else []
        lines.append(f"  {node}: {', '.join(words)}")
    return "\n".join(lines)


def export(name: str, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write the fit part, the test part and the ``cascade.toml`` into a folder, for the commands.

    Args:
        name: The name of a trace, one of :func:`names`.
        folder: The folder to write to; created if it does not exist.

    Returns:
        The paths of ``fit.npz``, ``test.npz`` and ``cascade.toml``.

    Raises:
        ArgumentError: If there is no trace of that name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in export("langid", folder)]
    ['fit.npz', 'test.npz', 'cascade.toml']
    """
    fit, test = load(name, "fit"), load(name, "test")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = (target / "fit.npz", target / "test.npz", target / "cascade.toml")
    fit.write(paths[0])
    test.write(paths[1])
    fit.spec.to_file(paths[2])
    return paths
