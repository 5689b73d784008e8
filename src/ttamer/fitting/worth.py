"""What further calls are worth: how far each lowers the uncertainty of the frontier.

On complete rows the loss of a policy is regressed on the losses of the nodes. What the nodes
explain is known from every row on which a node was asked, the rest from complete rows alone::

    error^2 = rest / complete rows + sum over nodes b[m]^2 var(loss[m]) / rows of m

``error`` is the standard error of the loss of a policy of the frontier. So one more row of a node,
or one more complete row, lowers it by its derivative; divided by what the row costs, this is the
worth of the next dollar.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ttamer._checks import require_kind
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats, Ints
from ttamer.fitting.ladder import FittedLadder
from ttamer.trace.trace import Trace


class CallPlan(NamedTuple):
    """How to spend a budget on further calls."""

    # Prompts to ask every node about
    complete: int
    # By node: prompts to ask it alone about
    alone: dict[str, int]
    cost: float
    # The standard error of the frontier's loss now, a mean over its policies
    error: float
    error_after: float
    # By how much the next unit of cost lowers it, after the plan
    next_unit: float


def plan_calls(ladder: FittedLadder, trace: Trace, budget: float) -> CallPlan:
    """Plan calls where the uncertainty of the frontier falls most per cost.

    Args:
        ladder: Fitted to the trace.
        trace: What was asked so far; some rows are complete.
        budget: What may be spent, in the cascade's unit of cost.

    Returns:
        Rows to ask all nodes, or one node, about, and the worth of the next unit of cost.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(400))
    >>> plan = plan_calls(fit(trace, belief="threshold"), trace, budget=50.0)
    >>> plan.cost <= 50, plan.error_after < plan.error
    (True, True)
    """
    require_kind(ladder, FittedLadder, "plan_calls needs a ladder", "fit one with ttamer.fit")
    if not budget > 0:
        raise ArgumentError(f"the budget is {budget!r}; it must be above 0", param="budget")
    residual, explained, asked = _shares(ladder, trace)
    mean = np.nanmean(trace.costs, axis=0)
    # One row of all nodes, or of one of them: exits are never asked without those before them.
    ways = [np.ones(len(mean), np.intp)]
    if trace.spec.kind == "models" and not any(trace.spec.parents):
        ways += [*np.eye(len(mean), dtype=np.intp)]
    price = np.array([max(float(way @ mean), 1e-12) for way in ways])
    rows, complete = asked.astype(float), float((~np.isnan(trace.loss).any(axis=1)).sum())
    before = error = _error(residual, explained, rows, complete)
    bought, spent = np.zeros(len(ways), np.intp), 0.0
    while True:
        after = [_error(residual, explained, rows + way, complete + way.all()) for way in ways]
        falls = (error - np.array(after)) / price
        best = int(falls.argmax())
        count = int(min(max(budget / 100 / price[best], 1), (budget - spent) / price[best]))
        if count < 1:
            break
        rows, complete = rows + count * ways[best], complete + count * bool(ways[best].all())
        error = _error(residual, explained, rows, complete)
        bought[best] += count
        spent += count * price[best]
    return CallPlan(
        complete=int(bought[0]),
        alone=dict(zip(trace.names, bought[1:].tolist(), strict=False)),
        cost=float(spent),
        error=before,
        error_after=error,
        next_unit=float(falls.max()),
    )


def _shares(ladder: FittedLadder, trace: Trace) -> tuple[Floats, Floats, Ints]:
    """Return the variance that complete rows alone say, that of each node, and rows of nodes."""
    complete = trace.take(~np.isnan(trace.loss).any(axis=1))
    view, number = ladder.fitted.read(complete), np.arange(len(complete))
    policies = [k for k in ladder.points.corners if k < len(ladder.points)] or [0]
    played = [view.play(ladder.fitted.rule(k)) for k in policies]
    lost = np.stack([complete.loss[number, done.answer] for done in played], axis=1)
    nodes = complete.loss - complete.loss.mean(axis=0)
    centred = lost - lost.mean(axis=0)
    ridge = np.eye(nodes.shape[1]) * (1e-3 + nodes.var(axis=0).mean())
    weight = np.linalg.solve(nodes.T @ nodes + ridge, nodes.T @ centred)
    residual = (centred - nodes @ weight).var(axis=0)
    asked = (~np.isnan(trace.loss)).sum(axis=0)
    return residual, weight**2 * nodes.var(axis=0)[:, None], asked


def _error(residual: Floats, explained: Floats, rows: Floats, complete: float) -> float:
    """Return the standard error of the frontier, a mean over policies."""
    return float(np.sqrt(residual / complete + (explained / rows[:, None]).sum(axis=0)).mean())
