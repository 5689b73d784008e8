"""Prompts and answers: the files that hold them, and the row of a trace that each becomes.

::

    {"prompt": "What is 2 + 2?", "label": "4"}
    {"messages": [{"role": "user", "content": "..."}], "label": "B", "max_tokens": 1}

Prompts are read from JSON lines, from CSV, or from text (.txt) with one prompt per line. In JSON
lines, further keys are sent with the request unchanged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_path
from ttamer._files import atomic_write, lines_of
from ttamer.cascade import CascadeSpec
from ttamer.errors import TraceError
from ttamer.llm.compare import Comparison, quoted
from ttamer.trace.schema import class_text
from ttamer.trace.trace import Trace

# A reference answer, or several of which any is right.
Label = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Prompt:
    """One request body, and its reference answer if there is one.

    >>> Prompt({"prompt": "2 + 2?"}, label="4").label
    '4'
    """

    body: Mapping[str, Any]
    label: Label = None


class Answer(NamedTuple):
    """What a node answered to a prompt."""

    text: str
    confidence: float = 0.0
    cost: float = 0.0
    verifying: float = 0.0  # what its confidence cost, where that is a node of its own
    right: float = math.nan  # from 0 to 1: what is said of it; NaN where only a label can say
    is_form: bool = False  # whether the text is the form that is compared, as in a trace

    def form(self, rule: Comparison) -> str | None:
        """Return the form that is compared."""
        return (self.text or None) if self.is_form else rule.prediction(self.text)


@dataclass(frozen=True)
class AnsweredPrompt:
    """A prompt, its reference answer if there is one, and what the nodes answered."""

    prompt: str
    reference: Label
    answers: Mapping[str, Answer | None]  # by node; None where it gave none

    @property
    def key(self) -> str:
        """Identifies the prompt and its answers, whatever the row's number."""
        texts = {name: answer and answer.text for name, answer in sorted(self.answers.items())}
        return hashlib.sha256(json.dumps([self.prompt, texts]).encode()).hexdigest()[:24]


def trace_of(
    spec: CascadeSpec,
    rule: Comparison,
    rows: Sequence[AnsweredPrompt],
    *,
    unit: float = 0.0,
    notes: Iterable[str] = (),
    **facts: Any,
) -> Trace:
    """Return the trace of answers, wherever they come from: models that are asked, or a log.

    What is said of an answer (``Answer.right``) counts more than its label, and holds for the
    answers that equal it. ``unit`` is what a loss of 1 is, where the log has losses of its own.

    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> row = AnsweredPrompt("Yes or no?", "yes", {"small": Answer("Yes.", 0.7, 1.0)})
    >>> trace_of(spec, Comparison(), [row]).loss.tolist()
    [[0.0, nan]]

    Raises:
        TraceError: If no answer equals any label.
    """
    answers = [[row.answers.get(name) for name in spec.names] for row in rows]
    predictions = [[answer.form(rule) if answer else None for answer in line] for line in answers]
    labels = [rule.aliases(row.reference or ()) for row in rows]
    has_labels, notes = any(labels), [*notes]
    if has_labels and not all(labels):
        notes.append(f"{labels.count([])} of {counted(len(rows), 'row')} without a label")
    notes += _without_content(rule, spec.names, answers, predictions)
    right = _numbers(answers, "right")
    is_stated = not np.isnan(right).all()
    if rule.is_transitive and not is_stated and max(map(len, labels), default=0) < 2:
        classes = [next(iter(forms), None) for forms in labels]
        facts["label"] = classes if has_labels else None
        is_any_right = not {*classes}.isdisjoint({*chain.from_iterable(predictions)} - {None})
    else:  # labels are compared one by one
        for t, node in np.argwhere(np.isnan(right)).tolist():
            answer = answers[t][node]
            if labels[t] and answer is not None:
                right[t, node] = rule.is_right(answer.text, labels[t])
        is_any_right = is_stated or bool((right == 1).any())
    if has_labels and not is_any_right:
        texts = (answer.text for line in answers for answer in line if answer is not None)
        label = next(row.reference for row in rows if row.reference)
        raise TraceError(
            f'no answer equals any label under compare = "{rule}": the first label is '
            f"{quoted(label)} and the first answer {quoted(next(texts, ''))}; choose another "
            "compare under [serve], or leave the labels out and name a judge (ttamer label --judge)"
        )
    if not rule.is_transitive:
        predictions = [rule.matched(line) for line in predictions]
    facts |= _losses(right, predictions, unit)
    cost = _numbers(answers, "cost")
    prompts = np.array([row.prompt or None for row in rows], object)
    return Trace.from_arrays(
        spec,
        _numbers(answers, "confidence"),
        prediction=predictions,
        cost=None if (cost == spec.costs).all() else cost,
        prompt=prompts if prompts.any() else None,
        notes=tuple(notes),
        **facts,
    )


