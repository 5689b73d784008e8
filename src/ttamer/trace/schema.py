"""The columns of a trace: one table that checks, files, parts of traces and digests loop over.

A column is about an answer (``<node>.confidence``, shape (rows, nodes)) or about an input
(``label``, shape (rows,)). A node that was not asked, or failed, has no value in any of its
columns: a gap. What else is known of an input before a node is asked stands in ``input.<name>``.

In a file a node's name may hold dots, so columns split at the last one. A column that names one of
a node of the cascade belongs to that node, even where the node is called ``input``; without a
cascade, ``input.`` always begins an input.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import shown
from ttamer.cascade import CascadeSpec
from ttamer.errors import CascadeError, TraceError

# Before the name of an input's column.
INPUT = "input."


@dataclass(frozen=True)
class Column:
    """One row of the table.

    >>> [column.name for column in SCHEMA if column.by == "row"]
    ['label', 'group', 'prompt']
    """

    name: str
    """In a file: ``<node>.<name>``, or the name alone where it is about the input."""
    by: Literal["node", "row"]
    kind: Literal["number", "class", "flag", "text"]
    meaning: str
    field: str
    """The attribute of a trace."""
    texts: str = ""
    """Of classes: the attribute with the text of each code."""
    low: float = -math.inf
    high: float = math.inf
    of_answer: bool = False
    """Whether only an answer has it: a gap has none."""
    each_answer: bool = False
    """Whether each answer of a node that has the column must have it."""

    @property
    def missing(self) -> Any:
        """What stands where nothing is known."""
        return {"number": math.nan, "text": None}.get(self.kind, -1)

    @property
    def dtype(self) -> type:
        """The type of the array."""
        types: dict[str, type] = {"number": np.float64, "class": np.int32, "flag": np.int8}
        return types.get(self.kind, np.object_)

    def array(self, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return values as a read-only array of the right type; refuse what does not fit."""
        if self.kind == "text":
            return texts_of(values, shape, self.name)
        if self.kind == "flag":
            values = flags_of(np.asarray(values), f"{self.name}: ")
        return numbers_of(values, self.dtype, shape, self.name)


# In the order in which files are written.
SCHEMA = (
    Column(
        "confidence",
        "node",
        "number",
        "any number that grows with the node's certainty",
        "confidence",
        of_answer=True,
        each_answer=True,
    ),
    Column(
        "prediction",
        "node",
        "class",
        "the answer, as a class",
        "prediction",
        texts="classes",
        of_answer=True,
    ),
    Column("correct", "node", "flag", "whether the answer is right", "correct", of_answer=True),
    Column(
        "loss",
        "node",
        "number",
        "what the answer loses, in any unit",
        "raw_loss",
        low=0,
        of_answer=True,
    ),
    Column("cost", "node", "number", "what the call cost", "cost", low=0, each_answer=True),
    Column(
        "chance",
        "node",
        "number",
        "the chance with which the node was asked",
        "chance",
        low=0,
        high=1,
    ),
    Column(
        "entropy",
        "node",
        "number",
        "the entropy of the answer's distribution",
        "entropy",
        of_answer=True,
        each_answer=True,
    ),
    Column("latency", "node", "number", "how long the call took", "latency", each_answer=True),
    Column(
        "margin",
        "node",
        "number",
        "by how much the first class leads the second",
        "margin",
        of_answer=True,
        each_answer=True,
    ),
    Column("label", "row", "class", "the right class", "label", texts="classes"),
    Column(
        "group",
        "row",
        "class",
        "rows of one group are never split: a user, a document",
        "group",
        texts="groups",
    ),
    Column("prompt", "row", "text", "the text of the input", "prompt"),
)
# A column of files alone: its loss is kept.
SCORE = Column(
    "score",
    "node",
    "number",
    "a grade from 0 to 1; its loss is 1 minus the grade",
    "raw_loss",
    low=0,
    high=1,
    of_answer=True,
)
BY_NAME = {column.name: column for column in (*SCHEMA, SCORE)}
CONFIDENCE, COST = BY_NAME["confidence"], BY_NAME["cost"]


@dataclass(frozen=True)
class Fault:
    """Rows of a column with a value that cannot be."""

    column: str
    rows: NDArray[np.bool_]
    why: str = "missing, NaN or infinite"
    is_gap: bool = True
    """Whether a value is missing, and none is out of range: such rows may be left out."""

    def text(self, start: int = 0) -> str:
        """Say where, the first row being ``start``, how often, and why."""
        count = int(self.rows.sum())
        more = f" and {count - 1} more of {len(self.rows)}" if count > 1 else ""
        return (
            f"column {self.column!r}: row {int(self.rows.argmax()) + start} (counting from 0)"
            f"{more} {'are' if count > 1 else 'is'} {self.why}"
        )


