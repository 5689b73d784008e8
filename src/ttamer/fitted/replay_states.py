"""Playing a policy on rows whose states are all known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.replay import asked_up_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.policy.base import Policy

__all__ = ["play_states"]


def play_states(
    policy: Policy, states: NDArray[np.uint8]
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.intp]]:
    """Return whose answer (T,), who was asked (T, n), and who was asked last (T,).

    ``states`` has shape (T, n), with one column per node of the policy's problem.
    """
    problem = policy.problem
    if problem.is_line and problem.order == tuple(range(len(problem.nodes))) and policy.recall:
        return _play_line(policy, states)
    rows = len(states)
    every = np.arange(rows)
    batch = policy.batch(rows)
    asked = np.zeros(states.shape, bool)
    last = np.zeros(rows, np.intp)
    while batch.running:
        going = batch.next >= 0
        last = np.where(going, batch.next, last)
        asked[every[going], batch.next[going]] = True
        batch.observe(states[every, last])
    return batch.answer.astype(np.intp), asked, last


def _play_line(
    policy: Policy, states: NDArray[np.uint8]
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.intp]]:
    """All rows in step: on a line, row by row, the k-th node asked is node k."""
    problem = policy.problem
    count = len(problem.nodes)
    rows = len(states)
    kind = np.uint8 if len(problem.grid) <= 256 else np.uint16
    best = np.full(rows, len(problem.grid) - 1, kind)
    answer = np.zeros(rows, np.intp)
    last = np.full(rows, count - 1, np.intp)
    running = np.arange(rows)
    for node, name in enumerate(problem.names):
        seen = states[running, node].astype(np.intp)
        own = problem.grid.positions[node].astype(kind).take(seen)
        better = own < best
        answer[running[better]] = node
        best = np.minimum(best, own)
        if node == count - 1:
            break
        # It stops up to a column and not beyond: that column says it all.
        stop_columns = policy.if_stop(name).sum(axis=1) - 1
        goes_on = best.astype(np.int32) > stop_columns.astype(np.int32).take(seen)
        last[running[~goes_on]] = node
        running, best = running[goes_on], best[goes_on]
        if not len(running):
            break
    return answer, asked_up_to(last, count), last
