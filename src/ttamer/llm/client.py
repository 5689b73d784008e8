"""One OpenAI-compatible server: limits learnt from its latency, retries, a breaker, streams.

Every failure is an :class:`UpstreamFailed` of a known kind. Its text names the node and never
repeats the server's own, which may hold a key or a prompt.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from ttamer.errors import CascadeError, TTamerError
from ttamer.llm.settings import EmbeddingSettings, EnvName, NodeSettings

Body = Mapping[str, Any]
# After failures of these kinds no server asks for money.
Unpaid = Literal["connect", "refused", "busy", "error", "open", "queue", "ineligible"]
Kind = Unpaid | Literal["timeout", "cut", "garbage", "too_large"]
CHAT = "/chat/completions"


class Deadline(NamedTuple):
    """When all the work for a request must have ended, by ``time.monotonic()``."""

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline that is so many seconds away."""
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """The seconds left, at least 0."""
        return max(0.0, self.end - time.monotonic())


NEVER = Deadline()


class Response(NamedTuple):
    """The JSON object that a server returned."""

    body: dict[str, Any]
    cost: float | None = None  # where the server states it


class UpstreamFailed(TTamerError):
    """A node gave no usable answer.

    >>> UpstreamFailed("small", "busy", "returned status 503", status=503).paid
    False
    """

    retry = False  # the client did, as far as it is of use
    known_codes: ClassVar = {  # that clients receive, in words of our own
        "context_length_exceeded": "the prompt and the answer are longer than the model's context",
        "content_policy_violation": "the model's provider refused the content of the request",
        "content_filter": "the model's provider refused the content of the request",
        "invalid_image_url": "an image of the request could not be read",
        "unsupported_parameter": "the model does not take a parameter of the request",
        "unsupported_value": "the model does not take a value of the request",
    }

    def __init__(
        self,
        node: str,
        kind: Kind,
        detail: str,
        *,
        status: int = 0,
        retry_after: float = 0.0,
        text: str = "",
    ) -> None:
        super().__init__(f"node {node!r}: {detail}")
        self.node, self.kind, self.status, self.retry_after = node, kind, status, retry_after
        # For an operator only: it may hold a prompt or a key.
        self.upstream_text = text

    @property
    def paid(self) -> bool:
        """Whether the call may have cost something all the same."""
        return self.kind not in get_args(Unpaid)

    @property
    def refuses_request(self) -> bool:
        """Whether the server says that the request is wrong."""
        return self.status in (400, 413, 422)

    @property
    def code(self) -> str:
        """The server's error code, where it is known."""
        return next((code for code in self.known_codes if code in self.upstream_text), "")


class TimeLimit:
    """The seconds that a call may take: several times what recent calls took.

    A server that hangs costs a request little more than it usually waits. The limit is between
    ``floor`` and ``ceiling``, which holds until enough calls were seen. While the server is tested
    after an outage it grows, since a server may have become slower.

    >>> limit = TimeLimit(ceiling=30.0)
    >>> for _ in range(20):
    ...     limit.took(0.1)
    >>> limit.seconds
    1.5
    """

    floor = 1.5
    factor = 5.0  # of the 95th percentile: answers differ in length
    min_calls = 16  # seen before the limit is below the ceiling

    def __init__(self, ceiling: float) -> None:
        self._ceiling, self._growth, self._learnt = ceiling, 1.0, ceiling
        self._recent: deque[float] = deque(maxlen=64)

    @property
    def seconds(self) -> float:
        """The limit of the next call."""
        return min(self._learnt * self._growth, self._ceiling)

    def took(self, seconds: float) -> None:
        """Take the duration of a call that was answered."""
        self._recent.append(seconds)
        if seconds * self._growth <= self.seconds:
            self._growth = max(1.0, self._growth / 2)
        if len(self._recent) >= self.min_calls:
            quantile = sorted(self._recent)[int(0.95 * len(self._recent))]
            self._learnt = max(self.floor, self.factor * quantile)

    def grow(self) -> None:
        """Allow the next call twice the time."""
        self._growth *= 2


