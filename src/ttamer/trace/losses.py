"""What each answer loses: one number in [0, 1], NaN where it is not known.

It comes from the first of these that the trace has: losses (or scores) of the answers, a table of
mistakes, whether answers are correct, or whether they equal the label. With the target "last", the
answer of the last node takes the place of the label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.mistakes import largest_mistake, mistake_table

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace


def losses_of(trace: Trace, target: str | None = None) -> NDArray[np.float64]:
    """Return, shape (T, n), the losses in the trace's own unit; NaN where one is not known."""
    target = trace.spec.target if target is None else target
    if target not in ("label", "last"):
        raise ArgumentError(f'target is {target!r}; it must be "label" or "last"', param="target")
    if trace.raw_loss is not None:
        losses = trace.raw_loss
        if target == "last":
            losses = np.maximum(losses - losses[:, -1:], 0.0)
    elif trace.spec.mistakes:
        losses = _mistakes(trace, target)
    elif target == "last":
        losses = _against_last(trace)
    else:
        losses = _against_label(trace)
    return np.where(trace.answered, losses, np.nan)


def _against_label(trace: Trace) -> NDArray[np.float64]:
    if trace.correct is not None:
        return np.where(trace.correct < 0, np.nan, trace.correct == 0)
    if trace.prediction is None or trace.label is None:
        lacks = " and ".join(n for n in ("prediction", "label") if getattr(trace, n) is None)
        unused = [note for note in trace.notes if note.startswith("columns not used")]
        raise TraceError(
            f'target "label" needs to know which answers are right; the trace has no {lacks}: '
            "add columns <node>.correct, or <node>.prediction and label"
            + ("" if trace.prediction is None else ', or set target = "last"')
            + "".join(f" ({note})" for note in unused)
        )
    label = trace.label[:, np.newaxis]
    # A prediction of -1 is no label's code: an answer that says nothing is wrong.
    return np.where(label < 0, np.nan, trace.prediction != label)


def _against_last(trace: Trace) -> NDArray[np.float64]:
    codes = _predictions(trace)
    wrong = (codes != codes[:, -1:]) | (codes < 0)
    losses = np.where(trace.answered[:, -1:], wrong, np.nan)
    losses[:, -1] = 0.0
    return losses


def _mistakes(trace: Trace, target: str) -> NDArray[np.float64]:
    mistakes = trace.spec.mistakes
    if trace.prediction is None:
        raise TraceError(
            "[cascade] has a table of mistakes, which needs predictions: add columns "
            "<node>.prediction"
        )
    right = trace.prediction[:, -1] if target == "last" else trace.label
    if right is None:
        raise TraceError(
            "[cascade] has a table of mistakes, which needs labels: add a column label, or "
            'set target = "last"'
        )
    table = mistake_table(mistakes, trace.classes)
    losses = np.full(trace.prediction.shape, np.nan)
    known = right >= 0
    losses[known] = table[right[known, np.newaxis], trace.prediction[known]]
    if target == "last":
        # No answer equals no answer.
        losses[trace.answered[:, -1] & ~known] = largest_mistake(mistakes)
        losses[:, -1] = 0.0
    return losses


def _predictions(trace: Trace) -> NDArray[Any]:
    if trace.prediction is None:
        more = (
            ""
            if trace.correct is None
            else '; if correct already means agreement with the last node, set target = "label"'
        )
        raise TraceError(
            'target "last" compares predictions with the last node\'s, and the trace has none: '
            f"add columns <node>.prediction{more}"
        )
    return trace.prediction
