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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ttamer._checks import counted, require_path, shown
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.llm.answered import Answer, Answered, trace_of
from ttamer.llm.compare import Comparer, Comparison, label_form
from ttamer.llm.confidence import (
    Unreadable,
    answer_text,
    probability_of_answer,
    question_text,
    without_reasoning,
)
from ttamer.llm.prompts import csv_rows, json_rows, label_of, read_text, write_answers
from ttamer.llm.settings import TokenCost, checked, comparison_of
from ttamer.trace.schema import INPUT
from ttamer.trace.trace import OnBad, Trace

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
    What is right may also be stated: ``<node>.correct``, ``<node>.score`` from 0 to 1, or
    ``<node>.thumbs`` (up or down); it counts more than the label. ``input.<name>`` is anything else
    known before any node is asked. A node that did not answer a row (null, or an empty cell) has a
    gap there. A node without confidences gets ``confidence =
    "none"``. What is not read is named in ``notes``.

    Lines of LiteLLM's spend logs and of OpenAI's batches are put together by their prompt and their
    ``custom_id``; their models are the names of nodes, or the ``model`` of a node.

    Args:
        path: JSON lines (.jsonl, .ndjson) or CSV.
        cascade: The nodes in order, with their costs, and how answers are compared: a cascade or
            the path of a ``cascade.toml``. No upstream is needed.
        on_bad: "refuse" raises an error for a row without any answer, or with a value that cannot
            be used; "skip" drops and counts such rows.
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
    rows, notes = _rows(Path(path), spec)
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    columns = [*dict.fromkeys(chain.from_iterable(row for _, row in rows))]
    nodes = [_Columns.of(node, columns, path) for node in spec.nodes]
    used, left_out = _read(rows, nodes, rule, on_bad)
    if not used:
        raise TraceError(f"{path}: all of its rows were left out")
    quiet = [node.name for node in nodes if "confidence" not in node.columns]
    notes += [f'no column {name}.confidence: write confidence = "none" for {name!r} in the '
              "cascade.toml that serves it" for name in quiet]  # fmt: skip
    read = {"label", "prompt", "messages", *(c for node in nodes for c in node.columns.values())}
    inputs = [name for name in columns if name.startswith(INPUT) and name not in read]
    read |= {*inputs}
    if dropped := [name for name in columns if name not in read]:
        notes.append("not read: " + ", ".join(dropped[:8]) + (", ..." if len(dropped) > 8 else ""))
    labelled = sum(answered.label is not None for _, answered in used)
    if 0 < labelled < len(used):
        notes.append(f"{len(used) - labelled} of {counted(len(used), 'row')} without a label")
    silent = dataclasses.replace(spec, nodes=tuple(
        dataclasses.replace(node, options={**node.options, "confidence": "none"})
        if node.name in quiet else node for node in spec.nodes
    ))  # fmt: skip
    answered = [answered for _, answered in used]
    try:
        trace = asyncio.run(
            trace_of(silent, Comparer(rule), answered, left_out=left_out, notes=notes)
        )
        values = {name.removeprefix(INPUT): [row.get(name) for row, _ in used] for name in inputs}
        with_inputs = {name: _numbers_or_texts(cells) for name, cells in values.items()}
        trace = dataclasses.replace(trace, inputs=with_inputs)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    if answers is not None and all(row.prompt for row in answered):
        write_answers(answers, ({
            "request": {name: row[name] for name in ("messages", "prompt") if row.get(name)},
            "label": row.get("label"),
            "answers": dict(zip(spec.names, answered.texts, strict=True)),
        } for row, answered in used))  # fmt: skip
    return trace


def _numbers_or_texts(cells: Sequence[Any]) -> Sequence[Any]:
    """Return the cells of a column as numbers where all of them are: in CSV they are texts."""
    try:
        return [float(cell) for cell in cells]
    except (TypeError, ValueError):
        return cells


