"""The columns of a trace: one table that checks, files, parts of traces and digests loop over.

A column is about an answer (``<node>.confidence``, shape (rows, nodes)) or about an input
(``label``, shape (rows,)). A node that was not asked, or failed, has no value in any of its
columns: a gap. What else is known of an input before a node is asked stands in ``input.<name>``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError

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
    Column("confidence", "node", "number", "any number that grows with the node's certainty",
           "confidence", of_answer=True, each_answer=True),
    Column("prediction", "node", "class", "the answer, as a class",
           "prediction", texts="classes", of_answer=True),
    Column("correct", "node", "flag", "whether the answer is right", "correct", of_answer=True),
    Column("loss", "node", "number", "what the answer loses, in any unit",
           "raw_loss", low=0, of_answer=True),
    Column("cost", "node", "number", "what the call cost", "cost", low=0, each_answer=True),
    Column("chance", "node", "number", "the chance with which the node was asked",
           "chance", low=0, high=1),
    Column("entropy", "node", "number", "the entropy of the answer's distribution",
           "entropy", of_answer=True, each_answer=True),
    Column("latency", "node", "number", "how long the call took", "latency", each_answer=True),
    Column("margin", "node", "number", "by how much the first class leads the second",
           "margin", of_answer=True, each_answer=True),
    Column("label", "row", "class", "the right class", "label", texts="classes"),
    Column("group", "row", "class", "rows of one group are never split: a user, a document",
           "group", texts="groups"),
    Column("prompt", "row", "text", "the text of the input", "prompt"),
)  # fmt: skip
# A column of files alone: its loss is kept.
SCORE = Column("score", "node", "number", "a grade from 0 to 1; its loss is 1 minus the grade",
               "raw_loss", low=0, high=1, of_answer=True)  # fmt: skip
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
