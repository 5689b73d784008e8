"""Streams of the cascade: relayed from the last node, kept alive, and asked for ahead of need."""

from __future__ import annotations

import json

import httpx2 as httpx
import pytest

from ttamer.errors import CascadeError
from ttamer.serve.config import settings_from
from ttamer.serve.sse import DONE, event_of
from ttamer.serve.streaming import _Assembled
from ttamer.serve.upstreams.node import Node
from ttamer.trace.spec import CascadeSpec

UNSURE, SURE = 0.26, 0.99
ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "q"}], "stream": True}
LONG = "B: and some more words"
EARLY = {"small": {"prefix": {"tokens": 2, "confidence": 0.9}}}


def answering(served, small=UNSURE, large=SURE, text=LONG):
    """Set what both nodes answer, and how certain they are."""
    served.upstreams["small"].answer = lambda *_: ("A", small)
    served.upstreams["large"].answer = lambda *_: (text, large)


def stream(gateway, **more):
    return httpx.stream("POST", f"{gateway.url}/chat/completions", json={**ASK, **more}, timeout=30)


def contents(lines):
    """Yield the text of each event."""
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def test_the_last_nodes_tokens_arrive_while_it_answers(run_gateway):
    gateway = run_gateway(2)
    answering(gateway.served)
    large = gateway.served.upstreams["large"]
    large.hold_after = 1
    with stream(gateway) as response:
        assert response.headers["x-ttamer-path"] == "small,large"
        lines = response.iter_lines()
        texts = contents(lines)
        first = next(text for text in texts if text)
        assert first == LONG[:4]  # while the rest waits
        large.release()
        assert first + "".join(texts) == LONG
    (sent,) = large.requests
    assert sent["stream"] is True
    assert "logprobs" not in sent
    assert gateway.metric("ttamer_cost_total") == 13.5


def test_events_are_in_the_cascades_name_and_tokens_are_booked(run_gateway):
    per_token = {"input": 1.0, "output": 2.0}
    gateway = run_gateway(2, node={"large": {"cost_per_token": per_token}})
    answering(gateway.served)
    with stream(gateway) as response:
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    events = [json.loads(each) for each in data[:-1]]
    assert {event["model"] for event in events} == {"large"}
    (name,) = {event["id"] for event in events}
    assert name == "chatcmpl-" + response.headers["x-request-id"]
    assert all(event["choices"] and "usage" not in event for event in events)
    tokens = len(LONG.split(" "))
    assert gateway.metric("ttamer_cost_total") == 1.0 + 12.5 + 1.0 + 2.0 * tokens


