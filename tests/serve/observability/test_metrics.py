"""Metrics, read back by Prometheus's own parser, and scraped by Prometheus itself."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.programs import require_program
from ttamer.serve.observability.metrics import Metrics
from ttamer.serve.observability.record import FAILURES, RequestRecord

CHAT = "/v1/chat/completions"


def asked(node, cost=1.0, error=None):
    return SimpleNamespace(
        node=node, prediction="a", confidence=0.5, cost=cost, seconds=0.1, error=error
    )


def samples(metrics: Metrics) -> dict[tuple[str, tuple], float]:
    """Every sample of a scrape."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((f"ttamer_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def metrics():
    return Metrics(["small", "large"], [CHAT])


def serve(metrics: Metrics, **facts) -> None:
    metrics.started()
    metrics.finished(
        RequestRecord(
            **{"request_id": "1", "endpoint": CHAT, "status": 200, "seconds": 0.02} | facts
        )
    )


def test_a_request_is_counted_in_all_its_parts(metrics):
    path = (asked("small", 1.0, "timeout: late"), asked("large", 12.5))
    serve(metrics, asked=path, by="large", cost=13.5, capped=True, hedged=2)
    serve(metrics, asked=path[:1], status=502, cost=1.0)
    assert value(metrics, "requests_total", endpoint=CHAT, status="200") == 1
    assert value(metrics, "requests_total", endpoint=CHAT, status="502") == 1
    assert value(metrics, "asked_total", node="small") == 2
    assert value(metrics, "asked_total", node="large") == 1
    assert value(metrics, "answered_total", node="large") == 1
    assert value(metrics, "answered_total", node="small") == 0
    assert value(metrics, "failed_total", node="small", kind="timeout") == 2
    assert value(metrics, "failed_total", node="large", kind="timeout") == 0
    assert value(metrics, "node_cost_total", node="large") == 12.5
    assert value(metrics, "cost_total") == 14.5
    assert value(metrics, "stops_total", depth="2") == 1
    assert value(metrics, "stops_total", depth="1") == 1
    assert value(metrics, "capped_total") == 1
    assert value(metrics, "hedged_total") == 2
    assert value(metrics, "request_seconds_count", endpoint=CHAT) == 2
    assert value(metrics, "request_seconds_bucket", endpoint=CHAT, le="0.025") == 2
    assert value(metrics, "request_seconds_bucket", endpoint=CHAT, le="0.01") == 0


def test_requests_in_flight_and_in_the_queue(metrics):
    waiting = [0]
    metrics.watch_queue(lambda: waiting[0])
    metrics.started()
    metrics.started()
    waiting[0] = 7
    assert value(metrics, "requests_in_flight") == 2
    assert value(metrics, "queue_length") == 7
    metrics.finished(RequestRecord("1", CHAT, 200, 0.1))
    assert value(metrics, "requests_in_flight") == 1


def test_reloads_policies_refusals_and_lost_rows(metrics):
    metrics.policy("aa", "start")
    metrics.policy("bb", "file")
    metrics.reloaded(True)
    metrics.reloaded(False)
    metrics.reloaded(False)
    metrics.refused()
    metrics.row_lost()
    assert value(metrics, "policy_info", version="bb", source="file") == 1
    assert value(metrics, "policy_info", version="aa", source="start") is None
    assert value(metrics, "reloads_total", result="ok") == 1
    assert value(metrics, "reloads_total", result="failed") == 2
    assert value(metrics, "refused_total") == 1
    assert value(metrics, "log_rows_lost_total") == 1


def test_nothing_outside_makes_the_series_grow(metrics):
    serve(metrics, endpoint="/other/1")
    before = len(samples(metrics))
    for number in range(50):
        failed = asked(f"node{number}", error=f"word{number}: more"), asked("small", error="x")
        serve(metrics, endpoint=f"/other/{number}", asked=failed, by=f"node{number}")
    assert len(samples(metrics)) == before
    assert value(metrics, "requests_total", endpoint="other", status="200") == 51
    assert value(metrics, "failed_total", node="small", kind="other") == 50


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0])
def test_a_cost_that_is_none_spoils_no_counter(metrics, cost):
    serve(metrics, asked=(asked("small", cost),), by="small", cost=cost)
    serve(metrics, asked=(asked("small", 2.0),), by="small", cost=2.0)
    assert value(metrics, "cost_total") == 2
    assert value(metrics, "node_cost_total", node="small") == 2


@pytest.mark.parametrize("kind", FAILURES)
def test_every_kind_of_failure_has_its_series_from_the_start(metrics, kind):
    assert value(metrics, "failed_total", node="small", kind=kind) == 0


