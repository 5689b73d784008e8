"""What the status page is sent."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from types import MappingProxyType, SimpleNamespace

import pytest

import ttamer as tt
from support.traces import answering_trace
from ttamer.serve.bill import NodeBill
from ttamer.serve.observability.record import RequestRecord
from ttamer.serve.observability.status import (
    PAGE,
    PAGE_HEADERS,
    Frontier,
    Rung,
    Status,
    frontier_of,
    summed,
)

COSTS = {"small": 1.0, "middle": 4.0, "large": 20.0}
POINT = Frontier((Rung(0.9, 5.0, 0.1),), Rung(0.9, 5.0, 0.1))


@pytest.fixture(scope="module")
def ladder():
    return tt.fit(answering_trace(400), order="skip", states=8)


def asked(node, error=None):
    return SimpleNamespace(
        node=node, prediction="a", confidence=0.5, cost=COSTS.get(node, 0.0), seconds=0.1,
        error=error,
    )  # fmt: skip


def serve(status: Status, *path, code=200, by=None, cost=None):
    cost = sum(seen.cost for seen in path) if cost is None else cost
    status.finished(RequestRecord("id", "/v1/x", code, 0.2, asked=path, by=by, cost=cost))


def shown(status: Status, **facts) -> dict:
    data = status.to_dict(POINT, version="ab", **facts)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return data


def test_traffic_and_bill():
    status = Status(COSTS, "answers", clock=lambda: 5.0)
    serve(status, asked("small"), by="small")
    serve(status, asked("small", "timeout"), asked("large"), by="large")
    serve(status, asked("small", "timeout"), code=502)
    serve(status, code=429)
    data = shown(status, running=2, waiting=3, rows_lost=4)
    assert data["nodes"] == [
        {"name": "small", "cost": 1.0, "asked": 3, "answered": 1, "failed": 2, "spent": 3.0,
         "failures": {"timeout": 2}},
        {"name": "middle", "cost": 4.0, "asked": 0, "answered": 0, "failed": 0, "spent": 0.0,
         "failures": {}},
        {"name": "large", "cost": 20.0, "asked": 1, "answered": 1, "failed": 0, "spent": 20.0,
         "failures": {}},
    ]  # fmt: skip
    assert data["requests"] == {
        "all": 4, "decided": 3, "refused": 1, "failed": 1, "running": 2, "waiting": 3,
    }  # fmt: skip
    bill = data["bill"]
    always = bill["most_expensive"], bill["always_most_expensive"]
    assert (bill["spent"], *always) == (23.0, "large", 60.0)
    assert bill["mean"] == bill["recent_mean"] == pytest.approx(23 / 3)
    assert bill["saved"] == pytest.approx(1 - 23 / 60)
    assert (data["name"], data["rows_lost"], data["version"]) == ("answers", 4, "ab")


def test_before_the_first_request():
    bill = shown(Status(COSTS))["bill"]
    assert bill["mean"] is bill["recent_mean"] is bill["saved"] is None


def test_nodes_that_are_free():
    status = Status({"a": 0.0})
    serve(status, asked("a"), by="a")
    assert shown(status)["bill"]["saved"] is None


def test_with_prices_by_token_the_mean_cost_of_calls_is_compared():
    status = Status({"small": 0.0, "large": 0.0}, priced_by_token=["small", "large"])
    fitted = dataclasses.replace(POINT, node_costs={"small": 1.5, "large": 30.0})
    serve(status, asked("small"), by="small")
    data = status.to_dict(fitted, version="ab")
    assert [node["cost"] for node in data["nodes"]] == [1.0, 30.0]
    bill = data["bill"]
    assert (bill["most_expensive"], bill["always_most_expensive"]) == ("large", 20.0)
    assert data["bill"]["saved"] == pytest.approx(1 - 1 / 20)
    serve(status, asked("small"), asked("large"), by="large")
    serve(status, asked("large", "timeout"), code=502, cost=500.0)
    data = status.to_dict(fitted, version="ab")
    assert data["nodes"][1]["cost"] == 20.0
    guess = SimpleNamespace(node="large", cost=90.0, error=None)
    bill = {"large": NodeBill(1, 90.0, 90.0, None)}
    status.finished(RequestRecord("id", "/v1/x", 200, 0.2, asked=(guess,), cost=90.0, bill=bill))
    assert status.to_dict(fitted, version="ab")["nodes"][1]["cost"] == 20.0


def test_a_long_prompt_that_the_largest_model_did_not_see_is_priced_for_it_too():
    status = Status({"small": 0.0, "large": 0.0}, priced_by_token=["small", "large"])
    fitted = dataclasses.replace(POINT, node_costs={"small": 1.0, "large": 25.0})
    long = SimpleNamespace(node="small", cost=1000.0, error=None)
    serve(status, long, by="small")
    serve(status, asked("small"), asked("large"), by="large")
    bill = status.to_dict(fitted, version="ab")["bill"]
    assert (bill["most_expensive"], bill["always_most_expensive"]) == ("large", 25_020.0)
    assert bill["saved"] == pytest.approx(1 - 1021 / 25_020)


def test_a_fit_has_the_cost_of_each_node(ladder):
    costs = frontier_of(ladder, ladder.at(0.9)).node_costs
    assert dict(costs) == dict(zip(ladder.spec.names, ladder.rungs.node_costs, strict=True))


def test_the_live_mean_forgets():
    status = Status(COSTS)
    for _ in range(600):
        serve(status, asked("large"), by="large")
    for _ in range(500):
        serve(status, asked("small"), by="small")
    assert shown(status)["bill"]["recent_mean"] == 1.0


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_a_cost_that_is_none_spoils_no_sum(cost):
    status = Status(COSTS)
    serve(status, asked("small"), by="small", cost=cost)
    assert shown(status)["bill"]["spent"] == 0


def test_unknown_nodes_are_not_counted():
    status = Status(COSTS)
    serve(status, asked("who"), by="who")
    assert all(node["asked"] == 0 for node in shown(status)["nodes"])


def test_the_last_events_the_latest_first():
    status = Status(COSTS)
    for number in range(60):
        status.event("reload", f"event {number}", ok=number % 2 == 0)
    events = shown(status)["events"]
    assert [event["text"] for event in events] == [f"event {n}" for n in range(59, 9, -1)]
    assert not events[0]["ok"]


def test_without_audits_there_is_no_drift_and_without_admin_no_controls():
    data = shown(Status(COSTS))
    assert (data["drift"], data["admin"]) == (None, False)


def test_what_the_auditor_reports_is_passed_on():
    drift = {"share": 0.05, "loop": {"state": "watching", "tests": [], "events": []}}
    data = shown(Status(COSTS), drift=MappingProxyType(drift), admin=True)
    assert (data["drift"], data["admin"]) == (drift, True)


def test_the_frontier_of_a_ladder_is_what_was_measured(ladder):
    found = frontier_of(ladder, ladder.at(0.98))
    points = list(zip(ladder.rungs.costs.tolist(), ladder.rungs.errors.tolist(), strict=True))
    assert 1 < len(found.rungs) <= len(ladder)
    assert {(rung.cost, rung.error) for rung in found.rungs} == set(points)
    place = ladder.tradeoffs.index(ladder.at(0.98).tradeoff)
    assert (found.operating.cost, found.operating.error) == points[place]


def test_the_frontier_of_a_ladder_without_estimates_is_what_the_fit_expects(ladder):
    policy = ladder.at(0.98)
    found = frontier_of(dataclasses.replace(ladder, rungs=None), policy)
    full = policy.fitted.full_cost
    assert found.operating == Rung(
        policy.tradeoff, full * policy.policy.expected_cost, policy.policy.expected_loss
    )
    assert found.rungs[0].cost == pytest.approx(1.0)
    assert all(0 <= rung.error <= 1 for rung in found.rungs)


def test_the_frontier_of_a_mixture_and_of_one_policy(ladder):
    mixture = ladder.for_budget(5.0)
    operating = frontier_of(ladder, mixture).operating
    assert operating.cost == pytest.approx(5.0)
    assert operating.cost == pytest.approx(mixture.cost)
    assert operating.error == pytest.approx(mixture.error)
    alone = frontier_of(ladder[0], ladder[0])
    assert alone.rungs == (alone.operating,)
    assert alone.operating.cost == pytest.approx(1.0)


def test_the_page_asks_for_nothing_from_elsewhere():
    text = PAGE.decode()
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.findall(r"\son[a-z]+=|\sstyle=|innerHTML|outerHTML|insertAdjacent|eval\(", text)


def test_the_policy_of_the_page_has_its_script_and_style():
    policy = PAGE_HEADERS["content-security-policy"]
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


def test_the_data_of_workers_are_summed():
    """Two workers together show what one would that had all the requests."""
    one, two, both = (Status(COSTS, clock=lambda: 5.0) for _ in range(3))
    for each in (one, both):
        serve(each, asked("small"), by="small")
        serve(each, asked("small", "timeout"), asked("large"), by="large")
        each.event("start", "first")
    for each in (two, both):
        serve(each, asked("large"), by="large")
        serve(each, code=429)
    parts = [
        {"worker": number, **shown(each, running=1, rows_lost=2)}
        for number, each in enumerate((one, two))
    ]
    found = summed(parts)
    assert found.pop("workers") == [
        {"worker": "0", "version": "ab"},
        {"worker": "1", "version": "ab"},
    ]
    assert found == {"worker": 0, **shown(both, running=2, rows_lost=4)}


def test_what_is_spent_on_embeddings_is_in_no_mean_of_workers_either():
    status = Status(COSTS)
    serve(status, asked("small"), by="small")
    status.paid(RequestRecord("id", "/v1/embeddings", 200, 0.1, cost=5.0))
    alone = shown(status)["bill"]
    assert (alone["spent"], alone["mean"], alone["saved"]) == (6.0, 1.0, 0.95)
    both = summed([{"worker": number, **shown(status)} for number in range(2)])["bill"]
    assert (both["spent"], both["mean"], both["saved"]) == (12.0, 1.0, 0.95)


def test_workers_without_traffic_are_summed():
    parts = [{"worker": number, **shown(Status(COSTS))} for number in range(2)]
    assert summed(parts)["bill"]["mean"] is None
