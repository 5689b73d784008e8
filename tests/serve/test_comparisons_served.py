"""Comparisons that are not transitive, in the gateway: answers of one request are matched."""

from __future__ import annotations

import httpx2 as httpx

from ttamer.llm import Comparison

COMPARE = {"kind": "numeric", "tolerance": 0.5}


def ask(gateway, text):
    body = {"model": "ttamer", "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{gateway.url}/chat/completions", json=body, timeout=30.0)


def test_a_prediction_is_the_first_one_of_the_request_that_it_equals(run_gateway, monkeypatch):
    gateway = run_gateway(2, serve={"compare": COMPARE, "tradeoff": 1.0})
    small, large = gateway.served.upstreams.values()
    small.answer = lambda *_: ("It is 12.3", 0.3)
    large.answer = lambda *_: ("12.7", 0.9)
    seen = []
    real = type(gateway.gateway).answer

    async def answer(self, request, policy):
        outcome = await real(self, request, policy)
        seen.extend(outcome.asked)
        return outcome

    monkeypatch.setattr(type(gateway.gateway), "answer", answer)
    assert ask(gateway, "How many?").status_code == 200
    assert gateway.gateway.settings.serve.compare == Comparison("numeric", tolerance=0.5)
    found = {call.node: call.prediction for call in seen}
    assert len(found) == 2
    assert len(set(found.values())) == 1
