"""One OpenAI-compatible server: asked with JSON, or relayed byte for byte.

What goes wrong is an :class:`UpstreamFailed` that says how. It names the node and never repeats
what the server said, since that may hold a key or a prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ttamer.errors import CascadeError, MissingExtra, TTamerError
from ttamer.serve.time_limit import TimeLimit

try:
    import aiohttp
    from yarl import URL
except ImportError:  # pragma: no cover - the tests have it
    raise MissingExtra("aiohttp", "serve") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from ttamer.serve.settings import NodeSettings

__all__ = ["Failure", "Relayed", "Reply", "Upstream", "UpstreamFailed", "open_session"]

Failure = Literal["connect", "timeout", "refused", "busy", "error", "cut", "garbage", "too_large"]
"""How an upstream fails.

connect: nobody there; timeout; refused: a status of 400 or the like, the request is at fault; busy:
429 or 503; error: another status that is not 200; cut: the connection broke; garbage: not a JSON
object; too_large: more bytes than allowed.
"""

_AGAIN: frozenset[Failure] = frozenset({"connect", "busy", "error", "cut"})
"""Worth another try on the same server: a completion changes nothing there, and asking again does
not take the time a timeout took already."""
_UNPAID: frozenset[Failure] = frozenset({"connect", "refused", "busy"})

_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_OWN_HEADERS = ("authorization", "content-type")
_STREAMING = ("stream", "stream_options")

T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 10.0
"""Seconds between tries: doubled each time, or what Retry-After says."""
PIECE = 64 * 1024
IDLE = 4.0
"""Seconds that a connection is kept: less than servers keep it (5 in many), so that it is not used
while it is being closed at the other end."""


class UpstreamFailed(TTamerError):  # noqa: N818 - the name says what happened
    """A node gave no answer that can be used."""

    def __init__(
        self, node: str, kind: Failure, detail: str, *, status: int | None = None, pause: float = 0
    ) -> None:
        super().__init__(f"node {node!r}: {detail}")
        self.node, self.kind, self.status, self.pause = node, kind, status, pause

    @property
    def paid(self) -> bool:
        """Whether the call may have cost something all the same."""
        return self.kind not in _UNPAID


class Reply(NamedTuple):
    """A JSON object that an upstream answered with."""

    body: dict[str, Any]
    seconds: float
    """From asking to the last byte, tries that failed included."""
    tries: int = 1
    by_fallback: bool = False
    content: bytes = b""
    """The body as it came."""


@dataclass(frozen=True)
class Relayed:
    """A response that has begun, and comes as it comes."""

    status: int
    """Always 200: another one is a failure."""
    content_type: str
    chunks: AsyncIterator[bytes]
    """Raises :class:`UpstreamFailed` where the connection breaks."""


def open_session(connections: int = 512) -> aiohttp.ClientSession:
    """Return the pool of connections that all upstreams share; close it at the end.

    It keeps no cookies and takes no proxy from the environment.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, ttl_dns_cache=60, keepalive_timeout=IDLE),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Accept-Encoding": "identity"},
        trust_env=False,
    )


