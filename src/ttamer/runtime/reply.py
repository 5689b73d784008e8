"""What the callable of a node may return, and the outcome of a run.

One contract holds for ``Cascade``, ``collect``, Ray and the server. A reply is

- ``(prediction, confidence)``,
- ``(prediction, confidence, answer)``, or
- a mapping or an object with these names and, where they are known, ``cost`` and ``latency``;
  further names are ignored.

``prediction`` is the class that is compared with labels and with other nodes: text, a number or a
truth value; ``None`` means that the node has no answer, which is never right. ``answer`` is any
object, and is what the caller gets; without it the caller gets the prediction. ``confidence`` is
any number that grows with certainty: text is refused, NaN and minus infinity count as the node's
lowest. ``cost`` is what this call cost, instead of the node's own cost; finite and not negative.
A batched callable returns one reply for each input, or its replies as columns (:func:`rows_of`).
``latency`` is how long the call took, where the node knows better than a clock outside; it is kept
in traces, and one that is not finite counts as not given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from ttamer._checks import as_float, counted, is_number, number
from ttamer.errors import TraceError, TTamerError
from ttamer.show import Drawing
from ttamer.show.graph import draw_path
from ttamer.trace.schema import class_text


class Reply(NamedTuple):
    """What a node returned for one input, checked; returned by a callable, it is taken as it is."""

    prediction: object
    confidence: float
    answer: Any
    cost: float | None = None
    """What this call cost; ``None`` where the node's own cost holds."""
    latency: float = math.nan


class Unusable(Exception):  # noqa: N818 - the runner counts it as no answer
    """What a node returned is not a reply; the text has the reason."""

    kind = "reply"  # of error_text


def reply_of(returned: Any) -> Reply:
    """Return what a callable returned as a checked reply.

    Raises:
        Unusable: If it is not a reply.

    >>> reply_of(("cat", 0.9)).answer, reply_of(("cat", 0.9, {"text": "A cat."})).answer
    ('cat', {'text': 'A cat.'})
    >>> reply_of({"prediction": "cat", "confidence": 0.9, "cost": 2}).cost
    2.0
    """
    if type(returned) is Reply:  # of a node of this package, which checks what it reads
        return returned
    fields: Mapping[str, Any]
    if isinstance(returned, tuple | list):
        if len(returned) not in (2, 3):
            raise Unusable(f"returned {len(returned)} values; (prediction, confidence) is needed")
        fields = dict(zip(Reply._fields, returned, strict=False))
    elif isinstance(returned, Mapping):
        fields = returned
    else:
        fields = {
            name: getattr(returned, name) for name in Reply._fields if hasattr(returned, name)
        }
    if "prediction" not in fields or "confidence" not in fields:
        raise Unusable(f"returned {type(returned).__name__}; (prediction, confidence) is needed")
    prediction, cost, latency = fields["prediction"], fields.get("cost"), fields.get("latency")
    try:
        class_text(prediction)
    except TraceError as error:
        raise Unusable(
            f"returned a prediction that is not a class ({error}); return other objects as the "
            "answer: (prediction, confidence, answer)"
        ) from None
    confidence = _number(fields["confidence"], "confidence")
    if cost is not None:
        cost = _number(cost, "cost")
        if not 0 <= cost < math.inf:
            raise Unusable(f"returned a cost of {cost:g}; it must be finite and not negative")
    latency = math.nan if latency is None else _number(latency, "latency")
    latency = latency if math.isfinite(latency) else math.nan
    return Reply(prediction, confidence, fields.get("answer", prediction), cost, latency)


def rows_of(returned: Any, count: int) -> list[Any]:
    """Return the replies of a batched callable as one reply for each input.

    It may return a sequence of replies, a mapping of columns, or a tuple of NumPy arrays
    ``(predictions, confidences)`` or ``(predictions, confidences, answers)``.

    Raises:
        Unusable: If there are not as many replies as inputs.

    >>> import numpy as np
    >>> rows_of((np.array(["cat", "dog"]), np.array([0.9, 0.8])), 2)
    [('cat', 0.9), ('dog', 0.8)]
    """
    replies: list[Any]
    if isinstance(returned, Mapping):
        columns = map(_plain_list, returned.values())
        replies = [dict(zip(returned, row, strict=True)) for row in zip(*columns, strict=True)]
    elif are_columns(returned):
        replies = list(zip(*map(_plain_list, returned), strict=True))
    else:
        replies = list(returned)
    if len(replies) != count:
        raise Unusable(f"returned {counted(len(replies), 'reply')} for {counted(count, 'input')}")
    return replies


def are_columns(returned: Any) -> bool:
    """Return whether a batched callable returned columns: a tuple of arrays, or of lists.

    Of lists the second is of numbers, so that a tuple of replies is none.

    >>> are_columns((np.array(["cat"]), np.array([0.9]))), are_columns((["cat", "dog"], [0.9, 0.8]))
    (True, True)
    >>> are_columns((("cat", 0.9), ("dog", 0.8))), are_columns((["cat", 0.9], ["dog", 0.8]))
    (False, False)
    """
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        return False
    if all(isinstance(column, np.ndarray) for column in returned):
        return True
    are_lists = all(isinstance(column, np.ndarray | list) for column in returned)
    is_even = are_lists and len(set(map(len, returned))) == 1
    return is_even and all(map(is_number, returned[1]))


def _plain_list(column: Any) -> list[Any]:
    """Return a column as a list of plain objects, not of NumPy's."""
    # NumPy's own numbers would be handed to callers, and cannot be written as JSON.
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _number(value: Any, what: str) -> float:
    try:
        return as_float(value)
    except TypeError:
        raise Unusable(f"returned a {what} that is no number ({type(value).__name__})") from None


def error_text(error: BaseException) -> str:
    """Return an error as "kind: text"; the kind is its ``kind`` attribute, or its type.

    >>> error_text(KeyError("small")), error_text(TimeoutError("no answer in 2 s"))
    ("KeyError: 'small'", 'timeout: no answer in 2 s')
    """
    text = " ".join(str(error).split())
    kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
    kind = getattr(error, "kind", kind)
    return f"{kind}: {text}" if text else kind


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
    """How many calls were made: more than one with retries."""


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
        return self.plot()._repr_html_()

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the path of the input: the nodes asked, their replies, and the answer.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        steps = []
        for call in self.asked:
            lines = [call.node, f"{call.error or call.prediction!s:.40}"]
            if call.confidence is not None:
                lines.append(f"confidence {number(call.confidence)}")
            lines.append(f"cost {number(call.cost)}")
            is_answer = call.node == self.by
            steps.append(([*lines, *["the answer"] * is_answer], "answer" if is_answer else "used"))
        return draw_path(steps, f"cost {number(self.cost)}; {self.why}").written(path)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the answer and predictions are as the nodes returned them.

        Returns:
            The fields by name, with ``why`` as text and ``asked`` as a list of mappings.
        """
        fields = {**vars(self), "why": self.why, "asked": [{**vars(call)} for call in self.asked]}
        return {name: value for name, value in fields.items() if name != "reason"}

    def __getstate__(self) -> dict[str, Any]:
        # What computes the reason holds a session, which other processes cannot read.
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
        # Errors are pickled by their arguments, and these are keywords.
        return partial(CascadeFailed, late=self.late), (str(self), self.asked)
