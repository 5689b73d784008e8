"""Run a gateway until a signal stops it; running requests are finished first."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import ssl
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ttamer.errors import ArgumentError, MissingExtra

try:
    import uvicorn
except ModuleNotFoundError:
    raise MissingExtra("uvicorn", "serve") from None

from ttamer.drift.audit_log import is_locked
from ttamer.serve.app import make_app
from ttamer.serve.connections import (
    IDLE_SECONDS,
    BoundedProtocol,
    ConnectionLimits,
    descriptor_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from ttamer.serve.gateway import Gateway
    from ttamer.serve.observability.logging import JsonLog

__all__ = [
    "check_exposure",
    "inherit",
    "listen",
    "load_certificate",
    "run",
    "run_owner",
    "server_config",
]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The host names served to this machine alone without API keys.

A web page can make a browser send requests to a loopback address under the page's own host name.
"""
BACKLOG = 2048
"""The number of connections that may wait to be accepted."""
LOCK_SECONDS = 0.2
"""The seconds between two checks whether another process writes the audit log."""
ACCEPT_PAUSE = 1.0
"""The seconds in which a worker accepts no connection after one could not be accepted."""
SETTLE_SECONDS = 2.0
"""The most seconds that a new connection has to send a request when the gateway stops."""


def run(
    gateway: Gateway,
    listener: socket.socket,
    started: Callable[[], None],
    certificate: tuple[str, str | None] | None = None,
) -> None:
    """Serve on a listening socket until SIGTERM or SIGINT; ``started`` is called once ready.

    After a first signal running requests may finish, within ``[serve] drain`` seconds; a second
    signal ends them. With a certificate and its key, TLS is spoken.
    """
    if gateway.hosts is None and gateway.keys is None and _is_loopback(listener.getsockname()[0]):
        gateway.hosts = LOOPBACK_HOSTS
    tls: dict[str, Any] = {}
    if certificate is not None:
        tls = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
    config = server_config(gateway, lifespan="off", **tls)
    if certificate is not None:
        gateway.on_reload.append(partial(_renew_certificate, config, certificate))

    async def serve(early: Sequence[int]) -> None:
        async with gateway:
            gc.collect()
            gc.freeze()  # what is loaded now stays: it need not be scanned again
            gc.set_threshold(100_000)  # by default the collector took a tenth of the time
            await _Server(config, gateway, started, early).serve(sockets=[listener])

    with (
        _logging_to(gateway.log),
        _kept_signals() as early,
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(serve(early))


def run_owner(gateway: Gateway, started: Callable[[], None]) -> None:
    """Own the audits and the drift loop of workers until SIGTERM or SIGINT.

    ``started`` is called once workers can call, or where the process that is being replaced writes
    the audit log: then this one waits until it ends.

    Args:
        gateway: The gateway, in the place of the owner.
        started: Called once workers may start.
    """
    audit = gateway.settings.serve.audit
    log = None if audit is None else audit.log

    async def own(early: list[int]) -> None:
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stopped.set)
        has_started = log is not None and is_locked(log)
        if has_started:
            gateway.log.event("audit", message="waiting for the process that writes the log")
            started()
        while log is not None and is_locked(log) and not stopped.is_set():
            await asyncio.sleep(LOCK_SECONDS)
        if early or stopped.is_set():
            return
        async with gateway:
            if not has_started:
                started()
            await stopped.wait()

    with _logging_to(gateway.log), _kept_signals() as early:
        asyncio.run(own(early))


