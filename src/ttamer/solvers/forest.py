"""The precedence solver: an index per node and parent state, for any forest.

State
    the best loss so far X, and the parent's state for every node that may be asked.
Actions
    stop with loss X, or ask any available node v and pay its cost.
Recursion
    from the leaves up, each subtree becomes one random number, its surrogate loss (surrogate.py),
    and each node gets its dynamic index sigma. Then the optimal policy asks the available node
    of least sigma, and stops as soon as X <= sigma.
Ties
    X equal to the least sigma: stop. Equal sigma: the node given first.
Cost
    One matrix product per node over the breakpoints of its subtree, at most one per loss on the
    grid and one per sigma below. The table is nodes * |V| numbers: a factor |V| below the paper's.
Reference
    The paper's Alg. 3, Thm. C.7 (multi-line) and C.14 (tree); Weitzman (1979) for one level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ProblemError
from ttamer.policy.index import IndexPolicy
from ttamer.policy.surrogate import sweep
from ttamer.solvers.walk import NO_SURE_ANSWER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.problem.problem import Problem

__all__ = ["solve_forest"]


def solve_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest for several tradeoffs, one sweep each."""
    policies = []
    for tradeoff in tradeoffs.tolist():
        sigma, below = sweep(problem, tradeoff)
        whole = below[-1]
        assert whole is not None  # noqa: S101 - a forest has a root
        value = float(whole.least_mean(np.array([np.inf]))[0, 0])
        if not np.isfinite(value):
            raise ProblemError(NO_SURE_ANSWER)
        policies.append(IndexPolicy(problem=problem, tradeoff=tradeoff, value=value, sigma=sigma))
    return policies
