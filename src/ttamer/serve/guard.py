"""What ends a request whose time is over, or whose client has gone away."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from ttamer.serve.limits import ClientGone

if TYPE_CHECKING:
    from ttamer.serve.exchange import Receive

__all__ = ["Guard", "Round"]

EVERY = 0.05
"""Seconds between two rounds."""


class Round:
    """Looks after all guards at once, again and again while there are any.

    A timer for each request took a tenth of the time of a short one.
    """

    def __init__(self) -> None:
        self._guards: dict[Guard, None] = {}
        self._is_going = False

    def add(self, guard: Guard) -> None:
        """Look after one more."""
        self._guards[guard] = None
        if not self._is_going:
            self._is_going = True
            asyncio.get_running_loop().call_later(EVERY, self._go)

    def remove(self, guard: Guard) -> None:
        """It needs no looking after any more."""
        del self._guards[guard]

    def _go(self) -> None:
        now = time.monotonic()
        for guard in tuple(self._guards):
            guard.look(now)
        self._is_going = bool(self._guards)
        if self._is_going:
            asyncio.get_running_loop().call_later(EVERY, self._go)


class Guard:
    """Ends what is inside when its time is over, or when the client has gone away.

    ::

        with Guard(round, receive, seconds) as guard:
            ...                 # TimeoutError once the time is over
            guard.look_out()    # from here on ClientGone too: nobody else may receive any more

    It begins to look at the next round: most requests are over by then, and it costs them nothing.
    """

    __slots__ = ("_end", "_ended", "_is_out", "_looking", "_receive", "_round", "_task")

    def __init__(self, watch: Round, receive: Receive, seconds: float) -> None:
        self._round, self._receive = watch, receive
        self._end = time.monotonic() + seconds
        self._is_out = False
        self._ended: type[Exception] | None = None
        self._looking: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a guard belongs to a task")
        self._task: asyncio.Task[Any] = task
        self._round.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._round.remove(self)
        if self._looking is not None:
            self._looking.cancel()
        if self._ended is None or kind is not asyncio.CancelledError:
            return
        if self._task.uncancel() == 0:
            raise self._ended("the guard ended it") from error

    def look_out(self) -> None:
        """Begin to look for a client that goes away, once all of its request has been read."""
        self._is_out = True

    def look(self, now: float) -> None:
        """See whether it is to be ended; called once a round."""
        if now >= self._end:
            self._stop(TimeoutError)
        elif self._is_out and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._stop(ClientGone)

    def _stop(self, why: type[Exception]) -> None:
        if self._ended is None:
            self._ended = why
            self._task.cancel()
