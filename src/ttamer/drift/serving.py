"""What serves, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttamer.drift.loop_settings import LoopSettings
from ttamer.drift.safest import AskLast
from ttamer.fitted.held_out import HeldOut
from ttamer.fitted.promise import make_promise

if TYPE_CHECKING:
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.mixture import Mixture
    from ttamer.fitted.promise import Promise
    from ttamer.trace.trace import Trace

__all__ = ["LoopSettings", "Serving", "serving_of"]


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
