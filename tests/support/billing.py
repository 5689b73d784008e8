"""Requests under every kind of fault, and two sums of what they cost: upstreams' and gateway's.

Used by ``tests/serve/test_bill.py`` and ``experiments/serving/bill.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

from support.waiting import LONGEST_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.faulty_upstream import FaultyUpstream
    from support.running_gateway import RunningGateway

INPUT, OUTPUT = 0.01, 0.1
"""The prices of tokens, where tokens have a price."""
OUTPUT_LIMIT = 16
"""The most tokens of an answer that requests ask for."""
TEMPLATE_TOKENS = 64
"""The tokens that the gateway counts besides the bytes of a request."""

KINDS: dict[str, dict[str, Any]] = {
    "answered": {},
    "refused, 400": {"mode": "error", "status": 400},
    "busy, 429": {"mode": "error", "status": 429},
    "error, 500": {"mode": "error"},
    "error, then answered": {"plan": ["error", "ok"]},
    "error, then the fallback": {"plan": ["error", "error"]},
    "garbage": {"mode": "garbage"},
    "reset before the response": {"mode": "reset"},
    "reset in the body": {"mode": "truncated"},
    "no connection": {"mode": "refuse"},
    "timeout": {"mode": "slow"},
    "no usage": {"states_usage": False},
    "client cancels": {"mode": "slow", "cancel": True},
    "stream": {"stream": True},
    "stream, error, then answered": {"stream": True, "plan": ["error", "ok"]},
    "stream cut by the upstream": {"stream": True, "mode": "truncated"},
    "stream that stalls": {"stream": True, "mode": "stall"},
    "stream cancelled by the client": {"stream": True, "mode": "stall", "cancel": True},
    "stream of the cascade": {"stream": True, "model": "ttamer"},
    "stream of the cascade, error": {"stream": True, "model": "ttamer", "mode": "error"},
    "hedged": {"plan": ["slow", "ok"], "gateway": "hedged"},
    "several samples": {"gateway": "samples"},
    "several samples, one fails": {"plan": ["reset", "ok", "ok"], "gateway": "samples"},
    "verified": {"gateway": "verified"},
    "verifier fails": {"gateway": "verified", "verifier": "error"},
    "asked ahead of need": {"gateway": "speculative", "stream": True, "model": "ttamer"},
}
"""The kinds of requests: what happens, which of :data:`GATEWAYS` serves (else "plain")."""
GATEWAYS: dict[str, dict[str, Any]] = {
    "plain": {"small": {"retries": 1}},
    "hedged": {"serve": {"hedge": 0.05}},
    "samples": {"small": {"confidence": "agreement", "samples": 3}},
    "verified": {"small": {"confidence": "verifier", "verifier": "large"}},
    "speculative": {
        "serve": {"speculate": True, "speculate_budget": 1.0, "speculate_chance": 0.01}
    },
}
"""The gateways: settings of the server and of the node "small"."""


def tables(
    setup: str, fallback: str, audits: str, *, has_tokens: bool
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of one of the gateways, and of its nodes; all but "hedged" audit."""
    how = GATEWAYS[setup]
    serve = {"direct": True, **how.get("serve", {})}
    common: dict[str, Any] = {"timeout": 0.3, "breaker": 0}
    if has_tokens:
        common["cost_per_token"] = {"input": INPUT, "output": OUTPUT}
    small = {**common, **how.get("small", {})}
    if setup != "hedged":
        serve["audit"] = {"share": 1.0, "log": audits}
        small["fallback"] = fallback
    return serve, {"small": small, "large": common}


@dataclass(frozen=True)
class Sums:
    """What calls cost: the part that is known, and the part that the gateway has to estimate."""

    calls: int
    known: float
    estimated: float


def upstream_sums(
    upstreams: Mapping[str, FaultyUpstream], costs: Mapping[str, float], *, has_tokens: bool
) -> Sums:
    """Add up what the upstreams saw.

    A refused call costs nothing, a delivered one its usage. Of any other the gateway cannot know
    the usage: it must book the most that the call can have cost, by the request's own bytes.
    """
    calls, known, estimated = 0, 0.0, 0.0
    for name, upstream in upstreams.items():
        for call in upstream.calls:
            calls += 1
            if call.result == "refused":
                continue
            if not has_tokens:
                known += costs[name]
            elif call.result == "delivered":
                assert call.usage is not None
                prompt, completion = call.usage["prompt_tokens"], call.usage["completion_tokens"]
                known += costs[name] + INPUT * prompt + OUTPUT * completion
            else:
                limit = call.body.get("max_tokens", 0)
                tokens = INPUT * (call.size + TEMPLATE_TOKENS) + OUTPUT * limit
                estimated += costs[name] + tokens
    return Sums(calls, known, estimated)


def gateway_sums(gateway: RunningGateway) -> Sums:
    """Return what the gateway booked, by its metrics: requests and audits."""
    estimated = gateway.metric("ttamer_estimated_cost_total")
    booked = gateway.metric("ttamer_cost_total") + gateway.metric("ttamer_audit_cost_total")
    return Sums(0, booked - estimated, estimated)


async def make_requests(
    gateway: RunningGateway,
    upstreams: Mapping[str, FaultyUpstream],
    kind: str,
    count: int,
) -> None:
    """Make requests of one kind, one after the other, and wait until nothing runs."""
    how, small = KINDS[kind], upstreams["small"]
    small.mode, small.status = how.get("mode", "ok"), how.get("status", 500)
    small.states_usage = how.get("states_usage", True)
    if "verifier" in how:
        upstreams["large"].mode = how["verifier"]
    stream = how.get("stream", False)
    body = {
        "model": how.get("model", "small" if stream else "ttamer"),
        "messages": [{"role": "user", "content": f"question {kind}"}],
        "max_tokens": OUTPUT_LIMIT,
        "stream": stream,
    }
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(timeout=LONGEST_WAIT, limits=limits) as client:
        for _ in range(count):
            small.plan = list(how.get("plan", ()))
            seen, done = small.count, gateway.metric("ttamer_requests_total")
            url = f"{gateway.url}/chat/completions"
            ask = asyncio.create_task(client.post(url, json=body))
            if how.get("cancel"):
                await asyncio.to_thread(small.wait_for, seen + 1)
                ask.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await ask
            await until(lambda done=done: gateway.metric("ttamer_requests_total") > done)
            small.release()
    await until(lambda: is_quiet(gateway, upstreams))
    small.mode = upstreams["large"].mode = "ok"
    small.states_usage = True


def is_quiet(gateway: RunningGateway, upstreams: Mapping[str, FaultyUpstream]) -> bool:
    """Return whether no request and no audit runs."""
    for upstream in upstreams.values():
        upstream.release()
    audits = gateway.gateway.audits
    is_auditing = audits is not None and bool(audits._tasks)
    is_open = any(upstream.open for upstream in upstreams.values())
    return not (is_auditing or is_open or gateway.gateway.limit.running)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(LONGEST_WAIT):
        while not condition():
            await asyncio.sleep(0.005)
