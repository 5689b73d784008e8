"""Further endpoints, by the official client: responses, embeddings, one model, several choices."""

from __future__ import annotations

import json
import socket

import httpx2 as httpx
import openai
import pytest
from pydantic import BaseModel

from support.faulty_upstream import tool_response
from support.waiting import until
from ttamer.serve.formats.responses import chat_body
from ttamer.serve.http import HttpError
from ttamer.serve.upstreams import breaker

ASK = [{"role": "user", "content": "q"}]
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}


class Answer(BaseModel):
    letter: str


@pytest.fixture
def opened(run_gateway):
    """A gateway and a client of it; both nodes answer with some text."""

    def make(text="B and more", **options):
        gateway = run_gateway(2, **options)
        for name, upstream in gateway.served.upstreams.items():
            upstream.answer = lambda *_, name=name: (text, 0.26 if name == "small" else 0.99)
        client = openai.OpenAI(base_url=gateway.url, api_key="x", max_retries=0, timeout=30.0)
        return gateway, client

    return make


@pytest.mark.parametrize("model", ["ttamer", "large"])
def test_a_response_is_a_chat_completion_in_another_form(opened, model):
    gateway, client = opened(serve={"direct": True})
    with client:
        found = client.responses.create(
            model=model, input="q", instructions="Be brief.", max_output_tokens=9, temperature=0
        )
    assert found.output_text == "B and more"
    assert (found.status, found.model) == ("completed", "large")
    assert found.usage.output_tokens == {"ttamer": 6, "large": 3}[model]  # of all nodes
    sent = gateway.served.upstreams["large"].requests[-1]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *ASK]
    assert sent["max_tokens"] == 9
    assert gateway.metric("ttamer_answered_total") == 1


@pytest.mark.parametrize("model", ["ttamer", "large"])
@pytest.mark.parametrize("mode", ["last", "whole"])
def test_a_response_streams(opened, model, mode):
    _, client = opened(serve={"stream": mode, "direct": True})
    with client, client.responses.stream(model=model, input="q") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") >= 1
    assert final.output_text == "B and more"
    assert final.usage.output_tokens == {"ttamer": 6, "large": 3}[model]


def test_structured_output_is_parsed_by_the_client(opened):
    gateway, client = opened('{"letter":"B"}', serve={"compare": "json"})
    with client:
        found = client.responses.parse(model="ttamer", input="q", text_format=Answer)
        chat = client.chat.completions.parse(model="ttamer", messages=ASK, response_format=Answer)
    assert found.output_parsed == Answer(letter="B")
    assert chat.choices[0].message.parsed == Answer(letter="B")
    forms = [sent["response_format"] for sent in gateway.served.upstreams["large"].requests]
    assert [form["json_schema"]["name"] for form in forms] == ["Answer", "Answer"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_tools_are_translated_both_ways(opened, is_stream):
    gateway, client = opened()
    for upstream in gateway.served.upstreams.values():
        upstream.raw = tool_response()
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
        {"type": "function_call", "call_id": "c0", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0", "output": "2"},
    ]
    with client:
        if is_stream:
            with client.responses.stream(model="ttamer", input=items, tools=[TOOL]) as stream:
                found = stream.get_final_response()
        else:
            found = client.responses.create(model="ttamer", input=items, tools=[TOOL])
    (call,) = found.output
    assert (call.type, call.name, call.arguments, call.call_id) == (
        "function_call", "add", '{"a": 1}', "c1",
    )  # fmt: skip
    sent = gateway.served.upstreams["small"].requests[0]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["tools"][0]["function"]["name"] == "add"


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
    ],
)
def test_what_needs_the_providers_state_or_tools_is_refused(more):
    with pytest.raises(HttpError, match="not supported"):
        chat_body({"model": "ttamer", "input": "q", **more})


