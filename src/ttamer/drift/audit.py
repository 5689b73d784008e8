"""Which requests are audited: a share, drawn by a hash, within a budget.

A request is audited if a number from 0 to 1, made of its id and a seed by a hash, is below the
chance in force. That knows nothing of what the request says, and comes out alike when it comes
again. The chance is the stated share as long as the budget allows it; as the budget runs low it
falls in proportion to what is left, and the chance in force is kept with every row. So estimates
can be weighted by one over it (:func:`estimate`), which makes them unbiased for the traffic as it
came, though more was audited in quiet hours than in busy ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Audit", "Budget", "Draw", "Estimate", "estimate"]

HOUR = 3600.0


@dataclass(frozen=True)
class Budget:
    """What audits may cost, in the cascade's units."""

    per_hour: float = math.inf
    total: float = math.inf

    def __post_init__(self) -> None:
        if not (self.per_hour > 0 and self.total > 0):
            raise ArgumentError(
                f"a budget must be above 0, not {self.per_hour} per hour and {self.total} in total"
            )


class Draw(NamedTuple):
    """What was drawn for a request."""

    audited: bool
    chance: float
    """The chance it had."""


class Audit:
    """Draws which requests are audited.

    >>> audit = Audit(0.25, seed=7)
    >>> sum(audit.draw(f"request-{k}", now=0.0).audited for k in range(1000))
    246

    Args:
        share: Of requests, while the budget lasts.
        cost: The most that one audit is expected to cost: of asking every node.
        budget: What audits may cost. An hour's worth may be spent at once after a quiet hour.
        seed: Another one, another sample.
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
                    f"the budget is {most:g} {what}, and one audit may cost {cost:g}: allow more"
                )
        self.requests = 0
        """All requests drawn for."""
        self.uncovered = 0
        """Requests that came when nothing was left: no estimate can speak for them."""
        self.spent = 0.0
        self._hour = self.budget.per_hour
        self._then: float | None = None

    def draw(self, request: str | int, now: float) -> Draw:
        """Say whether a request is audited; what it may cost is set aside at once.

        ``now`` is in seconds and never runs back.
        """
        chance = self._chance(now)
        self.requests += 1
        self.uncovered += chance == 0
        digest = blake2b(f"{self.seed}:{request}".encode(), digest_size=7).digest()
        audited = (int.from_bytes(digest) >> 3) / 2**53 < chance
        if audited:
            self._spend(self.cost)
        return Draw(audited, chance)

    def settle(self, cost: float) -> None:
        """Say what an audit did cost; the rest of what was set aside is free again."""
        self._spend(cost - self.cost)

    def _spend(self, cost: float) -> None:
        self.spent += cost
        self._hour -= cost

    def _chance(self, now: float) -> float:
        most = self.budget
        if self._then is not None and now > self._then and math.isfinite(most.per_hour):
            gained = (now - self._then) / HOUR * most.per_hour
            self._hour = min(most.per_hour, self._hour + gained)
        self._then = now if self._then is None else max(now, self._then)
        left = 1.0
        for have, whole in ((self._hour, most.per_hour), (most.total - self.spent, most.total)):
            if math.isfinite(whole):
                left = min(left, max(0.0, (have - self.cost) / (whole - self.cost)))
        # The share stands until half of the budget is gone.
        return self.share * min(1.0, 2 * left)


class Estimate(NamedTuple):
    """A mean over all requests, from those audited."""

    mean: float
    error: float
    """Its standard error."""
    rows: int
    effective: float
    """So many rows of equal weight would say as much."""


def estimate(values: ArrayLike, chances: ArrayLike, requests: int | None = None) -> Estimate:
    """Return the mean over all requests of what is known of audited ones.

    Every row counts for one over the chance it had. With ``requests``, the number of all requests
    drawn for, the estimate is exactly unbiased (Horvitz and Thompson, 1952); without, weights are
    scaled to sum to one, which has less spread and a bias that vanishes.

    >>> estimate([1.0, 0.0, 0.0], [0.5, 0.25, 0.25]).mean
    0.2
    """
    known = np.asarray(values, np.float64)
    chance = np.asarray(chances, np.float64)
    if not known.size or known.shape != chance.shape or not (chance > 0).all():
        raise ArgumentError("an estimate needs rows, and for each a value and a chance above 0")
    weight = 1 / chance
    total = weight.sum()
    mean = float((weight * known).sum() / (total if requests is None else requests))
    spread = (weight * (known - (weight * known).sum() / total)) ** 2
    error = float(np.sqrt(spread.sum()) / (total if requests is None else requests))
    return Estimate(mean, error, known.size, float(total**2 / (weight**2).sum()))
