"""Promises: the cheapest mix of policies whose error is at most so much, with a stated certainty.

Mixes are tested one after another, from the safest to the cheapest, each at the full level, until
one fails (fixed-sequence testing: the order was fixed by the fit rows, the tests are made on
rows held out). The last one that passed keeps the promise: over all draws of the held-out rows,
what is returned breaks it with a chance of at most 1 - confidence. The order of thresholds on the
confidence is fixed before any row is seen, so they are tested on all rows.

- error: the share of wrong answers is at most ``at_most``, by the exact binomial test;
- drop: that share is at most ``at_most`` above another node's, by an exact test of the rows on
  which only one of the two is right.

Where answers have losses, both are about the mean loss, and are tested by betting: the largest
loss there can be must be known beforehand.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ttamer._numbers import counted, is_number
from ttamer.errors import ArgumentError
from ttamer.fitted.held_sample import HeldSample
from ttamer.fitted.mixture import Mix, shown_error
from ttamer.stats.bounds import check_confidence
from ttamer.trace.checks import require_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.cautious import Cautious
    from ttamer.fitted.ladder import FittedLadder
    from ttamer.fitted.models import Model, States
    from ttamer.trace.trace import Measure, Trace

__all__ = [
    "HeldLosses",
    "HeldOut",
    "Kind",
    "Promise",
    "cautious_pairs",
    "check_promise",
    "count_pairs",
    "loss_bound_of",
    "make_promise",
    "pairs_of_corners",
    "refuse_fitted_rows",
    "rows_split",
    "were_fitted_to",
]

Kind = Literal["error", "drop"]
STEPS = 4
"""The number of mixes that are tested between two corners."""
RIGHT_WRONG = np.array([0.0, 1.0])
"""The loss of a right and of a wrong answer."""
BETTER_SAME_WORSE = np.array([0.0, 0.5, 1.0])
"""Differences of right and wrong, moved to lie between 0 and 1."""
MAX_HELD_LOSSES = 20_000
"""Promises about losses are tested on at most this many rows, which a file keeps: a uniform sample
of more, since rows of a log are often sorted."""


MAX_SEED_DIGITS = 40
"""A longer text in the plan of a fit is not read as its seed."""


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
    """Whether the test passed; if not, the mix is the safest available."""
    bound: float
    """With this confidence the error (or the drop) of this mix is at most so much."""
    observed: float
    """The error (or the drop) on the rows it was tested on."""
    rows: int
    trace_digest: str
    """Of the rows it was tested on."""
    against: str
    """The node that a drop is measured from."""
    rows_needed: int | None = None
    """About how many rows would be enough, if the observed error is the true one; ``None`` where it
    passed, or where no number would."""
    refuted: bool = False
    """Whether rows it was checked on show, with the same confidence, that it does not hold."""
    measure: Measure = "error"
    """What is promised: the share of wrong answers, or the mean loss."""

    @property
    def alpha(self) -> float:
        """How often such a promise may be broken."""
        return 1 - self.confidence

    def __str__(self) -> str:
        observed, bound = (shown_error(x, self.measure) for x in (self.observed, self.bound))
        what = self.measure if self.kind == "error" else f"drop against {self.against!r}"
        asked = f"{what} at most {shown_error(self.at_most, self.measure)}"
        asked += f" with confidence {self.confidence:g}"
        seen = f"{observed} on {counted(self.rows, 'row')}, at most {bound}"
        if self.certified:
            return f"{asked}: certified ({seen})"
        if self.refuted:
            return f"{asked}: broken ({observed} on {counted(self.rows, 'row')})"
        if self.rows_needed is None:
            return f"{asked}: not certified ({seen}); more rows would not help, allow more"
        return f"{asked}: not certified ({seen}); about {self.rows_needed} rows would do"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields and ``alpha``, by name; ``measure`` only where it is the mean loss.
        """
        values = {**vars(self), "mix": self.mix._asdict(), "alpha": self.alpha}
        if self.measure == "error":
            del values["measure"]
        return values


