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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
        raise ArgumentError(
            f"tradeoff must be a number from 0 (only cost counts) to 1 (only loss counts), "
            f"not {tradeoff!r}",
            param="tradeoff",
        )
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
        if not losses.min() >= 0:  # also true of NaN
            state = int(np.argmin(losses >= 0))
            raise ProblemError(
                f"node {node.name!r}, state {state}: the loss is {losses[state]}; "
                "losses must be numbers from 0 up (inf where the node has no answer). Where losses "
                "are negative, add one constant to all of them: it changes no decision"
            )
        answers = answers or losses.min() < math.inf
    if not answers:
        raise ProblemError("every loss is inf, so no node can answer: give some node finite losses")
    return number


def check_edges(
    moves: str, nodes: Sequence[Node], edges: Sequence[Edge], number: Mapping[str, int]
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Check names, costs and probabilities; return (sources, target) numbers, the start as -1."""
    ends: dict[tuple[tuple[int, ...], int], None] = {}
    for edge in edges:
        for name in (*edge.sources, edge.target):
            if name is not None and name not in number:
                raise ProblemError(
                    f"{edge}: there is no node {name!r}; the nodes are {', '.join(number)}"
                )
        if edge.target is None:
            raise ProblemError(f"{edge}: an edge must lead to a node")
        if moves == "walk" and len(edge.sources) > 1:
            raise ProblemError(
                f'{edge}: on a walk an edge leaves one node; use "moves": "precedence" for a node '
                "that is asked after several others"
            )
        if len(set(edge.sources)) < len(edge.sources):
            raise ProblemError(f"{edge}: a node is given twice as its source; keep one")
        sources = tuple(number[name] for name in edge.sources) or (-1,)
        target = number[edge.target]
        if (sources, target) in ends:
            raise ProblemError(f"{edge}: given twice; keep one")
        ends[sources, target] = None
        sizes = tuple(1 if source < 0 else nodes[source].losses.size for source in sources)
        _check_cost(edge, sizes, nodes[target].losses.size)
        _check_rows(edge, sizes, nodes[target].losses.size)
    return tuple(ends)


def _check_cost(edge: Edge, sources: tuple[int, ...], targets: int) -> None:
    if edge.verify_cost is not None:
        if not (is_number(edge.verify_cost) and 0 <= edge.verify_cost < math.inf):
            raise ProblemError(
                f"{edge}: verify_cost is {edge.verify_cost!r}; it must be finite and not negative"
            )
        if len(sources) > 1:
            raise ProblemError(
                f"{edge}: has verify_cost and several sources; only an answer asked after one "
                "node, or at the start, may be returned unseen: remove verify_cost"
            )
    costs = np.asarray(edge.cost)
    if costs.ndim and costs.shape not in (sources, (*sources, targets)):
        rows = " x ".join(map(str, sources))
        raise ProblemError(
            f"{edge}: the costs have shape {costs.shape}; give one number, a list of {rows} "
            f"(one per state of the source), or a table of {rows} row(s) of {targets} (one per "
            "state of the target)"
        )
    valid = np.isfinite(costs) & (costs >= 0)
    if not valid.all():
        entry = np.argwhere(~valid)[0].tolist()
        where = ("", ", state {0}")[len(entry)] if len(entry) < 2 else ", row {0}, column {1}"
        raise ProblemError(
            f"{edge}{where.format(*entry[:1], *entry[-1:])}: the cost is {costs[tuple(entry)]}; "
            "it must be finite and not negative"
        )


def _check_rows(edge: Edge, sources: tuple[int, ...], targets: int) -> None:
    rows = edge.probabilities
    if rows.shape != (*sources, targets):
        states = " x ".join(map(str, sources))
        raise ProblemError(
            f"{edge}: probabilities have shape {rows.shape}, and must have {states} row(s), one "
            f"per state of the source, of {targets}, one per state of the target"
        )
    rows = rows.reshape(-1, targets)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = rows.dot(np.ones(targets))
    if not rows.min() >= 0:  # also NaN
        row, column = np.argwhere(~(rows >= 0))[0]
        raise ProblemError(
            f"{edge}, row {row}, column {column}: the probability is {rows[row, column]}; "
            "it must be a number from 0 to 1"
        )
    excess = np.abs(sums - 1)
    if excess.max() > 1e-9:
        row = int(excess.argmax())
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
    msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}
):
    """An edge of a ``problem.json``; its tables are checked by :func:`table_of`."""

    source: str | Annotated[list[str], msgspec.Meta(min_length=2)] | None
    target: str
    cost: float | list[Any]
    probabilities: list[Any]
    verify_cost: float | None = None


class ProblemForm(msgspec.Struct, forbid_unknown_fields=True):
    """The form of a ``problem.json``."""

    moves: str
    nodes: list[NodeForm]
    edges: list[EdgeForm]


def check_form(data: object) -> ProblemForm:
    """Check the form of what ``json.loads`` makes of a ``problem.json``.

    >>> nodes = [{"name": "a", "losses": ["inf"]}]
    >>> check_form({"moves": "walk", "nodes": nodes, "edges": []}).nodes[0].losses
    ['inf']
    """
    try:
        return msgspec.convert(data, ProblemForm)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None


def read_form(path: str | os.PathLike[str]) -> ProblemForm:
    """Read a ``problem.json``, or say in one line why it is none."""
    data = b""
    try:
        data = Path(path).read_bytes()
        form = msgspec.json.decode(data, type=ProblemForm)
        keys = 3 + 2 * len(form.nodes)
        keys += sum(4 + (edge.verify_cost is not None) for edge in form.edges)
        # Of equal keys msgspec takes the last. More keys than values, or names that look like keys:
        if data.count(b'":') + data.count(b'" :') > keys:
            json.loads(data, object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ProblemError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ProblemError("is not text in UTF-8") from None
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except msgspec.DecodeError as error:
        reason, _, place = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
        before = data[: int(place.rstrip(")"))] if place else data
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise ProblemError(f"is not JSON: line {line}, column {column}: {reason}") from None
    except RecursionError:
        raise ProblemError("is not a problem: its lists are nested too deeply") from None
    return form


def table_of(values: float | list[Any], what: str) -> float | NDArray[np.float64]:
    """Return nested lists of numbers as an array; refuse other entries, and ragged rows."""
    kind: Any = float
    entry: Any = values
    while isinstance(entry, list):
        kind, entry = list[kind], entry[0] if entry else None
    try:
        numbers = msgspec.convert(values, kind)  # truth values and text are no numbers
        if kind is float:
            return float(numbers)
        if kind != list[list[float]]:
            return np.array(numbers, dtype=np.float64)
        # Several times as fast as NumPy, which looks at every entry for its type.
        pack = struct.Struct(f"{len(numbers[0])}d").pack
        return np.frombuffer(b"".join([pack(*row) for row in numbers])).reshape(len(numbers), -1)
    except (msgspec.ValidationError, ValueError, struct.error):
        raise ProblemError(f"{what} must be numbers in rows of equal length") from None


def _refusal(error: msgspec.ValidationError) -> ProblemError:
    """Return what msgspec says of a wrong form, with its place first."""
    reason, _, place = str(error).partition(" - at `$")
    return ProblemError(
        f"{place.strip('.`') or 'the problem'}: {reason[0].lower()}{reason[1:]}; a problem has "
        'moves, nodes (name, losses: numbers or "inf") and edges (from: a name, several, or null; '
        "to, cost, probabilities, and verify_cost where answers may be returned unseen)"
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the key {repeated!r} stands twice in one object; keep one")
    return item
