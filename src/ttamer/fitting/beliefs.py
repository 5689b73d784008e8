"""From beliefs to a ladder: X becomes the state of a walk over steps.

A step is the set of nodes asked so far. After each step X is known, the least chance to be wrong of
any answer in hand; it is quantised, and the problem is a walk *without* recall over the steps,
since recall is inside X. The policies are found on the rows of the trace themselves
(row_policy.py); the transitions counted say what to expect of them.

X is computed for every row by regressions that were not fitted to it (cross-fitting), so that
what is counted is what will be met on new rows. What a row would lose by stopping is half what X
says and half what happened: the one has little spread, the other no bias.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import CERTAIN_LOGIT, Step, signal_names, signal_values
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import Rungs
from ttamer.fitted.models import BeliefModel
from ttamer.fitted.quantiser import edges_of
from ttamer.fitted.replay import full_cost, paid, play_states
from ttamer.fitting.regressions import fit_belief, has_class_terms, predictions_of
from ttamer.fitting.row_policy import smoother, solve_rows, width_of
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.solvers.blas import one_thread
from ttamer.stats.isotonic import rising
from ttamer.stats.logistic import sigmoid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ttamer.trace.spec import Order
    from ttamer.trace.trace import Trace

__all__ = ["build_belief", "steps_of"]

ROUTER: Step = ()
"""The step before anybody is asked, where signals are known."""
NOBODY = -1
FOLDS = 3
REALISED = 0.5
"""What a row would lose by stopping is so much what happened, and for the rest what X says ..."""
FEW_ROWS = 300
"""... and half as much with so few rows."""
MOST_ANY = 10
"""Up to so many separate models may be asked in any order, ..."""
MOST_STEPS = 175
"""... as many of them of one input as makes no more steps than this, and at most ..."""
MOST_ASKED = 6
"""... so many, all of which a belief looks at."""
WINDOW = 2
"""Of a longer cascade with exits left out, a step is the last so many asked."""
ROWS_PER_STATE = 10
MOST_STATES = 64
MOST_WAYS = 64
"""With more ways on there are half as many states: a file holds a matrix for each."""


def steps_of(
    trace: Trace, order: Order | None = None
) -> tuple[list[Step], list[tuple[int, int, int]]]:
    """Return the steps, and (from, to, node asked) for each way on; the start is -1.

    Exits are asked in their order, separate models in any (with order "skip" in increasing order,
    some left out). Of more than six in any order, only some are asked of one input; of more than
    ``MOST_ANY``, all are asked cheapest first. Of more than six with order "skip", a step is the
    last ``WINDOW`` asked.
    """
    nodes = list(range(len(trace.names)))
    order = order or trace.spec.order
    if order == "skip" and len(nodes) > MOST_ASKED:
        return _windows(len(nodes))
    if order == "fixed" or len(nodes) > MOST_ANY:
        nodes = list(trace.spec.asking_order(trace.costs.mean(axis=0)))
        line = [tuple(nodes[: k + 1]) for k in range(len(nodes))]
        return line, [(k - 1, k, node) for k, node in enumerate(nodes)]
    steps = [step for size in _sizes(len(nodes)) for step in combinations(nodes, size)]
    router = [ROUTER] if signal_names(trace) and len(nodes) > 1 else []
    steps = router + steps
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, 0, NOBODY)] if router else []
    ways += [(-1 if not router else 0, number[(node,)], node) for node in nodes]
    onward = order == "skip"  # then only nodes further on may follow
    ways += [
        (number[step], number[wider], node)
        for step in steps[len(router) :]
        for node in nodes
        if node not in step and (node > step[-1] or not onward)
        if (wider := tuple(sorted((*step, node)))) in number
    ]
    return steps, ways


def _sizes(nodes: int) -> range:
    """Return how many of the nodes may be asked of one input.

    >>> [max(_sizes(nodes)) for nodes in range(1, 11)]
    [1, 2, 3, 4, 5, 6, 6, 4, 3, 3]
    """
    size, steps = 1, nodes
    while size < min(nodes, MOST_ASKED) and steps + comb(nodes, size + 1) <= MOST_STEPS:
        size += 1
        steps += comb(nodes, size)
    return range(1, size + 1)


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
    progress: Callable[[str], None] | None = None,
) -> FittedLadder:
    """Fit beliefs to a trace, and policies on them for several tradeoffs."""
    say = progress or (lambda _: None)
    wrong = trace.wrong()
    steps, ways = steps_of(trace, order)
    with one_thread():
        say(f"fitting beliefs after {len(steps)} steps (1 of {FOLDS + 1} times)")
        belief = fit_belief(trace, wrong, steps)
        least, owner = _cross_fitted(trace, wrong, steps, seed, say)
    say(f"finding policies for {len(tradeoffs)} tradeoffs")
    most = MOST_STATES if len(ways) <= MOST_WAYS else MOST_STATES // 2
    count = states or int(np.clip(len(trace) // ROWS_PER_STATE, 4, most))
    edges = [edges_of(least[:, k], states=count, method="quantile") for k in range(len(steps))]
    found = np.stack(
        [np.searchsorted(edges[k], least[:, k], side="right") for k in range(len(steps))], axis=1
    )
    met = wrong[np.arange(len(trace))[:, np.newaxis], owner]
    share = REALISED * len(trace) / (len(trace) + FEW_ROWS)
    lost = (1 - share) * sigmoid(least) + share * met
    lost[:, (least == CERTAIN_LOGIT).all(axis=0)] = 0.0  # right by definition
    lost[:, [k for k, step in enumerate(steps) if step == ROUTER]] = np.inf
    width = width_of(len(trace))
    full = full_cost(trace.spec, trace)
    problem = _problem(trace, steps, ways, found, lost, width, full)
    fitted = BeliefModel(
        spec=trace.spec,
        belief=belief,
        steps=tuple(steps),
        edges=tuple(edges),
        classes=trace.classes,
        plan={"belief": "full", "order": _order_name(trace, order), "states": count},
        trace_digest=trace.digest,
        rows=len(trace),
        full_cost=full,
    )
    ladder = FittedLadder.of(solve_rows(problem, found, lost, tradeoffs, width=width), fitted)
    return ladder.with_rungs(_rungs(ladder, trace, found, owner, lost))


def _rungs(
    ladder: FittedLadder,
    trace: Trace,
    found: NDArray[np.intp],
    owner: NDArray[np.intp],
    lost: NDArray[np.float64],
) -> Rungs:
    """Return what each policy does on new rows.

    Errors are those where X comes from regressions that did not see the row; costs are those of the
    fit as it serves, which asks a little less often than its parts.
    """
    states = found.astype(np.uint8)
    as_served = ladder.fitted.states(trace)
    rows = np.arange(len(trace))
    wrong = trace.wrong()
    errors, costs, smoothed = [], [], []
    for policy in ladder:
        step, _, _ = play_states(policy.policy, states)
        errors.append(wrong[rows, owner[rows, step]].mean())
        smoothed.append(lost[rows, step].mean())
        costs.append(paid(as_served.play(policy.policy).asked, trace).mean())
    alone = wrong.mean(axis=0)
    return Rungs(np.array(errors), np.array(costs), np.array(smoothed), alone)


def _cross_fitted(
    trace: Trace,
    wrong: NDArray[np.bool_],
    steps: Sequence[Step],
    seed: int,
    say: Callable[[str], object] = str,
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return X and its owner on every row, shape (T, steps), by regressions that did not see it."""
    rows = np.random.default_rng([seed, 2]).permutation(len(trace))
    predictions, names = predictions_of(trace), signal_names(trace)
    class_terms = has_class_terms(trace)  # as in the fit to all rows
    least = np.empty((len(trace), len(steps)))
    owner = np.empty(least.shape, np.intp)
    for number, part in enumerate(np.array_split(rows, FOLDS), start=2):
        say(f"fitting beliefs after {len(steps)} steps ({number} of {FOLDS + 1} times)")
        rest = np.setdiff1d(rows, part)
        other = fit_belief(trace.take(rest), wrong[rest], steps, class_terms=class_terms)
        known = signal_values(trace.take(part), names) if names else None
        seen = other.evidence(
            trace.confidence[part], None if predictions is None else predictions[part], known
        )
        for k, step in enumerate(steps):
            if step != ROUTER:
                least[part, k], owner[part, k] = other.least(seen, step)
            elif other.signals is not None and known is not None:
                least[part, k], owner[part, k] = other.signals.router_logit(known), 0
    return least, owner


