"""One node: from a request in OpenAI's format to a reply with its confidence and its cost.

Nothing here knows a transport. A node asks its :class:`Upstream`: the client of a server, a LiteLLM
router, a handle of Ray, or a fake in a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ttamer.cascade import SUFFIX, CascadeSpec
from ttamer.llm.client import NEVER, Body, Deadline, Response, UpstreamFailed
from ttamer.llm.compare import Comparison
from ttamer.llm.confidence import (
    Unreadable,
    agreement,
    answer_text,
    is_plain_text,
    message_text,
    probability_of_answer,
    probability_of_choice,
    product_of_tokens,
    question_text,
    report_request,
    reported_confidence,
)
from ttamer.llm.settings import NodeSettings
from ttamer.runtime.reply import Reply

BYTES_PER_TOKEN = 3.0  # fewer than most texts have, so that a context is not overfilled


class Upstream(Protocol):
    """What a node asks."""

    async def complete(
        self, body: Body, deadline: Deadline = ..., *, headers: Mapping[str, str] | None = ...
    ) -> Response:
        """Return the response to a request; a failure is an :class:`UpstreamFailed`."""
        ...


class Usage(NamedTuple):
    """The tokens that a server says a call had.

    >>> Usage(10, 2) + Usage(5, 1, cached=4)
    Usage(prompt=15, completion=3, cached=4, reasoning=0)
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0  # of the prompt: what the server had kept
    reasoning: int = 0  # of the completion

    @classmethod
    def of(cls, response: Body) -> Usage | None:
        """Return the usage in a response, or the last chunk of a stream; ``None`` without one.

        >>> Usage.of({"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
        Usage(prompt=9, completion=1, cached=0, reasoning=0)
        """
        try:
            usage = msgspec.convert(response.get("usage"), _Usage)
        except msgspec.ValidationError:
            return None
        cached = (usage.prompt_tokens_details or _Details()).cached_tokens or 0
        reasoning = (usage.completion_tokens_details or _Details()).reasoning_tokens or 0
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        return cls(prompt, completion, min(cached, prompt), min(reasoning, completion))

    def __add__(self, more: tuple[Any, ...]) -> Usage:
        return Usage(*map(sum, zip(self, more, strict=True)))


Tokens = Annotated[int, Meta(ge=0, le=2**40)]  # a larger number is no number of tokens


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None
    reasoning_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Tokens
    completion_tokens: Tokens = 0  # embeddings have none
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


def call_cost(settings: NodeSettings, usage: Usage | None) -> float | None:
    """Return the cost of a call; ``None`` where it depends on tokens that are not known.

    >>> from ttamer.llm.settings import TokenCost
    >>> price = TokenCost(input=1.0, output=4.0, cached=0.5)
    >>> node = NodeSettings(name="a", cost=2.0, upstream="http://h/v1", cost_per_token=price)
    >>> call_cost(node, Usage(10, 3, cached=4)), call_cost(node, None)
    (22.0, None)
    """
    price = settings.cost_per_token
    if price is None:
        return settings.cost
    if usage is None:
        return None
    cached = price.input if price.cached is None else price.cached
    reasoning = price.output if price.reasoning is None else price.reasoning
    prompt = price.input * (usage.prompt - usage.cached) + cached * usage.cached
    answer = price.output * (usage.completion - usage.reasoning) + reasoning * usage.reasoning
    return settings.cost + prompt + answer


def requests_of(settings: NodeSettings, body: Body) -> list[Body]:
    """Return the requests for one answer, with what its confidence needs."""
    if settings.needs_logprobs:
        return [{**body, "logprobs": True}]
    if settings.confidence != "agreement":
        return [body]
    # At a temperature of 0 all answers would be the same.
    body, seed = {**body, "temperature": body.get("temperature") or 0.7}, body.get("seed")
    return [
        {**body, "seed": seed + k} if isinstance(seed, int) else body
        for k in range(settings.samples)
    ]


def highest_cost(settings: NodeSettings, body: Body) -> float:
    """Return what the answer to a request may cost: tokens as its bytes say, and as it allows."""
    prompt = int(len(msgspec.json.encode(body)) / BYTES_PER_TOKEN)
    longest = int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)
    if settings.confidence == "self-report":
        prompt += longest  # which is read once more
    return settings.calls * (call_cost(settings, Usage(prompt, longest)) or 0.0)


@dataclass(slots=True)
class Work:
    """What the calls for one request have in common."""

    body: dict[str, Any]
    deadline: Deadline = NEVER
    headers: Mapping[str, str] = field(default_factory=dict)  # sent with each call
    answers: dict[str, ModelAnswer] = field(default_factory=dict)
    failures: dict[str, UpstreamFailed] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    is_measured: bool = True  # not where a cost is estimated


