"""OpenAI's formats: the endpoints, and the bodies of responses.

Nothing here calls a node or sends a response.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ttamer.llm.confidence import message_text
from ttamer.serve.bill import shown
from ttamer.serve.formats.schemas import (
    CHAT,
    CLASSIFY,
    COMPLETION,
    MESSAGE,
    RESPONSE,
    compile_schema,
)
from ttamer.trace.verification import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ttamer.runtime.reply import Outcome
    from ttamer.serve.bill import Bill
    from ttamer.serve.formats.schemas import Validator
    from ttamer.serve.request import RequestContext
    from ttamer.serve.upstreams.node import NodeAnswer

__all__ = [
    "CASCADE",
    "CHAT_COMPLETIONS",
    "CLASSIFICATIONS",
    "COMPLETIONS",
    "ENDPOINTS",
    "MESSAGES",
    "RESPONSES",
    "Endpoint",
    "arguments_text",
    "chunks",
    "classification",
    "completion",
    "model",
    "model_list",
]

CASCADE = "ttamer"
"""The model name under which every cascade is available."""
CHUNK_LENGTH = 48
"""The number of characters in one event of a stream."""


@dataclass(frozen=True)
class Endpoint:
    """One kind of request that the cascade answers."""

    path: str
    """The path below the base URL."""
    schema: dict[str, Any]
    validator: Validator
    object: str
    """The ``object`` field of a response."""
    chunk: str
    """The ``object`` field of an event; empty where there are no streams."""
    id_prefix: str
    is_translated: bool = False
    """Whether requests become chat completions at upstreams."""

    @cached_property
    def route(self) -> str:
        """The route of the gateway."""
        return f"/v1{self.path}"

    @cached_property
    def whole_numbers(self) -> frozenset[str]:
        """The fields that are whole numbers."""
        fields = self.schema["properties"].items()
        return frozenset(name for name, field in fields if "integer" in field.get("type", ()))

    @cached_property
    def upstream_path(self) -> str:
        """The path below the base URL of upstreams."""
        return "/chat/completions" if self.is_translated else self.path


CHAT_COMPLETIONS = Endpoint(
    "/chat/completions",
    CHAT,
    compile_schema(CHAT),
    "chat.completion",
    "chat.completion.chunk",
    "chatcmpl-",
)
"""Chat completions."""
COMPLETIONS = Endpoint(
    "/completions",
    COMPLETION,
    compile_schema(COMPLETION),
    "text_completion",
    "text_completion",
    "cmpl-",
)
"""Text completions."""
CLASSIFICATIONS = Endpoint(
    "/classify", CLASSIFY, compile_schema(CLASSIFY), "classification", "", "cls-"
)
"""Labels of texts, which OpenAI's API does not have."""
RESPONSES = Endpoint(
    "/responses",
    RESPONSE,
    compile_schema(RESPONSE),
    "response",
    "chat.completion.chunk",
    "resp_",
    is_translated=True,
)
"""Responses without state, which are chat completions in another form."""
MESSAGES = Endpoint(
    "/messages",
    MESSAGE,
    compile_schema(MESSAGE),
    "message",
    "chat.completion.chunk",
    "msg_",
    is_translated=True,
)
"""Anthropic's messages, which are chat completions in another form."""
ENDPOINTS = (CHAT_COMPLETIONS, COMPLETIONS, CLASSIFICATIONS, RESPONSES, MESSAGES)
"""All endpoints that ask nodes."""


def completion(request: RequestContext, outcome: Outcome) -> dict[str, Any]:
    """Return the answer in the format of the request's endpoint."""
    endpoint, answer = request.endpoint, outcome.answer
    if endpoint is CLASSIFICATIONS:
        return classification(outcome, answer, request.request_id)
    choices = []
    wanted = request.body.get("n") or 1
    for index, given in enumerate(_choices(endpoint, answer)[:wanted]):
        choice = {"logprobs": None, **given, "index": index}
        choice["finish_reason"] = choice.get("finish_reason") or "stop"
        if endpoint is not COMPLETIONS:
            choice["message"] = {"role": "assistant", "content": None, **choice["message"]}
        choices.append(choice)
    body = {
        "id": endpoint.id_prefix + request.request_id,
        "object": endpoint.object,
        "created": int(time.time()),
        "model": outcome.by.removesuffix(SUFFIX),
        "choices": choices,
    }
    return body | bill_fields(request.bill)


