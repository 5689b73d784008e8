"""One threshold on the confidence for all nodes: policies that are set, not fitted.

A policy asks the nodes in order, and stops at the first whose confidence reaches its threshold,
with the answer of that node; where none does, the last node answers. The thresholds are fixed
before any row is seen, so promises about them may be tested on all rows: none need be held out.

They are tables like all others (:func:`stop_tables`), as are those of any rule that stops at the
first confidence that is high enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import GRID, HEAD, MAX_ODDS, PEER, Belief, Floats, Step
from ttamer.fitting.fitted import first_parents
from ttamer.fitting.policy import StepTables
from ttamer.trace.trace import Trace


def default_thresholds() -> Floats:
    """Return 64 thresholds, increasing, from 0 to 1. No row has been looked at."""
    doubts = np.geomspace(0.95, 1e-5, 62)
    return np.concatenate([[0.0], 1 - doubts, [1.0]])


def threshold_tables(trace: Trace, thresholds: Floats) -> StepTables:
    """Return the policies of increasing thresholds, at the costs of a trace.

    At 1 a policy never stops early.

    Raises:
        ArgumentError: Nodes are not asked in one order, or a confidence is not from 0 to 1.
    """
    spec, confidence = trace.spec, trace.confidence
    mean = np.nanmean(trace.costs, axis=0)
    if any(spec.parents) or (spec.kind == "models" and (np.diff(mean) < 0).any()):
        raise ArgumentError(
            'belief="threshold" asks nodes in the order of the cascade, which must be that of '
            "growing cost, and name no parents (after): list the nodes from the cheapest to the "
            "most expensive",
            param="belief",
        )
    outside = (confidence < 0) | (confidence > 1)
    if outside.any():
        raise ArgumentError(
            "thresholds are from 0 to 1, and the confidences of "
            f"{trace.names[int(outside.any(axis=0).argmax())]!r} are not: rescale them, or use "
            "another belief",
            param="belief",
        )
    edges = np.where(thresholds > 0, np.where(thresholds < 1, thresholds, np.inf), -np.inf)
    if np.isfinite(edges).sum() >= 4096:  # log-odds on the grid have room for no more
        raise ArgumentError("at most 4096 thresholds can be set", param="tradeoffs")
    every = list(range(len(spec)))
    return stop_tables(trace, [every] * len(edges), [[edge] * len(spec) for edge in edges.tolist()])


def stop_tables(
    trace: Trace, walks: Sequence[Sequence[int]], cuts: Sequence[Sequence[float]]
) -> StepTables:
    """Return the policies of walks that stop from some confidences on.

    The log-odds of an answer is minus the number of its node's cuts that its confidence reaches,
    and only the last answer counts: asking on gains the number of the cut, plus these log-odds.

    Args:
        trace: The rows: only their nodes and costs count.
        walks: By policy, the cheapest first, the nodes to ask in order. All walks have a node
            before the same others.
        cuts: By policy and step, the least confidence that stops there; the last always does.
    """
    nodes, count = len(trace.spec), len(walks)
    of_node: list[set[float]] = [set() for _ in range(nodes)]
    for walk, cut in zip(walks, cuts, strict=True):
        for node, least in zip(walk, cut, strict=False):
            of_node[node].add(least)
    bounds = tuple(np.array(sorted(cut for cut in of if np.isfinite(cut))) for of in of_node)
    spacing = min(64, 8 * GRID // (1 + max(map(len, bounds)))) / GRID  # log-odds are at most 8
    in_order = all(list(walk) == sorted(walk) for walk in walks)
    ways, weights = [], dict[tuple[Step, int], Floats]()
    for point in range(count):  # prices rise as policies get cheaper
        walk, cut = walks[count - 1 - point], cuts[count - 1 - point]
        for size, node in enumerate(walk):
            gain, slope = 1.0, 0.0
            if size:
                last, least = walk[size - 1], cut[size - 1]
                gain = spacing * (np.searchsorted(bounds[last], least) + (least > -np.inf))
                slope = 1.0
            ways.append((point, tuple(sorted(walk[:size])), node, [gain], [slope], [0.0, 0.0]))
            asked = tuple(sorted(walk[: size + 1]))
            for answer in asked if not in_order else ():
                own = np.zeros(HEAD + PEER * size)
                own[0], own[1] = (0.0, 1.0) if answer == node else (MAX_ODDS, 0.0)
                weights[asked, answer] = own
    masked = np.zeros((nodes, HEAD + PEER * nodes))
    if not in_order:
        masked[:, 1] = 1.0  # where a node failed, its own log-odds say how sure an answer is
    belief = Belief(
        classes=(),
        bounds=bounds,
        levels=tuple(-spacing * np.arange(len(bound) + 1.0) for bound in bounds),
        offsets=(np.empty(0),) * nodes,
        pairs={},
        weights=weights,
        masked=masked,
        memory=1 if in_order else Belief.memory,
        agree=in_order,
    )
    return StepTables.of(
        ways,
        {},
        names=trace.names,
        belief=belief,
        costs=np.asarray(np.nanmean(trace.costs, axis=0), float),
        prices=np.zeros(count),
        wait=np.zeros(nodes),
        kind=trace.spec.kind,
        parents=first_parents(trace.spec),
    )
