"""A trace of fewer nodes: what the log would have been without the others."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ttamer.trace.spec import CascadeNode
    from ttamer.trace.trace import Trace

__all__ = ["restrict"]


def restrict(trace: Trace, nodes: Iterable[str]) -> Trace:
    """Return the trace of some nodes, in the cascade's own order.

    A node cannot stay without its parent (``after``), nor any node without the last one where that
    is the target: what is right would change. An exit left out is passed for good: what that
    costs is added to the next exit that stays; with order "fixed" that is all its cost, since how
    much of it is its ramp's is not known.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> trace = Trace(CascadeSpec.of({"a": 1.0, "b": 2.0, "c": 3.0}), [[0.1, 0.2, 0.3]])
    >>> fewer = restrict(trace, ["c", "a"])
    >>> fewer.names, fewer.confidence.tolist()
    (('a', 'c'), [[0.1, 0.3]])
    """
    spec = trace.spec
    wanted = {spec.index_of(name) for name in nodes}
    if not wanted:
        raise ArgumentError("a trace needs at least one node: name one to keep")
    if spec.target == "last" and len(spec) - 1 not in wanted:
        raise ArgumentError(
            f'target = "last" means that {spec.names[-1]!r} is right: keep it, or use '
            'target = "label"'
        )
    for number in wanted:
        parent = spec.parents[number]
        if parent is not None and parent not in wanted:
            raise ArgumentError(
                f"node {spec.names[number]!r} comes after {spec.names[parent]!r}: keep both, "
                "or neither"
            )
    kept = sorted(wanted)

    def columns(values: NDArray[Any]) -> NDArray[Any]:
        return np.asfortranarray(values[:, kept])

    # Per node kept, what passing those left out before it costs; those after the last cost nothing.
    if spec.order == "fixed":
        between = [trace.costs[:, u + 1 : v].sum(axis=1) for u, v in pairwise((-1, *kept))]
    else:
        between = [np.array([spec.passed(u, v)]) for u, v in pairwise((-1, *kept))]
    toll = [float(each.mean()) for each in between]
    fewer = dataclasses.replace(
        spec,
        nodes=tuple(
            _passing_more(spec.nodes[number], more) for number, more in zip(kept, toll, strict=True)
        ),
    )
    return dataclasses.replace(
        trace,
        spec=fewer,
        confidence=columns(trace.confidence),
        prediction=None if trace.prediction is None else columns(trace.prediction),
        correct=None if trace.correct is None else columns(trace.correct),
        cost=fewer.costs
        if trace.cost.ndim == 1
        else columns(trace.cost) + np.stack(np.broadcast_arrays(*between), 1),
        extras={name: columns(values) for name, values in trace.extras.items()},
    )


def _passing_more(node: CascadeNode, more: float) -> CascadeNode:
    passing = None if node.passing is None else node.passing + more
    return dataclasses.replace(node, cost=node.cost + more, passing=passing)
