"""Mixtures: one of two policies, drawn for each input; and the estimates they are chosen by.

A ladder of tradeoffs has only the corners of the frontier. Mixing two neighbouring corners gives
the edges between them. The draw is fixed by the seed and the input's key, so a repeated request is
decided the same way. Without a key inputs are numbered in the order of arrival.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ttamer._display.notebook import card
from ttamer._numbers import counted, number
from ttamer.errors import ArgumentError
from ttamer.fitted.replay import Played
from ttamer.stats.envelope import lower_envelope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.ladder import FittedPolicy
    from ttamer.fitted.models import Model
    from ttamer.fitted.promise import Promise
    from ttamer.fitted.sessions import FittedSession
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Measure, Trace

__all__ = ["Mix", "Mixture", "Rung", "Rungs", "described", "policy_card", "shown_error"]

GOLDEN_RATIO = (5**0.5 - 1) / 2
"""The fractional parts of its multiples are spread evenly over [0, 1), however many there are."""
MAX_NUMBER = 2**32
"""Keys are numbers of inputs up to this; the multiples of larger ones have no fraction left."""


class Mix(NamedTuple):
    """Two rungs of a ladder, and the share of inputs that the more expensive one decides."""

    cheap: int
    expensive: int
    share: float


class Rung(NamedTuple):
    """The estimates of one policy."""

    error: float
    cost: float


@dataclass(frozen=True, eq=False)
class Rungs:
    """What each policy of a ladder does on rows it was not fitted to, by cross-fitting.

    >>> rungs = Rungs(np.array([0.4, 0.1]), np.array([1.0, 5.0]))
    >>> len(rungs), list(rungs)
    (2, [Rung(error=0.4, cost=1.0), Rung(error=0.1, cost=5.0)])
    """

    errors: NDArray[np.float64]
    """Shape (policies,): the error of each, in increasing order of tradeoff."""
    costs: NDArray[np.float64]
    """Shape (policies,): the mean cost of each, in the cascade's units."""
    smoothed_errors: NDArray[np.float64] | None = None
    """Shape (policies,): errors with less noise and some bias, by which corners are chosen."""
    node_errors: NDArray[np.float64] | None = None
    """Shape (n,): the error of each node of the cascade by itself."""
    node_costs: NDArray[np.float64] | None = None
    """Shape (n,): the mean cost of each node's answer by itself, in the cascade's units."""
    latencies: NDArray[np.float64] | None = None
    """Shape (policies, 3): the mean latency of each, its 95% quantile, and an upper bound on that
    quantile with confidence 0.95; where the fit rows have latencies."""

    def __len__(self) -> int:
        return len(self.errors)

    def __iter__(self) -> Iterator[Rung]:
        return map(Rung, self.errors.tolist(), self.costs.tolist())

    @cached_property
    def corners(self) -> tuple[int, ...]:
        """The rungs on the lower convex envelope, the cheapest first."""
        return tuple(lower_envelope(self.costs, self.corner_errors).tolist())

    def tested(self, *, every: bool) -> tuple[int, ...]:
        """Return the rungs whose mixtures promises are tested on: every one, or the corners."""
        return tuple(range(len(self))) if every else self.corners

    @property
    def corner_errors(self) -> NDArray[np.float64]:
        """Shape (policies,): the errors by which corners are chosen."""
        return self.errors if self.smoothed_errors is None else self.smoothed_errors

    def error_of(self, mix: Mix) -> float:
        """Return the expected error of a mix."""
        return float(
            (1 - mix.share) * self.errors[mix.cheap] + mix.share * self.errors[mix.expensive]
        )

    def cost_of(self, mix: Mix) -> float:
        """Return the expected cost of a mix."""
        return float(
            (1 - mix.share) * self.costs[mix.cheap] + mix.share * self.costs[mix.expensive]
        )

    def for_error(self, at_most: float) -> Mix:
        """Return the cheapest mix whose expected error is at most this; else the most accurate.

        >>> rungs = Rungs(np.array([0.4, 0.3, 0.1]), np.array([1.0, 2.0, 5.0]))
        >>> rungs.for_error(0.15), rungs.for_error(0.01)
        (Mix(cheap=1, expensive=2, share=0.75), Mix(cheap=2, expensive=2, share=1.0))
        """
        corners, errors = self.corners, self.errors[list(self.corners)].tolist()
        if errors[0] <= at_most:
            return Mix(corners[0], corners[0], 1.0)
        for k in range(1, len(corners)):
            if errors[k] <= at_most:
                share = (errors[k - 1] - at_most) / (errors[k - 1] - errors[k])
                return Mix(corners[k - 1], corners[k], share)
        best = corners[errors.index(min(errors))]
        return Mix(best, best, 1.0)

    def for_budget(self, cost: float) -> Mix:
        """Return the mix of least expected error whose expected cost is this.

        Above the cost of the most expensive corner it is that corner.

        >>> rungs = Rungs(np.array([0.4, 0.3, 0.1]), np.array([1.0, 2.0, 5.0]))
        >>> rungs.for_budget(3.5)
        Mix(cheap=1, expensive=2, share=0.5)
        """
        corners = self.corners
        costs = self.costs[list(corners)]
        if not cost >= costs[0] * (1 - 1e-9):
            raise ArgumentError(
                f"no policy of this ladder costs as little as {cost:g}: the cheapest costs "
                f"{costs[0]:g} per input; give at least that"
            )
        cost = max(cost, float(costs[0]))
        if cost >= costs[-1]:
            return Mix(corners[-1], corners[-1], 1.0)
        right = int(np.searchsorted(costs, cost, side="right"))
        share = (cost - costs[right - 1]) / (costs[right] - costs[right - 1])
        return Mix(corners[right - 1], corners[right], float(share))


