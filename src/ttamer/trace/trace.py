"""A trace: what each node answered on each input, as arrays.

T inputs by n nodes. :mod:`ttamer.trace.schema` is the table of its columns: most of what a trace
does is a loop over it. :mod:`ttamer.trace.losses` says what each answer loses, and
:mod:`ttamer.trace.io` reads and writes files and data frames.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, require_kind, require_path
from ttamer.cascade import CascadeSpec, Kind, Target
from ttamer.errors import ArgumentError, TraceError
from ttamer.trace import parts, summary
from ttamer.trace.checks import check_classes
from ttamer.trace.losses import losses_of
from ttamer.trace.schema import (
    INPUT,
    SCHEMA,
    ClassCodes,
    Column,
    faults,
    input_array,
    numbers_of,
    read_only,
    used_codes,
)

OnBad = Literal["refuse", "skip"]
Measure = Literal["error", "mean loss"]
FrameLibrary = Literal["pandas", "polars", "arrow"]
Cascade = CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False)
class Columns:
    """The arrays of a trace, checked: read-only, not copied.

    A node that was not asked on a row, or failed, has NaN as its confidence there, and no other
    value of an answer: a gap.

    >>> Columns(CascadeSpec.of({"a": 1.0}), [[0.5], [float("nan")]]).answered.tolist()
    [[True], [False]]
    """

    spec: CascadeSpec
    confidence: NDArray[np.float64]
    """Shape (T, n): any number that grows with the node's certainty; NaN: no answer."""
    _: KW_ONLY
    cost: NDArray[np.float64] = None  # type: ignore[assignment]  # the cascade's, if not given
    """Shape (n,), the cascade's own, or (T, n) where the log has one per row. Not negative."""
    prediction: NDArray[np.int32] | None = None
    """Shape (T, n): codes into ``classes``; -1: no answer."""
    label: NDArray[np.int32] | None = None
    """Shape (T,): codes into ``classes``; -1: not known."""
    correct: NDArray[np.int8] | None = None
    """Shape (T, n): 1 where the answer is right, 0 where it is wrong, -1 where it is not known."""
    raw_loss: NDArray[np.float64] | None = None
    """Shape (T, n): what the answer loses in the log's own unit (:attr:`unit`), not negative; it
    takes the place of ``correct``. NaN: not known."""
    chance: NDArray[np.float64] | None = None
    """Shape (T, n): the chance with which the node was asked; NaN: not known."""
    entropy: NDArray[np.float64] | None = None
    """Shape (T, n): the entropy of the answer's distribution; all NaN for a node without it."""
    latency: NDArray[np.float64] | None = None
    """Shape (T, n): how long the call took; all NaN for a node without it."""
    margin: NDArray[np.float64] | None = None
    """Shape (T, n): by how much the first class leads; all NaN for a node without it."""
    group: NDArray[np.int32] | None = None
    """Shape (T,): codes into ``groups``; rows of one group are never split. -1: a row alone."""
    prompt: NDArray[Any] | None = None
    """Shape (T,): the text of each input; ``None``: not known."""
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of an input before a node is asked: numbers (T,), categories (T,) as text,
    vectors (T, d)."""
    classes: tuple[str, ...] = ()
    """The text of each class; predictions and labels share it."""
    groups: tuple[str, ...] = ()
    """The text of each group."""
    largest_loss: float | None = None
    """The largest ``raw_loss``; rows taken from a trace keep it."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many rows were left out in reading, by reason; no row is counted twice."""
    notes: tuple[str, ...] = ()
    """What reading decided by default, in sentences for the user."""

    def __post_init__(self) -> None:
        rows, count = len(np.atleast_1d(self.confidence)), len(self.spec)
        # The class is frozen: fields are set here, once, and never again.
        put = object.__setattr__
        for name in ("classes", "groups", "notes"):
            put(self, name, tuple(getattr(self, name)))
        put(self, "left_out", dict(self.left_out))
        cost: object = self.cost
        if cost is None:
            put(self, "cost", self.spec.costs)
        # Two lists of costs per node would disagree sooner or later: the cascade has the only one.
        elif np.ndim(self.cost) == 1:
            put(self, "cost", numbers_of(cost, np.float64, (count,), "cost"))
            if not np.array_equal(self.cost, self.spec.costs):
                raise TraceError(
                    "cost: one cost per node must be the cascade's own; give the cascade these "
                    "costs (CascadeSpec.with_costs), or one cost per row and node",
                    param="cost",
                )
        for column, values in self.columns():
            put(self, column.field, column.array(values, (rows, count)[: 2 if column.by == "node"
                                                                       else 1]))  # fmt: skip
        require_kind(self.inputs, Mapping, "inputs must be a mapping of arrays", "{name: values}")
        # A file would give the column to the node.
        names_of_nodes = {f"{node}.{column.name}" for node in self.names for column in SCHEMA}
        for name in self.inputs:
            if not name or INPUT + name in names_of_nodes:
                raise TraceError(f"input {name!r}: this name is taken by a node; choose another")
        put(self, "inputs", {k: input_array(v, rows, k) for k, v in self.inputs.items()})
        # After all shapes are known: checks index one array by another.
        self._check_columns()
        if self.raw_loss is not None:
            _check_max_loss(self.raw_loss, self.spec)
            largest = float(np.nanmax(self.raw_loss, initial=0.0))
            put(self, "largest_loss", max(largest, self.largest_loss or 0.0))

    def _check_columns(self) -> None:
        """Refuse codes without a text, numbers out of range, and values where no answer is."""
        columns = dict(self.columns())
        for column, codes in columns.items():
            texts = getattr(self, column.texts) if column.texts else ()
            if column.texts and codes.size and not -1 <= codes.min() <= codes.max() < len(texts):
                raise TraceError(
                    f"{column.name}: codes run from -1 (no answer) to {len(texts) - 1}, the last "
                    f"of the {column.texts}; there are codes from {codes.min()} to {codes.max()}",
                    param=column.field,
                )
        for fault in faults(columns, self.inputs, self.names):
            raise TraceError(f"{fault.text()}; correct the log, or leave these rows out")

    def __len__(self) -> int:
        return len(self.confidence)

    def columns(self) -> Iterator[tuple[Column, NDArray[Any]]]:
        """Yield the columns of the schema that have a value for each row.

        Returns:
            An iterator over the columns and their arrays.
        """
        for column in SCHEMA:
            values = getattr(self, column.field)
            if values is not None and not (column.field == "cost" and np.ndim(values) == 1):
                yield column, values

    @property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return self.spec.names

    @property
    def costs(self) -> NDArray[np.float64]:
        """Shape (T, n): what asking each node costs on each row, NaN where not known; a view."""
        # No memory where the cascade's costs hold on every row.
        return np.broadcast_to(self.cost, self.confidence.shape)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Shape (T, n): where a node answered; read-only."""
        return read_only(~np.isnan(self.confidence))

    @property
    def unit(self) -> float:
        """What a loss of 1 is in the log's own unit: the largest loss. For printing alone."""
        if not self.is_graded:
            return 1.0
        return self.spec.loss_bound or self.largest_loss or 1.0

    @property
    def is_graded(self) -> bool:
        """Whether answers have losses of their own: ``loss``, or mistakes that cost unequally."""
        return self.raw_loss is not None or bool(self.spec.mistakes)

    @property
    def measure(self) -> Measure:
        """What policies are measured by: the error, or the mean loss where answers have losses."""
        return "mean loss" if self.is_graded else "error"

    @cached_property
    def loss(self) -> NDArray[np.float64]:
        """Shape (T, n): what each answer loses, from 0 to 1; NaN where it is not known; read-only.

        It is 0 or 1 where answers are right or wrong. Other losses are divided by :attr:`unit`.

        Raises:
            TraceError: If the trace has no column that losses come from.

        >>> trace = Trace.from_arrays({"small": 1.0, "large": 9.0}, [[0.4, 0.9]], loss=[[5, 2]])
        >>> trace.loss.tolist(), trace.unit
        ([[1.0, 0.4]], 5.0)
        """
        return read_only(losses_of(self) / self.unit)

    @property
    def coverage(self) -> str:
        """How complete the trace is, in one line.

        >>> Trace(CascadeSpec.of({"a": 1.0}), [[0.5], [0.6]]).coverage
        '2 rows, each with an answer of every node; no losses are known'
        """
        return summary.coverage(self)

    def take(self, rows: ArrayLike | slice) -> Self:
        """Return the trace of some rows: positions, a mask or a slice.

        Classes keep their codes. ``left_out`` describes the reading, and is not passed on.

        Args:
            rows: Positions counting from 0, a mask of shape (T,), or a slice.

        Returns:
            The trace of these rows, in the order given.

        Raises:
            ArgumentError: If a position is out of range, or a mask has another length.
        """
        index = rows if isinstance(rows, slice) else _positions(np.asarray(rows), len(self))
        part = object.__new__(type(self))  # its arrays are rows of checked ones: no check again
        for item in dataclasses.fields(self):
            object.__setattr__(part, item.name, getattr(self, item.name))
        for column, values in self.columns():
            object.__setattr__(part, column.field, _rows_of(values, index))
        inputs = {name: read_only(values[index]) for name, values in self.inputs.items()}
        object.__setattr__(part, "inputs", inputs)
        object.__setattr__(part, "left_out", {})
        return part

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: the same whatever the file format or the order of classes.

        It covers the node names, their costs, and every row; not ``kind``, ``target`` or notes.
        """
        ranks, used = {}, {}
        for texts in ("classes", "groups"):
            codes = [array for column, array in self.columns() if column.texts == texts]
            ranks[texts], used[texts] = _ranks(codes, getattr(self, texts))
        head = {"rows": len(self), "nodes": self.names, "classes": used["classes"],
                "cost": self.cost.ndim}  # fmt: skip
        if used["groups"]:
            head["groups"] = used["groups"]
        # Codes of classes depend on the order of reading: ranks among the texts in use do not.
        # Names and order are those of 0.2: policy files hold digests.
        if (passing := parts.reach_of(self.spec)) is not None:
            head["passing"] = passing
        sha = hashlib.sha256(json.dumps(head).encode())
        present: dict[str, tuple[NDArray[Any], str]] = {
            column.name: (values, column.texts) for column, values in self.columns()
        } | {"cost": (self.cost, "")}
        first = ("confidence", "cost", "prediction", "label", "correct", "loss")
        last = ("entropy", "latency", "margin")
        middle = [name for name in present if name not in (*first, *last)]
        entries = [(name, *present[name]) for name in (*first, *middle) if name in present]
        entries += [(f"signal.{name}", self.inputs[name], "") for name in sorted(self.inputs)]
        entries += [(f"extra.{name}", *present[name]) for name in last if name in present]
        for name, values, texts in entries:
            sha.update(f"\n{name}\n".encode())
            for column in [values] if values.ndim == 1 else values.T:
                for start in range(0, len(column), 1 << 17):  # no second copy of the trace is made
                    part = column[start : start + (1 << 17)]
                    sha.update(_hashed(ranks[texts][part] if texts else part))
        return sha.hexdigest()


@dataclass(frozen=True, eq=False)
class Trace(Columns):
    """The answers of n nodes to T inputs. Arrays are read-only, and are not copied.

    A node that was not asked on a row, or failed, has NaN as its confidence there, and no other
    value of an answer: a gap.

    >>> trace = Trace.from_arrays(
    ...     {"small": 1.0, "large": 10.0},
    ...     confidence=[[0.9, 0.8], [0.4, float("nan")]],
    ...     prediction=[["cat", "cat"], ["dog", None]],
    ...     label=["cat", "cat"],
    ... )
    >>> trace.loss.tolist()
    [[0.0, 0.0], [1.0, nan]]
    >>> trace.coverage
    "2 rows; 'large' answered on 1 (50%); a label on all; the loss of every answer is known"
    """

    @classmethod
    def from_arrays(
        cls,
        spec: CascadeSpec | Mapping[str, float],
        confidence: ArrayLike,
        *,
        prediction: Sequence[Sequence[object]] | NDArray[Any] | None = None,
        label: Sequence[object] | NDArray[Any] | None = None,
        loss: ArrayLike | None = None,
        score: ArrayLike | None = None,
        group: Sequence[object] | NDArray[Any] | None = None,
        **fields: Any,
    ) -> Trace:
        """Build a trace from predictions, labels and groups as they are: text, numbers, ``None``.

        Args:
            spec: The cascade, or the cost of each node by name.
            confidence: Shape (T, n); NaN where a node was not asked, or failed.
            prediction: Shape (T, n): the class that each node predicts; ``None`` is no answer.
            label: Shape (T,): the right class; ``None`` where it is not known.
            loss: Shape (T, n): what each answer loses, in any unit; NaN where it is not known.
            score: Shape (T, n): a grade of each answer from 0 to 1; its loss is 1 minus the score.
            group: Shape (T,): the user, the document or whatever rows have in common.
            **fields: Further fields of the class, such as ``inputs``, ``correct`` and ``cost``.

        Returns:
            The trace; ``classes`` lists every label and prediction once.

        Raises:
            TraceError: If an array has another shape or a value that cannot be used, or if no
                label is ever predicted by any node.

        Warns:
            TraceWarning: If a class is written in two ways, such as with a space at its end.

        >>> Trace.from_arrays({"small": 1.0, "large": 9.0}, [[0.4, 0.9]], loss=[[3.5, 0.2]]).names
        ('small', 'large')
        """
        if not isinstance(spec, CascadeSpec):
            spec = CascadeSpec.of(spec)
        codes, groups = ClassCodes(), ClassCodes()
        for name, values, coder in (("label", label, codes), ("prediction", prediction, codes),
                                    ("group", group, groups)):  # fmt: skip
            fields[name] = None if values is None else coder.encode(values)
        if loss is not None:
            if score is not None:
                raise TraceError("give losses or scores, not both")
            fields["raw_loss"] = loss
        if score is not None:
            spec, fields["raw_loss"] = graded(spec, _floats(score, "score"))
        trace = cls(spec, _floats(confidence, "confidence"), classes=codes.classes,
                    groups=groups.classes, **fields)  # fmt: skip
        check_classes(trace, "the arrays")
        return trace

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        cascade: CascadeSpec | str | os.PathLike[str] | None = None,
        *,
        costs: Mapping[str, float] | None = None,
        kind: Kind = "models",
        target: Target = "label",
        on_bad: OnBad = "refuse",
    ) -> Trace:
        """Build a trace from a data frame with the columns of a trace file.

        Args:
            frame: A frame of pandas or polars, an Arrow table, or any object that exports an Arrow
                stream (``__arrow_c_stream__``).
            cascade: A :class:`CascadeSpec` or a ``cascade.toml``. Without it and ``costs`` the
                nodes are taken from the columns, and ``notes`` has a sentence about it.
            costs: The cost of each node by name, instead of a cascade.
            kind: With ``costs``: the kind of the cascade.
            target: With ``costs``: what counts as right.
            on_bad: As for :meth:`read`.

        Returns:
            The trace.

        Raises:
            ArgumentError: If it is no data frame, or a cascade and costs are both given.
            TraceError: If the frame cannot be used; the message names column and row.

        >>> import pandas
        >>> frame = pandas.DataFrame({
        ...     "small.confidence": [0.9, 0.4], "small.prediction": ["cat", "dog"],
        ...     "large.confidence": [0.8, 0.7], "large.prediction": ["cat", "cat"],
        ...     "label": ["cat", "cat"],
        ... })
        >>> len(Trace.from_frame(frame, costs={"small": 1.0, "large": 10.0}))
        2
        """
        from ttamer.trace.io import read_frame

        if costs is not None:
            if cascade is not None:
                raise ArgumentError("give a cascade or costs, not both: a cascade has its own "
                                    "costs", param="costs")  # fmt: skip
            cascade = CascadeSpec.of(costs, kind=kind, target=target)
        return read_frame(frame, cascade, on_bad)

    def to_frame(self, library: FrameLibrary = "pandas") -> Any:
        """Return the rows as a data frame, with the columns of a trace file.

        Args:
            library: ``"pandas"``, ``"polars"`` or ``"arrow"``.

        Returns:
            A frame of that library, one row for each input.

        Raises:
            MissingExtra: If the library is not installed.

        >>> trace = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
        >>> trace.to_frame()["only.confidence"].tolist()
        [0.5, 0.6]
        """
        from ttamer.trace.io import frame_of

        return frame_of(self, library)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        cascade: Cascade = None,
        *,
        on_bad: OnBad = "refuse",
    ) -> Trace:
        r"""Read a whole trace from Parquet, CSV (plain or gzipped), JSON Lines or NPZ.

        A log may have one line per input (columns ``<node>.confidence``), or one per call (columns
        ``id``, ``node`` and ``confidence``).

        Args:
            path: The file; its suffix determines the format.
            cascade: A ``cascade.toml``, a :class:`CascadeSpec`, or the cost of each node by its
                name. Without one, the cascade kept in the file is used; without that the nodes are
                taken from the columns, and ``notes`` has a sentence about it.
            on_bad: A row with a missing, NaN or infinite value is refused, or with ``"skip"`` left
                out and counted in ``left_out``.

        Returns:
            The trace.

        Raises:
            ArgumentError: If ``path`` is no path, such as a data frame.
            TraceError: If the file cannot be read or used; the message names column and row.
            CascadeError: If the ``cascade.toml`` cannot be used.

        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "log.csv")
        ...     _ = path.write_text("a.confidence,a.correct\n0.5,1\n0.9,0\n")
        ...     Trace.read(path, {"a": 2.5}).loss.tolist()
        [[0.0], [1.0]]
        """
        from ttamer.trace.io import open_source, read_all

        remedy = "for a data frame call Trace.from_frame(frame, costs={...})"
        require_path(path, "Trace.read", remedy)
        return read_all(open_source(path), cascade, on_bad)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet, CSV, JSON Lines or NPZ, by the suffix: the whole file, or none.

        Parquet and NPZ keep the cascade inside; the others cannot, so write it with
        ``spec.to_file``.

        Args:
            path: The file; its suffix determines the format.

        Raises:
            TraceError: If the file cannot be written, or the trace has no rows.
        """
        from ttamer.trace.io import write_trace

        write_trace(self, path)

    def __repr__(self) -> str:
        present = [c.name for c, _ in self.columns() if c.field not in ("confidence", "cost")]
        inputs = [INPUT + name for name in self.inputs]
        names = [*present, *(["cost per row"] if self.cost.ndim == 2 else []), *inputs]
        if len(names) > 9:
            names = [*names[:8], f"{len(names) - 8} more columns"]
        return f"Trace({', '.join([counted(len(self.spec), 'node'), *names])}; {self.coverage})"

    def _repr_html_(self) -> str:
        return summary.table(self)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw how often each node is right (or what it loses), by how certain it is.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            A matplotlib figure.

        Raises:
            TraceError: If the trace does not have which answers are right.
            MissingExtra: If matplotlib is not installed.

        >>> from ttamer import datasets
        >>> len(datasets.load("minilm-imdb", "fit").plot().axes[0].lines)
        6
        """
        return summary.curves(self, path)

    def with_spec(self, spec: CascadeSpec) -> Trace:
        """Return the same rows for a cascade of the same nodes with other costs, kind or target.

        Args:
            spec: The cascade, with the same nodes in the same order.

        Returns:
            The trace, with the costs of the new cascade on every row.

        Raises:
            ArgumentError: If the cascade has other nodes.

        >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0}), [[0.1, 0.2]])
        >>> trace.with_spec(CascadeSpec.of({"a": 3.0, "b": 4.0}, kind="exits")).costs.tolist()
        [[3.0, 4.0]]
        """
        if spec.names != self.names:
            raise ArgumentError(
                f"the cascade has the nodes {', '.join(spec.names)}, and the trace "
                f"{', '.join(self.names)}: they must be the same, in the same order"
            )
        return dataclasses.replace(self, spec=spec, cost=spec.costs)

    def with_verification(self) -> Trace:
        """Return the trace with each verified answer as a node of its own, after the answer.

        Where a node has a ``verify_cost``, its answer alone has no confidence (0 on every row), and
        the node ``... (verified)`` has the same answer with the confidence of the trace.

        Returns:
            The trace of the split cascade; this one where no node has a ``verify_cost``.

        Raises:
            CascadeError: If a name is taken.

        >>> from ttamer.cascade import CascadeNode
        >>> trace = Trace(CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),)), [[0.9], [0.4]])
        >>> split = trace.with_verification()
        >>> split.names, split.confidence.tolist(), split.cost.tolist()
        (('a', 'a (verified)'), [[0.0, 0.9], [0.0, 0.4]], [1.0, 0.5])
        """
        return parts.verified(self)

    def split(self, fraction: float, seed: int) -> tuple[Trace, Trace]:
        """Split at random: a share of the rows to fit on, and the others to test on.

        Rows of one group stay together.

        Args:
            fraction: The share of the rows in the first part, between 0 and 1.
            seed: The seed of the random order.

        Returns:
            The first part and the other rows, each with at least one row.

        Raises:
            ArgumentError: If the fraction is not between 0 and 1, or the seed is negative.
            TraceError: If the trace has fewer than 2 rows, or all of one group.

        >>> fit, test = Trace(CascadeSpec.of({"only": 1.0}), [[0.1], [0.2], [0.3]]).split(0.5, 0)
        >>> len(fit), len(test)
        (2, 1)
        """
        return parts.split(self, fraction, seed)

    @classmethod
    def concat(cls, traces: Sequence[Trace]) -> Trace:
        """Put traces of the same nodes one after another; their classes become one list.

        Costs become one per row where the traces differ in them. The cascade is the first one's.

        Args:
            traces: Shards of a log, days of traffic; at least one.

        Returns:
            One trace with all rows, in the order given.

        Raises:
            TraceError: If the traces differ in their nodes or in the columns they have.

        >>> part = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
        >>> len(Trace.concat([part, part]))
        4
        """
        return parts.concat(traces)

    def restrict(self, nodes: Iterable[str]) -> Trace:
        """Return the trace of some nodes, in the cascade's own order.

        A node cannot stay without its parent (``after``), nor any node without the last one where
        that is the target: what is right would change. An exit left out is always passed: the cost
        of that is added to the next exit that stays. Where each is asked that is all its cost,
        since the share of its ramp is not known.

        Args:
            nodes: The names to keep.

        Returns:
            The trace of these nodes, with all rows.

        Raises:
            ArgumentError: If a name is unknown, or the target or a parent is left out.

        >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0, "c": 3.0}), [[0.1, 0.2, 0.3]])
        >>> fewer = trace.restrict(["c", "a"])
        >>> fewer.names, fewer.confidence.tolist()
        (('a', 'c'), [[0.1, 0.3]])
        """
        return parts.restrict(self, nodes)


def graded(
    spec: CascadeSpec, score: NDArray[np.float64]
) -> tuple[CascadeSpec, NDArray[np.float64]]:
    """Return the losses of scores, and the cascade with 1 as the largest loss."""
    outside = (score < 0) | (score > 1)
    if outside.any():
        raise TraceError(
            f"score: {int(outside.sum())} are not from 0 to 1, the first is "
            f"{score[outside].flat[0]:g}; give other grades as losses (<node>.loss)"
        )
    bound = spec.max_loss if spec.loss_bound is not None else 1.0
    return dataclasses.replace(spec, max_loss=bound), 1 - score


def _check_max_loss(loss: NDArray[np.float64], spec: CascadeSpec) -> None:
    if spec.mistakes:
        raise TraceError(
            "the trace has losses, and the cascade a table of mistakes, which are losses too: "
            "remove the columns <node>.loss, or mistakes from [cascade]"
        )
    if spec.max_loss is not None and np.nanmax(loss, initial=0.0) > spec.max_loss:
        row, node = np.unravel_index(int(np.nanargmax(loss)), loss.shape)
        raise TraceError(
            f"loss of {spec.names[node]!r}: row {row} (counting from 0) is {loss[row, node]}, and "
            f"[cascade] has max_loss = {spec.max_loss:g}: correct one of them"
        )


def _floats(values: Any, what: str) -> Any:
    """Return values as numbers; refuse text, and rows of different lengths."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"{what}: must be numbers, in rows of equal length: {error}", param=what
        ) from None


