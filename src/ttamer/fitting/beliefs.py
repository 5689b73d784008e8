"""From beliefs to a ladder: X becomes the state of a walk over steps.

A step is the set of nodes asked so far. After each step X is known, the least chance to be wrong of
any answer in hand; it is quantised, and the problem is a walk *without* recall over the steps,
since recall is inside X. The policies are found on the rows of the trace themselves
(row_policy.py); the transitions counted estimate their cost and error.

X is computed for every row by regressions that were not fitted to it (cross-fitting), so that
what is counted is what will be met on new rows. What a row would lose by stopping is half what X
predicts and half what happened: the one has little spread, the other no bias.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import CERTAIN_LOGIT, MAX_CONTEXT, Step
from ttamer.fitted.cautious import has_line
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import Rungs
from ttamer.fitted.models import BeliefModel, States
from ttamer.fitted.quantiser import edges_of
from ttamer.fitted.replay import full_cost, nodes_alone, paid, play_states
from ttamer.fitting.cautious import find_cautious
from ttamer.fitting.cross_fit import FOLDS, ROUTER, CrossFit, Estimates
from ttamer.fitting.regressions import (
    VERY_FEW_ROWS,
    by_column,
    classes_of,
    fit_belief,
    has_class_terms,
    sampled,
    useful_extras,
)
from ttamer.fitting.row_policy import Pooling, RowSolver, smoother, solve_rows, width_of
from ttamer.fitting.signals import useful_signals
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
from ttamer.fitting.threads import on_threads
from ttamer.policy.base import Ladder
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.solvers.blas import one_thread
from ttamer.stats.envelope import area_under
from ttamer.stats.isotonic import rising
from ttamer.stats.logistic import sigmoid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief
    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.fitting.subsets import Plan, Way
    from ttamer.policy.walk import WalkPolicy
    from ttamer.trace.spec import Order
    from ttamer.trace.trace import Trace

__all__ = ["build_belief", "searches_subsets", "steps_of"]

NO_NODE = -1
"""The node asked on the way to a router: none."""
REALISED = 0.5
"""The largest share of what happened in the loss of stopping; the rest is the belief."""
FEW_ROWS = 300
"""With this many rows that share is half as large."""
POOLED_SHARE = 0.5
"""The share of the mean over exits in a pooled threshold."""
MAX_COST_RATIO = 2.5
"""Thresholds are pooled if no exit costs more than this many times the mean: where steps cost about
the same, so that similar thresholds suit them."""
MAX_STEP_SIZE = 6
"""A longer cascade with exits left out has windows as steps."""
WINDOW = 2
"""In such a cascade a step is the last exits asked, this many."""
ROWS_PER_STATE = 10
"""X has at most one state per this many rows."""
MAX_STATES = 64
"""X has at most this many states after each step."""
MAX_WAYS = 64
"""With more edges X has half as many states: a file holds a matrix for each edge."""
MAX_ROWS_COMPARED = 20_000
"""Margins are compared with confidences on at most this many rows: a uniform sample of more."""
MIN_MARGIN_GAIN = 0.002
"""Margins take the place of confidences if they lower the area under the frontier by this share."""
MIN_FRONTIER = 8
"""Fewer policies are compared by their objectives instead."""
OPTIMISM_SHARE = 0.9
"""This share of what policies lose on rows left out is added to their errors. It is all of it for a
choice among fixed policies; thresholds found on two thirds of the rows are themselves worse than
those found on all, and if that goes with one over the number of rows, it is 0.8 for them."""
MIN_STANDARD_ERRORS = 2.0
"""Regressions weigh signals if that lowers the log loss of X by this many standard errors."""
OPTIMISM_REACH = 0.92
"""The optimism of policies is averaged over tradeoffs whose log-odds are at most this far."""


def steps_of(
    trace: Trace, order: Order | None = None, *, router: bool = False
) -> tuple[list[Step], list[Way]]:
    """Return the steps, and (from, to, node asked) for each edge; the start is -1.

    Exits are asked in their order, separate models in any (with order "skip" in increasing order,
    some left out). Of more than six with order "skip", a step is the last ``WINDOW`` asked. Many
    separate models have a lattice of their own (subsets.py). Where nodes come after others, a step
    holds all parents of its nodes.
    """
    nodes = list(range(len(trace.names)))
    order = order or trace.spec.order
    if order == "skip" and len(nodes) > MAX_STEP_SIZE:
        return _windows(len(nodes))
    if order == "fixed" and not trace.spec.is_tree:
        nodes = list(trace.spec.asking_order(trace.costs.mean(axis=0)))
        line = [tuple(nodes[: k + 1]) for k in range(len(nodes))]
        return line, [(k - 1, k, node) for k, node in enumerate(nodes)]
    steps = [
        step
        for size in range(len(nodes))
        for step in combinations(nodes, size + 1)
        if is_closed(step, trace.spec.parents)
    ]
    first = [ROUTER] if router and len(nodes) > 1 else []
    steps = first + steps
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, 0, NO_NODE)] if first else []
    ways += [(0 if first else -1, number[(node,)], node) for node in nodes if (node,) in number]
    onward = order == "skip"  # then only nodes further on may follow
    ways += [
        (number[step], number[wider], node)
        for step in steps[len(first) :]
        for node in nodes
        if node not in step and (node > step[-1] or not onward)
        if (wider := tuple(sorted((*step, node)))) in number
    ]
    return steps, ways


def is_closed(step: Step, parents: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a step holds all parents of each of its nodes.

    >>> is_closed((0, 2), ((), (), (0,))), is_closed((0, 2), ((), (), (0, 1)))
    (True, False)
    """
    return all(parent in step for node in step for parent in parents[node])


