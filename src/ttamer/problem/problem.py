"""A problem: all that the optimum depends on, and nothing else.

``moves`` sets what may be asked next:

- ``"precedence"``: any node whose parent has been asked (multi-line, tree, forest). Given
  their parent's state, siblings are independent: check that on your trace.
- ``"walk"``: a successor of the node asked last (line, skip, any directed acyclic graph).

On a line the two are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, require_kind
from ttamer.errors import ProblemError
from ttamer.problem.checks import check_form, read_json, write_json
from ttamer.problem.graph import Edge, Graph, Moves, Node


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

    # Topologies. ``losses`` is one support for every node, or a sequence of one per node.

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

        Raises:
            ProblemError: If sizes or numbers do not fit.

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

        Raises:
            ProblemError: If one of them is not a line.

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
    def tree(
        cls,
        losses: ArrayLike | Sequence[ArrayLike],
        costs: Sequence[ArrayLike],
        probabilities: Sequence[ArrayLike],
        parents: Sequence[int | None],
        *,
        names: Sequence[str] | None = None,
    ) -> Problem:
        """One root, and any number of branches.

        Args:
            losses: One list of losses for all nodes, or one list per node.
            costs: One cost per node (see :class:`Edge`).
            probabilities: One table per node, of shape (states of its parent, states).
            parents: The number of each node's parent; ``None`` for the root.
            names: By default ``m1``, ``m2``, ...

        Returns:
            The problem, under precedence.

        Raises:
            ProblemError: If sizes or numbers do not fit, or there is not one root.

        >>> half = [0.5, 0.5]
        >>> Problem.tree([0.0, 1.0], [0.1] * 3, [half, [half] * 2, [half] * 2], [None, 0, 0])
        Problem(precedence, 3 nodes, 3 edges)
        """
        roots = [i for i, parent in enumerate(parents) if parent is None]
        if len(roots) != 1:
            raise ProblemError(
                f"tree: {len(roots)} nodes have parent None, and a tree has one root; "
                "use Problem.forest for several"
            )
        return _joined("precedence", losses, costs, probabilities, parents, names)

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
        """Any number of trees; a node may be asked once its parent has been.

        Args:
            losses: One list of losses for all nodes, or one list per node.
            costs: One cost per node (see :class:`Edge`).
            probabilities: One table per node, of shape (states of its parent, states).
            parents: The number of each node's parent; ``None`` for a root.
            names: By default ``m1``, ``m2``, ...

        Returns:
            The problem, under precedence.

        Raises:
            ProblemError: If sizes or numbers do not fit.

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
            losses: One list of losses for all nodes, or one list per node.
            costs: One cost per node, or one per pair like ``probabilities`` (see :class:`Edge`).
            probabilities: ``probabilities[u, v]`` is the transition from node u (``None``: the
                start) to every later node v.
            names: By default ``m1``, ``m2``, ...

        Returns:
            The problem, a walk.

        Raises:
            ProblemError: If a pair is missing, or sizes or numbers do not fit.

        >>> half = [0.5, 0.5]
        >>> rows = {(None, 0): half, (None, 1): half, (0, 1): [half, half]}
        >>> Problem.skip([0.0, 1.0], [0.1, 0.2], rows)
        Problem(walk, 2 nodes, 3 edges)
        """
        for key in probabilities:
            if not (isinstance(key, tuple) and len(key) == 2 and _is_pair(*key)):
                raise ProblemError(
                    f"skip: {key!r} is no pair of node numbers: write (None, 0) or (0, 1)"
                )
        count = 1 + max((v for _, v in probabilities), default=-1)
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
            for pair in table:
                if pair not in pairs:
                    raise ProblemError(f"skip: the pair {pair} does not go from earlier to later")
            for pair in pairs:
                if pair not in table:
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

        Raises:
            ProblemError: If it is not a line, or a cost depends on a state.

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
        form = check_form(data)
        nodes = tuple(Node(**node) for node in form["nodes"])
        edges = tuple(Edge(edge.pop("from"), edge.pop("to"), **edge) for edge in form["edges"])
        return cls(form["moves"], nodes, edges)

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
        try:
            return cls.from_dict(read_json(path))
        except ProblemError as error:
            raise ProblemError(f"{path}: {error}") from None

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
        write_json(self.to_dict(), path)


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
        if parent is None:
            continue
        if not isinstance(parent, int | np.integer):
            raise ProblemError(f"parents[{node}] is {parent!r}; give a node's number, or None")
        if not 0 <= parent < count:
            raise ProblemError(f"parents[{node}] is {parent}, and there are {count} nodes")
    return Problem(
        moves,
        nodes,
        tuple(_edge(nodes, parents[v], v, costs[v], probabilities[v]) for v in range(count)),
    )


def _is_pair(source: object, target: object) -> bool:
    return isinstance(source, int | np.integer | None) and isinstance(target, int | np.integer)


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
