"""Functions of the user, named on the command line as ``MODULE:FUNCTION``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ttamer.runtime.references import import_reference


def load_function(reference: str) -> Callable[..., Any]:
    """Return the function that ``MODULE:FUNCTION`` names; modules of the current folder count.

    >>> load_function("math:floor")(2.5)
    2
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    found: Callable[..., Any] = import_reference(reference)
    return found
