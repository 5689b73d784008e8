"""A trace of fewer nodes: what the log would have been without the others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ttamer.trace import Trace

__all__ = ["restrict"]


def restrict(trace: Trace, nodes: Iterable[str]) -> Trace:
    """Return the trace of some nodes, in the cascade's own order.

    A node cannot stay without its parent (``after``), nor any node without the last one where that
    is the target: what is right would change.

    >>> from ttamer.cascade_spec import CascadeSpec
    >>> from ttamer.trace import Trace
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

    fewer = dataclasses.replace(spec, nodes=tuple(spec.nodes[number] for number in kept))
    return dataclasses.replace(
        trace,
        spec=fewer,
        confidence=columns(trace.confidence),
        prediction=None if trace.prediction is None else columns(trace.prediction),
        correct=None if trace.correct is None else columns(trace.correct),
        cost=fewer.costs if trace.cost.ndim == 1 else columns(trace.cost),
        extras={name: columns(values) for name, values in trace.extras.items()},
    )
