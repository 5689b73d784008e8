"""Promises: the cheapest mix of policies whose error is at most so much, with a stated certainty.

Mixes are tested one after another, from the safest to the cheapest, each at the full level, until
one fails (fixed-sequence testing: the order was fixed by the rows fitted to, the tests are made on
rows held out). The last one that passed keeps the promise: over all draws of the held-out rows,
what is returned breaks it with a chance of at most 1 - confidence.

- error: the share of wrong answers is at most ``at_most``, by the exact binomial test;
- drop: that share is at most ``at_most`` above the last node's, by betting on the difference.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.fitted.mixture import Mix
from ttamer.stats.bounds import (
    betting_p,
    betting_upper,
    binomial_p,
    binomial_upper,
    check_confidence,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedLadder
    from ttamer.trace.trace import Trace

__all__ = ["HeldOut", "Kind", "Promise", "check_promise", "make_promise", "pairs_of_corners"]

Kind = Literal["error", "drop"]
STEPS = 4
"""The number of mixes that are tested between two corners."""


@dataclass(frozen=True)
class Promise:
    """A certificate: what is promised, on how many rows that was tested, and whether it passed.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(1000))
    >>> ladder = fit(trace, belief="calibrated", states=4, hold_out=0.2)
    >>> promise = ladder.for_error(0.3).promise
    >>> promise.certified, promise.rows, promise.bound <= 0.3
    (True, 200, True)
    """

    kind: Kind
    at_most: float
    confidence: float
    mix: Mix
    """Which policies of the ladder, and how they are mixed."""
    certified: bool
    """Whether the test passed; if not, the mix is the safest there is."""
    bound: float
    """With this confidence the error (or the drop) of this mix is at most so much."""
    observed: float
    """The error (or the drop) on the rows held out."""
    rows: int
    trace_digest: str
    """Of the rows held out."""
    against: str
    """The node that a drop is measured from."""
    rows_needed: int | None = None
    """About how many rows would do, if what was observed is the truth; ``None`` where it passed, or
    where no number would."""
    refuted: bool = False
    """Whether rows it was checked on show, with the same confidence, that it does not hold."""

    @property
    def alpha(self) -> float:
        """How often such a promise may be broken."""
        return 1 - self.confidence

    def __str__(self) -> str:
        what = "error" if self.kind == "error" else f"drop against {self.against!r}"
        asked = f"{what} at most {self.at_most:.2%} with confidence {self.confidence:g}"
        seen = f"{self.observed:.2%} on {self.rows} rows held out, at most {self.bound:.2%}"
        if self.certified:
            return f"{asked}: certified ({seen})"
        if self.refuted:
            return f"{asked}: broken ({self.observed:.2%} on {self.rows} rows)"
        if self.rows_needed is None:
            return f"{asked}: not certified ({seen}); more rows would not help, allow more"
        return f"{asked}: not certified ({seen}); about {self.rows_needed} rows would do"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields and ``alpha``, by name.
        """
        return {**vars(self), "mix": self.mix._asdict(), "alpha": self.alpha}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Counts of wrong answers on held-out rows."""

    rows: int
    trace_digest: str
    against: str
    """The node they are compared with."""
    pairs: tuple[tuple[int, int], ...]
    """Neighbouring corners of the ladder, cheap and expensive, by rung, the cheapest first."""
    counts: NDArray[np.int64]
    """Shape (pairs, 2, 2, 2): rows on which the cheap policy, the expensive one and the node
    compared with were right (0) or wrong (1)."""
    by_node: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """The counts against each node of the cascade."""

    @classmethod
    def of(cls, ladder: FittedLadder, trace: Trace, *, against: str | None = None) -> HeldOut:
        """Play a ladder on rows it was not fitted to, and count."""
        if not len(trace):
            raise ArgumentError("the trace has no rows to hold out")
        if trace.digest == ladder.fitted.trace_digest:
            raise ArgumentError(
                "these are the rows the ladder was fitted to: a promise needs others; fit with "
                "hold_out=0.2, or give held-out rows"
            )
        pairs = pairs_of_corners(ladder.require_rungs().corners)
        against = against or trace.names[-1]
        node = trace.spec.index_of(against)
        wrong = trace.wrong()
        rows, states = np.arange(len(trace)), ladder.fitted.states(trace)
        mine = {
            rung: wrong[rows, states.play(ladder[rung].policy).answer]
            for rung in sorted({rung for pair in pairs for rung in pair})
        }
        counts = np.array(
            [
                [
                    np.bincount(4 * mine[cheap] + 2 * mine[expensive] + theirs, minlength=8)
                    for cheap, expensive in pairs
                ]
                for theirs in wrong.T
            ]
        ).reshape(len(trace.names), -1, 2, 2, 2)
        by_node = dict(zip(trace.names, counts, strict=True))
        return cls(len(trace), trace.digest, against, pairs, counts[node], by_node)

    def compared_with(self, node: str) -> HeldOut:
        """Return the same rows, compared with another node.

        Args:
            node: A node of the cascade.

        Returns:
            The counts against that node.

        Raises:
            ArgumentError: The counts of that node were not kept.
        """
        if node == self.against:
            return self
        if node not in self.by_node:
            raise ArgumentError(
                f"the rows held out were compared with {self.against!r}; to compare with "
                f"{node!r}, give rows to test on (on=trace)"
            )
        return dataclasses.replace(self, against=node, counts=self.by_node[node])

    @property
    def seed(self) -> int:
        """A seed for draws about these rows, as good as random: it is taken from their digest."""
        return int.from_bytes(blake2b(self.trace_digest.encode(), digest_size=8).digest())

    def outcomes(self, mix: Mix) -> NDArray[np.int64]:
        """Return, shape (2, 2), rows by whether a mix and the other node were right or wrong.

        Each row is given to one of the two policies, as inputs are when a mixture serves: the
        draw is fixed, and a larger share only moves rows to the more expensive policy.
        """
        pair = self.pairs.index((mix.cheap, mix.expensive))
        found = np.zeros((2, 2), np.int64)
        for (one, two, last), count in np.ndenumerate(self.counts[pair]):
            draws = np.random.default_rng([self.seed, pair, one, two, last]).random(int(count))
            drawn = int(np.count_nonzero(draws < mix.share))
            found[two, last] += drawn
            found[one, last] += int(count) - drawn
        return found

    def mixes(self, steps: int) -> list[Mix]:
        """Return mixes from the most expensive corner to the cheapest, ``steps`` between two."""
        found = [Mix(*self.pairs[-1], 1.0)]
        for cheap, expensive in reversed(self.pairs):
            found += [Mix(cheap, expensive, 1 - k / steps) for k in range(1, steps + 1)]
        return found


def pairs_of_corners(corners: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return neighbouring corners; a single corner stands beside itself.

    >>> pairs_of_corners((1, 4, 7)), pairs_of_corners((3,))
    (((1, 4), (4, 7)), ((3, 3),))
    """
    return tuple(pairwise(corners)) or ((corners[0], corners[0]),)


