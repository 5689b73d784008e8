"""Answers that may be returned unseen (non-obligatory inspection).

An edge with a ``verify_cost`` has two prices: asking its target costs ``cost``, and looking at the
answer, so that its state is known, costs ``verify_cost`` more. Returning the answer without
looking is one more action: it pays ``cost``, loses what the target loses on average given the
source's state, and ends the search.

On a walk that is an ordinary problem with one leaf more per such edge: its state follows from the
source's, and its loss is that average. :func:`with_leaves` builds it, and solving it is exact.

Under precedence, leaves would be wrong: a node that has been looked at must not be returned as if
it had not. There every node is committed, for each state of its parent, either to be looked at or
to be returned unseen (:func:`committed`); solvers/hedging.py chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ttamer.problem.problem import Edge, Node, Problem


def with_leaves(problem: Problem) -> Problem:
    """Return a walk in which answers that may be returned unseen are leaves of their own.

    >>> edge = Edge(None, "a", cost=0.1, verify_cost=0.2, probabilities=[0.5, 0.5])
    >>> with_leaves(Problem("walk", (Node("a", [0.0, 1.0]),), (edge,))).names
    ('a', 'a (unseen)')
    """
    nodes, edges = list(problem.nodes), []
    for number, edge in enumerate(problem.edges):
        edges.append(_looked_at(edge))
        means = mean_losses(problem, number)
        # Where the mean is infinite after some states of the source, it is never returned there.
        if edge.verify_cost is None or not np.isfinite(means).any():
            continue
        several = len(problem.incoming[problem.ends[number][1]]) > 1
        after = f" after {edge.source or 'the start'}" if several else ""
        name = free_name(f"{edge.target} (unseen{after})", [node.name for node in nodes])
        nodes.append(Node(name, means))
        cost = edge.expected_costs
        rows = np.eye(len(means))
        edges.append(Edge(edge.source, name, cost=cost, probabilities=rows))
    return Problem("walk", tuple(nodes), tuple(edges))


def mean_losses(problem: Problem, number: int) -> NDArray[np.float64]:
    """Return what the target of an edge loses on average, shape (states of the source,)."""
    losses = problem.nodes[problem.ends[number][1]].losses
    rows = problem.edges[number].probabilities
    finite = rows @ np.where(np.isinf(losses), 0.0, losses)
    return np.where((rows > 0) @ np.isinf(losses), np.inf, finite)


def committed(problem: Problem, unseen: Sequence[NDArray[np.bool_]]) -> Problem:
    """Return a forest in which some nodes are returned unseen after some states of their parents.

    ``unseen`` has, per node, one truth value per state of its parent (one for a root). A node's
    states are its own; then one for each state of its parent, in which it was not looked at and
    loses its mean; then one in which it cannot be asked, since its parent was not looked at.
    """
    nodes, edges = [], []
    sizes = [len(node.losses) for node in problem.nodes]
    for node, own in enumerate(problem.nodes):
        number = problem.incoming[node][0]
        edge, parent = problem.edges[number], problem.ends[number][0]
        given, chosen = len(edge.probabilities), unseen[node]
        means = mean_losses(problem, number)
        nodes.append(Node(own.name, np.concatenate([own.losses, means, [np.inf]])))
        rows = np.zeros((given, sizes[node] + given + 1))
        rows[~chosen, : sizes[node]] = edge.probabilities[~chosen]
        rows[chosen, sizes[node] + np.flatnonzero(chosen)] = 1.0
        cost = edge.expected_costs + np.where(chosen, 0.0, edge.verify_cost or 0.0)
        if not edge.is_cost_fixed and np.ndim(edge.cost) == edge.probabilities.ndim:
            # What is observed with the state costs what it costs; unseen, what it does on average.
            cost = np.tile(cost[:, np.newaxis], rows.shape[1])
            looked = edge.cost_table + (edge.verify_cost or 0.0)
            cost[~chosen, : sizes[node]] = looked[~chosen]
        if parent >= 0:  # the states of the parent without a look, and without an answer
            extra = len(problem.parent_edge(parent).probabilities) + 1
            closed = np.zeros((extra, rows.shape[1]))
            closed[:, -1] = 1.0
            rows = np.concatenate([rows, closed])
            cost = np.concatenate([cost, np.zeros((extra, *cost.shape[1:]))])
        edges.append(Edge(edge.source, edge.target, cost=cost, probabilities=rows))
    return Problem("precedence", tuple(nodes), tuple(edges))


def _looked_at(edge: Edge) -> Edge:
    """Return the edge at the price of asking and looking."""
    if edge.verify_cost is None:
        return edge
    cost = edge.cost + edge.verify_cost
    return Edge(edge.source, edge.target, cost=cost, probabilities=edge.probabilities)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with as many primes as make it free."""
    return name if name not in taken else free_name(f"{name}'", taken)
