"""One OpenAI-compatible server: called with JSON, or relayed byte for byte.

Every failure is an :class:`UpstreamFailed` of a known kind. It names the node and never repeats the
server's own text, since that may hold a key or a prompt.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from base64 import b64encode
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from ttamer.errors import CascadeError, TTamerError
from ttamer.serve.bill import (
    UNSTATED_TOKENS,
    Bill,
    Charge,
    LimitReached,
    StreamUsage,
    Tariff,
    Usage,
    answers_of,
    output_limit,
)
from ttamer.serve.codec import decode, encode
from ttamer.serve.formats.anthropic import (
    MESSAGES,
    VERSION_HEADER,
    ChatChunks,
    chat_from_message,
    message_body,
)
from ttamer.serve.sse import EVENT_STREAM
from ttamer.serve.upstreams.breaker import CircuitBreaker
from ttamer.serve.upstreams.client import (
    ConnectFailed,
    HttpClient,
    Response,
    Route,
    Target,
    TooLarge,
    tls_context,
)
from ttamer.serve.upstreams.limits import CallLimits, NodeLimitReached

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from ttamer.serve.config import NodeSettings
    from ttamer.serve.observability.record import Failure

__all__ = [
    "NO_REQUEST",
    "CallContext",
    "FailureFacts",
    "NodeResponse",
    "RelayedStream",
    "Upstream",
    "UpstreamFailed",
]

_RETRIED: frozenset[Failure] = frozenset({"connect", "busy", "error", "cut"})
"""The failures after which the same server is called again: completions have no side effects, and a
timeout would take as long once more."""
_UNPAID: frozenset[Failure] = frozenset(
    {"connect", "refused", "busy", "open", "limit", "budget", "queue"}
)
"""The failures after which a call costs nothing."""
_ELSEWHERE = (401, 403, 404)
"""The statuses after which the fallback is called: this server lacks the model, or the key."""

_OWN_HEADERS = frozenset({"authorization", "content-type", "content-length", "host", "connection"})
_STREAMING = ("stream", "stream_options")
_LIMIT_FIELDS = {
    "/chat/completions": "max_tokens",
    "/completions": "max_tokens",
    "/responses": "max_output_tokens",
}
"""The field that limits the tokens of an answer, by path."""

T = TypeVar("T")

KEPT_CODES = {
    "context_length_exceeded": "the prompt and the answer are longer than the model's context",
    "string_above_max_length": "a text of the request is too long for the model",
    "content_policy_violation": "the model's provider refused the content of the request",
    "content_filter": "the model's provider refused the content of the request",
    "invalid_image_url": "an image of the request could not be read",
    "invalid_image_format": "an image of the request has a format that the model does not read",
    "image_too_large": "an image of the request is too large for the model",
    "unsupported_parameter": "the model does not take a parameter of the request",
    "unsupported_value": "the model does not take a value of the request",
}
"""The error codes of upstreams that clients receive, with texts of our own."""
FIRST_PAUSE = 0.05
"""The seconds before the first retry; doubled for each further one, or as Retry-After demands."""
MAX_PAUSE = 10.0
"""The most seconds between two attempts."""
FAIR_SHARE = 0.5
"""The share of its time that a call must have had for its timeout to count for a breaker."""
MAX_ERROR_TEXT = 200
"""The most characters shown of an upstream's error."""


CLIENT_ERRORS = (400, 413, 422)
"""The statuses with which an upstream refuses a request as invalid."""
NOT_FOUND = 404
"""The status of a wrong address, and of a model that the server does not have."""
UNKNOWN_MODEL = "set its model to one that the server has"
"""What to do about a model that the server does not have."""
UNKNOWN_PATH = "check its upstream: most base URLs end in /v1"
"""What to do about a wrong address."""
REFUSED_FIELDS = (400, 422)
"""The statuses with which upstreams refuse a request field that they do not take."""
REMEDIES = {
    "logprobs": 'set its confidence to "none", "self-report", "verifier" or "agreement", '
    "without extras",
    "max_tokens": 'set its params = {max_tokens = "max_completion_tokens"}',
    "temperature": "set its params = {temperature = false}",
}
"""The settings of a node that an upstream needs which does not take a field."""
_NOT_TAKEN = re.compile(
    r"support|unknown|unrecogni|unexpected|not permitted|not allowed|deprecated"
)


