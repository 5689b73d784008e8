"""A trace: the reply of each node to each input, as arrays.

T inputs by n nodes: confidence, and where known prediction, correctness or loss, and cost, with
the label and signals of each input. No scale of confidence is assumed.
:mod:`ttamer.trace.files` reads and writes files.

An answer is right or wrong, or it has a loss: ``loss`` in any unit, or unequal mistakes of the
cascade (:mod:`ttamer.trace.mistakes`). :meth:`Trace.losses` returns either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._arguments import require_kind, require_path, require_whole
from ttamer._display.drawing import Drawing, draw_curves
from ttamer._display.notebook import card
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.checks import check_classes, require_trace
from ttamer.trace.classes import ClassCodes
from ttamer.trace.mistakes import largest_mistake, mistake_table
from ttamer.trace.spec import CascadeNode, CascadeSpec, Order, Target
from ttamer.trace.verification import split_nodes

if TYPE_CHECKING:
    from ttamer.trace.frames import FrameLibrary


OnBad = Literal["refuse", "skip"]
Measure = Literal["error", "mean loss"]
# Losses of answers: truth values where they are right or wrong, else numbers.
Losses: TypeAlias = "NDArray[np.bool_] | NDArray[np.float64]"

_PLOT_PARTS = 20
# Columns of a node that a belief may read beside its confidence.
BELIEF_FIELDS = ("margin", "entropy")
# Columns that a node may have besides its confidence, prediction, correctness and cost.
EXTRA_FIELDS = (*BELIEF_FIELDS, "latency")


@dataclass(frozen=True, eq=False)
class Trace:
    """The replies of n nodes to T inputs. Arrays are read-only, and are not copied.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> trace = Trace.from_arrays(
    ...     CascadeSpec.of({"small": 1.0, "large": 10.0}),
    ...     confidence=[[0.9, 0.8], [0.4, 0.7]],
    ...     prediction=[["cat", "cat"], ["dog", "cat"]],
    ...     label=["cat", "cat"],
    ... )
    >>> trace
    Trace(2 rows, 2 nodes, prediction, label)
    >>> trace.wrong().tolist()
    [[False, False], [True, False]]
    """

    spec: CascadeSpec
    confidence: NDArray[np.float64]
    """Shape (T, n), finite. Any number that grows with the node's certainty."""
    _: KW_ONLY
    prediction: NDArray[np.int32] | None = None
    """Shape (T, n): codes into ``classes``; -1 where the node gave no answer."""
    label: NDArray[np.int32] | None = None
    """Shape (T,): codes into ``classes``; -1 where the label is not known."""
    correct: NDArray[np.bool_] | None = None
    """Shape (T, n): whether the node was right, where the log has it."""
    loss: NDArray[np.float64] | None = None
    """Shape (T, n), finite and not negative: what the node's answer loses. It takes the place of
    ``correct``; its unit is the user's."""
    largest_loss: float | None = None
    """The largest ``loss``: the unit of loss of a fit, where the cascade has none. Rows taken from
    a trace keep it."""
    cost: NDArray[np.float64] = None  # type: ignore[assignment]  # the cascade's, if not given
    """Shape (n,), the cascade's own, or (T, n) where the log has one per row. Not negative."""
    signals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Shape (T,) each: what is known of the input before a node is asked."""
    extras: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Shape (T, n) each, named as in ``EXTRA_FIELDS``; all NaN for a node without it."""
    classes: tuple[str, ...] = ()
    """The text of each class; predictions and labels share it."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many rows were left out in reading, by reason; no row is counted twice."""
    notes: tuple[str, ...] = ()
    """What reading decided by default, in sentences for the user."""

    def __post_init__(self) -> None:
        spec, rows, count = self.spec, len(np.atleast_1d(self.confidence)), len(self.spec)
        put = object.__setattr__
        put(self, "classes", tuple(self.classes))
        put(self, "notes", tuple(self.notes))
        put(self, "confidence", _array(self.confidence, np.float64, (rows, count), "confidence"))
        _check_finite(self.confidence, "confidence", spec.names)
        cost: object = self.cost
        if cost is None:
            put(self, "cost", spec.costs)
        elif np.ndim(self.cost) == 1:
            put(self, "cost", _array(cost, np.float64, (count,), "cost"))
            if not np.array_equal(self.cost, spec.costs):
                raise TraceError(
                    "cost: one cost per node must be the cascade's own; give the cascade these "
                    "costs (CascadeSpec.with_costs), or one cost per row and node"
                )
        else:
            put(self, "cost", _array(cost, np.float64, (rows, count), "cost"))
            _check_finite(self.cost, "cost", spec.names)
            _check_not_negative(self.cost, spec.names, "cost")
        for name, shape in (("prediction", (rows, count)), ("label", (rows,))):
            if getattr(self, name) is not None:
                codes = np.asarray(getattr(self, name))
                put(self, name, _array(codes, np.int32, shape, name))
                if rows and not -1 <= codes.min() <= codes.max() < len(self.classes):
                    raise TraceError(
                        f"{name}: codes run from -1 (no answer) to {len(self.classes) - 1}, the "
                        f"last of the classes; there are codes from {codes.min()} to {codes.max()}"
                    )
        if self.correct is not None:
            put(self, "correct", _array(self.correct, np.bool_, (rows, count), "correct"))
        if self.loss is not None:
            put(self, "loss", _array(self.loss, np.float64, (rows, count), "loss"))
            _check_finite(self.loss, "loss", spec.names)
            _check_not_negative(self.loss, spec.names, "loss")
            _check_max_loss(self.loss, spec)
            largest = float(self.loss.max(initial=0.0))
            put(self, "largest_loss", max(largest, self.largest_loss or 0.0))
        columns = {f"{n}.{f}" for n in spec.names for f in (*_NODE_FIELDS, *EXTRA_FIELDS)}
        signals = {}
        remedy = "write {name: values}"
        require_kind(self.signals, Mapping, "signals must be a mapping of arrays", remedy)
        for name, values in self.signals.items():
            if not name or f"signal.{name}" in columns:
                raise TraceError(f"signal {name!r}: this name is taken by a node; choose another")
            signals[name] = _array(values, np.float64, (rows,), f"signal {name!r}")
            _check_finite(signals[name], f"signal {name!r}", ())
        put(self, "signals", signals)
        extras = {}
        for name, values in self.extras.items():
            if name not in EXTRA_FIELDS:
                raise TraceError(f"extras: {name!r} is not one of {', '.join(EXTRA_FIELDS)}")
            extras[name] = _array(values, np.float64, (rows, count), name)
            _check_finite(extras[name], name, spec.names, whole_column=True)
        put(self, "extras", extras)
        put(self, "left_out", dict(self.left_out))

    @classmethod
    def from_arrays(
        cls,
        spec: CascadeSpec | Mapping[str, float],
        confidence: ArrayLike,
        *,
        prediction: Sequence[Sequence[object]] | NDArray[Any] | None = None,
        label: Sequence[object] | NDArray[Any] | None = None,
        score: ArrayLike | None = None,
        **fields: Any,
    ) -> Trace:
        """Build a trace from predictions and labels as they are: text, numbers, ``None``.

        Args:
            spec: The cascade, or the cost of each node by name.
            confidence: Shape (T, n).
            prediction: Shape (T, n): the class that each node predicts; ``None`` is no answer.
            label: Shape (T,): the right class; ``None`` where it is not known.
            score: Shape (T, n): a grade of each answer from 0 to 1; its loss is 1 minus the score.
            **fields: Further fields of the class, such as ``loss``, ``correct`` and ``cost``.

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
        codes = ClassCodes()
        coded = None if label is None else codes.encode(label)
        predicted = None if prediction is None else codes.encode(prediction)
        values: Any = _numbers(confidence, "confidence")
        if score is not None:
            if fields.get("loss") is not None:
                raise TraceError("give losses or scores, not both")
            spec, fields["loss"] = graded(spec, _numbers(score, "score"))
        trace = cls(
            spec, values, prediction=predicted, label=coded, classes=codes.classes, **fields
        )
        check_classes(trace, "the arrays")
        return trace

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        cascade: CascadeSpec | str | os.PathLike[str] | None = None,
        *,
        costs: Mapping[str, float] | None = None,
        order: Order = "auto",
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
            order: With ``costs``: the order of the cascade.
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
            frame, cascade, costs=costs, order=order, target=target, on_bad=on_bad
        )

    def to_frame(self, library: FrameLibrary = "pandas") -> Any:
        """Return the rows as a data frame, with the columns of a trace file.

        Args:
            library: ``"pandas"``, ``"polars"`` or ``"arrow"``.

        Returns:
            A frame of that library, one row for each input.

        Raises:
            MissingExtra: If the library is not installed.

        >>> from ttamer.trace.spec import CascadeSpec
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
        """Shape (T, n): what asking each node costs on each row; a view."""
        return np.broadcast_to(self.cost, self.confidence.shape)

    def __len__(self) -> int:
        return len(self.confidence)

    def __repr__(self) -> str:
        known = [n for n in _OUTCOMES if getattr(self, n) is not None]
        if self.cost.ndim == 2:
            known.append("cost per row")
        known += [*self.extras, *(f"signal.{name}" for name in self.signals)]
        sizes = [counted(len(self), "row"), counted(len(self.spec), "node")]
        return f"Trace({', '.join([*sizes, *known])})"

    def _repr_html_(self) -> str:
        means = [self.costs.mean(axis=0), self.confidence.mean(axis=0)] if len(self) else []
        head = ["node", "cost", "mean confidence"]
        columns = [[number(value) for value in mean.tolist()] for mean in means]
        try:
            lost = np.asarray(self.losses(), np.float64)
        except TraceError:  # it does not have which answers are right
            lost = np.empty((0, len(self.names)))
        if len(lost):
            mean = lost.mean(axis=0).tolist()
            graded = self.is_graded
            head.append(self.measure if graded else "right")
            columns.append([number(x) if graded else percent(1 - x, digits=1) for x in mean])
        rows = [list(row) for row in zip(self.names, *columns, strict=True)]
        return card(repr(self), notes=self.notes, head=head[: len(columns) + 1], rows=rows)

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
        losses = np.asarray(self.losses(), np.float64)
        shown = losses if self.is_graded else 1 - losses
        curves = {}
        for place, name in enumerate(self.names):
            order = np.argsort(self.confidence[:, place], kind="stable")
            parts = [part for part in np.array_split(order, _PLOT_PARTS) if len(part)]
            means = [float(shown[part, place].mean()) for part in parts]
            curves[name] = ([(k + 0.5) / len(parts) for k in range(len(parts))], means)
        what = self.measure if self.is_graded else "right"
        axis = "rows, from the least certain to the most certain"
        percents = not self.is_graded
        return draw_curves(curves, axis, what, x_percent=True, y_percent=percents).written(path)

    def wrong(self, target: Target | None = None) -> NDArray[np.bool_]:
        """Return, shape (T, n), where each node is wrong; no answer is a wrong answer.

        Args:
            target: ``"label"``: wrong where ``correct`` is false or, without it, where prediction
                and label differ. ``"last"``: wrong where the prediction differs from the last
                node's, which is right by definition. By default the cascade's own target.

        Returns:
            Shape (T, n): true where the node is wrong.

        Raises:
            ArgumentError: If the target is neither of these.
            TraceError: If the trace lacks what the target needs.
        """
        target = self.spec.target if target is None else target
        if target == "last":
            return self._wrong_against_last()
        if target != "label":
            raise ArgumentError(f'target is {target!r}; it must be "label" or "last"')
        if self.correct is not None:
            return ~self.correct
        if self.prediction is None or self.label is None:
            lacks = " and ".join(n for n in ("prediction", "label") if getattr(self, n) is None)
            unused = [note for note in self.notes if note.startswith("columns not used")]
            raise TraceError(
                f'target "label" needs to know which answers are right; the trace has no {lacks}: '
                "add columns <node>.correct, or <node>.prediction and label"
                + ("" if self.prediction is None else ', or set target = "last"')
                + "".join(f" ({note})" for note in unused)
            )
        unknown = np.flatnonzero(self.label < 0)
        if unknown.size:
            raise TraceError(
                f'target "label": {counted(unknown.size, "row")} without a label, the first is row '
                f"{unknown[0]} (counting from 0); leave them out, or add <node>.correct"
            )
        # A prediction of -1 is no label's code, so no answer is wrong.
        return np.asarray(self.prediction != self.label[:, np.newaxis])

    def _wrong_against_last(self) -> NDArray[np.bool_]:
        if self.prediction is None:
            more = (
                ""
                if self.correct is None
                else '; if correct already means agreement with the last node, set target = "label"'
            )
            raise TraceError(
                'target "last" compares predictions with the last node\'s, and the trace has none: '
                f"add columns <node>.prediction{more}"
            )
        wrong = self.prediction != self.prediction[:, -1:]
        wrong |= self.prediction < 0
        wrong[:, -1] = False
        return np.asarray(wrong)

    @property
    def is_graded(self) -> bool:
        """Whether answers have losses of their own: ``loss``, or mistakes that cost unequally."""
        return self.loss is not None or bool(self.spec.mistakes)

    @property
    def measure(self) -> Measure:
        """What policies are measured by: the error, or the mean loss where answers have losses."""
        return "mean loss" if self.is_graded else "error"

    def losses(self, target: Target | None = None) -> Losses:
        """Return, shape (T, n), what each answer loses.

        Where answers are right or wrong this is :meth:`wrong`: truth values, and true is a loss
        of 1.

        Args:
            target: ``"label"``: the losses of the trace, or what the mistakes cost. ``"last"``: by
                how much an answer loses more than the last node's, and 0 where it loses less; with
                a table of mistakes, what they cost if the last node is right, and the largest of
                them where it has no answer. By default the cascade's own target.

        Returns:
            Shape (T, n): truth values, or finite numbers that are not negative.

        Raises:
            ArgumentError: If the target is neither of these.
            TraceError: If the trace lacks what the target needs.

        >>> from ttamer.trace.spec import CascadeSpec
        >>> spec = CascadeSpec.of({"small": 1.0, "large": 10.0})
        >>> trace = Trace(spec, [[0.9, 0.8]], loss=[[0.5, 0.25]])
        >>> trace.losses().tolist(), trace.losses("last").tolist()
        ([[0.5, 0.25]], [[0.25, 0.0]])
        """
        target = self.spec.target if target is None else target
        if not self.is_graded:
            return self.wrong(target)
        if target not in ("label", "last"):
            raise ArgumentError(f'target is {target!r}; it must be "label" or "last"')
        if self.loss is not None:
            if target == "label":
                return self.loss
            return np.maximum(self.loss - self.loss[:, -1:], 0.0)
        if self.prediction is None:
            raise TraceError(
                "[cascade] has a table of mistakes, which needs predictions: add columns "
                "<node>.prediction"
            )
        right = self.prediction[:, -1] if target == "last" else self.label
        if right is None:
            raise TraceError(
                "[cascade] has a table of mistakes, which needs labels: add a column label, or "
                'set target = "last"'
            )
        unknown = np.flatnonzero(right < 0)
        if unknown.size and target == "label":
            raise TraceError(
                f"mistakes: {counted(unknown.size, 'row')} without a label, the first is row "
                f"{unknown[0]} (counting from 0); leave them out"
            )
        table = mistake_table(self.spec.mistakes, self.classes)
        costs = np.asarray(table[right[:, np.newaxis], self.prediction])
        if target == "last":
            costs[unknown] = largest_mistake(self.spec.mistakes)  # no answer equals no answer
            costs[:, -1] = 0.0
        return costs

    @property
    def loss_scale(self) -> float:
        """The unit of loss of a fit: the largest loss there can be, or that the rows have.

        It is 1 where answers are right or wrong, and for scores.
        """
        if not self.is_graded:
            return 1.0
        return self.spec.loss_bound or self.largest_loss or 1.0

    def loss_shares(self, target: Target | None = None) -> Losses:
        """Return, shape (T, n), the losses as shares of ``loss_scale``: from 0 to 1.

        Args:
            target: As for :meth:`losses`.

        Returns:
            Shape (T, n): truth values, or numbers from 0 to 1.
        """
        losses = self.losses(target)
        return losses if losses.dtype == np.bool_ else losses / self.loss_scale

    def with_spec(self, spec: CascadeSpec) -> Trace:
        """Return the same rows for a cascade of the same nodes with other costs, order or target.

        Args:
            spec: The cascade, with the same nodes in the same order.

        Returns:
            The trace, with the costs of the new cascade on every row.

        Raises:
            ArgumentError: If the cascade has other nodes.

        >>> from ttamer.trace.spec import CascadeSpec
        >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0}), [[0.1, 0.2]])
        >>> trace.with_spec(CascadeSpec.of({"a": 3.0, "b": 4.0}, order="fixed")).costs.tolist()
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

        >>> from ttamer.trace.spec import CascadeNode, CascadeSpec
        >>> trace = Trace(CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),)), [[0.9], [0.4]])
        >>> split = trace.with_verification()
        >>> split.names, split.confidence.tolist(), split.cost.tolist()
        (('a', 'a (verified)'), [[0.0, 0.9], [0.0, 0.4]], [1.0, 0.5])
        """
        spec = self.spec.split_verified()
        if spec is self.spec:
            return self
        source = split_nodes(self.spec.nodes)[1]
        unseen = [k for k, (one, two) in enumerate(pairwise(source)) if one == two]
        verified = [k + 1 for k in unseen]

        fields = self._fields_for(spec, source)
        fields["confidence"][:, unseen] = 0.0
        if self.cost.ndim == 2:
            fields["cost"][:, verified] = spec.costs[verified]
        for name, values in fields["extras"].items():
            values[:, verified if name == "latency" else unseen] = np.nan
        return dataclasses.replace(self, **fields)

    def _fields_for(self, spec: CascadeSpec, nodes: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a trace for another cascade, whose columns are those of nodes."""

        def columns(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else np.asfortranarray(values[:, nodes])

        return {
            "spec": spec,
            "confidence": columns(self.confidence),
            "prediction": columns(self.prediction),
            "correct": columns(self.correct),
            "loss": columns(self.loss),
            "cost": spec.costs if self.cost.ndim == 1 else columns(self.cost),
            "extras": {name: columns(values) for name, values in self.extras.items()},
        }

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
        return self._with_rows(lambda array: None if array is None else _rows(array, index))

    def _with_rows(self, pick: Any) -> Trace:
        """Return a trace whose arrays are picked from checked ones, without checking again."""
        part = object.__new__(Trace)
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in ("confidence", *_OUTCOMES) or (
                each.name == "cost" and self.cost.ndim == 2
            ):
                value = pick(value)
            elif each.name in ("signals", "extras"):
                value = {name: pick(array) for name, array in value.items()}
            elif each.name == "left_out":
                value = {}
            object.__setattr__(part, each.name, value)
        return part

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

        >>> from ttamer.trace.spec import CascadeSpec
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

        >>> from ttamer.trace.spec import CascadeSpec
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
        codes = ClassCodes(first.classes)
        recode = [np.array([*map(codes.code, trace.classes), -1], np.int32) for trace in traces]

        def stack(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            out = np.empty(
                (sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype, order="F"
            )
            np.concatenate(arrays, out=out)
            return out

        def coded(name: str) -> NDArray[np.int32] | None:
            arrays = [getattr(trace, name) for trace in traces]
            if arrays[0] is None:
                return None
            # Code -1 picks the last entry of each table, which is -1.
            return stack([table[array] for table, array in zip(recode, arrays, strict=True)])

        same_cost = all(t.cost.ndim == 1 and np.array_equal(t.cost, first.cost) for t in traces)
        left_out: dict[str, int] = {}
        for trace in traces:
            for reason, count in trace.left_out.items():
                left_out[reason] = left_out.get(reason, 0) + count
        return dataclasses.replace(
            first,
            confidence=stack([trace.confidence for trace in traces]),
            prediction=coded("prediction"),
            label=coded("label"),
            correct=None if first.correct is None else stack([t.correct for t in traces]),  # type: ignore[misc]
            loss=None if first.loss is None else stack([t.loss for t in traces]),  # type: ignore[misc]
            largest_loss=None if first.loss is None else max(t.largest_loss or 0.0 for t in traces),
            cost=first.cost if same_cost else stack([trace.costs for trace in traces]),
            signals={name: stack([t.signals[name] for t in traces]) for name in first.signals},
            extras={name: stack([t.extras[name] for t in traces]) for name in first.extras},
            classes=codes.classes,
            left_out=left_out,
            notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        )

    def restrict(self, nodes: Iterable[str]) -> Trace:
        """Return the trace of some nodes, in the cascade's own order.

        A node cannot stay without its parent (``after``), nor any node without the last one where
        that is the target: what is right would change. An exit left out is always passed: the cost
        of that is added to the next exit that stays. With order "fixed" that is all its cost, since
        the share of its ramp is not known.

        Args:
            nodes: The names to keep.

        Returns:
            The trace of these nodes, with all rows.

        Raises:
            ArgumentError: If a name is unknown, or the target or a parent is left out.

        >>> from ttamer.trace.spec import CascadeSpec
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
        if spec.order == "fixed":
            between = [self.costs[:, u + 1 : v].sum(axis=1) for u, v in pairwise((-1, *kept))]
        else:
            between = [np.array([spec.passed(u, v)]) for u, v in pairwise((-1, *kept))]
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

        It covers the node names, their costs, and every row; not ``order``, ``target`` or notes.
        """
        used = np.zeros(len(self.classes) + 1, bool)  # the last entry stands for code -1
        for codes in (self.label, self.prediction):
            for column in [] if codes is None else _columns(codes):
                used[column] = True
        met = np.flatnonzero(used[:-1])
        ranked = sorted(met.tolist(), key=lambda code: self.classes[code])
        rank = np.full(len(used), -1, np.int32)
        rank[ranked] = np.arange(len(ranked), dtype=np.int32)

        head = {
            "rows": len(self),
            "nodes": self.names,
            "classes": [self.classes[code] for code in ranked],
            "cost": self.cost.ndim,
        }
        if self.spec.has_passing:  # a cost like the others, though no column
            head["passing"] = self.spec.passing.tolist()
        sha = hashlib.sha256(json.dumps(head).encode())
        parts: list[tuple[str, NDArray[Any] | None]] = [
            ("confidence", self.confidence),
            ("cost", self.cost),
            ("prediction", self.prediction),
            ("label", self.label),
            ("correct", self.correct),
            ("loss", self.loss),
            *((f"signal.{name}", self.signals[name]) for name in sorted(self.signals)),
            *((f"extra.{name}", self.extras[name]) for name in sorted(self.extras)),
        ]
        for name, part in parts:
            if part is None:
                continue
            sha.update(f"\n{name}\n".encode())
            for column in _columns(part):
                for start in range(0, len(column), _DIGEST_ROWS):
                    values = column[start : start + _DIGEST_ROWS]
                    if values.dtype == np.int32:
                        values = rank[values].astype("<i4")
                    elif values.dtype != np.bool_:
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
        r"""Read a whole trace from Parquet, CSV (plain or gzipped) or NPZ.

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
        from ttamer.trace.files import open_layout, open_source, read_source

        remedy = "for a data frame call Trace.from_frame(frame, costs={...})"
        require_path(path, "Trace.read", remedy)
        source = open_source(path)
        return read_source(source, open_layout(source, cascade, str(path), on_bad), on_bad)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet, CSV or NPZ, by the suffix; the file appears whole or not at all.

        Parquet and NPZ keep the cascade inside; CSV cannot, so write it with ``spec.to_file``.

        Args:
            path: The file; its suffix determines the format.

        Raises:
            TraceError: If the file cannot be written, or the trace has no rows.
        """
        from ttamer.trace.files import write_trace

        write_trace(self, path)


_DIGEST_ROWS = 1 << 17  # rows hashed at a time: no second copy of the trace is made
_NODE_FIELDS = ("confidence", "prediction", "correct", "loss", "score", "cost")
# Arrays by row that a trace may lack.
_OUTCOMES = ("prediction", "label", "correct", "loss")


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
    outside = ~((score >= 0) & (score <= 1))  # NaN is outside too
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


def _array(values: Any, kind: type, shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Return a read-only view of the values in the right type; refuse what does not fit."""
    array = np.asarray(values)
    if kind is np.bool_ and array.dtype != np.bool_:
        is_number = array.dtype.kind in "iuf"  # of text, astype(bool) is true throughout
        remedy = "write .astype(bool)" if is_number else 'compare it, as with values == "yes"'
        raise TraceError(f"{what}: must be truth values, not {array.dtype}; {remedy}")
    if array.dtype.kind not in ("biu" if kind is np.int32 else "biuf"):
        raise TraceError(f"{what}: must be numbers, not {array.dtype}")
    if array.shape != shape:
        raise TraceError(
            f"{what}: has shape {array.shape}, and {shape} is needed ((rows, nodes) or (rows,))"
        )
    view: NDArray[Any] = array.astype(kind, copy=False).view()
    view.setflags(write=False)
    return view


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


def _check_finite(
    array: NDArray[np.float64], what: str, names: tuple[str, ...], *, whole_column: bool = False
) -> None:
    columns = array[:, np.newaxis] if array.ndim == 1 else array
    for column in range(columns.shape[1] if len(array) else 0):
        bad = ~np.isfinite(columns[:, column])
        if not bad.any() or (whole_column and np.isnan(columns[:, column]).all()):
            continue
        first = int(bad.argmax())
        place = f"{what} of {names[column]!r}" if names else what
        raise TraceError(
            f"{place}: row {first} (counting from 0) is {columns[first, column]} (values that are "
            f"not finite: {int(bad.sum())}); fix them, or leave the rows out"
        )


def _check_not_negative(values: NDArray[np.float64], names: tuple[str, ...], what: str) -> None:
    for column, name in enumerate(names):
        bad = values[:, column] < 0
        if bad.any():
            first = int(bad.argmax())
            raise TraceError(
                f"{what} of {name!r}: row {first} (counting from 0) is {values[first, column]}; "
                f"a {what} is not negative"
            )


def _check_max_loss(loss: NDArray[np.float64], spec: CascadeSpec) -> None:
    if spec.mistakes:
        raise TraceError(
            "the trace has losses, and the cascade a table of mistakes, which are losses too: "
            "remove the columns <node>.loss, or mistakes from [cascade]"
        )
    if spec.max_loss is not None and loss.size and loss.max() > spec.max_loss:
        row, node = np.unravel_index(int(loss.argmax()), loss.shape)
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
    if trace.spec.has_passing != first.spec.has_passing or not np.array_equal(
        trace.spec.passing, first.spec.passing
    ):
        raise TraceError(
            f"concat: trace {position} passes its nodes at other costs than trace 0, and passing "
            "has one cost for all rows; read them with one cascade.toml"
        )
    mine, other = _parts(first), _parts(trace)
    if mine != other:
        odd = ", ".join(sorted(mine ^ other))
        raise TraceError(
            f"concat: trace 0 and trace {position} differ in their columns: {odd}; "
            "all of them must have these, or none"
        )


def _parts(trace: Trace) -> set[str]:
    known = {n for n in _OUTCOMES if getattr(trace, n) is not None}
    return known | set(trace.extras) | {f"signal.{name}" for name in trace.signals}


def _passing_more(node: CascadeNode, more: float) -> CascadeNode:
    passing = None if node.passing is None else node.passing + more
    return dataclasses.replace(node, cost=node.cost + more, passing=passing)


def _columns(array: NDArray[Any]) -> list[NDArray[Any]]:
    return [array] if array.ndim == 1 else list(array.T)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """One pattern of bits for each number: no negative zero, one NaN, little-endian."""
    plain = values.astype("<f8") + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain
