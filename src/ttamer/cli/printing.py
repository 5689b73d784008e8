"""How commands print: JSON for programs, progress on stderr."""

import json
import math
from collections.abc import Callable
from typing import Any

from ttamer.show import ProgressReport


def to_json(data: Any) -> str:
    """Return JSON; infinities as ``"inf"`` and ``"-inf"``, as in problem.json, and NaN as null.

    >>> print(to_json({"losses": [0.5, float("inf"), float("nan")]}))
    {
     "losses": [
      0.5,
      "inf",
      null
     ]
    }
    """
    return json.dumps(_plain(data), indent=1, allow_nan=False)


def progress_line(*, quiet: bool = False) -> Callable[[str], None]:
    """Return a function that shows on stderr what is being done; call it with "" at the end.

    On a terminal one line is overwritten; elsewhere a new line is written every two seconds.
    """
    return (lambda _: None) if quiet else ProgressReport(bar=False)


def _plain(item: Any) -> Any:
    """Return plain values that JSON can hold."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if hasattr(item, "tolist"):
        return _plain(item.tolist())
    if isinstance(item, float) and math.isnan(item):
        return None
    if isinstance(item, float) and not math.isfinite(item):
        return "inf" if item > 0 else "-inf"
    return item