@dataclass(slots=True)
class ModelAnswer:
    """A node's answer: the ``answer`` of its reply."""

    text: str
    response: dict[str, Any]  # without log-probabilities that the request does not ask for
    prediction: str | None
    cost: float
    confidence_cost: float = 0.0  # the part of the cost that is for the confidence alone


class ModelNode:
    """A model with a source of confidence."""

    def __init__(
        self, settings: NodeSettings, upstream: Upstream, compare: Comparison | None = None
    ) -> None:
        self.settings, self.upstream, self.name = settings, upstream, settings.name
        self.compare = compare or Comparison()

    async def ask(self, work: Work) -> Reply:
        """Return the reply to a request; its ``answer`` is a :class:`ModelAnswer`.

        Raises:
            UpstreamFailed: If there is none; of kind "garbage" where the response lacks the answer
                or the source of its confidence, "ineligible" where the node does not take it.
        """
        if reason := ineligible(self.settings, work.body):
            raise UpstreamFailed(self.name, "ineligible", reason)
        try:
            if self.settings.confidence == "agreement":
                return await self._ask_samples(work)
            (body,) = requests_of(self.settings, work.body)
            return await self.read(*await self.call(work, body), work)
        except (Unreadable, AttributeError, LookupError, TypeError, ValueError) as error:
            raise UpstreamFailed(self.name, "garbage", str(error)) from None

    async def read(self, response: dict[str, Any], cost: float, work: Work) -> Reply:
        """Return the reply in a response, with its confidence; ``cost`` is that of the call."""
        source, text = self.settings.confidence, answer_text(response)
        prediction, confidence, extra = self.compare.prediction(text), 0.0, 0.0
        if source == "self-report":
            confidence, extra = await self.reported(text, work)
        elif source != "none":
            confidence = self._of_tokens(response, prediction)
        shown = _shown(response, work.body) if self.settings.needs_logprobs else response
        answer = ModelAnswer(text, shown, prediction, cost + extra, extra)
        return self._reply(answer, confidence, work)

    def _reply(self, answer: ModelAnswer, confidence: float, work: Work) -> Reply:
        if not self.compare.is_transitive:
            forms = [*(earlier.prediction for earlier in work.answers.values()), answer.prediction]
            answer.prediction = self.compare.matched(forms)[-1]
        work.answers[self.name] = answer
        return Reply(answer.prediction, confidence, answer, answer.cost)

    async def reported(self, text: str, work: Work) -> tuple[float, float]:
        """Return how sure the model says it is of an answer, 0 where it does not, and the cost."""
        # There is nothing to judge without a text, and models tend to say yes to it.
        if not text.strip():
            return 0.0, 0.0
        try:
            report, cost = await self.call(work, report_request(question_text(work.body), text))
        except UpstreamFailed as error:  # a report never costs the answer
            return 0.0, self.settings.cost if error.paid else 0.0
        with suppress(Unreadable):
            return reported_confidence(report), cost
        return 0.0, cost

    async def _ask_samples(self, work: Work) -> Reply:
        """Ask several times; the answer is the first of those that agree most."""
        bodies = requests_of(self.settings, work.body)
        results = await asyncio.gather(*(self._tried(work, body) for body in bodies))
        answered = [result for result in results if not isinstance(result, UpstreamFailed)]
        failures = [result for result in results if isinstance(result, UpstreamFailed)]
        if not answered:
            raise failures[0]
        texts = [answer_text(response) for response, _ in answered]
        predictions = self.compare.matched([self.compare.prediction(text) for text in texts])
        chosen, confidence = agreement([*predictions, *[None] * len(failures)])
        cost = sum(cost for _, cost in answered)
        cost += self.settings.cost * sum(error.paid for error in failures)
        # The first of those that agree most
        answer = ModelAnswer(texts[chosen], answered[chosen][0], predictions[chosen], cost)
        return self._reply(answer, confidence, work)

    async def _tried(self, work: Work, body: Body) -> tuple[Any, float] | UpstreamFailed:
        try:
            return await self.call(work, body)
        except UpstreamFailed as error:
            return error

    async def call(self, work: Work, body: Body) -> tuple[dict[str, Any], float]:
        """Return the response to a request, and what it cost."""
        response = await self.upstream.complete(body, work.deadline, headers=work.headers)
        return response.body, self.booked(Usage.of(response.body), response.cost, work)

    def booked(self, usage: Usage | None, stated: float | None, work: Work) -> float:
        """Return the cost of a call, stated or by its tokens, and count these for the request."""
        if usage is not None:
            work.usage += usage
        if stated is not None:
            return stated
        cost = call_cost(self.settings, usage)
        if cost is not None:
            return cost
        work.is_measured = False
        return self.settings.cost

    def _of_tokens(self, response: Mapping[str, Any], prediction: str | None) -> float:
        """Return the confidence that the probabilities of tokens give.

        Upstreams send none with tool calls, refusals and empty answers, which get the lowest.
        """
        try:
            if self.settings.confidence == "product":
                return product_of_tokens(response)
            if self.compare.kind == "choice" and prediction is not None:
                return probability_of_choice(response, prediction)
            return probability_of_answer(response)
        except Unreadable:
            if is_plain_text(response):
                raise
            return 0.0


