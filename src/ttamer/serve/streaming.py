"""Streams: one node's bytes, or the cascade's events.

The cascade's answer is known once the policy stops. Where it can only stop after the next node,
that node's tokens are relayed while they are received; elsewhere the whole answer is received
first, and then sent in events. While a client waits, comments keep its connection open.

After the last node of a path the policy may still return an earlier node's answer. With ``stream =
"last"`` it does not, in a stream: the last node answers. The policy prefers another by the last
node's confidence and by whether the answers agree, and both are known only once the answer is
complete. With ``"decided"``, and wherever an error is promised, a stream is relayed only if no
answer would make the policy prefer another (``FittedSession.prefers_next``), which is so for few
(``experiments/serving/last_recall.py``); with ``"whole"`` none is.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ttamer.llm.confidence import Unreadable, answer_text, first_logprobs, token_entries
from ttamer.runtime.calling import Call, CallResult, call_async
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.formats import openai
from ttamer.serve.formats.schemas import TOOL_CALL, compile_schema
from ttamer.serve.formats.translations import TRANSLATIONS
from ttamer.serve.http import JSON
from ttamer.serve.sse import DONE, EVENT_STREAM, EventSplitter, data_of, event_of
from ttamer.serve.upstreams.node import NodeAnswer
from ttamer.serve.upstreams.upstream import UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from ttamer.serve.config import PrefixSettings
    from ttamer.serve.gateway import Gateway
    from ttamer.serve.policies import ActivePolicy
    from ttamer.serve.request import RequestContext
    from ttamer.serve.upstreams.upstream import CallContext, RelayedStream

__all__ = ["CascadeStream", "Relay", "SpeculationBudget"]

STREAM_TYPES = {EVENT_STREAM: f"{EVENT_STREAM}; charset=utf-8", JSON: JSON}
"""The content types that are relayed, and what the client receives for each."""
COMMENT = b": waiting\n\n"
"""An event without data, which clients ignore."""
MAX_TOOL_CALLS = 1024
"""The most tool calls of one answer."""
CHUNK_FIELDS = ("id", "object", "created", "model", "choices", "usage")
"""The fields of an event that are relayed; others may describe the upstream."""


class Relay:
    """One node's stream: begun, relayed, complete or broken."""

    def __init__(
        self,
        gateway: Gateway,
        request: RequestContext,
        name: str,
        stack: AsyncExitStack,
        *,
        logprobs: bool = False,
    ) -> None:
        self._gateway, self._request, self.name, self._stack = gateway, request, name, stack
        self._has_logprobs = logprobs
        self._start = time.monotonic()
        self._span = request.span.node(name)
        self._failed: UpstreamFailed | None = None
        self._call = AsyncExitStack()
        self.is_complete = False

    @property
    def context(self) -> CallContext:
        """The context of the node's calls."""
        return self._request.calls(self._span)

    @property
    def cost(self) -> float:
        """The cost of the node's calls; while the stream runs, the most that it can be."""
        return self._request.bill.cost_of(self.name)

    async def begin(self) -> tuple[AsyncGenerator[bytes, None], str]:
        """Call the node, and wait for the first bytes; return all chunks and their type."""
        request, node = self._request, self._gateway.nodes[self.name]
        given: Mapping[str, Any] = request.body
        if self._has_logprobs:
            given = node.adapted(request.endpoint.upstream_path, given)
        self._stack.push_async_callback(self.close)
        try:
            stream = await self._call.enter_async_context(
                node.upstream.relay(
                    request.endpoint.upstream_path,
                    given,
                    self.context,
                    include_usage=request.include_usage,
                )
            )
            first, content_type = await self._first_chunk(stream)
        except UpstreamFailed as error:
            await self.close()
            raise self.fail(error) from None
        return self._chunks(first, stream), content_type

    async def close(self) -> None:
        """End the call now, so that its connection and the node's slot are free."""
        await self._call.aclose()

    async def _first_chunk(self, stream: RelayedStream) -> tuple[bytes, str]:
        content_type = STREAM_TYPES.get(stream.content_type.partition(";")[0].strip().lower())
        first = await anext(stream.chunks, None)
        if content_type is None or first is None:
            raise UpstreamFailed(self.name, "garbage", "returned no stream")
        return first, content_type

    async def _chunks(self, first: bytes, stream: RelayedStream) -> AsyncGenerator[bytes, None]:
        yield first
        try:
            async for chunk in stream.chunks:
                yield chunk
        except UpstreamFailed as error:
            raise self.fail(error) from None
        self.is_complete = True
        self._span.finish(cost=self.cost)

    async def events(
        self, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the data of a stream's events in the cascade's name, with the usage of all."""
        request, node = self._request, self._gateway.settings.nodes[self.name]
        endpoint = request.endpoint
        head = {
            "id": endpoint.id_prefix + request.request_id,
            "object": endpoint.chunk,
            "model": self.name,
        }
        events, size = EventSplitter(), 0
        async for chunk in chunks:
            size += len(chunk)
            if size > node.max_response:
                raise self.fail(UpstreamFailed(self.name, "too_large", "streams too many bytes"))
            for event in events.feed(chunk):
                data = _data(event)
                if data is None:
                    continue
                if "error" in data:
                    raise self.fail(UpstreamFailed(self.name, "error", "ended with an error"))
                if _violation(data) is not None:
                    raise self.fail(UpstreamFailed(self.name, "garbage", "streams no chunks"))
                kept = {key: data[key] for key in CHUNK_FIELDS if key in data}
                if not data["choices"] and data.get("usage"):  # Azure begins without choices too
                    kept |= openai.bill_fields(request.bill)
                yield {**kept, **head}

    def fail(self, error: UpstreamFailed) -> UpstreamFailed:
        """Record a failure of the node, and return it."""
        self._failed = error
        self._request.failures[self.name] = error.facts
        self._span.finish(cost=self.cost, error=error)
        return error

    def asked(self) -> NodeCall:
        """Return the record of the call."""
        error = None if self._failed is None else f"{self._failed.kind}: {self._failed}"
        return NodeCall(self.name, None, None, self.cost, time.monotonic() - self._start, error)


_CALL = {"index": {"type": ["integer", "null"], "minimum": 0}, **TOOL_CALL["properties"]}
_CALLS = {"type": ["array", "null"], "items": {"type": "object", "properties": _CALL}}
_DELTA = {"type": ["object", "null"], "properties": {"tool_calls": _CALLS}}
_CHOICES = {"type": "array", "items": {"type": "object", "properties": {"delta": _DELTA}}}
_violation = compile_schema(
    {"type": "object", "required": ["choices"], "properties": {"choices": _CHOICES}}
)
"""Checks the fields of a chunk that are read."""


def _data(event: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an event; ``None`` for a comment and for the end of a stream."""
    text = data_of(event)
    if not text or text == b"[DONE]":
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {"error": "not JSON"}
    return data if isinstance(data, dict) else {"error": "not an object"}


@dataclass
class _Assembled:
    """The chunks of a stream, put together to a response."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    is_chat: bool = False
    checked: int = 0
    """The number of tokens after which their probability was looked at."""

    def add(self, data: dict[str, Any]) -> None:
        """Take the next chunk; only the first choice counts."""
        self.chunks.append(data)
        for choice in data["choices"]:
            if choice.get("index"):
                continue
            delta = choice.get("delta")
            self.is_chat = self.is_chat or isinstance(delta, dict)
            if isinstance(delta, dict):
                self.texts.append(delta.get("content") or "")
                for call in delta.get("tool_calls") or ():
                    _add_call(self.message.setdefault("tool_calls", []), call)
                for key, value in delta.items():  # refusals, and reasoning in parts
                    if key not in ("role", "content", "tool_calls") and value:
                        before = self.message.get(key)
                        is_text = isinstance(before, str) and isinstance(value, str)
                        self.message[key] = before + value if is_text else value
            else:
                self.texts.append(choice.get("text") or "")
            with suppress(Unreadable):
                self.tokens += token_entries({"choices": [choice]})
            self.finish = choice.get("finish_reason") or self.finish

    def decides(self, prefix: Sequence[PrefixSettings]) -> bool:
        """Return whether the first tokens are likely enough, after one of the numbers of them."""
        due = [each for each in prefix if self.checked < each.tokens <= len(self.tokens)]
        if not due:
            return False
        self.checked = due[-1].tokens
        logs = first_logprobs(self.response())
        return any(
            len(logs) >= each.tokens
            and math.exp(math.fsum(logs[: each.tokens]) / each.tokens) >= each.confidence
            for each in due
        )

    def response(self) -> dict[str, Any]:
        """Return the response that the upstream would have sent without a stream."""
        text = "".join(self.texts)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish or "stop"}
        if self.is_chat:
            content = text or (None if self.message.get("tool_calls") else "")
            choice["message"] = {"role": "assistant", "content": content, **self.message}
        else:
            choice["text"] = text
        choice["logprobs"] = {"content": self.tokens} if self.tokens else None
        return {"choices": [choice]}


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a part of a tool call to the calls so far."""
    number = int(part.get("index") or 0)
    if not 0 <= number < MAX_TOOL_CALLS:
        raise ValueError(f"a tool call has the index {number}")
    while len(calls) <= number:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    calls[number] |= {key: part[key] for key in ("id", "type") if part.get(key)}
    for key, value in (part.get("function") or {}).items():
        calls[number]["function"][key] = calls[number]["function"].get(key, "") + (value or "")


@dataclass
class SpeculationBudget:
    """How much calls made ahead of need may waste: a share of the cost of all requests.

    >>> budget = SpeculationBudget(0.1)
    >>> budget.allows(10.0, chance=0.9)
    False
    >>> budget.spent = 50.0
    >>> budget.allows(10.0, chance=0.9)
    True
    """

    share: float
    spent: float = 0.0
    """The cost of all requests."""
    wasted: float = 0.0
    """The cost of calls whose answer was not needed."""

    def allows(self, cost: float, chance: float) -> bool:
        """Return whether a call that is needed with some chance may be made ahead."""
        return self.wasted + cost * (1 - chance) <= self.share * self.spent


@dataclass
class _Ahead:
    """The calls of one request that are made ahead of need."""

    stream: CascadeStream
    calls: dict[str, asyncio.Task[CallResult]] = field(default_factory=dict)
    relays: dict[str, tuple[Relay, asyncio.Task[Any]]] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)

    def consider(self, question: Call) -> None:
        """Call the node that probably comes after this one, if the budget allows it."""
        stream = self.stream
        gateway = stream.gateway
        serve = gateway.settings.serve
        if not serve.speculate or serve.max_cost is not None:
            return
        chances = {n: p for n, p in question.session.ahead().items() if n is not None}
        if not chances:
            return
        node = max(chances, key=lambda name: chances[name])
        if gateway.settings.nodes[node].verifies is not None:  # it needs an answer first
            return
        cost = gateway.settings.nodes[node].cost
        if chances[node] < serve.speculate_chance or node in self.calls:
            return
        if not gateway.speculation.allows(cost, chances[node]):
            return
        left = {*gateway.settings.spec.names} - {one.node for one in question.asked}
        if left == {question.node, node} and stream.relays(node, [*question.asked, question]):
            relay = Relay(gateway, stream.request, node, stream.stack)
            self.relays[node] = relay, asyncio.create_task(relay.begin())
            return
        ask = stream.policy.cascade.nodes[node]
        call = Call(ask, stream.request, question.timeout, node=node, end=question.end)
        self.calls[node] = asyncio.create_task(call_async(call))

    async def take(self, question: Call) -> CallResult | None:
        """Return the result of a call that was made ahead."""
        task = self.calls.pop(question.node, None)
        return None if task is None else await task

    async def stop(self) -> list[NodeCall]:
        """Cancel the calls that were not needed, and return them with their cost."""
        tasks = {**self.calls, **{name: task for name, (_, task) in self.relays.items()}}
        found = []
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        for relay, _ in self.relays.values():
            await relay.close()
        for name in tasks:
            cost = self.stream.request.bill.cost_of(name)
            found.append(NodeCall(name, None, None, cost, time.monotonic() - self.start))
            self.stream.gateway.speculation.wasted += cost
        self.calls.clear()
        self.relays.clear()
        return found


