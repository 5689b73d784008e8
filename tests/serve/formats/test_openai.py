"""OpenAI's formats, without a server."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ttamer.runtime.reply import NodeCall, Outcome
from ttamer.serve.formats.openai import (
    CHAT_COMPLETIONS,
    CLASSIFICATIONS,
    COMPLETIONS,
    chunks,
    completion,
    model_list,
)
from ttamer.serve.http import HttpError, openai_error
from ttamer.serve.request import RequestContext
from ttamer.serve.upstreams.node import NodeAnswer

CHAT = {"model": "ttamer", "messages": [{"role": "user", "content": "?"}]}


def parse(data, endpoint, request_id="r") -> RequestContext:
    return RequestContext.parse(data, endpoint, request_id=request_id)


def outcome(response, text="A") -> Outcome:
    answer = NodeAnswer("A", 0.9, text, response, 1.0)
    return Outcome(
        answer, "A", "small", (NodeCall("small", "A", 0.9, 1.0, 0.1),), 1.0, 0.1, "", False
    )


def chat_response(**message):
    choice = {"index": 3, "message": {"content": "A", **message}, "finish_reason": None}
    return {"id": "theirs", "model": "their-model", "choices": [choice, choice]}


def test_an_answer_is_rewritten_as_ours():
    body = completion(parse(CHAT, CHAT_COMPLETIONS, "r1"), outcome(chat_response()))
    assert (body["id"], body["model"], body["object"]) == (
        "chatcmpl-r1",
        "small",
        "chat.completion",
    )
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "A"}
    assert "usage" not in body


@given(text=st.text(max_size=300))
def test_a_stream_is_the_answer_in_pieces(text):
    request = parse({**CHAT, "stream": True}, CHAT_COMPLETIONS)
    body = completion(request, outcome(chat_response(content=text)))
    parts = [part["choices"][0] for part in chunks(request, body)]
    assert "".join(part["delta"].get("content") or "" for part in parts) == text
    assert [part["finish_reason"] for part in parts][:-1] == [None] * (len(parts) - 1)
    assert parts[-1]["finish_reason"] == "stop"


def test_calls_of_tools_stream_too():
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    request = parse({**CHAT, "stream": True}, CHAT_COMPLETIONS)
    body = completion(request, outcome(chat_response(content=None, tool_calls=calls)))
    deltas = [part["choices"][0]["delta"] for part in chunks(request, body)]
    assert {"tool_calls": [{"index": 0, **calls[0]}]} in deltas


def test_a_text_streams():
    request = parse({"model": "m", "prompt": ["p"], "stream": True}, COMPLETIONS)
    response = {"choices": [{"text": "some text", "finish_reason": "length"}]}
    parts = list(chunks(request, completion(request, outcome(response))))
    assert "".join(part["choices"][0]["text"] for part in parts) == "some text"
    assert parts[-1]["choices"][0]["finish_reason"] == "length"


def test_what_is_ours_is_not_sent_upstream():
    sent = {**CHAT, "stream": True, "stream_options": {"include_usage": True},
            "ttamer": {"budget": 2}, "seed": 1}  # fmt: skip
    request = parse(sent, CHAT_COMPLETIONS)
    assert request.body == {"messages": CHAT["messages"], "seed": 1}
    assert (request.stream, request.include_usage) == (True, True)
    assert request.choice == ("budget", 2.0)
    assert sent["stream"], "the request itself was changed"


def test_a_classification_does_not_stream():
    assert parse({"input": "x", "stream": True}, CLASSIFICATIONS).body["stream"]
    assert parse({"input": "x"}, CLASSIFICATIONS).model == "ttamer"


def test_errors_have_openais_types():
    errors = [HttpError("m", status=status) for status in (400, 401, 429, 502)]
    types = {error.status: openai_error(error)["error"]["type"] for error in errors}
    assert types == {400: "invalid_request_error", 401: "authentication_error",
                     429: "rate_limit_error", 502: "api_error"}  # fmt: skip


def test_models_are_listed():
    assert [model["id"] for model in model_list(["a", "b"])["data"]] == ["a", "b"]