class FailureFacts(NamedTuple):
    """What the response to a client depends on where a node failed."""

    kind: Failure
    is_client_error: bool
    """Whether the upstream refuses the request as invalid."""
    code: str | None
    """One of :data:`KEPT_CODES`, where the upstream gave it."""
    pause: float
    """The seconds after which the node may be called again, where they are known."""


class UpstreamFailed(TTamerError):
    """A node returned no usable answer."""

    def __init__(
        self,
        node: str,
        kind: Failure,
        detail: str,
        *,
        status: int | None = None,
        pause: float = 0,
        upstream_text: str = "",
        code: str | None = None,
    ) -> None:
        super().__init__(f"node {node!r}: {detail}")
        self.code = code
        """One of :data:`KEPT_CODES`, where the upstream gave it."""
        self.node, self.kind, self.status = node, kind, status
        self.pause = pause
        """The seconds after which the node may be called again; 0 where they are not known."""
        self.upstream_text = upstream_text
        """The upstream's own text, for an operator only: it may hold a prompt or a key."""

    @property
    def remedy(self) -> str:
        """The setting to change where the address, the model or a field is refused, or nothing."""
        text = self.upstream_text.casefold()
        if self.status == NOT_FOUND:
            return UNKNOWN_MODEL if "model" in text else UNKNOWN_PATH
        if self.status not in REFUSED_FIELDS or not _NOT_TAKEN.search(text):
            return ""
        return next((remedy for name, remedy in REMEDIES.items() if name in text), "")

    @property
    def is_client_error(self) -> bool:
        """Whether the upstream refuses the request as invalid."""
        return self.status in CLIENT_ERRORS

    @property
    def facts(self) -> FailureFacts:
        """What the response to a client depends on; unlike the error, it refers to no frame."""
        return FailureFacts(self.kind, self.is_client_error, self.code, self.pause)

    @property
    def paid(self) -> bool:
        """Whether the call may have cost something all the same."""
        return self.kind not in _UNPAID


