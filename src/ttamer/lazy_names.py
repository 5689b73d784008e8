"""Public names that load when first used, so that importing a package costs next to nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ttamer.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], *, needs: str | None = None
) -> Callable[[str], object]:
    """Return a package's ``__getattr__``, given which names live in which of its modules.

    ``needs`` is the package, and the extra of the same name, without which they do not load.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{home}")
        except ModuleNotFoundError as error:
            if needs is None or error.name != needs:
                raise
            raise MissingExtra(needs, needs) from None
        value: object = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
