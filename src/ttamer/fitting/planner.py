"""How policies are planned: least squares on rows, backward over sets, all prices at once.

For rows t with beliefs of fits that did not see them, a set S, its best answer's loss and chance
p[S], and a price per unit of cost (Longstaff and Schwartz, with recall inside x)::

    stop[S]    = h wrong[owner] + (1 - h) p[S]               h = T / (T + 300) / 2
    gain[S, m] = ridge regression of stop[S] - value[S + m] on (1, tents of s[S], q, p q)
    ask m      = argmax of gain[S, m] - price cost[m], while above 0
    value[S]   = price cost[m] + value[S + m]   on each row as it happened, or stop[S]

Before any answer stop is 0, the columns are (1, q, mean prior), and the best way is taken always.
Without inputs the gain at the knots is made to rise with s, which is x but for exits.

A *plan* says which nodes may be asked after each set: chains in order of cost of all subsets of at
most four nodes, any order of the best of these, the router over all nodes (ask one), the best two
of all nodes; of a network the line of its exits. Per price the plan of least mean objective is
taken; router and two only where they are better by one paired standard error on rows not fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.fitting.belief import Floats, Ints, Step, View, chance
from ttamer.fitting.inputs import FeatureSpec
from ttamer.stats.envelope import rising_columns

Plan = Mapping[Step, tuple[int, ...]]
"""The nodes that may be asked after each set, cheap ones first."""
Values = NDArray[np.float32]


@dataclass(frozen=True)
class PlanOptions:
    """How policies are planned."""

    folds: int = 5
    points: int = 64  # the number of prices
    max_nodes: int = 4  # the most nodes that one input asks
    pool: int = 9  # of more nodes, those are left out that a cheaper one beats most clearly
    shortlist: int = 6  # of so many of the best chains at a price, any order is tried
    gated: int = 600  # with fewer complete rows the inputs must show that they help
    gate: float = 0.01  # by how much less of the objective of single nodes
    ridge: float = 2.0  # of tents
    # Classes that every node predicts on fewer rows, 3 or this times the root of all rows, count as
    # one
    rows_of_class: float = 0.1
    # A network's kernel has dense tables: with more classes, pairs of them add nothing
    classes_in_pairs: int = 255
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Log:
    """The rows that a fit sees: plain arrays."""

    losses: Floats  # (T, n), in [0, 1]; NaN where it is not known
    cost: Floats  # (T, n); NaN where it is not known
    confidence: Floats  # (T, n); NaN where there is no answer
    codes: Ints | None = None  # (T, n): the class that each answer predicts; -1 for none
    classes: tuple[str, ...] = ()
    features: NDArray[np.float32] | None = None  # (T, D): what is known of each input
    spec: FeatureSpec | None = None  # how inputs became features
    latency: Floats | None = None  # (T, n), in ms
    latency_weight: float = 0.0  # what a millisecond counts as, in the unit of cost
    groups: Ints | None = None  # (T,): rows of one group are never split by a fold
    # (T,): the weight of each row, e.g. one over its chance to be in the log.
    weight: Floats | None = None
    kind: str = "models"  # "models", or "exits" of one network, in order
    # By node, one that must be asked before it, -1 for none; empty where none has one
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.losses)

    @cached_property
    def complete(self) -> Ints:
        """The rows on which every node answered and every loss is known."""
        gaps = np.isnan(self.losses) | np.isnan(self.confidence)
        return np.flatnonzero(~gaps.any(axis=1))

    def with_common_classes(self, rows: float) -> Log:
        """Return the log with names and the first codes for classes of so many rows of a node.

        The others keep codes of their own, by which answers agree.
        """
        if self.codes is None:
            return self
        count = max(int(self.codes.max(initial=-1)) + 1, len(self.classes))
        rows_of = np.zeros(count, np.intp)
        for codes in self.codes.T:
            rows_of = np.maximum(rows_of, np.bincount(codes[codes >= 0], minlength=count))
        order = np.argsort(rows_of < rows, kind="stable")
        number = np.empty(count + 1, np.intp)
        number[order], number[-1] = np.arange(count), -1
        classes = self.classes or tuple(map(str, range(count)))
        common = tuple(classes[k] for k in order[: int((rows_of >= rows).sum())])
        return replace(self, codes=number[np.maximum(self.codes, -1)], classes=common)


def folds_of(groups: Ints, count: int, seed: int) -> Ints:
    """Return the fold of each row, shape (T,); rows of one group are in one fold."""
    number = np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = np.random.default_rng([seed, count]).permutation(int(number.max()) + 1)
    return np.asarray(order[number] % count)


def filled(values: Floats) -> Floats:
    """Return values with each gap filled by the mean of its column."""
    return np.asarray(np.where(np.isnan(values), np.nanmean(values, axis=0), values))


def prices_of(mean_cost: Floats, count: int) -> Floats:
    """Return the prices of a unit of cost, in losses: 0, then equal ratios.

    From where the dearest node costs a thousandth of a loss to where the smallest difference
    between nodes costs one.
    """
    mean = np.sort(mean_cost)
    if mean[-1] <= 0:  # all are free: prices do not matter
        mean = np.ones(1)
    gaps = np.diff(mean)
    # Nodes of almost equal cost would call for prices without end.
    gaps = gaps[gaps > 1e-3 * mean[-1]]
    top = np.clip(mean[-1] / gaps.min(), 10, 300) if len(gaps) else 30.0
    ratios = np.append(0.0, np.geomspace(1e-3, top, count - 1))
    return np.asarray(ratios / mean[-1])


def raked(losses: Floats, odds: Floats, complete: Ints, strength: float = 1.0) -> Floats:
    """Return weights of complete rows whose moments are those of all rows where a node was asked.

    The moments are each node's losses, log-odds and their product. Weights lie in [0.2, 5], mean 1.
    """
    columns, target = [], []
    for loss, odd in zip(losses.T, odds.T, strict=True):
        rows = ~np.isnan(loss)
        level = (odd - odd[rows].mean()) / (odd[rows].std() + 1e-6)
        error = loss - loss[rows].mean()
        for moment in (error, level, error * level):
            if moment[rows].std() > 1e-6:
                columns.append(moment[complete])
                target.append(moment[rows].mean())
    if not columns:
        return np.ones(len(complete))
    moments = np.stack(columns, axis=1)
    missing = np.array(target) - moments.mean(axis=0)
    centred = moments - moments.mean(axis=0)
    count = len(missing)
    hessian = centred.T @ centred + strength * count**2 / len(complete) * np.eye(count)
    weight = 1 + centred @ np.linalg.solve(hessian, missing) * len(complete)
    # No row may stand for many: what raking gains in bias it would lose in noise.
    weight = np.clip(weight, 0.2, 5.0)
    return np.asarray(weight / weight.mean())


def _with(step: Step, node: int) -> Step:
    return tuple(sorted((*step, node)))


# ---------------------------------------------------------------- plans
@dataclass(frozen=True, eq=False)
class Topology:
    """Which sets of nodes may be asked, and in which order."""

    mean_cost: Floats
    parents: tuple[int, ...]  # by node: the node that must be asked before it; -1 for none
    pool: Step
    max_nodes: int
    exits: bool = False

    @classmethod
    def of(cls, log: Log, mean_cost: Floats, options: PlanOptions) -> Topology:
        """Return what may be asked: of many nodes, those that no cheaper one clearly beats."""
        nodes, losses = range(len(mean_cost)), log.losses[log.complete]
        if log.kind == "exits":
            return cls(mean_cost, (-1, *nodes[:-1]), tuple(nodes), len(nodes), exits=True)
        parents = log.parents or (-1,) * len(nodes)

        def beaten(node: int) -> float:
            cheaper = [v for v in nodes if v != node and mean_cost[v] <= mean_cost[node]]
            worse = losses[:, [node]] - losses[:, cheaper]
            error = worse.std(axis=0) / len(worse) ** 0.5 + 1e-9
            return float((worse.mean(axis=0) / error).max(initial=-9.0))

        pool = set(nodes)
        if len(pool) > options.pool:
            pool = set(sorted(nodes, key=beaten)[: options.pool])
        for node in [*pool]:  # with those that must be asked before
            while (node := parents[node]) >= 0:
                pool.add(node)
        return cls(mean_cost, parents, tuple(sorted(pool)), min(options.max_nodes, len(pool)))

    def may_follow(self, step: Step, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return those of the nodes that may be asked after a set, cheap ones first."""
        able = [v for v in nodes if v not in step and self.parents[v] in (-1, *step)]
        return tuple(sorted(able, key=lambda v: (self.mean_cost[v], v)))

    @cached_property
    def sets(self) -> list[Step]:
        """All sets that may have been asked, small ones first."""
        if self.exits:
            return [self.pool[: size + 1] for size in range(len(self.pool))]
        sets: list[Step] = []
        level: set[Step] = {()}
        for _ in range(self.max_nodes):
            level = {_with(step, v) for step in level for v in self.may_follow(step, self.pool)}
            sets += sorted(level)
        return sets

    def chain(self, subset: Step) -> Plan:
        """Ask the cheapest of a subset, then the next."""
        plan: dict[Step, tuple[int, ...]] = {}
        step: Step = ()
        while len(step) < len(subset):
            way = subset[len(step)] if self.exits else self.may_follow(step, subset)[0]
            plan[step] = (way,)
            step = _with(step, way)
        return plan | {step: ()}

    def any_order(self, subset: Step, depth: int) -> Plan:
        """Ask any of a subset, up to so many."""
        plan: dict[Step, tuple[int, ...]] = {}
        level: set[Step] = {()}
        for size in range(depth + 1):
            following: set[Step] = set()
            for step in level:
                ways = self.may_follow(step, subset) if size < depth else ()
                plan[step] = ways
                following |= {_with(step, v) for v in ways}
            level = following
        return plan


