"""An HTTP/1.1 client for upstreams: one POST at a time on each connection, connections kept open.

The parser is llhttp's (``httptools``, which the server uses too). A general client took a third of
the time of a request; this one has what a gateway needs: TLS, keep-alive, chunked bodies, limits on
the size of headers and bodies, and streams whose sender waits for a slow reader. It follows no
redirect, keeps no cookie, reads no proxy from the environment and accepts no compressed response.
A :class:`Route` leads through an HTTP proxy: https by a tunnel (CONNECT), http by the whole URL.

Other time limits are the caller's (``asyncio.timeout``): a block that ends early closes its
connection.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from ttamer.errors import MissingExtra

try:
    from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
except ModuleNotFoundError:
    raise MissingExtra("httptools", "serve") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = [
    "ConnectFailed",
    "ConnectionCut",
    "HttpClient",
    "Response",
    "Route",
    "Target",
    "TooLarge",
    "tls_context",
]

KEEP_ALIVE = 4.0
"""The seconds that an idle connection is kept.

Many servers close after 5: a shorter time avoids a call on a connection that is being closed.
"""
MAX_HEADER_BYTES = 64 * 1024
"""The most bytes of a response's status line and headers, and of its trailers."""
MAX_ERROR_BYTES = 4096
"""The most bytes kept of a response whose status is not 200."""
MAX_BUFFERED = 256 * 1024
"""The bytes of a stream that may wait for their reader; beyond, the sender has to wait."""
CLOSE_SECONDS = 1.0
"""The most seconds that closing all connections may take."""

_LINES = re.compile(r"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t -~\x80-\xff]*\r\n)*")


class ConnectFailed(ConnectionError):
    """No connection: the name was not found, the port is closed, or TLS failed."""


class ConnectionCut(ConnectionError):
    """The connection broke, or its bytes are not HTTP, before the response was complete."""


class TooLarge(ConnectionError):
    """The response has more bytes than allowed."""


class Route(NamedTuple):
    """How a server is reached, and which certificates it may have."""

    proxy: str | None = None
    """The URL of an HTTP proxy."""
    proxy_auth: str | None = None
    """The value of ``Proxy-Authorization``."""
    ca_file: str | None = None
    """A file of certificates that are trusted besides those of the system."""


class Origin(NamedTuple):
    """A server: what connections are kept for."""

    host: str
    port: int
    is_tls: bool
    route: Route = Route()