def rows_split(trace: Trace, count: int, seed: int) -> tuple[Trace, Trace]:
    """Return the rows to fit and ``count`` rows to hold out, each in their order."""
    rows = np.random.default_rng([seed, 3]).permutation(len(trace))
    return trace.take(np.sort(rows[count:])), trace.take(np.sort(rows[:count]))


def were_fitted_to(fitted: Model, held: HeldOut | None, trace: Trace) -> bool:
    """Return whether rows are those fitted to, or these and the rows held out of the same log.

    Such a log is recognised by repeating the split of the fit.
    """
    if trace.digest == fitted.trace_digest:
        return True
    count = len(trace) - fitted.rows
    if held is None or count <= 0 or held.rows not in (count, min(count, MAX_HELD_LOSSES)):
        return False
    seed = str(fitted.plan.get("seed", 0))  # of a file: any text
    known = seed.isdecimal() and len(seed) <= MAX_SEED_DIGITS
    fitted_rows, _ = rows_split(trace, count, int(seed) if known else 0)
    return fitted_rows.digest == fitted.trace_digest


def refuse_fitted_rows(ladder: FittedLadder, trace: Trace, what: str) -> None:
    """Refuse rows that a ladder was fitted to, or that hold them."""
    if ladder.fitted.has_thresholds or not were_fitted_to(ladder.fitted, ladder.held, trace):
        return
    if trace.digest == ladder.fitted.trace_digest:
        raise ArgumentError(
            f"these are the rows the ladder was fitted to: {what} needs others; hold some out of "
            "the fit (hold_out=0.2; ttamer fit --hold-out 0.2), or give other rows"
        )
    raise ArgumentError(
        f"the ladder was fitted to {ladder.fitted.rows} of these {len(trace)} rows: {what} needs "
        "others; leave the trace out to use the rows held out of the fit, or give other rows"
    )


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
    cautious: HeldOut | None = None
    """The same rows under cautious policies, compared with the last exit, where there are any."""

    measure: ClassVar[Measure] = "error"
    """What promises on these rows are about."""

    @classmethod
    def of(cls, ladder: FittedLadder, trace: Trace, *, against: str | None = None) -> HeldOut:
        """Play a ladder on rows it was not fitted to, and count."""
        require_trace(trace, "a promise")
        trace = trace.with_verification()
        if not len(trace):
            raise ArgumentError("the trace has no rows to hold out")
        refuse_fitted_rows(ladder, trace, "a promise")
        if trace.measure != ladder.fitted.measure:
            raise ArgumentError(
                f"these rows are measured by their {trace.measure}, and the ladder was fitted to "
                f"the {ladder.fitted.measure}: give rows with the same losses, or fit again"
            )
        against = against or trace.names[-1]
        trace.spec.index_of(against)  # refuses a name that no node has
        if trace.is_graded:
            return HeldLosses.played(ladder, trace, against)
        wrong = trace.wrong()
        rows, states = np.arange(len(trace)), ladder.fitted.states(trace)
        mine = [wrong[rows, states.play(ladder[rung].policy).answer] for rung in ladder.tested]
        by_node = {
            name: count_pairs(mine, theirs)
            for name, theirs in zip(trace.names, wrong.T, strict=True)
        }
        cautious = None
        if ladder.cautious is not None:
            answers = cautious_answers(ladder.cautious, states, len(trace.names) - 1)
            cautious = cls(
                len(trace),
                trace.digest,
                trace.names[-1],
                cautious_pairs(len(ladder), len(ladder.cautious)),
                count_pairs([wrong[rows, answer] for answer in answers], wrong[:, -1]),
            )
        pairs = pairs_of_corners(ladder.tested)
        return cls(len(trace), trace.digest, against, pairs, by_node[against], by_node, cautious)

    def suited_to(self, kind: Kind) -> HeldOut:
        """Return the counts on which promises of a kind are tested."""
        if kind == "drop" and self.cautious is not None and self.cautious.against == self.against:
            return self.cautious
        return self

    def holding(self, mix: Mix) -> HeldOut:
        """Return the counts that hold a mix."""
        held = self.cautious
        return held if held is not None and (mix.cheap, mix.expensive) in held.pairs else self

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

    def sample(self, kind: Kind, mix: Mix) -> HeldSample:
        """Return what the rows show of a mix."""
        found = self.outcomes(mix)
        rows, error = found.sum(), found[1].sum() / found.sum()
        if kind == "error":
            counts = found.sum(axis=1)
            return HeldSample(RIGHT_WRONG, counts, 0.0, 1.0, float(error), test="binomial")
        same = found[0, 0] + found[1, 1]
        drop = float(error - found[:, 1].sum() / rows)
        counts = np.array([found[0, 1], same, found[1, 0]])
        return HeldSample(BETTER_SAME_WORSE, counts, -1.0, 1.0, drop, test="paired")

    @property
    def largest_loss(self) -> float:
        """The largest loss there can be."""
        return 1.0

    def mixes(self, steps: int) -> list[Mix]:
        """Return mixes from the most expensive corner to the cheapest, ``steps`` between two."""
        found = [Mix(*self.pairs[-1], 1.0)]
        for cheap, expensive in reversed(self.pairs):
            found += [Mix(cheap, expensive, 1 - k / steps) for k in range(1, steps + 1)]
        return found


