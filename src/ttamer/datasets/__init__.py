"""Real traces that come with the package.

>>> names()
('langid', 'llm-mmlu', 'llm-triviaqa', 'minilm-imdb', 'routerbench')
>>> load("langid", "fit").names
('cld2', 'cld3', 'fasttext', 'langid', 'lingua')

Five language detectors, nine LLMs on two benchmarks, eleven LLMs on prompts of many tasks, and the
exits of a text network. Each has rows to fit on and rows to test on, which share no input.
``about(name)["made"]`` says how a trace was made; ``experiments/data`` has further traces.
"""

import json
import reprlib
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.trace.io import Rows, read_all
from ttamer.trace.trace import Trace

Part = Literal["fit", "test"]
_data = resources.files("ttamer.datasets") / "data"


def names() -> tuple[str, ...]:
    """Return the names of the traces.

    Returns:
        The names that :func:`load` accepts, in alphabetical order.

    >>> names()[0]
    'langid'
    """
    files = (file.name for file in _data.iterdir())
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
    facts: dict[str, Any] = json.loads((_data / f"{name}.json").read_text("utf-8"))
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
        # Arrays of NumPy: the other formats need pyarrow, which is optional.
        with (_data / f"{name}-{suffix}.npz").open("rb") as file, np.load(file) as archive:
            arrays = dict(archive)
        cascade, texts = str(arrays.pop("cascade")), {"classes": arrays.pop("classes").tolist()}
        traces.append(read_all(Rows(name, arrays, texts, cascade.encode()), None, "refuse"))
    return traces[0] if part else Trace.concat(traces)
