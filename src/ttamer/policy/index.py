"""The optimal policy under precedence: one index per node and parent state.

Ask the available node of least index; stop when the best loss so far is at or below it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted
from ttamer.errors import ArgumentError
from ttamer.policy import base
from ttamer.policy.session import INFINITY, Batch, Explanation, StateSession
from ttamer.policy.surrogate import (
    Surrogate,
    from_leaves,
    in_pairs,
    minimum_of,
    settled,
    subtree_law,
)
from ttamer.problem.checks import weigh_losses
from ttamer.problem.problem import START, STOP, Edge, Problem


class Queue(NamedTuple):
    """Nodes waiting to be asked, the least index first; at the end stands -1, of infinite index."""

    indices: array[float]
    nodes: array[int]


class IndexTables(NamedTuple):
    """The children of each node and state as queues one after another; the start's come last.

    Single numbers are read faster from plain sequences than from NumPy's arrays.
    """

    queue: Queue
    # Per node, where the queue of its children begins for each state; none for a leaf.
    opens: tuple[tuple[int, ...], ...]
    # Per node, the weighed loss of each state; none for the start, which stands for "stopped".
    losses: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IndexPolicy(base.Policy):
    """A table of indices.

    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.forest([0.0, 1.0], [0.1, 0.2], [[0.5, 0.5]] * 2, [None] * 2), 0.5)
    >>> policy.index("m1").round(9).tolist(), policy.index("m2").round(9).tolist()
    ([0.1], [0.2])
    """

    sigma: tuple[NDArray[np.float64], ...]
    """Per node, its index for each state of its parent; weighed."""

    def index(self, node: str) -> NDArray[np.float64]:
        return self.sigma[self.problem.index_of(node)]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        node = base.number_of(self.problem, after)
        children = sorted(self.problem.targets(node))
        sigma = np.full((len(children) + 1, self.problem.count_states(node)), np.inf)
        for row, child in enumerate(children):
            sigma[row] = self.sigma[child]
        least = np.array([*children, STOP], np.int32)[sigma.argmin(axis=0)]  # ties: given first
        goes_on = self.fallbacks > sigma.min(axis=0)[:, np.newaxis]
        return np.where(goes_on, least[:, np.newaxis], np.int32(STOP))

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        return self._law_below(base.number_of(self.problem, after)).expected_minimum(self.fallbacks)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> base.Future:
        node = base.number_of(self.problem, after)
        state = base.check_state(self.problem, node, state)
        if not best >= 0:  # also NaN
            raise ArgumentError(f"the best loss so far is from 0 up, or inf for none, not {best!r}")
        weighed = float(weigh_losses(np.array([best]), self.tradeoff)[0])
        answers, *_ = forest_outcome(self, node, state, best=weighed, by_cost=True)
        return base.joint_law(answers)

    def session(self) -> IndexSession:
        return IndexSession(self)

    def batch(self, size: int) -> IndexBatch:
        return IndexBatch(self, size)

    def _law_below(self, node: int) -> Surrogate:
        """Return the law of the least of all below a node (-1: the start), given its state."""
        problem = self.problem

        def law_of(child: int, below: list[Surrogate]) -> Surrogate:
            return subtree_law(problem, self.tradeoff, child, below).raised(self.sigma[child])

        states, nodes = problem.count_states(node), problem.descendants(node)
        return from_leaves(nodes, problem.parents, law_of, node, states)

    def _index_unsure(self, node: int, chances: Floats) -> float:
        """Return the index of a node whose parent's state is not known, only its chances."""
        edge = self.problem.parent_edge(node)
        answer = Surrogate.of_losses(self.fallbacks[self.problem.grid.positions[node]])
        row = (chances @ edge.probabilities)[np.newaxis]
        law = minimum_of([answer, self._law_below(node)]).mixed(row).trimmed()
        index = law.index((1 - self.tradeoff) * chances @ edge.expected_costs)
        return float(settled(index, self.fallbacks[:-1])[0])

    @cached_property
    def tables(self) -> IndexTables:
        """The indices as sessions and batches read them."""
        problem, queue, opens = self.problem, Queue(array("d"), array("i")), []
        sigma = [values.tolist() for values in self.sigma]
        for node in (*range(len(sigma)), START):
            children, begins = problem.targets(node), []
            for state in range(problem.count_states(node) if children else 0):
                begins.append(len(queue.nodes))
                # Of equal indices the node given first.
                for index, child in sorted((sigma[child][state], child) for child in children):
                    queue.indices.append(index)
                    queue.nodes.append(child)
                queue.indices.append(INFINITY)
                queue.nodes.append(STOP)
            opens.append(tuple(begins))
        losses = (tuple(self.fallbacks[p].tolist()) for p in problem.grid.positions)
        return IndexTables(queue, tuple(opens), (*losses, ()))

    @cached_property
    def _means(self) -> base.Means:
        answers, cost, asked = forest_outcome(self)
        # The chance that nothing answers is rounding: the solver refuses what is not sure to.
        return base.Means.of(answers[1:], cost, asked)