def chat_response(**message) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", **message}}]}).encode()


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_refusal_is_one_in_a_response_too(opened, is_stream):
    gateway, client = opened(node={name: {"confidence": "none"} for name in ("small", "large")})
    for upstream in gateway.served.upstreams.values():
        upstream.raw = chat_response(content=None, refusal="I will not.")
    with client:
        if is_stream:
            with client.responses.stream(model="ttamer", input="q") as stream:
                kinds = [event.type for event in stream]
                found = stream.get_final_response()
            assert "response.refusal.delta" in kinds
            assert "response.refusal.done" in kinds
        else:
            found = client.responses.create(model="ttamer", input="q")
    assert found.output[0].content[0].refusal == "I will not."


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_an_answer_in_parts_is_their_text(opened, path, is_stream):
    gateway, client = opened(node={name: {"confidence": "none"} for name in ("small", "large")})
    call = {"id": "c", "function": {"name": "add", "arguments": {"a": 1}}}  # no JSON text
    for upstream in gateway.served.upstreams.values():
        upstream.raw = chat_response(content=[{"type": "text", "text": "Bee"}], tool_calls=[call])
    client.close()
    body = {"messages": ASK, "input": "q", "max_tokens": 9, "model": "ttamer", "stream": is_stream}
    reply = httpx.post(f"{gateway.url}/{path}", json=body, timeout=30.0)
    assert reply.status_code == 200
    assert "Bee" in reply.text
    assert "add" in reply.text


@pytest.mark.parametrize("choice", [3, {"delta": "x"}, {"delta": {"tool_calls": ["x"]}}])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_malformed_chunk_ends_a_stream_with_an_error_event(opened, path, choice):
    gateway, client = opened(serve={"direct": True})
    client.close()
    upstream = gateway.served.upstreams["large"]
    upstream.raw_type = "text/event-stream"
    chunks = ({"choices": [{"delta": {"content": "B"}}]}, {"choices": [choice]})
    upstream.raw = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)
    body = {"messages": ASK, "input": "q", "max_tokens": 9, "model": "ttamer", "stream": True}
    gateway.served.upstreams["small"].mode = "error"
    reply = httpx.post(f"{gateway.url}/{path}", json=body, timeout=30.0)  # is not cut off
    assert '"error"' in reply.text.splitlines()[-2]


@pytest.mark.parametrize("calls", [["x"], {"x": 1}, [{"function": "add"}]])
@pytest.mark.parametrize("path", ["responses", "messages"])
def test_malformed_calls_of_a_node_are_its_failure(opened, path, calls):
    gateway, client = opened(serve={"direct": True})
    gateway.served.upstreams["small"].raw = chat_response(content=None, tool_calls=calls)
    client.close()
    body = {"messages": ASK, "input": "q", "max_tokens": 9}
    for model, status in {"ttamer": 200, "small": 502}.items():
        reply = httpx.post(f"{gateway.url}/{path}", json={**body, "model": model}, timeout=30.0)
        assert reply.status_code == status, reply.text


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_a_classifier_in_its_own_format_answers_at_every_door(opened, path, is_stream):
    node = {"confidence": "field", "field": "score", "answer": "label"}
    gateway, client = opened(node={"small": node, "large": node})
    for upstream in gateway.served.upstreams.values():
        upstream.raw = json.dumps({"label": "Bee", "score": 0.9}).encode()
    client.close()
    body = {"messages": ASK, "prompt": "q", "input": "q", "max_tokens": 9, "model": "ttamer"}
    if path == "completions":
        del body["messages"]
    reply = httpx.post(f"{gateway.url}/{path}", json={**body, "stream": is_stream}, timeout=30.0)
    assert reply.status_code == 200, reply.text
    assert "Bee" in reply.text


def test_images_are_passed_on_within_the_largest_body(opened):
    gateway, client = opened(serve={"max_body": 20_000})
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    with client:
        assert client.chat.completions.create(model="ttamer", messages=messages).choices
        part = {"type": "input_image", "image_url": image["image_url"]["url"]}
        items = [{"role": "user", "content": [part]}]
        assert client.responses.create(model="ttamer", input=items).output
        image["image_url"]["url"] *= 3
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="ttamer", messages=messages)
    assert caught.value.code == "body_too_large"
    first, second = (sent["messages"][0]["content"]
                     for sent in gateway.served.upstreams["small"].requests)  # fmt: skip
    assert first[1]["image_url"] == second[0]["image_url"]


def test_one_model_is_described(opened):
    _, client = opened()
    with client:
        assert client.models.retrieve("ttamer").id == "ttamer"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found"


