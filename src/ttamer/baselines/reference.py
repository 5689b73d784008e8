"""Reference points: one node for everything, and the oracle.

First and last are meant as the nodes stand in the cascade: the last is the full network, or the
model that ``target = "last"`` compares with. The oracle uses the labels of the rows it decides on:
a bound, not a rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import RuleScorer, StopRule, as_policies, sweep_prices, walk_of
from ttamer.baselines.threshold import Confidence
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.checks import require_rows
from ttamer.trace.losses import complete_losses
from ttamer.trace.trace import Trace


@dataclass
class Always:
    """One node for every input, and the nodes that must be asked before it."""

    name: str
    node: int | None = None  # its number; by default the node of least error on the rows fitted to

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the one setting."""
        node = self.node
        if node is None:  # of equals the cheapest, then the first
            errors = RuleScorer(trace).wrong.mean(axis=0)
            prices = trace.spec.answer_costs(trace.costs.mean(axis=0))
            node = int(np.lexsort((prices, errors))[0])
        walk = np.array([v for v in walk_of(trace) if trace.spec.required[node, v]])
        rule = StopRule(Confidence(), walk, np.full(len(walk) - 1, np.inf))
        return as_policies(trace, [Setting({"node": trace.names[node]}, rule)])


@dataclass(frozen=True, eq=False)
class OracleRule:
    """The cheapest way to a right answer; the cheapest answer where no node is right.

    Where answers have losses: the answer of least ``loss + price * cost``. On the way a node is
    passed, or asked where that is cheaper on the row.
    """

    needs: NDArray[np.bool_]  # shape (n, n): the nodes asked for each node's answer
    passing: NDArray[np.float64]  # shape (n,): what going past each node costs
    # What a unit of cost weighs, in shares of the largest loss; for losses alone.
    price: float = 0.0

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace, from the losses of its answers."""
        losses, costs = complete_losses(trace), trace.costs
        on_the_way = np.cumsum(np.minimum(costs, self.passing), axis=1)
        price = costs @ self.needs.T
        price[:, 1:] += on_the_way[:, :-1]
        if trace.is_graded:
            answer = (losses + self.price * price).argmin(axis=1)
        else:
            hopeless = losses.all(axis=1, keepdims=True)
            answer = np.where((losses > 0) & ~hopeless, np.inf, price).argmin(axis=1)
        earlier = np.arange(costs.shape[1]) < answer[:, np.newaxis]
        return Played(answer, self.needs[answer] | (earlier & (costs < self.passing)), answer)


class Oracle:
    """One setting, with no knob; for losses, a range of prices."""

    name = "oracle"
    uses_labels = True  # it looks at answers it has not paid for, and at who is right

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the one setting, or those on the envelope."""
        require_rows(trace, 1, "a baseline")
        # Where each exit on the way is asked, none is passed.
        passing = np.zeros(len(trace.spec)) if trace.spec.asks_each else trace.spec.reach

        def at(price: float) -> OracleRule:
            return OracleRule(trace.spec.required, passing, price)

        if trace.is_graded:
            return sweep_prices(trace, lambda price: Setting({"price": price}, at(price)))
        return [Setting({}, at(0.0))]
