"""HTTP over plain ASGI: one request with its response, its body, and the errors sent to clients."""

from __future__ import annotations

import json
import math
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ttamer.errors import TTamerError
from ttamer.serve.bill import Bill
from ttamer.serve.codec import encode
from ttamer.serve.observability.record import request_id_from
from ttamer.serve.sse import EVENT_STREAM, event_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping

    from ttamer.serve.connections import ServerCycle

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

__all__ = [
    "EXTENSION",
    "JSON",
    "BadJson",
    "BodyTooLarge",
    "ClientDisconnected",
    "HttpError",
    "HttpExchange",
    "InternalError",
    "RetryLater",
    "SlowBody",
    "TooManyRequests",
    "check_content_type",
    "openai_error",
    "parse_json",
    "read_body",
]

JSON = "application/json"
"""The content type of JSON."""
EXTENSION = "ttamer.cycle"
"""The name of the ASGI extension that holds a request's ``connections.ServerCycle``.

Other servers have none: then requests and responses are the events of ASGI.
"""

_LENGTH = re.compile(r"[0-9]+")
_PORT = re.compile(r":[0-9]*$")
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class HttpError(TTamerError):
    """A request that is not served: the status, code and message that the client receives."""

    status = 400
    code = "refused"
    param: str | None = None

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if code is not None:
            self.code = code
        if param is not None:
            self.param = param

    @property
    def headers(self) -> dict[str, str]:
        """Headers sent with the error."""
        return {}


