"""The solver where more than the last node matters: exact, over what was asked and spent.

State
    Under precedence, the set D of nodes asked so far (closed under parents), the states of its
    nodes that can still matter (parents of nodes outside D, and the node asked last), and the best
    loss so far. On a walk, the node asked last and its state. Under a cap also what has been spent.
Actions
    stop, or ask a node whose parents are all in D (on a walk: a successor), if even the most that
    it may cost stays within the cap.
Recursion
    that of a walk (solvers/walk.py), over the pairs of D and the node asked last.
Cap
    Costs add up exactly, over the sums that can occur. Where these are too many, they count as
    spent in multiples of a share of the cap (``GRIDS``), rounded up: the policy stays within the
    cap and its value is that of a policy; ``bound`` is the value with costs rounded down, which no
    policy within the cap is below.
Ties
    as on a walk.
Cost
    The states of all steps in all, at most ``MAX_STATES``. With several parents no index decides
    alone, and the number of sets may be exponential: small widths only.
Reference
    The paper's Problem 2.4 and Lem. C.6.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ProblemError
from ttamer.policy.base import cost_keys
from ttamer.policy.joint import Cap, JointPolicy, Step
from ttamer.problem.problem import START, Edge, Node, Problem
from ttamer.solvers.walk import solve_walk

# The most states that the walk over all steps may have in all.
MAX_STATES = 20_000
# The parts of the cap that costs are rounded to where their sums are too many, tried in this order.
GRIDS = (512, 128, 32)


class TooManyStates(ProblemError):  # noqa: N818 - named after what happened
    """There are more steps than can be solved over."""


def solve_joint(
    problem: Problem,
    tradeoffs: NDArray[np.float64],
    *,
    recall: bool = True,
    max_cost: float | None = None,
) -> list[JointPolicy]:
    """Solve a problem in which nodes have several parents, or under a cap on the cost."""
    if max_cost is None:
        return _solve_steps(problem, tradeoffs, recall=recall, cap=None)
    try:
        return _solve_steps(problem, tradeoffs, recall=recall, cap=Cap(max_cost))
    except TooManyStates as error:
        refused = error
    for parts in GRIDS:
        try:
            cap = Cap(max_cost, max_cost / parts)
            # Rounded up it stays within the cap; rounded down no policy within it is left out.
            policies = _solve_steps(problem, tradeoffs, recall=recall, cap=cap)
            down = _solve_steps(problem, tradeoffs, recall=recall, cap=replace(cap, up=False))
        except TooManyStates:
            continue
        return [
            replace(policy, bound=min(best.value, policy.value))
            for policy, best in zip(policies, down, strict=True)
        ]
    raise refused


def _solve_steps(
    problem: Problem, tradeoffs: NDArray[np.float64], *, recall: bool, cap: Cap | None
) -> list[JointPolicy]:
    """Solve over steps."""
    steps, walk = _Steps(problem, cap).walk()
    return [
        JointPolicy(
            problem=problem,
            tradeoff=policy.tradeoff,
            recall=recall,
            value=policy.value,
            walk=policy,
            steps=steps,
            cap=cap,
        )
        for policy in solve_walk(walk, tradeoffs, recall=recall)
    ]


class _Steps:
    """The walk over the steps of a problem."""

    def __init__(self, problem: Problem, cap: Cap | None) -> None:
        self._problem, self._cap = problem, cap
        self._sizes = [len(node.losses) for node in problem.nodes]
        self._steps: list[Step] = []
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._numbers: dict[tuple[frozenset[int], Step, bool], int] = {}
        self._names: set[str] = set()
        self._states = 0
        # The set asked, its step, the number of the step, whether it may be beyond the cap.
        self._waiting = [(frozenset[int](), Step(START, (), (1,)), START, False)]

    def walk(self) -> tuple[tuple[Step, ...], Problem]:
        """Return the steps, and the walk over them."""
        for asked, step, number, barred in self._waiting:  # grows as it goes
            for edge in self._onward(asked, step.node):
                self._ask(asked, step, number, barred, edge)
        if not self._nodes:
            raise ProblemError(
                f"no node can be asked first for max_cost = {self._cap.limit:g}: give more"  # type: ignore[union-attr]
            )
        return tuple(self._steps), Problem("walk", tuple(self._nodes), tuple(self._edges))

    def _onward(self, asked: frozenset[int], last: int) -> list[int]:
        """Return the edges that may be taken."""
        problem = self._problem
        if problem.moves == "walk":
            return [*problem.outgoing[last]]
        return [
            edge
            for node, [edge] in enumerate(problem.incoming)
            if node not in asked and asked | {START} >= set(problem.sources[edge])
        ]

    def _relevant(self, asked: frozenset[int], last: int) -> tuple[int, ...]:
        """Return the nodes whose states can still matter."""
        problem = self._problem
        if problem.moves == "walk":
            return (last,)
        waiting = [edge for node, [edge] in enumerate(problem.incoming) if node not in asked]
        needed = {source for edge in waiting for source in problem.sources[edge]}
        return tuple(sorted((needed & asked) | {last}))

    def _ask(
        self, asked: frozenset[int], before: Step, number: int, barred: bool, edge_number: int
    ) -> None:
        """Add the edge by which a step asks a node, and the step it leads to."""
        problem, edge = self._problem, self._problem.edges[edge_number]
        node = problem.ends[edge_number][1]
        after = asked | {node}
        relevant = self._relevant(after, node)
        # Every combination of the states before, of what was spent, and of the new state.
        shape = (*before.sizes, self._sizes[node])
        *states, spent, observed = np.indices(shape).reshape(len(shape), -1)
        state_of = dict(zip((*before.relevant, node), (*states, observed), strict=True))
        sources = problem.sources[edge_number]
        entry = (*(state_of.get(v, np.zeros_like(observed)) for v in sources), observed)
        chances, costs = edge.probabilities[entry], edge.cost_table[entry]
        possible, fits = chances > 0, np.ones(len(observed), bool)
        sums, total = (0.0,), np.zeros(len(observed))
        if self._cap is not None:
            total = np.array(before.spent)[spent] + self._cap.counted(costs)
            fits = self._cap.allows(np.where(possible, total, 0.0))
            # A cost is known only once it is paid, so a node is asked if its largest one fits.
            fits = np.repeat(fits.reshape(-1, shape[-1]).all(axis=1), shape[-1])
            if not fits.any():
                return
            total = cost_keys(total)
            sums = tuple(np.unique(total[fits & possible]).tolist())
        step = Step(node, relevant, (*(self._sizes[v] for v in relevant), len(sums)), sums)
        barred = barred or not fits.all()
        size, columns = math.prod(step.sizes), math.prod(before.sizes)
        # A sum that does not occur may lie anywhere: its chance is 0.
        position = np.minimum(np.searchsorted(sums, total), len(sums) - 1)
        column = np.ravel_multi_index((*(state_of[v] for v in relevant), position), step.sizes)
        row = np.arange(len(observed)) // shape[-1]
        table = np.zeros((len(self._nodes[number].losses) if number >= 0 else 1, size + barred))
        cost = np.zeros_like(table)
        np.add.at(table, (row[fits], column[fits]), chances[fits])
        cost[row[fits & possible], column[fits & possible]] = costs[fits & possible]
        if barred:  # one more state, without an answer, to which all beyond the cap leads
            table[np.unique(row[~fits]), size] = 1.0
            table[columns:, size] = 1.0
        target = self._number(after, step, barred)
        source = None if number < 0 else self._nodes[number].name
        price = edge.cost if edge.is_cost_fixed and not barred else cost
        self._edges.append(Edge(source, self._nodes[target].name, cost=price, probabilities=table))

    def _number(self, asked: frozenset[int], step: Step, barred: bool) -> int:
        """Return the number of a step, which is added where it is new."""
        problem = self._problem
        # On a walk what was asked before the last node no longer matters.
        key = (asked if problem.moves == "precedence" else frozenset(), step, barred)
        if key in self._numbers:
            return self._numbers[key]
        self._states += math.prod(step.sizes)
        if self._states > MAX_STATES:
            what = "of nodes asked so far" if problem.moves == "precedence" else "of costs"
            raise TooManyStates(
                f"this is solved over the sets {what}, and these have more than {MAX_STATES} "
                'states in all: give fewer nodes or states, or an order ("moves": "walk")'
            )
        self._numbers[key] = number = len(self._steps)
        self._steps.append(step)
        self._waiting.append((asked, step, number, barred))
        before = ", ".join(problem.names[node] for node in sorted(asked - {step.node}))
        name = problem.names[step.node]
        if problem.moves == "precedence" and before:
            name += f" (after {before})"
        if self._cap is not None:
            name += f" (spent {step.spent[-1]:g})"
        while name in self._names:
            name += "'"
        self._names.add(name)
        observed = np.indices(step.sizes)[step.relevant.index(step.node)].ravel()
        losses = problem.nodes[step.node].losses[observed]
        losses = np.pad(losses, (0, int(barred)), constant_values=np.inf)
        self._nodes.append(Node(name, losses))
        return number
