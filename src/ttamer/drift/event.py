"""What the loop did and why, as lines that a person and a machine can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Event", "Kind", "State"]

State = Literal[
    "watching",
    "suspected",
    "refitting",
    "certifying",
    "shadowing",
    "swapped",
    "fallen back",
]


Kind = Literal[
    "alarm",
    "fall back",
    "refit",
    "certified",
    "not certified",
    "swap",
    "no swap",
    "give up",
    "hold",
    "release",
    "roll back",
    "retry",
    "begin anew",
]


@dataclass(frozen=True)
class Event:
    """One step of the loop.

    >>> print(Event(1200, "suspected", "alarm", "error 9.00%, promised at most 5.00%"))
    row 1200: suspected: error 9.00%, promised at most 5.00%
    """

    number: int
    """The row of the traffic at which it happened."""
    state: State
    """Where the loop stands after it."""
    kind: Kind
    """What happened."""
    text: str
    """Why, in a sentence."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it."""
    time: float | None = None
    """Seconds since 1970, where there is a clock."""

    def __str__(self) -> str:
        return f"row {self.number}: {self.state}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict())
