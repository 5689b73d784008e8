"""What a policy is: solved tables, which sessions and batches look decisions up in.

A policy answers three questions: stop or go on, which node to ask next, and which answer to return.
There is one kind per module: :class:`~ttamer.policy.WalkPolicy`,
:class:`~ttamer.policy.IndexPolicy` under precedence, :class:`~ttamer.policy.JointPolicy` where all
that was asked matters.

Units: ``value``, indices, thresholds and equivalent losses are weighed (tradeoff * loss +
(1 - tradeoff) * cost); ``expected_loss``, ``expected_cost`` and futures are in the problem's own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, number, percent
from ttamer.errors import ArgumentError
from ttamer.policy.session import INFINITY, Batch, StateSession
from ttamer.problem.checks import check_tradeoff, weigh_losses
from ttamer.problem.problem import START, STOP, Edge, Problem
from ttamer.show import card
from ttamer.show.graph import Arrow, Box, Drawing, draw_graph

# The most distinct sums of costs that an exact law of the future may have.
MAX_COSTS = 50_000


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # deciding needs no BLAS

    return ThreadpoolController()  # finding the libraries takes longer than a solve


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread, in a block or a decorated function.

    On matrices as small as a node's, two threads wait for each other: ten times as long.

    >>> with one_thread():
    ...     products = np.eye(2) @ np.eye(2)
    """
    with _blas().limit(limits=1, user_api="blas"):
        yield


