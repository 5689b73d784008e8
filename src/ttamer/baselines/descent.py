"""One threshold per step of a walk, tuned together by coordinate descent.

Given all other thresholds, every row that reaches a step has a loss if it stops there and a loss if
it goes on, so the best threshold of the step is the least of one running sum over its levels.
Steps are taken from the last to the first, again and again until nothing moves. No round raises
the loss; the end is a local optimum, and the optimum itself where the walk has two nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["descend"]

ROUNDS = 12
_NO_GAIN = 1e-12


def descend(
    levels: Sequence[NDArray[np.intp]],
    sizes: Sequence[int],
    losses: Sequence[NDArray[np.float64]],
    cuts: Sequence[int],
) -> tuple[list[int], float]:
    """Return the level from which each step stops, and the mean loss.

    Args:
        levels: Per step but the last, shape (T,): the level of the score on each row.
        sizes: Per step but the last: how many levels there are; a cut at ``size`` never stops.
        losses: Per step, shape (T,): what stopping there loses on each row, costs included.
        cuts: Where to begin.

    >>> stop, go = np.array([0.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.5])
    >>> descend([np.array([2, 0, 1])], [3], [stop, go], [0])
    ([2], 0.3333333333333333)

    """
    found = list(cuts)
    onward = losses[-1]
    for _ in range(ROUNDS):
        before = list(found)
        reached = [np.ones(len(losses[0]), bool)]
        for step in range(len(levels) - 1):
            reached.append(reached[step] & (levels[step] < found[step]))
        onward = losses[-1]
        for step in range(len(levels) - 1, -1, -1):
            change = np.where(reached[step], losses[step] - onward, 0.0)
            by_level = np.bincount(levels[step], change, minlength=sizes[step])
            total = np.append(np.cumsum(by_level[::-1])[::-1], 0.0)  # of stopping from a level on
            best = int(total.argmin())
            if total[best] < total[found[step]] - _NO_GAIN:
                found[step] = best
            onward = np.where(levels[step] >= found[step], losses[step], onward)
        if found == before:
            break
    return found, float(onward.mean())
