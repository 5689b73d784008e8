"""One HTTP exchange over plain ASGI: what was asked, what was sent, and by when."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ttamer.serve.served import request_id_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

__all__ = ["Exchange"]

JSON = "application/json"
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
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
        """What was sent; 0 before anything was."""
        self.is_stream = False

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
        raw = [(_name(name), value.encode("latin-1")) for name, value in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """Names are ours, and few."""
    return name.encode("latin-1")
