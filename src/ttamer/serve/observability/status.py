"""The status page: traffic per node, the frontier, the bill, and the state of the drift loop.

The page (``status.html``) holds no data and needs no key; it fetches ``status.json`` every two
seconds, with a key where one is required. Text from outside is inserted as text, never as HTML.
Where ``/admin`` is enabled, its buttons post to ``admin/drift/...`` with an admin key.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from ttamer.fitted.ladder import FittedLadder, FittedPolicy
from ttamer.llm.labelling import load_page
from ttamer.serve.observability.record import failure_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ttamer.fitted.mixture import Mixture
    from ttamer.serve.accounts import Account
    from ttamer.serve.observability.record import RequestRecord

__all__ = ["PAGE", "PAGE_HEADERS", "Frontier", "Rung", "Status", "frontier_of", "summed"]

MAX_EVENTS = 50
"""The number of events on the page."""
RECENT = 500
"""The number of requests in the recent mean cost."""


@dataclass(frozen=True)
class Rung:
    """The estimated cost and error of a policy."""

    tradeoff: float
    cost: float
    error: float


@dataclass(frozen=True)
class Frontier:
    """The rungs of an artefact, and the one that answers."""

    rungs: tuple[Rung, ...]
    operating: Rung
    node_costs: Mapping[str, float] = field(default_factory=dict)
    """What an answer of each node alone cost in the fit, where the artefact has it."""


def frontier_of(artefact: FittedLadder | FittedPolicy, policy: FittedPolicy | Mixture) -> Frontier:
    """Return the estimated cost and error of each policy, and of the one that answers.

    The estimates are those of held-out rows where the artefact has them, else those of the fit.
    """
    rungs = _rungs(artefact)
    if isinstance(policy, FittedPolicy):
        operating = rungs.get(policy.tradeoff) or _rung(policy)
    else:
        low, high = (_estimated(each) for each in (policy.cheap, policy.expensive))
        operating = _mixed(low, high, policy.share)
    distinct = {(round(r.cost, 9), round(r.error, 9)): r for r in reversed(rungs.values())}
    return Frontier(tuple(reversed(distinct.values())), operating, _node_costs(artefact))


def _node_costs(artefact: FittedLadder | FittedPolicy) -> dict[str, float]:
    """Return the mean cost of each node's answer by itself, where the artefact has it."""
    rungs = artefact.rungs if isinstance(artefact, FittedLadder) else None
    if rungs is None or rungs.node_costs is None:
        return {}
    return dict(zip(artefact.spec.names, rungs.node_costs.tolist(), strict=True))


def _rungs(artefact: FittedLadder | FittedPolicy) -> dict[float, Rung]:
    """Return the rungs by tradeoff, in increasing order."""
    if isinstance(artefact, FittedPolicy):
        return {artefact.tradeoff: _rung(artefact)}
    if artefact.rungs is None:
        return {policy.tradeoff: _rung(policy) for policy in artefact}
    tradeoffs = artefact.tradeoffs
    measured = zip(artefact.rungs.costs.tolist(), artefact.rungs.errors.tolist(), strict=True)
    return {t: Rung(t, *point) for t, point in zip(tradeoffs, measured, strict=True)}


def _estimated(policy: FittedPolicy) -> Rung:
    """Return what a policy is expected to do on new rows, else on the rows fitted to."""
    if policy.error is None or policy.cost is None:
        return _rung(policy)
    return Rung(policy.tradeoff, policy.cost, policy.error)


def _rung(policy: FittedPolicy) -> Rung:
    inner, full = policy.policy, policy.fitted.full_cost  # a fit counts costs in shares of it
    return Rung(policy.tradeoff, full * inner.expected_cost, inner.expected_loss)


def _mixed(low: Rung, high: Rung, share: float) -> Rung:
    ends = zip(asdict(low).values(), asdict(high).values(), strict=True)
    return Rung(*((1 - share) * first + share * second for first, second in ends))


@dataclass
class _Traffic:
    """The traffic of one node."""

    asked: int = 0
    answered: int = 0
    failed: int = 0
    spent: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    """The number of failures of each kind."""


