"""Confidence that costs something by itself: a verifier, several samples.

A ``[[node]]`` with a ``verify_cost`` has two prices: its answer costs ``cost``, and its confidence
``verify_cost`` more. For a fit it is two nodes: ``large``, whose answer comes without a confidence,
and ``large (verified)`` after it, the same answer with its confidence. A policy may return the
answer of ``large`` unseen, ask other nodes, or have it verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ttamer.errors import CascadeError

if TYPE_CHECKING:
    from ttamer.trace.spec import CascadeNode


# What follows the name of a node in that of its verified answer.
SUFFIX = " (verified)"


def split_nodes(nodes: Sequence[CascadeNode]) -> tuple[tuple[CascadeNode, ...], list[int]]:
    """Return the nodes with verified answers as nodes of their own, and where each comes from.

    >>> from ttamer.trace.spec import CascadeNode
    >>> nodes, source = split_nodes([CascadeNode("a", 1.0), CascadeNode("b", 2.0, verify_cost=3.0)])
    >>> [node.name for node in nodes], [node.cost for node in nodes], source
    (['a', 'b', 'b (verified)'], [1.0, 2.0, 3.0], [0, 1, 1])
    """
    names = {node.name for node in nodes}
    split: list[CascadeNode] = []
    source: list[int] = []
    for number, node in enumerate(nodes):
        plain = dataclasses.replace(node, verify_cost=None)
        split.append(plain)
        source.append(number)
        if node.verify_cost is not None:
            name = node.name + SUFFIX
            if name in names:
                raise CascadeError(
                    f"node {node.name!r} has verify_cost, and its verified answer would be named "
                    f"{name!r}, which is taken: rename that node"
                )
            split.append(
                dataclasses.replace(
                    plain, name=name, cost=node.verify_cost, after=node.name, options={}
                )
            )
            source.append(number)
    return tuple(split), source


def joined_nodes(nodes: Sequence[CascadeNode]) -> tuple[CascadeNode, ...]:
    """Return what :func:`split_nodes` split.

    >>> from ttamer.trace.spec import CascadeNode
    >>> nodes, _ = split_nodes([CascadeNode("b", 2.0, verify_cost=3.0)])
    >>> [(node.name, node.verify_cost) for node in joined_nodes(nodes)]
    [('b', 3.0)]
    """
    by_name = {node.name: node for node in nodes}
    looks = {
        node.after: node.cost
        for node in nodes
        if isinstance(node.after, str) and node.name == node.after + SUFFIX
    }
    return tuple(
        dataclasses.replace(node, verify_cost=looks.get(name))
        for name, node in by_name.items()
        if name.removesuffix(SUFFIX) == name or name.removesuffix(SUFFIX) not in looks
    )
