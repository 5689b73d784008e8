"""Operating points: what each policy of a ladder does on rows it was not fitted to, and choices.

Points are numbered: the policies of the ladder from 0 on, in increasing order of tradeoff, then
each node by itself. A choice is a :class:`Mix` of two points: the cheapest one on the lower convex
envelope that meets an aim.

:func:`caution` is what keeps ``default()`` to its word. An estimate that crosses 0 errs 0 on the
mean, however noisy it is; what does harm is that noise one way takes the policy and noise the other
way only returns to the reference. A policy that is truly worse by ``theta`` standard errors (SE),
and taken where its estimate is below ``-k SE``, has an expected excess of
``theta Phi(-k - theta) SE``; the worst ``theta`` makes that ``0.17 exp(-1.55 k) SE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ttamer._checks import number
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats, Ints
from ttamer.fitting.replay import SLACK
from ttamer.stats.envelope import lower_envelope

TOLERANCE = 5e-4  # expected losses per row that a choice may err by


class Mix(NamedTuple):
    """Two points, and the share of inputs that the more expensive one decides."""

    cheap: int
    expensive: int
    share: float

    @classmethod
    def of(cls, point: int) -> Mix:
        """Return one point alone."""
        return cls(point, point, 1.0)

    def mean(self, values: Floats) -> float:
        """Return the expected value of the mix, given those of all points."""
        return float((1 - self.share) * values[self.cheap] + self.share * values[self.expensive])


def neighbours(rows: Floats, reach: int = 2) -> Floats:
    """Return the means over the prices within ``reach`` places of each, the first axis.

    >>> neighbours(np.array([[0.0], [1.0], [5.0]]), 1).ravel().tolist()
    [0.3333333333333333, 2.0, 3.6666666666666665]
    """
    number = np.arange(len(rows))
    around = [rows[np.clip(number + shift, 0, len(rows) - 1)] for shift in range(-reach, reach + 1)]
    return np.asarray(sum(around) / len(around))


def caution(standard_error: Floats, lead: float, tolerance: float = TOLERANCE) -> Floats:
    """Return how many standard errors below the reference an estimate must be.

    Where some policy is better by ``lead`` standard errors, beyond doubt, returning to the
    reference is no option and caution fades.

    >>> caution(np.array([0.001, 0.01]), lead=0.0).round(2).tolist()
    [0.0, 0.79]
    """
    # The largest of theta Phi(-k - theta) over theta is 0.17 exp(-1.55 k).
    harm = np.log(0.17 * np.maximum(standard_error, 1e-12) / tolerance)
    return np.asarray(np.maximum(harm - max(lead - 2.5, 0.0) ** 2 / 2, 0.0) / 1.55)


def cheapest(cost: Floats, value: Floats, at_most: float) -> Mix | None:
    """Return the cheapest mix whose expected value is at most this, or ``None``.

    >>> cheapest(np.array([1.0, 2.0, 5.0]), np.array([0.4, 0.3, 0.1]), 0.15)
    Mix(cheap=1, expensive=2, share=0.75)
    """
    corners = lower_envelope(cost, value).tolist()
    for k, corner in enumerate(corners):
        if value[corner] > at_most:
            continue
        if not k or value[corner] == at_most:
            return Mix.of(corner)
        before = corners[k - 1]
        share = (value[before] - at_most) / (value[before] - value[corner])
        return Mix(before, corner, float(share))
    return None


def standard_error(values: Floats, weight: Floats, group: Ints | None = None) -> Floats:
    """Return the standard errors of weighted means over rows, the last axis."""
    deviation = (values - (values @ weight / weight.sum())[..., None]) * weight
    if group is not None:  # groups are independent of each other, their rows are not
        number_of = np.unique(group, return_inverse=True)[1]
        sums = np.zeros((len(values), number_of.max() + 1))
        np.add.at(sums.T, number_of, deviation.T)
        deviation = sums
    return np.asarray(np.sqrt((deviation**2).sum(axis=-1)) / weight.sum())


@dataclass(frozen=True, eq=False)
class OperatingPoints:
    """Estimates of P policies and n nodes by themselves, by cross-fitting."""

    error: Floats  # (P,): the mean loss of each policy, in increasing order of tradeoff
    cost: Floats  # (P,): the mean cost
    standard_error: Floats  # (P,): of error
    # (P,): the loss above that of the best node, over neighbours, no less than its own
    excess: Floats
    excess_error: Floats  # (P,): its standard error
    alone_error: Floats  # (n,): the mean loss of each node by itself
    alone_cost: Floats  # (n,): what its answer costs by itself
    rows: int  # how many rows the estimates rest on

    @classmethod
    def of(
        cls,
        lost: Floats,
        paid: Floats,
        alone_lost: Floats,
        alone_paid: Floats,
        *,
        weight: Floats | None = None,
        group: Ints | None = None,
    ) -> OperatingPoints:
        """Summarise what points do on R rows.

        Policies (P, R) in increasing order of tradeoff, nodes by themselves (R, n); weights of rows
        are 1 if ``None``, and rows of one group are not independent.
        """
        weight = np.ones(lost.shape[1]) if weight is None else weight

        def mean(values: Floats) -> Floats:
            return np.asarray(values @ weight / weight.sum())

        error, alone = mean(lost), mean(alone_lost.T)
        best = int(alone.argmin())
        excess = neighbours(lost - alone_lost[:, best])
        return cls(
            error=error,
            cost=mean(paid),
            standard_error=standard_error(lost, weight, group),
            # Neighbours lower the noise; that some of them err less, at more cost, is no reason to
            # believe that this one does.
            excess=np.maximum(mean(excess), error - alone[best]),
            excess_error=standard_error(excess, weight, group),
            alone_error=alone,
            alone_cost=mean(alone_paid.T),
            rows=lost.shape[1],
        )

    def __len__(self) -> int:
        return len(self.error)

    @cached_property
    def best(self) -> int:
        """The node of least loss by itself."""
        return int(self.alone_error.argmin())

    @cached_property
    def errors(self) -> Floats:
        """Shape (P + n,): the mean loss of each point."""
        return np.concatenate([self.error, self.alone_error])

    @cached_property
    def costs(self) -> Floats:
        """Shape (P + n,): the mean cost of each point."""
        return np.concatenate([self.cost, self.alone_cost])

    def alone(self, node: int) -> int:
        """Return the number of a node's point."""
        return len(self) + node

    @cached_property
    def corners(self) -> tuple[int, ...]:
        """The points on the lower convex envelope, the cheapest first."""
        return tuple(lower_envelope(self.costs, self.errors).tolist())

    def default(self, *, allowed: float = 0.0, tolerance: float = TOLERANCE) -> Mix:
        """Return the cheapest mix that errs no more than the best node, with caution.

        The best node is a point itself, so nothing is chosen that costs more.

        Args:
            allowed: How much more it may err.
            tolerance: The expected excess, in losses per row, that noise may cause.
        """
        reference = self.alone(self.best)
        error, cost = self.excess_error, self.cost
        # A lead of policies that cost more says nothing about returning to the reference.
        able = (cost <= self.costs[reference]) & (error > 0)
        lead = float(np.max(-self.excess[able] / error[able], initial=0.0))
        bound = self.excess + caution(error, lead, tolerance) * error
        mix = cheapest(
            np.append(cost, self.costs[reference]), np.append(bound, 0.0), max(allowed, 0.0)
        )
        if mix is None:  # the reference is on no envelope where a cheaper point errs less
            return Mix.of(reference)
        cheap, expensive = (reference if k == len(self) else k for k in mix[:2])
        return Mix(cheap, expensive, mix.share)

    def for_budget(self, cost: float, *, tolerance: float = TOLERANCE) -> Mix:
        """Return the mix of least expected loss at no more than this expected cost.

        What lowers the loss by no more than ``tolerance`` is not spent.
        """
        corners = list(self.corners)
        costs, errors = self.costs[corners], self.errors[corners]
        if not cost >= costs[0] * (1 - SLACK):
            raise ArgumentError(
                f"no policy of this ladder costs as little as {number(cost)}: the cheapest costs "
                f"{number(float(costs[0]))} per input; give at least that",
                param="cost",
            )
        right = int(np.searchsorted(costs, cost, side="right"))
        if right == 0:
            return Mix.of(corners[0])
        mix = Mix.of(corners[right - 1])
        if right < len(corners):
            share = (cost - costs[right - 1]) / (costs[right] - costs[right - 1])
            if share > 0:
                mix = Mix(corners[right - 1], corners[right], float(share))
        # The cheapest corner that is as good, but for what nobody would notice.
        enough = np.flatnonzero(errors[:right] <= mix.mean(self.errors) + tolerance)
        return Mix.of(corners[int(enough[0])]) if enough.size else mix
