"""Ask one node: as many calls as its confidence needs, one answer, one prediction, one cost."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttamer.serve.comparing import prediction_of
from ttamer.serve.confidence import (
    Unreadable,
    agreement,
    answer_text,
    field_value,
    probability_of_answer,
    probability_of_choice,
    probability_of_yes,
    question_of,
    verifier_body,
)
from ttamer.serve.upstream import Reply, Upstream, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

    from ttamer.serve.settings import Compare, NodeSettings, Settings

__all__ = ["Answered", "Node", "call_cost", "nodes_of"]

CHAT = "/chat/completions"
COMPLETIONS = "/completions"


@dataclass(frozen=True)
class Answered:
    """What a node said, how sure it is, and what that cost."""

    prediction: str | None
    """What is compared; ``None`` where the answer says nothing."""
    confidence: float
    answer: str
    """The text itself."""
    response: dict[str, Any]
    """What the upstream sent, without log-probabilities the request did not ask for."""
    cost: float
    """Of all calls, in the cascade's units."""
    calls: int
    seconds: float


def nodes_of(settings: Settings, session: aiohttp.ClientSession) -> dict[str, Node]:
    """Return every node of a cascade, ready to be asked."""
    upstreams = {name: Upstream(node, session) for name, node in settings.nodes.items()}
    return {
        name: Node(
            upstream, settings.serve.compare, upstreams.get(settings.nodes[name].verifier or "")
        )
        for name, upstream in upstreams.items()
    }


class Node:
    """A node with everything its answers need: its upstream, and its verifier's."""

    def __init__(
        self, upstream: Upstream, compare: Compare, verifier: Upstream | None = None
    ) -> None:
        self.settings = upstream.settings
        self.upstream = upstream
        self._compare = compare
        self._verifier = verifier

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """Ask for one answer to a request that does not stream.

        Raises :class:`~ttamer.serve.upstream.UpstreamFailed`, of kind "garbage" where the response
        lacks the answer or what its confidence is read from.
        """
        start = time.monotonic()
        try:
            if self.settings.confidence == "agreement":
                return await self._agreed(path, body, start, timeout, headers)
            return await self._once(path, body, start, timeout, headers)
        except Unreadable as error:
            raise UpstreamFailed(self.settings.name, "garbage", str(error)) from None

    async def _once(
        self,
        path: str,
        body: Mapping[str, Any],
        start: float,
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> Answered:
        way = self.settings.confidence
        wanted = _with_logprobs(path, body) if way == "logprobs" else body
        reply = await self.upstream.ask(path, wanted, timeout=timeout, headers=headers)
        response = reply.body
        text, prediction = self._read(reply)
        cost, calls = call_cost(self.settings, response), 1
        if way == "logprobs":
            if self._compare == "choice" and prediction is not None:
                confidence = probability_of_choice(response, prediction)
            else:
                confidence = probability_of_answer(response)
        elif way == "field":
            confidence = field_value(response, self.settings.field or "")
        else:
            left = None if timeout is None else max(timeout - (time.monotonic() - start), 0.0)
            verdict = await self._verified(question_of(body), text, left, headers)
            confidence = probability_of_yes(verdict.body)
            if self._verifier is not None:
                cost, calls = cost + call_cost(self._verifier.settings, verdict.body), 2
        shown = response if way != "logprobs" else _without_logprobs(response, body)
        seconds = time.monotonic() - start
        return Answered(prediction, confidence, text, shown, cost, calls, seconds)

    async def _verified(
        self, question: str, text: str, timeout: float | None, headers: Mapping[str, str] | None
    ) -> Reply:
        if self._verifier is None:
            raise Unreadable("there is no verifier")
        body = verifier_body(question, text)
        try:
            return await self._verifier.ask(CHAT, body, timeout=timeout, headers=headers)
        except UpstreamFailed as error:
            raise UpstreamFailed(
                self.settings.name, error.kind, f"its verifier failed: {error}", status=error.status
            ) from None

    async def _agreed(
        self,
        path: str,
        body: Mapping[str, Any],
        start: float,
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> Answered:
        calls = self.settings.samples
        bodies = [self._sample(body, number) for number in range(calls)]
        asks = (self.upstream.ask(path, b, timeout=timeout, headers=headers) for b in bodies)
        found = await asyncio.gather(*asks, return_exceptions=True)
        replies = [reply for reply in found if isinstance(reply, Reply)]
        failed = [error for error in found if isinstance(error, BaseException)]
        for error in failed:
            if not replies or not isinstance(error, UpstreamFailed):
                raise error
        read = [self._read(reply) for reply in replies]
        predictions = [prediction for _, prediction in read] + [None] * len(failed)
        chosen, confidence = agreement(predictions)
        text, prediction = read[chosen]
        # A call that failed is priced as if it had no tokens.
        cost = sum(call_cost(self.settings, reply.body) for reply in replies)
        cost += self.settings.cost * len(failed)
        response, seconds = replies[chosen].body, time.monotonic() - start
        return Answered(prediction, confidence, text, response, cost, calls, seconds)

    def _sample(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the request for one of several answers, which must be able to differ."""
        given = {**body, "temperature": body.get("temperature") or self.settings.temperature}
        if isinstance(body.get("seed"), int):
            given["seed"] = body["seed"] + number
        return given

    def _read(self, reply: Reply) -> tuple[str, str | None]:
        text = answer_text(reply.body, self.settings.answer)
        return text, prediction_of(text, self._compare)


def call_cost(settings: NodeSettings, response: Mapping[str, Any]) -> float:
    """Return what one call cost: its price, and that of its tokens."""
    tokens = settings.cost_per_token
    if tokens is None:
        return settings.cost
    usage = response.get("usage")
    counts = [usage.get(k) if isinstance(usage, dict) else None
              for k in ("prompt_tokens", "completion_tokens")]  # fmt: skip
    if not all(isinstance(count, int) and 0 <= count < 2**53 for count in counts):
        raise Unreadable("there is no usage, and cost_per_token needs it")
    read, written = counts
    return settings.cost + tokens.input * float(read or 0) + tokens.output * float(written or 0)


def _with_logprobs(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if path == CHAT:
        return {**body, "logprobs": True}
    if path == COMPLETIONS:
        return {**body, "logprobs": body.get("logprobs") or 1}
    return dict(body)


def _without_logprobs(response: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response as it would be had nobody asked for log-probabilities."""
    if asked.get("logprobs"):
        return response
    shown = copy.copy(response)
    shown["choices"] = [
        {**choice, "logprobs": None} if isinstance(choice, dict) else choice
        for choice in response["choices"]
    ]
    return shown
