"""The paper's policies, learnt: each node is seen in a state, and a solved problem decides.

A state is a range of the node's confidence. The policy is that of a solver (dynamic indices, or a
walk with recall), so it has what the paper's has: :meth:`StatePolicy.solved`.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ttamer.fitting.belief import Floats, Seen
from ttamer.fitting.replay import Played
from ttamer.fitting.session import FittedSession
from ttamer.policy.base import Ladder, Policy
from ttamer.policy.session import Explanation, StateSession

MAX_STATES = 256


@dataclass(frozen=True, eq=False)
class StateTables:
    """Solved policies of one learnt problem, prices rising."""

    names: tuple[str, ...]
    """The nodes of the cascade."""
    costs: Floats
    """Shape (n,): the mean cost of each node, in the cascade's unit."""
    edges: tuple[Floats, ...]
    """Per node of the cascade, increasing confidences that separate its states."""
    columns: tuple[int, ...]
    """For each node of the problem, its number in the cascade."""
    ladder: Ladder
    """The solved policies, in increasing order of tradeoff: costs are shares of the full cost."""
    solved_caps: dict[tuple[int, float], Policy] = field(default_factory=dict, repr=False)
    """Policies under caps that sessions asked for, by number and cap."""

    def __len__(self) -> int:
        return len(self.ladder)

    def policy(self, number: int) -> StatePolicy:
        """Return the policy of one price."""
        return StatePolicy(self, number)

    def states(self, confidence: Floats) -> NDArray[np.intp]:
        """Return, in the problem's order, the states of confidences of shape (T, n).

        What is no number carries no information, and has state 0.
        """
        states = np.empty(confidence.shape, np.intp)
        for number, node in enumerate(self.columns):
            column = confidence[:, node]
            states[:, number] = np.searchsorted(self.edges[node], column, side="right")
            states[np.isnan(column), number] = 0
        return states


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
        """Return the solved policy of which no input costs more, failures included.

        Raises:
            ProblemError: Under a cap the problem has too many states to be solved.
        """
        from ttamer.solvers import solve  # only a cap that was not solved for needs a solver

        if (self.number, max_cost) not in self.tables.solved_caps:
            problem, tradeoff = self.solved.problem, self.solved.tradeoff
            nodes = zip(self.tables.columns, problem.incoming, strict=True)
            units = [(self.tables.costs[v], problem.edges[into[0]].cost) for v, into in nodes]
            # The cost of the problem is a share of the full cost: the same for all nodes.
            unit = next((cost / share for cost, share in units if share), 1.0)
            policy = solve(problem, tradeoff, max_cost=max_cost / unit)
            self.tables.solved_caps[self.number, max_cost] = policy
        return self.tables.solved_caps[self.number, max_cost]

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

    __slots__ = ("_capped", "_free", "_inner", "_tables")

    def __init__(self, policy: StatePolicy, max_cost: float | None = None) -> None:
        super().__init__(policy.names, policy.tables.costs.tolist(), max_cost)
        self._tables, solved, self._capped = policy.tables, policy.solved, False
        self._free: StateSession | None = None  # what is decided without the cap, while that agrees
        if max_cost is not None:
            problem = policy.tables.ladder.problem
            starts = [policy.tables.columns[problem.ends[edge][1]] for edge in problem.starts]
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
        """Take the node that the solved policy asks."""
        number = self._inner.number
        self._next = -1 if number < 0 else self._tables.columns[number]
        if self._free is not None and self._free.next != self._inner.next:
            self._free, self._capped = None, True

    @property
    def answer(self) -> str | None:
        """The node whose answer to return."""
        return self._inner.answer

    @property
    def capped(self) -> bool:
        """Whether the cap on the cost changed what was asked."""
        return self._capped

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        return len(self._asked) + 1 == len(self._names)

    def explain(self) -> Explanation:
        """Return the reasons for the current decision, as the solved policy gives them."""
        inner = self._inner.explain()
        return dataclasses.replace(inner, next=self.next, price=self.price)
