"""The precedence solver: an index per node and parent state, for any forest.

State
    the best loss so far X, and the parent's state for every node that may be asked.
Actions
    stop with loss X, or ask any available node v and pay its cost.
Recursion
    from the leaves up, each subtree becomes one random number, its surrogate loss kappa
    (policy/surrogate.py), and each node gets its dynamic index for every parent state s:
    ``sigma_v(s)`` solves ``E[(sigma - W_v)^+] = c_v``, exactly, as the gain is piecewise linear.
    The optimal policy asks the available node of least sigma, and stops as soon as X <= sigma.
Ties
    X equal to the least sigma: stop. Equal sigma: the node given first.
Cost
    One matrix product per node over the breakpoints of its subtree, at most one per loss on the
    grid and one per sigma below; those beyond which nothing is left to gain are dropped, so that on
    a line the time is near linear in the nodes. The table is nodes * |V| numbers: a factor |V|
    below the paper's.
Reference
    The paper's Alg. 3, Thm. C.7 (multi-line) and C.14 (tree); Weitzman (1979) for one level.

Where answers may be returned unseen (``verify_cost``), each node is *committed*, for each state of
its parent, to be looked at or not (problem/unseen.py), and the committed forest is solved.

Choice of the commitment
    For a root without children let f(r) be the value of looking at it with r in hand, m its mean
    loss and cost unseen, and h(r) = min(r, m, f(r)) the best of both. Local hedging looks with the
    probability p for which ``p f(r) + (1 - p) min(r, m) <= a h(r / a)`` for all r with the least a.
    The expected value is linear in each p, so the nodes are then fixed one after another to
    whichever way is not worse (conditional expectations): that is never above the hedged value.
    Last, single commitments are changed as long as that lowers the value: one solve for each that
    is tried, at most ``MAX_TRIED``.
Guarantee
    Where all nodes are roots without children, and independent: at most 4/3 of the optimum (Scully
    and Doval, 2024, local hedging; the proof has no cost of asking beside that of looking). For
    every forest there is a bound of the instance (:func:`lower_bound`): no policy is below it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.future import Surrogate, least_of, subtree_law, sweep
from ttamer.policy.index import IndexPolicy
from ttamer.problem.checks import weigh_losses
from ttamer.problem.problem import Problem, committed, mean_losses
from ttamer.solvers.walk import NO_SURE_ANSWER

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


def solve_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest for several tradeoffs, one sweep each."""
    policies = []
    for tradeoff in tradeoffs.tolist():
        sigma, whole = sweep(problem, tradeoff)
        value = _mean(whole)
        if not np.isfinite(value):
            raise ProblemError(NO_SURE_ANSWER)
        policies.append(IndexPolicy(problem=problem, tradeoff=tradeoff, value=value, sigma=sigma))
    return policies


def lower_bound(problem: Problem, tradeoff: float) -> float:
    """Return what no policy of a forest with answers that may be returned unseen is below.

    Alone, with r in hand, a subtree is worth at least ``h(r) = min(r, m, E[min(r, kappa)])``: m its
    root's mean loss and cost unseen, kappa its surrogate if it is looked at. That is the law
    ``min(kappa, z)`` with ``E[min(z, kappa)] = m``; and several independent searches are worth at
    least what the laws of each alone come to (Whittle's integral; Brown and Smith, 2013).
    """
    below: list[list[Surrogate]] = [[] for _ in range(len(problem.nodes) + 1)]
    for node in reversed(problem.order):
        number = problem.incoming[node][0]
        edge = problem.edges[number]
        law = subtree_law(problem, tradeoff, node, below[node])
        cost = (1 - tradeoff) * edge.expected_costs
        look = cost + (1 - tradeoff) * (edge.verify_cost or 0.0)
        law = law.raised(law.index(look))
        if edge.verify_cost is not None:
            unseen = weigh_losses(mean_losses(problem, number), tradeoff) + cost
            law = law.cut(law.reaching(unseen))
        below[problem.ends[number][0]].append(law)
    return _mean(_least(below[-1]))


def _least(laws: list[Surrogate]) -> Surrogate:
    """Return the law of the least of those of the roots."""
    whole = least_of(laws)
    assert whole is not None  # noqa: S101 - a forest has a root
    return whole


def _mean(law: Surrogate) -> float:
    """Return the mean of a law of one state."""
    return float(law.expected_minimum(np.array([np.inf]))[0, 0])


def solve_unseen_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest with answers that may be returned unseen, for several tradeoffs."""
    return [_commit(problem, float(tradeoff)) for tradeoff in tradeoffs]


def _commit(problem: Problem, tradeoff: float) -> IndexPolicy:
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
    # Rounding apart, the bound of a commitment that is best is its value.
    bound = min(lower_bound(problem, tradeoff), best.value)
    return replace(best, bound=bound, original=problem)


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
        look = subtree_law(looked, tradeoff, v, [])
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
            values.append(_mean(_least(mixed)))
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
