"""Cautious policies of one network: they stop early only where the last exit would hardly differ.

A promise about the drop against the last exit is tested on the rows on which the policy and that
exit differ. The policies of a ladder return the best answer so far, also after the last exit; that
costs nothing and gains little, and each row on which it differs makes the test weaker. A cautious
policy stops where X is low enough, with the answer that owns X, and at the last exit returns the
last exit's own answer. So it is one threshold on X for each exit but the last: at exit k it stops
in the lowest ``cuts[k]`` states of the fit. The last of them, of tradeoff 1, never stops early.

They share the belief and the states of the ladder, except that the last step is the last exit
alone; their tables are those of a walk without recall, as those of every policy on beliefs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.replay import asked_up_to, paid
from ttamer.policy.expected_walk import STOP
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import Edge, Node, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.models import BeliefModel, States
    from ttamer.trace.trace import Trace

__all__ = ["Cautious", "cautious_model", "cautious_problem", "has_line", "stopping_policy"]


@dataclass(frozen=True, eq=False)
class Cautious:
    """The thresholds of cautious policies, and what each does on rows it was not fitted to."""

    tradeoffs: NDArray[np.float64]
    """Shape (policies,), increasing, the last one 1: the least cautious comes first."""
    cuts: NDArray[np.intp]
    """Shape (policies, exits - 1): the number of states, from the lowest, in which each stops."""
    errors: NDArray[np.float64]
    """Shape (policies,): the expected error of each."""
    costs: NDArray[np.float64]
    """Shape (policies,): the mean cost of each, in the cascade's units."""

    def __len__(self) -> int:
        return len(self.tradeoffs)

    def places(self, number: int, found: NDArray[np.integer]) -> NDArray[np.intp]:
        """Return the exit at which a policy stops, given states of shape (T, exits or one less)."""
        stops = found[:, : self.cuts.shape[1]] < self.cuts[number]
        return np.asarray(np.where(stops.any(axis=1), stops.argmax(axis=1), self.cuts.shape[1]))

    def mean_costs(self, states: States, trace: Trace) -> NDArray[np.float64]:
        """Return, shape (policies,), what each costs on rows, in the cascade's units."""
        exits = len(trace.names)
        places = (self.places(number, states.found) for number in range(len(self)))
        return np.array([paid(asked_up_to(place, exits), trace).mean() for place in places])

    def policy(self, number: int, problem: Problem) -> WalkPolicy:
        """Return the tables of one of the policies, on what :func:`cautious_problem` gives."""
        stops = [
            np.arange(len(node.losses)) < cut
            for node, cut in zip(problem.nodes, self.cuts[number].tolist(), strict=False)
        ]
        return stopping_policy(problem, float(self.tradeoffs[number]), stops)


def stopping_policy(
    problem: Problem, tradeoff: float, stops: Sequence[NDArray[np.bool_]]
) -> WalkPolicy:
    """Return the tables of a policy that stops in given states, on a line without recall.

    Args:
        problem: A line, as a walk.
        tradeoff: Of the policy: what its tables weigh losses and costs by.
        stops: Per node but the last, shape (states,): whether to stop there.

    Returns:
        A policy without recall, which may not be the best one for its tradeoff.
    """
    last = len(problem.nodes) - 1
    phi = [tradeoff * node.losses for node in problem.nodes]
    choices = [np.full(len(own), STOP, np.int32) for own in phi]
    for place in reversed(range(last)):
        onward = problem.edges[place + 1]
        price = (1 - tradeoff) * float(np.mean(onward.cost))
        going = price + onward.probabilities @ phi[place + 1]
        phi[place] = np.where(stops[place], phi[place], going)
        choices[place] = np.where(stops[place], choices[place], np.int32(place + 1))
    first = problem.edges[0]
    value = float((first.probabilities @ phi[0])[0])
    value += (1 - tradeoff) * float(np.mean(first.cost))
    return WalkPolicy(
        problem=problem,
        tradeoff=tradeoff,
        recall=False,
        value=value,
        choices=tuple(table[:, np.newaxis] for table in (*choices, np.zeros(1, np.int32))),
        phi=tuple(table[:, np.newaxis] for table in (*phi, np.array([value]))),
    )


def has_line(model: BeliefModel, problem: Problem) -> bool:
    """Return whether a fit may have cautious policies: on exits asked in order, up to the last."""
    spec = model.spec
    steps = tuple(tuple(range(place + 1)) for place in range(len(spec)))
    suits = spec.is_network and spec.target == "label" and model.loss_scale is None
    return suits and problem.is_line and len(spec) > 1 and tuple(model.steps) == steps


def cautious_problem(problem: Problem, name: str, error: float) -> Problem:
    """Return the walk of cautious policies: the line of a fit whose last step has one state.

    Args:
        problem: The line of a fit on beliefs.
        name: The name of the last exit.
        error: What its answer loses on average, in the unit of the problem's losses.
    """
    *kept, end = problem.edges
    states = end.probabilities.shape[0]
    return Problem(
        "walk",
        (*problem.nodes[:-1], Node(name, np.array([error]))),
        (*kept, Edge(end.source, name, cost=end.cost, probabilities=np.ones((states, 1)))),
    )


def cautious_model(model: BeliefModel) -> BeliefModel:
    """Return the model of cautious policies: after the last exit its own answer alone is left."""
    last = len(model.spec) - 1
    step = (last,)
    kept = {key: own for key, own in model.belief.weights.items() if key[0] in model.steps[:-1]}
    return dataclasses.replace(
        model,
        belief=dataclasses.replace(
            model.belief, weights={**kept, (step, last): np.array([0.0, 1.0, 0.0])}
        ),
        steps=(*model.steps[:-1], step),
        edges=(*model.edges[:-1], np.empty(0)),
    )
