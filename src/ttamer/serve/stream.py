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
from ttamer.runtime.calling import Call
from ttamer.runtime.reply import NodeCall, Outcome, Reply
from ttamer.serve.answering import is_last
from ttamer.serve.chat import Chat
from ttamer.serve.requests import Job, Refused

log = logging.getLogger("ttamer")
KEEP_ALIVE = 10.0  # seconds between comments while there is no answer
_END = object()


async def streamed(chat: Chat, job: Job, stack: AsyncExitStack) -> StreamingResponse:
    """Return a stream, once it is known that there is an answer or will be a wait for one.

    Args:
        chat: What answers.
        job: The request.
        stack: What the request holds; the task holds it from now on.

    Raises:
        Refused: If there is no answer.
    """
    # Bounded: a client that reads slowly holds up its own task, and takes no memory.
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=16)
    events = _Events(chat, job, queue)
    task = asyncio.create_task(events.run(stack.pop_all()))
    first: Any = None
    try:
        async with asyncio.timeout(KEEP_ALIVE):
            first = await queue.get()
    except TimeoutError:
        pass
    except asyncio.CancelledError:
        await _cancelled(task)
        raise
    if isinstance(first, Refused):  # nothing was sent: the response can have its status
        raise first
    # Else nginx would collect the stream before it sends it.
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    headers["x-ttamer-policy"] = job.active.version
    return _Stream(
        events, task, _read(queue, first), media_type="text/event-stream", headers=headers
    )


async def _read(queue: asyncio.Queue[Any], first: Any) -> AsyncIterator[bytes]:
    item = first
    while True:
        while item is None:
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    item = await queue.get()
            except TimeoutError:
                yield b": waiting\n\n"
        if item is _END:
            return
        yield event(item.body) if isinstance(item, Refused) else item
        item = None


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


class _Stream(StreamingResponse):
    """A stream that ends its task, also where the client left before it began."""

    def __init__(self, events: _Events, task: asyncio.Task[None], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._events, self._task = events, task

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self._events.keep()
            await _cancelled(self._task)


class _Events:
    """Runs the policy for one stream, and puts its events."""

    unread_seconds = 60.0  # after which a stream that the client does not read ends

    def __init__(self, chat: Chat, job: Job, queue: asyncio.Queue[Any]) -> None:
        self._chat, self._job, self._queue = chat, job, queue
        self._outcome: Outcome | None = None
        self._head = {
            "id": f"chatcmpl-{job.id}", "object": "chat.completion.chunk", "created": job.created,
        }  # fmt: skip

    async def run(self, held: AsyncExitStack) -> None:
        """Put all events, and the end; then give back what the request holds."""
        async with held:
            with suppress(TimeoutError):  # the client does not read
                await self._run()

    def keep(self) -> None:
        """Log what was sent; also where the client left: it was answered, and paid for."""
        if self._outcome is not None:
            self._chat.keep(self._job, self._outcome)

    async def _put(self, item: Any) -> None:
        if self._queue.full():
            async with asyncio.timeout(self.unread_seconds):
                await self._queue.put(item)
        else:
            self._queue.put_nowait(item)

    async def _run(self) -> None:
        try:
            self._outcome = await self._chat.outcome(self._job, self._relay)
            await self._put_answer(self._outcome)
        except Refused as error:
            await self._put(error)
        except TimeoutError:
            raise
        except Exception:
            log.exception("request %s", self._job.id)
            await self._put(Refused(500, "internal_error", "an error of the server"))
        await self._put(_END)

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

    async def _relay(self, call: Call) -> NodeCall | None:
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
        relayed = _Relayed(node, work)
        try:
            body = node.requested(work)
            async with stream(body, work.deadline, work.headers) as chunks:
                async for chunk in chunks:
                    if choices := relayed.take(chunk):
                        head = {**self._head, "model": call.node}
                        await self._put(event({**head, "choices": choices}))
        except UpstreamFailed as error:
            if not relayed.has_begun:
                raise
            seconds = time.monotonic() - start
            return NodeCall(call.node, None, None, relayed.cost, seconds, f"{error.kind}: {error}")
        # The client has its answer; this is for the log and for audits.
        reply = await relayed.reply()
        prediction, confidence = (None, None) if reply is None else reply[:2]
        seconds = time.monotonic() - start
        return NodeCall(call.node, prediction, confidence, relayed.cost, seconds)


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
        self._is_booked = False
        self._cost = 0.0
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

    @property
    def cost(self) -> float:
        """What the call cost; its tokens are counted for the request."""
        if not self._is_booked:
            self._is_booked = True
            self._cost = self._node.booked(self._usage, self._stated, self._work)
        return self._cost

    async def reply(self) -> Reply | None:
        """Return the reply that the whole answer would have been, where that is known."""
        message = {"role": "assistant", "content": "".join(self._text)}
        choice = {"message": message, "logprobs": {"content": self._tokens}}
        if self._is_plain:
            with suppress(Unreadable, ValueError, TypeError, LookupError):
                return await self._node.read({"choices": [choice]}, self.cost, self._work)
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
