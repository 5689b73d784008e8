"""A fitted policy: tables of what going on gains, and prices.

After the nodes of a set A were asked, with x the log-odds of the best answer in hand, p its chance
and q the chance that a node m errs that was not asked::

    gain[A, m] = base_i + slope_i x + u q + v p q        i: the piece of x, between the knots of A
    gain[(), m] = base + u q + v bar                     before any answer
    ask m = argmax of gain[A, m] - price cost[m]         while that is above 0; ties stop

``price`` is in losses per unit of cost, ``cost[m]`` what the input predicts, or the mean. While
there is no answer some node is asked: the one of the largest difference. A node that failed counts
as asked, and x is that of the answers there are. Under a cap on the cost each way that would
exceed it is left out.

Without inputs the gain of each way rises with x. Then it is worth asking m exactly where x is above
one number, the paper's dynamic index: :attr:`StepPolicy.indices`.

Every sum is taken in one order, element by element, from numbers on a grid: a session and a batch
decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ttamer.fitting.belief import (
    GRID,
    NOTHING,
    Belief,
    Floats,
    Ints,
    Seen,
    Step,
    View,
    bar_of,
    by_pattern,
    chance,
)
from ttamer.fitting.inputs import Prior
from ttamer.fitting.replay import SLACK, Played
from ttamer.fitting.session import SingleNodeSession, StepSession
from ttamer.trace.schema import class_text

Ways = Sequence[tuple[int, Step, int, ArrayLike, ArrayLike, ArrayLike]]
"""Of each the number of its price, set, node, base, slope, and columns."""


class Way(NamedTuple):
    """Asking one node after a set, in plain numbers: what it gains, in losses."""

    node: int
    base: list[float]  # by piece of x
    slope: list[float]
    u: float  # the weights of what the input says
    v: float
    wait: float  # what the node's latency counts as, in the unit of cost

    def gain(self, piece: Ints, x: Floats, first: Floats, second: Floats) -> Floats:
        """Return the gains of rows, all arguments of shape (T,)."""
        gain = np.take(self.base, piece) + np.take(self.slope, piece) * x
        return np.asarray(gain + self.u * first + self.v * second)


@dataclass(frozen=True, eq=False)
class StepTables:
    """The policies of one fit, for every price: named arrays, as a policy file keeps them.

    Ways are listed one by one: way e belongs to the policy of price number ``point[e]``, leads from
    the set ``steps[source[e]]`` to ``node[e]``. Within a policy ways of a set are in the order in
    which ties are broken.
    """

    names: tuple[str, ...]
    belief: Belief
    costs: Floats  # (n,): the mean cost of each node, in the cascade's unit
    prices: Floats  # (P,): rising, losses per unit of cost; the first is 0
    steps: tuple[Step, ...]  # the sets that some policy decides after; () is the first
    knots: Floats  # (steps, K): the inner knots of x after each set, rising; inf after the last
    point: Ints
    source: Ints
    node: Ints
    base: Floats  # (ways, K + 1): losses
    slope: Floats  # (ways, K + 1): losses per unit of log-odds
    columns: Floats  # (ways, 2): the weights u and v of what the input says; 0 without inputs
    wait: Floats  # (n,): what the mean latency of each node counts as, in the unit of cost
    prior: Prior | None = None  # what the input says; None where inputs are not used
    kind: str = "models"  # "models" or "exits": exits are each passed on the way to the next
    # By node, one that must have answered before it, -1 for none; empty where none has one
    parents: tuple[int, ...] = ()

    @classmethod
    def of(cls, ways: Ways, knots: Mapping[Step, Floats], **fields: Any) -> StepTables:
        """Lay ways out as arrays, with the knots of sets that have any, and all other fields."""
        point, source, node, base, slope, columns = zip(*ways, strict=True)
        steps = tuple(sorted({*source}, key=lambda step: (len(step), step)))
        rows = np.full((len(steps), np.size(base[0]) - 1), np.inf)
        for row, step in zip(rows, steps, strict=True):
            row[: len(knots.get(step, ()))] = knots.get(step, ())
        return cls(
            steps=steps,
            knots=rows,
            point=np.array(point, np.intp),
            source=np.array([steps.index(step) for step in source], np.intp),
            node=np.array(node, np.intp),
            base=np.array(base, float),
            slope=np.array(slope, float),
            columns=np.array(columns, float),
            **fields,
        )

    def __len__(self) -> int:
        return len(self.prices)

    @property
    def are_thresholds(self) -> bool:
        """Whether log-odds only count the thresholds that an answer reaches (``stop_tables``)."""
        return not self.prices.any()

    def policy(self, number: int) -> StepPolicy:
        """Return the policy of one price."""
        return StepPolicy(self, number)


@dataclass(frozen=True, eq=False)
class StepPolicy:
    """The policy of one price."""

    tables: StepTables
    number: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return self.tables.names

    @cached_property
    def price(self) -> float:
        """What a unit of cost counts as, in losses."""
        return float(self.tables.prices[self.number])

    @cached_property
    def ways(self) -> Mapping[Step, tuple[Way, ...]]:
        """The ways after each set asked, in the order in which ties are broken."""
        t, ways = self.tables, dict[Step, tuple[Way, ...]]()
        for e in np.flatnonzero(t.point == self.number):
            step, node = t.steps[t.source[e]], int(t.node[e])
            u, v = t.columns[e].tolist()
            way = Way(node, t.base[e].tolist(), t.slope[e].tolist(), u, v, float(t.wait[node]))
            ways[step] = (*ways.get(step, ()), way)
        return ways

    def after(self, asked: Step, answered: Step) -> tuple[Way, ...]:
        """Return the ways after the nodes asked, of which some answered."""
        ways = self.ways.get(asked, ())
        # An input is never left without an answer while some node could give one.
        if not ways and not answered:  # all failed where the policy would have stopped
            ways = tuple(way for way in self.ways[()] if way.node not in asked)
        if not ways and not answered:  # so did every start: any other node may have an answer
            flat, wait = [0.0] * self.tables.base.shape[1], self.tables.wait.tolist()
            ways = tuple(Way(v, flat, flat, 0.0, 0.0, wait[v]) for v in self.remaining(asked))
        return ways

    def remaining(self, asked: Step) -> list[int]:
        """Return the nodes that may be asked where none of those asked has answered."""
        tables, nodes = self.tables, range(len(self.names))
        if tables.kind == "exits":
            return [v for v in nodes if v > max(asked, default=-1)]
        parents = tables.parents or (-1,) * len(nodes)
        return [v for v in nodes if v not in asked and parents[v] < 0]

    def knots(self, asked: Step) -> list[float]:
        """Return the inner knots of x after a set; none where the policy does not foresee it."""
        return self._knots.get(asked, [])

    @cached_property
    def _knots(self) -> Mapping[Step, list[float]]:
        return dict(zip(self.tables.steps, self.tables.knots.tolist(), strict=True))

    @cached_property
    def indices(self) -> Mapping[Step, Mapping[int, float]]:
        """The dynamic index of each way, by set and node: asking pays exactly where x is above it.

        x is in log-odds, on the grid; ``-inf`` where it always pays, ``inf`` where it never does.
        Where inputs are used it is that of an input of which nothing is known.
        """
        x = np.arange(-NOTHING * GRID, NOTHING * GRID + 1) / GRID
        p, q = chance(x), np.zeros(len(x))
        table: dict[Step, dict[int, float]] = {}
        for step, ways in self.ways.items():
            piece = np.searchsorted(self.knots(step), x, side="right")
            for way in ways if step else ():
                if (prior := self.tables.prior) is not None:
                    z, bar = prior.base[way.node], bar_of(prior.base)
                    q = self.tables.belief.not_asked(len(step), way.node, z, bar, x)
                price = self.price * (self.tables.costs[way.node] + way.wait)
                stops = np.flatnonzero(way.gain(piece, x, q, p * q) <= price)
                index = np.inf if len(stops) == len(x) else x[stops[-1]] if len(stops) else -np.inf
                table.setdefault(step, {})[way.node] = float(index)
        return table

    def session(
        self,
        prior: Floats | None = None,
        costs: Floats | None = None,
        max_cost: float | None = None,
    ) -> StepSession:
        """Start deciding for one input.

        Args:
            prior: Shape (n,): the log-odds of errors that the input says. Where the policy uses
                inputs and there is none, those of an input of which nothing is known.
            costs: Shape (n,): the cost that the input predicts; the means if ``None``.
            max_cost: A cap on the cost.

        Raises:
            ArgumentError: No node can be asked within the cap.
        """
        return StepSession(self, prior, costs, max_cost)

    def play(self, answers: Seen, costs: Floats | None = None) -> Played:
        """Decide for rows: what sessions would do, one for each.

        Args:
            answers: T rows. A node without an answer fails where it is asked.
            costs: Shape (T, n): the cost that the input predicts; the means if ``None``.
        """
        return play(self, self.tables.belief.view(answers), costs)

    def choose(
        self,
        step: Step,
        answered: Step,
        x: Floats,
        inputs: Callable[[int], tuple[Floats, Floats]] | None = None,
        costs: Floats | None = None,
    ) -> Ints:
        """Return the node that rows ask after a set of which some answered, -1 where they stop.

        ``x`` is that of rows, ``NOTHING`` where there is no answer; ``inputs`` gives the columns of
        u and v of a node, 0 if ``None``; ``costs`` (T, n) are the means if ``None``.
        """
        piece = np.searchsorted(self.knots(step), x, side="right")
        best = np.full(len(x), 0.0 if answered else -np.inf)
        choice, first = np.full(len(x), -1, np.intp), np.zeros(len(x))
        second = first
        for way in self.after(step, answered):
            if inputs is not None:
                first, second = inputs(way.node)
            cost = self.tables.costs[way.node] if costs is None else costs[:, way.node]
            net = way.gain(piece, x, first, second) - self.price * (cost + way.wait)
            better = net > best
            best, choice = np.where(better, net, best), np.where(better, way.node, choice)
        return choice

    def ahead(self, asked: Step) -> tuple[int, ...]:
        """Return the nodes that may be asked right after a set, where some of it answered."""
        return tuple(way.node for way in self.ways.get(asked, ()))


def play(policy: StepPolicy, view: View, costs: Floats | None = None) -> Played:
    """Decide for the rows of a view; several policies of a fit may share it."""
    shape = view.answers.confidence.shape
    asked, answer = np.zeros(shape, bool), np.full(shape[0], -1, np.intp)
    last = answer.copy()
    waiting: dict[Step, list[Ints]] = {(): [np.arange(shape[0])]}
    for size in range(shape[1] + 1):
        for step in sorted(step for step in waiting if len(step) == size):
            arrived = np.concatenate(waiting.pop(step))
            for pattern, group in by_pattern(view.answers.answered[arrived][:, list(step)]):
                rows, answered = arrived[group], tuple(step[k] for k in pattern)
                choice, answer[rows] = decide(policy, view, step, answered, rows, costs)
                for node in np.unique(choice[choice >= 0]).tolist():
                    going = rows[choice == node]
                    waiting.setdefault(tuple(sorted((*step, node))), []).append(going)
                    asked[going, node], last[going] = True, node
    return Played(answer, asked, last)


def decide(
    policy: StepPolicy, view: View, step: Step, answered: Step, rows: Ints, costs: Floats | None
) -> tuple[Ints, Ints]:
    """Return the node that is asked next, -1 for none, and the node of the best answer so far."""
    x, owner = view.best(answered)
    x, owner = x[rows], owner[rows]
    p = chance(x)

    def inputs(node: int) -> tuple[Floats, Floats]:
        q = view.q(answered, node)[rows]
        return q, p * q if step else view.typical[rows]

    reads = None if view.bar is None else inputs
    return policy.choose(step, answered, x, reads, None if costs is None else costs[rows]), owner


class StepBatch:
    """Sessions of many inputs in step, over arrays, without caps on their cost.

    ::

        batch = policy.batch(len(inputs))
        while (rows := np.flatnonzero(batch.next >= 0)).size:
            batch.observe(rows, confidences, predictions)   # the answers of batch.next on these
        batch.answer                                        # the node whose answer to return

    Args:
        policies: Policies of one fit.
        drawn: Shape (T,): which of them decides each input.
        prior: Shape (T, n): what the inputs say; ``None`` where policies read none.
        costs: Shape (T, n): the costs that the inputs predict; the means if ``None``.
    """

    def __init__(
        self,
        policies: Sequence[StepPolicy],
        drawn: Ints,
        prior: Floats | None = None,
        costs: Floats | None = None,
    ) -> None:
        self._policies, self._drawn, self._prior = policies, drawn, prior
        self._tables = policies[0].tables
        shape = len(drawn), len(self._tables.names)
        # (T, n): what asking each node costs
        self.costs = np.broadcast_to(self._tables.costs if costs is None else costs, shape)
        self.asked = np.zeros(shape, bool)
        self.next = np.full(len(drawn), -1, np.intp)  # (T,): the node to ask; -1 once stopped
        # (T,): the node whose answer is the best so far; -1 for none
        self.answer = np.full(len(drawn), -1, np.intp)
        self._confidence = np.full(shape, np.nan)
        self._codes = np.full(shape, -1, np.intp)
        self._code = dict(
            self._tables.belief.code_of
        )  # classes that the fit never saw get new numbers
        self._choose(np.arange(len(drawn)))

    def observe(
        self, rows: Ints, confidence: Sequence[float | None], prediction: Sequence[object]
    ) -> None:
        """Give the answers of ``next`` on some rows; a confidence of ``None`` is a failure."""
        values = np.array([np.nan if c is None else -np.inf if c != c else c for c in confidence])
        texts = [
            None if c is None else class_text(p)
            for c, p in zip(confidence, prediction, strict=True)
        ]
        number = self._code.setdefault
        codes = [-1 if text is None else number(text, len(self._code)) for text in texts]
        self.observe_codes(rows, values, np.array(codes, np.intp))

    def observe_codes(self, rows: Ints, confidence: Floats, codes: Ints) -> None:
        """Give answers whose classes are numbers of the policy, -1 for none; NaN: a failure."""
        at = rows, self.next[rows]
        self._confidence[at], self._codes[at] = confidence, codes
        self.asked[at] = True
        self._choose(rows)

    def _choose(self, rows: Ints) -> None:
        """Choose the next node for rows: those that asked alike, and had answers alike, at once."""
        for number, policy in enumerate(self._policies):
            drawn = rows[self._drawn[rows] == number]
            for step, of_step in by_pattern(self.asked[drawn]):
                asked = drawn[of_step]
                for answered, group in by_pattern(~np.isnan(self._confidence[asked])):
                    self._decide(policy, step, answered, asked[group])

    def _decide(self, policy: StepPolicy, step: Step, answered: Step, rows: Ints) -> None:
        prior = None if self._prior is None else self._prior[rows]
        view = self._tables.belief.view(Seen(self._confidence[rows], self._codes[rows], prior))
        inputs, costs = np.arange(len(rows)), self.costs[rows]
        self.next[rows], self.answer[rows] = decide(policy, view, step, answered, inputs, costs)


@dataclass(frozen=True, eq=False)
class SingleNode:
    """One node by itself: what every cascade has to be better than.

    Where it fails, the others are asked in the order of ``backups`` until one answers. Where it
    costs more than a cap, the first that fits is asked.
    """

    names: tuple[str, ...]
    costs: Floats  # (n,)
    node: int
    before: Step = ()  # the nodes that must be asked before it
    backups: tuple[int, ...] = ()

    def session(self, max_cost: float | None = None) -> SingleNodeSession:
        """Start deciding for one input."""
        return SingleNodeSession(self, max_cost)

    def order(self, max_cost: float | None = None) -> Iterator[int]:
        """Yield the nodes to ask until one at or after ``node`` has answered."""
        spent = 0.0
        for node in (*self.before, self.node, *self.backups):
            if max_cost is None or spent + self.costs[node] <= max_cost * (1 + SLACK):
                spent += float(self.costs[node])
                yield node

    def play(self, answers: Seen) -> Played:
        """Decide for rows: what sessions would do, one for each."""
        asked, answer = np.zeros(answers.answered.shape, bool), np.full(len(answers), -1, np.intp)
        last, going = answer.copy(), np.ones(len(answers), bool)
        for node in self.order():
            asked[going, node], last[going] = True, node
            answer[going & answers.answered[:, node]] = node
            if node not in self.before:
                going &= ~answers.answered[:, node]
        return Played(answer, asked, last)
