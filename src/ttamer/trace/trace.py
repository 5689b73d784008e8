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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer._checks import (
    counted,
    in_unit,
    number,
    percent,
    read_only,
    require,
    require_kind,
    require_path,
    require_whole,
)
from ttamer.cascade import CascadeSpec, split_nodes
from ttamer.errors import ArgumentError, TraceError
from ttamer.show import card, table
from ttamer.trace import checks
from ttamer.trace.losses import losses_of
from ttamer.trace.schema import (
    CONFIDENCE,
    COST,
    INPUT,
    SCHEMA,
    SCORE,
    ClassCodes,
    Column,
    column_of_input,
    fields_of,
    is_of_node,
    refuse_faults,
    used_codes,
)

OnBad = Literal["refuse", "skip"]
Measure = Literal["error", "mean loss"]
Cascade = CascadeSpec | Mapping[str, float] | str | os.PathLike[str] | None


@dataclass(frozen=True, eq=False)
class Columns:
    """The arrays of a trace, checked: read-only, not copied."""

    spec: CascadeSpec
    confidence: NDArray[np.float64]
    """Shape (T, n): any number that grows with the node's certainty; NaN: no answer."""
    _: KW_ONLY
    cost: NDArray[np.float64] | None = None
    """Shape (T, n): what each call cost, not negative; ``None``: the cascade's costs hold."""
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
    # Shape (T, n), all NaN for a node without.
    entropy: NDArray[np.float64] | None = None
    latency: NDArray[np.float64] | None = None
    margin: NDArray[np.float64] | None = None
    group: NDArray[np.int32] | None = None
    """Shape (T,): codes into ``groups``; rows of one group are never split. -1: a row alone."""
    prompt: NDArray[Any] | None = None
    """Shape (T,): the text of each input; ``None``: not known."""
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What else is known of an input before a node is asked: numbers (T,), categories (T,) as text,
    vectors (T, d)."""
    classes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # Rows taken from a trace keep its unit.
    largest_loss: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many rows were left out in reading, by reason; no row is counted twice."""
    sampled_of: int | None = None
    """How many rows the log has, where these are a uniform sample of them."""
    notes: tuple[str, ...] = ()
    """What reading decided by default, in sentences for the user."""

    def __post_init__(self) -> None:
        require_kind(self.inputs, Mapping, "inputs must be a mapping of arrays", "{name: values}")
        # A file would give the column to the node.
        for name in self.inputs:
            node, _, last = f"{INPUT}{name}".rpartition(".")
            if not name or (is_of_node(last) and node in self.names):
                raise TraceError(f"input {name!r}: this name is taken by a node; choose another")
        fields: dict[str, Any] = {"left_out": dict(self.left_out)}
        fields |= {name: tuple(getattr(self, name)) for name in ("classes", "groups", "notes")}
        shape = (len(np.atleast_1d(self.confidence)), len(self.spec))
        arrays = {c: c.array(v, shape[: 2 if c.by == "node" else 1]) for c, v in self.columns()}
        for name, value in (fields | fields_of(arrays)).items():
            object.__setattr__(self, name, value)  # the class is frozen
        # After all shapes are known: checks index one array by another.
        for column, codes in arrays.items():
            top = len(getattr(self, column.texts)) - 1 if column.texts else 0
            if column.texts and codes.size and not -1 <= codes.min() <= codes.max() <= top:
                raise TraceError(
                    f"{column.name}: codes run from -1 (no answer) to {top}, the last of the "
                    f"{column.texts}; there are codes from {codes.min()} to {codes.max()}",
                    param=column.field,
                )
        refuse_faults(arrays, self.names)
        if self.raw_loss is not None:
            self._check_losses(self.raw_loss)

    def _check_losses(self, loss: NDArray[np.float64]) -> None:
        if self.spec.mistakes:
            raise TraceError(
                "the trace has losses, and the cascade a table of mistakes, which are losses too: "
                "remove the columns <node>.loss, or mistakes from [cascade]"
            )
        largest, bound = float(np.nanmax(loss, initial=0.0)), self.spec.max_loss
        if bound is not None and largest > bound:
            row, node = np.argwhere(loss == largest)[0]
            raise TraceError(
                f"loss of {self.names[node]!r}: row {row} (counting from 0) is {largest}, and "
                f"[cascade] has max_loss = {bound:g}: correct one of them"
            )
        object.__setattr__(self, "largest_loss", max(largest, self.largest_loss or 0.0))

    def __len__(self) -> int:
        return len(self.confidence)

    def columns(self) -> Iterator[tuple[Column, NDArray[Any]]]:
        """Yield the columns that have a value for each row, with their arrays."""
        for column in SCHEMA:
            values = getattr(self, column.field)
            if values is not None:
                yield column, values
        for name, values in self.inputs.items():
            yield column_of_input(name), values

    @property
    def names(self) -> tuple[str, ...]:
        """Node names, in order."""
        return self.spec.names

    @property
    def costs(self) -> NDArray[np.float64]:
        """Shape (T, n): what asking each node costs on each row, NaN where not known; a view."""
        # No memory where the cascade's costs hold on every row.
        cost = self.spec.costs if self.cost is None else self.cost
        return np.broadcast_to(cost, self.confidence.shape)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Shape (T, n): where a node answered; read-only."""
        return read_only(~np.isnan(self.confidence))

    @cached_property
    def units(self) -> NDArray[np.intp]:
        """Shape (T,): equal on rows of one group, which are never split, and on no others."""
        rows = np.arange(len(self))
        if self.group is None:
            return read_only(rows)
        alone = self.group.max(initial=-1) + 1 + rows
        return read_only(np.where(self.group < 0, alone, self.group))

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
        return checks.coverage(self)

    def take(self, rows: ArrayLike | slice) -> Self:
        """Return the trace of some rows, without what describes the reading.

        Args:
            rows: Positions counting from 0, a mask of shape (T,), or a slice.

        Returns:
            The trace of these rows, in the order given; classes keep their codes.

        Raises:
            ArgumentError: If a position is out of range, or a mask has another length.
        """
        index = rows if isinstance(rows, slice) else _positions(np.asarray(rows), len(self))
        arrays = {c: _rows_of(c, values, index) for c, values in self.columns()}
        return self._with(left_out={}, sampled_of=None, **fields_of(arrays))

    def _with(self, **fields: Any) -> Self:
        """Return the trace with other fields, made of checked ones: nothing is checked again."""
        part = object.__new__(type(self))
        for item in dataclasses.fields(self):
            object.__setattr__(part, item.name, fields.get(item.name, getattr(self, item.name)))
        return part

    def split(self, fraction: float, seed: int) -> tuple[Self, Self]:
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
        if not 0 < fraction < 1:
            raise ArgumentError(
                f"fraction is {fraction}; it must lie between 0 and 1", param="fraction"
            )
        require_whole(seed, "seed")
        checks.require_rows(self, 2, "a split")
        order = np.random.default_rng(seed).permutation(len(self))
        # Groups in the order of their first row.
        _, first, member = np.unique(self.units[order], return_index=True, return_inverse=True)
        rank = first[member]
        ends = np.flatnonzero(np.diff(np.sort(rank)) > 0) + 1  # where a group ends
        if not len(ends):
            raise TraceError("all rows are of one group, which is never split: bring more groups")
        # A part without rows could be neither fitted to nor tested on.
        count = int(ends[np.abs(ends - round(fraction * len(self))).argmin()])
        # Stable: rows of a group keep their random order.
        order = order[np.argsort(rank, kind="stable")]
        return self.take(order[:count]), self.take(order[count:])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content: the same whatever the file format or the order of classes.

        It covers the node names, their costs, and every row; not ``kind``, ``target`` or notes.
        """
        # Codes of classes depend on the order of reading: ranks among the texts in use do not.
        ranks, used = {}, {}
        for texts in ("classes", "groups"):
            codes = [array for column, array in self.columns() if column.texts == texts]
            ranks[texts], used[texts] = _ranks(codes, getattr(self, texts))
        # Names and order are those of 0.2: policy files hold digests.
        head: dict[str, Any] = {"rows": len(self), "nodes": self.names, "classes": used["classes"]}
        head["cost"] = 1 if self.cost is None else 2  # the dimensions of the array of costs
        if used["groups"]:
            head["groups"] = used["groups"]
        if (passing := _reach_of(self.spec)) is not None:
            head["passing"] = passing
        sha = hashlib.sha256(json.dumps(head).encode())
        first = ("confidence", "cost", "prediction", "label", "correct", "loss", "chance", "group")
        titles = {name: name for name in (*first, "prompt")}
        titles |= {INPUT + name: f"signal.{name}" for name in sorted(self.inputs)}
        titles |= {name: f"extra.{name}" for name in ("entropy", "latency", "margin")}
        columns = {"cost": (COST, self.spec.costs)} | {c.name: (c, v) for c, v in self.columns()}
        for name in filter(columns.__contains__, titles):
            column, array = columns[name]
            sha.update(f"\n{titles[name]}\n".encode())
            for values in [array] if array.ndim == 1 else array.T:
                for start in range(0, len(values), 1 << 17):  # no second copy of the trace is made
                    part = values[start : start + (1 << 17)]
                    sha.update(_hashed(ranks[column.texts][part] if column.texts else part))
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
            The trace.

        Raises:
            TraceError: If an array has another shape or a value that cannot be used, or if no
                label is ever predicted by any node.

        Warns:
            TraceWarning: If a class is written in two ways, such as with a space at its end.

        >>> Trace.from_arrays({"small": 1.0, "large": 9.0}, [[0.4, 0.9]], loss=[[3.5, 0.2]]).names
        ('small', 'large')
        """
        spec = spec if isinstance(spec, CascadeSpec) else CascadeSpec.of(spec)
        codes, groups = ClassCodes(), ClassCodes()
        for name, values, coder in (
            ("label", label, codes),
            ("prediction", prediction, codes),
            ("group", group, groups),
        ):
            fields[name] = None if values is None else coder.encode(values)
        if loss is not None:
            fields["raw_loss"] = loss
        if score is not None:
            if loss is not None:
                raise TraceError("give losses or scores, not both")
            grades = ((CONFIDENCE, confidence), (SCORE, score))
            arrays = {c: c.array(v, (np.shape(confidence)[0], len(spec))) for c, v in grades}
            refuse_faults(arrays, spec.names)
            spec, fields["raw_loss"] = graded(spec, arrays[SCORE])
        fields |= {"classes": codes.classes, "groups": groups.classes}
        trace = cls(spec, confidence, **fields)  # type: ignore[arg-type]
        checks.check_classes(trace, "the arrays")
        return trace

    @classmethod
    def from_frame(cls, frame: Any, cascade: Cascade = None, *, on_bad: OnBad = "refuse") -> Trace:
        """Build a trace from a data frame with the columns of a trace file.

        Args:
            frame: A frame of pandas or polars, an Arrow table, or any object that exports an Arrow
                stream (``__arrow_c_stream__``).
            cascade: As for :meth:`read`.
            on_bad: As for :meth:`read`.

        Returns:
            The trace.

        Raises:
            ArgumentError: If it is no data frame.
            TraceError: If the frame cannot be used; the message names column and row.

        >>> import pandas
        >>> frame = pandas.DataFrame({"a.confidence": [0.9, 0.4], "a.correct": [True, False]})
        >>> len(Trace.from_frame(frame, {"a": 1.0}))
        2
        """
        from ttamer.trace.io import read_all, source_of_frame

        return read_all(source_of_frame(frame), cascade, on_bad)

    def to_frame(self) -> Any:
        """Return the rows as a pandas frame, with the columns of a trace file.

        Returns:
            A frame, one row for each input.

        >>> trace = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
        >>> trace.to_frame()["only.confidence"].tolist()
        [0.5, 0.6]
        """
        from ttamer.trace.io import table_of

        require("pandas", "frames")
        return table_of(self).to_pandas()

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        cascade: Cascade = None,
        *,
        on_bad: OnBad = "refuse",
        sample: int | None = None,
    ) -> Trace:
        r"""Read a trace from Parquet, CSV (plain or gzipped) or JSON Lines.

        A log may have one line per input (columns ``<node>.confidence``), or one per call (columns
        ``id``, ``node`` and ``confidence``).

        Args:
            path: The file; its suffix determines the format.
            cascade: A ``cascade.toml``, a :class:`CascadeSpec`, or the cost of each node by its
                name. Without one, the cascade kept in the file is used; without that the nodes are
                taken from the columns, and ``notes`` has a sentence about it.
            on_bad: A row with a missing, NaN or infinite value is refused, or with ``"skip"`` left
                out and counted in ``left_out``.
            sample: The most rows, drawn uniformly where there are more: of a file larger than
                memory.

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

        remedy = "for a data frame call Trace.from_frame(frame, {...})"
        require_path(path, "Trace.read", remedy)
        if sample is not None:
            require_whole(sample, "sample", least=1)
        return read_all(open_source(path), cascade, on_bad, sample)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet, CSV or JSON Lines, by the suffix: the whole file, or none.

        Parquet keeps the cascade inside; the others cannot, so write it with ``spec.to_file``.

        Args:
            path: The file; its suffix determines the format.

        Raises:
            TraceError: If the file cannot be written, or the trace has no rows.
        """
        from ttamer.trace.io import write_trace

        write_trace(self, path)

    def __repr__(self) -> str:
        names = [column.name for column, _ in self.columns()][1:]
        if len(names) > 9:
            names = [*names[:8], f"{len(names) - 8} more columns"]
        return f"Trace({', '.join([counted(len(self.spec), 'node'), *names])}; {self.coverage})"

    def _repr_html_(self) -> str:
        head, *rows = _cells(self)
        title = f"Trace: {counted(len(self), 'row', ',')}, {counted(len(self.spec), 'node')}"
        return card(title, notes=[*self.notes, self.coverage], head=head, rows=rows)

    def table(self) -> str:
        """Return how often each node answers and is right, and what it costs, as text.

        Returns:
            A table with one line for each node.

        >>> trace = Trace(CascadeSpec.of({"a": 1.0}), [[0.5], [0.7]], correct=[[True], [False]])
        >>> print(trace.table())
          node  answers  cost  mean confidence  right
          a        100%     1              0.6  50.0%
        """
        head, *rows = _cells(self)
        return table(head, rows)

    def with_spec(self, spec: CascadeSpec) -> Trace:
        """Return the same rows for a cascade of the same nodes with other costs, kind or target.

        Args:
            spec: The cascade, with the same nodes in the same order.

        Returns:
            The trace, with the costs of the new cascade on every row.

        Raises:
            ArgumentError: If the cascade has other nodes.
        """
        if spec.names != self.names:
            raise ArgumentError(
                f"the cascade has the nodes {', '.join(spec.names)}, and the trace "
                f"{', '.join(self.names)}: they must be the same, in the same order"
            )
        return dataclasses.replace(self, spec=spec, cost=None)

    def with_verification(self) -> Trace:
        """Return the trace with each verified answer as a node of its own, after the answer.

        Where a node has a ``verify_cost``, its answer alone has no confidence (0 on every row), and
        the node ``... (verified)`` has the same answer with the confidence of the trace.

        Returns:
            The trace of the split cascade; this one where no node has a ``verify_cost``.

        >>> from ttamer.cascade import CascadeNode
        >>> trace = Trace(CascadeSpec((CascadeNode("a", 1.0, verify_cost=0.5),)), [[0.9], [0.4]])
        >>> split = trace.with_verification()
        >>> split.names, split.confidence.tolist(), split.spec.costs.tolist()
        (('a', 'a (verified)'), [[0.0, 0.9], [0.0, 0.4]], [1.0, 0.5])
        """
        spec, source = split_nodes(self.spec)
        if len(spec) == len(self.spec):
            return self
        # A node that was split stands twice in a row: the answer, then the verified one.
        unseen = [k for k, (node, following) in enumerate(pairwise(source)) if node == following]
        after = [node + 1 for node in unseen]
        fields = _fields_for(self, spec, source)
        confidence = fields["confidence"]
        confidence[:, unseen] = np.where(np.isnan(confidence[:, unseen]), np.nan, 0.0)
        # The latency is the answer's; its margin and entropy are known once it is verified.
        new = (("cost", after, spec.costs[after]), ("latency", after, np.nan))
        for name, nodes, values in (*new, ("margin", unseen, np.nan), ("entropy", unseen, np.nan)):
            if name in fields:
                fields[name][:, nodes] = values
        return dataclasses.replace(self, **fields)

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
        """
        require_kind(traces, Iterable, "concat takes a list of traces", "write [one, two]")
        traces = list(traces)
        if not traces:
            raise TraceError("concat: there are no traces; give at least one")
        for position, trace in enumerate(traces):
            checks.require_trace(trace, "concat")
            _check_alike(traces[0], trace, position)
        return traces[0] if len(traces) == 1 else _joined(traces)

    def restrict(self, nodes: Iterable[str]) -> Trace:
        """Return the trace of some nodes, in the cascade's own order.

        An exit left out is always passed: the cost of that is added to the next exit that stays.
        Where each is asked that is all its cost, since the share of its ramp is not known.

        Args:
            nodes: The names to keep.

        Returns:
            The trace of these nodes, with all rows.

        Raises:
            ArgumentError: If a name is unknown, or a node is left out that others need: the parent
                of one that stays, the last one where that is the target.

        >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0, "c": 3.0}), [[0.1, 0.2, 0.3]])
        >>> fewer = trace.restrict(["c", "a"])
        >>> fewer.names, fewer.confidence.tolist()
        (('a', 'c'), [[0.1, 0.3]])
        """
        spec, stay = self.spec, _nodes_to_keep(self.spec, nodes)
        # For each node that stays, the cost of passing those left out directly before it.
        reach = self.costs if spec.asks_each else np.broadcast_to(spec.reach, self.costs.shape)
        between = np.stack([reach[:, u + 1 : v].sum(axis=1) for u, v in pairwise((-1, *stay))], 1)
        fewer = []
        for position, more in zip(stay, between.mean(axis=0).tolist(), strict=True):
            node = spec.nodes[position]
            past = None if node.reach is None else node.reach + more
            fewer.append(dataclasses.replace(node, cost=node.cost + more, reach=past))
        fields = _fields_for(self, dataclasses.replace(spec, nodes=tuple(fewer)), stay)
        if "cost" in fields:  # costs of the cascade have the means already
            fields["cost"] = fields["cost"] + between
        return dataclasses.replace(self, **fields)


