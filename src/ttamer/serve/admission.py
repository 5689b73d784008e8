"""Which requests are admitted: API keys, the limit of concurrent requests, and time limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import os
import re
import time
from collections import deque
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

from ttamer.errors import ArgumentError, TTamerError
from ttamer.serve.http import ClientDisconnected, HttpError, TooManyRequests
from ttamer.serve.values import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ttamer.serve.config import ServeSettings
    from ttamer.serve.http import HttpExchange, Receive

__all__ = [
    "ADMIN",
    "ROLES",
    "Client",
    "ConcurrencyLimit",
    "Keys",
    "KeysError",
    "RequestGuard",
    "Watchdog",
    "check_key",
]

ROLES: tuple[str, ...] = get_args(Role)
"""What an API key may be used for: requests, labels, and metrics with the status page."""
ADMIN = "admin"
"""The role of admin keys, which are configured apart from the others."""
MIN_KEY_LENGTH = 16
"""The fewest characters an API key may have."""
MAX_KEY_LENGTH = 512
"""The most characters an API key may have."""
MAX_RETRY_AFTER = 60
"""The most seconds that a refused client is asked to wait."""
WATCH_INTERVAL = 0.05
"""The seconds between two checks of all running requests."""

_KEY = re.compile(r"[!-+\--~]+")
"""Visible ASCII without the comma, which separates keys in an environment variable."""
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([!-~]{1,512})")


class KeysError(TTamerError, ValueError):
    """API keys are missing or not acceptable. The message never holds a key."""


class Client(NamedTuple):
    """The holder of an API key: its name in logs, and what it may do."""

    name: str
    roles: tuple[str, ...] = ROLES


class Keys:
    """The API keys that are admitted: their SHA-256 only, each compared in constant time.

    >>> keys = Keys(["correct-horse-battery"])
    >>> keys.client("Bearer correct-horse-battery")
    Client(name='key 1', roles=('ask', 'label', 'metrics'))
    >>> keys.client("Bearer guess"), keys.client(None)
    (None, None)
    >>> keys
    Keys(1)
    """

    __slots__ = ("_clients",)

    def __init__(
        self, keys: Iterable[str], source: str = "keys", client: Client | None = None
    ) -> None:
        given = list(keys)
        for number, key in enumerate(given, start=1):
            if not _KEY.fullmatch(key) or not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
                raise KeysError(
                    f"{source}: key {number} must be {MIN_KEY_LENGTH} to {MAX_KEY_LENGTH} visible "
                    "ASCII characters without comma; make one with: openssl rand -hex 24"
                )
        if not given:
            raise KeysError(f"{source}: there are no keys; add one, or remove the setting")
        self._clients: dict[bytes, Client] = {}
        for number, key in enumerate(given, start=1):
            self._clients.setdefault(_hash(key), client or Client(f"key {number}"))

    @classmethod
    def from_env(
        cls, name: str, environ: Mapping[str, str] | None = None, client: Client | None = None
    ) -> Keys:
        """Read keys from an environment variable, separated by commas."""
        value = (os.environ if environ is None else environ).get(name)
        if value is None:
            raise KeysError(
                f"the environment variable {name} is not set; it must hold the API keys, separated "
                "by commas"
            )
        keys = (key.strip() for key in value.split(","))
        return cls([key for key in keys if key], f"the environment variable {name}", client)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], client: Client | None = None) -> Keys:
        """Read keys from a file, one per line; empty lines and ``#`` comments are skipped."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise KeysError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise KeysError(f"{path}: is not text; write one key per line") from None
        lines = (line.strip() for line in text.splitlines())
        given = [line for line in lines if line and not line.startswith("#")]
        return cls(given, str(path), client)

    @classmethod
    def of(cls, serve: ServeSettings) -> Keys | None:
        """Read the keys that the settings name; ``None`` where they name none."""
        found = []
        if serve.keys_env is not None:
            found.append(cls.from_env(serve.keys_env))
        elif serve.keys_file is not None:
            found.append(cls.from_file(serve.keys_file))
        for key in serve.key:
            client = Client(key.name, key.roles)
            if key.env is not None:
                found.append(cls.from_env(key.env, client=client))
            elif key.file is not None:
                found.append(cls.from_file(key.file, client=client))
        return reduce(or_, found) if found else None

    def __or__(self, other: Keys) -> Keys:
        """Return the keys of both; a key in both must belong to one client."""
        if self._clients.keys() & other._clients.keys():
            raise KeysError("two clients have the same API key; give each its own")
        both = Keys.__new__(Keys)
        both._clients = {**self._clients, **other._clients}
        return both

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, each once."""
        return tuple(dict.fromkeys(client.name for client in self._clients.values()))

    def equals(self, other: Keys | None) -> bool:
        """Return whether both hold the same keys of the same clients."""
        return other is not None and self._clients == other._clients

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return f"Keys({len(self)})"

    def client(self, authorization: str | None) -> Client | None:
        """Return whose key a header ``Authorization: Bearer <key>`` holds, if it is one.

        The time taken depends neither on which key matches nor on how much of one is right.
        """
        found = _BEARER.fullmatch(authorization or "")
        given = _hash(found[1] if found else "")  # no key is empty
        found_client = None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, given):
                found_client = client
        return found_client


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def check_key(keys: Keys | None, exchange: HttpExchange, role: str) -> str:
    """Return the client's name; refuse a request without a key, or without the role.

    Where no keys are configured, every request is served, and the name is empty. The error does not
    tell an unknown key from one that is no admin key.
    """
    if keys is None:
        return ""
    header = exchange.header(b"authorization")
    if not header and (own := exchange.header(b"x-api-key")):  # as Anthropic's clients send it
        header = f"Bearer {own}"
    client = keys.client(header)
    if client is None:
        exchange.response_headers["www-authenticate"] = "Bearer"
        of_admin = role == ADMIN
        if _BEARER.fullmatch(header or "") is None:
            kind = "admin" if of_admin else "API"
            text = f"an {kind} key is required: Authorization: Bearer KEY"
        else:
            text = f"this API key is not known{', or is no admin key' if of_admin else ''}"
        raise HttpError(text, status=401, code="invalid_api_key")
    if role not in client.roles:
        raise HttpError(
            f"this API key may not be used here; it needs the role {role!r}",
            status=403,
            code="key_not_allowed",
        )
    return client.name


class ConcurrencyLimit:
    """Limits how many requests run at once; a bounded number wait in a queue, in order.

    A request that finds the queue full, or has waited ``wait`` seconds, is refused with
    :class:`~ttamer.serve.http.TooManyRequests`. ``retry_after`` is the least that a refused client
    is asked to wait. An instance belongs to one event loop.
    """

    def __init__(
        self, *, limit: int, queue: int, wait: float = 5.0, retry_after: float = 1.0
    ) -> None:
        if limit < 1 or queue < 0 or wait < 0:
            raise ArgumentError(
                "a concurrency limit needs limit >= 1, queue >= 0 and wait >= 0, not "
                f"{limit}, {queue}, {wait}"
            )
        self.running = 0
        """The number of requests that run."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._mean_seconds = 1.0
        self.change(limit=limit, queue=queue, wait=wait, retry_after=retry_after)

    def change(self, *, limit: int, queue: int, wait: float, retry_after: float) -> None:
        """Change the limits; requests that run or wait go on."""
        self._limit, self._queue, self._wait = limit, queue, wait
        self._retry_after = max(1, math.ceil(retry_after))
        while self._waiters and self.running < self._limit:
            following = self._waiters.popleft()
            if not following.done():
                self.running += 1
                following.set_result(None)

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._waiters)

    def slot(self, wait: float | None = None) -> _Slot:
        """Hold a slot inside ``async with``; it is released however the block ends."""
        return _Slot(self, self._wait if wait is None else min(wait, self._wait))

    def take(self) -> bool:
        """Take a slot if one is free."""
        is_free = self.running < self._limit  # then the queue is empty: slots are handed over
        self.running += is_free
        return is_free

    async def acquire(self, wait: float) -> None:
        """Take a slot, or wait for one."""
        if self.take():
            return
        if len(self._waiters) >= self._queue or wait <= 0:
            raise self._refusal()
        future = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            async with asyncio.timeout(wait):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.release()  # it received a slot at the moment it was cancelled
            elif future in self._waiters:
                self._waiters.remove(future)
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def release(self, seconds: float | None = None) -> None:
        """Release a slot that was held for ``seconds``."""
        if seconds is not None:
            self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
        while self._waiters and self.running <= self._limit:
            following = self._waiters.popleft()
            if not following.done():
                following.set_result(None)  # the slot is handed over
                return
        self.running -= 1

    def _refusal(self) -> TooManyRequests:
        """Return the refusal, with the time the queue takes at the recent pace."""
        ahead = (len(self._waiters) + 1) * self._mean_seconds / self._limit
        return TooManyRequests(max(self._retry_after, min(math.ceil(ahead), MAX_RETRY_AFTER)))