def test_usage_is_in_the_last_event_alone(run_gateway):
    """As of Azure, whose streams begin with an event without choices."""
    gateway = run_gateway(2)
    answering(gateway.served)
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    events = [
        {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "usage": None},
        {"choices": [{"index": 0, "delta": {"content": "B"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    large = gateway.served.upstreams["large"]
    large.raw = b"".join([*map(event_of, events), DONE])
    large.raw_type = "text/event-stream"
    with stream(gateway, stream_options={"include_usage": True}) as response:
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    first, _, last = (json.loads(each) for each in data[:-1])
    assert (first.get("usage"), "ttamer" in first) == (None, False)
    assert last["usage"]["completion_tokens"] == 1 + 2  # of both nodes
    assert [each["node"] for each in last["ttamer"]["nodes"]] == ["small", "large"]


@pytest.mark.parametrize("mode", ["decided", "whole"])
def test_where_an_earlier_answer_may_be_returned_nothing_is_relayed(run_gateway, mode):
    gateway = run_gateway(2, serve={"stream": mode})
    answering(gateway.served, small=0.5)
    with stream(gateway) as response:
        assert "".join(contents(response.iter_lines()))
    (sent,) = gateway.served.upstreams["large"].requests
    assert sent["logprobs"] is True
    assert "stream" not in sent


@pytest.mark.parametrize("speculate", [False, True])
def test_an_answer_that_is_returned_whatever_it_is_is_relayed_where_choices_are_kept(
    run_gateway, speculate
):
    ahead = {"speculate": speculate, "speculate_chance": 0.01, "speculate_budget": 1.0}
    gateway = run_gateway(2, serve={"stream": "decided", **ahead})
    answering(gateway.served)
    large = gateway.served.upstreams["large"]
    if speculate:  # the whole answer is under way already, and is not asked for twice
        gateway.gateway.speculation.spent = 1e6
    else:
        large.hold_after = 1
    with stream(gateway) as response:
        texts = contents(response.iter_lines())
        first = next(text for text in texts if text)
        assert first == (LONG if speculate else LONG[:4])
        large.release()
        assert first + "".join(texts) == LONG
    (sent,) = large.requests
    assert ("stream" in sent) is not speculate


def test_a_node_that_cannot_stream_is_asked_for_its_whole_answer(run_gateway, monkeypatch):
    monkeypatch.setattr(Node, "can_stream", False)
    gateway = run_gateway(2, node=EARLY)
    answering(gateway.served)
    with stream(gateway) as response:
        assert "".join(contents(response.iter_lines()))
    assert not any("stream" in sent for one in gateway.served.upstreams.values()
                   for sent in one.requests)  # fmt: skip


def test_a_node_that_does_not_begin_is_like_one_that_fails(run_gateway):
    gateway = run_gateway(2)
    answering(gateway.served)
    gateway.served.upstreams["large"].mode = "error"
    with stream(gateway) as response:
        assert response.status_code == 200
        assert response.headers["x-ttamer-answered-by"] == "small"
        assert "".join(contents(response.iter_lines())) == "A"


def test_a_node_that_does_not_stream_is_read_whole(run_gateway):
    gateway = run_gateway(2)
    answering(gateway.served)
    choice = {"index": 0, "message": {"role": "assistant", "content": "C"}, "finish_reason": "stop"}
    gateway.served.upstreams["large"].raw = json.dumps({"choices": [choice]}).encode()
    with stream(gateway) as response:
        assert "".join(contents(response.iter_lines())) == "C"


@pytest.mark.parametrize(
    ("raw", "kind"), [(b"{}", "garbage"), (b"[", "garbage"), (b"[" * 3000, "too_large")]
)
def test_a_whole_answer_that_cannot_be_used_is_a_failure_of_its_node(run_gateway, raw, kind):
    gateway = run_gateway(2, node={"large": {"max_response": 2000}})
    answering(gateway.served)
    gateway.served.upstreams["large"].raw = raw
    with stream(gateway) as response:
        assert response.status_code == 502
    (line,) = [line for line in gateway.log if line["event"] == "request"]
    assert line["failed"] == {"large": kind}
    assert gateway.metric("ttamer_failed_total") == 1


def test_a_stream_that_breaks_ends_with_an_error_of_the_gateways_own(run_gateway):
    gateway = run_gateway(2)
    answering(gateway.served)
    gateway.served.upstreams["large"].mode = "truncated"
    with stream(gateway) as response:
        assert response.status_code == 200
        last = [line for line in response.iter_lines() if line][-1]
    assert json.loads(last[6:])["error"]["code"] == "upstream_failed"


def test_comments_keep_a_waiting_stream_open(run_gateway):
    gateway = run_gateway(2, serve={"keep_alive": 0.02})
    answering(gateway.served)
    small = gateway.served.upstreams["small"]
    small.mode = "slow"
    with stream(gateway) as response:
        lines = response.iter_lines()
        assert next(lines) == ": waiting"
        small.release()
        assert "".join(contents(lines)) == LONG


def test_all_nodes_failing_has_its_own_status_unless_a_comment_was_sent(run_gateway):
    gateway = run_gateway(2)
    for upstream in gateway.served.upstreams.values():
        upstream.mode = "error"
    with stream(gateway) as response:
        assert response.status_code == 502
    assert gateway.metric("ttamer_cost_total") == 13.5


def test_the_next_node_is_called_ahead_within_the_budget(run_gateway):
    serve = {"speculate": True, "speculate_chance": 0.0, "speculate_budget": 1.0}
    gateway = run_gateway(2, serve=serve | {"keep_alive": 0.02})
    answering(gateway.served)
    small, large = gateway.served.upstreams.values()
    speculation = gateway.gateway.speculation
    with stream(gateway) as response:
        response.read()
    assert (large.count, speculation.wasted) == (1, 0)  # there was no budget
    speculation.spent = 1e6
    small.mode = "slow"
    with stream(gateway) as response:
        large.wait_for(2)  # while small has not answered
        small.mode = "ok"
        small.release()
        assert "".join(contents(response.iter_lines())) == LONG
    assert (large.count, speculation.wasted) == (2, 0)
    answering(gateway.served, small=SURE)
    before = gateway.metric("ttamer_cost_total")
    with stream(gateway) as response:
        assert "".join(contents(response.iter_lines())) == "A"
    assert gateway.metric("ttamer_cost_total") - before == 13.5  # both calls are paid
    assert speculation.wasted == 12.5
    speculation.spent = 12.0
    with stream(gateway) as response:
        response.read()
    assert speculation.wasted == 12.5


def test_likely_first_tokens_are_relayed_before_the_answer_is_complete(run_gateway):
    gateway = run_gateway(2, node=EARLY)
    small, large = gateway.served.upstreams.values()
    small.answer = lambda *_: ("A is the answer", SURE)
    small.hold_after = 2
    with stream(gateway) as response:
        assert response.headers["x-ttamer-path"] == "small"
        lines = response.iter_lines()
        texts = contents(lines)
        first = next(text for text in texts if text)
        assert first == "A"  # while the rest waits
        small.release()
        assert first + "".join(texts) == "A is the answer"
    assert (small.count, large.count) == (1, 0)
    assert small.requests[0]["logprobs"] is True
    assert gateway.metric("ttamer_cost_total") == 1.0


def test_unlikely_first_tokens_leave_the_decision_to_the_whole_answer(run_gateway):
    gateway = run_gateway(2, node=EARLY)
    answering(gateway.served)
    small = gateway.served.upstreams["small"]
    small.answer = lambda *_: ("A is the answer", UNSURE)
    with stream(gateway) as response:
        assert response.headers["x-ttamer-path"] == "small,large"
        assert "".join(contents(response.iter_lines())) == LONG
    small.answer = lambda *_: ("A", SURE)  # shorter than the prefix
    with stream(gateway) as response:
        assert response.headers["x-ttamer-path"] == "small"
        assert "".join(contents(response.iter_lines())) == "A"
    small.mode = "error"
    with stream(gateway) as response:
        assert response.headers["x-ttamer-answered-by"] == "large"
        response.read()


@pytest.mark.parametrize("raw", [None, b"no stream"])
def test_a_node_that_has_answered_is_free_while_the_next_one_answers(run_gateway, raw):
    limited = {**EARLY["small"], "max_concurrent": 1, "max_wait": 0}
    gateway = run_gateway(2, node={"small": limited})
    answering(gateway.served)
    small, large = gateway.served.upstreams.values()
    small.raw, small.raw_type = raw, "text/plain"
    large.hold_after = 1
    with stream(gateway) as first:
        assert first.headers["x-ttamer-path"] == "small,large"
        small.raw = None
        small.answer = lambda *_: ("A is the answer", SURE)
        with stream(gateway) as second:
            assert second.headers["x-ttamer-path"] == "small"
            second.read()
        large.release()
        first.read()


@pytest.mark.parametrize(
    "choice",
    [
        '"no object"',
        '{"delta": {"tool_calls": 3}}',
        '{"delta": {"tool_calls": [{"function": {"name": 3}}]}}',
        '{"delta": {"tool_calls": [{"index": 1000000000}]}}',
    ],
)
def test_a_stream_of_something_else_is_a_failed_node(run_gateway, choice):
    gateway = run_gateway(2, node=EARLY)
    answering(gateway.served)
    small = gateway.served.upstreams["small"]
    small.raw, small.raw_type = (
        b'data: {"choices": [%s]}\n\n' % choice.encode(),
        "text/event-stream",
    )
    with stream(gateway) as response:
        assert response.headers["x-ttamer-answered-by"] == "large"
        response.read()
    assert gateway.log[-1]["failed"] == {"small": "garbage"}


def test_a_relayed_prefix_shows_no_log_probabilities_unless_requested(run_gateway):
    gateway = run_gateway(2, node=EARLY)
    gateway.served.upstreams["small"].answer = lambda *_: ("A is the answer", SURE)
    found = []
    for wanted in (False, True):
        with stream(gateway, logprobs=wanted) as response:
            data = [json.loads(x[6:]) for x in response.iter_lines() if x.startswith("data: {")]
        found.append(any(c.get("logprobs") for each in data for c in each["choices"]))
    assert found == [False, True]


def test_a_stream_is_looked_at_again_after_more_tokens(run_gateway):
    steps = [{"tokens": 1, "confidence": 0.995}, {"tokens": 3, "confidence": 0.9}]
    gateway = run_gateway(2, node={"small": {"prefix": steps}})
    small = gateway.served.upstreams["small"]
    small.answer = lambda *_: ("A is the answer", SURE)
    small.hold_after = 3
    with stream(gateway) as response:
        assert response.headers["x-ttamer-path"] == "small"  # while the rest waits
        small.release()
        assert "".join(contents(response.iter_lines())) == "A is the answer"


def test_refusals_and_reasoning_in_parts_are_put_together():
    whole = _Assembled()
    for part in ({"reasoning_content": "so "}, {"reasoning_content": "far", "refusal": "I "},
                 {"content": "B", "refusal": "cannot"}):  # fmt: skip
        whole.add({"choices": [{"index": 0, "delta": part}]})
    message = whole.response()["choices"][0]["message"]
    assert (message["reasoning_content"], message["refusal"]) == ("so far", "I cannot")
    assert message["content"] == "B"


TWICE = "[{tokens = 4, confidence = 0.9}, {tokens = 4, confidence = 0.8}]"


@pytest.mark.parametrize("prefix", ["[]", TWICE])
def test_numbers_of_tokens_increase(prefix):
    node = "[[node]]\nname = 'a'\ncost = 1\nupstream = 'http://127.0.0.1:1/v1'\n"
    with pytest.raises(CascadeError, match="a list of them by tokens"):
        settings_from(CascadeSpec.from_toml(f"{node}prefix = {prefix}"))
