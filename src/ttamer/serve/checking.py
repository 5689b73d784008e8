"""What a value in ``cascade.toml`` may be: checks that give it back, or say what is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from ttamer.errors import CascadeError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Check",
    "WrongValue",
    "a_flag",
    "a_number",
    "a_table",
    "a_text",
    "a_url",
    "a_whole_number",
    "checked",
    "one_of",
]

Check = Callable[[Any], Any]
"""Gives a value back as it is used, or raises :class:`WrongValue`."""


class WrongValue(Exception):  # noqa: N818 - never leaves this file's callers
    """A value that cannot be; its text says what is needed."""


def checked(table: Mapping[str, Any], checks: Mapping[str, Check], place: str) -> dict[str, Any]:
    """Return the values of a table, each checked; an unknown key or a wrong value is refused."""
    values = {}
    for key, value in table.items():
        if key not in checks:
            raise CascadeError(f"{place}: has an unknown key {key!r}; it may have "
                               f"{', '.join(checks)}")  # fmt: skip
        try:
            values[key] = checks[key](value)
        except WrongValue as error:
            raise CascadeError(f"{place}: {key} is {value!r}; it must be {error}") from None
    return values


def a_text(value: Any) -> str:
    """Take text without control characters."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise WrongValue("text without control characters")
    return value


def a_flag(value: Any) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise WrongValue("true or false")
    return value


def a_table(value: Any) -> dict[str, Any]:
    """Take a table."""
    if not isinstance(value, dict):
        raise WrongValue("a table")
    return value


def a_number(
    least: float, most: float = math.inf, *, above: bool = False
) -> Callable[[Any], float]:
    """Take a finite number in a range; with ``above`` the least one is outside."""
    wanted = f"a number {'above' if above else 'from'} {least:g}"
    wanted += f" to {most:g}" if most < math.inf else ""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongValue(wanted)
        low_enough = value <= most and math.isfinite(value)
        if not low_enough or not (least < value if above else least <= value):
            raise WrongValue(wanted)
        return float(value)

    return check


def a_whole_number(least: int, most: int) -> Callable[[Any], int]:
    """Take a whole number in a range."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise WrongValue(f"a whole number from {least} to {most}")
        return value

    return check


def one_of(kind: Any) -> Callable[[Any], str]:
    """Take one of the words of a ``Literal``."""
    names = get_args(kind)

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise WrongValue("one of " + ", ".join(f'"{name}"' for name in names))
        return value

    return check


def a_url(value: Any) -> str:
    """Take the base URL of a server, and cut the slash at its end off."""
    wanted = 'a URL like "http://127.0.0.1:8081/v1", without user, query or fragment'
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise WrongValue(wanted)
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - a port out of range is found when it is read
    except ValueError:
        raise WrongValue(wanted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongValue(wanted)
    if "@" in parts.netloc or "?" in value or "#" in value:
        raise WrongValue(wanted)
    return value.rstrip("/")