class _Slot:
    """One slot; a class and not a generator, since every request enters one."""

    __slots__ = ("_limit", "_start", "_wait")

    def __init__(self, limit: ConcurrencyLimit, wait: float) -> None:
        self._limit, self._wait = limit, wait

    async def __aenter__(self) -> None:
        if not self._limit.take():
            await self._limit.acquire(self._wait)
        self._start = time.monotonic()

    async def __aexit__(self, *_: object) -> None:
        self._limit.release(time.monotonic() - self._start)


class Watchdog:
    """Checks all running requests at once, at a fixed interval while there are any.

    One timer per request took a tenth of the time of a short request.
    """

    def __init__(self) -> None:
        self._guards: dict[RequestGuard, None] = {}
        self._is_running = False

    def add(self, guard: RequestGuard) -> None:
        """Check one more request."""
        self._guards[guard] = None
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_later(WATCH_INTERVAL, self._check)

    def remove(self, guard: RequestGuard) -> None:
        """Stop checking a request."""
        del self._guards[guard]

    def _check(self) -> None:
        now = time.monotonic()
        for guard in tuple(self._guards):
            guard.check(now)
        self._is_running = bool(self._guards)
        if self._is_running:
            asyncio.get_running_loop().call_later(WATCH_INTERVAL, self._check)