def test_embeddings_are_passed_on(opened, start_upstream):
    upstream = start_upstream("embeddings")
    table = {"upstream": upstream.url, "model": "embed-1"}
    gateway, client = opened(serve={"embeddings": table})
    with client:
        found = client.embeddings.create(model="any", input=["a b", "b"], encoding_format="float")
        assert found.data[0].embedding[:3] == [1, 1, 0]
        assert upstream.requests[0]["model"] == "embed-1"
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model="any", input=[])
        upstream.mode = "error"
        with pytest.raises(openai.InternalServerError):
            client.embeddings.create(model="any", input="a")
    assert gateway.metric("ttamer_requests_total") == 3


def test_embeddings_are_booked_on_the_bill_of_the_key(opened, start_upstream, monkeypatch):
    monkeypatch.setenv("TEAM", "a-key-of-the-tests")
    table = {"upstream": start_upstream("embeddings").url, "cost": 0.5,
             "cost_per_token": {"input": 0.25}}  # fmt: skip
    gateway, client = opened(
        serve={"embeddings": table, "key": [{"name": "team", "env": "TEAM", "budget": 100.0}]}
    )
    with client:
        client.api_key = "a-key-of-the-tests"
        raw = client.embeddings.with_raw_response.create(model="any", input=["a", "b", "c"])
        assert raw.headers["x-ttamer-cost"] == "1.25"  # a call, and a token for each text
        with pytest.raises(openai.RateLimitError):
            client.embeddings.create(model="any", input=["a" * 100] * 9)
    gateway.gateway.flush()
    lines = gateway.gateway.metrics.text().decode().splitlines()
    assert 'ttamer_key_cost_total{key="team"} 1.25' in lines
    assert 'ttamer_node_cost_total{node="embeddings"} 1.25' in lines
    assert 'ttamer_tokens_total{kind="prompt",node="embeddings"} 3.0' in lines
    assert "ttamer_cost_total 1.25" in lines
    assert 'ttamer_stops_total{depth="0"} 0.0' in lines
    status = gateway.gateway.status_now()
    assert status["bill"]["spent"] == 1.25
    assert status["keys"][0]["spent"] == 1.25


def test_a_client_of_embeddings_that_disconnects_ends_the_call_which_is_booked(
    opened, start_upstream, monkeypatch
):
    monkeypatch.setenv("TEAM", "a-key-of-the-tests")
    upstream = start_upstream("embeddings")
    upstream.mode = "slow"
    table = {"upstream": upstream.url, "cost": 0.5, "timeout": 3600.0}
    key = {"name": "team", "env": "TEAM", "budget": 100.0}
    gateway, client = opened(serve={"embeddings": table, "key": [key], "timeout": 3600})
    client.close()
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        content = b'{"model": "any", "input": "a"}'
        connection.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer a-key-of-the-tests\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(content), content)
        )
        upstream.wait_for(1)
    until(lambda: gateway.gateway.limit.running == 0)
    until(lambda: any(line["event"] == "request" for line in gateway.log))
    (line,) = [line for line in gateway.log if line["event"] == "request"]
    assert (line["status"], line["error"], line["cost"]) == (499, "client_gone", 0.5)
    assert gateway.metric("ttamer_node_cost_total") == 0.5
    assert gateway.gateway.accounts["team"].spent == 0.5
    upstream.release()


def test_the_errors_of_embeddings_are_those_of_other_endpoints(run_gateway, start_upstream):
    upstream = start_upstream("embeddings")
    table = {"upstream": upstream.url, "cost": 0.5, "timeout": 3600.0}
    gateway = run_gateway(1, serve={"embeddings": table, "timeout": 0.3})
    body = EVERY_ENDPOINT["embeddings"]
    upstream.mode, upstream.status = "error", 400
    refused = post(gateway, "embeddings", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "refused_upstream")
    assert refused.headers["x-ttamer-cost"] == "0"
    upstream.mode = "slow"
    late = post(gateway, "embeddings", body)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
    assert late.headers["x-ttamer-cost"] == "0.5"
    upstream.release()


CHAT = {"model": "ttamer", "messages": [{"role": "user", "content": "q"}]}
EVERY_ENDPOINT = {
    "chat/completions": CHAT,
    "completions": {"model": "ttamer", "prompt": "q"},
    "responses": {"model": "ttamer", "input": "q"},
    "messages": {**CHAT, "max_tokens": 9},
    "embeddings": {"model": "any", "input": "q"},
}


