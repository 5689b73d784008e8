"""Upstreams that fail in every way: each request gets one answer or one proper error, in time.

Some dozens of requests per fault; ``experiments/serving/faults.py`` makes ten thousand, and kills
the gateway besides.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

import aiohttp
import pytest

import ttamer as tt

REQUESTS = 60
AT_ONCE = 25
DEADLINE = 1.0
LATE = 60.0
"""Seconds within which everything must be over, on a machine however busy."""
OK = {200}
FAILED = {502, 504}
KINDS = {
    "error": "error",
    "garbage": "garbage",
    "truncated": "cut",
    "reset": "cut",
    "refuse": "connect",
    "slow": "timeout",
}


async def _every(gateway, count: int, **fields) -> list[tuple[int, dict, float]]:
    """Make many requests, this many at once; return status, body and seconds of each."""
    limit = asyncio.Semaphore(AT_ONCE)
    url = f"{gateway.url}/chat/completions"

    async def one(client, number):
        message = {"role": "user", "content": f"question {number}"}
        body = {"model": "ttamer", "messages": [message], **fields}
        async with limit:
            start = time.monotonic()
            async with client.post(url, json=body, headers={"x-request-id": f"r{number}"}) as reply:
                assert reply.headers["x-request-id"] == f"r{number}"
                if fields.get("stream") and reply.status == 200:
                    return reply.status, {"stream": await reply.text()}, time.monotonic() - start
                return reply.status, await reply.json(), time.monotonic() - start

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
        return await asyncio.gather(*(one(client, number) for number in range(count)))


def every(gateway, count: int = REQUESTS, **fields):
    return asyncio.run(_every(gateway, count, **fields))


def check(gateway, replies, statuses, count: int = REQUESTS) -> Counter:
    """What must hold whatever fails."""
    assert len(replies) == count
    found = Counter(status for status, _, _ in replies)
    assert set(found) <= statuses, found
    assert max(seconds for _, _, seconds in replies) < LATE
    for status, body, _ in replies:
        if status == 200 and "stream" not in body:
            assert body["choices"][0]["message"]["content"] in "ABCD"
        elif status != 200:
            assert body["error"]["type"] == "api_error"
            assert "sk-secret" not in str(body)
    lines = [line for line in gateway.log if line["event"] == "request"]
    assert sorted(line["request"] for line in lines) == sorted(f"r{n}" for n in range(count))
    assert gateway.metric("ttamer_requests_total") == count
    assert gateway.metric("ttamer_requests_in_flight") == 0
    assert gateway.gateway.limit.running == 0
    assert not [line for line in gateway.log if line["event"] == "failure"]
    return found


def node(**options):
    return {name: {"timeout": 0.4, **options} for name in ("small", "middle", "large")}


@pytest.mark.parametrize("mode", KINDS)
def test_one_node_fails_and_the_other_answers(run_gateway, mode):
    limit = 0.2 if mode == "slow" else 20.0  # nothing else may fail by being late
    limits = {"small": {"timeout": limit, "breaker": 0}}
    gateway = run_gateway(2, serve={"timeout": 20.0, "tradeoff": 0.5}, node=limits)
    gateway.served.upstreams["small"].mode = mode
    check(gateway, every(gateway), OK)
    text = gateway.gateway.metrics.text().decode()
    failed = gateway.metric("ttamer_failed_total")
    assert f'ttamer_asked_total{{node="small"}} {failed}' in text
    if mode not in ("refuse", "slow"):  # else some never come so far
        assert failed == gateway.served.upstreams["small"].count
    assert f'ttamer_failed_total{{kind="{KINDS[mode]}",node="small"}} {failed}' in text
    assert gateway.metric("ttamer_answered_total") == REQUESTS


@pytest.mark.parametrize("mode", KINDS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_all_nodes_fail_and_every_request_gets_an_error(run_gateway, mode, nodes):
    gateway = run_gateway(nodes, serve={"timeout": DEADLINE}, node=node(timeout=0.2))
    for upstream in gateway.served.upstreams.values():
        upstream.mode = mode
    check(gateway, every(gateway), FAILED)
    assert gateway.metric("ttamer_answered_total") == 0
    assert gateway.metric("ttamer_failed_total") >= REQUESTS


def test_an_unexpected_error_of_one_node_is_in_the_log(run_gateway, monkeypatch):
    """The other node answers: nothing else states the type and the place of the error."""
    gateway = run_gateway(2, serve={"tradeoff": 0.5})
    small = gateway.gateway.nodes["small"]

    async def ask(*_):
        raise LookupError("a text that may hold a prompt")

    monkeypatch.setattr(small, "ask", ask)
    assert [status for status, _, _ in every(gateway, 1)] == [200]
    (line,) = [line for line in gateway.log if line["event"] == "failure"]
    assert (line["request"], line["type"]) == ("r0", "LookupError")
    assert line["at"][-1].startswith("test_faults.py:")
    assert "prompt" not in str(line)


def test_the_deadline_ends_what_hangs(run_gateway):
    gateway = run_gateway(2, serve={"timeout": 0.5}, node=node(timeout=20.0, breaker=0))
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "slow"
    assert set(check(gateway, every(gateway), FAILED)) == {504}


@pytest.mark.parametrize("retries", [0, 2])
def test_a_third_of_the_calls_is_lost(run_gateway, retries):
    gateway = run_gateway(3, serve={"timeout": 20.0}, node=node(timeout=10.0, retries=retries))
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "loss"
    found = check(gateway, every(gateway), OK | FAILED)
    assert found[200] >= REQUESTS * (0.9 if not retries else 1.0)


def test_everything_fails_in_turn(run_gateway):
    gateway = run_gateway(3, serve={"timeout": 20.0}, node=node(timeout=20.0, retries=1))
    modes = ["ok", "error", "garbage", "truncated", "reset", "loss"]
    for shift, upstream in enumerate(gateway.served.upstreams.values()):
        upstream.plan = [modes[(shift + i) % len(modes)] for i in range(REQUESTS)]
    check(gateway, every(gateway), OK | FAILED)


def test_streams_that_are_cut_are_ended_with_an_error(run_gateway):
    gateway = run_gateway(1, serve={"timeout": 20.0})
    upstream = gateway.served.upstreams["small"]
    upstream.answer = lambda prompt, sample: ("a long answer " * 10, 0.9)
    upstream.mode = "truncated"
    replies = every(gateway, stream=True)
    check(gateway, replies, OK | FAILED)
    for status, body, _ in replies:
        if status == 200:
            assert '"upstream_failed"' in body["stream"]
            assert "[DONE]" not in body["stream"]
    assert gateway.metric("ttamer_failed_total") == REQUESTS


def test_the_artefact_is_replaced_by_garbage_during_load(run_gateway):
    gateway = run_gateway(2, serve={"watch": 0.02, "timeout": 20.0})
    artefact = gateway.served.artefact
    good = artefact.read_bytes()
    version = gateway.gateway.policies.current.version

    async def both():
        async def spoil():
            for content in (b"", b"garbage" * 100, good[:-10], good[: len(good) // 2], good):
                artefact.write_bytes(content)
                await asyncio.sleep(0.1)

        replies, _ = await asyncio.gather(_every(gateway, REQUESTS), spoil())
        return replies

    check(gateway, asyncio.run(both()), OK)
    assert gateway.gateway.policies.current.version == version
    assert not gateway.do(_spoilt(gateway, artefact)).ok


async def _spoilt(gateway, artefact):
    artefact.write_bytes(b"spoilt")
    return await gateway.gateway.policies.reload()


def test_a_good_artefact_is_taken_during_load(run_gateway):
    gateway = run_gateway(2, serve={"timeout": 20.0})
    served = gateway.served

    async def both():
        async def replace():
            for number in range(5):
                tt.save(served.ladder, served.artefact, notes={"number": str(number)})
                reloaded = asyncio.run_coroutine_threadsafe(
                    gateway.gateway.policies.reload(), gateway.loop
                )
                assert (await asyncio.wrap_future(reloaded)).changed

        replies, _ = await asyncio.gather(_every(gateway, REQUESTS), replace())
        return replies

    check(gateway, asyncio.run(both()), OK)


def test_a_full_disk_loses_rows_and_no_request(run_gateway):
    gateway = run_gateway(2, serve={"trace_log": "/dev/full", "timeout": 20.0})
    check(gateway, every(gateway), OK)
    for _ in range(500):
        if gateway.metric("ttamer_log_rows_lost_total") == REQUESTS:
            break
        time.sleep(0.01)
    assert gateway.metric("ttamer_log_rows_lost_total") == REQUESTS


def test_a_log_that_cannot_be_opened_hurts_no_request(run_gateway, tmp_path):
    folder = tmp_path / "gone"
    gateway = run_gateway(2, serve={"trace_log": os.fspath(folder / "x.jsonl"), "timeout": 20.0})
    check(gateway, every(gateway), OK)


def test_an_upstream_that_comes_back_is_used_again(run_gateway):
    gateway = run_gateway(1, serve={"timeout": 20.0})
    upstream = gateway.served.upstreams["small"]
    upstream.mode = "refuse"
    assert {status for status, _, _ in every(gateway, 10)} == {502}
    upstream.mode = "ok"
    assert {status for status, _, _ in every(gateway, 10)} == {200}


def test_a_hung_node_is_not_asked_once_its_breaker_opened(run_gateway):
    """Only the calls before the breaker opened wait; then the other node answers at once."""
    limits = {"small": {"timeout": 0.5, "breaker": 1}}
    gateway = run_gateway(2, serve={"timeout": 60.0, "tradeoff": 0.5}, node=limits)
    small, large = gateway.served.upstreams.values()
    small.mode = "slow"
    check(gateway, every(gateway), OK)
    asked = small.count
    assert {status for status, _, _ in every(gateway)} == {200}
    assert small.count <= asked + 2, "no call, or a probe"
    assert large.count >= 2 * REQUESTS
    text = gateway.gateway.metrics.text().decode()
    assert 'ttamer_failed_total{kind="open",node="small"}' in text


def test_a_breaker_opens_where_requests_have_less_time_than_their_node(run_gateway):
    """A call that had all of its request's time counts, and the next requests need not wait."""
    node = {"small": {"timeout": 3600.0, "breaker": 1}}
    gateway = run_gateway(1, serve={"timeout": 0.5}, node=node)
    small = gateway.served.upstreams["small"]
    small.mode = "slow"
    assert [status for status, _, _ in every(gateway, 1)] == [504]
    assert [status for status, _, _ in every(gateway, 1)] == [502]
    assert small.count == 1
