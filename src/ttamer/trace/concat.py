"""Traces one after another: shards of a log, days of traffic."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import TraceError
from ttamer.trace.classes import ClassCodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["concat"]


def concat(traces: Sequence[Trace]) -> Trace:
    """Put traces of the same nodes one after another, their classes made one list.

    Costs become one per row where the traces differ in them; the cascade is the first one's.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> one = Trace(CascadeSpec.of({"only": 1.0}), [[0.5], [0.6]])
    >>> concat([one, one])
    Trace(4 rows, 1 nodes)
    """
    traces = list(traces)
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
        out = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype, order="F")
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
        cost=first.cost if same_cost else stack([trace.costs for trace in traces]),
        signals={name: stack([t.signals[name] for t in traces]) for name in first.signals},
        extras={name: stack([t.extras[name] for t in traces]) for name in first.extras},
        classes=codes.classes,
        left_out=left_out,
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
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
            f"concat: trace 0 and trace {position} differ in what they know: {odd}; "
            "bring it for all of them, or for none"
        )


def _parts(trace: Trace) -> set[str]:
    known = {n for n in ("prediction", "label", "correct") if getattr(trace, n) is not None}
    return known | set(trace.extras) | {f"signal.{name}" for name in trace.signals}
