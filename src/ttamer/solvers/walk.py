"""The walk solver: backward over a directed acyclic graph, on the grid of losses.

State
    (x, s, u): the best loss so far, the state of the node asked last, that node.
Actions
    stop with loss x, or go along an edge (u, v), pay its cost, and see v's state y.
Recursion
    ``Phi(x, s, u) = min(x, min over edges (u, v) of going on)``, where going on to v comes to
    ``c(u, v) + sum_y P_uv(s, y) Phi(min(x, l_v(y)), y, v)``.
    Without recall the state is (s, u), and stopping costs l_u(s).
No answer
    Where every way on may end without an answer, Phi is infinite at x = infinity. The policy then
    goes along the first edge given that leads to one.
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

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.walk import WalkPolicy, lead_to_answers
from ttamer.problem.checks import TIE, weigh_losses
from ttamer.problem.problem import START, STOP, Problem

# The bytes of one entry while a walk is solved: Phi, Phi on arrival, and the choice.
ENTRY_BYTES = 8 + 8 + 4
# Lines whose tables take more bytes are solved by their indices.
LINE_BYTES = 2**29
# Other walks whose tables take more are refused.
MAX_BYTES = 2**32

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
    if (size := table_bytes(problem, count, recall=recall)) > MAX_BYTES:
        raise ProblemError(
            f"the tables of this walk take {size / 1e9:.1f} GB, above {MAX_BYTES / 1e9:.1f}: they "
            "have one row per state and one column per distinct loss "
            f"({len(problem.grid) - 1} here); round the losses of the nodes to a common grid, use "
            "fewer states, or solve fewer tradeoffs at a time"
        )
    weights = tradeoffs[:, np.newaxis]
    fallback = weigh_losses(problem.grid.values, weights)
    tables = len(problem.nodes) + 1  # the start's come last
    phi: list[NDArray[np.float64]] = [np.empty(0)] * tables
    choices: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * tables
    arrival: list[NDArray[np.float64]] = [np.empty(0)] * tables
    leads = [] if problem.all_answer else lead_to_answers(problem)
    product = np.matmul if problem.all_answer else _product
    for node in (*reversed(problem.order), START):
        losses = problem.nodes[node].losses if node != START else np.array([np.inf])
        stop = fallback[np.newaxis]
        if not recall:
            stop = weigh_losses(losses[:, np.newaxis, np.newaxis], weights)
        shape = (len(losses), count, stop.shape[2])
        best: NDArray[np.float64] | None = None
        towards: NDArray[np.int32] | np.int32 = np.int32(STOP)
        following = np.full(len(losses), STOP, np.int32)  # the first that leads to an answer
        for number in problem.outgoing[node]:
            edge, target = problem.edges[number], problem.ends[number][1]
            onward = product(edge.probabilities, arrival[target].reshape(len(arrival[target]), -1))
            onward = onward.reshape(shape)
            cost = edge.cost if edge.is_cost_fixed else edge.expected_costs.reshape(-1, 1, 1)
            onward += cost * (1 - weights)
            if best is None:
                best, towards = onward, np.int32(target)
            else:
                better = onward < best * (1 - TIE)
                best = np.where(better, onward, best)
                towards = np.where(better, np.int32(target), towards)
            if leads:
                new = (following == STOP) & ((edge.probabilities > 0) @ leads[target])
                following[new] = target
        if best is None:
            best, goes_on = np.broadcast_to(stop, shape), np.zeros(shape, bool)
        else:
            goes_on = best < stop * (1 - TIE)
            best = np.minimum(stop, best, out=best)
        choices[node] = np.where(goes_on, towards, np.int32(STOP))
        if leads:
            unsure, last = np.isinf(best[..., -1]), choices[node][..., -1]
            choices[node][..., -1] = np.where(unsure, following[:, np.newaxis], last)
        phi[node] = arrival[node] = best
        if recall and node != START:
            # On arrival the best so far is min(x, l(y)): beyond l(y)'s column nothing changes.
            # Phi never falls in x, so capping it there is the same.
            capped = best[np.arange(len(losses)), :, problem.grid.positions[node]]
            arrival[node] = np.minimum(best, capped[:, :, np.newaxis])

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


def table_bytes(problem: Problem, tradeoffs: int, *, recall: bool) -> int:
    """Return the bytes that the tables of a walk take while it is solved."""
    states = 1 + sum(len(node.losses) for node in problem.nodes)
    columns = len(problem.grid) if recall else 1
    return states * columns * tradeoffs * ENTRY_BYTES