def _cells(trace: Trace) -> list[list[str]]:
    """Return a head, and a row for each node."""

    def means(values: NDArray[np.float64]) -> list[float]:
        mean: list[float] = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan).tolist()
        return mean  # NaN where nothing is known

    columns = {
        "node": list(trace.names),
        "answers": [percent(share) for share in means(trace.answered.astype(float))],
        in_unit("cost", trace.spec.unit): map(number, means(trace.costs)),
        "mean confidence": map(number, means(trace.confidence)),
    }
    with suppress(TraceError):  # it does not have which answers are right
        losses = means(trace.loss * trace.unit)
        right = f"agrees with {trace.names[-1]}" if trace.spec.target == "last" else "right"
        if trace.is_graded:
            columns[trace.measure] = map(number, losses)
        else:
            columns[right] = [percent(1 - loss, digits=1) for loss in losses]
    rows = [list(row) for row in zip(*columns.values(), strict=True)] if len(trace) else []
    return [list(columns), *rows]


def graded(
    spec: CascadeSpec, score: NDArray[np.float64]
) -> tuple[CascadeSpec, NDArray[np.float64]]:
    """Return the cascade with 1 as the largest loss, and the losses of scores."""
    bound = spec.max_loss if spec.loss_bound is not None else 1.0
    return dataclasses.replace(spec, max_loss=bound), 1 - score


