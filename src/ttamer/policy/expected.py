"""What a policy leads to, exactly: its expected loss and cost, who is asked, and joint laws.

**Walks**: probability mass flows forward over (state of the node asked last, column of the best
loss).

**Forests**: by the envelope theorem, in two sweeps.

The chance that a node is asked is what the value gains per unit of its cost: whether its subtree is
entered depends on what lies outside alone. So one sweep from the leaves gives, per subtree, the
chance that its search is still open at every *level*, and one sweep back from the start gives the
same for all that lies outside. Chances may be split by what has been paid: then the same sweeps
give the joint law of loss and cost.

Levels put every loss and every index on one scale, in the order in which the policy reaches them:
by value; at equal value a loss before an index (X <= sigma stops), and nodes given earlier first.
Then no two competing entries are equal. Nothing about optimality is used: this is the policy's own
behaviour, ties included.

Cost
    two sweeps like that of the solver (solvers/forest.py), times the sums of costs kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted
from ttamer.errors import ArgumentError
from ttamer.policy.future import Expected, Future, check_costs, cost_key, cost_keys, descendants
from ttamer.problem.checks import weigh_losses
from ttamer.problem.graph import Edge
from ttamer.problem.problem import Problem

# Before the first node there is the start; after the last one there is nothing.
START = STOP = -1
# Chances below this are left out on walks, so that on a long line few losses stay in play.
NO_MASS = 1e-60
# Levels at which less than this chance of being asked or of answering lies are left out.
NEGLIGIBLE = 1e-18
# The most products that a law of the future may take: about ten seconds.
MAX_WORK = 2e9
# What nothing has cost.
NOTHING: NDArray[np.float64] = np.zeros(1)


@dataclass(frozen=True, eq=False)
class Open:
    """The chances that a search is still open, by level and by what it has cost."""

    points: NDArray[np.intp]
    """Shape (points,): the levels at which they change, increasing."""
    costs: NDArray[np.float64]
    """Shape (costs,): the sums of costs, in the problem's units."""
    above: NDArray[np.float64]
    """Shape (states, points, costs): open at the level, having cost that much."""
    reach: NDArray[np.float64]
    """Shape (states, points): how often something is asked, or answers, at just this level."""

    def at(self, points: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return ``above`` at other levels; below the first, nothing has been asked yet."""
        before = np.zeros((len(self.above), 1, len(self.costs)))
        before[:, 0, self.costs == 0] = 1.0
        table = np.concatenate([before, self.above], axis=1)
        return table[:, np.searchsorted(self.points, points, side="right")]

    def beside(self, other: Open) -> Open:
        """Combine two searches that are independent given the state."""
        points = np.union1d(self.points, other.points)
        above, above_other = self.at(points), other.at(points)
        reach = np.zeros(above.shape[:2])
        for law, beyond in ((self, above_other), (other, above)):
            columns = np.searchsorted(points, law.points)
            reach[:, columns] += law.reach * beyond[:, columns].sum(axis=2)
        costs, product = convolved(self.costs, above, other.costs, above_other)
        return Open(points, costs, product, reach)

    def asked(self, edge: Edge, index: NDArray[np.intp], never: int, *, by_cost: bool) -> Open:
        """Add the node in front: its state given the parent's, its cost, and its index."""
        start = np.full(1, -1, np.intp)  # the node is asked, and nothing more is met yet
        levels = np.concatenate([start, self.points])
        costs, above = mixed(edge, self.costs, self.at(levels), by_cost=by_cost)
        if costs[0] != 0:  # until it is asked, nothing is paid
            costs = np.concatenate([NOTHING, costs])
            above = np.concatenate([np.zeros((*above.shape[:2], 1)), above], axis=2)
        met = np.pad(edge.probabilities @ self.reach, ((0, 0), (1, 0)))
        inside = Open(levels, costs, above, met)
        may_be = np.flatnonzero(index < never)
        points = np.union1d(levels, index[may_be])
        points = points[points >= index.min()]
        waiting = points < index[:, np.newaxis]
        above = np.where(waiting[..., np.newaxis], costs == 0, inside.at(points))
        reach = np.zeros(waiting.shape)
        later = levels >= index.min()
        reach[:, np.searchsorted(points, levels[later])] = inside.reach[:, later]
        reach[waiting] = 0.0
        # What lies below this index is met at this index; and there the node itself is asked.
        early = np.where(levels < index[:, np.newaxis], inside.reach, 0.0).sum(axis=1)
        reach[may_be, np.searchsorted(points, index[may_be])] += early[may_be] + 1.0
        kept = reach.max(axis=0, initial=0.0) > NEGLIGIBLE
        return Open(points[kept], costs, above[:, kept], reach[:, kept])


@dataclass(frozen=True, eq=False)
class Levels:
    """The common scale: numbers for every loss and index, lower ones met first."""

    losses: list[NDArray[np.intp]]
    """Per node, the level of the loss of each of its states; ``never`` where it is infinite."""
    indices: list[NDArray[np.intp]]
    """Per node, the level of its index for each state of its parent; ``never`` if not asked."""
    never: int

    @classmethod
    def of(
        cls, problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]], best: float
    ) -> Levels:
        """Rank all losses, and the indices below the best loss in hand."""
        losses = [weigh_losses(node.losses, tradeoff) for node in problem.nodes]
        parts = [*losses, *sigma]
        sizes = [len(part) for part in parts]
        value = np.concatenate(parts)
        owner = np.repeat(np.arange(len(parts)), sizes)  # losses come first, then indices
        order = np.lexsort((owner, value))
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(owner[order]) != 0) | (value[order][1:] != value[order][:-1])
        level = np.empty(len(order), np.intp)
        level[order] = np.cumsum(new) - 1
        never = len(order)
        level[np.isinf(value)] = never
        level[(owner >= len(losses)) & (value >= best)] = never
        split = np.split(level, np.cumsum(sizes)[:-1])
        return cls(split[: len(losses)], split[len(losses) :], never)


