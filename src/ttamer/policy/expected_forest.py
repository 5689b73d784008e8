"""The outcome of an index policy on a forest: what its table of indices leads to, exactly.

Put every loss and every index on one scale of *levels*, in the order in which the policy
reaches them: by value; at equal value a loss before an index (X <= sigma stops), and the indices
of nodes given earlier first. Then no two competing entries are equal, and a subtree explored up to
a level m is in one of these conditions:

- its surrogate level is ``kappa = max(sigma, W)``, with W the least of its root's loss level and
  its children's kappa;
- *open at m* (kappa > m): all indices up to m were asked, none of the losses found lies
  at or below m;
- *settled at m* (kappa = m): the search ends here, with the loss that was found.

Both carry what was paid and lost, and combine over independent children as products do. Nothing
about optimality is used: this is the policy's own behaviour, ties included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ttamer.policy.future import Expected, Future, check_costs, cost_key
from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import weigh_losses

# The most entries in one table of means: kinds of cost are evaluated in parts below this size.
MAX_MEANS = 2_000_000


@dataclass(frozen=True, eq=False)
class Levels:
    """The common scale: numbers for every loss and index, lower ones met first."""

    losses: tuple[NDArray[np.intp], ...]
    """Per node, the level of each of its states' losses."""
    indices: tuple[NDArray[np.intp], ...]
    """Per node, the level of its index for each state of its parent."""
    grid: NDArray[np.intp]
    """The level of each loss on the grid."""
    count: int

    @classmethod
    def of(cls, problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]]) -> Levels:
        """Rank all losses and indices of a forest."""
        grid = weigh_losses(problem.grid.values, tradeoff)
        parts = [grid, *sigma]
        owner = np.repeat(np.arange(len(parts)) - 1, [len(part) for part in parts])
        value = np.concatenate(parts)
        keys = np.lexsort((owner, value))
        fresh = np.ones(len(keys), bool)
        fresh[1:] = (value[keys[1:]] != value[keys[:-1]]) | (owner[keys[1:]] != owner[keys[:-1]])
        level = np.empty(len(keys), np.intp)
        level[keys] = np.cumsum(fresh) - 1
        split = np.split(level, np.cumsum([len(part) for part in parts])[:-1])
        losses = tuple(split[0][position] for position in problem.grid.positions)
        return cls(losses, tuple(split[1:]), split[0], int(fresh.sum()))


@dataclass(frozen=True, eq=False)
class Means:
    """Open and settled outcomes at every level: chances, and means over those chances.

    Shapes are (states, levels), and (states, levels, kinds of cost) for what was paid.
    """

    open: NDArray[np.float64]
    open_cost: NDArray[np.float64]
    settled: NDArray[np.float64]
    settled_cost: NDArray[np.float64]
    settled_loss: NDArray[np.float64]

    def beside(self, other: Means) -> Means:
        """Combine two subtrees that are independent given the state."""
        late = other.open + other.settled  # the other settles no earlier
        late_cost = other.open_cost + other.settled_cost
        up = np.newaxis
        return Means(
            self.open * other.open,
            self.open_cost * other.open[..., up] + self.open[..., up] * other.open_cost,
            self.settled * late + self.open * other.settled,
            self.settled_cost * late[..., up]
            + self.settled[..., up] * late_cost
            + self.open_cost * other.settled[..., up]
            + self.open[..., up] * other.settled_cost,
            self.settled_loss * late + self.open * other.settled_loss,
        )

    def asked(
        self, rows: NDArray[np.float64], cost: NDArray[np.float64], index: NDArray[np.intp]
    ) -> Means:
        """Add the root in front: its cost, its states, and its index.

        ``cost`` has shape (parent states, kinds). It is the mean over the root's states: whether
        the root is asked does not depend on them, so that the mean of all costs is right.
        """
        cost = cost[:, np.newaxis]
        opened = rows @ self.open
        opened_cost = _mix(rows, self.open_cost) + opened[..., np.newaxis] * cost
        settled = rows @ self.settled
        settled_cost = _mix(rows, self.settled_cost) + settled[..., np.newaxis] * cost
        settled_loss = rows @ self.settled_loss
        for state, level in enumerate(index.tolist()):
            opened[state, :level], opened_cost[state, :level] = 1.0, 0.0
            for table in (settled, settled_cost, settled_loss):
                table[state, level] = table[state, : level + 1].sum(axis=0)
                table[state, :level] = 0.0
        return Means(opened, opened_cost, settled, settled_cost, settled_loss)


def forest_means(problem: Problem, levels: Levels, kinds: range) -> Means:
    """Evaluate the whole forest for some kinds of cost.

    Kind 0 is the cost itself, kind k counts how often node k - 1 is asked.
    """
    waiting: list[Means | None] = [None] * (len(problem.nodes) + 1)
    for node in reversed(problem.order):
        outcome = _own_loss(problem, levels, node, len(kinds))
        after = waiting[node]
        if after is not None:
            outcome = outcome.beside(after)
        edge = problem.parent_edge(node)
        added = np.tile(np.equal(kinds, node + 1).astype(float), (len(edge.probabilities), 1))
        if 0 in kinds:
            added[:, 0] = edge.expected_costs
        outcome = outcome.asked(edge.probabilities, added, levels.indices[node])
        parent = problem.ends[problem.incoming[node][0]][0]
        sibling = waiting[parent]
        waiting[parent] = outcome if sibling is None else outcome.beside(sibling)
        waiting[node] = None
    whole = waiting[-1]
    assert whole is not None  # noqa: S101 - a forest has a root
    return whole


