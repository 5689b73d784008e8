"""One threshold on the confidence for all nodes: policies that are set, not fitted.

A policy asks the nodes in order, and stops at the first whose confidence reaches its threshold,
with the answer of that node; where none does, the last node answers. The thresholds are fixed
before any row is seen, so promises about them may be tested on all rows: none need be held out.

They are tables like all others: the log-odds of an answer is minus the number of thresholds that
its confidence reaches, only the last answer counts, and asking on gains that number's distance.
"""

from __future__ import annotations

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import GRID, HEAD, PEER, Belief, Floats, Step
from ttamer.fitting.policy import StepTables
from ttamer.trace.trace import Trace


def default_thresholds() -> Floats:
    """Return 64 thresholds, increasing, from 0 to 1. No row has been looked at."""
    doubts = np.geomspace(0.95, 1e-5, 62)
    return np.concatenate([[0.0], 1 - doubts, [1.0]])


def threshold_tables(trace: Trace, thresholds: Floats) -> StepTables:
    """Return the policies of some thresholds.

    Args:
        trace: The rows: only their nodes and costs count, and that confidences are from 0 to 1.
        thresholds: Increasing, from 0 to 1. At 1 a policy never stops early.

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
    edges = thresholds[(thresholds > 0) & (thresholds < 1)]
    if len(edges) >= 4096:  # log-odds on the grid have room for no more
        raise ArgumentError("at most 4096 thresholds can be set", param="tradeoffs")
    nodes, count = len(spec), len(thresholds)
    spacing = min(64 / GRID, 8 / (len(edges) + 1))  # of log-odds
    spacing = np.floor(spacing * GRID) / GRID
    levels = -spacing * np.arange(len(edges) + 1)
    belief = Belief(
        classes=(),
        bounds=(edges,) * nodes,
        levels=(levels,) * nodes,
        offsets=(np.empty(0),) * nodes,
        pairs={},
        weights={},
        masked=np.zeros((nodes, HEAD + PEER * nodes)),
        memory=1,
    )
    steps: tuple[Step, ...] = tuple(tuple(range(size)) for size in range(nodes))
    # Prices rise as thresholds fall: the first policy has the highest one.
    cuts = np.searchsorted(edges, thresholds[::-1], side="left") + (thresholds[::-1] > 0)
    ways = count * nodes
    source = np.tile(np.arange(nodes), count)
    base = np.where(source > 0, spacing * np.repeat(cuts, nodes), 1.0)
    slope = np.where(source > 0, 1.0, 0.0)
    return StepTables(
        names=spec.names,
        belief=belief,
        costs=np.asarray(mean, float),
        prices=np.zeros(count),
        steps=steps,
        knots=np.empty((nodes, 0)),
        point=np.repeat(np.arange(count), nodes),
        source=source,
        node=source.copy(),
        base=base[:, None],
        slope=slope[:, None],
        columns=np.zeros((ways, 2)),
        wait=np.zeros(nodes),
        kind=spec.kind,
    )
