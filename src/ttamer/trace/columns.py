"""What each column of a trace means.

A column is ``<node>.<field>``, ``label``, ``group``, ``prompt`` or ``input.<name>``. A node's
name may hold dots, so columns split at the last one. A column that names a field of a node of the
cascade belongs to that node, even where the node is called ``input``; without a cascade,
``input.`` always begins an input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.trace.checks import UNPRICED
from ttamer.trace.classes import shown
from ttamer.trace.schema import BY_NAME, INPUT, SCHEMA
from ttamer.trace.trace import Trace

# Marks that separate columns in other tables; in a CSV file here a comma does.
SEPARATORS = (";", "\t", "|")
# What pandas names the column of an index without a name, in CSV and in Arrow.
_INDEX = re.compile(r"|__index_level_\d+__")
_NODE = [column for column in SCHEMA if column.by == "node"]
_FIELDS = (*(column.name for column in _NODE), "score")
_NUMBERS = (*(column.name for column in _NODE if column.kind == "number"), "score")


@dataclass(frozen=True)
class Layout:
    """Which columns of a file are used, for what."""

    place: str
    """The file, as the user named it: every message begins with it."""
    spec: CascadeSpec
    label: str | None
    """The column of labels, if there is one."""
    fields: Mapping[str, Mapping[int, str]]
    """Column names by field and node number; a field that is left out has none."""
    inputs: Mapping[str, str]
    """Column names by input."""
    notes: tuple[str, ...]
    group: str | None = None
    """The column of groups, if there is one."""
    prompt: str | None = None
    """The column of prompts, if there is one."""
    keys: tuple[str, ...] = ()
    """Columns that say which input and node a line is about."""

    def __post_init__(self) -> None:
        every = {name: self.fields.get(name, {}) for name in _FIELDS}
        object.__setattr__(self, "fields", every)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns that hold numbers."""
        return tuple(c for name in _NUMBERS for c in self.fields[name].values())

    @property
    def classes(self) -> tuple[str, ...]:
        """Columns that hold predictions, labels and groups."""
        of_rows = [column for column in (self.label, self.group) if column]
        return (*self.keys, *of_rows, *self.fields["prediction"].values())

    @property
    def flags(self) -> tuple[str, ...]:
        """Columns that hold truth values."""
        return tuple(self.fields["correct"].values())

    @property
    def compares_classes(self) -> bool:
        """Whether an answer is right where its class is the label's: no column has it otherwise."""
        return not (self.flags or self.fields["loss"] or self.fields["score"])

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns used."""
        texts = [self.prompt] if self.prompt else []
        return (*self.numbers, *self.classes, *self.flags, *texts, *self.inputs.values())


def plan(
    columns: Sequence[str], spec: CascadeSpec, place: str, *, notes: Sequence[str] = ()
) -> Layout:
    """Return which column holds what; refuse missing and unknown ones.

    >>> layout = plan(["a.confidence", "label", "id"], CascadeSpec.of({"a": 1.0}), "log.csv")
    >>> layout.columns, layout.notes
    (('a.confidence', 'label'), ("columns not used: 'id'",))
    """
    check_names(columns, place)
    fields: dict[str, dict[int, str]] = {name: {} for name in _FIELDS}
    inputs, strangers, unused = {}, [], []
    for column in columns:
        node, dot, name = column.rpartition(".")
        if dot and name in _FIELDS and node in spec.names:
            fields[name][spec.names.index(node)] = column
        elif column.startswith(INPUT) and len(column) > len(INPUT):
            inputs[column.removeprefix(INPUT)] = column
        elif column.startswith("signal."):
            raise TraceError(
                f"{place}: the column {column!r} is named 'input.{column.removeprefix('signal.')}' "
                "now: rename it"
            )
        elif dot and node and name in _FIELDS:
            strangers.append(column)
        elif column not in BY_NAME and not _INDEX.fullmatch(column):
            unused.append(column)
    if strangers:
        hint = _renames(strangers, spec, fields)
        if hint:
            raise TraceError(f"{place}: columns of nodes that are not in the cascade{hint}")
        raise TraceError(
            f"{place}: columns of nodes that are not in the cascade: {shown(strangers)}; the "
            f"cascade has {shown(spec.names)}: add a [[node]], or an entry in costs, for each of "
            "them, or remove the columns"
        )
    for name in ("confidence", "prediction"):
        lacking = [f"{n}.{name}" for i, n in enumerate(spec.names) if i not in fields[name]]
        if lacking and (name == "confidence" or fields[name]):
            alike = get_close_matches(lacking[0], unused, n=1, cutoff=0.75)
            hint = _renames(unused, spec, fields)
            if not hint and alike:
                hint = f": rename {alike[0]!r}"
            elif not hint:
                hint = f"; there are {shown(columns, 12)}"
                if unused:
                    hint += f" (not understood: {shown(unused)})"
                if name == "confidence" and not fields[name]:
                    hint += "; where a node gives no confidence, write 0 on every row"
            every = "" if name == "confidence" else f", and {name} is needed for all nodes or none"
            raise TraceError(f"{place}: the column {lacking[0]!r} is missing{every}{hint}")
    if fields["loss"] and fields["score"]:
        raise TraceError(
            f"{place}: has columns of losses and of scores; a score is one minus a loss: keep one"
        )
    found = [f"columns not used: {shown(unused)}"] if unused else []
    if fields["cost"] and len(fields["cost"]) < len(spec):
        rest = [n for i, n in enumerate(spec.names) if i not in fields["cost"]]
        found.append(f"no cost column for {shown(rest)}: the cascade's cost is used on every row")
    ordered = {name: dict(sorted(by_node.items())) for name, by_node in fields.items()}
    label = "label" if "label" in columns else None
    group = "group" if "group" in columns else None
    prompt = "prompt" if "prompt" in columns else None
    return Layout(place, spec, label, ordered, inputs, (*notes, *found), group, prompt)


def _renames(
    columns: Sequence[str], spec: CascadeSpec, fields: Mapping[str, Mapping[int, str]]
) -> str:
    """Return which columns to rename: those that are missing but for marks, spaces and capitals.

    >>> _renames(["a_confidence", "id"], CascadeSpec.of({"a": 1.0}), {"confidence": {}})
    ": rename 'a_confidence' to 'a.confidence'"
    """
    missing = {
        _letters(f"{node}.{field}"): f"{node}.{field}"
        for field, found in fields.items()
        for place, node in enumerate(spec.names)
        if place not in found
    }
    pairs = [(column, missing.get(_letters(column))) for column in columns]
    pairs = [pair for pair in pairs if pair[1] is not None]
    listed = ", ".join(f"{column!r} to {name!r}" for column, name in pairs[:2])
    more = f", and {len(pairs) - 2} more alike" if len(pairs) > 2 else ""
    return f": rename {listed}{more}" if pairs else ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def check_names(columns: Sequence[str], place: str) -> None:
    """Refuse columns that are there twice, and a header whose columns were not separated."""
    if len(columns) == 1 and (found := [mark for mark in SEPARATORS if mark in columns[0]]):
        raise TraceError(
            f"{place}: has one column, {shown(columns)}: it seems to be separated by {found[0]!r}; "
            "separate the columns by commas"
        )
    repeated = [name for i, name in enumerate(columns) if name in columns[:i]]
    if repeated:
        raise TraceError(
            f"{place}: the column {repeated[0]!r} appears {list(columns).count(repeated[0])} "
            "times; keep one"
        )


def infer_spec(
    columns: Sequence[str], mean_costs: Mapping[str, float], place: str
) -> tuple[CascadeSpec, str]:
    """Make a cascade from the columns, and a note about it.

    >>> spec, note = infer_spec(["b.confidence", "a.confidence"], {}, "log.csv")
    >>> spec.costs.tolist(), note
    ([1.0, 1.0], "no cascade was given: the nodes are 'b', 'a', each at cost 1")
    """
    check_names(columns, place)
    names = [
        column.removesuffix(".confidence")
        for column in columns
        if column.endswith(".confidence") and not column.startswith((INPUT, "signal."))
    ]
    if not any(names):
        raise TraceError(
            f"{place}: there is no column <node>.confidence; there are {shown(columns, 12)}"
        )
    try:
        spec = CascadeSpec.of({name: mean_costs.get(name, 1.0) for name in names})
    except CascadeError as error:
        raise TraceError(f"{place}: the columns make no cascade: {error}") from None
    costs = f"each {UNPRICED}" if not mean_costs else "each at the mean of its cost column"
    if mean_costs and len(mean_costs) < len(names):
        costs += f", or {UNPRICED}"
    return spec, f"no cascade was given: the nodes are {shown(names)}, {costs}"


def columns_of(trace: Trace, rows: slice) -> dict[str, NDArray[Any]]:
    """Return some rows of a trace as named columns; predictions, label and group as codes.

    >>> trace = Trace(CascadeSpec.of({"a": 1.0}), [[0.5]], inputs={"length": [3.0]})
    >>> columns_of(trace, slice(None))
    {'a.confidence': array([0.5]), 'input.length': array([3.])}
    """
    present = [
        (column, values)
        for column in SCHEMA
        if (values := getattr(trace, column.field)) is not None and values.ndim == (
            2 if column.by == "node" else 1)
    ]  # fmt: skip
    columns: dict[str, Any] = {}
    for node, name in enumerate(trace.names):
        for column, values in present:
            if column.by == "row":
                continue
            known = column.known(values)
            # A node without a column is not known on any row, where some other node has it.
            if column.optional and known.any() and not known[:, node].any():
                continue
            columns[f"{name}.{column.name}"] = values[rows, node]
    columns |= {c.name: values[rows] for c, values in present if c.by == "row"}
    columns |= {INPUT + name: values[rows] for name, values in trace.inputs.items()}
    return {name: np.ascontiguousarray(values) for name, values in columns.items()}
