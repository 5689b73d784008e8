"""The paper's policies, learnt: each node is seen in a state, and a solved problem decides.

A state is a range of the node's confidence. The learner is the paper as written: confidences of
each node are cut into states of equal shares of the rows; how states follow one another is counted;
a state loses one minus its mean confidence. The problem of these numbers is solved for a range of
tradeoffs. That is optimal if nodes are a Markov chain and confidence is the chance to be right. The
policy is that of a solver (dynamic indices, or a walk with recall), so it has what the paper's has:
:meth:`StatePolicy.solved`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise, starmap

import msgspec
import numpy as np
from numpy.typing import NDArray

from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Floats, Seen
from ttamer.fitting.replay import Played
from ttamer.fitting.session import FittedSession
from ttamer.policy.base import Ladder, Policy
from ttamer.policy.session import Explanation, StateSession
from ttamer.problem.problem import Edge, Moves, Node, Problem
from ttamer.stats.markov import markov_cost, markov_test


class MarkovRecord(msgspec.Struct, frozen=True):
    """Whether the states that ``belief="markov"`` learnt form a Markov chain, as it assumes."""

    # The chance of dependence as strong as in these rows, if they did (permutations)
    p_value: float
    # What assuming it loses and pays more, at tradeoff; costs are shares of the full cost
    cost: float
    standard_error: float
    tradeoff: float

    def __str__(self) -> str:
        verdict = "consistent with" if self.p_value > 0.05 else "not those of"
        return (
            f"The states of the nodes are {verdict} a Markov chain (p = {self.p_value:.2g}); "
            f"assuming one costs {self.cost:.2g} +- {self.standard_error:.1g} in the objective at "
            f"tradeoff {self.tradeoff:.2g}"
        )


@dataclass(frozen=True, eq=False)
class StateTables:
    """Solved policies of one learnt problem, prices rising."""

    names: tuple[str, ...]  # the nodes of the cascade
    costs: Floats  # (n,): the mean cost of each node, in the cascade's unit
    # Per node of the cascade, increasing confidences that separate its states
    edges: tuple[Floats, ...]
    columns: tuple[int, ...]  # for each node of the problem, its number in the cascade
    # The solved policies, in increasing order of tradeoff: costs are shares of the full cost
    ladder: Ladder

    def __len__(self) -> int:
        return len(self.ladder)

    def policy(self, number: int) -> StatePolicy:
        """Return the policy of one price."""
        return StatePolicy(self, number)

    def states(self, confidence: Floats) -> NDArray[np.intp]:
        """Return, in the problem's order, the states of confidences (T, n); 0 of what is NaN."""
        return states_of(confidence[:, self.columns], [self.edges[v] for v in self.columns])


def states_of(confidence: Floats, edges: Sequence[Floats]) -> NDArray[np.intp]:
    """Return the states of confidences, the columns of which are cut at edges."""
    pairs = zip(edges, confidence.T, strict=True)
    states = np.stack([np.searchsorted(cuts, c, side="right") for cuts, c in pairs], axis=1)
    return np.where(np.isnan(confidence), 0, states)


@lru_cache(64)  # sessions ask for the same caps again
def solved_within(policy: Policy, max_cost: float) -> Policy:
    """Return the policy of the same problem of which no input costs more."""
    from ttamer.solvers import solve  # only a cap that was not solved for needs a solver

    return solve(policy.problem, policy.tradeoff, max_cost=max_cost)