class RequestGuard:
    """Ends the block inside when its time is over, or when the client disconnects.

    ::

        with RequestGuard(watchdog, receive, seconds) as guard:
            ...                       # TimeoutError once the time is over
            guard.watch_disconnect()  # from here on ClientDisconnected too; nothing else receives

    It takes effect at the watchdog's next check: most requests are complete by then, and it costs
    them nothing.
    """

    __slots__ = (
        "_cycle", "_end", "_ended", "_receive", "_task", "_waiting", "_watchdog", "_watches_client",
    )  # fmt: skip

    def __init__(self, watchdog: Watchdog, receive: Receive, seconds: float) -> None:
        self._watchdog, self._receive = watchdog, receive
        self._end = time.monotonic() + seconds
        self._watches_client = False
        self._cycle = getattr(receive, "__self__", None)
        """The server's state of the request; uvicorn's has ``disconnected``."""
        self._ended: type[Exception] | None = None
        self._waiting: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request guard belongs to a task")
        self._task: asyncio.Task[Any] = task
        self._watchdog.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._watchdog.remove(self)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._ended is None or kind is not asyncio.CancelledError:
            return
        if self._task.uncancel() == 0:
            raise self._ended("the request was ended") from error

    def watch_disconnect(self) -> None:
        """Watch for a client that disconnects, once the whole request has been read."""
        self._watches_client = True

    def check(self, now: float) -> None:
        """End the block if its time is over; called by the watchdog."""
        if now >= self._end:
            self._stop(TimeoutError)
        elif self._watches_client:
            is_gone = getattr(self._cycle, "disconnected", None)
            if is_gone:
                self._stop(ClientDisconnected)
            elif is_gone is None and self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._stop(ClientDisconnected)

    def _stop(self, reason: type[Exception]) -> None:
        if self._ended is None:
            self._ended = reason
            self._task.cancel()