class Breaker:
    """Stops the calls of a server that fails, and tests from time to time whether it works again.

    It opens where half of the recent calls failed, or the last ``row`` did. While it is open no
    call is made; after a pause one is, which closes it or doubles the pause.

    >>> breaker = Breaker()
    >>> for _ in range(5):
    ...     breaker.record(failed=True)
    >>> breaker.allows(), breaker.is_open
    (False, True)
    """

    share, row = 0.5, 5
    seconds = 30.0  # calls that ended earlier do not count
    first_pause, max_pause = 2.0, 60.0

    def __init__(self) -> None:
        self._recent: deque[tuple[float, bool]] = deque(maxlen=20)
        self._pause, self._until, self._is_testing = self.first_pause, 0.0, False

    @property
    def is_open(self) -> bool:
        """Whether calls are stopped."""
        return self._until > 0

    @property
    def seconds_left(self) -> float:
        """The seconds until a call may test the server."""
        return max(0.0, self._until - time.monotonic()) if self._until else 0.0

    def allows(self) -> bool:
        """Return whether a call may be made; one that tests the server puts off the next test."""
        if not self._until:
            return True
        if time.monotonic() < self._until:
            return False
        self._until, self._is_testing = time.monotonic() + self._pause, True
        return True

    def record(self, *, failed: bool) -> None:
        """Take the end of a call."""
        ended_at = time.monotonic()
        if self._until:
            if not failed:
                self._recent.clear()
                self._pause, self._until = self.first_pause, 0.0
            elif self._is_testing:  # not a call that began before the breaker opened
                self._pause, self._is_testing = min(2 * self._pause, self.max_pause), False
                self._until = ended_at + self._pause
            return
        self._recent.append((ended_at, failed))
        if not failed:
            return
        recent = [failure for ended, failure in self._recent if ended_at - ended <= self.seconds]
        is_bad = sum(recent) >= self.share * len(recent) or all(recent[-self.row :])
        if is_bad and len(recent) >= self.row:
            self._until = ended_at + self._pause