def faults(
    arrays: Mapping[Column, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]],
    names: Sequence[str],
) -> Iterator[Fault]:
    """Yield what cannot be: in the columns of nodes, and in inputs that are numbers."""
    # A confidence stands for an answer: where it is missing, so must everything else be.
    answered = is_filled(arrays[CONFIDENCE])
    is_complete = bool(answered.all())
    for column, array in arrays.items():
        for node in range(array.shape[1]) if column.by == "node" else ():
            values, name = array[:, node], f"{names[node]}.{column.name}"
            bad = []
            if column.of_answer and not is_complete:
                stray = is_filled(values) & ~answered[:, node]
                why = f"missing, and {name} has a value there: a node that was not asked has none"
                bad.append(Fault(f"{names[node]}.confidence", stray, why))
            if column.kind == "number":
                # Comparisons with NaN are false: one pass tells whether more is to be looked at.
                finite = np.isfinite(values)
                if not finite.all():
                    lacking = np.isinf(values)
                    # A node may lack a column, but for its confidence and its cost.
                    if column.each_answer and (is_filled(values).any() or column is COST):
                        lacking |= answered[:, node] & ~finite
                    bad.append(Fault(name, lacking))
                if column.low > -math.inf:
                    why = f"negative, and a {column.name} is not"
                    bad.append(Fault(name, values < column.low, why, is_gap=False))
                if column.high < math.inf:
                    why = f"above 1, and a {column.name} is from 0 to 1"
                    bad.append(Fault(name, values > column.high, why, is_gap=False))
            yield from (fault for fault in bad if fault.rows.any())
    for name, values in inputs.items():
        if values.dtype != object:
            rows = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            if rows.any():
                yield Fault(INPUT + name, rows)


