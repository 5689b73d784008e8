"""The settings of the drift loop: its promise, and how many rows it waits for."""

from __future__ import annotations

from dataclasses import dataclass

from ttamer._checks import require_whole
from ttamer.errors import ArgumentError
from ttamer.fitting.promises import Kind

# The smallest number of audited rows that a re-fit may wait for.
MIN_REFIT_ROWS = 50


@dataclass(frozen=True)
class LoopSettings:
    """The settings of the drift loop.

    >>> LoopSettings(at_most=0.05).refit_rows
    400

    Raises:
        ArgumentError: Where a setting is out of its range.
    """

    at_most: float
    """The promised upper bound on the error, or on the drop."""
    kind: Kind = "error"
    """What is promised: ``"error"`` or ``"drop"``."""
    against: str | None = None
    """The node that a drop is measured from; by default the last."""
    confidence: float = 0.95
    """The confidence of every promise."""
    false_alarms: float = 0.05
    """The probability that there is ever an alarm without a change, for each policy that serves."""
    refit_rows: int = 400
    """The number of audited rows after the change that a re-fit waits for."""
    hold_out: float = 0.5
    """The share of these rows that is held out to certify the policy."""
    shadow_rows: int = 50
    """The number of audited rows that a new policy decides in the shadow before it serves."""
    attempts: int = 4
    """The number of failed attempts after which the fallback policy stays active."""
    window: int = 10_000
    """The number of audited rows kept in memory."""
    seed: int = 0
    """The seed of all random draws."""

    def __post_init__(self) -> None:
        if self.kind not in ("error", "drop"):
            raise ArgumentError(f'kind is {self.kind!r}; it must be "error" or "drop"')
        if not 0 < self.hold_out < 1:
            raise ArgumentError(f"hold_out is {self.hold_out!r}; it must lie between 0 and 1")
        require_whole(self.refit_rows, "refit_rows", least=MIN_REFIT_ROWS)
        require_whole(self.shadow_rows, "shadow_rows", least=1)
        require_whole(self.attempts, "attempts", least=1)
        if self.window < self.refit_rows:
            raise ArgumentError(
                f"window is {self.window} and refit_rows is {self.refit_rows}; window must be at "
                "least refit_rows"
            )
