"""Streams: the chunks of an answer as server-sent events.

One task runs the policy and puts events into a bounded queue; the response reads it. A client that
leaves cancels the task, one that does not read fills the queue and ends it, and the first event
decides the status. Nothing is sent before an answer is chosen, but for comments that keep the
connection alive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from ttamer.cascade import SUFFIX
from ttamer.llm.client import UpstreamFailed, stated_cost
from ttamer.llm.confidence import Unreadable, message_text
from ttamer.llm.node import ModelNode, Usage, Work, ineligible
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.reply import NodeCall, Outcome, Reply, error_text
from ttamer.serve.chat import Chat, failed
from ttamer.serve.requests import Job, Refused

log = logging.getLogger("ttamer")


async def streamed(chat: Chat, job: Job, stack: AsyncExitStack) -> StreamingResponse:
    """Return a stream, once it is known that there is an answer or will be a wait for one.

    Args:
        chat: What answers.
        job: The request.
        stack: What the request holds; the stream holds it from now on.

    Raises:
        Refused: If there is no answer.
    """
    stream = _Stream(chat, job)
    await stream.begin(stack.pop_all())
    return stream


class _Unread(Exception):
    """The client does not read."""


class _Stream(StreamingResponse):
    """A task that runs the policy and puts events, and the response that reads them."""

    keep_alive = 10.0  # seconds between comments while there is no answer
    unread_seconds = 60.0  # after which a stream that the client does not read ends
    end = object()  # the last item in the queue
    _task: asyncio.Task[None]

    def __init__(self, chat: Chat, job: Job) -> None:
        # Else nginx would collect the stream before it sends it.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        headers["x-ttamer-policy"] = job.active.version
        super().__init__(self._read(), media_type="text/event-stream", headers=headers)
        self._chat, self._job = chat, job
        # Bounded: a client that reads slowly holds up its own task, and takes no memory.
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=16)
        self._first: Any = None
        self._outcome: Outcome | None = None
        self._head = {
            "id": f"chatcmpl-{job.id}",
            "object": "chat.completion.chunk",
            "created": job.created,
        }

    async def begin(self, held: AsyncExitStack) -> None:
        """Start the task, and wait for its first event, which decides the status."""
        self._task = asyncio.create_task(self._run(held))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.keep_alive):
                    self._first = await self._queue.get()
        except asyncio.CancelledError:
            await self._end()
            raise
        if isinstance(self._first, Refused):  # nothing was sent: the response can have its status
            raise self._first

    async def __call__(self, *connection: Any) -> None:
        """Send the events; end the task, also where the client left before the first."""
        try:
            await super().__call__(*connection)
        finally:
            if self._outcome is not None:  # also where the client left: it was paid for
                self._chat.keep(self._job, self._outcome)
            await self._end()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _read(self) -> AsyncIterator[bytes]:
        item = self._first
        while item is not self.end:
            if item is not None:
                yield event(item.body) if isinstance(item, Refused) else item
            try:
                async with asyncio.timeout(self.keep_alive):
                    item = await self._queue.get()
            except TimeoutError:
                item = b": waiting\n\n"

    async def _run(self, held: AsyncExitStack) -> None:
        """Put all events, and the end; then give back what the request holds."""
        async with held:
            try:
                await self._put_events()
                await self._put(self.end)
            except _Unread:
                if self._queue.full():
                    self._queue.get_nowait()  # whose place the end takes
                self._queue.put_nowait(self.end)

    async def _put(self, item: Any) -> None:
        if not self._queue.full():
            self._queue.put_nowait(item)
            return
        try:
            async with asyncio.timeout(self.unread_seconds):
                await self._queue.put(item)
        except TimeoutError:
            raise _Unread from None

    async def _put_events(self) -> None:
        try:
            self._outcome = await self._chat.outcome(self._job, self._relay)
            await self._put_answer(self._outcome)
        except Refused as error:
            await self._put(error)
        except _Unread:
            raise
        except Exception:
            log.exception("request %s", self._job.id)
            await self._put(Refused(500, "internal_error", "an error of the server"))

    async def _put_answer(self, outcome: Outcome) -> None:
        """Put the answer, if it was not relayed; and its usage and facts, where they are wanted."""
        job = self._job
        if outcome.answer is not None:
            for chunk in chunks_of(self._chat.completion(job, outcome), self._head):
                await self._put(event(chunk))
        elif outcome.asked[-1].error is not None:
            await self._put(Refused(502, "cut", "the model's stream broke"))
            return
        if job.chat.wants_usage or job.choice.explain:
            facts = {"choices": [], "ttamer": self._chat.facts(job, outcome)}
            if job.chat.wants_usage:
                facts["usage"] = self._chat.usage(job, outcome)
            model = outcome.by.removesuffix(SUFFIX)
            await self._put(event({**self._head, "model": model, **facts}))
        await self._put(b"data: [DONE]\n\n")

    async def _relay(self, call: Call) -> NodeCall | CallResult | None:
        """Send the node's own stream, if its answer is returned in any case.

        A failure before the first chunk is a failure of the node; a later one ends the stream.
        """
        node = self._chat.nodes[call.node]
        stream: Any = getattr(getattr(node, "upstream", None), "stream", None)
        if not isinstance(node, ModelNode) or stream is None:
            return None
        # Other confidences need the whole answer, or several.
        if node.settings.confidence not in ("logprobs", "product", "none"):
            return None
        if ineligible(node.settings, self._job.work.body):
            return None
        if not is_last(call, may_differ=self._chat.settings.serve.stream == "last"):
            return None
        start, work = time.monotonic(), self._job.work
        relayed, error = _Relayed(node, work), None
        try:
            body = node.requested(work)
            async with stream(body, work.deadline, work.headers) as chunks:
                async for chunk in chunks:
                    if choices := relayed.take(chunk):
                        head = {**self._head, "model": call.node}
                        await self._put(event({**head, "choices": choices}))
        except UpstreamFailed as failure:
            if not relayed.has_begun:
                return failed(call, failure, start)
            error = error_text(failure)
        cost = relayed.cost()
        # The client has its answer; its confidence is for the log and for audits.
        reply = await relayed.reply(cost) if error is None else None
        prediction, confidence = (None, None) if reply is None else reply[:2]
        return NodeCall(call.node, prediction, confidence, cost, time.monotonic() - start, error)


def is_last(call: Call, *, may_differ: bool) -> bool:
    """Return whether the policy stops after this call and returns its answer, whatever it is.

    With ``may_differ`` it is enough that it stops.
    """
    session = call.session
    if not session.is_last:
        return False
    return may_differ or all(earlier.error is not None for earlier in call.asked)


class _Relayed:
    """What passes by of a relayed answer: its text, tokens and usage, for the log."""

    max_length = 2**20  # characters of an answer whose confidence is computed

    def __init__(self, node: ModelNode, work: Work) -> None:
        self._node, self._work = node, work
        self._text: list[str] = []
        self._length = 0
        self._tokens: list[Any] = []
        self._usage: Usage | None = None
        self._stated: float | None = None
        self._is_plain = True
        self.has_begun = False

    def take(self, chunk: dict[str, Any]) -> list[Any]:
        """Keep what a chunk says, and return the choices that the client gets."""
        if isinstance(chunk.get("usage"), dict):
            self._usage = Usage.of(chunk) or self._usage
            self._stated = stated_cost(chunk["usage"].get("cost"))
        shown = []
        for choice in chunk["choices"]:
            if not isinstance(choice, dict):
                continue
            self._keep(choice)
            if not self._work.body.get("logprobs"):
                choice = {key: value for key, value in choice.items() if key != "logprobs"}
            shown.append(choice)
        self.has_begun = self.has_begun or bool(shown)
        return shown

    def _keep(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict) or delta.get("tool_calls") or self._length > self.max_length:
            self._is_plain = False
            return
        text = delta.get("content")
        if isinstance(text, str):
            self._text.append(text)
            self._length += len(text)
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if isinstance(content, list):
            self._tokens += content

    def cost(self) -> float:
        """Return what the call cost, and count its tokens for the request."""
        return self._node.booked(self._usage, self._stated, self._work)

    async def reply(self, cost: float) -> Reply | None:
        """Return the reply that the whole answer would have been, where that is known."""
        message = {"role": "assistant", "content": "".join(self._text)}
        choice = {"message": message, "logprobs": {"content": self._tokens}}
        if self._is_plain:
            with suppress(Unreadable, ValueError, TypeError, LookupError):
                return await self._node.read({"choices": [choice]}, cost, self._work)
        return None


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
    head = {**head, "model": body["model"]}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}

    # Clients expect the role first, by itself.
    yield chunk({"role": message.pop("role", "assistant"), "content": ""})
    for start in range(0, len(text), piece):
        yield chunk({"content": text[start : start + piece]})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            {"index": n, **call} for n, call in enumerate(calls) if isinstance(call, dict)
        ]
    if fields := {key: value for key, value in message.items() if value}:
        yield chunk(fields)
    logprobs = choice.get("logprobs")
    more = {} if logprobs is None else {"logprobs": logprobs}
    yield chunk({}, choice.get("finish_reason") or "stop", **more)
