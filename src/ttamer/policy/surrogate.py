"""The surrogate loss: a whole subtree as one random number.

Asking what lies in a subtree, optimally, with a fallback x in hand, is worth ``E[min(x, kappa)]``
for one random number kappa, whatever x is. From the leaves up, for every state s of the parent::

    W_v        = min(l_v(Y), kappa_u(Y) for children u),  Y ~ P_v(s, .)
    sigma_v(s) : E[(sigma - W_v)^+] = c_v                   the dynamic index
    kappa_v(s) = max(sigma_v(s), W_v)

Children are independent given Y, so the law of W is a product; expectations of ``(x - W)^+`` are
integrals of a step function, so sigma is found exactly. The laws carry their own breakpoints:
sigma lies off the loss grid, and rounding it there would tie branches that should not tie.

Everything here is in weighed units: losses times the tradeoff, costs times one minus it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.problem.tradeoff import weigh_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.problem.problem import Problem

__all__ = ["Surrogate", "sweep", "tie_slack"]

TIE = 1e-13
"""Gains below this share of the largest loss or cost are rounding: stopping wins such ties."""


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

    def least_with(self, other: Surrogate) -> Surrogate:
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

    def later(self, delay: float) -> Surrogate:
        """Return the law of the number plus a constant."""
        return Surrogate(self.points + delay, self.below, self.above, self.sure)

    def index(self, cost: float) -> NDArray[np.float64]:
        """Return the largest sigma with ``E[(sigma - W)^+] <= cost``, for each state."""
        states = np.arange(len(self.below))
        if not len(self.points):
            return np.full(len(states), np.inf)
        gained = self._gains()
        last = (gained <= cost).sum(axis=1) - 1  # the last breakpoint not past sigma
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

    def least_mean(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
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


def sweep(
    problem: Problem, tradeoff: float
) -> tuple[tuple[NDArray[np.float64], ...], tuple[Surrogate | None, ...]]:
    """Sweep a forest from its leaves.

    Returns per node its index, one for each state of its parent (one for a root); and per node
    the surrogate of all that lies below it, given its state, ``None`` for a leaf. The last of these
    is the start's: the whole forest.
    """
    sigma: list[NDArray[np.float64]] = [np.empty(0)] * len(problem.nodes)
    below: list[Surrogate | None] = [None] * (len(problem.nodes) + 1)
    losses = weigh_losses(problem.grid.values[:-1], tradeoff)
    slack = float(tie_slack(problem, np.array([tradeoff]))[0])
    for node in reversed(problem.order):
        law = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
        after = below[node]
        if after is not None:
            law = law.least_with(after)
        edge = problem.parent_edge(node)
        cost = (1 - tradeoff) * edge.cost
        law = law.mixed(edge.probabilities)
        sigma[node] = _settled(law.index(cost), losses, slack)
        law = law.raised(sigma[node])
        parent = problem.ends[problem.incoming[node][0]][0]
        sibling = below[parent]
        below[parent] = law if sibling is None else law.least_with(sibling)
    return tuple(sigma), tuple(below)


def tie_slack(problem: Problem, tradeoffs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each tradeoff, the largest gain that is taken for rounding."""
    most_loss = float(problem.grid.values[-2])  # the last is infinity
    most_cost = max(edge.cost for edge in problem.edges)
    return TIE * (tradeoffs * most_loss + (1 - tradeoffs) * most_cost)


def _settled(
    sigma: NDArray[np.float64], losses: NDArray[np.float64], slack: float
) -> NDArray[np.float64]:
    """Raise an index that equals a loss up to rounding onto that loss, so that the tie is seen."""
    near = np.searchsorted(losses, sigma + slack, side="right") - 1
    return np.where(near >= 0, np.maximum(sigma, losses[np.maximum(near, 0)]), sigma)
