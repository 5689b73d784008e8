"""Chat completions, in this process: what clients get, and what nodes are asked."""

import asyncio
import json

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from ttamer.llm.client import UpstreamFailed


def sure_prompt(model, is_sure):
    """A prompt of which the small model is sure, or not at all."""
    for number in range(1000):
        _, sure = model.answer(f"prompt {number}")
        if (sure > 0.95) if is_sure else (sure < 0.3):
            return f"prompt {number}"
    raise AssertionError


def events(response):
    """The chunks of a stream."""
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def text_of(response):
    deltas = [chunk["choices"][0]["delta"] for chunk in events(response) if chunk.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_an_answer_says_who_gave_it_the_path_the_cost_and_the_policy(serve):
    served = serve()
    prompt = sure_prompt(served.models["small"], is_sure=True)
    response = served.chat({"content": prompt})
    assert response.status_code == 200
    body, headers = response.json(), response.headers
    assert body["choices"][0]["message"]["content"] == served.models["small"].answer(prompt)[0]
    assert body["model"] == "small"
    version = served.service.policies.active.version
    assert body["ttamer"] == {"by": "small", "path": ["small"], "policy": version, "cost": 1.0}
    assert headers["x-ttamer-answered-by"] == headers["x-ttamer-path"] == "small"
    assert headers["x-ttamer-cost"] == headers["x-litellm-response-cost"] == "1"
    assert headers["x-ttamer-policy"] == version
    assert body["id"] == f"chatcmpl-{headers['x-request-id']}"
    assert not served.models["large"].bodies


def test_a_node_that_is_not_sure_is_followed_by_the_next_and_both_are_paid(serve):
    served = serve()
    prompt = sure_prompt(served.models["small"], is_sure=False)
    body = served.chat({"content": prompt, "temperature": 0.2}).json()
    assert body["ttamer"]["path"] == ["small", "large"]
    assert body["usage"]["cost"] == 13.5
    assert body["usage"]["prompt_tokens"] == 4
    assert served.models["large"].bodies[0]["temperature"] == 0.2
    assert body["choices"][0]["logprobs"] is None  # they were asked for by the node alone


def test_every_field_that_the_server_does_not_read_is_passed_on(serve):
    served = serve()
    fields = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "x": {"deep": [1, None]},
        "user": "u",
    }
    served.chat({**fields, "ttamer": {"explain": True}})
    sent = served.models["small"].bodies[0]
    assert {name: sent[name] for name in fields} == fields
    assert "ttamer" not in sent


def test_an_explanation_has_every_call(serve):
    served = serve()
    prompt = sure_prompt(served.models["small"], is_sure=False)
    served.models["large"].plan = ["timeout"]
    facts = served.chat({"content": prompt, "ttamer": {"explain": True}}).json()["ttamer"]
    assert facts["why"]
    first, second = facts["calls"]
    assert first["confidence"] < 0.3
    assert first["prediction"] in "ABCD"
    assert second["failed"] == "timeout"
    served.models["large"].plan = ["timeout"]
    stream = served.chat({"content": prompt, "ttamer": {"explain": True}, "stream": True})
    told = events(stream)[-1]["ttamer"]
    assert [call["node"] for call in told["calls"]] == ["small", "large"]
    assert told["why"] == facts["why"]


POINTS = [{"tradeoff": 0.0}, {"budget": 2.0}, {"mistake_cost": 1e4}]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_request_chooses_its_operating_point_where_the_operator_allows_it(serve, point):
    ((name, value),) = point.items()
    served = serve(serve={"allow": [name]})
    ladder = served.service.policies.active.artefact
    methods = {"tradeoff": "at", "budget": "for_budget", "mistake_cost": "for_mistake_cost"}
    policy = getattr(ladder, methods[name])(value)
    response = served.chat({"ttamer": point}, headers={"x-request-id": "r"})
    first = policy.session(key="r").next
    assert response.headers["x-ttamer-path"].split(",")[0] == first
    refused = serve(serve={"allow": []}).chat({"ttamer": point})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"ttamer.{name}"


