"""One request, from its first byte to its last.

key -> body -> concurrency slot -> policy -> nodes -> response in OpenAI's format. Whatever happens,
a request gets one response, and the sinks receive one record of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.admission import MAX_RETRY_AFTER, RequestGuard
from ttamer.serve.bill import Bill, shown
from ttamer.serve.formats import openai
from ttamer.serve.formats.schemas import check
from ttamer.serve.formats.translations import TRANSLATIONS
from ttamer.serve.http import (
    JSON,
    ClientDisconnected,
    HttpError,
    InternalError,
    RetryLater,
    SlowBody,
    check_content_type,
    parse_json,
)
from ttamer.serve.observability.otel import NO_NODE, NO_SPAN, NO_TRACING
from ttamer.serve.observability.record import RequestRecord
from ttamer.serve.streaming import CascadeStream, Relay
from ttamer.serve.upstreams.upstream import KEPT_CODES, CallContext, UpstreamFailed
from ttamer.trace.verification import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ttamer.serve.accounts import Account
    from ttamer.serve.bill import NodeBill
    from ttamer.serve.config import ServeSettings
    from ttamer.serve.formats.openai import Endpoint
    from ttamer.serve.gateway import Gateway
    from ttamer.serve.http import HttpExchange
    from ttamer.serve.observability.otel import NodeSpan, RequestSpan
    from ttamer.serve.policies import ActivePolicy
    from ttamer.serve.upstreams.node import NodeAnswer
    from ttamer.serve.upstreams.upstream import FailureFacts

__all__ = ["RequestContext", "RequestHandler", "cost_headers", "failure", "late"]

GRACE = 5.0
"""The seconds after its deadline in which a response must have been sent."""
TIMER_SLACK = 0.005
"""The seconds by which a timer may fire early."""
CHOICE_HEADERS = {name: f"x-ttamer-{name}".encode() for name in ("tradeoff", "budget", "error")}
"""The headers in which a request may choose its operating point."""
_CHOICE_NAMES = frozenset(CHOICE_HEADERS.values())
_JSON = {"content-type": JSON}
_BUSY_KINDS = frozenset({"busy", "open", "queue"})
"""The failures of nodes that take no request for a while."""


class AllBusy(RetryLater):
    """No node that was asked takes a request for a while."""

    status = 502
    code = "upstream_failed"

    def __init__(self, retry_after: int) -> None:
        super().__init__("no model takes the request now", retry_after)


@dataclass(slots=True)
class RequestContext:
    """A request, parsed and checked, with its deadline and its span."""

    endpoint: Endpoint
    model: str
    body: dict[str, Any]
    """The body for upstreams, except for the model and the streaming options."""
    stream: bool = False
    include_usage: bool = False
    choice: tuple[str, float] | None = None
    """The operating point that the request chose, such as ("tradeoff", 0.8)."""
    request_id: str = ""
    client: str = ""
    """The name of the API key; empty where there are no keys."""
    key: str = ""
    """A secret key made of the client and the id, for the cascade; see ``Gateway.request_key``."""
    deadline: float = math.inf
    """The time by which it must be answered, by ``time.monotonic()``."""
    seconds: float = math.inf
    """The time that it had when it began."""
    span: RequestSpan = NO_SPAN
    failures: dict[str, FailureFacts] = field(default_factory=dict)
    """The last failure of each node that failed."""
    bill: Bill = field(default_factory=Bill)
    """The charges of all calls."""
    predictions: list[str | None] = field(default_factory=list)
    """The predictions of the nodes that have answered."""
    answers: dict[str, NodeAnswer] = field(default_factory=dict)
    """The answers that may still be verified, by node."""
    signals: dict[str, float] | None = None
    """The signals of the prompt, where they are computed."""

    @classmethod
    def parse(cls, data: Any, endpoint: Endpoint, **context: Any) -> RequestContext:
        """Check the JSON body of a request against the endpoint's schema.

        >>> body = {"model": "ttamer", "messages": [{"role": "user", "content": "2+2?"}]}
        >>> RequestContext.parse(body, openai.CHAT_COMPLETIONS).stream
        False
        """
        check(data, endpoint.validator)
        translation = TRANSLATIONS.get(endpoint.path)
        if translation is None:
            body, form = dict(data), endpoint
        else:
            body, form = translation.chat(data), openai.CHAT_COMPLETIONS
            check(body, form.validator)  # the schemas of other formats leave much open
        for name in form.whole_numbers & body.keys():  # JSON has one number for 2 and 2.0
            body[name] = None if body[name] is None else int(body[name])
        model = body.pop("model", openai.CASCADE)
        chosen = body.pop("ttamer", None)
        choice = None
        if chosen:
            name, value = next(iter(chosen.items()))
            choice = name, float(value)
        stream = include_usage = False
        if endpoint.chunk:
            stream = bool(body.pop("stream", None))
            options = body.pop("stream_options", None)
            include_usage = translation is not None or bool(
                options and options.get("include_usage")
            )
        return cls(endpoint, model, body, stream, include_usage, choice, **context)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def calls(self, span: NodeSpan = NO_NODE) -> CallContext:
        """Return the context of calls to nodes, whose span the upstream's spans are below."""
        headers = {"x-request-id": self.request_id}
        if span is not NO_NODE:
            headers |= span.headers()
        return CallContext(self.deadline, headers, self.bill, self.seconds)


