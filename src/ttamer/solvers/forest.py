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
from ttamer.policy.index import IndexPolicy
from ttamer.policy.surrogate import sweep
from ttamer.problem.problem import Problem
from ttamer.solvers.walk import NO_SURE_ANSWER


def solve_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest for several tradeoffs, one sweep each."""
    policies = []
    for tradeoff in tradeoffs.tolist():
        sigma, forest = sweep(problem, tradeoff)
        value = forest.mean
        if not np.isfinite(value):
            raise ProblemError(NO_SURE_ANSWER)
        policies.append(IndexPolicy(problem=problem, tradeoff=tradeoff, value=value, sigma=sigma))
    return policies
