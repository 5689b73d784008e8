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

With few rows the thresholds of a network's exits vary more than they differ. They are then pooled:
each is drawn towards the mean over all exits, where X is comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitting.threads import on_threads
from ttamer.policy.base import Ladder
from ttamer.policy.expected_walk import START, STOP
from ttamer.policy.future import TIE
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.tradeoff import check_tradeoffs
from ttamer.solvers.blas import one_thread
from ttamer.stats.isotonic import rising_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from ttamer.problem.problem import Problem

__all__ = ["Pooling", "RowSolver", "smoother", "solve_rows", "width_of"]

MAX_CELLS = 1 << 25
"""Rows times steps times tradeoffs worked on at once: a quarter of a GiB."""
WIDTH = 0.22
"""The smoothing over states: this share of the rows, divided by the fifth root of their number."""
MIN_WEIGHT = 1e-9
"""The weight of a state without rows in an isotonic regression."""
FEW_ROWS = 250
"""With this many rows the smoothing is twice as wide as it would be by their fifth root alone."""


def width_of(rows: int) -> float:
    """Return how far to smooth over states, as a share of all rows: less with more of them."""
    return float(WIDTH * (1 + FEW_ROWS / rows) * rows**-0.2)


def smoother(counts: NDArray[np.intp], width: float) -> NDArray[np.float64]:
    """Return a matrix that averages over neighbouring states, weighted by their rows.

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
    costs: Sequence[NDArray[np.float64] | float] | None = None,
    pooling: Pooling | None = None,
) -> Ladder:
    """Return policies of a walk without recall, for several tradeoffs, found on rows.

    ``states`` holds the state of each row at each node of the problem, every state of a node being
    the state of some row, and ``lost`` the loss of stopping there; both have shape (T, nodes).
    ``costs`` holds the cost of each edge, one number or one per row; by default the problem's.
    With ``pooling`` the problem is a line, and its thresholds are pooled.
    """
    solver = RowSolver(problem, states, lost, width=width, costs=costs, pooling=pooling)
    return Ladder(tuple(solver.policies(check_tradeoffs(tradeoffs))))


@dataclass(frozen=True, eq=False)
class Pooling:
    """Thresholds on X of a line, each drawn towards their mean over the exits."""

    share: float
    """The share of the mean in each threshold, from 0 to 1."""
    bounds: Sequence[NDArray[np.float64]]
    """Per place, increasing: the least X, the edges between its states, and the largest X."""

    @classmethod
    def of(
        cls, share: float, least: NDArray[np.float64], edges: Sequence[NDArray[np.float64]]
    ) -> Pooling:
        """Return the pooling of a line, given X of each row at each place and its edges."""
        ends = zip(least.min(axis=0), edges, least.max(axis=0), strict=True)
        return cls(share, [np.concatenate([[low], own, [high]]) for low, own, high in ends])

    def __call__(
        self, choices: Sequence[NDArray[np.int32]], order: Sequence[int]
    ) -> list[NDArray[np.int32]]:
        """Return the choices of a line with pooled thresholds, by place.

        Choices have shape (states, tradeoffs); a threshold is the number of states that stop. Where
        every row stops at the first exit, that exit answers alone, and its threshold stays.
        """
        exits = order[:-1]
        stops = [(choices[place] == STOP).sum(axis=0) for place in exits]
        heights = np.stack([self.bounds[k][own] for k, own in zip(exits, stops, strict=True)])
        heights += self.share * (heights.mean(axis=0) - heights)
        pooled = list(choices)
        for place, after, height in zip(exits, order[1:], heights, strict=True):
            cut = np.abs(self.bounds[place][:, np.newaxis] - height).argmin(axis=0)
            states = np.arange(len(choices[place]))[:, np.newaxis]
            pooled[place] = np.where(states < cut, np.int32(STOP), np.int32(after))
        alone = stops[0] == len(choices[order[0]])
        pooled[order[0]] = np.where(alone, choices[order[0]], pooled[order[0]])
        return pooled


class RowSolver:
    """Finds policies on the rows of one walk, using all of its edges or some of them."""

    def __init__(
        self,
        problem: Problem,
        states: NDArray[np.intp],
        lost: NDArray[np.float64],
        *,
        width: float,
        costs: Sequence[NDArray[np.float64] | float] | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        self._problem, self._pooling = problem, pooling
        self._states, self._lost, self._width = states, lost, width
        each = [float(np.mean(edge.cost)) for edge in problem.edges] if costs is None else costs
        self._costs = [cost[:, np.newaxis] if isinstance(cost, np.ndarray) else cost
                       for cost in each]  # fmt: skip
        self._largest_loss = float(problem.grid.values[-2])  # the last is infinity
        self._largest_cost = max(float(edge.expected_costs.max()) for edge in problem.edges)
        self._smooth_means: dict[int, _SmoothMeans] = {}

    def values(
        self, weights: NDArray[np.float64], edges: Collection[int] | None = None
    ) -> NDArray[np.float64]:
        """Return the objective of the policy found for each tradeoff, on the rows."""
        parts = self._parts(weights, None if edges is None else len(edges))
        with one_thread():
            return np.concatenate([self._solve(part, edges)[0] for part in parts])

    def policies(
        self, weights: NDArray[np.float64], edges: Collection[int] | None = None
    ) -> list[WalkPolicy]:
        """Return the policy found for each tradeoff; at a place that no edge leads to, it stops."""

        def solved(part: NDArray[np.float64]) -> list[WalkPolicy]:
            value, phi, choices = self._solve(part, edges)
            if self._pooling is not None:
                pooled = self._pooling(choices, self._problem.order)
                value, phi, choices = self._solve(part, edges, pooled)
            for place, node in enumerate(self._problem.nodes):
                if not phi[place].size:
                    phi[place] = (
                        part * np.where(np.isinf(node.losses), 0.0, node.losses)[:, np.newaxis]
                    )
                    choices[place] = np.full(phi[place].shape, STOP, np.int32)
            return [
                WalkPolicy(
                    problem=self._problem,
                    tradeoff=float(part[i]),
                    recall=False,
                    value=float(value[i]),
                    choices=tuple(table[:, i : i + 1] for table in choices),
                    phi=tuple(table[:, i : i + 1] for table in phi),
                )
                for i in range(len(part))
            ]

        with one_thread():
            parts = on_threads(solved, self._parts(weights, None), rows=len(self._lost))
        return [policy for part in parts for policy in part]

    def _parts(self, weights: NDArray[np.float64], places: int | None) -> list[NDArray[np.float64]]:
        """Split the tradeoffs so that the arrays of one part hold at most ``MAX_CELLS``."""
        rows, every = self._lost.shape
        at_once = max(1, MAX_CELLS // (rows * (every if places is None else places)))
        return [weights[begin : begin + at_once] for begin in range(0, len(weights), at_once)]

    def _solve(
        self,
        weights: NDArray[np.float64],
        chosen_edges: Collection[int] | None,
        decided: Sequence[NDArray[np.int32]] | None = None,
    ) -> tuple[NDArray[np.float64], list[NDArray[np.float64]], list[NDArray[np.int32]]]:
        """Return values, and the tables by place. Arrays have shape (states or rows, tradeoffs).

        Where choices are ``decided``, by place, on a line, the tables are those of that policy.
        """
        problem = self._problem
        slack = self._tie_slack(weights)
        places = len(problem.nodes) + 1  # the start's tables come last
        phi: list[NDArray[np.float64]] = [np.empty(0)] * places
        choices: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * places
        comes_to: list[NDArray[np.float64]] = [np.empty(0)] * places
        outgoing: Sequence[Sequence[int]] = problem.outgoing
        order: Sequence[int] = problem.order
        if chosen_edges is not None:
            outgoing = [[edge for edge in own if edge in chosen_edges] for own in outgoing]
            reached = {problem.ends[edge][1] for edge in chosen_edges}
            order = [place for place in order if place in reached]

        def going(edge: int) -> NDArray[np.float64]:
            return comes_to[problem.ends[edge][1]] + (1 - weights) * self._costs[edge]

        for place in reversed(order):
            here, edges = self._states[:, place], outgoing[place]
            routes = bool(np.isinf(problem.nodes[place].losses).all())  # it cannot answer
            losses = problem.nodes[place].losses[:, np.newaxis]
            if routes:  # stopping is no choice: what comes is measured from nothing
                stopping, stop = (
                    np.zeros((len(here), len(weights))),
                    np.zeros((len(losses), len(weights))),
                )
                gain = np.full(stop.shape, -np.inf)
            else:
                stopping, stop = weights * self._lost[:, place, np.newaxis], weights * losses
                gain = np.zeros(stop.shape)
            towards = np.full(stop.shape, STOP, np.int32)
            if edges:
                means = self._means_at(place)
                for edge in edges:
                    own = means(stopping - going(edge))
                    if len(edges) == 1:
                        own = rising_columns(own, means.weights)
                    if decided is None:
                        better = own > gain + slack
                    else:  # where the rows show no gain but the threshold goes on, it is a tie
                        better, own = decided[place] != STOP, np.maximum(own, 2 * slack)
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
        for edge in outgoing[START]:
            own = going(edge).mean(axis=0)
            better = own < value - slack
            value = np.where(better, own, value)
            first = np.where(better, np.int32(problem.ends[edge][1]), first)
        phi[START], choices[START] = value[np.newaxis], first[np.newaxis]
        return value, phi, choices

    def _tie_slack(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each tradeoff, the largest gain that is rounding among values of any size."""
        return TIE * (weights * self._largest_loss + (1 - weights) * self._largest_cost)

    def _means_at(self, place: int) -> _SmoothMeans:
        """Return the means at a place, computed once."""
        if place not in self._smooth_means:
            self._smooth_means[place] = _SmoothMeans(
                self._states[:, place], self._width, len(self._problem.nodes[place].losses)
            )
        return self._smooth_means[place]


class _SmoothMeans:
    """Means over the rows of each state, smoothed over neighbouring states.

    A state without rows has the mean of its neighbours.
    """

    def __init__(self, states: NDArray[np.intp], width: float, count: int) -> None:
        rows = np.bincount(states, minlength=count)
        self._present = np.flatnonzero(rows)
        self._order = np.argsort(states, kind="stable")
        self._starts = (np.cumsum(rows) - rows)[self._present]
        self._rows = rows[self._present, np.newaxis]
        self._smoother = smoother(rows, width)[:, self._present]
        self.weights = np.maximum(rows, MIN_WEIGHT)
        """The weight of each state in an isotonic regression."""

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.add.reduceat(values[self._order], self._starts, axis=0)
        return np.asarray(self._smoother @ (sums / self._rows))
