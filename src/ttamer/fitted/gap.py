"""How far a policy is from the best of its class, on rows that it was not fitted to.

Costs are shares of the full model's, and the objective of a policy p on a row is
``f_p = tradeoff * loss + (1 - tradeoff) * cost``, from 0 to the largest it can be, B; the loss is 1
for a wrong answer and 0 for a right one, or a share of the largest loss.

Upper side
    The policy is played on n rows held out; its expected objective is bounded by betting on f_p
    (:func:`~ttamer.stats.betting_upper`). That assumes rows drawn alike and independently.
Lower side
    The class holds every policy that looks at the place (the nodes asked so far) and its state, as
    the fit defines them, and stops or asks any node that may follow. On the rows held out the
    state of every row at every place is known, asked or not, so that each conditional mean can be
    counted: what stopping loses in a state, what going on costs, and which state comes next.
    Dynamic programming over these counts gives the least value of the class on the counted chain,
    V. It is too low on average, since it is a minimum over policies; no confidence sets and no
    union over policies are needed: V is at most the counted value of the one policy that is truly
    best, and only that one number must not be far too high.

    Along one line of places, let rows that are in the same state exchange what follows. If the
    states are Markov, the exchanged rows are again n independent rows; the mean over all exchanges
    of a policy's mean objective is its counted value. By Jensen's inequality the counted value
    obeys Chernoff's bound for n independent numbers from 0 to B: with chance at least 1 - a,
    ``n kl(V / B, v / B) <= log(1 / a)`` or ``v >= V`` for the least expected objective v. Where
    the next node may depend on the state, the ways through the graph are covered by q lines, and
    each row of the best policy follows one of them. Bernstein's inequality on each, with a / q, and
    the Cauchy-Schwarz inequality give ``V <= v + sqrt(2 q v B x / n) + q B x / (3 n)`` with
    ``x = log(q / a)``.
Assumed
    Rows drawn alike and independently; and for the lower side that along each way the states are
    Markov: given the state at a place, what follows does not depend on the states before. For
    full beliefs the state is the chance to be wrong given all that has been seen, which aims at
    that. Where costs vary from row to row, the largest seen is taken as the largest there is.
Any policy
    ``any_policy`` needs no such assumption: no policy that asks these nodes is better than one that
    knows which answers are right, and pays for the cheapest right one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer._numbers import counted
from ttamer.errors import ArgumentError
from ttamer.fitted.models import BeliefModel
from ttamer.fitted.replay import paid
from ttamer.stats.bounds import HALVINGS, betting_upper, check_confidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.problem.problem import Problem
    from ttamer.trace.trace import Trace

__all__ = ["Gap", "gap_of"]


@dataclass(frozen=True)
class Gap:
    """How far a policy's expected objective is, at most, above the best of its class.

    All numbers are in units of the objective, ``tradeoff * error + (1 - tradeoff) * cost``, where
    cost is a share of the full model's.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(2000))
    >>> gap = fit(trace, hold_out=0.5, belief="calibrated", states=4).gap(tradeoff=0.8)
    >>> gap.lower <= gap.best_on_rows and gap.observed <= gap.upper
    True
    >>> gap.bound == gap.upper - gap.lower
    True
    """

    tradeoff: float
    confidence: float
    rows: int
    """The number of rows held out."""
    lines: int
    """How many lines cover the ways through the graph; with 1 the lower side is tightest."""
    observed: float
    """The policy's mean objective on these rows."""
    upper: float
    """Its expected objective is at most this."""
    best_on_rows: float
    """The least objective of the class on the chain counted from these rows: too low on average."""
    lower: float
    """No policy of the class has an expected objective below this."""
    hindsight: float
    """The mean objective of the cheapest right answer of each row."""
    any_policy: float
    """No policy that asks these nodes, of this class or not, has an expected objective below this.
    """

    @property
    def bound(self) -> float:
        """With the confidence, the policy is at most this far above the best of the class."""
        return max(0.0, self.upper - self.lower)

    @property
    def from_rows(self) -> float:
        """The part of the bound that more held-out rows take away."""
        return (self.upper - self.observed) + (self.best_on_rows - self.lower)

    @property
    def from_policy(self) -> float:
        """The rest: what the best policy on the counted chain gains, its optimism included."""
        return self.observed - self.best_on_rows

    @property
    def advice(self) -> str:
        """What would help, in words."""
        if self.from_rows >= self.from_policy:
            first = (
                f"most of it ({self.from_rows:.4f}) is due to the number of rows: four times as "
                "many would halve that"
            )
        else:
            first = (
                f"most of it ({self.from_policy:.4f}) is what a better policy on the same states "
                "might gain: fit more rows, or another order"
            )
        beyond = max(0.0, self.best_on_rows - self.hindsight)
        return (
            f"{first}; more states, signals or other models at these costs can gain {beyond:.4f} "
            "at most, and only by knowing which answers are right"
        )

    def __str__(self) -> str:
        return (
            f"at most {self.bound:.4f} above the best policy of its class, with confidence "
            f"{self.confidence:g} (tradeoff {self.tradeoff:.3g}, {counted(self.rows, 'row')}): the "
            f"policy at most {self.upper:.4f} ({self.observed:.4f} on the rows), the best at least "
            f"{self.lower:.4f} ({self.best_on_rows:.4f} on the rows)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            The fields, ``bound``, its two parts and ``advice``, by name.
        """
        return {
            **vars(self),
            "bound": self.bound,
            "from_rows": self.from_rows,
            "from_policy": self.from_policy,
            "advice": self.advice,
        }


def gap_of(policy: FittedPolicy, trace: Trace, *, confidence: float) -> Gap:
    """Bound how far a policy is from the best of its class, on rows not fitted to."""
    each = check_confidence(confidence) / 2  # of the upper and of the lower side
    if not len(trace):
        raise ArgumentError("the trace has no rows: give rows that the ladder was not fitted to")
    unit_of_loss, max_loss = policy.fitted.loss_unit, 1.0
    if trace.is_graded:
        if trace.spec.loss_bound is None:
            raise ArgumentError(
                "a gap in mean loss needs the largest loss there can be, known beforehand: set "
                "max_loss in [cascade] (for scores it is 1)"
            )
        max_loss = trace.spec.loss_bound / unit_of_loss
    lost = trace.losses() / unit_of_loss
    rows = _Rows.of(policy, trace, lost)
    weight, every = policy.tradeoff, np.arange(len(trace))
    played = policy.play(trace)
    unit = policy.fitted.full_cost
    mine = weight * lost[every, played.answer] + (1 - weight) * paid(played.asked, trace) / unit
    most = weight * max_loss + (1 - weight) * rows.largest_cost()
    ones = np.ones(len(trace), np.intp)

    def upper_of(objective: NDArray[np.float64]) -> float:
        """Return an upper bound on the mean of an objective from 0 to the most it can be."""
        if not most:  # costs alone count, and all is free
            return 0.0
        return most * betting_upper(np.minimum(objective / most, 1.0), ones, alpha=each)

    best, lines = rows.optimal_value(weight), rows.lines()
    alone = [paid(np.tile(needed, (len(trace), 1)), trace) for needed in trace.spec.required]
    knowing = np.min(weight * lost.T + (1 - weight) * np.array(alone) / unit, axis=0)
    return Gap(
        tradeoff=weight,
        confidence=float(confidence),
        rows=len(trace),
        lines=lines,
        observed=float(mine.mean()),
        upper=upper_of(mine),
        best_on_rows=best,
        lower=_lower(best, most, len(trace), lines, each),
        hindsight=float(knowing.mean()),
        any_policy=most - upper_of(np.maximum(most - knowing, 0.0)),
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """T rows at every place of the problem of a fit."""

    problem: Problem
    states: list[NDArray[np.intp]]
    """Per place, shape (T,): the state of each row, counted from 0."""
    lost: NDArray[np.float64]
    """Shape (T, places): what the answer returned there loses."""
    answers: NDArray[np.bool_]
    """Shape (places,): whether there is an answer to return."""
    costs: list[NDArray[np.float64]]
    """Per edge, shape (T,): its cost, as a share of the full model's."""

    @classmethod
    def of(cls, policy: FittedPolicy, trace: Trace, lost: NDArray[np.float64]) -> _Rows:
        """Return the rows of a trace as the policy's model sees them."""
        model, problem = policy.fitted, policy.problem
        found = model.states(trace)
        steps, every = model.steps, np.arange(len(trace))[:, np.newaxis]
        states, owner = [own.astype(np.intp) for own in found.found.T], found.owner
        if not isinstance(model, BeliefModel):
            if not problem.is_line:
                raise ArgumentError(
                    "the states of this fit do not hold the best answer so far, and its nodes may "
                    'be asked in several orders: fit with belief="full", or order="fixed"'
                )
            states, owner = _with_best(problem, states, owner)
        full, own = model.full_cost, trace.costs
        costs = []
        for source, target in problem.ends:
            asked = [node for node in steps[target] if source < 0 or node not in steps[source]]
            last = steps[source][-1] if source >= 0 and steps[source] else -1
            cost = np.zeros(len(trace))
            for node in asked:
                past = trace.spec.passed(last, node) if trace.spec.has_passing else 0.0
                cost = cost + own[:, node] + past
            costs.append(cost / full)
        answers = np.array([bool(step) for step in steps])
        return cls(problem, states, lost[every, owner], answers, costs)

    def optimal_value(self, tradeoff: float) -> float:
        """Return the least objective of the class, on the chain counted from the rows."""
        ahead: list[NDArray[np.float64]] = [np.empty(0)] * len(self.states)
        for place in reversed(self.problem.order):
            states = self.states[place]
            counts = np.maximum(np.bincount(states), 1)
            best = np.full(len(counts), np.inf)
            if self.answers[place]:
                best = tradeoff * np.bincount(states, self.lost[:, place]) / counts
            for edge in self.problem.outgoing[place]:
                best = np.minimum(
                    best, np.bincount(states, self._on(edge, ahead, tradeoff)) / counts
                )
            ahead[place] = best[states]
        return min(float(self._on(e, ahead, tradeoff).mean()) for e in self.problem.starts)

    def _on(
        self, edge: int, ahead: Sequence[NDArray[np.float64]], tradeoff: float
    ) -> NDArray[np.float64]:
        """Shape (T,): what each row comes to along an edge."""
        return (1 - tradeoff) * self.costs[edge] + ahead[self.problem.ends[edge][1]]

    def largest_cost(self) -> float:
        """Return the largest cost of any way through the graph, on any row."""
        longest = np.zeros(len(self.states))
        for place in reversed(self.problem.order):
            ways = [self._longest(edge, longest) for edge in self.problem.outgoing[place]]
            longest[place] = max(ways, default=0.0)
        return max(self._longest(edge, longest) for edge in self.problem.starts)

    def _longest(self, edge: int, longest: NDArray[np.float64]) -> float:
        return float(self.costs[edge].max() + longest[self.problem.ends[edge][1]])

    def lines(self) -> int:
        """Return how many lines cover all ways through the graph, from one first place."""
        count = [1] * len(self.states)
        for place in reversed(self.problem.order):
            after = [count[self.problem.ends[e][1]] for e in self.problem.outgoing[place]]
            count[place] = sum(after) or 1
        return max(count[self.problem.ends[edge][1]] for edge in self.problem.starts)


def _with_best(
    problem: Problem, states: Sequence[NDArray[np.intp]], owner: NDArray[np.intp]
) -> tuple[list[NDArray[np.intp]], NDArray[np.intp]]:
    """Return the states of a line with the best answer so far in them, and its owner."""
    best = np.full(len(owner), len(problem.grid) - 1)
    holds, found, owners = owner[:, 0].copy(), list(states), owner.copy()
    for place in problem.order:
        column = problem.grid.positions[place][states[place]]
        holds = np.where(column < best, owner[:, place], holds)
        best = np.minimum(best, column)
        joint = best * len(problem.nodes[place].losses) + states[place]
        found[place] = np.unique(joint, return_inverse=True)[1].ravel()
        owners[:, place] = holds
    return found, owners


def _lower(value: float, most: float, rows: int, lines: int, alpha: float) -> float:
    """Return the least expected objective that is likely enough to be counted as ``value``."""
    if not value:
        return 0.0
    if lines == 1:
        least, high = 0.0, value / most
        seen = high
        for _ in range(HALVINGS):
            middle = (least + high) / 2
            far = rows * _kl(seen, middle) > math.log(1 / alpha)
            least, high = (middle, high) if far else (least, middle)
        return most * least
    share = lines * most * math.log(lines / alpha) / rows
    if value <= share / 3:
        return 0.0
    root = (-math.sqrt(2 * share) + math.sqrt(2 * share + 4 * (value - share / 3))) / 2
    return max(0.0, root) ** 2


def _kl(one: float, other: float) -> float:
    """Return the divergence between two chances; infinite where it is."""
    total = 0.0
    for p, q in ((one, other), (1 - one, 1 - other)):
        if p > 0:
            total += p * math.log(p / q) if q > 0 else math.inf
    return total
