"""``problem.json``: reading and writing problems as text people can edit.

::

    {"moves": "precedence" | "walk",
     "nodes": [{"name": "small", "losses": [0.1, 0.6]}, ...],
     "edges": [{"from": null, "to": "small", "cost": 0.1, "probabilities": [[0.5, 0.5]]}, ...]}

``"from": null`` is the start, with one row of probabilities; any other edge has one row per state
of ``from``. JSON has no infinity, so an infinite loss is written ``"inf"``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.errors import ProblemError
from ttamer.problem import Edge, Node, Problem

if TYPE_CHECKING:
    import os

__all__ = ["problem_from_dict", "problem_to_dict", "read_problem", "write_problem"]


def read_problem(path: str | os.PathLike[str]) -> Problem:
    """Read and check a ``problem.json``."""
    try:
        data = json.loads(Path(path).read_text("utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProblemError(f"{path}: is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path}: is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError) as error:  # too deep; an integer of too many digits
        raise ProblemError(f"{path}: is not a problem: {error}") from None
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None
    try:
        return problem_from_dict(data)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from None


def write_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a ``problem.json`` that reads back to the same numbers."""
    text = json.dumps(problem_to_dict(problem), indent=1, allow_nan=False)
    Path(path).write_text(text + "\n", "utf-8")


def problem_from_dict(data: object) -> Problem:
    """Build a problem from the object form of ``problem.json``.

    >>> problem_from_dict({
    ...     "moves": "walk",
    ...     "nodes": [{"name": "only", "losses": [0.2]}],
    ...     "edges": [{"from": None, "to": "only", "cost": 1, "probabilities": [[1]]}],
    ... })
    Problem(walk, 1 nodes, 1 edges)
    """
    fields = _fields(data, "the problem", ("moves", "nodes", "edges"))
    nodes = []
    for position, item in enumerate(_list(fields["nodes"], "nodes")):
        node = _fields(item, f"nodes[{position}]", ("name", "losses"))
        name = node["name"]
        if not isinstance(name, str):
            raise ProblemError(f"nodes[{position}]: name must be a string, not {name!r}")
        losses = [_loss(loss) for loss in _list(node["losses"], f"node {name!r}: losses")]
        nodes.append(Node(name, losses))
    edges = []
    for position, item in enumerate(_list(fields["edges"], "edges")):
        edge = _fields(item, f"edges[{position}]", ("from", "to", "cost", "probabilities"))
        for end in ("from", "to"):
            if not isinstance(edge[end], str) and (end == "to" or edge[end] is not None):
                raise ProblemError(f"edges[{position}]: {end!r} must name a node, not {edge[end]!r}")
        if isinstance(edge["cost"], bool | str):
            raise ProblemError(f"edges[{position}]: cost must be a number, not {edge['cost']!r}")
        edges.append(
            Edge(edge["from"], edge["to"], cost=edge["cost"], probabilities=edge["probabilities"])
        )
    return Problem(fields["moves"], tuple(nodes), tuple(edges))


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Return the object form of ``problem.json``."""
    return {
        "moves": problem.moves,
        "nodes": [
            {
                "name": node.name,
                "losses": [loss if loss < math.inf else "inf" for loss in node.losses.tolist()],
            }
            for node in problem.nodes
        ],
        "edges": [
            {
                "from": edge.source,
                "to": edge.target,
                "cost": edge.cost,
                "probabilities": edge.probabilities.tolist(),
            }
            for edge in problem.edges
        ],
    }


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


def _loss(loss: object) -> Any:
    if isinstance(loss, str):
        return math.inf if loss == "inf" else math.nan
    return loss


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} stands twice in one object; keep one")
    return item
