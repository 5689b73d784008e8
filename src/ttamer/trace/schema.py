"""The columns of a trace: one table that checks, files, parts of traces and digests loop over.

A column is about an answer (``<node>.confidence``, shape (rows, nodes)) or about an input
(``label``, shape (rows,)). A node that was not asked, or failed, has no value in any of its
columns: a gap. What else is known of an input before a node is asked is a column
``input.<name>``.

In a file a node's name may hold dots, so columns split at the last one. A column that names one of
a node of the cascade belongs to that node, even where the node is called ``input``; without a
cascade, ``input.`` always begins an input.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import read_only, shown
from ttamer.cascade import CascadeSpec
from ttamer.errors import CascadeError, TraceError

# Before the name of an input's column.
INPUT = "input."
# Type of the array, and what stands where nothing is known.
TYPES: dict[str, tuple[type, Any]] = {
    "number": (np.float64, math.nan),
    "flag": (np.int8, -1),
    "classes": (np.int32, -1),
    "groups": (np.int32, -1),
    "text": (np.object_, None),
}


@dataclass(frozen=True)
class Column:
    """One row of the table.

    >>> [column.name for column in SCHEMA if column.by == "row"]
    ['label', 'group', 'prompt']
    """

    name: str
    by: Literal["node", "row"]
    # "classes" and "groups" are codes into the texts of that name in the trace; an "input" has
    # numbers, text or vectors.
    kind: Literal["number", "flag", "classes", "groups", "text", "input"]
    low: float = -math.inf
    high: float = math.inf
    of_answer: bool = False  # only an answer has it, no gap
    each_answer: bool = False  # of a node that has the column, each answer has it

    @property
    def field(self) -> str:
        """The attribute of a trace; ``loss`` is the loss from 0 to 1 there."""
        return "raw_loss" if self.name in ("loss", "score") else self.name

    @property
    def texts(self) -> str:
        """Of codes: the attribute with their texts."""
        return self.kind if self.kind in ("classes", "groups") else ""

    def array(self, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return values as a read-only array of the right type, not copied; refuse others.

        >>> column_of_input("language").array(["de", None], (2,)).dtype
        dtype('O')
        """
        try:
            array = np.asarray(values, object if self.kind == "text" else None)
            if self.kind == "number" and array.dtype.kind in "OU":
                array = array.astype(np.float64)  # None is NaN
        except (TypeError, ValueError) as error:
            raise TraceError(
                f"{self.name}: must be numbers, in rows of equal length: {error}", param=self.field
            ) from None
        if self.kind == "input":
            shape += array.shape[1:2]  # vectors
        if array.shape != shape:
            raise TraceError(
                f"{self.name}: has shape {array.shape}, and {shape} is needed ((rows, nodes) or "
                "(rows,))",
                param=self.field,
            )
        if array.dtype.kind in "OU" and array.ndim == 1 and self.kind in ("text", "input"):
            return self._text(array.astype(object, copy=False))
        if self.kind == "flag":
            array = flags_of(array, f"{self.name}: ")
        if array.dtype.kind not in ("biu" if self.texts else "biuf"):
            raise TraceError(f"{self.name}: must be numbers, not {array.dtype}", param=self.field)
        dtype, _ = TYPES.get(self.kind, TYPES["number"])
        # Embeddings are single precision as a rule: twice the memory would say no more.
        if self.kind == "input" and array.ndim == 2 and array.dtype in (np.float16, np.float32):
            dtype = np.float32
        return read_only(array.astype(dtype, copy=False).view())

    def _text(self, array: NDArray[Any]) -> NDArray[Any]:
        # Types first: texts are many, and a loop over them takes long.
        odd = set(map(type, array.tolist())) - {str, type(None)}
        for row, value in enumerate(array.tolist() if odd else ()):
            if type(value) in odd and not isinstance(value, str):
                raise TraceError(
                    f"{self.name}: row {row} (counting from 0) holds {value!r:.80}; text is "
                    "needed, or None"
                )
        return read_only(array.view())


