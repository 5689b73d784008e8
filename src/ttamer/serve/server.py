"""Starting uvicorn with h11, whose connections are bounded here."""

from __future__ import annotations

import asyncio
import math
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ttamer.errors import ArgumentError
from ttamer.serve.app import App, address_of


def check_exposure(host: str, *, has_token: bool) -> None:
    """Refuse an address that others can reach, where there is no token.

    >>> check_exposure("127.0.0.1", has_token=False)
    """
    address = address_of(host)
    is_local = host == "localhost" if address is None else address.is_loopback
    if not (is_local or has_token):
        raise ArgumentError(
            f"--host is {host}, which other machines can reach, and there is no token: set "
            "token_env in [serve], or serve 127.0.0.1 behind a proxy",
            param="host",
        )


class BoundedH11(H11Protocol):
    """Connections with time limits for a request's head and for reading, and a limit of number.

    uvicorn closes a connection that is idle between requests, and none that never sends one, or
    never reads. Where there are too many, the one that has been without a request for longest
    gives way.
    """

    max_connections = 10_000
    head_seconds = 15.0  # in which the head of a request must have come
    unread_seconds = 75.0  # in which the other end must read some of a response
    # Connections without a request, and since when a head is waited for: for ever after an answer,
    # as uvicorn ends that wait by itself.
    idle: ClassVar[dict[BoundedH11, float]] = {}
    unread_since = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, and wait for the head of a request."""
        super().connection_made(transport)
        self.idle[self] = time.monotonic()
        if len(self.connections) > self.max_connections:
            # There is one: the new connection itself has had no request yet.
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read; a head that has come is not waited for, one of which a part came is."""
        super().data_received(data)
        if not self._is_idle():
            self.idle.pop(self, None)
        elif self.idle.get(self, math.inf) == math.inf:
            self.idle[self] = time.monotonic()

    def on_response_complete(self) -> None:
        """Be idle."""
        super().on_response_complete()
        if self._is_idle() or self.cycle.response_complete:
            self.idle[self] = math.inf

    def pause_writing(self) -> None:
        """Wait for the other end to read."""
        super().pause_writing()
        self.unread_since = time.monotonic()

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        self.unread_since = math.inf

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.idle.pop(self, None)
        super().connection_lost(exc)

    def expire(self) -> None:
        """Close the connection where it waits for too long."""
        waited = time.monotonic() - self.idle.get(self, math.inf)
        if waited > self.head_seconds and self._is_idle() and self.conn.our_state is h11.IDLE:
            self.transport.close()
        if time.monotonic() - self.unread_since > self.unread_seconds:
            self.transport.abort()

    def _is_idle(self) -> bool:
        """Return whether the head of a request has not come, or only a part of it."""
        return self.cycle is None or (
            self.cycle.response_complete and bool(self.conn.trailing_data[0])
        )


class LameDuck(uvicorn.Server):
    """Goes on answering for some seconds after SIGTERM, while ``/ready`` says 503."""

    seconds = 5.0

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections once a second; uvicorn calls this ten times as often."""
        for connection in tuple(self.server_state.connections) if counter % 10 == 0 else ():
            connection.expire()  # type: ignore[union-attr]
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at once on SIGINT, and where it was asked before."""
        service = self.config.app.service  # type: ignore[union-attr]
        if sig != signal.SIGTERM or not service.is_ready or not self.seconds:
            super().handle_exit(sig, frame)
            return
        service.is_ready = False
        loop, stop = asyncio.get_running_loop(), super().handle_exit
        loop.call_soon_threadsafe(loop.call_later, self.seconds, stop, sig, frame)


def serve(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    lame_duck: float = 5.0,
    drain: float = 30.0,
    started: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve an application with uvicorn until the process is told to stop.

    Args:
        app: What :func:`~ttamer.serve.make_app` returned.
        host: The address to listen on.
        port: The port; 0 for any.
        lame_duck: The seconds after SIGTERM in which connections are still accepted.
        drain: The seconds that running requests may take after that.
        started: Called with the URL once connections are accepted.

    Raises:
        ArgumentError: If others can reach the address and there is no token, or it is taken.
    """
    check_exposure(host, has_token=bool(app.service.settings.serve.token_env))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # 128 descriptors are for logs; of the others half are for connections to nodes.
    BoundedH11.max_connections = max(16, (files - 128) // 2)
    config = uvicorn.Config(
        app,
        http=BoundedH11,
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
        backlog=512,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(drain),
    )
    server = LameDuck(config)
    server.seconds = lame_duck
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Opened here, so that a port that is taken is an error in words, and 0 can be any port.
        listener = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        raise ArgumentError(f"{host}:{port} cannot be listened on: {error}", param="port") from None
    address, number = listener.getsockname()[:2]
    started(f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}")
    server.run(sockets=[listener])
