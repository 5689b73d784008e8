"""``/v1/messages`` through Anthropic's own client, and streams of upstreams in that format."""

from __future__ import annotations

import json

import anthropic
import httpx2 as httpx
import openai
import pytest

from support.faulty_upstream import tool_response
from ttamer.serve.formats.anthropic import ChatChunks
from ttamer.serve.formats.messages import chat_from_request
from ttamer.serve.http import HttpError

ASK = [{"role": "user", "content": "q"}]
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def opened(run_gateway):
    """A gateway and a client of it; both nodes answer with some text."""
    clients = []

    def make(text="B and more", key="x", **options):
        gateway = run_gateway(2, **options)
        for name, upstream in gateway.served.upstreams.items():
            upstream.answer = lambda *_, name=name: (text, 0.26 if name == "small" else 0.99)
        base = gateway.url.removesuffix("/v1")
        client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=30.0)
        clients.append(client)
        return gateway, client

    yield make
    for client in clients:
        client.close()


@pytest.mark.parametrize("model", ["ttamer", "large"])
def test_a_message_is_a_chat_completion_in_another_form(opened, model):
    gateway, client = opened(serve={"direct": True})
    found = client.messages.create(
        model=model, max_tokens=9, messages=ASK, system="Be brief.", stop_sequences=["END"],
        extra_body={"temperature": 0, "top_k": 5},
    )  # fmt: skip
    (block,) = found.content
    assert (block.type, block.text) == ("text", "B and more")
    assert (found.stop_reason, found.model, found.role) == ("end_turn", "large", "assistant")
    assert found.usage.output_tokens == {"ttamer": 6, "large": 3}[model]  # of all nodes
    sent = gateway.served.upstreams["large"].requests[-1]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *ASK]
    assert (sent["max_tokens"], sent["stop"], "top_k" in sent) == (9, ["END"], False)
    assert gateway.metric("ttamer_answered_total") == 1


def test_errors_below_messages_have_anthropic_s_form(opened, monkeypatch):
    gateway, client = opened()
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.count_tokens(model="ttamer", messages=ASK)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "not_found_error"
    wrong_method = httpx.get(f"{gateway.url}/messages")
    assert (wrong_method.status_code, wrong_method.json()["type"]) == (405, "error")
    monkeypatch.setattr(gateway.gateway, "single_node", None)  # a mistake in the gateway
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(model="ttamer", max_tokens=9, messages=ASK)
    assert caught.value.body["error"]["type"] == "api_error"
    assert httpx.get(f"{gateway.url}/elsewhere").json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("model", ["ttamer", "large"])
@pytest.mark.parametrize("mode", ["last", "whole"])
def test_a_message_streams(opened, model, mode):
    _, client = opened(serve={"stream": mode, "direct": True})
    with client.messages.stream(model=model, max_tokens=9, messages=ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_delta") >= 1
    assert final.content[0].text == "B and more"
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == {"ttamer": 6, "large": 3}[model]


@pytest.mark.parametrize("is_stream", [False, True])
def test_tools_are_translated_both_ways(opened, is_stream):
    gateway, client = opened()
    for upstream in gateway.served.upstreams.values():
        upstream.raw = tool_response()
    image = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "1 + 1?"},
                                     {"type": "image", "source": image}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "so", "signature": "x"},
            {"type": "tool_use", "id": "c0", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c0", "content": "2"},
            {"type": "text", "text": "and more?"}]},
    ]  # fmt: skip
    given = {"model": "ttamer", "max_tokens": 9, "messages": messages, "tools": [TOOL],
             "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}  # fmt: skip
    if is_stream:
        with client.messages.stream(**given) as stream:
            found = stream.get_final_message()
    else:
        found = client.messages.create(**given)
    (block,) = found.content
    assert (block.type, block.name, block.input, block.id) == ("tool_use", "add", {"a": 1}, "c1")
    assert found.stop_reason == "tool_use"
    sent = gateway.served.upstreams["small"].requests[0]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool",
                                                                 "user"]  # fmt: skip
    assert sent["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"
    call = sent["messages"][1]["tool_calls"][0]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("c0", {"a": 1})
    assert sent["tools"][0]["function"]["name"] == "add"
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"system": [{"type": "image", "source": {"type": "url", "url": "x"}}]},
    ],
)
def test_what_chat_completions_do_not_have_is_refused(more):
    with pytest.raises(HttpError, match="supported"):
        chat_from_request({"model": "ttamer", "max_tokens": 1, "messages": ASK, **more})