class RequestHandler:
    """Handles one request that asks nodes."""

    def __init__(self, gateway: Gateway, exchange: HttpExchange, endpoint: Endpoint) -> None:
        self._gateway, self._exchange, self._endpoint = gateway, exchange, endpoint
        self._translation = TRANSLATIONS.get(endpoint.path)
        self._artefact = gateway.policies.current  # the request ends on the one it began with
        self._version = self._artefact.short_version
        self._asked: tuple[NodeCall, ...] = ()
        self._by: str | None = None
        self._is_capped = False
        self._error: str | None = None
        self._has_body = False

    async def handle(self) -> None:
        """Handle the request, and record it."""
        gateway, exchange = self._gateway, self._exchange
        gateway.metrics.started()
        span = NO_SPAN
        if gateway.tracing is not NO_TRACING:
            span = gateway.tracing.request(
                self._endpoint.route,
                traceparent=exchange.header(b"traceparent"),
                tracestate=exchange.header(b"tracestate"),
            )
        try:
            seconds = gateway.settings.serve.timeout + GRACE
            with RequestGuard(gateway.watchdog, exchange.receive, seconds) as guard:
                await self._respond(span, guard)
        except HttpError as error:
            await self._refuse(error)
        except TimeoutError:
            await self._refuse(late() if self._has_body else SlowBody())
        except asyncio.CancelledError:
            self._error = "cancelled"
            raise
        except Exception as error:
            gateway.log.failure(exchange.request_id, error)
            self._error = InternalError.code
            if not exchange.status:
                await exchange.send_error(InternalError())
        finally:
            record = self._record()
            span.finish(record)
            gateway.finished(record)

    async def _respond(self, span: RequestSpan, guard: RequestGuard) -> None:
        gateway, exchange = self._gateway, self._exchange
        gateway.admit(exchange)
        request = await self._read(span)
        guard.watch_disconnect()
        policy = await self._artefact.policies.choose(request.choice)
        node = gateway.single_node(request.model)
        self._version = policy.version
        exchange.response_headers["x-ttamer-policy"] = policy.version
        if policy.promise is not None and request.model in gateway.names:
            exchange.response_headers["x-ttamer-promise"] = policy.promise
        async with gateway.limit.slot(request.seconds_left):
            if request.stream and (node is None or request.endpoint.is_translated):
                await self._stream(request, policy, node)
            elif node is None:
                await self._answer(request, policy)
            elif request.stream:
                await self._relay(request, node)
            else:
                await self._answer_alone(request, node)

    async def _read(self, span: RequestSpan) -> RequestContext:
        """Read and check the whole request."""
        exchange, serve = self._exchange, self._gateway.settings.serve
        check_content_type(exchange)
        body = await exchange.read(serve.max_body)
        self._has_body = True
        request = RequestContext.parse(
            parse_json(body, max_depth=serve.max_depth),
            self._endpoint,
            request_id=exchange.request_id,
            client=exchange.client,
            deadline=exchange.start + serve.timeout,
            seconds=serve.timeout,
            span=span,
            bill=exchange.bill,
        )
        if exchange.has_any(_CHOICE_NAMES):
            request.choice = _choice(request.choice, exchange)
        return request

    async def _answer(self, request: RequestContext, policy: ActivePolicy) -> None:
        """Answer by the cascade."""
        try:
            outcome = await self._gateway.answer(request, policy)
        except CascadeFailed as error:
            self._asked = error.asked
            raise self._failure(error, request) from None
        self._asked, self._by, self._is_capped = outcome.asked, outcome.by, outcome.capped
        self._exchange.response_headers |= self._headers()
        await self._send(request, outcome)
        if self._gateway.audits is not None and request.choice is None:
            self._gateway.audits.consider(request, outcome.asked)

    async def _stream(
        self, request: RequestContext, policy: ActivePolicy, only: str | None
    ) -> None:
        """Answer by the cascade, or by one node, in events."""
        exchange, gateway = self._exchange, self._gateway
        async with AsyncExitStack() as stack:
            stream = CascadeStream(gateway, request, policy, stack, only=only)

            def begun() -> None:
                exchange.response_headers |= self._stream_headers(stream.by, stream.path)

            try:
                async with aclosing(stream.events(begun)) as events:
                    await exchange.send_events(events)
            except CascadeFailed as error:
                raise self._failure(error, request) from None
            finally:
                self._asked, self._is_capped = stream.asked, stream.is_capped
                self._by = stream.by if stream.is_complete else None
        if gateway.audits is not None and request.choice is None and only is None:
            gateway.audits.consider(request, self._asked)

    async def _answer_alone(self, request: RequestContext, name: str) -> None:
        """Answer by one node."""
        exchange = self._exchange
        try:
            answer, asked = await self._gateway.answer_alone(request, name)
        except CascadeFailed as error:
            self._asked = error.asked
            raise self._failure(error, request) from None
        self._asked, self._by = (asked,), name
        exchange.response_headers |= self._headers()
        if answer.content and not request.endpoint.is_translated:
            await exchange.send_bytes(200, answer.content, _JSON)  # the upstream's own bytes
            return
        why = f"{name!r} answers alone"
        outcome = Outcome(
            answer, asked.prediction, name, (asked,), asked.cost, asked.seconds, why, capped=False
        )
        await self._send(request, outcome)

    async def _send(self, request: RequestContext, outcome: Outcome) -> None:
        """Send an answer in the format of the endpoint."""
        body = openai.completion(request, outcome)
        if self._translation is not None:
            body = self._translation.answer(body, request.request_id)
        await self._exchange.send_json(200, body)

    async def _relay(self, request: RequestContext, name: str) -> None:
        """Relay one node's stream."""
        exchange = self._exchange
        async with AsyncExitStack() as stack:
            relay = Relay(self._gateway, request, name, stack)
            try:
                chunks, content_type = await relay.begin()
                exchange.response_headers |= self._stream_headers(name, (name,))
                async with aclosing(chunks):
                    await exchange.send_events(chunks, content_type)
            except UpstreamFailed:
                failed = CascadeFailed("no node returned an answer", (relay.asked(),))
                raise self._failure(failed, request) from None
            finally:
                self._asked = (relay.asked(),)
                self._by = name if relay.is_complete else None

    async def _refuse(self, error: HttpError) -> None:
        exchange = self._exchange
        self._error = error.code
        if isinstance(error, ClientDisconnected):
            return
        self._gateway.refused(error, exchange.client)
        if not exchange.status:
            if not exchange.bill.is_empty:
                exchange.response_headers |= self._headers()
            await exchange.send_error(error)
        elif exchange.is_stream:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await exchange.send_error_event(error)

    def _headers(self) -> dict[str, str]:
        """Return the headers that name the path and its cost; of errors too."""
        bill = self._exchange.bill
        asked = self._asked if self._by else self._calls(bill.by_node())
        return _path_headers(self._by, tuple([one.node for one in asked])) | cost_headers(bill)

    def _stream_headers(self, by: str, path: tuple[str, ...]) -> dict[str, str]:
        """Return the headers of a stream; a cost that depends on its tokens is not known yet."""
        headers, bill = _path_headers(by, path), self._exchange.bill
        return headers if bill.estimated else headers | {"x-ttamer-cost": shown(bill.cost)}

    def _calls(self, bill: Mapping[str, NodeBill]) -> list[NodeCall]:
        """Return the nodes asked, with the cost of all of their calls, ended ones too."""
        asked = [_priced(one, bill) for one in self._asked]
        if len(asked) < len(bill) or self._by is None:
            names = self._gateway.settings.nodes.keys() - {one.node for one in asked}
            asked += [
                NodeCall(name, None, None, each.cost, 0.0, "cancelled", each.calls)
                for name, each in bill.items()
                if name in names
            ]
        return asked

    def _failure(self, error: CascadeFailed, request: RequestContext) -> HttpError:
        """Return the error for the client when no node answered, without the nodes' own text."""
        nodes = {one.node for one in error.asked}
        failures = [each for node, each in request.failures.items() if node in nodes]
        return failure(
            failures if len(failures) == len(nodes) else (),
            self._gateway.settings.serve,
            self._gateway.accounts.get(request.client),
            is_late=error.late or request.seconds_left <= TIMER_SLACK,
        )

    def _record(self) -> RequestRecord:
        exchange, bill = self._exchange, self._exchange.bill.by_node()
        asked = self._calls(bill)
        is_gone = self._error == ClientDisconnected.code
        return RequestRecord(
            exchange.request_id,
            self._endpoint.route,
            ClientDisconnected.status if is_gone else exchange.status or 500,
            exchange.seconds,
            self._version,
            asked,
            self._by,
            exchange.bill.cost,
            self._is_capped,
            sum([one.calls for one in asked]) - len(asked),
            self._error,
            exchange.client,
            bill,
        )


