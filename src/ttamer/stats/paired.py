"""An exact test of whether one rule errs at most so much more often than another on the same rows.

A row is *worse* where only the first rule is wrong, *better* where only the second is. The drop is
the chance of the one minus the chance of the other. How often the two rules differ at all is not
known; the test is the worst case over all rates of differing that the rows leave possible (Berger
and Boos, 1994), and what they leave possible is an exact interval that spends a little of the
level. It assumes that rows are drawn alike and independently, and nothing else.

Rows in which fewer are worse, or more are better, speak against a drop. So do those whose statistic

    ``(worse - better - rows * drop) / sqrt(max(worse + better, rows * |drop|))``

is lower: it falls with every better row and rises with every worse one. So the chance of a lower
one is largest, for rates of differing in a short interval, if the chance to be worse is that of its
lower end and the chance to be better that of its upper end; the interval is cut into such parts.

Cost: the parts times the numbers of differing rows that are at all likely.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ttamer.stats.bounds import binomial_p, binomial_upper, invert_test

# The share of the level that the interval of the rate of differing may spend.
SPENT = 0.04
# The number of parts of that interval.
PARTS = 128
# The number of parts that is tried first: with fewer parts the p-value is larger.
FEW_PARTS = 12
# Lower statistics count as this one: their chance is nothing beside what the interval spends.
MIN_STATISTIC = -6.0
# Numbers of rows further than this many standard deviations from the mean are not followed.
REACH = 6.0
# Numbers of rows at most this far from the mean are always followed.
MIN_REACH = 16
# A bound is found by this many halvings: to a thousandth of a point.
HALVINGS = 17
# A number of rows that is whole but for so much is whole.
ROUNDING = 1e-7


def paired_p(worse: int, better: int, rows: int, at_most: float, *, alpha: float) -> float:
    """Return the chance of so few worse rows, given the better ones, if the drop were larger.

    Args:
        worse: The number of rows on which only the rule tested is wrong.
        better: The number of rows on which only the other rule is.
        rows: The number of all rows, at least 1.
        at_most: The drop tested, from -1 to 1.
        alpha: The level for which the test is made, between 0 and 1.

    Returns:
        A p-value, from 0 to 1, refined until it is clear whether it is above ``alpha``.

    >>> paired_p(3, 2, 1000, 0.01, alpha=0.05) < 0.05 < paired_p(12, 2, 1000, 0.01, alpha=0.05)
    True
    """
    if not -1 < at_most < 1:
        return 0.0 if at_most >= 1 else 1.0
    differ = worse + better
    statistic = (worse - better - rows * at_most) / math.sqrt(max(differ, rows * abs(at_most), 1.0))
    if statistic >= 0:
        return 1.0
    statistic = max(statistic, MIN_STATISTIC)
    spent = SPENT * alpha
    low, high = _rates(differ, rows, spent)
    low = max(low, at_most)  # a drop needs rows that differ
    if low >= high:
        return spent

    def largest(ends: NDArray[np.float64]) -> float:
        chance_worse = np.maximum((ends[:-1] + at_most) / 2, 0.0)
        chance_better = np.minimum((ends[1:] - at_most) / 2, ends[1:])
        tails = _tails(chance_worse, chance_better, rows, at_most, statistic)
        return float(min(1.0, spent + tails.max()))

    found = largest(np.linspace(low, high, FEW_PARTS + 1))
    if found <= alpha or largest(np.full(2, (low + high) / 2)) > alpha:
        return found  # more parts would not change the decision
    return largest(np.linspace(low, high, PARTS + 1))


def paired_upper(worse: int, better: int, rows: int, *, alpha: float) -> float:
    """Return the least drop, from the one seen up, that the rows refute at level ``alpha``.

    Args:
        worse: The number of rows on which only the rule tested is wrong.
        better: The number of rows on which only the other rule is.
        rows: The number of all rows, at least 1.
        alpha: The level of the test, between 0 and 1.

    Returns:
        An upper bound on the drop, which holds with confidence ``1 - alpha``.

    >>> 0.005 < paired_upper(5, 3, 1000, alpha=0.05) < 0.01
    True
    """
    seen = (worse - better) / rows

    def p_value(drop: float) -> float:
        return paired_p(worse, better, rows, drop, alpha=alpha)

    return invert_test(p_value, seen, alpha, halvings=HALVINGS)


@lru_cache(1024)
def _rates(count: int, rows: int, alpha: float) -> tuple[float, float]:
    """Return an exact interval of the rate of a count, which misses it with this chance at most."""
    low = 0.0
    if count:
        low = 1 - invert_test(
            lambda rest: 1 - binomial_p(count - 1, rows, 1 - rest), 1 - count / rows, alpha / 2
        )
    return low, binomial_upper(count, rows, alpha / 2)


def _tails(
    chance_worse: NDArray[np.float64],
    chance_better: NDArray[np.float64],
    rows: int,
    at_most: float,
    statistic: float,
) -> NDArray[np.float64]:
    """Return, for each pair of chances, the chance of a statistic as low as this one.

    The number of rows that differ is binomial, and so is the number of worse ones among them. From
    one number of differing rows to the next, the second law's tail changes by one or two terms.
    """
    share = np.minimum(chance_worse + chance_better, 1.0)
    ratio = np.clip(chance_worse / share, 1e-300, 1 - 1e-16)
    reach = REACH * math.sqrt(rows * share[-1]) + MIN_REACH
    first = max(0, math.floor(rows * share[0] - reach))
    differ = np.arange(first, min(rows, math.ceil(rows * share[-1] + reach)) + 1)
    spread = np.sqrt(np.maximum(differ, max(rows * abs(at_most), 1.0)))
    most = np.floor((differ + rows * at_most + statistic * spread) / 2 + ROUNDING).astype(np.intp)
    factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, differ[-1] + 1))))

    def worse_among(count: NDArray[np.intp], all_: NDArray[np.intp]) -> NDArray[np.float64]:
        inside = (count >= 0) & (count <= all_)
        k, m = np.where(inside, count, 0), all_
        ways = factorial[m] - factorial[k] - factorial[m - k]
        logs = k[:, np.newaxis] * np.log(ratio) + (m - k)[:, np.newaxis] * np.log1p(-ratio)
        return np.where(inside[:, np.newaxis], np.exp(ways[:, np.newaxis] + logs), 0.0)

    far = math.floor(REACH * math.sqrt(first)) + MIN_REACH
    start = np.arange(max(0, min(most[0], first) - far), min(most[0], first) + 1)
    before, after, same = most[:-1], most[1:], differ[:-1]
    change = -ratio * worse_among(before, same)
    change += (after > before)[:, np.newaxis] * worse_among(after, same + 1)
    change -= (after < before)[:, np.newaxis] * worse_among(before, same + 1)
    tail = worse_among(start, np.full(len(start), first)).sum(axis=0)
    tails = np.clip(np.cumsum(np.vstack([tail, change]), axis=0), 0.0, 1.0)
    ways = _log_binomials(rows, differ)
    logs = differ[:, np.newaxis] * np.log(share)
    logs += (rows - differ)[:, np.newaxis] * np.log1p(-np.minimum(share, 1 - 1e-16))
    chances = np.exp(ways[:, np.newaxis] + logs)
    beyond = np.maximum(1 - chances.sum(axis=0), 0.0)
    return np.asarray((chances * tails).sum(axis=0) + beyond)


def _log_binomials(rows: int, count: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the logarithms of the numbers of ways to choose consecutive counts of rows."""
    least = int(count[0])
    start = math.lgamma(rows + 1) - math.lgamma(least + 1) - math.lgamma(rows - least + 1)
    ratios = np.log(rows - count[:-1]) - np.log(count[1:])
    return start + np.append(0.0, np.cumsum(ratios))