class IndexSession(StateSession):
    """A session under precedence: the available node of least index comes next.

    It opens in constant time; a step takes a time that is logarithmic in the nodes asked so far.
    """

    __slots__ = ("_best", "_open")

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy) -> None:
        super().__init__(policy)
        queue = policy.tables.queue
        [first] = policy.tables.opens[START]
        # A heap with the first of every queue: (index, node, its position, the queue).
        self._open = [(queue.indices[first], queue.nodes[first], first, queue)]
        self._best = INFINITY
        self.number = queue.nodes[first]

    def observe(self, state: int) -> None:
        node, tables = self.number, self._policy.tables
        try:
            if state < 0:
                raise self._refuse(state)
            loss = tables.losses[node][state]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        if loss < self._best:
            self._best = loss
            self._answer = node
        self._path.append((node, state))
        opens = tables.opens[node]
        self._go_on(opens[state] if opens else 0, tables.queue if opens else None)

    def fail(self) -> None:
        # Its state stays unknown: the indices of its children are those of their average law.
        node, chances = self.number, self._fail()
        children = self._policy.problem.targets(node)
        waiting = sorted((self._policy._index_unsure(v, chances), v) for v in children)
        indices, nodes = zip(*waiting, (INFINITY, STOP), strict=True)
        self._go_on(0, Queue(array("d", indices), array("i", nodes)) if children else None)

    def _go_on(self, start: int, opened: Queue | None) -> None:
        """Take the node asked off its queue, add the queue that it opens, and choose the next."""
        _, _, position, queue = self._open[0]
        position += 1
        following = queue.nodes[position]
        if following >= 0:
            heapreplace(self._open, (queue.indices[position], following, position, queue))
        else:
            heappop(self._open)
        if opened is not None:
            heappush(self._open, (opened.indices[start], opened.nodes[start], start, opened))
        index, node = self._open[0][:2] if self._open else (INFINITY, STOP)
        self.number = STOP if self._best <= index else node

    def explain(self) -> Explanation:
        return self._explained(self._best, self._open[0][0] if self._open else INFINITY)


class IndexBatch(Batch):
    """A batch under precedence.

    A step takes, per input, a time proportional to the nodes that have children.
    """

    _policy: IndexPolicy

    def __init__(self, policy: IndexPolicy, size: int) -> None:
        super().__init__(policy, size)
        queue, opens, _ = tables = policy.tables
        self._tables, self._indices, self._nodes = tables, *map(np.array, queue)
        # The position in the order of asking.
        self._rank = np.empty(len(self._nodes), np.intp)
        self._rank[np.lexsort((self._nodes, self._indices))] = np.arange(len(self._nodes))
        # Per node, the column of its children's queue.
        self._column = np.cumsum([len(begins) > 0 for begins in opens]) - 1
        self._best = np.full(size, np.inf)
        # The position of the next node of each queue; those that have not opened are at their end.
        self._heads = np.full((size, self._column[START] + 1), len(self._nodes) - 1)
        self._heads[:, START] = opens[START]
        self.next[:] = self._nodes[opens[START]]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        losses, best = np.array(self._tables.losses[node])[states], self._best[rows]
        self.answer[rows[losses < best]] = node
        best = np.minimum(best, losses)
        self._best[rows] = best
        # Only the head of each queue competes: the others of it have larger indices.
        self._heads[rows, self._column[self._policy.problem.parents[node]]] += 1
        if begins := self._tables.opens[node]:
            self._heads[rows, self._column[node]] = np.array(begins)[states]
        heads = self._heads[rows]
        first = heads[np.arange(len(rows)), self._rank[heads].argmin(axis=1)]
        self.next[rows] = np.where(best > self._indices[first], self._nodes[first], STOP)