def shown_error(value: float, measure: Measure, *, digits: int = 2) -> str:
    """Return an error as a percentage with these digits, or a mean loss as a number.

    >>> shown_error(0.0412, "error"), shown_error(41.23456, "mean loss")
    ('4.12%', '41.23')
    """
    return f"{value:.{digits}%}" if measure == "error" else f"{value:.4g}"


def described(cost: float | None, error: float | None, measure: Measure = "error") -> str:
    """Return what a policy costs and how often it errs, or what it loses, in words.

    >>> described(3.25, 0.0412)
    'cost 3.25 per input, error 4.12%'
    """
    if cost is None or error is None:
        return f"cost and {measure} not estimated"
    return f"cost {number(cost)} per input, {measure} {shown_error(error, measure)}"


def policy_card(kind: str, policy: FittedPolicy | Mixture) -> str:
    """Return a policy as HTML: what it costs, how often it errs, and its nodes."""
    alone = policy.single_node
    notes = [policy.described]
    if alone is not None:
        notes.append(f"it always asks {alone!r} alone")
    promise = getattr(policy, "promise", None)
    if promise is not None:
        notes.append(str(promise))
    rows = [[node.name, number(node.cost)] for node in policy.spec.nodes]
    title = f"{kind} over {counted(len(rows), 'node')}"
    return card(title, notes=notes, head=["node", "cost"], rows=rows)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Two policies of a ladder, and the share of inputs that the more expensive one decides.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(500))
    >>> mixture = fit(trace, belief="calibrated", states=4).for_budget(0.5)
    >>> round(mixture.cost, 6)
    0.5
    """

    cheap: FittedPolicy
    expensive: FittedPolicy
    share: float
    seed: int = 0
    error: float | None = None
    """The expected error on new rows."""
    cost: float | None = None
    """The expected cost per input on new rows, in the cascade's units."""
    promise: Promise | None = None
    """What is promised of it, where it was chosen by error or by drop, and whether that holds."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.spec.names)}; {self.described})"

    def _repr_html_(self) -> str:
        return policy_card("Mixture of two policies", self)

    @property
    def described(self) -> str:
        """What it costs and how often it errs, in words."""
        return described(self.cost, self.error, self.fitted.measure)

    @property
    def single_node(self) -> str | None:
        """The only node that is ever asked; ``None`` where a second node may be asked."""
        used = {1.0: (self.expensive,), 0.0: (self.cheap,)}
        nodes = {each.single_node for each in used.get(self.share, (self.cheap, self.expensive))}
        return nodes.pop() if len(nodes) == 1 else None

    @property
    def fitted(self) -> Model:
        """What both policies share."""
        return self.cheap.fitted

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.fitted.spec

    def drawn(self, key: str | int) -> FittedPolicy:
        """Return the policy that decides the input of this key.

        Args:
            key: The key of the input; the same key always draws the same policy. Whole numbers
                below 2**32 are numbers of inputs, drawn in turn; all others are drawn by a hash.

        Returns:
            ``cheap`` or ``expensive``.
        """
        return self.expensive if self._draw(key) < self.share else self.cheap

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        signals: Mapping[str, float] | None = None,
    ) -> FittedSession:
        """Start deciding for one input, by the policy that its key draws.

        Args:
            max_cost: No node is asked that would take the cost above this, in the cascade's
                units.
            key: The key of the input; by default inputs are numbered from 0 in the order of
                the calls.
            signals: Values known before any node is asked, where the policy was fitted with
                signals.

        Returns:
            A session that takes confidences and predictions.
        """
        policy = self.drawn(next(self._numbers) if key is None else key)
        return policy.session(max_cost=max_cost, signals=signals)

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace; rows are numbered from 0.

        Args:
            trace: Rows of the same cascade.

        Returns:
            The nodes asked and the node that answers, row by row.
        """
        states = self.fitted.states(trace)
        self.fitted.warn_of(trace)
        one, two = states.play(self.cheap.policy), states.play(self.expensive.policy)
        drawn = self.draws(len(trace))
        return Played(
            np.where(drawn, two.answer, one.answer),
            np.where(drawn[:, np.newaxis], two.asked, one.asked),
            np.where(drawn, two.last, one.last),
        )

    def draws(self, rows: int) -> NDArray[np.bool_]:
        """Return which inputs the expensive policy decides, numbered from 0.

        Args:
            rows: The number of inputs.

        Returns:
            Shape (rows,): true where the expensive policy decides.
        """
        start = self._start()
        return np.asarray((start + GOLDEN_RATIO * np.arange(rows)) % 1.0 < self.share)

    def _draw(self, key: str | int) -> float:
        if isinstance(key, int | np.integer) and abs(int(key)) < MAX_NUMBER:
            return (self._start() + GOLDEN_RATIO * int(key)) % 1.0
        return _uniform(f"{self.seed}:{key}")

    def _start(self) -> float:
        return _uniform(f"{self.seed}")


def _uniform(text: str) -> float:
    return float(int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48)
