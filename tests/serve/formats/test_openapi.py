"""The OpenAPI description is true: Schemathesis finds nothing that contradicts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from ttamer.serve.config import read_settings
from ttamer.serve.formats.openapi import description

EXAMPLES = 8
CLASSIFIER = {"confidence": "field", "field": "score", "answer": "label"}
RUNS = {
    "completions": (
        {},
        ["/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/readyz"],
    ),
    "classify": ({"small": CLASSIFIER, "large": CLASSIFIER}, ["/v1/classify", "/v1/labels"]),
}


@pytest.mark.parametrize(("node", "paths"), RUNS.values(), ids=RUNS)
def test_schemathesis_finds_nothing(run_gateway, tmp_path, node, paths):
    serve = {"allow": ["tradeoff"], "tradeoff_range": [0.5, 1.0], "direct": True}
    serve |= {"compare": "exact", "audit": {"share": 0.5, "log": str(tmp_path / "audits")}}
    gateway = run_gateway(2, serve=serve, node=node)
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run",
        f"{gateway.root}/openapi.json", "--max-examples", str(EXAMPLES), "--seed", "1",
        "--phases", "coverage,fuzzing", "--request-timeout", "20", "--no-color",
    ]  # fmt: skip
    for path in paths:
        command += ["--include-path", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert gateway.metric("ttamer_requests_in_flight") == 0
    assert not [line for line in gateway.log if line["event"] == "failure"]


def test_every_route_of_the_api_is_described(run_gateway, monkeypatch):
    monkeypatch.setenv("GATEWAY_KEYS", "a-key-for-this-test-1")
    gateway = run_gateway(2, serve={"keys_env": "GATEWAY_KEYS"})
    found = httpx.get(f"{gateway.root}/openapi.json").json()
    assert set(found["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/classify", "/v1/responses", "/v1/messages",
        "/v1/models", "/v1/models/{model}", "/healthz", "/readyz",
    }  # fmt: skip
    for path, methods in found["paths"].items():
        for operation in methods.values():
            assert operation["security"] == ([{"key": []}] if path.startswith("/v1") else [])


def test_the_description_reports_what_this_gateway_takes(make_served):
    served = make_served(2, serve={"direct": True, "allow": ["budget"], "budget_range": [2, 9]})
    paths = description(read_settings(served.cascade))["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    fields = body["schema"]["properties"]
    assert fields["model"]["enum"] == ["ttamer", "small", "large"]
    assert fields["ttamer"]["properties"] == {
        "budget": {"type": "number", "minimum": 2.0, "maximum": 9.0}
    }
