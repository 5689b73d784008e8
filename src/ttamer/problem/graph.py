"""Nodes and edges, checked, and what follows from them.

A node's *state* is what asking it reveals; each state has a loss. An edge records that its target
may be asked once its source has been (from ``None``: from the start), what that costs, and how the
target's state depends on the source's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted
from ttamer.errors import ArgumentError, ProblemError
from ttamer.problem.checks import (
    SMALLEST,
    check_edges,
    check_nodes,
    check_shape,
    topological_order,
    without_traces,
)

Moves = Literal["precedence", "walk"]
# Numbers that are no node's: before the first node there is the start, after the last one nothing.
START = STOP = -1


@dataclass(frozen=True, eq=False)
class Node:
    """One exit or model that can be asked.

    Args:
        name: Its name, unique in the problem.
        losses: What its answer loses in each of its states; ``inf`` where it has no answer.
            Losses below 1e-150 count as 0, and so do costs of edges and tradeoffs.

    Raises:
        ProblemError: If the losses are not numbers.

    >>> Node("small", [0.1, 0.6]).losses.tolist()
    [0.1, 0.6]
    """

    name: str
    losses: NDArray[np.float64]
    """Shape (states,). What its answer loses in each state; ``inf`` where it has no answer."""

    def __init__(self, name: str, losses: ArrayLike) -> None:
        object.__setattr__(self, "name", name)
        values = without_traces(_frozen_array(losses, f"node {name!r}: losses"))
        values.setflags(write=False)
        object.__setattr__(self, "losses", values)


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
        probabilities: One row per state of the source, one column per state of the target.
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
    """One number; or of shape (states of source,); or (states of source, states of target)."""
    probabilities: NDArray[np.float64]
    """Shape (states of source, states of target); one row from the start. Rows sum to 1."""
    verify_cost: float | None = None
    """The additional cost of observing the state; ``None`` where it comes with the answer."""

    def __init__(
        self,
        source: str | tuple[str, ...] | None,
        target: str,
        *,
        cost: ArrayLike,
        probabilities: ArrayLike,
        verify_cost: float | None = None,
    ) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "target", target)
        if isinstance(verify_cost, float) and 0 < verify_cost < SMALLEST:
            verify_cost = 0.0
        object.__setattr__(self, "verify_cost", verify_cost)
        try:
            costs = np.array(float(cost) if np.ndim(cost) == 0 else cost, dtype=np.float64)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ProblemError(
                f"{self}: cost must be a number, a list with one number per state of the source, "
                f"or a table with one row per state of the source, not {cost!r}"
            ) from None
        costs = without_traces(costs)
        costs.setflags(write=False)
        object.__setattr__(self, "cost", float(costs) if costs.ndim == 0 else costs)
        rows = _frozen_array(probabilities, f"{self}: probabilities")
        if source is None and rows.ndim == 1:
            rows = rows[np.newaxis]
        object.__setattr__(self, "probabilities", rows)

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
    """What a :class:`~ttamer.Problem` holds: its nodes and edges, and what follows from them.

    Args:
        moves: ``"precedence"`` or ``"walk"``.
        nodes: The nodes.
        edges: The edges between them, and from the start.

    Raises:
        ProblemError: If names, numbers or edges break a rule; the message names the place.
    """

    moves: Moves
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    number: Mapping[str, int] = field(init=False)
    """The position of each node by its name."""
    ends: tuple[tuple[int, int], ...] = field(init=False)
    """(source, target) node numbers of each edge; the start is -1; of several sources the first."""
    sources: tuple[tuple[int, ...], ...] = field(init=False)
    """The numbers of all sources of each edge; the start is -1."""
    outgoing: tuple[tuple[int, ...], ...] = field(init=False)
    """Edge numbers leaving each node, in the order given; the last entry is the start's."""
    incoming: tuple[tuple[int, ...], ...] = field(init=False)
    """Edge numbers entering each node."""
    order: tuple[int, ...] = field(init=False)
    """Node numbers, every source before its targets."""
    grid: LossGrid = field(init=False)
    """Every value the best loss so far can take."""

    def __post_init__(self) -> None:
        number = check_nodes(self.moves, self.nodes)
        ends = check_edges(self.moves, self.nodes, self.edges, number)
        outgoing: list[list[int]] = [[] for _ in range(len(self.nodes) + 1)]
        incoming: list[list[int]] = [[] for _ in self.nodes]
        for edge, (sources, target) in enumerate(ends):
            for source in sources:
                outgoing[source].append(edge)
            incoming[target].append(edge)
        check_shape(self.moves, self.nodes, self.edges, incoming)
        derived = {
            "nodes": tuple(self.nodes),
            "edges": tuple(self.edges),
            "number": number,
            "ends": tuple((sources[0], target) for sources, target in ends),
            "sources": tuple(sources for sources, _ in ends),
            "outgoing": tuple(map(tuple, outgoing)),
            "incoming": tuple(map(tuple, incoming)),
            "order": topological_order(self.nodes, ends, outgoing),
            "grid": LossGrid.of(node.losses for node in self.nodes),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        nodes, edges = counted(len(self.nodes), "node"), counted(len(self.edges), "edge")
        return f"{type(self).__name__}({self.moves}, {nodes}, {edges})"

    @property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return tuple(node.name for node in self.nodes)

    @property
    def starts(self) -> tuple[int, ...]:
        """Edge numbers that leave the start."""
        return self.outgoing[-1]

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

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The number of each node's parent in a forest; -1 for the start."""
        return tuple(self.ends[edges[0]][0] for edges in self.incoming)

    def count_states(self, number: int) -> int:
        """Return how many states a node has.

        Args:
            number: The number of the node; -1 for the start, which has one.

        Returns:
            The count.
        """
        return 1 if number == START else len(self.nodes[number].losses)

    def targets(self, number: int) -> list[int]:
        """Return the nodes that the edges of a node lead to.

        Args:
            number: The number of the node; -1 for the start.

        Returns:
            Their numbers, in the order of the edges.
        """
        return [self.ends[edge][1] for edge in self.outgoing[number]]

    def descendants(self, number: int) -> list[int]:
        """Return the nodes of a forest below a node.

        Args:
            number: The number of the node; -1 for the start.

        Returns:
            Their numbers, every parent before its children.
        """
        nodes = [number]
        for node in nodes:  # grows as it goes
            nodes += self.targets(node)
        return nodes[1:]

    def parent_edge(self, number: int) -> Edge:
        """Return the one edge that enters a node of a forest.

        Args:
            number: The number of the node.

        Returns:
            The edge.
        """
        return self.edges[self.incoming[number][0]]


def _frozen_array(values: ArrayLike, what: str) -> NDArray[np.float64]:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"{what} must be numbers in rows of equal length") from None
    array.setflags(write=False)
    return array
