"""Canonical bytes of plain values and arrays, their digests, and short summaries of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from typing import Any

import numpy as np

DIGITS = 10
"""Floats are compared to this many significant digits, so that machines may differ in the last."""
NOTHING = 1e-13
"""A float below this is rounding noise around zero."""
SHOWN = 160
"""The length of a summary, in characters."""


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it, floats rounded and arrays with their shape."""
    if isinstance(value, np.ndarray):
        kind = {"b": "bool", "i": "int", "u": "int", "f": "float"}[value.dtype.kind]
        return {kind: list(value.shape), "values": [plain(each) for each in value.ravel().tolist()]}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (str, int)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form")


def _rounded(number: float) -> float | str:
    if not math.isfinite(number):
        return repr(number)
    return 0.0 if abs(number) < NOTHING else float(f"{number:.{DIGITS - 1}e}")


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's canonical bytes; of bytes, the SHA-256 of those."""
    raw = value if isinstance(value, bytes) else _text(plain(value)).encode()
    return hashlib.sha256(raw).hexdigest()


def summary(value: Any) -> str:
    """Return a few of the values, for people to see what has changed."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, np.ndarray):
        return _cut(f"{value.dtype.kind}{list(value.shape)} {_few(value)}")
    if isinstance(value, list) and len(value) > 4 and all(isinstance(v, str) for v in value):
        common = sorted(Counter(value).items(), key=lambda item: (-item[1], item[0]))
        return _cut(f"{len(value)}: " + ", ".join(f"{count} x {text}" for text, count in common))
    return _cut(_text(plain(value)))


def _few(array: np.ndarray) -> str:
    if array.dtype.kind != "f":
        found, counts = np.unique(array, return_counts=True)
        return ", ".join(f"{n} x {v}" for v, n in zip(found, counts, strict=True))
    finite = array[np.isfinite(array)]
    mean = f"mean {finite.mean():.6g} of {finite.size} finite; " if finite.size else ""
    return mean + ", ".join(f"{each:.6g}" for each in array.ravel()[:8])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