# Levels at which less than this chance of being asked or of answering lies are left out.
NEGLIGIBLE = 1e-18
# The most products that a law of the future may take: about ten seconds.
MAX_WORK = 2e9

Floats = NDArray[np.float64]
Levels = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Search:
    """The chances that the search of a subtree is still open, by level and by what it has cost."""

    # Shape (points,): the levels at which they change, increasing.
    points: Levels
    # Shape (costs,): the sums of costs, in the problem's units.
    costs: Floats
    # Shape (states, points, costs): open at the level, having cost that much.
    open: Floats
    # Shape (states, points): how often something is asked, or answers, at just this level.
    events: Floats

    @classmethod
    def of_losses(cls, levels: Levels, never: int) -> Search:
        """Return the search for a node's own loss, known given its state."""
        points, own = np.unique(levels[levels < never]), levels[:, np.newaxis]
        later = (own > points).astype(float)
        return cls(points, np.zeros(1), later[..., np.newaxis], (own == points).astype(float))

    def at(self, points: Levels) -> Floats:
        """Return ``open`` at other levels; below the first, nothing has been asked yet."""
        unasked = np.broadcast_to(self.costs == 0, (len(self.open), 1, len(self.costs)))
        table = np.concatenate([unasked, self.open], axis=1)
        return table[:, np.searchsorted(self.points, points, side="right")]

    def beside(self, sibling: Search) -> Search:
        """Combine two searches that are independent given the state."""
        points = _union(self.points, sibling.points)
        tables = self.at(points), sibling.at(points)
        events = np.zeros(tables[0].shape[:2])
        for search, beyond in ((self, tables[1]), (sibling, tables[0])):
            # What happens in one happens while the other is still open.
            columns = np.searchsorted(points, search.points)
            events[:, columns] += search.events * beyond[:, columns].sum(axis=2)
        return Search(points, *_convolved(self.costs, tables[0], sibling.costs, tables[1]), events)

    def asked(self, edge: Edge, index: Levels, never: int, *, by_cost: bool) -> Search:
        """Add the node in front: its state given the parent's, its cost, and its index."""
        # At level -1 the node is asked, and nothing more is met yet.
        levels = np.concatenate([[-1], self.points])
        costs, table = _moved(edge, self.costs, self.at(levels), by_cost=by_cost)
        if costs[0] != 0:  # until it is asked, nothing is paid
            costs = np.concatenate([[0.0], costs])
            table = np.pad(table, ((0, 0), (0, 0), (1, 0)))
        met = np.pad(edge.probabilities @ self.events, ((0, 0), (1, 0)))
        finite = np.flatnonzero(index < never)
        points = _union(levels, index[finite])
        points = points[points >= index.min()]
        waiting = points < index[:, np.newaxis]
        table = Search(levels, costs, table, met).at(points)
        table = np.where(waiting[..., np.newaxis], costs == 0, table)
        events = np.zeros(waiting.shape)
        later = levels >= index.min()
        events[:, np.searchsorted(points, levels[later])] = met[:, later]
        events[waiting] = 0.0
        # What lies below this index is met at this index; and there the node itself is asked.
        early = np.where(levels < index[:, np.newaxis], met, 0.0).sum(axis=1)
        events[finite, np.searchsorted(points, index[finite])] += early[finite] + 1.0
        reached = events.max(axis=0, initial=0.0) > NEGLIGIBLE
        return Search(points[reached], costs, table[:, reached], events[:, reached])


@dataclass(frozen=True, eq=False)
class Outside:
    """The chances that a node's parent was asked and all outside the node's subtree is open."""

    # Shape (points,): those of the node's own search.
    points: Levels
    costs: Floats
    # Shape (parent's states, points, costs).
    chances: Floats

    def at(self, index: Levels, levels: Levels) -> Floats:
        """Return the chances at each level, or at the node's index where that is met later.

        A level that was left out has a negligible chance: 0.
        """
        met = np.maximum(levels, index[:, np.newaxis])
        columns = np.searchsorted(self.points, met)
        columns[np.append(self.points, -1)[columns] != met] = len(self.points)
        table = np.zeros((len(index), len(self.points) + 1, len(self.costs)))
        table[:, :-1] = self.chances
        return table[np.arange(len(index))[:, np.newaxis], columns]