def _choice(in_body: tuple[str, float] | None, exchange: HttpExchange) -> tuple[str, float] | None:
    """Return the operating point chosen in the body or in a header; refuse two of them."""
    choices = [] if in_body is None else [in_body]
    for name, header in CHOICE_HEADERS.items():
        text = exchange.header(header)
        if text is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise HttpError(f"the header x-ttamer-{name} must be a number", code="bad_header")
        choices.append((name, value))
    if len(choices) > 1:
        raise HttpError("choose one of tradeoff, budget and error, once", code="bad_choice")
    return choices[0] if choices else None


def late() -> HttpError:
    """Return the error for a request whose time is over."""
    return HttpError("no model answered in time", status=504, code="deadline")


def _priced(call: NodeCall, bill: Mapping[str, NodeBill]) -> NodeCall:
    """Return a call with what all calls to the node cost, failed attempts included."""
    found = bill.get(call.node)
    cost = 0.0 if found is None else found.cost
    return call if call.cost == cost else replace(call, cost=cost)


def failure(
    failures: Sequence[FailureFacts],
    serve: ServeSettings,
    account: Account | None = None,
    *,
    is_late: bool = False,
) -> HttpError:
    """Return the error for the client of a request that no node answered.

    Args:
        failures: The failures of all nodes that were asked; none where some are not known.
        serve: The settings.
        account: The account of the request's key.
        is_late: Whether the time of the request is over.

    Returns:
        The error, without the nodes' own text.
    """
    kinds = {each.kind for each in failures}
    if kinds and kinds <= {"limit", "budget"}:
        if "budget" in kinds and account is not None:
            return account.budget_spent()
        return HttpError(
            "every call could cost more than is allowed for a request; send a shorter prompt, or a "
            "lower max_tokens",
            code="max_cost",
        )
    if failures and all(each.is_client_error for each in failures):
        codes = {each.code for each in failures if each.code is not None}
        if len(codes) == 1:
            code = codes.pop()
            return HttpError(KEPT_CODES[code], code=code)
        return HttpError("the model refused the request as malformed", code="refused_upstream")
    if is_late:
        return late()
    if kinds and kinds <= _BUSY_KINDS:
        longest = min(max(each.pause for each in failures), MAX_RETRY_AFTER)
        return AllBusy(math.ceil(max(1.0, longest, serve.retry_after)))
    return HttpError("no model returned a usable answer", status=502, code="upstream_failed")


def cost_headers(bill: Bill) -> dict[str, str]:
    """Return the headers that name what a request cost."""
    headers = {"x-ttamer-cost": shown(bill.cost)}
    if estimated := bill.estimated:
        headers["x-ttamer-cost-estimated"] = shown(estimated)
    return headers


@lru_cache(maxsize=1024)
def _path_headers(by: str | None, path: tuple[str, ...]) -> dict[str, str]:
    """Return the headers that name the nodes; there are few paths, and none is changed later."""
    headers = {"x-ttamer-path": ",".join(quote(name, safe="") for name in path)}
    if by is None:
        return headers
    return {"x-ttamer-answered-by": quote(by.removesuffix(SUFFIX), safe=""), **headers}
