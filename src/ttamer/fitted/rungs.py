"""Rungs: what each policy of a ladder does on rows it was not fitted to, by cross-fitting.

A ladder of tradeoffs has only the corners of the frontier; mixing two neighbouring corners gives
the edges between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.stats.envelope import lower_envelope

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Mix", "Rungs"]


class Mix(NamedTuple):
    """Two rungs, and which share of inputs is given to the dearer one."""

    cheap: int
    dear: int
    share: float


@dataclass(frozen=True, eq=False)
class Rungs:
    """The error and the mean cost of each policy, in increasing order of tradeoff."""

    errors: NDArray[np.float64]
    costs: NDArray[np.float64]
    calm: NDArray[np.float64] | None = None
    """The errors with less noise and perhaps some bias, to tell which rungs are corners."""

    @cached_property
    def corners(self) -> tuple[int, ...]:
        """The rungs on the lower convex envelope, the cheapest first."""
        errors = self.errors if self.calm is None else self.calm
        return tuple(lower_envelope(self.costs, errors).tolist())

    def error_of(self, mix: Mix) -> float:
        """Return the expected error of a mix."""
        return float((1 - mix.share) * self.errors[mix.cheap] + mix.share * self.errors[mix.dear])

    def cost_of(self, mix: Mix) -> float:
        """Return the expected cost of a mix."""
        return float((1 - mix.share) * self.costs[mix.cheap] + mix.share * self.costs[mix.dear])

    def for_budget(self, cost: float) -> Mix:
        """Return the mix of least expected error that costs so much in expectation.

        Above the dearest corner there is nothing to gain: that corner it is.

        >>> rungs = Rungs(np.array([0.4, 0.3, 0.1]), np.array([1.0, 2.0, 5.0]))
        >>> rungs.for_budget(3.5)
        Mix(cheap=1, dear=2, share=0.5)
        """
        corners = self.corners
        costs = self.costs[list(corners)]
        if not cost >= costs[0] * (1 - 1e-9):
            raise ArgumentError(
                f"no policy of this ladder costs as little as {cost:g}: the cheapest costs "
                f"{costs[0]:g} per input; ask for at least that"
            )
        if cost >= costs[-1]:
            return Mix(corners[-1], corners[-1], 1.0)
        right = max(1, int(np.searchsorted(costs, cost, side="right")))
        share = (cost - costs[right - 1]) / (costs[right] - costs[right - 1])
        return Mix(corners[right - 1], corners[right], float(np.clip(share, 0.0, 1.0)))
