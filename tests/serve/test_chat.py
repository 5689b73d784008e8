"""OpenAI's shapes, without a server: what is read, what is written, what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.runtime.outcome import NodeCall, Outcome
from ttamer.serve.asking import Answered
from ttamer.serve.chat import (
    CHAT_KIND,
    CLASSIFY_KIND,
    COMPLETION_KIND,
    completed,
    error_body,
    events,
    models,
    question_from,
)
from ttamer.serve.schemas import BadField, check

CHAT = {"model": "ttamer", "messages": [{"role": "user", "content": "?"}]}


def outcome(response, text="A") -> Outcome:
    answered = Answered("A", 0.9, text, response, 1.0, 1, 0.1)
    return Outcome(
        answered, "A", "small", (NodeCall("small", "A", 0.9, 1.0, 0.1),), 1.0, 0.1, "", False
    )


def chat_response(**message):
    choice = {"index": 3, "message": {"content": "A", **message}, "finish_reason": None}
    return {"id": "theirs", "model": "their-model", "choices": [choice, choice]}


def test_an_answer_is_rewritten_as_ours():
    whole = completed(question_from(CHAT, CHAT_KIND), outcome(chat_response()), "r1")
    assert (whole["id"], whole["model"], whole["object"]) == (
        "chatcmpl-r1",
        "small",
        "chat.completion",
    )
    (choice,) = whole["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "A"}
    assert "usage" not in whole


def read(chunks):
    *parts, done = [chunk.removeprefix(b"data: ").strip() for chunk in chunks]
    assert done == b"[DONE]"
    return [json.loads(part) for part in parts]


@given(text=st.text(max_size=300))
def test_a_stream_is_the_answer_in_pieces(text):
    question = question_from({**CHAT, "stream": True}, CHAT_KIND)
    whole = completed(question, outcome(chat_response(content=text)), "r")
    parts = [part["choices"][0] for part in read(events(question, whole))]
    assert "".join(part["delta"].get("content") or "" for part in parts) == text
    assert [part["finish_reason"] for part in parts][:-1] == [None] * (len(parts) - 1)
    assert parts[-1]["finish_reason"] == "stop"


def test_calls_of_tools_stream_too():
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    question = question_from({**CHAT, "stream": True}, CHAT_KIND)
    whole = completed(question, outcome(chat_response(content=None, tool_calls=calls)), "r")
    deltas = [part["choices"][0]["delta"] for part in read(events(question, whole))]
    assert {"tool_calls": [{"index": 0, **calls[0]}]} in deltas


def test_a_text_streams():
    question = question_from({"model": "m", "prompt": ["p"], "stream": True}, COMPLETION_KIND)
    response = {"choices": [{"text": "some text", "finish_reason": "length"}]}
    parts = read(events(question, completed(question, outcome(response), "r")))
    assert "".join(part["choices"][0]["text"] for part in parts) == "some text"
    assert parts[-1]["choices"][0]["finish_reason"] == "length"


def test_what_is_ours_is_not_sent_upstream():
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True},
            "ttamer": {"budget": 2}, "seed": 1}  # fmt: skip
    question = question_from(body, CHAT_KIND)
    assert question.body == {"messages": CHAT["messages"], "seed": 1}
    assert (question.stream, question.include_usage) == (True, True)
    assert question.choice == ("budget", 2.0)
    assert body["stream"], "the request itself was changed"


def test_a_classification_does_not_stream():
    assert question_from({"input": "x", "stream": True}, CLASSIFY_KIND).body["stream"]
    assert question_from({"input": "x"}, CLASSIFY_KIND).model == "ttamer"


def test_errors_have_openais_types():
    types = {status: error_body(status, "m")["error"]["type"] for status in (400, 401, 429, 502)}
    assert types == {400: "invalid_request_error", 401: "authentication_error",
                     429: "rate_limit_error", 502: "api_error"}  # fmt: skip


def test_models_are_listed():
    assert [model["id"] for model in models(["a", "b"])["data"]] == ["a", "b"]


CHECKS = {
    "type": ({"type": "string"}, 3, "the body must be text"),
    "true is no number": ({"type": "number"}, True, "the body must be a number"),
    "whole": ({"type": "integer"}, 1.5, "the body must be a whole number"),
    "least": ({"type": "integer", "minimum": 1}, 0, "must be a whole number from 1"),
    "range": ({"type": "number", "minimum": 0, "maximum": 2}, 3, "a number from 0 to 2"),
    "short": ({"type": "string", "minLength": 1}, "", "text that is not empty"),
    "exactly": ({"type": "array", "minItems": 1, "maxItems": 1}, [1, 2], "of exactly 1 item"),
    "needed": ({"type": "object", "required": ["a"]}, {}, "a must be given"),
    "inside": (
        {"type": "array", "items": {"properties": {"a": {"type": "null"}}}},
        [{"a": None}, {"a": 1}],
        "1.a must be null",
    ),
    "any": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "must be text"),
    "deepest of any": (
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        ["x"],
        "0 must be an object",
    ),
    "nothing else": (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"b": 1},
        "of a and nothing else",
    ),
    "one of": ({"type": "string", "enum": ["a", "b"]}, "c", "must be 'a' or 'b'"),
}


@pytest.mark.parametrize(("schema", "value", "message"), CHECKS.values(), ids=CHECKS)
def test_what_a_schema_does_not_take_is_named(schema, value, message):
    with pytest.raises(BadField, match=message):
        check(value, schema)


@pytest.mark.parametrize("value", [1, 1.0, -3])
def test_whole_numbers_may_be_written_with_a_point(value):
    check(value, {"type": "integer"})