@base.one_thread()
def forest_outcome(
    policy: IndexPolicy,
    node: int = START,
    state: int = 0,
    *,
    best: float = np.inf,
    by_cost: bool = False,
) -> tuple[list[base.Answer], float, Floats]:
    """Return the answers below a node, the mean cost, and the chance that each node is asked.

    The first answer is none, of infinite loss. ``best`` is the best loss so far, weighed; it need
    not be on the grid. With ``by_cost`` answers are split by what was paid.
    """
    problem, top, mean_cost = policy.problem, node, 0.0
    nodes, asked = problem.descendants(top), np.zeros(len(problem.nodes))
    if not nodes:
        return [(np.inf, 0.0, np.ones(1))], mean_cost, asked
    if by_cost:
        _check_work(problem, top)
    losses, indices, never = _levels(policy, best)
    # From the leaves: the search of each subtree, given the state of its parent. Those of siblings
    # come in reverse order.
    searches: dict[int, list[Search]] = {}
    layers: dict[int, list[list[Search]]] = {}
    for node in reversed(nodes):
        search = Search.of_losses(losses[node], never)
        if node in searches:
            layers[node] = _layers(searches.pop(node))
            search = search.beside(layers[node][-1][0])
        search = search.asked(problem.parent_edge(node), indices[node], never, by_cost=by_cost)
        searches.setdefault(problem.parents[node], []).append(search)
    layers[top] = _layers(searches[top])

    # Back from the start: who is asked, and where the search ends with which answer.
    below = layers[top][-1][0]
    chances = np.zeros((len(below.open), len(below.points), 1))
    chances[state] = 1.0
    answers: list[base.Answer] = [(np.inf, below.costs, below.at(np.array([never]))[state, 0])]
    start = Outside(below.points, np.zeros(1), chances)
    outside = dict(zip(problem.targets(top)[::-1], _shared(layers.pop(top), start), strict=True))
    for node in nodes:
        edge, around = problem.parent_edge(node), outside.pop(node)
        entered = around.at(indices[node], np.zeros(1, np.intp))[:, 0].sum(axis=1)
        asked[node] = entered.sum()
        mean_cost += float(entered @ edge.expected_costs)
        ahead = layers[node][-1][0] if node in layers else None
        onward = np.empty(0, np.intp) if ahead is None else ahead.points
        reached = around.at(indices[node], np.concatenate([losses[node], onward]))
        # From here on, per state of the node itself.
        costs, reached = _moved(edge, around.costs, reached, by_cost=by_cost, forward=True)
        own = np.arange(len(losses[node]))
        ended = reached[own, own]
        if ahead is not None:
            # Its children are open to the search while its own answer is not good enough.
            going = losses[node][:, np.newaxis] > onward
            around = Outside(onward, costs, reached[:, len(own) :] * going[..., np.newaxis])
            shares = _shared(layers.pop(node), around)
            outside.update(zip(problem.targets(node)[::-1], shares, strict=True))
            late = ahead.at(losses[node])[own, own]
            costs, ended = _convolved(costs, ended, ahead.costs, late)
        answers.append((problem.nodes[node].losses[:, np.newaxis], costs, ended))
    return answers, mean_cost, asked


def _levels(policy: IndexPolicy, best: float) -> tuple[list[Levels], list[Levels], int]:
    """Rank all losses, and the indices below the best loss in hand, lower ones met first.

    Returns the levels of each node's losses and indices, and that of what is never met.
    """
    losses = [policy.fallbacks[position] for position in policy.problem.grid.positions]
    parts = [*losses, *policy.sigma]
    sizes = [len(part) for part in parts]
    value, never = np.concatenate(parts), sum(sizes)
    owner = np.repeat(np.arange(len(parts)), sizes)  # losses come first, then indices
    # Equal entries of one node share a level; those of two nodes do not, so that ties are decided.
    level = np.unique(np.stack([value, owner]), axis=1, return_inverse=True)[1].ravel()
    level[np.isinf(value) | ((owner >= len(losses)) & (value >= best))] = never
    split = np.split(level, np.cumsum(sizes)[:-1])
    return split[: len(losses)], split[len(losses) :], never