def test_a_request_may_lower_its_cost_and_its_time(serve):
    served = serve(serve={"max_cost": 13.0})
    prompt = sure_prompt(served.models["small"], is_sure=False)
    for cap in ({}, {"max_cost": 2.0}, {"max_cost": 100.0}):
        body = served.chat({"content": prompt, "ttamer": cap}).json()
        assert body["ttamer"]["cost"] <= 13.0
    assert served.chat({"ttamer": {"max_cost": 0.5}}).json()["error"]["code"] == "bad_choice"
    served = serve()
    served.models["large"].delay = 5
    response = served.chat({"content": prompt, "ttamer": {"timeout": 0.2}})
    assert response.json()["ttamer"]["by"] == "small"  # the best answer so far


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failures", "status", "code"),
    [
        (("timeout", "error"), 504, "timeout"),
        (("error", "cut"), 502, "no_answer"),
        (("busy", "open"), 503, "overloaded"),
        (
            [
                UpstreamFailed("n", "refused", "no", status=400, text=text)
                for text in ("content_filter", "")
            ],
            400,
            "content_filter",
        ),
    ],
)
def test_where_no_node_answers_the_client_is_told_why_and_pays_nothing(
    serve, failures, status, code, stream
):
    served = serve()
    for model, failure in zip(served.models.values(), failures, strict=True):
        model.plan = [failure]
    response = served.chat({"stream": stream})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "x-ttamer-cost" not in response.headers
    assert ("retry-after" in response.headers) == (status == 503)


def test_a_node_that_fails_is_a_gap_and_the_next_one_answers(serve):
    served = serve(3)
    served.models["small"].plan = ["error"]
    body = served.chat().json()
    assert body["ttamer"]["path"][0] == "small"
    assert body["ttamer"]["by"] != "small"
    assert body["ttamer"]["cost"] in (4.0, 12.5, 16.5)  # an error is not paid


def test_a_node_that_cannot_take_a_request_is_not_asked(serve):
    served = serve(node={"small": {"context": 50}, "large": {"accepts": ["tools"]}})
    long, image = "word " * 100, [{"type": "image_url", "image_url": {"url": "data:,"}}]
    body = served.chat({"content": long}).json()
    assert (body["ttamer"]["path"], body["ttamer"]["cost"]) == (["large"], 12.5)
    refused = served.chat({"content": [*image, {"type": "text", "text": long}]})
    assert refused.status_code == 400
    assert "does not take images" in refused.json()["error"]["message"]
    assert not served.models["small"].bodies
    for stream in (False, True):
        assert served.chat({"content": "word", "stream": stream}).status_code == 200


def test_the_cost_is_what_the_node_says_or_its_tokens_and_no_guess_is_reported(serve):
    price = {"cost_per_token": {"input": 0.5, "output": 2.0, "cached": 0.1}}
    served = serve(1, node={"small": price}, serve={"tradeoff": 0.5})
    details = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}}
    model = served.models["small"]
    model.usage = details
    body = served.chat().json()
    assert body["usage"]["cost"] == pytest.approx(1 + 2.5 + 0.5 + 2.0)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    model.cost = 0.125
    for stream in (False, True):
        response = served.chat({"stream": stream, "stream_options": {"include_usage": True}})
        usage = events(response)[-1]["usage"] if stream else response.json()["usage"]
        assert usage["cost"] == 0.125
    model.cost = model.usage = None
    response = served.chat()
    assert "cost" not in response.json()["usage"]
    assert "x-litellm-response-cost" not in response.headers


