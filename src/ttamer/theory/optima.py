"""What a policy can be measured against.

- *offline*: a prophet who sees every loss before choosing where to stop;
  it still pays for the way there: ``E[min over nodes of loss + cost of its path]``.
- *online*: the best any policy can do that learns a loss only by asking; with recall.
- *no recall*: the same when only the last node's answer can be returned.

Always offline <= online <= no recall. All are weighed by the tradeoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ProblemError
from ttamer.policy.surrogate import Surrogate
from ttamer.problem.tradeoff import check_tradeoff, weigh_losses
from ttamer.solvers import solve

if TYPE_CHECKING:
    from ttamer.problem.problem import Problem

__all__ = ["Optima", "no_recall_optimum", "offline_optimum", "online_optimum", "optima"]


@dataclass(frozen=True)
class Optima:
    """The three optima of one problem; ``None`` where one is not defined for its topology.

    >>> from ttamer import Problem, optima
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> found = optima(line, 0.5)
    >>> found.offline, found.online
    (0.1875, 0.2)
    """

    offline: float | None
    online: float
    no_recall: float | None


def optima(problem: Problem, tradeoff: float) -> Optima:
    """Return all three.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The optima, weighed; ``None`` where one is not defined.

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If no policy is sure of an answer.

    >>> from ttamer import Problem
    >>> optima(Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2]), 0.5)
    Optima(offline=0.1875, online=0.2, no_recall=0.2)
    """
    ordered = problem.is_line or problem.moves == "walk"
    return Optima(
        offline=offline_optimum(problem, tradeoff) if problem.is_forest else None,
        online=online_optimum(problem, tradeoff),
        no_recall=no_recall_optimum(problem, tradeoff) if ordered else None,
    )


def online_optimum(problem: Problem, tradeoff: float) -> float:
    """Return the least expected loss and cost of any policy with recall.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The value, weighed.

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If no policy is sure of an answer.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> online_optimum(line, 0.5)
    0.2
    """
    return solve(problem, tradeoff).value


def no_recall_optimum(problem: Problem, tradeoff: float) -> float:
    """Return the least expected loss and cost when the last node asked must answer.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The value, weighed.

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If the problem has no order, or no policy is sure of an answer.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> no_recall_optimum(line, 0.5)
    0.2
    """
    return solve(problem, tradeoff, recall=False).value


def offline_optimum(problem: Problem, tradeoff: float) -> float:
    """Return the value of a prophet: it has every loss in advance, and pays for the path.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The value, weighed.

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If the problem gives no joint law of all losses.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> offline_optimum(line, 0.5)
    0.1875
    """
    tradeoff = check_tradeoff(tradeoff)
    if not problem.is_forest:
        raise ProblemError(
            "the offline optimum needs one joint law of all losses, and a problem whose routes "
            "meet gives only the law along each route: ask for a line, multi-line, tree or forest"
        )
    below: list[Surrogate | None] = [None] * (len(problem.nodes) + 1)
    for node in reversed(problem.order):
        law = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
        after = below[node]
        if after is not None:
            law = law.least_with(after)
        edge = problem.parent_edge(node)
        law = law.mixed_later(edge.probabilities, (1 - tradeoff) * edge.cost_table)
        parent = problem.ends[problem.incoming[node][0]][0]
        sibling = below[parent]
        below[parent] = law if sibling is None else law.least_with(sibling)
    whole = below[-1]
    assert whole is not None  # noqa: S101 - a forest has a root
    return float(whole.least_mean(np.array([np.inf]))[0, 0])
