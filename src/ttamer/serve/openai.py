"""OpenAI's formats: the endpoints, and the bodies of responses.

Nothing here calls a node or sends a response.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttamer.serve.schemas import CHAT, CLASSIFY, COMPLETION, compile_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ttamer.runtime.outcome import Outcome
    from ttamer.serve.node import NodeAnswer
    from ttamer.serve.request import RequestContext
    from ttamer.serve.schemas import Validator

__all__ = [
    "CASCADE",
    "CHAT_COMPLETIONS",
    "CLASSIFICATIONS",
    "COMPLETIONS",
    "ENDPOINTS",
    "Endpoint",
    "classification",
    "completion",
    "events",
    "model_list",
]

CASCADE = "ttamer"
"""The model name under which every cascade is available."""
CHUNK_LENGTH = 48
"""The number of characters in one event of a stream."""
DONE = b"data: [DONE]\n\n"
"""The event that ends a stream."""


@dataclass(frozen=True)
class Endpoint:
    """One kind of request that the cascade answers."""

    path: str
    """The path below the base URL, here and at upstreams."""
    schema: dict[str, Any]
    validator: Validator
    object: str
    """The ``object`` field of a response."""
    chunk: str
    """The ``object`` field of an event; empty where there are no streams."""
    id_prefix: str


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
ENDPOINTS = (CHAT_COMPLETIONS, COMPLETIONS, CLASSIFICATIONS)
"""All endpoints that ask nodes."""


def completion(request: RequestContext, outcome: Outcome) -> dict[str, Any]:
    """Return the answer in the format of the request's endpoint."""
    endpoint, answer = request.endpoint, outcome.answer
    if endpoint is CLASSIFICATIONS:
        return classification(outcome, answer, request.request_id)
    response = answer.response
    choice = {"logprobs": None, **response["choices"][0], "index": 0}
    choice["finish_reason"] = choice.get("finish_reason") or "stop"
    if endpoint is CHAT_COMPLETIONS:
        choice["message"] = {"role": "assistant", "content": None, **choice["message"]}
    body = {
        "id": endpoint.id_prefix + request.request_id,
        "object": endpoint.object,
        "created": int(time.time()),
        "model": outcome.by,
        "choices": [choice],
    }
    usage = response.get("usage")
    return {**body, "usage": usage} if isinstance(usage, dict) else body


def classification(outcome: Outcome, answer: NodeAnswer, request_id: str) -> dict[str, Any]:
    """Return the label, the node's confidence in it, and how the cascade reached it."""
    return {
        "id": CLASSIFICATIONS.id_prefix + request_id,
        "object": CLASSIFICATIONS.object,
        "created": int(time.time()),
        "model": outcome.by,
        "label": answer.text,
        "confidence": answer.confidence,
        "cost": outcome.cost,
        "path": list(outcome.path),
        "why": outcome.why,
    }


def events(request: RequestContext, body: Mapping[str, Any]) -> Iterator[bytes]:
    """Return a complete answer as server-sent events.

    The role, then the text in chunks, then the finish reason, then the usage if requested.
    """
    endpoint, choice = request.endpoint, body["choices"][0]
    head = {
        "id": body["id"],
        "object": endpoint.chunk,
        "created": body["created"],
        "model": body["model"],
    }

    def event(part: dict[str, Any], finish: str | None = None) -> bytes:
        parts = {"index": 0, **part, "finish_reason": finish}
        return _event({**head, "choices": [parts]})

    if endpoint is CHAT_COMPLETIONS:
        message = choice["message"]
        yield event({"delta": {"role": "assistant", "content": ""}})
        for chunk in _chunks(message.get("content")):
            yield event({"delta": {"content": chunk}})
        others = {k: v for k, v in message.items() if k not in ("role", "content") and v}
        if calls := others.get("tool_calls"):
            others["tool_calls"] = [{"index": n, **c} for n, c in enumerate(calls)]
        if others:
            yield event({"delta": others})
        yield event({"delta": {}, "logprobs": choice["logprobs"]}, choice["finish_reason"])
    else:
        for chunk in _chunks(choice["text"]):
            yield event({"text": chunk, "logprobs": None})
        yield event({"text": "", "logprobs": choice["logprobs"]}, choice["finish_reason"])
    if request.include_usage:
        yield _event({**head, "choices": [], "usage": body.get("usage")})
    yield DONE


def _chunks(text: str | None) -> Iterator[str]:
    if not text:
        return iter(())
    return (text[i : i + CHUNK_LENGTH] for i in range(0, len(text), CHUNK_LENGTH))


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def model_list(names: list[str]) -> dict[str, Any]:
    """Return the list of models, in OpenAI's format."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": CASCADE} for name in names]
    return {"object": "list", "data": data}
