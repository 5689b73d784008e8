"""Which settings of a gateway may change while it serves: nodes' servers, limits and keys."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ttamer.errors import CascadeError

if TYPE_CHECKING:
    from ttamer.serve.config import Settings

__all__ = ["RELOADED", "changes"]

RELOADED = frozenset(
    {
        "key",
        "keys_env",
        "keys_file",
        "lame_duck",
        "max_body",
        "max_concurrent",
        "max_depth",
        "queue",
        "retry_after",
        "timeout",
    }
)
"""The settings in ``[serve]`` that a reload changes; others need a restart."""


def changes(old: Settings, new: Settings) -> list[str]:
    """Return which settings differ, in words; refuse a difference that needs a restart.

    Of a node, everything may change that its answers do not depend on, and its servers.

    Args:
        old: The settings that are served.
        new: Those of the file now.

    Returns:
        One text for each difference, such as "small: timeout".

    Raises:
        CascadeError: If a setting differs that cannot change while the gateway serves.
    """
    fixed: list[str] = []
    changed: list[str] = []
    if _plain(old) != _plain(new):
        fixed.append("[cascade], or the name, cost or place of a node")
    for each in dataclasses.fields(old.serve):
        if getattr(old.serve, each.name) != getattr(new.serve, each.name):
            (changed if each.name in RELOADED else fixed).append(each.name)
    for name in set(old.nodes) & set(new.nodes):
        before, after = old.nodes[name], new.nodes[name]
        for each in dataclasses.fields(before):
            if getattr(before, each.name) != getattr(after, each.name):
                is_free = each.name == "upstream" or not each.metadata.get("changes_answers", True)
                (changed if is_free else fixed).append(f"{name}: {each.name}")
    if fixed:
        raise CascadeError(
            f"the settings cannot change while the gateway serves: {', '.join(sorted(fixed))}; "
            "restart it (ttamer serve --fd replaces a gateway without a refused connection)"
        )
    return sorted(changed)


def _plain(settings: Settings) -> object:
    """Return what the policy depends on in ``[cascade]`` and ``[[node]]``."""
    spec = settings.spec
    nodes = [(node.name, node.cost, node.after, node.passing) for node in spec.nodes]
    return nodes, spec.order, spec.target, spec.name, spec.mistakes, spec.max_loss
