"""The gateway as an ASGI application: its routes, and the responses that ask no node."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from ttamer.errors import ArgumentError
from ttamer.serve.admission import ADMIN, RequestGuard, check_key
from ttamer.serve.formats import openai
from ttamer.serve.formats.messages import message_error
from ttamer.serve.formats.openapi import description
from ttamer.serve.formats.schemas import EMBEDDING, LABEL, check, compile_schema
from ttamer.serve.gateway import UnknownModel
from ttamer.serve.http import (
    JSON,
    ClientDisconnected,
    HttpError,
    HttpExchange,
    InternalError,
    SlowBody,
    check_content_type,
    parse_json,
)
from ttamer.serve.observability.record import RequestRecord
from ttamer.serve.observability.status import PAGE, PAGE_HEADERS
from ttamer.serve.request import GRACE, TIMER_SLACK, RequestHandler, cost_headers, failure, late
from ttamer.serve.routes import DRIFT, EMBEDDINGS, MODELS, route_of
from ttamer.serve.upstreams.upstream import CallContext, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ttamer.serve.gateway import Gateway
    from ttamer.serve.http import Receive, Scope, Send

    Handler = Callable[[HttpExchange], Awaitable[None]]

__all__ = ["App", "make_app"]

_MESSAGES = openai.MESSAGES.route
"""The route of messages: errors there, and below it, have Anthropic's form."""
_LABEL, _EMBEDDING = compile_schema(LABEL), compile_schema(EMBEDDING)
_ALLOWED_HEADER = re.compile(
    r"authorization|content-type|x-[a-z0-9-]{1,64}|openai-[a-z]{1,32}|anthropic-[a-z-]{1,64}"
)
"""The request headers that a page of an allowed origin may set."""


def make_app(gateway: Gateway) -> App:
    """Return the ASGI application of a gateway, which opens and closes it with its lifespan.

    Args:
        gateway: The gateway, not yet open.

    Returns:
        The application, for any ASGI server.

    ::

        app = make_app(Gateway(read_settings("cascade.toml"), "policy.ttamer"))
    """
    return App(gateway)