def _numbers(answers: Sequence[Sequence[Answer | None]], field: str) -> NDArray[np.float64]:
    """Return a number of each answer, NaN where there is none."""
    table = [
        [math.nan if answer is None else getattr(answer, field) for answer in line]
        for line in answers
    ]
    return np.array(table, np.float64)


def _losses(
    right: NDArray[np.float64], predictions: Sequence[Sequence[str | None]], unit: float
) -> dict[str, NDArray[np.float64]]:
    """Return what is said of answers as a column of a trace; equal answers are as right."""
    if np.isnan(right).all():
        return {}
    for row, line in zip(right, predictions, strict=True):
        stated = {form: value for form, value in zip(line, row, strict=True) if not np.isnan(value)}
        for node, form in enumerate(line):
            if form is not None and np.isnan(row[node]):
                row[node] = stated.get(form, math.nan)
    if unit:
        return {"loss": (1 - right) * unit}
    is_graded = not np.isin(right[~np.isnan(right)], (0.0, 1.0)).all()
    return {"score" if is_graded else "correct": right}


def _without_content(
    rule: Comparison,
    names: Sequence[str],
    answers: Sequence[Sequence[Answer | None]],
    predictions: Sequence[Sequence[str | None]],
) -> Iterator[str]:
    """Yield a text for each node with answers that have no content."""
    for node, name in enumerate(names):
        texts = [
            (answer.text.strip(), forms[node])
            for line, forms in zip(answers, predictions, strict=True)
            if (answer := line[node])
        ]
        unread = [text for text, form in texts if form is None]
        if not unread:
            continue
        has = "has" if len(unread) == 1 else "have"
        note = f"{len(unread)} of {len(texts)} answers of {name!r} {has} no content under "
        note += f'compare = "{rule}"'
        if any(unread):
            note += f", such as {quoted(next(filter(None, unread)))}"
        if empty := unread.count(""):
            note += f", {empty} of them no text: a model that reasons needs more max_tokens"
        yield note


def check_label(label: Label, rule: Comparison) -> None:
    """Refuse a label that no answer can equal.

    Raises:
        TraceError: If it has no content under the rule.
    """
    if label is not None and not rule.aliases(label):
        raise TraceError(f'the label {quoted(label)} has no content under compare = "{rule}"')


def write_answers(path: str | os.PathLike[str], rows: Iterable[AnsweredPrompt]) -> None:
    """Write prompts and answers as JSON lines (mode 600), for people to read and to label."""
    lines = (
        {
            "prompt": row.prompt,
            "label": row.reference,
            "answers": {name: answer and answer.text for name, answer in row.answers.items()},
        }
        for row in rows
    )
    try:
        with atomic_write(path, private=True) as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


def read_answers(path: str | os.PathLike[str], names: Sequence[str]) -> list[AnsweredPrompt]:
    """Read the prompts and answers that ``ttamer collect`` keeps in ``<trace>.answers.jsonl``.

    Raises:
        TraceError: If the file cannot be read, or lacks a prompt or a node.
    """
    if not Path(path).exists():
        raise TraceError(
            f"{path}: there is no such file; ttamer collect writes it beside the trace, "
            "and ttamer import answers where the log has prompts"
        )
    rows = []
    for where, row in rows_of(Path(path)):
        try:
            texts = {name: row["answers"][name] for name in names}
            answers = {n: None if text is None else Answer(str(text)) for n, text in texts.items()}
            rows.append(AnsweredPrompt(row["prompt"], label_of(row.get("label")), answers))
        except (KeyError, TypeError):
            raise TraceError(
                f"{where} lacks the prompt or an answer of a node; collect the trace again (its "
                "responses are kept)"
            ) from None
    return rows


