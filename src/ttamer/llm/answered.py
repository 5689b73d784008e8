"""Answers to prompts as a trace, wherever they come from: models that are asked, or a log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ttamer._checks import counted
from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.llm.compare import Comparer, Comparison, quoted
from ttamer.llm.paid import Answer
from ttamer.trace.trace import Trace


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
    """Return the trace of some answers, with a cost per row where calls differ in cost.

    What is said of an answer (:attr:`Answer.right`) counts more than its label. Further notes are
    on answers without content.

    >>> import asyncio
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> row = Answered("Yes or no?", "yes", [Answer("Yes.", 0.7, 1.0), None])
    >>> asyncio.run(trace_of(spec, Comparer(Comparison()), [row], left_out={})).loss.tolist()
    [[0.0, nan]]

    Raises:
        TraceError: If no answer equals any label.
    """
    rule, right = comparer.rule, _numbers(rows, "right")
    facts: dict[str, Any] = {}
    texts, labels = [row.texts for row in rows], [row.label for row in rows]
    predictions = [[None if t is None else rule.prediction(t) for t in row] for row in texts]
    if any(labels) and None in labels:
        notes = [*notes, f"{labels.count(None)} of {counted(len(rows), 'row')} without a label"]
    notes = [*notes, *_without_content(rule, spec.names, texts, predictions)]
    is_stated = not np.isnan(right).all()
    if rule.is_transitive and not is_stated:
        facts["label"] = labels if any(labels) else None
        is_any_right = not {*labels}.isdisjoint({*chain.from_iterable(predictions)} - {None})
    else:  # labels are compared one by one
        unsaid = [(t, node, text, labels[t]) for t, row in enumerate(texts) if labels[t]
                  for node, text in enumerate(row)
                  if text is not None and math.isnan(right[t, node])]  # fmt: skip
        verdicts = await comparer.right([(text, label or "") for *_, text, label in unsaid])
        for (t, node, *_), verdict in zip(unsaid, verdicts, strict=True):
            right[t, node] = verdict
        is_graded = not np.isin(right[~np.isnan(right)], (0.0, 1.0)).all()
        facts["score" if is_graded else "correct"] = None if np.isnan(right).all() else right
        is_any_right = is_stated or bool((right == 1).any())
    if any(labels) and not is_any_right:
        raise TraceError(
            f'no answer equals any label under compare = "{rule}": the first label is '
            f"{_first(labels)} and the first answer {_first(chain.from_iterable(texts))}; choose "
            "another compare under [serve], or name a judge (--judge NODE)"
        )
    if not rule.is_transitive:
        predictions = [await comparer.matched_all(row) for row in predictions]
    cost = _numbers(rows, "cost")
    prompts = np.array([row.prompt for row in rows], object)
    return Trace.from_arrays(
        spec,
        _numbers(rows, "confidence"),
        prediction=predictions,
        cost=None if (cost == spec.costs).all() else cost,
        prompt=prompts if prompts.any() else None,
        left_out=left_out,
        notes=tuple(notes),
        **facts,
    )


def _numbers(rows: Sequence[Answered], field: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a number of each answer, NaN where there is none."""
    table = [[math.nan if answer is None else getattr(answer, field) for answer in row.answers]
             for row in rows]  # fmt: skip
    return np.array(table, np.float64)


def _without_content(
    rule: Comparison,
    names: Sequence[str],
    texts: Sequence[Sequence[str | None]],
    predictions: Sequence[Sequence[str | None]],
) -> Iterator[str]:
    """Yield a text for each node with answers that have no content."""
    for name, answers, forms in zip(
        names, zip(*texts, strict=True), zip(*predictions, strict=True), strict=True
    ):
        returned = [text for text in answers if text is not None]
        unread = [text.strip() for text, form in zip(answers, forms, strict=True)
                  if text is not None and form is None]  # fmt: skip
        if not unread:
            continue
        note = (
            f"{len(unread)} of {len(returned)} answers of {name!r} "
            f'{"has" if len(unread) == 1 else "have"} no content under compare = "{rule}"'
        )
        if any(unread):
            note += f", such as {_first(filter(None, unread))}"
        if empty := unread.count(""):
            note += f", {empty} of them no text: a model that reasons needs more max_tokens"
        yield note


def _first(texts: Iterable[str | None]) -> str:
    """Return the first text for a message."""
    return next((quoted(text) for text in texts if text is not None), "None")
