"""Ask one node: the calls that its confidence needs, and one answer with its cost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan
from typing import TYPE_CHECKING, Any

from ttamer.llm.confidence import (
    ALTERNATIVES,
    LIKELIHOODS,
    MAX_ENTROPY,
    Unreadable,
    agreement,
    answer_text,
    entropy_of_tokens,
    field_value,
    first_logprobs,
    is_plain_text,
    likelihoods,
    margin_of_tokens,
    probability_of_choice,
    probability_of_yes,
    question_text,
    report_request,
    reported_confidence,
    verifier_body,
)
from ttamer.runtime.reply import Reply
from ttamer.serve.bill import Tariff, Usage
from ttamer.serve.upstreams.embedding import Embedder, comparer_of
from ttamer.serve.upstreams.upstream import (
    NO_REQUEST,
    CallContext,
    NodeResponse,
    Upstream,
    UpstreamFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ttamer.llm.compare import Comparison
    from ttamer.serve.config import NodeSettings, Settings
    from ttamer.serve.upstreams.client import HttpClient
    from ttamer.serve.upstreams.embedding import TextVectors

__all__ = ["Node", "NodeAnswer", "call_cost", "open_nodes", "with_logprobs"]

CHAT = "/chat/completions"
"""The path of chat completions."""
COMPLETIONS = "/completions"
"""The path of text completions."""
TOKEN_SOURCES = (*LIKELIHOODS, "margin", "entropy")
"""The sources of confidence that are read from the probabilities of tokens."""


@dataclass(slots=True)
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
    verification: float = 0.0
    """The part of the cost that is for the confidence alone."""
    content: bytes = b""
    """The response as received, where the node answers alone."""
    margin: float | None = None
    """The mean margin of its tokens, where the node's ``extras`` name it."""
    entropy: float | None = None
    """The mean entropy of its tokens, where the node's ``extras`` name it."""
    first: tuple[float, ...] = ()
    """The log-probabilities of its first tokens, where the node keeps them."""
    likelihoods: Mapping[str, float] | None = None
    """The confidences that other sources give by the same tokens, where the node keeps them."""

    @property
    def reply(self) -> Reply:
        """What the cascade takes; its answer is this object."""
        found = Reply(self.prediction, self.confidence or 0.0, self, self.cost)
        if self.margin is None and self.entropy is None:
            return found
        known = (self.margin, self.entropy, None)  # as in EXTRA_FIELDS
        return found._replace(extras=tuple([nan if value is None else value for value in known]))


def open_nodes(
    settings: Settings,
    client: HttpClient,
    *,
    read_errors: bool = False,
    keep_first: bool = False,
    texts: TextVectors | None = None,
    kept: Mapping[str, Upstream] | None = None,
) -> dict[str, Node]:
    """Return the nodes of a cascade, which share a connection pool.

    With ``read_errors`` a failure has the upstream's own text, for an operator to read; with
    ``keep_first`` an answer has the log-probabilities of its first tokens. ``texts`` embeds answers
    where they are compared so, by default the upstream of ``[serve.embeddings]``. Upstreams that
    are ``kept`` are used again, so that their limits and circuit breakers go on.
    """
    rule, embeddings = settings.serve.compare, settings.serve.embeddings
    if texts is None and rule.kind == "embedding" and embeddings is not None:
        texts = Embedder(embeddings, client, read_errors=read_errors)
    upstreams = {
        name: (kept or {}).get(name) or Upstream(node, client, read_errors=read_errors)
        for name, node in settings.nodes.items()
    }
    for name, node in settings.nodes.items():
        if node.verifies is not None:  # by calls of the same server
            upstreams[name].share_limits(upstreams[node.verifies])
    return {
        name: Node(
            upstream,
            rule,
            upstreams.get(settings.nodes[name].verifier or ""),
            keep_first=keep_first,
            texts=texts,
        )
        for name, upstream in upstreams.items()
    }


