"""What makes a problem well formed, and ``problem.json``, the form in which it is written.

::

    {"moves": "precedence" | "walk",
     "nodes": [{"name": "small", "losses": [0.1, 0.6]}, ...],
     "edges": [{"from": null, "to": "small", "cost": 0.1, "probabilities": [[0.5, 0.5]]}, ...]}

``"from": null`` is the start, with one row of probabilities; any other edge has one row per state
of ``from``. JSON has no infinity, so an infinite loss is written ``"inf"``. A cost is one number,
a list with one number per state of ``from``, or a table with one row per state of ``from`` and one
column per state of ``to``. Under precedence ``"from": ["a", "b"]`` is a node asked after both: its
probabilities (and costs) are nested by the states of ``a``, then those of ``b``. An edge may have
a ``verify_cost``: looking at the answer of ``to`` costs that on top of ``cost``, and returning the
answer without a look is one more action.

Each check names the place and the remedy.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer._checks import as_float, is_number, require_kind
from ttamer.errors import ArgumentError, ProblemError

if TYPE_CHECKING:
    from ttamer.problem.problem import Edge, Node


# Products of two such numbers are still normal, so ties are compared in full precision.
SMALLEST = 1e-150
# A gain below this share of what it is compared with is rounding: stopping wins such ties.
TIE = 1e-13
Row = TypeVar("Row")


def without_traces(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Set numbers closer to 0 than ``SMALLEST`` to 0: solvers compare by relative differences.

    >>> without_traces(np.array([2.3e-308, 0.5, np.inf])).tolist()
    [0.0, 0.5, inf]
    """
    return np.where(np.abs(values) < SMALLEST, 0.0, values)


def check_tradeoff(tradeoff: float) -> float:
    """Return the tradeoff as a float; refuse what is not a number from 0 to 1.

    >>> check_tradeoff(0.7)
    0.7
    """
    value = math.nan
    with suppress(TypeError, ValueError, OverflowError):
        value = as_float(tradeoff)
    if not 0.0 <= value <= 1.0:
        text = f"tradeoff must be a number from 0 (only cost) to 1 (only loss), not {tradeoff!r}"
        raise ArgumentError(text, param="tradeoff")
    return value if value >= SMALLEST else 0.0


def check_tradeoffs(tradeoffs: Iterable[float]) -> NDArray[np.float64]:
    """Return distinct tradeoffs in increasing order; refuse what is not a number from 0 to 1.

    >>> check_tradeoffs([1, 0.5, 0.5]).tolist()
    [0.5, 1.0]
    """
    remedy = "give a list of numbers from 0 to 1"
    require_kind(tradeoffs, Iterable, "tradeoffs must be several numbers", remedy)
    values = sorted({check_tradeoff(tradeoff) for tradeoff in tradeoffs})
    if not values:
        raise ArgumentError("no tradeoffs were given: give at least one number from 0 to 1")
    return np.array(values)


