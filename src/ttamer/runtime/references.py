"""Objects that a file or a command names as ``module:name``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ttamer.errors import ArgumentError


def import_reference(reference: str) -> Any:
    """Import what ``module:name`` names.

    Raises:
        ArgumentError: If the text has another form, or names nothing.

    >>> import_reference("math:sqrt")(9.0)
    3.0
    >>> import_reference("math")
    Traceback (most recent call last):
    ttamer.errors.ArgumentError: a function is named as module:function, not 'math'
    """
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ArgumentError(f"a function is named as module:function, not {reference!r}")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{reference} cannot be imported: {error}") from None
