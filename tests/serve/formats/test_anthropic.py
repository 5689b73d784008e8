"""Anthropic's messages as upstream: translated both ways, through the official OpenAI client."""

from __future__ import annotations

import json

import openai
import pytest

from ttamer.errors import CascadeError
from ttamer.serve.config import settings_from
from ttamer.serve.formats.anthropic import BROKEN, ChatChunks, chat_from_message, message_body
from ttamer.serve.sse import data_of
from ttamer.trace.spec import CascadeSpec

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "model": "claude",
    "content": [{"type": "text", "text": "B."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 2},
}


@pytest.fixture
def opened(run_gateway, monkeypatch):
    """A gateway whose large node takes messages, a client of it, and that node's upstream."""
    monkeypatch.setenv("ANTHROPIC_KEY", "sk-ant-1")
    table = {"api": "anthropic", "confidence": "none", "key_env": "ANTHROPIC_KEY",
             "cost_per_token": {"input": 1.0, "output": 10.0}}  # fmt: skip
    gateway = run_gateway(2, node={"large": table}, serve={"direct": True})
    gateway.served.upstreams["small"].answer = lambda *_: ("A", 0.26)
    upstream = gateway.served.upstreams["large"]
    upstream.raw = json.dumps(MESSAGE).encode()
    client = openai.OpenAI(base_url=gateway.url, api_key="x", max_retries=0, timeout=30.0)
    with client:
        yield gateway, client, upstream


# A node asked by its name is relayed as it answers: tests of messages have its streams.
@pytest.mark.parametrize(
    ("model", "is_stream"), [("ttamer", False), ("ttamer", True), ("large", False)]
)
def test_messages_are_an_upstream_like_another(opened, model, is_stream):
    gateway, client, upstream = opened
    found = client.chat.completions.create(model=model, messages=ASK, stream=is_stream)
    if is_stream:
        text = "".join(c.choices[0].delta.content or "" for c in found if c.choices)
    else:
        text = found.choices[0].message.content
        assert found.usage.completion_tokens >= 2
    assert text in ("B.", "A")
    sent, headers = upstream.requests[-1], upstream.request_headers[-1]
    assert sent["system"] == "Be brief."
    assert sent["messages"] == [{"role": "user", "content": "q"}]
    assert sent["max_tokens"] == 1024
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-ant-1", "2023-06-01")
    assert "authorization" not in headers
    cost = gateway.metric("ttamer_cost_total")
    assert cost == 12.5 + 7.0 + 20.0 + (1.0 if model == "ttamer" else 0.0)


def test_tools_and_images_are_translated():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body = message_body({
        "model": "m", "stop": "END", "tools": [TOOL], "tool_choice": "required", "logprobs": True,
        "max_completion_tokens": 9,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What?"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
    })  # fmt: skip
    picture = body["messages"][0]["content"][1]["source"]
    assert picture == {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    ]
    assert body["messages"][2]["content"][0]["tool_use_id"] == "c1"
    assert body["tools"][0]["input_schema"] == {"type": "object"}
    assert (body["tool_choice"], body["stop_sequences"]) == ({"type": "any"}, ["END"])
    assert (body["max_tokens"], "logprobs" in body) == (9, False)
    used = {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}
    choice = chat_from_message({"content": [used], "stop_reason": "tool_use"})["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


def test_a_node_without_log_probabilities_needs_another_confidence():
    text = "[[node]]\nname = 'a'\ncost = 1\nupstream = 'http://127.0.0.1:1/v1'\napi = 'anthropic'\n"
    with pytest.raises(CascadeError, match="have no log-probabilities"):
        settings_from(CascadeSpec.from_toml(text))


@pytest.mark.parametrize(
    "event",
    [
        [],
        {"type": "message_start", "message": "m"},
        {"type": "message_start", "message": {"usage": [1]}},
        {"type": "content_block_start", "index": [1], "content_block": {"type": "tool_use"}},
        {"type": "content_block_start", "content_block": "text"},
        {"type": "content_block_delta", "delta": ["text_delta"]},
        {"type": "content_block_delta", "index": {}, "delta": {"type": "input_json_delta"}},
        {"type": "message_delta", "usage": 5},
    ],
)
def test_an_event_that_is_none_of_a_message_ends_the_stream_with_an_error(event):
    chunks = ChatChunks(usage=True)
    received = b"data: " + json.dumps(event).encode() + b"\n\n"
    assert json.loads(data_of(chunks.feed(received))) == BROKEN
