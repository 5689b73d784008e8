"""Which requests are audited: a share of them, while a budget lasts.

A request is drawn by a hash of its key and a seed, as a number from 0 to 1, so the draw does not
depend on its content. The chance is kept with every row: rows can be weighted by its inverse.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import NamedTuple

from ttamer.errors import ArgumentError


class Draw(NamedTuple):
    """The result of the draw for one request."""

    audited: bool
    """Whether the request is audited."""
    chance: float
    """The chance with which it was drawn."""


class AuditSampler:
    """Draws the requests that are audited.

    >>> audit = AuditSampler(0.25, seed=7)
    >>> sum(audit.draw(f"request-{k}", seconds=0.0).audited for k in range(1000))
    246

    Args:
        share: The share of requests that is audited until half of the budget is spent; from there
            on it falls in proportion to what is left.
        cost: The largest expected cost of one audit: that of asking every node.
        budget: The largest cost of audits per hour. After a quiet hour, that of one hour may be
            spent at once.
        seed: The seed of the draws.

    Raises:
        ArgumentError: Where an argument is out of range, or the budget does not allow one audit.
    """

    def __init__(
        self, share: float, *, cost: float = 0.0, budget: float = math.inf, seed: int = 0
    ) -> None:
        if not 0 < share <= 1:
            raise ArgumentError(f"share is {share!r}; it must be above 0 and at most 1")
        if not 0 <= cost < math.inf:
            raise ArgumentError(f"cost is {cost!r}; it must be finite and not negative")
        if not budget > cost:
            raise ArgumentError(
                f"the budget is {budget:g} per hour and one audit may cost {cost:g}; allow more"
            )
        self.share, self.cost, self.budget, self.seed = share, cost, budget, seed
        self._unspent, self._last_time = budget, math.inf

    def draw(self, key: str | int, seconds: float) -> Draw:
        """Draw whether a request is audited, and reserve the expected cost if it is.

        Args:
            key: What the draw is made of; not one that clients choose.
            seconds: The time.

        Returns:
            Whether the request is audited, and with which chance.
        """
        chance = self._chance(seconds)
        digest = blake2b(f"{self.seed}:{key}".encode(), digest_size=7).digest()
        audited = (int.from_bytes(digest) >> 3) / 2**53 < chance
        if audited:
            self._unspent -= self.cost
        return Draw(audited, chance)

    def settle(self, cost: float) -> None:
        """Replace the reserved cost of one audit by its actual cost.

        Args:
            cost: The actual cost.
        """
        self._unspent -= cost - self.cost

    def _chance(self, seconds: float) -> float:
        if self.budget == math.inf:
            return self.share
        gained = max(0.0, seconds - self._last_time) / 3600 * self.budget
        self._unspent = min(self.budget, self._unspent + gained)
        self._last_time = seconds
        part = max(0.0, self._unspent - self.cost) / (self.budget - self.cost)
        return self.share * min(1.0, 2 * part)