class TestStreams:
    def test_a_stream_has_the_same_answer_path_and_usage(self, serve):
        served = serve(3)
        for number in range(20):
            fields = {"content": f"prompt {number}", "stream_options": {"include_usage": True}}
            whole, stream = served.chat(fields, {**fields, "stream": True})
            assert text_of(stream) == whole.json()["choices"][0]["message"]["content"]
            last = events(stream)[-1]
            assert last["usage"] == whole.json()["usage"]
            assert last["ttamer"] == whole.json()["ttamer"]
            assert stream.text.endswith("data: [DONE]\n\n")
            assert stream.headers["content-type"].startswith("text/event-stream")

    def test_the_last_node_is_relayed_chunk_by_chunk_with_a_complete_row(self, serve, tmp_path):
        log = tmp_path / "decisions.jsonl"
        served = serve(serve={"stream": "last", "log": str(log), "log_texts": True})
        prompt = sure_prompt(served.models["small"], is_sure=False)
        response = served.chat({"content": prompt, "stream": True})
        assert served.models["large"].bodies[0]["logprobs"] is True
        assert all("logprobs" not in c["choices"][0] for c in events(response) if c["choices"])
        _, row = map(json.loads, log.read_text().splitlines())
        large = row["nodes"]["large"]
        assert large["prediction"] == text_of(response) == served.models["large"].answer(prompt)[0]
        assert large["confidence"] == pytest.approx(served.models["large"].answer(prompt)[1])

    def test_a_failure_before_the_first_chunk_is_the_nodes_and_a_later_one_ends_the_stream(
        self, serve
    ):
        served = serve(serve={"stream": "last"})
        prompt = sure_prompt(served.models["small"], is_sure=False)
        served.models["large"].plan = ["error"]
        response = served.chat({"content": prompt, "stream": True})
        assert text_of(response) == served.models["small"].answer(prompt)[0]
        served.models["large"].cut_after = 1
        response = served.chat({"content": prompt, "stream": True})
        assert events(response)[-1]["error"]["code"] == "cut"
        assert "[DONE]" not in response.text

    def test_tool_calls_are_streamed_with_their_numbers(self, serve):
        served = serve(1, node={"small": {"confidence": "agreement", "samples": 2}})
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        served.models["small"].plan = [{"choices": [{"message": message}]}] * 2
        deltas = [chunk["choices"][0]["delta"] for chunk in events(served.chat({"stream": True}))]
        assert {"tool_calls": [{"index": 0, **call}]} in deltas

    def test_a_wait_is_filled_with_comments(self, serve, monkeypatch):
        monkeypatch.setattr("ttamer.serve.stream.Stream.keep_alive", 0.05)
        served = serve()
        for model in served.models.values():
            model.delay = 0.3
        response = served.chat({"stream": True})
        assert response.status_code == 200
        assert response.text.startswith(": waiting\n\n")
        assert response.text.endswith("[DONE]\n\n")

    def test_a_stream_that_is_not_read_for_long_ends(self, serve, monkeypatch):
        monkeypatch.setattr("ttamer.serve.stream.Stream.unread_seconds", 0.05)
        served = serve(serve={"tradeoff": 0.0, "compare": "exact"}, force=True)
        served.models["small"].text = "x" * 100

        async def scenario(client):
            del client
            sent = []

            async def send(message):
                sent.append(message.get("body", b""))
                while len(sent) == 3:
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(served.asked({"stream": True}, send), 5)
            return len(sent), served.app.gate.running

        assert served.run(scenario) == (3, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_calls_of_a_client_that_leaves_are_cancelled(serve, stream):
    served = serve()
    model, gate = served.models["small"], served.app.gate
    model.delay = 20

    async def scenario(client):
        task = asyncio.create_task(served.asked({"stream": stream}, leaves_after=0.2))
        while not model.running:
            await asyncio.sleep(0.01)
        assert gate.running == 1
        await asyncio.wait_for(task, 5)
        assert (model.running, model.cancelled, gate.running, gate.inside) == (0, 1, 0, 0)
        return await client.metric("ttamer_requests_total")

    assert served.run(scenario) == 1


class TestLimits:
    def test_so_many_are_answered_as_many_wait_and_others_are_refused(self, serve):
        served = serve(1, serve={"max_concurrent": 2})
        served.models["small"].delay = 0.2

        async def scenario(client):
            responses = await asyncio.gather(*(client.chat() for _ in range(6)))
            return [(each.status_code, each.headers.get("retry-after")) for each in responses]

        results = served.run(scenario)
        assert results.count((200, None)) == 4
        assert results.count((503, "1")) == 2
        assert served.app.gate.bytes == served.app.gate.inside == 0

    def test_a_body_is_bounded_whether_its_length_is_stated_or_not(self, serve):
        served = serve(serve={"max_body": 1000})

        async def chunks():
            for _ in range(10):
                yield b"x" * 200

        async def scenario(client):
            stated = await client.chat("x" * 2000)
            unstated = await client.post("/chat/completions", content=chunks())
            return stated, unstated, await client.chat("short")

        stated, unstated, short = served.run(scenario)
        assert stated.status_code == unstated.status_code == 413
        assert stated.headers["connection"] == "close"
        assert short.status_code == 200

    def test_a_body_that_does_not_come_is_given_up(self, serve, monkeypatch):
        monkeypatch.setattr("ttamer.serve.app.Watch.body_seconds", 0.1)

        async def slow():
            yield b"{"
            await asyncio.sleep(5)

        served = serve()
        response = served.run(lambda client: client.post("/chat/completions", content=slow()))
        assert response.status_code == 408

    def test_a_wrong_token_is_refused_before_the_body_is_read(self, serve, monkeypatch):
        monkeypatch.setenv("TOKEN", "s3cret")
        served = serve(serve={"token_env": "TOKEN"})

        async def scenario(client):
            statuses = []
            for token in ("", "Bearer ", "Bearer s3cre", "Bearer s3cret", "bearer \xe9"):
                headers = {"authorization": token.encode("latin-1")}
                response = await client.chat(headers=headers)
                statuses.append(response.status_code)
                # What is left of a body is not read.
                assert ("connection" in response.headers) == (response.status_code == 401)
            for path in ("/v1/models", "/metrics", "/health", "/ready"):
                response = await client.get(f"http://127.0.0.1{path}")
                statuses.append(response.status_code)
            return statuses

        assert served.run(scenario) == [401, 401, 401, 200, 401, 401, 401, 200, 200]

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"host": "evil.example"}, 403),
            ({"host": "127.0.0.1.evil.example:8080"}, 403),
            ({"host": "localhost:8080"}, 200),
            ({"host": "[::1]:80"}, 200),
            ({"host": ""}, 200),
            ({"content-type": "text/plain"}, 415),
            ({"content-type": ""}, 415),
            # Browsers send this without asking first.
            ({"content-type": "text/plain; x=json"}, 415),
            ({"content-type": "Application/JSON; charset=utf-8"}, 200),
        ],
    )
    def test_without_a_token_no_page_of_the_web_can_ask(self, serve, headers, status):
        assert serve().chat({}, headers=headers).status_code == status

    def test_without_a_token_other_machines_are_refused_by_any_asgi_server(self, serve):
        served = serve()

        async def asked_from(peer):
            transport = httpx2.ASGITransport(served.app, client=(peer, 1))
            async with httpx2.AsyncClient(transport=transport) as other:
                body = {"messages": [{"role": "user", "content": "x"}]}
                return await other.post("http://127.0.0.1/v1/chat/completions", json=body)

        far = served.run(lambda _: asked_from("10.0.0.2"))
        assert far.status_code == 403
        assert "set token_env" in far.json()["error"]["message"]
        assert served.run(lambda _: asked_from("::1")).status_code == 200

    def test_the_time_of_a_request_begins_when_it_comes(self, serve):
        served = serve(1, serve={"max_concurrent": 1, "timeout": 0.3})
        model = served.models["small"]
        model.delay = 0.2

        async def scenario(client):
            first = asyncio.create_task(client.chat())
            while not model.running:
                await asyncio.sleep(0.01)
            second = await client.chat()  # waits 0.2 s for its turn, and has 0.1 s left
            return (await first).status_code, second.status_code

        assert served.run(scenario) == (200, 504)

    def test_a_request_that_leaves_before_its_turn_asks_nobody(self, serve):
        served = serve(1, serve={"max_concurrent": 1})
        model = served.models["small"]
        model.delay = 1.0

        async def scenario(client):
            first = asyncio.create_task(client.chat())
            while not model.running:
                await asyncio.sleep(0.01)
            await asyncio.wait_for(served.asked({}, leaves_after=0.2), 5)
            await first
            return len(model.bodies), served.app.gate.inside

        assert served.run(scenario) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [3]}, 400, "messages[0]"),
        ({"n": 2}, 400, "n"),
        ({"n": "2"}, 400, "n"),
        ({"model": "other"}, 404, "model"),
        ({"stream": "yes"}, 400, "stream"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_logprobs": 99}, 400, "top_logprobs"),
        ({"ttamer": {"tradeoff": 2}}, 400, "ttamer.tradeoff"),
        ({"ttamer": {"x": 1}}, 400, "ttamer"),
        ({"ttamer": {"tradeoff": 0.1, "budget": 1}}, 400, "ttamer"),
    ],
)
def test_a_request_that_is_wrong_is_refused_with_the_field(serve, fields, status, param):
    served = serve(serve={"allow": ["tradeoff", "budget"]})
    response = served.chat(fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert error["message"]
    assert not served.models["small"].bodies


def test_a_path_or_method_that_is_not_there_is_an_error_in_openais_form(serve):
    served = serve()

    async def scenario(client):
        return [await client.post("/embeddings", json={}), await client.get("/chat/completions")]

    unknown, method = served.run(scenario)
    assert (unknown.status_code, method.status_code) == (404, 405)
    assert unknown.json()["error"]["code"] == method.json()["error"]["code"] == "unknown_url"


def test_urls_are_those_below_where_the_application_is_mounted(serve):
    served = serve()
    outer = Starlette(routes=[Mount("/llm", served.app)])

    async def scenario(client):
        health = await client.http.head("http://127.0.0.1/health")
        transport = httpx2.ASGITransport(outer)
        async with httpx2.AsyncClient(transport=transport) as mounted:
            return health, await mounted.get("http://127.0.0.1/llm/health")

    assert [response.status_code for response in served.run(scenario)] == [200, 200]


def test_a_web_socket_is_refused(serve):
    sent = []

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "websocket", "path": "/v1/models", "headers": []}
    asyncio.run(serve().app(scope, None, send))
    assert sent == ["websocket.close"]