class Upstream:
    """The server behind one node, and its fallback.

    ::

        async with open_session() as session:
            reply = await Upstream(settings.nodes["small"], session).ask("/chat/completions", body)
    """

    def __init__(self, settings: NodeSettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self._session = session
        self._headers = {"Content-Type": "application/json", **_authorisation(settings)}
        self._bases = [settings.upstream]
        if settings.fallback is not None:
            self._bases.append(settings.fallback)
        self._urls: dict[tuple[str, str], URL] = {}

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Post a JSON object, and return the one that comes back.

        ``timeout`` is for all tries together; each has the node's own besides. ``headers`` are sent
        along, but for the key, which is the node's.
        """
        start = time.monotonic()
        end = None if timeout is None else start + timeout
        whole = {key: value for key, value in body.items() if key not in _STREAMING}
        whole["model"] = self.settings.model
        content = _json(whole).encode()

        async def once(base: str) -> tuple[dict[str, Any], bytes]:
            with TimeLimit(self._limit(end)):
                response = await self._post(base, path, content, headers)
                try:
                    came = await self._read(response)
                except BaseException:
                    response.close()
                    raise
            return self._parsed(came), came

        (answer, came), tries, base = await self._tried(once, end)
        seconds = time.monotonic() - start
        return Reply(answer, seconds, tries, base != self._bases[0], came)

    @asynccontextmanager
    async def relay(
        self,
        path: str,
        content: bytes,
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Relayed]:
        """Post bytes as they are, and hand the response on as it comes, a stream too.

        Tries again like :meth:`ask`, up to the moment the response begins. ``timeout`` is for the
        whole response; the node's own is for its beginning, and between bytes.
        """
        end = None if timeout is None else time.monotonic() + timeout

        async def begun(base: str) -> aiohttp.ClientResponse:
            with TimeLimit(self._limit(end)):
                return await self._post(base, path, content, headers)

        response, _, _ = await self._tried(begun, end)
        try:
            kind = response.headers.get("Content-Type", "application/octet-stream")
            yield Relayed(response.status, kind, self._chunks(response, end))
        finally:
            response.close()

    async def _tried(
        self, attempt: Callable[[str], Awaitable[T]], end: float | None
    ) -> tuple[T, int, str]:
        """Try each server as often as it may be tried; say after how many tries, and which."""
        tries = 0
        failed: UpstreamFailed | None = None
        for base in self._bases:
            for again in range(self.settings.retries + 1):
                if failed is not None and again and not await self._paused(failed, again, end):
                    break
                tries += 1
                try:
                    return await attempt(base), tries, base
                except (UpstreamFailed, aiohttp.ClientError, OSError) as error:
                    failed = self._named(error)
                    if failed.kind == "refused" or (end is not None and time.monotonic() >= end):
                        raise failed from None
                    if failed.kind not in _AGAIN:
                        break
        raise failed or self._failed("timeout", "there was no time to ask")

    async def _chunks(
        self, response: aiohttp.ClientResponse, end: float | None
    ) -> AsyncIterator[bytes]:
        pieces = response.content.iter_any()
        while True:
            try:
                with TimeLimit(self._limit(end)):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except (aiohttp.ClientError, OSError) as error:
                raise self._named(error) from None
            yield piece

    async def _post(
        self, base: str, path: str, content: bytes, headers: Mapping[str, str] | None
    ) -> aiohttp.ClientResponse:
        url = self._urls.get((base, path))
        if url is None:
            url = self._urls[base, path] = URL(base + path)
        response = await self._session.post(
            url, data=content, headers=self._with(headers), allow_redirects=False
        )
        if response.status != 200:
            response.close()
            raise self._bad_status(response)
        return response

    def _with(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers to send: whatever the case of its name, the key is the node's."""
        if not headers:
            return self._headers
        found = {k: v for k, v in headers.items() if k.lower() not in _OWN_HEADERS}
        found.update(self._headers)
        return found

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        most = self.settings.max_response
        if (response.content_length or most + 1) <= most:
            return await response.read()
        parts, size = [], 0
        async for part in response.content.iter_chunked(PIECE):
            size += len(part)
            if size > most:
                raise self._failed("too_large", f"answered with more than {most} bytes")
            parts.append(part)
        return b"".join(parts)

    def _parsed(self, content: bytes) -> dict[str, Any]:
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            raise self._failed("garbage", "answered with what is not JSON") from None
        if not isinstance(body, dict):
            raise self._failed("garbage", "answered with JSON that is not an object")
        return body

    def _bad_status(self, response: aiohttp.ClientResponse) -> UpstreamFailed:
        status = response.status
        kind: Failure = "error"
        if status in (429, 503):
            kind = "busy"
        elif 400 <= status < 500 and status != 408:
            kind = "refused"
        pause = _seconds(response.headers.get("Retry-After"))
        return UpstreamFailed(
            self.settings.name, kind, f"answered with status {status}", status=status, pause=pause
        )

    async def _paused(self, failed: UpstreamFailed, again: int, end: float | None) -> bool:
        """Wait before another try; return whether there was time to."""
        pause = min(max(FIRST_PAUSE * 2 ** (again - 1), failed.pause), LONGEST_PAUSE)
        if end is not None and time.monotonic() + pause >= end:
            return False
        await asyncio.sleep(pause)
        return True

    def _limit(self, end: float | None) -> float:
        own = self.settings.timeout
        return own if end is None else max(min(own, end - time.monotonic()), 0.0)

    def _failed(self, kind: Failure, detail: str) -> UpstreamFailed:
        return UpstreamFailed(self.settings.name, kind, detail)

    def _named(self, error: Exception) -> UpstreamFailed:
        """Return what the HTTP client raised as a failure with a name."""
        if isinstance(error, UpstreamFailed):
            return error
        if isinstance(error, TimeoutError):  # an OSError, as Python has it
            return self._failed("timeout", "did not answer in time")
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._failed("connect", "nobody answers at its address")
        return self._failed("cut", "broke off the connection")


def _authorisation(settings: NodeSettings) -> dict[str, str]:
    if settings.key_env is None:
        return {}
    key = os.environ.get(settings.key_env, "").strip()
    if not key or not key.isprintable():
        raise CascadeError(
            f"node {settings.name!r}: key_env names {settings.key_env}, and that environment "
            "variable holds no key; set it, or remove key_env"
        )
    return {"Authorization": f"Bearer {key}"}


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
