"""Isotonic regression: the nearest sequence that never falls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rising(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nondecreasing sequence nearest to ``values`` in weighted squares.

    Computed by pooling adjacent violators.

    Args:
        values: Shape (k,): the sequence.
        weights: Shape (k,): the positive weight of each value.

    Returns:
        Shape (k,): the nondecreasing sequence.

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
    """Return :func:`rising` of every column, for few values in many columns.

    Value i of the result is the largest over a <= i of the least over b >= i of the mean from a to
    b, so the cost is quadratic in the length of a column.

    Args:
        values: Shape (k, m): one sequence per column.
        weights: Shape (k,): the positive weight of each row.

    Returns:
        Shape (k, m): the nondecreasing sequences.

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
