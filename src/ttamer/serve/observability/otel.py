"""OpenTelemetry spans: one for a request, one below it for each node asked.

Spans hold node, cost, confidence and outcome, never a prompt or an answer. The packages of the
extra ``[otel]`` load only where an endpoint is configured; :data:`NO_TRACING` does nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ttamer import __version__
from ttamer.errors import MissingExtra
from ttamer.serve.observability.record import failure_kind

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from ttamer.serve.observability.record import RequestRecord

__all__ = [
    "NO_NODE",
    "NO_SPAN",
    "NO_TRACING",
    "NoTracing",
    "NodeSpan",
    "RequestSpan",
    "Tracing",
]

CANCELLED = "cancelled"
"""The outcome of a call that did not end."""


class NodeSpan:
    """The span of one call to a node. This one does nothing: tracing is off."""

    def headers(self) -> dict[str, str]:
        """Return the headers that make the upstream's spans children of this one."""
        return {}

    def finish(
        self, *, cost: float, confidence: float | None = None, error: object | None = None
    ) -> None:
        """End the span: the node answered, or failed with ``error``."""


class RequestSpan:
    """The span of one request. This one does nothing: tracing is off."""

    def node(self, name: str) -> NodeSpan:  # noqa: ARG002 - a tracing one takes it
        """Begin the span of a call to a node."""
        return NO_NODE

    def finish(self, record: RequestRecord) -> None:
        """End the span of the request."""


class NoTracing:
    """Tracing that is off."""

    def request(
        self,
        endpoint: str,  # noqa: ARG002
        *,
        traceparent: str | None = None,  # noqa: ARG002
        tracestate: str | None = None,  # noqa: ARG002
    ) -> RequestSpan:
        """Begin the span of a request; its caller may have a trace already (W3C Trace Context)."""
        return NO_SPAN

    def close(self) -> None:
        """Send the spans that wait."""


NO_NODE = NodeSpan()
"""The span of a call while tracing is off."""
NO_SPAN = RequestSpan()
"""The span of a request while tracing is off."""
NO_TRACING = NoTracing()
"""Tracing that is off."""


class Tracing(NoTracing):
    """Tracing to a provider of OpenTelemetry's SDK."""

    def __init__(self, provider: TracerProvider) -> None:
        api = _import("opentelemetry.trace.propagation.tracecontext")
        self._propagator = api.TraceContextTextMapPropagator()
        self._provider = provider
        self._tracer = provider.get_tracer("ttamer", __version__)

    @classmethod
    def to(cls, endpoint: str, service: str = "ttamer") -> Tracing:
        """Send spans to an OTLP/HTTP endpoint, in batches, from a separate thread.

        ``/v1/traces`` is added to an address without a path.
        """
        sdk = _import("opentelemetry.sdk.trace")
        export = _import("opentelemetry.sdk.trace.export")
        resources = _import("opentelemetry.sdk.resources")
        otlp = _import("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resource = resources.Resource.create(
            {"service.name": service, "service.version": __version__}
        )
        provider = sdk.TracerProvider(resource=resource)
        parts = urlsplit(endpoint)
        if parts.path in ("", "/"):
            endpoint = parts._replace(path="/v1/traces").geturl()
        exporter = otlp.OTLPSpanExporter(endpoint=endpoint, timeout=5)
        provider.add_span_processor(export.BatchSpanProcessor(exporter))
        return cls(provider)

    def request(
        self, endpoint: str, *, traceparent: str | None = None, tracestate: str | None = None
    ) -> RequestSpan:
        """Begin the span of a request, below the caller's where the header is well formed."""
        above = None
        if traceparent is not None:
            carrier = {"traceparent": traceparent}
            if tracestate is not None:
                carrier["tracestate"] = tracestate
            above = self._propagator.extract(carrier)
        kind = _import("opentelemetry.trace").SpanKind.SERVER
        span = self._tracer.start_span(f"POST {endpoint}", context=above, kind=kind)
        span.set_attribute("http.route", endpoint)
        return _TracedRequest(self._tracer, self._propagator, span)

    def close(self) -> None:
        """Send the spans that wait; may take seconds."""
        self._provider.shutdown()


class _TracedRequest(RequestSpan):
    def __init__(self, tracer: Tracer, propagator: Any, span: Span) -> None:
        api = _import("opentelemetry.trace")
        self._tracer, self._propagator, self._span, self._api = tracer, propagator, span, api
        self._below = api.set_span_in_context(span)
        self._open: list[_TracedNode] = []

    def node(self, name: str) -> NodeSpan:
        kind = self._api.SpanKind.CLIENT
        span = self._tracer.start_span("ask", context=self._below, kind=kind)
        span.set_attribute("ttamer.node", name)
        node = _TracedNode(self._propagator, span, self._api)
        self._open.append(node)
        return node

    def finish(self, record: RequestRecord) -> None:
        for node in self._open:
            node.end(CANCELLED)
        span = self._span
        span.set_attribute("http.response.status_code", record.status)
        span.set_attribute("ttamer.request_id", record.request_id)
        span.set_attribute("ttamer.cost", record.cost)
        span.set_attribute("ttamer.policy", record.policy)
        span.set_attribute("ttamer.path", [one.node for one in record.asked])
        if record.by is not None:
            span.set_attribute("ttamer.answered_by", record.by)
        if record.error is not None:
            span.set_attribute("error.type", record.error)
        if record.status >= 500:
            span.set_status(self._api.StatusCode.ERROR)
        span.end()


class _TracedNode(NodeSpan):
    def __init__(self, propagator: Any, span: Span, api: Any) -> None:
        self._propagator, self._span, self._api = propagator, span, api

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=self._api.set_span_in_context(self._span))
        return carrier

    def finish(
        self, *, cost: float, confidence: float | None = None, error: object | None = None
    ) -> None:
        if self._span.is_recording():
            self._span.set_attribute("ttamer.cost", cost)
            if confidence is not None:
                self._span.set_attribute("ttamer.confidence", confidence)
        self.end("answered" if error is None else failure_kind(error))

    def end(self, outcome: str) -> None:
        """End the span, unless it has ended."""
        if not self._span.is_recording():
            return
        self._span.set_attribute("ttamer.outcome", outcome)
        if outcome not in ("answered", CANCELLED):
            self._span.set_status(self._api.StatusCode.ERROR)
        self._span.end()


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra("opentelemetry-sdk", "otel") from error
