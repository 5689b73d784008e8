"""Anthropic's Messages format, in terms of chat completions: for nodes with ``api = "anthropic"``.

A request for chat completions becomes one for messages, and the message that comes back a chat
completion, so that everything else is as with other upstreams. Messages have no log-probabilities,
and their streams are not relayed: such a node's whole answer is sent in events.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MESSAGES", "VERSION_HEADER", "chat_from_message", "message_body"]

MESSAGES = "/messages"
"""The path of messages below the base URL."""
VERSION_HEADER = ("anthropic-version", "2023-06-01")
"""The header that every request needs, unless ``headers`` of the node has it."""
MAX_TOKENS = 1024
"""The most tokens of an answer, where the request has no limit: messages need one."""

_KEPT = ("model", "temperature", "top_p", "thinking", "metadata")
_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


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
            name = (choice.get("function") or {}).get("name")
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
        try:
            given = json.loads(function.get("arguments") or "{}")
        except (ValueError, RecursionError):
            given = {}
        name = function.get("name")
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": name, "input": given})
    return {"role": role, "content": blocks}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a message: a text, or an image as data or by its address."""
    if part.get("type") != "image_url":
        return {"type": "text", "text": str(part.get("text", ""))}
    address = str((part.get("image_url") or {}).get("url", ""))
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
    stop = _STOPS.get(str(message.get("stop_reason")), "stop")
    body: dict[str, Any] = {
        "id": message.get("id"),
        "object": "chat.completion",
        "model": message.get("model"),
        "choices": [{"index": 0, "message": answer, "finish_reason": stop}],
    }
    usage = message.get("usage")
    if isinstance(usage, dict):
        read, written = usage.get("input_tokens"), usage.get("output_tokens")
        if isinstance(read, int) and isinstance(written, int):
            body["usage"] = {"prompt_tokens": read, "completion_tokens": written,
                             "total_tokens": read + written}  # fmt: skip
    return body
