"""The paper's synthetic experiments (section D.3), and its Alg. 3 step by step.

The paper draws the losses of a line independently from one law and shows if-stop matrices that
seem to depend on the current loss. In truth, for independent identical losses and equal costs
every index is the same number (Weitzman's reservation value): the decision depends on the best
loss so far alone, and one fixed threshold with recall at the end is optimal. Only correlation, or
unequal nodes, makes it depend on the current state; the correlated chain shows that.

Alg. 3 replaces, from the leaves up, a node and all below it by one node of random loss and cost
(Lem. C.4), whose index is that of the node it replaces. The law of that node depends on the
fallback in hand, since what is asked below depends on it: here the fallback is the node's own
index, at which the law has that index. One law for all fallbacks would not do; the surrogate loss
is what solves the problem (policy/surrogate.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, ProblemError
from ttamer.policy.base import Future, Means, Policy
from ttamer.policy.walk import walk_outcome
from ttamer.problem.problem import STOP, Problem, require_problem
from ttamer.solvers import solve


@dataclass(frozen=True, eq=False)
class Experiment:
    """One synthetic problem, its optimal policy, and the best fixed thresholds on it.

    Values are in units of loss plus cost, weighed by the tradeoff.

    >>> chain = experiment("correlated chain", nodes=3, states=8)
    >>> chain.policy.value <= chain.with_recall <= chain.without_recall
    True
    """

    name: str
    policy: Policy
    with_recall: float
    """The best fixed threshold, returning the best answer seen."""
    without_recall: float
    """The best fixed threshold, returning the last answer."""

    @property
    def excess_with_recall(self) -> float:
        """How far the threshold with recall lies above the optimum, as a share of it."""
        return self._excess(self.with_recall)

    @property
    def excess_without_recall(self) -> float:
        """How far the threshold without recall lies above the optimum, as a share of it."""
        return self._excess(self.without_recall)

    @property
    def index_range(self) -> tuple[float, float]:
        """The least and the largest index of any node after any state that can occur."""
        problem = self.policy.problem
        reached = problem.parent_edge(0).probabilities[0] > 0
        values = [self.policy.index(problem.names[0])]
        for number, name in enumerate(problem.names[1:], start=1):
            values.append(self.policy.index(name)[reached])
            reached = reached @ (problem.parent_edge(number).probabilities > 0)
        indices = np.concatenate(values)
        return float(indices.min()), float(indices.max())

    def _excess(self, value: float) -> float:
        """Compare a value with the optimum, which is 0 only where nothing counts or costs."""
        return value / self.policy.value - 1 if self.policy.value else 0.0


def experiment(
    name: str, *, nodes: int = 6, states: int = 40, cost: float = 0.1, tradeoff: float = 0.5
) -> Experiment:
    """Solve one synthetic problem by name.

    Args:
        name: One of ``EXPERIMENTS``.
        nodes: Nodes on the line, at least 2.
        states: Losses per node, at least 2.
        cost: The cost of each node.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        The problem's policy, and the best fixed thresholds.

    >>> experiment("uniform(0, 0.5)").excess_with_recall < 1e-12
    True
    """
    if name not in EXPERIMENTS:
        raise ArgumentError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    if nodes < 2 or states < 2:
        raise ArgumentError(f"give at least 2 nodes and 2 states, not {nodes} and {states}")
    losses = (np.arange(states) + 0.5) / states
    first, rows = EXPERIMENTS[name](losses)
    problem = Problem.line(losses, [cost] * nodes, [first] + [rows] * (nodes - 1))
    return Experiment(
        name=name,
        policy=solve(problem, tradeoff),
        with_recall=best_threshold(problem, tradeoff, recall=True),
        without_recall=best_threshold(problem, tradeoff, recall=False),
    )


def best_threshold(problem: Problem, tradeoff: float, *, recall: bool) -> float:
    """Return the value of the best rule of the form "stop once the current loss is at most t".

    Every t is tried, "never stop early" included. With recall the best answer seen is returned,
    without it the last. For a line.
    """
    following = dict(zip(problem.order, (*problem.order[1:], STOP), strict=True))
    best = math.inf
    for threshold in (-1.0, *problem.grid.values[:-1].tolist()):
        choices = [
            np.where(node.losses > threshold, following[number], STOP)[:, np.newaxis]
            for number, node in enumerate(problem.nodes)
        ]
        choices.append(np.array([[problem.order[0]]]))
        means = Means.of(*walk_outcome(problem, choices, recall=recall))
        best = min(best, tradeoff * means.loss + (1 - tradeoff) * means.cost)
    return best


def _binned(losses: NDArray[np.float64], below: Callable[[float], float]) -> NDArray[np.float64]:
    """Share out a law truncated to [0, 1] over equal bins, given its distribution function."""
    edges = np.linspace(0, 1, len(losses) + 1)
    mass: NDArray[np.float64] = np.diff([below(float(edge)) for edge in edges])
    shares: NDArray[np.float64] = mass / mass.sum()
    return shares


def _alike(below: Callable[[float], float]) -> Law:
    """Independent losses: every row is the same."""

    def law(losses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        row = _binned(losses, below)
        return row, np.tile(row, (len(losses), 1))

    return law


def _normal(x: float, mean: float, deviation: float) -> float:
    return 0.5 * (1 + math.erf((x - mean) / (deviation * math.sqrt(2))))


def _chain(losses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A truncated normal first loss, and each next one normal around a pull to the last."""
    correlation, deviation = 0.8, 0.25
    means = 0.5 + correlation * (losses - 0.5)
    rows = [_binned(losses, partial(_normal, mean=m, deviation=deviation)) for m in means.tolist()]
    return _binned(losses, lambda x: _normal(x, 0.5, 0.5)), np.array(rows)


