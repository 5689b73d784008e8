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
    minimises first the chance of that and next the cost: what it does for a very large finite x.
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

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.expected import START, STOP
from ttamer.policy.future import TIE
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.checks import weigh_losses
from ttamer.problem.problem import Problem

# The bytes of one entry while a walk is solved: Phi, Phi on arrival, and the choice.
ENTRY_BYTES = 8 + 8 + 4
# The file in which Linux states the limit of a container.
CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")

NO_SURE_ANSWER = (
    "with some probability every node that can be asked has loss inf, so no policy is sure of an "
    "answer: give some node finite losses in every state that can occur"
)


def solve_walk(
    problem: Problem,
    tradeoffs: NDArray[np.float64],
    *,
    recall: bool,
) -> list[WalkPolicy]:
    """Solve a walk for several tradeoffs at once.

    Arrays below have shape (states, tradeoffs, columns): one column per loss on the grid, or one
    only without recall.
    """
    count = len(tradeoffs)
    weights = tradeoffs[:, np.newaxis]
    fallback = weigh_losses(problem.grid.values, weights)
    places = len(problem.nodes) + 1  # the start's tables come last
    phi: list[NDArray[np.float64]] = [np.empty(0)] * places
    choices: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * places
    entry: list[NDArray[np.float64]] = [np.empty(0)] * places
    unanswered: list[Unanswered] = [EMPTY] * places
    all_answer = problem.all_answer
    product = np.matmul if all_answer else _product
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
            value += _cost(problem, edge, tradeoffs)[..., np.newaxis]
            if best is None:
                best, towards = value, np.int32(target)
            else:
                better = value < best * (1 - TIE)
                best = np.where(better, value, best)
                towards = np.where(better, np.int32(target), towards)
        if best is None:
            table = np.broadcast_to(stop, (len(losses), count, stop.shape[2]))
            choices[place] = np.broadcast_to(towards, table.shape)
        else:
            choices[place] = np.where(best < stop * (1 - TIE), towards, np.int32(STOP))
            table = np.minimum(stop, best, out=best)
        if not all_answer:
            last = np.broadcast_to(stop[..., -1], (len(losses), count))
            unanswered[place], following = _least_unanswered(
                problem, place, tradeoffs, last, unanswered
            )
            if best is not None:
                choices[place][..., -1] = np.where(
                    np.isinf(table[..., -1]), following, choices[place][..., -1]
                )
        phi[place] = entry[place] = table
        if recall and place != START:
            # On arrival the best so far is min(x, l(y)): beyond l(y)'s column nothing changes.
            # Phi never falls in x, so capping it there is the same.
            capped = table[np.arange(len(losses)), :, problem.grid.positions[place]]
            entry[place] = np.minimum(table, capped[:, :, np.newaxis])
            if not all_answer:
                unanswered[place] = unanswered[place].or_own(capped)

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


def _cost(problem: Problem, edge: int, tradeoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighed expected cost of an edge, of shape (states of its source, tradeoffs)."""
    cost = problem.edges[edge].cost
    if isinstance(cost, float):
        return cost * (1 - tradeoffs)[np.newaxis]
    return problem.edges[edge].expected_costs[:, np.newaxis] * (1 - tradeoffs)


class Unanswered(NamedTuple):
    """What follows a place with no answer in hand; shapes are (states, tradeoffs)."""

    chance: NDArray[np.float64]
    """The chance that the search ends without an answer."""
    rest: NDArray[np.float64]
    """The expected loss and cost otherwise, weighed."""

    def before(self, rows: NDArray[np.float64], cost: NDArray[np.float64]) -> Unanswered:
        """Return the same from the source of an edge."""
        return Unanswered(rows @ self.chance, rows @ self.rest + cost)

    def less_than(self, other: Unanswered) -> NDArray[np.bool_]:
        """Compare the chances; where they are equal, the rest."""
        lower = self.chance < other.chance * (1 - TIE)
        equal = ~lower & (self.chance <= other.chance * (1 + TIE))
        return lower | (equal & (self.rest < other.rest * (1 - TIE)))

    def where(self, chosen: NDArray[np.bool_], other: Unanswered) -> Unanswered:
        """Take this where chosen, and the other elsewhere."""
        return Unanswered(
            np.where(chosen, self.chance, other.chance), np.where(chosen, self.rest, other.rest)
        )

    def or_own(self, values: NDArray[np.float64]) -> Unanswered:
        """Take the value with the node's own answer in hand, where it has one."""
        has_own = np.isfinite(values)
        return Unanswered(np.where(has_own, 0.0, self.chance), np.where(has_own, values, self.rest))


EMPTY = Unanswered(np.empty(0), np.empty(0))


def _least_unanswered(
    problem: Problem,
    place: int,
    tradeoffs: NDArray[np.float64],
    stop: NDArray[np.float64],
    after: Sequence[Unanswered],
) -> tuple[Unanswered, NDArray[np.int32]]:
    """Return the least chance of no answer at a place, and the node to ask next for it (or -1).

    ``stop`` is the loss of stopping there with no earlier answer, of shape (states, tradeoffs).
    """
    nothing = np.isinf(stop)
    best = Unanswered(nothing.astype(float), np.where(nothing, 0.0, stop))
    towards = np.full(stop.shape, STOP, np.int32)
    for edge in problem.outgoing[place]:
        target = problem.ends[edge][1]
        rows = problem.edges[edge].probabilities
        onward = after[target].before(rows, _cost(problem, edge, tradeoffs))
        better = onward.less_than(best)
        best = onward.where(better, best)
        towards = np.where(better, np.int32(target), towards)
    return best, towards


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


def available_memory() -> float:
    """Return the memory of this machine or container in bytes; ``inf`` where it is not stated."""
    limits = [float("inf")]
    with suppress(AttributeError, OSError, ValueError):  # not a POSIX system
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    with suppress(OSError, ValueError):  # no such file, or "max"
        limits.append(float(CONTROL_GROUP.read_text("ascii")))
    return min(limits)


def check_memory(problem: Problem, size: int) -> None:
    """Refuse a walk whose tables do not fit into memory, before they are made."""
    limit = available_memory()
    if size > limit:
        raise ProblemError(
            f"the tables of this walk take {size / 1e9:.1f} GB, and this machine has "
            f"{limit / 1e9:.1f} GB: they have one row per state and one column per distinct loss "
            f"({len(problem.grid) - 1} here); round the losses of the nodes to a common grid, use "
            "fewer states, or solve fewer tradeoffs at a time"
        )