def _union(one: Levels, two: Levels) -> Levels:
    """Return all levels of both, increasing; several times as fast as ``np.union1d``."""
    levels = np.sort(np.concatenate([one, two]), kind="stable")
    return np.asarray(levels[np.diff(levels, prepend=-2) != 0])  # -1 is the least level


def _layers(searches: list[Search]) -> list[list[Search]]:
    """Return searches merged in pairs, layer by layer, up to one for all."""
    layers = [searches]
    while len(layers[-1]) > 1:
        layers.append(in_pairs(layers[-1], Search.beside))
    return layers


def _shared(layers: list[list[Search]], around: Outside) -> list[Outside]:
    """Return what is open outside each search of the first layer, given that of the last."""
    parts = [around]
    for layer in reversed(layers[:-1]):
        pairs, parts = parts, []
        for position, search in enumerate(layer):
            pair = pairs[position // 2]
            costs = pair.costs
            chances = pair.chances[:, np.searchsorted(pair.points, search.points)]
            # Outside one of a pair lies what is outside the pair, and its sibling.
            if position ^ 1 < len(layer):
                sibling = layer[position ^ 1]
                table = sibling.at(search.points)
                costs, chances = _convolved(costs, chances, sibling.costs, table)
            parts.append(Outside(search.points, costs, chances))
    return parts


def _convolved(
    costs: Floats, chances: Floats, more: Floats, table: Floats
) -> tuple[Floats, Floats]:
    """Return sums of independent costs and their chances, along the last axis of both arrays."""
    if len(costs) == len(more) == 1:
        return costs + more, chances * table
    sums = np.add.outer(costs, more).ravel()
    product = chances[..., :, np.newaxis] * table[..., np.newaxis, :]
    return _merged(sums, product.reshape(*product.shape[:-2], len(sums)))


def _moved(
    edge: Edge, costs: Floats, table: Floats, *, by_cost: bool, forward: bool = False
) -> tuple[Floats, Floats]:
    """Take a table per state of an edge's target to its source's, or forward; add what it costs.

    The table has shape (states, points, costs).
    """
    parts = base.rows_by_cost(edge) if by_cost else [(0.0, edge.probabilities)]
    tables = [np.tensordot(rows.T if forward else rows, table, axes=1) for _, rows in parts]
    if len(parts) == 1:
        return costs + parts[0][0], tables[0]
    sums = np.concatenate([costs + cost for cost, _ in parts])
    return _merged(sums, np.concatenate(tables, axis=-1))


def _merged(sums: Floats, table: Floats) -> tuple[Floats, Floats]:
    """Add the columns of sums of costs that are equal but for rounding."""
    _, first, groups = np.unique(base.cost_keys(sums), return_index=True, return_inverse=True)
    base.check_costs(first)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(first)))
    return sums[first], np.asarray(np.add.reduceat(table[..., order], starts, axis=-1))


def _check_work(problem: Problem, top: int) -> None:
    """Refuse, before the work, a law of too many distinct costs, or of too many products."""
    sums: list[Floats] = [np.zeros(1)] * (len(problem.nodes) + 1)
    levels = sum(len(node.losses) for node in problem.nodes)
    work = 0.0
    for node in reversed(problem.descendants(top)):
        edge, parent = problem.parent_edge(node), problem.parents[node]
        prices = np.array([cost for cost, _ in base.rows_by_cost(edge)])
        search = np.unique(base.cost_keys(np.append(np.add.outer(prices, sums[node]), 0.0)))
        work += levels * edge.probabilities.size * len(prices) * len(sums[node])
        work += levels * len(edge.probabilities) * len(search) * len(sums[parent])
        if work > MAX_WORK:
            raise ArgumentError(
                f"the joint law of loss and cost of these {counted(len(problem.nodes), 'node')} "
                f"takes more than {MAX_WORK:.0e} products; round the costs of the problem to a "
                "common unit, use fewer states, or sample with ttamer.simulate(policy, inputs)"
            )
        sums[parent] = np.unique(base.cost_keys(np.add.outer(sums[parent], search)))
        base.check_costs(sums[parent])
        sums[node] = np.zeros(1)
