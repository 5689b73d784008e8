"""Exact tests of whether a mean, or a difference of two rules on the same rows, is small.

A mean between 0 and 1. :func:`binomial_p` is for rows that are wrong or not: the exact binomial
tail. :func:`betting_p` is for rows that lose something between 0 and 1: the wealth of a sequence of
bets that the mean is lower than claimed reaches ``1 / p`` with probability at most ``p`` if it is
not (Waudby-Smith and Ramdas, 2020, by Ville's inequality). Rows enter as counts of distinct values:
rows drawn alike are as likely in any order, so the bets take them in an order drawn by a seed,
which must not depend on the rows.

Two rules. A row is *worse* where only the first rule is wrong, *better* where only the second is.
The drop is the chance of the one minus that of the other. How often the rules differ at all is not
known; :func:`paired_p` is the worst case over all rates of differing that the rows leave possible
(Berger and Boos, 1994): those of an exact interval that spends a little of the level. Rows in which
fewer are worse, or more are better, speak against a drop. So do those whose statistic

    ``(worse - better - rows * drop) / sqrt(max(worse + better, rows * |drop|))``

is lower: it falls with every better row and rises with every worse one. So the chance of a lower
one is largest, for rates of differing in a short interval, if the chance to be worse is that of its
lower end and the chance to be better that of its upper end; the interval is cut into such parts.

All hold for any number of rows, and assume that these are drawn alike and independently.

The gap to the best of many candidates: the objective of a policy minus that of a candidate is one
number per row, and mostly 0, since the two decide alike. :func:`paired_gap` is the largest of the
bounds by bets on each candidate. It covers the one to the best candidate, whichever that is, so
that many candidates need no correction. Normal and bootstrapped bounds fail where rows rarely
differ. Neither the policy nor the candidates may be chosen on these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import is_number
from ttamer.errors import ArgumentError


def check_confidence(confidence: float) -> float:
    """Return how often a promise may be broken, 1 - confidence."""
    if not is_number(confidence) or not 0.5 <= confidence < 1:
        raise ArgumentError(
            f"confidence is {confidence!r}; it must be from 0.5 to below 1", param="confidence"
        )
    return 1 - float(confidence)


def binomial_p(wrong: int, rows: int, at_most: float) -> float:
    """Return the chance of so few wrong rows, or fewer, if the error were above ``at_most``.

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

    It is an upper bound on the error rate, which holds with confidence ``1 - alpha``.

    >>> round(binomial_upper(0, 100, 0.05), 4)  # about three in a hundred
    0.0295
    """
    return invert_test(lambda at_most: binomial_p(wrong, rows, at_most), wrong / rows, alpha)


def betting_p(
    values: ArrayLike, counts: ArrayLike, at_most: float, *, alpha: float, seed: int = 0
) -> float:
    """Return one over the largest wealth of bets against a mean above ``at_most``.

    ``counts`` says how many rows have each of the values. The bets are sized for a test at level
    ``alpha``, from the rows before; the result is a p-value whatever that is.

    >>> betting_p([0.0, 1.0], [400, 4], 0.05, alpha=0.05) < 0.05
    True
    >>> betting_p([0.0, 1.0], [96, 4], 0.04, alpha=0.05) > 0.05
    True
    """
    return _betting_p(_drawn(values, counts, seed), at_most, alpha)


def betting_upper(values: ArrayLike, counts: ArrayLike, *, alpha: float, seed: int = 0) -> float:
    """Return the least mean, from that of the rows up, that they refute at level ``alpha``.

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
    """Return the smallest mean from ``low`` to 1 whose p-value is at most ``alpha``, or 1.

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


def paired_p(worse: int, better: int, rows: int, at_most: float, *, alpha: float) -> float:
    """Return the chance of so few worse rows, given the better ones, if the drop were larger.

    The p-value is refined until it is clear whether it is above ``alpha``. The time is that of the
    parts of the interval times the numbers of differing rows that are at all likely.

    >>> paired_p(3, 2, 1000, 0.01, alpha=0.05) < 0.05 < paired_p(12, 2, 1000, 0.01, alpha=0.05)
    True
    """
    if not -1 < at_most < 1:
        return 0.0 if at_most >= 1 else 1.0
    differ = worse + better
    statistic = (worse - better - rows * at_most) / math.sqrt(max(differ, rows * abs(at_most), 1.0))
    if statistic >= 0:
        return 1.0
    # The chance of a lower one is nothing beside what the interval spends.
    statistic = max(statistic, -6.0)
    spent = 0.04 * alpha  # by the interval of the rate of differing
    low, high = _rates(differ, rows, spent)
    low = max(low, at_most)  # a drop needs rows that differ
    if low >= high:
        return spent

    def largest(ends: NDArray[np.float64]) -> float:
        chance_worse = np.maximum((ends[:-1] + at_most) / 2, 0.0)
        chance_better = np.minimum((ends[1:] - at_most) / 2, ends[1:])
        tails = _tails(chance_worse, chance_better, rows, at_most, statistic)
        return float(min(1.0, spent + tails.max()))

    p_value = largest(np.linspace(low, high, 13))  # of few parts: it is larger
    if p_value <= alpha or largest(np.full(2, (low + high) / 2)) > alpha:
        return p_value  # more parts would not change the decision
    return largest(np.linspace(low, high, 129))


def paired_upper(worse: int, better: int, rows: int, *, alpha: float) -> float:
    """Return the least drop, from the one seen up, that the rows refute at level ``alpha``.

    It is an upper bound on the drop, which holds with confidence ``1 - alpha``.

    >>> 0.005 < paired_upper(5, 3, 1000, alpha=0.05) < 0.01
    True
    """

    def p_value(drop: float) -> float:
        return paired_p(worse, better, rows, drop, alpha=alpha)

    # 17 halvings: to a thousandth of a point.
    return invert_test(p_value, (worse - better) / rows, alpha, halvings=17)


@lru_cache(1024)
def _rates(count: int, rows: int, alpha: float) -> tuple[float, float]:
    """Return an exact interval of the rate of a count, which misses it with this chance at most."""
    low = 0.0
    if count:
        low = 1 - invert_test(
            lambda high: 1 - binomial_p(count - 1, rows, 1 - high), 1 - count / rows, alpha / 2
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
    # Numbers further than six standard deviations, and 16, from the mean are not followed.
    reach = 6 * math.sqrt(rows * share[-1]) + 16
    first = max(0, math.floor(rows * share[0] - reach))
    differ = np.arange(first, min(rows, math.ceil(rows * share[-1] + reach)) + 1)
    spread = np.sqrt(np.maximum(differ, max(rows * abs(at_most), 1.0)))
    # The largest number of worse rows; up to rounding.
    limit = np.floor((differ + rows * at_most + statistic * spread) / 2 + 1e-7).astype(np.intp)
    factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, differ[-1] + 1))))

    def worse_among(count: NDArray[np.intp], all_: NDArray[np.intp]) -> NDArray[np.float64]:
        inside = (count >= 0) & (count <= all_)
        k, m = np.where(inside, count, 0), all_
        ways = factorial[m] - factorial[k] - factorial[m - k]
        logs = k[:, np.newaxis] * np.log(ratio) + (m - k)[:, np.newaxis] * np.log1p(-ratio)
        return np.where(inside[:, np.newaxis], np.exp(ways[:, np.newaxis] + logs), 0.0)

    far = math.floor(6 * math.sqrt(first)) + 16
    start = np.arange(max(0, min(limit[0], first) - far), min(limit[0], first) + 1)
    before, after, same = limit[:-1], limit[1:], differ[:-1]
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
    first = int(count[0])
    start = math.lgamma(rows + 1) - math.lgamma(first + 1) - math.lgamma(rows - first + 1)
    ratios = np.log(rows - count[:-1]) - np.log(count[1:])
    return start + np.append(0.0, np.cumsum(ratios))


Test = Literal["binomial", "paired", "betting"]


@dataclass(frozen=True, eq=False)
class Sample:
    """The numbers of independent rows, moved from ``low`` .. ``high`` to 0 .. 1.

    >>> errors = Sample(np.repeat([0.0, 1.0], [97, 3]), 0.0, 1.0, "binomial")
    >>> errors.observed, errors.p_value(0.1, 0.05) < 0.05, errors.refutes(0.1, 0.05)
    (0.03, True, False)
    """

    values: NDArray[np.float64]  # (R,)
    low: float
    high: float
    test: Test  # "binomial" of values 0 and 1, "paired" of 0, 1/2 and 1, "betting" of any
    seed: int = 0  # of the order in which bets take the rows; it must not depend on them

    @cached_property
    def observed(self) -> float:
        """The mean, between ``low`` and ``high``."""
        return self.low + (self.high - self.low) * float(self.values.mean())

    @cached_property
    def _counts(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The distinct values, and how many rows have each."""
        return np.unique(self.values, return_counts=True)

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """How many rows have the value 1, and the value 0."""
        return int((self.values == 1).sum()), int((self.values == 0).sum())

    def p_value(self, at_most: float, alpha: float) -> float:
        """Return the p-value of the mean being above ``at_most``, at level ``alpha``."""
        rows, (ones, zeros) = len(self.values), self._ends
        if self.test == "binomial":
            return binomial_p(ones, rows, at_most)
        if self.test == "paired":
            return paired_p(ones, zeros, rows, at_most, alpha=alpha)
        share = (at_most - self.low) / (self.high - self.low)
        return betting_p(*self._counts, share, alpha=alpha, seed=self.seed)

    def refutes(self, at_most: float, alpha: float) -> bool:
        """Return whether the rows show, at level ``alpha``, that the mean is above ``at_most``."""
        if self.low not in (0.0, -1.0):
            return False  # clipped weights bound the loss from above only
        if self.test == "binomial":
            return binomial_p(self._ends[1], len(self.values), 1 - at_most) <= alpha
        mirrored = Sample(1 - self.values, -self.high, -self.low, self.test, self.seed)
        return mirrored.p_value(-at_most, alpha) <= alpha

    def upper(self, alpha: float) -> float:
        """Return the least mean that the rows refute at level ``alpha``."""
        rows, (ones, zeros) = len(self.values), self._ends
        if self.test == "binomial":
            return binomial_upper(ones, rows, alpha)
        if self.test == "paired":
            return paired_upper(ones, zeros, rows, alpha=alpha)
        share = betting_upper(*self._counts, alpha=alpha, seed=self.seed)
        return self.low + (self.high - self.low) * share

    def rows_needed(self, at_most: float, alpha: float) -> int | None:
        """Return about how many rows would pass the test, if what was observed is the truth."""
        gap, rows = at_most - self.observed, len(self.values)
        if gap <= 0:
            return None
        normal = NormalDist().inv_cdf(1 - alpha) ** 2
        if self.test == "binomial":
            without_one = math.log(alpha) / math.log1p(-at_most)  # rows that pass if none is wrong
            needed = max(normal * at_most * (1 - at_most) / gap**2 + 1 / gap, without_one)
        else:
            gap /= (self.high - self.low) / 2
            weight = 1.2 * normal if self.test == "paired" else 2 * math.log(1 / alpha)
            needed = (4 * float(self.values.var()) + gap / 3) * weight / gap**2
        return max(math.ceil(needed), rows + 1)