def _read(
    rows: Rows, nodes: Sequence[_Columns], rule: Comparison, on_bad: OnBad
) -> tuple[list[tuple[Mapping[str, Any], Answered]], Counter[str]]:
    """Read the rows, and count those that cannot be used where they may be left out."""
    used, left_out = [], Counter[str]()
    for where, row in rows:
        try:
            label = label_of(row.get("label"))
            form = None if label is None else label_form(label, rule)
            answers = [node.read(row, rule) for node in nodes]
            if not any(answers):
                raise TraceError(  # noqa: TRY301 - reported with its place below
                    "has no answer of any node, as after failed calls; an answer without content "
                    'is "" in JSON lines'
                )
            prompt = question_text(row) if row.get("messages") or row.get("prompt") else None
            used.append((row, Answered(prompt, form, answers)))
        except TraceError as error:
            if on_bad == "refuse":
                raise TraceError(
                    f"{where}: {error}; correct it, or skip such rows with on_bad='skip' (they are "
                    "counted)"
                ) from None
            left_out[str(error)] += 1
    return used, left_out


class _Columns(NamedTuple):
    """Where a row has the reply of one node."""

    name: str
    fixed: float
    price: TokenCost | None
    columns: Mapping[str, str]
    """By field, as far as the log has them."""

    @classmethod
    def of(
        cls, node: CascadeNode, columns: Sequence[str], path: str | os.PathLike[str]
    ) -> _Columns:
        """Find the columns of a node in those of a log."""
        fields = ("answer", "confidence", "cost", "input_tokens", "output_tokens", "correct",
                  "score", "thumbs")  # fmt: skip
        read = {field: f"{node.name}.{field}" for field in fields}
        read = {field: column for field, column in read.items() if column in columns}
        if "answer" not in read:
            raise TraceError(
                f"{path}: the column '{node.name}.answer' is missing; there are "
                f"{', '.join(sorted(columns))}"
            )
        price = node.options.get("cost_per_token")
        if price is not None:
            price = checked(TokenCost, price, f"[[node]] {node.name!r}: cost_per_token")
            if "cost" not in read and not {"input_tokens", "output_tokens"} <= {*read}:
                raise TraceError(
                    f"{path}: the cascade prices the tokens of {node.name!r}, and the log has no "
                    f"columns '{node.name}.input_tokens' and '{node.name}.output_tokens', nor "
                    f"'{node.name}.cost'"
                )
        return cls(node.name, node.cost, price, read)

    def read(self, row: Mapping[str, Any], rule: Comparison) -> Answer | None:
        """Return the answer on a row; ``None`` where there is none."""
        text = row.get(self.columns["answer"])
        if text is None:
            return None
        if isinstance(text, list | dict) and rule.kind == "json":
            text = json.dumps(text, ensure_ascii=False)
        if isinstance(text, list | dict):
            kind = "a list" if isinstance(text, list) else "an object"
            raise TraceError(f"{self.name}.answer is {kind}; it must be text")
        confidence, cost = 0.0, self.fixed
        if "confidence" in self.columns:
            confidence = _number(row, self.columns["confidence"])
        if "cost" in self.columns:
            cost = _number(row, self.columns["cost"], minimum=0.0)
        elif self.price is not None:
            tokens = [_number(row, self.columns[field], minimum=0.0)
                      for field in ("input_tokens", "output_tokens")]  # fmt: skip
            cost += self.price.input * tokens[0] + self.price.output * tokens[1]
        text = without_reasoning(str(text))
        return Answer(text, confidence, cost, right=self._right(row))

    def _right(self, row: Mapping[str, Any]) -> float:
        """Return how right the answer is said to be; NaN where nothing is said."""
        for field in ("correct", "score", "thumbs"):
            column = self.columns.get(field, "")
            if row.get(column) is None:
                continue
            if field == "score":
                score = _number(row, column, minimum=0.0)
                if score > 1:
                    raise TraceError(f"{column} is {score:g}; it must be from 0 to 1")
                return score
            text = str(row[column]).strip().casefold()
            if text not in ("up", "1", "true", "down", "-1", "0", "false"):
                raise TraceError(f"{column} is {row[column]!r}; write true or false, up or down")
            return float(text in ("up", "1", "true"))
        return math.nan


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


