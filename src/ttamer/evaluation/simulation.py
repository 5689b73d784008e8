"""Simulation: play a policy on inputs drawn from its own problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import require_kind, require_whole
from ttamer.policy.base import Policy


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened, input by input, in the problem's units.

    >>> from ttamer import Problem, simulate, solve
    >>> policy = solve(Problem.line([0.0, 1.0], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> found = simulate(policy, 4, seed=0)
    >>> found.loss.tolist(), found.objective.round(2).tolist()
    ([1.0, 0.0, 0.0, 0.0], [0.55, 0.05, 0.05, 0.05])
    """

    loss: NDArray[np.float64]
    """Shape (inputs,): the loss of the answer returned."""
    cost: NDArray[np.float64]
    """Shape (inputs,): what asking cost."""
    answer: NDArray[np.int32]
    """Shape (inputs,): the number of the node that answered."""
    tradeoff: float

    @property
    def objective(self) -> NDArray[np.float64]:
        """Shape (inputs,): ``tradeoff * loss + (1 - tradeoff) * cost``; the value on average."""
        return self.tradeoff * self.loss + (1 - self.tradeoff) * self.cost


def simulate(policy: Policy, inputs: int, *, seed: int) -> Simulation:
    """Draw inputs from the policy's problem and decide for each of them.

    Args:
        policy: A solved policy.
        inputs: How many inputs to draw.
        seed: The seed of the random generator.

    Returns:
        The loss, the cost and the answering node of every input.

    Raises:
        ArgumentError: If ``inputs`` is no whole number from 1 on, or ``seed`` none from 0 on.

    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 1.0], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> simulate(policy, 4, seed=0).loss.tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    remedy = "solve a problem with ttamer.solve, or load a policy with ttamer.load(path)"
    require_kind(policy, Policy, "simulate needs a Policy", remedy)
    require_whole(inputs, "inputs", least=1)
    require_whole(seed, "seed")
    problem, generator = policy.problem, np.random.default_rng(seed)
    batch = policy.batch(inputs)
    observed = np.zeros((inputs, len(problem.nodes) + 1), np.intp)  # the start has one state, 0
    last = np.full(inputs, -1)
    while batch.running:
        asked = batch.next.copy()
        states = np.zeros(inputs, np.intp)
        draws = generator.random(inputs)
        for number, (source, target) in enumerate(problem.ends):
            rows = asked == target
            if problem.moves == "walk":
                rows &= last == source
            sources = tuple(observed[rows, source] for source in problem.sources[number])
            cumulative = problem.edges[number].probabilities.cumsum(axis=-1)[sources]
            drawn = (cumulative <= draws[rows, np.newaxis] * cumulative[:, -1:]).sum(axis=1)
            states[rows] = observed[rows, target] = drawn
        batch.observe(states)
        last = np.where(asked >= 0, asked, last)
    rows = np.arange(inputs)
    width = max(len(node.losses) for node in problem.nodes)
    losses = np.array(
        [np.pad(node.losses, (0, width - len(node.losses))) for node in problem.nodes]
    )
    loss = losses[batch.answer, observed[rows, batch.answer]]
    return Simulation(loss, batch.cost, batch.answer, policy.tradeoff)
