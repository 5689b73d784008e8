"""Fitting: from a trace to a ladder of policies.

Quantise the confidences of each node into states, count how states follow one another, give each
state a loss, build the problem for the order in which nodes may be asked, and solve it for a
range of tradeoffs.

What a state loses is the ``belief``:

- ``"none"``: one minus its mean confidence. This is the paper as written: optimal if confidence
  were the chance to be right.
- ``"calibrated"``: the share of wrong answers that the node gave in that state, made monotone and
  shrunk towards the node's own error.
- ``"full"`` (the default): a state is the chance to be wrong of the best answer in hand, given
  everything seen so far (fitted/belief.py, beliefs.py). On short traces it must first win against
  ``"calibrated"`` in cross-validation.

``"threshold"`` fits nothing: its policies are thresholds on the confidence (thresholds.py).
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ttamer._display.progress import shown
from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceWarning
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import Rungs
from ttamer.fitted.models import ConfidenceModel
from ttamer.fitted.promise import loss_bound_of, rows_split
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitted.replay import full_cost, latency_of, nodes_alone, paid
from ttamer.fitting.beliefs import build_belief
from ttamer.fitting.counts import Counts, Pair
from ttamer.fitting.offsets import dispersion
from ttamer.fitting.options import FitOptions
from ttamer.fitting.regressions import sampled
from ttamer.fitting.subset_search import searches_subsets
from ttamer.fitting.thresholds import (
    check_threshold_options,
    ladder_of_thresholds,
    quantiser_of,
    thresholds_of,
)
from ttamer.policy.base import Ladder
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.problem.tradeoff import check_tradeoffs
from ttamer.solvers import solve_ladder
from ttamer.stats.bounds import quantile_upper
from ttamer.stats.isotonic import falling
from ttamer.trace.checks import check_for_fit, require_trace
from ttamer.trace.trace import require_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    from numpy.typing import NDArray

    from ttamer.fitted.quantiser import Method
    from ttamer.fitting.options import BeliefKind, FitKeywords
    from ttamer.trace.spec import CascadeSpec, Order
    from ttamer.trace.trace import Trace

__all__ = [
    "FoldResults",
    "Plan",
    "build",
    "build_from",
    "choose_plan",
    "columns_of",
    "default_tradeoffs",
    "fit",
    "held_out",
    "pairs_of",
    "with_latencies",
    "with_latency_price",
    "with_rungs",
]

STATES_TRIED = (4, 8, 16, 32)
"""The numbers of states that cross-validation chooses from."""
MIN_ROWS = 10
"""A fit needs at least this many rows."""
MAX_BELIEF_NODES = 60
"""With more nodes the default is ``"calibrated"``: a file stores steps as sets of bits."""
MAX_BELIEF_ROWS = 400_000
"""Policies on beliefs are found on at most this many rows: a uniform sample of more."""
MAX_TREE_NODES = 8
"""A tree of more nodes has too many sets of nodes that may have been asked for a full belief."""
ENOUGH_ROWS = 2000
"""From this many rows on, a full belief in the widest order is taken without comparing."""
SEARCH_ROWS = 200
"""From this many rows on, a search among subsets of many models is taken without comparing."""
MIN_STANDARD_ERRORS = 2.0
"""With fewer rows, another plan must be better by this many standard errors."""
RUNGS = 48
"""The number of policies of a ladder."""
LATENCY_QUANTILE = 0.95
"""The quantile of the latency that is estimated of each policy."""
LATENCY_CONFIDENCE = 0.95
"""The confidence of the upper bound on it."""
SHRINKAGE = 4.0
"""A state's share of wrong answers counts as if this many rows of the node's mean were added."""


@dataclass(frozen=True)
class Plan:
    """Everything a fit decides besides the counts."""

    belief: BeliefKind
    order: Literal["fixed", "skip", "any"]
    states: int
    quantise: Method
    smoothing: float
    note: str = ""
    """Why the plan is not what was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for the provenance of the artefact."""
        plan = dict(vars(self))
        if not self.note:
            del plan["note"]
        return plan


def fit(trace: Trace, **options: Unpack[FitKeywords]) -> FittedLadder:
    """Fit a ladder of policies to a trace.

    Args:
        trace: The answers of each node to each input.
        **options: The fields of :class:`~ttamer.fitting.FitOptions`: ``belief``, ``order``,
            ``states``, ``quantise``, ``smoothing``, ``tradeoffs``, ``folds``, ``seed``,
            ``hold_out``, ``latency_weight`` and ``progress``.

    Returns:
        Policies for many tradeoffs, with estimates of what each does on new rows.

    Raises:
        ArgumentError: An option is out of range, or the trace has too few rows.

    >>> from ttamer import datasets
    >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)), belief="calibrated", states=4)
    >>> len(ladder), ladder.tradeoffs[0], ladder.tradeoffs[-1]
    (48, 0.0, 1.0)
    """
    chosen = FitOptions.of(options)
    with shown(chosen.progress) as hook:
        return _fit(trace, dataclasses.replace(chosen, progress=hook))


def _fit(trace: Trace, chosen: FitOptions) -> FittedLadder:
    """Fit a ladder by options."""
    require_trace(trace, "a fit")
    trace = trace.with_verification()
    check_for_fit(trace)
    if chosen.belief == "threshold":
        return _of_thresholds(trace, chosen)
    kept = None
    if chosen.hold_out:
        if trace.is_graded:
            loss_bound_of(trace)  # rows are held out for promises: refused before the fit
        trace, kept = rows_split(trace, max(1, round(chosen.hold_out * len(trace))), chosen.seed)
    priced = with_latency_price(trace, chosen)
    best, weights, held = choose_plan(priced, chosen)
    ladder = build(priced, best, weights, progress=chosen.report)
    if ladder.rungs is None or held is not None:
        ladder = with_rungs(ladder, held or held_out(priced, best, weights, chosen), priced)
    ladder = with_latencies(ladder, trace)
    if kept is None:
        return ladder
    if chosen.seed:  # by which the rows held out are found again
        ladder = fitted_to(ladder, len(trace), trace.digest, seed=chosen.seed)
    return ladder.with_holdout(kept)


def _of_thresholds(trace: Trace, options: FitOptions) -> FittedLadder:
    """Return a ladder of thresholds, which promises may be tested on with the same rows."""
    require_rows(trace, MIN_ROWS, "fitting")
    check_threshold_options(trace, options)
    thresholds = thresholds_of(options)
    quantiser = quantiser_of(thresholds, len(trace.names))
    plan = Plan("threshold", "fixed", quantiser.counts[0], options.quantise, options.smoothing)
    columns = columns_of(trace, plan)
    counts = Counts.of(trace, quantiser, pairs_of(trace.spec, columns, plan))
    problem, model = _parts_of(counts, quantiser, trace.spec, columns, plan, trace.digest)
    ladder = with_latencies(ladder_of_thresholds(problem, model, thresholds, trace), trace)
    if trace.is_graded and trace.spec.loss_bound is None:  # then nothing can be promised
        return ladder
    return ladder.with_holdout(trace)


def with_latency_price(trace: Trace, options: FitOptions) -> Trace:
    """Return the rows at the cost that policies weigh: the cost, and what the latency is worth."""
    weight = options.latency_weight
    weight = trace.spec.latency_weight if weight is None else weight
    if not weight:
        return trace
    latency = trace.extras.get("latency")
    lacking = [
        name
        for node, name in enumerate(trace.names)
        if latency is None or np.isnan(latency[:, node]).any()
    ]
    if latency is None or lacking:
        raise ArgumentError(
            f"latency_weight is {weight:g}, and the trace has no latency of {', '.join(lacking)}: "
            "add columns <node>.latency, or remove the weight"
        )
    return dataclasses.replace(trace, cost=trace.costs + weight * latency)


def with_latencies(ladder: FittedLadder, trace: Trace) -> FittedLadder:
    """Return the ladder with what its policies cost and how long they take on a trace.

    Costs are the trace's own, without what latency is worth.
    """
    rungs = ladder.rungs
    if rungs is None or "latency" not in trace.extras:
        return ladder
    costs, latencies = [], []
    for played in ladder.play_all(trace):
        costs.append(paid(played.asked, trace).mean())
        took = latency_of(played.asked, trace)
        if took is None:
            return ladder
        quantile = float(np.quantile(took, LATENCY_QUANTILE))
        bound = quantile_upper(took, LATENCY_QUANTILE, 1 - LATENCY_CONFIDENCE)
        latencies.append([took.mean(), quantile, bound])
    if ladder.fitted.trace_digest != trace.digest:
        ladder = fitted_to(ladder, ladder.fitted.rows, trace.digest)
    errors, alone = nodes_alone(trace)
    found = dataclasses.replace(
        rungs,
        costs=np.array(costs),
        node_errors=errors,
        node_costs=alone,
        latencies=np.array(latencies),
    )
    if ladder.cautious is not None:
        cautious = dataclasses.replace(
            ladder.cautious, costs=ladder.cautious.mean_costs(ladder.fitted.states(trace), trace)
        )
        ladder = dataclasses.replace(ladder, cautious=cautious)
    return ladder.with_rungs(found)


@dataclass(frozen=True, eq=False)
class FoldResults:
    """What the policies of a plan do on rows they were not fitted to, fold by fold."""

    rows: NDArray[np.intp]
    """Shape (folds,): the number of rows of each."""
    errors: NDArray[np.float64]
    """Shape (folds, policies): in increasing order of tradeoff."""
    costs: NDArray[np.float64]
    """Shape (folds, policies), in the cascade's units."""
    full_cost: float
    """What the full model costs."""
    objective: NDArray[np.float64]
    """Shape (T,): the objective of each row, with costs as shares of the full model's, as a mean
    over the policies."""

    def errors_at(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the error at each of some costs.

        For one tradeoff one fold may ask a cheap model and another an expensive one, where the
        ladder has one of them: so folds are compared at equal cost, each by mixing its policies.
        """
        wanted, known = (np.round(each / self.full_cost, 9) for each in (costs, self.costs))
        found = np.zeros_like(wanted)
        for own, errors, prices in zip(self.rows, self.errors, known, strict=True):
            rising = np.maximum.accumulate(prices)  # as they are, but for chance
            some, place = np.unique(rising, return_inverse=True)
            means = np.bincount(place, errors) / np.bincount(place)
            found += own * np.interp(wanted, some, means)
        return np.asarray(found / self.rows.sum())


def with_rungs(ladder: FittedLadder, held: FoldResults, trace: Trace) -> FittedLadder:
    """Return the ladder with what its policies cost on a trace, and their errors on new rows.

    Errors are those of policies fitted without the row that cost the same.
    """
    costs = np.array([paid(each.asked, trace).mean() for each in ladder.play_all(trace)])
    smoothed = None if ladder.rungs is None else ladder.rungs.smoothed_errors
    rungs = Rungs(held.errors_at(costs), costs, smoothed, *nodes_alone(trace))
    return ladder.with_rungs(rungs)


def choose_plan(
    trace: Trace, options: FitOptions
) -> tuple[Plan, NDArray[np.float64], FoldResults | None]:
    """Return the plan and the tradeoffs; cross-validation chooses what the options leave open.

    Where plans were compared, what the chosen one does on rows not fitted to comes with it.
    """
    require_rows(trace, MIN_ROWS, "fitting")
    confidence = trace.confidence
    if options.belief == "none" and not 0 <= confidence.min() <= confidence.max() <= 1:
        node = int(np.argmax(np.abs(confidence - 0.5).max(axis=0)))
        raise ArgumentError(
            'belief="none" takes one minus the confidence for the loss, so confidences must lie '
            f"between 0 and 1, and those of {trace.names[node]!r} do not: rescale them, or use "
            'belief="calibrated", which needs no scale'
        )
    if trace.spec.has_verify_costs:
        raise ArgumentError(
            "some nodes have verify_cost: split them first, with trace.with_verification()"
        )
    _orders(trace.spec, options.order or trace.spec.order)
    if trace.spec.has_joint_nodes:
        _check_joint(trace.spec, options.belief)
    given = options.tradeoffs
    if given is None:
        weights = default_tradeoffs(dispersion(trace.loss_shares()))
    else:
        weights = check_tradeoffs(given)
    plans = _plans(trace, options)
    best, held = plans[0], None
    if len(plans) > 1:
        found = []
        for number, plan in enumerate(plans, start=1):
            found.append(held_out(trace, plan, weights, options))
            what = f"{plan.belief}, {plan.order}"
            what += f", {counted(plan.states, 'state')}" if plan.states else ""
            options.report(f"tried {number} of {len(plans)}: {what}")
        chosen = _chosen(plans, [each.objective for each in found])
        best, held = plans[chosen], found[chosen]
    options.report(f"fitting belief {best.belief}, {counted(len(weights), 'tradeoff')}")
    return best, weights, held


def _plans(trace: Trace, options: FitOptions) -> list[Plan]:
    """Return the plans that cross-validation chooses from."""
    belief, states = options.belief, options.states
    quantise, smoothing = options.quantise, options.smoothing
    most = MAX_TREE_NODES if trace.spec.is_tree else MAX_BELIEF_NODES
    full = belief == "full" and len(trace.names) <= most
    way = options.order or trace.spec.order
    note = ""
    if belief == "full" and not full:
        kind = "a tree" if trace.spec.is_tree else "a cascade"
        note = f"full beliefs are for {kind} of at most {most} nodes"
        warnings.warn(
            f"{note}, and this one has {len(trace.names)}: the belief is 'calibrated', which uses "
            "each node's own confidence alone and is less accurate; name fewer nodes",
            TraceWarning,
            stacklevel=5,
        )
    kept: list[Plan] = []
    if full:
        kept = [
            Plan("full", each, states or 0, quantise, smoothing)
            for each in _believed_orders(trace.spec, way)
        ]
        enough = SEARCH_ROWS if searches_subsets(trace, way) else ENOUGH_ROWS
        if len(trace) >= enough or trace.spec.has_joint_nodes:
            return kept[:1]
    if belief == "full":
        belief = "calibrated"
    return kept + [
        Plan(belief, each, count, quantise, smoothing, note)
        for each in _orders(trace.spec, way)
        for count in ((states,) if states is not None else _states_tried(len(trace)))
    ]


def _check_joint(spec: CascadeSpec, belief: BeliefKind) -> None:
    """Refuse what cannot be fitted where a node is asked after several others."""
    name, parents = next((n.name, n.parents) for n in spec.nodes if len(n.parents) > 1)
    what = f"node {name!r} is asked after {' and '.join(map(repr, parents))}"
    if belief != "full":
        raise ArgumentError(
            f"{what}, and belief={belief!r} counts how one node follows another: use "
            'belief="full", which fits the answers of any set of nodes together'
        )
    if len(spec) > MAX_TREE_NODES:
        raise ArgumentError(
            f"{what}; such a cascade is fitted over the sets of nodes asked so far, with at most "
            f"{MAX_TREE_NODES} nodes, and this one has {len(spec)}: name fewer nodes"
        )


def _believed_orders(
    spec: CascadeSpec, order: Order
) -> tuple[Literal["fixed", "skip", "any"], ...]:
    """Return the orders that a full belief may take, the widest first."""
    if spec.is_tree:
        return ("any",)
    if order != "auto":
        return (order,)
    if spec.has_passing:
        return ("skip", "fixed")
    return ("any", "fixed") if len(spec) > 1 else ("fixed",)


def build(
    trace: Trace,
    plan: Plan,
    tradeoffs: NDArray[np.float64],
    *,
    progress: Callable[[str], None] | None = None,
) -> FittedLadder:
    """Fit a trace by one plan, for several tradeoffs."""
    if plan.belief == "full":
        few = trace
        if len(trace) > MAX_BELIEF_ROWS:
            few = trace.take(sampled(len(trace), MAX_BELIEF_ROWS))
        ladder = build_belief(
            few, tradeoffs, order=plan.order, states=plan.states or None, progress=progress
        )
        return ladder if few is trace else fitted_to(ladder, len(trace), trace.digest)
    quantiser = Quantiser.fit(trace.confidence, states=plan.states, method=plan.quantise)
    columns = columns_of(trace, plan)
    counts = Counts.of(trace, quantiser, pairs_of(trace.spec, columns, plan))
    return build_from(
        counts, quantiser, trace.spec, columns, plan, tradeoffs, trace_digest=trace.digest
    )


def fitted_to(ladder: FittedLadder, rows: int, digest: str, **noted: Any) -> FittedLadder:
    """Return a ladder as one fitted to all rows of which it may have a sample, with their digest.

    ``noted`` is added to its plan.
    """
    plan = {**ladder.fitted.plan, **noted}
    if ladder.fitted.rows < rows:
        plan["sampled"] = ladder.fitted.rows
    model = dataclasses.replace(ladder.fitted, plan=plan, trace_digest=digest, rows=rows)
    inner = Ladder(tuple(policy.policy for policy in ladder))
    return dataclasses.replace(
        FittedLadder.of(inner, model, ladder.rungs), cautious=ladder.cautious
    )


def build_from(
    counts: Counts,
    quantiser: Quantiser,
    spec: CascadeSpec,
    columns: Sequence[int],
    plan: Plan,
    tradeoffs: NDArray[np.float64],
    *,
    trace_digest: str,
) -> FittedLadder:
    """Fit from counts, however they were added up."""
    problem, fitted = _parts_of(counts, quantiser, spec, columns, plan, trace_digest)
    return FittedLadder.of(solve_ladder(problem, tradeoffs), fitted)


def _parts_of(
    counts: Counts,
    quantiser: Quantiser,
    spec: CascadeSpec,
    columns: Sequence[int],
    plan: Plan,
    trace_digest: str,
) -> tuple[Problem, ConfidenceModel]:
    """Return the problem that counts describe, and the model of its states."""
    full = spec.full_cost(counts.cost / counts.rows)
    problem = problem_of(counts, spec, columns, plan, full_cost=full)
    fitted = ConfidenceModel(
        spec=spec,
        quantiser=quantiser,
        steps=tuple((column,) for column in columns),
        plan=plan.to_dict(),
        trace_digest=trace_digest,
        rows=int(counts.rows),
        full_cost=full,
        loss_scale=counts.largest_loss,
    )
    return problem, fitted


def problem_of(
    counts: Counts, spec: CascadeSpec, columns: Sequence[int], plan: Plan, *, full_cost: float
) -> Problem:
    """Build the problem that counts describe; nodes are in the order of ``columns``.

    Going from one node to another costs asking the other and passing those between, in shares of
    ``full_cost``.
    """
    certain_last = spec.target == "last"
    costs = counts.cost / counts.rows
    nodes = []
    for column in columns:
        losses = _losses(counts, column, plan.belief, counts.loss_unit)
        if certain_last and column == len(spec.names) - 1:
            losses = np.zeros_like(losses)  # right by definition
        nodes.append(Node(spec.names[column], losses))
    edges = tuple(
        Edge(
            None if source < 0 else spec.names[source],
            spec.names[target],
            cost=spec.step_cost(source, target, costs) / full_cost,
            probabilities=counts.transition((source, target), smoothing=plan.smoothing),
        )
        for source, target in counts.pairs
    )
    walk = plan.order != "any" and not spec.is_tree
    return Problem("walk" if walk else "precedence", tuple(nodes), edges)


def default_tradeoffs(spread: float = 1.0) -> NDArray[np.float64]:
    """Return tradeoffs that span the frontier, the two ends included.

    The full model's cost weighs from a thousandth of a unit of loss to ten units, in equal ratios.
    Losses of which few are near the largest have a smaller spread: there it weighs less, so that
    what an answer usually loses stands in the same ratio to costs.
    """
    weight = spread * np.geomspace(1e-3, 1e1, RUNGS - 2)  # of the full cost, in units of loss
    return np.concatenate([[0.0], np.sort(1 / (1 + weight)), [1.0]])


def _losses(counts: Counts, node: int, belief: BeliefKind, unit: float) -> NDArray[np.float64]:
    """Return the loss of each state of a node, in shares of the unit of loss."""
    seen = counts.seen(node)
    some = np.where(seen > 0, seen, 1.0)
    if belief == "none":
        mean = counts.confidence[node] / some
        filled = np.where(seen > 0, mean, mean[seen > 0].mean())
        return np.asarray(np.clip(1 - filled, 0.0, 1.0))
    wrong = counts.wrong[node] / unit
    share = wrong.sum() / seen.sum()
    raw = (wrong + SHRINKAGE * share) / (seen + SHRINKAGE)
    return falling(raw, seen + SHRINKAGE)


def _orders(spec: CascadeSpec, order: Order) -> tuple[Literal["fixed", "skip", "any"], ...]:
    if spec.has_passing and order == "any":
        raise ArgumentError(
            'order is "any", and these nodes are exits of one network (they have passing), which '
            'runs one way: use "skip", or "fixed" to ask every exit'
        )
    if order == "auto" and spec.has_passing:
        return ("fixed", "skip")
    if order == "auto":
        if spec.is_tree:
            return ("any",)
        return ("fixed", "skip", "any") if len(spec.names) > 1 else ("fixed",)
    if order not in ("fixed", "skip", "any"):
        raise ArgumentError(f'order must be "fixed", "skip", "any" or "auto", not {order!r}')
    return (order,)


def _states_tried(rows: int) -> tuple[int, ...]:
    """Return the numbers of states worth trying: each state should hold some rows."""
    return tuple(count for count in STATES_TRIED if count * 8 <= rows) or (2,)


def columns_of(trace: Trace, plan: Plan) -> list[int]:
    """The columns of the trace in the order of asking: the cascade's own, else cheapest first."""
    if plan.order == "any":
        return list(range(len(trace.names)))
    return list(trace.spec.asking_order(trace.costs.mean(axis=0)))


def pairs_of(spec: CascadeSpec, columns: Sequence[int], plan: Plan) -> list[Pair]:
    """Which pairs of nodes need transitions."""
    if plan.order == "any" or spec.is_tree:
        return [(parents[0] if parents else -1, node) for node, parents in enumerate(spec.parents)]
    if plan.order == "fixed":
        return list(zip((-1, *columns), columns, strict=False))
    starts = [(-1, target) for target in columns]
    return starts + [(u, v) for i, u in enumerate(columns) for v in columns[i + 1 :]]


def held_out(
    trace: Trace, plan: Plan, tradeoffs: NDArray[np.float64], options: FitOptions
) -> FoldResults:
    """Return what the policies of a plan do on rows they were not fitted to."""
    rows = np.random.default_rng(options.seed).permutation(len(trace))
    full, unit = full_cost(trace.spec, trace), trace.loss_scale
    parts = np.array_split(rows, min(options.folds, len(trace)))
    errors, costs = np.zeros((2, len(parts), len(tradeoffs)))
    objective = np.zeros(len(trace))
    for fold, part in enumerate(parts):
        ladder = build(trace.take(np.setdiff1d(rows, part)), plan, tradeoffs)
        held = trace.take(part)
        losses = held.losses()
        for rung, played in enumerate(ladder.play_all(held)):
            mine = losses[np.arange(len(part)), played.answer]
            cost = paid(played.asked, held)
            errors[fold, rung], costs[fold, rung] = mine.mean(), cost.mean()
            weighed = tradeoffs[rung] * (mine / unit)
            objective[part] += weighed + (1 - tradeoffs[rung]) * cost / full
    sizes = np.array([len(part) for part in parts])
    return FoldResults(sizes, errors, costs, full, objective / len(tradeoffs))


def _chosen(plans: Sequence[Plan], objectives: Sequence[NDArray[np.float64]]) -> int:
    """Return which plan to take, given each row's objective under each.

    The least mean. But a full belief stays unless another is better beyond doubt: of many plans
    tried on few rows some look better by luck.
    """
    means = [float(each.mean()) for each in objectives]
    best = int(np.argmin(means))
    if plans[0].belief == "full" and best:
        gain = objectives[0] - objectives[best]
        if gain.mean() <= MIN_STANDARD_ERRORS * gain.std() / len(gain) ** 0.5:
            return 0
    return best
