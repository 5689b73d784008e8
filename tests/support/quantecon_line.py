"""The line with recall as a QuantEcon ``DiscreteDP``: an oracle, and a peer to be timed against.

QuantEcon solves stationary programs, so the position on the line is part of the state:

States
    (i, s, x): node i was asked last and seen in state s, and the best loss so far is the x-th of
    the distinct losses, so ``(i * states + s) * columns + x``; then the start, then the end,
    where one stays for good.
Actions
    0, stop: to the end, with reward minus the weighed best loss. 1, go: to node i + 1, with reward
    minus its weighed cost. The start can only go, the last node and the end can only stop.

State-action pairs are written in the order QuantEcon sorts them into, and the rows of the sparse
transition matrix directly as CSR arrays: it is then stored without being sorted or copied again.
Losses must be finite (QuantEcon has no infinite rewards to weigh with chance zero), and every
node must have the same number of states.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from quantecon.markov import DiscreteDP, backward_induction
from scipy.sparse import coo_matrix, csr_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

STOP, GO = 0, 1


def build(
    losses: ArrayLike, costs: Sequence[float], probabilities: Sequence[ArrayLike], tradeoff: float
) -> DiscreteDP:
    """Write a line as a discrete dynamic program.

    ``losses`` has shape (states,), one support for every node, or (nodes, states);
    ``probabilities`` are as for ``Problem.line``.
    """
    nodes = len(costs)
    supports = np.broadcast_to(np.asarray(losses, float), (nodes, np.shape(losses)[-1]))
    grid, positions = np.unique(supports, return_inverse=True)
    positions = positions.reshape(supports.shape).astype(np.int32)
    states, columns = supports.shape[1], len(grid)
    block = states * columns
    end = nodes * block + 1  # the start comes just before it

    # One pair of rows (stop, go) for each state of all nodes but the last.
    indices = np.empty((nodes - 1, states, columns, 1 + states), np.int32)
    chances = np.empty(indices.shape)
    indices[..., 0], chances[..., 0] = end, 1.0
    best = np.minimum(np.arange(columns, dtype=np.int32)[:, np.newaxis], positions[1:, np.newaxis])
    first = block * np.arange(1, nodes, dtype=np.int32)[:, np.newaxis]
    own = first + columns * np.arange(states, dtype=np.int32)
    indices[..., 1:] = (own[:, np.newaxis] + best)[:, np.newaxis]
    if nodes > 1:
        onward = np.array([np.asarray(rows, float) for rows in probabilities[1:]])
        chances[..., 1:] = onward[:, :, np.newaxis]
    # The last node's stops, the start's go, the end's stop.
    enter = columns * np.arange(states, dtype=np.int32) + positions[0]
    tail = np.full(block, end, np.int32)
    pairs = 2 * (nodes - 1) * block
    lengths = np.ones(pairs + block + 2, np.int32)
    lengths[1:pairs:2] = states
    lengths[-2] = states
    transitions = csr_matrix(
        (
            np.concatenate([chances.ravel(), np.ones(block), np.ravel(probabilities[0]), [1.0]]),
            np.concatenate([indices.ravel(), tail, enter, [end]], dtype=np.int32),
            np.concatenate([[0], np.cumsum(lengths)], dtype=np.int32),
        ),
        shape=(len(lengths), end + 1),
    )

    rewards = np.zeros(len(lengths))
    weighed = tradeoff * grid
    paid = (1 - tradeoff) * np.asarray(costs, float)
    body = rewards[:pairs].reshape(nodes - 1, states, columns, 2)
    body[..., STOP] = -weighed
    body[..., GO] = -paid[1:, np.newaxis, np.newaxis]
    rewards[pairs : pairs + block].reshape(states, columns)[:] = -weighed
    rewards[-2] = -paid[0]

    states_of = np.concatenate(
        [np.repeat(np.arange(pairs // 2), 2), np.arange(pairs // 2, end + 1)]
    )
    actions = np.zeros(len(lengths), int)
    actions[1:pairs:2] = actions[-2] = GO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without discounting only a finite horizon is allowed
        return DiscreteDP(rewards, transitions, 1.0, states_of, actions)


def build_by_state(
    losses: ArrayLike, costs: Sequence[float], probabilities: Sequence[ArrayLike], tradeoff: float
) -> DiscreteDP:
    """Write the same program as a reader would: state by state, pairs and rows appended to lists.

    One support for every node. This is how programs are written before someone tunes them.
    """
    grid = np.unique(np.asarray(losses, float))
    nodes, states, columns = len(costs), len(np.asarray(losses)), len(grid)
    position = np.searchsorted(grid, losses)
    start, end = nodes * states * columns, nodes * states * columns + 1
    rewards, states_of, actions, rows = [], [], [], []

    def add(state, action, reward, targets, chances):
        rows.append((np.full(len(targets), len(rewards)), targets, chances))
        states_of.append(state)
        actions.append(action)
        rewards.append(reward)

    def entering(node, best):
        own = np.arange(states)
        return (node * states + own) * columns + np.minimum(best, position)

    for node in range(nodes):
        for own in range(states):
            for best in range(columns):
                state = (node * states + own) * columns + best
                add(state, STOP, -tradeoff * grid[best], np.array([end]), np.array([1.0]))
                if node + 1 < nodes:
                    cost = (1 - tradeoff) * costs[node + 1]
                    law = np.asarray(probabilities[node + 1])[own]
                    add(state, GO, -cost, entering(node + 1, best), law)
    first = np.asarray(probabilities[0])
    add(start, GO, -(1 - tradeoff) * costs[0], entering(0, columns - 1), first)
    add(end, STOP, 0.0, np.array([end]), np.array([1.0]))
    row, column, chance = (np.concatenate(part) for part in zip(*rows, strict=True))
    transitions = coo_matrix((chance, (row, column)), shape=(len(rewards), end + 1)).tocsr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DiscreteDP(rewards, transitions, 1.0, states_of, actions)


def solve(program: DiscreteDP, nodes: int) -> float:
    """Return the least expected weighed loss and cost, by backward induction."""
    values, _ = backward_induction(program, nodes + 1)
    return -float(values[0, -2])


def quantecon_value(
    losses: ArrayLike, costs: Sequence[float], probabilities: Sequence[ArrayLike], tradeoff: float
) -> float:
    """Build the program of a line and solve it."""
    return solve(build(losses, costs, probabilities, tradeoff), len(costs))
