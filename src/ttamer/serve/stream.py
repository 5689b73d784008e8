"""Streams: the chunks of an answer as server-sent events.

One task runs the policy and puts events into a bounded queue; the response reads it. A client that
leaves cancels the task, one that does not read ends it, and the first event decides the status.
Nothing is sent before an answer is chosen, but for comments that keep the connection alive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ttamer.llm.client import UpstreamFailed, stated_cost
from ttamer.llm.confidence import Unreadable, message_text
from ttamer.llm.node import ModelNode, Usage, ineligible, requests_of
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.reply import NodeCall, Outcome, error_text
from ttamer.serve.requests import Answered, Job, Refused, answer, failed
from ttamer.serve.service import Service

log = logging.getLogger("ttamer")


class Stream(StreamingResponse):
    """A task that runs the policy and puts events, and the response that reads them."""

    keep_alive = 10.0  # seconds between comments while there is no answer
    unread_seconds = 60.0  # after which a stream that the client does not read ends
    _task: asyncio.Task[None]

    def __init__(self, service: Service, job: Job) -> None:
        # Else nginx would collect the stream before it sends it.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        headers["x-ttamer-policy"] = job.active.version
        super().__init__(self._read(), media_type="text/event-stream", headers=headers)
        self._service, self._job = service, job
        # Bounded: a client that reads slowly holds up its own task, and takes no memory.
        self._queue: asyncio.Queue[bytes | Refused | None] = asyncio.Queue(maxsize=16)
        self._first: bytes | Refused | None = None
        self._outcome: Outcome | None = None
        self._head = {
            "id": f"chatcmpl-{job.id}",
            "object": "chat.completion.chunk",
            "created": job.created,
        }

    async def begin(self, release: Callable[[], None]) -> None:
        """Start the task, and wait for its first event, which decides the status.

        Args:
            release: Called at the end of the stream.

        Raises:
            Refused: If there is no answer.
        """
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: release())
        try:
            self._first = await self._next()
        except asyncio.CancelledError:
            await self._end()
            raise
        if isinstance(self._first, Refused):  # nothing was sent: the response can have its status
            raise self._first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; end the task, also where the client left before the first."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.unread_seconds):
                await send(message)

        try:
            with suppress(OSError, ClientDisconnect):  # a client that left, or does not read
                await super().__call__(scope, receive, send_in_time)
        finally:
            if self._outcome is not None:  # also where the client left: it was paid for
                self._service.audits.consider(self._job, self._outcome)
            await self._end()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _next(self) -> bytes | Refused | None:
        """Return the next event, or a comment where none comes for a while; ``None`` at the end."""
        try:
            async with asyncio.timeout(self.keep_alive):
                return await self._queue.get()
        except TimeoutError:
            return b": waiting\n\n"

    async def _read(self) -> AsyncIterator[bytes]:
        item = self._first
        while item is not None:
            yield event(item.body) if isinstance(item, Refused) else item
            item = await self._next()

    async def _run(self) -> None:
        """Put all events, and the end."""
        try:
            self._outcome = await self._service.outcome(self._job, self._make)
            for body in self._events(Answered(self._job, self._outcome)):
                await self._queue.put(body)
        except Refused as error:
            await self._queue.put(error)
        except Exception:
            log.exception("request %s", self._job.id)
            await self._queue.put(Refused(500, "internal_error", "an error of the server"))
        await self._queue.put(None)

    def _events(self, answered: Answered) -> Iterator[bytes]:
        """Yield the answer, if it was not relayed; its usage and facts, where they are wanted."""
        chat, outcome = self._job.chat, answered.outcome
        if outcome.answer is not None:
            for chunk in chunks_of(answered.body(), self._head):
                yield event(chunk)
        elif outcome.asked[-1].error is not None:
            raise Refused(502, "cut", "the model's stream broke")
        if chat.wants_usage or chat.choice.explain:
            facts = {"model": answered.model, "choices": [], "ttamer": answered.facts()}
            if chat.wants_usage:
                facts["usage"] = answered.usage()
            yield event({**self._head, **facts})
        yield b"data: [DONE]\n\n"

    async def _make(self, call: Call) -> CallResult | NodeCall:
        """Make a call; if its answer is returned in any case, send the node's own stream.

        A failure before the first chunk is a failure of the node; a later one ends the stream.
        """
        node, work = self._service.nodes[call.node], self._job.work
        may_differ = self._service.settings.serve.stream == "last"
        stream: Any = getattr(getattr(node, "upstream", None), "stream", None)
        if not (
            isinstance(node, ModelNode)
            and stream is not None
            # Other confidences need the whole answer, or several.
            and node.settings.confidence in ("logprobs", "product", "none")
            # The policy stops after it, and has no other answer to return, or that may differ.
            and call.session.is_last
            and (may_differ or all(earlier.error is not None for earlier in call.asked))
            and not ineligible(node.settings, work.body)
        ):
            return await answer(call)
        start, relayed, error = time.perf_counter(), _Relayed(), None
        head = {**self._head, "model": call.node}
        try:
            async with stream(
                requests_of(node.settings, work.body)[0], work.deadline, work.headers
            ) as chunks:
                async for chunk in chunks:
                    if choices := relayed.take(
                        chunk, with_logprobs=bool(work.body.get("logprobs"))
                    ):
                        await self._queue.put(event({**head, "choices": choices}))
        except UpstreamFailed as failure:
            if not relayed.has_begun:
                return failed(call, failure, start)
            error = error_text(failure)
        cost = node.booked(relayed.usage, relayed.cost, work)
        prediction, confidence = None, None
        # The client has its answer; its confidence is for the log and for audits.
        if error is None and relayed.is_plain:
            with suppress(Unreadable, ValueError, TypeError, LookupError):
                prediction, confidence, *_ = await node.read(relayed.response, cost, work)
        return NodeCall(call.node, prediction, confidence, cost, time.perf_counter() - start, error)


class _Relayed:
    """What passes by of a relayed answer: its text, tokens and usage, for the log."""

    max_length = 2**20  # characters of an answer whose confidence is computed

    def __init__(self) -> None:
        self._text: list[str] = []
        self._length = 0
        self._tokens: list[Any] = []
        self.usage: Usage | None = None
        self.cost: float | None = None  # what the server says that the call cost
        self.is_plain = True  # whether the answer is text, of which all is at hand
        self.has_begun = False

    def take(self, chunk: dict[str, Any], *, with_logprobs: bool) -> list[Any]:
        """Keep what a chunk says, and return the choices that the client gets."""
        if isinstance(chunk.get("usage"), dict):
            self.usage = Usage.of(chunk) or self.usage
            self.cost = stated_cost(chunk["usage"].get("cost"))
        choices = [dict(choice) for choice in chunk["choices"] if isinstance(choice, dict)]
        for choice in choices:
            logprobs = choice.get("logprobs")
            if not with_logprobs:
                choice.pop("logprobs", None)
            delta = choice.get("delta")
            if not isinstance(delta, dict) or delta.get("tool_calls"):
                self.is_plain = False
            elif isinstance(text := delta.get("content"), str):
                self._length += len(text)
                self.is_plain = self.is_plain and self._length <= self.max_length
                self._text.append(text if self.is_plain else "")
            tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
            if self.is_plain and isinstance(tokens, list):
                self._tokens += tokens
        self.has_begun = self.has_begun or bool(choices)
        return choices

    @property
    def response(self) -> dict[str, Any]:
        """The response that the whole answer would have been."""
        message = {"role": "assistant", "content": "".join(self._text)}
        return {"choices": [{"message": message, "logprobs": {"content": self._tokens}}]}


def event(body: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def chunks_of(body: dict[str, Any], head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a complete answer as the chunks of a stream.

    >>> message = {"role": "assistant", "content": "4"}
    >>> body = {"model": "small", "choices": [{"message": message, "finish_reason": "stop"}]}
    >>> [chunk["choices"][0]["delta"] for chunk in chunks_of(body, {})]
    [{'role': 'assistant', 'content': ''}, {'content': '4'}, {}]
    """
    choice = body["choices"][0]
    message = dict(choice["message"])
    text, piece = message_text(message.pop("content", None)), 64  # characters of a chunk
    # Clients expect the role first, by itself.
    deltas = [{"role": message.pop("role", "assistant"), "content": ""}]
    deltas += [{"content": text[start : start + piece]} for start in range(0, len(text), piece)]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            {"index": n, **call} for n, call in enumerate(calls) if isinstance(call, dict)
        ]
    if fields := {key: value for key, value in message.items() if value}:
        deltas.append(fields)
    head = {**head, "model": body["model"]}
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    more = {} if choice.get("logprobs") is None else {"logprobs": choice["logprobs"]}
    end = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop", **more}
    yield {**head, "choices": [end]}
