"""The optimal policy of a walk: one choice per node, state and best loss so far.

Its tables are laid out once as plain Python sequences for sessions: for single numbers they are
several times faster to read than arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.policy import base
from ttamer.policy.session import INFINITY, Batch, Explanation, StateSession
from ttamer.policy.surrogate import sweep
from ttamer.problem.checks import TIE
from ttamer.problem.problem import START, STOP, Problem

# Chances below this are left out, so that on a long line few losses stay in play.
NO_MASS = 1e-60


class WalkTables(NamedTuple):
    """The tables of a walk as plain sequences; the last entry, without states, is "stopped"."""

    first: int
    columns: int
    # Per node: the grid column of each state's loss; for each state a row of choices.
    tables: tuple[tuple[tuple[int, ...], tuple[array[int], ...]], ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WalkPolicy(base.Policy):
    """Tables of choices and of equivalent losses, one pair per node; the start's come last.

    >>> from ttamer import Problem, solve
    >>> line = Problem.line([0.0, 1.0], [0.1, 0.1], [[0.5, 0.5], [[0.5, 0.5]] * 2])
    >>> solve(line, 0.5).choice("m1").tolist()  # columns: the best loss is 0, 1, or none yet
    [[-1, 1, 1], [-1, 1, 1]]
    """

    # Shape (states, columns) each: the node to ask next, or -1
    choices: tuple[NDArray[np.int32], ...]
    # Shape (states, columns) each: the equivalent loss, weighed
    phi: tuple[NDArray[np.float64], ...]

    def index(self, node: str) -> NDArray[np.float64]:
        number = self.problem.index_of(node)
        if not (self.problem.is_line and self.recall):
            raise ArgumentError(
                "a node has an index of its own on a line or a forest, with recall; where routes "
                "meet or part, use policy.threshold(after) and policy.choice(after)"
            )
        return self._indices[number]

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        return self.choices[base.number_of(self.problem, after)]

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        return self.phi[base.number_of(self.problem, after)]

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> base.Future:
        node, choices = base.number_of(self.problem, after), self.choices
        if self.recall:  # the best is then the least of the loss in hand and those still to be met
            columns = np.arange(len(self.problem.grid))
            columns = np.minimum(columns, self.problem.grid.column(best))
            choices = tuple(table[:, columns] for table in choices)
        state = base.check_state(self.problem, node, state)
        answers, *_ = walk_outcome(
            self.problem, choices, node, state, recall=self.recall, by_cost=True
        )
        return base.joint_law(answers)

    def session(self) -> WalkSession:
        return WalkSession(self)

    def batch(self, size: int) -> WalkBatch:
        return WalkBatch(self, size)

    def rules(self, node: str) -> list[base.StateRule]:
        position = self.problem.index_of(node)
        losses = self.problem.nodes[position].losses.tolist()
        rules = []
        for state, row in enumerate(self.choices[position]):
            # With recall the best loss is never above the node's own: no column beyond it is met.
            met = row[: self.problem.grid.positions[position][state] + 1] if self.recall else row
            ask = tuple(self.problem.names[target] for target in np.unique(met[met != STOP]))
            # It stops up to a column, and not beyond; without recall there is one column.
            last = int((met == STOP).sum()) - 1
            limit = float(self.problem.grid.values[last]) if self.recall else INFINITY
            limit = -INFINITY if last < 0 else limit
            rules.append(base.StateRule(state, losses[state], (limit, limit), ask))
        return rules

    def _going_on(
        self,
        node: int,
        chances: NDArray[np.float64],
        column: int,
        barred: tuple[int, ...] = (),
    ) -> tuple[float, int]:
        """Return the least value of asking one more node, and that node; ``inf`` and -1 for none.

        Where no way is sure of an answer the value is infinite, and the node the first one given
        that leads to one. ``chances`` are those of the states of the node asked last (-1: the
        start), ``column`` is that of the best loss so far, 0 without recall; ``barred`` has, per
        node, a state in which it must not be found, or -1.
        """
        value, following = INFINITY, STOP
        for number in self.problem.outgoing[node]:
            edge, target = self.problem.edges[number], self.problem.ends[number][1]
            row = chances @ edge.probabilities
            # In some state the way would cost more than is left: it is not taken at all.
            if barred and barred[target] >= 0 and row[barred[target]] > 0:
                continue
            columns = np.minimum(column, self.problem.grid.positions[target]) if self.recall else 0
            values = self.phi[target][np.arange(len(row)), columns]
            onward = float((1 - self.tradeoff) * (chances @ edge.expected_costs))
            onward += float(row[row > 0] @ values[row > 0])
            leads = following == STOP and row @ self._leads_to_answers[target] > 0
            if onward < value * (1 - TIE) or (leads and onward == INFINITY):
                value, following = onward, target
        return value, following

    @cached_property
    def _leads_to_answers(self) -> list[NDArray[np.bool_]]:
        return lead_to_answers(self.problem)

    @cached_property
    def tables(self) -> WalkTables:
        """The tables as a session reads them."""
        grid = self.problem.grid
        tables = [
            (tuple(position.tolist()), tuple(array("i", row.tobytes()) for row in table))
            for position, table in zip(grid.positions, self.choices[:-1], strict=True)
        ]
        first = int(self.choices[-1][0, -1])
        return WalkTables(first, len(grid) - 1, (*tables, ((), ())))

    @cached_property
    def _means(self) -> base.Means:
        return base.Means.of(*walk_outcome(self.problem, self.choices, recall=self.recall))

    @cached_property
    def _indices(self) -> tuple[NDArray[np.float64], ...]:
        """The exact index of each node of a line: it lies between two columns of the tables."""
        return sweep(self.problem, self.tradeoff)[0]


class WalkSession(StateSession):
    """A session of a walk, with recall or without."""

    __slots__ = ("_best", "_recall", "_tables", "_unsure")

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy) -> None:
        super().__init__(policy)
        self.number, self._best, self._tables = policy.tables
        self._recall = policy.recall
        self._unsure: NDArray[np.float64] | None = None

    def observe(self, state: int) -> None:
        node = self.number
        try:
            columns, choices = self._tables[node]
            if state < 0:
                raise self._refuse(state)
            best = columns[state]
            if not self._recall:
                following = choices[state][0]
                self._answer = STOP if best == self._policy.tables.columns else node
                self._best = best
            else:
                if best < self._best:
                    self._best = best
                    self._answer = node
                following = choices[state][self._best]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        self.number = following
        self._unsure = None
        self._path.append((node, state))

    def fail(self) -> None:
        # Its state stays unknown: what comes next is the best on average over its states.
        node, self._unsure = self.number, self._fail()
        if not self._recall:  # the last node has no answer, and no earlier one may be returned
            self._best, self._answer = self._policy.tables.columns, STOP
        value, target = self._policy._going_on(node, self._unsure, self._column)
        stop = float(self._policy.fallbacks[self._best])
        self.number = target if stop == INFINITY or value < stop * (1 - TIE) else STOP

    @property
    def _column(self) -> int:
        """The column of the tables."""
        return self._best if self._recall else 0

    def explain(self) -> Explanation:
        best = float(self._policy.fallbacks[self._best])
        node, state = self._path[-1] if self._path else (START, 0)
        chances = self._unsure
        if chances is None:
            chances = np.eye(len(self._policy.choices[node]))[state]
        return self._explained(best, self._policy._going_on(node, chances, self._column)[0])


class WalkBatch(Batch):
    """A batch of a walk, with recall or without."""

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy, size: int) -> None:
        super().__init__(policy, size)
        columns = len(policy.problem.grid) - 1
        self._best = np.full(size, columns, np.intp)
        self.next[:] = policy.choices[-1][0, -1]

    def _step(self, node: int, rows: NDArray[np.intp], states: NDArray[np.integer]) -> None:
        policy = self._policy
        if not policy.recall:
            answers = np.isfinite(policy.problem.nodes[node].losses)[states]
            self.answer[rows] = np.where(answers, node, STOP)
            self.next[rows] = policy.choices[node][states, 0]
            return
        columns, best = policy.problem.grid.positions[node][states], self._best[rows]
        self.answer[rows[columns < best]] = node
        best = np.minimum(best, columns)
        self._best[rows] = best
        self.next[rows] = policy.choices[node][states, best]


def lead_to_answers(problem: Problem) -> list[NDArray[np.bool_]]:
    """Return, per node of a walk and state: whether it, or what may follow it, has an answer."""
    leads = [np.isfinite(node.losses) for node in problem.nodes]
    for node in reversed(problem.order):
        for number in problem.outgoing[node]:
            rows, target = problem.edges[number].probabilities, problem.ends[number][1]
            leads[node] |= (rows > 0) @ leads[target]
    return leads


@base.one_thread()
def walk_outcome(
    problem: Problem,
    choices: Sequence[NDArray[np.int32]],
    node: int = START,
    state: int = 0,
    *,
    recall: bool,
    by_cost: bool = False,
) -> tuple[list[base.Answer], float, NDArray[np.float64]]:
    """Return the answers of a walk, the mean cost, and the chance that each node is asked.

    It goes on from a node (-1: the start) seen in a state; probability mass flows forward over the
    states of the node asked last and the least loss met since, or without recall its own.
    ``choices`` are tables over both; with ``by_cost`` answers are split by what was paid.
    """
    grid, mean_cost = problem.grid, 0.0
    asked = np.zeros(len(problem.nodes) + 1)
    # At each node, by the key of the cost paid: (cost, mass over states and losses).
    paths: list[dict[float, tuple[float, NDArray[np.float64]]]] = [{} for _ in choices]
    mass = np.zeros((len(choices[node]), len(grid)))
    mass[state, -1] = 1.0  # no loss has been met yet
    paths[node][0.0] = (0.0, mass)
    answers: list[base.Answer] = []
    for last in (START, *problem.order):
        base.check_costs(paths[last])
        for cost, mass in paths[last].values():
            asked[last] += mass.sum()
            stopped = np.where(choices[last] == STOP, mass, 0.0).sum(axis=0)
            answers.append((grid.values, cost, stopped))
            for number in problem.outgoing[last]:
                edge, target = problem.edges[number], problem.ends[number][1]
                leaving = np.where(choices[last] == target, mass, 0.0)
                columns = np.flatnonzero(leaving.max(axis=0) > NO_MASS)
                if not len(columns):
                    continue
                mean_cost += float(leaving.sum(axis=1) @ edge.expected_costs)
                prices = base.rows_by_cost(edge) if by_cost else [(0.0, edge.probabilities)]
                for price, rows in prices:
                    moved = np.zeros((rows.shape[1], len(grid)))
                    moved[:, columns] = rows.T @ leaving[:, columns]
                    # To the column of the least of the best and its own loss, or of its own loss.
                    position = grid.positions[target]
                    below = (np.arange(len(grid)) < position[:, np.newaxis]) & recall
                    above = np.where(below, 0.0, moved).sum(axis=1)
                    moved = np.where(below, moved, 0.0)
                    moved[np.arange(len(position)), position] = above
                    [key] = base.cost_keys(np.array([cost + price])).tolist()
                    paid, before = paths[target].get(key, (cost + price, 0.0))
                    paths[target][key] = (paid, before + moved)
        paths[last] = {}
    return answers, mean_cost, asked[:-1]
