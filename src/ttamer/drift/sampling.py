"""Which requests are audited: a share, drawn by a hash, within a budget.

A request is audited if a hash of its id and a seed, as a number from 0 to 1, is below the current
audit probability. The draw does not depend on the content of the request, and is the same when it
is repeated. The probability is the stated share while the budget allows it; as the budget runs low
it falls in proportion to what is left. It is kept with every row, so that estimates can be weighted
by its inverse (:func:`estimate`): they are then unbiased for all of the traffic, although a larger
share is audited in quiet hours than in busy ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ttamer.errors import ArgumentError

# The number of seconds in an hour.
HOUR = 3600.0


@dataclass(frozen=True)
class Budget:
    """The largest cost of audits, in the cascade's units.

    >>> Budget(per_hour=500.0).total
    inf

    Raises:
        ArgumentError: Where a limit is not above 0.
    """

    per_hour: float = math.inf
    total: float = math.inf

    def __post_init__(self) -> None:
        if not (self.per_hour > 0 and self.total > 0):
            raise ArgumentError(
                f"a budget must be above 0, not {self.per_hour} per hour and {self.total} in total"
            )


class Draw(NamedTuple):
    """The result of the draw for one request.

    >>> AuditSampler(1.0).draw("request-1", now=0.0)
    Draw(audited=True, chance=1.0)
    """

    audited: bool
    """Whether the request is audited."""
    chance: float
    """The probability with which it was drawn."""


class AuditSampler:
    """Draws the requests that are audited.

    >>> audit = AuditSampler(0.25, seed=7)
    >>> sum(audit.draw(f"request-{k}", now=0.0).audited for k in range(1000))
    246

    Args:
        share: The share of requests that is audited while the budget allows it.
        cost: The largest expected cost of one audit: that of asking every node.
        budget: The largest cost of audits. After a quiet hour, the budget of one hour may be spent
            at once.
        seed: The seed of the draws.

    Raises:
        ArgumentError: Where an argument is out of range, or the budget does not allow one audit.
    """

    def __init__(
        self, share: float, *, cost: float = 0.0, budget: Budget | None = None, seed: int = 0
    ) -> None:
        if not 0 < share <= 1:
            raise ArgumentError(f"share is {share!r}; it must be above 0 and at most 1")
        if not 0 <= cost < math.inf:
            raise ArgumentError(f"cost is {cost!r}; it must be finite and not negative")
        self.share, self.cost, self.seed = share, cost, seed
        self.budget = budget or Budget()
        for what, most in (("per hour", self.budget.per_hour), ("in total", self.budget.total)):
            if most <= cost:
                raise ArgumentError(
                    f"the budget is {most:g} {what} and one audit may cost {cost:g}; allow more"
                )
        self.requests = 0
        """The number of requests drawn for."""
        self.uncovered = 0
        """The number of requests that came when the budget was spent; no estimate covers them."""
        self.spent = 0.0
        """The cost of all audits, in the cascade's units."""
        self._hour = self.budget.per_hour
        self._last_time: float | None = None

    def draw(self, request: str | int, now: float) -> Draw:
        """Draw whether a request is audited, and reserve the expected cost if it is.

        Args:
            request: What the draw is made of, such as the id of the request.
            now: The time in seconds; it never decreases.

        Returns:
            Whether the request is audited, and with which probability.
        """
        chance = self._chance(now)
        self.requests += 1
        self.uncovered += chance == 0
        audited = self.position(request) < chance
        if audited:
            self._spend(self.cost)
        return Draw(audited, chance)

    def position(self, request: str | int) -> float:
        """Return the number that is compared with the probability of an audit.

        A request whose number is not below the share is never audited: the probability is at most
        the share.

        Args:
            request: What the draw is made of.

        Returns:
            A number from 0 to 1.
        """
        digest = blake2b(f"{self.seed}:{request}".encode(), digest_size=7).digest()
        return (int.from_bytes(digest) >> 3) / 2**53

    def skip(self, count: int, now: float) -> None:
        """Count requests whose :meth:`position` is not below the share, without a draw.

        Args:
            count: The number of requests.
            now: The time in seconds; it never decreases.
        """
        self.requests += count
        self.uncovered += count * (self._chance(now) == 0)

    def settle(self, cost: float) -> None:
        """Replace the reserved cost of one audit by its actual cost.

        Args:
            cost: The actual cost, in the cascade's units.
        """
        self._spend(cost - self.cost)

    def _spend(self, cost: float) -> None:
        """Charge a cost to both budgets."""
        self.spent += cost
        self._hour -= cost

    def _chance(self, now: float) -> float:
        """Return the current audit probability."""
        most = self.budget
        if self._last_time is not None and now > self._last_time and math.isfinite(most.per_hour):
            gained = (now - self._last_time) / HOUR * most.per_hour
            self._hour = min(most.per_hour, self._hour + gained)
        self._last_time = now if self._last_time is None else max(now, self._last_time)
        left = 1.0
        for have, whole in ((self._hour, most.per_hour), (most.total - self.spent, most.total)):
            if math.isfinite(whole):
                left = min(left, max(0.0, (have - self.cost) / (whole - self.cost)))
        # The share is kept until half of the budget is spent.
        return self.share * min(1.0, 2 * left)


class Estimate(NamedTuple):
    """A mean over all requests, estimated from the audited ones.

    >>> found = estimate([1.0, 0.0, 0.0], [0.5, 0.25, 0.25])
    >>> found.rows, round(found.effective, 2)
    (3, 2.78)
    """

    mean: float
    error: float
    """The standard error of the mean: by how much another draw of audits would change it."""
    rows: int
    """The number of audited rows."""
    effective: float
    """The number of rows of equal weight with the same precision."""


def estimate(values: ArrayLike, chances: ArrayLike, requests: int | None = None) -> Estimate:
    """Return the mean over all requests of a value known for the audited ones.

    Every row is weighted by the inverse of its probability of being audited.

    >>> estimate([1.0, 0.0, 0.0], [0.5, 0.25, 0.25]).mean
    0.2

    Args:
        values: Shape (T,): the value of each audited row.
        chances: Shape (T,): the probability with which each row was audited.
        requests: The number of all requests drawn for. With it the estimate is exactly unbiased
            (Horvitz and Thompson, 1952); without it the weights are scaled to sum to 1, which has
            a smaller variance and a vanishing bias.

    Returns:
        The mean, its standard error, and the rows behind it.

    Raises:
        ArgumentError: Where there are no rows, a chance is not above 0 and at most 1, or there are
            fewer requests than rows.
    """
    known = np.asarray(values, np.float64)
    chance = np.asarray(chances, np.float64)
    is_probability = (chance > 0) & (chance <= 1)
    if not known.size or known.shape != chance.shape or not is_probability.all():
        raise ArgumentError(
            "an estimate needs rows, and for each a value and a chance above 0 and at most 1"
        )
    if requests is not None and requests < known.size:
        raise ArgumentError(
            f"requests is {requests}, and {known.size} of them were audited: count all requests"
        )
    weight = 1 / chance
    total = float(weight.sum())
    count = total if requests is None else requests
    mean = float((weight * known).sum() / count)
    # Where weights are scaled to sum to 1, only deviations from the mean add to the error.
    off = weight * (known - mean if requests is None else known)
    error = float(np.sqrt(((1 - chance) * off**2).sum()) / count)
    return Estimate(mean, error, known.size, total**2 / float((weight**2).sum()))
