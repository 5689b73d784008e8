"""The outcome of a walk: what its decision tables lead to, exactly.

Probability mass flows forward over (state of the node asked last, column of the best loss).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ttamer.policy.future import Expected, Future, check_costs, cost_key
from ttamer.problem.problem import Edge, Problem

# Before the first node there is the start; after the last one there is nothing.
START = STOP = -1
# Chances below this are left out, so that on a long line few losses stay in play.
NEGLIGIBLE = 1e-60


def expected_walk(
    problem: Problem, choice: Callable[[int], NDArray[np.int32]], *, recall: bool
) -> tuple[Expected, NDArray[np.float64]]:
    """Return the expected loss and cost, and the chance that each node is asked.

    ``choice(u)``, used once per place u (-1: the start), has shape (states, columns), with one
    column per loss on the grid, or one only without recall; an entry is the node to ask next or
    -1.
    """
    mass: list[NDArray[np.float64] | None] = [None] * (len(problem.nodes) + 1)
    mass[START] = np.zeros((1, len(problem.grid) if recall else 1))
    mass[START][0, -1] = 1.0  # type: ignore[index]
    asked = np.zeros(len(problem.nodes))
    loss = cost = 0.0
    for place in (START, *problem.order):
        here = mass[place]
        if here is None:
            continue
        mass[place] = None
        table = choice(place)
        if place != START:
            asked[place] = here.sum()
            stopped = np.where(table == STOP, here, 0.0)
            stop_loss = (
                problem.grid.values if recall else problem.nodes[place].losses[:, np.newaxis]
            )
            loss += float((stopped * np.where(stopped > 0, stop_loss, 0.0)).sum())
        for edge in problem.outgoing[place]:
            target = problem.ends[edge][1]
            leaving = np.where(table == target, here, 0.0)
            shares = leaving.sum(axis=1)
            if not shares.any():
                continue
            cost += float(shares @ problem.edges[edge].expected_costs)
            columns = np.flatnonzero(leaving.max(axis=0) > NEGLIGIBLE)
            moved = np.zeros((len(problem.nodes[target].losses), here.shape[1]))
            moved[:, columns] = problem.edges[edge].probabilities.T @ leaving[:, columns]
            if recall:
                moved = _fold(moved, problem.grid.positions[target])
            before = mass[target]
            mass[target] = moved if before is None else before + moved
    return Expected(loss, cost), asked


def walk_future(
    problem: Problem,
    choice: Sequence[NDArray[np.int32]],
    *,
    recall: bool,
    place: int,
    state: int,
) -> Future:
    """Return the law of what lies ahead once a place (-1: the start) was seen in a state.

    ``choice`` holds the tables of :func:`expected_walk`, but their columns are the least loss
    *still to be seen* (one per loss on the grid, also without recall): the caller has put in the
    best loss so far. With recall the future loss is the least one; without, that of the last node.
    """
    grid = problem.grid
    # At each place, by the key of the cost paid: (cost, mass over states and future losses).
    paths: list[dict[float, tuple[float, NDArray[np.float64]]]] = [{} for _ in choice]
    ahead = np.zeros(choice[place].shape)
    ahead[state, -1] = 1.0  # nothing seen yet: the future loss is infinite
    paths[place][0.0] = (0.0, ahead)
    atoms: dict[tuple[float, float], float] = {}
    for here in (START, *problem.order):
        check_costs(paths[here])
        table = choice[here]
        for cost, mass in paths[here].values():
            stopped = np.where(table == STOP, mass, 0.0).sum(axis=0)
            for column in np.flatnonzero(stopped):
                atom = (float(grid.values[column]), cost)
                atoms[atom] = atoms.get(atom, 0.0) + float(stopped[column])
            for edge in problem.outgoing[here]:
                target = problem.ends[edge][1]
                leaving = np.where(table == target, mass, 0.0)
                if not leaving.any():
                    continue
                for price, rows in _rows_by_cost(problem.edges[edge]):
                    moved = _fold(rows.T @ leaving, grid.positions[target], least=recall)
                    paid = cost + price
                    key = cost_key(paid)
                    paid, before = paths[target].get(key, (paid, np.zeros(())))
                    paths[target][key] = (paid, before + moved)
    return Future.of(atoms)


def _rows_by_cost(edge: Edge) -> list[tuple[float, NDArray[np.float64]]]:
    """Return each cost of an edge, with the probabilities of the transitions that cost it."""
    if isinstance(edge.cost, float):
        return [(edge.cost, edge.probabilities)]
    table = edge.cost_table
    costs = np.unique(table[edge.probabilities > 0]).tolist()
    return [(cost, np.where(table == cost, edge.probabilities, 0.0)) for cost in costs]


def _fold(
    moved: NDArray[np.float64], position: NDArray[np.intp], *, least: bool = True
) -> NDArray[np.float64]:
    """Move each state's mass to the column of min(best, own loss), or of its own loss."""
    columns = np.arange(moved.shape[1])
    stays = columns < position[:, np.newaxis] if least else np.zeros(moved.shape, bool)
    folded = np.where(stays, moved, 0.0)
    folded[np.arange(len(position)), position] = np.where(stays, 0.0, moved).sum(axis=1)
    return folded
