"""The ASGI application: any ASGI server runs it, any HTTP proxy may stand in front of it."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import lru_cache
from typing import Any

from aiohttp import ClientSession
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ttamer.llm.client import Client, Deadline
from ttamer.llm.node import Upstream
from ttamer.llm.settings import EnvName, NodeSettings
from ttamer.serve.requests import (
    CASCADE,
    REQUEST_ID,
    Answered,
    DecideRequest,
    Feedback,
    Refused,
    decoded,
    json_response,
)
from ttamer.serve.service import Service
from ttamer.serve.settings import Settings, read_settings
from ttamer.serve.stream import streamed

log = logging.getLogger("ttamer")


class Received(Request):
    """A request, and what it holds while it is answered."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.scope, request.receive)
        self.held, self.is_read = AsyncExitStack(), False
        # Starlette goes through the list of headers at each access.
        self._texts: dict[bytes, bytes] = dict(request.scope["headers"])
        stated = self.text("x-request-id")
        is_good = re.fullmatch(REQUEST_ID, stated) is not None
        # The client's, where it can be used, else a new one.
        self.id = stated if is_good else f"{random.getrandbits(128):032x}"

    def text(self, header: str) -> str:
        """Return a header; nothing where there is none."""
        return self._texts.get(header.encode(), b"").decode("latin-1")


Handler = Callable[[Received], Awaitable[Response]]