def _rows(file: Path, spec: CascadeSpec) -> tuple[Rows, list[str]]:
    """Return the place and the fields of each row, and notes on what is dropped."""
    text = read_text(file)
    if file.suffix == ".csv":
        rows: Rows = list(csv_rows(file, text))
    elif file.suffix in (".jsonl", ".ndjson"):
        rows = list(json_rows(file, text))
    else:
        raise TraceError(f"{file}: the suffix must be one of .jsonl, .ndjson, .csv")
    fields = {name for _, row in rows for name in row}
    for read, names in (
        (_of_batch, {"custom_id", "response"}),
        (_of_spend_log, {"spend", "model", "response"}),
    ):
        if names <= fields:
            return _by_prompt(file, rows, spec, read)
    return rows, []


class _Call(NamedTuple):
    """A call in a log with one line per call."""

    key: str
    """Of its prompt."""
    models: Sequence[str]
    """The names that its model may have."""
    facts: Mapping[str, Any]
    """What is known of the prompt."""
    reply: Mapping[str, Any]


def _by_prompt(
    file: Path, rows: Rows, spec: CascadeSpec, read: Callable[[Mapping[str, Any]], _Call]
) -> tuple[Rows, list[str]]:
    """Put the calls of one prompt into one row; of several by one model, the last counts."""
    names = {node.options.get("model", node.name): node.name for node in spec.nodes}
    names |= {name: name for name in spec.names}
    wide: dict[str, tuple[str, dict[str, Any]]] = {}
    others = Counter[str]()
    for where, row in rows:
        call = read(row)
        _, fields = wide.setdefault(call.key, (where, {}))
        fields |= call.facts
        name = next((names[model] for model in call.models if model in names), None)
        if name is not None:
            fields |= {f"{name}.{field}": value for field, value in call.reply.items()}
        elif call.models:
            others[call.models[0]] += 1
    columns = {column for _, fields in wide.values() for column in fields}
    if lacking := [name for name in spec.names if f"{name}.answer" not in columns]:
        raise TraceError(
            f"{file}: no call of {shown(lacking)} has an answer; the other models are "
            f"{shown([*others]) or 'none'}: write one as model of the node"
        )
    notes = [f"not read: {counted(n, 'call')} of {model}" for model, n in others.items()]
    return list(wide.values()), notes


def _of_batch(row: Mapping[str, Any]) -> _Call:
    """Read a line of OpenAI's batch files."""
    response, request = row.get("response") or {}, row.get("body") or {}
    body = response.get("body") if isinstance(response, dict) else None
    facts = {name: row[name] for name in ("label",) if row.get(name) is not None}
    facts |= {name: request[name] for name in ("messages", "prompt") if name in request}
    key = str(row.get("custom_id"))
    if not isinstance(body, dict) or response.get("status_code", 200) != 200:
        return _Call(key, [], facts, {})
    return _Call(key, _models(body.get("model")), facts, _reply_in(body))


def _of_spend_log(row: Mapping[str, Any]) -> _Call:
    """Read a line of LiteLLM's spend logs, whose messages may be JSON text."""
    messages, response = _parsed(row.get("messages")), _parsed(row.get("response"))
    reply = _reply_in(response) if isinstance(response, dict) else {}
    if reply:
        reply["cost"] = row.get("spend")
    models = [*_models(row.get("model_group")), *_models(row.get("model"))]
    return _Call(json.dumps(messages, sort_keys=True), models, {"messages": messages}, reply)


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