def openai_error(error: HttpError) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format."""
    status = error.status
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    facts = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": facts}


class BodyTooLarge(HttpError):
    """The body has more bytes than allowed."""

    status = 413
    code = "body_too_large"


class BadJson(HttpError):
    """The body is not acceptable JSON."""

    code = "bad_json"


class SlowBody(HttpError):
    """The body was not received in time."""

    status = 408
    code = "request_timeout"

    def __init__(self) -> None:
        super().__init__("the body was not received in time")


class ClientDisconnected(HttpError):
    """The client disconnected before the response was complete."""

    status = 499
    code = "client_gone"


class RetryLater(HttpError):
    """A request that may be sent again after some seconds."""

    status = 429

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(f"{message}; retry in {retry_after} s")
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """The header ``Retry-After``."""
        return {"retry-after": str(self.retry_after)}


class TooManyRequests(RetryLater):
    """The gateway is at its limit of concurrent requests."""

    code = "rate_limited"

    def __init__(self, retry_after: int) -> None:
        super().__init__("too many concurrent requests", retry_after)


class InternalError(HttpError):
    """A mistake in the gateway itself."""

    status = 500
    code = "internal"

    def __init__(self) -> None:
        super().__init__("internal error; see the gateway's log")


class HttpExchange:
    """A request, and the one response to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.start = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self._send = send
        # Taken out: it refers to the scope, and only the garbage collector would free the two.
        self._cycle: ServerCycle | None = (scope.get("extensions") or {}).pop(EXTENSION, None)
        self.request_id = request_id_from(self.header(b"x-request-id"))
        self.response_headers: dict[str, str] = {}
        """Headers sent with every response, errors included."""
        self.status = 0
        """The status sent; 0 before the response begins."""
        self.is_stream = False
        self.client = ""
        """The name of the API key; empty where there are no keys."""
        self.bill = Bill()
        """The charges of the request."""
        self.error_body: Callable[[HttpError], dict[str, Any]] = openai_error
        """The body of an error, in the format of the endpoint."""

    @property
    def seconds(self) -> float:
        """The time since the request began."""
        return time.monotonic() - self.start

    def header(self, name: bytes) -> str | None:
        """Return a request header by its lower-case name."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Return whether the request has one of these headers, by their lower-case names."""
        return not names.isdisjoint(self._headers)

    def has_host(self, hosts: tuple[str, ...]) -> bool:
        """Return whether the Host header, without its port, is one of these names."""
        host = (self.header(b"host") or "").lower()
        name = host.rpartition(":")[0] if _PORT.search(host) else host
        return name in hosts

    async def send_json(
        self, status: int, data: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a complete response as JSON."""
        content = encode(data)
        await self.send_bytes(status, content, {"content-type": JSON, **(headers or {})})

    async def send_error(self, error: HttpError) -> None:
        """Send an error in the endpoint's format."""
        await self.send_json(error.status, self.error_body(error), error.headers)

    async def send_bytes(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        """Send a complete response."""
        length = str(len(content))
        if self._cycle is not None:
            merged = {
                **headers,
                "content-length": length,
                **self.response_headers,
                "x-request-id": self.request_id,
            }
            self.status = status
            if self._cycle.respond(status, merged, content):
                return
        await self._begin(status, {**headers, "content-length": length})
        await self._send({"type": "http.response.body", "body": content})

    async def read(self, limit: int) -> bytes:
        """Return the body of the request; stop reading as soon as it is too large."""
        body = None if self._cycle is None else self._cycle.take_body()
        if body is None:
            length = self.header(b"content-length")
            return await read_body(self.receive, limit=limit, content_length=length)
        if len(body) > limit:
            raise _too_large(limit)
        return body

    async def send_events(
        self, chunks: AsyncIterator[bytes], content_type: str = f"{EVENT_STREAM}; charset=utf-8"
    ) -> None:
        """Send a response chunk by chunk, each as soon as it is available.

        It begins with the first chunk: an error before that can still have its own status.
        """
        first = await anext(chunks, b"")
        self.is_stream = True
        headers = {"content-type": content_type, "cache-control": "no-store"}
        await self._begin(200, headers)
        await self._send({"type": "http.response.body", "body": first, "more_body": True})
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def send_error_event(self, error: HttpError) -> None:
        """End a stream that has begun with an error event, as OpenAI's clients read it."""
        body = self.error_body(error)
        event = event_of(body, "error" if body.get("type") == "error" else "")
        await self._send({"type": "http.response.body", "body": event})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        merged = {**headers, **self.response_headers, "x-request-id": self.request_id}
        raw = [(_header_name(name), value.encode("latin-1")) for name, value in merged.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


@lru_cache(maxsize=256)
def _header_name(name: str) -> bytes:
    """Encode the name of a response header; there are few of them."""
    return name.encode("latin-1")


def check_content_type(exchange: HttpExchange) -> None:
    """Refuse a body that is not declared as JSON."""
    content_type = exchange.header(b"content-type") or ""
    if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
        raise HttpError(
            "set the header content-type: application/json",
            status=415,
            code="unsupported_media_type",
        )


async def read_body(receive: Receive, *, limit: int, content_length: str | None = None) -> bytes:
    """Return the body of an ASGI request; stop reading as soon as it is too large.

    ``content_length`` may refuse a body early; the limit applies to the bytes received.
    """
    declared = content_length or ""
    if _LENGTH.fullmatch(declared) and int(declared[:18]) > limit:  # 18 digits exceed any limit
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("the client disconnected")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body has more than the {limit} bytes that are allowed")


def parse_json(body: bytes, *, max_depth: int = 32) -> Any:
    """Return the value that a body holds.

    Refused are: text that is not UTF-8, a key given twice in one object (two parsers could take
    different ones), numbers that are not finite, lone surrogates, and nesting deeper than
    ``max_depth`` lists and objects.

    >>> parse_json(b'{"model": "ttamer", "n": [1, 2]}')
    {'model': 'ttamer', 'n': [1, 2]}
    >>> parse_json(b'{"n": 1, "n": 2}')
    Traceback (most recent call last):
    ttamer.serve.http.BadJson: the body has a key twice in one object
    """
    try:
        data = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadJson("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadJson(
            f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:  # more digits than Python reads
        raise BadJson("the body has a number with too many digits") from None
    # With few brackets and no escapes there is nothing left to check.
    if body.count(b"{") + body.count(b"[") > max_depth or b"\\u" in body:
        _check_nested(data, max_depth)
    return data


def _check_nested(data: Any, max_depth: int) -> None:
    """Check depth and text level by level, without recursion."""
    level: list[Any] = [data]
    depth = 0
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not item.isascii():
                    _check_text(item)
            elif isinstance(item, dict):
                below.extend(item.keys())
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if any(isinstance(item, dict | list) for item in level):
            depth += 1
            if depth > max_depth:
                raise _too_deep(max_depth)
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadJson("the body has half of a character: a lone surrogate escape") from None


def _too_deep(max_depth: int) -> BadJson:
    return BadJson(f"the body is nested more than {max_depth} deep")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) != len(pairs):
        raise BadJson("the body has a key twice in one object")
    return item


def _no_constant(token: str) -> float:
    raise BadJson(f"the body has the number {token}, which is not JSON")


def _finite(token: str) -> float:
    number = float(token)
    if not math.isfinite(number):
        raise BadJson("the body has a number that is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_repeats, parse_constant=_no_constant, parse_float=_finite
)
