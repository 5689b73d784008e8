"""A stream of one node, handed on as it comes."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ttamer.runtime.outcome import NodeCall
from ttamer.serve.gateway import NodeFailed
from ttamer.serve.upstream import UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from ttamer.serve.gateway import Errand, Gateway
    from ttamer.serve.upstream import Relayed

__all__ = ["RelayedEvents", "relayed_events"]

TYPES = {"text/event-stream": "text/event-stream; charset=utf-8",
         "application/json": "application/json"}  # fmt: skip


class RelayedEvents:
    """The way of one stream: begun, handed on, ended or broken."""

    def __init__(self, gateway: Gateway, errand: Errand, name: str, stack: AsyncExitStack) -> None:
        self._gateway, self._errand, self._name, self._stack = gateway, errand, name, stack
        self._start = time.monotonic()
        self._span = errand.span.node(name)
        self._failed: NodeFailed | None = None
        self.has_ended = False
        self.cost = gateway.settings.nodes[name].cost

    async def begin(self) -> tuple[AsyncGenerator[bytes, None], str]:
        """Ask, and wait for the first bytes; return all of them and their type."""
        errand, node = self._errand, self._gateway.node(self._name)
        question = errand.question
        body = {**question.body, "stream": True, "model": node.settings.model}
        if question.include_usage:
            body["stream_options"] = {"include_usage": True}
        try:
            relayed = await self._stack.enter_async_context(
                node.upstream.relay(
                    question.kind.path,
                    json.dumps(body).encode(),
                    timeout=errand.left,
                    headers=errand.headers(self._span),
                )
            )
            first, kind = await self._first(relayed)
        except UpstreamFailed as error:
            raise self._fail(error) from None
        return self._chunks(first, relayed), kind

    async def _first(self, relayed: Relayed) -> tuple[bytes, str]:
        kind = TYPES.get(relayed.content_type.partition(";")[0].strip().lower())
        first = await anext(relayed.chunks, None)
        if kind is None or first is None:
            raise UpstreamFailed(self._name, "garbage", "answered with no stream")
        return first, kind

    async def _chunks(self, first: bytes, relayed: Relayed) -> AsyncGenerator[bytes, None]:
        yield first
        try:
            async for chunk in relayed.chunks:
                yield chunk
        except UpstreamFailed as error:
            raise self._fail(error) from None
        self.has_ended = True
        self._span.finish(cost=self.cost)

    def _fail(self, error: UpstreamFailed) -> NodeFailed:
        self._failed = NodeFailed(error)
        if self._failed.is_clients_fault:
            self._errand.clients_fault.add(self._name)
        if not self._failed.paid:
            self.cost = 0.0
        self._span.finish(cost=self.cost, error=self._failed)
        return self._failed

    def asked(self) -> NodeCall:
        """Return what came of it."""
        error = None if self._failed is None else f"{self._failed.kind}: {self._failed}"
        return NodeCall(self._name, None, None, self.cost, time.monotonic() - self._start, error)


@asynccontextmanager
async def relayed_events(
    gateway: Gateway, errand: Errand, name: str
) -> AsyncIterator[RelayedEvents]:
    """Hold the connection upstream while inside."""
    async with AsyncExitStack() as stack:
        yield RelayedEvents(gateway, errand, name, stack)
