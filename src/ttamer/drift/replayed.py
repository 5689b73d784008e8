"""The loop over a recorded stream, so that adaptation can be measured before it is relied on.

Every row of the stream is decided by the policy that serves at that row; some rows are audited, and
the loop sees those alone. Beside it, on the same rows and the same audits: the first policy left as
it is, the safest policy, and thresholds re-tuned on the recent window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.drift.audit import Audit
from ttamer.drift.decided import decide
from ttamer.drift.loop import Loop
from ttamer.drift.retuned import Retuned
from ttamer.drift.safest import AskLast
from ttamer.drift.watch import Bound
from ttamer.errors import ArgumentError
from ttamer.fitted.replay import paid
from ttamer.fitting.plans import fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ttamer.drift.event import Event
    from ttamer.drift.serving import LoopSettings, Serving
    from ttamer.fitted.ladder import FittedLadder
    from ttamer.trace.trace import Trace

__all__ = ["ARMS", "Arm", "Replayed", "replay_stream"]

ARMS = ("adapted", "fixed", "retuned", "safest")
"""What is compared: the loop, the first policy as it is, thresholds re-tuned, the safest policy."""
AT_ONCE = 20
"""Rows served before the loop hears of the audited ones among them."""


@dataclass(frozen=True, eq=False)
class Arm:
    """What one way of serving did on every row of the stream."""

    lost: NDArray[np.float64]
    """Shape (T,): 1 where wrong; for a drop, less 1 where the node compared with is wrong."""
    cost: NDArray[np.float64]
    """Shape (T,): what was paid, audits not counted."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """What came of a stream."""

    arms: dict[str, Arm]
    audited: NDArray[np.bool_]
    audit_cost: float
    """What audits cost per row of the stream: asking whom the policy did not ask."""
    events: tuple[Event, ...]
    settings: LoopSettings

    def __len__(self) -> int:
        return len(self.audited)

    def audited_between(self, begin: int, end: int) -> int:
        """Return how many audited rows there are from one row of the stream to before another."""
        return int(self.audited[begin:end].sum())

    def blocks(self, rows: int) -> list[dict[str, Any]]:
        """Return error and cost of every arm, block after block of so many rows."""
        if rows < 1:
            raise ArgumentError(f"a block of {rows} rows: it must have 1 at least")
        return [self.between(begin, min(begin + rows, len(self))) for begin in
                range(0, len(self), rows)]  # fmt: skip

    def between(self, begin: int, end: int) -> dict[str, Any]:
        """Return the error and the cost of every arm from one row to before another."""
        part = slice(begin, end)
        found: dict[str, Any] = {"begin": begin, "end": end}
        for name, arm in self.arms.items():
            found[name] = {
                self.settings.kind: float(arm.lost[part].mean()),
                "cost": float(arm.cost[part].mean()),
            }
        return found

    def phases(self) -> list[dict[str, Any]]:
        """Return the same between the alarms and the swaps, and what serves in each phase."""
        names = {"fall back": "the safest policy", "swap": "a new policy"}
        cuts = [(0, "the first policy")]
        cuts += [
            (event.number + 1, names[event.kind])
            for event in self.events
            if event.kind in names and event.number + 1 < len(self)
        ]
        ends = [row for row, _ in cuts[1:]] + [len(self)]
        return [
            {"serving": serving, "audited": self.audited_between(begin, end),
             **self.between(begin, end)}
            for (begin, serving), end in zip(cuts, ends, strict=True)
            if end > begin
        ]  # fmt: skip

    def to_dict(self, block: int) -> dict[str, Any]:
        """Return plain values."""
        return {
            "rows": len(self),
            "audited": int(self.audited.sum()),
            "audit_cost": self.audit_cost,
            "promised": {"kind": self.settings.kind, "at_most": self.settings.at_most},
            "whole": self.between(0, len(self)),
            "phases": self.phases(),
            "blocks": self.blocks(block),
            "events": [event.to_dict() for event in self.events],
        }


def replay_stream(
    serving: Serving,
    stream: Trace,
    settings: LoopSettings,
    *,
    share: float = 0.2,
    seed: int = 0,
    thresholds_from: Trace | None = None,
    refit: Callable[[Trace], FittedLadder] = fit,
    progress: Callable[[str], None] | None = None,
) -> Replayed:
    """Run the loop over a stream, and what it is compared with.

    Args:
        serving: What serves at first, with its reference rows.
        stream: The rows in the order in which they came.
        settings: What the loop keeps to.
        share: Of rows that are audited, drawn by a hash of their numbers.
        seed: For that draw.
        thresholds_from: Rows on which thresholds are tuned first; without any they are left out.
        refit: From rows to a ladder.
        progress: Called with a line of text now and then.
    """
    if not len(stream):
        raise ArgumentError("the stream has no rows")
    count = len(stream)
    audit = Audit(share, seed=seed)
    audited = np.array([audit.draw(row, now=0.0).audited for row in range(count)])
    loop = Loop(serving, settings, refit=refit)
    node = stream.spec.index_of(settings.against or stream.names[-1])
    bound = Bound(settings.kind, settings.at_most, node)
    thresholds = None
    if thresholds_from is not None:
        thresholds = Retuned(thresholds_from, bound, window=settings.refit_rows)
    lost = {name: np.zeros(count) for name in ("adapted", "retuned")}
    cost = {name: np.zeros(count) for name in ("adapted", "retuned")}
    for begin in range(0, count, AT_ONCE):
        numbers = np.arange(begin, min(begin + AT_ONCE, count))
        rows = stream.take(numbers)
        done = decide(loop.policy, rows, numbers.tolist())
        lost["adapted"][numbers] = bound.excess(done) + bound.at_most
        cost["adapted"][numbers] = done.cost
        if thresholds is not None:
            tuned = decide(thresholds.rule, rows)
            lost["retuned"][numbers] = bound.excess(tuned) + bound.at_most
            cost["retuned"][numbers] = tuned.cost
        seen = np.flatnonzero(audited[numbers])
        if seen.size:
            some = rows.take(seen)
            loop.see(some, numbers[seen].tolist())
            if thresholds is not None:
                thresholds.see(some)
        if progress is not None:
            progress(f"row {numbers[-1] + 1} of {count}: {loop.state}")
    arms = {"adapted": Arm(lost["adapted"], cost["adapted"])}
    plain = {"fixed": serving.policy, "safest": AskLast(stream.spec)}
    for name in ARMS[1:]:
        if name in plain:
            done = decide(plain[name], stream)
            arms[name] = Arm(bound.excess(done) + bound.at_most, done.cost)
        elif thresholds is not None:
            arms[name] = Arm(lost[name], cost[name])
    every = paid(np.ones((count, len(stream.spec)), bool), stream)
    extra = float((np.maximum(every - arms["adapted"].cost, 0) * audited).mean())
    return Replayed(arms, audited, extra, tuple(loop.events), settings)
