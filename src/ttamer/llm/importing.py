"""A log of free-text answers as a trace: the models are not asked again.

Answers are compared with labels and with one another by ``compare`` of the cascade, as
:func:`~ttamer.llm.collect_prompts` and the server do, and tokens are priced by its
``cost_per_token``. Read are rows of one's own (:func:`import_answers` says which columns), the
spend logs of a LiteLLM proxy, and the request and output files of OpenAI's batches in one file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_path, shown
from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import TraceError
from ttamer.llm.compare import Comparison
from ttamer.llm.confidence import (
    Unreadable,
    answer_text,
    probability_of_answer,
    question_text,
    without_reasoning,
)
from ttamer.llm.node import Usage
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
# Some of the columns of a node.
TOKENS = ("input_tokens", "output_tokens")
VERDICTS = ("thumbs", "score", "correct")  # of several, the last one counts


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
    rows, notes = _rows(Path(path), spec)
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    columns = dict.fromkeys(name for _, row in rows for name in row)
    prices = {node.name: _price(node, [*columns], path) for node in spec.nodes}
    used, left_out = [], Counter[str]()
    for where, row in rows:
        try:
            cells = {**columns, **row}  # a row may lack some
            used.append((row, _answered(cells, spec, prices, rule)))
        except TraceError as error:
            if on_bad == "refuse":
                raise TraceError(
                    f"{where}: {error}; correct it, or skip such rows with on_bad='skip' (they are "
                    "counted)"
                ) from None
            left_out[str(error)] += 1
    if not used:
        raise TraceError(f"{path}: all of its rows were left out")
    quiet = [name for name in spec.names if f"{name}.confidence" not in columns]
    if quiet:
        notes.append(
            f"no confidence of {shown(quiet)} (a column <node>.confidence): write confidence = "
            '"none" in the cascade.toml that serves them'
        )
        nodes = (
            dataclasses.replace(node, options={**node.options, "confidence": "none"})
            if node.name in quiet
            else node
            for node in spec.nodes
        )
        spec = dataclasses.replace(spec, nodes=tuple(nodes))
    fields = ("answer", "confidence", "cost", *TOKENS, *VERDICTS)
    read = {f"{name}.{field}" for name in spec.names for field in fields}
    unread = [name for name in columns if name not in {*read, "label", "prompt", "messages"}]
    facts = {
        name.removeprefix(INPUT): _column([row.get(name) for row, _ in used])
        for name in unread
        if name.startswith(INPUT)
    }
    if dropped := [name for name in unread if not name.startswith(INPUT)]:
        notes.append(f"not read: {shown(dropped)}")
    answered = [row for _, row in used]
    try:
        trace = trace_of(spec, rule, answered, left_out=left_out, notes=notes, inputs=facts)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    if answers is not None and all(row.prompt for row in answered):
        write_answers(answers, answered)
    return trace


def _price(
    node: CascadeNode, columns: Sequence[str], path: str | os.PathLike[str]
) -> TokenCost | None:
    """Return the price of a node's tokens; refuse a log without its answers, or their tokens."""
    answer, cost, *tokens = (f"{node.name}.{field}" for field in ("answer", "cost", *TOKENS))
    if answer not in columns:
        raise TraceError(
            f"{path}: the column {answer!r} is missing; there are {', '.join(sorted(columns))}"
        )
    price = node.options.get("cost_per_token")
    if price is None or cost in columns:
        return None
    if not {*tokens} <= {*columns}:
        raise TraceError(
            f"{path}: the cascade prices the tokens of {node.name!r}, and the log has no "
            f"columns {tokens[0]!r} and {tokens[1]!r}, nor {cost!r}"
        )
    return checked(TokenCost, price, f"[[node]] {node.name!r}: cost_per_token")


def _column(cells: Sequence[Any]) -> NDArray[Any]:
    """Return a column, of numbers where all cells are: in CSV they are texts."""
    with suppress(TypeError, ValueError):
        return np.array([float(cell) for cell in cells])
    return np.array(cells, object)


