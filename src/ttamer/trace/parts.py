"""Parts of traces and several as one: rows at random, one after another, some nodes, split nodes.

Methods of :class:`ttamer.Trace` document them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import require_kind, require_whole
from ttamer.cascade import CascadeSpec, split_nodes
from ttamer.errors import ArgumentError, TraceError
from ttamer.trace.checks import require_rows, require_trace
from ttamer.trace.schema import COST, INPUT, SCHEMA, ClassCodes

if TYPE_CHECKING:
    from ttamer.trace.trace import Trace


def split(trace: Trace, fraction: float, seed: int) -> tuple[Trace, Trace]:
    """Split at random; rows of one group stay together."""
    if not 0 < fraction < 1:
        raise ArgumentError(
            f"fraction is {fraction}; it must lie between 0 and 1", param="fraction"
        )
    require_whole(seed, "seed")
    require_rows(trace, 2, "a split")
    order = np.random.default_rng(seed).permutation(len(trace))
    # A part without rows could be neither fitted to nor tested on.
    count = min(max(round(fraction * len(trace)), 1), len(trace) - 1)
    if trace.group is not None:
        # Groups in the order of their first row; a row without a group is one by itself.
        codes = np.where(trace.group < 0, -1 - np.arange(len(trace)), trace.group)[order]
        _, first, member = np.unique(codes, return_index=True, return_inverse=True)
        rank = first[member]
        if (rank == rank[0]).all():
            raise TraceError("all rows are of one group, which is never split: bring more groups")
        ends = np.flatnonzero(np.diff(np.sort(rank)) > 0) + 1  # where a group ends
        count = int(ends[np.abs(ends - count).argmin()])
        # Stable: rows of a group keep their random order.
        order = order[np.argsort(rank, kind="stable")]
    return trace.take(order[:count]), trace.take(order[count:])


def concat(traces: Sequence[Trace]) -> Trace:
    """Put traces of the same nodes one after another; their classes become one list."""
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
    # Codes of the first trace stay as they are; new classes come after them.
    texts = {name: ClassCodes(getattr(first, name)) for name in ("classes", "groups")}
    fields: dict[str, Any] = {}
    for column in SCHEMA:
        arrays = [getattr(trace, column.field) for trace in traces]
        if column is COST:
            # Equal costs stay those of the cascade, and need no array of rows.
            if all(cost.ndim == 1 and np.array_equal(cost, first.cost) for cost in arrays):
                continue
            arrays = [trace.costs for trace in traces]
        if arrays[0] is None:
            continue
        if column.texts:
            arrays = [
                texts[column.texts].recode(codes, getattr(trace, column.texts))
                for trace, codes in zip(traces, arrays, strict=True)
            ]
        fields[column.field] = _stack(arrays, "F")
    if first.raw_loss is not None:
        fields["largest_loss"] = max(trace.largest_loss or 0.0 for trace in traces)
    return dataclasses.replace(
        first,
        **fields,
        classes=texts["classes"].classes,
        groups=texts["groups"].classes,
        inputs={name: _stack([t.inputs[name] for t in traces], "C") for name in first.inputs},
        left_out=sum((Counter(trace.left_out) for trace in traces), Counter[str]()),
        # Shards of one log have the same notes: each once, in order.
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
    )


def _check_alike(first: Trace, trace: Trace, position: int) -> None:
    if trace.names != first.names:
        raise TraceError(
            f"concat: trace {position} has the nodes {', '.join(trace.names)}, and trace 0 has "
            f"{', '.join(first.names)}; they must be the same, in the same order"
        )
    if reach_of(trace.spec) != reach_of(first.spec):
        raise TraceError(
            f"concat: trace {position} passes its nodes at other costs than trace 0, and reach "
            "has one cost for all rows; read them with one cascade.toml"
        )
    present = [
        {c.name for c, _ in t.columns() if c is not COST} | {INPUT + name for name in t.inputs}
        for t in (first, trace)
    ]
    if odd := ", ".join(sorted(present[0] ^ present[1])):
        raise TraceError(
            f"concat: trace 0 and trace {position} differ in their columns: {odd}; "
            "all of them must have these, or none"
        )


def _stack(arrays: Sequence[NDArray[Any]], order: Literal["C", "F"]) -> NDArray[Any]:
    """Return arrays of rows one after another."""
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=np.empty(shape, arrays[0].dtype, order=order))


def restrict(trace: Trace, nodes: Iterable[str]) -> Trace:
    """Return the trace of some nodes, in the cascade's own order."""
    if isinstance(nodes, str):
        raise ArgumentError(f"restrict takes a list of names: write [{nodes!r}]")
    spec = trace.spec
    stay = sorted({spec.index_of(name) for name in nodes})
    if not stay:
        raise ArgumentError("a trace needs at least one node: name one to keep")
    if spec.target == "last" and len(spec) - 1 not in stay:
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
    # For each node that stays, the cost of passing those left out directly before it.
    reach = trace.costs if spec.asks_each else np.broadcast_to(spec.reach, trace.costs.shape)
    between = np.stack([reach[:, u + 1 : v].sum(axis=1) for u, v in pairwise((-1, *stay))], 1)
    costs = between.mean(axis=0).tolist()
    old = [spec.nodes[node] for node in stay]
    fewer = dataclasses.replace(spec, nodes=tuple(
        dataclasses.replace(
            node, cost=node.cost + more, reach=None if node.reach is None else node.reach + more
        )
        for node, more in zip(old, costs, strict=True)
    ))  # fmt: skip
    fields = _fields_for(trace, fewer, stay)
    # Costs of the cascade have the means already.
    if trace.cost.ndim == 2:
        fields["cost"] = fields["cost"] + between
    return dataclasses.replace(trace, **fields)


def verified(trace: Trace) -> Trace:
    """Return the trace with each verified answer as a node of its own, after the answer."""
    spec, source = split_nodes(trace.spec)
    if len(spec) == len(trace.spec):
        return trace
    # A node that was split stands twice in a row: the answer, then the verified one.
    unseen = [k for k, (node, following) in enumerate(pairwise(source)) if node == following]
    after = [node + 1 for node in unseen]
    fields = _fields_for(trace, spec, source)
    confidence = fields["confidence"]
    confidence[:, unseen] = np.where(np.isnan(confidence[:, unseen]), np.nan, 0.0)
    if trace.cost.ndim == 2:
        fields["cost"][:, after] = spec.costs[after]
    # The latency is the answer's; its margin and entropy are known once it is verified.
    for name, lacking in (("latency", after), ("margin", unseen), ("entropy", unseen)):
        if name in fields:
            fields[name][:, lacking] = np.nan
    return dataclasses.replace(trace, **fields)


def _fields_for(trace: Trace, spec: CascadeSpec, nodes: Sequence[int]) -> dict[str, Any]:
    """Return the fields of a trace for another cascade, whose columns are those of nodes."""
    columns = ((c.field, values) for c, values in trace.columns() if c.by == "node")
    arrays = {name: np.asfortranarray(values[:, nodes]) for name, values in columns}
    return {"spec": spec, "cost": spec.costs} | arrays


def reach_of(spec: CascadeSpec) -> list[float] | None:
    """Return what passing each exit costs, where that is stated."""
    if spec.kind == "models" or spec.asks_each:
        return None
    return [node.reach or 0.0 for node in spec.nodes]