def busy(run_gateway, start_upstream, statuses: dict, **options):
    """A gateway whose upstreams return these statuses, each with its Retry-After."""
    embeddings = start_upstream("embeddings")
    gateway = run_gateway(2, serve={"embeddings": {"upstream": embeddings.url}}, **options)
    for name, upstream in {**gateway.served.upstreams, "embeddings": embeddings}.items():
        status, wait = statuses.get(name, (429, "20"))
        upstream.mode, upstream.status = "error", status
        upstream.headers = {} if wait is None else {"retry-after": wait}
    return gateway


def post(gateway, path, body):
    return httpx.post(f"{gateway.url}/{path}", json=body, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", EVERY_ENDPOINT)
def test_a_client_learns_when_to_retry_where_every_node_is_busy(
    run_gateway, start_upstream, path, stream
):
    gateway = busy(run_gateway, start_upstream, {"small": (503, "7")})
    more = {"stream": True} if stream and path != "embeddings" else {}
    response = post(gateway, path, EVERY_ENDPOINT[path] | more)
    assert (response.status_code, response.headers["retry-after"]) == (502, "20")
    assert "no model takes the request now; retry in 20 s" in response.text


@pytest.mark.parametrize(
    ("small", "wait"),
    [((429, "3600"), "60"), ((429, None), "20"), ((500, "7"), None), ((400, None), None)],
)
def test_the_time_to_wait_is_bounded_and_only_that_of_busy_nodes(
    run_gateway, start_upstream, small, wait
):
    gateway = busy(run_gateway, start_upstream, {"small": small})
    response = post(gateway, "chat/completions", CHAT)
    assert (response.status_code, response.headers.get("retry-after")) == (502, wait)


def test_a_client_is_asked_to_wait_for_at_least_the_gateway_s_own_time(run_gateway, start_upstream):
    gateway = busy(run_gateway, start_upstream, dict.fromkeys(["small", "large"], (429, None)))
    assert post(gateway, "chat/completions", CHAT).headers["retry-after"] == "1"


def test_a_client_learns_when_an_open_circuit_breaker_allows_a_call(
    run_gateway, start_upstream, monkeypatch
):
    monkeypatch.setattr(breaker, "MIN_OUTAGE", 0.0)
    node = {"small": {"breaker": 1}, "large": {"breaker": 1}}
    gateway = busy(run_gateway, start_upstream, {"small": (429, "30")}, node=node)
    for _ in range(2):
        response = post(gateway, "chat/completions", CHAT)
    assert int(response.headers["retry-after"]) <= 5  # the pause of the breaker, not the upstream's
    assert gateway.served.upstreams["small"].count == 1


def test_without_their_upstream_there_are_no_embeddings(opened):
    _, client = opened()
    with client, pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="a")


@pytest.mark.parametrize("is_stream", [False, True])
def test_all_choices_of_the_answering_node_are_returned(opened, is_stream):
    gateway, client = opened(serve={"stream": "whole"})
    texts = ["B one", "B two"]
    choices = [{"index": i, "message": {"role": "assistant", "content": text},
                "finish_reason": "stop", "logprobs": {"content": [
                    {"token": text, "logprob": -0.1, "top_logprobs": []}]}}
               for i, text in enumerate(texts)]  # fmt: skip
    for upstream in gateway.served.upstreams.values():
        upstream.raw = json.dumps({"choices": choices}).encode()
    with client:
        found = client.chat.completions.create(model="ttamer", messages=ASK, n=2, stream=is_stream)
        if is_stream:
            parts = ["", ""]
            for chunk in found:
                for choice in chunk.choices:
                    parts[choice.index] += choice.delta.content or ""
        else:
            parts = [choice.message.content for choice in found.choices]
    assert parts == texts
    assert gateway.served.upstreams["small"].requests[0]["n"] == 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_error_codes_that_clients_know_are_kept_without_the_text(opened, is_stream):
    gateway, client = opened()
    for upstream in gateway.served.upstreams.values():
        upstream.mode, upstream.status, upstream.code = "error", 400, "context_length_exceeded"
    with client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="ttamer", messages=ASK, stream=is_stream)
    assert caught.value.code == "context_length_exceeded"
    assert "sk-secret" not in str(caught.value)