@dataclass
class _Calls:
    """The calls of one node whose cost is known exactly."""

    count: int = 0
    spent: float = 0.0
    instead: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of requests without such a call: their number, and what another node cost, by that node."""


@dataclass
class _KeyTraffic:
    """The traffic of one API key."""

    requests: int = 0
    spent: float = 0.0


class Status:
    """The data of the page, counted as requests finish.

    ``costs`` are those of one call of each node; for the nodes in ``priced_by_token`` the mean cost
    of their calls takes its place, and before the first of them the mean cost in the fit. What such
    a node would have cost on a request that did not ask it is estimated from the cost of one that
    was asked, by the ratio of their costs in the fit: long prompts cost more at every node.

    >>> status = Status({"small": 1.0, "large": 12.5})
    >>> status.event("start", "two nodes")
    """

    def __init__(
        self,
        costs: Mapping[str, float],
        name: str = "cascade",
        clock: Callable[[], float] = time.time,
        priced_by_token: Collection[str] = (),
    ) -> None:
        self._costs = dict(costs)
        self._calls = {node: _Calls() for node in priced_by_token}
        self._name = name
        self._clock = clock
        self._since = clock()
        self._nodes = {node: _Traffic() for node in costs}
        self._requests = self._decided = self._refused = self._failed = 0
        self._spent = self._estimated = self._spent_otherwise = 0.0
        self._keys: dict[str, _KeyTraffic] = {}
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)

    def finished(self, record: RequestRecord) -> None:
        """Count one request."""
        self._requests += 1
        self._refused += record.status == 429
        self._failed += record.status >= 500
        if record.client:
            key = self._keys.setdefault(record.client, _KeyTraffic())
            key.requests += 1
            key.spent += _finite(record.cost)
        if not record.asked:
            return
        for one in record.asked:
            node = self._nodes.get(one.node)
            if node is not None:
                node.asked += 1
                if one.error is not None:
                    node.failed += 1
                    kind = failure_kind(one.error)
                    node.failures[kind] = node.failures.get(kind, 0) + 1
                node.spent += _finite(one.cost)
        if self._calls:
            self._count_exact(record)
        answered = self._nodes.get(record.by or "")
        if answered is not None:
            answered.answered += 1
        self._decided += 1
        self._spent += _finite(record.cost)
        self._estimated += _finite(record.estimated)
        self._recent.append(_finite(record.cost))

    def _count_exact(self, record: RequestRecord) -> None:
        """Count what the nodes asked by one request cost, where that is known."""
        exact: dict[str, float] = {}
        for one in record.asked:
            billed = record.bill.get(one.node)
            is_exact = one.error is None and not (billed and billed.estimated)
            if is_exact and one.node in self._nodes:
                exact[one.node] = _finite(one.cost)
        for name, calls in self._calls.items():
            if name in exact:
                calls.count += 1
                calls.spent += exact[name]
            elif exact:
                asked, cost = next(reversed(exact.items()))
                count, spent = calls.instead.get(asked, (0, 0.0))
                calls.instead[asked] = count + 1, spent + cost

    def paid(self, record: RequestRecord) -> None:
        """Count the cost of a request that asked no node, such as one for embeddings."""
        if record.client:
            self._keys.setdefault(record.client, _KeyTraffic()).spent += _finite(record.cost)
        self._spent_otherwise += _finite(record.cost)
        self._estimated += _finite(record.estimated)

    def event(self, kind: str, text: str, *, ok: bool = True) -> None:
        """Record an event of the gateway."""
        self._events.append({"time": self._clock(), "kind": kind, "text": text, "ok": ok})

    def to_dict(
        self,
        frontier: Frontier,
        *,
        version: str,
        running: int = 0,
        waiting: int = 0,
        rows_lost: int = 0,
        drift: Mapping[str, Any] | None = None,
        admin: bool = False,
        accounts: Mapping[str, Account] | None = None,
    ) -> dict[str, Any]:
        """Return the data of the page, in plain values.

        ``drift`` is the status of the auditor, ``None`` where nothing is audited; ``admin`` is
        whether the page's buttons can post to ``/admin``; ``accounts`` are those of the API keys.
        """
        costs = {name: self._cost(name, frontier) for name in self._costs}
        alone = {name: self._cost_alone(name, frontier) for name in self._costs}
        costliest = max(alone, key=alone.__getitem__)
        always = alone[costliest] * self._decided
        return {
            "name": self._name,
            "version": version,
            "now": self._clock(),
            "since": self._since,
            "requests": {
                "all": self._requests,
                "decided": self._decided,
                "refused": self._refused,
                "failed": self._failed,
                "running": running,
                "waiting": waiting,
            },
            "nodes": [
                {"name": name, "cost": costs[name], **asdict(traffic)}
                for name, traffic in self._nodes.items()
            ],
            "bill": {
                "spent": self._spent + self._spent_otherwise,
                "estimated": self._estimated,
                "mean": self._spent / self._decided if self._decided else None,
                "recent_mean": sum(self._recent) / len(self._recent) if self._recent else None,
                "most_expensive": costliest,
                "always_most_expensive": always,
                "saved": 1 - self._spent / always if always else None,
            },
            "keys": [
                {"name": name, **vars(self._keys.get(name, _KeyTraffic())), **account.to_dict()}
                for name, account in (accounts or {}).items()
            ],
            "frontier": [asdict(rung) for rung in frontier.rungs],
            "operating": asdict(frontier.operating),
            "rows_lost": rows_lost,
            "events": list(reversed(self._events)),
            "drift": None if drift is None else dict(drift),
            "admin": admin,
        }

    def _cost(self, name: str, frontier: Frontier) -> float:
        """Return what one call of a node costs, in the mean where it depends on tokens."""
        calls = self._calls.get(name)
        if calls is None:
            return self._costs[name]
        if calls.count:
            return calls.spent / calls.count
        return frontier.node_costs.get(name, self._costs[name])

    def _cost_alone(self, name: str, frontier: Frontier) -> float:
        """Return what a node costs per request in the mean, had it been asked by each of them."""
        calls, fit = self._calls.get(name), frontier.node_costs
        if calls is None or name not in fit:
            return self._cost(name, frontier)
        known, total = calls.count, calls.spent
        for asked, (count, spent) in calls.instead.items():
            if fit.get(asked, 0.0) > 0:
                known += count
                total += spent * fit[name] / fit[asked]
        return total / known if known else self._cost(name, frontier)


def summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of several workers as one: traffic and spending are added.

    Args:
        parts: The data of each worker, as :meth:`Status.to_dict` returns it, and its name under
            ``"worker"``; that of the one that answers first.

    Returns:
        The data of all, and under ``"workers"`` the version that each of them serves.
    """
    first = parts[0]
    requests = _added([part["requests"] for part in parts])
    bills = [part["bill"] for part in parts]
    always = sum(bill["always_most_expensive"] for bill in bills)
    # Of requests that nodes decided: what was spent otherwise, as on embeddings, saves nothing.
    spent = sum(
        bill["mean"] * part["requests"]["decided"]
        for part, bill in zip(parts, bills, strict=True)
        if bill["mean"] is not None
    )
    recent = [
        (bill["recent_mean"], min(RECENT, part["requests"]["decided"]))
        for part, bill in zip(parts, bills, strict=True)
        if bill["recent_mean"] is not None
    ]
    weight = sum(count for _, count in recent)
    bill = {
        **first["bill"],
        "spent": sum(each["spent"] for each in bills),
        "estimated": sum(each["estimated"] for each in bills),
        "mean": spent / requests["decided"] if requests["decided"] else None,
        "recent_mean": sum(mean * n for mean, n in recent) / weight if weight else None,
        "always_most_expensive": always,
        "saved": 1 - spent / always if always else None,
    }
    events = sorted(
        (event for part in parts for event in part["events"]), key=lambda event: -event["time"]
    )
    return {
        **first,
        "since": min(part["since"] for part in parts),
        "requests": requests,
        "nodes": _node_sums(parts),
        "bill": bill,
        "keys": _key_sums(parts),
        "rows_lost": sum(part["rows_lost"] for part in parts),
        "events": events[:MAX_EVENTS],
        "drift": next((part["drift"] for part in parts if part["drift"] is not None), None),
        "workers": sorted(
            ({"worker": str(part["worker"]), "version": part["version"]} for part in parts),
            key=lambda each: each["worker"],
        ),
    }


