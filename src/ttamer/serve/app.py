"""The gateway as an ASGI application: routes, and what is answered without asking a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttamer.errors import ArgumentError
from ttamer.serve import chat
from ttamer.serve.exchange import Exchange
from ttamer.serve.labels import take_label
from ttamer.serve.life import Life
from ttamer.serve.limits import Refused
from ttamer.serve.openapi import description
from ttamer.serve.refusing import INTERNAL, Rejected, check_key, send_refusal
from ttamer.serve.routes import DRIFT, OTHER, ROUTES
from ttamer.serve.served import Served
from ttamer.serve.status import PAGE, PAGE_HEADERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ttamer.serve.exchange import Receive, Scope, Send
    from ttamer.serve.gateway import Gateway

    Handler = Callable[[Exchange], Awaitable[None]]

__all__ = ["App", "make_app"]


def make_app(gateway: Gateway) -> App:
    """Return the ASGI application of a gateway; it opens and closes it with its lifespan."""
    return App(gateway)


class App:
    """Routes requests, and sees each through."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._description = description(gateway.settings)
        self._routes: dict[str, tuple[str, Handler]] = {
            "/healthz": ("GET", self._health),
            "/readyz": ("GET", self._readiness),
            "/openapi.json": ("GET", self._openapi),
            "/status": ("GET", self._status_page),
            "/status.json": ("GET", self._keyed(self._status)),
            "/metrics": ("GET", self._keyed(self._metrics)),
            "/v1/models": ("GET", self._keyed(self._models)),
        }
        audit = gateway.settings.serve.audit
        has_loop = audit is not None and audit.reference is not None
        if audit is not None:
            self._routes["/v1/labels"] = ("POST", self._keyed(self._label))
        if gateway.admin_keys is not None:
            self._routes["/admin/reload"] = ("POST", self._reload)
            self._routes["/admin/rollback"] = ("POST", self._rollback)
            for path, action in DRIFT.items() if has_loop else ():
                self._routes[path] = ("POST", self._drift(action))
        self._kinds = {f"/v1{kind.path}": kind for kind in chat.KINDS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(scope, receive, send)
            kind = self._kinds.get(exchange.path)
            if kind is not None and exchange.method == "POST":
                await Life(self._gateway, exchange, kind).live()
            else:
                await self._plain(exchange)

    async def _live(self, receive: Receive, send: Send) -> None:
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

    async def _plain(self, exchange: Exchange) -> None:
        """Answer what asks no node; it is counted once it is over, and never as in flight."""
        code: str | None = None
        try:
            await self._handler(exchange)(exchange)
        except Refused as error:
            code = error.code
            await send_refusal(exchange, error)
        except Exception as error:
            code = "internal"
            self._gateway.log.failure(exchange.request_id, error)
            if not exchange.status:
                await exchange.send_json(500, INTERNAL)
        finally:
            self._gateway.metrics.started()
            self._gateway.finished(
                Served(
                    exchange.request_id,
                    exchange.path if exchange.path in ROUTES else OTHER,
                    exchange.status or 500,
                    exchange.seconds,
                    error=code,
                )
            )

    def _handler(self, exchange: Exchange) -> Handler:
        method, handler = self._routes.get(exchange.path, ("POST", None))
        if handler is None and exchange.path not in self._kinds:
            raise Rejected(404, "not_found", "there is nothing here")
        wanted = "GET" if exchange.method == "HEAD" else exchange.method
        if handler is None or wanted != method:
            exchange.more_headers["allow"] = method
            raise Rejected(405, "method_not_allowed", f"use {method} here")
        return handler

    def _keyed(self, handler: Handler) -> Handler:
        async def handle(exchange: Exchange) -> None:
            check_key(self._gateway.keys, exchange)
            await handler(exchange)

        return handle

    async def _health(self, exchange: Exchange) -> None:
        await exchange.send_json(200, {"status": "ok"})

    async def _readiness(self, exchange: Exchange) -> None:
        ready = self._gateway.ready
        word = "ready" if ready else "not ready"
        await exchange.send_json(200 if ready else 503, {"status": word})

    async def _openapi(self, exchange: Exchange) -> None:
        await exchange.send_json(200, self._description)

    async def _models(self, exchange: Exchange) -> None:
        await exchange.send_json(200, chat.models(self._gateway.models()))

    async def _metrics(self, exchange: Exchange) -> None:
        self._gateway.tell()
        metrics = self._gateway.metrics
        headers = {"content-type": metrics.CONTENT_TYPE}
        await exchange.send_bytes(200, metrics.text(), headers)

    async def _status_page(self, exchange: Exchange) -> None:
        await exchange.send_bytes(200, PAGE, PAGE_HEADERS)

    async def _status(self, exchange: Exchange) -> None:
        await exchange.send_json(200, self._gateway.status_now(), {"cache-control": "no-store"})

    async def _reload(self, exchange: Exchange) -> None:
        check_key(self._gateway.admin_keys, exchange)
        done = await self._gateway.reloader.reload("admin")
        await exchange.send_json(200 if done.ok else 409, done.to_dict())

    async def _rollback(self, exchange: Exchange) -> None:
        check_key(self._gateway.admin_keys, exchange)
        done = await self._gateway.reloader.rollback("admin")
        await exchange.send_json(200 if done.ok else 409, done.to_dict())

    def _drift(self, action: str) -> Handler:
        async def handle(exchange: Exchange) -> None:
            check_key(self._gateway.admin_keys, exchange)
            adapting = self._gateway.adapting
            assert adapting is not None  # noqa: S101 - it is open, and there is a loop
            try:
                done = await adapting.do(action)
            except ArgumentError as error:
                raise Rejected(409, "not_now", str(error)) from None
            await exchange.send_json(200, done)

        return handle

    async def _label(self, exchange: Exchange) -> None:
        await take_label(self._gateway, exchange)
