"""From columns to a trace: fills its arrays batch by batch, then checks every value.

Formats hand their columns over as a :class:`Batch`. Nothing is left out in silence: a row that
cannot be used is refused by column and number, or left out and counted.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout
from ttamer.trace.trace import EXTRA_FIELDS, OnBad, Trace, graded


class Batch(Protocol):
    """Some consecutive rows of a file, a column at a time."""

    @property
    def start(self) -> int:
        """The number of the first row in the file, from 0."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def numbers(self, column: str, out: NDArray[np.float64]) -> None:
        """Fill in a column of numbers; NaN where there is no value."""

    def codes(self, column: str, out: NDArray[np.int32], codes: ClassCodes) -> None:
        """Fill in a column of classes; -1 where there is no value."""

    def flags(self, column: str, out: NDArray[np.int8]) -> None:
        """Fill in a column of truth values as 0 and 1; -1 where there is no value."""


class TraceBuilder:
    """Fills the arrays of a trace from batches, then checks them."""

    def __init__(self, layout: Layout, rows: int, codes: ClassCodes) -> None:
        def block(kind: Any) -> NDArray[Any]:
            # Columns contiguous: files come by column, and most work goes node by node.
            return np.empty((len(layout.spec), rows), kind).T

        self._layout, self._codes = layout, codes
        self._rows_needed = rows
        self.filled = 0
        self._start: int | None = None
        self._numbers = {"confidence": block(np.float64)}
        # What a node has no column for: its cost in the cascade, and NaN for the others.
        defaults = {name: np.full(len(layout.spec), math.nan) for name in EXTRA_FIELDS}
        for name in ("loss", "score"):
            if layout.fields[name]:
                self._numbers[name] = block(np.float64)
        for name, default in {"cost": layout.spec.costs, **defaults}.items():
            if layout.fields[name]:
                self._numbers[name] = block(np.float64)
                for node in set(range(len(layout.spec))) - set(layout.fields[name]):
                    self._numbers[name][:, node] = default[node]
        self._prediction = block(np.int32) if layout.fields["prediction"] else None
        self._correct = block(np.int8) if layout.fields["correct"] else None
        self._label = np.empty(rows, np.int32) if layout.label else None
        self._signals = {name: np.empty(rows) for name in layout.signals}

    def add(self, batch: Batch) -> None:
        """Copy a batch in behind the ones before."""
        fields = self._layout.fields
        if self._start is None:
            self._start = batch.start
        part = slice(self.filled, self.filled + batch.rows)
        if part.stop > self._rows_needed:
            raise TraceError(
                f"{self._layout.place}: is damaged: it has more than the {self._rows_needed} rows "
                "of its header"
            )
        for name, block in self._numbers.items():
            for node, column in fields[name].items():
                batch.numbers(column, block[part, node])
        if self._label is not None and self._layout.label:
            batch.codes(self._layout.label, self._label[part], self._codes)
        if self._prediction is not None:
            for node, column in fields["prediction"].items():
                batch.codes(column, self._prediction[part, node], self._codes)
        if self._correct is not None:
            for node, column in fields["correct"].items():
                batch.flags(column, self._correct[part, node])
        for name, column in self._layout.signals.items():
            batch.numbers(column, self._signals[name][part])
        self.filled = part.stop

    def finish(self, on_bad: OnBad) -> Trace:
        """Check every value, and return the trace; rows left out are counted."""
        faults = self._faults()
        left_out: dict[str, int] = {}
        keep = None
        if faults:
            if on_bad == "refuse":
                self._refuse(*faults[0])
            keep = np.ones(self.filled, bool)
            for column, what, bad in faults:
                count = int((bad & keep).sum())
                if count:
                    left_out[f"{column} {what}"] = count
                keep &= ~bad
        spec, loss = self._layout.spec, self._numbers.get("loss")
        if "score" in self._numbers:
            spec, loss = graded(spec, _kept(self._numbers["score"], keep))
        else:
            loss = _kept(loss, keep)
        return Trace(
            spec,
            _kept(self._numbers["confidence"], keep),
            prediction=_kept(self._prediction, keep),
            label=_kept(self._label, keep),
            correct=_kept(self._correct, keep),
            raw_loss=loss,
            cost=_kept(self._numbers.get("cost"), keep),
            inputs={name: _kept(values, keep) for name, values in self._signals.items()},
            **{n: _kept(self._numbers[n], keep) for n in EXTRA_FIELDS if n in self._numbers},
            classes=self._codes.classes,
            left_out=left_out,
            notes=self._layout.notes,
        )

    def _faults(self) -> list[tuple[str, str, NDArray[np.bool_]]]:
        layout = self._layout
        faults = []
        given = [
            (column, block[:, node])
            for name, block in self._numbers.items()
            for node, column in layout.fields[name].items()
        ]
        given += [(layout.signals[name], values) for name, values in self._signals.items()]
        for column, values in given:
            bad = ~np.isfinite(values)
            if bad.any():
                faults.append((column, "is missing, NaN or infinite", bad))
        for name in ("cost", "loss", "score"):
            for node, column in layout.fields[name].items():
                block = self._numbers[name][:, node]
                bad = block < 0
                if bad.any():
                    raise TraceError(
                        f"{layout.place}: column {column!r}: {self._rows(bad)} negative, and a "
                        f"{name} is not; correct the log"
                    )
                bad = block > 1
                if name == "score" and bad.any():
                    raise TraceError(
                        f"{layout.place}: column {column!r}: {self._rows(bad)} above 1, and a "
                        "score is from 0 to 1; give other grades as <node>.loss"
                    )
        if self._correct is not None:
            for node, column in layout.fields["correct"].items():
                bad = self._correct[:, node] < 0
                if bad.any():
                    faults.append((column, "is missing", bad))
        graded_rows = bool(layout.fields["loss"] or layout.fields["score"])
        needed = self._correct is None and not graded_rows and layout.spec.target == "label"
        if self._label is not None and layout.label and needed:
            bad = self._label < 0
            if bad.any():
                faults.append((layout.label, "is missing", bad))
        return faults

    def _refuse(self, column: str, what: str, bad: NDArray[np.bool_]) -> None:
        raise TraceError(
            f"{self._layout.place}: column {column!r}: {self._rows(bad)} "
            f"{what.removeprefix('is ')};"
            ' fix the log, or skip these rows with on_bad="skip" (they are counted)'
        )

    def _rows(self, bad: NDArray[np.bool_]) -> str:
        """Say where: the first row, how many in all, and of how many."""
        first, count = int(bad.argmax()) + (self._start or 0), int(bad.sum())
        more = f" and {count - 1} more of {len(bad)}" if count > 1 else ""
        return f"row {first} (counting from 0){more} {'are' if count > 1 else 'is'}"


def _kept(array: Any, keep: NDArray[np.bool_] | None) -> Any:
    if array is None or keep is None:
        return array
    if array.ndim == 1:
        return array[keep]
    return array.T[:, keep].T


def fill_flags(numbers: NDArray[np.float64], out: NDArray[np.int8], place: str, start: int) -> None:
    """Turn 0 and 1 into flags, NaN into -1, and refuse anything else.

    >>> out = np.empty(3, np.int8)
    >>> fill_flags(np.array([1.0, 0.0, math.nan]), out, "here", 0)
    >>> out.tolist()
    [1, 0, -1]
    """
    missing = np.isnan(numbers)
    odd = ~missing & (numbers != 0) & (numbers != 1)
    if odd.any():
        first = int(odd.argmax())
        raise TraceError(
            f"{place}: row {first + start} (counting from 0) is {numbers[first]}; "
            "right is 1 or true, wrong is 0 or false"
        )
    out[:] = np.where(missing, -1, numbers).astype(np.int8)
