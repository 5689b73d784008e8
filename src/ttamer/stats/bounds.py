"""Exact tests of whether a mean between 0 and 1 is at most so much.

Two of them. :func:`binomial_p` is for rows that are wrong or not: the exact binomial tail.
:func:`betting_p` is for rows that lose something between 0 and 1: the wealth of a
sequence of bets that the mean is lower than claimed reaches ``1 / p`` with probability at most
``p`` if it is not (Waudby-Smith and Ramdas, 2020, by Ville's inequality). Both hold for any number
of rows; both assume that rows are drawn alike and independently, and nothing else.

Rows enter as counts of distinct values. Rows drawn alike are as likely in any order, so the
bets take them in an order drawn by a seed, which must not depend on the rows; the counts are all
that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import is_number
from ttamer.errors import ArgumentError


def check_confidence(confidence: float) -> float:
    """Return how often a promise may be broken, 1 - confidence."""
    if not is_number(confidence) or not 0.5 <= confidence < 1:
        raise ArgumentError(f"confidence is {confidence!r}; it must be from 0.5 to below 1")
    return 1 - float(confidence)


def binomial_p(wrong: int, rows: int, at_most: float) -> float:
    """Return the chance of so few wrong rows, or fewer, if the error were above ``at_most``.

    Args:
        wrong: The number of wrong rows.
        rows: The number of rows, at least 1.
        at_most: The error rate tested, from 0 to 1.

    Returns:
        The p-value, from 0 to 1.

    >>> round(binomial_p(0, 3, 0.5), 12)
    0.125
    """
    if wrong >= rows or at_most >= 1:
        return 1.0 if wrong >= rows else 0.0
    if at_most <= 0:
        return 1.0
    k = np.arange(wrong)
    odds = math.log(at_most) - math.log1p(-at_most)
    ratios = np.log(rows - k) - np.log(k + 1) + odds
    logs = rows * math.log1p(-at_most) + np.concatenate([[0.0], np.cumsum(ratios)])
    top = logs.max()
    return float(min(1.0, math.exp(top) * np.exp(logs - top).sum()))


def binomial_upper(wrong: int, rows: int, alpha: float) -> float:
    """Return the least error that so few wrong rows refute at level ``alpha``.

    Args:
        wrong: The number of wrong rows.
        rows: The number of rows, at least 1.
        alpha: The level of the test, between 0 and 1.

    Returns:
        An upper bound on the error rate, which holds with confidence ``1 - alpha``.

    >>> round(binomial_upper(0, 100, 0.05), 4)  # about three in a hundred
    0.0295
    """
    return invert_test(lambda at_most: binomial_p(wrong, rows, at_most), wrong / rows, alpha)


def quantile_upper(values: NDArray[np.float64], share: float, alpha: float) -> float:
    """Return an upper bound on a quantile, which holds with confidence ``1 - alpha``.

    It is one of the values, by the exact binomial law of how many lie below the quantile.

    Args:
        values: Shape (T,): the rows, at least one.
        share: The quantile, between 0 and 1: 0.95 for the value that 95% do not exceed.
        alpha: The level of the bound, between 0 and 1.

    Returns:
        The bound; ``inf`` where the rows are too few for one.

    >>> quantile_upper(np.arange(100.0), 0.5, 0.05), quantile_upper(np.arange(10.0), 0.95, 0.05)
    (58.0, inf)
    """
    rows = len(values)
    low, high = 0, rows + 1  # the least k so that k or more below the quantile is unlikely
    while low < high:
        middle = (low + high) // 2
        # At least ``middle`` below it is at most ``rows - middle`` above it.
        if middle and binomial_p(rows - middle, rows, 1 - share) <= alpha:
            high = middle
        else:
            low = middle + 1
    return float(np.partition(values, low - 1)[low - 1]) if low <= rows else math.inf


def betting_p(
    values: ArrayLike, counts: ArrayLike, at_most: float, *, alpha: float, seed: int = 0
) -> float:
    """Return one over the largest wealth of bets against a mean above ``at_most``.

    The bets are sized for a test at level ``alpha``, from the rows before; the result is a p-value
    whatever that is.

    Args:
        values: Shape (k,): the distinct values of the rows, from 0 to 1.
        counts: Shape (k,): the number of rows that have each value.
        at_most: The mean tested, from 0 to 1.
        alpha: The level for which the bets are sized, between 0 and 1.
        seed: The seed of the order in which rows are taken; it must not depend on the rows.

    Returns:
        The p-value, from 0 to 1.

    >>> betting_p([0.0, 1.0], [400, 4], 0.05, alpha=0.05) < 0.05
    True
    >>> betting_p([0.0, 1.0], [96, 4], 0.04, alpha=0.05) > 0.05
    True
    """
    return _betting_p(_drawn(values, counts, seed), at_most, alpha)


def betting_upper(values: ArrayLike, counts: ArrayLike, *, alpha: float, seed: int = 0) -> float:
    """Return the least mean, from that of the rows up, that they refute at level ``alpha``.

    Args:
        values: Shape (k,): the distinct values of the rows, from 0 to 1.
        counts: Shape (k,): the number of rows that have each value.
        alpha: The level of the test, between 0 and 1.
        seed: The seed of the order in which rows are taken; it must not depend on the rows.

    Returns:
        An upper bound on the mean, which holds with confidence ``1 - alpha``.

    >>> round(betting_upper([0.0, 1.0], [396, 4], alpha=0.05), 3)
    0.023
    """
    rows = _drawn(values, counts, seed)
    mean = float(rows.mean())
    return invert_test(lambda at_most: _betting_p(rows, at_most, alpha), mean, alpha)


def _drawn(values: ArrayLike, counts: ArrayLike, seed: int) -> NDArray[np.float64]:
    """Return every row's value, in an order drawn by the seed."""
    rows = np.repeat(np.asarray(values, np.float64), np.asarray(counts, np.intp))
    return np.random.default_rng(seed).permutation(rows)


def _betting_p(rows: NDArray[np.float64], at_most: float, alpha: float) -> float:
    if at_most >= 1:
        return 0.0
    count = np.arange(1, len(rows) + 1)
    means = (0.5 + np.cumsum(rows)) / (count + 1)
    spread = (0.25 + np.cumsum((rows - means) ** 2)) / (count + 1)
    before = np.concatenate([[0.25], spread[:-1]])
    bets = np.sqrt(2 * math.log(1 / alpha) / (len(rows) * before))
    bets = np.minimum(bets, 0.9 / (1 - at_most))  # a bet risks at most 90% of the stake
    grown = np.cumsum(np.log1p(bets * (at_most - rows)))
    return math.exp(-max(0.0, float(grown.max())))


def invert_test(
    p_value: Callable[[float], float], low: float, alpha: float, *, halvings: int = 40
) -> float:
    """Return the smallest mean from ``low`` to 1 that a test rejects at level ``alpha``.

    Args:
        p_value: The p-value of a mean.
        low: The smallest mean there can be.
        alpha: The level of the test, between 0 and 1.
        halvings: The number of bisections.

    Returns:
        A mean whose p-value is at most ``alpha``, or 1.

    >>> round(invert_test(lambda mean: 1 - mean, 0.5, 0.05), 6)
    0.95
    """
    high = 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        if p_value(middle) <= alpha:
            high = middle
        else:
            low = middle
    return high
