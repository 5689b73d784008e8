"""Held-out rows, counted: what a ladder's corners did on rows that the fit did not see.

For every two neighbouring corners, how many rows each of them and the last node (or another) got
wrong, jointly. That is all that promises of any size need, so it travels with the ladder in place
of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.fitted.rungs import Mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedLadder
    from ttamer.trace.trace import Trace

__all__ = ["HeldOut", "pairs_of_corners"]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Counts of wrong answers on rows kept aside."""

    rows: int
    trace_digest: str
    against: str
    """The node they are compared with."""
    pairs: tuple[tuple[int, int], ...]
    """Neighbouring corners of the ladder, cheap and dear, by rung, the cheapest first."""
    counts: NDArray[np.int64]
    """Shape (pairs, 2, 2, 2): rows on which the cheap one, the dear one and the node compared with
    were right (0) or wrong (1)."""

    @classmethod
    def of(cls, ladder: FittedLadder, trace: Trace, *, against: str | None = None) -> HeldOut:
        """Play a ladder on rows it was not fitted to, and count."""
        if not len(trace):
            raise ArgumentError("the trace has no rows to hold out")
        if trace.digest == ladder.fitted.trace_digest:
            raise ArgumentError(
                "these are the rows the ladder was fitted to: a promise needs others; fit with "
                "hold_out=0.2, or give rows that were kept aside"
            )
        pairs = pairs_of_corners(ladder.require_rungs().corners)
        against = against or trace.names[-1]
        wrong = trace.wrong()
        theirs = wrong[:, trace.spec.index_of(against)]
        rows = np.arange(len(trace))
        mine = {
            rung: wrong[rows, ladder[rung].play(trace).answer]
            for rung in sorted({rung for pair in pairs for rung in pair})
        }
        counts = np.stack(
            [
                np.bincount(4 * mine[cheap] + 2 * mine[dear] + theirs, minlength=8)
                for cheap, dear in pairs
            ]
        )
        return cls(len(trace), trace.digest, against, pairs, counts.reshape(-1, 2, 2, 2))

    @property
    def seed(self) -> int:
        """A seed for draws about these rows, as good as random: it is taken from their digest."""
        return int.from_bytes(blake2b(self.trace_digest.encode(), digest_size=8).digest())

    def outcomes(self, mix: Mix) -> NDArray[np.int64]:
        """Return, shape (2, 2), rows by whether a mix and the other node were right or wrong.

        Each row is given to one of the two policies, as inputs are when a mixture serves: the
        draw is fixed, and a larger share only moves rows to the dearer policy.
        """
        pair = self.pairs.index((mix.cheap, mix.dear))
        found = np.zeros((2, 2), np.int64)
        for (one, two, last), count in np.ndenumerate(self.counts[pair]):
            draws = np.random.default_rng([self.seed, pair, one, two, last]).random(int(count))
            dear = int(np.count_nonzero(draws < mix.share))
            found[two, last] += dear
            found[one, last] += int(count) - dear
        return found

    def mixes(self, steps: int) -> list[Mix]:
        """Return mixes from the safest (the dearest corner) to the cheapest, in so many steps."""
        found = [Mix(*self.pairs[-1], 1.0)]
        for cheap, dear in reversed(self.pairs):
            found += [Mix(cheap, dear, 1 - k / steps) for k in range(1, steps + 1)]
        return found


def pairs_of_corners(corners: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return neighbouring corners; a single corner stands beside itself.

    >>> pairs_of_corners((1, 4, 7)), pairs_of_corners((3,))
    (((1, 4), (4, 7)), ((3, 3),))
    """
    return tuple(pairwise(corners)) or ((corners[0], corners[0]),)
