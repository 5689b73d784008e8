"""OpenAI's Responses format, in terms of chat completions.

Responses without state are chat completions in another form: ``POST /v1/responses`` is translated
for upstreams, and the answer back. What needs state or tools of the provider is refused:
``previous_response_id``, and tools other than functions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ttamer.llm.confidence import message_text
from ttamer.serve.formats.openai import arguments_text
from ttamer.serve.http import HttpError
from ttamer.serve.sse import event_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ResponseEvents", "chat_body", "response_from"]

_RENAMED = {"max_output_tokens": "max_tokens"}
_KEPT = ("model", "stream", "ttamer", "temperature", "top_p", "parallel_tool_calls", "seed", "user")
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
"""The fields of a response that ended at the limit of its tokens."""


class Untranslatable(HttpError):
    """A request needs what chat completions do not have."""

    code = "unsupported_parameter"


def chat_body(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for chat completions that stands for a request for a response.

    >>> chat_body({"model": "m", "input": "Hi", "instructions": "Be brief."})["messages"]
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]

    Raises:
        Untranslatable: If the request needs state, or tools other than functions.
    """
    body = {key: data[key] for key in _KEPT if data.get(key) is not None}
    body |= {_RENAMED[key]: data[key] for key in _RENAMED if data.get(key) is not None}
    messages: list[dict[str, Any]] = []
    if data.get("instructions"):
        messages.append({"role": "system", "content": data["instructions"]})
    given = data["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for position, item in enumerate(items):
        messages += _messages(item, f"input.{position}")
    body["messages"] = messages
    if data.get("tools"):
        body["tools"] = [_tool(tool, f"tools.{n}") for n, tool in enumerate(data["tools"])]
    choice = data.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if choice is not None:
        body["tool_choice"] = choice
    form = (data.get("text") or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {key: value for key, value in form.items() if key != "type"}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif isinstance(form, dict) and form.get("type") == "json_object":
        body["response_format"] = {"type": "json_object"}
    effort = (data.get("reasoning") or {}).get("effort")
    return body | ({} if effort is None else {"reasoning_effort": effort})


def _messages(item: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return the chat messages of an item of the input."""
    kind = item.get("type", "message")
    if kind == "message":
        content = item.get("content")
        if isinstance(content, list):
            content = [_part(part, f"{place}.content.{n}") for n, part in enumerate(content)]
            if all(part["type"] == "text" for part in content):
                content = "".join(part["text"] for part in content)
        return [{"role": item.get("role", "user"), "content": content}]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if kind == "function_call_output":
        output = item.get("output")
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": output}]
    if kind == "reasoning":
        return []  # of another model, and of no use to this one
    raise Untranslatable(f"{place}: items of type {kind!r} are not supported", param=place)


def _part(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _PARTS:
        return {"type": "text", "text": str(part.get(_PARTS[kind], ""))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = {"url": part["image_url"], **({"detail": part["detail"]} if "detail" in part
                                              else {})}  # fmt: skip
        return {"type": "image_url", "image_url": image}
    raise Untranslatable(f"{place}: content of type {kind!r} is not supported", param=place)


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Untranslatable(
            f"{place}: tools of type {tool.get('type')!r} are not supported", param=place
        )
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def response_from(body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return a chat completion as a response.

    >>> message = {"role": "assistant", "content": "Hi!"}
    >>> body = {"model": "m", "created": 1, "choices": [{"message": message}]}
    >>> response_from(body, "7")["output"][0]["content"][0]["text"]
    'Hi!'
    """
    choice = body["choices"][0]
    message, output = choice["message"], []
    text = message_text(message.get("content"))
    if text or not message.get("tool_calls"):
        refusal = message.get("refusal")
        part = _content(str(refusal or text), is_refusal=bool(refusal))
        output.append(_message(request_id, part))
    for number, call in enumerate(message.get("tool_calls") or ()):
        output.append(_call(request_id, number, call))
    response = _response(request_id, str(body["model"]), output, body.get("usage"))
    return response | _INCOMPLETE if choice.get("finish_reason") == "length" else response


def _response(
    request_id: str, model: str, output: list[dict[str, Any]], usage: Any, status: str = "completed"
) -> dict[str, Any]:
    counts = usage if isinstance(usage, dict) else {}
    read, written = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    return {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": model,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": None
        if not counts
        else {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.get("total_tokens", read + written),
        },
    }


def _content(text: str, *, is_refusal: bool) -> dict[str, Any]:
    if is_refusal:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(request_id: str, part: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _call(request_id: str, number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "id": f"fc_{request_id}_{number}",
        "type": "function_call",
        "call_id": call.get("id") or f"call_{request_id}_{number}",
        "name": function.get("name") or "",
        "arguments": arguments_text(function),
        "status": "completed",
    }


class ResponseEvents:
    """The events of a streamed response, from the chunks of a chat completion."""

    def __init__(self, request_id: str, model: str) -> None:
        self._id, self._model = request_id, model
        self._number = 0
        self._text: str | None = None
        self._is_refusal = False
        self._calls: dict[int, dict[str, Any]] = {}
        self._places: dict[int | None, int] = {}
        self._usage: Any = None
        self._finish: str | None = None

    def _event(self, kind: str, **data: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return event_of(event, kind)

    def start(self) -> Iterator[bytes]:
        """Yield the events with which a response begins."""
        for kind in ("response.created", "response.in_progress"):
            whole = _response(self._id, self._model, [], None, "in_progress")
            yield self._event(kind, response=whole)

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events of a chunk."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            self._finish = choice.get("finish_reason") or self._finish
            text = message_text(delta.get("content"))
            if text or delta.get("refusal"):
                yield from self._add_text(text or str(delta["refusal"]), refusal=not text)
            for call in delta.get("tool_calls") or ():
                yield from self._add_call(call)

    def _add_text(self, text: str, *, refusal: bool = False) -> Iterator[bytes]:
        if self._text is None:
            self._text, self._is_refusal = "", refusal
            self._places[None] = len(self._places)
            part = _content("", is_refusal=refusal)
            item = {**_message(self._id, part), "status": "in_progress", "content": []}
            yield self._event("response.output_item.added", item=item, **self._at(None))
            yield self._event("response.content_part.added", part=part, **self._in_text())
        self._text += text
        if self._is_refusal:
            yield self._event("response.refusal.delta", delta=text, **self._in_text())
        else:
            more = self._in_text()
            yield self._event("response.output_text.delta", delta=text, logprobs=[], **more)

    def _add_call(self, call: Mapping[str, Any]) -> Iterator[bytes]:
        number = int(call.get("index") or 0)
        function = call.get("function") or {}
        if number not in self._calls:
            self._calls[number] = {"id": call.get("id"), "function": {"name": "", "arguments": ""}}
            self._places[number] = len(self._places)
            self._calls[number]["function"]["name"] = function.get("name") or ""
            item = _call(self._id, number, self._calls[number]) | {"status": "in_progress"}
            yield self._event("response.output_item.added", item=item, **self._at(number))
        if arguments := arguments_text(function):
            self._calls[number]["function"]["arguments"] += arguments
            yield self._event(
                "response.function_call_arguments.delta", delta=arguments,
                item_id=f"fc_{self._id}_{number}", **self._at(number),
            )  # fmt: skip

    def _at(self, place: int | None) -> dict[str, int]:
        return {"output_index": self._places[place]}

    def _in_text(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._id}", "content_index": 0, **self._at(None)}

    def end(self) -> Iterator[bytes]:
        """Yield the events with which a response ends."""
        if self._text is None and not self._calls:
            yield from self._add_text("")
        output: list[dict[str, Any]] = [{}] * len(self._places)
        if self._text is not None:
            part = _content(self._text, is_refusal=self._is_refusal)
            item = _message(self._id, part)
            if self._is_refusal:
                yield self._event("response.refusal.done", refusal=self._text, **self._in_text())
            else:
                yield self._event(
                    "response.output_text.done", text=self._text, logprobs=[], **self._in_text()
                )
            yield self._event("response.content_part.done", part=part, **self._in_text())
            yield self._event("response.output_item.done", item=item, **self._at(None))
            output[self._places[None]] = item
        for number, call in self._calls.items():
            item = _call(self._id, number, call)
            yield self._event(
                "response.function_call_arguments.done", arguments=item["arguments"],
                name=item["name"], item_id=item["id"], **self._at(number),
            )  # fmt: skip
            yield self._event("response.output_item.done", item=item, **self._at(number))
            output[self._places[number]] = item
        whole, kind = _response(self._id, self._model, output, self._usage), "response.completed"
        if self._finish == "length":
            kind, whole = "response.incomplete", whole | _INCOMPLETE
        yield self._event(kind, response=whole)
