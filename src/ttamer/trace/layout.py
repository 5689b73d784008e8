"""Which column of a file holds what.

A column is ``<node>.<name>``, ``label``, ``group``, ``prompt`` or ``input.<name>``. A node's name
may hold dots, so columns split at the last one. A column that names one of a node of the cascade
belongs to that node, even where the node is called ``input``; without a cascade, ``input.`` always
begins an input. In a log with one line per call the columns of nodes have no node in their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from ttamer._checks import shown
from ttamer.cascade import CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.trace.schema import BY_NAME, INPUT, Column

# The columns that say which input and node a line is about.
KEYS = ("id", "node")


class Use(NamedTuple):
    """What a column of a file holds: a column of the schema, or an input."""

    column: Column | None
    node: int | None = None
    """Of a column of a node: its number; none where a line has one call."""
    input: str = ""

    @property
    def kind(self) -> str:
        """How its cells are read."""
        return self.column.kind if self.column else "input"


@dataclass(frozen=True)
class Layout:
    """Which columns of a file are used, for what."""

    where: str
    """The file, as the user named it: every message begins with it."""
    spec: CascadeSpec | None
    """The cascade; none where a log with one line per call is read without one."""
    uses: Mapping[str, Use]
    notes: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        """Whether a line is about one call."""
        return "id" in self.uses

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return self.spec.names if self.spec else ()

    def named(self, kind: str) -> list[str]:
        """Return the columns of one kind."""
        return [name for name, use in self.uses.items() if use.kind == kind]

    @property
    def compares_classes(self) -> bool:
        """Whether an answer is right where its class is the label's: no column has it otherwise."""
        fields = {use.column.field for use in self.uses.values() if use.column}
        return fields.isdisjoint(("correct", "raw_loss"))


def is_long(columns: Iterable[str]) -> bool:
    """Return whether the columns are those of a log with one line per call.

    >>> is_long(["id", "node", "confidence"]), is_long(["id", "a.confidence"])
    (True, False)
    """
    columns = list(columns)
    return set(KEYS) <= set(columns) and not any(c.endswith(".confidence") for c in columns)


def plan(
    columns: Sequence[str], spec: CascadeSpec, where: str, notes: Sequence[str] = ()
) -> Layout:
    """Return which column holds what; refuse missing and unknown ones.

    >>> layout = plan(["a.confidence", "label", "id"], CascadeSpec.of({"a": 1.0}), "log.csv")
    >>> list(layout.uses), layout.notes
    (['a.confidence', 'label'], ("columns not used: 'id'",))
    """
    check_names(columns, where)
    uses: dict[str, Use] = {}
    strangers, unused = [], []
    for name in columns:
        node, dot, column = name.rpartition(".")
        of_node = dot and column in BY_NAME and BY_NAME[column].by == "node"
        if of_node and node in spec.names:
            uses[name] = Use(BY_NAME[column], spec.names.index(node))
        elif (use := _use_of_row(name, where)) is not None:
            uses[name] = use
        elif of_node and node:
            strangers.append(name)
        # What pandas names the column of an index without a name, in CSV and in Arrow.
        elif not re.fullmatch(r"|__index_level_\d+__", name):
            unused.append(name)
    present: dict[str, set[int]] = {name: set() for name in BY_NAME}
    for use in uses.values():
        if use.column and use.node is not None:
            present[use.column.name].add(use.node)
    _check_strangers(strangers, spec, present, where)
    _check_missing(columns, unused, spec, present, where)
    _check_losses(present["loss"], present["score"], where)
    more = [f"columns not used: {shown(unused)}"] if unused else []
    lacking = [name for node, name in enumerate(spec.names) if node not in present["cost"]]
    if lacking and present["cost"]:
        more.append(f"no cost column for {shown(lacking)}: the cascade's cost is used on every row")
    return Layout(where, spec, uses, (*notes, *more))


def plan_long(columns: Sequence[str], spec: CascadeSpec | None, where: str) -> Layout:
    """Return which column of a log with one line per call holds what."""
    check_names(columns, where)
    if "confidence" not in columns:
        raise TraceError(
            f"{where}: the column 'confidence' is missing; a log with one line per call has id, "
            f"node and confidence; this one has {shown(columns)}"
        )
    uses = {name: Use(Column(name, "row", "class", "", name, texts=name)) for name in KEYS}
    unused = []
    for name in columns:
        if name in BY_NAME and BY_NAME[name].by == "node":
            uses[name] = Use(BY_NAME[name])
        elif (use := _use_of_row(name, where)) is not None:
            uses[name] = use
        elif name not in KEYS:
            unused.append(name)
    _check_losses("loss" in columns, "score" in columns, where)
    return Layout(where, spec, uses, (f"columns not used: {shown(unused)}",) if unused else ())


