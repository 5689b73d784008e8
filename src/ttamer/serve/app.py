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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import lru_cache, partial
from typing import Any

from aiohttp import ClientSession
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

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
from ttamer.serve.stream import Stream

log = logging.getLogger("ttamer")


class Received:
    """A request, and what it holds of the gate until it is answered."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method, self.receive, self.client = scope["method"], receive, scope.get("client")
        self._texts: dict[bytes, bytes] = dict(scope["headers"])
        self.size = 0  # the bytes of its body so far
        self.is_read = self.is_inside = self.has_slot = self.is_streamed = False
        stated = self.text("x-request-id")
        is_good = stated and re.fullmatch(REQUEST_ID, stated)
        # The client's, where it can be used, else a new one.
        self.id = stated if is_good else f"{random.getrandbits(128):032x}"

    def text(self, header: str) -> str:
        """Return a header; nothing where there is none."""
        return self._texts.get(header.encode(), b"").decode("latin-1")


class Gate:
    """How many requests are answered at once; as many may wait, and others are refused.

    Bodies are read before a slot is taken, and all of them together are bounded too.
    """

    def __init__(self, limit: int, max_body: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._max_inside, self._max_body = 2 * limit, max_body
        self._max_bytes = max(16 * max_body, 64 * 2**20)  # a request takes several times as much
        self.inside = self.running = self.bytes = 0

    async def body(self, request: Received) -> bytes:
        """Count a request as one inside, also while its body comes, and return its body."""
        if self.inside >= self._max_inside:
            raise self._busy()
        self.inside += 1
        request.is_inside = True
        stated, parts, more = request.text("content-length"), list[bytes](), True
        # What it states is refused before a byte is read; what comes is counted in any case.
        if stated.isdecimal() and int(stated[:20]) > self._max_body:
            raise self._too_large()
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            request.size += len(part)
            self.bytes += len(part)
            if request.size > self._max_body:
                raise self._too_large()
            if self.bytes > self._max_bytes:
                raise self._busy()
            parts.append(part)
        request.is_read = True
        return b"".join(parts)

    async def slot(self, request: Received, seconds: float) -> None:
        """Wait for a slot."""
        try:
            # A time limit takes time itself.
            async with asyncio.timeout(seconds) if self._slots.locked() else nullcontext():
                await self._slots.acquire()
        except TimeoutError:
            raise self._busy() from None
        self.running += 1
        request.has_slot = True

    def leave(self, request: Received) -> None:
        """Give back what a request holds."""
        if request.is_inside:
            self.inside -= 1
            self.bytes -= request.size
        if request.has_slot:
            self.running -= 1
            self._slots.release()
        request.is_inside = request.has_slot = False

    @staticmethod
    def _busy() -> Refused:
        return Refused(503, "overloaded", "the server is busy; try again", retry_after=1)

    def _too_large(self) -> Refused:
        return Refused(413, "too_large", f"the body has more than {self._max_body} bytes")


class Watch:
    """Ends a request whose client leaves, and its calls, or whose body does not come in time."""

    body_seconds = 15.0
    pause = 0.05  # most answers are quick, and a task for each would take a tenth of its time

    def __init__(self, request: Received) -> None:
        self._request = request
        self._error: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._task: Any = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + self.body_seconds
        self._timer = self._loop.call_later(self.pause, self._look)

    def _look(self) -> None:
        if self._request.is_read:
            self._watcher = self._loop.create_task(self._wait())
        elif self._loop.time() > self._end:
            self._stop(Refused(408, "slow_body", "the body did not come in time"))
        else:
            self._timer = self._loop.call_later(self.pause, self._look)

    async def _wait(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._stop(ClientDisconnect())

    def _stop(self, error: Exception) -> None:
        self._error = error
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._error is not None and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise self._error from None


class App(Router):
    """The HTTP of a service: who may ask, how much at once, and each URL.

    URLs are looked up here, as Starlette's routes and layers take a tenth of a request's time.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(lifespan=self._lifespan)
        serve = service.settings.serve
        self.service = service
        self.gate = gate = Gate(serve.max_concurrent, serve.max_body)
        self.token = EnvName(serve.token_env).read().encode() if serve.token_env else b""
        gauge = service.metrics.gauge
        gauge("ttamer_running", "Requests being answered", lambda: gate.running)
        gauge("ttamer_waiting", "Requests waiting", lambda: gate.inside - gate.running)
        self._get: dict[str, Callable[[], Response]] = {
            "/health": self.health,
            "/ready": self.ready,
            "/v1/models": self.models,
            "/metrics": self.scrape,
        }
        self._post: dict[str, Callable[[Received, bytes], Awaitable[Response]]] = {
            "/v1/chat/completions": self.completions,
            "/v1/decide": self.decide,
            "/v1/feedback": self.feedback,
        }

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        """Open everything, and reload on SIGHUP, where the process is the server's own."""
        async with self.service.opened():
            loop = asyncio.get_running_loop()
            # Other threads than the main one cannot take a signal.
            with suppress(RuntimeError, ValueError):
                loop.add_signal_handler(signal.SIGHUP, self.service.policies.hangup.set)
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a refusal is a response too, counted and with the request's id."""
        if scope["type"] != "http":  # a web socket is refused
            await super().__call__(scope, receive, send)
            return
        start, request = time.perf_counter(), Received(scope, receive)
        try:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            response = await self._response(path, request)
        except Refused as error:
            response = error.response()
            if request.method == "POST" and not request.is_read:
                response.headers["connection"] = "close"  # what is left of the body is not read
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            log.exception("request %s", request.id)
            response = Refused(500, "internal_error", "an error of the server").response()
        finally:
            if not request.is_streamed:  # else it leaves when the stream ends
                self.gate.leave(request)
        self.service.metrics.finished(response.status_code, time.perf_counter() - start)
        response.raw_headers.append((b"x-request-id", request.id.encode()))
        await response(scope, receive, send)

    async def _response(self, path: str, request: Received) -> Response:
        if request.method == "POST" and path in self._post:
            self._check(request)
            with Watch(request):
                return await self._post[path](request, await self.gate.body(request))
        if request.method in ("GET", "HEAD") and path in self._get:
            if path not in ("/health", "/ready"):
                self._check(request)
            return self._get[path]()
        if path in self._get or path in self._post:
            raise Refused(405, "unknown_url", "Method Not Allowed")
        raise Refused(404, "unknown_url", "Not Found")

    async def completions(self, request: Received, content: bytes) -> Response:
        """``POST /v1/chat/completions``."""
        service = self.service
        # The time that a request waits for its turn is a part of its own.
        deadline = Deadline.after(service.settings.serve.timeout)
        await self.gate.slot(request, deadline.left)
        tracing = ("traceparent", "tracestate")
        passed = {name: text for name in tracing if (text := request.text(name))}
        job = await service.job(
            decoded(content, dict[str, Any]), request.id, passed, deadline, size=len(content)
        )
        del content  # what is read of it is enough
        if job.chat.stream:
            stream, request.is_streamed = Stream(service, job), True
            await stream.begin(partial(self.gate.leave, request))
            return stream
        outcome = await service.outcome(job)
        service.audits.consider(job, outcome)
        answered = Answered(job, outcome)
        return json_response(answered.body(), 200, answered.headers())

    async def decide(self, request: Received, content: bytes) -> Response:
        """``POST /v1/decide``."""
        del request
        return json_response(self.service.decide(decoded(content, DecideRequest)))

    async def feedback(self, request: Received, content: bytes) -> Response:
        """``POST /v1/feedback``."""
        del request
        service, feedback = self.service, decoded(content, Feedback)
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

    def models(self) -> Response:
        """``GET /v1/models``."""
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": CASCADE}
            for name in self.service.models
        ]
        return json_response({"object": "list", "data": entries})

    def health(self) -> Response:
        """``GET /health``: whether the process runs."""
        return json_response({"status": "ok"})

    def ready(self) -> Response:
        """``GET /ready``: whether requests should be sent here."""
        is_ready = self.service.is_ready
        body = {"ready": is_ready, "policy": self.service.policies.active.version}
        return json_response(body, 200 if is_ready else 503)

    def scrape(self) -> Response:
        """``GET /metrics``."""
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
            peer = None if request.client is None else address_of(request.client[0])
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


def make_app(
    settings: Settings,
    policy: str = "",
    *,
    force: bool = False,
    connect: Callable[[NodeSettings, ClientSession], Upstream] = Client,
) -> App:
    """Return the application of a cascade and a policy file, for any ASGI server.

    ::

        app = make_app(read_settings("cascade.toml"), "policy.ttamer")

    Args:
        settings: The cascade and its settings, as :func:`read_settings` reads them.
        policy: The policy's file; "" in shadow mode.
        force: Whether a policy is served that was fitted for other costs or answers.
        connect: From a node's settings to what is asked; by default its server.

    Returns:
        The application; its ``service`` is the :class:`Service`.

    Raises:
        TTamerError: If something cannot be served.
    """
    return App(Service(settings, policy, force=force, connect=connect))


def create() -> App:
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
