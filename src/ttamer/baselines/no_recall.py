"""The best dynamic programme without recall: the answer is always that of the node asked last.

Each node has a few states (ranges of calibrated wrongness), the loss of a state is its share of
wrong answers, and transitions are counted. Exits and trees are walked as a line; among other
separate models any may be left out, and so may exits that can be passed, at what that costs. The
solver is the package's own, with ``recall=False``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.calibration import States, fit_states, transitions
from ttamer.baselines.rules import RuleScorer, pareto_settings, walk_of
from ttamer.fitting.replay import Played, Setting
from ttamer.problem.problem import Problem
from ttamer.solvers import solve_ladder
from ttamer.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class TableRule:
    """Look up the node to ask next, by the state of the node asked last."""

    walk: NDArray[np.intp]
    """Shape (m,): the nodes by number, every one after those it can be asked from."""
    states: tuple[States, ...]
    """Per step of the walk."""
    first: int
    """The step to begin with."""
    following: tuple[NDArray[np.int32], ...]
    """Per step, shape (states,): the step to go on to, or -1."""

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        at = np.full(len(trace), self.first)
        asked = np.zeros((len(trace), len(trace.spec)), bool)
        for step, node in enumerate(self.walk):
            group = np.flatnonzero(at == step)
            asked[group, node] = True
            following = self.following[step][self.states[step].of(trace.confidence[group, node])]
            at[group] = np.where(following < 0, step, following)
        return Played(self.walk[at], asked, self.walk[at])


class NoRecall:
    """The ladder of optimal policies without recall."""

    name = "no-recall"
    prices = np.geomspace(1e-4, 1e2, 60)
    """Those tried: error per cost of asking every node."""

    def fit(self, trace: Trace) -> list[Setting]:
        """Return the policies on the envelope."""
        scorer, walk, spec = RuleScorer.of(trace), walk_of(trace), trace.spec
        by_node = fit_states(trace, scorer.wrong)
        states = tuple(by_node[node] for node in walk)
        of_row = [s.of(trace.confidence[:, v]) for s, v in zip(states, walk, strict=True)]
        sizes = [len(s.losses) for s in states]

        def pair(source: int | None, target: int) -> NDArray[np.float64]:
            if source is None:
                return transitions(None, of_row[target], (1, sizes[target]))
            return transitions(of_row[source], of_row[target], (sizes[source], sizes[target]))

        losses = [s.losses for s in states]
        full = scorer.whole_cost
        costs = (trace.costs.mean(axis=0)[walk] / full).tolist()
        steps = range(len(walk))
        if spec.asks_each or any(spec.parents):
            chances = [pair(step - 1 if step else None, step) for step in steps]
            problem = Problem.line(losses, costs, [chances[0][0], *chances[1:]])
        else:
            pairs = [(u, v) for u in (None, *steps) for v in steps if u is None or u < v]
            # What is passed is counted in the cascade's order, which is the walk's where it costs.
            first = [0 if u is None else u + 1 for u, _ in pairs]
            tolls = {
                (u, v): float(spec.reach[start:v].sum()) / full
                for start, (u, v) in zip(first, pairs, strict=True)
            }
            ways = {(u, v): toll + costs[v] for (u, v), toll in tolls.items()}
            problem = Problem.skip(losses, ways, {(u, v): pair(u, v) for u, v in pairs})
        settings = []
        for policy in solve_ladder(problem, [0, *(1 / (1 + self.prices)), 1], recall=False):
            following = tuple(policy.choice(name)[:, 0] for name in problem.names)
            rule = TableRule(walk, states, int(policy.choice(None)[0, -1]), following)
            settings.append(Setting({"tradeoff": policy.tradeoff}, rule))
        return pareto_settings(trace, settings)
