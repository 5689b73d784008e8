"""Classes and their codes: a prediction or a label as a small whole number.

Predictions and labels are compared as text, so that a class is the same class in every file
format: a whole number is written without a point (``3`` and ``3.0`` are both ``"3"``), ``True`` is
``"1"``, and ``None``, NaN or a missing value of pandas is no answer, code -1.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError

# The types that pandas has for a missing value.
_MISSING = ("NAType", "NaTType")


def class_text(value: object) -> str | None:
    """Return the text of a class, or ``None`` where there is no answer.

    >>> [class_text(v) for v in ("cat", 3, 3.0, 2.5, True, None, float("nan"))]
    ['cat', '3', '3', '2.5', '1', None, None]
    """
    if type(value) is str:
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if value is None or isinstance(value, str):
        return value
    if type(value).__name__ in _MISSING and type(value).__module__.startswith("pandas."):
        return None
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    raise TraceError(
        f"a class must be text, a number or a truth value, not {reprlib.repr(value)} "
        f"({type(value).__name__})"
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

    def _encode_numbers(self, values: NDArray[Any]) -> NDArray[np.int32]:
        if values.dtype.kind == "b":
            values = values.view(np.uint8)
        if values.dtype.kind in "iu" and values.size:
            low, high = int(values.min()), int(values.max())
            if high - low <= 4 * values.size and high < 2**63:
                # One entry for every number between: no sorting.
                offset = (values.astype(np.int64) - low).ravel()
                met = np.zeros(high - low + 1, bool)
                met[offset] = True
                table = np.full(met.size, -1, np.int32)
                table[met] = [self.code(low + int(i)) for i in np.flatnonzero(met)]
                return table[offset].reshape(values.shape)
        distinct, inverse = np.unique(values, return_inverse=True)
        table = np.array([self.code(value) for value in distinct.tolist()], np.int32)
        return table[inverse].reshape(values.shape)


def shown(names: Iterable[str], most: int = 6) -> str:
    """Return names in quotes, the first few of many.

    >>> shown(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    names = list(names)
    text = ", ".join(repr(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
