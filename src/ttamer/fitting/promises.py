"""Promises: the cheapest mix of points that keeps a bound, with a stated confidence.

Mixes are tested one after another, each at the full level, until one fails (fixed-sequence testing;
Angelopoulos et al., Learn then Test, 2021). The order is fixed by the rows fitted to and the tests
are made on rows held out: what is returned breaks its promise with a chance of at most alpha.

- ``error``: the mean loss is at most ``at_most``;
- ``drop``: it is at most ``at_most`` above that of a node by itself. The sequence starts at that
  node, whose drop is 0, so something is always certified;
- ``budget``: the share of inputs that cost more than a budget is at most ``at_most``.

Nothing is returned that costs more than the model it is compared with. Right and wrong answers are
tested by exact binomial and paired tests, all other losses by betting. Rows of one group are not
independent: a group counts once, with the mean of its rows.

Rows whose nodes were asked with known chances are weighted by one over the least chance of the
nodes that a policy asks, which is never above one over the chance of all of them. Weights are
clipped at ``CAP``, and what is weighted is 1 minus the loss: a smaller weight makes the bound wider
and never wrong. Rows on which a policy asks a node that the log lacks weigh 0.

Thresholds are set before any row is seen, so all rows test them; the node of least loss is chosen
on the same rows, so a drop against it must pass against every node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, is_number, number
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats
from ttamer.fitting.fitted import FitRecord, Fitted, shown_error
from ttamer.fitting.points import Mix, OperatingPoints
from ttamer.fitting.replay import SLACK, outcomes
from ttamer.stats.bounds import Sample, Test, check_confidence
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Measure, Trace

Kind = Literal["error", "drop", "budget"]

CAP = 10.0  # the largest weight of a row


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A certificate: what is promised, on how many rows that was tested, and whether it passed.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(1000))
    >>> promise = fit(trace, belief="threshold").for_error(0.3).promise
    >>> promise.certified, promise.rows, promise.bound <= 0.3
    (True, 1000, True)
    """

    kind: Kind
    at_most: float
    confidence: float
    mix: Mix
    """Which points of the ladder, and how they are mixed."""
    certified: bool = False
    """Whether the test passed."""
    bound: float = math.inf
    """An upper bound of this mix, with this confidence."""
    observed: float = math.nan
    """What was seen on the rows it was tested on."""
    rows: int = 0
    """How many rows it was tested on: groups, where rows are not independent."""
    trace_digest: str = ""
    """Of the rows it was tested on."""
    against: str
    """The node that it is compared with."""
    rows_needed: int | None = None
    """About how many rows would be enough, if what was observed is true; ``None`` where it passed,
    or where no number would."""
    refuted: bool = False
    """Whether rows it was checked on show, with the same confidence, that it does not hold."""
    budget: float | None = None
    """Of a promise on a budget: the cost."""
    measure: Measure = "error"
    unit: float = 1.0
    """What a loss of 1 is in the trace's unit; numbers above are in that unit."""

    @property
    def alpha(self) -> float:
        """How often such a promise may be broken."""
        return 1 - self.confidence

    def __str__(self) -> str:
        what = {
            "error": self.measure,
            "drop": f"drop against {self.against!r}",
            "budget": f"share above a cost of {number(self.budget or 0.0)}",
        }[self.kind]
        values = (self.at_most, self.observed, self.bound)
        limit, seen, bound = (shown_error(value, self.measure) for value in values)
        asked = f"{what} at most {limit} with confidence {self.confidence:g}"
        observed = f"{seen} on {counted(self.rows, 'row')}"
        if self.certified:
            return f"{asked}: certified ({observed}, at most {bound})"
        if self.refuted:
            return f"{asked}: broken ({observed})"
        advice = f"about {self.rows_needed} rows would do"
        if self.rows_needed is None:
            advice = "more rows would not help, allow more"
        return f"{asked}: not certified ({observed}, at most {bound}); {advice}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields and ``alpha``, by name.
        """
        return {**vars(self), "mix": self.mix._asdict(), "alpha": self.alpha}


@dataclass(frozen=True, eq=False)
class Held:
    """What points of a ladder do on rows that it was not fitted to."""

    trace_digest: str
    names: tuple[str, ...]  # of the n nodes
    count: int  # how many policies the ladder has
    policies: tuple[int, ...]  # the K of them that are tested, by number
    lost: Floats  # (K, R): the loss of what each policy returns
    paid: Floats  # (K, R)
    alone_lost: Floats  # (R, n): the loss of each node by itself
    alone_paid: Floats  # (R, n)
    # (K + n, R): one over the chance that the log has what a point asks, 0 where it has not. None
    # where every row is complete.
    weight: Floats | None = None
    group: NDArray[np.intp] | None = None  # (R,)
    cap: float = CAP
    unit: float = 1.0
    measure: Measure = "error"

    def __len__(self) -> int:
        return len(self.alone_lost)

    @property
    def rows(self) -> int:
        """How many independent rows there are."""
        return len(self) if self.group is None else len(np.unique(self.group))

    def sample(self, kind: Kind, mix: Mix, against: int, budget: float | None = None) -> Sample:
        """Return what the rows show of a mix of points.

        Each row is given to one of the two points by a draw that is fixed for the pair: a larger
        share only moves rows to the more expensive one.
        """
        count = len(self.policies)
        columns = [
            self.policies.index(k) if k < self.count else count + k - self.count for k in mix[:2]
        ]
        # As good as random, and the same whenever these rows are tested.
        seed = int.from_bytes(blake2b(self.trace_digest.encode(), digest_size=8).digest())
        draws = np.random.default_rng([seed, *columns]).random(len(self))

        def of_rows(policies: Floats, alone: Floats) -> Floats:
            cheap, expensive = (policies[c] if c < count else alone[c - count] for c in columns)
            return np.asarray(np.where(draws < mix.share, expensive, cheap))

        loss, reference = of_rows(self.lost, self.alone_lost.T), self.alone_lost[:, against]
        if budget is not None:
            paid = of_rows(self.paid, self.alone_paid.T)
            loss = (paid > budget * (1 + SLACK)).astype(float)
        low = 0.0
        test: Test = "binomial"
        if self.weight is not None:
            # 1 minus the loss is weighted, so that clipping can only make the bound wider.
            weight = np.minimum(self.weight, self.cap)
            right, width = of_rows(weight[:count], weight[count:]) * (1 - loss), self.cap
            if kind == "drop":
                right, width = right + weight[count + against] * reference, 2 * width
            low, loss = 1 - width, 1 - right / width
        elif kind == "drop":
            low, loss, test = -1.0, (loss - reference + 1) / 2, "paired"
        # The exact tests are of rows that are right or wrong, each by itself.
        exact = self.weight is None and self.group is None
        exact = exact and bool(np.isin(loss, (0, 0.5, 1) if test == "paired" else (0, 1)).all())
        if self.group is not None:
            _, number_of, sizes = np.unique(self.group, return_inverse=True, return_counts=True)
            loss = np.bincount(number_of, loss) / sizes
        return Sample(loss, low, 1.0, test if exact else "betting", seed)


# ---------------------------------------------------------------- rows held out
def rows_split(trace: Trace, count: int, seed: int) -> tuple[Trace, Trace]:
    """Return the rows to fit and about ``count`` rows to hold out; groups are not split."""
    groups, sizes = np.unique(trace.units, return_counts=True)
    order = np.random.default_rng([seed, 3]).permutation(len(groups))
    chosen = groups[order[np.cumsum(sizes[order]) <= max(count, sizes[order[0]])]]
    held = np.isin(trace.units, chosen)
    return trace.take(np.flatnonzero(~held)), trace.take(np.flatnonzero(held))


def were_fitted_to(record: FitRecord, trace: Trace) -> bool:
    """Return whether rows are those fitted to, or these and the rows held out of the same log.

    Such a log is recognised by repeating the split of the fit.
    """
    digest = record.trace_digest.removeprefix("batches:")
    is_sample = digest != record.trace_digest  # of a file that no trace in memory was read of
    if trace.digest == digest or (is_sample and len(trace) == record.rows):
        return True
    rows = trace.sampled_of if is_sample else len(trace) - record.held_out
    if not record.held_out or rows != record.rows:
        return False
    return rows_split(trace, record.held_out, record.seed)[0].digest == digest


def held_of(fitted: Fitted, points: OperatingPoints, trace: Trace) -> Held:
    """Play the policies of the frontier on rows that a ladder was not fitted to.

    Rows count that have every answer and every loss; where the log has the chances with which nodes
    were asked, all rows with a label do, weighted.
    """
    require_trace(trace, "a promise")
    trace = trace.with_verification() if trace.names != fitted.spec.names else trace
    digest = trace.digest
    if not fitted.thresholds and were_fitted_to(fitted.record, trace):
        count = min(fitted.record.rows, len(trace))
        advice = "leave the trace out to use the rows held out of the fit"
        if fitted.record.rows == len(trace):
            advice = "hold some out of the fit (hold_out=0.2; ttamer fit --hold-out 0.2)"
        raise ArgumentError(
            f"the ladder was fitted to {count} of these {len(trace)} rows: a promise "
            f"needs others; {advice}, or give other rows"
        )
    if trace.measure != fitted.measure:
        raise ArgumentError(
            f"these rows are measured by their {trace.measure}, and the ladder was fitted to "
            f"the {fitted.measure}: give rows with the same losses, or fit again"
        )
    if trace.is_graded and trace.spec.loss_bound is None:
        raise ArgumentError(
            "a promise about losses needs the largest loss there can be, known beforehand: set "
            "max_loss in [cascade], or CascadeSpec.of(..., max_loss=...) (for scores it is 1)"
        )
    known = ~np.isnan(trace.loss)
    weighted = trace.chance is not None and not known.all()
    rows = np.flatnonzero(known.any(axis=1) if weighted else known.all(axis=1))
    if not rows.size:
        raise ArgumentError(
            "no row is evidence for a promise: it needs rows on which every node answered and "
            f"every loss is known ({trace.coverage}), or the chances with which nodes were asked "
            "(columns <node>.chance)"
        )
    if len(rows) > 20_000:
        generator = np.random.default_rng([len(rows), 5])
        rows = np.sort(generator.permutation(rows)[:20_000])
    trace = trace.take(rows)
    policies = lower_envelope(points.cost, points.error).tolist()
    if fitted.thresholds:  # their order is fixed before any row is seen: all are tested
        policies = list(range(len(points)))
    view, weight = fitted.read(trace), None
    played = [view.play(fitted.rule(policy)) for policy in policies]
    asked = [done.asked for done in played]
    if weighted:
        alone = [np.broadcast_to(nodes, trace.loss.shape) for nodes in trace.spec.required]
        weight = np.stack([_weight(nodes, trace) for nodes in [*asked, *alone]])
    return Held(
        digest,
        fitted.spec.names,
        len(points),
        tuple(policies),
        *outcomes(trace, asked, [done.answer for done in played]),
        weight=weight,
        group=None if trace.group is None else trace.units,
        unit=fitted.unit,
        measure=fitted.measure,
    )


def propensity(asked: NDArray[np.bool_], trace: Trace) -> Floats:
    """Return, shape (T,), the least of the known chances with which nodes were asked; or 1."""
    assert trace.chance is not None  # noqa: S101 - the caller has looked
    chance = np.where(asked & ~np.isnan(trace.chance), trace.chance, 1.0)
    return np.asarray(chance.min(axis=1))


def _weight(asked: NDArray[np.bool_], trace: Trace) -> Floats:
    """Return one over the least chance of the nodes asked; 0 where the log lacks one of them."""
    chance = propensity(asked, trace)
    answered = (~asked | ~np.isnan(trace.loss)).all(axis=1) & (chance > 0)
    return np.where(answered, 1 / np.where(chance > 0, chance, 1.0), 0.0)


# ---------------------------------------------------------------- tests in a fixed order
def sequence(chain: Sequence[int], *, rising: bool = False) -> list[Mix]:
    """Return the mixes of neighbours along a chain of points, in its order.

    The chain leads from what is tested first to what is tested last: with falling costs, or rising.
    """
    mixes = [Mix.of(chain[0])]
    for point, following in pairwise(chain):
        for share in (0.25, 0.5, 0.75):
            pair = (point, following, share) if rising else (following, point, 1 - share)
            mixes.append(Mix(*pair))
        mixes.append(Mix.of(following))
    return mixes


def make_promise(
    held: Held,
    points: OperatingPoints,
    kind: Kind,
    at_most: float,
    confidence: float,
    against: int,
    *,
    budget: float | None = None,
    thresholds: bool = False,
    chosen: bool = False,
) -> Promise:
    """Return the cheapest mix that can be promised, or the safest, and whether it is certified.

    ``points`` fix the order of the tests, unless policies are ``thresholds``. Nothing returned
    costs more than the node ``against``, which may have been ``chosen`` on these rows.
    """
    alpha = check_confidence(confidence)
    low = -1.0 if kind == "drop" else 0.0
    if not is_number(at_most) or not low < at_most / held.unit < 1:
        raise ArgumentError(
            f"at_most is {at_most!r}; it must lie above {low * held.unit:g} and below "
            f"{held.unit:g}",
            param="at_most",
        )
    reference, limit = points.alone(against), math.inf
    if kind != "budget":
        limit = points.costs[reference] * (1 + SLACK)
    able = [*held.policies, *range(len(points), len(points.costs))]
    able = [point for point in able if points.costs[point] <= limit]
    chain = [able[k] for k in lower_envelope(points.costs[able], points.errors[able])]
    safe = reference
    if kind == "budget":
        safe = chain[0]
    elif thresholds:
        chain = list(held.policies[::-1])
    else:
        chain = chain[::-1]
        if kind == "drop":
            chain = [reference, *(point for point in chain if point != reference)]
    promise = Promise(
        kind=kind,
        at_most=float(at_most),
        confidence=float(confidence),
        mix=Mix.of(safe),
        against=held.names[against],
        budget=budget,
        measure=held.measure,
        unit=held.unit,
    )
    # The node was chosen on these rows: the drop must hold against whichever is best in truth.
    peers = range(len(held.names)) if chosen else (against,)
    passed: Mix | None = None
    for mix in sequence(chain, rising=kind == "budget"):
        if not (kind == "drop" and mix == Mix.of(reference) and at_most >= 0):
            samples = [held.sample(kind, mix, node, budget) for node in peers]
            share = at_most / held.unit
            if max(sample.p_value(share, alpha) for sample in samples) > alpha:
                break
        passed = mix
    if passed is not None and passed.mean(points.costs) > limit:
        passed = None
    return check_promise(
        replace(promise, mix=passed or promise.mix), held, passed=passed is not None
    )


def check_promise(promise: Promise, held: Held, *, passed: bool | None = None) -> Promise:
    """Return the same promise about the same mix, with what rows say of it.

    ``passed`` says whether these rows chose the mix, and it passed. By default the mix was chosen
    before, so this is one test, and the rows may refute it.
    """
    against, share = held.names.index(promise.against), promise.at_most / held.unit
    alpha, is_new = promise.alpha, passed is None
    sample = held.sample(promise.kind, promise.mix, against, promise.budget)
    if promise.kind == "drop" and promise.mix == Mix.of(held.count + against):
        # The drop of the reference itself is 0.
        certified, refuted, bound, observed = share >= 0, share < 0, 0.0, 0.0
    else:
        certified = sample.p_value(share, alpha) <= alpha if passed is None else passed
        refuted = is_new and sample.refutes(share, alpha)
        bound, observed = held.unit * sample.upper(alpha), held.unit * sample.observed
    return replace(
        promise,
        certified=certified,
        refuted=refuted and is_new,
        bound=bound,
        observed=observed,
        rows=held.rows,
        trace_digest=held.trace_digest,
        rows_needed=None if certified else sample.rows_needed(share, alpha),
    )
