"""The precedence solver where a node is asked after several others: exact, over down-sets.

State
    the set D of nodes asked so far (closed under parents), the states of its nodes that can still
    matter (parents of nodes outside D, and the node asked last), and the best loss so far.
Actions
    stop, or ask a node whose parents are all in D.
Recursion
    that of a walk (solvers/walk.py), over the pairs of D and the node asked last.
Ties
    as on a walk.
Cost
    The states of all pairs in all, at most ``MAX_STATES``: small widths only. With several parents
    no index decides alone, and the number of sets may be exponential.
Reference
    The paper's Problem 2.4 and Lem. C.6.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.joint import JointPolicy, Step
from ttamer.problem.problem import Edge, Node, Problem
from ttamer.problem.unseen import free_name
from ttamer.solvers.memory import check_memory, table_bytes
from ttamer.solvers.walk import solve_walk

# The most states that the walk over down-sets may have in all.
MAX_STATES = 20_000


def solve_joint(problem: Problem, tradeoffs: NDArray[np.float64]) -> list[JointPolicy]:
    """Solve a problem in which nodes have several parents, for several tradeoffs at once."""
    steps, walk = _walk_of(problem)
    check_memory(walk, table_bytes(walk, len(tradeoffs), recall=True))
    return [
        JointPolicy(
            problem=problem,
            tradeoff=policy.tradeoff,
            value=policy.value,
            walk=policy,
            steps=steps,
        )
        for policy in solve_walk(walk, tradeoffs, recall=True)
    ]


def _walk_of(problem: Problem) -> tuple[tuple[Step, ...], Problem]:
    """Return the steps, and the walk over them."""
    count = len(problem.nodes)
    edge_into = [problem.incoming[node][0] for node in range(count)]
    parents = [
        tuple(source for source in problem.sources[edge_into[node]] if source >= 0)
        for node in range(count)
    ]
    sizes = [len(node.losses) for node in problem.nodes]

    def kept(asked: frozenset[int], last: int) -> tuple[int, ...]:
        needed = {parent for node in range(count) if node not in asked for parent in parents[node]}
        return tuple(sorted((needed & asked) | {last}))

    def following(asked: frozenset[int]) -> list[int]:
        return [v for v in range(count) if v not in asked and asked.issuperset(parents[v])]

    numbers: dict[tuple[frozenset[int], int], int] = {}
    steps: list[Step] = []
    names: list[str] = []
    taken: set[str] = set()
    nodes: list[Node] = []
    edges: list[Edge] = []
    total = 0
    # (the set before, its nodes kept, its name, the node asked next)
    nothing: frozenset[int] = frozenset()
    waiting: list[tuple[frozenset[int], tuple[int, ...], str | None, int]] = [
        (nothing, (), None, root) for root in following(nothing)
    ]
    for asked, before, source, node in waiting:  # grows as we go
        now = asked | {node}
        place = numbers.get((now, node))
        if place is None:
            place = numbers[now, node] = len(steps)
            after = kept(now, node)
            step = Step(node, after, tuple(sizes[each] for each in after))
            total += math.prod(step.sizes)
            if total > MAX_STATES:
                raise ProblemError(
                    f"nodes with several parents are solved over the sets of nodes asked so far, "
                    f"and these have more than {MAX_STATES} states in all: give fewer nodes or "
                    'states, or an order ("moves": "walk")'
                )
            steps.append(step)
            others = ", ".join(problem.names[each] for each in sorted(asked))
            name = problem.names[node] + (f" (after {others})" if others else "")
            names.append(free_name(name, taken))
            taken.add(names[place])
            own = after.index(node)
            joint = np.indices(step.sizes)[own].ravel()
            nodes.append(Node(names[place], problem.nodes[node].losses[joint]))
            waiting += [(now, after, names[place], each) for each in following(now)]
        edges.append(
            _edge(problem, edge_into[node], before, steps[place], source, names[place], sizes)
        )
    return tuple(steps), Problem("walk", tuple(nodes), tuple(edges))


def _edge(
    problem: Problem,
    number: int,
    before: tuple[int, ...],
    step: Step,
    source: str | None,
    target: str,
    sizes: list[int],
) -> Edge:
    """Return the edge of the walk by which a step asks its node."""
    edge = problem.edges[number]
    shape = tuple(sizes[node] for node in before)
    states = np.indices((*shape, sizes[step.node])).reshape(len(shape) + 1, -1)
    at = dict(zip((*before, step.node), states, strict=True))
    given = tuple(at[s] if s >= 0 else np.zeros_like(states[-1]) for s in problem.sources[number])
    # Every combination of the states before and the new one leads to one joint state.
    columns = np.ravel_multi_index(tuple(at[node] for node in step.kept), step.sizes)
    rows = np.arange(states.shape[1]) // sizes[step.node]
    table = np.zeros((math.prod(shape), math.prod(step.sizes)))
    table[rows, columns] = edge.probabilities[(*given, states[-1])]
    if isinstance(edge.cost, float):
        return Edge(source, target, cost=edge.cost, probabilities=table)
    cost = np.zeros(table.shape)
    per_target = edge.cost.ndim == edge.probabilities.ndim
    cost[rows, columns] = edge.cost[(*given, states[-1]) if per_target else given]
    return Edge(source, target, cost=cost, probabilities=table)