def loss_bound_of(trace: Trace) -> float:
    """Return the largest loss there can be, which promises about losses need."""
    bound = trace.spec.loss_bound
    if bound is None:
        raise ArgumentError(
            "a promise about losses needs the largest loss there can be, known beforehand: set "
            "max_loss in [cascade], or CascadeSpec.of(..., max_loss=...) (for scores it is 1)"
        )
    return bound


@dataclass(frozen=True, eq=False)
class HeldLosses(HeldOut):
    """Losses on held-out rows, by row."""

    measure: ClassVar[Measure] = "mean loss"
    bound: float = 1.0
    """The largest loss there can be."""
    losses: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """Shape (corners, rows): the loss of each corner's policy, the cheapest first."""
    nodes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Shape (rows,) each: the loss of each node of the cascade."""

    @classmethod
    def played(cls, ladder: FittedLadder, trace: Trace, against: str) -> HeldLosses:
        """Play the corners of a ladder, and keep what each row loses."""
        bound = loss_bound_of(trace)
        if len(trace) > MAX_HELD_LOSSES:
            every_row = np.random.default_rng([len(trace), 5]).permutation(len(trace))
            trace = trace.take(np.sort(every_row[:MAX_HELD_LOSSES]))
        every, rows, states = trace.losses(), np.arange(len(trace)), ladder.fitted.states(trace)
        pairs = pairs_of_corners(ladder.tested)
        answers = [states.play(ladder[rung].policy).answer for rung in ladder.tested]
        return cls(
            rows=len(trace),
            trace_digest=trace.digest,
            against=against,
            pairs=pairs,
            counts=np.zeros((len(pairs), 2, 2, 2), np.int64),
            bound=bound,
            losses=np.stack([every[rows, answer] for answer in answers]),
            nodes=dict(zip(trace.names, every.T, strict=True)),
        )

    def compared_with(self, node: str) -> HeldLosses:
        """Return the same rows, compared with another node."""
        return dataclasses.replace(self, against=node)

    def sample(self, kind: Kind, mix: Mix) -> HeldSample:
        """Return what the rows show of a mix.

        Each row is given to one of the two policies, by a draw that is fixed for the pair.
        """
        corners = list(dict.fromkeys(rung for pair in self.pairs for rung in pair))
        cheap, expensive = (self.losses[corners.index(k)] for k in (mix.cheap, mix.expensive))
        pair = self.pairs.index((mix.cheap, mix.expensive))
        draws = np.random.default_rng([self.seed, pair]).random(self.rows)
        mine = np.where(draws < mix.share, expensive, cheap)
        low, number = 0.0, mine
        if kind == "drop":
            low, number = -self.bound, mine - self.nodes[self.against]
        values, counts = np.unique((number - low) / (self.bound - low), return_counts=True)
        values = np.clip(values, 0.0, 1.0)
        return HeldSample(values, counts, low, self.bound, float(number.mean()), test="betting")

    @property
    def largest_loss(self) -> float:
        """The largest loss there can be."""
        return self.bound


def pairs_of_corners(corners: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return neighbouring corners; a single corner stands beside itself.

    >>> pairs_of_corners((1, 4, 7)), pairs_of_corners((3,))
    (((1, 4), (4, 7)), ((3, 3),))
    """
    return tuple(pairwise(corners)) or ((corners[0], corners[0]),)


