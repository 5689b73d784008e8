"""Connections to clients: their number, and the bytes and seconds until a request is complete.

The HTTP parser of the server accepts headers of any size at any pace. Here a connection is closed
that sends more than :data:`MAX_HEADER_BYTES` of a request line, headers or trailers, or takes more
than :data:`HEADER_SECONDS` to complete the headers; and a new connection is refused while the
process, or its address, has too many. No key is needed to open a connection, so these limits hold
for every client.
"""

from __future__ import annotations

import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ttamer.errors import MissingExtra

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError:
    raise MissingExtra("uvicorn", "serve") from None

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["REFUSALS", "BoundedProtocol", "ConnectionLimits", "descriptor_limit"]

MAX_HEADER_BYTES = 64 * 1024
"""The most bytes of a request line and headers, and of trailers."""
HEADER_SECONDS = 10.0
"""The most seconds until the headers of a request are complete."""
RESERVED_DESCRIPTORS = 64
"""The file descriptors kept for files, pipes and the listening socket."""
MIN_CONNECTIONS = 16
"""The connections that are allowed however few descriptors there are."""

Refusal = Literal["process", "address", "headers", "timeout"]
"""Why a connection is closed.

process: the process has too many; address: its address has too many; headers: they are too large;
timeout: they were not complete in time.
"""
REFUSALS: tuple[Refusal, ...] = ("process", "address", "headers", "timeout")
"""All reasons."""

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


def descriptor_limit(upstream_connections: int) -> int:
    """Return how many clients may be connected, beside ``upstream_connections`` to upstreams.

    The process's own limit of open files is raised as far as the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    free = (65_536 if soft == resource.RLIM_INFINITY else soft) - RESERVED_DESCRIPTORS
    return max(MIN_CONNECTIONS, free - upstream_connections)


@dataclass
class ConnectionLimits:
    """How many connections there are, and may be.

    >>> limits = ConnectionLimits(2, per_address=1)
    >>> limits.admit("10.0.0.1"), limits.admit("10.0.0.1"), limits.admit("10.0.0.2")
    (None, 'address', None)
    >>> limits.admit("10.0.0.3")
    'process'
    """

    limit: int
    per_address: int
    refused: Callable[[Refusal], None] = lambda _: None
    """Called with the reason of each refusal."""
    connections: int = 0
    _addresses: Counter[str] = field(default_factory=Counter)

    def admit(self, address: str) -> Refusal | None:
        """Count a connection, or return why it is refused."""
        if self.connections >= self.limit:
            return "process"
        if self._addresses[address] >= self.per_address:
            return "address"
        self.connections += 1
        self._addresses[address] += 1
        return None

    def leave(self, address: str) -> None:
        """Count a connection that was closed."""
        self.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class _JoinedWrites:
    """A transport that writes the headers of a response together with its body.

    The server writes them one after the other, and each write wakes the receiver. Headers that no
    body follows at once are written in the next round of the event loop.
    """

    __slots__ = ("_handle", "_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = b""
        self._handle: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        """Keep the first bytes for a moment; write them with the next ones."""
        if self._head is None:
            self._transport.write(data)
        elif self._handle is None:
            self._head, self._handle = data, self._loop.call_soon(self._flush)
        else:
            self._handle.cancel()
            head, self._head = self._head, None
            self._transport.write(head + data)

    def close(self) -> None:
        """Write what is kept, and close."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closing."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a property of the connection."""
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = None


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on the connection itself."""

    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._address: str | None = None
        self._unparsed = 0
        """Bytes received since the parser last completed a part of a message."""
        self._header_bytes = 0
        self._awaits_headers = True
        self.is_fresh = True
        """Whether no request has been received yet."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or close it."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        refusal = self._limits.admit(address)
        if refusal is not None:
            self._limits.refused(refusal)
            transport.abort()
            return
        self._address = address
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._stop_timer()
        if self._address is not None:
            self._limits.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client, up to the limits."""
        if self.transport.is_closing():
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADER_BYTES:
            self._refuse("headers")
        elif self._timer is None and (self._awaits_headers or self._is_idle):
            self._start_timer()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        """Begin to count the headers of a request."""
        self._header_bytes = 0
        self._awaits_headers = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._count(len(name) + len(value))
        if self._header_bytes <= MAX_HEADER_BYTES:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._unparsed = 0
        self._awaits_headers = self.is_fresh = False
        self._stop_timer()
        if not self.transport.is_closing():
            super().on_headers_complete()
            self.cycle.transport = _JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_chunk_header(self) -> None:
        """The parser read the size of a chunk."""
        self._unparsed = 0

    def on_message_complete(self) -> None:
        """End the request."""
        self._unparsed = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse("headers")

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._refuse, "timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, reason: Refusal) -> None:
        """Close the connection, with a response where none has begun."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        self._limits.refused(reason)
        if reason == "headers" and self._awaits_headers:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        else:
            self.transport.abort()
