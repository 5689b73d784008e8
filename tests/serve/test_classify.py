"""``/v1/classify``: a cascade of classifiers, whose confidence is a field of their response."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from support.faulty_upstream import truth

FIELDS = {"confidence": "field", "field": "score", "answer": "label"}


@pytest.fixture(params=[1, 2, 3])
def gateway(request, run_gateway):
    names = ("small", "middle", "large")
    return run_gateway(request.param, serve={"compare": "exact"}, node=dict.fromkeys(names, FIELDS))


def classify(gateway, text, **fields):
    body = {"input": text, **fields}
    return httpx.post(f"{gateway.url}/classify", json=body, timeout=30.0)


def test_a_text_gets_a_label(gateway):
    for number in range(10):
        text = f"text {number}"
        reply = classify(gateway, text)
        found = reply.json()
        label, sure = gateway.served.upstreams[found["model"]].answer(text, 0)
        assert (found["label"], found["confidence"]) == (label, pytest.approx(sure))
        assert found["object"] == "classification"
        assert found["path"] == reply.headers["x-ttamer-path"].split(",")
        assert found["cost"] == float(reply.headers["x-ttamer-cost"])
        assert found["why"]


def test_upstreams_are_sent_the_text_alone(gateway):
    classify(gateway, "text", model="ttamer")
    sent = gateway.served.upstreams["small"].requests
    assert sent in ([{"input": "text", "model": "small"}], [])


def test_a_model_that_fails_leaves_the_others(run_gateway):
    nodes = {"small": FIELDS, "large": FIELDS}
    gateway = run_gateway(2, serve={"compare": "exact", "tradeoff": 0.5}, node=nodes)
    gateway.served.upstreams["small"].mode = "garbage"
    reply = classify(gateway, "text")
    assert reply.json()["model"] == "large"
    assert gateway.metric("ttamer_failed_total") == 1


def test_a_response_without_the_field_is_a_failure(run_gateway):
    gateway = run_gateway(1, node={"small": {**FIELDS, "field": "sureness"}})
    assert classify(gateway, "text").status_code == 502


def test_most_labels_are_right(run_gateway):
    names = ("small", "middle", "large")
    gateway = run_gateway(3, serve={"tradeoff": 1.0}, node=dict.fromkeys(names, FIELDS))
    texts = [f"text {number}" for number in range(40)]
    right = sum(classify(gateway, text).json()["label"] == truth(text) for text in texts)
    assert right >= 30
