"""One node by itself as a policy: what every cascade has to be better than.

It asks one node, and those that must be asked before it, and returns its answer; where that node
fails, the others are asked until one answers: separate models by their error, the lowest first, and
others in their order. Where a separate model costs more than a cap, another one answers alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.models import ConfidenceModel
from ttamer.fitted.quantiser import Quantiser
from ttamer.policy.expected_walk import STOP
from ttamer.policy.walk import WalkPolicy
from ttamer.problem.problem import Edge, Node, Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ttamer.fitted.models import Model

__all__ = ["alone"]


def alone(
    model: Model, node: int, errors: NDArray[np.float64]
) -> tuple[WalkPolicy, ConfidenceModel]:
    """Return the policy that returns one node's answer, and its model.

    Args:
        model: A model of the same cascade and rows.
        node: The number of the node.
        errors: Shape (n,): the mean loss of each node by itself.

    Returns:
        A solved policy, and the model that gives its states: one for each node.
    """
    spec, full, tradeoff = model.spec, model.full_cost, 0.5
    first = [v for v in spec.asking_order() if spec.required[node, v]]
    others = [v for v in spec.asking_order() if v not in first]
    separate = not (spec.is_network or spec.is_tree)
    if separate:
        others.sort(key=lambda v: float(errors[v]))
    columns = [*first, *others]
    ways = list(zip([-1, *columns], columns, strict=False))
    if separate:  # under a cap on the cost another node may be asked first
        ways += [(-1, v) for v in others]
    losses = errors[columns] / model.loss_unit
    costs = [spec.step_cost(source, target, spec.costs) / full for source, target in ways]
    problem = Problem(
        "walk",
        tuple(
            Node(spec.names[v], np.array([loss])) for v, loss in zip(columns, losses, strict=True)
        ),
        tuple(
            Edge(
                None if source < 0 else spec.names[source],
                spec.names[target],
                cost=cost,
                probabilities=np.ones((1, 1)),
            )
            for (source, target), cost in zip(ways, costs, strict=True)
        ),
    )
    last = len(first) - 1
    phi = tradeoff * losses
    for place in reversed(range(last)):
        phi[place] = phi[place + 1] + (1 - tradeoff) * costs[place + 1]
    value = float(phi[0] + (1 - tradeoff) * costs[0])
    following = [place + 1 if place < last else STOP for place in range(len(columns))]
    policy = WalkPolicy(
        problem=problem,
        tradeoff=tradeoff,
        recall=False,
        value=value,
        choices=tuple(np.array([[each]], np.int32) for each in (*following, 0)),
        phi=tuple(np.array([[each]]) for each in (*phi.tolist(), value)),
    )
    return policy, ConfidenceModel(
        spec=spec,
        quantiser=Quantiser(tuple(np.empty(0) for _ in columns)),
        steps=tuple((column,) for column in columns),
        plan={"belief": "none", "order": "fixed", "states": 1, "alone": spec.names[node]},
        trace_digest=model.trace_digest,
        rows=model.rows,
        full_cost=full,
        loss_scale=model.loss_scale,
    )
