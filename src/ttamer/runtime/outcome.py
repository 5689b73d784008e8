"""What came of one input: the answer, who gave it, and what it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ttamer.errors import TTamerError

__all__ = ["Asked", "CascadeFailed", "Outcome"]


@dataclass(frozen=True)
class Asked:
    """What one node was asked, and what came of it."""

    node: str
    prediction: object
    confidence: float | None
    cost: float
    seconds: float
    error: str | None = None
    """Why there was no answer, as "kind: text"; ``None`` when there was one."""
    calls: int = 1
    """How many calls were made: more than one where it was asked again, or hedged."""


@dataclass(frozen=True)
class Outcome:
    """The answer to one input, who gave it, and what it took."""

    answer: Any
    prediction: object
    by: str
    """The node whose answer it is."""
    asked: tuple[Asked, ...]
    cost: float
    """Of all calls, in the cascade's units."""
    seconds: float
    why: str
    capped: bool
    """Whether a limit on cost or time ended it, not the policy."""

    @property
    def path(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(one.node for one in self.asked)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the answer and predictions as they are."""
        return {**vars(self), "asked": [dict(vars(one)) for one in self.asked]}


class CascadeFailed(TTamerError):  # noqa: N818 - the name says what happened
    """No node gave an answer."""

    def __init__(self, message: str, asked: tuple[Asked, ...] = (), *, late: bool = False) -> None:
        super().__init__(message)
        self.asked = asked
        """What each node was asked, and how it failed."""
        self.late = late
        """Whether the deadline ended it."""

    def __reduce__(self) -> Any:
        return _failed_again, (str(self), self.asked, self.late)


def _failed_again(message: str, asked: tuple[Asked, ...], late: bool) -> CascadeFailed:
    return CascadeFailed(message, asked, late=late)
