"""One fit of deployable policies: every part is judged on rows that it did not see.

Rows are dealt into five folds, groups whole. For a set L of folds, at most two, what
is fitted to the rows outside L::

    prior(L)     what inputs say; the rows of fold j see that of prior(L + j)
    belief(L)    risks of answers; likewise
    planner(L)   policies for all prices, planned on the rows outside L by beliefs of L + j

The policy deployed is planner() with belief(). ``Estimates`` are of planner(k) on the rows of k, by
belief(k) and prior(k): of rows that nothing was fitted to. So 1 + 5 + 10 beliefs serve all of it.

Where answers have no label a belief is fitted twice: what its largest sets say of them are the
losses of the second fit. So whether the answers of a row agree teaches what each of them says by
itself. They are evidence for nothing else: plans and estimates are of complete rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ttamer.fitting.belief import Belief, Bools, Floats, Ints, Seen, View, chance
from ttamer.fitting.inputs import CrossFittedPrior
from ttamer.fitting.planner import (
    Log,
    Planner,
    PlanOptions,
    Solution,
    Topology,
    filled,
    folds_of,
    prices_of,
    raked,
)
from ttamer.fitting.points import standard_error
from ttamer.fitting.policy import StepTables, play
from ttamer.fitting.regression import BeliefFit, BeliefOptions, Curve

Folds = frozenset[int]
NONE: Folds = frozenset()


class StepFit(NamedTuple):
    """Deployable policies, and what each price does on the complete rows, not fitted to them."""

    tables: StepTables
    asked: Bools  # (P, R, n): which nodes
    answer: Ints  # (P, R): whose answer it returns
    weight: Floats  # (R,)


def fit_steps(
    names: tuple[str, ...],
    log: Log,
    *,
    belief: BeliefOptions | None = None,
    options: PlanOptions | None = None,
) -> StepFit:
    """Fit policies for all prices, and estimate what each does on new rows.

    The log has at least one complete row.
    """
    options = options or PlanOptions()
    log = log.with_common_classes(max(3, options.rows_of_class * len(log) ** 0.5))
    if belief is None:
        belief = BeliefOptions(seed=options.seed)
        if log.kind == "exits":  # few rows say little about how far exits agree
            pairs = len(log.classes) <= options.classes_in_pairs
            # The last exits have seen what the earlier ones saw.
            memory = 2 if len(log.complete) >= 1000 else 1
            belief = replace(belief, memory=memory, pooled=True, pairs=pairs)
    arm = CrossFit(names, log, belief, options)
    if log.features is not None and len(log.complete) < options.gated:
        blind = CrossFit(names, replace(log, features=None), belief, options)
        # Where rows are few, a prior that only looks useful costs more than it gains.
        if arm.score() > blind.score() * (1 - options.gate):
            arm = blind
    return arm.fit()


def row_weights(log: Log) -> Floats:
    """Return the weight of each row, shape (T,): complete rows stand for all."""
    weight = np.ones(len(log)) if log.weight is None else log.weight.copy()
    if log.weight is None and len(log.complete) < len(log):
        labelled = ~np.isnan(log.losses) & ~np.isnan(log.confidence)
        odds = np.empty(labelled.shape)
        for v, rows in enumerate(labelled.T):
            curve = Curve.fit(log.confidence[rows, v], log.losses[rows, v])
            odds[:, v] = curve(log.confidence[:, v])
        losses = np.where(labelled, log.losses, np.nan)
        weight[log.complete] = raked(losses, odds, log.complete)
    return weight


# The best policies by kind of plan: the mean objective on the rows planned on, shape (kinds, P); by
# kind and price a solution, and the price's column in it.
Candidates = tuple[Floats, list[dict[int, tuple[Solution, int]]]]


class CrossFit:
    """One arm of a fit: with inputs, or without. ``out`` is the set of folds left out."""

    def __init__(
        self,
        names: tuple[str, ...],
        log: Log,
        belief: BeliefOptions,
        options: PlanOptions,
    ) -> None:
        self.names, self.log, self.options, self.belief_options = names, log, options, belief
        groups = np.arange(len(log)) if log.groups is None else log.groups
        self.fold = folds_of(groups, options.folds, options.seed)
        self.cost = filled(log.cost)
        latency = np.zeros_like(self.cost) if log.latency is None else filled(log.latency)
        self.waiting = latency * log.latency_weight
        self.mean_cost = (self.cost + self.waiting).mean(axis=0)
        self.prices = prices_of(self.mean_cost, options.points)
        self.topology = Topology.of(log, self.mean_cost, options)
        self.weight = row_weights(log)
        self.prior: CrossFittedPrior | None = None
        if log.features is not None:
            rows = log.complete
            self.prior = CrossFittedPrior(
                log.features, log.losses[rows], self.cost, rows, self.fold, log.spec
            )
        # Each of these is fitted once, when it is first needed.
        self.answers, self.belief = cache(self._answers), cache(self._belief)
        self.view, self.planned = cache(self._view), cache(self._planned)

    def _answers(self, out: Folds) -> Seen:
        """Return all rows, with what the prior says that was fitted without some folds."""
        z = None if self.prior is None else self.prior.of_rows(out)[0]
        return Seen(self.log.confidence, self.log.codes, z)

    def _belief(self, out: Folds) -> Belief:
        """Return the belief fitted without some folds."""
        rows = np.flatnonzero(~np.isin(self.fold, [*out]))
        # Of two folds the prior left out the first, and the own one of each row.
        first = frozenset(sorted(out)[:1])
        answers, losses = self.answers(first).take(rows), self.log.losses[rows]
        weight = self.weight[rows] if (self.weight != 1).any() else None

        def fitted(losses: Floats) -> Belief:
            how = self.topology.sets, self.log.classes, weight, self.belief_options
            return BeliefFit(answers, losses, *how).belief

        belief, unlabelled = fitted(losses), answers.answered & np.isnan(losses)
        if unlabelled.any():
            # What the largest sets say of answers without a label teaches the smaller sets.
            losses = np.where(unlabelled, self._risks_in_largest(belief, answers), losses)
            belief = fitted(losses)
        return belief

    def _risks_in_largest(self, belief: Belief, answers: Seen) -> Floats:
        """Return the risk of each answer, a mean over the largest sets; NaN where none has it."""
        contexts = dict.fromkeys(map(belief.context, self.topology.sets))
        largest, view = max(map(len, contexts)), belief.view(answers)
        total, count = np.zeros((2, *answers.confidence.shape))
        for step in (step for step in contexts if len(step) == largest):
            nodes = list(step)
            rows = np.flatnonzero(answers.answered[:, nodes].all(axis=1))[:, None]
            total[rows, nodes] += chance(view.odds(step)[rows[:, 0]])
            count[rows, nodes] += 1
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def _view(self, out: Folds, fold: int) -> tuple[View, Ints]:
        """Return the complete rows of a fold as a belief without it and some folds sees them."""
        complete = self.log.complete
        rows = complete[self.fold[complete] == fold]
        return self.belief(out | {fold}).view(self.answers(out).take(rows)), rows

    def predicted(self, out: Folds, rows: Ints) -> Floats:
        """Return the cost that inputs predict of rows, or the means."""
        if self.prior is None:
            return np.broadcast_to(self.cost.mean(axis=0), (len(rows), len(self.names)))
        return self.prior.of_rows(out)[1][rows]

    def _planned(self, out: Folds) -> tuple[Planner, Candidates]:
        """Return the planner on the rows outside some folds, and what it planned."""
        views = [self.view(out, k) for k in range(self.options.folds) if k not in out]
        views = [(view, rows) for view, rows in views if len(rows)]
        rows = np.sort(np.concatenate([rows for _, rows in views]))
        planner = Planner(
            views,
            self.log.losses[rows],
            (self.cost + self.waiting)[rows],
            self.predicted(out, rows) + self.waiting.mean(axis=0),
            self.prices,
            self.weight[rows],
            inputs=self.prior is not None,
            ridge=self.options.ridge,
        )
        return planner, self._candidates(planner)

    def _candidates(self, planner: Planner) -> Candidates:
        """Plan each kind: chains and any order of the best; router; two."""
        topology, share = self.topology, planner.weight / planner.weight.sum()
        if topology.exits:
            plans = [topology.chain(topology.pool)]
        else:
            plans = [topology.chain(subset) for subset in topology.sets]
        value = np.array([share @ planner.solve(plan)[0] for plan in plans])
        # Any order is tried on the best chains only, as it costs more to plan.
        best, chosen = value.min(axis=0), value.argmin(axis=0)
        shortlist = np.argsort(value, axis=0)[: self.options.shortlist]
        for number in np.unique(shortlist) if not topology.exits else ():
            subset = topology.sets[number]
            if len(subset) > 1:
                prices = np.flatnonzero((shortlist == number).any(axis=0))
                plans.append(topology.any_order(subset, len(subset)))
                mean = share @ planner.solve(plans[-1], prices)[0]
                lower = mean < best[prices]
                best[prices[lower]], chosen[prices[lower]] = mean[lower], len(plans) - 1
        solved: dict[int, tuple[Solution, int]] = {}
        for number in np.unique(chosen):
            prices = np.flatnonzero(chosen == number)
            solution = planner.solve(plans[number], prices)[1]
            solved |= {price: (solution, column) for column, price in enumerate(prices.tolist())}
        values, solutions = [best], [solved]
        for depth in (1, 2) if not topology.exits else ():
            if len(topology.pool) > depth and topology.max_nodes >= depth:
                mean, solution = planner.solve(topology.any_order(topology.pool, depth))
                values.append(share @ mean)
                solutions.append({price: (solution, price) for price in range(len(self.prices))})
        return np.array(values), solutions

    def score(self) -> float:
        """Return the objective on rows, of that of the best single node: its mean over prices."""
        error = np.nanmean(self.log.losses, axis=0)
        alone = (error + self.prices[:, None] * self.mean_cost).min(axis=1)
        value, positive = self.planned(NONE)[1][0].min(axis=0), alone > 0
        return float((value[positive] / alone[positive]).mean()) if positive.any() else 1.0

    def fit(self) -> StepFit:
        """Fit everything."""
        asked, answer = self._decisions()
        kinds = self._kinds(asked, answer)
        chosen = kinds, np.arange(len(kinds))
        tables = self._tables(self.belief(NONE), NONE, kinds)
        prior = None if self.prior is None else self.prior.without(NONE)
        weight = self.weight[self.log.complete]
        return StepFit(replace(tables, prior=prior), asked[chosen], answer[chosen], weight)

    def _decisions(self) -> tuple[Bools, Ints]:
        """Return the nodes asked and the answer of rows not fitted to, by kind of plan and price.

        Shapes (kinds, P, R, n) and (kinds, P, R).
        """
        complete, (kinds, prices) = self.log.complete, self.planned(NONE)[1][0].shape
        asked = np.zeros((kinds, prices, len(complete), len(self.names)), bool)
        answer = np.zeros(asked.shape[:3], np.intp)
        for k in range(self.options.folds):
            view, rows = self.view(NONE, k)
            number, predicted = np.searchsorted(complete, rows), self.predicted(NONE, rows)
            for kind in range(kinds) if len(rows) else ():
                tables = self._tables(view.belief, frozenset([k]), np.full(prices, kind))
                for price in range(prices):
                    done = play(tables.policy(price), view, predicted)
                    asked[kind, price, number] = done.asked
                    answer[kind, price, number] = done.answer
        return asked, answer

    def _kinds(self, asked: Bools, answer: Ints) -> Ints:
        """Return the kind of plan of each price: the first, unless one is better beyond noise."""
        complete, rows = self.log.complete, np.arange(len(self.log.complete))
        losses, cost = self.log.losses[complete], (self.cost + self.waiting)[complete]
        weight, mean = self.weight[complete], np.zeros(asked.shape[:2])
        objectives = (
            losses[rows, owner] + self.prices[:, None] * np.einsum("prn,rn->pr", nodes, cost)
            for nodes, owner in zip(asked, answer, strict=True)
        )
        first = next(objectives)
        for kind, objective in enumerate(objectives, 1):
            worse = objective - first
            mean[kind] = worse @ weight / weight.sum()
            # Within one standard error the first kind stays: its noise would be chosen, too.
            mean[kind][mean[kind] > -standard_error(worse, weight)] = 0.0
        return np.asarray(mean.argmin(axis=0))

    def _tables(self, belief: Belief, out: Folds, kinds: Ints) -> StepTables:
        """Lay out the policies planned without some folds, of a kind for each price, as tables."""
        planner, (_, solutions) = self.planned(out)
        chosen = [solutions[kind][price] for price, kind in enumerate(kinds.tolist())]
        knots = {step: planner.knots(step) for solution, _ in chosen for step in solution.plan}
        pieces = 1 + max(len(knots[step]) for solution, _ in chosen for step, _ in solution.gains)
        ways = []
        for price, (solution, column) in enumerate(chosen):
            for step, nodes in solution.plan.items():
                for node in nodes:
                    gains = solution.gains[step, node][:, column].astype(float)
                    gain = gain_by_piece(knots[step], gains[:-2], pieces)
                    ways.append((price, step, node, *gain, gains[-2:]))
        return StepTables.of(
            ways,
            knots,
            names=self.names,
            belief=belief,
            costs=self.cost.mean(axis=0),
            prices=self.prices,
            wait=self.waiting.mean(axis=0),
            kind=self.log.kind,
            parents=self.log.parents,
        )


def gain_by_piece(knots: Floats, levels: Floats, pieces: int) -> tuple[Floats, Floats]:
    """Return base and slope of a gain by piece of x, given its levels at knots; flat outside.

    >>> gain_by_piece(np.array([0.0, 2.0]), np.array([1.0, 5.0]), 3)
    (array([1., 1., 5.]), array([0., 2., 0.]))
    """
    slopes = np.diff(levels) / np.diff(knots)
    base, slope = np.full(pieces, levels[-1]), np.zeros(pieces)
    base[: len(knots)] = levels[0], *(levels[:-1] - slopes * knots[:-1])
    slope[1 : len(knots)] = slopes
    return base, slope
