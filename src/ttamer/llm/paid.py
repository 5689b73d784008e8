"""Calls that are paid for once, and asking a node about many prompts until it only fails.

The answer, its confidence and its cost are read from the kept response each time. So another
comparison, other prices, or another confidence that reads the same response need no further calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import aiohttp

from ttamer._files import database_errors, open_database
from ttamer.llm.client import NEVER, Body, Client, Deadline, Response, UpstreamFailed
from ttamer.llm.confidence import Unreadable
from ttamer.llm.node import Upstream
from ttamer.llm.prompts import Answer
from ttamer.llm.settings import NodeSettings

T = TypeVar("T")
# From a node's settings to what is asked.
Ask = Callable[[NodeSettings], Upstream]
# Called with the numbers of questions done, in all, and failed.
Progress = Callable[[int, int, int], None]


class Store:
    """Texts by key, such as responses, in a SQLite file (mode 600); use it with ``with``.

    What was added survives the end of the process, whatever ends it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder, "a.sqlite")) as paid:
    ...     paid.add({"key": b"response"})
    ...     paid.get("key"), paid.get("another")
    (b'response', None)

    Raises:
        TraceError: If the file cannot be opened or written, or is on a disk of the network.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __enter__(self) -> Self:
        schema = "CREATE TABLE IF NOT EXISTS paid (key TEXT PRIMARY KEY, response BLOB)"
        self._database = open_database(self.path, schema)
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM paid").fetchone()[0])

    def get(self, key: str) -> bytes | None:
        """Return what is kept under a key; ``None`` where there is nothing."""
        row = self._database.execute("SELECT response FROM paid WHERE key = ?", [key]).fetchone()
        return None if row is None else zlib.decompress(row[0])

    def add(self, responses: Mapping[str, bytes]) -> None:
        """Keep responses, all or none of them; they are on the disk when it returns."""
        rows = [(key, zlib.compress(content)) for key, content in responses.items()]
        with database_errors(self.path), self._database as database:
            database.execute("BEGIN")
            database.executemany("INSERT OR REPLACE INTO paid VALUES (?, ?)", rows)


def key_of(*parts: object) -> str:
    """Return the key of something, from all that it depends on.

    >>> key_of({"model": "small"}, "Hi")
    '374556bc4dd1b45497d352f8a94a9b7d'
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def call_key(node: NodeSettings, body: Body, sample: int = 1) -> str:
    """Return the key of a call, which is one of several samples."""
    return key_of(key_of([node.upstream, node.model, node.params, node.rename], body), sample)


class PaidUpstream:
    """Asks an upstream only what is not kept; the same call again is another sample.

    It is for one prompt. Responses are put into ``new``, for the store once they can be used.
    """

    def __init__(
        self, settings: NodeSettings, upstream: Upstream, paid: Store, new: dict[str, bytes]
    ) -> None:
        self._settings, self._upstream, self._paid, self._new = settings, upstream, paid, new
        self._samples: Counter[str] = Counter()

    async def complete(
        self, body: Body, deadline: Deadline = NEVER, *, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return the kept response, or that of a call."""
        # Agreement asks the same question several times: each is a sample of its own.
        call = key_of(body)
        self._samples[call] += 1
        key = call_key(self._settings, body, self._samples[call])
        if (content := self._paid.get(key)) is not None:
            return Response(**json.loads(content))
        response = await self._upstream.complete(body, deadline, headers=headers)
        self._new[key] = json.dumps(response._asdict()).encode()
        return response


# Why a question is not asked of a node that only fails.
GIVEN_UP = "was not called any more"


class Missing(NamedTuple):
    """Why a question has no answer."""

    why: str
    is_failure: bool = True  # and not a question that the node cannot take


class Asked:
    """What one node was asked: its answers, and why others are missing, by question."""

    max_failures = 10  # in a row, after which a node is not called any more
    workers = 8  # of a node without max_concurrent

    def __init__(self, node: NodeSettings) -> None:
        self.node = node
        self.answers: dict[str, Answer] = {}
        self.missing: dict[str, Missing] = {}
        self.total = 0  # of questions that are answered, failed, or waiting

    def is_open(self, key: str) -> bool:
        """Whether a question was not asked yet."""
        return key not in self.answers and key not in self.missing

    @property
    def progress(self) -> tuple[int, int, int]:
        """How many questions are done, how many there are, and how many of them failed."""
        failed = sum(missing.is_failure for missing in self.missing.values())
        return len(self.answers) + len(self.missing), self.total, failed

    @property
    def spent(self) -> float:
        """What the answers cost together, when they came."""
        return sum(answer.cost + answer.verifying for answer in self.answers.values())

    async def ask(
        self,
        questions: Mapping[str, T],
        call: Callable[[T], Awaitable[Answer]],
        report: Callable[[], None],
    ) -> None:
        """Ask what was not asked yet, until the node has failed too often in a row."""
        waiting = {key: question for key, question in questions.items() if self.is_open(key)}
        self.total += len(waiting)
        questions_left, failures = iter(waiting.items()), 0

        async def work() -> None:
            nonlocal failures
            for key, question in questions_left:
                if failures >= self.max_failures:
                    self.missing[key] = Missing(GIVEN_UP)
                else:
                    try:
                        self.answers[key] = await call(question)
                        failures = 0
                    except (UpstreamFailed, Unreadable) as error:
                        self.missing[key] = missing = self._reason(error)
                        failures += missing.is_failure
                report()

        # Workers share one iterator: a slow answer holds up its own worker alone.
        workers = min(self.node.max_concurrent or self.workers, len(waiting))
        await asyncio.gather(*(work() for _ in range(workers)))

    def _reason(self, error: UpstreamFailed | Unreadable) -> Missing:
        """Return why a call has no result, with what helps."""
        if isinstance(error, Unreadable):
            return Missing(str(error))
        hints = {
            "connect": f" (upstream = {self.node.upstream!r})",
            "timeout": f" (timeout = {self.node.timeout:g})",
            "busy": " (a lower max_concurrent, or more retries)",
        }
        reason = str(error).partition(": ")[2] + hints.get(error.kind, "")
        return Missing(reason, error.kind != "ineligible")


def patient(session: aiohttp.ClientSession) -> Ask:
    """Return clients that no user waits for: they do not stop calls, and wait to the limit."""

    def client(settings: NodeSettings) -> Client:
        client = Client(settings, session, read_errors=True)
        client.breaker.row = 1000  # more than it counts
        client.max_pause = 60.0  # providers that limit calls per minute ask for as much
        client.limit.floor = settings.timeout
        return client

    return client