# From the losses of a node to the law of the first node and the rows of the others.
Law = Callable[["NDArray[np.float64]"], "tuple[NDArray[np.float64], NDArray[np.float64]]"]

EXPERIMENTS: dict[str, Law] = {
    "normal(0.5, 0.5)": _alike(lambda x: _normal(x, 0.5, 0.5)),
    "log-normal(0, 1)": _alike(lambda x: _normal(math.log(x), 0, 1) if x > 0 else 0.0),
    "uniform(0, 0.5)": _alike(lambda x: min(x, 0.5)),
    "correlated chain": _chain,
}


@dataclass(frozen=True, eq=False)
class Contraction:
    """One step: a node and all below it become one node.

    >>> Contraction("m1", ("m1", "m2"), np.array([0.1]), ()).members
    ('m1', 'm2')
    """

    node: str
    members: tuple[str, ...]
    """The nodes that the one node stands for, the replaced one first."""
    index: NDArray[np.float64]
    """Shape (states of the parent,): its dynamic index, weighed."""
    laws: tuple[Future, ...]
    """Per state of the parent, the joint law of loss and cost with the index in hand."""


def contract(problem: Problem, tradeoff: float) -> list[Contraction]:
    """Contract a forest step by step, as the paper's Alg. 3 does.

    Args:
        problem: A line, multi-line, tree or forest.
        tradeoff: Above 0 (at 0 no loss counts, and no index is a loss) and up to 1.

    Returns:
        One step per node, the leaves first.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> [(step.node, step.members) for step in contract(line, 0.5)]
    [('m2', ('m2',)), ('m1', ('m1', 'm2'))]
    """
    require_problem(problem, "contract")
    if tradeoff == 0:
        raise ArgumentError("contract needs a tradeoff above 0: at 0 no loss counts")
    if not problem.is_forest:
        raise ProblemError(
            "contract: a node can be entered from several places, so no single node stands for "
            "what follows it; give a line, multi-line, tree or forest"
        )
    policy = solve(problem.with_moves("precedence"), tradeoff)
    members: dict[int, tuple[str, ...]] = {}
    steps = []
    for number in reversed(problem.order):
        name = problem.names[number]
        below = [member for child in problem.targets(number) for member in members[child]]
        members[number] = (name, *below)
        index = policy.index(name)
        laws = tuple(
            policy.equivalent_node(name, state, fallback / tradeoff)
            for state, fallback in enumerate(index.tolist())
        )
        steps.append(Contraction(name, members[number], index, laws))
    return steps
