"""What counts as a number in a file, an option or the reply of a model."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

__all__ = ["as_float", "is_number"]


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

    >>> as_float(np.array(0.5)), as_float(2)
    (0.5, 2.0)
    >>> as_float("0.5")
    Traceback (most recent call last):
    TypeError: a number is needed, not str
    """
    if not isinstance(value, str | bytes | bytearray):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several numbers
            pass
    raise TypeError(f"a number is needed, not {type(value).__name__}")
