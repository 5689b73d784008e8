"""A problem: all that the optimum depends on, and nothing else.

A node's *state* is what asking it reveals; each state has a loss. An edge records that its target
may be asked once its source has been (from ``None``: from the start), what that costs, and how the
target's state depends on the source's. ``moves`` sets what may be asked next:

- ``"precedence"``: any node whose parent has been asked (multi-line, tree, forest). Given
  their parent's state, siblings are independent: check that on your trace.
- ``"walk"``: a successor of the node asked last (line, skip, any directed acyclic graph).

On a line the two are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, require_kind, require_path
from ttamer.errors import ArgumentError, ProblemError
from ttamer.problem import checks

Moves = Literal["precedence", "walk"]
# Numbers that are no node's: before the first node there is the start, after the last one nothing.
START = STOP = -1
COST_FORM = (
    "a number, a list with one number per state of the source, or a table with one row per state "
    "of the source"
)


@dataclass(frozen=True, eq=False)
class Node:
    """One exit or model that can be asked.

    Args:
        name: Its name, unique in the problem.
        losses: Shape (states,): what its answer loses in each of its states; ``inf`` where it has
            no answer. Below 1e-150 they count as 0, and so do costs of edges and tradeoffs.

    Raises:
        ProblemError: If the losses are not numbers.

    >>> Node("small", [0.1, 0.6]).losses.tolist()
    [0.1, 0.6]
    """

    name: str
    losses: NDArray[np.float64]

    def __init__(self, name: str, losses: ArrayLike) -> None:
        values = _numbers(losses, f"node {name!r}: losses")
        vars(self).update(name=name, losses=_read_only(checks.without_traces(values)))


@dataclass(frozen=True, eq=False)
class Edge:
    """The right to ask ``target`` after ``source`` (``None``: at the start).

    Args:
        source: The name of the node that must have been asked; ``None`` for the start; under
            precedence also several names, all of which must have been asked. Tables are then
            nested by the states of the first, the second, and so on.
        target: The name of the node that may then be asked.
        cost: What asking costs: one number; a list with one number per state of the source; or a
            table with one row per state of the source (one from the start) and one column per
            state of the target, where the cost is observed with the target's state.
        probabilities: One row per state of the source, one column per state of the target; from the
            start one row, which may stand alone. Rows sum to 1.
        verify_cost: The additional cost of observing the target's state, where its answer may be
            returned unobserved; ``None`` where the state comes with the answer.

    Raises:
        ProblemError: If the cost or the probabilities are not numbers.

    >>> Edge(None, "small", cost=1.0, probabilities=[0.5, 0.5]).probabilities.shape
    (1, 2)
    """

    source: str | tuple[str, ...] | None
    target: str
    cost: float | NDArray[np.float64]
    probabilities: NDArray[np.float64]
    verify_cost: float | None = None

    def __init__(
        self,
        source: str | tuple[str, ...] | None,
        target: str,
        *,
        cost: ArrayLike,
        probabilities: ArrayLike,
        verify_cost: float | None = None,
    ) -> None:
        vars(self).update(source=source, target=target, verify_cost=verify_cost)
        costs = checks.without_traces(_numbers(cost, f"{self}: cost", COST_FORM))
        rows = _numbers(probabilities, f"{self}: probabilities")
        if source is None and rows.ndim == 1:
            rows = rows[np.newaxis]
        one = float(costs) if costs.ndim == 0 else _read_only(costs)
        vars(self).update(cost=one, probabilities=_read_only(rows))

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the nodes that must have been asked; none for the start."""
        if self.source is None:
            return ()
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def is_cost_fixed(self) -> bool:
        """Whether the cost is one number, whatever the states."""
        return isinstance(self.cost, float)

    @property
    def cost_table(self) -> NDArray[np.float64]:
        """Shape (states of source, states of target): the cost of each transition."""
        cost = np.asarray(self.cost)
        if 0 < cost.ndim < self.probabilities.ndim:
            cost = cost[..., np.newaxis]
        return np.broadcast_to(cost, self.probabilities.shape)

    @property
    def expected_costs(self) -> NDArray[np.float64]:
        """Shape (states of source,): the expected cost, given the state of the source.

        Only this enters the decision; what is paid is observed with the state of the target.
        """
        cost = np.asarray(self.cost)
        if cost.ndim < self.probabilities.ndim:
            return np.broadcast_to(cost, self.probabilities.shape[:-1])
        means: NDArray[np.float64] = np.einsum("...t,...t->...", cost, self.probabilities)
        return means

    def __str__(self) -> str:
        source = " + ".join(map(repr, self.sources)) or "start"
        return f"edge {source} -> {self.target!r}"


