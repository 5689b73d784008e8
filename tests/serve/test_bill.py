"""The bill: what is booked equals what upstreams saw, and limits on cost hold."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from support.billing import (
    GATEWAYS,
    INPUT,
    KINDS,
    OUTPUT,
    gateway_sums,
    make_requests,
    tables,
    upstream_sums,
)
from ttamer.errors import CascadeError
from ttamer.serve.accounts import Account, BudgetSpent, RateExceeded
from ttamer.serve.bill import (
    UNSTATED_TOKENS,
    Bill,
    LimitReached,
    StreamUsage,
    Tariff,
    Usage,
    output_limit,
)
from ttamer.serve.config import NodeSettings, TokenCost, settings_from
from ttamer.serve.formats.openai import bill_fields
from ttamer.trace.spec import CascadeSpec

PRICES = {"input": INPUT, "output": OUTPUT}
COSTS = {"small": 1.0, "spare": 1.0, "large": 12.5}
MESSAGES = [{"role": "user", "content": "Which?"}]


def ask(gateway, **options) -> httpx.Response:
    headers = options.pop("headers", {})
    body = {"model": "ttamer", "messages": MESSAGES, **options}
    return httpx.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=30)


# The bill equals what the upstreams saw.


@pytest.mark.parametrize("has_tokens", [False, True], ids=["calls", "tokens"])
@pytest.mark.parametrize("setup", GATEWAYS)
def test_the_bill_is_what_the_upstreams_saw(
    run_gateway, start_upstream, tmp_path, setup, has_tokens
):
    spare = start_upstream("spare")
    serve, node = tables(setup, spare.url, str(tmp_path / "audits"), has_tokens=has_tokens)
    gateway = run_gateway(2, serve=serve, node=node)
    upstreams = {**gateway.served.upstreams, "spare": spare}
    for kind, request in KINDS.items():
        if request.get("gateway", "plain") != setup:
            continue
        asyncio.run(make_requests(gateway, upstreams, kind, 2))
        seen = upstream_sums(upstreams, COSTS, has_tokens=has_tokens)
        booked = gateway_sums(gateway)
        assert seen.calls > 0
        assert booked.known == pytest.approx(seen.known, abs=1e-9), kind
        assert booked.estimated == pytest.approx(seen.estimated, abs=1e-9), kind
    if has_tokens and setup == "plain":
        assert booked.estimated > 0


# Limits hold.


def test_a_call_is_bounded_before_it_is_made(run_gateway):
    """12 once allowed a call of 6,001: one call of cost 1, with 6,000 tokens of cost 1."""
    tokens = {"cost_per_token": {"output": 1.0}}
    gateway = run_gateway(2, serve={"max_cost": 12.0}, node={"small": tokens})
    small = gateway.served.upstreams["small"]
    small.answer = lambda *_: (" ".join(["word"] * 6000), 0.9)
    refused = ask(gateway, max_tokens=6000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "max_cost")
    assert small.count == 0
    assert "x-ttamer-cost" not in refused.headers
    small.answer = lambda *_: ("A B", 0.9)
    answered = ask(gateway, max_tokens=10)
    assert answered.status_code == 200
    assert answered.headers["x-ttamer-cost"] == "3"


def test_a_request_without_a_limit_gets_the_tokens_that_can_be_paid_for(run_gateway):
    tokens = {"cost_per_token": {"output": 1.0}}
    gateway = run_gateway(2, serve={"max_cost": 12.0}, node={"small": tokens})
    assert ask(gateway).status_code == 200
    small = gateway.served.upstreams["small"]
    assert small.requests[0]["max_tokens"] == 11
    assert ask(gateway, n=3).status_code == 200
    assert small.requests[1]["max_tokens"] == 3  # for each of three answers


def test_requests_without_a_limit_share_the_budget_of_their_key(run_gateway, monkeypatch):
    """A call once counted as the whole budget while it ran, and others were refused."""
    monkeypatch.setenv("WEB", "a-key-of-the-tests-0001")
    bearer = {"authorization": "Bearer a-key-of-the-tests-0001"}
    key = {"name": "web", "env": "WEB", "budget": 1e6}
    tokens = {"cost_per_token": {"output": 1.0}}
    gateway = run_gateway(1, serve={"key": [key]}, node={"small": tokens})
    small = gateway.served.upstreams["small"]
    small.mode = "slow"
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, gateway, headers=bearer) for _ in range(3)]
        small.wait_for(3)
        assert gateway.gateway.accounts["web"].left == 1e6 - 3 * (1.0 + UNSTATED_TOKENS)
        small.mode = "ok"
        small.release()
        assert [each.result().status_code for each in waiting] == [200] * 3
    assert {each["max_tokens"] for each in small.requests} == {UNSTATED_TOKENS}


def test_a_node_that_can_cost_too_much_is_passed_over(run_gateway):
    """The policy asks large first; within max_cost only small can be asked."""
    tokens = {"cost_per_token": {"output": 1.0}}
    gateway = run_gateway(
        2, serve={"max_cost": 20.0, "tradeoff": 1.0}, node={"large": {**tokens, "retries": 2}}
    )
    answered = ask(gateway, max_tokens=1000)
    assert answered.headers["x-ttamer-answered-by"] == "small"
    assert gateway.served.upstreams["large"].count == 0
    assert gateway.log[-1]["failed"] == {"large": "limit"}


@pytest.mark.parametrize("limit", ["max_cost = 9", "[[serve.key]]\nname='a'\nenv='A'\nbudget=9"])
def test_a_limit_on_cost_needs_a_limit_on_tokens(limit):
    text = f"""
    [serve]
    {limit}
    [[node]]
    name = "small"
    cost = 1
    upstream = "http://127.0.0.1:1/v1"
    cost_per_token = {{output = 1}}
    params = {{max_tokens = false}}
    """
    with pytest.raises(CascadeError, match="params drop max_tokens"):
        settings_from(CascadeSpec.from_toml(text))


def test_retries_count_against_max_cost(run_gateway):
    gateway = run_gateway(1, serve={"max_cost": 2.5}, node={"small": {"retries": 9}})
    small = gateway.served.upstreams["small"]
    small.mode = "error"
    failed = ask(gateway)
    assert failed.status_code == 502
    assert small.count == 2
    assert failed.headers["x-ttamer-cost"] == "2"
    assert failed.headers["x-ttamer-path"] == "small"


def test_a_response_without_usage_is_an_answer_at_an_estimated_cost(run_gateway):
    gateway = run_gateway(1, node={"small": {"cost_per_token": PRICES}})
    small = gateway.served.upstreams["small"]
    small.states_usage = False
    answered = ask(gateway, max_tokens=16)
    most = 1 + INPUT * (small.calls[0].size + 64) + OUTPUT * 16
    assert answered.status_code == 200
    assert float(answered.headers["x-ttamer-cost"]) == pytest.approx(most)
    assert float(answered.headers["x-ttamer-cost-estimated"]) == pytest.approx(most)
    assert gateway.log[-1]["estimated"] == pytest.approx(most)


def test_usage_is_the_sum_over_nodes_with_each_beside_it(run_gateway):
    gateway = run_gateway(2, serve={"tradeoff": 1.0}, node={"small": {"cost_per_token": PRICES}})
    upstreams = gateway.served.upstreams
    upstreams["small"].answer = lambda *_: ("A", 0.3)
    answered = ask(gateway).json()
    nodes = answered["ttamer"]["nodes"]
    assert {each["node"] for each in nodes} == {"small", "large"}
    for kind in ("prompt_tokens", "completion_tokens"):
        assert answered["usage"][kind] == sum(each[kind] for each in nodes)
        seen = sum(call.usage[kind] for each in upstreams.values() for call in each.calls)
        assert answered["usage"][kind] == seen
    assert answered["ttamer"]["cost"] == pytest.approx(sum(each["cost"] for each in nodes))


def test_a_response_shows_costs_without_the_noise_of_adding_prices():
    bill = Bill()
    for cost in (0.1, 0.2):
        bill.settle(bill.open("small", cost, is_estimate=False), cost, Usage(1, 1))
    assert bill.cost != 0.3
    assert bill_fields(bill)["ttamer"] == {
        "cost": 0.3,
        "nodes": [
            {
                "node": "small",
                "calls": 2,
                "cost": 0.3,
                "prompt_tokens": 2,
                "completion_tokens": 2,
            }
        ],
    }


def test_a_stream_has_its_usage_only_where_the_client_asks_for_it(run_gateway):
    gateway = run_gateway(1, node={"small": {"cost_per_token": PRICES}})
    plain = ask(gateway, stream=True)
    asked = ask(gateway, stream=True, stream_options={"include_usage": True})
    assert b'"usage"' not in plain.content
    assert b'"usage"' in asked.content
    assert plain.content.endswith(b"data: [DONE]\n\n")
    assert gateway.metric("ttamer_estimated_cost_total") == 0
    assert gateway.metric("ttamer_tokens_total") == 2 * 2


# Keys.


@pytest.fixture
def keyed(run_gateway, monkeypatch):
    """Two keys: web has a budget of 3 and a rate, batch has none."""
    monkeypatch.setenv("WEB_KEY", "web-key-0123456789")
    monkeypatch.setenv("BATCH_KEY", "batch-key-0123456789")

    def run(**limits):
        keys = [{"name": "web", "env": "WEB_KEY", **limits}, {"name": "batch", "env": "BATCH_KEY"}]
        return run_gateway(1, serve={"key": keys})

    return run


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key-0123456789"}


def test_a_key_stops_at_its_budget_and_others_go_on(keyed):
    gateway = keyed(budget=3.0)
    statuses = [ask(gateway, headers=bearer("web")).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = ask(gateway, headers=bearer("web"))
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert 1 <= int(refused.headers["retry-after"]) <= 86_400
    assert ask(gateway, headers=bearer("batch")).status_code == 200
    assert gateway.served.upstreams["small"].count == 4
    line = gateway.log[-1]
    assert (line["key"], line["cost"]) == ("batch", 1.0)
    status = gateway.gateway.status_now()
    web, batch = status["keys"]
    assert (web["name"], web["spent"], web["spent_in_period"], web["refused"]["budget"]) == (
        "web", 3.0, 3.0, 3,
    )  # fmt: skip
    assert (batch["requests"], batch["spent"], batch["budget"]) == (1, 1.0, None)
    text = gateway.gateway.metrics.text().decode()
    assert 'ttamer_key_cost_total{key="web"} 3.0' in text
    assert 'ttamer_key_requests_total{key="batch"} 1.0' in text
    assert 'ttamer_key_refused_total{key="web",reason="budget"} 3.0' in text


def test_concurrent_requests_do_not_pass_a_budget(keyed):
    gateway = keyed(budget=3.0)
    small = gateway.served.upstreams["small"]
    small.mode = "slow"

    async def go():
        async with httpx.AsyncClient(timeout=30) as client:
            body = {"model": "ttamer", "messages": MESSAGES}
            url, headers = f"{gateway.url}/chat/completions", bearer("web")
            asks = [asyncio.create_task(client.post(url, json=body, headers=headers))
                    for _ in range(8)]  # fmt: skip
            _, pending = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
            while len(pending) > 3:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(small.wait_for, 3)
            small.release()
            return [(await each).status_code for each in asks]

    statuses = asyncio.run(go())
    assert sorted(statuses) == [200] * 3 + [429] * 5
    assert small.count == 3


def test_a_key_stops_at_its_rate(keyed):
    gateway = keyed(requests_per_minute=2)
    statuses = [ask(gateway, headers=bearer("web")).status_code for _ in range(4)]
    assert statuses[:2] == [200, 200]
    assert 429 in statuses[2:]
    assert ask(gateway, headers=bearer("batch")).status_code == 200
    assert gateway.metric("ttamer_key_refused_total") == statuses.count(429)


# The parts.


def tariff(**tokens: float) -> Tariff:
    settings = NodeSettings("n", 1.0, upstream="http://x", cost_per_token=TokenCost(**tokens))
    return Tariff(settings)


def test_a_prompt_has_no_more_tokens_than_bytes_and_its_parts():
    price = tariff(input=1.0)
    assert price.most(b"x" * 100, None) == 1 + 164
    image = b'{"type":"image_url","image_url":{"url":"http://x"}}'
    assert price.most(image, None) == 1 + len(image) + 64 + 4096


def test_without_a_limit_the_longest_answer_so_far_is_the_estimate():
    price = tariff(output=2.0)
    assert price.most(b"", None) == 1.0
    assert price.price(Usage(5, 30)) == 61.0
    assert price.price(Usage(5, 10)) == 21.0
    assert price.most(b"", None) == 61.0
    assert price.most(b"", 5) == 11.0


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_output_tokens": 3, "n": 4}, 12),
        ({"max_tokens": 5, "n": 1, "best_of": 3}, 15),
    ],
)
def test_the_limit_of_an_answer(body, limit):
    assert output_limit(body) == limit


def test_open_charges_count_in_full():
    bill = Bill(limit=10.0)
    first = bill.open("a", 6.0, is_estimate=True)
    with pytest.raises(LimitReached):
        bill.open("a", 6.0, is_estimate=True)
    bill.settle(first, 1.0, Usage(1, 1))
    second = bill.open("a", 6.0, is_estimate=True)
    assert (bill.cost, bill.estimated) == (7.0, 6.0)
    bill.void(second)
    assert (bill.cost, bill.by_node()["a"].calls) == (1.0, 1)


def test_a_budget_is_for_a_period():
    now = [100.0]
    account = Account("web", budget=5.0, period=60.0, clock=lambda: now[0])
    window = account.reserve(5.0)
    with pytest.raises(BudgetSpent, match="retry in 20 s"):
        account.admit()
    now[0] = 125.0
    account.admit()
    account.settle(window, 5.0, 2.0)  # begun in the period before, ended in this one
    assert account.left == 3.0


def test_a_rate_refills():
    now = [0.0]
    account = Account("web", rate=2.0, clock=lambda: now[0])
    account.admit()
    account.admit()
    with pytest.raises(RateExceeded, match="retry in 30 s"):
        account.admit()
    now[0] = 30.0
    account.admit()


def test_a_rate_that_is_set_later_admits_as_many_requests_as_one_from_the_start():
    account = Account("web", clock=lambda: 0.0)
    account.change(budget=None, period=86_400.0, rate=2.0)
    account.admit()
    account.admit()
    with pytest.raises(RateExceeded):
        account.admit()
    account.change(budget=None, period=86_400.0, rate=3.0)
    with pytest.raises(RateExceeded):
        account.admit()


def test_a_rate_below_one_a_minute_admits_requests():
    now = [0.0]
    account = Account("web", rate=0.5, clock=lambda: now[0])
    account.admit()
    with pytest.raises(RateExceeded, match="retry in 120 s"):
        account.admit()
    now[0] = 120.0
    account.admit()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("keep", [False, True])
def test_the_usage_of_a_stream_is_found_however_it_is_cut(size, keep):
    words = [b'data: {"choices": [{"delta": {"content": "%d"}}]}\r\n\r\n' % n for n in range(5)]
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}\n\n'
    sent = b"".join([*words, usage, b"data: [DONE]\n\n"])
    found = StreamUsage(keep=keep)
    parts = [found.feed(sent[i : i + size]) for i in range(0, len(sent), size)]
    relayed = b"".join([*parts, found.end()])
    assert found.usage == Usage(3, 5)
    assert relayed == (sent if keep else sent.replace(usage, b"")).replace(b"\r\n", b"\n")


@pytest.mark.parametrize(
    "event",
    [
        b": processing\ndata: %b\n\n",
        b"id: 7\ndata: %b\n\n",
        b"event: message\ndata:%b\nretry: 10\n\n",
        b"%b",  # an upstream that does not stream
    ],
)
def test_the_usage_of_an_event_with_further_lines_is_found(event):
    found = StreamUsage(keep=True)
    sent = event % b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}'
    assert found.feed(sent) + found.end() == sent
    assert found.usage == Usage(3, 5)
