"""Numbers as the report writes them."""

from __future__ import annotations

__all__ = ["less", "percent", "points"]


def percent(share: float) -> str:
    """Return a share as people read it.

    >>> percent(0.4234), percent(0.0712), percent(0.0004), percent(0.0), percent(0.9871)
    ('42%', '7.1%', '<0.1%', '0%', '98.7%')
    """
    size = abs(share)
    if 0 < size < 0.001:
        return "<0.1%"
    if 0.985 < size < 0.9995:
        return f"{share:.1%}"
    return f"{100 * share:.2g}%" if size < 0.0995 else f"{share:.0%}"


def less(share: float) -> str:
    """Return a saving in words.

    >>> less(0.421), less(-0.03), less(0.001), less(0.9871)
    ('42% less', '3% more', 'the same', '98.7% less')
    """
    if abs(share) < 0.005:
        return "the same"
    size = f"{abs(share):.0%}" if abs(share) < 0.1 else percent(abs(share))
    return f"{size} {'less' if share > 0 else 'more'}"


def points(share: float) -> str:
    """Return a difference of error rates in percentage points.

    >>> points(0.005), points(0.01), points(0.0123)
    ('0.5 points', '1 point', '1.23 points')
    """
    size = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{size} {'point' if size == '1' else 'points'}"
