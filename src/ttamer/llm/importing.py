"""A log of free-text answers as a trace: the models are not asked again.

Answers are compared with labels and with one another by ``compare`` of the cascade, as
:func:`~ttamer.llm.collect_prompts` and the server do, and tokens are priced by its
``cost_per_token``. Read are rows of one's own (:func:`import_answers` says which columns), the
spend logs of a LiteLLM proxy, and the request and output files of OpenAI's batches in one file.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ttamer._checks import require_path
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.llm.compare import Comparer, Comparison, compare_answers, label_form
from ttamer.llm.confidence import (
    Unreadable,
    answer_text,
    probability_of_answer,
    question_text,
    without_reasoning,
)
from ttamer.llm.prompts import csv_rows, json_rows, label_of, read_text, write_answers
from ttamer.llm.settings import TokenCost, checked, comparison_of
from ttamer.trace.trace import OnBad, Trace

_THUMBS = {"up": True, "1": True, "true": True, "down": False, "-1": False, "0": False,
           "false": False}  # fmt: skip
_JSON_NAMES = {list: "a list", dict: "an object"}

Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""The place and the fields of each row."""


def import_answers(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | str | os.PathLike[str],
    *,
    on_bad: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
) -> Trace:
    r"""Read a log of answers in free text.

    One row per input has ``<node>.answer`` for every node, and where known ``prompt`` or
    ``messages``, ``label`` (in JSON lines also a list of aliases, or an object),
    ``<node>.confidence``, ``<node>.cost``, or ``<node>.input_tokens`` and ``<node>.output_tokens``.
    What is right may also be stated for each node: ``<node>.correct``, ``<node>.score`` from 0 to
    1, or ``<node>.thumbs`` (up or down). A node without confidences gets ``confidence = "none"``.
    What is not read is named in ``notes``.

    Lines of LiteLLM's spend logs and of OpenAI's batches are put together by their prompt and their
    ``custom_id``; their models are the names of nodes, or the ``model`` of a node.

    Args:
        path: JSON lines (.jsonl, .ndjson) or CSV.
        cascade: The nodes in order, with their costs, and how answers are compared: a cascade or
            the path of a ``cascade.toml``. No upstream is needed.
        on_bad: "refuse" raises an error for a row that lacks an answer (null, or an empty cell), or
            has a number that cannot be used; "skip" drops and counts such rows.
        answers: A file for the prompts and answers of the trace's rows, which ``ttamer label``
            reads; it is written where the log has prompts (mode 600).

    Returns:
        The trace.

    Raises:
        CascadeError: If the cascade compares by embeddings, which takes a server.
        TraceError: If the file or a row cannot be used, or no answer equals any label.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = Path(folder, "log.csv")
    ...     _ = log.write_text("small.answer,large.answer,label\nIt is B.,(C),B\nA,A.,A\n")
    ...     trace = import_answers(log, CascadeSpec.from_toml('''
    ...         serve = {compare = "choice"}
    ...         node = [{name = "small", cost = 1}, {name = "large", cost = 9}]'''))
    >>> trace.loss.tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    require_path(path, "import_answers")
    spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
    rule = comparison_of(spec)
    if rule.kind == "embedding":
        raise CascadeError(
            '[serve]: compare = "embedding" takes a server, which only ttamer collect asks; choose '
            "another compare for the log"
        )
    rows = _rows(Path(path), spec)
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    log = _Log(spec, rule, rows, str(path))
    log.read(on_bad)
    trace = log.trace()
    if answers is not None and all(row.get("messages") or row.get("prompt") for _, row in rows):
        log.write_answers(answers)
    return trace


@dataclasses.dataclass(frozen=True)
class _Reply:
    """What one node answered on one row; the loss where it is stated, else NaN."""

    text: str
    confidence: float
    cost: float
    score: float


class _Log:
    """The rows of a log, and those that can be used."""

    def __init__(self, spec: CascadeSpec, rule: Comparison, rows: Rows, path: str) -> None:
        self.spec, self.rule, self.rows, self.path = spec, rule, rows, path
        columns = dict.fromkeys(name for _, row in rows for name in row)
        self.nodes = [_Columns(node, columns, path) for node in spec.nodes]
        self.is_stated = [node.stated for node in self.nodes]
        if any(self.is_stated) and not all(self.is_stated):
            lacking = next(node.name for node in self.nodes if not node.stated)
            raise TraceError(
                f"{path}: what is right is stated for some nodes, and {lacking!r} has no "
                f"'{lacking}.correct', .score or .thumbs; state it for all, or give a label"
            )
        read = {"label", "prompt", "messages", *(c for node in self.nodes for c in node.read_from)}
        self.dropped = [name for name in columns if name not in read]
        self.left_out: dict[str, int] = {}
        self.used: list[tuple[Mapping[str, Any], list[_Reply], str | None]] = []

    def read(self, on_bad: OnBad) -> None:
        """Read the rows, and leave out those that cannot be used where that is wanted."""
        labels = [row.get("label") for _, row in self.rows]
        labelled = sum(label is not None and str(label).strip() != "" for label in labels)
        for where, row in self.rows:
            try:
                label = label_of(row.get("label"))
                if label is None and labelled and not any(self.is_stated):
                    raise TraceError(  # noqa: TRY301 - reported with its place below
                        f"has no label, and {labelled} of {len(self.rows)} rows have one"
                    )
                form = None if label is None else label_form(label, self.rule)
                self.used.append((row, [node.read(row, self.rule) for node in self.nodes], form))
            except TraceError as error:
                if on_bad == "refuse":
                    raise TraceError(
                        f"{where}: {error}; correct it, or skip such rows with on_bad='skip' (they "
                        "are counted)"
                    ) from None
                self.left_out[str(error)] = self.left_out.get(str(error), 0) + 1
        if not self.used:
            raise TraceError(f"{self.path}: all of its rows were left out")

    def trace(self) -> Trace:
        replies = [reply for _, reply, _ in self.used]
        texts = [[reply.text for reply in row] for row in replies]
        labels = [label for _, _, label in self.used if label is not None]
        if any(self.is_stated):
            labels = []
        try:
            compared = asyncio.run(
                compare_answers(Comparer(self.rule), self.spec.names, texts, labels or None)
            )
        except TraceError as error:
            raise TraceError(f"{self.path}: {error}") from None
        quiet = [node.name for node in self.nodes if node.confidence is None]
        notes = [
            f'no column {name}.confidence: write confidence = "none" for {name!r} in the '
            "cascade.toml that serves it"
            for name in quiet
        ]
        if self.dropped:
            shown = ", ".join(self.dropped[:8]) + (", ..." if len(self.dropped) > 8 else "")
            notes.append(f"not read: {shown}")
        nodes = [
            dataclasses.replace(node, options={**node.options, "confidence": "none"})
            if node.name in quiet
            else node
            for node in self.spec.nodes
        ]
        score: Any = np.array([[reply.score for reply in row] for row in replies])
        is_graded = not np.isin(score, (0.0, 1.0)).all()
        correct = compared.correct
        if not any(self.is_stated):
            score = None
        elif not is_graded:
            correct, score = score == 1.0, None
        return Trace.from_arrays(
            dataclasses.replace(self.spec, nodes=tuple(nodes)),
            [[reply.confidence for reply in row] for row in replies],
            prediction=compared.prediction,
            label=compared.label,
            correct=correct,
            score=score,
            cost=[[reply.cost for reply in row] for row in replies],
            prompt=self._prompts(),
            left_out=self.left_out,
            notes=(*notes, *compared.notes),
        )

    def _prompts(self) -> Any:
        """Return the texts of the rows that are used; ``None`` where no row has one."""
        texts = [question_text(row) if row.get("messages") or row.get("prompt") else None
                 for row, _, _ in self.used]  # fmt: skip
        return np.array(texts, object) if any(texts) else None

    def write_answers(self, path: str | os.PathLike[str]) -> None:
        """Write the prompts and the answers of the rows that are used."""
        rows = []
        for row, replies, _ in self.used:
            messages = row.get("messages")
            request = {"messages": messages} if messages else {"prompt": row["prompt"]}
            texts = {node.name: r.text for node, r in zip(self.nodes, replies, strict=True)}
            rows.append({"request": request, "label": row.get("label"), "answers": texts})
        write_answers(path, rows)


class _Columns:
    """Where a row has the reply of one node."""

    def __init__(self, node: CascadeNode, columns: Iterable[str], path: str) -> None:
        self.name, self.fixed = node.name, node.cost
        columns = list(columns)
        if f"{node.name}.answer" not in columns:
            raise TraceError(
                f"{path}: the column '{node.name}.answer' is missing; there are "
                f"{', '.join(sorted(columns))}"
            )
        fields = ("answer", "confidence", "cost", "input_tokens", "output_tokens", "correct",
                  "score", "thumbs")  # fmt: skip
        columns_read = {field: f"{node.name}.{field}" for field in fields}
        columns_read = {
            field: column for field, column in columns_read.items() if column in columns
        }
        self.read_from = tuple(columns_read.values())
        self.confidence, self.cost = columns_read.get("confidence"), columns_read.get("cost")
        self.stated = next((f for f in ("correct", "score", "thumbs") if f in columns_read), "")
        price = node.options.get("cost_per_token")
        where = f"[[node]] {node.name!r}: cost_per_token"
        self.price = None if price is None else checked(TokenCost, price, where)
        self.tokens = [columns_read.get("input_tokens"), columns_read.get("output_tokens")]
        if self.cost is None and self.price is not None and None in self.tokens:
            raise TraceError(
                f"{path}: the cascade prices the tokens of {node.name!r}, and the log has no "
                f"columns '{node.name}.input_tokens' and '{node.name}.output_tokens', nor "
                f"'{node.name}.cost'"
            )

    def read(self, row: Mapping[str, Any], rule: Comparison) -> _Reply:
        """Return the reply on a row."""
        answer = row.get(f"{self.name}.answer")
        if answer is None:
            raise TraceError(
                f"{self.name}.answer is missing, as after a failed call; an answer without content "
                'is "" in JSON lines'
            )
        if isinstance(answer, list | dict) and rule.kind == "json":
            answer = json.dumps(answer, ensure_ascii=False)
        if isinstance(answer, list | dict):
            raise TraceError(f"{self.name}.answer is {_JSON_NAMES[type(answer)]}; it must be text")
        confidence = 0.0 if self.confidence is None else _number(row, self.confidence)
        if self.cost is not None:
            cost = _number(row, self.cost, minimum=0.0)
        elif self.price is None:
            cost = self.fixed
        else:
            used = [_number(row, str(column), minimum=0.0) for column in self.tokens]
            cost = self.fixed + self.price.input * used[0] + self.price.output * used[1]
        return _Reply(without_reasoning(str(answer)), confidence, cost, self._score(row))

    def _score(self, row: Mapping[str, Any]) -> float:
        if not self.stated:
            return math.nan
        column = f"{self.name}.{self.stated}"
        if self.stated == "score":
            score = _number(row, column, minimum=0.0)
            if score > 1:
                raise TraceError(f"{column} is {score:g}; it must be from 0 to 1")
            return score
        text = str(row.get(column)).strip().casefold()
        if text not in _THUMBS:
            raise TraceError(f"{column} is {row.get(column)!r}; write true or false, up or down")
        return float(_THUMBS[text])


def _number(row: Mapping[str, Any], column: str, *, minimum: float = -math.inf) -> float:
    value = row.get(column)
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= minimum):
        allowed = "a finite number" if minimum < 0 else "a number from 0"
        raise TraceError(f"{column} is {value!r}; it must be {allowed}")
    return number


# Files


def _rows(file: Path, spec: CascadeSpec) -> Rows:
    """Return the place and the fields of each row."""
    text = read_text(file)
    if file.suffix == ".csv":
        rows: Rows = list(csv_rows(file, text))
    elif file.suffix in (".jsonl", ".ndjson"):
        rows = list(json_rows(file, text))
    else:
        raise TraceError(f"{file}: the suffix must be one of .jsonl, .ndjson, .csv")
    fields = {name for _, row in rows for name in row}
    if {"custom_id", "response"} <= fields:
        return _by_prompt(rows, spec, _of_batch)
    if {"spend", "model", "response"} <= fields:
        return _by_prompt(rows, spec, _of_spend_log)
    return rows


def _by_prompt(rows: Rows, spec: CascadeSpec, read: Any) -> Rows:
    """Put the calls of one prompt into one row; of several by one model, the last counts."""
    names = {node.options.get("model", node.name): node.name for node in spec.nodes}
    names |= {name: name for name in spec.names}
    wide: dict[str, tuple[str, dict[str, Any]]] = {}
    for where, row in rows:
        key, models, facts, call = read(row)
        _, fields = wide.setdefault(key, (where, {}))
        fields |= facts
        name = next((names[model] for model in models if model in names), None)
        if name is not None:
            fields |= {f"{name}.{field}": value for field, value in call.items()}
    return list(wide.values())


def _of_batch(row: Mapping[str, Any]) -> tuple[str, list[str], dict[str, Any], dict[str, Any]]:
    """Return the id, the model, the prompt and the reply in a line of OpenAI's batch files."""
    response = row.get("response") or {}
    body = response.get("body") if isinstance(response, dict) else None
    request = row.get("body") or {}
    facts = {name: row[name] for name in ("label",) if row.get(name) is not None}
    facts |= {name: request[name] for name in ("messages", "prompt") if name in request}
    if not isinstance(body, dict) or response.get("status_code", 200) != 200:
        return str(row.get("custom_id")), [], facts, {}
    return str(row.get("custom_id")), _models(body.get("model")), facts, _reply_in(body)


