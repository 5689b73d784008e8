"""Numbers: what counts as one in a file, an option or a reply, and how people write them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, TypeGuard

import numpy as np

__all__ = ["as_float", "is_number", "number", "percent"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is an integer or a float; truth values and text are not.

    >>> [is_number(value) for value in (1, 2.5, np.float32(1), float("nan"), True, "1", None)]
    [True, True, True, True, False, False, False]
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return anything that stands for one number as a float: also a tensor or array of one element.

    Raises:
        TypeError: For text, and for everything else that is not one number.

    >>> as_float(np.array(0.5)), as_float(np.array([0.5])), as_float(2)
    (0.5, 0.5, 2.0)
    >>> as_float("0.5")
    Traceback (most recent call last):
    TypeError: a number is needed, not str
    """
    if type(value) is float:
        return value
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):  # several numbers
        one = value.item() if hasattr(value, "item") else value
        if not isinstance(one, str | bytes | bytearray):
            return float(one)
    raise TypeError(f"a number is needed, not {type(value).__name__}")


def number(value: float) -> str:
    """Return a number as people write it: four significant digits, no exponent if it can be helped.

    >>> number(0.164400001), number(float("inf")), number(12345.678), number(0.0000123)
    ('0.1644', 'inf', '12,346', '0.0000123')
    >>> number(50340.0), number(2.5e12), number(-0.0), number(3.0)
    ('50,340', '2.5e+12', '0', '3')
    """
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return f"{value + 0:g}"
    if size >= 1e9 or size < 1e-7:
        return f"{value:.3g}"
    if size >= 1e4:
        return f"{value:,.0f}"
    decimals = max(3 - math.floor(math.log10(size)), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float, *, digits: int | None = None) -> str:
    """Return a share in percent; with ``digits``, that many decimals.

    >>> percent(0.4234), percent(0.0712), percent(0.0004), percent(0.0), percent(0.9871)
    ('42%', '7.1%', '<0.1%', '0%', '98.7%')
    >>> percent(0.1, digits=1)
    '10.0%'
    """
    if digits is not None:
        return f"{share:.{digits}%}"
    size = abs(share)
    if 0 < size < 0.001:
        return "<0.1%"
    if 0.985 < size < 0.9995:
        return f"{share:.1%}"
    return f"{100 * share:.2g}%" if size < 0.0995 else f"{share:.0%}"
