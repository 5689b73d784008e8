"""What makes a problem well formed. Each check names the place and the remedy.

The common case is checked in a few array operations per edge; only a problem that fails them
is searched for the first offending entry.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ttamer.problem.problem import Edge, Node

__all__ = ["ROW_SUM_TOLERANCE", "check_edges", "check_nodes", "check_shape", "topological_order"]

ROW_SUM_TOLERANCE = 1e-9


def check_nodes(moves: str, nodes: Sequence[Node]) -> dict[str, int]:
    """Check names and losses; return each node's number by its name."""
    if moves not in ("precedence", "walk"):
        raise ProblemError(f'moves must be "precedence" or "walk", not {moves!r}')
    if not nodes:
        raise ProblemError("the problem has no nodes: give at least one model to ask")
    number: dict[str, int] = {}
    answers = False
    for position, node in enumerate(nodes):
        if not isinstance(node.name, str) or not node.name:
            raise ProblemError(f"node {position}: name must be a non-empty string")
        if node.name in number:
            raise ProblemError(f"two nodes are named {node.name!r}: rename one of them")
        number[node.name] = position
        losses = node.losses
        if losses.ndim != 1 or not losses.size:
            raise ProblemError(
                f"node {node.name!r}: losses must be a non-empty list, one loss per state"
            )
        least = losses.min()
        if not least >= 0:  # also true of NaN
            state = int(np.argmin(losses >= 0))
            raise ProblemError(
                f"node {node.name!r}, state {state}: the loss is {losses[state]}; "
                "losses must be numbers from 0 up (inf where the node has no answer)"
            )
        answers = answers or least < math.inf
    if not answers:
        raise ProblemError("every loss is inf, so no node can answer: give some node finite losses")
    return number


def check_edges(
    nodes: Sequence[Node], edges: Sequence[Edge], number: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    """Check names, costs and probabilities; return (source, target) numbers, the start as -1."""
    ends: dict[tuple[int, int], None] = {}
    for edge in edges:
        for name in (edge.source, edge.target):
            if name is not None and name not in number:
                raise ProblemError(
                    f"{edge}: there is no node {name!r}; the nodes are {', '.join(number)}"
                )
        if edge.target is None:
            raise ProblemError(f"{edge}: an edge must lead to a node")
        source = -1 if edge.source is None else number[edge.source]
        target = number[edge.target]
        if (source, target) in ends:
            raise ProblemError(f"{edge}: given twice; keep one")
        ends[source, target] = None
        if not 0 <= edge.cost < math.inf:
            raise ProblemError(
                f"{edge}: the cost is {edge.cost}; it must be finite and not negative"
            )
        _check_rows(edge, 1 if source < 0 else nodes[source].losses.size, nodes[target].losses.size)
    return tuple(ends)


def _check_rows(edge: Edge, sources: int, targets: int) -> None:
    rows = edge.probabilities
    if rows.shape != (sources, targets):
        raise ProblemError(
            f"{edge}: probabilities have shape {rows.shape}, and must have {sources} row(s), one "
            f"per state of the source, of {targets}, one per state of the target"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        sums = rows.dot(np.ones(targets))
    if rows.min() >= 0 and np.abs(sums - 1).max() <= ROW_SUM_TOLERANCE:
        return
    if not (rows >= 0).all():  # also NaN
        row, column = np.argwhere(~(rows >= 0))[0]
        raise ProblemError(
            f"{edge}, row {row}, column {column}: the probability is {rows[row, column]}; "
            "it must be a number from 0 to 1"
        )
    row = int(np.argmax(np.abs(sums - 1)))
    raise ProblemError(
        f"{edge}, row {row}: probabilities sum to {sums[row]:.12g}, not 1; normalise the row"
    )


def check_shape(
    moves: str, nodes: Sequence[Node], edges: Sequence[Edge], incoming: Sequence[Sequence[int]]
) -> None:
    """Check what the kind of moves asks of the graph, before its order is looked for."""
    if not any(edge.source is None for edge in edges):
        raise ProblemError('no edge leaves the start: give at least one edge with "from": null')
    for node, entering in zip(nodes, incoming, strict=True):
        if not entering:
            raise ProblemError(
                f"node {node.name!r} cannot be reached: give it an edge, or leave it out"
            )
        if moves == "precedence" and len(entering) > 1:
            parents = ", ".join(str(edges[e].source or "start") for e in entering)
            raise ProblemError(
                f"node {node.name!r} has {len(entering)} parents ({parents}) and under "
                'precedence may have one; remove an edge, or use "moves": "walk"'
            )


def topological_order(
    nodes: Sequence[Node],
    ends: Sequence[tuple[int, int]],
    outgoing: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """Return node numbers with every source before its targets, or name the nodes of a cycle."""
    waiting = [0] * len(nodes)
    for _, target in ends:
        waiting[target] += 1
    order: list[int] = []
    ready = [-1]
    for place in ready:  # grows as we go
        if place >= 0:
            order.append(place)
        for edge in outgoing[place]:
            target = ends[edge][1]
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(order) < len(nodes):
        stuck = ", ".join(
            repr(node.name) for node, left in zip(nodes, waiting, strict=True) if left
        )
        raise ProblemError(
            f"the edges form a cycle, or a part the start does not lead to, through {stuck}; "
            "a node can be asked once, so remove an edge"
        )
    return tuple(order)
