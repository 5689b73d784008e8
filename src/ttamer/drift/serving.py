"""What serves, what it must keep to, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttamer.drift.safest import AskLast
from ttamer.errors import ArgumentError
from ttamer.held_out import HeldOut
from ttamer.promise import make_promise

if TYPE_CHECKING:
    from ttamer.fitted import FittedLadder, FittedPolicy
    from ttamer.mixture import Mixture
    from ttamer.promise import Kind, Promise
    from ttamer.trace import Trace

__all__ = ["LoopSettings", "Serving", "serving_of"]

LEAST_REFIT = 50


@dataclass(frozen=True)
class LoopSettings:
    """What the loop must keep to."""

    at_most: float
    """The error, or the drop, that is promised."""
    kind: Kind = "error"
    against: str | None = None
    """The node that a drop is measured from; by default the last."""
    confidence: float = 0.95
    """Of every promise."""
    false_alarms: float = 0.05
    """The chance that there is ever an alarm though nothing changes."""
    refit_rows: int = 400
    """Audited rows after the change that a re-fit waits for."""
    hold_out: float = 0.5
    """The share of them that certifies and is not fitted to."""
    shadow_rows: int = 50
    """Audited rows that a new policy decides in the shadow."""
    attempts: int = 4
    """After so many tries that failed the safest policy stays."""
    window: int = 10_000
    """Audited rows that are kept in memory."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hold_out < 1:
            raise ArgumentError(f"hold_out is {self.hold_out!r}; it must lie between 0 and 1")
        if self.refit_rows < LEAST_REFIT or self.shadow_rows < 1 or self.attempts < 1:
            raise ArgumentError(
                f"the loop needs refit_rows >= {LEAST_REFIT}, shadow_rows >= 1 and attempts >= 1, "
                f"not {self.refit_rows}, {self.shadow_rows}, {self.attempts}"
            )
        if self.window < self.refit_rows:
            raise ArgumentError(
                f"window is {self.window}, and a re-fit waits for {self.refit_rows} rows: keep as "
                "many at least"
            )


@dataclass(frozen=True, eq=False)
class Serving:
    """A policy that serves or served, and the ladder and the promise it comes from."""

    policy: FittedPolicy | Mixture | AskLast
    ladder: FittedLadder | None = None
    promise: Promise | None = None
    reference: Trace | None = None
    """Rows it was not fitted to, which say how its traffic should look."""

    def __str__(self) -> str:
        if isinstance(self.policy, AskLast):
            return f"the safest policy ({self.policy.spec.names[-1]} answers)"
        return str(self.policy)


def serving_of(ladder: FittedLadder, reference: Trace, settings: LoopSettings) -> Serving:
    """Return the cheapest policy of a ladder that keeps what the settings promise.

    Certified on the reference rows, to which the ladder was not fitted. Where it cannot be
    certified, the promise says so, and the policy is the dearest of the ladder.
    """
    counted = HeldOut.of(ladder, reference, against=settings.against or reference.names[-1])
    promise = make_promise(counted, settings.kind, settings.at_most, settings.confidence)
    policy = ladder.keeping(promise, seed=settings.seed)
    return Serving(policy, ladder.promising(policy), promise, reference)
