"""What a policy is: solved tables, and what can be read from them.

A policy answers three questions in constant time: stop or go on, which node to ask next, and which
answer to return. There is one kind per kind of moves: :class:`~ttamer.policy.IndexPolicy` under
precedence, :class:`~ttamer.policy.WalkPolicy` for walks. What both give is documented here.

Units: ``value``, indices, thresholds and equivalent losses are weighed (tradeoff * loss +
(1 - tradeoff) * cost); ``expected_loss``, ``expected_cost`` and futures are in the problem's own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ttamer._display.drawing import Drawing, draw_curves
from ttamer._display.notebook import card
from ttamer._numbers import counted, number, percent
from ttamer.errors import ArgumentError
from ttamer.policy.batch import Batch
from ttamer.policy.drawing import draw_policy
from ttamer.policy.expected_walk import STOP
from ttamer.policy.future import Expected, Future
from ttamer.policy.session import Session
from ttamer.problem.problem import Problem
from ttamer.problem.tradeoff import check_tradeoff, weigh_losses

# The most rows of a table in a notebook.
MAX_ROWS = 12


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy(ABC):
    """The interface of every policy, as returned by :func:`ttamer.solve`.

    >>> from ttamer import Problem, solve
    >>> policy = solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), tradeoff=0.5)
    >>> isinstance(policy, Policy), policy.value
    (True, 0.175)
    """

    problem: Problem
    tradeoff: float
    value: float
    """The least expected ``tradeoff * loss + (1 - tradeoff) * cost``."""
    recall: bool = True

    def __repr__(self) -> str:
        recall = "" if self.recall else ", no recall"
        return (
            f"{type(self).__name__}({counted(len(self.problem.nodes), 'node')}, "
            f"tradeoff={self.tradeoff:g}{recall}, value={self.value:.6g})"
        )

    def _repr_html_(self) -> str:
        rows = [[name, percent(share)] for name, share in self.asked.items()]
        loss, cost = number(self.expected_loss), number(self.expected_cost)
        notes = [f"expected loss {loss}, expected cost {cost}"]
        return card(repr(self), notes=notes, head=["node", "asked"], rows=rows[:MAX_ROWS])

    @cached_property
    def fallbacks(self) -> NDArray[np.float64]:
        """Shape (columns,): the weighed losses that head the columns of the tables."""
        return weigh_losses(self.problem.grid.values, self.tradeoff)

    @property
    def expected_loss(self) -> float:
        """The expected loss of the answer returned."""
        return self._expected[0].loss

    @property
    def expected_cost(self) -> float:
        """The expected cost of all that is asked."""
        return self._expected[0].cost

    @property
    def asked(self) -> dict[str, float]:
        """The chance that each node is asked."""
        return dict(zip(self.problem.names, self._expected[1].tolist(), strict=True))

    @abstractmethod
    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node for each state of its parent, weighed.

        The node is worth asking while the best loss so far is above its index.

        Args:
            node: Its name.

        Returns:
            Shape (states of the parent,); one entry for a root.

        Raises:
            ArgumentError: If there is no such node, or it has no index of its own.
        """

    @abstractmethod
    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the routing table: shape (states, columns), the node to ask next or -1.

        Rows are the states of ``after``, the node asked last (``None``: the start, one row);
        columns are the best loss so far (``fallbacks``), one only without recall. Under
        precedence, only what lies below ``after`` competes.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table.

        Raises:
            ArgumentError: If there is no such node.
        """

    @abstractmethod
    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi, shaped as :meth:`choice`: the expected loss and further cost from there.

        Under precedence, for what lies below ``after``.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table, weighed.

        Raises:
            ArgumentError: If there is no such node.
        """

    @abstractmethod
    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best future loss and the future cost.

        Under precedence, for what lies below ``after``.

        Args:
            after: The name of the node asked last; ``None`` for the start.
            state: The state in which it was seen.
            best: The best loss so far, in the problem's units.

        Returns:
            The law.

        Raises:
            ArgumentError: If there is no such node, state or loss, or the cost takes too many
                distinct values.
        """

    @abstractmethod
    def session(self) -> Session:
        """Start deciding for one input.

        Returns:
            A session at the start.
        """

    @abstractmethod
    def batch(self, size: int) -> Batch:
        """Start deciding for many inputs at once.

        Args:
            size: How many inputs.

        Returns:
            A batch at the start.
        """

    @property
    @abstractmethod
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]: ...

    def if_stop(self, after: str | None = None) -> NDArray[np.bool_]:
        """Return the if-stop matrix, shaped as :meth:`choice`: true where the policy stops.

        Under precedence, true means that nothing below ``after`` is worth asking.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table.
        """
        return np.equal(self.choice(after), STOP)

    def threshold(self, after: str | None = None) -> NDArray[np.float64]:
        """Return, per state of ``after``, the largest best loss so far at which to stop.

        On the grid of losses and weighed; -inf where the policy goes on from every loss.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``,).

        Raises:
            ArgumentError: If there is no such node, or the policy has no recall.
        """
        if not self.recall:
            raise ArgumentError(
                "without recall the best loss so far does not matter: use if_stop, one column"
            )
        last = self.if_stop(after).sum(axis=1) - 1  # it stops up to a column, and not beyond
        return np.where(last >= 0, self.fallbacks[last], -np.inf)

    def equivalent_node(self, node: str, parent_state: int = 0, fallback: float = np.inf) -> Future:
        """Return a node and all below it as one node of random loss and cost.

        The node is asked, then what lies below with ``fallback`` in hand. With its own index in
        hand, the one node has the same index.

        Args:
            node: The name of the node.
            parent_state: The state of its parent.
            fallback: The loss in hand, in the problem's units.

        Returns:
            The joint law of loss and cost.

        Raises:
            ArgumentError: If the node can be entered from several places, or there is no such
                node or state.
        """
        number = self.problem.index_of(node)
        entering = self.problem.incoming[number]
        if len(entering) > 1:
            raise ArgumentError(
                f"node {node!r} can be entered from {len(entering)} places, so no single node "
                "stands for it; use policy.future after one of them"
            )
        edge = self.problem.edges[entering[0]]
        parent = self.problem.ends[entering[0]][0]
        chances = edge.probabilities[self._check_state(parent, parent_state)].tolist()
        atoms: dict[tuple[float, float], float] = {}
        for state, chance in enumerate(chances):
            if chance == 0:
                continue
            own = float(self.problem.nodes[number].losses[state])
            ahead = self.future(node, state, min(own, fallback))
            for loss, cost, p in zip(ahead.losses, ahead.costs, ahead.probabilities, strict=True):
                key = (min(own, float(loss)), edge.cost_at(parent_state, state) + float(cost))
                atoms[key] = atoms.get(key, 0.0) + chance * float(p)
        return Future.of(atoms)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the graph: its nodes, what the policy does after each state, and costs.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.

        >>> from ttamer import Problem, solve
        >>> solve(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), 0.5).plot().startswith("<svg")
        True
        """
        return draw_policy(self).written(path)

    def _place(self, after: str | None) -> int:
        return -1 if after is None else self.problem.index_of(after)

    def _states(self, place: int) -> int:
        return 1 if place < 0 else len(self.problem.nodes[place].losses)

    def _check_state(self, place: int, state: int) -> int:
        if not isinstance(state, int | np.integer) or not 0 <= state < self._states(place):
            where = "the start" if place < 0 else f"node {self.problem.names[place]!r}"
            raise ArgumentError(f"{where} has states 0 to {self._states(place) - 1}, not {state!r}")
        return state


