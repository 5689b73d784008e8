"""One request: routes, choices, limits, headers, and the records that sinks receive."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which letter?"}]}


def post(gateway, body=ASK, path="/chat/completions", **options):
    return httpx.post(f"{gateway.url}{path}", json=body, timeout=30.0, **options)


def ask(text: str, **fields):
    return {**ASK, "messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def gateway(run_gateway):
    return run_gateway(2)


def test_health_and_readiness(gateway):
    assert httpx.get(f"{gateway.root}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{gateway.root}/readyz").json() == {"status": "ready"}
    assert httpx.head(f"{gateway.root}/healthz").status_code == 200
    gateway.gateway.ready = False
    assert httpx.get(f"{gateway.root}/readyz").status_code == 503
    assert httpx.get(f"{gateway.root}/healthz").status_code == 200


def test_metrics_status_and_description_are_served(gateway):
    post(gateway)
    text = httpx.get(f"{gateway.root}/metrics").text
    assert 'ttamer_requests_total{endpoint="/v1/chat/completions",status="200"} 1.0' in text
    assert "text/html" in httpx.get(f"{gateway.root}/status").headers["content-type"]
    status = httpx.get(f"{gateway.root}/status.json").json()
    assert status["requests"]["decided"] == 1
    assert len(status["frontier"]) > 1
    assert httpx.get(f"{gateway.root}/openapi.json").json()["openapi"] == "3.1.0"


def test_the_path_and_the_cost_are_reported(gateway):
    for number in range(20):
        reply = post(gateway, ask(f"question {number}"))
        path = reply.headers["x-ttamer-path"].split(",")
        cost = sum({"small": 1.0, "large": 12.5}[node] for node in path)
        assert float(reply.headers["x-ttamer-cost"]) == cost
        assert reply.headers["x-ttamer-answered-by"] in path
        assert reply.json()["model"] == reply.headers["x-ttamer-answered-by"]


def test_what_upstreams_are_sent(gateway):
    body = ask("q", temperature=0.0, seed=7, stream=True, stream_options={"include_usage": True})
    post(gateway, body, headers={"x-request-id": "job-17", "authorization": "Bearer mine"})
    for name, upstream in gateway.served.upstreams.items():
        for sent, headers in zip(upstream.requests, upstream.request_headers, strict=True):
            assert sent["model"] == name
            assert (sent["temperature"], sent["seed"]) == (0.0, 7)
            is_relayed = "stream" in sent  # the last node of the path: its tokens, and no more
            assert ("logprobs" in sent, "stream_options" in sent) == (not is_relayed, is_relayed)
            assert "ttamer" not in sent
            assert headers["x-request-id"] == "job-17"
            assert "authorization" not in headers


def test_one_node_is_asked_without_what_only_a_policy_needs(run_gateway):
    gateway = run_gateway(1)
    post(gateway)
    (sent,) = gateway.served.upstreams["small"].requests
    assert sent == {**ASK, "model": "small"}


CHOICES = [("tradeoff", 0.0, 1.0), ("budget", 1.5, 20.0)]


@pytest.mark.parametrize(("name", "cheap", "dear"), CHOICES)
@pytest.mark.parametrize("way", ["header", "field"])
def test_a_request_may_choose_within_limits(run_gateway, name, cheap, dear, way):
    gateway = run_gateway(2, serve={"allow": [name]})

    def bill(value):
        total = 0.0
        for number in range(15):
            body = ask(f"question {number}")
            headers = {}
            if way == "header":
                headers[f"x-ttamer-{name}"] = str(value)
            else:
                body["ttamer"] = {name: value}
            reply = post(gateway, body, headers=headers)
            assert reply.status_code == 200, reply.text
            total += float(reply.headers["x-ttamer-cost"])
        return total

    assert bill(cheap) < bill(dear)


@pytest.mark.parametrize("is_stream", [False, True])
def test_whole_numbers_may_have_a_decimal_point(run_gateway, is_stream):
    gateway = run_gateway(2, node={"small": {"confidence": "margin"}})
    more = {"n": 2.0, "max_tokens": 5.0, "logprobs": True, "top_logprobs": 1.0}
    reply = post(gateway, ask("q", **more, stream=is_stream))
    assert reply.status_code == 200, reply.text
    sent = gateway.served.upstreams["small"].requests[0]
    assert [type(sent[name]) for name in ("n", "max_tokens", "top_logprobs")] == [int] * 3


MALFORMED = {
    "tools": ("/chat/completions", {"tools": [3]}, "tools.0"),
    "calls": (
        "/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
        "messages.0.tool_calls.0",
    ),
    "stop": ("/chat/completions", {"stop": True}, "stop"),
    "effort": ("/responses", {"input": "q", "reasoning": "high"}, "reasoning"),
    "part": (
        "/responses",
        {"input": [{"role": "user", "content": [{"type": ["input_text"]}]}]},
        "input.0.content.0",
    ),
    "role": ("/responses", {"input": [{"role": 3, "content": "q"}]}, "messages.0.role"),
    "result": (
        "/messages",
        {"max_tokens": 1, "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": 5}]}]},
        "messages.0.content.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "place"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_before_a_node_is_asked(gateway, path, fields, place):
    reply = post(gateway, {**ASK, **fields}, path)
    assert reply.status_code == 400, reply.text
    assert place in reply.json()["error"]["message"]
    assert not any(upstream.requests for upstream in gateway.served.upstreams.values())


REFUSED_CHOICES = {
    "not allowed": ({"x-ttamer-budget": "5"}, {}, "choice_not_allowed"),
    "too low": ({"x-ttamer-tradeoff": "0.2"}, {}, "choice_not_allowed"),
    "too high": ({}, {"ttamer": {"tradeoff": 0.99}}, "choice_not_allowed"),
    "no number": ({"x-ttamer-tradeoff": "much"}, {}, "bad_header"),
    "not a number": ({"x-ttamer-tradeoff": "nan"}, {}, "bad_header"),
    "twice": ({"x-ttamer-tradeoff": "0.6"}, {"ttamer": {"tradeoff": 0.6}}, "bad_choice"),
    "two fields": ({}, {"ttamer": {"tradeoff": 0.6, "budget": 3}}, "bad_field"),
    "unknown": ({}, {"ttamer": {"upstream": "http://169.254.169.254/"}}, "bad_field"),
}


@pytest.mark.parametrize(
    ("headers", "fields", "code"), REFUSED_CHOICES.values(), ids=REFUSED_CHOICES
)
def test_a_choice_beyond_the_limits_is_refused(run_gateway, headers, fields, code):
    gateway = run_gateway(2, serve={"allow": ["tradeoff"], "tradeoff_range": [0.5, 0.95]})
    reply = post(gateway, {**ASK, **fields}, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)
    assert not any(upstream.count for upstream in gateway.served.upstreams.values())


def test_a_budget_that_cannot_be_is_refused(run_gateway):
    gateway = run_gateway(2, serve={"allow": ["budget"]})
    reply = post(gateway, headers={"x-ttamer-budget": "0.001"})
    assert reply.status_code == 400
    assert "the cheapest costs" in reply.json()["error"]["message"]


def test_max_cost_is_never_passed(run_gateway):
    gateway = run_gateway(3, serve={"tradeoff": 1.0, "max_cost": 6.0})
    replies = [post(gateway, ask(f"question {number}")) for number in range(20)]
    assert all(float(reply.headers["x-ttamer-cost"]) <= 6.0 for reply in replies)
    assert gateway.served.upstreams["large"].count == 0
    assert gateway.metric("ttamer_capped_total") > 0


def test_a_node_may_be_asked_alone_only_where_the_operator_allows_it(run_gateway):
    closed, open_ = run_gateway(2), run_gateway(2, serve={"direct": True})
    assert post(closed, {**ASK, "model": "large"}).status_code == 404
    reply = post(open_, {**ASK, "model": "large"})
    assert reply.headers["x-ttamer-path"] == "large"
    assert open_.served.upstreams["small"].count == 0


BAD_REQUESTS = {
    "not json": ("/v1/chat/completions", b"{", {}, 400, "bad_json"),
    "not utf-8": ("/v1/chat/completions", b'"\xff"', {}, 400, "bad_json"),
    "a list": ("/v1/chat/completions", b"[]", {}, 400, "bad_field"),
    "no model": ("/v1/chat/completions", b'{"messages":[]}', {}, 400, "bad_field"),
    "a bad role": (
        "/v1/chat/completions",
        b'{"model":"ttamer","messages":[{"role":"king"}]}',
        {},
        400,
        "bad_field",
    ),
    "form": (
        "/v1/chat/completions",
        b"a=b",
        {"content-type": "application/x-www-form-urlencoded"},
        415,
        "unsupported_media_type",
    ),
    "no prompt": ("/v1/completions", b'{"model":"ttamer"}', {}, 400, "bad_field"),
    "two prompts": ("/v1/completions", b'{"model":"ttamer","prompt":["a","b"]}', {}, 400,
                    "bad_field"),
    "no input": ("/v1/classify", b"{}", {}, 400, "bad_field"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "code"), BAD_REQUESTS.values(), ids=BAD_REQUESTS
)
def test_bad_requests_are_refused(gateway, path, content, headers, status, code):
    headers = {"content-type": "application/json", **headers}
    reply = httpx.post(f"{gateway.root}{path}", content=content, headers=headers)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_an_error_names_the_field(gateway):
    reply = post(gateway, {**ASK, "messages": [{"role": "user", "content": 3}]})
    error = reply.json()["error"]
    assert error["param"] == "messages.0.content"
    assert error["message"] == "messages.0.content must be text or null"


def test_first_mistakes_are_answered_with_what_to_do(gateway):
    form = httpx.post(f"{gateway.url}/chat/completions", data=ASK)  # as curl -d sends it
    assert "set the header content-type: application/json" in form.text
    assert "the API is under /v1" in httpx.get(gateway.root).text


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET"),
     ("DELETE", "/healthz", "GET"), ("PUT", "/metrics", "GET")],
)  # fmt: skip
def test_a_wrong_method_gets_the_right_one_in_the_reply(gateway, method, path, allow):
    reply = httpx.request(method, f"{gateway.root}{path}")
    assert (reply.status_code, reply.headers["allow"]) == (405, allow)


def test_too_many_at_once_get_retry_after(run_gateway):
    gateway = run_gateway(2, serve={"max_concurrent": 1, "queue": 0})
    first = gateway.served.upstreams
    for upstream in first.values():
        upstream.mode = "slow"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, gateway)
        _until(lambda: any(upstream.count for upstream in first.values()))
        refused = post(gateway)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for upstream in first.values():
            upstream.mode = "ok"
            upstream.release()
        assert running.result(30).status_code == 200
    assert gateway.metric("ttamer_refused_total") == 1
    assert gateway.gateway.limit.running == 0


def test_a_client_that_goes_away_ends_the_work_upstream(run_gateway):
    gateway = run_gateway(2)
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "slow"
    limits = httpx.Timeout(30, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/chat/completions", json=ASK, timeout=limits)
    _until(lambda: gateway.gateway.limit.running == 0)
    _until(lambda: any(line.get("status") == 499 for line in gateway.log))
    assert gateway.metric("ttamer_requests_in_flight") == 0


def test_a_request_finishes_on_the_policy_it_began_with(run_gateway):
    gateway = run_gateway(2)
    before = gateway.gateway.policies.current.short_version
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "slow"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, gateway)
        _until(lambda: any(u.count for u in gateway.served.upstreams.values()))
        import ttamer as tt

        tt.save(gateway.served.ladder, gateway.served.artefact, notes={"n": "2"})
        assert gateway.do(gateway.gateway.policies.reload()).changed
        for upstream in gateway.served.upstreams.values():
            upstream.mode = "ok"
            upstream.release()
        assert running.result(30).headers["x-ttamer-policy"] == before
    assert post(gateway).headers["x-ttamer-policy"] != before


def test_the_log_holds_no_prompt_and_no_answer(gateway):
    post(gateway, ask("a most secret question"))
    (line,) = [line for line in gateway.log if line["event"] == "request"]
    assert line["status"] == 200
    assert line["path"]
    assert "secret" not in str(gateway.log)


def test_an_error_of_ours_is_reported_without_its_text_and_logged(gateway, monkeypatch):
    async def broken(*_):
        raise RuntimeError("with a prompt in it")

    monkeypatch.setattr(gateway.gateway, "answer", broken)
    reply = post(gateway)
    assert reply.status_code == 500
    assert "prompt" not in reply.text
    (line,) = [line for line in gateway.log if line["event"] == "failure"]
    assert line["type"] == "RuntimeError"
    assert gateway.metric("ttamer_requests_in_flight") == 0


def test_what_asks_no_node_is_counted_and_logged(run_gateway, monkeypatch):
    monkeypatch.setenv("KEYS", "a-key-for-this-test-1")
    gateway = run_gateway(2, serve={"keys_env": "KEYS"})
    key = {"authorization": "Bearer a-key-for-this-test-1"}
    for path in ("/v1/models", "/nobody/knows", "/metrics", "/healthz"):
        httpx.get(f"{gateway.root}{path}", headers=key)
    httpx.get(f"{gateway.root}/v1/models")
    httpx.get(f"{gateway.root}/status.json")
    httpx.delete(f"{gateway.root}/healthz")
    lines = [line for line in gateway.log if line["event"] == "request"]
    logged = [(line["endpoint"], line["status"], line.get("error")) for line in lines]
    assert logged == [
        ("/v1/models", 200, None),
        ("other", 404, "not_found"),
        ("/v1/models", 401, "invalid_api_key"),
        ("/status.json", 401, "invalid_api_key"),
        ("/healthz", 405, "method_not_allowed"),
    ]
    text = gateway.gateway.metrics.text().decode()
    for endpoint, status in [("/metrics", 200), ("/healthz", 200), ("other", 404),
                             ("/status.json", 401), ("/healthz", 405)]:  # fmt: skip
        labels = f'{{endpoint="{endpoint}",status="{status}"}}'
        assert f"ttamer_requests_total{labels} 1.0" in text
    assert gateway.metric("ttamer_requests_in_flight") == 0
    assert "nobody" not in text + str(gateway.log)


def test_a_file_that_is_refused_does_not_change_the_policy_reported(gateway):
    before = [line for line in _metrics(gateway) if "policy_info{" in line]
    gateway.served.artefact.write_bytes(b"garbage")
    assert not gateway.do(gateway.gateway.policies.reload("signal")).ok
    assert [line for line in _metrics(gateway) if "policy_info{" in line] == before


def _metrics(gateway) -> list[str]:
    return gateway.gateway.metrics.text().decode().splitlines()


@pytest.mark.parametrize("kept", [False, True])
def test_predictions_are_kept_only_where_the_operator_allows_it(run_gateway, tmp_path, kept):
    log = tmp_path / "seen.jsonl"
    gateway = run_gateway(2, serve={"trace_log": str(log), "log_predictions": kept})
    post(gateway)
    _until(lambda: log.exists() and log.read_text().endswith("\n"))
    assert ('"prediction":"' in log.read_text().replace(" ", "")) is kept


def test_the_trace_log_keeps_what_was_seen(run_gateway, tmp_path):
    log = tmp_path / "seen.jsonl"
    gateway = run_gateway(2, serve={"trace_log": str(log)})
    for number in range(5):
        post(gateway, ask(f"question {number}"))
    _until(lambda: log.exists() and log.read_text().count("\n") == 5)


def test_the_admin_may_reload_and_roll_back(run_gateway, monkeypatch):
    monkeypatch.setenv("ADMIN", "an-admins-own-key-01")
    gateway = run_gateway(2, serve={"admin_keys_env": "ADMIN"})
    url = f"{gateway.root}/admin/reload"
    assert httpx.post(url).status_code == 401
    headers = {"authorization": "Bearer an-admins-own-key-01"}
    assert httpx.post(url, headers=headers).json()["ok"]
    assert httpx.post(f"{gateway.root}/admin/rollback", headers=headers).status_code == 409
    closed = run_gateway(1)
    assert httpx.post(f"{closed.root}/admin/reload", headers=headers).status_code == 404


def test_many_at_once_get_each_its_own_answer(run_gateway):
    gateway = run_gateway(3)
    texts = [f"question {number}" for number in range(200)]

    async def every():
        async with httpx.AsyncClient(timeout=30.0) as client:
            url = f"{gateway.url}/chat/completions"
            return await asyncio.gather(*(client.post(url, json=ask(text)) for text in texts))

    replies = asyncio.run(every())
    for text, reply in zip(texts, replies, strict=True):
        by = gateway.served.upstreams[reply.headers["x-ttamer-answered-by"]]
        assert reply.json()["choices"][0]["message"]["content"] == by.answer(text, 0)[0]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 200
    assert gateway.gateway.limit.running == 0


def _until(true, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it never became so")


def test_pages_of_allowed_origins_may_ask_from_a_browser(run_gateway):
    gateway = run_gateway(1, serve={"cors": ["https://app.example"]})
    url = f"{gateway.url}/chat/completions"
    body = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}]}
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, anthropic-version, x-api-key, cookie",
    }
    for origin, is_allowed in {"https://app.example": True, "https://evil.example": False}.items():
        for reply in (
            httpx.options(url, headers={"origin": origin, **asked}),
            httpx.post(url, json=body, headers={"origin": origin}),
        ):
            assert reply.status_code == 200
            assert reply.headers["vary"] == "origin"
            allowed = reply.headers.get("access-control-allow-origin")
            assert allowed == (origin if is_allowed else None)
    preflight = httpx.options(url, headers={"origin": "https://app.example", **asked})
    allowed = preflight.headers["access-control-allow-headers"]
    assert allowed == "authorization, anthropic-version, x-api-key"


def test_without_cors_no_page_may_ask(run_gateway):
    gateway = run_gateway(1)
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    reply = httpx.options(f"{gateway.url}/chat/completions", headers=headers)
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers
