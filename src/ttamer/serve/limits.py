"""What a request may be: how large, how deep, and how many at once."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ttamer.errors import ArgumentError, TTamerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

__all__ = ["BadJson", "BodyTooLarge", "Busy", "ClientGone", "Gate", "Refused", "parse_json",
           "read_body"]  # fmt: skip

MOST_RETRY_AFTER = 60
_LENGTH = re.compile(r"[0-9]+")


class Refused(TTamerError):  # noqa: N818 - the name says what happened
    """A request that is not served."""

    status = 400
    code = "refused"


class BodyTooLarge(Refused):
    """The body has more bytes than allowed."""

    status = 413
    code = "body_too_large"


class BadJson(Refused):
    """The body is not JSON as it is taken here."""

    code = "bad_json"


class ClientGone(Refused):
    """The client went away before all of its request had come."""

    status = 499
    code = "client_gone"


class Busy(Refused):
    """Too many requests at once."""

    status = 429
    code = "rate_limited"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests at once: try again in {retry_after} s")
        self.retry_after = retry_after


async def read_body(
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    *,
    most: int,
    content_length: str | None = None,
) -> bytes:
    """Return the body of an ASGI request; stop reading as soon as it is too large.

    ``content_length`` may refuse a body early, but what is counted are the bytes that come.
    """
    said = content_length or ""
    if _LENGTH.fullmatch(said) and int(said[:18]) > most:  # no digit more could make it smaller
        raise BodyTooLarge(f"the body has more than the {most} bytes that are allowed")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client went away")
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise BodyTooLarge(f"the body has more than the {most} bytes that are allowed")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_json(body: bytes, *, deepest: int = 32) -> Any:
    """Return what a body says.

    Refused are: what is not UTF-8, a key given twice in one object (two readers could take
    different ones), numbers that are not finite, half characters, and what is nested deeper than
    ``deepest`` lists and objects.

    >>> parse_json(b'{"model": "ttamer", "n": [1, 2]}')
    {'model': 'ttamer', 'n': [1, 2]}
    >>> parse_json(b'{"n": 1, "n": 2}')
    Traceback (most recent call last):
    ttamer.serve.limits.BadJson: the body has a key twice in one object
    """
    try:
        data = _JSON.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadJson("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadJson(
            f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise _too_deep(deepest) from None
    except ValueError:  # more digits than Python reads
        raise BadJson("the body has a number with too many digits") from None
    if body.count(b"{") + body.count(b"[") > deepest or b"\\u" in body:  # else all is well inside
        _check_inside(data, deepest)
    return data


def _check_inside(data: Any, deepest: int) -> None:
    """Go through all that was read, level by level: this must not recurse."""
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
            if depth > deepest:
                raise _too_deep(deepest)
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadJson("the body has half of a character: a lone surrogate escape") from None


def _too_deep(deepest: int) -> BadJson:
    return BadJson(f"the body is nested more than {deepest} deep")


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
        raise BadJson("the body has a number too large to be one")
    return number


_JSON = json.JSONDecoder(
    object_pairs_hook=_without_repeats, parse_constant=_no_constant, parse_float=_finite
)


class Gate:
    """Lets so many requests run at once; so many more wait, first come, first served.

    Who would wait behind a full queue, or has waited ``wait`` seconds, is told :class:`Busy`.
    ``retry_after`` is the least that they are told to wait. It belongs to one event loop.
    """

    def __init__(
        self, *, most: int, queue: int, wait: float = 5.0, retry_after: float = 1.0
    ) -> None:
        if most < 1 or queue < 0 or wait < 0:
            raise ArgumentError(
                f"a gate needs most >= 1, queue >= 0 and wait >= 0, not {most}, {queue}, {wait}"
            )
        self._most, self._queue, self._wait = most, queue, wait
        self._retry_after = max(1, math.ceil(retry_after))
        self._running = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._mean = 1.0

    @property
    def running(self) -> int:
        """How many requests run."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def place(self, wait: float | None = None) -> _Place:
        """Hold a place while inside (``async with``); it is given back however the inside ends."""
        return _Place(self, self._wait if wait is None else min(wait, self._wait))

    async def idle(self) -> None:
        """Wait until nothing runs."""
        if self._running:
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    async def enter(self, wait: float) -> None:
        """Take a place, or wait for one."""
        if self._running < self._most:  # then nobody waits: places are handed on
            self._running += 1
            return
        if len(self._waiters) >= self._queue or wait <= 0:
            raise self._busy()
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            async with asyncio.timeout(wait):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.leave()  # it was given a place at the moment it went away
            elif future in self._waiters:
                self._waiters.remove(future)
            if isinstance(error, TimeoutError):
                raise self._busy() from None
            raise

    def leave(self, seconds: float | None = None) -> None:
        """Give a place back, held for so long."""
        if seconds is not None:
            self._mean += 0.1 * (seconds - self._mean)
        while self._waiters:
            following = self._waiters.popleft()
            if not following.done():
                following.set_result(None)  # the place goes on to it
                return
        self._running -= 1
        if not self._running:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    def _busy(self) -> Busy:
        """The time in which, at the pace of late, those before would be through."""
        ahead = (len(self._waiters) + 1) * self._mean / self._most
        return Busy(max(self._retry_after, min(math.ceil(ahead), MOST_RETRY_AFTER)))


class _Place:
    """One place; a class, since every request enters one."""

    __slots__ = ("_begun", "_gate", "_wait")

    def __init__(self, gate: Gate, wait: float) -> None:
        self._gate, self._wait = gate, wait

    async def __aenter__(self) -> None:
        await self._gate.enter(self._wait)
        self._begun = time.monotonic()

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave(time.monotonic() - self._begun)
