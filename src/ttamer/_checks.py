"""Arguments of a wrong type or range, refused in words; numbers as people write them.

Optional libraries are imported where they are used: :func:`require` says which extra installs one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, MissingExtra


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is an integer or a float; truth values and text are not.

    >>> [is_number(value) for value in (1, 2.5, np.float32(1), float("nan"), True, "1", None)]
    [True, True, True, True, False, False, False]
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_float(value: Any) -> float:
    """Return anything that stands for one number as a float: also a tensor or array of one element.

    Raises TypeError for text, and for everything else that is not one number.

    >>> as_float(np.array(0.5)), as_float(np.array([0.5])), as_float(2)
    (0.5, 0.5, 2.0)
    """
    if type(value) is float:
        return value
    with suppress(TypeError, ValueError, OverflowError, RuntimeError):  # several numbers
        plain = value.item() if hasattr(value, "item") else value
        if not isinstance(plain, str | bytes | bytearray):
            return float(plain)
    raise TypeError(f"a number is needed, not {type(value).__name__}")


def require_kind(value: object, kind: type | tuple[type, ...], what: str, remedy: str) -> None:
    """Refuse an argument of another type: ``what`` is called, and ``remedy`` what to do instead.

    >>> require_kind("problem.json", dict, "this needs a mapping", "parse the file first")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: this needs a mapping, not str: parse the file first
    """
    if not isinstance(value, kind):
        raise ArgumentError(f"{what}, not {type(value).__name__}: {remedy}")


def require_path(value: object, what: str, remedy: str = "give a str or a pathlib.Path") -> None:
    """Refuse anything but a path."""
    require_kind(value, (str, os.PathLike), f"{what} takes the path of a file", remedy)


def require_whole(value: object, name: str, *, least: int = 0) -> None:
    """Refuse anything but a whole number from ``least`` on.

    >>> require_whole(1.5, "seed")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: seed is 1.5; it must be a whole number from 0 on
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ArgumentError(
            f"{name} is {value!r}; it must be a whole number from {least} on", param=name
        )


def require_number(value: object, name: str) -> None:
    """Refuse anything but a finite number that is not negative.

    >>> require_number(float("nan"), "weight")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: weight is nan; it must be a finite number, 0 or more
    """
    if not is_number(value) or not 0 <= value < math.inf:
        raise ArgumentError(
            f"{name} is {value!r}; it must be a finite number, 0 or more", param=name
        )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, which can no longer be changed."""
    array.setflags(write=False)
    return array


def number(value: float, unit: str = "") -> str:
    """Return a number as people write it: four significant digits, no exponent if it can be helped.

    >>> number(0.164400001), number(float("inf")), number(12345.678), number(0.0000123)
    ('0.1644', 'inf', '12,346', '0.0000123')
    >>> number(50340.0), number(2.5e12), number(-0.0), number(3.0, "ms")
    ('50,340', '2.5e+12', '0', '3 ms')
    """
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        text = f"{value + 0:g}"
    elif size >= 1e9 or size < 1e-7:
        text = f"{value:.3g}"
    elif size >= 1e4:
        text = f"{value:,.0f}"
    else:
        text = f"{value:,.{max(3 - math.floor(math.log10(size)), 0)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}" if unit else text


def priced(cost: float, unit: str) -> str:
    """Return a cost with its unit, where it has one.

    >>> priced(3.25, "ms"), priced(3.25, "")
    ('3.25 ms', '3.25')
    """
    return f"{number(cost)} {unit}".rstrip()


def in_unit(what: str, unit: str) -> str:
    """Return the name of a column or an axis, with its unit where it has one.

    >>> in_unit("cost", "ms"), in_unit("cost", "")
    ('cost (ms)', 'cost')
    """
    return f"{what} ({unit})" if unit else what


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


def counted(count: float, noun: str, form: str = "") -> str:
    """Return a count with its noun, in the plural unless it is one.

    >>> counted(1, "row"), counted(0, "row"), counted(2, "class"), counted(1234, "policy", ",")
    ('1 row', '0 rows', '2 classes', '1,234 policies')
    """
    text = f"{count:{form}}"
    if text == "1":
        return f"{text} {noun}"
    if noun.endswith("y"):
        return f"{text} {noun[:-1]}ies"
    return f"{text} {noun}{'es' if noun.endswith('s') else 's'}"


def shown(names: Sequence[object], most: int = 6) -> str:
    """Return names in quotes, the first few of many.

    >>> shown(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    text = ", ".join(repr(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def require(module: str, extra: str) -> Any:
    """Import an optional library, or raise how to install it: the extra of this package that does.

    >>> require("json", "io").dumps([1])
    '[1]'
    """
    if not is_installed(module):
        raise MissingExtra(module, extra)
    return import_module(module)


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it.

    >>> is_installed("json"), is_installed("no_such_module")
    (True, False)
    """
    try:
        return find_spec(module) is not None
    except (ValueError, ModuleNotFoundError):  # blocked (None in sys.modules), or no parent
        return False