def expected_forest(
    problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]]
) -> tuple[Expected, NDArray[np.float64]]:
    """Return the expected loss and cost, and the chance that each node is asked."""
    answers, cost, asked = _outcome(problem, tradeoff, sigma)
    # The chance that nothing answers is rounding: the solver refuses what is not sure to.
    loss = sum(loss * float(chance[0]) for loss, _, chance in answers if loss < np.inf)
    return Expected(loss, cost), asked


def forest_future(
    problem: Problem,
    tradeoff: float,
    sigma: Sequence[NDArray[np.float64]],
    *,
    place: int,
    state: int,
    best: float,
) -> Future:
    """Return the law of what lies ahead below a place (-1: the start) seen in a state.

    ``best`` is the best loss so far, weighed; it need not be on the grid.
    """
    _check_work(problem, place)
    answers, _, _ = _outcome(
        problem, tradeoff, sigma, place=place, state=state, best=best, by_cost=True
    )
    atoms: dict[tuple[float, float], float] = {}
    keys: dict[float, float] = {}  # sums that differ by rounding alone count as the first of them
    for loss, costs, chances in answers:
        paid = zip(cost_keys(costs).tolist(), costs.tolist(), chances.tolist(), strict=True)
        for key, cost, chance in paid:
            atom = (loss, keys.setdefault(key, cost))
            atoms[atom] = atoms.get(atom, 0.0) + chance
    return Future.of(atoms)


