"""Arguments of another type than a function takes, refused in words."""

from __future__ import annotations

import os

from ttamer.errors import ArgumentError

__all__ = ["require_kind", "require_path"]


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