@dataclass(frozen=True, eq=False)
class StatePolicy:
    """The policy of one tradeoff."""

    tables: StateTables
    number: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return self.tables.names

    @cached_property
    def solved(self) -> Policy:
        """The solved policy: tables, indices, and its problem."""
        return self.tables.ladder[len(self.tables) - 1 - self.number]

    def capped(self, max_cost: float) -> Policy:
        """Return the solved policy of which no input costs more, failures included."""
        problem = self.solved.problem
        nodes = zip(self.tables.columns, problem.incoming, strict=True)
        units = [(self.tables.costs[v], problem.edges[into[0]].cost) for v, into in nodes]
        # The cost of the problem is a share of the full cost: the same for all nodes.
        unit = next((cost / share for cost, share in units if share), 1.0)
        return solved_within(self.solved, max_cost / unit)

    def session(self, max_cost: float | None = None) -> StateTurn:
        """Start deciding for one input."""
        return StateTurn(self, max_cost)

    def play(self, answers: Seen) -> Played:
        """Decide for rows: what sessions would do, one for each."""
        shape = answers.confidence.shape
        asked, answer = np.zeros(shape, bool), np.full(shape[0], -1, np.intp)
        last, columns = answer.copy(), np.array(self.tables.columns)
        complete = np.flatnonzero(answers.answered.all(axis=1))
        states = self.tables.states(answers.confidence[complete])
        batch = self.solved.batch(len(complete))
        while batch.running:
            going = np.flatnonzero(batch.next >= 0)
            last[complete[going]] = columns[batch.next[going]]
            asked[complete[going], last[complete[going]]] = True
            batch.observe(states[np.arange(len(complete)), np.maximum(batch.next, 0)])
        answer[complete] = columns[batch.answer]
        for row in np.flatnonzero(~answers.answered.all(axis=1)).tolist():
            turn = self.session()
            while turn.next is not None:
                node = last[row] = self.names.index(turn.next)
                asked[row, node] = True
                if answers.answered[row, node]:
                    turn.observe(confidence=float(answers.confidence[row, node]))
                else:
                    turn.fail()
            answer[row] = -1 if turn.answer is None else self.names.index(turn.answer)
        return Played(answer, asked, last)


class StateTurn(FittedSession):
    """A session of a policy on states: the confidence of an answer is its state.

    Under a cap the learnt problem is solved with it, what was spent being part of the state.
    """

    def __init__(self, policy: StatePolicy, max_cost: float | None = None) -> None:
        super().__init__(policy.names, policy.tables.costs.tolist(), max_cost)
        self._tables, solved = policy.tables, policy.solved
        self._free: StateSession | None = None  # what is decided without the cap, while that agrees
        if max_cost is not None:
            problem = policy.tables.ladder.problem
            starts = [policy.tables.columns[problem.ends[edge][1]] for edge in problem.outgoing[-1]]
            if all(self._costs[node] > self._limit for node in starts):
                self._require_start(starts)
            self._free = solved.session()
            solved = policy.capped(max_cost)
        self._inner: StateSession = solved.session()
        self._find()

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        del prediction
        state = None
        if confidence is not None:
            state = bisect_right(self._tables.edges[node].tolist(), confidence)
        for session in (self._inner, self._free):
            if session is not None:
                session.fail() if state is None else session.observe(state)
        self._find()

    def _find(self) -> None:
        """Take the node that the solved policy asks, and the one that answers."""
        number, answer = self._inner.number, self._inner.answer
        self._next = -1 if number < 0 else self._tables.columns[number]
        self._answer = -1 if answer is None else self._names.index(answer)
        if self._free is not None and self._free.next != self._inner.next:
            self._free, self._capped = None, True

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        return len(self._asked) + 1 == len(self._names)

    def explain(self) -> Explanation:
        """Return the reasons for the current decision, as the solved policy gives them."""
        inner = self._inner.explain()
        return replace(inner, next=self.next, price=self.price)


# ---------------------------------------------------------------- the learner
def default_tradeoffs() -> Floats:
    """Return tradeoffs from 0 to 1: the full cost weighs a thousandth of a loss to ten losses."""
    weight = np.geomspace(1e-3, 1e1, 46)
    return np.concatenate([[0.0], np.sort(1 / (1 + weight)), [1.0]])


def edges_of(values: Floats, states: int) -> Floats:
    """Return increasing edges that cut confidences into at most this many states of equal shares.

    >>> edges_of(np.array([0.1, 0.2, 0.8, 0.9]), 2).tolist()
    [0.5]
    """
    if not 1 <= states <= 256:
        raise ArgumentError(f"states must be from 1 to 256, not {states!r}", param="states")
    distinct, counts = np.unique(values, return_counts=True)
    ranks = np.arange(1, states) * len(values) / states
    cuts = np.unique(np.searchsorted(np.cumsum(counts), ranks) + 1)
    if len(distinct) <= states:
        cuts = np.arange(1, len(distinct))
    cuts = cuts[(cuts > 0) & (cuts < len(distinct))]
    edges = 0.5 * distinct[cuts - 1] + 0.5 * distinct[cuts]
    # Two neighbouring floats have no middle: the upper one is the edge then.
    return np.unique(np.where(edges > distinct[cuts - 1], edges, distinct[cuts]))


