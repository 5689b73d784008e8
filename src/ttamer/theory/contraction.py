"""The paper's Alg. 3 as a procedure: subtrees of a forest contracted to single nodes.

From the leaves up, a node and all below it are replaced by one node of random loss and cost (Lem.
C.4), whose index is that of the node it replaces. The law of that node depends on the fallback in
hand, since what is asked below depends on it: here the fallback is the node's own index, at which
the law has that index. One law for all fallbacks would not do; the surrogate loss is what solves
the problem (solvers/forest.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError, ProblemError
from ttamer.policy.future import Future
from ttamer.problem.problem import Problem, require_problem
from ttamer.show.graph import Arrow, Box, draw_graph, stack
from ttamer.solvers import solve


@dataclass(frozen=True, eq=False)
class Contraction:
    """One step: a node and all below it become one node.

    >>> from ttamer import Problem
    >>> from ttamer.theory import contract
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> last = contract(line, 0.5)[-1]
    >>> last.node, last.members, last.index.shape
    ('m1', ('m1', 'm2'), (1,))
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

    Raises:
        ArgumentError: If the tradeoff is out of range.
        ProblemError: If the problem is no forest, or no policy is sure of an answer.

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
        children = [problem.ends[edge][1] for edge in problem.outgoing[number]]
        members[number] = (name, *(each for child in children for each in members[child]))
        index = policy.index(name)
        laws = tuple(
            policy.equivalent_node(name, state, fallback / tradeoff)
            for state, fallback in enumerate(index.tolist())
        )
        steps.append(Contraction(name, members[number], index, laws))
    return steps


def draw_contraction(problem: Problem, steps: list[Contraction]) -> str:
    """Return the steps as SVG, one below the other: the forest that is left after each.

    Args:
        problem: The problem that was contracted.
        steps: What :func:`contract` returned for it.

    Returns:
        The text of an SVG file.

    >>> from ttamer import Problem
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> draw_contraction(line, contract(line, 0.5)).startswith("<svg")
    True
    """
    require_problem(problem, "draw_contraction")
    standing: dict[int, tuple[str, ...]] = {v: (name,) for name, v in problem.number.items()}
    parents = {v: problem.ends[problem.incoming[v][0]][0] for v in standing}
    depth = {-1: -1}
    for node in problem.order:
        depth[node] = depth[parents[node]] + 1
    drawings = []
    for count, step in enumerate(steps, start=1):
        contracted = problem.number[step.node]
        standing[contracted] = step.members
        for member in step.members[1:]:
            standing.pop(problem.number[member], None)
        boxes: list[Box] = []
        position: dict[int, int] = {}
        for node, members in standing.items():
            lines, colour = [" + ".join(members)], "used"
            if node == contracted:
                colour = "answer"
                lines += [
                    f"{state}: index {index:.4g}, mean cost {law.mean_cost:.4g}"
                    for state, (index, law) in enumerate(zip(step.index, step.laws, strict=True))
                ]
            position[node] = len(boxes)
            boxes.append(Box(tuple(lines), depth[node], colour))
        arrows = [
            Arrow(position[parents[node]], position[node], "")
            for node in standing
            if parents[node] >= 0
        ]
        drawings.append(draw_graph(boxes, arrows, caption=f"step {count}: {step.node}"))
    return stack(drawings)
