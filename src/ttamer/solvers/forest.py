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

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.index import IndexPolicy
from ttamer.policy.surrogate import Surrogate, from_leaves, minimum_of, subtree_law, sweep
from ttamer.problem.checks import weigh_losses
from ttamer.problem.problem import START, Edge, Node, Problem
from ttamer.solvers.walk import NO_SURE_ANSWER


def solve_forest(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[IndexPolicy]:
    """Solve a forest for several tradeoffs, one sweep each."""
    policies = []
    for tradeoff in tradeoffs.tolist():
        sigma, forest = sweep(problem, tradeoff)
        if not np.isfinite(value := forest.mean):
            raise ProblemError(NO_SURE_ANSWER)
        policies.append(IndexPolicy(problem=problem, tradeoff=tradeoff, value=value, sigma=sigma))
    return policies


Floats = NDArray[np.float64]

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


def with_leaves(problem: Problem) -> Problem:
    """Return a walk in which answers that may be returned unseen are leaves of their own.

    >>> edge = Edge(None, "a", cost=0.1, verify_cost=0.2, probabilities=[0.5, 0.5])
    >>> with_leaves(Problem("walk", (Node("a", [0.0, 1.0]),), (edge,))).names
    ('a', 'a (unseen)')
    """
    nodes, edges = list(problem.nodes), []
    for number, edge in enumerate(problem.edges):
        looked = edge.cost + (edge.verify_cost or 0.0)
        edges.append(replace(edge, cost=looked, verify_cost=None))
        means = mean_losses(problem, number)
        # Where the mean is infinite after some states of the source, it is never returned there.
        if edge.verify_cost is None or not np.isfinite(means).any():
            continue
        several = len(problem.incoming[problem.ends[number][1]]) > 1
        after = f" after {edge.source or 'the start'}" if several else ""
        name = f"{edge.target} (unseen{after})"
        while name in {node.name for node in nodes}:
            name += "'"
        nodes.append(Node(name, means))
        rows = np.eye(len(means))
        edges.append(Edge(edge.source, name, cost=edge.expected_costs, probabilities=rows))
    return Problem("walk", tuple(nodes), tuple(edges))


def mean_losses(problem: Problem, number: int) -> Floats:
    """Return what the target of an edge loses on average, shape (states of the source,)."""
    losses = problem.nodes[problem.ends[number][1]].losses
    rows = problem.edges[number].probabilities
    finite = rows @ np.where(np.isinf(losses), 0.0, losses)
    return np.where((rows > 0) @ np.isinf(losses), np.inf, finite)


def committed(problem: Problem, unseen: Sequence[NDArray[np.bool_]]) -> Problem:
    """Return a forest in which some nodes are returned unseen after some states of their parents.

    ``unseen`` has, per node, one truth value per state of its parent (one for a root). A node's
    states are its own; then one for each state of its parent, in which it was not looked at and
    loses its mean; then one in which it cannot be asked, since its parent was not looked at.
    """
    nodes, edges = [], []
    for node, (name, chosen) in enumerate(zip(problem.names, unseen, strict=True)):
        edge, losses = problem.parent_edge(node), problem.nodes[node].losses
        size, sources = len(losses), len(chosen)
        means = mean_losses(problem, problem.incoming[node][0])
        nodes.append(Node(name, np.concatenate([losses, means, [np.inf]])))
        rows = np.zeros((sources, size + sources + 1))
        rows[~chosen, :size] = edge.probabilities[~chosen]
        rows[chosen, size + np.flatnonzero(chosen)] = 1.0
        look = edge.verify_cost or 0.0
        cost = edge.expected_costs + np.where(chosen, 0.0, look)
        if np.ndim(edge.cost) == edge.probabilities.ndim:
            # What is observed with the state costs what it costs; unseen, what it does on average.
            cost = np.tile(cost[:, np.newaxis], rows.shape[1])
            cost[~chosen, :size] = edge.cost_table[~chosen] + look
        if edge.source is not None:
            # The states of the parent in which it was not looked at, or could not be asked.
            extra = len(unseen[problem.parents[node]]) + 1
            rows = np.pad(rows, ((0, extra), (0, 0)))
            rows[sources:, -1] = 1.0
            cost = np.pad(cost, [(0, extra), (0, 0)][: cost.ndim])
        edges.append(Edge(edge.source, edge.target, cost=cost, probabilities=rows))
    return Problem("precedence", tuple(nodes), tuple(edges))


def lower_bound(problem: Problem, tradeoff: float) -> float:
    """Return what no policy of a forest with answers that may be returned unseen is below.

    Alone, with r in hand, a subtree is worth at least ``h(r) = min(r, m, E[min(r, kappa)])``: m its
    root's mean loss and cost unseen, kappa its surrogate if it is looked at. That is the law
    ``min(kappa, z)`` with ``E[min(z, kappa)] = m``; and several independent searches are worth at
    least what the laws of each alone come to (Whittle's integral; Brown and Smith, 2013).
    """

    def law_of(node: int, below: list[Surrogate]) -> Surrogate:
        edge = problem.parent_edge(node)
        law = subtree_law(problem, tradeoff, node, below)
        cost = (1 - tradeoff) * edge.expected_costs
        law = law.raised(law.index(cost + (1 - tradeoff) * (edge.verify_cost or 0.0)))
        if edge.verify_cost is None:
            return law
        unseen = weigh_losses(mean_losses(problem, problem.incoming[node][0]), tradeoff) + cost
        return law.minimum_with(Surrogate.of_losses(law.reaching(unseen)))

    return from_leaves(problem.order, problem.parents, law_of, START).mean


def solve_unseen_forest(problem: Problem, tradeoff: float) -> IndexPolicy:
    """Solve a forest with answers that may be returned unseen, by the best commitment tried."""

    def solved() -> IndexPolicy:
        return solve_forest(committed(problem, unseen), np.array([tradeoff]))[0]

    unseen = [
        np.zeros(len(problem.parent_edge(v).probabilities), bool) for v in range(len(problem.nodes))
    ]
    looked = solved()
    for node, share in _hedged(problem, looked.problem, tradeoff).items():
        unseen[node][0] = share == 0.0
    best = solved()
    if looked.value < best.value:
        best = looked
        for chosen in unseen:
            chosen[:] = False
    cells = [
        (node, state)
        for node in reversed(problem.order)
        for state in np.flatnonzero(_may_be_unseen(problem, node))
    ]
    # Single commitments are turned round and, where that does not pay, back.
    tried, changed = 0, True
    while changed and tried + len(cells) <= MAX_TRIED:
        changed = False
        for node, state in cells:
            unseen[node][state] ^= True
            tried += 1
            candidate = solved()
            if candidate.value < best.value * (1 - IMPROVES):
                best, changed = candidate, True
            else:
                unseen[node][state] ^= True
    # Rounding apart, the bound of a commitment that is best is its value.
    return replace(best, bound=min(lower_bound(problem, tradeoff), best.value))


def _may_be_unseen(problem: Problem, node: int) -> NDArray[np.bool_]:
    """Return, per state of the parent, whether a node may be returned unseen."""
    means = mean_losses(problem, problem.incoming[node][0])
    return np.isfinite(means) & (problem.parent_edge(node).verify_cost is not None)


def _hedged(problem: Problem, looked: Problem, tradeoff: float) -> dict[int, float]:
    """Return, for roots without children, whether local hedging looks at them: 1.0 or 0.0."""
    laws = {}
    for node in problem.targets(START):
        if problem.outgoing[node] or not _may_be_unseen(problem, node).any():
            continue
        look, edge = subtree_law(looked, tradeoff, node, []), problem.parent_edge(node)
        look = look.raised(look.index((1 - tradeoff) * looked.parent_edge(node).expected_costs))
        unseen = weigh_losses(mean_losses(problem, problem.incoming[node][0]), tradeoff)
        # Not looking is a law too: its one value is the mean loss and cost.
        laws[node] = look, Surrogate.of_losses(unseen + (1 - tradeoff) * edge.expected_costs)
    shares = {node: hedge(*law) for node, law in laws.items()}
    for node in laws:
        values = {}
        for share in (1.0, 0.0):
            shares[node] = share
            values[share] = minimum_of([mixture(*laws[v], shares[v]) for v in laws]).mean
        shares[node] = 1.0 if values[1.0] <= values[0.0] else 0.0
    return shares


def hedge(look: Surrogate, closed: Surrogate) -> float:
    """Return the probability of looking whose ratio to the best of both is least.

    ``look`` and ``closed`` are the laws of looking and of not looking.
    """
    points = np.union1d(look.points, closed.points)
    grid = np.unique(np.append(points, np.linspace(0, 2, 101) * points[-1]))
    grid = grid[grid > 0]
    if not grid.size:
        return 1.0
    shares = SHARES[:, np.newaxis]
    hedged = shares * look.expected_minimum(grid) + (1 - shares) * closed.expected_minimum(grid)

    def within(ratio: float) -> NDArray[np.bool_]:
        best = np.minimum(*(law.expected_minimum(grid / ratio) for law in (look, closed)))
        return np.asarray((hedged <= ratio * best * (1 + IMPROVES)).all(axis=1))

    low, high = 1.0, WORST_RATIO
    if within(low).any():
        return float(SHARES[within(low).argmax()])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if within(middle).any() else (middle, high)
    return float(SHARES[within(high).argmax()])


def mixture(look: Surrogate, closed: Surrogate, share: float) -> Surrogate:
    """Return the law of looking with a probability, and of not looking otherwise."""
    points = np.union1d(look.points, closed.points)
    tables = zip(look.at(points), closed.at(points), strict=True)
    below, above = (share * first + (1 - share) * second for first, second in tables)
    sure = (look.sure | (share == 0)) & (closed.sure | (share == 1))
    return Surrogate(points, below, above, sure)
