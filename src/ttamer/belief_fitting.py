"""From beliefs to a ladder: X becomes the state of a walk over steps.

A step is the set of nodes asked so far. After each step X is known, the least chance to be wrong of
any answer in hand; it is quantised, its transitions are counted on the trace, and the problem is
a walk *without* recall over the steps, since recall is inside X.

X is computed for every row by regressions that were not fitted to it (cross-fitting), so that
what is counted is what will be met on new rows.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ttamer.belief import SURE, Belief, Step, believe, predictions_of
from ttamer.fitted import FittedLadder
from ttamer.fitted_belief import BeliefFitted
from ttamer.isotonic import rising
from ttamer.logistic import sigmoid
from ttamer.problem import Edge, Node, Problem
from ttamer.quantiser import edges_of
from ttamer.solvers import solve_ladder
from ttamer.solvers.blas import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.cascade_spec import Order
    from ttamer.trace import Trace

__all__ = ["build_belief", "steps_of"]

FOLDS = 3
MOST_ANY = 6
"""Up to so many separate models may be asked in any order: 63 steps."""
WINDOW = 2
"""Of a longer cascade with exits left out, a step is the last so many asked."""
SHRINKAGE = 4.0
SMOOTHING = 1.0


def steps_of(
    trace: Trace, order: Order | None = None
) -> tuple[list[Step], list[tuple[int, int, int]]]:
    """Return the steps, and (from, to, node asked) for each way on; the start is -1.

    Exits are asked in their order, separate models in any (with order "skip" in increasing order,
    some left out). Where there are more than ``MOST_ANY``, separate models are asked cheapest
    first, and with order "skip" a step is the last ``WINDOW`` asked.
    """
    nodes = list(range(len(trace.names)))
    order = order or trace.spec.order
    if order == "skip" and len(nodes) > MOST_ANY:
        return _windows(len(nodes))
    if order == "fixed" or len(nodes) > MOST_ANY:
        if trace.spec.order != "skip" and not trace.spec.is_network:
            means = trace.costs.mean(axis=0)
            nodes.sort(key=lambda node: (means[node], node))
        line = [tuple(nodes[: k + 1]) for k in range(len(nodes))]
        return line, [(k - 1, k, node) for k, node in enumerate(nodes)]
    steps = [step for size in range(1, len(nodes) + 1) for step in combinations(nodes, size)]
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, number[(node,)], node) for node in nodes]
    onward = order == "skip"  # then only nodes further on may follow
    ways += [
        (number[step], number[tuple(sorted((*step, node)))], node)
        for step in steps
        for node in nodes
        if node not in step and (node > step[-1] or not onward)
    ]
    return steps, ways


def _windows(nodes: int) -> tuple[list[Step], list[tuple[int, int, int]]]:
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
) -> FittedLadder:
    """Fit beliefs to a trace, and policies on them for several tradeoffs."""
    wrong = trace.wrong()
    steps, ways = steps_of(trace, order)
    with one_thread():
        belief = believe(trace, wrong, steps)
        least, owner = _cross_fitted(trace, wrong, steps, belief, seed)
    count = states or int(np.clip(len(trace) // 150, 4, 32))
    edges = [edges_of(least[:, k], states=count, method="quantile") for k in range(len(steps))]
    found = np.stack(
        [np.searchsorted(edges[k], least[:, k], side="right") for k in range(len(steps))], axis=1
    )
    lost = wrong[np.arange(len(trace))[:, np.newaxis], owner]
    problem = _problem(trace, steps, ways, [len(own) + 1 for own in edges], found, least, lost)
    fitted = BeliefFitted(
        spec=trace.spec,
        belief=belief,
        steps=tuple(steps),
        edges=tuple(edges),
        classes=trace.classes,
        plan={"belief": "full", "order": _order_name(trace, order), "states": count},
        trace_digest=trace.digest,
        rows=len(trace),
    )
    return FittedLadder(solve_ladder(problem, tradeoffs, recall=False), fitted)


def _cross_fitted(
    trace: Trace, wrong: NDArray[np.bool_], steps: Sequence[Step], belief: Belief, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return X and its owner on every row, shape (T, steps), by regressions that did not see it."""
    rows = np.random.default_rng([seed, 2]).permutation(len(trace))
    said = predictions_of(trace)
    least = np.empty((len(trace), len(steps)))
    owner = np.empty(least.shape, np.intp)
    for part in np.array_split(rows, FOLDS):
        rest = np.setdiff1d(rows, part)
        other = believe(trace.take(rest), wrong[rest], steps, like=belief)
        seen = other.evidence(trace.confidence[part], None if said is None else said[part])
        for k, step in enumerate(steps):
            least[part, k], owner[part, k] = other.least(seen, step)
    return least, owner


def _problem(
    trace: Trace,
    steps: Sequence[Step],
    ways: Sequence[tuple[int, int, int]],
    sizes: Sequence[int],
    found: NDArray[np.intp],
    least: NDArray[np.float64],
    lost: NDArray[np.bool_],
) -> Problem:
    names = [" + ".join(trace.names[node] for node in step) for step in steps]
    if len(set(names)) < len(names):
        names = [f"step {k}" for k in range(len(steps))]
    nodes = []
    for k, size in enumerate(sizes):
        weight = np.bincount(found[:, k], minlength=size).astype(np.float64)
        mean = np.bincount(found[:, k], sigmoid(least[:, k]), minlength=size) / weight
        share = np.bincount(found[:, k], lost[:, k], minlength=size) + SHRINKAGE * mean
        losses = rising(share / (weight + SHRINKAGE), weight + SHRINKAGE)
        if (least[:, k] == SURE).all():
            losses = np.zeros(size)  # right by definition
        nodes.append(Node(names[k], losses))
    costs = trace.costs.mean(axis=0)
    passing = np.concatenate([[0.0], np.cumsum(trace.spec.passing)])
    edges = []
    for source, target, node in ways:
        law = np.bincount(found[:, target], minlength=sizes[target]) / len(found)
        if source < 0:
            rows = law[np.newaxis]
        else:
            code = found[:, source] * sizes[target] + found[:, target]
            table = np.bincount(code, minlength=sizes[source] * sizes[target])
            rows = table.reshape(sizes[source], sizes[target]) + SMOOTHING * law
        rows = rows / rows.sum(axis=1, keepdims=True)
        before = None if source < 0 else names[source]
        cost = float(costs[node])
        if trace.spec.has_passing:  # then exits stand, and are asked, in their order
            last = -1 if source < 0 else steps[source][-1]
            cost += float(passing[node] - passing[last + 1])
        edges.append(Edge(before, names[target], cost=cost, probabilities=rows))
    return Problem("walk", tuple(nodes), tuple(edges))


def _order_name(trace: Trace, order: Order | None) -> str:
    order = order or trace.spec.order
    if order == "skip":
        return "skip"
    return "fixed" if order == "fixed" or len(trace.names) > MOST_ANY else "any"
