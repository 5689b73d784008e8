"""Rules that say where to go next: by the input alone, one step ahead, and without recall.

A *state* of a node is a range of its calibrated error: the blocks of an isotonic fit, neighbours
pooled until at most ``limit`` remain with about equal rows. How states follow one another is
counted on the fit rows, with one row's weight of the target's own shares.

Routing, in the style of cascade routing (Dekoninck et al., 2024), looks one step ahead. What asking
v is worth is the expected rise of the best calibrated correctness in hand, given the state of the
node asked last, less price * cost. It asks the node that is worth most while that is above zero,
and returns the answer of the largest calibrated correctness. One step cannot see what a first
question is for, so the first node is tried on the fit rows.

Without recall the answer is that of the node asked last, and the problem of these states is solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import (
    FitFamily,
    RuleScorer,
    Unsuitable,
    pareto_settings,
    require_models,
    sweep_prices,
    walk_of,
)
from ttamer.baselines.threshold import Isotonic
from ttamer.cascade import CascadeSpec
from ttamer.fitting.markov import transitions
from ttamer.fitting.replay import Played, Setting
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.solvers import solve_ladder
from ttamer.trace.losses import Losses
from ttamer.trace.trace import Trace


def states_of(confidence: NDArray[np.float64], wrong: Losses, *, limit: int = 16) -> Isotonic:
    """Return the states of a node, from the lowest confidence to the highest.

    >>> confidence = np.array([0.1, 0.2, 0.8, 0.9])
    >>> states = states_of(confidence, np.array([True, True, False, False]))
    >>> states.values.tolist(), states.level(np.array([0.5, 0.85])).tolist()
    ([0.0, 1.0], [0, 1])
    """
    right = 1 - wrong.astype(float)
    curve = Isotonic.fit(confidence, right)
    block = curve.level(confidence)
    count = np.bincount(block, minlength=len(curve.starts))
    middle = np.cumsum(count) - count / 2
    # Blocks whose middles fall into the same of ``limit`` equal shares of the rows are pooled.
    _, first, pooled = np.unique(
        np.floor(limit * middle / len(confidence)), return_index=True, return_inverse=True
    )
    state = pooled[block]
    return Isotonic(curve.starts[first], np.bincount(state, right) / np.bincount(state))


def counted_states(
    scorer: RuleScorer,
) -> tuple[tuple[Isotonic, ...], dict[tuple[int | None, int], NDArray[np.float64]]]:
    """Return the states of every node, and their transitions by source (or None) and target."""
    trace = scorer.trace
    pairs = zip(trace.confidence.T, scorer.wrong.T, strict=True)
    states = tuple(states_of(confidence, wrong) for confidence, wrong in pairs)
    numbers = [
        s.level(confidence) for s, confidence in zip(states, trace.confidence.T, strict=True)
    ]
    chances: dict[tuple[int | None, int], NDArray[np.float64]] = {}
    start = np.zeros(len(trace), np.intp)
    for v, target in enumerate(states):
        chances[None, v] = transitions(start, numbers[v], (1, len(target.values)))
        for u, source in enumerate(states):
            chances[u, v] = transitions(
                numbers[u], numbers[v], (len(source.values), len(target.values))
            )
    return states, chances


@dataclass(frozen=True, eq=False)
class TableRule:
    """Look up the node to ask next, by the state of the node asked last."""

    # Shape (m,): the nodes by number, every one after those it can be asked from.
    walk: NDArray[np.intp]
    states: tuple[Isotonic, ...]  # per node
    first: int  # the step to begin with
    # Per step, shape (states,): the step to go on to, or -1.
    following: tuple[NDArray[np.int32], ...]

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        at = np.full(len(trace), self.first)
        asked = np.zeros((len(trace), len(trace.spec)), bool)
        for step, node in enumerate(self.walk.tolist()):
            group = np.flatnonzero(at == step)
            asked[group, node] = True
            following = self.following[step][self.states[node].level(trace.confidence[group, node])]
            at[group] = np.where(following < 0, step, following)
        return Played(self.walk[at], asked, self.walk[at])


class NoRecall:
    """The ladder of optimal policies without recall.

    Exits and trees are walked as a line; among other separate models any may be left out, and so
    may exits that can be passed, at what that costs.
    """

    name = "no-recall"
    prices = np.geomspace(1e-4, 1e2, 60)  # those tried: error per cost of asking every node

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the policies on the envelope."""
        scorer, walk, spec = RuleScorer(trace), walk_of(trace).tolist(), trace.spec
        states, chances = counted_states(scorer)
        nodes = tuple(Node(trace.names[node], 1 - states[node].values) for node in walk)
        costs, edges = trace.costs.mean(axis=0), []
        is_line = spec.asks_each or any(spec.parents)
        for u, source in enumerate([None, *walk]):
            for v in range(u, min(u + 1, len(walk)) if is_line else len(walk)):
                # What is passed is counted in the cascade's order, the walk's where it costs.
                cost = float(spec.reach[u:v].sum() + costs[walk[v]]) / scorer.whole_cost
                name = None if source is None else trace.names[source]
                law = chances[source, walk[v]]
                edges.append(Edge(name, nodes[v].name, cost=cost, probabilities=law))
        problem = Problem("walk", nodes, tuple(edges))
        settings = []
        for policy in solve_ladder(problem, [0, *(1 / (1 + self.prices)), 1], recall=False):
            following = tuple(policy.choice(name)[:, 0] for name in problem.names)
            rule = TableRule(np.array(walk), states, int(policy.choice(None)[0, -1]), following)
            settings.append(Setting({"tradeoff": policy.tradeoff}, rule))
        return pareto_settings(trace, settings)


