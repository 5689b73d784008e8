"""What each API key spends: its requests, its costs, its budget and its rate.

Counts are of one process, since its start. A budget is for a period, such as a day: periods begin
at multiples of their length since 1970, so that a day begins at midnight UTC.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from ttamer.serve.http import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Account", "BudgetSpent", "KeyRefused", "RateExceeded"]


class KeyRefused(HttpError):
    """A request that its key does not allow now."""

    status = 429
    reason = ""
    """The limit, in metrics: "budget" or "rate"."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(f"{message}; retry in {retry_after} s")
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """The header ``Retry-After``."""
        return {"retry-after": str(self.retry_after)}


class BudgetSpent(KeyRefused):
    """The budget of the key is spent."""

    code = "insufficient_quota"
    reason = "budget"


class RateExceeded(KeyRefused):
    """The key has made too many requests in the last minute."""

    code = "rate_limit_exceeded"
    reason = "rate"


class Account:
    """The spending of one API key.

    >>> account = Account("web", budget=10.0)
    >>> account.admit()
    >>> window = account.reserve(9.0)
    >>> account.left
    1.0
    >>> account.settle(window, 9.0, 2.0)
    >>> account.left
    8.0
    """

    def __init__(
        self,
        name: str,
        *,
        budget: float | None = None,
        period: float = 86_400.0,
        rate: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._budget, self._period, self._rate = budget, period, rate
        self._clock = clock
        self._window = self._window_now()
        self._spent = 0.0
        self._tokens = rate or 0.0
        self._refilled = clock()
        self.refused = {"budget": 0, "rate": 0}
        """The requests that were refused, by reason."""

    def change(self, *, budget: float | None, period: float, rate: float | None) -> None:
        """Change the limits; what was spent in a period of the same length still counts."""
        self._budget, self._rate = budget, rate
        self._tokens = min(self._tokens, rate or 0.0)
        if period != self._period:
            self._period = period
            self._window, self._spent = self._window_now(), 0.0

    @property
    def spent(self) -> float:
        """What the key has spent in this period, open charges at the most they can be."""
        self._turn()
        return self._spent

    @property
    def left(self) -> float:
        """What the key may still spend in this period; infinite without a budget."""
        return math.inf if self._budget is None else max(0.0, self._budget - self.spent)

    def admit(self) -> None:
        """Count a request against the rate.

        Raises:
            BudgetSpent: If nothing is left of the budget.
            RateExceeded: If there were too many requests.
        """
        if self._budget is not None and self.left <= 0:
            raise self.budget_spent()
        if self._rate is None:
            return
        now = self._clock()
        refill = max(0.0, now - self._refilled) * self._rate / 60
        self._tokens, self._refilled = min(self._rate, self._tokens + refill), now
        if self._tokens < 1:
            self.refused["rate"] += 1
            wait = math.ceil((1 - self._tokens) * 60 / self._rate)
            raise RateExceeded(f"this API key may make {self._rate:g} requests a minute", wait)
        self._tokens -= 1

    def budget_spent(self) -> BudgetSpent:
        """Return the refusal of a request that the budget does not allow."""
        self.refused["budget"] += 1
        wait = math.ceil((self._window_now() + 1) * self._period - self._clock())
        return BudgetSpent(f"the budget of this API key is spent: {self._budget:g}", max(1, wait))

    def reserve(self, cost: float) -> int:
        """Book a cost; return the period that it belongs to."""
        self._turn()
        self._spent += cost
        return self._window

    def settle(self, window: int, reserved: float, cost: float) -> None:
        """Replace a cost that was booked by another."""
        self._turn()
        self._spent += cost - (reserved if window == self._window else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for the status page, in plain values."""
        return {
            "budget": self._budget,
            "period": self._period,
            "spent_in_period": self.spent,
            "rate": self._rate,
            "refused": dict(self.refused),
        }

    def _turn(self) -> None:
        """Begin a new period where the last one is over."""
        window = self._window_now()
        if window != self._window:
            self._window, self._spent = window, 0.0

    def _window_now(self) -> int:
        return math.floor(self._clock() / self._period)
