"""The loss grid: every value the best loss so far can take.

X, the least loss seen, starts at infinity and is afterwards always one of the nodes' losses. So
tables over X need one column per distinct loss, plus a last column for infinity, and nothing
between them is ever looked up: the grid is exact, not an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["LossGrid"]


@dataclass(frozen=True, eq=False)
class LossGrid:
    """Distinct losses in increasing order; the last is always infinity.

    >>> grid = LossGrid.of([np.array([0.3, 0.1]), np.array([0.1, 0.9])])
    >>> grid.values.tolist()
    [0.1, 0.3, 0.9, inf]
    >>> grid.positions[0].tolist()
    [1, 0]
    """

    values: NDArray[np.float64]
    """Shape (columns,), in units of loss."""
    positions: tuple[NDArray[np.intp], ...]
    """One array per node: the column of each of its states' losses."""

    @classmethod
    def of(cls, losses: Iterable[NDArray[np.float64]]) -> LossGrid:
        """Build the grid that holds every loss of every node."""
        supports = list(losses)
        values = np.unique(np.concatenate([*supports, [np.inf]]))
        positions = tuple(np.searchsorted(values, support) for support in supports)
        for array in (values, *positions):
            array.setflags(write=False)
        return cls(values, positions)

    def __len__(self) -> int:
        return len(self.values)

    def column(self, loss: float) -> int:
        """Return the column of a loss that is on the grid."""
        column = int(np.searchsorted(self.values, loss))
        if column == len(self.values) or self.values[column] != loss:
            raise ArgumentError(
                f"{loss!r} is not a loss of this problem; the best loss so far is always one of "
                f"the {len(self.values) - 1} losses in grid.values, or inf before any answer"
            )
        return column
