"""The drift loop over a recorded stream, to measure adaptation before it is relied on.

Every row of the stream is decided by the policy that serves at that row; the loop takes the audited
rows only. It is compared, on the same rows and the same audits, with the first policy kept as it
is, and with the fallback policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.drift.audits import AuditSampler
from ttamer.drift.loop import CertifiedServing, Event, Loop, LoopSettings
from ttamer.drift.monitor import Bound, decide
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.fitting.replay import Rule, paid
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

BATCH_ROWS = 20  # rows served before the loop takes the audited ones among them


@dataclass(frozen=True, eq=False)
class Arm:
    """Loss and cost of one of the policies compared, on every row of the stream."""

    lost: NDArray[np.float64]
    """Shape (T,): 1 where wrong, or the loss; for a drop, minus that of the node compared with."""
    cost: NDArray[np.float64]
    """Shape (T,): the cost without audits."""

    @classmethod
    def joined(cls, parts: Sequence[Arm]) -> Arm:
        """Return the rows of all parts, one after the other."""
        lost, cost = ([getattr(part, name) for part in parts] for name in ("lost", "cost"))
        return cls(np.concatenate(lost), np.concatenate(cost))


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """The result of a replay."""

    arms: dict[str, Arm]
    """The policies compared: ``adapted``, the loop's; ``fixed``, the first; and ``fallback``."""
    audited: NDArray[np.bool_]
    """Shape (T,): the audited rows."""
    audit_cost: float
    """The cost of audits per row of the stream: of the nodes that the policy did not ask."""
    events: tuple[Event, ...]
    """The events of the loop."""
    settings: LoopSettings
    measure: Measure = "error"
    """What the losses of arms are: errors, or mean losses in the unit of the losses."""

    def __len__(self) -> int:
        return len(self.audited)

    def between(self, begin: int, end: int) -> dict[str, Any]:
        """Return what every arm does on the rows ``begin`` to ``end - 1``.

        Args:
            begin: The first row, from 0.
            end: The row after the last.

        Returns:
            ``begin``, ``end``, the number of audited rows, and by arm the mean error (or drop), or
            the mean loss, and the mean cost per row, in the cascade's units.

        Raises:
            ArgumentError: Where there is no such row.
        """
        if not 0 <= begin < end <= len(self):
            raise ArgumentError(
                f"begin is {begin} and end is {end}; there are rows from 0 to {len(self)}"
            )
        part = slice(begin, end)
        kind = self.settings.kind
        means = {
            name: {kind: float(arm.lost[part].mean()), "cost": float(arm.cost[part].mean())}
            for name, arm in self.arms.items()
        }
        return {"begin": begin, "end": end, "audited": int(self.audited[part].sum()), **means}


def replay_stream(
    serving: CertifiedServing,
    stream: Trace,
    settings: LoopSettings,
    *,
    share: float = 0.2,
    seed: int = 0,
    refit: Callable[[Trace], FittedLadder] = fit,
) -> ReplayResult:
    """Run the loop, and the policies it is compared with, over a recorded stream.

    Args:
        serving: The policy that serves at first, with its reference rows.
        stream: The rows in their order.
        settings: The settings of the loop.
        share: The share of rows that is audited, drawn by a hash of their numbers.
        seed: The seed of that draw.
        refit: The function from rows to a ladder.

    Returns:
        Loss and cost of every arm, the audited rows and the events.

    Raises:
        ArgumentError: Where the stream has no rows.
    """
    require_trace(stream, "replay_stream")
    if not len(stream):
        raise ArgumentError("the stream has no rows")
    count = len(stream)
    sampler = AuditSampler(share, seed=seed)
    audited = np.array([sampler.draw(row, seconds=0.0)[0] for row in range(count)])
    loop = Loop(serving, settings, refit=refit)
    parts: list[Arm] = []
    for begin in range(0, count, BATCH_ROWS):
        numbers = np.arange(begin, min(begin + BATCH_ROWS, count))
        rows = stream.take(numbers)
        parts.append(arm_of(loop.policy, rows, settings, numbers.tolist()))
        drawn = np.flatnonzero(audited[numbers])
        if drawn.size:
            loop.update(rows.take(drawn), numbers[drawn].tolist())
    adapted = Arm.joined(parts)
    complete = paid(np.ones((count, len(stream.spec)), bool), stream)
    return ReplayResult(
        {
            "adapted": adapted,
            "fixed": arm_of(serving.policy, stream, settings),
            "fallback": arm_of(serving.ladder.alone(stream.names[-1]), stream, settings),
        },
        audited,
        float((np.maximum(complete - adapted.cost, 0) * audited).mean()),
        tuple(loop.events),
        settings,
        stream.measure,
    )


def arm_of(
    rule: Rule, rows: Trace, settings: LoopSettings, keys: Sequence[int] | None = None
) -> Arm:
    """Return the loss of a rule on each row, in the unit of the losses, and its cost.

    Args:
        rule: The rule.
        rows: The rows.
        settings: What is promised, and against which node.
        keys: What a mixture draws its policy by on each row.
    """
    unit = rows.spec.loss_bound if rows.is_graded else None
    node = rows.spec.index_of(settings.against or rows.names[-1])
    bound, decisions = Bound(settings.kind, 0.0, node, unit), decide(rule, rows, keys)
    return Arm(bound.excess(decisions) * (1.0 if unit is None else unit), decisions.cost)
