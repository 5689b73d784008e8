"""A log of free-text answers as a trace: the models are not asked again.

Answers are compared with labels and with one another by ``compare`` of the cascade, as
:func:`ttamer.serve.collect_upstreams` and the gateway do, and tokens are priced by its
``cost_per_token``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._arguments import require_path
from ttamer.errors import CascadeError, TraceError
from ttamer.llm.compare import Comparer, Comparison, label_form
from ttamer.llm.confidence import without_reasoning
from ttamer.llm.prompts import csv_rows, json_rows, label_of, read_text
from ttamer.serve.collection.comparing import compare_answers
from ttamer.serve.config import TokenCost, comparison_of, token_cost_of
from ttamer.trace.spec import CascadeNode, CascadeSpec
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from ttamer.trace.trace import OnBad

__all__ = ["import_answers"]

_JSON_NAMES = {list: "a list", dict: "an object"}


def import_answers(
    path: str | os.PathLike[str],
    cascade: CascadeSpec | str | os.PathLike[str],
    *,
    on_bad: OnBad = "refuse",
) -> Trace:
    r"""Read a log of answers in free text.

    One row per input has ``<node>.answer`` for every node, and where known ``label`` (in JSON lines
    also a list of aliases, or an object), ``<node>.confidence``, ``<node>.cost``, or
    ``<node>.input_tokens`` and ``<node>.output_tokens``. A node without confidences gets
    ``confidence = "none"``.

    Args:
        path: JSON lines (.jsonl, .ndjson) or CSV.
        cascade: The nodes in order, with their costs, and how answers are compared: a cascade or
            the path of a ``cascade.toml``. No upstream is needed.
        on_bad: "refuse" raises an error for a row that lacks an answer (null, or an empty cell), or
            has a number that cannot be used; "skip" drops and counts such rows.

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
    >>> trace.wrong().tolist()
    [[False, True], [False, False]]
    """
    require_path(path, "import_answers")
    spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
    rule = comparison_of(spec)
    if rule.kind == "embedding":
        raise CascadeError(
            '[serve]: compare = "embedding" takes a server, which only ttamer collect asks; choose '
            "another compare for the log"
        )
    rows = list(_rows(Path(path)))
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    columns = {name for _, row in rows for name in row}
    nodes = [_Column(node, columns, str(path)) for node in spec.nodes]
    given = [row.get("label") for _, row in rows]
    labelled = sum(value is not None and str(value).strip() != "" for value in given)
    left_out: dict[str, int] = {}
    kept: list[tuple[list[_Reply], str | None]] = []
    for place, row in rows:
        try:
            label = label_of(row.get("label"))
            if label is None and labelled:
                raise TraceError(f"has no label, and {labelled} of {len(rows)} rows have one")  # noqa: TRY301
            form = None if label is None else label_form(label, rule)
            kept.append(([node.read(row, rule) for node in nodes], form))
        except TraceError as error:
            if on_bad == "refuse":
                raise TraceError(
                    f"{place}: {error}; correct it, or skip such rows with on_bad='skip' (they are "
                    "counted)"
                ) from None
            left_out[str(error)] = left_out.get(str(error), 0) + 1
    if not kept:
        raise TraceError(f"{path}: all of its rows were left out")
    notes = [
        f'no column {node.name}.confidence: write confidence = "none" for {node.name!r} in the '
        "cascade.toml that serves it"
        for node in nodes
        if node.confidence is None
    ]
    quiet = {node.name for node in nodes if node.confidence is None}
    spec = dataclasses.replace(
        spec,
        nodes=tuple(
            dataclasses.replace(node, options={**node.options, "confidence": "none"})
            if node.name in quiet
            else node
            for node in spec.nodes
        ),
    )
    replies = [each for each, _ in kept]
    labels = [label for _, label in kept if label is not None]
    answers = [[reply.text for reply in row] for row in replies]
    try:
        compared = asyncio.run(compare_answers(Comparer(rule), answers, labels or None))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    return Trace.from_arrays(
        spec,
        [[reply.confidence for reply in row] for row in replies],
        prediction=compared.prediction,
        label=compared.label,
        correct=compared.correct,
        cost=[[reply.cost for reply in row] for row in replies],
        left_out=left_out,
        notes=(*notes, *compared.notes(rule, spec.names, answers)),
    )


@dataclasses.dataclass(frozen=True)
class _Reply:
    """What one node answered on one row."""

    text: str
    confidence: float
    cost: float


class _Column:
    """Where a row has the reply of one node."""

    def __init__(self, node: CascadeNode, columns: set[str], path: str) -> None:
        self.name, self.fixed = node.name, node.cost
        if f"{node.name}.answer" not in columns:
            found = ", ".join(sorted(columns))
            raise TraceError(
                f"{path}: the column '{node.name}.answer' is missing; there are {found}"
            )
        self.confidence = self._known("confidence", columns)
        self.cost = self._known("cost", columns)
        self.price: TokenCost | None = token_cost_of(node)
        self.tokens = [self._known(f"{kind}_tokens", columns) for kind in ("input", "output")]
        if self.cost is None and self.price is not None and None in self.tokens:
            raise TraceError(
                f"{path}: the cascade prices the tokens of {node.name!r}, and the log has no "
                f"columns '{node.name}.input_tokens' and '{node.name}.output_tokens', nor "
                f"'{node.name}.cost'"
            )

    def _known(self, field: str, columns: set[str]) -> str | None:
        column = f"{self.name}.{field}"
        return column if column in columns else None

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
            cost = _number(row, self.cost, least=0.0)
        elif self.price is None:
            cost = self.fixed
        else:
            used = [_number(row, str(column), least=0.0) for column in self.tokens]
            cost = self.fixed + self.price.input * used[0] + self.price.output * used[1]
        return _Reply(without_reasoning(str(answer)), confidence, cost)


def _number(row: Mapping[str, Any], column: str, *, least: float = -math.inf) -> float:
    value = row.get(column)
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= least):
        allowed = "a finite number" if least < 0 else "a number from 0"
        raise TraceError(f"{column} is {value!r}; it must be {allowed}")
    return number


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the fields of each row."""
    text = read_text(file)
    if file.suffix == ".csv":
        yield from csv_rows(file, text)
        return
    if file.suffix not in (".jsonl", ".ndjson"):
        raise TraceError(f"{file}: the suffix must be one of .jsonl, .ndjson, .csv")
    yield from json_rows(file, text)
