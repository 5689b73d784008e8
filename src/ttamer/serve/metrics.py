"""Prometheus metrics of one gateway, in a registry of its own.

All children of labels known in advance are made at the start: a request then costs a few
additions. Labels take their values from the cascade and from fixed lists, never from requests,
so that nobody outside can make the number of series grow.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
except ImportError as error:  # pragma: no cover - the whole extra is missing then
    from ttamer.errors import MissingExtra

    raise MissingExtra("prometheus-client", "serve") from error

from ttamer.serve.served import KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ttamer.serve.served import Served

__all__ = ["Metrics"]

OTHER = "other"
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip


class Metrics:
    """Everything that is counted.

    >>> metrics = Metrics(["small", "large"], ["/v1/chat/completions"])
    >>> metrics.refused()
    >>> b"ttamer_refused_total 1.0" in metrics.text()
    True
    """

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self, nodes: Sequence[str], endpoints: Sequence[str]) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"ttamer_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"ttamer_{name}", what, labels, registry=registry)

        self._requests = counter("requests", "Requests, by route and status.", "endpoint", "status")
        seconds = Histogram(
            "ttamer_request_seconds",
            "From the first byte of a request to the last of its response.",
            ["endpoint"],
            buckets=SECONDS,
            registry=registry,
        )
        self._in_flight = gauge("requests_in_flight", "Requests begun and not finished.")
        self._queue = gauge("queue_length", "Requests that wait for their turn.")
        self._refused = counter("refused", "Requests answered 429: too many at once.")
        asked = counter("asked", "Times a node was asked.", "node")
        answered = counter("answered", "Times a node's answer was returned.", "node")
        failed = counter("failed", "Times a node gave no answer.", "node", "kind")
        cost = counter("node_cost", "What asking a node cost, in the cascade's units.", "node")
        self._cost = counter("cost", "What all requests cost, in the cascade's units.")
        stops = counter("stops", "Requests by how many nodes were asked.", "depth")
        self._capped = counter("capped", "Requests ended by the cap on cost or time.")
        self._hedged = counter("hedged", "Second calls to a node that was slow.")
        self._policy = gauge("policy_info", "The policy that serves: 1.", "version", "source")
        reloads = counter("reloads", "Tries to load another policy.", "result")
        self._lost = counter("log_rows_lost", "Rows the trace log could not write.")

        self._known = set(endpoints)
        self._asked = {node: asked.labels(node) for node in nodes}
        self._answered = {node: answered.labels(node) for node in nodes}
        self._failed = {(node, kind): failed.labels(node, kind) for node in nodes for kind in KINDS}
        self._costs = {node: cost.labels(node) for node in nodes}
        self._depth = [stops.labels(str(depth)) for depth in range(len(nodes) + 1)]
        self._reloads = {True: reloads.labels("ok"), False: reloads.labels("failed")}
        self._timed = {e: seconds.labels(e) for e in (*endpoints, OTHER)}
        self._counted: dict[tuple[str, int], Counter] = {}

    def started(self) -> None:
        """A request came in; :meth:`finished` must follow, whatever happens."""
        self._in_flight.inc()

    def finished(self, served: Served) -> None:
        """Count all that one request did."""
        self._in_flight.dec()
        endpoint = served.endpoint if served.endpoint in self._known else OTHER
        counted = self._counted.get((endpoint, served.status))
        if counted is None:
            counted = self._requests.labels(endpoint, str(served.status))
            self._counted[endpoint, served.status] = counted
        counted.inc()
        self._timed[endpoint].observe(served.seconds)
        if served.asked:
            self._count_nodes(served)

    def _count_nodes(self, served: Served) -> None:
        for seen in served.asked:
            node = seen.node
            if node not in self._asked:
                continue
            self._asked[node].inc()
            _add(self._costs[node], seen.cost)
            if seen.error is not None:
                self._failed[node, kind_of(seen.error)].inc()
        if served.by in self._answered:
            self._answered[served.by].inc()
        _add(self._cost, served.cost)
        self._depth[min(len(served.asked), len(self._depth) - 1)].inc()
        if served.capped:
            self._capped.inc()
        if served.hedged:
            self._hedged.inc(served.hedged)

    def refused(self) -> None:
        """A request was answered 429."""
        self._refused.inc()

    def row_lost(self) -> None:
        """The trace log lost a row; may be called from any thread."""
        self._lost.inc()

    def reloaded(self, ok: bool) -> None:
        """Another policy was tried."""
        self._reloads[ok].inc()

    def policy(self, version: str, source: str) -> None:
        """Say which policy serves now; the former is no longer shown."""
        self._policy.clear()
        self._policy.labels(version, source).set(1)

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Read the length of the queue from here, when asked for it."""
        self._queue.set_function(waiting)

    def text(self) -> bytes:
        """Return all of it in Prometheus's text format."""
        return generate_latest(self._registry)


def _add(counter: Counter, cost: float) -> None:
    """Add a cost; what is no sum of money would spoil the counter for good."""
    if 0 < cost < inf:
        counter.inc(cost)
