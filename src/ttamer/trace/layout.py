"""Which column of a file holds what.

A column is ``<node>.<name>``, ``label``, ``group``, ``prompt`` or ``input.<name>``. A node's name
may hold dots, so columns split at the last one. A column that names one of a node of the cascade
belongs to that node, even where the node is called ``input``; without a cascade, ``input.`` always
begins an input.
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


class Use(NamedTuple):
    """What a column of a file holds: a column of the schema, or an input."""

    column: Column | None
    node: int | None = None
    """Of a column of a node: its number."""
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
    spec: CascadeSpec
    uses: Mapping[str, Use]
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> dict[str, str]:
        """How the cells of each column are read."""
        return {name: use.kind for name, use in self.uses.items()}

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
    return {"id", "node"} <= set(columns) and not any(c.endswith(".confidence") for c in columns)


def of_node(column: str) -> bool:
    """Return whether the schema has a column of nodes with this name."""
    return column in BY_NAME and BY_NAME[column].by == "node"


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
        node, _, column = name.rpartition(".")
        if of_node(column) and node in spec.names:
            uses[name] = Use(BY_NAME[column], spec.names.index(node))
        elif name in BY_NAME and BY_NAME[name].by == "row":
            uses[name] = Use(BY_NAME[name])
        elif name.startswith(INPUT) and len(name) > len(INPUT):
            uses[name] = Use(None, input=name.removeprefix(INPUT))
        elif name.startswith("signal."):
            newer = INPUT + name.removeprefix("signal.")
            raise TraceError(f"{where}: the column {name!r} is named {newer!r} now: rename it")
        elif of_node(column) and node:
            strangers.append(name)
        # What pandas names the column of an index without a name, in CSV and in Arrow.
        elif not re.fullmatch(r"|__index_level_\d+__", name):
            unused.append(name)
    _check_nodes(strangers, unused, spec, uses, where)
    present = {use.column.name for use in uses.values() if use.column}
    if {"loss", "score"} <= present:
        raise TraceError(
            f"{where}: has columns of losses and of scores; a score is one minus a loss: keep one"
        )
    more = [f"columns not used: {shown(unused)}"] if unused else []
    lacking = [name for name in spec.names if f"{name}.cost" not in uses]
    if lacking and "cost" in present:
        more.append(f"no cost column for {shown(lacking)}: the cascade's cost is used on every row")
    return Layout(where, spec, uses, (*notes, *more))


def _check_nodes(
    strangers: Sequence[str],
    unused: Sequence[str],
    spec: CascadeSpec,
    uses: Mapping[str, Use],
    where: str,
) -> None:
    """Refuse columns of other nodes, a node without confidences, and predictions of some alone."""
    if strangers:
        remedy = _renames(strangers, spec, uses) or (
            f": {shown(strangers)}; the cascade has {shown(spec.names)}: add a [[node]], or an "
            "entry in costs, for each of them, or remove the columns"
        )
        raise TraceError(f"{where}: columns of nodes that are not in the cascade{remedy}")
    for column in ("confidence", "prediction"):
        lacking = [f"{n}.{column}" for n in spec.names if f"{n}.{column}" not in uses]
        if not lacking or (column == "prediction" and len(lacking) == len(spec)):
            continue
        hint = _renames(unused, spec, uses)
        if not hint and (alike := get_close_matches(lacking[0], unused, n=1, cutoff=0.75)):
            hint = f": rename {alike[0]!r}"
        elif not hint:
            hint = f"; there are {shown([*uses, *unused], 12)}"
            if unused:
                hint += f" (not understood: {shown(unused)})"
            if column == "confidence" and len(lacking) == len(spec):
                hint += "; where a node gives no confidence, write 0 on every row"
        if column == "prediction":
            hint = f", and prediction is needed for all nodes or none{hint}"
        raise TraceError(f"{where}: the column {lacking[0]!r} is missing{hint}")


def _renames(columns: Iterable[str], spec: CascadeSpec, uses: Mapping[str, Use]) -> str:
    """Return which columns to rename: those that are missing but for marks, spaces and capitals.

    >>> _renames(["a_confidence", "id"], CascadeSpec.of({"a": 1.0}), {})
    ": rename 'a_confidence' to 'a.confidence'"
    """

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name)).casefold()

    wanted = (f"{node}.{column}" for node in spec.names for column in BY_NAME if of_node(column))
    missing = {letters(name): name for name in wanted if name not in uses}
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
    for name in columns:
        if (count := columns.count(name)) > 1:
            raise TraceError(f"{where}: the column {name!r} appears {count} times; keep one")


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