def expected_forest(
    problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]]
) -> tuple[Expected, NDArray[np.float64]]:
    """Return the expected loss and cost, and the chance that each node is asked."""
    count = len(problem.nodes)
    levels = Levels.of(problem, tradeoff, sigma)
    width = max(1, MAX_MEANS // (levels.count * max(len(node.losses) for node in problem.nodes)))
    paid = []
    for at in range(0, count + 1, width):
        outcome = forest_means(problem, levels, range(at, min(at + width, count + 1)))
        paid.append(outcome.settled_cost[0].sum(axis=0))
    loss = float(outcome.settled_loss[0].sum())
    cost, *asked = np.concatenate(paid).tolist()
    return Expected(loss, cost), np.array(asked)


# Chances by (least loss found, key of the cost paid).
Atoms = dict[tuple[float, float], float]


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
    paid: dict[float, float] = {0.0: 0.0}
    levels = Levels.of(problem, tradeoff, sigma)
    weighed = weigh_losses(problem.grid.values, tradeoff)
    values = np.concatenate([weighed, *sigma])
    ranks = np.concatenate([levels.grid, *levels.indices])
    # The search ends below the first index that is at or above the best loss in hand.
    end = int(ranks[values < best].max(initial=-1))

    def join(one: Atoms, two: Atoms) -> Atoms:
        joined: Atoms = {}
        for (loss_a, cost_a), p in one.items():
            for (loss_b, cost_b), q in two.items():
                total = paid[cost_a] + paid[cost_b]
                key = cost_key(total)
                paid.setdefault(key, total)
                atom = (min(loss_a, loss_b), key)
                joined[atom] = joined.get(atom, 0.0) + p * q
        check_costs({cost for _, cost in joined})
        return joined

    def add(into: Atoms, atoms: Atoms, weight: float = 1.0) -> None:
        for key, p in atoms.items():
            into[key] = into.get(key, 0.0) + weight * p

    def side_by_side(
        one: tuple[list[Atoms], list[Atoms]], two: tuple[list[Atoms], list[Atoms]]
    ) -> tuple[list[Atoms], list[Atoms]]:
        opened, settled = [], []
        for open_a, set_a, open_b, set_b in zip(*one, *two, strict=True):
            late = dict(open_b)
            add(late, set_b)
            both = join(set_a, late)
            add(both, join(open_a, set_b))
            opened.append(join(open_a, open_b))
            settled.append(both)
        return opened, settled

    @cache
    def below(parent: int, state: int) -> tuple[list[Atoms], list[Atoms]]:
        outcome: tuple[list[Atoms], list[Atoms]] = (
            [{(np.inf, 0.0): 1.0} for _ in range(end + 1)],
            [{} for _ in range(end + 1)],
        )
        for edge in problem.outgoing[parent]:
            outcome = side_by_side(outcome, subtree(problem.ends[edge][1], state))
        return outcome

    def subtree(root: int, state: int) -> tuple[list[Atoms], list[Atoms]]:
        edge = problem.parent_edge(root)
        opened: list[Atoms] = [{} for _ in range(end + 1)]
        settled: list[Atoms] = [{} for _ in range(end + 1)]
        index = int(levels.indices[root][state])
        for own, chance in enumerate(edge.probabilities[state].tolist()):
            if chance == 0 or index > end:
                continue
            cost = edge.cost_at(state, own)
            key = cost_key(cost)
            paid.setdefault(key, cost)
            loss = {(float(problem.nodes[root].losses[own]), key): 1.0}
            level = int(levels.losses[root][own])
            mine = (
                [loss if level > m else {} for m in range(end + 1)],
                [loss if level == m else {} for m in range(end + 1)],
            )
            for m, (o, s) in enumerate(zip(*side_by_side(mine, below(root, own)), strict=True)):
                if m >= index:
                    add(opened[m], o, chance)
                add(settled[max(m, index)], s, chance)
        opened[:index] = [{(np.inf, 0.0): 1.0} for _ in opened[:index]]
        return opened, settled

    opened, settled = below(place, state)
    whole = dict(opened[end]) if end >= 0 else {(np.inf, 0.0): 1.0}
    for part in settled:
        add(whole, part)
    return Future.of({(loss, paid[key]): p for (loss, key), p in whole.items()})


def _own_loss(problem: Problem, levels: Levels, node: int, kinds: int) -> Means:
    level = levels.losses[node][:, np.newaxis]
    losses = problem.nodes[node].losses
    scale = np.arange(levels.count)
    settled = (level == scale).astype(float)
    free = np.zeros((len(losses), levels.count, kinds))
    finite = np.where(np.isfinite(losses), losses, 0.0)[:, np.newaxis]
    return Means((level > scale).astype(float), free, settled, free, settled * finite)


def _mix(rows: NDArray[np.float64], table: NDArray[np.float64]) -> NDArray[np.float64]:
    flat = rows @ table.reshape(len(table), -1)
    return flat.reshape(len(rows), *table.shape[1:])
