"""Circuit breakers: calls to a server that fails are stopped for a while."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ttamer.serve.observability.record import Failure

__all__ = ["NO_PROBE", "CircuitBreaker", "Permit"]

MIN_OUTAGE = 1.0
"""The seconds without a success after which failures open a circuit breaker."""
FIRST_PAUSE = 5.0
"""The seconds after which a server is tested; doubled for each further test that fails."""
MAX_PAUSE = 60.0
"""The most seconds between two tests."""
_BREAKING: frozenset[Failure] = frozenset({"connect", "timeout", "busy", "error", "cut"})
"""The failures that the circuit breaker counts: those of the server, not of one request."""


class Permit:
    """Allows one call of a server with a circuit breaker; that of a probe is its own."""

    __slots__ = ()


NO_PROBE = Permit()
"""The permit of calls to a server whose circuit breaker is closed."""


class CircuitBreaker:
    """Stops calls to a server that fails, and tests from time to time whether it works again.

    It opens after ``failures`` failures in a row, over at least :data:`MIN_OUTAGE` seconds unless
    they are timeouts: of concurrent calls, those that fail end first. While it is open no call is
    made; after a pause one call is allowed, the probe, which closes it or doubles the pause. Of the
    calls that began before, only a success counts meanwhile. Calls that wait for a server when its
    timeouts open the breaker end at once.

    >>> breaker = CircuitBreaker(failures=2)
    >>> breaker.failed("timeout"), breaker.allow() is None
    (None, False)
    >>> CircuitBreaker(failures=0).allow() is None
    False
    """

    def __init__(self, failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = failures, clock
        self._failures = 0
        self._first_failure = 0.0
        self._pause = FIRST_PAUSE
        self._open_until: float | None = None
        self._probe: Permit | None = None
        self.waiting: set[_Expiring] = set()
        """What waits for the server, and ends when timeouts open the breaker."""

    @property
    def is_open(self) -> bool:
        """Whether calls are stopped."""
        return self._open_until is not None

    def allow(self) -> Permit | None:
        """Return the permit of a call that may be made now; after a pause, one may."""
        if self._open_until is None:
            return NO_PROBE
        if not self.may_test:
            return None
        self._probe = Permit()
        return self._probe

    @property
    def may_test(self) -> bool:
        """Whether it is open and the next call would test the server."""
        is_due = self._open_until is not None and self._clock() >= self._open_until
        return is_due and self._probe is None

    @property
    def seconds_left(self) -> float:
        """The seconds until a call may test the server; 0 where none is left."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def succeeded(self) -> None:
        """Take the success of a call."""
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._open_until = None
        self._probe = None

    def failed(self, kind: Failure, permit: Permit = NO_PROBE) -> None:
        """Take the failure of a call, with its permit."""
        if kind not in _BREAKING:
            self.succeeded()  # the server works
            return
        now = self._clock()
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        is_probe = self._end_probe(permit)
        is_long = kind == "timeout" or now - self._first_failure >= MIN_OUTAGE
        is_outage = self._failures >= self._limit and is_long
        if not self._limit or not (is_probe or is_outage):
            return
        if self._open_until is None or is_probe:
            self._open_until = now + self._pause
            self._pause = min(2 * self._pause, MAX_PAUSE)
            if kind == "timeout":
                for each in tuple(self.waiting):
                    each.expire()

    def abandoned(self, permit: Permit) -> None:
        """Take the end of a call that shows nothing about the server, with its permit."""
        self._end_probe(permit)

    def _end_probe(self, permit: Permit) -> bool:
        """Return whether the permit is that of the probe, which has ended."""
        is_probe = permit is self._probe
        if is_probe:
            self._probe = None
        return is_probe

    def limited(self, seconds: float) -> _Limited:
        """Limit the time of a block, which also ends when timeouts open the breaker."""
        return _Limited(self.waiting, seconds)


class _Expiring(Protocol):
    """What waits for a server."""

    def expire(self) -> None: ...


class _Limited:
    """A time limit."""

    __slots__ = ("_timeout", "_waiting")

    def __init__(self, waiting: set[_Expiring], seconds: float) -> None:
        self._waiting, self._timeout = waiting, asyncio.timeout(seconds)

    def expire(self) -> None:
        """End the block now."""
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._waiting.add(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.discard(self)
        await self._timeout.__aexit__(kind, error, trace)
