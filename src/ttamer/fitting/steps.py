"""The steps of a cascade: the sets of nodes that may have been asked, and the ways between them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from ttamer.fitting.cross_fit import ROUTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ttamer.fitted.belief import Step
    from ttamer.fitting.subsets import Way
    from ttamer.trace.spec import Order
    from ttamer.trace.trace import Trace

__all__ = ["NO_NODE", "steps_of"]

NO_NODE = -1
"""The node asked on the way to a router: none."""
MAX_STEP_SIZE = 6
"""A longer cascade with exits left out has windows as steps."""
WINDOW = 2
"""In such a cascade a step is the last exits asked, this many."""


def steps_of(
    trace: Trace, order: Order | None = None, *, router: bool = False
) -> tuple[list[Step], list[Way]]:
    """Return the steps, and (from, to, node asked) for each edge; the start is -1.

    Exits are asked in their order, separate models in any (with order "skip" in increasing order,
    some left out). Of more than six with order "skip", a step is the last ``WINDOW`` asked. Many
    separate models have a lattice of their own (subsets.py). Where nodes come after others, a step
    holds all parents of its nodes.
    """
    nodes = list(range(len(trace.names)))
    order = order or trace.spec.order
    if order == "skip" and len(nodes) > MAX_STEP_SIZE:
        return _windows(len(nodes))
    if order == "fixed" and not trace.spec.is_tree:
        nodes = list(trace.spec.asking_order(trace.costs.mean(axis=0)))
        line = [tuple(nodes[: k + 1]) for k in range(len(nodes))]
        return line, [(k - 1, k, node) for k, node in enumerate(nodes)]
    steps = [
        step
        for size in range(len(nodes))
        for step in combinations(nodes, size + 1)
        if is_closed(step, trace.spec.parents)
    ]
    first = [ROUTER] if router and len(nodes) > 1 else []
    steps = first + steps
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, 0, NO_NODE)] if first else []
    ways += [(0 if first else -1, number[(node,)], node) for node in nodes if (node,) in number]
    onward = order == "skip"  # then only nodes further on may follow
    ways += [
        (number[step], number[wider], node)
        for step in steps[len(first) :]
        for node in nodes
        if node not in step and (node > step[-1] or not onward)
        if (wider := tuple(sorted((*step, node)))) in number
    ]
    return steps, ways


def is_closed(step: Step, parents: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a step holds all parents of each of its nodes.

    >>> is_closed((0, 2), ((), (), (0,))), is_closed((0, 2), ((), (), (0, 1)))
    (True, False)
    """
    return all(parent in step for node in step for parent in parents[node])


def _windows(nodes: int) -> tuple[list[Step], list[Way]]:
    """Return steps that are the last asked of some, in increasing order, and the ways on."""
    sizes = range(1, WINDOW + 1)
    steps = [step for size in sizes for step in combinations(range(nodes), size)]
    number = {step: k for k, step in enumerate(steps)}
    ways = [(-1, number[(node,)], node) for node in range(nodes)]
    ways += [
        (k, number[(*step, node)[-WINDOW:]], node)
        for k, step in enumerate(steps)
        for node in range(step[-1] + 1, nodes)
    ]
    return steps, ways
