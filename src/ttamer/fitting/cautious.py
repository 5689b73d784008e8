"""Finding cautious policies (:mod:`ttamer.fitted.cautious`) on the rows of a trace.

They minimise ``tradeoff * lost + (1 - tradeoff) * cost``, where stopping early loses, on a row,
half of what it is expected to lose beyond the last exit, and half of what it does lose there that
the last exit does not. The first half is the drop; the second counts only the rows that count
against the promise, so that rows on which an early exit happens to be right do not offset them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.cautious import Cautious
from ttamer.fitting.regressions import sampled
from ttamer.fitting.row_policy import RowSolver, width_of
from ttamer.policy.expected_walk import STOP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.models import States
    from ttamer.problem.problem import Problem
    from ttamer.trace.trace import Trace

__all__ = ["find_cautious"]

HARM_SHARE = 0.5
"""The share of what stopping early loses that counts only rows on which the last exit is right."""
MAX_ROWS = 20_000
"""Cautious policies are found on at most this many rows: a uniform sample of more."""


def find_cautious(
    trace: Trace,
    problem: Problem,
    found: NDArray[np.intp],
    owner: NDArray[np.intp],
    lost: NDArray[np.float64],
    tradeoffs: NDArray[np.float64],
    costs: Sequence[NDArray[np.float64] | float],
    served: States,
) -> Cautious:
    """Find cautious policies for several tradeoffs, and one of tradeoff 1.

    Args:
        trace: The rows, T of them.
        problem: The line of the fit.
        found: Shape (T, exits): the states of X, by regressions that did not see the row.
        owner: Shape (T, exits): the owner of X.
        lost: Shape (T, exits): what stopping there is expected to lose.
        tradeoffs: Increasing, from 0 to 1.
        costs: The cost of each edge: one number, or one per row.
        served: The states of the rows as the fit serves.

    Returns:
        The thresholds, the errors on rows not fitted to, and the costs as the fit serves.
    """
    rows, last = np.arange(len(trace)), found.shape[1] - 1
    wrong = trace.wrong().astype(np.float64)
    theirs = wrong[:, [last]]
    harm = np.maximum(wrong[rows[:, np.newaxis], owner] - theirs, 0.0)
    more = HARM_SHARE * harm + (1 - HARM_SHARE) * (lost - theirs)
    more[:, last] = 0.0
    few = sampled(len(trace), MAX_ROWS) if len(trace) > MAX_ROWS else rows
    solver = RowSolver(
        problem,
        found[few],
        more[few],
        width=width_of(len(few)),
        costs=[each[few] if isinstance(each, np.ndarray) else each for each in costs],
    )
    inner = tradeoffs[tradeoffs < 1]
    policies = solver.policies(inner) if inner.size else []
    found_cuts = {1.0: (0,) * last}
    for each in reversed(policies):
        stops = [table[:, 0] == STOP for table in each.choices[:last]]
        ends = np.cumsum([own.all() for own in stops]) > 0  # exits after such a one are not asked
        reached = np.append(True, ~ends[:-1])
        cuts = tuple(int(own.sum()) if r else 0 for own, r in zip(stops, reached, strict=True))
        if cuts not in found_cuts.values():
            found_cuts[each.tradeoff] = cuts
    count = len(found_cuts)
    cautious = Cautious(
        np.array(sorted(found_cuts)),
        np.array([found_cuts[each] for each in sorted(found_cuts)], np.intp),
        np.empty(count),
        np.empty(count),
    )
    for number in range(count):
        place = cautious.places(number, found)
        answer = np.where(place == last, last, owner[rows, place])
        cautious.errors[number] = wrong[rows, answer].mean()
    return dataclasses.replace(cautious, costs=cautious.mean_costs(served, trace))
