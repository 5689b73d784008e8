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
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.expected_walk import START
from ttamer.policy.index import IndexPolicy
from ttamer.policy.surrogate import Surrogate, join_below, subtree_law
from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import weigh_losses
from ttamer.solvers.blas import one_thread
from ttamer.solvers.walk import NO_SURE_ANSWER, TIE


def solve_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest for several tradeoffs, one sweep each."""
    policies = []
    for tradeoff in tradeoffs.tolist():
        sigma, whole = sweep(problem, tradeoff)
        value = float(whole.expected_minimum(np.array([np.inf]))[0, 0])
        if not np.isfinite(value):
            raise ProblemError(NO_SURE_ANSWER)
        policies.append(IndexPolicy(problem=problem, tradeoff=tradeoff, value=value, sigma=sigma))
    return policies


def sweep(problem: Problem, tradeoff: float) -> tuple[tuple[NDArray[np.float64], ...], Surrogate]:
    """Sweep a forest from its leaves.

    Returns per node its index, one for each state of its parent (one for a root), and the
    surrogate of the whole forest. The law of a subtree is kept only until it has been used.
    """
    sigma: list[NDArray[np.float64]] = [np.empty(0)] * len(problem.nodes)
    below: list[Surrogate | None] = [None] * (len(problem.nodes) + 1)
    losses = weigh_losses(problem.grid.values[:-1], tradeoff)
    for node in reversed(problem.order):
        law = subtree_law(problem, tradeoff, node, below[node])
        below[node] = None
        costs = (1 - tradeoff) * problem.parent_edge(node).expected_costs
        sigma[node] = _settled(law.index(costs), losses)
        join_below(below, problem.ends[problem.incoming[node][0]][0], law.raised(sigma[node]))
    whole = below[START]
    assert whole is not None  # noqa: S101 - a forest has a root
    return tuple(sigma), whole


def indices(problem: Problem, tradeoff: float) -> tuple[NDArray[np.float64], ...]:
    """Return the index of each node of a forest, for each state of its parent."""
    with one_thread():
        return sweep(problem, tradeoff)[0]


def _settled(sigma: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise an index that equals a loss up to rounding onto that loss, so that the tie is seen."""
    near = np.searchsorted(losses, sigma * (1 + TIE), side="right") - 1
    return np.where(near >= 0, np.maximum(sigma, losses[np.maximum(near, 0)]), sigma)
