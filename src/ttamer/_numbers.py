"""Numbers: what counts as one in a file, an option or a reply, and how people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeGuard

import numpy as np


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
    >>> percent(0.1, digits=1), percent(-1e-17)
    ('10.0%', '0%')
    """
    if digits is not None:
        return f"{share:.{digits}%}"
    size = abs(share)
    if size < 1e-12:  # 0 but for rounding
        return "0%"
    if size < 0.001:
        return "<0.1%"
    if 0.985 < size < 0.9995:
        return f"{share:.1%}"
    return f"{100 * share:.2g}%" if size < 0.0995 else f"{share:.0%}"


def percents(shares: Sequence[float]) -> list[str]:
    """Return shares in percent, with the decimals that tell different ones apart, up to three.

    >>> percents([0.5, 1.0, 1.22]), percents([1.2, 1.216, 1.222]), percents([1.0, 1.0])
    (['50%', '100%', '122%'], ['120.0%', '121.6%', '122.2%'], ['100%', '100%'])
    """
    for digits in (None, 1, 2, 3):
        texts = [percent(share, digits=digits) for share in shares]
        if len(set(texts)) == len({round(share, 5) for share in shares}):
            break
    return texts


def counted(count: float, noun: str, form: str = "") -> str:
    """Return a count with its noun, in the plural unless it is one.

    Args:
        count: The count.
        noun: The noun in the singular.
        form: How the count is formatted, such as ``","``.

    >>> counted(1, "row"), counted(0, "row"), counted(2, "class"), counted(1234, "policy", ",")
    ('1 row', '0 rows', '2 classes', '1,234 policies')
    """
    text = f"{count:{form}}"
    if text == "1":
        return f"{text} {noun}"
    if noun.endswith("y"):
        return f"{text} {noun[:-1]}ies"
    return f"{text} {noun}{'es' if noun.endswith('s') else 's'}"
