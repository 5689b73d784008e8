"""One fit of deployable policies: every part is judged on rows that it did not see.

Rows are dealt into five folds, groups whole. For a set L of folds, at most two, ``without(L)`` is
fitted to the rows outside L::

    prior(L)     what inputs say; the rows of fold j see that of prior(L + j)
    belief(L)    risks of answers; likewise
    planner(L)   policies for all prices, planned on the rows outside L by beliefs of L + j

The policy deployed is planner() with belief(). ``Estimates`` are of planner(k) on the rows of k, by
belief(k) and prior(k): of rows that nothing was fitted to. So 1 + 5 + 10 beliefs serve all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ttamer.fitting.belief import Belief, Floats, Ints, Seen, Step, View
from ttamer.fitting.inputs import CrossFittedPrior
from ttamer.fitting.planner import (
    Board,
    Log,
    Planner,
    PlanOptions,
    Solution,
    Topology,
    Values,
    filled,
    folds_of,
    prices_of,
    raked,
)
from ttamer.fitting.policy import Estimates, StepFit, StepTables, play
from ttamer.fitting.regression import BeliefOptions, Curve, fit_belief

Folds = frozenset[int]
NONE: Folds = frozenset()


def fit_steps(
    names: tuple[str, ...],
    log: Log,
    *,
    kind: str = "models",
    parents: Sequence[int] | None = None,
    latency_weight: float = 0.0,
    belief: BeliefOptions | None = None,
    options: PlanOptions | None = None,
) -> StepFit:
    """Fit policies for all prices, and estimate what each does on new rows.

    Args:
        names: The nodes.
        log: T rows; at least one complete.
        kind: ``"models"``, or ``"exits"`` of one network, in order.
        parents: By node: the node that must be asked before it, -1 for none.
        latency_weight: What a millisecond counts as, in the unit of cost.
        belief: How beliefs are fitted.
        options: How policies are planned.
    """
    options = options or PlanOptions()
    log = log.with_common_classes(max(3, options.rows_of_class * len(log) ** 0.5))
    if belief is None:
        belief = BeliefOptions(seed=options.seed)
        if kind == "exits":  # few rows say little about how far exits agree
            pairs = len(log.classes) <= options.classes_in_pairs
            memory = 2 if len(log.complete) >= 1000 else 1
            belief = replace(belief, memory=memory, pooled=True, pairs=pairs)
    arms = [CrossFit(names, log, kind, parents, latency_weight, belief, options)]
    if log.features is not None and len(log.complete) < options.gated:
        blind = replace(log, features=None)
        arms.append(CrossFit(names, blind, kind, parents, latency_weight, belief, options))
        if arms[0].score > arms[1].score * (1 - options.gate):
            arms.reverse()
    return arms[0].fit()


@dataclass(frozen=True, eq=False)
class Candidates:
    """The best policy of each price, by kind of plan."""

    value: Floats
    """Shape (kinds, P): the mean objective on the rows planned on."""
    solutions: tuple[tuple[tuple[Solution, Ints], ...], ...]
    """By kind: solutions, each with the numbers of its prices."""


@dataclass(frozen=True, eq=False)
class CrossFit:
    """One arm of a fit: with inputs, or without."""

    names: tuple[str, ...]
    log: Log
    kind: str
    parents: Sequence[int] | None
    latency_weight: float
    belief_options: BeliefOptions
    options: PlanOptions

    @cached_property
    def fold(self) -> Ints:
        """Shape (T,): the fold of each row."""
        groups = np.arange(len(self.log)) if self.log.groups is None else self.log.groups
        return folds_of(groups, self.options.folds, self.options.seed)

    @cached_property
    def cost(self) -> Floats:
        """Shape (T, n): costs, gaps filled."""
        return filled(self.log.cost)

    @cached_property
    def waiting(self) -> Floats:
        """Shape (T, n): what latencies count as, in the unit of cost."""
        if self.log.latency is None or not self.latency_weight:
            return np.zeros_like(self.cost)
        return filled(self.log.latency) * self.latency_weight

    @cached_property
    def prices(self) -> Floats:
        """Shape (P,)."""
        return prices_of((self.cost + self.waiting).mean(axis=0), self.options.points)

    @cached_property
    def topology(self) -> Topology:
        """What may be asked when."""
        nodes, mean = len(self.names), (self.cost + self.waiting).mean(axis=0)
        if self.kind == "exits":
            pool = tuple(range(nodes))
            return Topology(mean, (-1, *range(nodes - 1)), pool, nodes, exits=True)
        parents = tuple(self.parents or (-1,) * nodes)
        pool = self._pool(mean)
        return Topology(mean, parents, pool, min(self.options.most, len(pool)))

    def _pool(self, mean: Floats) -> Step:
        """Return the nodes to plan with: without those that a cheaper one beats most clearly."""
        nodes = range(len(self.names))
        if len(nodes) <= self.options.pool:
            return tuple(nodes)
        losses = self.log.losses[self.log.complete]

        def beaten(node: int) -> float:
            cheaper = [v for v in nodes if v != node and mean[v] <= mean[node]]
            worse = losses[:, [node]] - losses[:, cheaper]
            error = worse.std(axis=0) / len(worse) ** 0.5 + 1e-9
            return float((worse.mean(axis=0) / error).max(initial=-9.0))

        best = set(sorted(nodes, key=beaten)[: self.options.pool])
        for node in [*best]:  # whoever is asked first of all is asked before it
            while self.parents is not None and (node := self.parents[node]) >= 0:
                best.add(node)
        return tuple(sorted(best))

    @cached_property
    def prior(self) -> CrossFittedPrior | None:
        """What inputs say."""
        if self.log.features is None:
            return None
        log, complete = self.log, self.log.complete
        return CrossFittedPrior(
            self.log.features, log.losses, self.cost, complete, self.fold, log.near, log.spec
        )

    @cached_property
    def weight(self) -> Floats:
        """Shape (T,): of each row; complete rows stand for all."""
        weight = np.ones(len(self.log)) if self.log.weight is None else self.log.weight.copy()
        complete = self.log.complete
        if self.log.weight is None and len(complete) < len(self.log):
            known = ~np.isnan(self.log.losses) & ~np.isnan(self.log.confidence)
            odds = np.stack(
                [
                    Curve.fit(self.log.confidence[on, v], self.log.losses[on, v])(
                        self.log.confidence[:, v]
                    )
                    for v, on in enumerate(known.T)
                ],
                axis=1,
            )
            weight[complete] = raked(np.where(known, self.log.losses, np.nan), odds, complete)
        return weight

    @cached_property
    def _seen(self) -> dict[Folds, Seen]:
        return {}

    def seen(self, left: Folds) -> Seen:
        """Return all rows, with what the prior says that was fitted without some folds."""
        if self.prior is None:
            left = NONE
        if left not in self._seen:
            z = None if self.prior is None else self.prior.log_odds(left)
            self._seen[left] = Seen(self.log.confidence, self.log.codes, z)
        return self._seen[left]

    @cached_property
    def _beliefs(self) -> dict[Folds, Belief]:
        return {}

    def belief(self, left: Folds) -> Belief:
        """Return the belief fitted without some folds."""
        if left not in self._beliefs:
            rows = np.flatnonzero(~np.isin(self.fold, [*left]))
            first: Folds = frozenset(sorted(left)[:1])
            self._beliefs[left] = fit_belief(
                self.seen(first if len(left) > 1 else left).take(rows),
                self.log.losses[rows],
                self.topology.sets,
                classes=self.log.classes,
                weight=self.weight[rows] if (self.weight != 1).any() else None,
                options=self.belief_options,
            )
        return self._beliefs[left]

    @cached_property
    def _views(self) -> dict[tuple[Folds, int], tuple[View, Ints]]:
        return {}

    def view(self, left: Folds, fold: int) -> tuple[View, Ints]:
        """Return the complete rows of a fold as a belief without it and some folds sees them."""
        key = left | {fold}, fold
        if key not in self._views:
            complete = self.log.complete
            rows = complete[self.fold[complete] == fold]
            view = self.belief(left | {fold}).view(self.seen(left).take(rows))
            self._views[key] = view, rows
        return self._views[key]

    def predicted(self, left: Folds, rows: Ints) -> Floats:
        """Return the cost that inputs predict of rows, or the means."""
        if self.prior is None:
            return np.broadcast_to(self.cost.mean(axis=0), (len(rows), len(self.names)))
        return self.prior.costs(left)[rows]

    def planner(self, left: Folds) -> Planner:
        """Return the planner on the rows outside some folds."""
        folds = [k for k in range(self.options.folds) if k not in left]
        views = [self.view(left, k) for k in folds]
        rows = np.sort(np.concatenate([rows for _, rows in views]))
        return Planner(
            Board([view for view, rows in views if len(rows)], [rows for _, rows in views]),
            self.log.losses[rows],
            (self.cost + self.waiting)[rows],
            self.predicted(left, rows) + self.waiting.mean(axis=0),
            self.prices,
            self.weight[rows],
            inputs=self.prior is not None,
            ridge=self.options.ridge,
        )

    def candidates(self, planner: Planner) -> Candidates:
        """Plan each kind: chains and any order of the best; router; two."""
        topology, share = self.topology, planner.weight / planner.weight.sum()
        if self.kind == "exits":
            value, solution = planner.solve(topology.chain(topology.pool))
            every = np.arange(len(self.prices))
            return Candidates((share @ value)[None], (((solution, every),),))
        subsets = topology.sets
        chains = np.array([share @ planner.solve(topology.chain(s))[0] for s in subsets])
        best, choice = chains.min(axis=0), chains.argmin(axis=0)
        ordered = np.argsort(chains, axis=0)[: self.options.shortlist]
        which: list[tuple[str, int]] = [("chain", int(s)) for s in choice]
        for s in np.unique(ordered):
            prices = np.flatnonzero((ordered == s).any(axis=0))
            if len(subsets[s]) < 2:
                continue
            value, _ = planner.solve(topology.any_order(subsets[s], len(subsets[s])), prices)
            for price, mean in zip(prices.tolist(), (share @ value).tolist(), strict=True):
                if mean < best[price]:
                    best[price], which[price] = mean, ("any", int(s))
        solutions = []
        for kind, s in sorted(set(which)):
            prices = np.array([j for j, key in enumerate(which) if key == (kind, s)])
            subset = subsets[s]
            plan = topology.chain(subset)
            if kind == "any":
                plan = topology.any_order(subset, len(subset))
            solutions.append((planner.solve(plan, prices)[1], prices))
        values, kinds = [best], [tuple(solutions)]
        for depth in (1, 2):
            if len(topology.pool) > depth and topology.most >= depth:
                value, solution = planner.solve(topology.any_order(topology.pool, depth))
                values.append(share @ value)
                kinds.append(((solution, np.arange(len(self.prices))),))
        return Candidates(np.array(values), tuple(kinds))

    @cached_property
    def _planned(self) -> dict[Folds, tuple[Planner, Candidates]]:
        return {}

    def planned(self, left: Folds) -> tuple[Planner, Candidates]:
        """Return the planner without some folds, and what it planned."""
        if left not in self._planned:
            planner = self.planner(left)
            self._planned[left] = planner, self.candidates(planner)
        return self._planned[left]

    @cached_property
    def score(self) -> float:
        """The objective on rows, of that of the best single node: its mean over prices."""
        mean = (self.cost + self.waiting).mean(axis=0)
        error = np.nanmean(self.log.losses, axis=0)
        alone = (error + self.prices[:, None] * mean).min(axis=1)
        value, some = self.planned(NONE)[1].value.min(axis=0), alone > 0
        return float((value[some] / alone[some]).mean()) if some.any() else 1.0

    def fit(self) -> StepFit:
        """Fit everything."""
        estimates, kinds = self.estimates()
        planner, candidates = self.planned(NONE)
        prior = None if self.prior is None else self.prior.full
        tables = self.tables(self.belief(NONE), planner, candidates, kinds)
        return StepFit(replace(tables, prior=prior), estimates)

    def estimates(self) -> tuple[Estimates, Ints]:
        """Return what each price does on rows not fitted to, and the kind of plan of each."""
        complete = self.log.complete
        number = np.full(len(self.log), -1)
        number[complete] = np.arange(len(complete))
        count = len(self.planned(NONE)[1].value)
        shape = (count, len(self.prices), len(complete))
        lost, paid, waited = np.empty(shape), np.empty(shape), np.empty(shape)
        for k in range(self.options.folds):
            view, rows = self.view(NONE, k)
            if not len(rows):
                continue
            planner, candidates = self.planned(frozenset([k]))
            predicted = None if self.prior is None else self.predicted(NONE, rows)
            for which in range(count):
                kinds = np.full(len(self.prices), which)
                tables = self.tables(view.belief, planner, candidates, kinds)
                for j in range(len(self.prices)):
                    done = play(tables.policy(j), view, predicted)
                    at = which, j, number[rows]
                    lost[at] = self.log.losses[rows, done.answer]
                    paid[at] = (done.asked * self.cost[rows]).sum(axis=1)
                    if self.log.latency is not None:
                        waited[at] = (done.asked * filled(self.log.latency)[rows]).sum(axis=1)
        weight = self.weight[complete]
        kinds = self._kinds(lost, paid, waited, weight)
        every = np.arange(len(self.prices))
        alone = np.add.accumulate if self.kind == "exits" else lambda v, axis: v  # noqa: ARG005
        estimates = Estimates(
            rows=complete,
            weight=weight,
            lost=lost[kinds, every],
            paid=paid[kinds, every],
            waited=None if self.log.latency is None else waited[kinds, every],
            alone_lost=self.log.losses[complete],
            alone_paid=alone(self.cost[complete], axis=1),
            alone_waited=None
            if self.log.latency is None
            else alone(filled(self.log.latency)[complete], axis=1),
        )
        return estimates, kinds

    def _kinds(self, lost: Floats, paid: Floats, waited: Floats, weight: Floats) -> Ints:
        """Return the kind of plan of each price: the first, unless one is better beyond noise."""
        objective = lost + self.prices[:, None] * paid
        if self.latency_weight:
            objective += self.prices[:, None] * self.latency_weight * waited
        worse = objective - objective[0]
        mean = worse @ weight / weight.sum()
        error = np.sqrt((worse - mean[..., None]) ** 2 @ weight**2) / weight.sum()
        mean[mean > -error] = 0.0
        return np.asarray(mean.argmin(axis=0))

    def tables(
        self, belief: Belief, planner: Planner, candidates: Candidates, kinds: Ints
    ) -> StepTables:
        """Lay out the policies of all prices as tables."""
        ways: list[tuple[int, Step, int, Values]] = []
        for kind, solutions in enumerate(candidates.solutions):
            for solution, prices in solutions:
                for column in np.flatnonzero(kinds[prices] == kind):
                    ways += [
                        (int(prices[column]), step, node, solution.gains[step, node][:, column])
                        for step, nodes in solution.plan.items()
                        for node in nodes
                    ]
        ways.sort(key=lambda way: way[0])
        steps = tuple(sorted({step for _, step, _, _ in ways}, key=lambda s: (len(s), s)))
        width = max(len(planner.knots(step)) for step in steps)
        knots = np.full((len(steps), width), np.inf)
        base, slope = np.zeros((2, len(ways), width + 1))
        for number, step in enumerate(steps):
            knots[number, : len(planner.knots(step))] = planner.knots(step)
        place = {step: number for number, step in enumerate(steps)}
        for number, (_, step, _, gains) in enumerate(ways):
            own, levels = planner.knots(step), gains[:-2].astype(float)
            inner = np.diff(levels) / np.diff(own)
            slope[number, 1 : len(own)] = inner
            base[number, 0] = levels[0]
            base[number, 1 : len(own)] = levels[:-1] - inner * own[:-1]
            base[number, len(own) :] = levels[-1]
        return StepTables(
            names=self.names,
            belief=belief,
            costs=self.cost.mean(axis=0),
            prices=self.prices,
            steps=steps,
            knots=knots,
            point=np.array([way[0] for way in ways], np.intp),
            source=np.array([place[way[1]] for way in ways], np.intp),
            node=np.array([way[2] for way in ways], np.intp),
            base=base,
            slope=slope,
            columns=np.array([way[3][-2:] for way in ways], float),
            wait=self.waiting.mean(axis=0),
            kind=self.kind,
        )