def weigh_losses(
    losses: NDArray[np.float64], tradeoff: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Multiply losses by the tradeoff; an infinite loss stays infinite, even at tradeoff 0.

    >>> weigh_losses(np.array([0.5, np.inf]), 0.0).tolist()
    [0.0, inf]
    """
    finite = np.isfinite(losses)
    weighed = np.where(finite, losses, 0.0) * tradeoff
    return np.where(finite, weighed, np.inf)


def check_nodes(moves: str, nodes: Sequence[Node]) -> dict[str, int]:
    """Check names and losses; return each node's number by its name."""
    if moves not in ("precedence", "walk"):
        raise ProblemError(f'moves must be "precedence" or "walk", not {moves!r}')
    if not nodes:
        raise ProblemError("the problem has no nodes: give at least one model to ask")
    number: dict[str, int] = {}
    for position, node in enumerate(nodes):
        losses = node.losses
        if not isinstance(node.name, str) or not node.name:
            raise ProblemError(f"node {position}: name must be a non-empty string")
        if node.name in number:
            raise ProblemError(f"two nodes are named {node.name!r}: rename one of them")
        if losses.ndim != 1 or not losses.size:
            raise ProblemError(
                f"node {node.name!r}: losses must be a non-empty list, one loss per state"
            )
        if not losses.min() >= 0:  # also true of NaN
            state = int(np.argmin(losses >= 0))
            raise ProblemError(
                f"node {node.name!r}, state {state}: the loss is {losses[state]}; "
                "losses must be numbers from 0 up (inf where the node has no answer). Where losses "
                "are negative, add one constant to all of them: it changes no decision"
            )
        number[node.name] = position
    if all(node.losses.min() == math.inf for node in nodes):
        raise ProblemError("every loss is inf, so no node can answer: give some node finite losses")
    return number


def check_edges(
    moves: str, nodes: Sequence[Node], edges: Sequence[Edge], number: Mapping[str, int]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Check names, costs and probabilities; return (sources, target) numbers, the start as -1."""
    ends: dict[tuple[tuple[int, ...], int], None] = {}
    for edge in edges:
        names = edge.sources
        for name in (*names, edge.target):
            if name is None:
                raise ProblemError(f"{edge}: an edge must lead to a node")
            if name not in number:
                raise ProblemError(
                    f"{edge}: there is no node {name!r}; the nodes are {', '.join(number)}"
                )
        if moves == "walk" and len(names) > 1:
            raise ProblemError(
                f'{edge}: on a walk an edge leaves one node; use "moves": "precedence" for a node '
                "that is asked after several others"
            )
        end = tuple(number[name] for name in names) or (-1,), number[edge.target]
        if len(set(names)) < len(names) or end in ends:
            what = "given twice" if end in ends else "a node is given twice as its source"
            raise ProblemError(f"{edge}: {what}; keep one")
        ends[end] = None
        shape = tuple(nodes[node].losses.size if node >= 0 else 1 for node in (*end[0], end[1]))
        _check_cost(edge, shape)
        _check_rows(edge, shape)
    return tuple(ends)


def _check_cost(edge: Edge, shape: tuple[int, ...]) -> None:
    """Refuse costs that do not fit so many states of the sources and of the target."""
    look = edge.verify_cost
    if look is not None and not (is_number(look) and 0 <= look < math.inf):
        raise ProblemError(f"{edge}: verify_cost is {look!r}; it must be finite and not negative")
    if look is not None and len(shape) > 2:
        raise ProblemError(
            f"{edge}: has verify_cost and several sources; only an answer asked after one node, or "
            "at the start, may be returned unseen: remove verify_cost"
        )
    costs = np.asarray(edge.cost)
    if costs.ndim and costs.shape not in (shape[:-1], shape):
        rows = " x ".join(map(str, shape[:-1]))
        raise ProblemError(
            f"{edge}: the costs have shape {costs.shape}; give one number, a list of {rows} "
            f"(one per state of the source), or a table of {rows} row(s) of {shape[-1]} (one per "
            "state of the target)"
        )
    if not (costs.min() >= 0 and costs.max() < math.inf):  # also NaN
        entry = np.argwhere(~(np.isfinite(costs) & (costs >= 0)))[0].tolist()
        where = f", state {entry[0]}" if len(entry) == 1 else _place(entry) if entry else ""
        raise ProblemError(
            f"{edge}{where}: the cost is {costs[tuple(entry)]}; it must be finite and not negative"
        )


def _check_rows(edge: Edge, shape: tuple[int, ...]) -> None:
    """Refuse probabilities that do not fit these states, or that are none."""
    rows = edge.probabilities
    if rows.shape != shape:
        states = " x ".join(map(str, shape[:-1]))
        raise ProblemError(
            f"{edge}: probabilities have shape {rows.shape}, and must have {states} row(s), one "
            f"per state of the source, of {shape[-1]}, one per state of the target"
        )
    if not rows.min() >= 0:  # also NaN
        entry = np.argwhere(~(rows >= 0))[0].tolist()
        raise ProblemError(
            f"{edge}{_place(entry)}: the probability is {rows[tuple(entry)]}; "
            "it must be a number from 0 to 1"
        )
    with np.errstate(over="ignore"):
        sums = rows.dot(np.ones(shape[-1]))
    if not (sums.max() <= 1 + 1e-9 and sums.min() >= 1 - 1e-9):
        row = np.unravel_index(np.abs(sums - 1).argmax(), sums.shape)
        raise ProblemError(
            f"{edge}, row {' '.join(map(str, row))}: probabilities sum to {sums[row]:.12g}, not 1; "
            "normalise the row"
        )


def _place(entry: Sequence[int]) -> str:
    """Return where an entry of a table stands."""
    return f", row {' '.join(map(str, entry[:-1]))}, column {entry[-1]}"


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
                f"node {node.name!r} has {len(entering)} edges (from {parents}), and under "
                "precedence may have one; if it is asked after all of them, write one edge with "
                '"from": [...]; if after any of them, use "moves": "walk"'
            )


def topological_order(
    nodes: Sequence[Node], ends: Sequence[tuple[tuple[int, ...], int]]
) -> tuple[int, ...]:
    """Return node numbers with every source before its targets, or name the nodes of a cycle."""
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for sources, target in ends:
        sorter.add(target, *sources)
    try:
        return tuple(sorter.static_order())[1:]  # the start comes first
    except CycleError as error:
        names = ", ".join(repr(nodes[node].name) for node in sorted(set(error.args[1])))
        raise ProblemError(
            f"the edges form a cycle through {names}; a node can be asked once, so remove an edge"
        ) from None


class NodeForm(msgspec.Struct, forbid_unknown_fields=True):
    """A node of a ``problem.json``."""

    name: str
    losses: list[float | Literal["inf"]]


class EdgeForm(
    msgspec.Struct,
    Generic[Row],
    forbid_unknown_fields=True,
    rename={"source": "from", "target": "to"},
):
    """An edge of a ``problem.json``."""

    source: str | Annotated[list[str], msgspec.Meta(min_length=2)] | None
    target: str
    cost: float | list[Any]
    probabilities: list[Row]
    verify_cost: float | None = None


class ProblemForm(msgspec.Struct, Generic[Row], forbid_unknown_fields=True):
    """The form of a ``problem.json``."""

    moves: str
    nodes: list[NodeForm]
    edges: list[EdgeForm[Row]]


def form_of(parse: Callable[[Any], ProblemForm[Any]]) -> ProblemForm[Any]:
    """Return what ``parse`` makes of a problem as a type; say in one line what is wrong with it.

    >>> nodes = [{"name": "a", "losses": ["inf"]}]
    >>> data = {"moves": "walk", "nodes": nodes, "edges": []}
    >>> form_of(lambda kind: msgspec.convert(data, kind)).nodes[0].losses
    ['inf']
    """
    try:
        with suppress(msgspec.ValidationError):
            form = parse(ProblemForm[list[float]])  # nearly all problems: checked while it is read
            for edge in form.edges:
                edge.probabilities = packed(edge.probabilities)  # type: ignore[assignment]
            return form
        return parse(ProblemForm[Any])
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        raise ProblemError(
            f"{place.strip('.`') or 'the problem'}: {reason[0].lower()}{reason[1:]}; a problem has "
            'moves, nodes (name, losses: numbers or "inf") and edges (from: a name, several, or '
            "null; to, cost, probabilities, and verify_cost where answers may be returned unseen)"
        ) from None


def read_form(path: str | os.PathLike[str]) -> ProblemForm[Any]:
    """Read a ``problem.json``, or say in one line why it is none."""
    data = b""
    try:
        data = Path(path).read_bytes()
        form = form_of(lambda kind: msgspec.json.decode(data, type=kind))
        keys = 3 + 2 * len(form.nodes)
        keys += sum(4 + (edge.verify_cost is not None) for edge in form.edges)
        # Of equal keys msgspec takes the last. More colons than keys are in values, or repeat them.
        if data.count(b":") > keys:
            json.loads(data, object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ProblemError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProblemError("is not text in UTF-8") from None
    except msgspec.DecodeError as error:
        reason, _, place = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
        before = data[: int(place.rstrip(")"))] if place else data
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise ProblemError(f"is not JSON: line {line}, column {column}: {reason}") from None
    except RecursionError:
        raise ProblemError("is not a problem: its lists are nested too deeply") from None
    return form


def packed(rows: list[list[float]]) -> list[list[float]] | NDArray[np.float64]:
    """Return rows of numbers as a table, several times as fast as NumPy; ragged rows as they are.

    >>> packed([[0.5, 0.5]]).shape, packed([[1.0], [0.5, 0.5]])
    ((1, 2), [[1.0], [0.5, 0.5]])
    """
    pack = struct.Struct(f"{len(rows[0]) if rows else 0}d").pack
    try:
        return np.frombuffer(b"".join([pack(*row) for row in rows])).reshape(len(rows), -1)
    except (ValueError, struct.error):
        return rows


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} stands twice in one object; keep one")
    return item
