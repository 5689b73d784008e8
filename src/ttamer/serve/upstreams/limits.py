"""The limits of one node's calls: how many run at once, and how many begin in a second."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from ttamer.serve.admission import ConcurrencyLimit
from ttamer.serve.http import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallLimits", "NodeLimitReached", "RateLimit"]

MAX_WAITING = 1_000_000
"""The number of calls that may wait for a slot of their node."""
FOREVER = 1e9
"""The seconds that a call without a deadline may wait."""


class NodeLimitReached(Exception):
    """A call would have to wait longer than it may."""


class RateLimit:
    """Spreads calls so that a second has at most ``rate`` of them; at first, as many at once.

    >>> times = iter([0.0, 0.0, 0.0, 10.0])
    >>> limit = RateLimit(2.0, clock=lambda: next(times))
    >>> limit.reserve(5.0), limit.reserve(5.0), limit.reserve(5.0), limit.reserve(5.0)
    (0.0, 0.0, 0.5, 0.0)
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock = 1.0 / rate, clock
        self._ahead = max(0.0, 1.0 - self._interval)
        """How far calls may run ahead of an even pace, in seconds."""
        self._next = -math.inf
        """When the next call is due at an even pace."""

    def reserve(self, wait: float) -> float:
        """Return the seconds to wait before a call, which counts from now on.

        Raises:
            NodeLimitReached: If that is longer than ``wait``; then no call counts.
        """
        now = self._clock()
        pause = max(0.0, self._next - self._ahead - now)
        if pause > wait:
            raise NodeLimitReached
        self._next = max(self._next, now) + self._interval
        return pause


class CallLimits:
    """Admits the calls of one node; what is ``None`` is not limited.

    Args:
        concurrent: The most calls at once.
        rate: The most calls that begin in a second.
        wait: The most seconds that a call of a request waits.
    """

    def __init__(self, concurrent: int | None, rate: float | None, wait: float) -> None:
        self._slots: ConcurrencyLimit | None = None
        if concurrent is not None:
            self._slots = ConcurrencyLimit(limit=concurrent, queue=MAX_WAITING, wait=wait)
        self._rate = None if rate is None else RateLimit(rate)
        self._wait = wait

    async def enter(self, left: float) -> None:
        """Wait until a call may begin; :meth:`leave` must follow.

        Args:
            left: The seconds left of the request; infinite for a call that may wait for any time.

        Raises:
            NodeLimitReached: If the call may not begin in time.
        """
        end = time.monotonic() + (FOREVER if left == math.inf else min(self._wait, left))
        if self._slots is not None:
            try:
                await self._slots.acquire(max(0.0, end - time.monotonic()))
            except TooManyRequests:
                raise NodeLimitReached from None
        try:
            if self._rate is not None:
                pause = self._rate.reserve(max(0.0, end - time.monotonic()))
                if pause > 0:
                    await asyncio.sleep(pause)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """End a call."""
        if self._slots is not None:
            self._slots.release()
