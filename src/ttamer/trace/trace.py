"""A trace: what each node answered on each input, as arrays.

T inputs by n nodes. :mod:`ttamer.trace.schema` is the table of its columns: most of what a trace
does is a loop over it. :mod:`ttamer.trace.losses` says what each answer loses, and
:mod:`ttamer.trace.io` reads and writes files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import counted, number, percent, require_kind, require_path, require_whole
from ttamer.cascade import CascadeNode, CascadeSpec, Kind, Target, split_nodes
from ttamer.errors import ArgumentError, TraceError
from ttamer.show import card
from ttamer.show.curves import draw_curves
from ttamer.show.graph import Drawing
from ttamer.trace.checks import check_classes, require_trace
from ttamer.trace.classes import ClassCodes
from ttamer.trace.losses import losses_of
from ttamer.trace.old import (
    BELIEF_FIELDS as BELIEF_FIELDS,
    EXTRA_FIELDS as EXTRA_FIELDS,
    Losses as Losses,
    OldTrace,
)
from ttamer.trace.schema import INPUT, SCHEMA, Column, input_array, numbers_of, read_only

if TYPE_CHECKING:
    from ttamer.trace.frames import FrameLibrary

OnBad = Literal["refuse", "skip"]
Measure = Literal["error", "mean loss"]

_PLOT_PARTS = 20
_DIGEST_ROWS = 1 << 17  # rows hashed at a time: no second copy of the trace is made


@dataclass(frozen=True, eq=False)
class Trace(OldTrace):
    """The answers of n nodes to T inputs. Arrays are read-only, and are not copied.

    A node that was not asked on a row, or failed, has NaN as its confidence there, and no other
    value of an answer: a gap.

    >>> from ttamer.cascade import CascadeSpec
    >>> trace = Trace.from_arrays(
    ...     CascadeSpec.of({"small": 1.0, "large": 10.0}),
    ...     confidence=[[0.9, 0.8], [0.4, float("nan")]],
    ...     prediction=[["cat", "cat"], ["dog", None]],
    ...     label=["cat", "cat"],
    ... )
    >>> trace
    Trace(2 rows, 2 nodes, prediction, label)
    >>> trace.loss.tolist()
    [[0.0, 0.0], [1.0, nan]]
    >>> trace.coverage
    "2 rows; 'large' answered on 1 (50%); a label on all; the loss of every answer is known"
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
        put = object.__setattr__
        cost: object = self.cost
        for name in ("classes", "groups", "notes"):
            put(self, name, tuple(getattr(self, name)))
        put(self, "left_out", dict(self.left_out))
        if cost is None:
            put(self, "cost", self.spec.costs)
        for column in SCHEMA:
            values = getattr(self, column.field)
            if values is None:
                continue
            if column.field == "cost" and np.ndim(values) == 1:
                self._check_cascade_costs(values)
                continue
            shape = (rows, count) if column.by == "node" else (rows,)
            array = column.array(values, shape)
            put(self, column.field, array)
            self._check(column, array)
        if self.raw_loss is not None:
            _check_max_loss(self.raw_loss, self.spec)
            largest = float(np.nanmax(self.raw_loss, initial=0.0))
            put(self, "largest_loss", max(largest, self.largest_loss or 0.0))
        require_kind(self.inputs, Mapping, "inputs must be a mapping of arrays", "{name: values}")
        taken = {f"{node}.{column.name}" for node in self.names for column in SCHEMA}
        for name in self.inputs:
            if not name or INPUT + name in taken:
                raise TraceError(f"input {name!r}: this name is taken by a node; choose another")
        put(self, "inputs", {k: input_array(v, rows, k) for k, v in self.inputs.items()})

    def _check_cascade_costs(self, values: Any) -> None:
        costs = numbers_of(values, np.float64, (len(self.spec),), "cost")
        if not np.array_equal(costs, self.spec.costs):
            raise TraceError(
                "cost: one cost per node must be the cascade's own; give the cascade these "
                "costs (CascadeSpec.with_costs), or one cost per row and node"
            )
        object.__setattr__(self, "cost", costs)

    def _check(self, column: Column, array: NDArray[Any]) -> None:
        """Refuse codes without a text, numbers out of range, and values where no answer is."""
        name = column.name
        if column.kind == "class":
            texts = getattr(self, column.texts)
            if array.size and not -1 <= array.min() <= array.max() < len(texts):
                raise TraceError(
                    f"{name}: codes run from -1 (no answer) to {len(texts) - 1}, the last of the "
                    f"{column.texts}; there are codes from {array.min()} to {array.max()}"
                )
        if column.by == "row" or not len(array):
            return
        for node, values, answered in zip(self.names, array.T, self.answered.T, strict=True):
            known = column.known(values)
            if column.kind == "number":
                missing = answered & ~known if column.each_answer else np.zeros_like(known)
                if name in EXTRA_FIELDS and not known.any():  # the node has no such column
                    missing[:] = False
                self._refuse(
                    missing | np.isinf(values), values, f"{name} of {node!r}",
                    "a value is needed at each answer, and it must be finite",
                )  # fmt: skip
                self._refuse(values < column.low, values, f"{name} of {node!r}",
                             f"a {name} is not negative")  # fmt: skip
                self._refuse(values > column.high, values, f"{name} of {node!r}",
                             f"a {name} is at most {column.high:g}")  # fmt: skip
            if column.of_answer and column.field != "confidence":
                confidence = self.confidence[:, self.names.index(node)]
                self._refuse(
                    known & ~answered, confidence, f"confidence of {node!r}",
                    f"and {name} has a value there: a node that was not asked has none",
                )  # fmt: skip

    @staticmethod
    def _refuse(bad: NDArray[np.bool_], values: NDArray[Any], what: str, why: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            raise TraceError(
                f"{what}: row {row} (counting from 0) is {values[row]}; {why} ({int(bad.sum())} of "
                f"{len(bad)} rows); correct the log, or leave these rows out"
            )

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
        fields["label"] = None if label is None else codes.encode(label)
        fields["prediction"] = None if prediction is None else codes.encode(prediction)
        fields["group"] = None if group is None else groups.encode(group)
        values: Any = _numbers(confidence, "confidence")
        if loss is not None:
            if score is not None:
                raise TraceError("give losses or scores, not both")
            fields["raw_loss"] = loss
        if score is not None:
            spec, fields["raw_loss"] = graded(spec, _numbers(score, "score"))
        trace = cls(spec, values, classes=codes.classes, groups=groups.classes, **fields)
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

        Numbers are copied once, into the arrays of the trace; everything before that is a view.

        Args:
            frame: A frame of pandas or polars, an Arrow table, or any object that exports an Arrow
                stream (``__arrow_c_stream__``) or ``__dataframe__``.
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
        >>> Trace.from_frame(frame, costs={"small": 1.0, "large": 10.0})
        Trace(2 rows, 2 nodes, prediction, label)
        """
        from ttamer.trace.frames import trace_from_frame

        return trace_from_frame(
            frame, cascade, costs=costs, kind=kind, target=target, on_bad=on_bad
        )

    def to_frame(self, library: FrameLibrary = "pandas") -> Any:
        """Return the rows as a data frame, with the columns of a trace file.

        Args:
            library: ``"pandas"``, ``"polars"`` or ``"arrow"``.

        Returns:
            A frame of that library, one row for each input.

        Raises:
            MissingExtra: If the library is not installed.

        >>> from ttamer.cascade import CascadeSpec
        >>> trace = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
        >>> trace.to_frame()["only.confidence"].tolist()
        [0.5, 0.6]
        """
        from ttamer.trace.frames import frame_of

        return frame_of(self, library)

    @property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return self.spec.names

    @property
    def costs(self) -> NDArray[np.float64]:
        """Shape (T, n): what asking each node costs on each row, NaN where not known; a view."""
        return np.broadcast_to(self.cost, self.confidence.shape)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Shape (T, n): where a node answered; read-only."""
        return read_only(~np.isnan(self.confidence))

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

    @property
    def coverage(self) -> str:
        """How complete the trace is, in one line.

        >>> Trace(CascadeSpec.of({"a": 1.0}), [[0.5], [0.6]]).coverage
        '2 rows, each with an answer of every node; no losses are known'
        """
        rows = len(self)
        parts = [
            f"{name!r} answered on {_share(int(answers), rows)}"
            for name, answers in zip(self.names, self.answered.sum(axis=0), strict=True)
            if answers < rows
        ]
        head = counted(rows, "row", ",")
        if not parts:
            head += ", each with an answer of every node"
        if self.label is not None:
            parts.append(f"a label on {_share(int((self.label >= 0).sum()), rows)}")
        if self.chance is not None:
            parts.append(f"the chance of {_share(int((self.chance >= 0).sum()), self.chance.size)}")
        if self.group is not None:
            parts.append(counted(len(np.unique(self.group)), "group", ","))
        try:
            known, answers = int((self.loss >= 0).sum()), int(self.answered.sum())
        except TraceError:
            parts.append("no losses are known")
        else:
            every = "the loss of every answer is known"
            share = f"the loss of {_share(known, answers)} of the answers is known"
            parts.append(every if known == answers else share)
        return "; ".join([head, *parts])

    def __len__(self) -> int:
        return len(self.confidence)

    def __repr__(self) -> str:
        sizes = [counted(len(self), "row"), counted(len(self.spec), "node")]
        return f"Trace({', '.join([*sizes, *self._present()])})"

    def _present(self) -> list[str]:
        """Return the columns that the trace has beside the confidences."""
        names = {c.field: c.name for c in SCHEMA if c.field not in ("confidence", "cost")}
        known = [name for key, name in names.items() if getattr(self, key) is not None]
        if self.cost.ndim == 2:
            known.append("cost per row")
        return [*known, *(INPUT + name for name in self.inputs)]

    def _repr_html_(self) -> str:
        head = ["node", "answers", "cost", "mean confidence"]
        columns = [
            [percent(share) for share in (self.answered.sum(axis=0) / max(len(self), 1)).tolist()],
            [number(value) for value in _means(self.costs)],
            [number(value) for value in _means(self.confidence)],
        ]
        try:
            losses = _means(self.loss * self.unit)
        except TraceError:  # it does not have which answers are right
            pass
        else:
            graded = self.is_graded
            head.append(self.measure if graded else "right")
            columns.append([number(x) if graded else percent(1 - x, digits=1) for x in losses])
        rows = [list(row) for row in zip(self.names, *columns, strict=True)] if len(self) else []
        return card(repr(self), notes=[*self.notes, self.coverage], head=head, rows=rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw how often each node is right (or what it loses), by how certain it is.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.

        Raises:
            TraceError: If the trace does not have which answers are right.

        >>> from ttamer import datasets
        >>> datasets.load("langid", "fit").plot().startswith("<svg")
        True
        """
        shown = self.loss * self.unit if self.is_graded else 1 - self.loss
        curves = {}
        for node, name in enumerate(self.names):
            known = np.flatnonzero(~np.isnan(shown[:, node]))
            order = known[np.argsort(self.confidence[known, node], kind="stable")]
            parts = [part for part in np.array_split(order, _PLOT_PARTS) if len(part)]
            means = [float(shown[part, node].mean()) for part in parts]
            curves[name] = ([(k + 0.5) / len(parts) for k in range(len(parts))], means)
        what = self.measure if self.is_graded else "right"
        axis = "rows, from the least certain to the most certain"
        percents = not self.is_graded
        return draw_curves(curves, axis, what, x_percent=True, y_percent=percents).written(path)

    def with_spec(self, spec: CascadeSpec) -> Trace:
        """Return the same rows for a cascade of the same nodes with other costs, order or target.

        Args:
            spec: The cascade, with the same nodes in the same order.

        Returns:
            The trace, with the costs of the new cascade on every row.

        Raises:
            ArgumentError: If the cascade has other nodes.

        >>> from ttamer.cascade import CascadeSpec
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

        >>> from ttamer.cascade import CascadeNode, CascadeSpec
        >>> trace = Trace(CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),)), [[0.9], [0.4]])
        >>> split = trace.with_verification()
        >>> split.names, split.confidence.tolist(), split.cost.tolist()
        (('a', 'a (verified)'), [[0.0, 0.9], [0.0, 0.4]], [1.0, 0.5])
        """
        spec, source = split_nodes(self.spec)
        if len(spec) == len(self.spec):
            return self
        unseen = [k for k, (one, two) in enumerate(pairwise(source)) if one == two]
        verified = [k + 1 for k in unseen]
        fields = self._fields_for(spec, source)
        confidence = fields["confidence"]
        confidence[:, unseen] = np.where(np.isnan(confidence[:, unseen]), np.nan, 0.0)
        if self.cost.ndim == 2:
            fields["cost"][:, verified] = spec.costs[verified]
        for name in EXTRA_FIELDS:
            if name in fields:
                fields[name][:, verified if name == "latency" else unseen] = np.nan
        return dataclasses.replace(self, **fields)

    def _fields_for(self, spec: CascadeSpec, nodes: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a trace for another cascade, whose columns are those of nodes."""
        fields: dict[str, Any] = {"spec": spec}
        for column in SCHEMA:
            values = getattr(self, column.field)
            if column.by == "node" and values is not None:
                by_cascade = values.ndim == 1  # costs
                fields[column.field] = (
                    spec.costs if by_cascade else np.asfortranarray(values[:, nodes])
                )
        return fields

    def take(self, rows: ArrayLike | slice) -> Trace:
        """Return the trace of some rows: positions, a mask or a slice.

        Classes keep their codes. ``left_out`` describes the reading, and is not passed on.

        Args:
            rows: Positions counting from 0, a mask of shape (T,), or a slice.

        Returns:
            The trace of these rows, in the order given.

        Raises:
            ArgumentError: If a position is out of range, or a mask has another length.
        """
        index: Any = rows if isinstance(rows, slice) else np.asarray(rows)
        if not isinstance(index, slice):
            if index.dtype == np.bool_:
                if index.shape != (len(self),):
                    raise ArgumentError(
                        f"a mask needs one truth value for each of {counted(len(self), 'row')}"
                    )
                index = np.flatnonzero(index)
            elif index.size == 0:
                index = index.astype(np.intp)
            if index.ndim != 1 or index.dtype.kind not in "iu":
                raise ArgumentError("rows must be a slice, a mask, or a list of whole numbers")
            if index.size and not -len(self) <= index.min() <= index.max() < len(self):
                raise ArgumentError(
                    f"rows run from 0 to {len(self) - 1}; asked for {index.min()} to {index.max()}"
                )
        part = object.__new__(Trace)  # its arrays are rows of checked ones: no check again
        for item in dataclasses.fields(self):
            object.__setattr__(part, item.name, getattr(self, item.name))
        for column, values in self._columns():
            object.__setattr__(part, column.field, _rows(values, index))
        inputs = {name: read_only(values[index]) for name, values in self.inputs.items()}
        object.__setattr__(part, "inputs", inputs)
        object.__setattr__(part, "left_out", {})
        return part

    def _columns(self) -> Iterator[tuple[Column, NDArray[Any]]]:
        """Yield the columns of the schema that have a value for each row."""
        for column in SCHEMA:
            values = getattr(self, column.field)
            if values is not None and not (column.field == "cost" and values.ndim == 1):
                yield column, values

    def split(self, fraction: float, seed: int) -> tuple[Trace, Trace]:
        """Split at random: a share of the rows to fit on, and the others to test on.

        Args:
            fraction: The share of the rows in the first part, between 0 and 1.
            seed: The seed of the random order.

        Returns:
            The first part and the other rows, each with at least one row.

        Raises:
            ArgumentError: If the fraction is not between 0 and 1, or the seed is negative.
            TraceError: If the trace has fewer than 2 rows.

        >>> from ttamer.cascade import CascadeSpec
        >>> fit, test = Trace(CascadeSpec.of({"only": 1.0}), [[0.1], [0.2], [0.3]]).split(0.5, 0)
        >>> len(fit), len(test)
        (2, 1)
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"fraction is {fraction}; it must lie between 0 and 1")
        require_whole(seed, "seed")
        require_rows(self, 2, "a split")
        order = np.random.default_rng(seed).permutation(len(self))
        count = min(max(round(fraction * len(self)), 1), len(self) - 1)
        return self.take(order[:count]), self.take(order[count:])

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

        >>> from ttamer.cascade import CascadeSpec
        >>> one = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
        >>> Trace.concat([one, one])
        Trace(4 rows, 1 node)
        """
        require_kind(traces, Iterable, "concat takes a list of traces", "write [one, two]")
        traces = list(traces)
        for trace in traces:
            require_trace(trace, "concat")
        if not traces:
            raise TraceError("concat: there are no traces; give at least one")
        first = traces[0]
        for position, trace in enumerate(traces[1:], start=1):
            _check_alike(first, trace, position)
        if len(traces) == 1:
            return first
        texts = {name: ClassCodes(getattr(first, name)) for name in ("classes", "groups")}
        fields: dict[str, Any] = {}
        for column in SCHEMA:
            arrays = [getattr(trace, column.field) for trace in traces]
            if arrays[0] is None:
                continue
            if column.kind == "class":
                # Code -1 picks the last entry of each table, which is -1.
                codes = texts[column.texts]
                tables = [
                    np.array([*map(codes.code, getattr(trace, column.texts)), -1], np.int32)
                    for trace in traces
                ]
                arrays = [table[array] for table, array in zip(tables, arrays, strict=True)]
            if column.field == "cost":
                if all(a.ndim == 1 and np.array_equal(a, first.cost) for a in arrays):
                    continue
                arrays = [trace.costs for trace in traces]
            fields[column.field] = _stack(arrays, "F")
        left_out: dict[str, int] = {}
        for trace in traces:
            for reason, count in trace.left_out.items():
                left_out[reason] = left_out.get(reason, 0) + count
        if first.raw_loss is not None:
            fields["largest_loss"] = max(trace.largest_loss or 0.0 for trace in traces)
        return dataclasses.replace(
            first,
            **fields,
            classes=texts["classes"].classes,
            groups=texts["groups"].classes,
            inputs={name: _stack([t.inputs[name] for t in traces], "C") for name in first.inputs},
            left_out=left_out,
            notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        )

    def restrict(self, nodes: Iterable[str]) -> Trace:
        """Return the trace of some nodes, in the cascade's own order.

        A node cannot stay without its parent (``after``), nor any node without the last one where
        that is the target: what is right would change. An exit left out is always passed: the cost
        of that is added to the next exit that stays. Where each is asked that is all its
        cost, since the share of its ramp is not known.

        Args:
            nodes: The names to keep.

        Returns:
            The trace of these nodes, with all rows.

        Raises:
            ArgumentError: If a name is unknown, or the target or a parent is left out.

        >>> from ttamer.cascade import CascadeSpec
        >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0, "c": 3.0}), [[0.1, 0.2, 0.3]])
        >>> fewer = trace.restrict(["c", "a"])
        >>> fewer.names, fewer.confidence.tolist()
        (('a', 'c'), [[0.1, 0.3]])
        """
        if isinstance(nodes, str):
            raise ArgumentError(f"restrict takes a list of names: write [{nodes!r}]")
        spec = self.spec
        wanted = {spec.index_of(name) for name in nodes}
        if not wanted:
            raise ArgumentError("a trace needs at least one node: name one to keep")
        if spec.target == "last" and len(spec) - 1 not in wanted:
            raise ArgumentError(
                f'target = "last" means that {spec.names[-1]!r} is right: keep it, or use '
                'target = "label"'
            )
        for place in wanted:
            for parent in spec.parents[place]:
                if parent not in wanted:
                    raise ArgumentError(
                        f"node {spec.names[place]!r} comes after {spec.names[parent]!r}: keep "
                        "both, or neither"
                    )
        kept = sorted(wanted)
        # For each node kept, the cost of passing those left out directly before it.
        if spec.asks_each:
            between = [self.costs[:, u + 1 : v].sum(axis=1) for u, v in pairwise((-1, *kept))]
        else:
            between = [spec.reach[u + 1 : v].sum(keepdims=True) for u, v in pairwise((-1, *kept))]
        toll = [float(each.mean()) for each in between]
        fewer = dataclasses.replace(
            spec,
            nodes=tuple(
                _passing_more(spec.nodes[number], more)
                for number, more in zip(kept, toll, strict=True)
            ),
        )
        fields = self._fields_for(fewer, kept)
        if self.cost.ndim == 2:
            fields["cost"] = fields["cost"] + np.stack(np.broadcast_arrays(*between), 1)
        return dataclasses.replace(self, **fields)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: the same whatever the file format or the order of classes.

        It covers the node names, their costs, and every row; not ``kind``, ``target`` or notes.
        """
        ranks = {}
        used: dict[str, list[str]] = {}
        for name in ("classes", "groups"):
            codes = [array for column, array in self._columns() if column.texts == name]
            ranks[name], used[name] = _ranks(codes, getattr(self, name))
        head = {
            "rows": len(self),
            "nodes": self.names,
            "classes": used["classes"],
            "cost": self.cost.ndim,
        }
        if used["groups"]:
            head["groups"] = used["groups"]
        if self.spec.kind == "exits" and not self.spec.asks_each:  # costs, though no column
            head["passing"] = [node.reach or 0.0 for node in self.spec.nodes]
        sha = hashlib.sha256(json.dumps(head).encode())
        # Names and order are those of 0.2: policy files hold digests.
        parts: list[tuple[str, NDArray[Any], Column | None]] = [
            (f"extra.{column.name}" if column.name in EXTRA_FIELDS else column.name, values, column)
            for column in SCHEMA
            if (values := getattr(self, column.field)) is not None
        ]
        parts += [(f"signal.{name}", self.inputs[name], None) for name in sorted(self.inputs)]
        parts.sort(key=lambda part: part[0].startswith("extra."))
        for name, part, schema in parts:
            sha.update(f"\n{name}\n".encode())
            for column in [part] if part.ndim == 1 else part.T:
                for start in range(0, len(column), _DIGEST_ROWS):
                    values = column[start : start + _DIGEST_ROWS]
                    if schema is not None and schema.texts:
                        values = ranks[schema.texts][values].astype("<i4")
                    elif values.dtype == object:
                        sha.update(json.dumps(values.tolist()).encode())
                        continue
                    elif values.dtype != np.int8:
                        values = _plain(values)
                    sha.update(np.ascontiguousarray(values).data)
        return sha.hexdigest()

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        cascade: CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None = None,
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
        ...     Trace.read(path, {"a": 2.5})
        Trace(2 rows, 1 node, correct)
        """
        from ttamer.trace.files import open_source, read_all

        remedy = "for a data frame call Trace.from_frame(frame, costs={...})"
        require_path(path, "Trace.read", remedy)
        return read_all(open_source(path), cascade, str(path), on_bad)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet, CSV, JSON Lines or NPZ, by the suffix: the whole file, or none.

        Parquet and NPZ keep the cascade inside; the others cannot, so write it with
        ``spec.to_file``.

        Args:
            path: The file; its suffix determines the format.

        Raises:
            TraceError: If the file cannot be written, or the trace has no rows.
        """
        from ttamer.trace.files import write_trace

        write_trace(self, path)


def require_rows(trace: Sized, least: int, what_for: str) -> None:
    """Refuse a trace too short for what is asked.

    >>> require_rows([1, 2, 3], 5, "a fit")
    Traceback (most recent call last):
    ttamer.errors.TraceError: the trace has 3 rows, and a fit needs at least 5: bring a longer trace
    """
    if len(trace) < least:
        raise TraceError(
            f"the trace has {counted(len(trace), 'row')}, and {what_for} needs at least {least}: "
            "bring a longer trace"
        )


def graded(
    spec: CascadeSpec, score: NDArray[np.float64]
) -> tuple[CascadeSpec, NDArray[np.float64]]:
    """Return the losses of scores, and the cascade with 1 as the largest loss."""
    outside = ~((score >= 0) & (score <= 1) | np.isnan(score))
    if outside.any():
        raise TraceError(
            f"score: {int(outside.sum())} are not from 0 to 1, the first is "
            f"{score[outside].flat[0]:g}; give other grades as losses (<node>.loss)"
        )
    bound = spec.max_loss if spec.loss_bound is not None else 1.0
    return dataclasses.replace(spec, max_loss=bound), 1 - score


def _numbers(values: Any, what: str) -> NDArray[np.float64]:
    """Return values as numbers; refuse text, and rows of different lengths."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{what}: must be numbers, in rows of equal length: {error}") from None


