"""What lies ahead of a policy: means, and the joint law of the best future loss and the cost."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.problem.graph import Edge

# The most distinct sums of costs that an exact law of the future may have.
MAX_COSTS = 50_000

# Losses returned, what was paid until then, and the chances: arrays that broadcast.
Answer = tuple[float | NDArray[np.float64], float | NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Means:
    """What a policy loses, pays and asks on average, in the problem's own units."""

    loss: float
    cost: float
    asked: NDArray[np.float64]
    """Shape (nodes,): the chance that each node is asked."""

    @classmethod
    def of(cls, answers: list[Answer], cost: float, asked: NDArray[np.float64]) -> Means:
        """Add up the losses of the answers."""
        with np.errstate(invalid="ignore"):  # an infinite loss of chance 0
            parts = [np.where(chance > 0, loss * chance, 0.0).sum() for loss, _, chance in answers]
        return cls(float(sum(parts)), cost, asked)


@dataclass(frozen=True, eq=False)
class Future:
    """The paper's (R_FRM, c_FR): atoms of (best future loss, future cost).

    The loss is ``inf`` where nothing (or nothing that answers) is asked any more. Both are in the
    problem's own units, not weighed.

    >>> from ttamer import Problem, solve
    >>> future = solve(Problem.line([0.0, 0.5], [0.1], [[0.75, 0.25]]), tradeoff=0.5).future()
    >>> future.losses.tolist(), future.costs.tolist(), future.probabilities.tolist()
    ([0.0, 0.5], [0.1, 0.1], [0.75, 0.25])
    >>> future.mean_cost, future.mean_loss(fallback=0.4)
    (0.1, 0.1)
    """

    losses: NDArray[np.float64]
    costs: NDArray[np.float64]
    probabilities: NDArray[np.float64]

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


def joint_law(answers: list[Answer]) -> Future:
    """Add up the chances of equal atoms, and sort them by loss, then cost."""
    parts = [[np.ravel(part) for part in np.broadcast_arrays(*answer)] for answer in answers]
    losses, costs, chances = (np.concatenate(column) for column in zip(*parts, strict=True))
    losses, costs, chances = (column[chances > 0] for column in (losses, costs, chances))
    atoms = np.stack([losses, cost_keys(costs)])
    atoms, first, groups = np.unique(atoms, axis=1, return_index=True, return_inverse=True)
    sums = np.zeros(len(first))
    np.add.at(sums, groups.ravel(), chances)
    return Future(atoms[0], costs[first], sums)


def cost_keys(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of costs rounded to 40 bits: those that differ by rounding alone get one key.

    >>> a, b, c, d = cost_keys(np.array([0.1 + 0.2, 0.3, 3e-15, 4e-15]))
    >>> bool(a == b), bool(c == d)
    (True, False)
    """
    mantissa, exponent = np.frexp(costs)
    return np.asarray(np.ldexp(np.rint(mantissa * 2**40), exponent - 40))


def rows_by_cost(edge: Edge) -> list[tuple[float, NDArray[np.float64]]]:
    """Return each cost of an edge, with the probabilities of the transitions that cost it."""
    table = edge.cost_table
    costs = np.unique(table[edge.probabilities > 0]).tolist()
    return [(cost, np.where(table == cost, edge.probabilities, 0.0)) for cost in costs]


def check_costs(costs: Sized) -> None:
    """Refuse laws with more distinct costs than can be tabulated."""
    if len(costs) > MAX_COSTS:
        raise ArgumentError(
            f"the future cost takes more than {MAX_COSTS} distinct values; round the costs "
            "of the problem to a common unit, or sample with ttamer.simulate(policy, inputs)"
        )
