"""Anthropic's Messages format for clients: ``POST /v1/messages``, in terms of chat completions.

Requests become chat completions for upstreams, and the answer or its chunks become a message or its
events. What chat completions do not have is refused (tools of the provider, documents), or left out
(``top_k``, ``thinking``). Errors have Anthropic's form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ttamer.llm.confidence import message_text
from ttamer.serve.formats.anthropic import STOPS
from ttamer.serve.formats.openai import arguments_text
from ttamer.serve.formats.responses import Untranslatable
from ttamer.serve.sse import event_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ttamer.serve.http import HttpError

__all__ = ["MessageEvents", "chat_from_request", "message_error", "message_from"]

_KEPT = ("model", "stream", "ttamer", "temperature", "top_p", "max_tokens")
_REASONS = {"stop": "end_turn"} | {
    finish: stop for stop, finish in STOPS.items() if finish != "stop"
}
_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def chat_from_request(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for chat completions that stands for a request for a message.

    >>> ask = [{"role": "user", "content": "Hi"}]
    >>> chat_from_request({"system": "Be brief.", "messages": ask, "max_tokens": 5})["messages"]
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]

    Raises:
        Untranslatable: If the request needs what chat completions do not have.
    """
    body = {key: data[key] for key in _KEPT if data.get(key) is not None}
    if data.get("stop_sequences"):
        body["stop"] = data["stop_sequences"]
    user = (data.get("metadata") or {}).get("user_id")
    if isinstance(user, str):
        body["user"] = user
    messages: list[dict[str, Any]] = []
    if data.get("system"):
        messages.append({"role": "system", "content": _text(data["system"], "system")})
    for position, message in enumerate(data["messages"]):
        messages += _messages(message, f"messages.{position}")
    body["messages"] = messages
    if data.get("tools"):
        body["tools"] = [_tool(tool, f"tools.{n}") for n, tool in enumerate(data["tools"])]
    choice = data.get("tool_choice")
    if isinstance(choice, dict):
        name = {"type": "function", "function": {"name": choice.get("name")}}
        kind = choice.get("type")
        body["tool_choice"] = name if kind == "tool" else _CHOICES.get(str(kind), "auto")
        if choice.get("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
    return body


def _text(content: Any, place: str) -> str:
    """Return a text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | None):
        raise Untranslatable(f"{place}: content must be text or a list of blocks", param=place)
    parts = [_part(block, f"{place}.{n}") for n, block in enumerate(content or ())]
    if any(part["type"] != "text" for part in parts):
        raise Untranslatable(f"{place}: only text is supported here", param=place)
    return "\n".join(part["text"] for part in parts)


def _messages(message: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return the chat messages of a message: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    found: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(content):
        here = f"{place}.content.{number}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result":
            text = _text(block.get("content"), here)
            found.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
            )
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):  # of another model
            parts.append(_part(block, here))
    if parts or calls:
        texts = [part["text"] for part in parts if part["type"] == "text"]
        whole: Any = "".join(texts) if len(texts) == len(parts) else parts
        own: dict[str, Any] = {"role": role, "content": whole or None}
        found.append({**own, "tool_calls": calls} if calls else own)
    return found


def _part(block: Any, place: str) -> dict[str, Any]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return {"type": "text", "text": str(block.get("text", ""))}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, dict) and source.get("type") == "base64":
        address = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": address}}
    if isinstance(source, dict) and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": str(source.get("url"))}}
    raise Untranslatable(f"{place}: content of type {kind!r} is not supported", param=place)


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None):
        raise Untranslatable(
            f"{place}: tools of type {tool.get('type')!r} are not supported", param=place
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def message_from(body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return a chat completion as a message.

    >>> answer = {"role": "assistant", "content": "Hi!"}
    >>> body = {"model": "m", "choices": [{"message": answer, "finish_reason": "stop"}]}
    >>> message_from(body, "7")["content"], message_from(body, "7")["stop_reason"]
    ([{'type': 'text', 'text': 'Hi!'}], 'end_turn')
    """
    choice = body["choices"][0]
    answer, content = choice["message"], []
    text = message_text(answer.get("content")) or answer.get("refusal") or ""
    if text or not answer.get("tool_calls"):
        content.append({"type": "text", "text": text})
    for number, call in enumerate(answer.get("tool_calls") or ()):
        function = call.get("function") or {}
        used = _use(request_id, number, call.get("id"), function.get("name"))
        content.append(used | {"input": _arguments(arguments_text(function))})
    stop = _REASONS.get(str(choice.get("finish_reason")), "end_turn")
    return _message(request_id, str(body["model"]), content, stop, body.get("usage"))


def _message(
    request_id: str, model: str, content: list[dict[str, Any]], stop: str | None, usage: Any
) -> dict[str, Any]:
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Any) -> dict[str, int]:
    counts = usage if isinstance(usage, dict) else {}
    return {
        "input_tokens": counts.get("prompt_tokens") or 0,
        "output_tokens": counts.get("completion_tokens") or 0,
    }


def _use(request_id: str, number: int, given: Any, name: Any) -> dict[str, Any]:
    identity = given or f"toolu_{request_id}_{number}"
    return {"type": "tool_use", "id": identity, "name": name or "", "input": {}}


def _arguments(text: str) -> Any:
    """Return the arguments of a call as an object."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


class MessageEvents:
    """The events of a streamed message, from the chunks of a chat completion."""

    def __init__(self, request_id: str, model: str) -> None:
        self._id, self._model = request_id, model
        self._open: int | str | None = None
        """The block that is open: the number of a call, or "text"."""
        self._count = 0
        self._finish: str | None = None
        self._usage: Any = None

    @staticmethod
    def _event(kind: str, **data: Any) -> bytes:
        return event_of({"type": kind, **data}, kind)

    def start(self) -> Iterator[bytes]:
        """Yield the event with which a message begins."""
        message = _message(self._id, self._model, [], None, None)
        yield self._event("message_start", message=message)

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events of a chunk."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            if choice.get("index"):
                continue
            delta = choice.get("delta") or {}
            self._finish = choice.get("finish_reason") or self._finish
            if text := message_text(delta.get("content")) or delta.get("refusal"):
                yield from self._begin("text", {"type": "text", "text": ""})
                yield self._delta(type="text_delta", text=text)
            for call in delta.get("tool_calls") or ():
                number, function = int(call.get("index") or 0), call.get("function") or {}
                block = _use(self._id, number, call.get("id"), function.get("name"))
                yield from self._begin(number, block)
                if arguments := arguments_text(function):
                    yield self._delta(type="input_json_delta", partial_json=arguments)

    def _begin(self, block: int | str, content: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events that open a block, and close the one before."""
        if self._open != block:
            yield from self._close()
            self._open = block
            yield self._event("content_block_start", index=self._count, content_block=content)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield self._event("content_block_stop", index=self._count)
            self._open = None
            self._count += 1

    def _delta(self, **delta: str) -> bytes:
        return self._event("content_block_delta", index=self._count, delta=delta)

    def end(self) -> Iterator[bytes]:
        """Yield the events with which a message ends."""
        if self._open is None and not self._count:
            yield from self._begin("text", {"type": "text", "text": ""})
        yield from self._close()
        stop = _REASONS.get(str(self._finish), "end_turn")
        delta = {"stop_reason": stop, "stop_sequence": None}
        yield self._event("message_delta", delta=delta, usage=_usage(self._usage))
        yield self._event("message_stop")


def message_error(error: HttpError) -> dict[str, Any]:
    """Return an error in Anthropic's form."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error")
    if error.status >= 500 and error.status not in _ERROR_TYPES:
        kind = "api_error"
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