class Target:
    """A URL and the headers that every request to it has, encoded once."""

    __slots__ = ("_head", "origin")

    def __init__(self, url: str, headers: Mapping[str, str], route: Route = Route()) -> None:  # noqa: B008 - it is immutable
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        host = parts.hostname or ""
        self.origin = Origin(host, parts.port or (443 if is_tls else 80), is_tls, route)
        path = parts.path or "/"
        if parts.query:
            path = f"{path}?{parts.query}"
        if route.proxy is not None and not is_tls:
            path = f"http://{parts.netloc}{path}"
            headers = {**headers, **_proxy_headers(route)}
        head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\naccept-encoding: identity\r\n"
        self._head = (head + _lines(headers)).encode("latin-1")

    def request(self, content: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the bytes of a request."""
        head = f"{_lines(headers)}content-length: {len(content)}\r\n\r\n"
        return self._head + head.encode("latin-1") + content


def _proxy_headers(route: Route) -> dict[str, str]:
    return {} if route.proxy_auth is None else {"proxy-authorization": route.proxy_auth}


def _lines(headers: Mapping[str, str]) -> str:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    text = "".join(lines)
    if not _LINES.fullmatch(text) or text.count("\n") != len(lines):
        raise ValueError(
            f"one of the headers {', '.join(headers)!r} has characters that are not allowed"
        )
    return text


class Response:
    """A response that has begun; ``content`` is the whole body where it was awaited."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self, connection: _Connection, status: int, headers: dict[bytes, bytes], content: bytes
    ) -> None:
        self._connection = connection
        self.status, self.headers, self.content = status, headers, content

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case."""
        value = self.headers.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Return the body piece by piece, each as soon as it is received."""
        while chunk := await self._connection.chunk():
            yield chunk

    def close(self) -> None:
        """End the exchange: the connection is kept if the body is complete, else closed."""
        self._connection.release()


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return which certificates of servers are accepted.

    Raises:
        OSError: If the file cannot be read, or holds no certificate.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class _Tunnel(asyncio.Protocol):
    """The request to a proxy for a connection to a server; ``opened`` is set by its response."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._received = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask for the connection."""
        host = f"[{self._origin.host}]" if ":" in self._origin.host else self._origin.host
        address = f"{host}:{self._origin.port}"
        lines = _lines({"host": address, **_proxy_headers(self._origin.route)})
        transport.write(f"CONNECT {address} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))

    def data_received(self, data: bytes) -> None:
        """Take the response."""
        self._received += data
        if b"\r\n\r\n" in self._received or len(self._received) > MAX_HEADER_BYTES:
            status = self._received.split(b" ", 2)[1:2]
            if status == [b"200"]:
                self._end(None)
            else:
                shown = status[0][:3].decode("latin-1") if status else "none"
                self._end(ConnectFailed(f"the proxy opened no connection: status {shown}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail, unless the response was received."""
        del exc
        self._end(ConnectFailed("the proxy closed the connection"))

    def _end(self, error: Exception | None) -> None:
        if self.opened.done():
            return
        if error is None:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(error)


class HttpClient:
    """A pool of connections; open inside ``async with``.

    Args:
        connections: The most connections, to all servers together; others wait.
        tls: What certificates are accepted; by default those that the system trusts.

    ::

        async with HttpClient() as client:
            target = Target("http://127.0.0.1:8081/v1/chat/completions", headers)
            connection = await client.acquire(target.origin)
            response = await connection.exchange(target.request(b"{}", {}), 8 * 1024 * 1024, 30.0)
    """

    def __init__(self, connections: int = 512, *, tls: ssl.SSLContext | None = None) -> None:
        self._limit, self._tls = connections, tls
        self._contexts: dict[str | None, ssl.SSLContext] = {}
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._emptied = asyncio.get_running_loop().create_future()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await asyncio.wait([self._emptied], timeout=CLOSE_SECONDS)

    def change(self, connections: int) -> None:
        """Change the most connections; those that are open stay."""
        self._limit = connections
        for _ in range(len(self._waiters)):
            self._wake()

    async def acquire(self, origin: Origin) -> _Connection:
        """Return a connection on which nothing has been sent yet.

        Raises:
            ConnectFailed: If there is none.
        """
        while True:
            connection = self.take(origin)
            if connection is not None:
                return connection
            if len(self._open) + self._opening < self._limit:
                return await self._connect(origin)
            self._close_an_idle_one()
            await self._wait()

    def take(self, origin: Origin) -> _Connection | None:
        """Return an idle connection; ``None`` where there is none, and one must be awaited."""
        idle = self._idle.get(origin)
        oldest = time.monotonic() - KEEP_ALIVE
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.is_usable:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> _Connection:
        self._opening += 1
        try:
            context = self._context(origin.route.ca_file) if origin.is_tls else None
            if origin.route.proxy is not None:
                return await self._connect_by_proxy(origin, origin.route.proxy, context)
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self, origin), origin.host, origin.port, ssl=context
            )
        except OSError as error:  # ssl.SSLError is one
            raise ConnectFailed(str(error)) from None
        finally:
            self._opening -= 1
            self._wake()
        return connection

    async def _connect_by_proxy(
        self, origin: Origin, proxy: str, context: ssl.SSLContext | None
    ) -> _Connection:
        """Connect to the proxy and, for TLS, through it to the server."""
        loop = asyncio.get_running_loop()
        parts = urlsplit(proxy)
        host, port = parts.hostname or "", parts.port or 80
        if context is None:
            _, plain = await loop.create_connection(lambda: _Connection(self, origin), host, port)
            return plain
        transport, tunnel = await loop.create_connection(lambda: _Tunnel(origin), host, port)
        try:
            await tunnel.opened
            connection = _Connection(self, origin)
            encrypted = await loop.start_tls(
                transport, connection, context, server_hostname=origin.host
            )
        except BaseException:
            transport.abort()
            raise
        if encrypted is None:
            raise ConnectFailed("the proxy closed the connection")
        connection.connection_made(encrypted)
        return connection

    def _context(self, ca_file: str | None) -> ssl.SSLContext:
        if self._tls is not None:
            return self._tls
        context = self._contexts.get(ca_file)
        if context is None:
            context = self._contexts[ca_file] = tls_context(ca_file)
        return context

    def _close_an_idle_one(self) -> None:
        """Make room: connections to other servers do not keep a request waiting."""
        for idle in self._idle.values():
            if idle:
                idle.popleft().abort()
                return

    async def _wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiters:
                self._waiters.remove(future)
            else:  # it was woken at the moment it was cancelled
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiters:
            future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)
                return

    def opened(self, connection: _Connection) -> None:
        """Count a connection."""
        self._open.add(connection)

    def closed(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        if self._emptied is not None and not self._open and not self._emptied.done():
            self._emptied.set_result(None)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)
        self._wake()

    def keep(self, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = time.monotonic()
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = deque()
        idle.append(connection)
        if self._waiters:
            self._wake()
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(KEEP_ALIVE, self._close_old_ones)

    def _close_old_ones(self) -> None:
        oldest = time.monotonic() - KEEP_ALIVE
        self._sweep = None
        for idle in self._idle.values():
            while idle and idle[0].idle_since < oldest:
                idle.popleft().abort()
        if any(self._idle.values()):
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(KEEP_ALIVE, self._close_old_ones)


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, client: HttpClient, origin: Origin) -> None:
        self._client, self.origin = client, origin
        self._loop = asyncio.get_running_loop()
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self._is_busy = False
        self._is_streaming = False
        self._is_paused = False
        self._limit = 0
        self._begin()

    def _begin(self) -> None:
        """Forget the last response."""
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._unparsed = 0
        """Bytes received since the parser last completed a part of the response."""
        self._parts: list[bytes] = []
        self._size = 0
        self._has_headers = self._is_complete = self._is_reusable = False
        self._error: OSError | None = None

    # What the client calls.

    @property
    def is_usable(self) -> bool:
        """Whether a request can be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not self._is_busy

    async def exchange(self, request: bytes, limit: int, timeout: float) -> Response:
        """Send a request, and return the whole response.

        Raises:
            ConnectionCut: If the connection breaks.
            TooLarge: If the body has more than ``limit`` bytes.
            TimeoutError: If the response takes more than ``timeout`` seconds.
        """
        self._send(request, limit, is_streaming=False)
        timer = self._loop.call_later(timeout, self.expire)
        try:
            if not self._is_complete:
                await self._wait()
            content = b"".join(self._parts) if len(self._parts) != 1 else self._parts[0]
            return Response(self, self._status, self._headers, content)
        finally:
            timer.cancel()
            self.release()

    def expire(self) -> None:
        """End an exchange that takes too long."""
        self._fail(TimeoutError("there was no response in time"))

    async def start(self, request: bytes) -> Response:
        """Send a request, and return the response once its headers are received.

        A response whose status is not 200 is awaited whole. The caller closes the response.
        """
        self._send(request, 0, is_streaming=True)
        try:
            while not self._is_complete and not self._has_headers:
                await self._wait()
            if self._status != 200 and not self._is_complete:
                self._is_streaming = False
                await self._wait()
        except BaseException:
            self.release()
            raise
        content = b"" if self._is_streaming else b"".join(self._parts)
        return Response(self, self._status, self._headers, content)

    async def chunk(self) -> bytes:
        """Return what was received of the body since the last time; empty at its end."""
        while not self._parts and not self._is_complete:
            await self._wait()
        if self._error is not None and not self._parts:
            raise self._error
        content = b"".join(self._parts)
        self._parts.clear()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return content

    def release(self) -> None:
        """Keep the connection where its response is complete, else close it."""
        if not self._is_busy:
            return
        self._is_busy = False
        transport = self._transport
        if self._is_complete and self._is_reusable and transport and not transport.is_closing():
            self._client.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, request: bytes, limit: int, *, is_streaming: bool) -> None:
        self._begin()
        self._is_busy, self._is_streaming = True, is_streaming
        self._limit = limit
        if self._transport is None or self._transport.is_closing():
            self._is_busy = False
            raise ConnectFailed("the connection was closed")
        self._transport.write(request)

    async def _wait(self) -> None:
        """Wait until there is more to read, or an end."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None and not (self._is_streaming and self._parts):
            raise self._error

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: OSError) -> None:
        if not self._is_complete:
            self._error, self._is_complete, self._is_reusable = error, True, False
            self._notify()
        self.abort()

    def _finish(self, *, is_reusable: bool) -> None:
        if not self._is_complete:
            self._is_complete, self._is_reusable = True, is_reusable
            self._notify()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the transport."""
        self._transport = transport
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        """Parse what was received."""
        if not self._is_busy or self._is_complete:
            self._is_reusable = False  # bytes that no request asked for
            self.abort()
            return
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._fail(ConnectionCut("what was received is not HTTP"))
            return
        if self._unparsed > MAX_HEADER_BYTES and not self._is_complete:
            self._fail(TooLarge(f"the headers have more than {MAX_HEADER_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: a body without a length ends with its connection."""
        self._transport = None
        self._client.closed(self)
        if not self._is_busy or self._is_complete:
            return
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if exc is None and self._has_headers and not has_length:
            self._finish(is_reusable=False)
        else:
            self._fail(ConnectionCut("the connection broke"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin a response; a connection with bytes after a complete one is not reused."""
        if self._is_complete:
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(TooLarge(f"the headers have more than {MAX_HEADER_BYTES} bytes"))
        elif not self._has_headers:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Take the status; one below 200 announces another."""
        self._unparsed = 0
        status = self._parser.get_status_code()
        if self._is_complete:
            return
        if status < 200:
            self._headers = {}
            return
        self._status, self._has_headers = status, True
        if self._is_streaming:
            self._notify()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed = 0
        if self._is_complete:
            return
        self._size += len(body)
        if self._status != 200:
            room = MAX_ERROR_BYTES - sum(map(len, self._parts))
            self._parts.append(body[:room])
            if self._size > MAX_ERROR_BYTES:
                self._finish(is_reusable=False)
        elif self._is_streaming:
            self._parts.append(body)
            self._notify()
            if self._transport is not None and sum(map(len, self._parts)) > MAX_BUFFERED:
                self._is_paused = True
                self._transport.pause_reading()
        elif self._size > self._limit:
            self._parts.clear()
            self._fail(TooLarge(f"the response has more than {self._limit} bytes"))
        else:
            self._parts.append(body)

    def on_chunk_header(self) -> None:
        """The parser read the size of a chunk."""
        self._unparsed = 0

    def on_message_complete(self) -> None:
        """End the response."""
        self._unparsed = 0
        if self._has_headers:
            self._finish(is_reusable=self._parser.should_keep_alive())