def test_two_gateways_do_not_share_counts(metrics):
    other = Metrics(["small", "large"], [CHAT])
    serve(metrics)
    assert value(other, "requests_total", endpoint=CHAT, status="200") is None


def test_names_that_need_escaping_come_back_as_they_are():
    name = 'a "b"\\c\nd'
    metrics = Metrics([name], [CHAT])
    serve(metrics, asked=(asked(name),), by=name, cost=1.0)
    assert value(metrics, "answered_total", node=name) == 1


def counted(gateway) -> Metrics:
    """The metrics, once all is counted: a response comes before its counts."""
    metrics = gateway.gateway.metrics
    for _ in range(3000):
        if value(metrics, "requests_in_flight") == 0:
            return metrics
        time.sleep(0.01)
    raise TimeoutError("a request does not end")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def prometheus(tmp_path):
    """Start a Prometheus that scrapes a port with a key; gives a function that queries it."""
    binary = require_program("prometheus", package="prometheus", purpose="scraping a gateway")
    with contextlib.ExitStack() as stack:

        def start(target: int, key: str):
            job = {"job_name": "ttamer", "scrape_interval": "100ms", "scrape_timeout": "100ms",
                   "authorization": {"credentials": key},
                   "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}  # fmt: skip
            config = tmp_path / "prometheus.yml"
            config.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
            port = free_port()
            process = subprocess.Popen(
                [binary, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return lambda query: found_by(port, query)

        yield start


def found_by(port: int, query: str) -> dict[str, float]:
    """What a query finds, by node, as soon as it finds anything."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}"
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as reply:
            found = json.load(reply)["data"]["result"]
            if found:
                return {one["metric"].get("node"): float(one["value"][1]) for one in found}
        time.sleep(0.05)  # no one tells when a scrape has been stored
    raise TimeoutError(query)


def test_prometheus_itself_scrapes_a_gateway(prometheus, run_gateway, monkeypatch):
    key = "correct-horse-battery"
    monkeypatch.setenv("GATEWAY_KEYS", key)
    gateway = run_gateway(2, serve={"keys_env": "GATEWAY_KEYS"})
    body = {"model": "ttamer", "messages": [{"role": "user", "content": "A, B, C or D?"}]}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{gateway.url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
        path = reply.headers["x-ttamer-path"].split(",")
        by, cost = reply.headers["x-ttamer-answered-by"], float(reply.headers["x-ttamer-cost"])
    counted(gateway)
    query = prometheus(gateway.port, key)
    asked_nodes = query("ttamer_asked_total")
    assert asked_nodes == {node: float(node in path) for node in ("small", "large")}
    assert query("ttamer_answered_total")[by] == 1
    assert query("ttamer_cost_total") == {None: cost}
    # Every query of the dashboard finds data, once there are two scrapes; what is hidden while it
    # is zero is looked for with its zeros.
    query("count_over_time(ttamer_requests_in_flight[1m]) > 1")
    for expression in dashboard_expressions():
        shown = expression.replace("$__rate_interval", "1m").removesuffix(" > 0")
        assert query(shown), expression


def dashboard_expressions() -> list[str]:
    """The queries of the Grafana dashboard: of its panels and of its annotations."""
    path = Path(__file__).parents[3] / "deploy" / "grafana" / "dashboards" / "ttamer.json"
    board = json.loads(path.read_text("utf-8"))
    marks = [each["expr"] for each in board["annotations"]["list"] if "expr" in each]
    return marks + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_metric_is_in_the_docs(metrics):
    page = (Path(__file__).parents[3] / "docs" / "serving.md").read_text("utf-8")
    families = [
        line.split()[2]
        for line in metrics.text().decode().splitlines()
        if line.startswith("# TYPE")
    ]
    names = [name.removeprefix("ttamer_") for name in families if not name.endswith("_created")]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in page] == []
    assert [kind for kind in FAILURES if f"`{kind}`" not in page] == []


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("refuse", "connect"), ("error", "error"), ("garbage", "garbage"), ("reset", "cut")],
)
def test_how_an_upstream_fails_is_seen_in_the_metrics(run_gateway, mode, kind):
    gateway = run_gateway(2)
    for upstream in gateway.served.upstreams.values():
        upstream.mode = mode
    body = {"model": "ttamer", "messages": [{"role": "user", "content": "A, B, C or D?"}]}
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{gateway.url}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)  # noqa: S310
    caught.value.close()
    assert caught.value.code == 502
    metrics = counted(gateway)
    for node in ("small", "large"):
        kinds = {each: value(metrics, "failed_total", node=node, kind=each) for each in FAILURES}
        assert kinds == {each: float(each == kind) for each in FAILURES}