@dataclass(frozen=True, eq=False)
class Ladder:
    """Policies in increasing order of tradeoff, so of expected cost.

    Args:
        policies: At least one, in increasing order of tradeoff.

    Raises:
        ArgumentError: If there is none, or they are in another order.

    >>> from ttamer import Problem, solve_ladder
    >>> solve_ladder(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), [0, 0.5, 1])
    Ladder(3 policies, tradeoffs 0 to 1)
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ArgumentError("a ladder needs at least one policy")
        if any(right <= left for left, right in pairwise(self.tradeoffs)):
            raise ArgumentError("a ladder needs its policies in increasing order of tradeoff")

    def __len__(self) -> int:
        return len(self.policies)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.policies)

    def __getitem__(self, rung: int) -> Policy:
        return self.policies[rung]

    def __repr__(self) -> str:
        first, last = self.tradeoffs[0], self.tradeoffs[-1]
        return f"Ladder({counted(len(self), 'policy')}, tradeoffs {first:g} to {last:g})"

    def _repr_html_(self) -> str:
        rows = [
            [f"{policy.tradeoff:.3g}", number(policy.expected_cost), number(policy.expected_loss)]
            for policy in self.policies[:: -(-len(self) // MAX_ROWS)]
        ]
        head = ["tradeoff", "expected cost", "expected loss"]
        return card(repr(self), head=head, rows=rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the loss against the cost of every policy.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.

        >>> from ttamer import Problem, solve_ladder
        >>> ladder = solve_ladder(Problem.line([0.0, 0.5], [0.1], [[0.5, 0.5]]), [0, 0.5, 1])
        >>> ladder.plot().startswith("<svg")
        True
        """
        costs = [policy.expected_cost for policy in self.policies]
        losses = [policy.expected_loss for policy in self.policies]
        curves = {"policies": (costs, losses)}
        labels = ("expected cost", "expected loss")
        return draw_curves(curves, *labels, y_percent=False).written(path)

    @property
    def problem(self) -> Problem:
        """The problem all policies solve."""
        return self.policies[0].problem

    @property
    def tradeoffs(self) -> tuple[float, ...]:
        """The tradeoff of each policy."""
        return tuple(policy.tradeoff for policy in self.policies)

    def at(self, tradeoff: float) -> Policy:
        """Return the policy solved for the nearest tradeoff; the lower one if two are as near.

        Args:
            tradeoff: From 0 (only cost counts) to 1 (only loss counts).

        Returns:
            The policy.

        Raises:
            ArgumentError: If the tradeoff is out of range.
        """
        return self.policies[self.rung_at(tradeoff)]

    def rung_at(self, tradeoff: float) -> int:
        """Return the place in the ladder of the policy that :meth:`at` returns.

        Args:
            tradeoff: From 0 (only cost counts) to 1 (only loss counts).

        Returns:
            The place, counted from 0.

        Raises:
            ArgumentError: If the tradeoff is out of range.
        """
        wanted = check_tradeoff(tradeoff)
        tradeoffs = self.tradeoffs
        right = min(bisect_left(tradeoffs, wanted), len(self) - 1)
        left = max(right - 1, 0)
        nearer_left = wanted - tradeoffs[left] <= tradeoffs[right] - wanted
        return left if nearer_left else right
