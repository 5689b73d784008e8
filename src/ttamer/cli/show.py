"""How results are printed: aligned columns for people, plain JSON for programs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_json", "number", "table"]


def number(value: float) -> str:
    """Return a number as people read it: four digits, no noise.

    >>> number(0.164400001), number(float("inf")), number(12345.678)
    ('0.1644', 'inf', '12346')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value + 0:g}"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under a head; the first column to the left, the others to the right.

    >>> print(table(["node", "asked"], [["small", "100%"], ["large", "4%"]]))
      node   asked
      small   100%
      large     4%
    """
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        first, *rest = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def as_json(data: Any) -> str:
    """Return JSON; infinities as ``"inf"`` and ``"-inf"``, as in problem.json."""
    return json.dumps(_plain(data), indent=1, allow_nan=False)


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if hasattr(item, "tolist"):
        return _plain(item.tolist())
    if isinstance(item, float) and not math.isfinite(item):
        return "inf" if item > 0 else "-inf"
    return item
