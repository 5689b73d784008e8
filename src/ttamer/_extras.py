"""Optional libraries, imported where they are used."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ttamer.errors import MissingExtra


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
