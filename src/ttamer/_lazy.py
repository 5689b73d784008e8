"""Public names that load when first used, so that importing a package costs next to nothing.

A package lists its public names once, in ``__init__.pyi``: type checkers read that file, and
``attach`` reads it to know which module holds each name.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ttamer.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["attach", "is_installed"]

_IMPORT = re.compile(r"^from (?P<home>[\w.]+) import (?:\((?P<many>[^)]*)\)|(?P<one>.+))$", re.M)


def attach(
    package: str, *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``, read from its stub file.

    Args:
        package: The package's ``__name__``.
        extra: The third-party module, and the extra of the same name, that the names need.

    Raises:
        MissingExtra: When a name is used and ``extra`` is not installed.

    >>> load, _, names = attach("ttamer.problem")
    >>> load("Problem").__name__, "Node" in names
    ('Problem', True)
    """
    homes = _homes(package)

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home)
        except ModuleNotFoundError:  # perhaps of what the extra brings along
            if extra is None or is_installed(extra):
                raise
            raise MissingExtra(extra, extra) from None
        # A stub may list a module of the package itself.
        value: object = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it.

    >>> is_installed("json"), is_installed("no_such_module")
    (True, False)
    """
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ValueError:  # it is blocked: sys.modules has None for it
        return False


def _homes(package: str) -> dict[str, str]:
    """Return the module of each name that the package's stub file imports."""
    file = sys.modules[package].__file__
    assert file is not None  # a regular package  # noqa: S101
    homes: dict[str, str] = {}
    for found in _IMPORT.finditer(Path(file).with_suffix(".pyi").read_text("utf-8")):
        home = found["home"]
        for item in (found["many"] or found["one"]).split(","):
            if name := item.strip().partition(" as ")[0]:
                homes[name] = f"{package}.{name}" if home == package else home
    return homes
