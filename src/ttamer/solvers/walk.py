"""The walk solver: backward over a directed acyclic graph, on the grid of losses.

State
    (x, s, u): the best loss so far, the state of the node asked last, that node.
Actions
    stop with loss x, or go along an edge (u, v), pay its cost, and see v's state y.
Recursion
    ``Phi(x, s, u) = min(x, min over edges (u, v) of going on)``, where going on to v comes to
    ``c(u, v) + sum_y P_uv(s, y) Phi(min(x, l_v(y)), y, v)``.
    Without recall the state is (s, u), and stopping costs l_u(s).
Ties
    When stopping and going on are equal, stop; between edges, the first given.
Cost
    One gather per node and one matrix product per edge: O(edges * |V|^2 * columns) time and
    O(nodes * |V| * columns) space. Many tradeoffs are columns of the same product, since
    the position of a loss on the grid does not depend on the tradeoff.
Reference
    The paper's Alg. 2 (line) and section C.3 (skip), with the comparison and the recursion put
    right (docs/paper.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ProblemError
from ttamer.policy.expected_walk import START, STOP
from ttamer.policy.surrogate import tie_slack
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.tradeoff import weigh_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.problem.problem import Problem

__all__ = ["NO_SURE_ANSWER", "solve_walk"]

NO_SURE_ANSWER = (
    "with some probability every node that can be asked has loss inf, so no policy is sure of an "
    "answer: give some node finite losses in every state that can occur"
)


def solve_walk(
    problem: Problem, tradeoffs: NDArray[np.float64], *, recall: bool
) -> list[WalkPolicy]:
    """Solve a walk for several tradeoffs at once.

    Arrays below have shape (states, tradeoffs, columns): one column per loss on the grid, or one
    only without recall.
    """
    count = len(tradeoffs)
    weights = tradeoffs[:, np.newaxis]
    fallback = weigh_losses(problem.grid.values, weights)
    edge_costs = np.array([edge.cost for edge in problem.edges])
    costs = (1 - weights) * edge_costs
    slack = tie_slack(problem, tradeoffs)[:, np.newaxis]

    places = len(problem.nodes) + 1  # the start's tables come last
    phi: list[NDArray[np.float64]] = [np.empty(0)] * places
    choices: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * places
    entry: list[NDArray[np.float64]] = [np.empty(0)] * places
    product = np.matmul if problem.all_answer else _product
    for place in (*reversed(problem.order), START):
        losses = problem.nodes[place].losses if place != START else np.array([np.inf])
        stop = (
            fallback[np.newaxis]
            if recall
            else weigh_losses(losses[:, np.newaxis, np.newaxis], weights)
        )
        best: NDArray[np.float64] | None = None
        towards: NDArray[np.int32] | np.int32 = np.int32(STOP)
        for edge in problem.outgoing[place]:
            target = problem.ends[edge][1]
            after = entry[target]
            value = product(problem.edges[edge].probabilities, after.reshape(len(after), -1))
            value = value.reshape(len(losses), *after.shape[1:])
            value += costs[:, edge, np.newaxis]
            if best is None:
                best, towards = value, np.int32(target)
            else:
                better = value < best - slack
                best = np.where(better, value, best)
                towards = np.where(better, np.int32(target), towards)
        if best is None:
            table = np.broadcast_to(stop, (len(losses), count, stop.shape[2]))
            choices[place] = np.broadcast_to(towards, table.shape)
        else:
            choices[place] = np.where(best < stop - slack, towards, np.int32(STOP))
            table = np.minimum(stop, best, out=best)
        phi[place] = entry[place] = table
        if recall and place != START:
            # On arrival the best so far is min(x, l(y)): beyond l(y)'s column nothing changes.
            # Phi never falls in x, so capping it there is the same.
            capped = table[np.arange(len(losses)), :, problem.grid.positions[place]]
            entry[place] = np.minimum(table, capped[:, :, np.newaxis])

    values = phi[START][0, :, -1]  # the search starts with x = infinity
    if not np.isfinite(values).all():
        raise ProblemError(NO_SURE_ANSWER)
    return [
        WalkPolicy(
            problem=problem,
            tradeoff=float(tradeoffs[i]),
            recall=recall,
            value=float(values[i]),
            choices=tuple(table[:, i] for table in choices),
            phi=tuple(table[:, i] for table in phi),
        )
        for i in range(count)
    ]


def _product(rows: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ after`` where a zero probability of an infinite value counts as zero."""
    with np.errstate(invalid="ignore"):
        product = rows @ after
    if not np.isfinite(product).all():
        infinite = np.isinf(after)
        product = rows @ np.where(infinite, 0.0, after)
        product[(rows > 0) @ infinite] = np.inf
    return product