# Parts of traces, and several as one.


def _positions(rows: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Return positions of rows, or of the rows of a mask; refuse others."""
    try:
        positions: NDArray[np.intp] = np.arange(count)[rows if rows.size else rows.astype(np.intp)]
    except (IndexError, ValueError) as error:
        raise ArgumentError(f"there are {counted(count, 'row')}: {error}") from None
    if rows.ndim != 1:
        raise ArgumentError("rows must be a slice, a mask, or a list of whole numbers")
    return positions


def _rows_of(column: Column, array: NDArray[Any], index: slice | NDArray[np.intp]) -> NDArray[Any]:
    """Return rows of a column, nodes contiguous: most work goes node by node."""
    if isinstance(index, slice) or column.by == "row":
        return read_only(array[index])
    # Indexing all nodes at once would lay the rows out contiguously.
    picked = np.empty((len(index), array.shape[1]), array.dtype, order="F")
    for node in range(array.shape[1]):
        picked[:, node] = array[:, node][index]
    return read_only(picked)


def _check_alike(first: Trace, trace: Trace, position: int) -> None:
    """Refuse traces that cannot stand one after another."""

    def facts(trace: Trace) -> dict[str, list[Any]]:
        return {
            "nodes": list(trace.names),
            "costs of passing (reach)": _reach_of(trace.spec) or [],  # one cost for all rows
            "columns": sorted(c.name for c, _ in trace.columns() if c is not COST),
        }

    for (what, one), other in zip(facts(first).items(), facts(trace).values(), strict=True):
        if one != other:
            texts = [", ".join(map(str, values)) or "none" for values in (other, one)]
            raise TraceError(
                f"concat: trace {position} has the {what} {texts[0]}, and trace 0 has {texts[1]}; "
                "they must be the same, in the same order"
            )


def _joined(traces: Sequence[Trace]) -> Trace:
    """Return traces of the same columns as one."""
    first = traces[0]
    # Batches of a file have one list, as far as it had come: their codes stay as they are.
    lists = {n: max((getattr(t, n) for t in traces), key=len) for n in ("classes", "groups")}
    codes = {name: ClassCodes(texts) for name, texts in lists.items()}
    parts: dict[Column, list[NDArray[Any]]] = {column: [] for column, _ in first.columns()}
    # Equal costs stay those of the cascade, and need no array of rows.
    if any(t.cost is not None or (t.spec.costs != first.spec.costs).any() for t in traces):
        parts[COST] = []
    for trace in traces:
        for column, values in (dict(trace.columns()) | {COST: trace.costs}).items():
            texts = getattr(trace, column.texts) if column.texts else ()
            if texts != lists.get(column.texts, ())[: len(texts)]:
                values = codes[column.texts].recode(values, texts)
            if column in parts:
                parts[column].append(values)
    arrays = {}
    for column, blocks in parts.items():
        shape = (sum(map(len, blocks)), *blocks[0].shape[1:])
        order: Literal["C", "F"] = "F" if column.by == "node" else "C"
        out = np.empty(shape, blocks[0].dtype, order=order)
        arrays[column] = read_only(np.concatenate(blocks, out=out))
    return first._with(
        **fields_of(arrays),
        classes=codes["classes"].classes,
        groups=codes["groups"].classes,
        largest_loss=max(trace.largest_loss or 0.0 for trace in traces) or None,
        sampled_of=None,
        left_out=sum((Counter(trace.left_out) for trace in traces), Counter[str]()),
        # Shards of one log have the same notes: each once, in order.
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
    )


def _nodes_to_keep(spec: CascadeSpec, nodes: Iterable[str]) -> list[int]:
    """Return the numbers of nodes, in the cascade's order; refuse to leave out what they need."""
    if isinstance(nodes, str):
        raise ArgumentError(f"restrict takes a list of names: write [{nodes!r}]")
    stay = sorted({spec.index_of(name) for name in nodes})
    if not stay:
        raise ArgumentError("a trace needs at least one node: name one to keep")
    if spec.target == "last" and stay[-1] != len(spec) - 1:
        raise ArgumentError(
            f'target = "last" means that {spec.names[-1]!r} is right: keep it, or use '
            'target = "label"'
        )
    for node in stay:
        for parent in set(spec.parents[node]).difference(stay):
            raise ArgumentError(
                f"node {spec.names[node]!r} comes after {spec.names[parent]!r}: keep both, or "
                "neither"
            )
    return stay


def _fields_for(trace: Trace, spec: CascadeSpec, nodes: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a trace for another cascade, whose columns are those of nodes."""
    arrays = {
        column.field: np.asfortranarray(values[:, nodes])
        for column, values in trace.columns()
        if column.by == "node"
    }
    return {"spec": spec} | arrays


def _reach_of(spec: CascadeSpec) -> list[float] | None:
    """Return what passing each exit costs, where that is stated."""
    if spec.kind == "models" or spec.asks_each:
        return None
    return [node.reach or 0.0 for node in spec.nodes]


# What a digest is of.


def _ranks(
    arrays: Sequence[NDArray[np.int32]], texts: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the rank of each code among the texts that are used, in order, and these texts."""
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
