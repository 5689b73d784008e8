"""Anthropic's Messages format, in terms of chat completions: for nodes with ``api = "anthropic"``.

A request for chat completions becomes one for messages, and the message that comes back a chat
completion, so that everything else is as with other upstreams; the events of a stream become chunks
of chat completions as they arrive. Messages have no log-probabilities. The other way round, for
``POST /v1/messages``, is :mod:`ttamer.serve.formats.messages`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ttamer.serve.formats.schemas import compile_schema
from ttamer.serve.sse import DONE, EventSplitter, data_of, event_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MESSAGES", "STOPS", "VERSION_HEADER", "ChatChunks", "chat_from_message", "message_body"]

MESSAGES = "/messages"
"""The path of messages below the base URL."""
VERSION_HEADER = ("anthropic-version", "2023-06-01")
"""The header that every request needs, unless ``headers`` of the node has it."""
MAX_TOKENS = 1024
"""The most tokens of an answer, where the request has no limit: messages need one."""

_KEPT = ("model", "temperature", "top_p", "thinking", "metadata", "stream")
STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""The finish reason of chat completions for each stop reason of messages."""
BROKEN = {"error": {"message": "the upstream ended with an error", "type": "server_error"}}
"""What stands for an error event, without the upstream's text."""


def message_body(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for a message that stands for a request for chat completions.

    >>> chat = {"model": "m", "messages": [{"role": "system", "content": "Be brief."},
    ...                                    {"role": "user", "content": "Hi"}], "max_tokens": 5}
    >>> message_body(chat)["system"], message_body(chat)["messages"]
    ('Be brief.', [{'role': 'user', 'content': 'Hi'}])
    """
    body = {key: chat[key] for key in _KEPT if chat.get(key) is not None}
    limit = chat.get("max_tokens") or chat.get("max_completion_tokens")
    body["max_tokens"] = limit or MAX_TOKENS
    stop = chat.get("stop")
    if stop:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    system, messages = [], []
    for message in chat.get("messages", ()):
        if message.get("role") in ("system", "developer"):
            system.append(_text(message.get("content")))
        else:
            messages.append(_message(message))
    if system:
        body["system"] = "\n\n".join(system)
    body["messages"] = messages
    tools = [tool["function"] for tool in chat.get("tools") or () if "function" in tool]
    if tools:
        body["tools"] = [
            {
                "name": tool.get("name"),
                "description": tool.get("description") or "",
                "input_schema": tool.get("parameters") or {"type": "object", "properties": {}},
            }
            for tool in tools
        ]
        choice = chat.get("tool_choice")
        if isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            body["tool_choice"] = {"type": "tool", "name": name}
        elif choice in ("auto", "none", "required"):
            body["tool_choice"] = {"type": "any" if choice == "required" else choice}
    return body


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role in ("tool", "function"):
        block = {
            "type": "tool_result",
            "tool_use_id": message.get("tool_call_id"),
            "content": _text(content),
        }
        return {"role": "user", "content": [block]}
    calls = message.get("tool_calls")
    if not calls and not isinstance(content, list):
        return {"role": role, "content": _text(content)}
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    blocks = [_part(part) for part in parts if part.get("text") != ""]
    for call in calls or ():
        function = call.get("function") or {}
        given = function.get("arguments") or {}
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError):
                given = {}
        name = function.get("name")
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": name, "input": given})
    return {"role": role, "content": blocks}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a message: a text, or an image as data or by its address."""
    if part.get("type") != "image_url":
        return {"type": "text", "text": str(part.get("text", ""))}
    image = part.get("image_url")
    address = str(image.get("url", "") if isinstance(image, dict) else image)
    head, comma, data = address.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        kind = head.removeprefix("data:").removesuffix(";base64")
        source = {"type": "base64", "media_type": kind, "data": data}
        return {"type": "image", "source": source}
    return {"type": "image", "source": {"type": "url", "url": address}}


def chat_from_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as a chat completion.

    >>> text = {"type": "text", "text": "Hi!"}
    >>> chat_from_message({"content": [text], "stop_reason": "end_turn"})["choices"][0]["message"]
    {'role': 'assistant', 'content': 'Hi!'}
    """
    content = message.get("content")
    blocks = (
        [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    )
    text = "".join(str(each.get("text", "")) for each in blocks if each.get("type") == "text")
    calls = [
        {
            "id": each.get("id"),
            "type": "function",
            "function": {"name": each.get("name"), "arguments": json.dumps(each.get("input", {}))},
        }
        for each in blocks
        if each.get("type") == "tool_use"
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if calls:
        answer["tool_calls"] = calls
    stop = STOPS.get(str(message.get("stop_reason")), "stop")
    body: dict[str, Any] = {
        "id": message.get("id"),
        "object": "chat.completion",
        "model": message.get("model"),
        "choices": [{"index": 0, "message": answer, "finish_reason": stop}],
    }
    usage = message.get("usage")
    if isinstance(usage, dict) and (counts := _counts(usage)) is not None:
        body["usage"] = counts
    return body


def _counts(usage: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the usage of a chat completion; ``None`` where it is not stated."""
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    if not isinstance(read, int) or not isinstance(written, int):
        return None
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


_OBJECT = {"type": ["object", "null"]}
_violation = compile_schema(
    {
        "type": "object",
        "properties": {
            "index": {"type": ["integer", "null"]},
            "message": {**_OBJECT, "properties": {"usage": _OBJECT}},
            "content_block": _OBJECT,
            "delta": _OBJECT,
            "usage": _OBJECT,
        },
    }
)
"""Checks the fields of an event that are read."""


class ChatChunks:
    r"""The events of a streamed message, as chunks of a chat completion.

    >>> chunks = ChatChunks(usage=False)
    >>> event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}
    >>> chunks.feed(b"data: " + json.dumps(event).encode() + b"\n\n").split(b'"delta":')[1][:18]
    b' {"content": "Hi"}'

    Args:
        usage: Whether the last chunk states the usage.
    """

    def __init__(self, *, usage: bool) -> None:
        self._has_usage, self._usage = usage, dict[str, Any]()
        self._events = EventSplitter()
        self._calls: dict[int, int] = {}
        self._head: dict[str, Any] = {"object": "chat.completion.chunk"}

    def feed(self, received: bytes) -> bytes:
        """Take bytes of the stream; return the chunks of its complete events, as events."""
        events = self._events.feed(received)
        return b"".join([part for event in events for part in self._event(event)])

    def _event(self, event: bytes) -> Iterator[bytes]:
        content = data_of(event)
        data: Any = None
        with suppress(ValueError, RecursionError):
            data = json.loads(content) if content else {}
        kind = data.get("type") if _violation(data) is None else "error"
        if kind == "message_start":
            message = data.get("message") or {}
            self._head |= {key: message.get(key) for key in ("id", "model")}
            self._usage |= message.get("usage") or {}
            yield self._chunk({"role": "assistant", "content": ""})
        elif kind == "content_block_start":
            yield from self._block(data)
        elif kind == "content_block_delta":
            yield from self._delta(data)
        elif kind == "message_delta":
            self._usage |= {k: v for k, v in (data.get("usage") or {}).items() if v is not None}
            stop = (data.get("delta") or {}).get("stop_reason")
            if stop is not None:
                yield self._chunk({}, STOPS.get(str(stop), "stop"))
        elif kind == "message_stop":
            counts = _counts(self._usage)
            if self._has_usage and counts is not None:
                yield event_of({**self._head, "choices": [], "usage": counts})
            yield DONE
        elif kind == "error":
            yield event_of(BROKEN)

    def _block(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        block = data.get("content_block") or {}
        if block.get("type") == "text" and block.get("text"):
            yield self._chunk({"content": block["text"]})
        elif block.get("type") == "tool_use":
            number = self._calls[data.get("index", 0)] = len(self._calls)
            function = {"name": block.get("name"), "arguments": ""}
            call = {"index": number, "id": block.get("id"), "type": "function",
                    "function": function}  # fmt: skip
            yield self._chunk({"tool_calls": [call]})

    def _delta(self, data: Mapping[str, Any]) -> Iterator[bytes]:
        delta = data.get("delta") or {}
        if delta.get("type") == "text_delta":
            yield self._chunk({"content": delta.get("text", "")})
        elif delta.get("type") == "input_json_delta":
            number = self._calls.get(data.get("index", 0), 0)
            function = {"arguments": delta.get("partial_json", "")}
            yield self._chunk({"tool_calls": [{"index": number, "function": function}]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event_of({**self._head, "choices": [choice]})