# In the order in which files are written.
SCHEMA = (
    # Any number that grows with the node's certainty: it stands for an answer.
    Column("confidence", "node", "number", of_answer=True, each_answer=True),
    Column("prediction", "node", "classes", of_answer=True),
    Column("correct", "node", "flag", of_answer=True),
    # What the answer loses, in any unit.
    Column("loss", "node", "number", low=0, of_answer=True),
    # What the call cost: a call that failed costs, too.
    Column("cost", "node", "number", low=0, each_answer=True),
    # The chance with which the node was asked, where it was not, too.
    Column("chance", "node", "number", low=0, high=1),
    Column("entropy", "node", "number", of_answer=True, each_answer=True),
    Column("latency", "node", "number", each_answer=True),
    # By how much the first class leads the second.
    Column("margin", "node", "number", of_answer=True, each_answer=True),
    Column("label", "row", "classes"),
    # Rows of one group are never split: a user, a document.
    Column("group", "row", "groups"),
    Column("prompt", "row", "text"),
)
# A column of files alone: what is kept is its loss, 1 minus the grade.
SCORE = Column("score", "node", "number", low=0, high=1, of_answer=True)
BY_NAME = {column.name: column for column in (*SCHEMA, SCORE)}
CONFIDENCE, COST = BY_NAME["confidence"], BY_NAME["cost"]


def column_of_input(name: str) -> Column:
    """Return the column of what else is known of an input."""
    return Column(INPUT + name, "row", "input")


def fields_of(arrays: Mapping[Column, NDArray[Any]]) -> dict[str, Any]:
    """Return the fields of a trace from its columns."""
    fields: dict[str, Any] = {c.field: v for c, v in arrays.items() if c.kind != "input"}
    inputs = {c.name.removeprefix(INPUT): v for c, v in arrays.items() if c.kind == "input"}
    return fields | {"inputs": inputs}


# Values that cannot be.


