"""The metrics of a server. They never fail a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ttamer.runtime.reply import NodeCall


class Metrics:
    """The metrics of one process; label values come from the settings, never from clients."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        buckets = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
        time_of = partial(Histogram, documentation="Time", registry=self.registry, buckets=buckets)
        self._requests = count("ttamer_requests_total", "Requests", ["status"])
        self._seconds = time_of("ttamer_request_seconds")
        cost = count("ttamer_cost_total", "Cost of calls, in the cascade's units", ["node"])
        answered = count("ttamer_answers_total", "Answers returned", ["node"])
        seconds = time_of("ttamer_call_seconds", labelnames=["node"])
        self._calls = count("ttamer_calls_total", "Calls by their result", ["node", "result"])
        self.audits = count("ttamer_audits_total", "Audits by their result", ["result"])
        self.swaps = count("ttamer_swaps_total", "Policies put into service by the loop")
        # Looking a label up takes longer than counting.
        self._cost = {name: cost.labels(name) for name in nodes}
        self._answered = {name: answered.labels(name) for name in nodes}
        self._call_seconds = {name: seconds.labels(name) for name in nodes}

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when it is scraped."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def gauges(self, name: str, text: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Add a gauge with a value for each node."""
        gauge = Gauge(name, text, ["node"], registry=self.registry)
        for node, read in reads.items():
            gauge.labels(node).set_function(read)

    def finished(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def called(self, calls: Sequence[NodeCall]) -> None:
        """Count calls of nodes."""
        for call in calls:
            result = "ok" if call.error is None else call.error.partition(":")[0]
            self._calls.labels(call.node, result).inc()
            self._cost[call.node].inc(call.cost)
            self._call_seconds[call.node].observe(call.seconds)

    def answered(self, node: str) -> None:
        """Count an answer that was returned."""
        self._answered[node].inc()
