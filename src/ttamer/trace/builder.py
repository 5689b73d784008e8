"""From columns to a trace: fills its arrays batch by batch, then checks every value.

Formats hand their columns over as a :class:`Batch`. Nothing is left out in silence: a row that
cannot be used is refused by column and number, or left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import TraceError
from ttamer.trace.classes import ClassCodes
from ttamer.trace.columns import Layout
from ttamer.trace.schema import BY_NAME
from ttamer.trace.trace import OnBad, Trace, graded


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

    def values(self, column: str) -> NDArray[Any]:
        """Return a column of numbers (NaN: no value), text (``None``), or vectors."""


class TraceBuilder:
    """Fills the arrays of a trace from batches, then checks them."""

    def __init__(
        self, layout: Layout, rows: int, codes: ClassCodes, groups: ClassCodes | None = None
    ) -> None:
        self._layout, self._codes = layout, codes
        self.groups = ClassCodes() if groups is None else groups
        self._rows_needed = rows
        self.filled = 0
        self._start: int | None = None
        nodes = len(layout.spec)
        self._blocks: dict[str, NDArray[Any]] = {}
        for name, by_node in layout.fields.items():
            if by_node:
                column = BY_NAME["loss" if name == "score" else name]
                # Columns contiguous: files come by column, and most work goes node by node.
                block: NDArray[Any] = np.full((nodes, rows), column.missing, column.dtype).T
                for node in set(range(nodes)) - set(by_node) if name == "cost" else ():
                    block[:, node] = layout.spec.costs[node]
                self._blocks[name] = block
        of_rows = {"label": layout.label, "group": layout.group, "prompt": layout.prompt}
        self._of_rows = {name: column for name, column in of_rows.items() if column}
        for name in self._of_rows:
            self._blocks[name] = np.empty(rows, BY_NAME[name].dtype)
        self._inputs: dict[str, list[NDArray[Any]]] = {name: [] for name in layout.inputs}

    def add(self, batch: Batch) -> None:
        """Copy a batch in behind the ones before."""
        if self._start is None:
            self._start = batch.start
        part = slice(self.filled, self.filled + batch.rows)
        if part.stop > self._rows_needed:
            raise TraceError(
                f"{self._layout.place}: is damaged: it has more than the {self._rows_needed} rows "
                "of its header"
            )
        for name, by_node in self._layout.fields.items():
            for node, column in by_node.items():
                self._fill(batch, name, column, self._blocks[name][part, node])
        for name, column in self._of_rows.items():
            self._fill(batch, name, column, self._blocks[name][part])
        for name, column in self._layout.inputs.items():
            self._inputs[name].append(batch.values(column))
        self.filled = part.stop

    def _fill(self, batch: Batch, name: str, column: str, out: NDArray[Any]) -> None:
        kind = BY_NAME["loss" if name == "score" else name].kind
        if kind == "number":
            batch.numbers(column, out)
        elif kind == "class":
            batch.codes(column, out, self.groups if name == "group" else self._codes)
        elif kind == "flag":
            batch.flags(column, out)
        else:
            values = _texts(batch.values(column))
            if values.dtype != object:
                raise TraceError(
                    f"{self._layout.place}: column {column!r}: holds {values.dtype}, and text is "
                    "needed; convert the column"
                )
            out[:] = values

    def block(self, name: str) -> Any:
        """Return the array of a column, if there is one."""
        return self._blocks.get(name)

    def blocks(self) -> Iterable[tuple[str, NDArray[Any]]]:
        """Return the arrays of all columns but the inputs'."""
        return self._blocks.items()

    def inputs(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the inputs."""
        return {name: self._input(name, parts) for name, parts in self._inputs.items()}

    def put_input(self, name: str, values: NDArray[Any]) -> None:
        """Set the array of an input."""
        self._inputs[name] = [values]

    def finish(self, on_bad: OnBad) -> Trace:
        """Check every value, and return the trace; rows left out are counted."""
        inputs = self.inputs()
        faults = self._faults(inputs)
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
        blocks = {name: _kept(block, keep) for name, block in self._blocks.items()}
        spec = self._layout.spec
        if "score" in blocks:
            spec, blocks["loss"] = graded(spec, blocks.pop("score"))
        fields = {BY_NAME[name].field: block for name, block in blocks.items()}
        return Trace(
            spec,
            **fields,
            inputs={name: values if keep is None else values[keep]
                    for name, values in inputs.items()},
            classes=self._codes.classes,
            groups=self.groups.classes,
            left_out=left_out,
            notes=self._layout.notes,
        )  # fmt: skip

    def _input(self, name: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
        if any(part.dtype == object for part in parts):
            parts = [_texts(part) for part in parts]
        kinds = {(part.dtype == object, part.shape[1:]) for part in parts if part.size}
        if len(kinds) > 1:
            raise TraceError(
                f"{self._layout.place}: column {self._layout.inputs[name]!r}: holds numbers, text "
                "or vectors of several lengths; give it one type"
            )
        parts = [part for part in parts if part.size] or parts
        return np.concatenate(parts) if parts else np.empty(0)

    def _faults(
        self, inputs: Mapping[str, NDArray[Any]]
    ) -> list[tuple[str, str, NDArray[np.bool_]]]:
        layout = self._layout
        faults = []
        what = "is missing, NaN or infinite"
        confidence = self._blocks["confidence"]
        answered = ~np.isnan(confidence)
        says = np.zeros_like(answered)  # where another column has something of an answer
        for name, by_node in layout.fields.items():
            column = BY_NAME["loss" if name == "score" else name]
            for node in by_node if column.of_answer and name != "confidence" else ():
                says[:, node] |= column.known(self._blocks[name][:, node])
        for name, by_node in layout.fields.items():
            column = BY_NAME["loss" if name == "score" else name]
            if column.kind != "number":
                continue
            for node, label in by_node.items():
                values = self._blocks[name][:, node]
                bad = np.isinf(values)
                if column.each_answer:
                    bad |= np.isnan(values) & (answered | says)[:, node]
                if bad.any():
                    faults.append((label, what, bad))
                high = 1.0 if name == "score" else column.high
                self._check_range(name, label, values, column.low, high)
        for name, values in inputs.items():
            if values.dtype != object:
                finite = np.isfinite(values)
                bad = ~(finite if values.ndim == 1 else finite.all(axis=1))
                if bad.any():
                    faults.append((layout.inputs[name], what, bad))
        return faults

    def _check_range(
        self, name: str, label: str, values: NDArray[Any], low: float, high: float
    ) -> None:
        place = f"{self._layout.place}: column {label!r}"
        bad = values < low
        if bad.any():
            raise TraceError(
                f"{place}: {self._rows(bad)} negative, and a {name} is not; correct the log"
            )
        bad = values > high
        if high < np.inf and bad.any():
            more = "; give other grades as <node>.loss" if name == "score" else "; correct the log"
            raise TraceError(
                f"{place}: {self._rows(bad)} above 1, and a {name} is from 0 to 1{more}"
            )

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


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as text where nothing is known: a column without a value has no type."""
    if values.dtype != object and values.ndim == 1 and np.isnan(values).all():
        return np.full(len(values), None, object)
    return values


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
