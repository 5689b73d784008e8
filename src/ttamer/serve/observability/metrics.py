"""Prometheus metrics of one gateway, in a registry of its own.

All label values known in advance are created at the start, and increments are added up here until
the metrics are read, so that a request costs a few additions. Labels take their values from the
cascade and from fixed lists, never from requests, so that no client can increase the number of
series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, get_args

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import HistogramMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    from ttamer.errors import MissingExtra

    raise MissingExtra("prometheus-client", "serve") from error

from ttamer.drift.loop import EventKind
from ttamer.serve.observability.record import FAILURES, REFUSALS, failure_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ttamer.serve.observability.record import Refusal, RequestRecord

__all__ = ["OTHER", "Metrics"]

OTHER = "other"
"""Stands for every path that is no route, which is the client's own text and is not repeated."""
AUDIT_RESULTS = ("taken", "failed", "lost", "dropped")
"""The results of an audit.

Complete; a node failed or too many waited; complete and not stored; not passed on by a worker.
"""
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""The bounds of the latency histogram."""


class Metrics:
    """The counters and gauges of a gateway.

    >>> metrics = Metrics(["small", "large"], ["/v1/chat/completions"])
    >>> metrics.refused()
    >>> b"ttamer_refused_total 1.0" in metrics.text()
    True
    """

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(
        self,
        nodes: Sequence[str],
        endpoints: Sequence[str],
        keys: Iterable[str] = (),
        billed: Sequence[str] = (),
    ) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"ttamer_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"ttamer_{name}", what, labels, registry=registry)

        self._requests = counter("requests", "Requests, by route and status.", "endpoint", "status")
        self._seconds = _Seconds([*endpoints, OTHER])
        registry.register(self._seconds)
        in_flight = gauge("requests_in_flight", "Requests begun and not finished.")
        in_flight.set_function(lambda: self._in_flight)
        self._queue = gauge("queue_length", "Requests in the queue.")
        self._refused = counter("refused", "Requests answered 429: too many concurrent requests.")
        asked = counter("asked", "Times a node was asked.", "node")
        answered = counter("answered", "Times a node's answer was returned.", "node")
        failed = counter("failed", "Times a node returned no answer.", "node", "kind")
        cost = counter("node_cost", "The cost of calls to a node, in the cascade's units.", "node")
        self._cost = counter("cost", "The cost of all requests, in the cascade's units.")
        self._estimated = counter(
            "estimated_cost", "The part of all costs that is an estimate: usage was not known."
        )
        tokens = counter("tokens", "The tokens of calls whose usage is known.", "node", "kind")
        self._of_keys = (
            counter("key_requests", "Requests, by API key.", "key"),
            counter("key_cost", "The cost of requests, by API key.", "key"),
            counter("key_refused", "Requests refused by a key's limit.", "key", "reason"),
        )
        stops = counter("stops", "Requests by how many nodes were asked.", "depth")
        self._capped = counter("capped", "Requests ended by the limit on cost or time.")
        self._hedged = counter("hedged", "Second calls to a node that was slow.")
        self._policy = gauge("policy_info", "The active policy: 1.", "version", "source")
        reloads = counter("reloads", "Attempts to load another policy.", "result")
        connections = counter("connections_refused", "Connections closed by a limit.", "reason")
        self._lines_lost = counter("log_lines_lost", "Lines that the log could not write.")
        self._lost = counter("log_rows_lost", "Rows the trace log could not write.")
        audits = counter("audits", "Audited requests, by result.", "result")
        self._audit_cost = counter("audit_cost", "The cost of audits, in the cascade's units.")
        drift = counter("drift_events", "Steps of the drift loop.", "kind")

        self._known = set(endpoints)
        self._asked = {node: asked.labels(node) for node in nodes}
        self._answered = {node: answered.labels(node) for node in nodes}
        self._failed = {
            (node, kind): failed.labels(node, kind) for node in nodes for kind in FAILURES
        }
        self._costs = {node: cost.labels(node) for node in (*nodes, *billed)}
        self._billed = {node: asked.labels(node) for node in billed}
        self._depth = [stops.labels(str(depth)) for depth in range(len(nodes) + 1)]
        self._reloads = {True: reloads.labels("ok"), False: reloads.labels("failed")}
        self._connections = {reason: connections.labels(reason) for reason in REFUSALS}
        self._audits = {result: audits.labels(result) for result in AUDIT_RESULTS}
        self._drift = {kind: drift.labels(kind) for kind in get_args(EventKind)}
        self._tokens = {
            node: (tokens.labels(node, "prompt"), tokens.labels(node, "completion"))
            for node in (*nodes, *billed)
        }
        self._keys: dict[str, tuple[Counter, Counter]] = {}
        self._key_refused: dict[tuple[str, str], Counter] = {}
        self.add_keys(keys)
        self._counted: dict[tuple[str, int], Counter] = {}
        self._in_flight = 0
        self._pending: defaultdict[Counter, float] = defaultdict(float)

    def add_keys(self, keys: Iterable[str]) -> None:
        """Count requests of these keys too; a key that is counted already stays as it is."""
        requests, cost, refused = self._of_keys
        for key in keys:
            if key not in self._keys:
                self._keys[key] = requests.labels(key), cost.labels(key)
                for reason in ("budget", "rate"):
                    self._key_refused[key, reason] = refused.labels(key, reason)

    def started(self) -> None:
        """Count a request that begins; :meth:`finished` must follow."""
        self._in_flight += 1

    def finished(self, record: RequestRecord) -> None:
        """Count a finished request."""
        self._in_flight -= 1
        endpoint = record.endpoint if record.endpoint in self._known else OTHER
        counted = self._counted.get((endpoint, record.status))
        if counted is None:
            counted = self._requests.labels(endpoint, str(record.status))
            self._counted[endpoint, record.status] = counted
        self._pending[counted] += 1
        self._seconds.observe(endpoint, record.seconds)
        if record.client in self._keys:
            requests, cost = self._keys[record.client]
            self._pending[requests] += 1
            self._add(cost, record.cost)
        if record.asked or record.bill:
            self._count_nodes(record)

    def _count_nodes(self, record: RequestRecord) -> None:
        pending = self._pending
        for one in record.asked:
            node = one.node
            if node not in self._asked:
                continue
            pending[self._asked[node]] += 1
            self._add(self._costs[node], one.cost)
            if one.error is not None:
                pending[self._failed[node, failure_kind(one.error)]] += 1
        for node, bill in record.bill.items():
            if bill.estimated:
                self._add(self._estimated, bill.estimated)
            if node in self._billed:
                self._add(self._billed[node], bill.calls)
                self._add(self._costs[node], bill.cost)
            if bill.usage is not None and node in self._tokens:
                prompt, completion = self._tokens[node]
                self._add(prompt, bill.usage.prompt)
                self._add(completion, bill.usage.completion)
        if record.by in self._answered:
            pending[self._answered[record.by]] += 1
        self._add(self._cost, record.cost)
        if record.asked:
            pending[self._depth[min(len(record.asked), len(self._depth) - 1)]] += 1
        if record.capped:
            pending[self._capped] += 1
        if record.hedged:
            self._add(self._hedged, record.hedged)

    def _add(self, counter: Counter, amount: float = 1) -> None:
        """Add later; an amount that is not finite would corrupt a counter."""
        if 0 < amount < inf:
            self._pending[counter] += amount

    def refused(self) -> None:
        """Count a request answered 429."""
        self._refused.inc()

    def key_refused(self, key: str, reason: str) -> None:
        """Count a request refused by its key's "budget" or "rate"."""
        self._add(self._key_refused[key, reason])

    def connection_refused(self, reason: Refusal) -> None:
        """Count a connection closed by a limit."""
        self._add(self._connections[reason])

    def log_lines_lost(self, count: int) -> None:
        """Count lines lost by the log; may be called from any thread."""
        self._lines_lost.inc(count)

    def row_lost(self) -> None:
        """Count a row lost by the trace log; may be called from any thread."""
        self._lost.inc()

    def audited(self, result: str, cost: float, estimated: float = 0.0) -> None:
        """Count an audit, by one of :data:`AUDIT_RESULTS`; a part of its cost may be estimated."""
        self._add(self._audits[result])
        self._add(self._audit_cost, cost)
        self._add(self._estimated, estimated)

    def audit_paid(self, cost: float, estimated: float) -> None:
        """Count what an audit cost later; may be called from any thread."""
        for counter, amount in ((self._audit_cost, cost), (self._estimated, estimated)):
            if 0 < amount < inf:
                counter.inc(amount)

    def drifted(self, kind: EventKind) -> None:
        """Count a step of the drift loop."""
        self._add(self._drift[kind])

    def reloaded(self, ok: bool) -> None:
        """Count an attempt to load another policy."""
        self._reloads[ok].inc()

    def policy(self, version: str, source: str) -> None:
        """Set the active policy; the former is no longer shown."""
        self._policy.clear()
        self._policy.labels(version, source).set(1)

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Read the length of the queue from a function."""
        self._queue.set_function(waiting)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        pending, self._pending = self._pending, defaultdict(float)
        for counter, amount in pending.items():
            counter.inc(amount)
        return generate_latest(self._registry)


class _Seconds(Collector):
    """The latency of requests, by route."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._counts = {endpoint: [0] * (len(SECONDS) + 1) for endpoint in endpoints}
        self._sums = dict.fromkeys(endpoints, 0.0)

    def observe(self, endpoint: str, seconds: float) -> None:
        """Count one request."""
        self._counts[endpoint][bisect_left(SECONDS, seconds)] += 1
        self._sums[endpoint] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return cumulative buckets, as Prometheus expects them."""
        family = HistogramMetricFamily(
            "ttamer_request_seconds",
            "The time from the first byte of a request to the last byte of its response.",
            labels=["endpoint"],
        )
        names = [*map(str, SECONDS), "+Inf"]
        for endpoint, counts in self._counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([endpoint], buckets, sum_value=self._sums[endpoint])
        yield family
