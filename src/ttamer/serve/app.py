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
from functools import lru_cache, partial
from typing import Any

from aiohttp import ClientSession
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ttamer.llm.client import Client, Deadline, open_session
from ttamer.llm.node import ModelNode, Upstream, Verification, Work, open_nodes
from ttamer.llm.settings import EnvName, NodeSettings
from ttamer.runtime.reply import Reply
from ttamer.serve.audits import Audits
from ttamer.serve.chat import Chat, decide
from ttamer.serve.policies import Inputs, PolicyStore
from ttamer.serve.records import DecisionLog, Metrics
from ttamer.serve.requests import CASCADE, REQUEST_ID, Feedback, Refused, decoded, json_response
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
        self.id = stated if is_good else f"{random.getrandbits(128):032x}"
        """The client's, where it can be used, else a new one."""

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


class Service:
    """The state of one process, open during the application's lifespan.

    Args:
        settings: The cascade and its settings.
        policy: The file of the policy; "" in shadow mode.
        force: Whether a policy is served that was fitted for other costs or answers.
        connect: From a node's settings to what is asked; by default its server.

    Raises:
        TTamerError: If something cannot be served, before a port opens.
    """

    def __init__(
        self,
        settings: Settings,
        policy: str = "",
        *,
        force: bool = False,
        connect: Callable[[NodeSettings, ClientSession], Upstream] = Client,
    ) -> None:
        serve = settings.serve
        self.settings, self._connect = settings, connect
        self.token = EnvName(serve.token_env).read().encode() if serve.token_env else b""
        names = settings.spec.names
        self.metrics = Metrics(names)
        self.gate = Gate(serve.max_concurrent, serve.max_body)
        self.is_ready = False
        self._clients: dict[str, Upstream] = {}
        self.nodes: dict[str, ModelNode | Verification] = {}
        asks = {name: partial(self._ask, name) for name in names}
        self.policies = PolicyStore(policy, settings, asks, force=force)
        self.decisions = DecisionLog(serve.log, settings.spec, texts=serve.log_texts)
        self.audits = Audits(settings, self.policies, self.nodes, self.metrics, self.decisions)
        self.inputs = Inputs()
        self.chat = Chat(
            settings,
            self.policies,
            self.nodes,
            self.inputs,
            self.metrics,
            self.decisions,
            self.audits.consider,
        )
        gauge, gate = self.metrics.gauge, self.gate
        gauge("ttamer_running", "Requests being answered", lambda: gate.running)
        gauge("ttamer_waiting", "Requests waiting", lambda: gate.inside - gate.running)
        gauge("ttamer_log_rows_lost", "Rows of the log lost", lambda: self.decisions.lost)
        gauge("ttamer_policies_refused", "Files refused", lambda: self.policies.refused)
        gauge("ttamer_embeddings_missing", "Inputs not known", lambda: self.inputs.failed)
        for name in settings.nodes:
            self.metrics.breakers.labels(name).set_function(partial(self._is_open, name))

    async def _ask(self, name: str, work: Work) -> Reply:
        reply = await self.nodes[name].ask(work)
        if self.decisions.path and isinstance(reply.prediction, str):
            # A policy that was fitted to a log without texts knows answers by their digests.
            digest = self.decisions.digest(reply.prediction)
            if digest != reply.prediction and digest in self.policies.active.classes:
                reply = reply._replace(prediction=digest)
        return reply

    def _is_open(self, name: str) -> float:
        upstream = self._clients.get(name)
        return float(isinstance(upstream, Client) and upstream.breaker.is_open)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the connections to the nodes, the log and the audits."""
        settings = self.settings
        async with open_session() as session:
            self._clients |= {
                name: self._connect(node, session) for name, node in settings.nodes.items()
            }
            if settings.embeddings is not None:
                self.inputs.embeddings = Client.of_embeddings(settings.embeddings, session)
            self.nodes |= open_nodes(
                settings.source,
                settings.nodes,
                lambda node: self._clients[node.name],
                settings.compare,
            )
            # Audits write to the log, which is open first and closed last.
            self.decisions.start()
            self.audits.start()
            watcher = asyncio.create_task(self.policies.watch())
            self.is_ready = True
            try:
                yield
            finally:
                self.is_ready = False
                watcher.cancel()
                with suppress(asyncio.CancelledError):
                    await watcher
                await self.audits.close()
                await asyncio.to_thread(self.decisions.close)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Open everything, and reload on SIGHUP, where the process is the server's own."""
        del app
        async with self.opened():
            loop = asyncio.get_running_loop()
            # Windows has no such signal, and other threads than the main one cannot take it.
            with suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):
                loop.add_signal_handler(signal.SIGHUP, self.policies.hangup.set)
            yield

    # Requests

    async def completions(self, request: Received) -> Response:
        """``POST /v1/chat/completions``."""
        content = await self._body(request)
        # The time that a request waits for its turn is a part of its own.
        work = self._completed(request, content, Deadline.after(self.settings.serve.timeout))
        del content  # what is read of it is enough
        return await _unless_gone(request, work)

    async def _completed(self, request: Received, content: bytes, deadline: Deadline) -> Response:
        await request.held.enter_async_context(self.gate.slot(deadline.left))
        tracing = ("traceparent", "tracestate")
        passed = {name: value for name in tracing if (value := request.text(name))}
        body = decoded(content, dict[str, Any])
        job = await self.chat.job(body, request.id, passed, deadline, size=len(content))
        del content
        if job.chat.stream:
            return await streamed(self.chat, job, request.held)
        return await self.chat.answer(job)

    async def decide(self, request: Received) -> Response:
        """``POST /v1/decide``."""
        content = await self._body(request)
        return json_response(decide(content, self.policies.active, self.settings.serve.allow))

    async def feedback(self, request: Received) -> Response:
        """``POST /v1/feedback``."""
        content = await self._body(request)
        feedback = decoded(content, Feedback)
        label, score = feedback.label, feedback.score
        if label is None and score is None:
            raise Refused(400, "invalid_request", "label or score is needed")
        if not self.decisions.path:
            raise Refused(404, "no_log", "feedback is kept in the log; set log in [serve]")
        if label is not None:
            label = "|".join(self.settings.compare.aliases(label)) or label
        return json_response({"known": self.audits.say(feedback.request, label, score)})

    async def _body(self, request: Received) -> bytes:
        self._check(request)
        return await request.held.enter_async_context(self.gate.admitted(request))

    async def models(self, request: Received) -> Response:
        """``GET /v1/models``."""
        self._check(request)
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": CASCADE}
            for name in self.chat.models
        ]
        return json_response({"object": "list", "data": entries})

    async def health(self, request: Received) -> Response:
        """``GET /health``: whether the process runs."""
        del request
        return json_response({"status": "ok"})

    async def ready(self, request: Received) -> Response:
        """``GET /ready``: whether requests should be sent here."""
        del request
        active = self.policies.active
        body = {"ready": self.is_ready, "policy": active.version}
        return json_response(body, 200 if self.is_ready else 503)

    async def scrape(self, request: Received) -> Response:
        """``GET /metrics``."""
        self._check(request)
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

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
            self.metrics.finished(response.status_code, time.perf_counter() - start)
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
    endpoints = (
        ("POST", "/v1/chat/completions", service.completions),
        ("POST", "/v1/decide", service.decide),
        ("POST", "/v1/feedback", service.feedback),
        ("GET", "/v1/models", service.models),
        ("GET", "/health", service.health),
        ("GET", "/ready", service.ready),
        ("GET", "/metrics", service.scrape),
    )

    def refuse(request: Request, error: Any) -> Response:
        del request
        return Refused(error.status_code, "unknown_url", error.detail).response()

    routes = [Route(path, service.endpoint(do), methods=[how]) for how, path, do in endpoints]
    app = Starlette(
        routes=routes, lifespan=service.lifespan, exception_handlers={HTTPException: refuse}
    )
    app.state.service = service
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
