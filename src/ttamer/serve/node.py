"""Ask one node: the calls that its confidence needs, and one answer with its cost."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttamer.serve.confidence import (
    Unreadable,
    agreement,
    answer_text,
    field_value,
    probability_of_answer,
    probability_of_choice,
    probability_of_yes,
    question_text,
    verifier_body,
)
from ttamer.serve.upstream import NodeResponse, Upstream, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

    from ttamer.runtime.comparison import Comparison
    from ttamer.serve.config import NodeSettings, Settings

__all__ = ["Node", "NodeAnswer", "call_cost", "open_nodes"]

CHAT = "/chat/completions"
"""The path of chat completions."""
COMPLETIONS = "/completions"
"""The path of text completions."""


@dataclass(frozen=True)
class NodeAnswer:
    """A node's answer, its confidence, and its cost."""

    prediction: str | None
    """The form of the answer that is compared; ``None`` for an answer without content."""
    confidence: float | None
    """``None`` where the node answers alone, and nothing is compared."""
    text: str
    """The answer itself."""
    response: dict[str, Any]
    """The upstream's response, without log-probabilities that the client did not request."""
    cost: float
    """The cost of all calls, in the cascade's units."""
    calls: int = 1
    content: bytes = b""
    """The response as received, where the node answers alone."""

    @property
    def answer(self) -> NodeAnswer:
        """What :class:`ttamer.Cascade` returns as the answer."""
        return self


def open_nodes(settings: Settings, session: aiohttp.ClientSession) -> dict[str, Node]:
    """Return the nodes of a cascade, which share a connection pool."""
    upstreams = {name: Upstream(node, session) for name, node in settings.nodes.items()}
    return {
        name: Node(
            upstream, settings.serve.compare, upstreams.get(settings.nodes[name].verifier or "")
        )
        for name, upstream in upstreams.items()
    }


class Node:
    """A node with its upstream, and its verifier's."""

    def __init__(
        self, upstream: Upstream, compare: Comparison, verifier: Upstream | None = None
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
    ) -> NodeAnswer:
        """Return the node's answer to a request that does not stream, with its confidence.

        Raises :class:`~ttamer.serve.upstream.UpstreamFailed`, of kind "garbage" where the response
        lacks the answer or the source of its confidence.
        """
        try:
            if self.settings.confidence == "agreement":
                return await self._ask_samples(path, body, timeout, headers)
            return await self._ask_once(path, body, timeout, headers)
        except Unreadable as error:
            raise UpstreamFailed(self.settings.name, "garbage", str(error)) from None

    async def ask_alone(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> NodeAnswer:
        """Return the node's answer without a confidence, for a request to this node alone."""
        response = await self.upstream.call(path, body, timeout=timeout, headers=headers)
        try:
            text = answer_text(response.body, self.settings.answer)
            cost = call_cost(self.settings, response.body)
        except Unreadable as error:
            raise UpstreamFailed(self.settings.name, "garbage", str(error)) from None
        return NodeAnswer(None, None, text, response.body, cost, content=response.content)

    async def _ask_once(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> NodeAnswer:
        source = self.settings.confidence
        wanted = _with_logprobs(path, body) if source == "logprobs" else body
        received = await self.upstream.call(path, wanted, timeout=timeout, headers=headers)
        response = received.body
        text, prediction = self._read(received)
        cost, calls = call_cost(self.settings, response), 1
        if source == "logprobs":
            if self._compare.kind == "choice" and prediction is not None:
                confidence = probability_of_choice(response, prediction)
            else:
                confidence = probability_of_answer(response)
        elif source == "field":
            confidence = field_value(response, self.settings.field or "")
        else:
            left = None if timeout is None else max(timeout - received.seconds, 0.0)
            verdict = await self._verify(question_text(body), text, left, headers)
            confidence = probability_of_yes(verdict.body)
            if self._verifier is not None:
                cost, calls = cost + call_cost(self._verifier.settings, verdict.body), 2
        shown = response if source != "logprobs" else _without_logprobs(response, body)
        return NodeAnswer(prediction, confidence, text, shown, cost, calls)

    async def _verify(
        self, question: str, text: str, timeout: float | None, headers: Mapping[str, str] | None
    ) -> NodeResponse:
        if self._verifier is None:
            raise Unreadable("there is no verifier")
        body = verifier_body(question, text)
        try:
            return await self._verifier.call(CHAT, body, timeout=timeout, headers=headers)
        except UpstreamFailed as error:
            raise UpstreamFailed(
                self.settings.name, error.kind, f"its verifier failed: {error}", status=error.status
            ) from None

    async def _ask_samples(
        self,
        path: str,
        body: Mapping[str, Any],
        timeout: float | None,
        headers: Mapping[str, str] | None,
    ) -> NodeAnswer:
        calls = self.settings.samples
        bodies = [self._sample(body, number) for number in range(calls)]
        coroutines = [self.upstream.call(path, b, timeout=timeout, headers=headers) for b in bodies]
        results = await asyncio.gather(*coroutines, return_exceptions=True)
        responses = [each for each in results if isinstance(each, NodeResponse)]
        failed = [each for each in results if isinstance(each, BaseException)]
        for error in failed:
            if not responses or not isinstance(error, UpstreamFailed):
                raise error
        read = [self._read(each) for each in responses]
        predictions = self._compare.matched_all([prediction for _, prediction in read])
        chosen, confidence = agreement(predictions + [None] * len(failed))
        text, prediction = read[chosen]
        # A failed call is priced as if it had no tokens.
        cost = sum(call_cost(self.settings, each.body) for each in responses)
        cost += self.settings.cost * len(failed)
        return NodeAnswer(prediction, confidence, text, responses[chosen].body, cost, calls)

    def _sample(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the request for one of several answers, with a temperature above 0."""
        given = {**body, "temperature": body.get("temperature") or self.settings.temperature}
        if isinstance(body.get("seed"), int):
            given["seed"] = body["seed"] + number
        return given

    def _read(self, response: NodeResponse) -> tuple[str, str | None]:
        text = answer_text(response.body, self.settings.answer)
        return text, self._compare.prediction(text)


def call_cost(settings: NodeSettings, response: Mapping[str, Any]) -> float:
    """Return the cost of one call: the node's cost and the price of its tokens."""
    tokens = settings.cost_per_token
    if tokens is None:
        return settings.cost
    usage = response.get("usage")
    counts = [usage.get(k) if isinstance(usage, dict) else None
              for k in ("prompt_tokens", "completion_tokens")]  # fmt: skip
    if not all(isinstance(count, int) and 0 <= count < 2**53 for count in counts):
        raise Unreadable("the response has no usage, which cost_per_token needs")
    read, written = counts
    return settings.cost + tokens.input * float(read or 0) + tokens.output * float(written or 0)


def _with_logprobs(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if path == CHAT:
        return {**body, "logprobs": True}
    if path == COMPLETIONS:
        return {**body, "logprobs": body.get("logprobs") or 1}
    return dict(body)


def _without_logprobs(response: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response without log-probabilities, unless the client requested them."""
    if request.get("logprobs"):
        return response
    shown = copy.copy(response)
    shown["choices"] = [
        {**choice, "logprobs": None} if isinstance(choice, dict) else choice
        for choice in response["choices"]
    ]
    return shown
