"""Answers to prompts as a trace, wherever they come from: models that are asked, or a log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ttamer.cascade import CascadeSpec
from ttamer.llm.compare import Comparer, compare_answers
from ttamer.trace.trace import Trace


class Answer(NamedTuple):
    """What a node answered to a prompt."""

    text: str
    confidence: float
    cost: float
    confidence_cost: float = 0.0
    """The part of the cost that is for the confidence alone."""
    right: float = math.nan
    """How right it is said to be, from 0 to 1; NaN where only a label can say."""


class Answered(NamedTuple):
    """A prompt with its answers."""

    prompt: str | None
    label: str | None
    """In the form that is compared."""
    answers: Sequence[Answer | None]
    """In the order of the nodes; ``None`` where a node gave none."""

    @property
    def texts(self) -> list[str | None]:
        """The answers as text."""
        return [None if answer is None else answer.text for answer in self.answers]


async def trace_of(
    spec: CascadeSpec,
    comparer: Comparer,
    rows: Sequence[Answered],
    *,
    left_out: Mapping[str, int],
    notes: Sequence[str] = (),
) -> Trace:
    """Return the trace of some answers.

    What is said of an answer (:attr:`Answer.right`) counts more than its label.

    Args:
        spec: The cascade.
        comparer: How answers are compared with one another and with labels.
        rows: The prompts with their answers.
        left_out: How many rows are left out, by reason.
        notes: Notes of the trace, before those on answers without content.

    Returns:
        The trace, with a cost per row where calls differ in cost.

    Raises:
        TraceError: If no answer equals any label.
    """
    right = _numbers(rows, "right")
    is_stated = not np.isnan(right).all()
    labels = [row.label for row in rows] if any(row.label for row in rows) else None
    compared = await compare_answers(
        comparer, spec.names, [row.texts for row in rows], None if is_stated else labels
    )
    facts: dict[str, Any] = {"label": compared.label, "correct": compared.correct}
    if is_stated:
        cells = [(t, node, answer.text, row.label) for t, row in enumerate(rows) if row.label
                 for node, answer in enumerate(row.answers)
                 if answer is not None and math.isnan(answer.right)]  # fmt: skip
        verdicts = await comparer.right([(text, label) for *_, text, label in cells])
        for (t, node, *_), verdict in zip(cells, verdicts, strict=True):
            right[t, node] = verdict
        is_graded = not np.isin(right[~np.isnan(right)], (0.0, 1.0)).all()
        facts = {"score" if is_graded else "correct": right}
    cost = _numbers(rows, "cost")
    prompts = np.array([row.prompt for row in rows], object)
    return Trace.from_arrays(
        spec,
        _numbers(rows, "confidence"),
        prediction=compared.prediction,
        cost=None if (cost == spec.costs).all() else cost,
        prompt=prompts if prompts.any() else None,
        left_out=left_out,
        notes=(*notes, *compared.notes),
        **facts,
    )


def _numbers(rows: Sequence[Answered], field: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a number of each answer, NaN where there is none."""
    table = [[math.nan if answer is None else getattr(answer, field) for answer in row.answers]
             for row in rows]  # fmt: skip
    return np.array(table, np.float64)
