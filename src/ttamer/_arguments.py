"""Arguments of another type or range than a function takes, refused in words."""

from __future__ import annotations

import math
import os

import numpy as np

from ttamer._numbers import is_number
from ttamer.errors import ArgumentError


def require_kind(value: object, kind: type | tuple[type, ...], what: str, remedy: str) -> None:
    """Refuse an argument of another type.

    Args:
        value: The argument.
        kind: What it must be an instance of.
        what: What is called, and what it takes: "solve needs a Problem".
        remedy: What to do instead.

    Raises:
        ArgumentError: If it is something else.

    >>> require_kind("problem.json", dict, "this needs a mapping", "parse the file first")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: this needs a mapping, not str: parse the file first
    """
    if not isinstance(value, kind):
        raise ArgumentError(f"{what}, not {type(value).__name__}: {remedy}")


def require_path(value: object, what: str, remedy: str = "give a str or a pathlib.Path") -> None:
    """Refuse anything but a path.

    Args:
        value: The argument.
        what: What is called: "Trace.read".
        remedy: What to do instead.

    Raises:
        ArgumentError: If it is something else.

    >>> require_path(None, "load")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: load takes the path of a file, not NoneType: give a str or ...
    """
    require_kind(value, (str, os.PathLike), f"{what} takes the path of a file", remedy)


def require_whole(value: object, name: str, *, least: int = 0) -> None:
    """Refuse anything but a whole number from ``least`` on.

    Args:
        value: The argument.
        name: Its name.
        least: The smallest number that is allowed.

    Raises:
        ArgumentError: If it is something else.

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

    Args:
        value: The argument.
        name: Its name.

    Raises:
        ArgumentError: If it is something else.

    >>> require_number(float("nan"), "smoothing")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: smoothing is nan; it must be a finite number, 0 or more
    """
    if not is_number(value) or not 0 <= value < math.inf:
        raise ArgumentError(
            f"{name} is {value!r}; it must be a finite number, 0 or more", param=name
        )
