"""One threshold on the confidence for all nodes: policies that are set, not fitted.

A policy asks the nodes in order, and stops at the first whose confidence reaches its threshold,
with the answer of that node; where none does, the last node answers. The thresholds are fixed
before any row is seen, so promises about them may be tested on all rows: none need be held out.

They are policies like all others, on a walk without recall. The state of a node is the number of
thresholds that its confidence reaches. The tradeoff of a policy is its threshold; at 1 it never
stops early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.fitted.cautious import stopping_policy
from ttamer.fitted.ladder import FittedLadder
from ttamer.fitted.mixture import Rungs
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitted.replay import nodes_alone, paid
from ttamer.policy.base import Ladder
from ttamer.problem.tradeoff import check_tradeoffs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.fitted.models import ConfidenceModel
    from ttamer.fitting.options import FitOptions
    from ttamer.problem.problem import Problem
    from ttamer.trace.trace import Trace

__all__ = ["check_threshold_options", "ladder_of_thresholds", "quantiser_of", "thresholds_of"]

COUNT = 64
"""The number of thresholds, with 0 and 1."""
LARGEST_DOUBT, SMALLEST_DOUBT = 0.95, 1e-5
"""One minus the lowest and the highest threshold between 0 and 1: they are in equal ratios."""


def check_threshold_options(trace: Trace, options: FitOptions) -> None:
    """Refuse what does not go with thresholds.

    Args:
        trace: The rows.
        options: The options of the fit.

    Raises:
        ArgumentError: Rows are to be held out, nodes are not asked in one order, or a confidence
            is not from 0 to 1.
    """
    if options.hold_out:
        raise ArgumentError(
            'belief="threshold" fits nothing, so promises are tested on all rows: leave hold_out '
            "(--hold-out) out"
        )
    if options.order not in (None, "auto", "fixed") or trace.spec.is_tree:
        raise ArgumentError(
            'belief="threshold" asks nodes in one order, the cheapest first, or as the exits of a '
            "network: leave order (--order) out, and name no parents (after)"
        )
    confidence = trace.confidence
    outside = ~((confidence >= 0) & (confidence <= 1)).all(axis=0)
    if outside.any():
        raise ArgumentError(
            "thresholds are from 0 to 1, and the confidences of "
            f"{trace.names[int(outside.argmax())]!r} are not: rescale them, or use another belief"
        )


def thresholds_of(options: FitOptions) -> NDArray[np.float64]:
    """Return the thresholds, increasing, from 0 to 1.

    Args:
        options: The options of the fit: its tradeoffs are the thresholds, where they are given.

    Returns:
        Shape (policies,). No row has been looked at.
    """
    if options.tradeoffs is not None:
        return check_tradeoffs(options.tradeoffs)
    doubts = np.geomspace(LARGEST_DOUBT, SMALLEST_DOUBT, COUNT - 2)
    return np.concatenate([[0.0], 1 - doubts, [1.0]])


def quantiser_of(thresholds: NDArray[np.float64], nodes: int) -> Quantiser:
    """Return the states by which thresholds decide: how many of them a confidence reaches.

    Args:
        thresholds: Increasing, from 0 to 1.
        nodes: The number of nodes.

    Returns:
        The same edges for each node. Every confidence reaches 0, and at 1 a policy never stops.
    """
    edges = thresholds[(thresholds > 0) & (thresholds < 1)]
    return Quantiser((edges,) * nodes)


def ladder_of_thresholds(
    problem: Problem, model: ConfidenceModel, thresholds: NDArray[np.float64], trace: Trace
) -> FittedLadder:
    """Return the policies of some thresholds, measured on the rows, which promises are tested on.

    Args:
        problem: The line of the nodes in the order of asking, over the states of the model.
        model: What turns confidences into states.
        thresholds: Increasing, from 0 to 1.
        trace: The rows.

    Returns:
        A ladder with the errors and costs of its policies on these rows.
    """
    edges = model.quantiser.edges[0]
    first = np.searchsorted(edges, thresholds, side="left") + (thresholds > 0)  # that stops
    states = np.arange(len(edges) + 1)
    policies = [
        stopping_policy(problem, float(threshold), [states >= cut] * (len(problem.nodes) - 1))
        for threshold, cut in zip(thresholds, first, strict=True)
    ]
    ladder = FittedLadder.of(Ladder(tuple(policies)), model)
    losses, rows = trace.losses(), np.arange(len(trace))
    errors, costs = [], []
    for played in ladder.play_all(trace):
        errors.append(losses[rows, played.answer].mean())
        costs.append(paid(played.asked, trace).mean())
    return ladder.with_rungs(Rungs(np.array(errors), np.array(costs), None, *nodes_alone(trace)))
