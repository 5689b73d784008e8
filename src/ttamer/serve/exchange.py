"""One HTTP exchange over plain ASGI: what was asked, what was sent, and by when."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Self

from ttamer.serve.limits import ClientGone
from ttamer.serve.served import request_id_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

__all__ = ["Exchange", "Guard"]

JSON = "application/json"
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
FIRST_LOOK = 0.05
"""Seconds after which a client that went away is noticed."""
EVENTS = "text/event-stream; charset=utf-8"


class Exchange:
    """A request, and the one response to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.start = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self._send = send
        self.request_id = request_id_from(self.header(b"x-request-id"))
        self.more_headers: dict[str, str] = {}
        """Sent with whatever is sent."""
        self.status = 0
        self.is_stream = False
        """What was sent; 0 before anything was."""

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.monotonic() - self.start

    def header(self, name: bytes) -> str | None:
        """Return a header by its name in small letters."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def send_json(
        self, status: int, data: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole response as JSON."""
        content = _json(data).encode()
        await self.send_bytes(status, content, {"content-type": JSON, **(headers or {})})

    async def send_bytes(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole response."""
        await self._begin(status, {**headers, "content-length": str(len(content))})
        await self._send({"type": "http.response.body", "body": content})

    async def send_events(self, chunks: AsyncIterator[bytes], content_type: str = EVENTS) -> None:
        """Send a response piece by piece, as the pieces come."""
        self.is_stream = True
        headers = {"content-type": content_type, "cache-control": "no-store"}
        await self._begin(200, headers)
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def send_error_event(self, error: Mapping[str, Any]) -> None:
        """End a stream that has begun with an error, as OpenAI's clients understand it."""
        event = b"data: " + json.dumps(error).encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": event})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        every = {**headers, **self.more_headers, "x-request-id": self.request_id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


class Guard:
    """Ends what is inside when its time is over, or when the client has gone away.

    ::

        async with Guard(receive, seconds) as guard:
            ...                 # TimeoutError once the time is over
            guard.look_out()    # from here on ClientGone too: nobody else may receive any more

    It begins to look after a moment: most requests are over by then, and it costs them nothing.
    """

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive, self._seconds = receive, seconds
        self._ended: type[Exception] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a guard belongs to a task")
        self._task: asyncio.Task[Any] = task
        self._loop = asyncio.get_running_loop()
        self._timers = [self._loop.call_later(self._seconds, self._end, TimeoutError)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._ended is None or kind is not asyncio.CancelledError:
            return
        if self._task.uncancel() == 0:
            raise self._ended("the guard ended it") from error

    def look_out(self) -> None:
        """Begin to look for a client that goes away, once all of its request has been read."""
        self._timers.append(self._loop.call_later(FIRST_LOOK, self._begin))

    def _begin(self) -> None:
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end(ClientGone)

    def _end(self, why: type[Exception]) -> None:
        if self._ended is None:
            self._ended = why
            self._task.cancel()
