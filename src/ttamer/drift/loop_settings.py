"""What the loop must keep to: its promise, and how many rows it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from ttamer.fitted.promise import Kind

__all__ = ["LEAST_REFIT", "LoopSettings"]

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