def read_prompts(
    path: str | os.PathLike[str],
    *,
    label: str = "label",
    request: Mapping[str, Any] | None = None,
) -> list[Prompt]:
    """Read prompts from a file.

    Args:
        path: JSON lines (.jsonl, .ndjson), CSV, or text (.txt) with one prompt per line.
        label: The field that holds the reference answer; in JSON lines, a list of texts holds its
            aliases, and an object is JSON text.
        request: Fields sent with every prompt, unless the prompt sets them itself.

    Returns:
        The prompts, in the order of the file.

    Raises:
        TraceError: If the file cannot be read, or a line is not a prompt.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "prompts.txt")
    ...     _ = path.write_text("2 + 2?")
    ...     read_prompts(path)
    [Prompt(body={'messages': [{'role': 'user', 'content': '2 + 2?'}]}, label=None)]
    """
    require_path(path, "read_prompts")
    prompts = []
    for where, row in rows_of(Path(path), (*TABLES, ".txt")):
        try:
            reference = label_of(row.pop(label, None))
        except TraceError as error:
            raise TraceError(f"{where}: {label}: {error}") from None
        text, more = row.pop("prompt", None), row
        if Path(path).suffix == ".csv":  # other columns are ignored; other fields of JSON are sent
            more = {}
        if "messages" not in more:
            if not isinstance(text, str) or not text:
                fields = ", ".join(map(repr, row)) or "none"
                raise TraceError(
                    f"{where}: has no prompt; write prompt, a text, or messages; its other fields: "
                    f"{fields}"
                )
            more["messages"] = [{"role": "user", "content": text}]
        elif not isinstance(row["messages"], list) or not row["messages"]:
            raise TraceError(f"{where}: messages must be a list with at least one message")
        prompts.append(Prompt({**(request or {}), **more}, reference))
    if not prompts:
        raise TraceError(f"{path}: holds no prompts")
    return prompts


def read_text(file: Path) -> str:
    """Return the text of a file.

    Raises:
        TraceError: If it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")  # spreadsheets put a mark before the first letter
    except OSError as error:
        raise TraceError(f"{file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{file}: is not text in UTF-8") from None


# The suffixes of files with fields by name.
TABLES = (".jsonl", ".ndjson", ".csv")


def rows_of(file: Path, suffixes: Sequence[str] = TABLES) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each row; a row of plain text is a prompt.

    Raises:
        TraceError: If the file is of another kind, or cannot be read.
    """
    if file.suffix not in suffixes:
        raise TraceError(f"{file}: the suffix must be one of {', '.join(suffixes)}")
    if file.suffix == ".csv":
        yield from _csv_rows(file)
        return
    for number, line in enumerate(lines_of(read_text(file)), start=1):
        if line.strip():
            where = f"{file}: line {number}"
            yield where, {"prompt": line} if file.suffix == ".txt" else _json_row(line, where)


def _csv_rows(file: Path) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Yield the place and the cells of each row, by column; ``None`` for an empty cell."""
    # Line breaks stay as they are: csv ends lines itself, outside of quotes.
    table = csv.DictReader(io.StringIO(read_text(file), newline=""))
    try:
        for row in table:
            where = f"{file}: line {table.line_num}"
            if any(more := row.pop(None, [])):
                raise TraceError(
                    f"{where}: has {len(row) + len(more)} cells, and the first line names "
                    f"{len(row)}; put texts that contain commas in double quotes"
                )
            yield where, {name.strip(): cell or None for name, cell in row.items()}
    except csv.Error as error:
        raise TraceError(
            f"{file}: line {table.reader.line_num}: is not CSV that can be read ({error}); give "
            "long texts as JSON lines"
        ) from None


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: is not JSON; write one object per line") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: is not an object; write one object per line")
    return row


def label_of(value: Any) -> Label:
    """Return a label as text, a list of texts or numbers as its aliases; ``None`` for no label.

    Raises:
        TraceError: If it is another list.

    >>> [label_of(value) for value in (" ", 4.0, True, {"a": 1}, ["Paris", "Paname"])]
    [None, '4', 'true', '{"a": 1}', ('Paris', 'Paname')]
    """
    if isinstance(value, list):
        aliases = [
            None if isinstance(alias, bool | list | dict) else label_of(alias) for alias in value
        ]
        if not value or None in aliases:
            raise TraceError(f"{value!r} is not a list of aliases; write texts or numbers")
        return tuple(map(str, aliases))
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict) else value
    text = class_text(text)
    return text if text and text.strip() else None