@dataclass(frozen=True, eq=False)
class LossGrid:
    """Distinct losses in increasing order; the last is always infinity.

    >>> grid = LossGrid.of([np.array([0.3, 0.1]), np.array([0.1, 0.9])])
    >>> grid.values.tolist()
    [0.1, 0.3, 0.9, inf]
    >>> grid.positions[0].tolist()
    [1, 0]
    """

    values: NDArray[np.float64]
    """Shape (columns,), in units of loss."""
    positions: tuple[NDArray[np.intp], ...]
    """One array per node: the column of each of its states' losses."""

    @classmethod
    def of(cls, losses: Iterable[NDArray[np.float64]]) -> LossGrid:
        """Build the grid that holds every loss of every node.

        Args:
            losses: One array per node, of shape (states,).

        Returns:
            The grid.
        """
        supports = list(losses)
        values = np.unique(np.concatenate([*supports, [np.inf]]))
        positions = tuple(np.searchsorted(values, support) for support in supports)
        for array in (values, *positions):
            array.setflags(write=False)
        return cls(values, positions)

    def __len__(self) -> int:
        return len(self.values)

    def column(self, loss: float) -> int:
        """Return the column of a loss that is on the grid.

        Args:
            loss: A loss of some node, or ``inf``.

        Returns:
            The column, from 0.

        Raises:
            ArgumentError: If no node has that loss.
        """
        column = int(np.searchsorted(self.values, loss))
        if column == len(self.values) or self.values[column] != loss:
            raise ArgumentError(
                f"{loss!r} is not a loss of this problem; the best loss so far is always one of "
                f"the {len(self.values) - 1} losses in grid.values, or inf before any answer"
            )
        return column


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes and edges of a :class:`~ttamer.Problem`, checked, and what follows from them."""

    moves: Moves
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    # Node names, in order.
    names: tuple[str, ...] = field(init=False)
    # The position of each node by its name.
    number: Mapping[str, int] = field(init=False)
    # (source, target) node numbers of each edge; the start is -1; of several sources the first.
    ends: tuple[tuple[int, int], ...] = field(init=False)
    # The numbers of all sources of each edge; the start is -1.
    sources: tuple[tuple[int, ...], ...] = field(init=False)
    # Edge numbers leaving each node, in the order given; the last entry is the start's.
    outgoing: tuple[tuple[int, ...], ...] = field(init=False)
    # Edge numbers entering each node.
    incoming: tuple[tuple[int, ...], ...] = field(init=False)
    # Node numbers, every source before its targets.
    order: tuple[int, ...] = field(init=False)
    # Every value the best loss so far can take.
    grid: LossGrid = field(init=False)

    def __post_init__(self) -> None:
        number = checks.check_nodes(self.moves, self.nodes)
        ends = checks.check_edges(self.moves, self.nodes, self.edges, number)
        outgoing: list[list[int]] = [[] for _ in range(len(self.nodes) + 1)]
        incoming: list[list[int]] = [[] for _ in self.nodes]
        for edge, (sources, target) in enumerate(ends):
            for source in sources:
                outgoing[source].append(edge)
            incoming[target].append(edge)
        checks.check_shape(self.moves, self.nodes, self.edges, incoming)
        vars(self).update(
            nodes=tuple(self.nodes),
            edges=tuple(self.edges),
            names=tuple(node.name for node in self.nodes),
            number=number,
            ends=tuple((sources[0], target) for sources, target in ends),
            sources=tuple(sources for sources, _ in ends),
            outgoing=tuple(map(tuple, outgoing)),
            incoming=tuple(map(tuple, incoming)),
            order=checks.topological_order(self.nodes, ends),
            grid=LossGrid.of(node.losses for node in self.nodes),
        )

    def __repr__(self) -> str:
        nodes, edges = counted(len(self.nodes), "node"), counted(len(self.edges), "edge")
        return f"{type(self).__name__}({self.moves}, {nodes}, {edges})"

    @property
    def all_answer(self) -> bool:
        """Whether every node has an answer in every state."""
        last = len(self.grid) - 1  # infinity's column
        return all(position.max() < last for position in self.grid.positions)

    @property
    def is_forest(self) -> bool:
        """Whether every node has one predecessor, so that one joint law is given."""
        return not self.has_joint_edges and all(len(edges) == 1 for edges in self.incoming)

    @property
    def has_joint_edges(self) -> bool:
        """Whether some node is asked after several others."""
        return any(len(sources) > 1 for sources in self.sources)

    @property
    def has_unseen_answers(self) -> bool:
        """Whether some answer may be returned without observing its state."""
        return any(edge.verify_cost is not None for edge in self.edges)

    @property
    def has_fixed_costs(self) -> bool:
        """Whether no cost depends on a state."""
        return all(edge.is_cost_fixed for edge in self.edges)

    @property
    def is_line(self) -> bool:
        """Whether the nodes form one directed line: then both kinds of moves are the same."""
        return self.is_forest and all(len(edges) <= 1 for edges in self.outgoing)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The number of each node's parent in a forest; -1 for the start."""
        return tuple(self.ends[edges[0]][0] for edges in self.incoming)

    def index_of(self, node: str) -> int:
        """Return a node's number.

        Args:
            node: Its name.

        Returns:
            Its position among the nodes, from 0.

        Raises:
            ArgumentError: If there is no such node.
        """
        try:
            return self.number[node]
        except (KeyError, TypeError):
            raise ArgumentError(
                f"there is no node {node!r}; the nodes are {', '.join(self.names)}"
            ) from None

    def count_states(self, number: int) -> int:
        """Return how many states a node (-1: the start, which has one) has."""
        return 1 if number == START else self.nodes[number].losses.size

    def targets(self, number: int) -> list[int]:
        """Return the nodes that the edges of a node (-1: the start) lead to, in their order."""
        return [self.ends[edge][1] for edge in self.outgoing[number]]

    def descendants(self, number: int) -> list[int]:
        """Return the nodes of a forest below a node (-1: the start), parents before children."""
        nodes = [number]
        for node in nodes:  # grows as it goes
            nodes += self.targets(node)
        return nodes[1:]

    def parent_edge(self, number: int) -> Edge:
        """Return the one edge that enters a node of a forest."""
        return self.edges[self.incoming[number][0]]


