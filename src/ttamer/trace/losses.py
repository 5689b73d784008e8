"""What each answer loses: one number in [0, 1], NaN where it is not known.

It comes from the first of these that the trace has: losses (or scores) of the answers, a table of
mistakes, whether answers are correct, or whether they equal the label. With the target "last", the
answer of the last node takes the place of the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import ANY_CLASS, Mistakes, largest_mistake
from ttamer.errors import ArgumentError, TraceError

if TYPE_CHECKING:
    from ttamer.trace.trace import Columns, Trace

Losses: TypeAlias = "NDArray[np.float64]"


def losses_of(trace: Columns, target: str | None = None) -> Losses:
    """Return, shape (T, n), the losses in the trace's own unit; NaN where one is not known."""
    target = trace.spec.target if target is None else target
    if target not in ("label", "last"):
        raise ArgumentError(f'target is {target!r}; it must be "label" or "last"', param="target")
    if trace.raw_loss is not None:
        losses = trace.raw_loss
        # An answer that is better than the last one's loses nothing against it.
        if target == "last":
            losses = np.maximum(losses - losses[:, -1:], 0.0)
    elif trace.correct is not None and target == "label" and not trace.spec.mistakes:
        losses = np.where(trace.correct < 0, np.nan, trace.correct == 0)
    else:
        losses = _compared(trace, target)
    return np.where(trace.answered, losses, np.nan)


def complete_losses(trace: Trace, target: str | None = None) -> Losses:
    """Return, shape (T, n), the losses from 0 to 1; refuse a trace in which one is not known."""
    losses = losses_of(trace, target) / trace.unit
    bad = np.argwhere(np.isnan(losses))
    if not len(bad):
        return losses
    row, node = bad[0]
    rows = len(np.unique(bad[:, 0]))
    if trace.answered[row, node]:
        what = f"the loss of {trace.names[node]!r} is not known (no label, or no correct)"
    else:
        what = f"{trace.names[node]!r} has no answer"
    raise TraceError(
        f"row {row} (counting from 0): {what}, and so {rows} of {len(losses)} rows; this needs "
        "complete rows: leave these out with trace.take(~np.isnan(trace.loss).any(axis=1))"
    )


def _compared(trace: Columns, target: str) -> Losses:
    """Return what answers lose against the label, or against the last node's answer."""
    mistakes, codes, right = trace.spec.mistakes, trace.prediction, trace.label
    if codes is None or (right is None and target == "label"):
        raise TraceError(_lacking(trace, target))
    if right is None or target == "last":
        right = codes[:, -1]
    losses = np.full(codes.shape, np.nan)
    is_known = right >= 0
    answers, right = codes[is_known], right[is_known, np.newaxis]
    # An answer that says nothing is wrong: -1 is the code of no class.
    losses[is_known] = (
        mistake_table(mistakes, trace.classes)[right, answers] if mistakes else answers != right
    )
    if target == "last":
        # No answer equals no answer. Where the last node has a gap it is not known what is right.
        losses[trace.answered[:, -1] & ~is_known] = largest_mistake(mistakes)
        losses[:, -1] = 0.0
    return losses


def _lacking(trace: Columns, target: str) -> str:
    """Say which columns are missing to know what answers lose."""
    needed = ["prediction", "label"] if target == "label" else ["prediction"]
    lacks = " and ".join(name for name in needed if getattr(trace, name) is None)
    remedy = "add columns <node>.prediction"
    if target == "label":
        either = "" if trace.spec.mistakes else "<node>.correct, or "
        remedy = f"add columns {either}<node>.prediction and label"
        if trace.prediction is not None:
            remedy += ', or set target = "last"'
    elif trace.correct is not None:
        remedy += '; if correct already means agreement with the last node, set target = "label"'
    what = "a table of mistakes" if trace.spec.mistakes else f'target "{target}"'
    unused = [f" ({note})" for note in trace.notes if note.startswith("columns not used")]
    return f"{what} needs answers to compare; the trace has no {lacks}: {remedy}{''.join(unused)}"


def mistake_table(mistakes: Mistakes, classes: Sequence[str]) -> Losses:
    """Return, shape (classes, classes + 1), the cost by label and prediction.

    The last column is for no answer. An entry for both comes before one for the label alone, and
    that before one for the prediction.

    >>> mistake_table({"a": {"*": 5.0}, "*": {"c": 2.0}}, ["a", "b", "c"]).tolist()
    [[0.0, 5.0, 5.0, 5.0], [1.0, 0.0, 2.0, 2.0], [1.0, 1.0, 0.0, 1.0]]
    """

    def priced(costs: Mapping[str, float], others: Sequence[float]) -> list[float]:
        return [
            costs.get(name, costs.get(ANY_CLASS, cost))
            for name, cost in zip(classes, others, strict=True)
        ]

    base = priced(mistakes.get(ANY_CLASS, {}), [1.0] * len(classes))
    table = np.tile(base, (len(classes), 1))
    rows = {code: mistakes[label] for code, label in enumerate(classes) if label in mistakes}
    for code, costs in rows.items():
        table[code] = priced(costs, base)
    # After the wildcards, which would charge for right answers too.
    np.fill_diagonal(table, 0.0)
    worst = table.max(axis=1, initial=0.0)
    for code, costs in rows.items():
        worst[code] = max(worst[code], *costs.values())  # of a class that is never predicted, too
    return np.column_stack([table, worst])
