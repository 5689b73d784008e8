"""What a request may choose for itself, and what the response reports of it; calls made twice."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import httpx2 as httpx
import pytest

import ttamer as tt
from support.waiting import LONGEST_WAIT
from ttamer.errors import ArtefactError
from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.policies import Policies

ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which letter?"}]}
TESTED = {"hold_out": 0.4, "rows": 1000}
"""A ladder that knows what it does on rows held out, which a promise needs."""


def post(gateway, text="Which letter?", **choice):
    headers = {f"x-ttamer-{name}": str(value) for name, value in choice.items()}
    body = {**ASK, "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=30.0)


def warnings_of(gateway) -> list[str]:
    return gateway.gateway.policies.current.policies.warnings


def bill(gateway, **choice) -> float:
    replies = [post(gateway, f"question {number}", **choice) for number in range(12)]
    assert {reply.status_code for reply in replies} == {200}
    return sum(float(reply.headers["x-ttamer-cost"]) for reply in replies)


def test_a_lower_error_costs_more_and_is_certified(run_gateway):
    gateway = run_gateway(2, serve={"allow": ["error"]}, fit=TESTED)
    strict, lax = 0.08, 0.35
    ladder = gateway.served.ladder
    assert ladder.for_error(strict).promise.certified
    assert ladder.for_error(lax).promise.certified
    assert bill(gateway, error=strict) > bill(gateway, error=lax)
    assert post(gateway, error=strict).headers["x-ttamer-promise"] == "certified"
    assert "x-ttamer-promise" not in post(gateway).headers


def test_an_error_that_cannot_be_certified_is_answered_and_reported(run_gateway):
    gateway = run_gateway(2, serve={"allow": ["error"]}, fit=TESTED)
    policy = gateway.served.ladder.for_error(0.001)
    assert not policy.promise.certified
    reply = post(gateway, error=0.001)
    assert (reply.status_code, reply.headers["x-ttamer-promise"]) == (200, "not-certified")


def test_a_promise_does_not_hold_where_a_cap_ends_requests_early(run_gateway):
    capped = run_gateway(2, serve={"allow": ["error"], "max_cost": 13.0}, fit=TESTED)
    assert post(capped, error=0.35).headers["x-ttamer-promise"] == "not-certified"


def test_with_a_price_of_tokens_any_cap_may_end_requests_early(run_gateway):
    serve, prices = {"error": 0.35, "max_cost": 1e9}, {"input": 0.001, "output": 0.001}
    capped = run_gateway(2, serve=serve, node={"large": {"cost_per_token": prices}}, fit=TESTED)
    assert post(capped).headers["x-ttamer-promise"] == "not-certified"
    (warning,) = warnings_of(capped)
    assert warning.startswith("max_cost can end a request early")


def test_a_cap_that_nothing_reaches_leaves_the_promise(run_gateway):
    capped = run_gateway(2, serve={"allow": ["error"], "max_cost": 13.5}, fit=TESTED)
    assert post(capped, error=0.35).headers["x-ttamer-promise"] == "certified"


def test_the_operators_own_error_is_reported_with_every_answer(run_gateway):
    gateway = run_gateway(2, serve={"error": 0.001}, fit=TESTED)
    assert post(gateway).headers["x-ttamer-promise"] == "not-certified"
    (warning,) = warnings_of(gateway)
    assert warning.startswith("error at most 0.10% with confidence 0.95: not certified")


def test_without_rows_held_out_no_error_can_be_chosen(run_gateway):
    gateway = run_gateway(2, serve={"allow": ["error"]})
    reply = post(gateway, error=0.1)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "choice_not_allowed")
    assert "hold_out" in reply.json()["error"]["message"]


def test_limits_of_budget_and_error_are_the_operators(run_gateway):
    ranges = {"budget_range": [2.0, 9.0], "error_range": [0.1, 0.4]}
    gateway = run_gateway(2, serve={"allow": ["budget", "error"], **ranges}, fit=TESTED)
    for choice in ({"budget": 1.9}, {"budget": 9.1}, {"error": 0.09}, {"error": 0.41},
                   {"tradeoff": 0.9}):  # fmt: skip
        assert post(gateway, **choice).status_code == 400
    assert not any(upstream.count for upstream in gateway.served.upstreams.values())
    for choice in ({"budget": 2.0}, {"budget": 9.0}, {"error": 0.1}, {"error": 0.4}):
        assert post(gateway, **choice).status_code == 200


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_asked_alone_takes_no_choice_that_is_not_allowed(run_gateway, nodes):
    gateway = run_gateway(nodes, serve={"direct": True})
    body = {**ASK, "model": "small"}
    headers = {"x-ttamer-tradeoff": "0.5"}
    reply = httpx.post(f"{gateway.url}/chat/completions", json=body, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "choice_not_allowed")


def test_a_node_asked_by_its_name_may_not_pass_the_cap(run_gateway):
    gateway = run_gateway(2, serve={"direct": True, "max_cost": 6.0})
    replies = {
        name: httpx.post(f"{gateway.url}/chat/completions", json={**ASK, "model": name})
        for name in ("small", "large")
    }
    assert replies["small"].status_code == 200
    assert replies["large"].status_code == 400
    assert gateway.served.upstreams["large"].count == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_slow_call_is_made_twice_and_both_are_paid(run_gateway, nodes):
    gateway = run_gateway(nodes, serve={"hedge": 0.05, "tradeoff": 0.0})
    small = gateway.served.upstreams["small"]
    small.plan = ["slow", "ok"]
    reply = post(gateway)
    assert reply.status_code == 200
    assert reply.headers["x-ttamer-path"] == reply.headers["x-ttamer-answered-by"] == "small"
    assert float(reply.headers["x-ttamer-cost"]) == 2.0
    assert small.count == 2
    assert gateway.metric("ttamer_hedged_total") == 1
    assert gateway.metric("ttamer_asked_total") == 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_second_call_that_would_pass_the_cap_is_not_made(run_gateway, nodes):
    gateway = run_gateway(nodes, serve={"hedge": 0.01, "tradeoff": 0.0, "max_cost": 1.5},
                          node={"small": {"timeout": 1.0}})  # fmt: skip
    small = gateway.served.upstreams["small"]
    small.mode = "slow"
    assert post(gateway).status_code == 502
    assert small.count == 1
    assert gateway.metric("ttamer_cost_total") == 1.0


def test_two_calls_that_both_fail_are_both_paid(run_gateway):
    gateway = run_gateway(1, serve={"hedge": 0.05}, node={"small": {"timeout": 1.0}})
    small = gateway.served.upstreams["small"]
    small.mode = "slow"
    assert post(gateway).status_code == 502
    assert small.count == 2
    assert gateway.metric("ttamer_cost_total") == 2.0
    assert gateway.metric("ttamer_failed_total") == 1


def test_one_policy_is_made_at_a_time_whatever_requests_are_cancelled(run_gateway, monkeypatch):
    gateway = run_gateway(2, serve={"allow": ["tradeoff"]})
    policies = gateway.gateway.policies.current.policies
    begun, may_end, made = threading.Event(), threading.Event(), []
    choose = policies._choose

    def slowly(point):
        made.append(point[1])
        begun.set()
        assert may_end.wait(LONGEST_WAIT)
        return choose(point)

    monkeypatch.setattr(policies, "_choose", slowly)

    async def go():
        first = asyncio.create_task(policies.choose(("tradeoff", 0.5)))
        await asyncio.to_thread(begun.wait, LONGEST_WAIT)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        is_next_waiting = policies._choosing.locked()
        may_end.set()
        await policies.choose(("tradeoff", 0.6))
        await policies.choose(("tradeoff", 0.5))
        return is_next_waiting

    assert gateway.do(go())
    assert made == [0.5, 0.6]  # what was made for a cancelled request is kept


def test_a_policy_alone_has_one_operating_point(run_gateway):
    gateway = run_gateway(2, serve={"tradeoff": None})
    tt.save(gateway.served.ladder.at(0.9), gateway.served.artefact)
    assert gateway.do(gateway.gateway.policies.reload()).ok
    assert post(gateway).status_code == 200
    assert post(gateway, tradeoff=0.9).status_code == 400


def test_without_an_operating_point_the_default_of_the_ladder_answers(run_gateway):
    gateway = run_gateway(serve={"tradeoff": None})
    policies = gateway.gateway.policies.current.policies
    expected = gateway.served.ladder.default()
    assert policies.standard.cascade.policy.described == expected.described
    (line,) = [line for line in gateway.log if line["event"] == "operating point"]
    assert "as accurate as the best single model" in line["message"]
    assert post(gateway).status_code == 200


def test_the_cost_of_a_mistake_is_an_operating_point(run_gateway):
    gateway = run_gateway(serve={"mistake_cost": 40.0})
    policies = gateway.gateway.policies.current.policies
    expected = gateway.served.ladder.for_mistake_cost(40.0)
    assert policies.standard.cascade.policy.tradeoff == expected.tradeoff
    assert policies.described.startswith("mistake cost 40: ")


def test_a_policy_that_asks_one_node_only_gets_a_warning(run_gateway):
    gateway = run_gateway(serve={"tradeoff": 0.0})
    (line,) = [line for line in gateway.log if line["event"] == "warning"]
    assert "only ever asks 'small'" in line["message"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cost = 12.5", "cost = 500", "cost 12.5 of 'large', and it is 500 now"),
        ('order = "any"', 'order = "any"\ntarget = "last"', "target 'label', and it is 'last'"),
        (
            'order = "any"',
            'order = "any"\nmistakes = {a = {b = 9}}',
            "equal mistakes, and there are",
        ),
    ],
)
def test_a_policy_fitted_for_another_cascade_is_refused(served, old, new, said):
    served.cascade.write_text(served.cascade.read_text().replace(old, new))
    settings = read_settings(served.cascade)
    with pytest.raises(ArtefactError, match=said):
        Gateway(settings, served.artefact).load()
    Gateway(settings, served.artefact, force=True).load()


def test_policies_for_new_choices_leave_time_for_other_requests(run_gateway, monkeypatch):
    gateway = run_gateway(serve={"allow": ["budget"]})
    made, original = [], Policies._choose

    def choose(self, point):
        start = time.monotonic()
        found = original(self, point)
        time.sleep(0.05)
        made.append((start, time.monotonic()))
        return found

    monkeypatch.setattr(Policies, "_choose", choose)
    policies = gateway.gateway.policies.current.policies

    async def ask():
        await asyncio.gather(*(policies.choose(("budget", 5.0 + number)) for number in range(3)))

    gateway.do(ask())
    for (begun, ended), (following, _) in itertools.pairwise(made):
        assert following - ended >= 2.9 * (ended - begun)
