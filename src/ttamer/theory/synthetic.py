"""The paper's synthetic experiments (section D.3), and a correlated chain beside them.

The paper draws the losses of a line independently from one law and shows if-stop matrices that
seem to depend on the current loss. In truth, for independent identical losses and equal costs
every index is the same number (Weitzman's reservation value): the decision depends on the best
loss so far alone, and one fixed threshold with recall at the end is optimal. Only correlation, or
unequal nodes, makes it depend on the current state; the correlated chain shows that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy.base import Policy
from ttamer.policy.expected import STOP, expected_walk
from ttamer.problem.problem import Problem
from ttamer.solvers import solve

# How strongly a loss of the correlated chain pulls the next one to itself.
CORRELATION = 0.8
# The standard deviation of the next loss around that pull.
SPREAD = 0.25


@dataclass(frozen=True, eq=False)
class Experiment:
    """One synthetic problem, its optimal policy, and the best fixed thresholds on it.

    Values are in units of loss plus cost, weighed by the tradeoff.

    >>> from ttamer.theory import experiment
    >>> found = experiment("correlated chain", nodes=3, states=8)
    >>> found.policy.value <= found.with_recall <= found.without_recall
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
        everything = np.concatenate(values)
        return float(everything.min()), float(everything.max())

    def _excess(self, value: float) -> float:
        """Compare a value with the optimum, which is 0 only where nothing counts or costs."""
        return value / self.policy.value - 1 if self.policy.value else 0.0


def if_stop_experiments(
    *, nodes: int = 6, states: int = 40, cost: float = 0.1, tradeoff: float = 0.5
) -> list[Experiment]:
    """Solve the paper's three synthetic problems and the correlated chain.

    Args:
        nodes: Nodes on the line, at least 2.
        states: Losses per node, at least 2.
        cost: The cost of each node.
        tradeoff: From 0 (only cost counts) to 1 (only loss counts).

    Returns:
        One experiment per problem, in the order of ``EXPERIMENTS``.

    Raises:
        ArgumentError: If a size or the tradeoff is out of range.

    >>> [each.name for each in if_stop_experiments(nodes=2, states=4)][-1]
    'correlated chain'
    """
    return [
        experiment(name, nodes=nodes, states=states, cost=cost, tradeoff=tradeoff)
        for name in EXPERIMENTS
    ]


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

    Raises:
        ArgumentError: If there is no such problem, or a size or the tradeoff is out of range.

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
    if not problem.is_line:
        raise ArgumentError("a fixed threshold is for a line: the problem has branches or skips")
    width = len(problem.grid) if recall else 1
    following = dict(zip(problem.order, (*problem.order[1:], STOP), strict=True))
    best = math.inf
    for threshold in (-1.0, *problem.grid.values[:-1].tolist()):
        choice = []
        for number, node in enumerate(problem.nodes):
            going = np.where(node.losses > threshold, following[number], STOP)
            choice.append(np.repeat(going[:, np.newaxis], width, axis=1).astype(np.int32))
        choice.append(np.full((1, width), problem.order[0], np.int32))
        mean, _ = expected_walk(problem, choice.__getitem__, recall=recall)
        best = min(best, tradeoff * mean.loss + (1 - tradeoff) * mean.cost)
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
    first = _binned(losses, lambda x: _normal(x, 0.5, 0.5))
    rows = [
        _binned(losses, lambda x, at=at: _normal(x, 0.5 + CORRELATION * (at - 0.5), SPREAD))  # type: ignore[misc]
        for at in losses.tolist()
    ]
    return first, np.array(rows)


# From the losses of a node to the law of the first node and the rows of the others.
Law = Callable[["NDArray[np.float64]"], "tuple[NDArray[np.float64], NDArray[np.float64]]"]

EXPERIMENTS: dict[str, Law] = {
    "normal(0.5, 0.5)": _alike(lambda x: _normal(x, 0.5, 0.5)),
    "log-normal(0, 1)": _alike(lambda x: _normal(math.log(x), 0, 1) if x > 0 else 0.0),
    "uniform(0, 0.5)": _alike(lambda x: min(x, 0.5)),
    "correlated chain": _chain,
}
