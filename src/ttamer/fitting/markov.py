"""The paper's learner: states, counts, transitions, a problem, and its solution.

Confidences of each node are cut into states of equal shares of the rows; how states follow one
another is counted; a state loses one minus its mean confidence. The problem of these numbers is
solved for a range of tradeoffs. This is the paper as written: optimal if nodes are a Markov chain
and confidence is the chance to be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats
from ttamer.fitting.fitted import MarkovRecord
from ttamer.fitting.states import MAX_STATES, StateTables
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.solvers import solve_ladder
from ttamer.stats.markov import markov_cost, markov_test


def default_tradeoffs() -> Floats:
    """Return tradeoffs from 0 to 1: the full cost weighs a thousandth of a loss to ten losses."""
    weight = np.geomspace(1e-3, 1e1, 46)
    return np.concatenate([[0.0], np.sort(1 / (1 + weight)), [1.0]])


def edges_of(values: Floats, states: int) -> Floats:
    """Return increasing edges that cut confidences into at most this many states of equal shares.

    >>> edges_of(np.array([0.1, 0.2, 0.8, 0.9]), 2).tolist()
    [0.5]
    """
    if not 1 <= states <= MAX_STATES:
        raise ArgumentError(
            f"states must be from 1 to {MAX_STATES}, not {states!r}", param="states"
        )
    distinct, counts = np.unique(values, return_counts=True)
    ranks = np.arange(1, states) * len(values) / states
    cuts = np.unique(np.searchsorted(np.cumsum(counts), ranks) + 1)
    if len(distinct) <= states:
        cuts = np.arange(1, len(distinct))
    cuts = cuts[(cuts > 0) & (cuts < len(distinct))]
    edges = 0.5 * distinct[cuts - 1] + 0.5 * distinct[cuts]
    # Two neighbouring floats have no middle: the upper one is the edge then.
    return np.unique(np.where(edges > distinct[cuts - 1], edges, distinct[cuts]))


def transitions(
    source: NDArray[np.intp], target: NDArray[np.intp], shape: tuple[int, int]
) -> Floats:
    """Return the shares of target states by source state, with rows of the target's law added.

    >>> zeros = np.zeros(2, np.intp)
    >>> transitions(zeros, np.array([0, 1]), (1, 2)).tolist()
    [[0.5, 0.5]]
    """
    table = np.bincount(source * shape[1] + target, minlength=shape[0] * shape[1])
    table = table.reshape(shape).astype(float)
    law = table.sum(axis=0) / table.sum()
    filled = table + law  # one row of the target's own law for each source
    return np.asarray(filled / filled.sum(axis=1, keepdims=True))


def fit_states(
    names: Sequence[str],
    confidence: Floats,
    cost: Floats,
    full_cost: float,
    *,
    after: Sequence[int] | None = None,
    kind: str = "models",
    states: int | None = None,
    tradeoffs: Floats | None = None,
) -> StateTables:
    """Learn a problem from rows and solve it.

    Args:
        names: Of the nodes.
        confidence: Shape (T, n), from 0 to 1.
        cost: Shape (n,): the mean cost of each node.
        full_cost: The unit of cost of the problem.
        after: Shape (n,): the parent of each node, -1 for none. Where a node has one the cascade is
            a forest, whose branches are independent given their parents.
        kind: ``"models"``: in order of cost, any may be left out; ``"exits"``: one after another.
        states: How many states a node has; by default by the number of rows.
        tradeoffs: To solve for.

    Raises:
        ArgumentError: A confidence is missing or not from 0 to 1.
    """
    nodes = len(names)
    inside = ((confidence >= 0) & (confidence <= 1)).all(axis=0)
    if not inside.all():
        raise ArgumentError(
            'belief="markov" takes one minus the confidence for the loss, so every confidence must '
            f"be from 0 to 1, and one of {names[int(inside.argmin())]!r} is not: rescale them, or "
            'use belief="answers", which needs no scale',
            param="belief",
        )
    if states is None:
        # Eight rows on the mean for each pair of states.
        states = int(np.clip(np.sqrt(len(confidence) / 8), 2, 32))
    edges = tuple(edges_of(column, states) for column in confidence.T)
    numbers = np.stack(
        [np.searchsorted(e, c, side="right") for e, c in zip(edges, confidence.T, strict=True)], 1
    )
    sizes = [len(e) + 1 for e in edges]
    parents = [-1] * nodes if after is None else list(after)
    tree = any(parent >= 0 for parent in parents)
    order = list(range(nodes))
    if not tree and kind == "models":
        order = np.argsort(cost, kind="stable").tolist()
    if tree:
        pairs = [(parent, node) for node, parent in enumerate(parents)]
    elif kind == "exits":
        pairs = list(pairwise([-1, *order]))
    else:
        pairs = [(-1, v) for v in order]
        pairs += combinations(order, 2)
    losses = []
    for v in range(nodes):
        rows = np.bincount(numbers[:, v], minlength=sizes[v])
        total = np.bincount(numbers[:, v], confidence[:, v], minlength=sizes[v])
        losses.append(1 - total / np.maximum(rows, 1))

    def edge(u: int, v: int) -> Edge:
        before, size = np.zeros(len(numbers), np.intp), 1
        if u >= 0:
            before, size = numbers[:, u], sizes[u]
        share = transitions(before, numbers[:, v], (size, sizes[v]))
        source, price = None if u < 0 else names[u], float(cost[v]) / full_cost
        return Edge(source, names[v], cost=price, probabilities=share)

    problem = Problem(
        "precedence" if tree else "walk",
        tuple(Node(names[v], losses[v]) for v in order),
        tuple(starmap(edge, pairs)),
    )
    ladder = solve_ladder(problem, default_tradeoffs() if tradeoffs is None else tradeoffs)
    return StateTables(tuple(names), np.asarray(cost, float), edges, tuple(order), ladder)


def check_markov(tables: StateTables, confidence: Floats, seed: int) -> MarkovRecord | None:
    """Test whether states follow one another as assumed, and measure what it costs if not.

    Nodes of a tree have no one order: nothing is returned for them.
    """
    problem = tables.ladder.problem
    if problem.moves != "walk":
        return None
    # On so many rows the test takes a tenth of a second.
    rows = np.random.default_rng(seed).permutation(len(confidence))[:4000]
    states = tables.states(confidence[rows])
    policy = tables.ladder[len(tables) // 2]
    costs = np.array([problem.edges[into[0]].cost for into in problem.incoming])
    losses = [node.losses for node in problem.nodes]
    cost = markov_cost(states, losses, costs, policy.tradeoff, seed=seed)
    # One node that is not Markov can reach p = 0.025, however many are tested.
    test = markov_test(states, permutations=40 * max(states.shape[1] - 2, 2), seed=seed)
    return MarkovRecord(test.p_value, cost.mean, cost.standard_error, policy.tradeoff)
