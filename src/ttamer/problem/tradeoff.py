"""The tradeoff: how much a unit of loss weighs against a unit of cost.

The objective is ``tradeoff * loss + (1 - tradeoff) * cost``. At 0 only cost counts (the
cheapest answer), at 1 only loss (the best answer, whatever it costs).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import as_float, require_kind
from ttamer.errors import ArgumentError

SMALLEST = (
    1e-150  # products of two such numbers are still normal, so ties are compared in full precision
)


def without_traces(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Set numbers closer to 0 than ``SMALLEST`` to 0: solvers compare by relative differences.

    >>> without_traces(np.array([2.3e-308, 0.5, np.inf])).tolist()
    [0.0, 0.5, inf]
    """
    return np.where(np.abs(values) < SMALLEST, 0.0, values)


def check_tradeoff(tradeoff: float) -> float:
    """Return the tradeoff as a float; refuse what is not a number from 0 to 1.

    >>> check_tradeoff(0.7)
    0.7
    """
    try:
        value = as_float(tradeoff)
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not 0.0 <= value <= 1.0:
        raise ArgumentError(
            f"tradeoff must be a number from 0 (only cost counts) to 1 (only loss counts), "
            f"not {tradeoff!r}"
        )
    return value if value >= SMALLEST else 0.0


def check_tradeoffs(tradeoffs: Iterable[float]) -> NDArray[np.float64]:
    """Return distinct tradeoffs in increasing order; refuse what is not a number from 0 to 1.

    >>> check_tradeoffs([1, 0.5, 0.5]).tolist()
    [0.5, 1.0]
    """
    remedy = "give a list of numbers from 0 to 1"
    require_kind(tradeoffs, Iterable, "tradeoffs must be several numbers", remedy)
    values = sorted({check_tradeoff(tradeoff) for tradeoff in tradeoffs})
    if not values:
        raise ArgumentError("no tradeoffs were given: give at least one number from 0 to 1")
    return np.array(values)


def weigh_losses(
    losses: NDArray[np.float64], tradeoff: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Multiply losses by the tradeoff; an infinite loss stays infinite, even at tradeoff 0.

    >>> weigh_losses(np.array([0.5, np.inf]), 0.0).tolist()
    [0.0, inf]
    """
    finite = np.isfinite(losses)
    weighed = np.where(finite, losses, 0.0) * tradeoff
    return np.where(finite, weighed, np.inf)