def _node_sums(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the traffic of each node, and its failures by their kind."""
    nodes = _named_sums(parts, "nodes", ("asked", "answered", "failed", "spent"))
    for node in nodes:
        kinds: Counter[str] = Counter()
        for part in parts:
            for each in part["nodes"]:
                kinds.update(each["failures"] if each["name"] == node["name"] else {})
        node["failures"] = dict(kinds)
    return nodes


def _key_sums(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up what keys have spent; of keys with a limit, workers share the counts of a period."""
    added = _named_sums(parts, "keys", ("requests", "spent", "spent_in_period"))
    own = [key["spent_in_period"] for key in parts[0]["keys"]]
    return [
        {**key, "spent_in_period": spent} if key["shared"] else key
        for key, spent in zip(added, own, strict=True)
    ]


def _named_sums(
    parts: Sequence[Mapping[str, Any]], table: str, added: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Add up some columns of a table, whose rows have names; the others are the first part's."""
    rows = [{row["name"]: row for row in part[table]} for part in parts]
    return [
        {
            **row,
            **_added([{key: each[name][key] for key in added} for each in rows if name in each]),
        }
        for name, row in rows[0].items()
    ]


def _added(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(each[name] for each in counts) for name in counts[0]}


def _finite(cost: float) -> float:
    return cost if isfinite(cost) else 0.0


PAGE, PAGE_HEADERS = load_page("ttamer.serve.observability", "status.html")
"""The page, and the headers that it is sent with."""