class App:
    """Routes requests to their handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._description = description(gateway.settings)
        self._hosts = gateway.hosts
        self._cors = gateway.settings.serve.cors
        self._routes: dict[str, tuple[str, Handler]] = {
            "/healthz": ("GET", self._health),
            "/readyz": ("GET", self._readiness),
            "/openapi.json": ("GET", self._openapi),
            "/status": ("GET", self._status_page),
            "/status.json": ("GET", self._with_key(self._status, "metrics")),
            "/metrics": ("GET", self._with_key(self._metrics, "metrics")),
            MODELS: ("GET", self._with_key(self._models, "ask")),
        }
        audit = gateway.settings.serve.audit
        has_loop = audit is not None and audit.reference is not None
        if audit is not None:
            self._routes["/v1/labels"] = ("POST", self._label)
        if gateway.settings.serve.embeddings is not None:
            self._routes[EMBEDDINGS] = ("POST", self._embeddings)
        if gateway.admin_keys is not None:
            self._routes["/admin/reload"] = ("POST", self._reload)
            self._routes["/admin/rollback"] = ("POST", self._rollback)
            for path, action in DRIFT.items() if has_loop else ():
                self._routes[path] = ("POST", self._drift(action))
        self._endpoints = {endpoint.route: endpoint for endpoint in openai.ENDPOINTS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            exchange = HttpExchange(scope, receive, send)
            if exchange.path == _MESSAGES or exchange.path.startswith(f"{_MESSAGES}/"):
                exchange.error_body = message_error
            if not self._gateway.ready:  # the next request needs another process
                exchange.response_headers["connection"] = "close"
            if self._cors:
                self._allow_origin(exchange)
            if self._hosts is not None and not exchange.has_host(self._hosts):
                await self._handle(exchange, self._wrong_host)
                return
            endpoint = self._endpoints.get(exchange.path)
            if endpoint is not None and exchange.method == "POST":
                await RequestHandler(self._gateway, exchange, endpoint).handle()
            else:
                await self._handle(exchange)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._gateway.__aenter__()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._gateway.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _handle(self, exchange: HttpExchange, handler: Handler | None = None) -> None:
        """Handle a request that asks no node; it counts once it ends, and never as in flight."""
        code: str | None = None
        try:
            await (handler or self._handler(exchange))(exchange)
        except HttpError as error:
            code = error.code
            self._gateway.refused(error, exchange.client)
            if isinstance(error, ClientDisconnected):
                exchange.status = error.status  # of the record: there is no response
            elif not exchange.status:
                if not exchange.bill.is_empty:
                    exchange.response_headers |= cost_headers(exchange.bill)
                await exchange.send_error(error)
        except Exception as error:
            code = InternalError.code
            self._gateway.log.failure(exchange.request_id, error)
            if not exchange.status:
                await exchange.send_error(InternalError())
        finally:
            self._gateway.metrics.started()
            self._gateway.finished(
                RequestRecord(
                    exchange.request_id,
                    route_of(exchange.path),
                    exchange.status or 500,
                    exchange.seconds,
                    error=code,
                    cost=exchange.bill.cost,
                    client=exchange.client,
                    bill=exchange.bill.by_node(),
                )
            )

    def _handler(self, exchange: HttpExchange) -> Handler:
        asked = exchange.header(b"access-control-request-method")
        if exchange.method == "OPTIONS" and asked and self._cors:
            return self._preflight
        method, handler = self._routes.get(exchange.path, ("POST", None))
        if exchange.path.startswith(f"{MODELS}/") and exchange.path != f"{MODELS}/":
            method, handler = "GET", self._with_key(self._model, "ask")
        if handler is None and exchange.path not in self._endpoints:
            raise HttpError(
                "not found; the API is under /v1, the status page at /status",
                status=404,
                code="not_found",
            )
        wanted = "GET" if exchange.method == "HEAD" else exchange.method
        if handler is None or wanted != method:
            exchange.response_headers["allow"] = method
            raise HttpError(f"use {method} here", status=405, code="method_not_allowed")
        return handler

    def _allow_origin(self, exchange: HttpExchange) -> None:
        """Let a page of an allowed origin read the response."""
        exchange.response_headers["vary"] = "origin"
        origin = exchange.header(b"origin")
        if origin is not None and (self._cors == ("*",) or origin in self._cors):
            exchange.response_headers["access-control-allow-origin"] = origin
            exchange.response_headers["access-control-expose-headers"] = "*"

    async def _preflight(self, exchange: HttpExchange) -> None:
        """Answer a browser's question about what a page may send."""
        asked = exchange.header(b"access-control-request-headers") or ""
        names = [name.strip().lower() for name in asked.split(",")]
        headers = {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": ", ".join(filter(_ALLOWED_HEADER.fullmatch, names)),
            "access-control-max-age": "600",
        }
        await exchange.send_bytes(200, b"", headers)

    def _with_key(self, handler: Handler, role: str) -> Handler:
        async def handle(exchange: HttpExchange) -> None:
            check_key(self._gateway.keys, exchange, role)
            await handler(exchange)

        return handle

    async def _wrong_host(self, exchange: HttpExchange) -> None:
        del exchange
        raise HttpError("this host name is not served here", status=421, code="wrong_host")

    async def _health(self, exchange: HttpExchange) -> None:
        await exchange.send_json(200, {"status": "ok"})

    async def _readiness(self, exchange: HttpExchange) -> None:
        ready = self._gateway.ready
        word = "ready" if ready else "not ready"
        await exchange.send_json(200 if ready else 503, {"status": word})

    async def _openapi(self, exchange: HttpExchange) -> None:
        await exchange.send_json(200, self._description)

    async def _models(self, exchange: HttpExchange) -> None:
        await exchange.send_json(200, openai.model_list(self._gateway.models()))

    async def _model(self, exchange: HttpExchange) -> None:
        name = exchange.path.removeprefix(f"{MODELS}/")
        if name not in self._gateway.models():
            raise UnknownModel(f"there is no model {name[:64]!r}")
        await exchange.send_json(200, openai.model(name))

    async def _embeddings(self, exchange: HttpExchange) -> None:
        """Pass a request for embeddings on to their upstream."""
        gateway, serve = self._gateway, self._gateway.settings.serve
        gateway.admit(exchange)
        data = await self._json(exchange)
        check(data, _EMBEDDING)
        assert gateway.embedder is not None  # noqa: S101 - only then is there this route
        sent = {key: value for key, value in data.items() if key != "model"}
        deadline, headers = exchange.start + serve.timeout, {"x-request-id": exchange.request_id}
        context = CallContext(deadline, headers, exchange.bill, serve.timeout)
        try:
            with RequestGuard(
                gateway.watchdog, exchange.receive, context.seconds_left + GRACE
            ) as guard:
                guard.watch_disconnect()
                async with gateway.limit.slot(context.seconds_left):
                    response = await gateway.embedder.upstream.call("/embeddings", sent, context)
                    exchange.response_headers |= cost_headers(exchange.bill)
                    await exchange.send_bytes(200, response.content, {"content-type": JSON})
        except UpstreamFailed as error:
            is_late = context.seconds_left <= TIMER_SLACK
            account = gateway.accounts.get(exchange.client)
            raise failure([error.facts], serve, account, is_late=is_late) from None
        except TimeoutError:
            raise late() from None

    async def _json(self, exchange: HttpExchange) -> Any:
        """Return the JSON body of a request."""
        serve = self._gateway.settings.serve
        check_content_type(exchange)
        try:
            async with asyncio.timeout(serve.timeout):
                body = await exchange.read(serve.max_body)
        except TimeoutError:
            raise SlowBody from None
        return parse_json(body, max_depth=serve.max_depth)

    async def _metrics(self, exchange: HttpExchange) -> None:
        headers = {"content-type": self._gateway.metrics.CONTENT_TYPE}
        await exchange.send_bytes(200, await self._gateway.all_metrics(), headers)

    async def _status_page(self, exchange: HttpExchange) -> None:
        await exchange.send_bytes(200, PAGE, PAGE_HEADERS)

    async def _status(self, exchange: HttpExchange) -> None:
        status = await self._gateway.all_status()
        await exchange.send_json(200, status, {"cache-control": "no-store"})

    async def _reload(self, exchange: HttpExchange) -> None:
        check_key(self._gateway.admin_keys, exchange, ADMIN)
        result = await self._gateway.reload("admin")
        if self._gateway.place is not None and result.ok:
            self._gateway.place.reload_all()
        await exchange.send_json(200 if result.ok else 409, result.to_dict())

    async def _rollback(self, exchange: HttpExchange) -> None:
        check_key(self._gateway.admin_keys, exchange, ADMIN)
        if self._gateway.place is not None:
            raise HttpError(
                "with several workers, put the former file back and reload",
                status=409,
                code="not_now",
            )
        result = await self._gateway.policies.rollback()
        await exchange.send_json(200 if result.ok else 409, result.to_dict())

    def _drift(self, action: str) -> Handler:
        async def handle(exchange: HttpExchange) -> None:
            check_key(self._gateway.admin_keys, exchange, ADMIN)
            try:
                state = await self._gateway.act(action)
            except ArgumentError as error:
                raise HttpError(str(error), status=409, code="not_now") from None
            await exchange.send_json(200, state)

        return handle

    async def _label(self, exchange: HttpExchange) -> None:
        """Take the right answer to a request; respond whether an audit waits for it.

        A client need not know which requests are audited, and labels only its own.
        """
        serve, audits = self._gateway.settings.serve, self._gateway.audits
        assert audits is not None  # noqa: S101 - only then is there this route
        client = check_key(self._gateway.keys, exchange, "label")
        data = await self._json(exchange)
        check(data, _LABEL)
        label = serve.compare.label(data["label"])
        if label is None:
            raise HttpError(
                f"the label has no content under compare = {str(serve.compare)!r}",
                code="bad_label",
                param="label",
            )
        is_taken = await audits.label(self._gateway.request_key(client, data["request"]), label)
        await exchange.send_json(200, {"request": data["request"], "audited": is_taken})