def test_models_health_readiness_and_metrics(serve):
    served = serve()

    async def scenario(client):
        await client.chat("prompt 3")
        models = (await client.get("/models")).json()["data"]
        ready = (await client.get("http://127.0.0.1/ready")).json()
        served.service.is_ready = False
        late = (await client.get("http://127.0.0.1/ready")).status_code
        names = (
            "ttamer_requests_total",
            "ttamer_calls_total",
            "ttamer_answers_total",
            "ttamer_cost_total",
        )
        return [m["id"] for m in models], ready, late, [await client.metric(name) for name in names]

    models, ready, late, metrics = served.run(scenario)
    assert models == ["ttamer"]
    assert ready == {"ready": True, "policy": served.service.policies.active.version}
    assert late == 503
    assert metrics[0] >= 1
    assert metrics[2] == 1
    assert metrics[3] in (1.0, 13.5)


def test_the_ids_of_requests_are_passed_on_and_cannot_be_anything(serve):
    served = serve()
    good = served.chat(headers={"x-request-id": "abc-1", "traceparent": "00-1"})
    bad = served.chat(headers={"x-request-id": "a b " * 3})
    assert good.headers["x-request-id"] == "abc-1"
    assert len(bad.headers["x-request-id"]) == 32
    assert served.models["small"].headers[0]["traceparent"] == "00-1"