def is_filled(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where there is a value: no NaN, no code of -1, no ``None``.

    >>> is_filled(np.array([0.5, np.nan])).tolist(), is_filled(np.array(["a", None])).tolist()
    ([True, False], [True, False])
    """
    if values.dtype == object:
        return np.array([value is not None for value in values.flat], bool)
    if values.dtype.kind != "f":
        return np.asarray(values >= 0, bool)
    return np.asarray(~np.isnan(values), bool)


def numbers_of(values: Any, kind: type, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Return a read-only view of numbers of one type; refuse other values and shapes."""
    array = np.asarray(values)
    if array.dtype.kind not in ("biu" if np.issubdtype(kind, np.integer) else "biuf"):
        raise TraceError(f"{what}: must be numbers, not {array.dtype}", param=what)
    if array.shape != shape:
        raise TraceError(
            f"{what}: has shape {array.shape}, and {shape} is needed ((rows, nodes) or (rows,))",
            param=what,
        )
    return read_only(array.astype(kind, copy=False).view())


def texts_of(values: Any, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Return a read-only array of text, ``None`` where there is none."""
    array = np.asarray(values, object)
    if array.shape != shape:
        raise TraceError(f"{what}: has shape {array.shape}, and {shape} is needed (rows,)")
    for row, value in enumerate(array.tolist()):
        if value is not None and not isinstance(value, str):
            raise TraceError(
                f"{what}: row {row} (counting from 0) holds {value!r:.80}; text is needed, or None"
            )
    return read_only(array.view())


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, which can no longer be changed."""
    array.setflags(write=False)
    return array


def flags_of(array: NDArray[Any], what: str = "", start: int = 0) -> NDArray[np.int8]:
    """Return truth values as 1 and 0, and -1 where they are not known."""
    # No copy: truth values are bytes already.
    if array.dtype == np.bool_:
        return array.view(np.int8)
    if array.dtype == np.int8 and not ((array < -1) | (array > 1)).any():
        return array
    if array.dtype == object and all(v is None or isinstance(v, bool) for v in array.flat):
        array = np.array([np.nan if v is None else v for v in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "biuf":  # astype(bool) makes all text true
        raise TraceError(
            f'{what}must be truth values, not {array.dtype}; compare it, as with values == "yes"'
        )
    missing = np.isnan(array)
    odd = ~missing & (array != 0) & (array != 1)
    if odd.any():
        row = np.argwhere(odd)[0]
        raise TraceError(
            f"{what}row {row[0] + start} (counting from 0) is {array[tuple(row)]}; right is 1 or "
            "true, wrong is 0 or false"
        )
    return np.where(missing, -1, array).astype(np.int8)


def input_array(values: Any, rows: int, name: str) -> NDArray[Any]:
    """Return what is known of each input: numbers, categories as text, or vectors.

    >>> input_array([3, 4], 2, "length").dtype, input_array(["de", None], 2, "language").dtype
    (dtype('float64'), dtype('O'))
    """
    what, array = f"input {name!r}", np.asarray(values)
    if array.dtype.kind in "OU" and array.ndim == 1:
        return texts_of(array, (rows,), what)
    # Embeddings are single precision as a rule: twice the memory would say no more.
    kind = np.float32 if array.dtype in (np.float16, np.float32) and array.ndim == 2 else np.float64
    return numbers_of(array, kind, (rows, *array.shape[1:2]), what)


def class_text(value: object) -> str | None:
    """Return the text of a class, or ``None`` where there is no answer.

    Classes are compared as text, so that a class is the same in every file format: ``3`` and
    ``3.0`` are both ``"3"``, ``True`` is ``"1"``; ``None``, NaN or a missing value of pandas is no
    answer.

    >>> [class_text(v) for v in ("cat", 3, 3.0, 2.5, True, None, float("nan"))]
    ['cat', '3', '3', '2.5', '1', None, None]
    """
    if type(value) is str:
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    kind = type(value)
    if value is None or (
        kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas.")
    ):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    raise TraceError(
        f"a class must be text, a number or a truth value, not {reprlib.repr(value)} "
        f"({kind.__name__})"
    )


class ClassCodes:
    """Numbers classes as they come; a class keeps its number, so batches agree.

    >>> codes = ClassCodes()
    >>> codes.encode(["cat", "dog", None, "cat"]).tolist()
    [0, 1, -1, 0]
    >>> codes.encode([7]).tolist(), codes.classes
    ([2], ('cat', 'dog', '7'))
    """

    def __init__(self, classes: Iterable[str] = ()) -> None:
        self._codes: dict[str, int] = {}
        for text in classes:
            self.code(text)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes met so far; a code is a position here."""
        return tuple(self._codes)

    def code(self, value: object) -> int:
        """Return the code of one value; a new class gets the next one."""
        text = class_text(value)
        if text is None:
            return -1
        code = self._codes.get(text)
        if code is None:
            # Refused while its row is at hand, not when a file is written.
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise TraceError(
                    f"the class {text[:80]!r} holds a character no file can keep (NUL, or half a "
                    "surrogate pair); write it otherwise"
                )
            code = self._codes[text] = len(self._codes)
        return code

    def encode(self, values: Sequence[Any] | NDArray[Any]) -> NDArray[np.int32]:
        """Return the codes of values of any shape, with the shape kept."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            return self._encode_numbers(values)
        array = np.asarray(values, dtype=object)
        flat = np.fromiter(map(self.code, array.ravel().tolist()), np.int32, array.size)
        return flat.reshape(array.shape)

    def recode(self, values: NDArray[Any], texts: Sequence[object]) -> NDArray[np.int32]:
        """Return the codes of positions in a list of values; -1 is no answer.

        >>> ClassCodes(["b"]).recode(np.array([0, -1, 1]), ["a", "b", "unused"]).tolist()
        [1, -1, 0]
        """
        table = np.full(len(texts) + 1, -1, np.int32)  # the last entry stands for -1
        for position in np.flatnonzero(used_codes([values], len(texts))).tolist():
            table[position] = self.code(texts[position])
        return np.asarray(table[values])

    def _encode_numbers(self, values: NDArray[Any]) -> NDArray[np.int32]:
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        if values.dtype.kind in "iu" and values.size:
            low, high = int(values.min()), int(values.max())
            if high - low <= 4 * values.size and high < 2**63:  # no sorting
                offset = (values.astype(np.int64) - low).ravel()
                return self.recode(offset, range(low, high + 1)).reshape(values.shape)
        distinct, inverse = np.unique(values, return_inverse=True)
        return self.recode(inverse, distinct.tolist()).reshape(values.shape)


def used_codes(arrays: Iterable[NDArray[Any]], count: int) -> NDArray[np.bool_]:
    """Return, shape (count,), which codes stand in arrays; no sorting, as logs are long.

    >>> used_codes([np.array([2, -1, 0])], 4).tolist()
    [True, False, True, False]
    """
    used = np.zeros(count + 1, bool)  # the last entry stands for -1
    for codes in arrays:
        for column in [codes] if codes.ndim == 1 else codes.T:
            used[column] = True
    return used[:-1]


# Columns of files.


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
    # Columns that are there already are no target of a renaming.
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
