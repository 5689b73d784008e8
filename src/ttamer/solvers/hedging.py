"""Forests whose answers may be returned unseen: each node is committed to one way.

State, actions, recursion
    those of the committed forest (problem/unseen.py), solved by its indices.
Choice of the commitment
    For a root without children let f(r) be the value of looking at it with r in hand, m its mean
    loss and cost unseen, and h(r) = min(r, m, f(r)) the best of both. Local hedging looks with the
    probability p for which ``p f(r) + (1 - p) min(r, m) <= a h(r / a)`` for all r with the least a.
    The expected value is linear in each p, so the nodes are then fixed one after another to
    whichever way is not worse (conditional expectations): that is never above the hedged value.
    Last, single commitments are changed as long as that lowers the value.
Guarantee
    Where all nodes are roots without children, and independent: at most 4/3 of the optimum (Scully
    and Doval, 2024, local hedging; the proof has no cost of asking beside that of looking, and
    tests compare with enumeration where there is one). For other forests no ratio is known to us;
    the value is never above that of always looking. With one line the solver for walks is exact.
Ties, cost
    as for forests; one solve for each commitment tried, at most ``MAX_TRIED``.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ttamer.policy.index import IndexPolicy
from ttamer.policy.surrogate import Surrogate, subtree_law
from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import weigh_losses
from ttamer.problem.unseen import committed, mean_losses
from ttamer.solvers.forest import solve_forest

# The most commitments that are tried one by one.
MAX_TRIED = 400
# The probabilities of looking that local hedging chooses from.
SHARES = np.linspace(0.0, 1.0, 101)
# The halvings in the search for the ratio of a probability.
HALVINGS = 30
# Looking or not with equal probability is within this ratio.
WORST_RATIO = 2.0
# The share of a value by which another commitment must be lower.
IMPROVES = 1e-12


def solve_unseen_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest with answers that may be returned unseen, for several tradeoffs."""
    return [_solve(problem, float(tradeoff)) for tradeoff in tradeoffs]


def _solve(problem: Problem, tradeoff: float) -> IndexPolicy:
    """Choose the commitment for one tradeoff, and solve."""
    at = np.array([tradeoff])
    unseen = _hedged(problem, tradeoff)
    best = solve_forest(committed(problem, unseen), at)[0]
    looked = [np.zeros_like(own) for own in unseen]
    always = solve_forest(committed(problem, looked), at)[0]
    if always.value < best.value:
        best, unseen = always, looked
    cells = [
        (node, state)
        for node in reversed(problem.order)
        for state in np.flatnonzero(_may_be_unseen(problem, node))
    ]
    tried, changed = 0, True
    while changed and tried + len(cells) <= MAX_TRIED:
        changed = False
        for node, state in cells:
            unseen[node][state] ^= True
            tried += 1
            other = solve_forest(committed(problem, unseen), at)[0]
            if other.value < best.value * (1 - IMPROVES):
                best, changed = other, True
            else:
                unseen[node][state] ^= True
    return best


def _may_be_unseen(problem: Problem, node: int) -> NDArray[np.bool_]:
    """Return, per state of the parent, whether a node may be returned unseen."""
    number = problem.incoming[node][0]
    means = mean_losses(problem, number)
    if problem.edges[number].verify_cost is None:
        return np.zeros(len(means), bool)
    return np.isfinite(means)


def _hedged(problem: Problem, tradeoff: float) -> list[NDArray[np.bool_]]:
    """Return the commitment of roots without children by local hedging; others are looked at."""
    count = range(len(problem.nodes))
    unseen = [np.zeros(len(problem.parent_edge(v).probabilities), bool) for v in count]
    looked = committed(problem, unseen)
    single = [
        v
        for v in problem.order
        if problem.parent_edge(v).source is None
        and not problem.outgoing[v]
        and _may_be_unseen(problem, v).any()
    ]
    laws = {}
    for v in single:
        look = subtree_law(looked, tradeoff, v, None)
        cost = (1 - tradeoff) * looked.parent_edge(v).expected_costs
        look = look.raised(look.index(cost))
        number = problem.incoming[v][0]
        mean = weigh_losses(mean_losses(problem, number), tradeoff)
        mean = mean + (1 - tradeoff) * problem.edges[number].expected_costs
        laws[v] = (_both(look, float(mean[0])), float(mean[0]))
    share = {v: hedge(both, mean) for v, (both, mean) in laws.items()}
    for v in single:
        values = []
        for p in (1.0, 0.0):
            mixed = [
                both.mixed(np.array([[q, 1 - q]]))
                for w, (both, _) in laws.items()
                for q in (p if w == v else share[w],)
            ]
            whole = reduce(Surrogate.minimum_with, mixed)
            values.append(float(whole.expected_minimum(np.array([np.inf]))[0, 0]))
        share[v] = 1.0 if values[0] <= values[1] else 0.0
        unseen[v][0] = share[v] == 0.0
    return unseen


def _both(look: Surrogate, mean: float) -> Surrogate:
    """Return the law of looking and that of not looking, as two states."""
    closed = Surrogate.of_losses(np.array([mean]))
    points = np.union1d(look.points, closed.points)
    below, above = zip(look.at(points), closed.at(points), strict=True)
    return Surrogate(
        points,
        np.concatenate(below),
        np.concatenate(above),
        np.concatenate([look.sure, closed.sure]),
    )


def hedge(both: Surrogate, mean: float) -> float:
    """Return the probability of looking whose ratio to the best of both is least.

    ``both`` has the law of looking first and that of not looking second.
    """
    grid = np.unique(
        np.concatenate([both.points, [mean], np.linspace(0, 2, 101) * both.points[-1]])
    )
    grid = grid[grid > 0]
    if not grid.size:
        return 1.0
    look, closed = both.expected_minimum(grid)
    hedged = SHARES[:, np.newaxis] * look + (1 - SHARES[:, np.newaxis]) * closed

    def within(ratio: float) -> NDArray[np.bool_]:
        look, closed = both.expected_minimum(grid / ratio)
        best = ratio * np.minimum(look, closed)
        return np.asarray((hedged <= best * (1 + IMPROVES)).all(axis=1))

    low, high = 1.0, WORST_RATIO
    if within(low).any():
        return float(SHARES[within(low).argmax()])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle).any() else (middle, high)
    return float(SHARES[within(high).argmax()])
