"""What a policy can be measured against.

- *offline*: a prophet who sees every loss before choosing where to stop;
  it still pays for the way there: ``E[min over nodes of loss + cost of its path]``. It needs one
  joint law of all losses. A forest gives one, and so do nodes with several parents. A walk whose
  routes meet (a skip, a directed acyclic graph) gives the law along each route alone; a joint law
  follows where all routes agree with one tree: every node follows the latest of its sources, and
  the table of every other edge is the product of the tables on the tree's way between its ends.
- *online*: the best any policy can do that learns a loss only by asking; with recall. Where
  answers of a forest may be returned unseen, that of the policy found, with a bound on it.
- *no recall*: the same when only the last node's answer can be returned.

Always offline <= online <= no recall. All are weighed by the tradeoff.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.expected import START
from ttamer.policy.future import Surrogate, least_of
from ttamer.problem.checks import check_tradeoff, weigh_losses
from ttamer.problem.problem import Problem, require_problem
from ttamer.solvers import solve

# The most joint states of all nodes that the offline optimum enumerates. A forest is not
# enumerated, nor is a walk with fixed costs.
MAX_JOINT_STATES = 200_000
# The largest difference between a table and the product of others that counts as rounding.
AGREES = 1e-9


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

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If no policy is sure of an answer.

    >>> from ttamer import Problem
    >>> optima(Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2]), 0.5)
    Optima(offline=0.1875, online=0.2, no_recall=0.2, online_bound=None)
    """
    require_problem(problem, "optima")
    ordered = problem.is_line or problem.moves == "walk"
    try:
        offline = offline_optimum(problem, tradeoff)
    except ProblemError:
        offline = None
    policy = solve(problem, tradeoff)
    return Optima(
        offline=offline,
        online=policy.value,
        no_recall=no_recall_optimum(problem, tradeoff) if ordered else None,
        online_bound=policy.bound,
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
        ProblemError: If the problem gives no joint law of all losses, or the law has more than
            200,000 joint states and has to be enumerated (several parents, or a walk whose routes
            meet and whose costs depend on states).

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> offline_optimum(line, 0.5)
    0.1875
    """
    require_problem(problem, "offline_optimum")
    tradeoff = check_tradeoff(tradeoff)
    if problem.is_forest:
        return _prophet_of_forest(problem, tradeoff)
    if problem.has_joint_edges:
        return _prophet_by_enumeration(problem, tradeoff, [into[0] for into in problem.incoming])
    tree = _tree_of(problem)
    if problem.has_fixed_costs:
        return _prophet_of_walk(problem, tradeoff, tree)
    return _prophet_by_enumeration(problem, tradeoff, tree)


def _prophet_of_forest(problem: Problem, tradeoff: float) -> float:
    """From the leaves up, the law of the least of loss and path cost in each subtree."""
    below: list[list[Surrogate]] = [[] for _ in range(len(problem.nodes) + 1)]
    for node in reversed(problem.order):
        law = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
        after = least_of(below[node])
        if after is not None:
            law = law.minimum_with(after)
        edge = problem.parent_edge(node)
        law = law.mixed_later(edge.probabilities, (1 - tradeoff) * edge.cost_table)
        below[problem.ends[problem.incoming[node][0]][0]].append(law)
    return _mean(below)


def _prophet_of_walk(problem: Problem, tradeoff: float, tree: Sequence[int]) -> float:
    """The same for a walk with fixed costs: a node is reached along the cheapest route."""
    reach = _reach(problem, [(1 - tradeoff) * edge.expected_costs[0] for edge in problem.edges])
    below: list[list[Surrogate]] = [[] for _ in range(len(problem.nodes) + 1)]
    for node in reversed(problem.order):
        losses = weigh_losses(problem.nodes[node].losses, tradeoff) + reach[node]
        law, after = Surrogate.of_losses(losses), least_of(below[node])
        if after is not None:
            law = law.minimum_with(after)
        edge = tree[node]
        below[problem.ends[edge][0]].append(law.mixed(problem.edges[edge].probabilities))
    return _mean(below)


def _prophet_by_enumeration(problem: Problem, tradeoff: float, entering: Sequence[int]) -> float:
    """Go over all joint states; ``entering`` has the edge that gives the law of each node."""
    sizes = [len(node.losses) for node in problem.nodes]
    total = math.prod(sizes)
    if total > MAX_JOINT_STATES:
        raise ProblemError(
            f"the offline optimum goes over all joint states of this problem, {total}, "
            f"and at most {MAX_JOINT_STATES} are enumerated: give fewer nodes or states"
        )
    # By division: an array with one axis per node has at most 64 nodes.
    repeats = total // np.cumprod(sizes)
    states = np.arange(total) // repeats[:, np.newaxis] % np.array(sizes)[:, np.newaxis]
    start = np.zeros(total, np.intp)

    def at(table: NDArray[np.float64], number: int) -> NDArray[np.float64]:
        given = [start if source < 0 else states[source] for source in problem.sources[number]]
        return np.asarray(table[(*given, states[problem.ends[number][1]])])

    chance = np.ones(total)
    for edge in entering:
        chance *= at(problem.edges[edge].probabilities, edge)
    costs = [(1 - tradeoff) * at(edge.cost_table, k) for k, edge in enumerate(problem.edges)]
    if problem.moves == "walk":
        reach = _reach(problem, costs)
    else:
        reach = [np.zeros(total)] * len(sizes)
        for node, required in enumerate(_required(problem)):
            reach[node] = sum((costs[entering[each]] for each in required), reach[node])
    least = np.full(total, np.inf)
    for node, own in enumerate(problem.nodes):
        np.minimum(least, weigh_losses(own.losses, tradeoff)[states[node]] + reach[node], out=least)
    return float(chance[chance > 0] @ least[chance > 0])


def _reach(problem: Problem, costs: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """The cost of the cheapest route of a walk to each node, given the cost of each edge."""
    reach: list[NDArray[np.float64]] = [np.zeros(())] * (len(problem.nodes) + 1)
    for node in problem.order:
        ways = [reach[problem.ends[edge][0]] + costs[edge] for edge in problem.incoming[node]]
        reach[node] = np.min(ways, axis=0)
    return reach


def _required(problem: Problem) -> list[set[int]]:
    """For each node, all that are asked if only it is wanted, itself included."""
    required: list[set[int]] = [set() for _ in problem.nodes]
    for node in problem.order:
        sources = [s for s in problem.sources[problem.incoming[node][0]] if s >= 0]
        required[node] = {node}.union(*(required[source] for source in sources))
    return required


def _tree_of(problem: Problem) -> list[int]:
    """The edge into each node from the latest of its sources, if all other edges agree with it."""
    place = {START: -1, **{node: k for k, node in enumerate(problem.order)}}
    tree = [max(edges, key=lambda edge: place[problem.ends[edge][0]]) for edges in problem.incoming]
    for number, (source, target) in enumerate(problem.ends):
        rows = problem.edges[tree[target]].probabilities
        above = problem.ends[tree[target]][0]
        while place[above] > place[source]:
            rows = problem.edges[tree[above]].probabilities @ rows
            above = problem.ends[tree[above]][0]
        edge = problem.edges[number]
        if above != source or np.abs(rows - edge.probabilities).max() > AGREES:
            raise ProblemError(
                "the offline optimum needs one joint law of all losses, and a problem whose routes "
                f"meet gives the law along each route: here {edge} does not follow from the "
                "other edges. Problem.skip_of gives a skip for which it does; or use a line, "
                "multi-line, tree or forest"
            )
    return tree


def _mean(below: list[list[Surrogate]]) -> float:
    """The mean of what lies below the start."""
    whole = least_of(below[START])
    assert whole is not None  # noqa: S101 - some edge leaves the start
    return float(whole.expected_minimum(np.array([np.inf]))[0, 0])