def _choices(endpoint: Endpoint, answer: NodeAnswer) -> list[dict[str, Any]]:
    """Return the choices of a response; of one in another format, its text as the only choice."""
    name, form = ("text", str) if endpoint is COMPLETIONS else ("message", dict)
    given = answer.response.get("choices")
    choices = given if isinstance(given, list) else []
    found = [
        each for each in choices if isinstance(each, dict) and isinstance(each.get(name), form)
    ]
    if found:
        return found
    return [{"text": answer.text} if form is str else {"message": {"content": answer.text}}]


def bill_fields(bill: Bill) -> dict[str, Any]:
    """Return the usage of all calls, and the calls, tokens and cost of each node beside it."""
    fields: dict[str, Any] = {}
    if (usage := bill.usage) is not None:
        prompt, answered = usage
        fields["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": answered,
            "total_tokens": prompt + answered,
        }
    nodes = []
    for name, each in bill.by_node().items():
        node: dict[str, Any] = {"node": name, "calls": each.calls, "cost": float(shown(each.cost))}
        if each.estimated:
            node["estimated"] = float(shown(each.estimated))
        if each.usage is not None:
            node["prompt_tokens"], node["completion_tokens"] = each.usage
        nodes.append(node)
    fields[CASCADE] = {"cost": float(shown(bill.cost)), "nodes": nodes}
    return fields


def classification(outcome: Outcome, answer: NodeAnswer, request_id: str) -> dict[str, Any]:
    """Return the label, the node's confidence in it, and how the cascade reached it."""
    return {
        "id": CLASSIFICATIONS.id_prefix + request_id,
        "object": CLASSIFICATIONS.object,
        "created": int(time.time()),
        "model": outcome.by.removesuffix(SUFFIX),
        "label": answer.text,
        "confidence": answer.confidence,
        "cost": float(shown(outcome.cost)),
        "path": list(outcome.path),
        "why": outcome.why,
    }


def chunks(request: RequestContext, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the data of the events of a complete answer.

    For each choice the role, then the text in chunks, then the finish reason; then the usage if
    requested.
    """
    endpoint = request.endpoint
    head = {
        "id": body["id"],
        "object": endpoint.chunk,
        "created": body["created"],
        "model": body["model"],
    }
    for choice in body["choices"]:
        parts = _text_parts(choice) if endpoint is COMPLETIONS else _chat_parts(choice)
        *others, last = parts
        for part in others:
            yield {**head, "choices": [{"index": choice["index"], **part, "finish_reason": None}]}
        end = {"index": choice["index"], **last, "finish_reason": choice["finish_reason"]}
        yield {**head, "choices": [end]}
    if request.include_usage:
        yield {**head, "choices": [], "usage": body.get("usage"), CASCADE: body.get(CASCADE)}


def _chat_parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    message = choice["message"]
    yield {"delta": {"role": "assistant", "content": ""}}
    for chunk in _chunks(message_text(message.get("content"))):
        yield {"delta": {"content": chunk}}
    others = {k: v for k, v in message.items() if k not in ("role", "content") and v}
    if calls := others.get("tool_calls"):
        others["tool_calls"] = [{"index": n, **c} for n, c in enumerate(calls)]
    if others:
        yield {"delta": others}
    yield {"delta": {}, "logprobs": choice["logprobs"]}


def _text_parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for chunk in _chunks(choice["text"]):
        yield {"text": chunk, "logprobs": None}
    yield {"text": "", "logprobs": choice["logprobs"]}


def _chunks(text: str) -> Iterator[str]:
    return (text[i : i + CHUNK_LENGTH] for i in range(0, len(text), CHUNK_LENGTH))


def arguments_text(function: Mapping[str, Any]) -> str:
    """Return the arguments of a call as JSON text, also where a server gives them as an object."""
    given = function.get("arguments") or ""
    return given if isinstance(given, str) else json.dumps(given)


def model(name: str) -> dict[str, Any]:
    """Return the description of one model, in OpenAI's format."""
    return {"id": name, "object": "model", "created": 0, "owned_by": CASCADE}


def model_list(names: list[str]) -> dict[str, Any]:
    """Return the list of models, in OpenAI's format."""
    return {"object": "list", "data": [model(name) for name in names]}
