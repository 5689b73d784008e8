"""From a problem to a policy."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import is_number
from ttamer.errors import ArgumentError, ProblemError
from ttamer.policy.base import Ladder, Policy, one_thread
from ttamer.problem.checks import check_tradeoff, check_tradeoffs
from ttamer.problem.problem import Problem, require_problem
from ttamer.solvers.forest import solve_forest, solve_unseen_forest, with_leaves
from ttamer.solvers.joint import solve_joint
from ttamer.solvers.walk import LINE_BYTES, solve_walk, table_bytes


def solve(
    problem: Problem,
    tradeoff: float,
    *,
    recall: bool = True,
    max_cost: float | None = None,
) -> Policy:
    """Return the optimal policy of a problem.

    Args:
        problem: What may be asked, and what is known of it.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).
        recall: Whether an earlier node's answer may be returned. Without it, the answer is the
            last node's; that is a walk, so a branching problem under precedence has none.
        max_cost: The most that any one input may cost, failures included. The policy is the best
            under this cap, with what was spent as part of the state. Where there are too many sums
            of costs, they are rounded up to a share of the cap, and ``policy.bound`` says how far
            from the best that may be (solvers/joint.py). Forests are solved under a cap over
            the sets of nodes asked: small ones only.

    Returns:
        A :class:`~ttamer.policy.WalkPolicy` for a walk; an :class:`~ttamer.policy.IndexPolicy`
        under precedence, and for a line whose tables would take more than half a gigabyte; a
        :class:`~ttamer.policy.JointPolicy` where a node has several parents, or under a cap. Where
        answers may be returned unseen (``verify_cost``), the policy's problem has a leaf for each,
        and the policy is exact on lines and walks. On forests it is committed, node by node, to
        look or not, and ``policy.ratio`` says how far above the optimum it is at most: for
        independent nodes without children 4/3 (Scully and Doval, 2024); it is never worse than
        always looking.

    Raises:
        ArgumentError: If the tradeoff or the cap is out of range.
        ProblemError: If no policy is sure of an answer, or the tables do not fit into memory.

    >>> from ttamer import Problem, solve
    >>> cascade = Problem.line(
    ...     losses=[0.05, 0.5],
    ...     costs=[0.1, 0.2],
    ...     probabilities=[[0.6, 0.4], [[0.95, 0.05], [0.7, 0.3]]],
    ...     names=["small", "large"],
    ... )
    >>> policy = solve(cascade, tradeoff=0.6)
    >>> policy
    WalkPolicy(2 nodes, tradeoff=0.6, value=0.1344)
    >>> round(policy.asked["large"], 9)
    0.4
    """
    require_problem(problem, "solve")
    return _solve(problem, np.array([check_tradeoff(tradeoff)]), recall, max_cost)[0]


def solve_ladder(
    problem: Problem,
    tradeoffs: Iterable[float],
    *,
    recall: bool = True,
    max_cost: float | None = None,
) -> Ladder:
    """Return the optimal policies for many tradeoffs, solved together.

    Args:
        problem: What may be asked, and what is known of it.
        tradeoffs: Numbers from 0 to 1; repeated ones count once.
        recall: Whether an earlier node's answer may be returned.
        max_cost: The most that any one input may cost, as in :func:`solve`.

    Returns:
        The policies, in increasing order of tradeoff; errors are those of :func:`solve`.

    >>> from ttamer import Problem, solve_ladder
    >>> ladder = solve_ladder(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), [0, 0.5, 1])
    >>> [policy.value for policy in ladder]
    [0.1, 0.175, 0.25]
    """
    require_problem(problem, "solve_ladder")
    return Ladder(tuple(_solve(problem, check_tradeoffs(tradeoffs), recall, max_cost)))


@one_thread()
def _solve(
    problem: Problem, tradeoffs: NDArray[np.float64], recall: bool, max_cost: float | None
) -> Sequence[Policy]:
    if max_cost is not None and not (is_number(max_cost) and max_cost > 0):
        raise ArgumentError(
            f"max_cost is {max_cost!r}; it must be a number above 0, in the units of the costs",
            param="max_cost",
        )
    if not recall and problem.moves == "precedence":
        if not problem.is_line:
            raise ProblemError(
                "without recall the answer is that of the node asked last, which needs an order: "
                'use "moves": "walk", or keep recall'
            )
        problem = problem.with_moves("walk")
    if problem.has_unseen_answers:
        if problem.has_joint_edges:
            raise ProblemError(
                "verify_cost is not solved where a node is asked after several others: remove it, "
                "or the edges with several sources"
            )
        if problem.is_line or problem.moves == "walk":
            problem = with_leaves(problem)
        elif max_cost is None:
            return [solve_unseen_forest(problem, tradeoff) for tradeoff in tradeoffs.tolist()]
        else:
            raise ProblemError(
                "verify_cost is not solved under a cap on forests: remove it, or max_cost"
            )
    if problem.has_joint_edges or max_cost is not None:
        walk = problem.with_moves("walk") if problem.is_line else problem
        return solve_joint(walk, tradeoffs, recall=recall, max_cost=max_cost)
    if problem.moves == "walk":
        size = table_bytes(problem, len(tradeoffs), recall=recall)
        if size <= LINE_BYTES or not (recall and problem.is_line):
            return solve_walk(problem, tradeoffs, recall=recall)
        problem = problem.with_moves("precedence")
    return solve_forest(problem, tradeoffs)