def cautious_pairs(policies: int, cautious: int) -> tuple[tuple[int, int], ...]:
    """Return neighbouring cautious policies, numbered after the policies of the ladder.

    >>> cautious_pairs(48, 3)
    ((48, 49), (49, 50))
    """
    return pairs_of_corners(tuple(range(policies, policies + cautious)))


def cautious_answers(cautious: Cautious, states: States, last: int) -> list[NDArray[np.intp]]:
    """Return, shape (T,) each, the exit whose answer each cautious policy returns."""
    rows, found = np.arange(len(states.found)), []
    for number in range(len(cautious)):
        place = cautious.places(number, states.found)
        found.append(np.where(place == last, last, states.owner[rows, place]))
    return found


def count_pairs(wrong: Sequence[NDArray[np.bool_]], theirs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return, shape (pairs, 2, 2, 2), rows by whether neighbours and another node are wrong."""
    if len(wrong) == 1:
        wrong = [*wrong, *wrong]
    counts = [np.bincount(4 * one + 2 * two + theirs, minlength=8) for one, two in pairwise(wrong)]
    return np.array(counts, np.int64).reshape(-1, 2, 2, 2)


def make_promise(held: HeldOut, kind: Kind, at_most: float, confidence: float) -> Promise:
    """Return the cheapest mix that can be promised; if none can be, the safest, and say so."""
    alpha = check_confidence(confidence)
    high = held.largest_loss
    low = 0.0 if kind == "error" else -high
    if not is_number(at_most) or not low < at_most < high:
        raise ArgumentError(f"at_most is {at_most!r}; it must lie above {low:g} and below {high:g}")
    held = held.suited_to(kind)
    mixes = held.mixes(STEPS)
    passed: Mix | None = None
    for mix in mixes:
        if held.sample(kind, mix).p_value(at_most, alpha, held.seed) > alpha:
            break
        passed = mix
    mix = passed or mixes[0]
    found = held.sample(kind, mix)
    return Promise(
        kind=kind,
        at_most=float(at_most),
        confidence=float(confidence),
        mix=mix,
        certified=passed is not None,
        bound=found.upper(alpha, held.seed),
        observed=found.observed,
        rows=held.rows,
        trace_digest=held.trace_digest,
        against=held.against,
        rows_needed=None if passed else found.rows_needed(at_most, alpha),
        measure=held.measure,
    )


def check_promise(promise: Promise, held: HeldOut) -> Promise:
    """Return the same promise about the same mix, tested on other rows.

    The mix was chosen before, so this is one test; what it finds may be less or more.
    """
    held = held.holding(promise.mix)
    found = held.sample(promise.kind, promise.mix)
    at_most, alpha = promise.at_most, promise.alpha
    passed = found.p_value(at_most, alpha, held.seed) <= alpha
    return dataclasses.replace(
        promise,
        certified=passed,
        bound=found.upper(alpha, held.seed),
        observed=found.observed,
        rows=held.rows,
        trace_digest=held.trace_digest,
        rows_needed=None if passed else found.rows_needed(at_most, alpha),
        refuted=found.refutes(at_most, alpha, held.seed),
    )