class CallContext(NamedTuple):
    """What all calls for one request have in common.

    >>> CallContext().seconds_left
    inf
    """

    deadline: float = math.inf
    """When they must have ended, by ``time.monotonic()``."""
    headers: Mapping[str, str] = {}
    """Sent too, except for those that are the node's own, such as the key."""
    bill: Bill | None = None
    """Where every attempt is booked."""
    seconds: float = math.inf
    """The time that the request had when it began."""

    @classmethod
    def within(cls, seconds: float, headers: Mapping[str, str] | None = None) -> CallContext:
        """Return the context of calls that end within some seconds, all together."""
        return cls(time.monotonic() + seconds, headers or {}, seconds=seconds)

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline; infinite without one."""
        return max(0.0, self.deadline - time.monotonic())


NO_REQUEST = CallContext()
"""The context of calls that belong to no request."""


class NodeResponse(NamedTuple):
    """The JSON object that an upstream returned."""

    body: dict[str, Any]
    seconds: float
    """The time to the last byte, failed attempts included."""
    content: bytes = b""
    """The body as received."""
    cost: float = 0.0
    """The cost of the call that was answered; an estimate where its usage is not known."""


@dataclass(frozen=True)
class RelayedStream:
    """A response that has begun and is still being received."""

    status: int
    """Always 200: another status is a failure."""
    content_type: str
    chunks: AsyncIterator[bytes]
    """Raises :class:`UpstreamFailed` where the connection breaks."""


class Upstream:
    """The server behind one node, and its fallback.

    ::

        async with HttpClient() as client:
            upstream = Upstream(settings.nodes["small"], client)
            response = await upstream.call("/chat/completions", body)
    """

    def __init__(
        self, settings: NodeSettings, client: HttpClient, *, read_errors: bool = False
    ) -> None:
        self.settings = settings
        self._read_errors = read_errors
        self._client = client
        self._headers = {"Content-Type": "application/json", **_own_headers(settings)}
        self._own = _OWN_HEADERS | {name.lower() for name in self._headers}
        self._query = f"?{urlencode(settings.query)}" if settings.query else ""
        self._route = _route(settings)
        self._bases = settings.servers
        self._load = dict.fromkeys(self._bases, 0)
        self._turn = 0
        limits = settings.max_concurrent, settings.max_rate
        self._limits = CallLimits(*limits, settings.max_wait) if any(limits) else None
        self._targets: dict[tuple[str, str], Target] = {}
        self.tariff = Tariff(settings)
        self._breakers = {base: CircuitBreaker(settings.breaker) for base in self._bases}

    @property
    def is_open(self) -> bool:
        """Whether the circuit breakers of all servers are open."""
        return all(breaker.is_open for breaker in self._breakers.values())

    def share_limits(self, other: Upstream) -> None:
        """Count calls with those of another node of the same server, and stop them together."""
        self._limits, self._breakers, self._load = other._limits, other._breakers, other._load

    async def call(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
        *,
        node: str = "",
    ) -> NodeResponse:
        """Post a JSON object and return the response.

        The deadline is for all attempts together; each has the node's own timeout besides. They are
        booked as calls of ``node``, by default this one.
        """
        start, bill = time.monotonic(), context.bill or Bill()
        content, most = self._bounded(path, body, bill)
        settings, deadline = self.settings, context.deadline

        async def answered(base: str) -> NodeResponse:
            limit = self._limit(deadline)
            charge = self._open(bill, node or settings.name, most)
            try:
                target, breaker = self._target(base, path), self._breakers[base]
                request = target.request(content, self._with(context.headers))
                connection = self._client.take(target.origin)
                if connection is None:
                    async with breaker.limited(limit):
                        connection = await self._client.acquire(target.origin)
                    limit = self._limit(deadline)
                charge.is_sent = True
                breaker.waiting.add(connection)
                try:
                    response = await connection.exchange(request, settings.max_response, limit)
                finally:
                    breaker.waiting.discard(connection)
                self._check(response)
                answer, received = self._parsed(response.content), response.content
                if settings.api == "anthropic":
                    answer = chat_from_message(answer)
                    received = encode(answer)
            except BaseException as error:
                _drop_unpaid(bill, charge, error)
                raise
            self._settle(bill, charge, Usage.of(answer))
            return NodeResponse(answer, time.monotonic() - start, received, charge.cost)

        response, base = await self._attempt(answered, context)
        self._leave(base)
        return response

    def _bounded(
        self, path: str, given: Mapping[str, Any], bill: Bill, *, is_stream: bool = False
    ) -> tuple[bytes, float]:
        """Return the bytes of a request, and the most that its call can cost.

        Where a limit on cost applies and the request has no limit on the tokens of its answer, it
        gets one.
        """
        tariff, body = self.tariff, {**given, "model": self.settings.model}
        if not is_stream:
            for name in _STREAMING:
                body.pop(name, None)
        if not tariff.has_tokens:
            return encode(self.adapted(body)), tariff.cost
        limit, field = output_limit(body), _LIMIT_FIELDS.get(path)
        if limit is None and field is not None and bill.left < math.inf:
            longest = encode(self.adapted({**body, field: UNSTATED_TOKENS}))
            affordable = tariff.affordable(longest, bill.left)
            if affordable is not None:
                answers = answers_of(body)  # the limit is for each of them
                body[field] = max(1, min(affordable // answers, UNSTATED_TOKENS))
                limit = answers * body[field]
        content = encode(self.adapted(body))
        return content, tariff.most(content, limit)

    def _open(self, bill: Bill, node: str, most: float) -> Charge:
        try:
            return bill.open(node, most, is_estimate=self.tariff.has_tokens)
        except LimitReached as reached:
            raise self._failed("budget" if reached.of_key else "limit", str(reached)) from None

    def _settle(self, bill: Bill, charge: Charge, usage: Usage | None) -> None:
        """Book what a call cost; without the usage that its price needs, an estimate stays."""
        cost = self.tariff.price(usage)
        if cost is not None:
            bill.settle(charge, cost, usage)

    def adapted(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a request with the fields renamed and dropped that the node's ``params`` name."""
        for key, name in self.settings.params:
            if key in body:
                value = body.pop(key)
                if name is not None:
                    body[name] = value
        return message_body(body) if self.settings.api == "anthropic" else body

    @asynccontextmanager
    async def relay(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
        *,
        include_usage: bool = False,
    ) -> AsyncIterator[RelayedStream]:
        """Post a request for a stream, and relay the response while it is received.

        Retries like :meth:`call` until the response begins. The deadline is for the whole response;
        the node's own timeout is for the time to its first byte and between bytes. Where tokens
        have a price, the upstream is asked for the usage; the client receives it with
        ``include_usage``.
        """
        deadline, bill, node = context.deadline, context.bill or Bill(), self.settings.name
        whole = {key: value for key, value in body.items() if key not in _STREAMING}
        whole["stream"] = True
        usage = None
        if include_usage or self.tariff.has_tokens:
            usage = StreamUsage(keep=include_usage)
            whole["stream_options"] = {"include_usage": True}
        content, most = self._bounded(path, whole, bill, is_stream=True)

        async def begun(base: str) -> tuple[Response, Charge]:
            charge = self._open(bill, node, most)
            try:
                async with self._breakers[base].limited(self._limit(deadline)):
                    target = self._target(base, path)
                    connection = await self._client.acquire(target.origin)
                    charge.is_sent = True
                    request = target.request(content, self._with(context.headers))
                    response = await connection.start(request)
                try:
                    self._check(response)
                except UpstreamFailed:
                    response.close()
                    raise
            except BaseException as error:
                _drop_unpaid(bill, charge, error)
                raise
            return response, charge

        (response, charge), base = await self._attempt(begun, context)
        try:
            kind = response.header("content-type") or "application/octet-stream"
            chunks = self._chunks(response, deadline)
            if self.settings.api == "anthropic":
                chunks = self._translated(chunks, kind, has_usage=usage is not None)
            if usage is not None:
                chunks = self._counted(chunks, usage, bill, charge)
            yield RelayedStream(response.status, kind, chunks)
        finally:
            response.close()
            self._leave(base)
            if usage is None:
                self._settle(bill, charge, None)

    async def _attempt(
        self, attempt: Callable[[str], Awaitable[T]], context: CallContext
    ) -> tuple[T, str]:
        """Call each server as often as allowed; return the result, and the server that gave it.

        The caller calls :meth:`_leave` with the server, once the response is complete.
        """
        deadline = context.deadline
        failed: UpstreamFailed | None = None
        for base in self._order():
            breaker = self._breakers[base]
            for retry in range(self.settings.retries + 1):
                if failed is not None and retry and not await self._pause(failed, retry, deadline):
                    break
                start = time.monotonic()
                if start >= deadline:  # it says nothing about the server
                    raise failed or self._failed("timeout", "there was no time for a call")
                permit = breaker.allow()
                if permit is None:
                    failed = failed or self._failed(
                        "open", "is not called: its calls failed", pause=breaker.seconds_left
                    )
                    break
                try:
                    if self._limits is not None:
                        await self._enter(self._limits, deadline)
                        start = time.monotonic()
                    self._load[base] += 1
                    try:
                        result = await attempt(base)
                    except BaseException:
                        self._leave(base)
                        raise
                except (UpstreamFailed, OSError) as error:
                    before, failed = failed, self._named(error)
                    if failed.kind in ("limit", "budget", "queue"):
                        breaker.abandoned(permit)
                        raise (before or failed) from None
                    if failed.kind == "timeout" and self._was_cut_short(start, context):
                        breaker.abandoned(permit)
                    else:
                        breaker.failed(failed.kind, permit)
                    is_final = failed.kind == "refused" and failed.status not in _ELSEWHERE
                    if is_final or time.monotonic() >= deadline:
                        raise failed from None
                    if failed.kind not in _RETRIED:
                        break
                except BaseException:
                    breaker.abandoned(permit)
                    raise
                else:
                    breaker.succeeded()
                    return result, base
        raise failed or self._failed("timeout", "there was no time for a call")

    def _was_cut_short(self, start: float, context: CallContext) -> bool:
        """Return whether a call ended early because its request had little time left."""
        longest = min(self.settings.timeout, context.seconds)
        return time.monotonic() - start < FAIR_SHARE * longest

    def _order(self) -> Sequence[str]:
        """Return the servers in the order in which they are called.

        First one whose breaker may be tested, then the one with the fewest calls, in turn; the
        fallback is last.
        """
        count = len(self._bases) - (self.settings.fallback is not None)
        if count == 1:
            return self._bases
        self._turn += 1

        def rank(number: int) -> tuple[int, int, int]:
            base = self._bases[number]
            breaker = self._breakers[base]
            state = 1 if not breaker.is_open else 0 if breaker.may_test else 2
            return state, self._load[base], (number - self._turn) % count

        first = sorted(range(count), key=rank)
        return [*(self._bases[number] for number in first), *self._bases[count:]]

    async def _enter(self, limits: CallLimits, deadline: float) -> None:
        """Wait until the node's limits allow a call."""
        try:
            await limits.enter(deadline - time.monotonic())
        except NodeLimitReached:
            raise self._failed("queue", "is not called: its own limit is reached") from None
        if time.monotonic() >= deadline:
            limits.leave()
            raise self._failed("queue", "is not called: its own limit took all of the time")

    def _leave(self, base: str) -> None:
        """End a call."""
        self._load[base] -= 1
        if self._limits is not None:
            self._limits.leave()

    async def _counted(
        self, chunks: AsyncIterator[bytes], usage: StreamUsage, bill: Bill, charge: Charge
    ) -> AsyncIterator[bytes]:
        """Relay whole events, and book the usage that they state."""
        async for chunk in chunks:
            relayed = usage.feed(chunk)
            if usage.usage != charge.usage:
                self._settle(bill, charge, usage.usage)
            if relayed:
                yield relayed
        rest = usage.end()
        self._settle(bill, charge, usage.usage)
        if rest:
            yield rest

    async def _translated(
        self, chunks: AsyncIterator[bytes], kind: str, *, has_usage: bool
    ) -> AsyncIterator[bytes]:
        """Relay a streamed message as a chat completion; a whole one too."""
        if kind.partition(";")[0].strip().lower() == EVENT_STREAM:
            events = ChatChunks(usage=has_usage)
            async for chunk in chunks:
                if relayed := events.feed(chunk):
                    yield relayed
            return
        received = b""
        async for chunk in chunks:
            received += chunk
            if len(received) > self.settings.max_response:
                raise self._named(TooLarge())
        yield encode(chat_from_message(self._parsed(received)))

    async def _chunks(self, response: Response, deadline: float) -> AsyncIterator[bytes]:
        received = response.chunks()
        while True:
            try:
                async with asyncio.timeout(self._limit(deadline)):
                    chunk = await anext(received)
            except StopAsyncIteration:
                break
            except OSError as error:
                raise self._named(error) from None
            yield chunk

    def _target(self, base: str, path: str) -> Target:
        target = self._targets.get((base, path))
        if target is None:
            place = path
            if self.settings.api == "anthropic":
                if path != "/chat/completions":
                    raise self._failed("refused", "takes chat completions only")
                place = MESSAGES
            target = self._targets[base, path] = Target(
                base + place + self._query, self._headers, self._route
            )
        return target

    def _with(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the caller's headers without those that are the node's, in any letter case."""
        own = self._own
        if any(name.lower() in own for name in given):
            return {name: value for name, value in given.items() if name.lower() not in own}
        return given

    def _check(self, response: Response) -> None:
        """Refuse a response that is an error, or compressed."""
        if response.status != 200:
            error_text = _error_text(response.content) if self._read_errors else ""
            raise self._bad_status(response, error_text)
        encoding = response.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() != b"identity":
            raise self._failed("garbage", "returned a compressed response, which is not accepted")

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            body = decode(content)
        except (ValueError, RecursionError):
            raise self._failed("garbage", "returned text that is not JSON") from None
        if not isinstance(body, dict):
            raise self._failed("garbage", "returned JSON that is not an object")
        return body

    def _bad_status(self, response: Response, error_text: str) -> UpstreamFailed:
        status = response.status
        kind: Failure = "error"
        if status in (429, 503):
            kind = "busy"
        elif 400 <= status < 500 and status != 408:
            kind = "refused"
        pause = _seconds(response.header("retry-after"))
        return UpstreamFailed(
            self.settings.name,
            kind,
            f"returned status {status}",
            status=status,
            pause=pause,
            upstream_text=error_text,
            code=_error_code(response.content) if kind == "refused" else None,
        )

    async def _pause(self, failed: UpstreamFailed, retry: int, deadline: float) -> bool:
        """Wait before a retry; return whether there was time to.

        Where the server asks for a longer pause than the longest, a request goes on without it.
        """
        if failed.pause > MAX_PAUSE and deadline < math.inf:
            return False
        pause = FIRST_PAUSE * 2 ** (retry - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        pause = min(max(pause, failed.pause), MAX_PAUSE)
        if time.monotonic() + pause >= deadline:
            return False
        await asyncio.sleep(pause)
        return True

    def _limit(self, deadline: float) -> float:
        return max(min(self.settings.timeout, deadline - time.monotonic()), 0.0)

    def _failed(self, kind: Failure, detail: str, *, pause: float = 0) -> UpstreamFailed:
        return UpstreamFailed(self.settings.name, kind, detail, pause=pause)

    def _named(self, error: Exception) -> UpstreamFailed:
        """Return an error of the HTTP client as a failure of a known kind."""
        if isinstance(error, UpstreamFailed):
            return error
        if isinstance(error, TimeoutError):  # an OSError, as Python has it
            return self._failed("timeout", "returned no response in time")
        if isinstance(error, ConnectFailed):
            return self._failed("connect", "connection failed")
        if isinstance(error, TooLarge):
            return self._failed(
                "too_large", f"returned more than {self.settings.max_response} bytes"
            )
        return self._failed("cut", "closed the connection early")


def _drop_unpaid(bill: Bill, charge: Charge, error: BaseException) -> None:
    """Book nothing for a call that was not sent, or that the upstream refused."""
    if not charge.is_sent or isinstance(error, ConnectFailed):
        bill.void(charge)
    elif isinstance(error, UpstreamFailed) and not error.paid:
        bill.settle(charge, 0.0)


def _error_code(content: bytes) -> str | None:
    """Return the code of an error response, if it is one that clients know."""
    try:
        code = json.loads(content)["error"]["code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return code if isinstance(code, str) and code in KEPT_CODES else None


def _error_text(content: bytes) -> str:
    """Return the message of an error response, in one short line."""
    text = content.decode("utf-8", "replace")
    try:
        error = json.loads(content)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    line = " ".join(str(text).split())
    return "".join(c for c in line if c.isprintable())[:MAX_ERROR_TEXT]


def _own_headers(settings: NodeSettings) -> dict[str, str]:
    """Return the node's key and its further headers."""
    headers, is_anthropic = {}, settings.api == "anthropic"
    if settings.key_env is not None:
        key = _from_env(settings, "key_env", settings.key_env)
        header = settings.key_header or ("x-api-key" if is_anthropic else None)
        if header is None:
            headers["Authorization"] = f"Bearer {key}"
        else:
            headers[header] = key
    if is_anthropic and VERSION_HEADER[0] not in {name.lower() for name, _ in settings.headers}:
        headers |= [VERSION_HEADER]
    for name, value in settings.headers:
        if isinstance(value, str):
            headers[name] = value
        else:
            headers[name] = _from_env(settings, "headers", value.name)
    return headers


def _route(settings: NodeSettings) -> Route:
    """Return the way to the upstream; refuse certificates that cannot be read."""
    auth = None
    if settings.proxy_auth_env is not None:
        secret = _from_env(settings, "proxy_auth_env", settings.proxy_auth_env)
        auth = f"Basic {b64encode(secret.encode()).decode()}"
    if settings.ca_file is not None:
        try:
            tls_context(settings.ca_file)
        except OSError as error:
            raise CascadeError(
                f"node {settings.name!r}: ca_file is {settings.ca_file!r}, which cannot be used: "
                f"{error.strerror or error}; write the path of a PEM file of certificates"
            ) from None
    return Route(settings.proxy, auth, settings.ca_file)


def _from_env(settings: NodeSettings, option: str, name: str) -> str:
    """Return the secret that an environment variable holds; one that a header can hold too."""
    secret = os.environ.get(name, "").strip()
    if not secret or not secret.isprintable():
        raise CascadeError(
            f"node {settings.name!r}: {option} names {name}, and that environment "
            f"variable holds no key; set it, or remove {option}"
        )
    if not secret.isascii() and option != "proxy_auth_env":
        raise CascadeError(
            f"node {settings.name!r}: {option} names {name}, and that environment variable has "
            "characters that are not ASCII, such as curly quotes; set it to the key alone"
        )
    return secret


def _seconds(text: str | None) -> float:
    """Return the seconds of a ``Retry-After`` header: a number, or a date."""
    if text is None:
        return 0.0
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - time.time())