@dataclass(frozen=True)
class Gap:
    """How much more a policy loses and pays than the best candidate.

    >>> Gap(estimate=0.01, upper=0.02, best=3).upper
    0.02
    """

    estimate: float
    """On these rows; at least 0."""
    upper: float
    """With the given confidence, the gap is at most this."""
    best: int
    """The candidate that is best on these rows; -1 where the policy itself is."""


def paired_gap(
    policy: ArrayLike,
    candidates: ArrayLike,
    *,
    largest: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> Gap:
    """Bound how far a policy is from the best of some candidates.

    Args:
        policy: Shape (rows,): what the policy loses and pays on each row.
        candidates: Shape (rows, candidates): the same of each candidate.
        largest: The most by which two of them can differ on a row.
        confidence: How often the bound holds, for any number of rows.
        seed: Of the order in which bets take the rows.

    Returns:
        The estimate and the bound, in the unit of the rows.

    Raises:
        ArgumentError: If shapes do not fit, rows differ by more than ``largest``, or the confidence
            is out of range.

    >>> rows = np.tile([0.1, 0.2, 0.3, 0.2], 100)
    >>> gap = paired_gap(rows, np.stack([rows, rows + 0.1], axis=1))
    >>> gap.estimate, round(gap.upper, 4), gap.best
    (0.0, 0.0087, -1)
    """
    objective = np.asarray(policy, np.float64)
    candidates = np.asarray(candidates, np.float64)
    rows = len(objective)
    if objective.ndim != 1 or candidates.ndim != 2 or rows != len(candidates) or rows < 2:
        raise ArgumentError(
            f"paired_gap needs objectives of shape (rows,) and (rows, candidates), of at least 2 "
            f"rows, not {objective.shape} and {candidates.shape}",
            param="candidates",
        )
    alpha = check_confidence(confidence)
    difference = np.unique(objective[:, np.newaxis] - candidates, axis=1)
    if difference.size and not np.abs(difference).max() <= largest:
        raise ArgumentError(
            f"two objectives differ by {np.abs(difference).max():.4g} on a row, above largest = "
            f"{largest:g}: give the most by which they can",
            param="largest",
        )
    mean, upper = (objective[:, np.newaxis] - candidates).mean(axis=0), 0.0
    best = int(mean.argmax()) if mean.size and mean.max() > 0 else -1
    likely = difference.mean(axis=0) + 2 * difference.std(axis=0) / np.sqrt(rows)
    for column in difference.T[likely.argsort()[::-1]]:  # the largest bounds first
        bets = Sample((column / largest + 1) / 2, -largest, largest, "betting", seed)
        if bets.p_value(upper, alpha) > alpha:  # else it is below those of other candidates
            upper = bets.upper(alpha)
    return Gap(float(mean.max(initial=0.0)), upper, best)