# A loss, the costs paid where it is the one returned, and their chances.
Answers = list[tuple[float, NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Outside:
    """The chances that a node's parent was asked and all outside the node's subtree is open."""

    points: NDArray[np.intp]
    """Shape (points,): those of the node's own search."""
    costs: NDArray[np.float64]
    chances: NDArray[np.float64]
    """Shape (parent's states, points, costs)."""

    def where_asked(self, index: NDArray[np.intp], levels: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the chances at each level, or at the node's index where that is met later.

        A level that was left out has a negligible chance: 0.
        """
        met = np.maximum(levels, index[:, np.newaxis])
        columns = np.searchsorted(self.points, met)
        present = columns < len(self.points)
        present[present] = self.points[columns[present]] == met[present]
        states = np.arange(len(index))[:, np.newaxis]
        table = np.zeros((*met.shape, len(self.costs)))
        if len(self.points):
            table = self.chances[states, np.where(present, columns, 0)]
        return np.where(present[..., np.newaxis], table, 0.0)


def _outcome(
    problem: Problem,
    tradeoff: float,
    sigma: Sequence[NDArray[np.float64]],
    *,
    place: int = START,
    state: int = 0,
    best: float = np.inf,
    by_cost: bool = False,
) -> tuple[Answers, float, NDArray[np.float64]]:
    """Return the answers below a place, the mean cost, and the chance that each node is asked."""
    levels = Levels.of(problem, tradeoff, sigma, best)
    nodes = descendants(problem, place)
    below: list[list[Open]] = [[] for _ in range(len(problem.nodes) + 1)]
    merged: dict[int, list[list[Open]]] = {}
    for node in reversed(nodes):
        found = _own_loss(levels.losses[node], levels.never)
        merged[node] = _merged(below[node])
        if merged[node]:
            found = found.beside(merged[node][-1][0])
        edge = problem.parent_edge(node)
        search = found.asked(edge, levels.indices[node], levels.never, by_cost=by_cost)
        below[problem.ends[problem.incoming[node][0]][0]].append(search)
    merged[place] = _merged(below[place])

    answers: Answers = []
    asked, mean_cost = np.zeros(len(problem.nodes)), 0.0
    outside: dict[int, Outside] = {}

    def share(parent: int, costs: NDArray[np.float64], chances: NDArray[np.float64]) -> None:
        """Hand what is open outside all children of a parent on to each of them."""
        children = [problem.ends[edge][1] for edge in problem.outgoing[parent]]
        # The sweep met the children in reverse.
        children.sort(key=at.__getitem__, reverse=True)
        shares = _shared(merged.pop(parent), costs, chances)
        outside.update(zip(children, shares, strict=True))

    at = {node: number for number, node in enumerate(nodes)}
    if not nodes:
        return [(np.inf, NOTHING, np.ones(1))], 0.0, asked
    whole = merged[place][-1][0]
    here = np.zeros((len(whole.above), len(whole.points), 1))
    here[state] = 1.0
    answers.append((np.inf, whole.costs, whole.at(np.array([levels.never]))[state, 0]))
    share(place, NOTHING, here)
    for node in nodes:
        edge, index, losses = problem.parent_edge(node), levels.indices[node], levels.losses[node]
        around = outside.pop(node)
        now = around.where_asked(index, np.zeros(1, np.intp))[:, 0].sum(axis=1)
        asked[node] = now.sum()
        mean_cost += float(now @ edge.expected_costs)
        children = merged[node][-1][0] if merged[node] else None
        onward = np.empty(0, np.intp) if children is None else children.points
        reached = around.where_asked(index, np.concatenate([losses, onward]))
        # From here on, per state of the node itself.
        costs, reached = mixed(edge, around.costs, reached, by_cost=by_cost, forward=True)
        for own, loss in enumerate(problem.nodes[node].losses.tolist()):
            paid, chance = costs, reached[own, own]
            if loss == np.inf or not chance.any():
                continue
            if children is not None:
                late = children.at(losses[[own]])[own]
                paid, both = convolved(costs, chance[np.newaxis], children.costs, late)
                chance = both[0]
            answers.append((loss, paid, chance))
        if children is not None:
            going = losses[:, np.newaxis] > onward
            share(node, costs, reached[:, len(losses) :] * going[..., np.newaxis])
    return answers, mean_cost, asked


def _own_loss(levels: NDArray[np.intp], never: int) -> Open:
    """Return the search for a node's own loss, known given its state."""
    points = np.unique(levels[levels < never])
    above = (levels[:, np.newaxis] > points).astype(np.float64)
    here = (levels[:, np.newaxis] == points).astype(np.float64)
    return Open(points, NOTHING, above[..., np.newaxis], here)


def _merged(searches: list[Open]) -> list[list[Open]]:
    """Return searches merged in pairs, layer by layer, up to one for all."""
    layers = [searches] if searches else []
    while layers and len(layers[-1]) > 1:
        below = layers[-1]
        pairs = [below[at : at + 2] for at in range(0, len(below), 2)]
        layers.append([reduce(Open.beside, pair) for pair in pairs])
    return layers


def _shared(
    layers: list[list[Open]], costs: NDArray[np.float64], chances: NDArray[np.float64]
) -> list[Outside]:
    """Return what is open outside each search of the first layer, given that of the last."""
    around = [Outside(layers[-1][0].points, costs, chances)]
    for layer in reversed(layers[:-1]):
        parts = []
        for at, search in enumerate(layer):
            above = around[at // 2]
            columns = np.searchsorted(above.points, search.points)
            costs, chances = above.costs, above.chances[:, columns]
            if at ^ 1 < len(layer):  # the other one of its pair
                other = layer[at ^ 1]
                costs, chances = convolved(costs, chances, other.costs, other.at(search.points))
            parts.append(Outside(search.points, costs, chances))
        around = parts
    return around


def convolved(
    costs: NDArray[np.float64],
    chances: NDArray[np.float64],
    more: NDArray[np.float64],
    other: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums of independent costs and their chances, along the last axis of both arrays."""
    if len(costs) == len(more) == 1:
        return costs + more, chances * other
    sums, groups = _grouped(np.add.outer(costs, more).ravel())
    product = chances[..., :, np.newaxis] * other[..., np.newaxis, :]
    product = product.reshape(*chances.shape[:-1], len(groups))
    return sums, _added(product, groups, len(sums))


def mixed(
    edge: Edge,
    costs: NDArray[np.float64],
    table: NDArray[np.float64],
    *,
    by_cost: bool,
    forward: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take a table per state of an edge's target to its source's, or forward; add what it costs.

    The table has shape (states, points, costs).
    """
    parts = rows_by_cost(edge) if by_cost else [(0.0, edge.probabilities)]
    tables = [np.tensordot(rows.T if forward else rows, table, axes=1) for _, rows in parts]
    if len(parts) == 1:
        return costs + parts[0][0], tables[0]
    sums, groups = _grouped(np.concatenate([costs + cost for cost, _ in parts]))
    return sums, _added(np.concatenate(tables, axis=-1), groups, len(sums))


def rows_by_cost(edge: Edge) -> list[tuple[float, NDArray[np.float64]]]:
    """Return each cost of an edge, with the probabilities of the transitions that cost it."""
    if isinstance(edge.cost, float):
        return [(edge.cost, edge.probabilities)]
    table = edge.cost_table
    costs = np.unique(table[edge.probabilities > 0]).tolist()
    return [(cost, np.where(table == cost, edge.probabilities, 0.0)) for cost in costs]


def _grouped(sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the distinct sums of costs, and the group of each: rounding makes no difference."""
    _, first, groups = np.unique(cost_keys(sums), return_index=True, return_inverse=True)
    check_costs(first)
    return sums[first], groups


def _added(table: NDArray[np.float64], groups: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """Add the columns of each group."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(count))
    return np.asarray(np.add.reduceat(table[..., order], starts, axis=-1))


def _check_work(problem: Problem, place: int) -> None:
    """Refuse, before the work, a law of too many distinct costs, or of too many products."""
    sums: list[NDArray[np.float64]] = [NOTHING] * (len(problem.nodes) + 1)
    levels = sum(len(node.losses) for node in problem.nodes)
    work = 0.0
    for node in reversed(descendants(problem, place)):
        edge, parent = problem.parent_edge(node), problem.ends[problem.incoming[node][0]][0]
        prices = np.array([cost for cost, _ in rows_by_cost(edge)])
        search, _ = _grouped(np.concatenate([NOTHING, np.add.outer(prices, sums[node]).ravel()]))
        work += levels * edge.probabilities.size * len(prices) * len(sums[node])
        work += levels * len(edge.probabilities) * len(search) * len(sums[parent])
        if work > MAX_WORK:
            raise ArgumentError(
                f"the joint law of loss and cost of these {counted(len(problem.nodes), 'node')} "
                f"takes more than {MAX_WORK:.0e} products; round the costs of the problem to a "
                "common unit, use fewer states, or sample with ttamer.simulate(policy, inputs)"
            )
        sums[parent], _ = _grouped(np.add.outer(sums[parent], search).ravel())
        sums[node] = NOTHING


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
            columns = np.flatnonzero(leaving.max(axis=0) > NO_MASS)
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
                for price, rows in rows_by_cost(problem.edges[edge]):
                    moved = _fold(rows.T @ leaving, grid.positions[target], least=recall)
                    paid = cost + price
                    key = cost_key(paid)
                    paid, before = paths[target].get(key, (paid, np.zeros(())))
                    paths[target][key] = (paid, before + moved)
    return Future.of(atoms)


def _fold(
    moved: NDArray[np.float64], position: NDArray[np.intp], *, least: bool = True
) -> NDArray[np.float64]:
    """Move each state's mass to the column of min(best, own loss), or of its own loss."""
    columns = np.arange(moved.shape[1])
    stays = columns < position[:, np.newaxis] if least else np.zeros(moved.shape, bool)
    folded = np.where(stays, moved, 0.0)
    folded[np.arange(len(position)), position] = np.where(stays, 0.0, moved).sum(axis=1)
    return folded
