"""Policies found on rows: the value of going on is averaged over the rows that reach a state.

A chain of counted transitions forgets what a row was before, and its noise adds up from step to
step. Here every row of the trace is followed instead. Backward over the steps, each row carries
what the policy found so far makes of it: what it loses where it stops, and what it pays until
then. At a step, the gain of going on along a way is, weighed by the tradeoff, the mean over the
rows of a state of

    ``lost by stopping here - (cost of the way + what then comes of the row)``,

smoothed over neighbouring states; where only one way leads on, made rising in the state, so that
the policy is a threshold: the one that is best on the smoothed rows. It goes on along the way of
most gain, where that is positive; a node that cannot answer always goes on.

The paper's factor T, with rows in place of a fitted chain: no Markov property is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.policy.base import Ladder
from ttamer.policy.expected_walk import START, STOP
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.tradeoff import check_tradeoffs
from ttamer.solvers.blas import one_thread
from ttamer.solvers.walk import tie_slack
from ttamer.stats.isotonic import rising

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ttamer.problem.problem import Problem

__all__ = ["smoother", "solve_rows", "width_of"]

MOST_CELLS = 1 << 25
"""Rows times steps times tradeoffs worked on at once: a quarter of a GiB."""
WIDTH = 0.22
FEW_ROWS = 250


def width_of(rows: int) -> float:
    """Return how far to smooth over states, as a share of all rows: less with more of them."""
    return float(WIDTH * (1 + FEW_ROWS / rows) * rows**-0.2)


def smoother(counts: NDArray[np.intp], width: float) -> NDArray[np.float64]:
    """Return a matrix that averages over neighbouring states, each with so many rows.

    >>> smoother(np.array([1, 1]), 0.0).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not width:
        return np.eye(len(counts))
    middle = (np.cumsum(counts) - counts / 2) / counts.sum()
    near = counts * np.exp(-0.5 * ((middle - middle[:, np.newaxis]) / width) ** 2)
    return np.asarray(near / near.sum(axis=1, keepdims=True))


def solve_rows(
    problem: Problem,
    states: NDArray[np.intp],
    lost: NDArray[np.float64],
    tradeoffs: Iterable[float],
    *,
    width: float,
) -> Ladder:
    """Return policies of a walk without recall, for several tradeoffs, found on rows.

    ``states`` says in which state each row finds each node of the problem, every state of a node
    being some row's, and ``lost`` what the row loses by stopping there; both of shape (T, nodes).
    """
    weights = check_tradeoffs(tradeoffs)
    at_once = max(1, MOST_CELLS // lost.size)
    policies: list[WalkPolicy] = []
    with one_thread():
        for begin in range(0, len(weights), at_once):
            part = weights[begin : begin + at_once]
            policies += _solve(problem, states, lost, part, width)
    return Ladder(tuple(policies))


def _solve(
    problem: Problem,
    states: NDArray[np.intp],
    lost: NDArray[np.float64],
    weights: NDArray[np.float64],
    width: float,
) -> list[WalkPolicy]:
    """Arrays below have shape (states or rows, tradeoffs)."""
    slack = tie_slack(problem, weights)
    places = len(problem.nodes) + 1  # the start's tables come last
    phi: list[NDArray[np.float64]] = [np.empty(0)] * places
    choices: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * places
    comes_to: list[NDArray[np.float64]] = [np.empty(0)] * places

    def going(edge: int) -> NDArray[np.float64]:
        return comes_to[problem.ends[edge][1]] + (1 - weights) * problem.edges[edge].cost

    for place in reversed(problem.order):
        here, edges = states[:, place], problem.outgoing[place]
        routes = bool(np.isinf(problem.nodes[place].losses).all())  # it cannot answer
        losses = problem.nodes[place].losses[:, np.newaxis]
        if routes:  # stopping is no choice: what comes is measured from nothing
            stopping, stop = (
                np.zeros((len(here), len(weights))),
                np.zeros((len(losses), len(weights))),
            )
            gain = np.full(stop.shape, -np.inf)
        else:
            stopping, stop = weights * lost[:, place, np.newaxis], weights * losses
            gain = np.zeros(stop.shape)
        towards = np.full(stop.shape, STOP, np.int32)
        if edges:
            mean = _Means(here)
            spread = smoother(mean.counts, width)
            for edge in edges:
                own = spread @ mean(stopping - going(edge))
                if len(edges) == 1:
                    counts = mean.counts.astype(float)
                    own = np.stack([rising(column, counts) for column in own.T], axis=1)
                better = own > gain + slack
                gain = np.where(better, own, gain)
                towards = np.where(better, np.int32(problem.ends[edge][1]), towards)
            if not routes:
                towards[stop <= slack] = STOP  # nothing is left to gain
        goes_on = towards != STOP
        phi[place] = np.where(goes_on, np.maximum(stop - gain, 0.0), stop)
        choices[place] = towards
        chosen = towards[here]
        for edge in edges:
            np.copyto(stopping, going(edge), where=chosen == problem.ends[edge][1])
        comes_to[place] = stopping
    value = np.full(len(weights), np.inf)
    first = np.full(len(weights), STOP, np.int32)
    for edge in problem.outgoing[START]:
        own = going(edge).mean(axis=0)
        better = own < value - slack
        value = np.where(better, own, value)
        first = np.where(better, np.int32(problem.ends[edge][1]), first)
    phi[START], choices[START] = value[np.newaxis], first[np.newaxis]
    return [
        WalkPolicy(
            problem=problem,
            tradeoff=float(weights[i]),
            recall=False,
            value=float(value[i]),
            choices=tuple(table[:, i : i + 1] for table in choices),
            phi=tuple(table[:, i : i + 1] for table in phi),
        )
        for i in range(len(weights))
    ]


class _Means:
    """Means over the rows of each state."""

    def __init__(self, states: NDArray[np.intp]) -> None:
        self.counts = np.bincount(states)
        self._order = np.argsort(states, kind="stable")
        self._starts = np.cumsum(self.counts) - self.counts

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.add.reduceat(values[self._order], self._starts, axis=0)
        return np.asarray(sums / self.counts[:, np.newaxis])