def _rows(array: NDArray[Any], index: Any) -> NDArray[Any]:
    """Return rows of an array, columns contiguous: most work goes node by node."""
    picked: NDArray[Any]
    if isinstance(index, slice) or array.ndim == 1:
        picked = array[index]
    else:
        picked = np.empty((len(index), array.shape[1]), array.dtype, order="F")
        for column in range(array.shape[1]):
            picked[:, column] = array[:, column][index]
    picked.setflags(write=False)
    return picked


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


def _check_alike(first: Trace, trace: Trace, position: int) -> None:
    if trace.names != first.names:
        raise TraceError(
            f"concat: trace {position} has the nodes {', '.join(trace.names)}, and trace 0 has "
            f"{', '.join(first.names)}; they must be the same, in the same order"
        )
    if trace.spec.asks_each != first.spec.asks_each or not np.array_equal(
        [node.reach or 0.0 for node in trace.spec.nodes],
        [node.reach or 0.0 for node in first.spec.nodes],
    ):
        raise TraceError(
            f"concat: trace {position} passes its nodes at other costs than trace 0, and passing "
            "has one cost for all rows; read them with one cascade.toml"
        )
    mine, other = set(first._present()), set(trace._present())
    for names in (mine, other):
        names.discard("cost per row")
    if mine != other:
        odd = ", ".join(sorted(mine ^ other))
        raise TraceError(
            f"concat: trace 0 and trace {position} differ in their columns: {odd}; "
            "all of them must have these, or none"
        )