def _positions(index: NDArray[Any], rows: int) -> NDArray[np.intp]:
    """Return positions of rows, or of the rows of a mask; refuse others."""
    if index.dtype == np.bool_:
        if index.shape != (rows,):
            raise ArgumentError(f"a mask needs one truth value for each of {counted(rows, 'row')}")
        return np.flatnonzero(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise ArgumentError("rows must be a slice, a mask, or a list of whole numbers")
    if index.size and not -rows <= index.min() <= index.max() < rows:
        raise ArgumentError(
            f"rows run from 0 to {rows - 1}; asked for {index.min()} to {index.max()}"
        )
    return index.astype(np.intp, copy=False)


def _rows_of(array: NDArray[Any], index: slice | NDArray[np.intp]) -> NDArray[Any]:
    """Return rows of an array, columns contiguous: most work goes node by node."""
    if isinstance(index, slice) or array.ndim == 1:
        return read_only(array[index])
    # Indexing all columns at once would lay the rows out contiguously.
    picked = np.empty((len(index), array.shape[1]), array.dtype, order="F")
    for column in range(array.shape[1]):
        picked[:, column] = array[:, column][index]
    return read_only(picked)


def _ranks(
    arrays: Sequence[NDArray[np.int32]], texts: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the place of each code among the texts that are used, in order, and these texts."""
    used = np.flatnonzero(used_codes(arrays, len(texts))).tolist()
    ranked = sorted(used, key=lambda code: texts[code])
    rank = np.full(len(texts) + 1, -1, np.int32)  # the last entry stands for code -1
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)
    return rank, [texts[code] for code in ranked]


def _hashed(values: NDArray[Any]) -> bytes:
    """Return the bytes that stand for values: little-endian, no negative zero, one NaN."""
    if values.dtype == object:
        return json.dumps(values.tolist()).encode()
    if values.dtype == np.int32:
        return values.astype("<i4").tobytes()
    if values.dtype == np.int8:
        return values.tobytes()
    plain = values.astype("<f8") + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain.tobytes()