def _windows(nodes: int) -> tuple[list[Step], list[Way]]:
    """Return steps that are the last asked of some, in increasing order, and the ways on."""
    sizes = range(1, WINDOW + 1)
    steps = [step for size in sizes for step in combinations(range(nodes), size)]
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, number[(node,)], node) for node in range(nodes)]
    ways += [
        (k, number[(*step, node)[-WINDOW:]], node)
        for k, step in enumerate(steps)
        for node in range(step[-1] + 1, nodes)
    ]
    return steps, ways


def build_belief(
    trace: Trace,
    tradeoffs: NDArray[np.float64],
    *,
    order: Order | None = None,
    states: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> FittedLadder:
    """Fit beliefs to a trace, and policies on them for several tradeoffs.

    The exits of a network may be judged by their margins in place of their confidences. Of two
    inputs of equal confidence, the one whose second class is close is likelier to be decided by a
    later exit; so although a margin says less about whether an answer is wrong, it can say more
    about whether to go on. Where margins are known, policies are fitted both ways, and the ladder
    with the better frontier by cross-fitting is kept.
    """
    if searches_subsets(trace, order):
        stages = Stages(progress, FOLDS * (1 + (len(trace.names) > MAX_POOL)) + 2)
        return _build_on_subsets(trace, tradeoffs, states=states, seed=seed, say=stages)

    def built(rows: Trace, *, by_margin: bool) -> FittedLadder:
        say = Stages(progress, FOLDS + 3)
        return _build_on_steps(rows, tradeoffs, order, states, seed, say, by_margin=by_margin)

    margins = trace.extras.get("margin")
    known = margins is not None and bool(np.isfinite(margins).all())
    if not known or not trace.spec.is_network or len(trace.classes) == 2:
        return built(trace, by_margin=False)  # of two classes, confidence and margin are one
    is_long = len(trace) > MAX_ROWS_COMPARED
    some = trace.take(sampled(len(trace), MAX_ROWS_COMPARED)) if is_long else trace
    plain, other = (built(some, by_margin=by_margin) for by_margin in (False, True))
    better = _is_better(other, plain)
    if is_long:
        return built(trace, by_margin=better)
    return other if better else plain


def _is_better(one: FittedLadder, two: FittedLadder) -> bool:
    """Return whether a ladder is expected to have less area under its frontier than another.

    Few policies have no frontier: then their objectives are compared.
    """
    found = []
    for ladder in (one, two):
        rungs, model = ladder.rungs, ladder.fitted
        if rungs is None or rungs.smoothed_errors is None:
            return False
        losses, costs = rungs.smoothed_errors / model.loss_unit, rungs.costs / model.full_cost
        if len(ladder) < MIN_FRONTIER:
            tradeoffs = np.array([policy.tradeoff for policy in ladder])
            found.append(float((tradeoffs * losses + (1 - tradeoffs) * costs).sum()))
        else:
            low = float(model.spec.costs.min()) / model.full_cost
            found.append(area_under(costs, losses, min(low, 0.5), 1.0))
    return found[0] < (1 - MIN_MARGIN_GAIN) * found[1]


def _build_on_steps(
    given: Trace,
    tradeoffs: NDArray[np.float64],
    order: Order | None,
    states: int | None,
    seed: int,
    say: Callable[[str], object],
    *,
    by_margin: bool,
) -> FittedLadder:
    """Fit beliefs after each step, by confidences or by margins, and policies on them."""
    trace = given
    if by_margin:
        trace = dataclasses.replace(given, confidence=given.extras["margin"], extras={})
    names = useful_signals(trace, trace.loss_shares())
    extras = useful_extras(trace, trace.loss_shares())
    steps, ways = steps_of(trace, order, router=bool(names))
    most = MAX_STATES if len(ways) <= MAX_WAYS else MAX_STATES // 2
    count = states or int(np.clip(len(trace) // ROWS_PER_STATE, 4, most))
    estimates = CrossFit(trace, steps, seed, names, extras=extras).estimates(say)
    rows = _Rows.of(trace, steps, estimates, states=count)
    say(f"fitting beliefs after {len(steps)} steps")
    with one_thread():
        belief = fit_belief(trace, trace.loss_shares(), steps, signals=names, extras=extras)
        if by_margin:
            belief = by_column(belief, given, "margin")
    say(f"finding policies for {len(tradeoffs)} tradeoffs")
    width = width_of(len(trace))
    problem = _problem(trace, steps, ways, rows, width)
    costs = _edge_costs(trace, steps, ways)
    model = _model(given, belief, steps, rows.edges, _order_name(trace, order), count)
    has_thresholds = has_line(model, problem)
    pooling = None
    if has_thresholds and pools_thresholds(trace):
        pooling = Pooling.of(POOLED_SHARE, estimates.state, rows.edges)
    solved = solve_rows(
        problem, rows.found, rows.lost, tradeoffs, width=width, costs=costs, pooling=pooling
    )
    ladder = FittedLadder.of(solved, model)
    say("estimating what the policies do on new rows")
    served = model.states(given)
    ladder = ladder.with_rungs(_rungs(ladder, trace, rows, served))
    if not has_thresholds:
        return ladder
    found = find_cautious(
        trace, problem, rows.found, rows.owner, rows.lost, tradeoffs, costs, served
    )
    return dataclasses.replace(ladder, cautious=found)


def pools_thresholds(trace: Trace) -> bool:
    """Return whether rows are so few, and steps so alike, that thresholds are pooled."""
    costs = trace.costs.mean(axis=0)
    alike = costs.max() <= MAX_COST_RATIO * costs.mean()
    return bool(alike) and len(trace) <= VERY_FEW_ROWS


class Stages:
    """Reports the stages of a fit, with how many of them are done.

    >>> stages = Stages(print, 2)
    >>> stages("fitting beliefs")
    fitting beliefs (0 of 2 parts done)
    """

    def __init__(self, progress: Callable[[str], None] | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, text: str) -> None:
        """Report that a stage begins."""
        if self._progress is not None:
            self._progress(f"{text} ({self._done} of {self._total} parts done)")
        self._done = min(self._done + 1, self._total)


def searches_subsets(trace: Trace, order: Order | None = None) -> bool:
    """Return whether policies are searched among subsets of the models (subsets.py).

    They are for at least ``MIN_MODELS`` separate models that may be asked in any order.
    """
    free = (order or trace.spec.order) in ("any", "auto")
    separate = not (trace.spec.is_network or trace.spec.is_tree)
    return free and separate and len(trace.names) >= MIN_MODELS


def subset_states(rows: int, states: int | None = None) -> int:
    """Return the number of states of X in a search among subsets."""
    return states or int(np.clip(rows // ROWS_PER_STATE, 4, MAX_STATES // 2))


def _model(
    trace: Trace,
    belief: Belief,
    steps: Sequence[Step],
    edges: Sequence[NDArray[np.float64]],
    order: str,
    states: int,
) -> BeliefModel:
    return BeliefModel(
        spec=trace.spec,
        belief=belief,
        steps=tuple(steps),
        edges=tuple(edges),
        classes=classes_of(trace, belief),
        plan={"belief": "full", "order": order, "states": states},
        trace_digest=trace.digest,
        rows=len(trace),
        full_cost=full_cost(trace.spec, trace),
        loss_scale=trace.loss_scale if trace.is_graded else None,
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a trace after each step, by regressions that were not fitted to them."""

    edges: list[NDArray[np.float64]]
    """Per step, increasing log-odds that separate the states of X."""
    found: NDArray[np.intp]
    """Shape (T, steps): the state of X."""
    owner: NDArray[np.intp]
    """Shape (T, steps): the owner of X."""
    lost: NDArray[np.float64]
    """Shape (T, steps): the loss of stopping there."""

    @classmethod
    def of(cls, trace: Trace, steps: Sequence[Step], estimates: Estimates, *, states: int) -> _Rows:
        """Quantise X, given on every row by cross-fitting."""
        (least, owner, state), wrong = estimates, trace.loss_shares()
        edges = [edges_of(own, states=states, method="quantile") for own in state.T]
        found = [np.searchsorted(own, state[:, k], side="right") for k, own in enumerate(edges)]
        met = wrong[np.arange(len(trace))[:, np.newaxis], owner]
        share = REALISED * len(trace) / (len(trace) + FEW_ROWS)
        lost = (1 - share) * sigmoid(least) + share * met
        lost[:, (least == CERTAIN_LOGIT).all(axis=0)] = 0.0  # right by definition
        lost[:, [k for k, step in enumerate(steps) if step == ROUTER]] = np.inf
        return cls(edges, np.stack(found, axis=1), owner, lost)

    def at(self, places: Sequence[int]) -> _Rows:
        """Return the same rows after some of the steps."""
        edges = [self.edges[k] for k in places]
        return _Rows(edges, self.found[:, places], self.owner[:, places], self.lost[:, places])


def _build_on_subsets(
    trace: Trace,
    tradeoffs: NDArray[np.float64],
    *,
    states: int | None,
    seed: int,
    say: Callable[[str], object],
) -> FittedLadder:
    """Fit beliefs for subsets of many models, and for each tradeoff the best plan."""
    costs = trace.costs.mean(axis=0).tolist()
    names = useful_signals(trace, trace.loss_shares())
    extras = useful_extras(trace, trace.loss_shares())
    pool = list(range(len(costs)))
    line = Lattice(costs, pool, 1).prefixes
    scored_once = _scores_once(trace, line, seed, names, extras)
    weigh_signals = not scored_once or _weighs_signals(trace, line, seed, names, extras)
    if len(pool) > MAX_POOL:
        pairs = Lattice(costs, pool, 2)
        fits = CrossFit(trace, pairs.steps, seed, names, scored_once, extras, weigh_signals)
        pool = _Search.of(trace, pairs, fits.estimates(say), tradeoffs, states).pool()
    size = subset_size(len(pool), len(trace))
    lattice = Lattice(costs, pool, size, router=bool(names))
    fits = CrossFit(trace, lattice.steps, seed, names, scored_once, extras, weigh_signals)
    estimates = fits.estimates(say)
    search = _Search.of(trace, lattice, estimates, tradeoffs, states)
    say(f"searching {len(lattice.subsets)} subsets for {len(tradeoffs)} tradeoffs")
    places, policies = search.run(seed)
    steps = [lattice.steps[k] for k in places]
    if policies[0].problem.is_line:
        if len(steps) > MAX_CONTEXT:  # there the regressions use the last nodes asked
            return build_belief(trace, tradeoffs, order="fixed", states=states, seed=seed)
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
        Ladder(tuple(policies)), _model(trace, belief, steps, used.edges, "any", count)
    )
    say("estimating what the policies do on new rows")
    rungs = _rungs(ladder, trace, used, ladder.fitted.states(trace))
    optimism = _optimism(search, places, policies, fits, estimates) * trace.loss_scale
    smoothed = None if rungs.smoothed_errors is None else rungs.smoothed_errors + optimism
    return ladder.with_rungs(
        dataclasses.replace(rungs, errors=rungs.errors + optimism, smoothed_errors=smoothed)
    )


def _scores_once(
    trace: Trace,
    steps: Sequence[Step],
    seed: int,
    signals: tuple[str, ...],
    extras: Mapping[int, tuple[str, ...]],
) -> bool:
    """Return whether answers given by several nodes should be scored once.

    Without class terms they are. With them, it is whichever gives X the lower log loss on rows not
    fitted to, after steps of two to ``MAX_ASKED`` nodes.
    """
    if not has_class_terms(trace):
        return True
    several, once = (
        _log_losses(CrossFit(trace, _some_of(steps), seed, signals, scored_once, extras)).mean()
        for scored_once in (False, True)
    )
    return bool(once < several)


def _weighs_signals(
    trace: Trace,
    steps: Sequence[Step],
    seed: int,
    signals: tuple[str, ...],
    extras: Mapping[int, tuple[str, ...]],
) -> bool:
    """Return whether regressions should weigh the offsets of signals.

    With few rows such weights are noise, which costs more than they gain: they must lower the log
    loss of X beyond doubt, on rows not fitted to and after steps of two to ``MAX_ASKED`` nodes.
    """
    if not signals:
        return False
    added, weighed = (
        _log_losses(CrossFit(trace, _some_of(steps), seed, signals, True, extras, weigh))
        for weigh in (False, True)
    )
    gain = added - weighed
    return bool(gain.mean() > MIN_STANDARD_ERRORS * gain.std() / len(gain) ** 0.5)


def _some_of(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of two to ``MAX_ASKED`` nodes."""
    return [step for step in steps if 1 < len(step) <= MAX_ASKED]


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
    rows: _Rows
    tradeoffs: NDArray[np.float64]

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
        rows = _Rows.of(trace, lattice.steps, estimates, states=subset_states(len(trace), states))
        return cls(trace, lattice, rows, tradeoffs)

    def pool(self) -> list[int]:
        """Return the models that are best in pairs."""
        few = np.arange(len(self.trace))[:MAX_SEARCH_ROWS]
        return choose_pool(self._solver(few), self.lattice, self.tradeoffs)

    def run(self, seed: int) -> tuple[list[int], list[WalkPolicy]]:
        """Return the places used, and a policy for each tradeoff on the walk between them."""
        every = np.random.default_rng([seed, 4]).permutation(len(self.trace))
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
        problem = _problem(self.trace, steps, ways, rows, width_of(len(self.trace)))
        costs = [
            cost[few] if isinstance(cost, np.ndarray) else cost
            for cost in _edge_costs(self.trace, steps, ways)
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
        other = _Search.of(trace.take(rest), search.lattice, without, tradeoffs, None)
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


def _rungs(ladder: FittedLadder, trace: Trace, rows: _Rows, as_served: States) -> Rungs:
    """Return what each policy does on new rows.

    Errors are those where X comes from regressions that did not see the row; costs are those of the
    fit as it serves, which asks a little less often than its parts.
    """
    states = rows.found.astype(np.uint8)
    each = np.arange(len(trace))
    losses = trace.losses()

    def rung(policy: FittedPolicy) -> tuple[float, float, float]:
        step, _, _ = play_states(policy.policy, states)
        error = losses[each, rows.owner[each, step]].mean()
        cost = paid(as_served.play(policy.policy).asked, trace).mean()
        return float(error), float(cost), float(rows.lost[each, step].mean())

    errors, costs, smoothed = zip(*on_threads(rung, ladder, rows=len(trace)), strict=True)
    scaled = np.array(smoothed) * trace.loss_scale
    return Rungs(np.array(errors), np.array(costs), scaled, *nodes_alone(trace))


def _edge_costs(
    trace: Trace, steps: Sequence[Step], ways: Sequence[Way]
) -> list[NDArray[np.float64] | float]:
    """Return the cost of each edge, in shares of the full model's: a number, or one per row.

    Averaged over the rows of a state, costs by row are the expected cost given the state.
    """
    means, full = trace.costs.mean(axis=0), full_cost(trace.spec, trace)
    varies = np.ptp(trace.costs, axis=0) > 0
    costs: list[NDArray[np.float64] | float] = []
    for source, _, node in ways:
        if node == NO_NODE:
            costs.append(0.0)
            continue
        last = steps[source][-1] if source >= 0 and steps[source] else -1
        mean = trace.spec.step_cost(last, node, means)
        if varies[node]:
            costs.append((trace.costs[:, node] + (mean - means[node])) / full)
        else:
            costs.append(mean / full)
    return costs


def _problem(
    trace: Trace,
    steps: Sequence[Step],
    ways: Sequence[Way],
    rows: _Rows,
    width: float,
) -> Problem:
    """Build the walk over steps, given the states of X and what stopping loses on every row."""
    found, lost = rows.found, rows.lost
    names = [" + ".join(trace.names[node] for node in step) or "signals" for step in steps]
    if len(set(names)) < len(names):
        names = [f"step {k}" for k in range(len(steps))]
    counts = [np.bincount(found[:, k]) for k in range(len(steps))]
    nodes = [
        Node(name, np.full(len(own), np.inf))
        if step == ROUTER
        else Node(name, rising(np.bincount(found[:, k], lost[:, k]) / own, own.astype(float)))
        for k, (name, step, own) in enumerate(zip(names, steps, counts, strict=True))
    ]
    edges = []
    for (source, target, _), cost in zip(ways, _edge_costs(trace, steps, ways), strict=True):
        size = len(counts[target])
        if source < 0:
            table = counts[target][np.newaxis] / len(found)
        else:
            code = found[:, source] * size + found[:, target]
            moves = np.bincount(code, minlength=len(counts[source]) * size).reshape(-1, size)
            table = smoother(counts[source], width) @ (moves / counts[source][:, np.newaxis])
        before = None if source < 0 else names[source]
        table = table / table.sum(axis=1, keepdims=True)
        edges.append(Edge(before, names[target], cost=float(np.mean(cost)), probabilities=table))
    return Problem("walk", tuple(nodes), tuple(edges))


def _order_name(trace: Trace, order: Order | None) -> str:
    order = order or trace.spec.order
    if order == "skip":
        return "skip"
    return "fixed" if order == "fixed" else "any"
