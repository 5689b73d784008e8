"""The columns of a trace: one table that reading, writing, taking rows and digests loop over.

A column is about an answer (``<node>.confidence``, shape (rows, nodes)) or about an input
(``label``, shape (rows,)). What is not known has a missing value: NaN in numbers, -1 in codes and
truth values, ``None`` in text. A node that was not asked, or failed, has no value in any of its
columns: a gap. Everything known of an input before a node is asked stands in ``input.<name>``
columns, which are no rows of this table: numbers, categories (text) or vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError

Kind = Literal["number", "class", "flag", "text"]

_DTYPES: dict[Kind, type] = {
    "number": np.float64,
    "class": np.int32,
    "flag": np.int8,
    "text": np.object_,
}
_MISSING: dict[Kind, Any] = {"number": np.nan, "class": -1, "flag": -1, "text": None}


@dataclass(frozen=True)
class Column:
    """One kind of column.

    >>> [column.name for column in SCHEMA if column.by == "row"]
    ['label', 'group', 'prompt']
    """

    name: str
    """In a file: ``<node>.<name>``, or the name alone where it is about the input."""
    by: Literal["node", "row"]
    kind: Kind
    meaning: str
    field: str = ""
    """The attribute of a trace, where it has another name."""
    texts: str = ""
    """Of classes: the attribute with the text of each code."""
    low: float = -np.inf
    high: float = np.inf
    of_answer: bool = False
    """Whether only an answer has it: a gap has none."""
    each_answer: bool = False
    """Whether each answer must have it, where the node has the column."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.name)

    @property
    def optional(self) -> bool:
        """Whether some nodes may lack the column."""
        return self.by == "node" and self.name not in ("confidence", "prediction", "cost")

    @property
    def missing(self) -> Any:
        """What stands where nothing is known."""
        return _MISSING[self.kind]

    @property
    def dtype(self) -> type:
        """The type of the array."""
        return _DTYPES[self.kind]

    def known(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return where there is a value."""
        if self.kind == "number":
            return np.asarray(~np.isnan(values), bool)
        if self.kind == "text":
            return np.array([value is not None for value in values.flat]).reshape(values.shape)
        return np.asarray(values >= 0, bool)

    def array(self, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return values as a read-only array of the right type; refuse what does not fit."""
        if self.kind == "flag":
            values = _flags(values, self.name)
        if self.kind == "text":
            return texts_of(values, shape, self.name)
        return numbers_of(values, self.dtype, shape, self.name)


# The order is that of the digest.
SCHEMA = (
    Column("confidence", "node", "number", "any number that grows with the node's certainty",
           of_answer=True, each_answer=True),
    Column("cost", "node", "number", "what the call cost", low=0, each_answer=True),
    Column("prediction", "node", "class", "the answer, as a class", texts="classes",
           of_answer=True),
    Column("label", "row", "class", "the right class", texts="classes"),
    Column("correct", "node", "flag", "whether the answer is right", of_answer=True),
    Column("loss", "node", "number", "what the answer loses, in any unit; score: 1 minus it",
           field="raw_loss", low=0, of_answer=True),
    Column("chance", "node", "number", "the chance with which the node was asked", low=0, high=1),
    Column("entropy", "node", "number", "the entropy of the answer's distribution",
           of_answer=True, each_answer=True),
    Column("latency", "node", "number", "how long the call took", each_answer=True),
    Column("margin", "node", "number", "by how much the first class leads the second",
           of_answer=True, each_answer=True),
    Column("group", "row", "class", "rows of one group are never split: a user, a document",
           texts="groups"),
    Column("prompt", "row", "text", "the text of the input"),
)  # fmt: skip
BY_NAME = {column.name: column for column in SCHEMA}
# Before the name of an input's column.
INPUT = "input."


def numbers_of(values: Any, kind: type, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Return a read-only view of numbers of one type; refuse other values and shapes."""
    array = np.asarray(values)
    if array.dtype.kind not in ("biu" if np.issubdtype(kind, np.integer) else "biuf"):
        raise TraceError(f"{what}: must be numbers, not {array.dtype}")
    if array.shape != shape:
        raise TraceError(
            f"{what}: has shape {array.shape}, and {shape} is needed ((rows, nodes) or (rows,))"
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


def _flags(values: Any, what: str) -> NDArray[np.int8]:
    """Return truth values as 1 and 0, and -1 where they are not known."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array.view(np.int8)
    if array.dtype == np.int8 and (not array.size or -1 <= array.min() <= array.max() <= 1):
        return array
    if array.dtype == object and all(v is None or isinstance(v, bool) for v in array.flat):
        array = np.array([np.nan if v is None else v for v in array.flat], float).reshape(
            array.shape
        )
    is_number = array.dtype.kind in "iuf"  # of text, astype(bool) is true throughout
    if is_number and array.dtype.kind == "f" and np.isin(array[~np.isnan(array)], (0, 1)).all():
        return np.where(np.isnan(array), -1, array).astype(np.int8)
    remedy = "write .astype(bool)" if is_number else 'compare it, as with values == "yes"'
    raise TraceError(f"{what}: must be truth values, not {array.dtype}; {remedy}")


def input_array(values: Any, rows: int, name: str) -> NDArray[Any]:
    """Return what is known of each input: numbers, categories as text, or vectors.

    >>> input_array([3, 4], 2, "length").dtype, input_array(["de", None], 2, "language").dtype
    (dtype('float64'), dtype('O'))
    """
    what = f"input {name!r}"
    array = np.asarray(values)
    if array.dtype.kind in "OU" and array.ndim == 1:
        return texts_of(array, (rows,), what)
    if array.ndim == 2:
        kind = np.float32 if array.dtype in (np.float16, np.float32) else np.float64
        shape: tuple[int, ...] = (rows, array.shape[1])
    else:
        kind, shape = np.float64, (rows,)
    array = numbers_of(array, kind, shape, what)
    finite = np.isfinite(array)
    bad = ~(finite if array.ndim == 1 else finite.all(axis=1))
    if bad.any():
        raise TraceError(
            f"{what}: row {int(bad.argmax())} (counting from 0) is missing, NaN or infinite "
            f"({int(bad.sum())} in all); fix them, or leave the rows out"
        )
    return array