def _answered(
    row: Row, spec: CascadeSpec, prices: Mapping[str, TokenCost | None], rule: Comparison
) -> AnsweredPrompt:
    """Read a row."""
    label = label_of(row.get("label"))
    check_label(label, rule)
    answers = {node.name: _answer(row, node, prices[node.name], rule) for node in spec.nodes}
    if not any(answers.values()):
        raise TraceError(
            'has no answer of any node, as after failed calls; an answer without content is "" in '
            "JSON lines"
        )
    prompt = question_text(row) if row.get("messages") or row.get("prompt") else ""
    return AnsweredPrompt(prompt, label, answers)


def _answer(
    row: Row, node: CascadeNode, price: TokenCost | None, rule: Comparison
) -> Answer | None:
    """Return the answer of a node on a row; ``None`` where there is none."""
    at = f"{node.name}.".__add__
    text, right = row[at("answer")], math.nan
    if text is None:
        return None
    if isinstance(text, list | dict):
        if rule.kind != "json":
            kind = "a list" if isinstance(text, list) else "an object"
            raise TraceError(f"{node.name}.answer is {kind}; it must be text")
        text = json.dumps(text, ensure_ascii=False)
    confidence = _number(row, at("confidence"), -math.inf) if at("confidence") in row else 0.0
    cost = _number(row, at("cost")) if at("cost") in row else node.cost
    if price is not None:
        cost += price.input * _number(row, at("input_tokens"))
        cost += price.output * _number(row, at("output_tokens"))
    for field in VERDICTS:
        if row.get(at(field)) is not None:
            right = _right(row, at(field))
    return Answer(without_reasoning(str(text)), confidence, cost, right=right)


def _right(row: Row, name: str) -> float:
    """Return how right an answer is said to be."""
    words = {"up": "1", "true": "1", "down": "0", "false": "0", "-1": "0"}
    text = str(row[name]).strip().casefold()
    right = _float(words.get(text, text))
    if not 0 <= right <= 1:
        raise TraceError(
            f"{name} is {row[name]!r}; write true or false, up or down, or a score from 0 to 1"
        )
    return right


def _number(row: Row, name: str, minimum: float = 0.0) -> float:
    number = math.nan if isinstance(row[name], bool) else _float(row[name])
    if not (math.isfinite(number) and number >= minimum):
        allowed = "a number from 0" if minimum == 0 else "a finite number"
        raise TraceError(f"{name} is {row[name]!r}; it must be {allowed}")
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
    calls = [(where, _call(row)) for where, row in rows]
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
            cells |= {f"{name}.{field}": value for field, value in call.reply.items()}
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

    key: str  # of the prompt; empty where the log does not have it
    models: Sequence[str]  # the names that its model may have
    facts: Mapping[str, Any]  # what is known of the prompt
    reply: Mapping[str, Any]  # the columns of the node


def _call(row: Row) -> _Call:
    """Read a line of OpenAI's batches, a request or a response, or of LiteLLM's spend logs."""
    if "custom_id" in row:
        response, request = row.get("response") or {}, row.get("body") or {}
        is_good = isinstance(response, dict) and response.get("status_code", 200) == 200
        body = response.get("body") if is_good else None
        key, messages, cost = str(row["custom_id"]), request.get("messages"), {}
        models = _spellings(body.get("model")) if isinstance(body, dict) else []
    else:
        messages = _parsed(row.get("messages"))
        if not messages:  # newer proxies have the whole request
            messages = (_parsed(row.get("proxy_server_request")) or {}).get("messages")
        key = json.dumps(messages, sort_keys=True) if messages else ""
        body, cost = _parsed(row.get("response")), {"cost": row.get("spend")}
        models = _spellings(row.get("model_group")) + _spellings(row.get("model"))
    facts, reply = {"label": row.get("label"), "messages": messages}, _reply(body)
    # What a failed call cost must not stand beside the answer of another one.
    return _Call(key, models, facts, cost | reply if reply else {})


def _reply(body: Any) -> dict[str, Any]:
    """Return the columns of a response; none of a call that failed."""
    try:
        reply: dict[str, Any] = {"answer": answer_text(body)}
    except (Unreadable, AttributeError):
        return {}
    with suppress(Unreadable):
        reply["confidence"] = probability_of_answer(body)
    if (usage := Usage.of(body)) is not None:
        reply |= {"input_tokens": usage.prompt, "output_tokens": usage.completion}
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
