"""What lies ahead: the joint law of the best future loss and the future cost, and surrogate losses.

The surrogate loss is a whole subtree as one random number. Asking what lies in a subtree by its
indices, with a fallback x in hand, is worth ``E[min(x, kappa)]`` for one random number kappa,
whatever x is. From the leaves up, for every state s of the parent::

    W_v        = min(l_v(Y), kappa_u(Y) for children u),  Y ~ P_v(s, .)
    kappa_v(s) = max(sigma_v(s), W_v)

The solver finds the dynamic index sigma_v(s) from the law of W_v (solvers/forest.py). Children are
independent given Y, so the law of W is a product; expectations of ``(x - W)^+`` are integrals of a
step function. The laws carry their own breakpoints: sigma lies off the loss grid, and rounding it
there would tie branches that should not tie. Surrogate losses are in weighed units: losses times
the tradeoff, costs times one minus it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.problem.checks import weigh_losses
from ttamer.problem.problem import Problem

# The most distinct sums of costs that an exact law of the future may have.
MAX_COSTS = 50_000
# A gain below this share of what it is compared with is rounding: stopping wins such ties.
TIE = 1e-13
# The share of a mean that the upper tail of a law may add and still be dropped: below rounding.
NEGLIGIBLE = 1e-18
# Laws of at most this many breakpoints keep those of chance 0.
MANY_POINTS = 256


@dataclass(frozen=True)
class Expected:
    """What a policy loses and pays on average, in the problem's own units."""

    loss: float
    cost: float


@dataclass(frozen=True, eq=False)
class Future:
    """The paper's (R_FRM, c_FR): atoms of (best future loss, future cost).

    The loss is ``inf`` where nothing (or nothing that answers) is asked any more. Both are in the
    problem's own units, not weighed.

    >>> future = Future.of({(0.1, 0.5): 0.25, (np.inf, 0.0): 0.75})
    >>> future.costs.tolist(), future.mean_cost
    ([0.5, 0.0], 0.125)
    >>> future.mean_loss(fallback=0.5)
    0.4
    """

    losses: NDArray[np.float64]
    costs: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @classmethod
    def of(cls, atoms: dict[tuple[float, float], float]) -> Future:
        """Sort atoms by loss, then cost.

        Args:
            atoms: Chances by (loss, cost).

        Returns:
            The law.
        """
        rows = np.array([(*key, atoms[key]) for key in sorted(atoms) if atoms[key] > 0])
        return cls(rows[:, 0], rows[:, 1], rows[:, 2])

    @property
    def mean_cost(self) -> float:
        """The expected future cost."""
        return float(self.probabilities @ self.costs)

    def mean_loss(self, fallback: float) -> float:
        """Return the expected least of the future loss and a fallback in hand.

        Args:
            fallback: The loss in hand, in the problem's units.

        Returns:
            The mean, in the problem's units.
        """
        return float(self.probabilities @ np.minimum(self.losses, fallback))


def cost_key(cost: float) -> float:
    """Return a sum of costs rounded to 40 bits: sums that differ by rounding alone get one key.

    >>> cost_key(0.1 + 0.2) == cost_key(0.3), cost_key(3e-15) == cost_key(4e-15)
    (True, False)
    """
    mantissa, exponent = math.frexp(cost)
    return math.ldexp(round(mantissa * 2**40), exponent - 40)