class Problem(Graph):
    """What may be asked, in which order, at which cost, with which losses.

    Args:
        moves: ``"precedence"`` or ``"walk"``.
        nodes: The nodes.
        edges: The edges between them, and from the start.

    Raises:
        ProblemError: If names, numbers or edges break a rule; the message names the place.

    >>> problem = Problem.line(
    ...     losses=[0.1, 0.5],
    ...     costs=[0.1, 0.2],
    ...     probabilities=[[0.5, 0.5], [[0.9, 0.1], [0.4, 0.6]]],
    ... )
    >>> problem
    Problem(walk, 2 nodes, 2 edges)
    """

    def with_moves(self, moves: Moves) -> Problem:
        """Return the same nodes and edges under one kind of moves.

        Args:
            moves: ``"precedence"`` or ``"walk"``.

        Returns:
            The problem; itself where nothing changes.

        Raises:
            ProblemError: If the edges do not allow it.

        >>> Problem.line([0.0], [1.0], [[1.0]]).with_moves("precedence")
        Problem(precedence, 1 node, 1 edge)
        """
        return self if moves == self.moves else Problem(moves, self.nodes, self.edges)

    # Topologies. They raise ProblemError where sizes or numbers do not fit, and name the place.

    @classmethod
    def line(
        cls,
        losses: ArrayLike | Sequence[ArrayLike],
        costs: Sequence[ArrayLike],
        probabilities: Sequence[ArrayLike],
        *,
        names: Sequence[str] | None = None,
        moves: Moves = "walk",
    ) -> Problem:
        """Each node after the one before: the exits of one network, a fixed cascade.

        Args:
            losses: One list of losses for all nodes, or one list per node.
            costs: One cost per node (see :class:`Edge`).
            probabilities: The first of shape (states,), the others (states before, states).
            names: By default ``m1``, ``m2``, ...
            moves: A line is solved fastest as a walk; ``"precedence"`` gives the same policy as a
                table of indices.

        Returns:
            The problem.

        >>> Problem.line([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]])
        Problem(walk, 2 nodes, 2 edges)
        """
        parents = [None if i == 0 else i - 1 for i in range(len(costs))]
        return _joined(moves, losses, costs, probabilities, parents, names)

    @classmethod
    def multi_line(cls, lines: Sequence[Problem]) -> Problem:
        """Several independent lines side by side; any of them may be continued next.

        Where two lines have a name in common (as by default), every name gets the number of its
        line in front.

        Args:
            lines: Problems that are lines, with either kind of moves.

        Returns:
            The problem under precedence.

        >>> line = Problem.line([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]])
        >>> Problem.multi_line([line, line]).names
        ('1.m1', '1.m2', '2.m1', '2.m2')
        """
        require_kind(lines, Iterable, "multi_line takes a list of problems", "write [one, two]")
        for position, line in enumerate(lines):
            require_problem(line, "multi_line")
            if not line.is_line:
                raise ProblemError(
                    f"multi_line: item {position} is not a line; use Problem.forest for trees"
                )
        joined = [name for line in lines for name in line.names]
        if len(set(joined)) < len(joined):
            lines = [_numbered(line, k) for k, line in enumerate(lines, start=1)]
        nodes = [node for line in lines for node in line.nodes]
        return cls("precedence", tuple(nodes), tuple(e for line in lines for e in line.edges))

    @classmethod
    def forest(
        cls,
        losses: ArrayLike | Sequence[ArrayLike],
        costs: Sequence[ArrayLike],
        probabilities: Sequence[ArrayLike],
        parents: Sequence[int | None],
        *,
        names: Sequence[str] | None = None,
    ) -> Problem:
        """One tree or several; a node may be asked once its parent has been.

        Args:
            losses: As for :meth:`line`, like ``costs`` and ``names``.
            costs: One per node.
            probabilities: One table per node, of shape (states of its parent, states).
            parents: The number of each node's parent; ``None`` for a root.
            names: One per node.

        Returns:
            The problem, under precedence.

        >>> Problem.forest([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5]] * 2, [None, None])
        Problem(precedence, 2 nodes, 2 edges)
        """
        return _joined("precedence", losses, costs, probabilities, parents, names)

    @classmethod
    def skip(
        cls,
        losses: ArrayLike | Sequence[ArrayLike],
        costs: Sequence[ArrayLike] | Mapping[tuple[int | None, int], ArrayLike],
        probabilities: Mapping[tuple[int | None, int], ArrayLike],
        *,
        names: Sequence[str] | None = None,
    ) -> Problem:
        """Increasing order, any node may be left out: the transitive closure of a line.

        Args:
            losses: As for :meth:`line`, like ``names``.
            costs: One cost per node, or one per pair like ``probabilities`` (see :class:`Edge`).
            probabilities: ``probabilities[u, v]`` is the transition from node u (``None``: the
                start) to every later node v.
            names: One per node.

        Returns:
            The problem, a walk.

        >>> half = [0.5, 0.5]
        >>> rows = {(None, 0): half, (None, 1): half, (0, 1): [half, half]}
        >>> Problem.skip([0.0, 1.0], [0.1, 0.2], rows)
        Problem(walk, 2 nodes, 3 edges)
        """
        try:
            count = 1 + max((v for _, v in probabilities), default=-1)
        except (TypeError, ValueError):
            raise ProblemError(
                "skip: probabilities are by pairs of node numbers: write (None, 0) or (0, 1)"
            ) from None
        nodes = _nodes(losses, count, names)
        # All edges from one node in increasing order: of equal ways the first one given is taken.
        pairs: list[tuple[int | None, int]] = [(None, v) for v in range(count)]
        pairs += [(u, v) for u in range(count) for v in range(u + 1, count)]
        if not isinstance(costs, Mapping):
            if len(costs) != count:
                raise ProblemError(
                    f"skip: {counted(len(costs), 'cost')} for {counted(count, 'node')}: give one "
                    "per node"
                )
            costs = {pair: costs[pair[1]] for pair in pairs}
        for what, table in (("probabilities", probabilities), ("costs", costs)):
            for pair in {*table} ^ {*pairs}:
                if pair in table:
                    raise ProblemError(f"skip: the pair {pair} does not go from earlier to later")
                raise ProblemError(f"skip: {what} lacks the pair {pair}")
        edges = [_edge(nodes, *pair, costs[pair], probabilities[pair]) for pair in pairs]
        return cls("walk", nodes, tuple(edges))

    @classmethod
    def skip_of(cls, line: Problem) -> Problem:
        """Let the nodes of a line be left out, at the same cost per node asked.

        The transition over a gap is the product of those in between: right for a true Markov
        chain. For fitted chains estimate each pair directly and use :meth:`skip`.

        Args:
            line: A problem that is a line, with fixed costs.

        Returns:
            The problem, a walk.

        >>> Problem.skip_of(Problem.line([0.0, 1.0], [0.1] * 2, [[0.5, 0.5], [[0.5, 0.5]] * 2]))
        Problem(walk, 2 nodes, 3 edges)
        """
        require_problem(line, "skip_of")
        if not line.is_line:
            raise ProblemError("skip_of: the problem is not a line")
        if not line.has_fixed_costs:
            raise ProblemError(
                "skip_of: a cost depends on the state of the node before, which a skip leaves out; "
                "use Problem.skip with a cost for every pair"
            )
        steps = [line.parent_edge(v).probabilities for v in line.order]
        probabilities: dict[tuple[int | None, int], NDArray[np.float64]] = {}
        for first, rows in enumerate(steps):
            source = first - 1 if first else None
            probabilities[source, first] = rows
            for target in range(first + 1, len(steps)):
                rows = rows @ steps[target]
                rows /= rows.sum(axis=1, keepdims=True)  # small errors of rows multiply
                probabilities[source, target] = rows
        return cls.skip(
            [line.nodes[v].losses for v in line.order],
            [line.parent_edge(v).cost for v in line.order],
            probabilities,
            names=[line.names[v] for v in line.order],
        )

    # Files: checks.py has their format.

    @classmethod
    def from_dict(cls, data: object) -> Problem:
        """Build a problem from the object form of ``problem.json``.

        Args:
            data: What ``json.loads`` makes of the file.

        Returns:
            The problem.

        Raises:
            ProblemError: If the form or the numbers break a rule; the message names the place.

        >>> edge = {"from": None, "to": "a", "cost": 0.1, "probabilities": [[0.5, 0.5]]}
        >>> nodes = [{"name": "a", "losses": [0.0, 1.0]}]
        >>> Problem.from_dict({"moves": "walk", "nodes": nodes, "edges": [edge]})
        Problem(walk, 1 node, 1 edge)
        """
        return cls._of_form(checks.form_of(lambda kind: msgspec.convert(data, kind)))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Problem:
        """Read and check a ``problem.json``.

        Args:
            path: The file.

        Returns:
            The problem.

        Raises:
            ProblemError: If the file cannot be read, or is not a problem.
        """
        require_path(path, "Problem.from_file", "build a problem of values with Problem.from_dict")
        try:
            return cls._of_form(checks.read_form(path))
        except ProblemError as error:
            raise ProblemError(f"{path}: {error}") from None

    @classmethod
    def _of_form(cls, form: checks.ProblemForm[Any]) -> Problem:
        nodes = tuple(Node(node.name, list(map(float, node.losses))) for node in form.nodes)
        edges = tuple(
            Edge(
                tuple(edge.source) if isinstance(edge.source, list) else edge.source,
                edge.target,
                cost=edge.cost,
                probabilities=edge.probabilities,
                verify_cost=edge.verify_cost,
            )
            for edge in form.edges
        )
        return cls(form.moves, nodes, edges)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the object form of ``problem.json``.

        Returns:
            Plain values, for ``json.dumps``.
        """
        nodes = [
            {"name": n.name, "losses": ["inf" if x == np.inf else x for x in n.losses.tolist()]}
            for n in self.nodes
        ]
        edges = [
            {
                "from": list(edge.source) if isinstance(edge.source, tuple) else edge.source,
                "to": edge.target,
                "cost": np.asarray(edge.cost).tolist(),
                "probabilities": edge.probabilities.tolist(),
                **({} if edge.verify_cost is None else {"verify_cost": edge.verify_cost}),
            }
            for edge in self.edges
        ]
        return {"moves": self.moves, "nodes": nodes, "edges": edges}

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a ``problem.json`` that reads back to the same numbers.

        Args:
            path: The file.
        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", "utf-8")


def _numbered(line: Problem, number: int) -> Problem:
    """Return a line with its number in front of every name."""
    nodes = tuple(Node(f"{number}.{node.name}", node.losses) for node in line.nodes)
    edges = tuple(
        replace(
            edge,
            source=f"{number}.{edge.source}" if edge.source else None,
            target=f"{number}.{edge.target}",
        )
        for edge in line.edges
    )
    return Problem(line.moves, nodes, edges)


def _joined(
    moves: Moves,
    losses: ArrayLike | Sequence[ArrayLike],
    costs: Sequence[ArrayLike],
    probabilities: Sequence[ArrayLike],
    parents: Sequence[int | None],
    names: Sequence[str] | None,
) -> Problem:
    """Return nodes each of which follows its parent."""
    count = len(costs)
    for what, size in (("probabilities", len(probabilities)), ("parents", len(parents))):
        if size != count:
            raise ProblemError(f"{size} {what} for {count} costs: give one of each per node")
    nodes = _nodes(losses, count, names)
    for node, parent in enumerate(parents):
        is_number = isinstance(parent, int | np.integer) and 0 <= parent < count
        if parent is not None and not is_number:
            raise ProblemError(
                f"parents[{node}] is {parent!r}; give a node's number below {count}, or None"
            )
    return Problem(
        moves,
        nodes,
        tuple(_edge(nodes, parents[v], v, costs[v], probabilities[v]) for v in range(count)),
    )


def _nodes(
    losses: ArrayLike | Sequence[ArrayLike], count: int, names: Sequence[str] | None
) -> tuple[Node, ...]:
    if names is None:
        names = [f"m{i + 1}" for i in range(count)]
    if len(names) != count:
        raise ProblemError(
            f"{counted(len(names), 'name')} for {counted(count, 'node')}: give one name per node"
        )
    remedy = "give one list of losses for all nodes, or one list per node"
    supports: Sequence[Any] = losses  # type: ignore[assignment]
    if not hasattr(supports, "__len__") or isinstance(supports, str):
        raise ProblemError(f"losses are {losses!r}: {remedy}")
    if len(supports) and np.ndim(supports[0]) == 0:
        supports = [losses] * count
    if len(supports) != count:
        raise ProblemError(
            f"{counted(len(supports), 'loss support')} for {counted(count, 'node')}: {remedy}"
        )
    return tuple(map(Node, names, supports))


def _edge(
    nodes: Sequence[Node], source: int | None, target: int, cost: ArrayLike, rows: ArrayLike
) -> Edge:
    name = None if source is None else nodes[source].name
    return Edge(name, nodes[target].name, cost=cost, probabilities=rows)


def require_problem(problem: object, what: str) -> None:
    """Refuse anything but a problem; a path is named with what to call.

    >>> require_problem("problem.json", "solve")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: solve needs a Problem, not str: read a file with Problem.from_...
    """
    remedy = "read a file with Problem.from_file(path), or build one, as with Problem.line(...)"
    require_kind(problem, Problem, f"{what} needs a Problem", remedy)


def _numbers(
    values: ArrayLike, what: str, form: str = "numbers in rows of equal length"
) -> NDArray[np.float64]:
    """Return a copy of numbers; truth values and text are none."""
    with suppress(TypeError, ValueError, OverflowError):
        numbers = np.array(values)
        if numbers.dtype.kind in "iuf":
            return numbers.astype(np.float64, copy=False)
    raise ProblemError(f"{what} must be {form}, not {values!r:.60}")


def _read_only(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.setflags(write=False)
    return array
