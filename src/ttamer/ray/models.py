"""Models as they are named to a cluster: each process that needs one makes its own."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ttamer.runtime.calling import Batched
from ttamer.runtime.references import import_reference

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["made", "model_from"]


def made(node: Any) -> Any:
    """Return a node ready to be asked: a class is made an object, all else is so already.

    >>> class Model:
    ...     def __call__(self, text):
    ...         return text, 1.0
    >>> made(Model)("a"), made(len)("abc")
    (('a', 1.0), 3)
    """
    if isinstance(node, Batched):
        return Batched(made(node.answer), node.size)
    return node() if inspect.isclass(node) else node


def model_from(place: str) -> Callable[[Any], Any]:
    """Return the model that ``"module:factory"`` makes: the factory is called without arguments.

    >>> model_from("collections:Counter")
    Counter()
    """
    model: Callable[[Any], Any] = import_reference(place)()
    return model