@dataclass(frozen=True, eq=False)
class Gains:
    """What asking a node is expected to add, for everything that can be in hand."""

    spec: CascadeSpec
    costs: NDArray[np.float64]  # shape (n,): the mean cost of asking each node on the fit rows
    states: tuple[Isotonic, ...]
    # Per node, shape (states,): where its correctness stands among the X that there are.
    rank: tuple[NDArray[np.intp], ...]
    # Per node, shape (states, X, n): the gain of asking each next; 0 where that may not be.
    tables: tuple[NDArray[np.float64], ...]

    @classmethod
    def fit(cls, scorer: RuleScorer) -> Gains:
        """Count pairs of states on a trace."""
        spec, costs = scorer.trace.spec, scorer.trace.costs.mean(axis=0)
        states, chances = counted_states(scorer)
        rights = np.unique(np.concatenate([s.values for s in states]))
        tables = []
        for u, source in enumerate(states):
            gains = np.zeros((len(source.values), len(rights), len(spec)))
            for v, target in enumerate(states):
                if v == u + 1 or (v != u and spec.kind == "models"):
                    rise = np.maximum(target.values[:, np.newaxis] - rights, 0)
                    gains[:, :, v] = chances[u, v] @ rise
            tables.append(gains)
        rank = tuple(np.searchsorted(rights, s.values) for s in states)
        return cls(spec, costs, states, rank, tuple(tables))

    def may_ask(self, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return, shape (rows, n), which were not asked yet and need no other first."""
        may = ~asked
        if self.spec.kind == "models":  # of exits the tables know which is next
            above = self.spec.required & ~np.eye(len(self.spec), dtype=bool)
            may &= ~asked @ above.T.astype(int) == 0
        return may


@dataclass(frozen=True, eq=False)
class RoutingRule:
    """Ask what is worth most at a price, as long as it is worth anything."""

    gains: Gains
    start: int
    price: float

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        gains, rows = self.gains, len(trace)
        asked = np.zeros((rows, len(trace.spec)), bool)
        last, answer = np.full((2, rows), self.start)
        best = np.full(rows, -1)  # the rank of the best correctness in hand
        active = np.arange(rows)
        while active.size:
            current = last[active]  # a copy: ``last`` moves on within the round
            asked[active, current] = True
            onward = [active[:0]]
            for node in np.unique(current).tolist():
                group = active[current == node]
                state = gains.states[node].level(trace.confidence[group, node])
                rank = gains.rank[node][state]
                better = rank > best[group]
                best[group[better]] = rank[better]
                answer[group[better]] = node
                worth = gains.tables[node][state, best[group]] - self.price * gains.costs
                worth[~gains.may_ask(asked[group])] = 0.0
                choice = worth.argmax(axis=1)
                goes = worth[np.arange(len(group)), choice] > 0
                last[group[goes]] = choice[goes]
                onward.append(group[goes])
            active = np.concatenate(onward)
        return Played(answer, asked, last)


class Routing:
    """Routing one step ahead, for a range of prices and the first node that is best at each."""

    name = "routing"

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the rules on the envelope."""
        scorer = RuleScorer(trace)
        if not trace.spec.asks_each:
            require_models(trace.spec)
        gains = Gains.fit(scorer)
        starts = np.flatnonzero(trace.spec.required.sum(axis=1) == 1)  # may be asked first

        def solve(price: float) -> Setting:
            rules = [RoutingRule(gains, int(start), price) for start in starts]
            rule = scorer.best(rules, price)
            return Setting({"price": price, "start": trace.names[rule.start]}, rule)

        return sweep_prices(trace, solve)


class Router(FitFamily):
    """One model for each input, by the errors and costs that the input predicts.

    Its settings are fitted policies: they can be saved and served.
    """

    def __init__(self) -> None:
        super().__init__("router", max_nodes=1)

    def fit(self, trace: Trace) -> list[Setting]:
        """Return one policy for each tradeoff."""
        require_models(trace.spec)
        if trace.prompt is None and not trace.inputs:
            raise Unsuitable("it reads the input, and the trace has no prompt and no inputs")
        return super().fit(trace)