class CascadeStream:
    """One streamed request to the cascade."""

    def __init__(
        self,
        gateway: Gateway,
        request: RequestContext,
        policy: ActivePolicy,
        stack: AsyncExitStack,
        *,
        only: str | None,
    ) -> None:
        self._only = only
        self.gateway, self.request, self.policy, self.stack = gateway, request, policy, stack
        self._before: tuple[NodeCall, ...] = ()
        self._unused: list[NodeCall] = []
        self._relay: Relay | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._content_type = ""
        self._held: list[dict[str, Any]] = []
        self._data: AsyncGenerator[dict[str, Any], None] | None = None
        self._outcome: Outcome | None = None
        self.by = ""
        """The node that answers, once it is known."""
        self.is_complete = False

    @property
    def asked(self) -> tuple[NodeCall, ...]:
        """The calls made."""
        own = () if self._relay is None else (self._relay.asked(),)
        return (*self._before, *own, *self._unused)

    @property
    def path(self) -> tuple[str, ...]:
        """The nodes whose answers the policy took, in order."""
        own = () if self._relay is None else (self.by,)
        return (*(one.node for one in self._before), *own)

    @property
    def is_capped(self) -> bool:
        """Whether a limit on cost or time ended the walk."""
        return self._outcome is not None and self._outcome.capped

    async def events(self, begun: Callable[[], None]) -> AsyncGenerator[bytes, None]:
        """Yield comments while no answer has begun, call ``begun``, and yield the answer."""
        walk = asyncio.create_task(self._walk())
        pause = self.gateway.settings.serve.keep_alive
        try:
            while not walk.done():
                await asyncio.wait({walk}, timeout=pause or None)
                if not walk.done():
                    yield COMMENT
            await walk
        except CascadeFailed as error:
            self._before, self._relay = error.asked, None
            raise
        finally:
            walk.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await walk
        begun()
        translation = TRANSLATIONS.get(self.request.endpoint.path)
        if translation is not None:
            response = translation.events(self.request.request_id, self.by)
            for event in response.start():
                yield event
            async for data in self._answer():
                for event in response.feed(data):
                    yield event
            for event in response.end():
                yield event
        else:
            async for data in self._answer():
                yield event_of(data)
            yield DONE
        self.is_complete = True

    async def _answer(self) -> AsyncGenerator[dict[str, Any], None]:
        request = self.request
        if self._relay is not None and self._chunks is not None:
            try:
                if self._content_type == STREAM_TYPES[EVENT_STREAM]:
                    for data in self._held:
                        yield self._shown(data)
                    async for data in self._data or self._relay.events(self._chunks):
                        yield self._shown(data)
                    return
                outcome = await self._whole(self._relay, self._chunks)
            except UpstreamFailed as error:
                raise CascadeFailed(str(error), self.asked) from None
        else:
            assert self._outcome is not None  # noqa: S101 - the walk has ended
            outcome = self._outcome
        for data in openai.chunks(request, openai.completion(request, outcome)):
            yield data

    def _shown(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk without log-probabilities that the client did not request."""
        if self._data is None or self.request.body.get("logprobs") not in (None, False):
            return data
        choices = [{**choice, "logprobs": None} for choice in data["choices"]]
        return {**data, "choices": choices}

    async def _early(self, question: Call, prefix: Sequence[PrefixSettings]) -> CallResult | None:
        """Ask a node, and relay its stream once its first tokens are likely enough.

        Returns the whole answer where they are not, and ``None`` where the stream is relayed.
        """
        start, name = time.monotonic(), question.node
        relay = Relay(self.gateway, self.request, name, self.stack, logprobs=True)
        try:
            response = await self._read_early(relay, prefix)
            if response is None:
                return None
            answer = await self.gateway.nodes[name].read(
                response, self.request.body, relay.context, cost=relay.cost
            )
        except UpstreamFailed as error:
            return CallResult(None, error, 1, int(error.paid), time.monotonic() - start)
        except (ValueError, RecursionError, TypeError, AttributeError):
            garbage = UpstreamFailed(name, "garbage", "returned no chat completion")
            return CallResult(None, garbage, 1, 1, time.monotonic() - start)
        answer = await self.gateway.taken(self.request, name, answer)
        return CallResult(answer.reply, None, 1, 1, time.monotonic() - start)

    async def _read_early(
        self, relay: Relay, prefix: Sequence[PrefixSettings]
    ) -> dict[str, Any] | None:
        """Return the response of a stream; ``None`` where it is relayed from now on."""
        try:
            chunks, content_type = await relay.begin()
            if content_type != STREAM_TYPES[EVENT_STREAM]:
                response: dict[str, Any] = json.loads(b"".join([chunk async for chunk in chunks]))
                return response
            whole, events = _Assembled(), relay.events(chunks)
            async for data in events:
                whole.add(data)
                if whole.decides(prefix):
                    self._relay, self._chunks, self._content_type = relay, chunks, content_type
                    self._held, self._data, self.by = whole.chunks, events, relay.name
                    return None
            return whole.response()
        finally:
            if self._relay is not relay:
                await relay.close()

    async def _whole(self, relay: Relay, chunks: AsyncGenerator[bytes, None]) -> Outcome:
        """Return the answer of an upstream that does not stream."""
        name = self.by
        settings = self.gateway.settings.nodes[name]
        received = b""
        async for chunk in chunks:
            received += chunk
            if len(received) > settings.max_response:
                raise relay.fail(UpstreamFailed(name, "too_large", "returned too many bytes"))
        try:
            body = json.loads(received)
            text = answer_text(body)
        except (ValueError, RecursionError, Unreadable, AttributeError):
            raise relay.fail(UpstreamFailed(name, "garbage", "returned no answer")) from None
        answer = NodeAnswer(None, None, text, body, relay.cost)
        cost = self.request.bill.cost
        return Outcome(answer, None, name, self.asked, cost, 0.0, "relayed", capped=False)

    async def _walk(self) -> None:
        """Ask nodes until one can be relayed, or the policy stops."""
        request, ahead = self.request, _Ahead(self)
        if self._only is not None:
            self._relay = Relay(self.gateway, request, self._only, self.stack)
            self.by = self._only
            try:
                self._chunks, self._content_type = await self._relay.begin()
            except UpstreamFailed as error:
                raise CascadeFailed(str(error), (self._relay.asked(),)) from None
            return
        steps = await self.gateway.steps(request, self.policy)
        try:
            question = next(steps)
            while True:
                self._before = tuple(question.asked)
                result = await self._begun(question, ahead)
                if result is None:
                    return
                question = steps.send(result)
        except StopIteration as done:
            outcome: Outcome = done.value
            self._outcome, self._before, self.by = outcome, outcome.asked, outcome.by
        finally:
            steps.close()
            self._unused += await ahead.stop()

    async def _begun(self, question: Call, ahead: _Ahead) -> CallResult | None:
        """Return the result of a call, or ``None`` where its stream is being relayed."""
        if question.node in ahead.calls or not self._is_last(question):
            ahead.consider(question)
            prefix = self.gateway.settings.nodes[question.node].prefix
            is_free = (
                question.node not in ahead.calls and self.gateway.nodes[question.node].can_stream
            )
            if prefix and is_free and self._may_differ:
                return await self._early(question, prefix)
            return await ahead.take(question) or await call_async(question)
        start, name = time.monotonic(), question.node
        relay, task = ahead.relays.pop(name, (None, None))
        if relay is None or task is None:
            relay = Relay(self.gateway, self.request, name, self.stack)
            task = asyncio.create_task(relay.begin())
        try:
            self._chunks, self._content_type = await task
        except UpstreamFailed as error:
            return CallResult(None, error, 1, int(error.paid), time.monotonic() - start)
        finally:
            if not task.done():
                task.cancel()
        self._relay, self.by = relay, name
        return None

    @property
    def _may_differ(self) -> bool:
        """Whether a stream may return another answer than the policy would, given all of it."""
        serve = self.gateway.settings.serve
        return serve.stream == "last" and self.policy.promise is None

    def _is_last(self, question: Call) -> bool:
        """Return whether the policy stops after this node, whatever it answers, and returns it."""
        session = question.session
        if set(session.ahead()) != {None} or not self._may_relay(question.node):
            return False
        return self.relays(question.node, question.asked) or session.prefers_next()

    def _may_relay(self, node: str) -> bool:
        """Return whether a node's stream may be relayed at all."""
        serve = self.gateway.settings.serve
        return serve.stream != "whole" and self.gateway.nodes[node].can_stream

    def relays(self, node: str, asked: Sequence[Any]) -> bool:
        """Return whether a node's stream may be relayed once the policy stops after it."""
        if not self._may_relay(node):
            return False
        if self._may_differ:
            return True
        spec = self.gateway.settings.spec
        is_right = spec.target == "last" and node == spec.names[-1]
        return is_right or all(getattr(one, "error", None) is not None for one in asked)
