"""``problem.json``: the form in which people write problems.

::

    {"moves": "precedence" | "walk",
     "nodes": [{"name": "small", "losses": [0.1, 0.6]}, ...],
     "edges": [{"from": null, "to": "small", "cost": 0.1, "probabilities": [[0.5, 0.5]]}, ...]}

``"from": null`` is the start, with one row of probabilities; any other edge has one row per state
of ``from``. JSON has no infinity, so an infinite loss is written ``"inf"``.

Here only the form is checked; whether the numbers make a problem is for problem_rules.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.errors import ProblemError

if TYPE_CHECKING:
    import os

__all__ = ["check_form", "read_json", "write_json"]


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file, or say in one line why it is none."""
    try:
        return json.loads(Path(path).read_text("utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ProblemError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProblemError("is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except ProblemError:
        raise
    except (RecursionError, ValueError) as error:  # too deep; an integer of too many digits
        raise ProblemError(f"is not a problem: {error}") from None


def write_json(data: Any, path: str | os.PathLike[str]) -> None:
    """Write JSON that reads back to the same numbers."""
    Path(path).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", "utf-8")


def check_form(data: object) -> dict[str, Any]:
    """Check the form of a problem; return it with every loss a number.

    >>> check_form({"moves": "walk", "nodes": [{"name": "a", "losses": ["inf"]}], "edges": []})
    {'moves': 'walk', 'nodes': [{'name': 'a', 'losses': [inf]}], 'edges': []}
    """
    problem = _fields(data, "the problem", ("moves", "nodes", "edges"))
    nodes = []
    for position, item in enumerate(_list(problem["nodes"], "nodes")):
        node = _fields(item, f"nodes[{position}]", ("name", "losses"))
        if not isinstance(node["name"], str):
            raise ProblemError(f"nodes[{position}]: name must be a string, not {node['name']!r}")
        losses = _list(node["losses"], f"node {node['name']!r}: losses")
        losses = [math.inf if loss == "inf" else loss for loss in losses]
        if not all(map(_is_number, losses)):
            raise ProblemError(f'node {node["name"]!r}: losses must be numbers, or "inf"')
        nodes.append({"name": node["name"], "losses": losses})
    for position, item in enumerate(_list(problem["edges"], "edges")):
        edge = _fields(item, f"edges[{position}]", ("from", "to", "cost", "probabilities"))
        for end in ("from", "to"):
            if not isinstance(edge[end], str) and (end == "to" or edge[end] is not None):
                raise ProblemError(
                    f"edges[{position}]: {end!r} must name a node, not {edge[end]!r}"
                )
        if not _is_number(edge["cost"]):
            raise ProblemError(f"edges[{position}]: cost must be a number, not {edge['cost']!r}")
        rows = edge["probabilities"]
        whole = isinstance(rows, list) and all(
            all(map(_is_number, row)) if isinstance(row, list) else _is_number(row) for row in rows
        )
        if not whole:
            start = "start" if edge["from"] is None else repr(edge["from"])
            raise ProblemError(
                f"edge {start} -> {edge['to']!r}: probabilities must be numbers, in one list per "
                "state of the source"
            )
    return {**problem, "nodes": nodes}


def _fields(item: object, place: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ProblemError(f"{place} must be an object with {', '.join(names)}")
    for name in names:
        if name not in item:
            raise ProblemError(f"{place} lacks {name!r}; it must have {', '.join(names)}")
    for name in item:
        if name not in names:
            raise ProblemError(f"{place} has an unknown {name!r}; it may have {', '.join(names)}")
    return item


def _list(item: object, place: str) -> list[Any]:
    if not isinstance(item, list):
        raise ProblemError(f"{place} must be a list")
    return item


def _is_number(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} stands twice in one object; keep one")
    return item
