"""Many models: a search for the best plan among the subsets of the models (subsets.py)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import MAX_CONTEXT
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.models import States
from ttamer.fitted.replay import full_cost, paid
from ttamer.fitting.cross_fit import CrossFit
from ttamer.fitting.regressions import fit_belief, has_class_terms, useful_extras
from ttamer.fitting.row_policy import RowSolver, width_of
from ttamer.fitting.signals import useful_signals
from ttamer.fitting.step_walk import (
    MAX_STATES,
    ROWS_PER_STATE,
    StepRows,
    edge_costs,
    model_of,
    problem_of,
    rungs_of,
)
from ttamer.fitting.subsets import (
    MAX_ASKED,
    MAX_POOL,
    MAX_SEARCH_ROWS,
    MIN_MODELS,
    Lattice,
    average_near,
    choose_plans,
    choose_pool,
    subset_size,
)
from ttamer.policy.base import Ladder
from ttamer.solvers.blas import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Step
    from ttamer.fitting.cross_fit import Estimates
    from ttamer.fitting.subsets import Plan, Way
    from ttamer.policy.walk import WalkPolicy
    from ttamer.problem.problem import Problem
    from ttamer.trace.spec import Order
    from ttamer.trace.trace import Trace

__all__ = ["build_on_subsets", "searches_subsets"]

OPTIMISM_SHARE = 0.9
"""This share of what policies lose on rows left out is added to their errors. It is all of it for a
choice among fixed policies; thresholds found on two thirds of the rows are themselves worse than
those found on all, and if that goes with one over the number of rows, it is 0.8 for them."""
OPTIMISM_REACH = 0.92
"""The optimism of policies is averaged over tradeoffs whose log-odds are at most this far."""
MIN_STANDARD_ERRORS = 2.0
"""Regressions weigh signals if that lowers the log loss of X by this many standard errors."""


def searches_subsets(trace: Trace, order: Order | None = None) -> bool:
    """Return whether policies are searched among subsets of the models (subsets.py).

    They are for at least ``MIN_MODELS`` separate models that may be asked in any order.
    """
    free = (order or trace.spec.order) in ("any", "auto")
    separate = not (trace.spec.is_network or trace.spec.is_tree)
    return free and separate and len(trace.names) >= MIN_MODELS


def build_on_subsets(
    trace: Trace,
    tradeoffs: NDArray[np.float64],
    *,
    states: int | None,
    seed: int,
    say: Callable[[str], object],
) -> FittedLadder | None:
    """Fit beliefs for subsets of many models, and for each tradeoff the best plan.

    There is none where one line of models is best throughout, and longer than regressions look
    back: such a line is fitted in its order instead.
    """
    costs = trace.costs.mean(axis=0).tolist()
    names = useful_signals(trace, trace.loss_shares())
    extras = useful_extras(trace, trace.loss_shares())
    pool = list(range(len(costs)))
    line = [step for step in Lattice(costs, pool, 1).prefixes if 1 < len(step) <= MAX_ASKED]
    fits = CrossFit(trace, line, seed, names, extras=extras)
    scored_once = _scores_once(fits)
    weigh_signals = not scored_once or _weighs_signals(fits)
    fits = dataclasses.replace(fits, scored_once=scored_once, weigh_signals=weigh_signals)
    if len(pool) > MAX_POOL:
        pairs = Lattice(costs, pool, 2)
        estimates = dataclasses.replace(fits, steps=pairs.steps).estimates(say)
        pool = _Search.of(trace, pairs, estimates, tradeoffs, states).pool(seed)
    size = subset_size(len(pool), len(trace))
    lattice = Lattice(costs, pool, size, router=bool(names))
    fits = dataclasses.replace(fits, steps=lattice.steps)
    estimates = fits.estimates(say)
    search = _Search.of(trace, lattice, estimates, tradeoffs, states)
    say(f"searching {len(lattice.subsets)} subsets for {len(tradeoffs)} tradeoffs")
    places, policies = search.run(seed)
    steps = [lattice.steps[k] for k in places]
    if policies[0].problem.is_line:
        if len(steps) > MAX_CONTEXT:
            return None
        steps = _in_order_of_asking(policies[0].problem, steps)
    with one_thread():
        belief = fit_belief(
            trace, trace.loss_shares(), steps, scored_once=scored_once, signals=names,
            extras=extras,
            weigh_signals=weigh_signals,
        )  # fmt: skip
    used = search.rows.at(places)
    count = subset_states(len(trace), states)
    ladder = FittedLadder.of(
        Ladder(tuple(policies)), model_of(trace, belief, steps, used.edges, "any", count)
    )
    say("estimating what the policies do on new rows")
    rungs = rungs_of(ladder, trace, used, ladder.fitted.states(trace))
    optimism = _optimism(search, places, policies, fits, estimates)

    def raised(errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.minimum(errors + optimism * trace.loss_scale, trace.loss_scale)

    smoothed = None if rungs.smoothed_errors is None else raised(rungs.smoothed_errors)
    return ladder.with_rungs(
        dataclasses.replace(rungs, errors=raised(rungs.errors), smoothed_errors=smoothed)
    )


def subset_states(rows: int, states: int | None) -> int:
    """Return the number of states of X in a search among subsets."""
    return states or int(np.clip(rows // ROWS_PER_STATE, 4, MAX_STATES // 2))


def _scores_once(fits: CrossFit) -> bool:
    """Return whether answers given by several nodes should be scored once.

    Without class terms they are. With them, it is whichever gives X the lower log loss on rows not
    fitted to, after the steps of the fits.
    """
    if not has_class_terms(fits.trace):
        return True
    several, once = (
        _log_losses(dataclasses.replace(fits, scored_once=scored_once)).mean()
        for scored_once in (False, True)
    )
    return bool(once < several)


def _weighs_signals(fits: CrossFit) -> bool:
    """Return whether regressions should weigh the offsets of signals, answers being scored once.

    With few rows such weights are noise, which costs more than they gain: they must lower the log
    loss of X beyond doubt, on rows not fitted to and after the steps of the fits.
    """
    if not fits.signals:
        return False
    added, weighed = (
        _log_losses(dataclasses.replace(fits, scored_once=True, weigh_signals=weigh_signals))
        for weigh_signals in (False, True)
    )
    gain = added - weighed
    return bool(gain.mean() > MIN_STANDARD_ERRORS * gain.std() / len(gain) ** 0.5)


def _log_losses(fits: CrossFit) -> NDArray[np.float64]:
    """Return the log loss of X on each row, the mean over steps, shape (T,)."""
    least, owner, _ = fits.estimates()
    met = fits.trace.loss_shares()[np.arange(len(least))[:, np.newaxis], owner]
    losses: NDArray[np.float64] = (np.logaddexp(0, least) - met * least).mean(axis=1)
    return losses


@dataclass(frozen=True, eq=False)
class _Search:
    """Finds for each tradeoff the best plan of a lattice, on the rows of a trace."""

    trace: Trace
    lattice: Lattice
    rows: StepRows
    tradeoffs: NDArray[np.float64]
    states: int | None
    """The number of states of X, where one is given."""

    @classmethod
    def of(
        cls,
        trace: Trace,
        lattice: Lattice,
        estimates: Estimates,
        tradeoffs: NDArray[np.float64],
        states: int | None,
    ) -> _Search:
        """Return a search over rows of which X is given."""
        rows = StepRows.of(
            trace, lattice.steps, estimates, states=subset_states(len(trace), states)
        )
        return cls(trace, lattice, rows, tradeoffs, states)

    def pool(self, seed: int) -> list[int]:
        """Return the models that are best in pairs."""
        few = np.sort(self._shuffled(seed)[:MAX_SEARCH_ROWS])
        return choose_pool(self._solver(few), self.lattice, self.tradeoffs)

    def run(self, seed: int) -> tuple[list[int], list[WalkPolicy]]:
        """Return the places used, and a policy for each tradeoff on the walk between them."""
        every = self._shuffled(seed)
        plans = choose_plans(self._solver(every[:MAX_SEARCH_ROWS]), self.lattice, self.tradeoffs)
        used: Plan = frozenset().union(*plans)
        places = sorted({target for _, target in used})
        place = {-1: -1, **{old: new for new, old in enumerate(places)}}
        ways = [(place[u], place[v], node) for u, v, node in self.lattice.ways if (u, v) in used]
        edge = {way[:2]: number for number, way in enumerate(ways)}
        solver = self._solver(every, places, ways)
        policies: dict[int, WalkPolicy] = {}
        for plan in dict.fromkeys(plans):
            which = [k for k, own in enumerate(plans) if own == plan]
            edges = {edge[place[u], place[v]] for u, v in plan}
            found = solver.policies(self.tradeoffs[which], edges)
            policies.update(zip(which, found, strict=True))
        return places, [policies[k] for k in range(len(self.tradeoffs))]

    def _shuffled(self, seed: int) -> NDArray[np.intp]:
        """Return the numbers of all rows in random order: those of a file are often sorted."""
        return np.random.default_rng([seed, 4]).permutation(len(self.trace))

    def _solver(
        self,
        few: NDArray[np.intp],
        places: Sequence[int] | None = None,
        ways: Sequence[Way] | None = None,
    ) -> RowSolver:
        """Return a solver for some rows, over the lattice or over some of its places."""
        rows = self.rows if places is None else self.rows.at(places)
        steps = self.lattice.steps if places is None else [self.lattice.steps[k] for k in places]
        ways = self.lattice.ways if ways is None else ways
        problem = problem_of(self.trace, steps, ways, rows, width_of(len(self.trace)))
        costs = [
            cost[few] if isinstance(cost, np.ndarray) else cost
            for cost in edge_costs(self.trace, steps, ways)
        ]
        width = width_of(len(few))
        return RowSolver(problem, rows.found[few], rows.lost[few], width=width, costs=costs)

    def played(
        self, places: Sequence[int], policies: Sequence[WalkPolicy], trace: Trace, x: Estimates
    ) -> NDArray[np.float64]:
        """Return the errors and costs of policies on rows of which X is given, (2, policies)."""
        found = [np.searchsorted(self.rows.edges[k], x.state[:, k], side="right") for k in places]
        members = np.zeros((len(places), len(trace.names)), bool)
        for place, k in enumerate(places):
            members[place, list(self.lattice.steps[k])] = True
        states = States(np.stack(found, axis=1).astype(np.uint8), x.owner[:, places], members)
        wrong, each = trace.loss_shares(), np.arange(len(trace))
        played = [states.play(policy) for policy in policies]
        errors = [wrong[each, own.answer].mean() for own in played]
        full = full_cost(self.trace.spec, self.trace)
        return np.array([errors, [paid(own.asked, trace).mean() / full for own in played]])


def _optimism(
    search: _Search,
    places: Sequence[int],
    policies: Sequence[WalkPolicy],
    fits: CrossFit,
    estimates: Estimates,
) -> NDArray[np.float64]:
    """Return by how much the errors of policies on the rows they were searched on are too low.

    The search is repeated without each part of the rows, and its policies are played on that part.
    Plans are compared by beliefs too, so these are fitted without the part as well; X of the rows
    played on is as in the fit, so that only the search differs. Policies differ in cost from those
    found on all rows, so objectives are compared: their difference, in units of error, is averaged
    over neighbouring tradeoffs.
    """
    trace, tradeoffs = search.trace, search.tradeoffs
    inside = search.played(places, policies, trace, estimates)
    outside = np.zeros_like(inside)
    for part, rest, without in fits.left_out():
        other = _Search.of(trace.take(rest), search.lattice, without, tradeoffs, search.states)
        found = other.played(*other.run(fits.seed), trace.take(part), estimates.at(part))
        outside += found * len(part) / len(trace)
    some = np.where(tradeoffs > 0, tradeoffs, 1.0)
    price = np.where(tradeoffs > 0, (1 - tradeoffs) / some, 0.0)
    more_error, more_cost = outside - inside
    gap = average_near(more_error + price * more_cost, tradeoffs, OPTIMISM_REACH)
    return np.maximum(OPTIMISM_SHARE * gap, 0.0)


def _in_order_of_asking(problem: Problem, steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a line, each with its nodes in the order of asking."""
    asked: Step = ()
    ordered = list(steps)
    for place in problem.order:
        asked = (*asked, *(node for node in steps[place] if node not in asked))
        ordered[place] = asked
    return ordered
