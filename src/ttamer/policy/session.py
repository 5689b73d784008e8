"""Names that fits import from here; the last class goes with the old fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ttamer.policy.base import (
    INFINITY as INFINITY,
    NO_ANSWER as NO_ANSWER,
    Explanation as Explanation,
    Session as Session,
    StateSession as StateSession,
)
from ttamer.policy.index import IndexSession as IndexSession
from ttamer.policy.walk import WalkPolicy as WalkPolicy, WalkSession as WalkSession
from ttamer.problem.tradeoff import weigh_losses


class LastAnswerSession(StateSession):
    """A session of a walk without recall: the answer is that of the node asked last."""

    __slots__ = ("_names", "_nothing", "_tables")

    _policy: WalkPolicy

    def __init__(self, policy: WalkPolicy) -> None:
        super().__init__(policy)
        self._names, first, self._nothing, self._tables = policy.layout
        self._node = first
        self.next = self._names[first]

    def observe(self, state: int) -> None:
        """Give the state in which ``next`` is observed, and move on."""
        node = self._node
        try:
            if state < 0:
                raise self._refuse(state)
            self._node = following = self._tables[node][1][state][0]
        except (IndexError, TypeError):
            raise self._refuse(state) from None
        answers = self._tables[node][0][state] < self._nothing
        self._answer = node if answers else -1
        self._path.append((node, state))
        self.next = self._names[following]

    def fail(self) -> None:
        """Record that ``next`` was asked and gave no answer, and move on."""
        if self.next is None:
            raise self._ended()
        self.observe(int(self._policy.problem.nodes[self._node].losses.argmax()))
        self._answer = -1
        self.go_on()

    def go_on(self) -> None:
        """Where the policy stops, ask the best next node, if any is left."""
        if self.next is None:
            place, state = self._path[-1]
            chances = np.eye(len(self._policy.choices[place]))[state]
            self._node = self._policy.going_on(place, chances, 0)[1]
            self.next = self._names[self._node]

    def start_at(self, node: int) -> None:
        """Ask this node first, whatever the policy's choice."""
        self._node, self.next = node, self._names[node]

    def gains(self, place: int, state: int) -> dict[int, float]:
        """Return what asking one more node after a place gains, weighed, if it stops there.

        Args:
            place: The number of the node asked last.
            state: The number of the state in which it was observed.

        Returns:
            Gains by the number of the node; negative where it costs more than it gains.
        """
        problem, tradeoff = self._policy.problem, self._policy.tradeoff
        best = weigh_losses(problem.nodes[place].losses[state : state + 1], tradeoff)[0]
        found = {}
        for way in problem.outgoing[place]:
            edge, target = problem.edges[way], problem.ends[way][1]
            row, losses = edge.probabilities[state], problem.nodes[target].losses
            after = row[row > 0] @ weigh_losses(losses[row > 0], tradeoff)
            found[target] = float(best - after - (1 - tradeoff) * edge.expected_costs[state])
        return found

    def ahead(self) -> dict[int, float]:
        """Return the chance of each node to be asked right after ``next``; -1 is to stop.

        Returns:
            Chances by the number of the node, above 0; empty once stopped.
        """
        if self.next is None:
            return {}
        problem = self._policy.problem
        number = self._edge_to(self._node, self._path[-1][0] if self._path else -1)
        state = dict(self._path).get(problem.ends[number][0], 0)
        following, found = self._tables[self._node][1], dict[int, float]()
        for after, chance in enumerate(problem.edges[number].probabilities[state].tolist()):
            if chance > 0:
                node = following[after][0]
                found[node] = found.get(node, 0.0) + chance
        return found

    def explain(self) -> Explanation:
        """Return the reasons for the current decision."""
        _, state = self._last()
        best = INFINITY
        if self._answer >= 0:
            losses = self._policy.problem.nodes[self._path[-1][0]].losses[state : state + 1]
            best = float(weigh_losses(losses, self._policy.tradeoff)[0])
        return self._explained(best, self._policy.going_on(*self._at())[0])

    def _at(self) -> tuple[int, NDArray[np.float64], int]:
        place, state = self._path[-1] if self._path else (-1, 0)
        return place, np.eye(len(self._policy.choices[place]))[state], 0