def make_promise(held: HeldOut, kind: Kind, at_most: float, confidence: float) -> Promise:
    """Return the cheapest mix that can be promised; if none can be, the safest, and say so."""
    alpha = check_confidence(confidence)
    low = 0.0 if kind == "error" else -1.0
    if not low < at_most < 1:
        raise ArgumentError(f"at_most is {at_most!r}; it must lie above {low:g} and below 1")
    mixes = held.mixes(STEPS)
    passed: Mix | None = None
    for mix in mixes:
        if _p_value(kind, held.outcomes(mix), at_most, alpha, held.seed) > alpha:
            break
        passed = mix
    mix = passed or mixes[0]
    found = held.outcomes(mix)
    return Promise(
        kind=kind,
        at_most=float(at_most),
        confidence=float(confidence),
        mix=mix,
        certified=passed is not None,
        bound=_upper(kind, found, alpha, held.seed),
        observed=_observed(kind, found),
        rows=held.rows,
        trace_digest=held.trace_digest,
        against=held.against,
        rows_needed=None if passed else _rows_needed(kind, found, at_most, alpha),
    )


def check_promise(promise: Promise, held: HeldOut) -> Promise:
    """Return the same promise about the same mix, tested on other rows.

    The mix was chosen before, so this is one test; what it finds may be less or more.
    """
    found = held.outcomes(promise.mix)
    kind, at_most, alpha = promise.kind, promise.at_most, promise.alpha
    passed = _p_value(kind, found, at_most, alpha, held.seed) <= alpha
    return dataclasses.replace(
        promise,
        certified=passed,
        bound=_upper(kind, found, alpha, held.seed),
        observed=_observed(kind, found),
        rows=held.rows,
        trace_digest=held.trace_digest,
        rows_needed=None if passed else _rows_needed(kind, found, at_most, alpha),
        refuted=_refutes(kind, found, at_most, alpha, held.seed),
    )


def _refutes(kind: Kind, found: NDArray[np.int64], at_most: float, alpha: float, seed: int) -> bool:
    """Whether rows show that the error, or the drop, is more than so much."""
    if kind == "error":  # the test of too many wrong, mirrored: too few right
        return binomial_p(int(found[0].sum()), int(found.sum()), 1 - at_most) <= alpha
    values, counts = _drops(found)
    return betting_p(values, counts[::-1], (1 - at_most) / 2, alpha=alpha, seed=seed) <= alpha


def _observed(kind: Kind, found: NDArray[np.int64]) -> float:
    error = found[1].sum() / found.sum()
    return float(error if kind == "error" else error - found[:, 1].sum() / found.sum())


def _drops(found: NDArray[np.int64]) -> tuple[list[float], list[int]]:
    """Return the difference to the last node, moved to lie between 0 and 1, and how often."""
    same = int(found[0, 0] + found[1, 1])
    return [0.0, 0.5, 1.0], [int(found[0, 1]), same, int(found[1, 0])]


def _p_value(
    kind: Kind, found: NDArray[np.int64], at_most: float, alpha: float, seed: int
) -> float:
    if kind == "error":
        return binomial_p(int(found[1].sum()), int(found.sum()), at_most)
    return betting_p(*_drops(found), (1 + at_most) / 2, alpha=alpha, seed=seed)


def _upper(kind: Kind, found: NDArray[np.int64], alpha: float, seed: int) -> float:
    if kind == "error":
        return binomial_upper(int(found[1].sum()), int(found.sum()), alpha)
    return 2 * betting_upper(*_drops(found), alpha=alpha, seed=seed) - 1


def _rows_needed(kind: Kind, found: NDArray[np.int64], at_most: float, alpha: float) -> int | None:
    """Return about how many rows would pass the test, if what was observed is the truth."""
    gap = at_most - _observed(kind, found)
    if gap <= 0:
        return None
    if kind == "drop":
        values, counts = _drops(found)
        share = np.array(counts) / sum(counts)
        spread = 4 * float(share @ (np.array(values) - share @ values) ** 2)
        needed = math.ceil(2 * (spread + gap / 3) * math.log(1 / alpha) / gap**2)
        return max(needed, int(found.sum()) + 1)
    normal = NormalDist().inv_cdf(1 - alpha) ** 2 * at_most * (1 - at_most) / gap**2
    without_one = math.log(alpha) / math.log1p(-at_most)  # rows that pass if none is wrong
    return max(math.ceil(max(normal + 1 / gap, without_one)), int(found.sum()) + 1)
