"""The surrogate loss: a whole subtree as one random number.

Asking what lies in a subtree by its indices, with a fallback x in hand, is worth
``E[min(x, kappa)]`` for one random number kappa, whatever x is. From the leaves up, for every
state s of the parent::

    W_v        = min(l_v(Y), kappa_u(Y) for children u),  Y ~ P_v(s, .)
    kappa_v(s) = max(sigma_v(s), W_v)

The solver finds the dynamic index sigma_v(s) from the law of W_v (solvers/forest.py). Here are the
laws, and what given indices lead to.

Children are independent given Y, so the law of W is a product; expectations of ``(x - W)^+`` are
integrals of a step function. The laws carry their own breakpoints: sigma lies off the loss grid,
and rounding it there would tie branches that should not tie.

Everything here is in weighed units: losses times the tradeoff, costs times one minus it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import weigh_losses

# The share of a mean that the upper tail of a law may add and still be dropped: below rounding.
NEGLIGIBLE = 1e-18
# Laws of at most this many breakpoints keep those of chance 0.
MANY_POINTS = 256


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The law of a random number for each of several states."""

    points: NDArray[np.float64]
    """Shape (points,): the finite values it can take, increasing."""
    below: NDArray[np.float64]
    """Shape (states, points): the chance that it is at most each point."""
    above: NDArray[np.float64]
    """One minus ``below``, carried along so that small chances of either kind stay exact."""
    sure: NDArray[np.bool_]
    """Shape (states,): whether it is finite for certain."""

    @classmethod
    def of_losses(cls, losses: NDArray[np.float64]) -> Surrogate:
        """Return the law of a node's own loss, known given its state."""
        points = np.unique(losses[np.isfinite(losses)])
        below = losses[:, np.newaxis] <= points
        return cls(points, below.astype(float), (~below).astype(float), np.isfinite(losses))

    def at(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the chances of being at most, and above, each of some other points."""
        nothing = np.zeros((len(self.below), 1))
        columns = np.searchsorted(self.points, points, side="right")
        below = np.concatenate([nothing, self.below], axis=1)
        above = np.concatenate([nothing + 1, self.above], axis=1)
        return below[:, columns], above[:, columns]

    def minimum_with(self, other: Surrogate) -> Surrogate:
        """Return the law of the smaller of the two, independent given the state."""
        points = np.union1d(self.points, other.points)
        below, above = self.at(points)
        other_below, other_above = other.at(points)
        return Surrogate(
            points, below + above * other_below, above * other_above, self.sure | other.sure
        )

    def mixed(self, rows: NDArray[np.float64]) -> Surrogate:
        """Return the law given the parent's state, by rows of shape (parent states, states)."""
        sure = ~((rows > 0) @ ~self.sure)
        return Surrogate(self.points, rows @ self.below, rows @ self.above, sure)

    def mixed_later(self, rows: NDArray[np.float64], delays: NDArray[np.float64]) -> Surrogate:
        """Return :meth:`mixed` of the number plus a delay.

        ``rows`` and ``delays`` have shape (parent states, states).
        """
        if np.ptp(delays) == 0:
            law = self.mixed(rows)
            return Surrogate(law.points + delays.flat[0], law.below, law.above, law.sure)
        points = np.unique(np.add.outer(np.unique(delays), self.points))
        below, above = np.zeros((2, len(rows), len(points)))
        for parent, state in np.argwhere(rows > 0).tolist():
            here = [state]
            one = Surrogate(
                self.points + delays[parent, state],
                self.below[here],
                self.above[here],
                self.sure[here],
            )
            lower, upper = one.at(points)
            below[parent] += rows[parent, state] * lower[0]
            above[parent] += rows[parent, state] * upper[0]
        return Surrogate(points, below, above, ~((rows > 0) @ ~self.sure))

    def trimmed(self) -> Surrogate:
        """Return the law without breakpoints that change no mean beyond rounding.

        On a long line the chance that nothing good is found falls geometrically, and so does that
        of ending at an index far below. Points of chance 0 in floating point are dropped, and so is
        a negligible upper tail: the number of breakpoints kept does not grow with the nodes.
        """
        return self._without_empty()._without_tail()

    def _without_empty(self) -> Surrogate:
        """Return the law without points at which no chance changes, where it has many points."""
        if len(self.points) <= MANY_POINTS:
            return self
        changes = (np.diff(self.below) != 0).any(axis=0) | (np.diff(self.above) != 0).any(axis=0)
        kept = np.concatenate([[True], changes])
        return Surrogate(self.points[kept], self.below[:, kept], self.above[:, kept], self.sure)

    def _without_tail(self) -> Surrogate:
        """Return the law without an upper tail that changes no mean beyond rounding."""
        if len(self.points) < 2 or not self.sure.all():
            return self
        pieces = self.above[:, :-1] * np.diff(self.points)
        tails = np.cumsum(pieces[:, ::-1], axis=1)[:, ::-1]  # of the mean, from each point up
        means = self.points[0] + np.cumsum(pieces, axis=1)
        means[:, 1:] = means[:, :-1]
        means[:, 0] = self.points[0]  # E[min(p, W)] at each point p
        last = int((tails > NEGLIGIBLE * means).any(axis=0).sum())
        if last == len(self.points) - 1:
            return self
        below, above = self.below[:, : last + 1].copy(), self.above[:, : last + 1].copy()
        below[:, -1], above[:, -1] = 1.0, 0.0
        return Surrogate(self.points[: last + 1], below, above, self.sure)

    def index(self, cost: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest sigma with ``E[(sigma - W)^+] <= cost``, for each state.

        ``cost`` is one number, or one per state.
        """
        states = np.arange(len(self.below))
        if not len(self.points):
            return np.full(len(states), np.inf)
        gained = self._gains()
        cost = np.broadcast_to(cost, len(states))
        last = (gained <= cost[:, np.newaxis]).sum(axis=1) - 1  # the last breakpoint not past sigma
        slope = self.below[states, last]
        spare = cost - gained[states, last]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(slope > 0, self.points[last] + spare / slope, np.inf)

    def raised(self, sigma: NDArray[np.float64]) -> Surrogate:
        """Return the law of ``max(sigma, W)``."""
        points = np.union1d(self.points, sigma[np.isfinite(sigma)])
        points = points[points >= sigma.min()]  # nothing is left below the least index
        below, above = self.at(points)
        reached = points >= sigma[:, np.newaxis]
        return Surrogate(
            points, np.where(reached, below, 0.0), np.where(reached, above, 1.0), self.sure
        )

    def expected_minimum(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``E[min(x, W)]``, of shape (states, fallbacks)."""
        if not len(self.points):
            return np.tile(fallback, (len(self.below), 1))
        x = np.where(np.isfinite(fallback), fallback, self.points[-1])
        # The integral of ``above`` from the first breakpoint on, plus what lies before it.
        means = np.zeros_like(self.above)
        np.cumsum(self.above[:, :-1] * np.diff(self.points), axis=1, out=means[:, 1:])
        last = np.maximum(np.searchsorted(self.points, x, side="right") - 1, 0)
        beyond = np.maximum(x - self.points[last], 0.0)
        mean = np.minimum(x, self.points[0]) + means[:, last] + self.above[:, last] * beyond
        return np.where(np.isfinite(fallback) | self.sure[:, np.newaxis], mean, np.inf)

    def _gains(self) -> NDArray[np.float64]:
        """``E[(p - W)^+]`` at each breakpoint p: the running integral of ``below``."""
        gained = np.zeros_like(self.below)
        np.cumsum(self.below[:, :-1] * np.diff(self.points), axis=1, out=gained[:, 1:])
        return gained


def surrogate_below(
    problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]], place: int
) -> Surrogate | None:
    """Return the law of all that lies below a place (-1: the start), given its state.

    ``sigma`` holds the index of each node, for each state of its parent. ``None`` for a leaf.
    """
    inside = [False] * (len(problem.nodes) + 1)
    inside[place] = True
    for node in problem.order:
        inside[node] |= inside[problem.ends[problem.incoming[node][0]][0]]
    below: list[Surrogate | None] = [None] * (len(problem.nodes) + 1)
    for node in reversed(problem.order):
        if node == place or not inside[node]:
            continue
        law = subtree_law(problem, tradeoff, node, below[node]).raised(sigma[node])
        below[node] = None
        join_below(below, problem.ends[problem.incoming[node][0]][0], law)
    return below[place]


def join_below(below: list[Surrogate | None], parent: int, law: Surrogate) -> None:
    """Add the law of a subtree to those below its parent (-1: the start)."""
    sibling = below[parent]
    below[parent] = law if sibling is None else law.minimum_with(sibling)


def subtree_law(problem: Problem, tradeoff: float, node: int, below: Surrogate | None) -> Surrogate:
    """Return the law of W for a node, given its parent's state; ``below`` is of its children."""
    law = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
    if below is not None:
        law = law.minimum_with(below)
    return law.mixed(problem.parent_edge(node).probabilities).trimmed()
