"""OpenTelemetry spans: one for a request, one below it for each node asked.

They hold node, cost, confidence and outcome, never a prompt or an answer. The packages of the
extra ``[otel]`` load only where an endpoint is configured; :data:`NO_TRACING` does nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ttamer._version import __version__
from ttamer.errors import MissingExtra
from ttamer.serve.served import kind_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

    from ttamer.serve.served import Served

__all__ = ["NO_TRACING", "NoTracing", "NodeSpan", "RequestSpan", "Tracing"]

CANCELLED = "cancelled"


class NodeSpan:
    """One node being asked. This one does nothing: tracing is off."""

    def headers(self) -> dict[str, str]:
        """Return what to send upstream, so that its spans hang below this one."""
        return {}

    def finish(
        self, *, cost: float, confidence: float | None = None, error: object | None = None
    ) -> None:
        """The node answered, or failed with ``error``."""


class RequestSpan:
    """One request. This one does nothing: tracing is off."""

    def node(self, name: str) -> NodeSpan:  # noqa: ARG002 - a tracing one takes it
        """A node is asked now."""
        return _NO_NODE

    def finish(self, served: Served) -> None:
        """The request is over."""


class NoTracing:
    """Tracing that is off."""

    def request(
        self,
        endpoint: str,  # noqa: ARG002
        *,
        traceparent: str | None = None,  # noqa: ARG002
        tracestate: str | None = None,  # noqa: ARG002
    ) -> RequestSpan:
        """A request begins; its caller may be in a trace already (W3C Trace Context)."""
        return _NO_REQUEST

    def close(self) -> None:
        """Send what has not been sent."""


_NO_NODE = NodeSpan()
_NO_REQUEST = RequestSpan()
NO_TRACING = NoTracing()


class Tracing(NoTracing):
    """Tracing to a provider of OpenTelemetry's SDK."""

    def __init__(self, provider: TracerProvider) -> None:
        api = _needed("opentelemetry.trace.propagation.tracecontext")
        self._propagator = api.TraceContextTextMapPropagator()
        self._provider = provider
        self._tracer = provider.get_tracer("ttamer", __version__)

    @classmethod
    def to(cls, endpoint: str, service: str = "ttamer") -> Tracing:
        """Send spans to an OTLP/HTTP endpoint, in batches, from a thread of its own.

        ``/v1/traces`` is added to an address without a path.
        """
        sdk = _needed("opentelemetry.sdk.trace")
        export = _needed("opentelemetry.sdk.trace.export")
        resources = _needed("opentelemetry.sdk.resources")
        otlp = _needed("opentelemetry.exporter.otlp.proto.http.trace_exporter")
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
        """A request begins, below the caller's span where it names one that is well formed."""
        above = None
        if traceparent is not None:
            carrier = {"traceparent": traceparent}
            if tracestate is not None:
                carrier["tracestate"] = tracestate
            above = self._propagator.extract(carrier)
        kind = _needed("opentelemetry.trace").SpanKind.SERVER
        span = self._tracer.start_span(f"POST {endpoint}", context=above, kind=kind)
        span.set_attribute("http.route", endpoint)
        return _TracedRequest(self._tracer, self._propagator, span)

    def close(self) -> None:
        """Send what has not been sent; may take seconds."""
        self._provider.shutdown()


class _TracedRequest(RequestSpan):
    def __init__(self, tracer: Tracer, propagator: Any, span: Span) -> None:
        api = _needed("opentelemetry.trace")
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

    def finish(self, served: Served) -> None:
        for node in self._open:
            node.end(CANCELLED)
        span = self._span
        span.set_attribute("http.response.status_code", served.status)
        span.set_attribute("ttamer.request_id", served.request_id)
        span.set_attribute("ttamer.cost", served.cost)
        span.set_attribute("ttamer.policy", served.policy)
        span.set_attribute("ttamer.path", [seen.node for seen in served.asked])
        if served.by is not None:
            span.set_attribute("ttamer.answered_by", served.by)
        if served.error is not None:
            span.set_attribute("error.type", served.error)
        if served.status >= 500:
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
        self.end("answered" if error is None else kind_of(error))

    def end(self, outcome: str) -> None:
        """End the span, unless it has ended."""
        if not self._span.is_recording():
            return
        self._span.set_attribute("ttamer.outcome", outcome)
        if outcome not in ("answered", CANCELLED):
            self._span.set_status(self._api.StatusCode.ERROR)
        self._span.end()


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra("opentelemetry-sdk", "otel") from error
