"""OpenAI's shapes: what is read from a request, and what an answer looks like.

Nothing here asks anybody or knows HTTP but for the status of an error.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttamer.serve.fitting_schema import fits
from ttamer.serve.schemas import CHAT, CLASSIFY, COMPLETION, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ttamer.runtime.outcome import Outcome
    from ttamer.serve.asking import Answered
    from ttamer.serve.limits import Refused

__all__ = [
    "CASCADE",
    "KINDS",
    "Kind",
    "Question",
    "classified",
    "completed",
    "error_body",
    "error_of",
    "events",
    "models",
    "question_from",
]

CASCADE = "ttamer"
"""The name under which every cascade can be asked."""
PIECE = 48
"""Characters in one event of a stream."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Kind:
    """One kind of request."""

    path: str
    """What follows the base URL, here and upstream."""
    schema: dict[str, Any]
    object: str
    chunk: str
    prefix: str


KINDS = (
    Kind("/chat/completions", CHAT, "chat.completion", "chat.completion.chunk", "chatcmpl-"),
    Kind("/completions", COMPLETION, "text_completion", "text_completion", "cmpl-"),
    Kind("/classify", CLASSIFY, "classification", "", "cls-"),
)
CHAT_KIND, COMPLETION_KIND, CLASSIFY_KIND = KINDS


_FITS: dict[str, Callable[[Any], bool]] = {kind.path: fits(kind.schema) for kind in KINDS}


@dataclass(slots=True)
class Question:
    """A request, read and checked."""

    kind: Kind
    model: str
    body: dict[str, Any]
    """What upstreams are sent, but for the model and for streaming."""
    stream: bool
    include_usage: bool
    choice: tuple[str, float] | None
    """What the request chose for itself: ("tradeoff", 0.8)."""


def question_from(data: Any, kind: Kind) -> Question:
    """Read the parsed body of a request.

    >>> body = {"model": "ttamer", "messages": [{"role": "user", "content": "2+2?"}]}
    >>> question_from(body, CHAT_KIND).stream
    False
    """
    if not _FITS[kind.path](data):
        check(data, kind.schema)  # says what is wrong
    body = dict(data)
    model = body.pop("model", CASCADE)
    chosen = body.pop("ttamer", None) or {}
    stream = bool(body.pop("stream", None)) if kind.chunk else False
    options = body.pop("stream_options", None) if kind.chunk else None
    choice = next(((name, float(value)) for name, value in chosen.items()), None)
    usage = bool((options or {}).get("include_usage"))
    return Question(kind, model, body, stream, usage, choice)


def completed(question: Question, outcome: Outcome, request_id: str) -> dict[str, Any]:
    """Return the answer in the shape of the request's kind."""
    kind, answered = question.kind, outcome.answer
    if kind is CLASSIFY_KIND:
        return classified(outcome, answered, request_id)
    response = answered.response
    choice = {"logprobs": None, **response["choices"][0], "index": 0}
    choice["finish_reason"] = choice.get("finish_reason") or "stop"
    if kind is CHAT_KIND:
        choice["message"] = {"role": "assistant", "content": None, **choice["message"]}
    found = {
        "id": kind.prefix + request_id,
        "object": kind.object,
        "created": int(time.time()),
        "model": outcome.by,
        "choices": [choice],
    }
    usage = response.get("usage")
    return {**found, "usage": usage} if isinstance(usage, dict) else found


def classified(outcome: Outcome, answered: Answered, request_id: str) -> dict[str, Any]:
    """Return the label, how sure the node is of it, and how it came about."""
    return {
        "id": CLASSIFY_KIND.prefix + request_id,
        "object": CLASSIFY_KIND.object,
        "created": int(time.time()),
        "model": outcome.by,
        "label": answered.answer,
        "confidence": answered.confidence,
        "cost": outcome.cost,
        "path": list(outcome.path),
        "why": outcome.why,
    }


def events(question: Question, whole: Mapping[str, Any]) -> Iterator[bytes]:
    """Return a decided answer as server-sent events.

    Role, then the text in pieces, then why it ended, then the usage if asked for.
    """
    kind, choice = question.kind, whole["choices"][0]
    head = {"id": whole["id"], "object": kind.chunk, "created": whole["created"],
            "model": whole["model"]}  # fmt: skip

    def event(part: dict[str, Any], finish: str | None = None) -> bytes:
        parts = {"index": 0, **part, "finish_reason": finish}
        return _event({**head, "choices": [parts]})

    if kind is CHAT_KIND:
        message = choice["message"]
        yield event({"delta": {"role": "assistant", "content": ""}})
        for piece in _pieces(message.get("content")):
            yield event({"delta": {"content": piece}})
        others = {k: v for k, v in message.items() if k not in ("role", "content") and v}
        if calls := others.get("tool_calls"):
            others["tool_calls"] = [{"index": n, **c} for n, c in enumerate(calls)]
        if others:
            yield event({"delta": others})
        yield event({"delta": {}, "logprobs": choice["logprobs"]}, choice["finish_reason"])
    else:
        for piece in _pieces(choice["text"]):
            yield event({"text": piece, "logprobs": None})
        yield event({"text": "", "logprobs": choice["logprobs"]}, choice["finish_reason"])
    if question.include_usage:
        yield _event({**head, "choices": [], "usage": whole.get("usage")})
    yield DONE


def _pieces(text: str | None) -> Iterator[str]:
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE)) if text else iter(())


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def models(names: list[str]) -> dict[str, Any]:
    """Return the list of what may be asked."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": CASCADE} for name in names]
    return {"object": "list", "data": data}


def error_body(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_of(error: Refused) -> dict[str, Any]:
    """Return a refusal in OpenAI's shape."""
    return error_body(error.status, str(error), error.code, getattr(error, "param", None))


_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
