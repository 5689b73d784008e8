"""Calls that are paid for once: responses as they came, by what was sent to whom.

The answer, its confidence and its cost are read from the kept response each time. So another
comparison, other prices, or another confidence that reads the same response need no further calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ttamer._files import database_errors, open_database
from ttamer.llm.client import CHAT, NEVER, Body, Deadline, Response, UpstreamFailed
from ttamer.llm.node import Upstream
from ttamer.llm.settings import NodeSettings


class Store:
    """The responses, in a SQLite file (mode 600); use it with ``with``.

    What was added survives the end of the process, whatever ends it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder, "a.sqlite")) as paid:
    ...     paid.add({"key": b"response"})
    ...     paid.get("key"), paid.get("another")
    (b'response', None)

    Args:
        path: The file; it is created where there is none.

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
        """Return a response; ``None`` where there is none."""
        row = self._database.execute("SELECT response FROM paid WHERE key = ?", [key]).fetchone()
        return None if row is None else zlib.decompress(row[0])

    def add(self, responses: Mapping[str, bytes]) -> None:
        """Keep responses, all or none of them; they are on the disk when it returns."""
        rows = [(key, zlib.compress(content)) for key, content in responses.items()]
        with database_errors(self.path), self._database as database:
            database.execute("BEGIN")
            database.executemany("INSERT OR REPLACE INTO paid VALUES (?, ?)", rows)


def key_of(*parts: object) -> str:
    """Return the key of a call, from all that its response depends on.

    >>> key_of({"model": "small"}, "Hi")
    '374556bc4dd1b45497d352f8a94a9b7d'
    """
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class PaidUpstream:
    """Asks an upstream only what is not kept; the same call again is another sample.

    It is for one prompt. Responses are kept when :meth:`keep` says that they can be used.

    Args:
        settings: The node that is asked.
        upstream: What is asked; ``None`` asks nothing, and counts what would be.
        paid: The responses.
    """

    def __init__(self, settings: NodeSettings, upstream: Upstream | None, paid: Store) -> None:
        self._settings, self._upstream, self._paid = settings, upstream, paid
        self._samples: Counter[str] = Counter()
        self._new: dict[str, bytes] = {}
        self.missing: list[Body] = []
        """The requests that are not kept, where nothing is asked."""

    async def complete(
        self,
        body: Body,
        deadline: Deadline = NEVER,
        *,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the kept response, or that of a call."""
        node = self._settings
        call = key_of([node.upstream, node.model, node.params, node.rename], path, body)
        self._samples[call] += 1
        key = key_of(call, self._samples[call])
        content = self._paid.get(key)
        if content is not None:
            response = json.loads(content)
            return Response(response["body"], response["cost"])
        if self._upstream is None:
            self.missing.append(body)
            raise UpstreamFailed(node.name, "ineligible", "is not asked")
        reply = await self._upstream.complete(body, deadline, path=path, headers=headers)
        self._new[key] = json.dumps({"body": reply.body, "cost": reply.cost}).encode()
        return reply

    def keep(self) -> None:
        """Keep the new responses."""
        if self._new:
            self._paid.add(self._new)
            self._new = {}
