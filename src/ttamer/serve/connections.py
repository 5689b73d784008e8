"""Connections to clients: their number, and the bytes and seconds until a request is complete.

The HTTP parser of the server accepts headers of any size at any pace. Here a connection is closed
that sends more than :data:`MAX_HEADER_BYTES` of a request line, headers or trailers, or takes more
than :data:`HEADER_SECONDS` to complete the headers; and a new connection is refused while the
process, or its address, has too many. No key is needed to open a connection, so these limits hold
for every client.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ttamer.errors import MissingExtra
from ttamer.serve.http import EXTENSION

try:
    import httptools
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
    from uvicorn.protocols.http.httptools_impl import (
        STATUS_LINE,
        HttpToolsProtocol,
        RequestResponseCycle,
    )
except ModuleNotFoundError:
    raise MissingExtra("uvicorn", "serve") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ttamer.serve.observability.record import Refusal

__all__ = [
    "BoundedProtocol",
    "ConnectionLimits",
    "ServerCycle",
    "descriptor_limit",
]

MAX_HEADER_BYTES = 64 * 1024
"""The most bytes of a request line and headers, and of trailers."""
HEADER_SECONDS = 10.0
"""The most seconds until the headers of a request are complete."""
IDLE_SECONDS = 75
"""Idle connections are closed after this many seconds: later than clients and load balancers close
theirs (5 to 60), for a request on a connection that is just being closed would fail."""
RESERVED_DESCRIPTORS = 64
"""The file descriptors kept for files, pipes and the listening socket."""
MIN_CONNECTIONS = 16
"""The connections that are allowed however few descriptors there are."""
MAX_CACHED_URL = 128
"""The most bytes of a URL whose parts are kept for the next request."""

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


class ServerCycle(RequestResponseCycle):
    """One request and its response.

    Most requests have arrived whole before they are handled, and most responses are complete when
    they begin: for these, :meth:`take_body` and :meth:`respond` take the place of ASGI's events.
    The application finds them in ``scope["extensions"]``, under
    :data:`~ttamer.serve.http.EXTENSION`.
    """

    def take_body(self) -> bytes | None:
        """Return the whole body; ``None`` where some of it has not been received yet."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    def respond(self, status: int, headers: Mapping[str, str], content: bytes) -> bool:
        """Send a complete response in one write.

        Returns:
            Whether that was possible: not where a response has begun, or where earlier bytes wait
            for the client to read them.
        """
        if self.response_started or self.flow.write_paused:
            return False
        if self.disconnected:
            return True
        if "connection" in headers:  # the gateway sends no other value than "close"
            self.keep_alive = False
        elif not self.keep_alive:
            headers = {**headers, "connection": "close"}
        head = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        lines = len(headers)
        if head.count("\n") != lines or head.count("\r") != lines or "\0" in head:
            raise ValueError("a header has a line break in its name or value")
        parts = [STATUS_LINE[status]]
        for name, value in self.default_headers:
            parts += name, b": ", value, b"\r\n"
        parts += head.encode("latin-1"), b"\r\n"
        if self.scope["method"] != "HEAD":
            parts.append(content)
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"".join(parts))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True

    async def send(self, message: Any) -> None:
        """Send an event of ASGI: the headers, or a part of the body."""
        if not self.response_started:
            loop = asyncio.get_running_loop()
            self.transport = _JoinedWrites(self.transport, loop)  # type: ignore[assignment]
        await super().send(message)


@lru_cache(maxsize=64)
def _parts_of(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the path of a URL, as text and as received, and its query."""
    parsed = httptools.parse_url(url)
    raw = parsed.path
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, raw, parsed.query or b""


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
        self._head = b""
        """The head of a request that offers another protocol, without the offer."""
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
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._unparsed > MAX_HEADER_BYTES:
            self._refuse("headers")
        elif self._timer is None and (self._awaits_headers or self._is_idle):
            self._start_timer()

    def _parse(self, data: bytes) -> None:
        """Parse bytes; a request that offers another protocol, as HTTP/2, without that offer.

        The parser takes all that follows its headers for the other protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            text = "Invalid HTTP request received."
            self.logger.warning(text)
            self.send_400_response(text)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._head = self._head, b""
            if head:
                self.parser = httptools.HttpRequestParser(self)
                with suppress(AttributeError):  # before httptools 0.6.3
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self._parse(head + data[upgrade.args[0] :])

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        """Begin to count the headers of a request."""
        self._header_bytes = 0
        self._awaits_headers = True
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._header_bytes += len(url)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse("headers")
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer only counts."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse("headers")
        elif self._awaits_headers:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._unparsed = 0
        self._awaits_headers = self.is_fresh = False
        if self._timer is not None:
            self._stop_timer()
        if self.transport.is_closing():
            return
        parser, before = self.parser, self.cycle
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            spoken = parser.get_http_version().encode()
            first = b"%b %b HTTP/%b\r\n" % (parser.get_method(), self.url, spoken)
            lines = [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
            self._head = b"".join([first, *lines, b"\r\n"])
            return
        parts = _parts_of if len(self.url) <= MAX_CACHED_URL else _parts_of.__wrapped__
        path, raw_path, query = parts(self.url)
        version = parser.get_http_version()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        self.cycle = cycle = ServerCycle(
            scope=scope,  # type: ignore[arg-type]
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["extensions"] = {EXTENSION: cycle}
        if before is None or before.response_complete:
            task = self.loop.create_task(cycle.run_asgi(self.app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        else:  # it waits until the response before it is complete
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        cycle = self.cycle
        if not self.transport.is_closing() and not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_chunk_header(self) -> None:
        """The parser read the size of a chunk."""
        self._unparsed = 0

    def on_message_complete(self) -> None:
        """End the request."""
        self._unparsed = 0
        cycle = self.cycle
        if cycle is not None and not self.transport.is_closing() and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

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
