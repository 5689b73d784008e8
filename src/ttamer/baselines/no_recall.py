"""The optimal policies without recall: the answer is that of the node asked last.

A *state* of a node is a range of its calibrated error: the blocks of an isotonic fit, neighbours
pooled until at most ``limit`` remain with about equal rows. How states follow one another is
counted on the fit rows, with one row's weight of the target's own shares, and the problem of these
states is solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.baselines.rules import RuleScorer, pareto_settings, walk_of
from ttamer.baselines.threshold import Isotonic
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
        columns = list(zip(trace.confidence.T, scorer.wrong.T, strict=True))
        states = tuple(states_of(confidence, wrong) for confidence, wrong in columns)
        numbers = [s.level(said) for s, (said, _) in zip(states, columns, strict=True)]
        sizes = [len(state.values) for state in states]
        nodes = tuple(Node(trace.names[node], 1 - states[node].values) for node in walk)
        costs, edges, start = trace.costs.mean(axis=0), [], np.zeros(len(trace), np.intp)
        is_line = spec.asks_each or any(spec.parents)
        for u in range(len(walk)):
            name, before, size = None, start, 1
            if u:
                source = walk[u - 1]
                name, before, size = trace.names[source], numbers[source], sizes[source]
            for v in range(u, u + 1 if is_line else len(walk)):
                # What is passed is counted in the cascade's order, the walk's where it costs.
                cost = float(spec.reach[u:v].sum() + costs[walk[v]]) / scorer.whole_cost
                law = transitions(before, numbers[walk[v]], (size, sizes[walk[v]]))
                edges.append(Edge(name, nodes[v].name, cost=cost, probabilities=law))
        problem = Problem("walk", nodes, tuple(edges))
        settings = []
        for policy in solve_ladder(problem, [0, *(1 / (1 + self.prices)), 1], recall=False):
            following = tuple(policy.choice(name)[:, 0] for name in problem.names)
            rule = TableRule(np.array(walk), states, int(policy.choice(None)[0, -1]), following)
            settings.append(Setting({"tradeoff": policy.tradeoff}, rule))
        return pareto_settings(trace, settings)