def _of_spend_log(row: Mapping[str, Any]) -> tuple[str, list[str], dict[str, Any], dict[str, Any]]:
    """Return the prompt, the model and the reply in a line of LiteLLM's spend logs."""
    messages, response = _parsed(row.get("messages")), _parsed(row.get("response"))
    reply = _reply_in(response) if isinstance(response, dict) else {}
    if reply:
        reply["cost"] = row.get("spend")
    models = [*_models(row.get("model_group")), *_models(row.get("model"))]
    return json.dumps(messages, sort_keys=True), models, {"messages": messages}, reply


def _parsed(value: Any) -> Any:
    """Return a value that may be JSON text, as in exports of databases."""
    if isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _models(name: Any) -> list[str]:
    """Return the names of a model: with and without its provider, and its date."""
    if not isinstance(name, str) or not name:
        return []
    plain = name.rpartition("/")[2]
    parts = plain.split("-")
    undated = "-".join(parts[:-3]) if len(parts) > 3 and parts[-3].isdecimal() else plain
    return list(dict.fromkeys((name, plain, undated)))


def _reply_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer, its confidence and its tokens in a response of OpenAI's format."""
    try:
        reply: dict[str, Any] = {"answer": answer_text(body)}
    except Unreadable:
        return {}
    with suppress(Unreadable):
        reply["confidence"] = probability_of_answer(body)
    usage = body.get("usage")
    if isinstance(usage, dict):
        reply["input_tokens"] = usage.get("prompt_tokens")
        reply["output_tokens"] = usage.get("completion_tokens")
    return reply