def transitions(
    source: NDArray[np.intp], target: NDArray[np.intp], shape: tuple[int, int]
) -> Floats:
    """Return the shares of target states by source state, with rows of the target's law added.

    >>> zeros = np.zeros(2, np.intp)
    >>> transitions(zeros, np.array([0, 1]), (1, 2)).tolist()
    [[0.5, 0.5]]
    """
    table = np.bincount(source * shape[1] + target, minlength=shape[0] * shape[1])
    table = table.reshape(shape).astype(float)
    law = table.sum(axis=0) / table.sum()
    filled = table + law  # one row of the target's own law for each source
    return np.asarray(filled / filled.sum(axis=1, keepdims=True))


def fit_states(
    spec: CascadeSpec,
    confidence: Floats,
    cost: Floats,
    full_cost: float,
    *,
    states: int | None = None,
    tradeoffs: Floats | None = None,
) -> StateTables:
    """Learn a problem from rows, confidences of shape (T, n) from 0 to 1, and solve it.

    Where a node has a parent the cascade is a forest, whose branches are independent given their
    parents. Other models are asked in order of cost, any of them left out; exits one after another.
    ``cost`` (n,) is the mean of each node, ``full_cost`` the unit of cost of the problem.
    """
    from ttamer.solvers import solve_ladder  # deciding by what was learnt needs no solver

    names = spec.names
    inside = ((confidence >= 0) & (confidence <= 1)).all(axis=0)
    if not inside.all():
        raise ArgumentError(
            'belief="markov" takes one minus the confidence for the loss, so every confidence must '
            f"be from 0 to 1, and one of {names[int(inside.argmin())]!r} is not: rescale them, or "
            'use belief="answers", which needs no scale',
            param="belief",
        )
    if states is None:
        # Eight rows on the mean for each pair of states.
        states = int(np.clip(np.sqrt(len(confidence) / 8), 2, 32))
    edges = tuple(edges_of(column, states) for column in confidence.T)
    numbers = states_of(confidence, edges)
    sizes, tree, order = [len(e) + 1 for e in edges], any(spec.parents), [*range(len(spec))]
    if tree:
        pairs = [(parents[0] if parents else -1, v) for v, parents in enumerate(spec.parents)]
    elif spec.kind == "exits":
        pairs = list(pairwise([-1, *order]))
    else:
        order = np.argsort(cost, kind="stable").tolist()
        pairs = [(-1, v) for v in order]
        pairs += combinations(order, 2)

    def node(v: int) -> Node:
        rows = np.bincount(numbers[:, v], minlength=sizes[v])
        total = np.bincount(numbers[:, v], confidence[:, v], minlength=sizes[v])
        return Node(names[v], 1 - total / np.maximum(rows, 1))

    def edge(u: int, v: int) -> Edge:
        before, size = (numbers[:, u], sizes[u]) if u >= 0 else (np.zeros(len(numbers), int), 1)
        share = transitions(before, numbers[:, v], (size, sizes[v]))
        source, price = None if u < 0 else names[u], float(cost[v]) / full_cost
        return Edge(source, names[v], cost=price, probabilities=share)

    moves: Moves = "precedence" if tree else "walk"
    problem = Problem(moves, tuple(map(node, order)), tuple(starmap(edge, pairs)))
    ladder = solve_ladder(problem, default_tradeoffs() if tradeoffs is None else tradeoffs)
    return StateTables(names, np.asarray(cost, float), edges, tuple(order), ladder)


def check_markov(tables: StateTables, confidence: Floats, seed: int) -> MarkovRecord | None:
    """Test whether states follow one another as assumed, and measure what it costs if not.

    Nodes of a tree have no one order: nothing is returned for them.
    """
    problem = tables.ladder.problem
    if problem.moves != "walk":
        return None
    # On so many rows the test takes a tenth of a second.
    rows = np.random.default_rng(seed).permutation(len(confidence))[:4000]
    states = tables.states(confidence[rows])
    policy = tables.ladder[len(tables) // 2]
    costs = np.array([problem.edges[into[0]].cost for into in problem.incoming])
    losses = [node.losses for node in problem.nodes]
    cost = markov_cost(states, losses, costs, policy.tradeoff, seed=seed)
    # One node that is not Markov can reach p = 0.025, however many are tested.
    test = markov_test(states, permutations=40 * max(states.shape[1] - 2, 2), seed=seed)
    return MarkovRecord(test.p_value, cost.mean, cost.standard_error, policy.tradeoff)
