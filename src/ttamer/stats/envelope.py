"""Lower convex envelopes of settings, and isotonic regression.

A setting is a point (cost, error). Playing one of two settings at random gives every point of the
line between them, so what a family offers is the lower convex envelope of its points. Only the
part that pays is used: from the cheapest point on, more cost and less error at every step.

Isotonic regression, the nondecreasing sequence nearest to a given one, is the slope of the lower
convex envelope of its running sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer.errors import ArgumentError


def lower_envelope(costs: ArrayLike, errors: ArrayLike) -> NDArray[np.intp]:
    """Return the points on the envelope, the cheapest first; refuse points that are not finite.

    Cost strictly increases and error strictly decreases along it, and each step buys less than
    the one before. Of equal points the first is used; points inside an edge are left out.

    >>> lower_envelope([1, 2, 3, 4, 3], [0.4, 0.35, 0.1, 0.2, 0.1]).tolist()
    [0, 2]
    """
    cost, error = _points(costs, errors)
    corners: list[int] = []
    for point in np.lexsort((error, cost)).tolist():  # stable: the first of equals comes first
        if corners and error[point] >= error[corners[-1]]:
            continue
        while len(corners) > 1 and _is_above(cost, error, corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return np.array(corners, np.intp)


def cost_at_error(costs: ArrayLike, errors: ArrayLike, error: float) -> float | None:
    """Return the least cost at which the envelope has at most this error, or None.

    >>> cost_at_error([1.0, 3.0], [0.5, 0.1], 0.3)
    2.0
    >>> cost_at_error([1.0, 3.0], [0.5, 0.1], 0.05) is None
    True
    """
    x, y = _envelope(costs, errors)
    if error < y[-1] - 1e-9 * y[0]:  # a mean over many rows is not exact
        return None
    return float(np.interp(-error, -y, x))


def error_at_cost(costs: ArrayLike, errors: ArrayLike, cost: float) -> float | None:
    """Return the least error of the envelope at no more than this cost, or None.

    >>> error_at_cost([1.0, 3.0], [0.5, 0.25], 2.0), error_at_cost([1.0], [0.5], 0.9)
    (0.375, None)
    """
    x, y = _envelope(costs, errors)
    if cost < x[0] * (1 - 1e-9):
        return None
    return float(np.interp(cost, x, y))


def area_under(
    costs: ArrayLike, errors: ArrayLike, low: float, high: float, *, unreached: float = 1.0
) -> float:
    """Return the area under the envelope between two costs, in units of error times cost.

    Past the last point the error stays what it is there. Below the cheapest point nothing can be
    answered, and no answer is a wrong answer: the error is ``unreached``. (To take the cheapest
    point's own error there would favour a family for having no cheap setting. Where a cheaper node
    can stand in, give its point along with the family's.)

    >>> area_under([1.0, 3.0], [0.5, 0.1], 1.0, 4.0), area_under([2.0], [0.5], 1.0, 3.0)
    (0.7, 1.5)
    """
    if not (np.isfinite([low, high]).all() and low < high):
        raise ArgumentError(f"the range of costs runs from {low} to {high}; low must be below high")
    x, y = _envelope(costs, errors)
    before = max(0.0, min(x[0], high) - low) * unreached
    start = max(low, x[0])
    if start >= high:
        return float(before)
    inner = (x > start) & (x < high)
    at = np.concatenate([[start], x[inner], [high]])
    height = np.interp(at, x, y)
    return float(before + np.sum(np.diff(at) * (height[1:] + height[:-1]) / 2))


def _is_above(
    cost: NDArray[np.float64], error: NDArray[np.float64], a: int, b: int, c: int
) -> bool:
    """Whether b lies on the line from a to c or above it."""
    rise = (error[b] - error[a]) * (cost[c] - cost[a])
    return bool(rise >= (error[c] - error[a]) * (cost[b] - cost[a]))


def _envelope(
    costs: ArrayLike, errors: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    cost, error = _points(costs, errors)
    corners = lower_envelope(cost, error)
    return cost[corners], error[corners]


def _points(costs: ArrayLike, errors: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    cost, error = np.asarray(costs, np.float64), np.asarray(errors, np.float64)
    if cost.ndim != 1 or cost.shape != error.shape or not cost.size:
        raise ArgumentError(
            f"an envelope needs one cost and one error for each of its points, at least one; "
            f"there are {cost.size} costs and {error.size} errors"
        )
    if not (np.isfinite(cost).all() and np.isfinite(error).all()):
        raise ArgumentError("an envelope needs finite costs and errors; leave the others out")
    return cost, error


def rising(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nondecreasing sequence nearest to ``values`` in weighted squares.

    Both have shape (k,), and weights are positive. Adjacent violators are pooled.

    >>> rising(np.array([1.0, 3.0, 2.0]), np.ones(3)).tolist()
    [1.0, 2.5, 2.5]
    """
    pools: list[list[float]] = []  # (mean, weight, length)
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, heavy, length = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += length
    return np.repeat([pool[0] for pool in pools], [int(pool[2]) for pool in pools])


def rising_columns(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return :func:`rising` of every column of shape (k, m), for few values in many columns.

    Value i of the result is the largest over a <= i of the least over b >= i of the mean from a to
    b, so the cost is quadratic in the length of a column.

    >>> rising_columns(np.array([[1.0, 1.0], [3.0, 0.0], [2.0, 5.0]]), np.ones(3)).tolist()
    [[1.0, 0.5], [2.5, 0.5], [2.5, 5.0]]
    """
    weighed = values * weights[:, np.newaxis]
    result = np.full(values.shape, -np.inf)
    for first in range(len(values)):
        means = np.cumsum(weighed[first:], axis=0) / np.cumsum(weights[first:])[:, np.newaxis]
        lowest = np.minimum.accumulate(means[::-1], axis=0)[::-1]
        np.maximum(result[first:], lowest, out=result[first:])
    return result