class Verification:
    """The second node that ``verify_cost`` makes of one: the same answer, with its confidence."""

    def __init__(self, node: ModelNode, settings: NodeSettings) -> None:
        self.node, self.name, self.settings = node, node.name + SUFFIX, settings
        self._reporter = ModelNode(settings, node.upstream, node.compare)

    async def ask(self, work: Work) -> Reply:
        """Return the answer that the node gave, with its confidence, at the cost of that alone."""
        answer = work.answers.get(self.node.name)
        if answer is None:
            raise UpstreamFailed(self.name, "ineligible", "there is no answer to verify")
        confidence, cost = await self._reporter.reported(answer.text, work)
        return Reply(answer.prediction, confidence, answer, cost)


def open_nodes(
    spec: CascadeSpec,
    settings: Mapping[str, NodeSettings],
    upstream: Callable[[NodeSettings], Upstream],
    compare: Comparison,
) -> dict[str, ModelNode | Verification]:
    """Return the nodes of a cascade by name, in the order of ``split_nodes(spec)``."""
    nodes: dict[str, ModelNode | Verification] = {}
    for node in spec.nodes:
        table = settings[node.name]
        # With verify_cost: the answer alone, and its confidence as a step that a policy may skip.
        plain = table if node.verify_cost is None else replace(table, confidence="none")
        nodes[node.name] = answering = ModelNode(plain, upstream(table), compare)
        if node.verify_cost is not None:
            reporting = replace(table, cost=node.verify_cost)
            nodes[node.name + SUFFIX] = Verification(answering, reporting)
    return nodes


def ineligible(settings: NodeSettings, body: Body) -> str:
    """Return why a node cannot take a request; nothing where it can.

    >>> node = NodeSettings(name="a", cost=1.0, upstream="http://h/v1", accepts=("tools",))
    >>> image = {"type": "image_url", "image_url": {"url": "data:,"}}
    >>> ineligible(node, {"messages": [{"role": "user", "content": [image]}]})
    'does not take images'
    """
    accepts = settings.accepts
    if "tools" not in accepts and (body.get("tools") or body.get("functions")):
        return "does not take tools"
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if "json_schema" not in accepts and kind == "json_schema":
        return "does not take a JSON schema"
    # Reading the messages takes time: only where it can matter.
    if "images" in accepts and settings.context is None:
        return ""
    length, images = _size(body)
    if images and "images" not in accepts:
        return "does not take images"
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    tokens = length / BYTES_PER_TOKEN + images * 1000  # of an image: the order of size
    tokens += limit if isinstance(limit, int) else 0
    if settings.context is not None and tokens > settings.context:
        return f"has a context of {settings.context} tokens, and the request is longer"
    return ""


def _size(body: Body) -> tuple[int, int]:
    """Return the bytes of text in a request, tools and their calls included, and its images."""
    messages = body.get("messages")
    messages = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    calls = [body.get("tools"), *(message.get("tool_calls") for message in messages)]
    length = sum(len(msgspec.json.encode(call)) for call in calls if call is not None)
    images = 0
    for content in (message.get("content") for message in messages):
        length += len(message_text(content).encode("utf-8", "replace"))
        parts = content if isinstance(content, list) else ()
        kinds = [part.get("type") for part in parts if isinstance(part, dict)]
        images += kinds.count("image_url") + kinds.count("input_image")
    return length, images


def _shown(response: dict[str, Any], request: Body) -> dict[str, Any]:
    """Return the response without log-probabilities that the client did not request."""
    if request.get("logprobs"):
        return response
    choices = [
        {**choice, "logprobs": None} if isinstance(choice, dict) else choice
        for choice in response["choices"]
    ]
    return {**response, "choices": choices}
