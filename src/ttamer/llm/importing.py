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
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_path, shown
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.llm.compare import Comparer, Comparison
from ttamer.llm.confidence import (
    Unreadable,
    answer_text,
    probability_of_answer,
    question_text,
    without_reasoning,
)
from ttamer.llm.prompts import (
    Answer,
    AnsweredPrompt,
    check_label,
    label_of,
    rows_of,
    trace_of,
    write_answers,
)
from ttamer.llm.settings import CascadeSource, TokenCost, checked, comparison_of, spec_of
from ttamer.trace.schema import INPUT
from ttamer.trace.trace import OnBad, Trace

Row = Mapping[str, Any]


def import_answers(
    path: str | os.PathLike[str],
    cascade: CascadeSource,
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
    gap there. A node without confidences gets ``confidence = "none"``. What is not read is named in
    ``notes``.

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
    spec = spec_of(cascade)
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
    quiet = [node.node.name for node in nodes if "confidence" not in node.columns]
    if quiet:
        notes.append(
            f"no confidence of {shown(quiet)} (a column <node>.confidence): write confidence = "
            '"none" in the cascade.toml that serves them'
        )
    read = {"label", "prompt", "messages", *(c for node in nodes for c in node.columns.values())}
    inputs = [name for name in columns if name.startswith(INPUT) and name not in read]
    if dropped := [name for name in columns if name not in {*read, *inputs}]:
        notes.append(f"not read: {shown(dropped)}")
    silent = dataclasses.replace(
        spec,
        nodes=tuple(
            dataclasses.replace(node, options={**node.options, "confidence": "none"})
            if node.name in quiet
            else node
            for node in spec.nodes
        ),
    )
    answered = [answered for _, answered in used]
    cells = {name: [row.get(name) for row, _ in used] for name in inputs}
    facts = {name.removeprefix(INPUT): _column(values) for name, values in cells.items()}
    try:
        trace = asyncio.run(
            trace_of(silent, Comparer(rule), answered, left_out=left_out, notes=notes, inputs=facts)
        )
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    if answers is not None and all(row.prompt for row in answered):
        write_answers(answers, answered)
    return trace


def _column(cells: Sequence[Any]) -> NDArray[Any]:
    """Return a column, of numbers where all cells are: in CSV they are texts."""
    with suppress(TypeError, ValueError):
        return np.array([float(cell) for cell in cells])
    return np.array(cells, object)


def _read(
    rows: Sequence[tuple[str, Row]], nodes: Sequence[_Columns], rule: Comparison, on_bad: OnBad
) -> tuple[list[tuple[Row, AnsweredPrompt]], Counter[str]]:
    """Read the rows, and count those that cannot be used where they may be left out."""
    used, left_out = [], Counter[str]()
    for where, row in rows:
        try:
            label = label_of(row.get("label"))
            check_label(label, rule)
            answers = {node.node.name: node.read(row, rule) for node in nodes}
            if not any(answers.values()):
                raise TraceError(  # noqa: TRY301 - reported with its place below
                    "has no answer of any node, as after failed calls; an answer without content "
                    'is "" in JSON lines'
                )
            prompt = question_text(row) if row.get("messages") or row.get("prompt") else ""
            used.append((row, AnsweredPrompt(prompt, label, answers)))
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

    node: CascadeNode
    price: TokenCost | None
    columns: Mapping[str, str]
    """By field, as far as the log has them."""

    @classmethod
    def of(
        cls, node: CascadeNode, columns: Sequence[str], path: str | os.PathLike[str]
    ) -> _Columns:
        """Find the columns of a node in those of a log."""
        fields = (
            "answer",
            "confidence",
            "cost",
            "input_tokens",
            "output_tokens",
            "correct",
            "score",
            "thumbs",
        )
        read = {field: name for field in fields if (name := f"{node.name}.{field}") in columns}
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
        return cls(node, price, read)

    def read(self, row: Row, rule: Comparison) -> Answer | None:
        """Return the answer on a row; ``None`` where there is none."""
        text = row.get(self.columns["answer"])
        if text is None:
            return None
        if isinstance(text, list | dict):
            if rule.kind != "json":
                kind = "a list" if isinstance(text, list) else "an object"
                raise TraceError(f"{self.node.name}.answer is {kind}; it must be text")
            text = json.dumps(text, ensure_ascii=False)
        confidence, cost = 0.0, self.node.cost
        if "confidence" in self.columns:
            confidence = self._number(row, "confidence", -math.inf)
        if "cost" in self.columns:
            cost = self._number(row, "cost")
        elif self.price is not None:
            cost += self.price.input * self._number(row, "input_tokens")
            cost += self.price.output * self._number(row, "output_tokens")
        return Answer(without_reasoning(str(text)), confidence, cost, right=self._right(row))

    def _right(self, row: Row) -> float:
        """Return how right the answer is said to be; NaN where nothing is said."""
        words = {"up": "1", "true": "1", "down": "0", "false": "0", "-1": "0"}
        for field in ("correct", "score", "thumbs"):
            value = row.get(self.columns.get(field, ""))
            if value is None:
                continue
            text = str(value).strip().casefold()
            right = _float(words.get(text, text))
            if not 0 <= right <= 1:
                raise TraceError(
                    f"{self.columns[field]} is {value!r}; write true or false, up or down, or a "
                    "score from 0 to 1"
                )
            return right
        return math.nan

    def _number(self, row: Row, field: str, minimum: float = 0.0) -> float:
        value = row.get(self.columns[field])
        number = math.nan if isinstance(value, bool) else _float(value)
        if not (math.isfinite(number) and number >= minimum):
            allowed = "a number from 0" if minimum == 0 else "a finite number"
            raise TraceError(f"{self.columns[field]} is {value!r}; it must be {allowed}")
        return number


def _float(value: Any) -> float:
    """Return a number, in CSV as text; NaN for anything else."""
    with suppress(TypeError, ValueError):
        return float(value)
    return math.nan


# Logs with one line per call


def _rows(file: Path, spec: CascadeSpec) -> tuple[list[tuple[str, Row]], list[str]]:
    """Return the place and the fields of each row, and notes on what is dropped.

    In a log with one line per call, the calls of one prompt are one row; of several by one model,
    the last counts.
    """
    rows: list[tuple[str, Row]] = [*rows_of(file)]
    fields = {name for _, row in rows for name in row}
    if not ({"custom_id", "response"} <= fields or {"spend", "model", "response"} <= fields):
        return rows, []
    # A log names models as the provider does, a cascade as its nodes.
    names = {node.options.get("model", node.name): node.name for node in spec.nodes}
    names |= {name: name for name in spec.names}
    calls = [(where, _batched(row) if "custom_id" in row else _spent(row)) for where, row in rows]
    # Within one batch ids differ by model: the prompt of the request joins them.
    prompts = {
        call.key: json.dumps(call.facts["messages"], sort_keys=True)
        for _, call in calls
        if call.facts.get("messages")
    }
    wide: dict[str, tuple[str, dict[str, Any]]] = {}
    unread = Counter[str]()
    for where, call in calls:
        if not call.key:
            unread["a prompt that the log does not have"] += 1
            continue
        _, cells = wide.setdefault(prompts.get(call.key, call.key), (where, {}))
        cells |= {name: value for name, value in call.facts.items() if value is not None}
        name = next((names[model] for model in call.models if model in names), None)
        if name is not None:
            reply = {**call.costs, **_reply(call.response)}
            cells |= {f"{name}.{field}": value for field, value in reply.items()}
        elif call.models:
            unread[call.models[0]] += 1
    if not wide:
        raise TraceError(
            f"{file}: no call has its messages, which a LiteLLM proxy keeps with "
            "store_prompts_in_spend_logs = true"
        )
    columns = {column for _, cells in wide.values() for column in cells}
    if lacking := [name for name in spec.names if f"{name}.answer" not in columns]:
        raise TraceError(
            f"{file}: no call of {shown(lacking)} has an answer; the other models are "
            f"{shown([*unread]) or 'none'}: write one as model of the node"
        )
    notes = [f"not read: {counted(n, 'call')} of {model}" for model, n in unread.items()]
    return [*wide.values()], notes


class _Call(NamedTuple):
    """A line of a log with one line per call."""

    key: str
    """Of the prompt; empty where the log does not have it."""
    models: Sequence[str]
    """The names that its model may have."""
    facts: Mapping[str, Any]
    """What is known of the prompt."""
    response: Any
    costs: Mapping[str, Any] = {}


def _batched(row: Row) -> _Call:
    """Read a line of OpenAI's batches: of a file of requests, or of one of responses."""
    response, request = row.get("response") or {}, row.get("body") or {}
    is_good = isinstance(response, dict) and response.get("status_code", 200) == 200
    body = response.get("body") if is_good else None
    models = _spellings(body.get("model")) if isinstance(body, dict) else []
    facts = {"label": row.get("label"), "messages": request.get("messages")}
    return _Call(str(row["custom_id"]), models, facts, body)


def _spent(row: Row) -> _Call:
    """Read a line of LiteLLM's spend logs."""
    messages = _parsed(row.get("messages"))
    if not messages:  # newer proxies have the whole request
        messages = (_parsed(row.get("proxy_server_request")) or {}).get("messages")
    facts = {"label": row.get("label"), "messages": messages}
    key = json.dumps(messages, sort_keys=True) if messages else ""
    models = _spellings(row.get("model_group")) + _spellings(row.get("model"))
    return _Call(key, models, facts, _parsed(row.get("response")), {"cost": row.get("spend")})


def _reply(body: Any) -> dict[str, Any]:
    """Return the columns of a response; none of a call that failed."""
    try:
        reply: dict[str, Any] = {"answer": answer_text(body)}
    except (Unreadable, AttributeError):
        return {}
    with suppress(Unreadable):
        reply["confidence"] = probability_of_answer(body)
    if isinstance(usage := body.get("usage"), dict):
        reply["input_tokens"] = usage.get("prompt_tokens")
        reply["output_tokens"] = usage.get("completion_tokens")
    return reply


def _parsed(value: Any) -> Any:
    """Return a value that may be JSON text, as in exports of databases."""
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) else value
    return value


def _spellings(name: Any) -> list[str]:
    """Return the names of a model: with and without its provider, and its date."""
    if not isinstance(name, str) or not name:
        return []
    plain = name.rpartition("/")[2]
    return list(dict.fromkeys((name, plain, re.sub(r"-\d+-[^-]+-[^-]+$", "", plain))))