# ---------------------------------------------------------------- least squares
@dataclass(frozen=True, eq=False)
class Smoother:
    """The regression of a gain: from targets to values at knots, and from these to rows."""

    columns: Values  # (T, L + 2): tents that sum to 1, and what the input gives
    solve: Values  # (L + 2, T)
    mass: Floats  # (L,): the rows at each knot


@dataclass(frozen=True, eq=False)
class Solution:
    """The gains of a plan's ways at some prices: (L + 2, prices) by set and node."""

    plan: Plan
    gains: Mapping[tuple[Step, int], Values]


class Planner:
    """Plans policies on rows.

    ``views`` are those of folds that have rows, by beliefs that did not see them, with the numbers
    of the rows; all else is of these rows in increasing order.
    """

    def __init__(
        self,
        views: Sequence[tuple[View, Ints]],
        losses: Floats,
        cost: Floats,
        predicted: Floats,
        prices: Floats,
        weight: Floats,
        *,
        inputs: bool,
        ridge: float,
    ) -> None:
        self._views, self.prices = [view for view, _ in views], prices.astype(np.float32)
        self._order = np.argsort(np.concatenate([rows for _, rows in views]))
        self.losses, self.weight, self.inputs = losses, weight, inputs
        self.cost, self.predicted = cost.astype(np.float32), predicted.astype(np.float32)
        # Outcomes are unbiased and noisy, beliefs are not: more rows give outcomes more weight.
        self.share = 0.5 * len(losses) / (len(losses) + 300)
        # Few rows say little of how an input shifts a gain.
        self.ridge, self.input_ridge = ridge, 20 + 20000 / len(losses)
        # Each of these serves many plans.
        self.x, self.state, self.knots = cache(self._x), cache(self._state), cache(self._knots)
        self.stop, self.smoother = cache(self._stop), cache(self._smoother)

    def _joined(self, part: Callable[[View], Any]) -> NDArray[Any]:
        """Return what the views say of all rows."""
        return np.concatenate([part(view) for view in self._views])[self._order]

    def _x(self, step: Step) -> Floats:
        """Return the log-odds of the best answer."""
        return np.asarray(self._joined(lambda view: view.best(step)[0]), float)

    def _state(self, step: Step) -> Floats:
        """Return what the gain of going on depends on: s of the belief."""
        return np.asarray(self._joined(lambda view: view.state(step)), float)

    def _knots(self, step: Step) -> Floats:
        """Return the knots of a gain after a set: quantiles of s."""
        state = self.state(step) if step else np.zeros(1)
        return np.unique(np.quantile(state, np.linspace(0, 1, 7), method="nearest"))  # six pieces

    def _stop(self, step: Step) -> Values:
        """Return what stopping after a set loses, shape (T, 1)."""
        owner = self._joined(lambda view: view.best(step)[1])
        lost = self.losses[np.arange(len(self.losses)), owner]
        mixed = self.share * lost + (1 - self.share) * chance(self.x(step))
        # Single precision: products over rows and prices take most of the time of a fit.
        return np.asarray(mixed[:, None], np.float32)

    def _of_input(self, step: Step, node: int) -> Floats:
        """Return the two columns of a gain that the input gives, shape (T, 2)."""
        if not self.inputs:
            return np.zeros((len(self.losses), 2))
        q = self._joined(lambda view: view.q(step, node))
        second = q * chance(self.x(step)) if step else self._joined(lambda view: view.typical)
        return np.stack([q, second], axis=1)

    def _smoother(self, step: Step, node: int) -> Smoother:
        """Return the regression of the gain of asking a node after a set."""
        knots, rows = self.knots(step), len(self.losses)
        state = self.state(step) if step else np.zeros(rows)
        tents = np.stack([np.interp(state, knots, tent) for tent in np.eye(len(knots))], axis=1)
        extra = self._of_input(step, node)
        columns = np.hstack([np.ones((rows, 1)), tents[:, 1:], extra])
        mean, scale = columns.mean(axis=0), np.maximum(columns.std(axis=0), 1e-9)
        mean[0], scale[0] = 0, 1
        if not self.inputs:
            scale[-2:] = 1
        penalty = np.full(columns.shape[1], self.ridge)
        penalty[0], penalty[-2:] = 1e-6, self.input_ridge if step else self.ridge
        scaled = (columns - mean) / scale
        weighted = scaled.T * self.weight
        solve = np.linalg.solve(weighted @ scaled + np.diag(penalty), weighted) / scale[:, None]
        solve[0] -= mean[1:] @ solve[1:]
        levels = len(knots)
        solve[1:levels] += solve[0]  # from a constant and differences to values at knots
        return Smoother(
            np.hstack([tents, extra]).astype(np.float32),
            solve.astype(np.float32),
            tents.T @ self.weight + 1e-9,
        )

    def solve(self, plan: Plan, prices: Ints | slice = slice(None)) -> tuple[Values, Solution]:
        """Return the value of each row at each price, shape (T, prices), and the policies."""
        rate = self.prices[prices]
        values: dict[Step, Values] = {}
        gains: dict[tuple[Step, int], Values] = {}
        for step in sorted(plan, key=len, reverse=True):
            value = self.stop(step) if step else np.zeros((len(self.losses), 1), np.float32)
            best: Values | None = None
            stop = value
            for node in plan[step]:
                onward = values[_with(step, node)]
                # Without inputs it is the same for all nodes.
                smoother = self.smoother(step, node if self.inputs else -1)
                levels = smoother.solve @ np.broadcast_to(stop - onward, (len(stop), len(rate)))
                if step and not self.inputs:
                    risen = rising_columns(levels[:-2].astype(float), smoother.mass)
                    levels[:-2] = risen.astype(np.float32)
                gains[step, node] = levels
                net = smoother.columns @ levels - self.predicted[:, [node]] * rate
                # As it happened on the row: the optimism of estimates would add up over steps.
                going = onward + self.cost[:, [node]] * rate
                if best is None and not step:
                    best, value = net, going
                    continue
                better = net > (0.0 if best is None else best)
                best = np.where(better, net, 0.0 if best is None else best)
                value = np.where(better, going, value)
            values[step] = value
        return values[()], Solution(plan, gains)
