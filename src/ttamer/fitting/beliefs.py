"""From beliefs to a ladder: X becomes the state of a walk over steps.

A step is the set of nodes asked so far. After each step X is known, the least chance to be wrong of
any answer in hand; it is quantised, and the problem is a walk *without* recall over the steps,
since recall is inside X (step_walk.py). The policies are found on the rows of the trace themselves
(row_policy.py); the transitions counted estimate their cost and error.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ttamer._numbers import counted
from ttamer.fitted.cautious import has_line
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitting.cautious import find_cautious
from ttamer.fitting.cross_fit import FOLDS, CrossFit
from ttamer.fitting.regressions import (
    VERY_FEW_ROWS,
    by_column,
    fit_belief,
    sampled,
    useful_extras,
)
from ttamer.fitting.row_policy import Pooling, solve_rows, width_of
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
from ttamer.fitting.steps import steps_of
from ttamer.fitting.subset_search import build_on_subsets, searches_subsets
from ttamer.fitting.subsets import MAX_POOL
from ttamer.solvers.blas import one_thread
from ttamer.stats.envelope import area_under

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ttamer.trace.spec import Order
    from ttamer.trace.trace import Trace

__all__ = ["build_belief"]

POOLED_SHARE = 0.5
"""The share of the mean over exits in a pooled threshold."""
MAX_COST_RATIO = 2.5
"""Thresholds are pooled if no exit costs more than this many times the mean: where steps cost about
the same, so that similar thresholds suit them."""
MAX_WAYS = 64
"""With more edges X has half as many states: a file holds a matrix for each edge."""
MAX_ROWS_COMPARED = 20_000
"""Margins are compared with confidences on at most this many rows: a uniform sample of more."""
MIN_MARGIN_GAIN = 0.002
"""Margins take the place of confidences if they lower the area under the frontier by this share."""
MIN_FRONTIER = 8
"""Fewer policies are compared by their objectives instead."""


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
        ladder = build_on_subsets(trace, tradeoffs, states=states, seed=seed, say=stages)
        if ladder is not None:
            return ladder
        order = "fixed"

    margins = trace.extras.get("margin")
    known = margins is not None and bool(np.isfinite(margins).all())
    # Of two classes, confidence and margin are one.
    compares = known and trace.spec.is_network and len(trace.classes) != 2
    is_long = len(trace) > MAX_ROWS_COMPARED
    say = Stages(progress, (FOLDS + 3) * (1 + compares * (1 + is_long)))

    def built(rows: Trace, *, by_margin: bool) -> FittedLadder:
        return _build_on_steps(rows, tradeoffs, order, states, seed, say, by_margin=by_margin)

    if not compares:
        return built(trace, by_margin=False)
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
        trace = dataclasses.replace(
            given, confidence=given.extras["margin"], margin=None, entropy=None, latency=None
        )
    names = useful_signals(trace, trace.loss_shares())
    extras = useful_extras(trace, trace.loss_shares())
    steps, ways = steps_of(trace, order, router=bool(names))
    most = MAX_STATES if len(ways) <= MAX_WAYS else MAX_STATES // 2
    count = states or int(np.clip(len(trace) // ROWS_PER_STATE, 4, most))
    estimates = CrossFit(trace, steps, seed, names, extras=extras).estimates(say)
    rows = StepRows.of(trace, steps, estimates, states=count)
    say(f"fitting beliefs after {len(steps)} steps")
    with one_thread():
        belief = fit_belief(trace, trace.loss_shares(), steps, signals=names, extras=extras)
        if by_margin:
            belief = by_column(belief, given, "margin")
    say(f"finding policies for {counted(len(tradeoffs), 'tradeoff')}")
    width = width_of(len(trace))
    problem = problem_of(trace, steps, ways, rows, width)
    costs = edge_costs(trace, steps, ways)
    model = model_of(given, belief, steps, rows.edges, _order_name(trace, order), count)
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
    ladder = ladder.with_rungs(rungs_of(ladder, trace, rows, served))
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


def _order_name(trace: Trace, order: Order | None) -> str:
    order = order or trace.spec.order
    if order == "skip":
        return "skip"
    return "fixed" if order == "fixed" else "any"