def test_errors_have_the_clients_form_and_keys_its_header(opened, monkeypatch):
    monkeypatch.setenv("TEAM", "a-key-of-the-tests")
    gateway, client = opened(
        key="a-key-of-the-tests", serve={"key": [{"name": "team", "env": "TEAM"}]}
    )
    assert client.messages.create(model="ttamer", max_tokens=1, messages=ASK).content
    with pytest.raises(anthropic.NotFoundError, match="there is no model"):
        client.messages.create(model="claude", max_tokens=1, messages=ASK)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be"):
        client.messages.create(model="ttamer", max_tokens=0, messages=ASK)
    other = client.copy(api_key="wrong")
    with pytest.raises(anthropic.AuthenticationError):
        other.messages.create(model="ttamer", max_tokens=1, messages=ASK)
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "error"
    with pytest.raises(anthropic.InternalServerError) as caught:
        client.messages.create(model="ttamer", max_tokens=1, messages=ASK)
    assert caught.value.body["error"]["type"] == "api_error"
    assert "sk-secret" not in str(caught.value)


def test_a_stream_that_breaks_ends_with_an_error_event(opened):
    gateway, client = opened()
    gateway.served.upstreams["large"].mode = "truncated"
    asked = client.messages.stream(model="ttamer", max_tokens=9, messages=ASK)
    with pytest.raises(anthropic.APIStatusError), asked as stream:
        stream.until_done()


EVENTS = [
    {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "content": [],
                                          "usage": {"input_tokens": 7, "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "B"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1,
     "content_block": {"type": "tool_use", "id": "t1", "name": "add", "input": {}}},
    {"type": "content_block_delta", "index": 1,
     "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
     "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]  # fmt: skip


def wire(events):
    return b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events
    )


def test_events_of_an_upstream_become_chunks_however_they_are_cut():
    whole = ChatChunks(usage=True).feed(wire(EVENTS))
    cut = ChatChunks(usage=True)
    assert b"".join(cut.feed(bytes([byte])) for byte in wire(EVENTS)) == whole
    parts = [part[6:] for part in whole.split(b"\n\n") if part]
    assert parts[-1] == b"[DONE]"
    chunks = [json.loads(part) for part in parts[:-1]]
    assert chunks[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "B."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("t1", "add")
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.fixture
def upstream_of_messages(run_gateway):
    """A gateway whose large node streams messages, and that node's upstream."""
    table = {"api": "anthropic", "confidence": "none",
             "cost_per_token": {"input": 1.0, "output": 10.0}}  # fmt: skip
    gateway = run_gateway(2, node={"large": table}, serve={"direct": True})
    gateway.served.upstreams["small"].answer = lambda *_: ("A", 0.26)
    upstream = gateway.served.upstreams["large"]
    upstream.raw, upstream.raw_type = wire(EVENTS), "text/event-stream"
    return gateway, upstream


@pytest.mark.parametrize("model", ["ttamer", "large"])
def test_streams_of_messages_are_relayed(upstream_of_messages, model):
    gateway, upstream = upstream_of_messages
    with openai.OpenAI(base_url=gateway.url, api_key="x", max_retries=0, timeout=30.0) as client:
        chunks = list(client.chat.completions.create(
            model=model, messages=ASK, stream=True, stream_options={"include_usage": True}
        ))  # fmt: skip
    assert upstream.requests[-1]["stream"] is True
    assert "stream_options" not in upstream.requests[-1]
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == "B."
    assert chunks[-1].usage.completion_tokens >= 2
    own = 0.0 if model == "large" else 1.0
    assert gateway.metric("ttamer_cost_total") == 12.5 + 7.0 + 20.0 + own


def test_an_error_event_of_an_upstream_ends_the_stream_without_its_text(upstream_of_messages):
    gateway, upstream = upstream_of_messages
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "sk-secret"}}
    upstream.raw = wire([*EVENTS[:4], error])
    for model in ("ttamer", "large"):
        body = {"model": model, "messages": ASK, "stream": True}
        text = httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30).text
        assert '"error"' in text
        assert "sk-secret" not in text
        assert "[DONE]" not in text
