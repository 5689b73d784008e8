"""What lies ahead: the joint law of the best future loss and the future cost."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError

# The most distinct sums of costs that an exact law of the future may have.
MAX_COSTS = 50_000


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


def check_costs(costs: Sized) -> None:
    """Refuse laws with more distinct costs than can be tabulated."""
    if len(costs) > MAX_COSTS:
        raise ArgumentError(
            f"the future cost takes more than {MAX_COSTS} distinct values; round the costs "
            "of the problem to a common unit, or sample with ttamer.simulate(policy, inputs)"
        )