def _use_of_row(name: str, where: str) -> Use | None:
    """Return what a column is for that is about the input; ``None`` for another."""
    if name in BY_NAME and BY_NAME[name].by == "row":
        return Use(BY_NAME[name])
    if name.startswith(INPUT) and len(name) > len(INPUT):
        return Use(None, input=name.removeprefix(INPUT))
    if name.startswith("signal."):
        raise TraceError(
            f"{where}: the column {name!r} is named 'input.{name.removeprefix('signal.')}' "
            "now: rename it"
        )
    return None


def _check_losses(loss: object, score: object, where: str) -> None:
    if loss and score:
        raise TraceError(
            f"{where}: has columns of losses and of scores; a score is one minus a loss: keep one"
        )


def _check_strangers(
    columns: Sequence[str], spec: CascadeSpec, present: Mapping[str, set[int]], where: str
) -> None:
    if not columns:
        return
    what = f"{where}: columns of nodes that are not in the cascade"
    if hint := _renames(columns, spec, present):
        raise TraceError(what + hint)
    raise TraceError(
        f"{what}: {shown(columns)}; the cascade has {shown(spec.names)}: add a [[node]], or an "
        "entry in costs, for each of them, or remove the columns"
    )


def _check_missing(
    columns: Sequence[str],
    unused: Sequence[str],
    spec: CascadeSpec,
    present: Mapping[str, set[int]],
    where: str,
) -> None:
    """Refuse a node without confidences, and predictions of some nodes only."""
    for name in ("confidence", "prediction"):
        lacking = [f"{n}.{name}" for k, n in enumerate(spec.names) if k not in present[name]]
        if not lacking or (name == "prediction" and not present[name]):
            continue
        hint = _renames(unused, spec, present)
        if not hint and (alike := get_close_matches(lacking[0], unused, n=1, cutoff=0.75)):
            hint = f": rename {alike[0]!r}"
        elif not hint:
            hint = f"; there are {shown(columns, 12)}"
            if unused:
                hint += f" (not understood: {shown(unused)})"
            if name == "confidence" and not present[name]:
                hint += "; where a node gives no confidence, write 0 on every row"
        every = "" if name == "confidence" else f", and {name} is needed for all nodes or none"
        raise TraceError(f"{where}: the column {lacking[0]!r} is missing{every}{hint}")


def _renames(columns: Sequence[str], spec: CascadeSpec, present: Mapping[str, set[int]]) -> str:
    """Return which columns to rename: those that are missing but for marks, spaces and capitals.

    >>> _renames(["a_confidence", "id"], CascadeSpec.of({"a": 1.0}), {"confidence": set()})
    ": rename 'a_confidence' to 'a.confidence'"
    """

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name)).casefold()

    missing = {
        letters(f"{node}.{name}"): f"{node}.{name}"
        for name, nodes in present.items()
        for position, node in enumerate(spec.names)
        if position not in nodes
    }
    pairs = [(name, missing[letters(name)]) for name in columns if letters(name) in missing]
    listed = ", ".join(f"{name!r} to {new!r}" for name, new in pairs[:2])
    more = f", and {len(pairs) - 2} more alike" if len(pairs) > 2 else ""
    return f": rename {listed}{more}" if pairs else ""


def check_names(columns: Sequence[str], where: str) -> None:
    """Refuse columns that are there twice, and a header whose columns were not separated."""
    # Marks that separate columns in other tables; in a CSV file here a comma does.
    if len(columns) == 1 and (marks := [mark for mark in ";\t|" if mark in columns[0]]):
        raise TraceError(
            f"{where}: has one column, {shown(columns)}: it seems to be separated by {marks[0]!r}; "
            "separate the columns by commas"
        )
    repeated = [name for k, name in enumerate(columns) if name in columns[:k]]
    if repeated:
        raise TraceError(
            f"{where}: the column {repeated[0]!r} appears {list(columns).count(repeated[0])} "
            "times; keep one"
        )


def infer_spec(
    columns: Sequence[str], mean_costs: Mapping[str, float], where: str
) -> tuple[CascadeSpec, str]:
    """Make a cascade from the columns, and a note about it.

    >>> spec, note = infer_spec(["b.confidence", "a.confidence"], {}, "log.csv")
    >>> spec.costs.tolist(), note
    ([1.0, 1.0], "no cascade was given: the nodes are 'b', 'a', each at cost 1")
    """
    check_names(columns, where)
    names = [
        name.removesuffix(".confidence")
        for name in columns
        if name.endswith(".confidence") and not name.startswith((INPUT, "signal."))
    ]
    if not any(names):
        raise TraceError(
            f"{where}: there is no column <node>.confidence; there are {shown(columns, 12)}"
        )
    try:
        spec = CascadeSpec.of({name: mean_costs.get(name, 1.0) for name in names})
    except CascadeError as error:
        raise TraceError(f"{where}: the columns make no cascade: {error}") from None
    # A note that ends so is warned about by a fit.
    costs = "each at the mean of its cost column" if mean_costs else "each at cost 1"
    if mean_costs and len(mean_costs) < len(names):
        costs += ", or at cost 1"
    return spec, f"no cascade was given: the nodes are {shown(names)}, {costs}"