class Gate:
    """How many requests are answered at once; as many may wait, and others are refused.

    Bodies are read before a slot is taken, and all of them together are bounded too.
    """

    body_seconds = 15.0  # in which the body of a request must have come

    def __init__(self, limit: int, max_body: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._max_inside, self._max_body = 2 * limit, max_body
        self._max_bytes = max(16 * max_body, 64 * 2**20)  # a request takes several times as much
        self.inside = self.running = self.bytes = 0

    @asynccontextmanager
    async def admitted(self, request: Received) -> AsyncIterator[bytes]:
        """Count a request as one inside, also while its body comes, and give its body."""
        if self.inside >= self._max_inside:
            raise self._busy()
        self.inside += 1
        size, parts = 0, []
        stated = request.text("content-length")
        try:
            # What it states is refused before a byte is read; what comes is counted in any case.
            if stated.isdecimal() and int(stated[:20]) > self._max_body:
                raise self._too_large()
            try:
                async with asyncio.timeout(self.body_seconds):
                    async for part in request.stream():
                        size += len(part)
                        self.bytes += len(part)
                        if size > self._max_body:
                            raise self._too_large()
                        if self.bytes > self._max_bytes:
                            raise self._busy()
                        parts.append(part)
            except TimeoutError:
                raise Refused(408, "slow_body", "the body did not come in time") from None
            request.is_read = True
            parts[:] = [b"".join(parts)]
            yield parts.pop()  # which is not held here: a body is not in memory twice
        finally:
            self.inside -= 1
            self.bytes -= size

    @staticmethod
    def _busy() -> Refused:
        return Refused(503, "overloaded", "the server is busy; try again", retry_after=1)

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"the body has more than {self._max_body} bytes")

    @asynccontextmanager
    async def slot(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a slot, and hold it."""
        try:
            async with asyncio.timeout(seconds if self._slots.locked() else None):
                await self._slots.acquire()
        except TimeoutError:
            raise self._busy() from None
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()


class Endpoints:
    """The HTTP of a service: who may ask, how much at once, and each URL."""

    def __init__(self, service: Service) -> None:
        serve = service.settings.serve
        self.service = service
        self.gate = gate = Gate(serve.max_concurrent, serve.max_body)
        self.token = EnvName(serve.token_env).read().encode() if serve.token_env else b""
        gauge = service.metrics.gauge
        gauge("ttamer_running", "Requests being answered", lambda: gate.running)
        gauge("ttamer_waiting", "Requests waiting", lambda: gate.inside - gate.running)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Open everything, and reload on SIGHUP, where the process is the server's own."""
        del app
        async with self.service.opened():
            loop = asyncio.get_running_loop()
            # Other threads than the main one cannot take a signal.
            with suppress(RuntimeError, ValueError):
                loop.add_signal_handler(signal.SIGHUP, self.service.policies.hangup.set)
            yield

    async def completions(self, request: Received) -> Response:
        """``POST /v1/chat/completions``."""
        content = await self._body(request)
        # The time that a request waits for its turn is a part of its own.
        deadline = Deadline.after(self.service.settings.serve.timeout)
        work = self._completed(request, content, deadline)
        del content  # what is read of it is enough
        return await _unless_gone(request, work)

    async def _completed(self, request: Received, content: bytes, deadline: Deadline) -> Response:
        await request.held.enter_async_context(self.gate.slot(deadline.left))
        tracing = ("traceparent", "tracestate")
        passed = {name: value for name in tracing if (value := request.text(name))}
        body, service = decoded(content, dict[str, Any]), self.service
        job = await service.job(body, request.id, passed, deadline, size=len(content))
        del content
        if job.chat.stream:
            return await streamed(service, job, request.held)
        outcome = await service.outcome(job)
        service.audits.consider(job, outcome)
        answered = Answered(job, outcome)
        return json_response(answered.body(), 200, answered.headers())

    async def decide(self, request: Received) -> Response:
        """``POST /v1/decide``."""
        content = await self._body(request)
        return json_response(self.service.decide(decoded(content, DecideRequest)))

    async def feedback(self, request: Received) -> Response:
        """``POST /v1/feedback``."""
        content, service = await self._body(request), self.service
        feedback = decoded(content, Feedback)
        label, score = feedback.label, feedback.score
        if label is None and score is None:
            raise Refused(400, "invalid_request", "label or score is needed")
        if not service.decisions.path:
            raise Refused(404, "no_log", "feedback is kept in the log; set log in [serve]")
        if label is not None:
            label = "|".join(service.settings.compare.aliases(label))
            if not label:
                text = f"compare = {service.settings.compare} reads no answer in the label"
                raise Refused(400, "invalid_request", text, param="label")
        return json_response({"known": service.audits.say(feedback.request, label, score)})

    async def _body(self, request: Received) -> bytes:
        self._check(request)
        return await request.held.enter_async_context(self.gate.admitted(request))

    async def models(self, request: Received) -> Response:
        """``GET /v1/models``."""
        self._check(request)
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": CASCADE}
            for name in self.service.models
        ]
        return json_response({"object": "list", "data": entries})

    async def health(self, request: Received) -> Response:
        """``GET /health``: whether the process runs."""
        del request
        return json_response({"status": "ok"})

    async def ready(self, request: Received) -> Response:
        """``GET /ready``: whether requests should be sent here."""
        del request
        is_ready = self.service.is_ready
        body = {"ready": is_ready, "policy": self.service.policies.active.version}
        return json_response(body, 200 if is_ready else 503)

    async def scrape(self, request: Received) -> Response:
        """``GET /metrics``."""
        self._check(request)
        metrics = generate_latest(self.service.metrics.registry)
        return Response(metrics, media_type=CONTENT_TYPE_LATEST)

    def _check(self, request: Received) -> None:
        """Refuse who has not the token; without one, other machines and what pages could send."""
        if self.token:
            stated = request.text("authorization").encode("latin-1")
            # In constant time: how long a comparison takes says nothing about the token.
            if not hmac.compare_digest(stated, b"Bearer " + self.token):
                raise Refused(401, "invalid_api_key", "the bearer token is missing or wrong")
        else:
            peer = None if request.client is None else address_of(request.client.host)
            if peer is not None and not peer.is_loopback:  # others are sockets of this machine
                raise Refused(
                    403, "no_token", "without a token only this machine is served: set token_env"
                )
            if not _is_local_name(request.text("host")):
                raise Refused(403, "host", "without a token, ask by an address or a local name")
        if request.text("transfer-encoding") and request.text("content-length"):
            raise Refused(400, "two_lengths", "the body has two lengths")  # proxies read either
        # Pages may send text/plain to any address, with parameters that they choose.
        kind = request.text("content-type").partition(";")[0].strip().lower()
        if request.method == "POST" and not kind.endswith("json"):
            raise Refused(415, "content_type", "the content-type must be application/json")

    def endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler whose refusals are responses, counted and with the id of the request."""

        async def handle(incoming: Request) -> Response:
            start, request = time.perf_counter(), Received(incoming)
            try:
                async with request.held:
                    response = await handler(request)
            except Refused as error:
                response = error.response()
                if request.method == "POST" and not request.is_read:
                    response.headers["connection"] = "close"  # what is left of the body is not read
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception:
                log.exception("request %s", request.id)
                response = Refused(500, "internal_error", "an error of the server").response()
            self.service.metrics.finished(response.status_code, time.perf_counter() - start)
            response.headers["x-request-id"] = request.id
            return response

        return handle


@lru_cache(256)
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is; ``None`` for a name.

    >>> [address_of(text) for text in ("::ffff:127.0.0.1", "localhost")]
    [IPv4Address('127.0.0.1'), None]
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(256)
def _is_local_name(host: str) -> bool:
    """Return whether a page of the web cannot have this host: an address, or a name without dots.

    >>> [_is_local_name(host) for host in ("127.0.0.1:80", "[::1]", "ttamer:8080", "a.com")]
    [True, True, True, False]
    """
    name = host.partition("]")[0][1:] if host.startswith("[") else host.rpartition(":")[0] or host
    return "." not in name or address_of(name) is not None


async def _unless_gone(request: Received, work: Coroutine[Any, Any, Response]) -> Response:
    """Run a handler; where the client leaves, cancel it and its calls."""
    task, watcher, has_left = asyncio.current_task(), None, False
    assert task is not None  # noqa: S101 - this is a coroutine

    async def wait() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    def watch() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(wait())

    # A task for each request would take a tenth of its time, and most answers are quick.
    timer = asyncio.get_running_loop().call_later(0.05, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise ClientDisconnect from None
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


def make_app(
    settings: Settings,
    policy: str = "",
    *,
    force: bool = False,
    connect: Callable[[NodeSettings, ClientSession], Upstream] = Client,
) -> Starlette:
    """Return the application of a cascade and a policy file, for any ASGI server.

    ::

        app = make_app(read_settings("cascade.toml"), "policy.ttamer")

    Args:
        settings: The cascade and its settings, as :func:`read_settings` reads them.
        policy: The policy's file; "" in shadow mode.
        force: Whether a policy is served that was fitted for other costs or answers.
        connect: From a node's settings to what is asked; by default its server.

    Returns:
        The application; its ``state.service`` is the :class:`Service`.

    Raises:
        TTamerError: If something cannot be served.
    """
    service = Service(settings, policy, force=force, connect=connect)
    ends = Endpoints(service)
    urls = (
        ("POST", "/v1/chat/completions", ends.completions),
        ("POST", "/v1/decide", ends.decide),
        ("POST", "/v1/feedback", ends.feedback),
        ("GET", "/v1/models", ends.models),
        ("GET", "/health", ends.health),
        ("GET", "/ready", ends.ready),
        ("GET", "/metrics", ends.scrape),
    )

    def refuse(request: Request, error: Any) -> Response:
        del request
        return Refused(error.status_code, "unknown_url", error.detail).response()

    routes = [Route(path, ends.endpoint(do), methods=[method]) for method, path, do in urls]
    app = Starlette(
        routes=routes, lifespan=ends.lifespan, exception_handlers={HTTPException: refuse}
    )
    app.state.service, app.state.gate = service, ends.gate
    return app


def create() -> Starlette:
    r"""Return the application that ``TTAMER_CASCADE`` and ``TTAMER_POLICY`` name.

    ::

        TTAMER_CASCADE=cascade.toml TTAMER_POLICY=policy.ttamer \
            granian --interface asgi --factory ttamer.serve:create

    Returns:
        The application.

    Raises:
        TTamerError: If a variable is not set, or something cannot be served.
    """
    settings = read_settings(EnvName("TTAMER_CASCADE").read())
    return make_app(settings, os.environ.get("TTAMER_POLICY", ""))
