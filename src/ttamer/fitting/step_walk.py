"""The walk over steps: X on every row after each step, as the states of a problem.

X is computed for every row by regressions that were not fitted to it (cross-fitting), so that
what is counted is what will be met on new rows. What a row would lose by stopping is half what X
predicts and half what happened: the one has little spread, the other no bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import CERTAIN_LOGIT
from ttamer.fitted.mixture import Rungs
from ttamer.fitted.models import BeliefModel
from ttamer.fitted.quantiser import edges_of
from ttamer.fitted.replay import full_cost, nodes_alone, paid, play_states
from ttamer.fitting.cross_fit import ROUTER
from ttamer.fitting.regressions import classes_of
from ttamer.fitting.row_policy import smoother
from ttamer.fitting.steps import NO_NODE
from ttamer.fitting.threads import on_threads
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.stats.isotonic import rising
from ttamer.stats.logistic import sigmoid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Step
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.models import States
    from ttamer.fitting.cross_fit import Estimates
    from ttamer.fitting.subsets import Way
    from ttamer.trace.trace import Trace

__all__ = [
    "MAX_STATES",
    "ROWS_PER_STATE",
    "StepRows",
    "edge_costs",
    "model_of",
    "problem_of",
    "rungs_of",
]

REALISED = 0.5
"""The largest share of what happened in the loss of stopping; the rest is the belief."""
FEW_ROWS = 300
"""With this many rows that share is half as large."""
ROWS_PER_STATE = 10
"""X has at most one state per this many rows."""
MAX_STATES = 64
"""X has at most this many states after each step."""


@dataclass(frozen=True, eq=False)
class StepRows:
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
    def of(
        cls, trace: Trace, steps: Sequence[Step], estimates: Estimates, *, states: int
    ) -> StepRows:
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

    def at(self, places: Sequence[int]) -> StepRows:
        """Return the same rows after some of the steps."""
        edges = [self.edges[k] for k in places]
        return StepRows(edges, self.found[:, places], self.owner[:, places], self.lost[:, places])


def edge_costs(
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


def problem_of(
    trace: Trace,
    steps: Sequence[Step],
    ways: Sequence[Way],
    rows: StepRows,
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
    for (source, target, _), cost in zip(ways, edge_costs(trace, steps, ways), strict=True):
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


def model_of(
    trace: Trace,
    belief: Belief,
    steps: Sequence[Step],
    edges: Sequence[NDArray[np.float64]],
    order: str,
    states: int,
) -> BeliefModel:
    """Return the model that a fit on beliefs gives."""
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


def rungs_of(ladder: FittedLadder, trace: Trace, rows: StepRows, as_served: States) -> Rungs:
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
