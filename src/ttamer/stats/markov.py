"""Whether a chain of states is Markov, and what it costs to assume so.

The test: given the state of a node, the states before and after it are independent. For every node
between two others the statistic is the conditional mutual information of its neighbours, and its
law is that of rows whose earlier state is permuted among rows that agree on the node's own
(exact). The p-values are combined by Bonferroni.

The cost: on half of the rows two lines are fitted, one whose next state follows from the last state
and one whose next state follows from the last two; both are solved, and played on the other half;
then the halves change places. The paired difference of what they lose and pay is what the
assumption costs. Rows of the second line are drawn to those of the first by as many rows as there
are states, so that few rows cost little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError


@dataclass(frozen=True)
class MarkovTest:
    """Whether states form a Markov chain.

    >>> MarkovTest(p_value=0.3, information=(0.001,)).p_value
    0.3
    """

    p_value: float
    """The chance of dependence as strong as this, if the chain were Markov."""
    information: tuple[float, ...]
    """Per inner node, what the state before still says of the state after, in bits."""


def markov_test(
    states: NDArray[np.integer], *, permutations: int = 400, seed: int = 0
) -> MarkovTest:
    """Test whether the states of a line form a Markov chain.

    Args:
        states: Shape (rows, nodes), in the order of asking; -1 where a state is not known.
        permutations: How often rows are permuted.
        seed: Of the permutations.

    Returns:
        The p-value, and the information that is left per inner node.

    Raises:
        ArgumentError: If states are not a table of integers.

    >>> alike = np.repeat([[0], [1]], 50, axis=0) * np.ones((1, 3), int)
    >>> markov_test(alike).p_value
    1.0
    """
    _check(states)
    generator = np.random.default_rng(seed)
    p_values, information = [1.0], []
    for node in range(1, states.shape[1] - 1):
        rows = states[:, node - 1 : node + 2]
        rows = rows[(rows >= 0).all(axis=1)]
        order = np.argsort(rows[:, 1], kind="stable")
        before, state, after = rows[order].T
        observed = _information(before, state, after)
        information.append(observed)
        reached = 1
        for _ in range(permutations):
            # Sorting by (state, noise) permutes the rows of each state among themselves.
            shuffled = before[np.lexsort((generator.random(len(state)), state))]
            reached += _information(shuffled, state, after) >= observed - 1e-12
        p_values.append(reached / (permutations + 1))
    return MarkovTest(min(1.0, min(p_values) * max(len(information), 1)), tuple(information))


@dataclass(frozen=True)
class MarkovCost:
    """What it costs to assume that a chain is Markov.

    >>> MarkovCost(mean=0.002, standard_error=0.001).mean
    0.002
    """

    mean: float
    """What the policy of the Markov chain loses and pays more, weighed; negative: less."""
    standard_error: float


def markov_cost(
    states: NDArray[np.integer],
    losses: list[NDArray[np.float64]],
    costs: NDArray[np.float64],
    tradeoff: float,
    *,
    seed: int = 0,
) -> MarkovCost:
    """Measure what it costs to assume that the states of a line form a Markov chain.

    Args:
        states: Shape (rows, nodes), in the order of asking, all known.
        losses: Per node, the loss of each of its states.
        costs: Shape (nodes,): what asking each node costs.
        tradeoff: The weight of the loss, from 0 to 1.
        seed: Of the halves.

    Returns:
        The mean of the paired difference and its standard error.

    Raises:
        ArgumentError: If states are not a table of integers, or some are not known.

    >>> states = np.array([[0, 1], [1, 0]] * 20)
    >>> markov_cost(states, [np.array([0.0, 1.0])] * 2, np.array([0.1, 0.1]), 0.5).mean
    0.0
    """
    _check(states)
    if states.size and states.min() < 0:
        raise ArgumentError("markov_cost needs rows in which every state is known", param="states")
    half = np.random.default_rng(seed).permutation(len(states)) % 2 == 0
    weighed = [tradeoff * loss for loss in losses]
    prices = (1 - tradeoff) * np.asarray(costs)
    difference = np.empty(len(states))
    for fitted in (half, ~half):
        values = [
            _played(
                _tables(states[fitted], weighed, prices, memory), states[~fitted], weighed, prices
            )
            for memory in (False, True)
        ]
        difference[~fitted] = values[0] - values[1]
    error = float(difference.std(ddof=1) / np.sqrt(len(states)))
    return MarkovCost(float(difference.mean()), error)


def _check(states: NDArray[np.integer]) -> None:
    if np.ndim(states) != 2 or not np.issubdtype(np.asarray(states).dtype, np.integer):
        raise ArgumentError("states must be integers of shape (rows, nodes)", param="states")


def _information(
    before: NDArray[np.integer], state: NDArray[np.integer], after: NDArray[np.integer]
) -> float:
    """Return the information of two states about each other, given a third, in bits."""
    if not len(state):
        return 0.0
    sizes = tuple(int(part.max()) + 1 for part in (state, before, after))
    cells = np.ravel_multi_index((state, before, after), sizes)
    joint = np.bincount(cells, minlength=int(np.prod(sizes))).reshape(sizes) / len(state)
    alone = joint.sum(axis=(1, 2), keepdims=True)
    apart = joint.sum(axis=2, keepdims=True) * joint.sum(axis=1, keepdims=True)
    positive = joint > 0
    ratio = (joint * alone)[positive] / np.broadcast_to(apart, sizes)[positive]
    return float(joint[positive] @ np.log2(ratio))


def _tables(
    states: NDArray[np.integer],
    losses: list[NDArray[np.float64]],
    prices: NDArray[np.float64],
    memory: bool,
) -> list[NDArray[np.bool_]]:
    """Solve a line backward; return per node whether to go on, by (state before, state, best)."""
    grid = np.unique(np.concatenate(losses))
    sizes = [1, *(len(loss) for loss in losses)]
    nodes = len(losses)
    value = np.broadcast_to(grid, (sizes[-2], sizes[-1], len(grid)))
    going: list[NDArray[np.bool_]] = [np.zeros(value.shape, bool)]
    for node in range(nodes - 1, 0, -1):
        # Shape (states two before, states before, states).
        before = states[:, node - 2] if node > 1 else np.zeros(len(states), np.intp)
        counts = np.zeros((sizes[node - 1], sizes[node], sizes[node + 1]))
        np.add.at(counts, (before, states[:, node - 1], states[:, node]), 1.0)
        pooled = counts.sum(axis=0) + 1e-9
        rows = np.broadcast_to(pooled / pooled.sum(axis=1, keepdims=True), counts.shape)
        if memory:
            size = sizes[node + 1]
            rows = (counts + size * rows) / (counts.sum(axis=2, keepdims=True) + size)
        column = np.searchsorted(grid, losses[node])
        at = np.minimum(np.arange(len(grid)), column[:, np.newaxis])  # (states, best)
        arrived = np.take_along_axis(value, np.broadcast_to(at, value.shape), axis=2)
        onward = prices[node] + np.einsum("abc,bcx->abx", rows, arrived)
        going.append(onward < grid * (1 - 1e-13))
        value = np.minimum(grid, onward)
    return going[::-1]


def _played(
    going: list[NDArray[np.bool_]],
    states: NDArray[np.integer],
    losses: list[NDArray[np.float64]],
    prices: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return what a policy of a line loses and pays on each row, weighed."""
    grid = np.unique(np.concatenate(losses))
    before: NDArray[np.integer] = np.zeros(len(states), np.intp)
    best = losses[0][states[:, 0]]
    paid, active = np.full(len(states), prices[0]), np.ones(len(states), bool)
    for node in range(1, len(losses)):
        last = states[:, node - 1]
        active &= going[node - 1][before, last, np.searchsorted(grid, best)]
        paid = paid + np.where(active, prices[node], 0.0)
        best = np.where(active, np.minimum(best, losses[node][states[:, node]]), best)
        before = last
    return np.asarray(best + paid)
