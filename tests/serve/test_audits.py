"""Audits beside traffic: no request waits for them, no node is asked twice, losses are counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest

from support.changing import COSTS, LOOP, Traffic, models, write_changing
from support.running_gateway import running
from support.waiting import until
from ttamer.drift.audit_log import read_log
from ttamer.errors import CascadeError, TraceError
from ttamer.serve import drift as auditing
from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway


@pytest.fixture
def upstreams():
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(model) for name, model in models().items()}


@pytest.fixture
def serve(tmp_path, upstreams):
    """Serve with audits and without a loop; ``serve(share=0.5)``."""
    stack = []

    def start(*, serve=None, target="last", loop=False, **audit):
        changing = write_changing(
            tmp_path, upstreams, audit=audit, serve=serve, target=target, loop=loop
        )
        context = running(changing.cascade, changing.artefact)
        traffic = Traffic(context.__enter__())
        traffic.changing = changing
        stack.append((context, traffic))
        return traffic

    yield start
    for context, traffic in reversed(stack):
        traffic.client.close()
        context.__exit__(None, None, None)


def counts(traffic):
    return {name: len(each.requests) for name, each in traffic.changing.upstreams.items()}


def test_every_node_is_asked_once_about_an_audited_request(tmp_path, upstreams):
    changing = write_changing(tmp_path, upstreams, loop=False)
    with running(changing.cascade, changing.artefact) as gateway, Traffic(gateway) as traffic:
        replies = traffic.send(30)
        status = traffic.settle()
        assert traffic.gateway.metric("ttamer_audits_total") == 30
        extra = traffic.gateway.metric("ttamer_audit_cost_total")
    assert {len(each.requests) for each in upstreams.values()} == {30}
    paid = sum(float(reply.headers["x-ttamer-cost"]) for reply in replies)
    assert 0 < paid < 30 * sum(COSTS.values())
    assert extra == pytest.approx(30 * sum(COSTS.values()) - paid)
    assert status["spent"] == pytest.approx(extra)
    rows = read_log(changing.log)  # whole, once the gateway has ended
    assert len(rows) == 30
    assert set(rows.signals["audit_chance"]) == {1.0}
    expected = sorted(
        tuple(upstream.answer(f"prompt {number}", 0)[0] for upstream in upstreams.values())
        for number in range(1, 31)
    )
    said = [tuple(rows.classes[code] for code in row) for row in rows.prediction]
    assert sorted(said) == expected


def test_no_request_waits_for_an_audit(serve, upstreams):
    traffic = serve(serve={"tradeoff": 0.0})  # the cheap one answers everything
    upstreams["large"].mode = "slow"
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-path"] == "small"
    upstreams["large"].wait_for(1)
    assert traffic.status["written"] == 0
    upstreams["large"].release()
    assert traffic.settle()["written"] == 1


def test_the_share_is_kept_and_clients_cannot_choose(serve):
    traffic = serve(share=0.5)
    traffic.send(100, headers={"x-request-id": "always-the-same"})
    status = traffic.settle()
    assert status["requests"] == 100
    assert 25 < status["audited"] < 75  # by the id alone: all of them, or none


def test_streams_are_audited_too_and_those_who_choose_for_themselves_are_not(serve):
    traffic = serve(serve={"allow": ["tradeoff"], "direct": True})
    assert b"[DONE]" in traffic.send(1, stream=True)[0].content
    assert traffic.settle()["audited"] == 1
    traffic.send(3, ttamer={"tradeoff": 0.9})
    traffic.send(3, headers={"x-ttamer-tradeoff": "0.9"})
    traffic.send(3, model="large")
    assert traffic.settle()["requests"] == 1


def test_a_node_that_fails_costs_the_row_and_nothing_else(serve, upstreams):
    traffic = serve(serve={"tradeoff": 0.0})
    upstreams["large"].mode = "error"
    replies = traffic.send(5)
    assert {reply.headers["x-ttamer-path"] for reply in replies} == {"small"}
    status = traffic.settle()
    assert (status["audited"], status["failed"], status["written"]) == (5, 5, 0)
    text = traffic.gateway.gateway.metrics.text().decode()
    assert 'ttamer_audits_total{result="failed"} 5.0' in text
    upstreams["large"].mode = "ok"
    traffic.send(1)
    assert traffic.settle()["written"] == 1


def test_a_node_that_failed_on_the_way_is_asked_again(serve, upstreams):
    traffic = serve(serve={"tradeoff": 0.0})
    upstreams["small"].plan = ["error"]
    (reply,) = traffic.send(1)
    assert reply.headers["x-ttamer-path"] == "small,large"
    assert traffic.settle()["written"] == 1
    assert counts(traffic) == {"small": 2, "large": 1}


def test_a_budget_ends_audits_and_not_answers(serve):
    traffic = serve(serve={"tradeoff": 0.0}, budget_in_all=60.0)
    traffic.send(60)
    status = traffic.settle()
    assert 0 < status["spent"] <= 60
    assert status["audited"] < 60
    chances = traffic.gateway.gateway.audits._auditor.sampler
    assert chances.draw("next", time.time()).chance < 1  # less and less, and kept with each row


def test_audits_that_would_pile_up_are_counted_as_failed(serve, upstreams, monkeypatch):
    monkeypatch.setattr(auditing, "MAX_WAITING", 2)
    traffic = serve(serve={"tradeoff": 0.0}, at_once=1)
    upstreams["large"].mode = "slow"
    traffic.send(5)
    upstreams["large"].wait_for(1)
    assert traffic.status["failed"] == 3
    assert upstreams["large"].open == 1  # one at a time
    upstreams["large"].mode = "ok"
    upstreams["large"].release()
    assert traffic.settle()["written"] == 2


def test_an_end_in_the_middle_of_an_audit_is_no_long_end(tmp_path, upstreams):
    changing = write_changing(tmp_path, upstreams, loop=False, serve={"tradeoff": 0.0})
    upstreams["large"].mode = "slow"
    with running(changing.cascade, changing.artefact) as gateway, Traffic(gateway) as traffic:
        traffic.send(2)
        upstreams["large"].wait_for(2)
        auditor = gateway.gateway.audits._auditor
    assert (auditor.failed, auditor.written) == (2, 0)
    upstreams["large"].release()


def test_a_log_that_is_taken_is_an_error_at_the_start(serve):
    traffic = serve()
    changing = traffic.changing

    async def start_another():
        async with Gateway(read_settings(changing.cascade), changing.artefact):
            pass

    with pytest.raises(TraceError, match="another process writes this log"):
        asyncio.run(start_another())
    traffic.send(1)
    assert traffic.settle()["written"] == 1


# Labels


def labelled(traffic, reply, label, **more):
    body = {"request": reply.headers["x-request-id"], "label": label} | more
    return traffic.client.post("/v1/labels", json=body)


def test_a_label_joins_its_row_and_the_loop_sees_it(serve):
    traffic = serve(target="label", loop=True)
    one, two = traffic.send(2)
    status = traffic.settle()
    assert (status["seen"], status["unlabelled"], status["written"]) == (0, 2, 2)
    assert labelled(traffic, one, "The answer is (B).").json()["audited"] is True
    assert labelled(traffic, one, "B").json()["audited"] is False  # it has one
    unknown = traffic.client.post("/v1/labels", json={"request": "nobody", "label": "B"})
    assert unknown.json() == {"request": "nobody", "audited": False}
    until(lambda: traffic.status["seen"] >= 1)
    status = traffic.status
    assert (status["seen"], status["unlabelled"], status["written"]) == (1, 1, 3)
    assert two.status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"request": "x"}, 400, "bad_field"),
        ({"request": "x", "label": 3}, 400, "bad_field"),
        ({"request": "x", "label": "B", "more": 1}, 400, "bad_field"),
        ({"request": "x" * 65, "label": "B"}, 400, "bad_field"),
        ({"request": "x", "label": "?"}, 400, "bad_label"),
    ],
)
def test_labels_that_cannot_be_are_refused(serve, body, status, code):
    reply = serve(target="label").client.post("/v1/labels", json=body)
    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code


def test_labels_need_a_key_a_type_and_a_sensible_size(serve, monkeypatch):
    monkeypatch.setenv("GATEWAY_KEYS", "a-key-for-this-test-1")
    traffic = serve(serve={"keys_env": "GATEWAY_KEYS", "max_body": 2000})
    good = json.dumps({"request": "x", "label": "B"}).encode()
    key = {"authorization": "Bearer a-key-for-this-test-1"}
    kind = {"content-type": "application/json"}

    def status(content, headers):
        return traffic.client.post("/v1/labels", content=content, headers=headers).status_code

    assert status(good, kind) == 401
    assert status(good, key) == 415
    assert status(b" " * 3000, key | kind) == 413
    assert status(b"[" * 300, key | kind) == 400
    assert status(good, key | kind) == 200
    assert traffic.client.get("/v1/labels", headers=key).status_code == 405


def test_without_audits_there_is_no_door_for_labels(run_gateway):
    with Traffic(run_gateway(2)) as traffic:
        assert traffic.client.post("/v1/labels", json={}).status_code == 404
        assert traffic.status is None


# What the table may say


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"share": 0}, "share is 0; it must be a number above 0 to 1"),
        ({"share": 1.5}, "above 0 to 1"),
        ({"shares": 1}, "unknown key 'shares'"),
        ({"reference": "x.parquet"}, "has 0; write error"),
        ({"reference": "x.parquet", "error": 0.1, "drop": 0.1}, "has 2"),
        ({"error": 0.1}, "has error, which is for the drift loop"),
        ({"refit_rows": 100}, "has refit_rows, which is for the drift loop"),
        ({"reference": "x", **LOOP, "window": 100}, "window is 100 and refit_rows is 120"),
        ({"log": ""}, "text without control characters"),
        ({"at_once": 0}, "a whole number from 1"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, upstreams, change, says):
    changing = write_changing(tmp_path, upstreams, loop=False, audit=change)
    with pytest.raises(CascadeError) as caught:
        read_settings(changing.cascade)
    assert says in str(caught.value)
    assert "[serve.audit]" in str(caught.value)


def test_a_table_needs_a_share_a_destination_and_two_nodes(make_served):
    for nodes, audit, says in (
        (2, {}, "lacks share"),
        (2, {"share": 0.1}, "have no destination"),
        (1, {"share": 0.1, "log": "x"}, "at least two nodes"),
        (2, 3, "audit is 3; it must be a table"),
    ):
        with pytest.raises(CascadeError, match=says):
            read_settings(make_served(nodes, serve={"audit": audit}).cascade)


def test_the_promise_is_the_operating_point(tmp_path, upstreams):
    changing = write_changing(tmp_path, upstreams, serve={"tradeoff": 0.9})
    with pytest.raises(CascadeError, match="remove tradeoff"):
        read_settings(changing.cascade)


def test_what_is_kept_is_reported_in_rows_bytes_and_days(tmp_path, upstreams):
    keep = {"keep_rows": 1000, "keep_bytes": 10**6, "keep_days": 7}
    changing = write_changing(tmp_path, upstreams, loop=False, audit=keep)
    audit = read_settings(changing.cascade).serve.audit
    assert tuple(vars(audit.retention).values()) == (1000, 10**6, 7 * 86_400.0)