class Node:
    """A node with its upstream, and its verifier's."""

    def __init__(
        self,
        upstream: Upstream,
        compare: Comparison,
        verifier: Upstream | None = None,
        *,
        keep_first: bool = False,
        texts: TextVectors | None = None,
    ) -> None:
        self.settings = upstream.settings
        self._needs_logprobs = self.settings.needs_logprobs
        self._keeps_first = keep_first and self._needs_logprobs
        self.upstream = upstream
        self._compare = compare
        self._texts = texts
        self._verifier = verifier
        self._reading = _Reading(self.settings.name)

    @property
    def can_stream(self) -> bool:
        """Whether its answer is one upstream's stream."""
        if self.settings.verifies is not None:
            return False
        return self.settings.answer is None and self.settings.confidence != "agreement"

    async def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
    ) -> NodeAnswer:
        """Return the node's answer to a request that does not stream, with its confidence.

        All calls are booked on the bill. Without one, a response must have the usage that
        ``cost_per_token`` needs; with one, its cost is an estimate then.

        Raises :class:`~ttamer.serve.upstreams.upstream.UpstreamFailed`, of kind "garbage" where the
        response lacks the answer or the source of its confidence.
        """
        with self._reading:
            if self.settings.confidence == "agreement":
                return await self._ask_samples(path, body, context)
            received = await self.upstream.call(path, self.adapted(path, body), context)
            return await self._answer_of(received, body, context)

    async def ask_alone(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
    ) -> NodeAnswer:
        """Return the node's answer without a confidence, for a request to this node alone."""
        response = await self.upstream.call(path, body, context)
        with self._reading:
            text = answer_text(response.body, self.settings.answer)
            cost = _cost(self.settings, response, context)
        return NodeAnswer(None, None, text, response.body, cost, content=response.content)

    def adapted(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a request that asks for the log-probabilities that the confidence needs."""
        if not self._needs_logprobs:
            return body
        return with_logprobs(path, body, top=self.settings.needs_alternatives)

    async def read(
        self,
        response: dict[str, Any],
        body: Mapping[str, Any],
        context: CallContext,
        *,
        cost: float,
    ) -> NodeAnswer:
        """Return the answer in a response that was received elsewhere, with its confidence.

        Its cost is booked already; that of a verifier is not.

        Raises :class:`~ttamer.serve.upstreams.upstream.UpstreamFailed` as :meth:`ask` does.
        """
        with self._reading:
            return await self._answer_of(NodeResponse(response, 0.0, cost=cost), body, context)

    async def _answer_of(
        self,
        received: NodeResponse,
        body: Mapping[str, Any],
        context: CallContext,
    ) -> NodeAnswer:
        source, response = self.settings.confidence, received.body
        text, prediction = self._read(received)
        cost, paid = _cost(self.settings, received, context), 0.0
        margin = entropy = None
        if source == "none":
            confidence = 0.0
        elif source in TOKEN_SOURCES:
            confidence = self._token_confidence(response, prediction)
        elif source == "field":
            confidence = field_value(response, self.settings.field or "")
        else:
            confidence, paid = await self._asked_about(text, body, context)
        if "margin" in self.settings.extras:
            margin = self._extra(margin_of_tokens, response, 0.0)
        if "entropy" in self.settings.extras:
            entropy = self._extra(entropy_of_tokens, response, MAX_ENTROPY)
        shown = _without_logprobs(response, body) if self._needs_logprobs else response
        return NodeAnswer(
            prediction, confidence, text, shown, cost + paid, paid,
            margin=margin, entropy=entropy,
            first=first_logprobs(response) if self._keeps_first else (),
            likelihoods=likelihoods(response) if self._keeps_first else None,
        )  # fmt: skip

    def _token_confidence(self, response: Mapping[str, Any], prediction: str | None) -> float:
        """Return the confidence that the probabilities of tokens give.

        Upstreams send none with tool calls, refusals and empty answers, which get the lowest.
        """
        source, first = self.settings.confidence, self.settings.tokens == "first"
        try:
            if source == "margin":
                return margin_of_tokens(response, first=first)
            if source == "entropy":
                return -entropy_of_tokens(response, first=first)
            if source == "logprobs" and self._compare.kind == "choice" and prediction is not None:
                return probability_of_choice(response, prediction)
            return LIKELIHOODS[source](response)
        except Unreadable:
            if is_plain_text(response):
                raise
            return -MAX_ENTROPY if source == "entropy" else 0.0

    def _extra(
        self, measure: Callable[..., float], response: Mapping[str, Any], lowest: float
    ) -> float | None:
        """Return a further measure of certainty; ``None`` where the response lacks it.

        Tool calls, refusals and empty answers get the lowest, as their confidence does.
        """
        try:
            return measure(response, first=self.settings.tokens == "first")
        except Unreadable:
            return None if is_plain_text(response) else lowest

    async def _asked_about(
        self, text: str, body: Mapping[str, Any], context: CallContext
    ) -> tuple[float, float]:
        """Return the confidence in an answer by a call of its own, and the cost of the call.

        An answer without text has the lowest confidence, without a call.
        """
        if not text.strip():
            return 0.0, 0.0
        ask = self._report if self.settings.confidence == "self-report" else self._verify
        return await ask(question_text(body), text, context)

    async def _report(self, question: str, text: str, context: CallContext) -> tuple[float, float]:
        """Return the confidence that the model reports, and the cost of its report.

        Without a usable report it is the lowest.
        """
        request = report_request(question, text)
        try:
            response = await self.upstream.call(CHAT, request, context)
        except UpstreamFailed as error:
            return 0.0, self.settings.cost if error.paid else 0.0
        try:
            cost = _cost(self.settings, response, context)
        except Unreadable:
            cost = self.settings.cost  # priced as if it had no tokens
        try:
            return reported_confidence(response.body), cost
        except Unreadable:
            return 0.0, cost

    async def _verify(self, question: str, text: str, context: CallContext) -> tuple[float, float]:
        """Return the confidence that the verifier gives to an answer, and its cost."""
        if self._verifier is None:
            raise Unreadable("there is no verifier")
        body = verifier_body(question, text)
        try:
            verdict = await self._verifier.call(CHAT, body, context, node=self.settings.name)
        except UpstreamFailed as error:
            raise UpstreamFailed(
                self.settings.name,
                error.kind,
                f"its verifier failed: {error}",
                status=error.status,
                pause=error.pause,
            ) from None
        return probability_of_yes(verdict.body), _cost(self._verifier.settings, verdict, context)

    async def verify(
        self,
        answer: NodeAnswer,
        body: Mapping[str, Any],
        context: CallContext = NO_REQUEST,
    ) -> NodeAnswer:
        """Return an answer of the node that this one verifies, with its confidence.

        Its cost is that of the verification alone.

        Raises :class:`~ttamer.serve.upstreams.upstream.UpstreamFailed` as :meth:`ask` does.
        """
        with self._reading:
            sure, cost = await self._asked_about(answer.text, body, context)
        return replace(answer, confidence=sure, cost=cost, verification=cost)

    async def _ask_samples(
        self,
        path: str,
        body: Mapping[str, Any],
        context: CallContext,
    ) -> NodeAnswer:
        bodies = [self._sample(body, number) for number in range(self.settings.samples)]
        calls = [self.upstream.call(path, each, context) for each in bodies]
        results = await asyncio.gather(*calls, return_exceptions=True)
        responses = [each for each in results if isinstance(each, NodeResponse)]
        failed = [each for each in results if isinstance(each, UpstreamFailed)]
        for each in results:
            if isinstance(each, BaseException) and not (responses and each in failed):
                raise each
        read = [self._read(each) for each in responses]
        predictions = [prediction for _, prediction in read]
        with suppress(UpstreamFailed):  # without embeddings, texts that differ do not agree
            comparer = comparer_of(self._compare, self._texts, context)
            predictions = await comparer.matched_all(predictions)
        chosen, confidence = agreement(predictions + [None] * len(failed))
        text, prediction = read[chosen]
        # A failed call that is paid is priced as if it had no tokens.
        cost = sum(_cost(self.settings, each, context) for each in responses)
        cost += self.settings.cost * sum(error.paid for error in failed)
        return NodeAnswer(prediction, confidence, text, responses[chosen].body, cost)

    def _sample(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the request for one of several answers, with a temperature above 0."""
        given = {**body, "temperature": body.get("temperature") or self.settings.temperature}
        if isinstance(body.get("seed"), int):
            given["seed"] = body["seed"] + number
        return given

    def _read(self, response: NodeResponse) -> tuple[str, str | None]:
        text = answer_text(response.body, self.settings.answer)
        return text, self._compare.prediction(text)


class _Reading:
    """Inside, a response that cannot be read is a failure of its node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Unreadable):
            raise UpstreamFailed(self._node, "garbage", str(error)) from None


def call_cost(settings: NodeSettings, response: Mapping[str, Any]) -> float:
    """Return the cost of one call: the node's cost and the price of its tokens."""
    cost = Tariff(settings).price(Usage.of(response))
    if cost is None:
        raise Unreadable(
            "returned no usage, which cost_per_token needs: give the node a cost instead"
        )
    return cost


def _cost(settings: NodeSettings, response: NodeResponse, context: CallContext) -> float:
    """Return the cost of an answered call: as booked, or, without a bill, by its usage."""
    return call_cost(settings, response.body) if context.bill is None else response.cost


def with_logprobs(path: str, body: Mapping[str, Any], *, top: bool) -> dict[str, Any]:
    """Return a request that asks for log-probabilities; with ``top``, of likely tokens too."""
    count = ALTERNATIVES if top else 0
    if path == CHAT:
        more = {"top_logprobs": max(body.get("top_logprobs") or 0, count)} if top else {}
        return {**body, "logprobs": True, **more}
    if path == COMPLETIONS:
        return {**body, "logprobs": max(body.get("logprobs") or 1, count)}
    return dict(body)


def _without_logprobs(response: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response without log-probabilities that the client did not request."""
    choices = response.get("choices")
    if not isinstance(choices, list):
        return response
    count = (request.get("top_logprobs") or 0) if request.get("logprobs") else None
    kept = [_kept_logprobs(each, count) if isinstance(each, dict) else each for each in choices]
    return {**response, "choices": kept}


def _kept_logprobs(choice: dict[str, Any], count: int | None) -> dict[str, Any]:
    """Return a choice with so many likely tokens of each; without log-probabilities for none."""
    if count is None:
        return {**choice, "logprobs": None}
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(logprobs, dict) or not isinstance(content, list):
        return choice
    entries = [
        {**entry, "top_logprobs": entry["top_logprobs"][:count]}
        if isinstance(entry, dict) and isinstance(entry.get("top_logprobs"), list)
        else entry
        for entry in content
    ]
    return {**choice, "logprobs": {**logprobs, "content": entries}}