def load_certificate(certificate: str, key: str | None) -> ssl.SSLContext:
    """Load a certificate and its key; refuse those that cannot be used.

    Args:
        certificate: A PEM file with the certificate, and those that signed it.
        key: A PEM file with its key; ``None`` where the same file holds it.

    Returns:
        The context of connections with this certificate.

    Raises:
        ArgumentError: If TLS cannot be spoken with them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"--tls-cert {certificate} and --tls-key {key or 'none'} cannot be used: {reason}; "
            "both are PEM files, and the key has no password"
        ) from None
    return context


def server_config(gateway: Gateway, **options: Any) -> uvicorn.Config:
    """Return the server's configuration: a gateway with limits on its connections."""
    serve = gateway.settings.serve
    limit = serve.max_connections
    if limit is None:
        limit = descriptor_limit(upstream_connections=2 * serve.max_concurrent)
    per_address = serve.max_connections_per_address or max(1, limit // 2)
    limits = ConnectionLimits(limit, per_address, gateway.connection_refused)
    return uvicorn.Config(
        make_app(gateway),
        http=partial(BoundedProtocol, limits),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,  # clients are known by key, not by address
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(serve.drain)),
        **options,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"cannot listen on {host}, port {port}: {reason}; choose others with --host and --port"
        ) from None
    listener.set_inheritable(False)
    # Connections inherit it, and not every event loop sets it. Without it a response of two writes
    # waits for the client's delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def inherit(descriptor: int) -> socket.socket:
    """Return a listening socket that the parent process opened, such as systemd.

    The parent keeps it open while gateways come and go, so that no connection is refused.
    """
    try:
        listener = socket.socket(fileno=descriptor)
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"--fd {descriptor}: is not an open socket: {reason}") from None
    if not is_listening or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.close()
        raise ArgumentError(f"--fd {descriptor}: is not a listening TCP socket")
    listener.set_inheritable(False)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def check_exposure(host: str, *, has_keys: bool, is_open: bool) -> None:
    """Refuse to serve other machines without API keys, unless ``--open`` allows it.

    Args:
        host: The address to listen on.
        has_keys: Whether clients need an API key.
        is_open: Whether ``--open`` was passed.

    Raises:
        ArgumentError: If every client of a network would be served.
    """
    if has_keys or is_open or _is_loopback(host):
        return
    raise ArgumentError(
        f"without API keys only this machine is served, and the address is {host}; set keys_env in "
        "[serve], or pass --open to serve every client"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _renew_certificate(
    config: uvicorn.Config, certificate: tuple[str, str | None]
) -> Callable[[], None]:
    """Load a renewed certificate; return what uses it for new connections.

    The listening socket keeps its context: each handshake, with a server name or without one,
    changes to the one that was loaded.
    """
    renewed = load_certificate(*certificate)

    def use(connection: ssl.SSLObject, *_: object) -> None:
        connection.context = renewed

    def renew() -> None:
        if config.ssl is not None:
            config.ssl.sni_callback = use

    return renew


class _Server(uvicorn.Server):
    """A server that answers 503 at ``/readyz`` for a while before it stops listening."""

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        started: Callable[[], None],
        early: Sequence[int] = (),
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._started = started
        self._early = early

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, report it, and handle the signals that arrived before."""
        if self._gateway.place is None:
            await super().startup(sockets=sockets)
        else:
            await super().startup(sockets=[])
            shared = [_SharedListener(each, self._protocol, self.config) for each in sockets or []]
            self.servers = cast("Any", shared)  # what is used of a server
        self._started()
        for sig in self._early:
            self.handle_exit(sig, None)

    def _protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after ``[serve] lame_duck`` seconds; a second signal stops at once."""
        seconds = self._gateway.settings.serve.lame_duck
        if self._gateway.ready and seconds > 0:
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(loop.call_later, seconds, self._stop)
        else:
            super().handle_exit(sig, frame)
        self._gateway.ready = False

    def _stop(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, answer those accepted, and close.

        A connection may have been accepted a moment ago, with its first request on the way.
        """
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + SETTLE_SECONDS
        while loop.time() < end and not self.force_exit:
            await asyncio.sleep(0.05)
            if not any(getattr(each, "is_fresh", False) for each in self.server_state.connections):
                break
        await super().shutdown(sockets)


class _SharedListener:
    """Accepts one connection in each turn of the event loop.

    An event loop accepts all connections that wait at once: of several workers on one socket, the
    first to wake would serve all that arrive together, for as long as they stay open.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        config: uvicorn.Config,
    ) -> None:
        self._listener, self._protocol, self._tls = listener, protocol, config.ssl
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_serving = True
        listener.setblocking(False)
        self._listen()

    def is_serving(self) -> bool:
        """Return whether connections are accepted."""
        return self._is_serving

    def close(self) -> None:
        """Accept no more connections; other processes that have the socket do."""
        if self._is_serving:
            self._is_serving = False
            self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Wait until all accepted connections have been set up."""
        await asyncio.gather(*self._tasks)

    def _listen(self) -> None:
        if self._is_serving:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone
        except OSError:  # no descriptors or memory are left
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(ACCEPT_PAUSE, self._listen)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._set_up(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _set_up(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError:  # the client has gone, or TLS cannot be spoken with it
            connection.close()


@contextmanager
def _logging_to(log: JsonLog) -> Iterator[None]:
    """Inside, the log is written in a thread, with the logs and warnings of all libraries."""
    root = logging.getLogger()
    root.handlers[:] = [log.handler()]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    log.start()
    try:
        yield
    finally:
        log.stop()


@contextmanager
def _kept_signals() -> Iterator[list[int]]:
    """Collect the signals outside the server's own handlers: before it starts, and after it ends.

    Once it has stopped, the server raises its signal again, which must not end the process.
    """
    received: list[int] = []

    def keep(sig: int, _: FrameType | None) -> None:
        received.append(sig)

    before = {sig: signal.signal(sig, keep) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
