"""Surrogate losses: a whole subtree of a forest as one random number.

Asking what lies in a subtree by its indices, with a fallback x in hand, is worth
``E[min(x, kappa)]`` for one random number kappa, whatever x is. From the leaves up, for every state
s of the parent::

    W_v        = min(l_v(Y), kappa_u(Y) for children u),  Y ~ P_v(s, .)
    kappa_v(s) = max(sigma_v(s), W_v)

where the dynamic index sigma_v(s) solves ``E[(sigma - W_v)^+] = c_v``. Children are independent
given Y, so the law of W is a product; expectations of ``(x - W)^+`` are integrals of a step
function. The laws carry their own breakpoints: sigma lies off the loss grid, and rounding it there
would tie branches that should not tie. Units are weighed: losses times the tradeoff, costs times
one minus it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ttamer.problem.checks import TIE, weigh_losses
from ttamer.problem.problem import START, Problem

# The share of a mean that the upper tail of a law may add and still be dropped: below rounding.
NEGLIGIBLE = 1e-18
# Laws of at most this many breakpoints keep those of chance 0.
MANY_POINTS = 256
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The law of a random number for each of several states."""

    # Shape (points,): the finite values it can take, increasing.
    points: NDArray[np.float64]
    # Shape (states, points): the chance that it is at most each point.
    below: NDArray[np.float64]
    # One minus below, carried along so that small chances of either kind stay exact.
    above: NDArray[np.float64]
    # Shape (states,): whether it is finite for certain.
    sure: NDArray[np.bool_]

    @classmethod
    def of_losses(cls, losses: NDArray[np.float64]) -> Surrogate:
        """Return the law of a node's own loss, known given its state."""
        points = np.unique(losses[np.isfinite(losses)])
        below = losses[:, np.newaxis] <= points
        return cls(points, below.astype(float), (~below).astype(float), np.isfinite(losses))

    def at(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the chances of being at most, and above, each of some other points."""
        columns = np.searchsorted(self.points, points, side="right")
        before = np.zeros((len(self.below), 1))  # below the first point; np.pad is slower
        below = np.concatenate([before, self.below], axis=1)
        above = np.concatenate([before + 1, self.above], axis=1)
        return below[:, columns], above[:, columns]

    def minimum_with(self, sibling: Surrogate) -> Surrogate:
        """Return the law of the smaller of the two, independent given the state."""
        points = np.union1d(self.points, sibling.points)
        (below, above), (also_below, also_above) = self.at(points), sibling.at(points)
        sure = self.sure | sibling.sure
        return Surrogate(points, below + above * also_below, above * also_above, sure)

    def mixed(self, rows: NDArray[np.float64]) -> Surrogate:
        """Return the law given the parent's state, by rows of shape (parent states, states)."""
        sure = ~((rows > 0) @ ~self.sure)
        return Surrogate(self.points, rows @ self.below, rows @ self.above, sure)

    def mixed_later(self, rows: NDArray[np.float64], delays: NDArray[np.float64]) -> Surrogate:
        """Return :meth:`mixed` of the number plus a delay.

        ``rows`` and ``delays`` have shape (parent states, states).
        """
        law = self.mixed(rows)
        if np.ptp(delays) == 0:
            return replace(law, points=law.points + delays.flat[0])
        points = np.unique(np.add.outer(np.unique(delays), self.points))
        below, above = np.zeros((2, len(rows), len(points)))
        for parent, state in np.argwhere(rows > 0).tolist():
            lower, upper = replace(self, points=self.points + delays[parent, state]).at(points)
            below[parent] += rows[parent, state] * lower[state]
            above[parent] += rows[parent, state] * upper[state]
        return Surrogate(points, below, above, law.sure)

    def trimmed(self) -> Surrogate:
        """Return the law without breakpoints that change no mean beyond rounding.

        On a long line the chance that nothing good is found falls geometrically, and so does that
        of ending at an index far below. So the number of breakpoints does not grow with the nodes.
        """
        law = self
        if len(self.points) > MANY_POINTS:  # without those at which no chance changes
            steps = np.concatenate([np.diff(self.below), np.diff(self.above)]) != 0
            at = np.concatenate([[True], steps.any(axis=0)])
            law = Surrogate(self.points[at], self.below[:, at], self.above[:, at], self.sure)
        if len(law.points) < 2 or not law.sure.all():
            return law
        # E[min(x, W)] is the integral of ``above`` up to x: a tail adds its part of the integral.
        pieces = law.above[:, :-1] * np.diff(law.points)
        tails = np.cumsum(pieces[:, ::-1], axis=1)[:, ::-1]
        shifted = np.concatenate([np.zeros((len(pieces), 1)), pieces[:, :-1]], axis=1)
        means = law.points[0] + np.cumsum(shifted, axis=1)  # E[min(p, W)] at each point p
        last = int((tails > NEGLIGIBLE * means).any(axis=0).sum())
        if last == len(law.points) - 1:
            return law
        below, above = law.below[:, : last + 1].copy(), law.above[:, : last + 1].copy()
        below[:, -1], above[:, -1] = 1.0, 0.0
        return Surrogate(law.points[: last + 1], below, above, law.sure)

    def index(self, cost: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest sigma with ``E[(sigma - W)^+] <= cost``, for each state.

        ``cost`` is one number, or one per state.
        """
        if not len(self.points):
            return np.full(len(self.below), np.inf)
        # E[(p - W)^+] at each breakpoint p: the running integral of ``below``.
        gained = np.zeros_like(self.below)
        np.cumsum(self.below[:, :-1] * np.diff(self.points), axis=1, out=gained[:, 1:])
        return _largest(self.points, gained, self.below, np.broadcast_to(cost, len(gained)))

    def reaching(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, per state, the x with ``E[min(x, W)] = mean``; ``inf`` where the mean is less."""
        # Below the first breakpoint E[min(x, W)] is x.
        slopes = np.pad(self.above, ((0, 0), (1, 0)), constant_values=1.0)
        reached = np.pad(self.expected_minimum(self.points), ((0, 0), (1, 0)))
        return _largest(np.append(0.0, self.points), reached, slopes, mean)

    def raised(self, sigma: NDArray[np.float64]) -> Surrogate:
        """Return the law of ``max(sigma, W)``."""
        points = np.union1d(self.points, sigma[np.isfinite(sigma)])
        points = points[points >= sigma.min()]  # nothing is left below the least index
        (below, above), reached = self.at(points), points >= sigma[:, np.newaxis]
        below, above = np.where(reached, below, 0.0), np.where(reached, above, 1.0)
        return Surrogate(points, below, above, self.sure)

    @property
    def mean(self) -> float:
        """The mean of a law of one state."""
        return float(self.expected_minimum(np.array([np.inf]))[0, 0])

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


def from_leaves(
    nodes: Sequence[int],
    parents: Sequence[int],
    law: Callable[[int, list[Surrogate]], Surrogate],
    top: int,
    states: int = 1,
) -> Surrogate:
    """Return the law of the least of what lies below a node (-1: the start), given its state.

    ``nodes`` are those below it, parents first; ``law`` makes the law of a node, given its parent's
    state, of the laws of its children. The law of a subtree is kept only until it has been used.
    """
    below: dict[int, list[Surrogate]] = {}
    for node in reversed(nodes):
        below.setdefault(parents[node], []).append(law(node, below.pop(node, [])))
    return minimum_of(below.get(top, [Surrogate.of_losses(np.full(states, np.inf))]))


def minimum_of(laws: list[Surrogate]) -> Surrogate:
    """Return the law of the least of several independent numbers.

    They are merged in pairs: one by one, each merge would go over all breakpoints so far.
    """
    while len(laws) > 1:
        laws = in_pairs(laws, Surrogate.minimum_with)
    return laws[0]


def in_pairs(items: list[Item], merge: Callable[[Item, Item], Item]) -> list[Item]:
    """Return each two of the items merged into one; the last one may be alone."""
    return [reduce(merge, items[first : first + 2]) for first in range(0, len(items), 2)]


def sweep(problem: Problem, tradeoff: float) -> tuple[tuple[NDArray[np.float64], ...], Surrogate]:
    """Return the index of each node of a forest, per state of its parent, and the law of all."""
    sigma: list[NDArray[np.float64]] = [np.empty(0)] * len(problem.nodes)
    losses = weigh_losses(problem.grid.values[:-1], tradeoff)

    def law_of(node: int, below: list[Surrogate]) -> Surrogate:
        law = subtree_law(problem, tradeoff, node, below)
        costs = (1 - tradeoff) * problem.parent_edge(node).expected_costs
        sigma[node] = settled(law.index(costs), losses)
        return law.raised(sigma[node])

    forest = from_leaves(problem.order, problem.parents, law_of, START)
    return tuple(sigma), forest


def subtree_law(
    problem: Problem, tradeoff: float, node: int, below: Sequence[Surrogate]
) -> Surrogate:
    """Return the law of W for a node, given its parent's state; ``below`` is of its children."""
    answer = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
    return minimum_of([answer, *below]).mixed(problem.parent_edge(node).probabilities).trimmed()


def _largest(
    points: NDArray[np.float64],
    values: NDArray[np.float64],
    slopes: NDArray[np.float64],
    limits: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return, per state, where a rising piecewise linear function passes a limit, or ``inf``.

    It has these values at the points, and after each of them this slope.
    """
    states, last = np.arange(len(values)), (values <= limits[:, np.newaxis]).sum(axis=1) - 1
    slope, spare = slopes[states, last], limits - values[states, last]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(slope > 0, points[last] + spare / slope, np.inf)


def settled(sigma: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise an index that equals a loss up to rounding onto that loss, so that the tie counts."""
    # Unequal by rounding alone, they would have the policy pay for what gains nothing.
    near = np.searchsorted(losses, sigma * (1 + TIE), side="right") - 1
    return np.where(near >= 0, np.maximum(sigma, losses[np.maximum(near, 0)]), sigma)
