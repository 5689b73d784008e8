"""What a policy can be measured against, and the paper's impossibility without recall.

- *offline*: a prophet who sees every loss before choosing where to stop; it still pays for the way
  there: ``E[min over nodes of loss + cost of its path]``. It needs one joint law of all losses. A
  forest gives one. A walk whose routes meet (a skip, a directed acyclic graph) gives the law along
  each route alone; a joint law follows where costs are fixed and all routes agree with one tree:
  every node follows the latest of its sources, and the table of every other edge is the product of
  the tables on the tree's way between its ends.
- *online*: the best any policy can do that learns a loss only by asking; with recall.
- *no recall*: the same when only the last node's answer can be returned.

Always offline <= online <= no recall. All are weighed by the tradeoff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ttamer.errors import ArgumentError, ProblemError
from ttamer.policy.surrogate import Surrogate, from_leaves, minimum_of
from ttamer.problem.checks import check_tradeoff, weigh_losses
from ttamer.problem.problem import START, Problem, require_problem
from ttamer.solvers import solve


@dataclass(frozen=True)
class Optima:
    """The three optima of one problem; ``None`` where one is not defined for its topology.

    >>> Optima(offline=0.1875, online=0.225, no_recall=None).ratio
    1.2
    """

    offline: float | None
    online: float
    """With recall. For a forest whose answers may be returned unseen it is that of the policy found
    (solvers/forest.py), at most ``online / online_bound`` times the optimum."""
    no_recall: float | None
    online_bound: float | None = None
    """No policy with recall is below this; ``None`` where ``online`` is the optimum."""

    @property
    def ratio(self) -> float | None:
        """The approximation ratio to the prophet with recall; ``None`` where there is none."""
        return self.ratio_of(self.online)

    @property
    def ratio_without_recall(self) -> float | None:
        """The approximation ratio to the prophet without recall."""
        return self.ratio_of(self.no_recall)

    def ratio_of(self, value: float | None) -> float | None:
        """Return a value's ratio to the prophet's; ``None`` where there is none.

        Args:
            value: A weighted loss and cost of the same problem.

        Returns:
            The ratio, 1 where both are 0.
        """
        if value is None or self.offline is None or (value > 0 and not self.offline):
            return None
        return value / self.offline if self.offline else 1.0


def optima(problem: Problem, tradeoff: float) -> Optima:
    """Return all three.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The optima, weighed; ``None`` where one is not defined.

    >>> from ttamer import Problem
    >>> optima(Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2]), 0.5)
    Optima(offline=0.1875, online=0.2, no_recall=0.2, online_bound=None)
    """
    require_problem(problem, "optima")
    try:
        offline = offline_optimum(problem, tradeoff)
    except ProblemError:
        offline = None
    policy, no_recall = solve(problem, tradeoff), None
    if problem.is_line or problem.moves == "walk":
        no_recall = solve(problem, tradeoff, recall=False).value
    return Optima(offline, policy.value, no_recall, policy.bound)


def offline_optimum(problem: Problem, tradeoff: float) -> float:
    """Return the value of a prophet: it has every loss in advance, and pays for the path.

    Args:
        problem: The problem.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The value, weighed.

    Raises:
        ProblemError: If the problem gives no joint law of all losses (routes disagree, or a node
            has several parents), or costs depend on states where routes meet.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> offline_optimum(line, 0.5)
    0.1875
    """
    require_problem(problem, "offline_optimum")
    tradeoff = check_tradeoff(tradeoff)
    tree = _tree_of(problem)
    costs = [(1 - tradeoff) * edge.cost_table for edge in problem.edges]
    reach = [0.0] * (len(problem.nodes) + 1)
    # A forest's costs lie on the way that the law goes, so they may depend on its states.
    if not problem.is_forest:  # a node is reached along the cheapest route
        for node in problem.order:
            ways = [reach[problem.ends[e][0]] + costs[e].flat[0] for e in problem.incoming[node]]
            reach[node] = min(ways)
        costs = [np.zeros(()) for _ in costs]

    def law_of(node: int, below: list[Surrogate]) -> Surrogate:
        losses = weigh_losses(problem.nodes[node].losses, tradeoff) + reach[node]
        law = minimum_of([Surrogate.of_losses(losses), *below])
        return law.mixed_later(problem.edges[tree[node]].probabilities, costs[tree[node]])

    parents = [problem.ends[edge][0] for edge in tree]
    return from_leaves(problem.order, parents, law_of, START).mean


def _tree_of(problem: Problem) -> list[int]:
    """Return the edge into each node that gives its law, if all other edges agree with them."""
    if problem.is_forest:
        return [edges[0] for edges in problem.incoming]
    if problem.has_joint_edges or not problem.has_fixed_costs:
        raise ProblemError(
            "the offline optimum is not computed where a node has several parents, or where routes "
            "meet and costs depend on states: use a line, multi-line, tree or forest"
        )
    rank = {START: -1, **{node: k for k, node in enumerate(problem.order)}}
    tree = [max(edges, key=lambda edge: rank[problem.ends[edge][0]]) for edges in problem.incoming]
    for number, (source, target) in enumerate(problem.ends):
        rows, above = problem.edges[tree[target]].probabilities, problem.ends[tree[target]][0]
        while rank[above] > rank[source]:
            rows = problem.edges[tree[above]].probabilities @ rows
            above = problem.ends[tree[above]][0]
        edge = problem.edges[number]
        # A table and the product of others agree up to rounding.
        if above != source or np.abs(rows - edge.probabilities).max() > 1e-9:
            raise ProblemError(
                "the offline optimum needs one joint law of all losses, and a problem whose routes "
                f"meet gives the law along each route: here {edge} does not follow from the "
                "other edges. Problem.skip_of gives a skip for which it does; or use a line, "
                "multi-line, tree or forest"
            )
    return tree


def impossibility(alpha: float) -> Optima:
    """Solve the two-node example of Thm. 3.4: without recall the ratio to the prophet is alpha.

    Asking is free. The first node loses 1/alpha^2 for certain; the second loses nothing with
    probability 1 - 1/alpha, and 1/alpha otherwise. Without recall both choices come to 1/alpha^2; a
    prophet gets 1/alpha^3. With recall both are asked, the better answer returned, and the
    prophet's loss is reached exactly: the paper remarks that the gap remains, but with costs that
    do not depend on the input it does not.

    Args:
        alpha: The ratio, above 1 and at most 1e100.

    Returns:
        Its three optima.

    >>> example = impossibility(10)
    >>> round(example.ratio_without_recall, 9), round(example.ratio, 9)
    (10.0, 1.0)
    """
    if not 1 < alpha <= 1e100:  # beyond it numbers leave floating point
        raise ArgumentError(
            f"alpha must be a number above 1 and at most 1e100, not {alpha!r}", param="alpha"
        )
    problem = Problem.line(
        losses=[[alpha**-2], [0.0, 1 / alpha]],
        costs=[0.0, 0.0],
        probabilities=[[1.0], [[1 - 1 / alpha, 1 / alpha]]],
        names=["first", "second"],
    )
    return optima(problem, 1.0)


def needle(branches: int) -> Optima:
    """Solve many alike, independent nodes, each of which is perfect with a small chance.

    This is what recall cannot change: against a prophet, who knows where to look, even the best
    policy with recall can be worse by any factor; so policies with recall are measured against the
    online optimum. Each node loses 0 with probability p = log(m) / m, else 1, and costs p to ask:
    searching is worth exactly its price, so the best policy comes to 1. The prophet asks one good
    node.

    >>> needle(1000).ratio > 100
    True
    """
    if branches < 2:
        raise ArgumentError(f"a haystack needs at least 2 nodes, not {branches!r}")
    chance = math.log(branches) / branches
    problem = Problem.forest(
        losses=[0.0, 2.0],  # losses and costs are doubled, as equal weights halve them
        costs=[2 * chance] * branches,
        probabilities=[[chance, 1 - chance]] * branches,
        parents=[None] * branches,
    )
    return optima(problem, 0.5)