# Losses returned, what was paid until then, and the chances: arrays that broadcast.
Answer = tuple[float | NDArray[np.float64], float | NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Means:
    """What a policy loses, pays and asks on average, in the problem's own units."""

    loss: float
    cost: float
    # Shape (nodes,): the chance that each node is asked.
    asked: NDArray[np.float64]

    @classmethod
    def of(cls, answers: list[Answer], cost: float, asked: NDArray[np.float64]) -> Means:
        """Add up the losses of the answers."""
        with np.errstate(invalid="ignore"):  # an infinite loss of chance 0
            parts = [np.where(chance > 0, loss * chance, 0.0).sum() for loss, _, chance in answers]
        return cls(float(sum(parts)), cost, asked)


@dataclass(frozen=True, eq=False)
class Future:
    """The paper's (R_FRM, c_FR): atoms of (best future loss, future cost).

    The loss is ``inf`` where nothing (or nothing that answers) is asked any more. Both are in the
    problem's own units, not weighed.

    >>> from ttamer import Problem, solve
    >>> future = solve(Problem.line([0.0, 0.5], [0.1], [[0.75, 0.25]]), tradeoff=0.5).future()
    >>> future.losses.tolist(), future.costs.tolist(), future.probabilities.tolist()
    ([0.0, 0.5], [0.1, 0.1], [0.75, 0.25])
    >>> future.mean_cost, future.mean_loss(fallback=0.4)
    (0.1, 0.1)
    """

    losses: NDArray[np.float64]
    costs: NDArray[np.float64]
    probabilities: NDArray[np.float64]

    @property
    def mean_cost(self) -> float:
        """The expected future cost."""
        return float(self.probabilities @ self.costs)

    def mean_loss(self, fallback: float) -> float:
        """Return the expected least of the future loss and a fallback in hand.

        Args:
            fallback: The loss in hand, in the problem's units.

        Returns:
            The mean, in the problem's units.
        """
        return float(self.probabilities @ np.minimum(self.losses, fallback))


def joint_law(answers: list[Answer]) -> Future:
    """Add up the chances of equal atoms, and sort them by loss, then cost."""
    parts = [[np.ravel(part) for part in np.broadcast_arrays(*answer)] for answer in answers]
    losses, costs, chances = (np.concatenate(column) for column in zip(*parts, strict=True))
    losses, costs, chances = (column[chances > 0] for column in (losses, costs, chances))
    atoms = np.stack([losses, cost_keys(costs)])
    atoms, first, groups = np.unique(atoms, axis=1, return_index=True, return_inverse=True)
    sums = np.zeros(len(first))
    np.add.at(sums, groups.ravel(), chances)
    return Future(atoms[0], costs[first], sums)


def cost_keys(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of costs rounded to 40 bits: those that differ by rounding alone get one key.

    >>> a, b, c, d = cost_keys(np.array([0.1 + 0.2, 0.3, 3e-15, 4e-15]))
    >>> bool(a == b), bool(c == d)
    (True, False)
    """
    mantissa, exponent = np.frexp(costs)
    return np.asarray(np.ldexp(np.rint(mantissa * 2**40), exponent - 40))


def rows_by_cost(edge: Edge) -> list[tuple[float, NDArray[np.float64]]]:
    """Return each cost of an edge, with the probabilities of the transitions that cost it."""
    table = edge.cost_table
    costs = np.unique(table[edge.probabilities > 0]).tolist()
    return [(cost, np.where(table == cost, edge.probabilities, 0.0)) for cost in costs]


def check_costs(costs: Sized) -> None:
    """Refuse laws with more distinct costs than can be tabulated."""
    if len(costs) > MAX_COSTS:
        raise ArgumentError(
            f"the future cost takes more than {MAX_COSTS} distinct values; round the costs "
            "of the problem to a common unit, or sample with ttamer.simulate(policy, inputs)"
        )


@dataclass(frozen=True)
class StateRule:
    """What a policy does after a node was seen in a state, as it is played; losses in their unit.

    >>> from ttamer import Problem, solve
    >>> print(*solve(Problem.line([0.0, 0.5], [0.1] * 2, [[0.5, 0.5]] + [[[0.5, 0.5]] * 2]), 0.9)
    ...     .rules("m1"), sep="; ")
    stop; stop at 0, else ask m2
    """

    state: int
    loss: float
    """What the node's own answer loses there."""
    stop: tuple[float, float] | None
    """The best loss up to which it stops, least and most (where more than this state matters);
    ``None`` where the state is never reached, or there are too many courses of events to tell."""
    ask: tuple[str, ...]
    """The nodes that it may ask otherwise."""

    @property
    def stop_text(self) -> str:
        """The best loss up to which it stops, or always, or never; - where it is not known."""
        if self.stop is None:
            return "-"
        if not self.ask:
            return "always"
        low, high = (number(end) for end in self.stop)
        return "never" if self.stop[1] == -INFINITY else low if low == high else f"{low} to {high}"

    def __str__(self) -> str:
        onward = "ask " + " or ".join(self.ask)
        texts = {"-": "-", "always": "stop", "never": onward}
        return texts.get(self.stop_text, f"stop at {self.stop_text}, else {onward}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Policy(ABC):
    """The interface of every policy, as returned by :func:`ttamer.solve`.

    What takes the name of a node raises ArgumentError where there is none of that name.

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
    bound: float | None = None
    """No policy is below this; ``None`` where this one is the best."""

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
        return card(repr(self), notes=notes, head=["node", "asked"], rows=rows[:12])

    @property
    def ratio(self) -> float:
        """How many times the least possible value this policy's is, at most; 1 for the best."""
        if self.bound is None or self.value <= self.bound:
            return 1.0
        return self.value / self.bound if self.bound > 0 else INFINITY

    @cached_property
    def fallbacks(self) -> NDArray[np.float64]:
        """Shape (columns,): the weighed losses that head the columns of the tables."""
        return weigh_losses(self.problem.grid.values, self.tradeoff)

    @property
    def expected_loss(self) -> float:
        """The expected loss of the answer returned."""
        return self._means.loss

    @property
    def expected_cost(self) -> float:
        """The expected cost of all that is asked."""
        return self._means.cost

    @property
    def asked(self) -> dict[str, float]:
        """The chance that each node is asked."""
        return dict(zip(self.problem.names, self._means.asked.tolist(), strict=True))

    @abstractmethod
    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node for each state of its parent, weighed.

        The node is worth asking while the best loss so far is above its index.

        Args:
            node: Its name.

        Returns:
            Shape (states of the parent,); one entry for a root.

        Raises:
            ArgumentError: If it has no index of its own.
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
        """

    @abstractmethod
    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return Phi, shaped as :meth:`choice`: the expected loss and further cost from there.

        Under precedence, for what lies below ``after``.

        Args:
            after: The name of the node asked last; ``None`` for the start.

        Returns:
            The table, weighed.
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
            ArgumentError: If there is no such state or loss, or the cost takes too many values.
        """

    @abstractmethod
    def session(self) -> StateSession:
        """Start deciding for one input.

        Returns:
            A session.
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
    def _means(self) -> Means: ...

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
            ArgumentError: If the policy has no recall.
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
            ArgumentError: If the node can be entered from several places, or has no such state.
        """
        number = self.problem.index_of(node)
        entering = self.problem.incoming[number]
        if len(entering) > 1:
            raise ArgumentError(
                f"node {node!r} can be entered from {len(entering)} places, so no single node "
                "stands for it; use policy.future after one of them"
            )
        edge, parent = self.problem.edges[entering[0]], self.problem.ends[entering[0]][0]
        row = check_state(self.problem, parent, parent_state)
        answers: list[Answer] = []
        for state, loss in enumerate(self.problem.nodes[number].losses.tolist()):
            ahead = self.future(node, state, min(loss, fallback))
            costs = float(edge.cost_table[row, state]) + ahead.costs
            chances = float(edge.probabilities[row, state]) * ahead.probabilities
            answers.append((np.minimum(loss, ahead.losses), costs, chances))
        return joint_law(answers)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the graph: its nodes, what the policy does after each state, and costs.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        return draw_policy(self).written(path)

    def rules(self, node: str) -> list[StateRule]:
        """Return what the policy does after a node was seen in each of its states.

        Args:
            node: Its name.

        Returns:
            One rule per state.
        """
        position = self.problem.index_of(node)
        rules = []
        for state, loss in enumerate(self.problem.nodes[position].losses.tolist()):
            stops, following = self._played.get((position, state), ((), ()))
            # At tradeoff 0 no loss counts: the first answer is as good as any.
            limits = [stop / self.tradeoff if self.tradeoff else INFINITY for stop in stops]
            ends = (min(limits), max(limits)) if limits else None
            ask = tuple(sorted(following, key=self.problem.index_of))
            rules.append(StateRule(state, loss, ends, ask))
        return rules

    @cached_property
    def _played(self) -> dict[tuple[int, int], tuple[list[float], set[str]]]:
        """By node and state: what the loss in hand was compared with, and the nodes asked next.

        Over all courses of events; empty where there are more than 2,000, a second's work.
        """
        played: dict[tuple[int, int], tuple[list[float], set[str]]] = {}
        histories: list[tuple[int, ...]] = [()]
        for states in histories:  # grows as it goes
            if len(histories) > 2000:
                return {}
            turn = self.session()
            for state in states:
                turn.observe(state)
            if states:
                stops, following = played.setdefault(turn._path[-1], ([], set()))
                stops.append(turn.explain().index)
                following |= set() if turn.next is None else {turn.next}
            if turn.next is not None:
                histories += [(*states, int(y)) for y in np.flatnonzero(turn._chances())]
        return played


def number_of(problem: Problem, name: str | None) -> int:
    """Return the number of a node; -1 for the start."""
    return START if name is None else problem.index_of(name)


def check_state(problem: Problem, node: int, state: int) -> int:
    """Refuse a state that a node (-1: the start) does not have."""
    states = problem.count_states(node)
    if not isinstance(state, int | np.integer) or not 0 <= state < states:
        where = "the start" if node == START else f"node {problem.names[node]!r}"
        raise ArgumentError(f"{where} has states 0 to {states - 1}, not {state!r}")
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
        if any(higher <= lower for lower, higher in pairwise(self.tradeoffs)):
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
            for policy in self.policies[:: -(-len(self) // 12)]  # at most 12 rows
        ]
        head = ["tradeoff", "expected cost", "expected loss"]
        return card(repr(self), head=head, rows=rows)

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
        wanted = check_tradeoff(tradeoff)
        return min(self.policies, key=lambda policy: abs(policy.tradeoff - wanted))


def draw_policy(policy: Policy) -> Drawing:
    """Return the graph of a solved policy, and what it does after each state, in units of loss."""
    problem, asked = policy.problem, policy.asked
    columns = {START: 0}
    for node in problem.order:
        sources = [source for edge in problem.incoming[node] for source in problem.sources[edge]]
        columns[node] = 1 + max(columns[source] for source in sources)
    first, value = policy.session().next, f"start: value {policy.value:.4g}"
    following: dict[int, set[str | None]] = {START: {first}}
    boxes = [Box((value, f"tradeoff {policy.tradeoff:g}", f"first ask {first}"), 0)]
    for node, name in enumerate(problem.names):
        rules = policy.rules(name)
        following[node] = {target for rule in rules for target in rule.ask if asked[name] > 0}
        lines = [name, f"asked {asked[name]:.1%}"]
        lines += [f"{rule.state}: loss {rule.loss:.4g}, {rule}" for rule in rules[:8]]
        lines += [f"... {len(rules)} states"] * (len(rules) > 8)
        boxes.append(Box(tuple(lines), columns[node], "used" if asked[name] > 0 else "unused"))
    arrows = []
    for position, edge in enumerate(problem.edges):
        target, costs = problem.ends[position][1], np.unique(edge.cost).tolist()
        label = " to ".join(f"{cost:.4g}" for cost in dict.fromkeys((costs[0], costs[-1])))
        for source in problem.sources[position]:
            is_taken = asked[problem.names[target]] > 0
            if problem.moves == "walk":  # under precedence an edge opens its target
                is_taken = problem.names[target] in following[source]
            colour = "used" if is_taken else "unused"
            arrows.append(Arrow(source + 1, target + 1, label, colour))
    return draw_graph(boxes, arrows)
