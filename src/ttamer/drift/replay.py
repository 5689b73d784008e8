"""The drift loop over a recorded stream, to measure adaptation before it is relied on.

Every row of the stream is decided by the policy that serves at that row; the loop takes the audited
rows only. It is compared, on the same rows and the same audits, with the first policy kept as it
is, with the fallback policy, and with rivals that adapt in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer.drift.decisions import decide
from ttamer.drift.fallback import AskLast
from ttamer.drift.loop import CertifiedServing, Event, Loop
from ttamer.drift.monitor import Bound
from ttamer.drift.sampling import AuditSampler
from ttamer.drift.settings import LoopSettings
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder
from ttamer.fitting.replay import Rule, paid
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

# The number of rows served before the loop takes the audited ones among them.
BATCH_ROWS = 20


class Rival(Protocol):
    """A rule that adapts to audited rows in its own way."""

    rule: Rule

    def update(self, rows: Trace) -> None:
        """Take audited rows, in their order."""
        ...


@dataclass(frozen=True, eq=False)
class Arm:
    """Loss and cost of one of the policies compared, on every row of the stream.

    >>> arm = Arm(lost=np.array([0.0, 1.0]), cost=np.array([1.0, 6.0]))
    >>> float(arm.lost.mean()), float(arm.cost.mean())
    (0.5, 3.5)
    """

    lost: NDArray[np.float64]
    """Shape (T,): 1 where wrong, or the loss; for a drop, minus that of the node compared with."""
    cost: NDArray[np.float64]
    """Shape (T,): the cost without audits."""


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """The result of a replay, as :func:`replay_stream` returns it.

    >>> from ttamer.drift import LoopSettings
    >>> arm = Arm(lost=np.array([0.0, 1.0]), cost=np.array([1.0, 6.0]))
    >>> settings = LoopSettings(at_most=0.05)
    >>> result = ReplayResult({"fixed": arm}, np.array([True, False]), 2.5, (), settings)
    >>> result.between(0, 2)["fixed"]
    {'error': 0.5, 'cost': 3.5}
    """

    arms: dict[str, Arm]
    """The policies compared: ``adapted``, the loop's; ``fixed``, the first; the rivals, by their
    names; and ``fallback``."""
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

    def audited_between(self, begin: int, end: int) -> int:
        """Return the number of audited rows among ``begin`` to ``end - 1``.

        Args:
            begin: The first row, from 0.
            end: The row after the last.

        Returns:
            The number of rows.
        """
        return int(self.audited[begin:end].sum())

    def blocks(self, rows: int) -> list[dict[str, Any]]:
        """Return error and cost of every arm in consecutive blocks.

        Args:
            rows: The number of rows in a block.

        Returns:
            The result of :meth:`between` for each block.

        Raises:
            ArgumentError: Where ``rows`` is below 1.
        """
        if rows < 1:
            raise ArgumentError(f"rows is {rows}; a block needs at least 1 row")
        return [
            self.between(begin, min(begin + rows, len(self))) for begin in range(0, len(self), rows)
        ]

    def between(self, begin: int, end: int) -> dict[str, Any]:
        """Return error and cost of every arm on the rows ``begin`` to ``end - 1``.

        Args:
            begin: The first row, from 0.
            end: The row after the last.

        Returns:
            ``begin``, ``end`` and, by arm, the mean error (or drop), or the mean loss, and the
            mean cost per row, in the cascade's units.

        Raises:
            ArgumentError: Where there is no such row.
        """
        if not 0 <= begin < end <= len(self):
            raise ArgumentError(
                f"begin is {begin} and end is {end}; there are rows from 0 to {len(self)}"
            )
        part = slice(begin, end)
        found: dict[str, Any] = {"begin": begin, "end": end}
        for name, arm in self.arms.items():
            found[name] = {
                self.settings.kind: float(arm.lost[part].mean()),
                "cost": float(arm.cost[part].mean()),
            }
        return found

    def phases(self) -> list[dict[str, Any]]:
        """Return error and cost between alarms and swaps, and the policy that serves there.

        Returns:
            For each phase the result of :meth:`between`, with the policy under ``"serving"`` and
            the number of audited rows under ``"audited"``.
        """
        names = {"fallback": "the fallback policy", "swap": "a new policy"}
        cuts = [(0, "the first policy")]
        for event in self.events:
            # The rest of a batch is decided by the policy that it began with.
            begin = (event.number // BATCH_ROWS + 1) * BATCH_ROWS
            if event.kind in names and begin < len(self):
                cuts.append((begin, names[event.kind]))
        ends = [row for row, _ in cuts[1:]] + [len(self)]
        return [
            {"serving": serving, "audited": self.audited_between(begin, end),
             **self.between(begin, end)}
            for (begin, serving), end in zip(cuts, ends, strict=True)
            if end > begin
        ]  # fmt: skip

    def to_dict(self, block: int) -> dict[str, Any]:
        """Return plain values, for JSON.

        Args:
            block: The number of rows in a block.

        Returns:
            Counts, the promise, and the results of :meth:`between` for the whole stream, of
            :meth:`phases` and of :meth:`blocks`, with the events; ``measure`` only where it is the
            mean loss.

        Raises:
            ArgumentError: Where ``block`` is below 1.
        """
        return {
            **({} if self.measure == "error" else {"measure": self.measure}),
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
    serving: CertifiedServing,
    stream: Trace,
    settings: LoopSettings,
    *,
    share: float = 0.2,
    seed: int = 0,
    rivals: Mapping[str, Rival] | None = None,
    refit: Callable[[Trace], FittedLadder] = fit,
    progress: Callable[[str], None] | None = None,
) -> ReplayResult:
    """Run the loop, and the policies it is compared with, over a recorded stream.

    >>> import ttamer as tt
    >>> from ttamer.drift import LoopSettings, serving_of
    >>> fitted, held = tt.datasets.load("minilm-imdb", "fit").split(0.6, seed=0)
    >>> settings = LoopSettings(at_most=0.15)
    >>> serving = serving_of(tt.fit(fitted), held, settings)
    >>> stream = tt.datasets.load("minilm-imdb", "test").take(slice(500))
    >>> result = replay_stream(serving, stream, settings)
    >>> len(result), list(result.arms)
    (500, ['adapted', 'fixed', 'fallback'])

    Args:
        serving: The policy that serves at first, with its reference rows.
        stream: The rows in their order.
        settings: The settings of the loop.
        share: The share of rows that is audited, drawn by a hash of their numbers.
        seed: The seed of that draw.
        rivals: Rules that adapt in another way, by name; they take the same audited rows.
        refit: The function from rows to a ladder.
        progress: Called with a line of text after each batch.

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
    audited = np.array([sampler.draw(row, now=0.0).audited for row in range(count)])
    loop = Loop(serving, settings, refit=refit)
    node = stream.spec.index_of(settings.against or stream.names[-1])
    unit = stream.spec.loss_bound if stream.is_graded else None
    bound = Bound(settings.kind, settings.at_most, node, unit)

    def measured(rule: Rule, rows: Trace, keys: list[int] | None = None) -> Arm:
        """Return the loss of each row, in the unit of the losses, and its cost."""
        done = decide(rule, rows, keys)
        return Arm((bound.excess(done) + bound.share) * (1.0 if unit is None else unit), done.cost)

    rivals = {} if rivals is None else rivals
    adapted: list[Arm] = []
    others: dict[str, list[Arm]] = {name: [] for name in rivals}
    for begin in range(0, count, BATCH_ROWS):
        numbers = np.arange(begin, min(begin + BATCH_ROWS, count))
        rows = stream.take(numbers)
        adapted.append(measured(loop.policy, rows, numbers.tolist()))
        for name, rival in rivals.items():
            others[name].append(measured(rival.rule, rows))
        seen = np.flatnonzero(audited[numbers])
        if seen.size:
            some = rows.take(seen)
            loop.update(some, numbers[seen].tolist())
            for rival in rivals.values():
                rival.update(some)
        if progress is not None:
            progress(f"row {numbers[-1] + 1} of {count}: {loop.state}")
    arms = {"adapted": _joined(adapted), "fixed": measured(serving.policy, stream)}
    arms |= {name: _joined(parts) for name, parts in others.items()}
    arms["fallback"] = measured(AskLast(stream.spec), stream)
    every = paid(np.ones((count, len(stream.spec)), bool), stream)
    extra = float((np.maximum(every - arms["adapted"].cost, 0) * audited).mean())
    return ReplayResult(arms, audited, extra, tuple(loop.events), settings, stream.measure)


def _joined(parts: Sequence[Arm]) -> Arm:
    """Return the rows of all parts, one after the other."""
    return Arm(
        np.concatenate([part.lost for part in parts]), np.concatenate([part.cost for part in parts])
    )