@contextmanager
def located(where: object) -> Iterator[None]:
    """Begin the message of a trace's error with where it is: the file, the column."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{where}: {error}", param=error.param) from None


@dataclass(frozen=True)
class Fault:
    """Rows of a column with a value that cannot be."""

    column: str
    rows: NDArray[np.bool_]
    why: str = "missing, NaN or infinite"
    is_gap: bool = True  # a value is missing, and none is out of range

    def error(self, start: int = 0) -> TraceError:
        """Name the first row, counted on from ``start``, and what to do."""
        count = int(self.rows.sum())
        more = f" and {count - 1} more of {len(self.rows)}" if count > 1 else ""
        remedy = "correct the log"
        if self.is_gap:
            remedy += ', or skip these rows with on_bad="skip" (they are counted)'
        elif self.column.endswith(".score"):
            remedy = "give other grades as <node>.loss"
        return TraceError(
            f"column {self.column!r}: row {int(self.rows.argmax()) + start} (counting from 0)"
            f"{more} {'are' if count > 1 else 'is'} {self.why}; {remedy}"
        )


def faults(arrays: Mapping[Column, NDArray[Any]], names: Sequence[str]) -> Iterator[Fault]:
    """Yield what cannot be in columns, those with a value out of range first."""
    # A confidence stands for an answer: where it is missing, so must everything else be.
    answered = is_filled(arrays[CONFIDENCE])
    gaps = []
    for column, array in arrays.items():
        if column.kind == "input" and array.dtype != object:
            finite = np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
            gaps.append(Fault(column.name, ~finite))
        for node, values in enumerate(array.T if column.by == "node" else ()):
            name, asked = f"{names[node]}.{column.name}", answered[:, node]
            if column.of_answer and not asked.all():
                why = f"missing, and {name} has a value there: a node that was not asked has none"
                gaps.append(Fault(f"{names[node]}.confidence", is_filled(values) & ~asked, why))
            if column.kind != "number":
                continue
            if not (finite := np.isfinite(values)).all():
                lacking = np.isinf(values)
                # A node may lack a column, but for its confidence and its cost.
                if column.each_answer and (column is COST or not np.isnan(values).all()):
                    lacking |= asked & ~finite
                gaps.append(Fault(name, lacking))
            if column.low == 0 and (bad := values < 0).any():
                yield Fault(name, bad, f"negative, and a {column.name} is not", is_gap=False)
            if column.high == 1 and (bad := values > 1).any():
                yield Fault(name, bad, f"above 1, and a {column.name} is from 0 to 1", is_gap=False)
    yield from (fault for fault in gaps if fault.rows.any())


def refuse_faults(arrays: Mapping[Column, NDArray[Any]], names: Sequence[str]) -> None:
    """Raise the first fault of columns."""
    for fault in faults(arrays, names):
        raise fault.error()


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


def flags_of(array: NDArray[Any], what: str = "", start: int = 0) -> NDArray[np.int8]:
    """Return truth values as 1 and 0, and -1 where they are not known."""
    # No copy: truth values are bytes already.
    if array.dtype == np.bool_:
        return array.view(np.int8)
    if array.dtype == np.int8 and not ((array < -1) | (array > 1)).any():
        return array
    if array.dtype == object and all(v is None or isinstance(v, bool) for v in array.flat):
        array = array.astype(float)
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


# Classes and groups: text, and codes for it.


def class_text(value: object) -> str | None:
    """Return the text of a class, or ``None`` where there is no answer.

    Classes are compared as text, so that a class is the same in every file format: ``3`` and
    ``3.0`` are both ``"3"``, ``True`` is ``"1"``; ``None``, NaN or a missing value of pandas is no
    answer.

    >>> [class_text(v) for v in ("cat", 3, 3.0, 2.5, True, None, float("nan"))]
    ['cat', '3', '3', '2.5', '1', None, None]
    """
    if type(value) is str:  # most are: sessions and long lists come here with each answer
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, str):
        return value
    kind = type(value)
    is_of_pandas = kind.__name__ in ("NAType", "NaTType") and kind.__module__.startswith("pandas.")
    if value is None or is_of_pandas:
        return None
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
        return np.fromiter(map(self.code, array.ravel().tolist()), np.int32).reshape(array.shape)

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
                return self.recode(values.astype(np.int64) - low, range(low, high + 1))
        distinct, inverse = np.unique(values, return_inverse=True)
        return self.recode(inverse.reshape(values.shape), distinct.tolist())


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


class Layout(NamedTuple):
    """What each column of a file holds: a column of the schema and, of a node, its number."""

    spec: CascadeSpec
    uses: Mapping[str, tuple[Column, int | None]]
    notes: tuple[str, ...]


def is_long(columns: Iterable[str]) -> bool:
    """Return whether the columns are those of a log with one line per call.

    >>> is_long(["id", "node", "confidence"]), is_long(["id", "a.confidence"])
    (True, False)
    """
    columns = list(columns)
    return {"id", "node"} <= set(columns) and not any(c.endswith(".confidence") for c in columns)


def is_of_node(column: str) -> bool:
    """Return whether the schema has a column of nodes with this name."""
    return column in BY_NAME and BY_NAME[column].by == "node"


def column_by_row(name: str) -> Column | None:
    """Return the column about an input that has this name in a file."""
    if name in BY_NAME and not is_of_node(name):
        return BY_NAME[name]
    is_input = name.startswith(INPUT) and name != INPUT
    return column_of_input(name.removeprefix(INPUT)) if is_input else None


def plan(columns: Sequence[str], spec: CascadeSpec, notes: Sequence[str] = ()) -> Layout:
    """Return which column holds what; refuse missing and unknown ones.

    >>> layout = plan(["a.confidence", "label", "id"], CascadeSpec.of({"a": 1.0}))
    >>> list(layout.uses), layout.notes
    (['a.confidence', 'label'], ("columns not used: 'id'",))
    """
    check_names(columns)
    uses: dict[str, tuple[Column, int | None]] = {}
    strangers, unused = [], []
    for name in columns:
        node, _, column = name.rpartition(".")
        if is_of_node(column) and node in spec.names:
            uses[name] = BY_NAME[column], spec.names.index(node)
        elif (by_row := column_by_row(name)) is not None:
            uses[name] = by_row, None
        elif is_of_node(column) and node:
            strangers.append(name)
        # What pandas names the column of an index without a name, in CSV and in Arrow.
        elif not re.fullmatch(r"|__index_level_\d+__", name):
            unused.append(name)
    _check_nodes(strangers, unused, spec, uses)
    present = {column.name for column, _ in uses.values()}
    if {"loss", "score"} <= present:
        raise TraceError(
            "has columns of losses and of scores; a score is one minus a loss: keep one"
        )
    notes = [*notes, *([f"columns not used: {shown(unused)}"] if unused else [])]
    lacking = [name for name in spec.names if f"{name}.cost" not in uses]
    if lacking and "cost" in present:
        notes += [f"no cost column for {shown(lacking)}: the cascade's cost is used on every row"]
    return Layout(spec, uses, tuple(notes))


def _check_nodes(
    strangers: Sequence[str], unused: Sequence[str], spec: CascadeSpec, uses: Mapping[str, Any]
) -> None:
    """Refuse columns of other nodes, a node without confidences, and predictions of some alone."""
    names = [f"{node}.{column}" for node in spec.names for column in filter(is_of_node, BY_NAME)]
    # Columns that are there already are no target of a renaming.
    missing = [name for name in names if name not in uses]
    if strangers:
        remedy = _renames(strangers, missing, 1.0) or (
            f": {shown(strangers)}; the cascade has {shown(spec.names)}: add a [[node]], or an "
            "entry in costs, for each of them, or remove the columns"
        )
        raise TraceError(f"columns of nodes that are not in the cascade{remedy}")
    for column in ("confidence", "prediction"):
        lacking = [name for name in missing if name.rpartition(".")[2] == column]
        if not lacking or (column == "prediction" and len(lacking) == len(spec)):
            continue
        hint = _renames(unused, missing, 1.0) or _renames(unused, lacking, 0.75)
        if not hint:
            hint = f"; there are {shown([*uses, *unused], 12)}"
            hint += f" (not understood: {shown(unused)})" if unused else ""
            if column == "confidence" and len(lacking) == len(spec):
                hint += "; where a node gives no confidence, write 0 on every row"
        needed = (
            ", and prediction is needed for all nodes or none" if column != "confidence" else ""
        )
        raise TraceError(f"the column {lacking[0]!r} is missing{needed}{hint}")


def _renames(columns: Iterable[str], missing: Sequence[str], likeness: float) -> str:
    """Return which columns to rename: those like a missing one but for marks and capitals.

    >>> _renames(["a_confidence", "id"], ["a.confidence"], 1.0)
    ": rename 'a_confidence' to 'a.confidence'"
    """

    def letters(name: str) -> str:
        return "".join(filter(str.isalnum, name)).casefold()

    plain = {letters(name): name for name in missing}
    alike = {name: get_close_matches(letters(name), plain, 1, likeness) for name in columns}
    pairs = [(name, plain[matches[0]]) for name, matches in alike.items() if matches]
    listed = ", ".join(f"{name!r} to {new!r}" for name, new in pairs[:2])
    more = f", and {len(pairs) - 2} more alike" if len(pairs) > 2 else ""
    return f": rename {listed}{more}" if pairs else ""


def check_names(columns: Sequence[str]) -> None:
    """Refuse columns that are there twice, and a header whose columns were not separated."""
    # Marks that separate columns in other tables; in a CSV file here a comma does.
    if len(columns) == 1 and (marks := [mark for mark in ";\t|" if mark in columns[0]]):
        raise TraceError(
            f"has one column, {shown(columns)}: it seems to be separated by {marks[0]!r}; "
            "separate the columns by commas"
        )
    for name in columns:
        if (count := columns.count(name)) > 1:
            raise TraceError(f"the column {name!r} appears {count} times; keep one")


def infer_spec(
    columns: Sequence[str], mean_costs: Mapping[str, float] | None = None
) -> tuple[CascadeSpec, str]:
    """Make a cascade from the columns, and a note about it.

    >>> spec, note = infer_spec(["b.confidence", "a.confidence"])
    >>> spec.costs.tolist(), note
    ([1.0, 1.0], "no cascade was given: the nodes are 'b', 'a', each at cost 1")
    """
    check_names(columns)
    is_of = re.compile(r"(?!input\.)(.+)\.confidence").fullmatch
    names = [match[1] for match in map(is_of, columns) if match]
    if not names:
        raise TraceError(f"there is no column <node>.confidence; there are {shown(columns, 12)}")
    mean_costs = mean_costs or {}
    try:
        spec = CascadeSpec.of(dict.fromkeys(names, 1.0) | dict(mean_costs))
    except CascadeError as error:
        raise TraceError(f"the columns make no cascade: {error}") from None
    # A note that ends so is warned about by a fit.
    costs = "each at the mean of its cost column" if mean_costs else "each at cost 1"
    if mean_costs and len(mean_costs) < len(names):
        costs += ", or at cost 1"
    return spec, f"no cascade was given: the nodes are {shown(names)}, {costs}"
