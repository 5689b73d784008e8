"""Spans, collected by OpenTelemetry's own in-memory exporter, and sent over OTLP."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ttamer.errors import MissingExtra
from ttamer.serve.observability.otel import NO_TRACING, Tracing
from ttamer.serve.observability.record import RequestRecord

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collected():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(collected):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    tracing = Tracing(provider)
    yield tracing
    tracing.close()


def asked(node):
    return SimpleNamespace(
        node=node, prediction="secret", confidence=0.5, cost=1.0, seconds=0.1, error=None
    )


def served(status=200, **facts) -> RequestRecord:
    path = (asked("small"), asked("large"))
    return RequestRecord("7f", "/v1/classify", status, 0.2, "ab12", path, "large", 13.5, **facts)


def by_name(collected) -> dict:
    return {span.attributes.get("ttamer.node", "request"): span
            for span in collected.get_finished_spans()}  # fmt: skip


def test_a_request_has_a_span_and_each_node_one_below(tracing, collected):
    span = tracing.request("/v1/classify")
    span.node("small").finish(cost=1.0, confidence=0.25, error=TimeoutError("secret"))
    span.node("large").finish(cost=12.5, confidence=0.75)
    span.finish(served())
    found = by_name(collected)
    request = found["request"]
    assert request.name == "POST /v1/classify"
    assert request.kind is SpanKind.SERVER
    assert dict(request.attributes) == {
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "ttamer.request_id": "7f",
        "ttamer.cost": 13.5,
        "ttamer.policy": "ab12",
        "ttamer.path": ("small", "large"),
        "ttamer.answered_by": "large",
    }
    assert request.parent is None
    for name in ("small", "large"):
        assert found[name].parent.span_id == request.context.span_id
        assert found[name].kind is SpanKind.CLIENT
    assert dict(found["large"].attributes) == {
        "ttamer.node": "large",
        "ttamer.cost": 12.5,
        "ttamer.confidence": 0.75,
        "ttamer.outcome": "answered",
    }
    assert found["small"].attributes["ttamer.outcome"] == "timeout"
    assert found["small"].status.status_code is StatusCode.ERROR
    assert "secret" not in "".join(span.to_json() for span in found.values())


def test_the_caller_s_trace_goes_on(tracing, collected):
    span = tracing.request("/v1/classify", traceparent=TRACEPARENT, tracestate="vendor=1")
    node = span.node("small")
    headers = node.headers()
    node.finish(cost=1.0)
    span.finish(served())
    found = by_name(collected)
    assert f"{found['request'].context.trace_id:032x}" == TRACE
    assert f"{found['request'].parent.span_id:016x}" == PARENT
    upstream = f"{found['small'].context.span_id:016x}"
    assert headers == {"traceparent": f"00-{TRACE}-{upstream}-01", "tracestate": "vendor=1"}


@pytest.mark.parametrize("bad", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", TRACEPARENT + "-x"])
def test_a_bad_traceparent_begins_a_trace_of_its_own(tracing, collected, bad):
    tracing.request("/v1/classify", traceparent=bad).finish(served())
    (span,) = collected.get_finished_spans()
    assert span.parent is None


def test_a_caller_who_does_not_trace_is_not_traced(tracing, collected):
    span = tracing.request("/v1/classify", traceparent=TRACEPARENT[:-1] + "0")
    node = span.node("small")
    assert node.headers()["traceparent"].endswith("-00")
    node.finish(cost=1.0)
    span.finish(served())
    assert collected.get_finished_spans() == ()


def test_a_node_still_open_at_the_end_was_cancelled(tracing, collected, caplog):
    span = tracing.request("/v1/classify")
    late = span.node("small")
    span.finish(served(504, error="deadline"))
    late.finish(cost=1.0)  # too late: nothing more is said, nothing breaks
    found = by_name(collected)
    assert found["small"].attributes["ttamer.outcome"] == "cancelled"
    assert "ttamer.cost" not in found["small"].attributes
    assert caplog.records == []
    assert found["request"].attributes["error.type"] == "deadline"
    assert found["request"].status.status_code is StatusCode.ERROR


def test_no_tracing_does_nothing():
    span = NO_TRACING.request("/v1/classify", traceparent=TRACEPARENT)
    node = span.node("small")
    assert node.headers() == {}
    node.finish(cost=1.0, confidence=0.5, error=None)
    span.finish(served())
    NO_TRACING.close()


class Collector:
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, ExportTraceServiceRequest]] = []
        got = self.got

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/my/own"])
def test_spans_are_sent_to_a_collector(path):
    collector = Collector()
    try:
        tracing = Tracing.to(f"http://127.0.0.1:{collector.server.server_port}{path}", "shop")
        span = tracing.request("/v1/classify")
        span.node("small").finish(cost=1.0)
        span.finish(served())
        tracing.close()
    finally:
        collector.close()
    ((where, sent),) = collector.got
    assert where == ("/my/own" if path == "/my/own" else "/v1/traces")
    (resource,) = sent.resource_spans
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.name"] == "shop"
    assert {s.name for s in resource.scope_spans[0].spans} == {"ask", "POST /v1/classify"}


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ttamer\[otel\]'"):
        Tracing.to("http://127.0.0.1:4318")


def test_nothing_of_it_loads_where_it_is_not_configured():
    code = (
        "import sys, ttamer.serve.observability.otel; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