class _Embedding(msgspec.Struct):
    embedding: list[float]


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Give the connections that all clients of a process share."""
    # No limit here: each node has its own (max_concurrent), and requests are limited before.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, keepalive_timeout=30)
    has_proxy = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY"))
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        read_bufsize=2**19,  # aiohttp refuses a line of more than twice as many bytes
        # An answer is short; a compressed one could grow to any size, and is refused.
        headers={"accept-encoding": "identity"},
        auto_decompress=False,
        # A cookie of one request must not be sent with another.
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=has_proxy,  # a look at the environment for each call takes time
    ) as session:
        yield session


class Client:
    """The server of one node.

    ::

        async with open_session() as session:
            client = Client(settings, session)
            response = await client.complete({"messages": messages}, Deadline.after(5))
    """

    max_response = 8 * 2**20
    max_text = 20_000  # characters at the end of a text that are embedded
    first_pause, max_pause = 0.05, 10.0  # seconds between attempts; the first is doubled each time
    # Completions have no side effects; a call that ran out of time would take as long once more.
    retried = frozenset({"connect", "busy", "error", "cut"})
    breaking = retried | {"timeout", "garbage", "too_large"}
    # What helps where a server does not take a field that its text names.
    remedies: ClassVar = {
        "logprobs": 'confidence = "none", "self-report" or "agreement"',
        "max_tokens": 'rename = {max_tokens = "max_completion_tokens"}',
        "temperature": "params = {temperature = false}",
    }

    def __init__(
        self, settings: NodeSettings, session: aiohttp.ClientSession, *, read_errors: bool = False
    ) -> None:
        self.settings = settings
        self._session, self._read_errors = session, read_errors
        self.breaker, self.limit = Breaker(), TimeLimit(settings.timeout)
        self._first_chunk = TimeLimit(settings.timeout)
        # Without a limit of its own, those of requests and of descriptors come first.
        self._slots = asyncio.Semaphore(settings.max_concurrent or 2**30)
        self._headers = {"content-type": "application/json"}
        for name, value in settings.headers.items():
            self._headers[name] = value.read() if isinstance(value, EnvName) else value
        if settings.key_env:
            self._headers["authorization"] = f"Bearer {EnvName(settings.key_env).read()}"
        if any(not text.isprintable() for text in self._headers.values()):
            raise CascadeError(f"node {settings.name!r}: a header has signs that are not printable")

    @classmethod
    def of_embeddings(cls, settings: EmbeddingSettings, session: aiohttp.ClientSession) -> Client:
        """Return the client of an embeddings upstream."""
        table = {name: getattr(settings, name) for name in ("upstream", "model", "key_env")}
        return cls(NodeSettings(name="embeddings", cost=0.0, timeout=5.0, **table), session)

    async def complete(
        self,
        body: Body,
        deadline: Deadline = NEVER,
        *,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Post a request, with the node's model and parameters set in it, and return the response.

        Each attempt has a time limit of its own besides the deadline of all.

        Raises:
            UpstreamFailed: If there is no JSON object in time.
        """
        content = msgspec.json.encode(self.adapted(body))
        for attempt in range(1 + self.settings.retries):
            try:
                return await self._attempt(path, content, deadline, headers)
            except UpstreamFailed as error:
                pause = self.first_pause * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311
                pause = max(pause, error.retry_after)
                # A pause beyond the deadline would only delay the failure.
                is_last = attempt == self.settings.retries or error.kind not in self.retried
                if is_last or pause >= min(deadline.left, self.max_pause):
                    raise
                await asyncio.sleep(pause)
        raise AssertionError  # unreachable: the last attempt returns or raises

    async def embed(self, text: str, deadline: Deadline = NEVER) -> list[float]:
        """Return the vector of a text.

        Raises:
            UpstreamFailed: If there is none.
        """
        body = {"input": [text[-self.max_text :] or " "]}
        response = await self.complete(body, deadline, path="/embeddings")
        with suppress(msgspec.ValidationError):
            data = msgspec.convert(response.body.get("data"), list[_Embedding])
            if len(data) == 1 and data[0].embedding and all(map(math.isfinite, data[0].embedding)):
                return data[0].embedding
        raise self._failure("garbage", "returned no vector")

    async def _attempt(
        self, path: str, content: bytes, deadline: Deadline, headers: Mapping[str, str] | None
    ) -> Response:
        start = time.monotonic()
        async with self._response(path, content, deadline, headers, self.limit) as (response, _):
            decoded = _decoded(await self._read(response))
            if decoded is None:
                raise self._failure("garbage", "returned no JSON object")
        self.limit.took(time.monotonic() - start)
        return Response(decoded, stated_cost(response.headers.get("x-litellm-response-cost")))

    @asynccontextmanager
    async def stream(
        self, body: Body, deadline: Deadline = NEVER, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Give the chunks of a streamed answer; the deadline is that of the first one.

        ::

            async with client.stream(body) as chunks:
                async for chunk in chunks: ...
        """
        wanted = {**self.adapted(body), "stream": True, "stream_options": {"include_usage": True}}
        content = msgspec.json.encode(wanted)
        start, limit = time.monotonic(), self._first_chunk
        async with self._response(CHAT, content, deadline, headers, limit) as (response, timeout):
            yield self._chunks(response, timeout, start)

    async def _chunks(
        self, response: aiohttp.ClientResponse, limit: asyncio.Timeout, start: float
    ) -> AsyncIterator[dict[str, Any]]:
        size, loop = 0, asyncio.get_running_loop()
        async for line in response.content:
            if not size:
                self._first_chunk.took(time.monotonic() - start)
            # Once it has begun, each chunk may take as long as a whole answer.
            limit.reschedule(loop.time() + self.settings.timeout)
            size += len(line)
            if size > self.max_response:
                raise self._failure("too_large", f"streams more than {self.max_response} bytes")
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            # What a server sends after the end is not read.
            if data == b"[DONE]":
                return
            chunk = _decoded(data)
            if chunk is None or not isinstance(chunk.get("choices"), list):
                raise self._failure("garbage", "streams no chunks of a completion")
            limit.reschedule(None)  # a client that reads slowly is no failure of the server
            yield chunk
            limit.reschedule(loop.time() + self.settings.timeout)
        raise self._failure("cut", "ended its stream without [DONE]")

    @asynccontextmanager
    async def _response(
        self,
        path: str,
        content: bytes,
        deadline: Deadline,
        headers: Mapping[str, str] | None,
        time_limit: TimeLimit,
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, asyncio.Timeout]]:
        """Make one attempt, with its time limit and the breaker around it."""
        if not self.breaker.allows():
            pause = self.breaker.seconds_left
            raise self._failure("open", "fails, and is left alone for now", retry_after=pause)
        is_test = self.breaker.is_open
        try:
            # A time limit takes time itself.
            async with asyncio.timeout(deadline.left) if self._slots.locked() else nullcontext():
                await self._slots.acquire()
        except TimeoutError:
            raise self._failure("queue", "has too many calls under way") from None
        # The first chunk of a stream comes no later than a whole answer.
        seconds = min(time_limit.seconds, self.limit.seconds, deadline.left)
        try:
            async with (
                asyncio.timeout(seconds) as limit,
                self._session.post(
                    self.settings.upstream + path,
                    data=content,
                    headers={**headers, **self._headers} if headers else self._headers,
                    # A redirect could carry the key to another host.
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    raise await self._refused(response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise self._failure("garbage", "returned a compressed answer")
                yield response, limit
        except UpstreamFailed as error:
            self.breaker.record(failed=error.kind in self.breaking)
            raise
        except TimeoutError:
            # A client with little time left shows nothing about the server.
            if deadline.left > 0:
                self.breaker.record(failed=True)
            if is_test:  # not for each call that was under way when it opened
                self.limit.grow()
                self._first_chunk.grow()
            raise self._failure("timeout", "did not answer in time") from None
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            self.breaker.record(failed=True)
            never_began = aiohttp.ClientConnectorError | aiohttp.ServerDisconnectedError
            kind: Kind = "connect" if isinstance(error, never_began) else "cut"
            detail = "could not be reached" if kind == "connect" else "broke off its answer"
            raise self._failure(kind, f"{detail} ({type(error).__name__})") from None
        else:
            self.breaker.record(failed=False)
        finally:
            self._slots.release()

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = list[bytes](), 0
        if (response.content_length or 0) <= self.max_response:
            while size <= self.max_response and (part := await response.content.readany()):
                parts.append(part)
                size += len(part)
            if size <= self.max_response:
                return b"".join(parts)
        raise self._failure("too_large", f"returned more than {self.max_response} bytes")

    async def _refused(self, response: aiohttp.ClientResponse) -> UpstreamFailed:
        status, detail, text = response.status, f"returned status {response.status}", ""
        kind: Kind = "busy" if status in (429, 503) else "error" if status >= 500 else "refused"
        after = response.headers.get("retry-after", "")
        wait = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else 0.0
        if status in (400, 404, 413, 422) or self._read_errors:
            text = (await response.content.read(4096)).decode("utf-8", "replace")
        if self._read_errors:
            detail += f": {text[:200]}" if text else ""
            field = next((name for name in self.remedies if name in text), "")
            if status == 404:
                detail += " (check its model, and its upstream: most base URLs end in /v1)"
            elif status in (400, 422) and field:
                detail += f" (where it does not take {field}: {self.remedies[field]})"
        return self._failure(kind, detail, status=status, retry_after=wait, text=text)

    def adapted(self, body: Body) -> dict[str, Any]:
        """Return a request as this server takes it: its model, its parameters, its names."""
        # The client of the whole may stream; whether this call does is decided here.
        sent = {key: v for key, v in body.items() if key not in ("stream", "stream_options")}
        sent["model"] = self.settings.model
        for name, value in self.settings.params.items():
            if value is False:
                sent.pop(name, None)
            else:
                sent[name] = value
        for name, new in self.settings.rename.items():
            if name in sent:
                sent[new] = sent.pop(name)
        return sent

    def _failure(self, kind: Kind, detail: str, **facts: Any) -> UpstreamFailed:
        return UpstreamFailed(self.settings.name, kind, detail, **facts)


def stated_cost(value: Any) -> float | None:
    """Return what a LiteLLM proxy says that a call cost, in a header or a stream.

    >>> stated_cost("0.002"), stated_cost("free"), stated_cost(None)
    (0.002, None, None)
    """
    try:
        cost = float("" if value is None else value)
    except (TypeError, ValueError):
        return None
    return cost if 0 <= cost < 1e9 else None


def _decoded(data: bytes | bytearray) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(data)
    except (ValueError, RecursionError):  # of JSON, and of UTF-8
        return None
    return decoded if isinstance(decoded, dict) else None
