"""A router that looks one step ahead, in the style of cascade routing (Dekoninck et al., 2024).

After each answer it may stop, or ask any node the cascade allows. What asking v is worth is the
expected rise of the best calibrated correctness in hand, given the state of the node asked last
(from counted pairs of states), less price * cost; it asks the node that is worth most while that
is above zero, and returns the answer of the largest calibrated correctness. One step cannot see
what a first question is for, so the first node is tried on the fit rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.calibration import States, fit_states, transitions
from ttamer.baselines.rules import RuleScorer, Unsuitable, separate_models, sweep_prices
from ttamer.cascade import CascadeSpec
from ttamer.fitting.fits import fit
from ttamer.fitting.replay import Played, Setting
from ttamer.trace.losses import Losses
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Gains:
    """What asking a node is expected to add, for everything that can be in hand."""

    states: tuple[States, ...]
    rights: NDArray[np.float64]
    """Shape (X,), increasing: every calibrated correctness there is."""
    rank: tuple[NDArray[np.intp], ...]
    """Per node, shape (states,): where the correctness of each state stands in ``rights``."""
    follows: tuple[NDArray[np.intp], ...]
    """Per node, shape (m,): the nodes that may be asked after it."""
    tables: tuple[NDArray[np.float64], ...]
    """Per node, shape (states, X, m): the gain of asking each of them."""

    @classmethod
    def fit(cls, trace: Trace, wrong: Losses) -> Gains:
        """Count pairs of states on a trace."""
        states = fit_states(trace, wrong)
        of_row = [s.of(trace.confidence[:, v]) for v, s in enumerate(states)]
        rights = np.unique(np.concatenate([1 - s.losses for s in states]))
        rank = tuple(np.searchsorted(rights, 1 - s.losses) for s in states)
        rise = [np.maximum((1 - s.losses)[:, np.newaxis] - rights, 0) for s in states]
        nodes = np.arange(len(states))
        if trace.spec.kind == "exits":
            follows = tuple(nodes[v + 1 : v + 2] for v in nodes)
        else:
            follows = tuple(np.delete(nodes, v) for v in nodes)
        tables = []
        for u, mine in enumerate(states):
            gain = np.empty((len(mine.losses), len(rights), len(follows[u])))
            for column, v in enumerate(follows[u]):
                sizes = (len(mine.losses), len(states[v].losses))
                gain[:, :, column] = transitions(of_row[u], of_row[v], sizes) @ rise[v]
            tables.append(gain)
        return cls(states, rights, rank, follows, tuple(tables))


@dataclass(frozen=True, eq=False)
class RoutingRule:
    """Ask what is worth most at a price, as long as it is worth anything."""

    gains: Gains
    spec: CascadeSpec
    costs: NDArray[np.float64]
    """Shape (n,): the mean cost of asking each node on the fit rows."""
    start: int
    price: float

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        rows, count = len(trace), len(trace.spec)
        asked = np.zeros((rows, count), bool)
        last, answer = np.full((2, rows), self.start)
        best = np.full(rows, -1)  # the rank of the best correctness in hand
        toll = self.price * self.costs
        active = np.arange(rows)
        while active.size:
            current = last[active]  # a copy: ``last`` moves on within the round
            asked[active, current] = True
            onward = []
            for node in np.unique(current):
                group = active[current == node]
                state = self.gains.states[node].of(trace.confidence[group, node])
                rank = self.gains.rank[node][state]
                better = rank > best[group]
                best[group[better]] = rank[better]
                answer[group[better]] = node
                targets = self.gains.follows[node]
                if not targets.size:
                    continue
                gain = self.gains.tables[node][state, best[group]] - toll[targets]
                worth = np.where(self._may_ask(asked[group], targets), gain, 0.0)
                choice = worth.argmax(axis=1)
                goes = worth[np.arange(len(group)), choice] > 0
                last[group[goes]] = targets[choice[goes]]
                onward.append(group[goes])
            active = np.concatenate(onward) if onward else active[:0]
        return Played(answer, asked, last)

    def _may_ask(self, asked: NDArray[np.bool_], targets: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return, shape (rows, targets), which were not asked yet and need no other first."""
        may = ~asked[:, targets]
        if any(self.spec.parents):
            for column, node in enumerate(targets):
                above = self.spec.required[node].copy()
                above[node] = False
                may[:, column] &= asked[:, above].all(axis=1)
        return may


class Routing:
    """The router, for a range of prices and the first node that is best at each."""

    name = "routing"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the routers on the envelope."""
        scorer, spec, costs = RuleScorer.of(trace), trace.spec, trace.costs.mean(axis=0)
        separate_models(spec)
        gains = Gains.fit(trace, scorer.wrong)
        starts = np.flatnonzero(spec.required.sum(axis=1) == 1)  # nodes that can be asked first

        def solve(price: float) -> Setting:
            rules = [RoutingRule(gains, spec, costs, int(start), price) for start in starts]
            points = [scorer.score(rule) for rule in rules]
            best = int(np.argmin([error + price * cost for cost, error in points]))
            knob = {"price": price, "start": trace.names[starts[best]]}
            return Setting(knob, rules[best])

        return sweep_prices(trace, solve)


class Router:
    """One model for each input, by the errors and costs that the input predicts.

    Its settings are fitted policies: they can be saved and served.
    """

    name = "router"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return one policy for each tradeoff."""
        separate_models(trace.spec)
        if trace.prompt is None and not trace.inputs:
            raise Unsuitable("it reads the input, and the trace has no prompt and no inputs")
        policies = fit(trace, max_nodes=1)
        return [Setting({"tradeoff": policy.tradeoff}, policy) for policy in policies]