def _problem(
    trace: Trace,
    steps: Sequence[Step],
    ways: Sequence[tuple[int, int, int]],
    found: NDArray[np.intp],
    lost: NDArray[np.float64],
    width: float,
    full: float,
) -> Problem:
    """Build the walk over steps, given the states of X and the loss of stopping on every row.

    Costs are in shares of ``full``.
    """
    names = [" + ".join(trace.names[node] for node in step) or "signals" for step in steps]
    if len(set(names)) < len(names):
        names = [f"step {k}" for k in range(len(steps))]
    counts = [np.bincount(found[:, k]) for k in range(len(steps))]
    nodes = [
        Node(name, np.full(len(rows), np.inf))
        if step == ROUTER
        else Node(name, rising(np.bincount(found[:, k], lost[:, k]) / rows, rows.astype(float)))
        for k, (name, step, rows) in enumerate(zip(names, steps, counts, strict=True))
    ]
    costs = trace.costs.mean(axis=0)
    edges = []
    for source, target, node in ways:
        size = len(counts[target])
        if source < 0:
            table = counts[target][np.newaxis] / len(found)
        else:
            code = found[:, source] * size + found[:, target]
            moves = np.bincount(code, minlength=len(counts[source]) * size).reshape(-1, size)
            table = smoother(counts[source], width) @ (moves / counts[source][:, np.newaxis])
        before = None if source < 0 else names[source]
        cost = 0.0 if node == NOBODY else float(costs[node])
        if trace.spec.has_passing:  # then exits stand, and are asked, in their order
            last = steps[source][-1] if source >= 0 and steps[source] else -1
            cost += trace.spec.passed(last, node)
        rows = table / table.sum(axis=1, keepdims=True)
        edges.append(Edge(before, names[target], cost=cost / full, probabilities=rows))
    return Problem("walk", tuple(nodes), tuple(edges))


def _order_name(trace: Trace, order: Order | None) -> str:
    order = order or trace.spec.order
    if order == "skip":
        return "skip"
    return "fixed" if order == "fixed" or len(trace.names) > MOST_ANY else "any"