def _passing_more(node: CascadeNode, more: float) -> CascadeNode:
    reach = None if node.reach is None else node.reach + more
    return dataclasses.replace(node, cost=node.cost + more, reach=reach)


def _ranks(
    arrays: Sequence[NDArray[np.int32]], texts: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the place of each code among the texts that are used, in order, and these texts."""
    used = np.zeros(len(texts) + 1, bool)  # the last entry stands for code -1
    for codes in arrays:
        for column in [codes] if codes.ndim == 1 else codes.T:
            used[column] = True
    ranked = sorted(np.flatnonzero(used[:-1]).tolist(), key=lambda code: texts[code])
    rank = np.full(len(used), -1, np.int32)
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)
    return rank, [texts[code] for code in ranked]


def _stack(arrays: Sequence[NDArray[Any]], order: Literal["C", "F"]) -> NDArray[Any]:
    """Return arrays of rows one after another."""
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=np.empty(shape, arrays[0].dtype, order=order))


def _means(values: NDArray[np.float64]) -> list[float]:
    """Return the mean of each column over the rows where it is known; NaN where none is."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        means: list[float] = (total / known.sum(axis=0)).tolist()
    return means


def _share(count: int, total: int) -> str:
    if count == total:
        return "all"
    return f"{count:,} ({percent(count / total)})"


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """One pattern of bits for each number: no negative zero, one NaN, little-endian."""
    plain = values.astype("<f8") + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain
