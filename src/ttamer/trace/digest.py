"""A trace's fingerprint: of what it says, not of how it is stored."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.trace.trace import Trace

__all__ = ["digest"]

_ROWS = 1 << 17  # rows hashed at a time: no second copy of the trace is made


def digest(trace: Trace) -> str:
    """Return the SHA-256 of a trace's content in hexadecimal.

    >>> from ttamer.trace.spec import CascadeSpec
    >>> from ttamer.trace.trace import Trace
    >>> spec = CascadeSpec.of({"only": 1.0})
    >>> digest(Trace(spec, [[0.5]])) == digest(Trace(spec, [[0.5]]))
    True
    """
    used = np.zeros(len(trace.classes) + 1, bool)  # the last entry stands for code -1
    for codes in (trace.label, trace.prediction):
        for column in [] if codes is None else _columns(codes):
            used[column] = True
    met = np.flatnonzero(used[:-1])
    ranked = sorted(met.tolist(), key=lambda code: trace.classes[code])
    rank = np.full(len(used), -1, np.int32)
    rank[ranked] = np.arange(len(ranked), dtype=np.int32)

    head = {
        "rows": len(trace),
        "nodes": trace.names,
        "classes": [trace.classes[code] for code in ranked],
        "cost": trace.cost.ndim,
    }
    if trace.spec.has_passing:  # a cost like the others, though no column
        head["passing"] = trace.spec.passing.tolist()
    sha = hashlib.sha256(json.dumps(head).encode())
    parts: list[tuple[str, NDArray[Any] | None]] = [
        ("confidence", trace.confidence),
        ("cost", trace.cost),
        ("prediction", trace.prediction),
        ("label", trace.label),
        ("correct", trace.correct),
        *((f"signal.{name}", trace.signals[name]) for name in sorted(trace.signals)),
        *((f"extra.{name}", trace.extras[name]) for name in sorted(trace.extras)),
    ]
    for name, part in parts:
        if part is None:
            continue
        sha.update(f"\n{name}\n".encode())
        for column in _columns(part):
            for start in range(0, len(column), _ROWS):
                values = column[start : start + _ROWS]
                if values.dtype == np.int32:
                    values = rank[values].astype("<i4")
                elif values.dtype != np.bool_:
                    values = _plain(values)
                sha.update(np.ascontiguousarray(values).data)
    return sha.hexdigest()


def _columns(array: NDArray[Any]) -> list[NDArray[Any]]:
    return [array] if array.ndim == 1 else list(array.T)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """One pattern of bits for each number: no negative zero, one NaN, little-endian."""
    plain = values.astype("<f8") + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain
