"""The ``[serve.audit]`` table: which requests are audited, and what the loop must keep to.

::

    [serve.audit]
    share = 0.05                 # of requests: every node is asked, off the user's path
    budget = 500                 # at most, an hour, in the cascade's units
    log = "audits"               # a folder of Parquet segments
    reference = "held.parquet"   # rows the policy was not fitted to: with them the loop runs
    error = 0.05                 # ... and keeps to this
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttamer.drift.audit_log import Retention
from ttamer.drift.settings import MIN_REFIT_ROWS, LoopSettings
from ttamer.errors import ArgumentError, CascadeError
from ttamer.serve.checking import a_number, a_text, a_whole_number, checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ttamer.serve.checking import Check

__all__ = ["AuditSettings", "audit_settings_of"]

PLACE = "[serve.audit]"
DAY = 86_400.0
_LOOP = ("confidence", "false_alarms", "refit_rows", "shadow_rows", "attempts", "window", "seed")


@dataclass(frozen=True)
class AuditSettings:
    """Which requests are audited, what is kept of them, and what the loop must keep to."""

    share: float
    """Of requests that choose nothing for themselves, while the budget lasts."""
    budget: float = math.inf
    """What audits may cost in an hour, in the cascade's units."""
    budget_in_all: float = math.inf
    """What they may cost until the gateway ends."""
    at_once: int = 4
    """Audits whose nodes are being asked at the same time."""
    log: str | None = None
    """A folder for audited rows."""
    keep_rows: int | None = None
    keep_bytes: int | None = None
    keep_days: float | None = None
    reference: str | None = None
    """A trace of rows the policy was not fitted to. With it the loop runs."""
    error: float | None = None
    """At most so many answers may be wrong; or ..."""
    drop: float | None = None
    """... at most so many more than of the last node's."""
    confidence: float = LoopSettings.confidence
    false_alarms: float = LoopSettings.false_alarms
    refit_rows: int = LoopSettings.refit_rows
    shadow_rows: int = LoopSettings.shadow_rows
    attempts: int = LoopSettings.attempts
    window: int = LoopSettings.window
    seed: int = 0

    @property
    def retention(self) -> Retention:
        """What the log keeps."""
        seconds = None if self.keep_days is None else self.keep_days * DAY
        return Retention(self.keep_rows, self.keep_bytes, seconds)

    @property
    def loop(self) -> LoopSettings:
        """What the loop must keep to; only where there is a reference."""
        kind, at_most = ("error", self.error) if self.drop is None else ("drop", self.drop)
        assert at_most is not None  # noqa: S101 - checked when the table was read
        return LoopSettings(at_most, kind, **{name: getattr(self, name) for name in _LOOP})  # type: ignore[arg-type]


def audit_settings_of(table: Mapping[str, Any], *, nodes: int) -> AuditSettings:
    """Check the table.

    >>> audit_settings_of({"share": 0.05, "log": "audits"}, nodes=2).budget
    inf
    """
    if "share" not in table:
        raise CascadeError(f"{PLACE}: lacks share, the share of requests to audit: share = 0.05")
    found = AuditSettings(**checked(table, _CHECKS, PLACE))
    if nodes < 2:
        raise CascadeError(f"{PLACE}: with one node there is nobody else to ask; remove it")
    if found.log is None and found.reference is None:
        raise CascadeError(
            f"{PLACE}: what is audited would go nowhere; name a folder for it (log), rows that the "
            "policy was not fitted to (reference), or both"
        )
    _check_loop(found, table)
    return found


def _check_loop(found: AuditSettings, table: Mapping[str, Any]) -> None:
    promises = [name for name in ("error", "drop") if name in table]
    if found.reference is None:
        for name in (*promises, *_LOOP):
            if name in table:
                raise CascadeError(
                    f"{PLACE}: has {name}, which is for the loop, and the loop needs reference, a "
                    "trace of rows that the policy was not fitted to"
                )
        return
    if len(promises) != 1:
        raise CascadeError(
            f"{PLACE}: the loop keeps to one promise, and here are {len(promises)}; write error "
            "(at most so many answers wrong) or drop (so many more than of the last node)"
        )
    try:
        found.loop  # noqa: B018 - it checks itself
    except ArgumentError as error:
        raise CascadeError(f"{PLACE}: {error}") from None


_CHECKS: dict[str, Check] = {
    "share": a_number(0, 1, above=True),
    "budget": a_number(0, above=True),
    "budget_in_all": a_number(0, above=True),
    "at_once": a_whole_number(1, 1024),
    "log": a_text,
    "keep_rows": a_whole_number(1, 2**40),
    "keep_bytes": a_whole_number(1, 2**50),
    "keep_days": a_number(0, above=True),
    "reference": a_text,
    "error": a_number(0, 1),
    "drop": a_number(0, 1),
    "confidence": a_number(0.5, 0.999999),
    "false_alarms": a_number(0.000001, 0.5),
    "refit_rows": a_whole_number(MIN_REFIT_ROWS, 10**7),
    "shadow_rows": a_whole_number(1, 10**7),
    "attempts": a_whole_number(1, 1000),
    "window": a_whole_number(MIN_REFIT_ROWS, 10**7),
    "seed": a_whole_number(0, 2**53),
}