def cost_keys(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return :func:`cost_key` of an array."""
    mantissa, exponent = np.frexp(costs)
    return np.asarray(np.ldexp(np.rint(mantissa * 2**40), exponent - 40))


def check_costs(costs: Sized) -> None:
    """Refuse laws with more distinct costs than can be tabulated."""
    if len(costs) > MAX_COSTS:
        raise ArgumentError(
            f"the future cost takes more than {MAX_COSTS} distinct values; round the costs "
            "of the problem to a common unit, or sample with ttamer.simulate(policy, inputs)"
        )


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

    def reaching(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, per state, the x with ``E[min(x, W)] = mean``; ``inf`` where the mean is less."""
        x = np.full(len(mean), np.inf)
        if not len(self.points):
            return np.asarray(mean)
        reached = self.expected_minimum(self.points)
        for state in range(len(mean)):
            last = int(np.searchsorted(reached[state], mean[state], side="right")) - 1
            short = mean[state] - (reached[state, last] if last >= 0 else 0.0)
            slope = self.above[state, last] if last >= 0 else 1.0
            if slope > 0:
                x[state] = (self.points[last] if last >= 0 else 0.0) + short / slope
        return x

    def raised(self, sigma: NDArray[np.float64]) -> Surrogate:
        """Return the law of ``max(sigma, W)``."""
        points = np.union1d(self.points, sigma[np.isfinite(sigma)])
        points = points[points >= sigma.min()]  # nothing is left below the least index
        below, above = self.at(points)
        reached = points >= sigma[:, np.newaxis]
        return Surrogate(
            points, np.where(reached, below, 0.0), np.where(reached, above, 1.0), self.sure
        )

    def cut(self, value: NDArray[np.float64]) -> Surrogate:
        """Return the law of the smaller of the number and a constant of each state."""
        points = np.union1d(self.points, value[np.isfinite(value)])
        below, above = self.at(points)
        beyond = points >= value[:, np.newaxis]
        return Surrogate(
            points,
            np.where(beyond, 1.0, below),
            np.where(beyond, 0.0, above),
            self.sure | np.isfinite(value),
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


def sweep(problem: Problem, tradeoff: float) -> tuple[tuple[NDArray[np.float64], ...], Surrogate]:
    """Sweep a forest from its leaves.

    Returns per node its index, one for each state of its parent (one for a root), and the
    surrogate of the whole forest. The law of a subtree is kept only until it has been used.
    """
    sigma: list[NDArray[np.float64]] = [np.empty(0)] * len(problem.nodes)
    below: list[list[Surrogate]] = [[] for _ in range(len(problem.nodes) + 1)]
    losses = weigh_losses(problem.grid.values[:-1], tradeoff)
    for node in reversed(problem.order):
        law = subtree_law(problem, tradeoff, node, below[node])
        below[node] = []
        costs = (1 - tradeoff) * problem.parent_edge(node).expected_costs
        sigma[node] = settled(law.index(costs), losses)
        below[problem.ends[problem.incoming[node][0]][0]].append(law.raised(sigma[node]))
    whole = least_of(below[-1])
    assert whole is not None  # noqa: S101 - a forest has a root
    return tuple(sigma), whole


def surrogate_below(
    problem: Problem, tradeoff: float, sigma: Sequence[NDArray[np.float64]], place: int
) -> Surrogate | None:
    """Return the law of all that lies below a place (-1: the start), given its state.

    ``sigma`` holds the index of each node, for each state of its parent. ``None`` for a leaf.
    """
    below: list[list[Surrogate]] = [[] for _ in range(len(problem.nodes) + 1)]
    for node in reversed(descendants(problem, place)):
        law = subtree_law(problem, tradeoff, node, below[node]).raised(sigma[node])
        below[node] = []
        below[problem.ends[problem.incoming[node][0]][0]].append(law)
    return least_of(below[place])


def descendants(problem: Problem, place: int) -> list[int]:
    """Return the nodes of a forest below a place (-1: the start), every parent before its own."""
    nodes = [place]
    for node in nodes:  # grows as it goes
        nodes += [problem.ends[edge][1] for edge in problem.outgoing[node]]
    return nodes[1:]


def least_of(laws: Sequence[Surrogate]) -> Surrogate | None:
    """Return the law of the least of several independent numbers; ``None`` for none.

    They are merged in pairs: one by one, each merge would go over all breakpoints so far.
    """
    while len(laws) > 1:
        laws = [reduce(Surrogate.minimum_with, laws[at : at + 2]) for at in range(0, len(laws), 2)]
    return laws[0] if laws else None


def subtree_law(
    problem: Problem, tradeoff: float, node: int, below: Sequence[Surrogate]
) -> Surrogate:
    """Return the law of W for a node, given its parent's state; ``below`` is of its children."""
    return (
        _found_below(problem, tradeoff, node, least_of(below))
        .mixed(problem.parent_edge(node).probabilities)
        .trimmed()
    )


def index_unsure(
    problem: Problem,
    tradeoff: float,
    sigma: Sequence[NDArray[np.float64]],
    node: int,
    chances: NDArray[np.float64],
) -> float:
    """Return the index of a node whose parent's state is not known, only its chances."""
    edge = problem.parent_edge(node)
    law = _found_below(problem, tradeoff, node, surrogate_below(problem, tradeoff, sigma, node))
    law = law.mixed((chances @ edge.probabilities)[np.newaxis]).trimmed()
    index = law.index((1 - tradeoff) * chances @ edge.expected_costs)
    return float(settled(index, weigh_losses(problem.grid.values[:-1], tradeoff))[0])


def _found_below(
    problem: Problem, tradeoff: float, node: int, below: Surrogate | None
) -> Surrogate:
    """Return the law of the least of a node's loss and what its children come to, per state."""
    law = Surrogate.of_losses(weigh_losses(problem.nodes[node].losses, tradeoff))
    return law if below is None else law.minimum_with(below)


def settled(sigma: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise an index that equals a loss up to rounding onto that loss, so that the tie is seen."""
    near = np.searchsorted(losses, sigma * (1 + TIE), side="right") - 1
    return np.where(near >= 0, np.maximum(sigma, losses[np.maximum(near, 0)]), sigma)
