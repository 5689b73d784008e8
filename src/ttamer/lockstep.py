"""Lock-step decisions: many inputs that all stand at the same node of a line.

This is the case of a server that runs a batch through the exits of one network. A decision is one
lookup and two comparisons per input, on bytes::

    step = Lockstep(policy, "exit3")
    best = step.start(size)              # before the first node
    stop = step(states, best)            # moves best on in place; true where an input stops

``bytearray.translate`` is the one lookup at hand that goes from bytes to bytes: NumPy's own
widen every index to eight bytes first, and cost twice as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.policy import Policy

__all__ = ["Lockstep"]

MOST_COLUMNS = 255
BLOCK = 65_536
"""Inputs decided together: their bytes stay in the cache."""


class Lockstep:
    """The decision after one node of a line, for many inputs at once.

    >>> from ttamer import Problem, solve
    >>> line = Problem.line([0.0, 0.5], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> step = Lockstep(solve(line, 0.5), "m1")
    >>> best = step.start(3)
    >>> step(np.array([0, 1, 0], np.uint8), best).tolist()
    [True, False, True]
    """

    def __init__(self, policy: Policy, node: str) -> None:
        problem = policy.problem
        number = problem.index_of(node)
        if not (problem.is_line and policy.recall):
            raise ArgumentError("lock-step is for a line with recall; use policy.batch otherwise")
        states = len(problem.nodes[number].losses)
        if len(problem.grid) - 1 > MOST_COLUMNS or states > MOST_COLUMNS:
            raise ArgumentError(
                f"lock-step counts losses and states in bytes, at most {MOST_COLUMNS} of each; "
                "use policy.batch"
            )
        position = problem.grid.positions[number]
        pad = bytes(256 - states)
        self._own = bytes(np.minimum(position, MOST_COLUMNS).tolist()) + pad
        self._sorted = bool((position == np.arange(states)).all())
        stops = policy.if_stop(node)[:, :-1].sum(axis=1)  # it stops at the first so many columns
        self._limit = bytes(stops.tolist()) + pad

    @staticmethod
    def start(size: int) -> NDArray[np.uint8]:
        """Return the best columns of inputs nobody has answered yet."""
        return np.full(size, MOST_COLUMNS, np.uint8)

    def __call__(
        self,
        states: NDArray[np.uint8],
        best: NDArray[np.uint8],
        stop: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Return where inputs stop, and move ``best`` on in place.

        ``states`` are what the node was seen in, shape (inputs,); they must be states it has.
        ``best`` holds the columns of the best losses so far; ``stop`` may be given to write to.
        """
        if stop is None:
            stop = np.empty(len(states), bool)
        if len(states) > BLOCK:
            for at in range(0, len(states), BLOCK):
                part = slice(at, at + BLOCK)
                self(states[part], best[part], stop[part])
            return stop
        seen = bytearray(states)
        own = states if self._sorted else np.frombuffer(seen.translate(self._own), np.uint8)
        limit = np.frombuffer(seen.translate(self._limit), np.uint8)
        return np.less(np.minimum(best, own, out=best), limit, out=stop)
