"""The result of one input: the answer, the node that gave it, and the cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ttamer._display.notebook import card
from ttamer._numbers import number
from ttamer.errors import TTamerError
from ttamer.policy.drawing import Arrow, Box, draw_graph

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from ttamer._display.drawing import Drawing

__all__ = ["CascadeFailed", "NodeCall", "Outcome"]


@dataclass(frozen=True)
class NodeCall:
    """One node asked about one input, and the result.

    >>> NodeCall("small", "cat", 0.9, cost=1.0, seconds=0.02).calls
    1
    """

    node: str
    prediction: object
    confidence: float | None
    cost: float
    seconds: float
    error: str | None = None
    """Why there was no answer, as "kind: text"; ``None`` when there was one."""
    calls: int = 1
    """How many calls were made: more than one with a retry or a hedge."""
    columns: Mapping[str, float] | None = None
    """What the answer has beside its confidence, such as its margin; ``None`` for nothing."""


@dataclass(frozen=True)
class Outcome:
    """The answer to one input, the node that gave it, and the cost.

    >>> call = NodeCall("small", "cat", 0.9, cost=1.0, seconds=0.02)
    >>> outcome = Outcome("cat", "cat", "small", (call,), 1.0, 0.02, "certain enough: stop", False)
    >>> outcome.path, outcome.why
    (('small',), 'certain enough: stop')
    """

    answer: Any
    """What the caller gets."""
    prediction: object
    """The class that was compared with the other nodes'."""
    by: str
    """The node that gave the answer."""
    asked: tuple[NodeCall, ...]
    """Every node asked, in order."""
    cost: float
    """The cost of all calls, in the cascade's unit."""
    seconds: float
    """Wall time of the whole run."""
    reason: str | Callable[[], str] = field(repr=False, compare=False)
    """The text of ``why``, or what computes it."""
    capped: bool
    """Whether a limit on cost or time ended the run, not the policy."""

    @cached_property
    def why(self) -> str:
        """Why the run stopped where it did; computed when it is first read."""
        return self.reason if isinstance(self.reason, str) else self.reason()

    @property
    def path(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(call.node for call in self.asked)

    def _repr_html_(self) -> str:
        rows = [
            [
                call.node,
                call.error or str(call.prediction),
                "" if call.confidence is None else number(call.confidence),
                number(call.cost),
                f"{1000 * call.seconds:,.1f} ms",
            ]
            for call in self.asked
        ]
        head = ["asked", "reply", "confidence", "cost", "time"]
        title = f"{self.answer!s:.200} (from {self.by})"
        notes = [f"cost {number(self.cost)}; {self.why}"]
        return card(title, notes=notes, head=head, rows=rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the path of the input: the nodes asked, their replies, and the answer.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        boxes = []
        for step, call in enumerate(self.asked):
            reply = f"{call.error or call.prediction!s:.40}"
            lines = [call.node, reply, f"cost {number(call.cost)}"]
            if call.node == self.by:
                lines.append("the answer")
            boxes.append(Box(tuple(lines), step, "answer" if call.node == self.by else "used"))
        arrows = [Arrow(step - 1, step, "") for step in range(1, len(boxes))]
        caption = f"cost {number(self.cost)}; {self.why}"
        return draw_graph(boxes, arrows, caption=caption).written(path)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the answer and predictions are as the nodes returned them.

        Returns:
            The fields by name, with ``why`` as text and ``asked`` as a list of mappings.
        """
        return {
            "answer": self.answer,
            "prediction": self.prediction,
            "by": self.by,
            "asked": [dict(vars(call)) for call in self.asked],
            "cost": self.cost,
            "seconds": self.seconds,
            "why": self.why,
            "capped": self.capped,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "reason": self.why}


class CascadeFailed(TTamerError):  # noqa: N818 - named after what happened
    """No node gave an answer.

    >>> CascadeFailed("no node gave an answer", late=True).late
    True
    """

    def __init__(
        self, message: str, asked: tuple[NodeCall, ...] = (), *, late: bool = False
    ) -> None:
        super().__init__(message)
        self.asked = asked
        """Every node asked, and how it failed."""
        self.late = late
        """Whether the deadline ended the run."""

    def __reduce__(self) -> Any:
        return partial(CascadeFailed, late=self.late), (str(self), self.asked)
