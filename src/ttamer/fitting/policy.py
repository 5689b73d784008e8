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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ttamer.fitting.belief import (
    GRID,
    MAX_ODDS,
    Belief,
    Floats,
    Ints,
    Seen,
    Step,
    View,
    bar_of,
    by_pattern,
    chance,
    on_grid,
    q_odds,
)
from ttamer.fitting.inputs import Prior
from ttamer.fitting.replay import SLACK, Played
from ttamer.trace.schema import class_text

if TYPE_CHECKING:  # sessions decide as this module says, and import it
    from ttamer.fitting.session import SingleNodeSession, StepSession

NOTHING = 8.0  # x where there is no answer: the least certain one


@dataclass(frozen=True, eq=False)
class Way:
    """Asking one node after a set: what it gains, in losses."""

    node: int
    base: Floats
    """Shape (pieces,)."""
    slope: Floats
    u: float
    v: float

    def gain(self, piece: Ints, x: Floats, first: Floats, second: Floats) -> Floats:
        """Return the gains of rows, all arguments of shape (T,)."""
        return self.base[piece] + self.slope[piece] * x + self.u * first + self.v * second


PlainWay = tuple[int, list[float], list[float], float, float, float]
"""Of a way as plain numbers: node, base, slope, u, v, and what its latency counts as."""
Ways = Sequence[tuple[int, Step, int, ArrayLike, ArrayLike, ArrayLike]]
"""Of each the number of its price, set, node, base, slope, and columns."""


@dataclass(frozen=True, eq=False)
class StepTables:
    """The policies of one fit, for every price: named arrays, as a policy file keeps them.

    Ways are listed one by one: way e belongs to the policy of price number ``point[e]``, leads from
    the set ``steps[source[e]]`` to ``node[e]``. Within a policy ways of a set are in the order in
    which ties are broken.
    """

    names: tuple[str, ...]
    belief: Belief
    costs: Floats
    """Shape (n,): the mean cost of each node, in the cascade's unit."""
    prices: Floats
    """Shape (P,): rising, losses per unit of cost; the first is 0."""
    steps: tuple[Step, ...]
    """The sets that some policy decides after; ``()`` is the first."""
    knots: Floats
    """Shape (steps, K): the inner knots of x after each set, rising; ``inf`` after the last."""
    point: Ints
    source: Ints
    node: Ints
    base: Floats
    """Shape (ways, K + 1): losses."""
    slope: Floats
    """Shape (ways, K + 1): losses per unit of log-odds."""
    columns: Floats
    """Shape (ways, 2): the weights u and v of what the input says; 0 without inputs."""
    wait: Floats
    """Shape (n,): what the mean latency of each node counts as, in the unit of cost."""
    prior: Prior | None = None
    """What the input says; ``None`` where inputs are not used."""
    kind: str = "models"
    """``"models"`` or ``"exits"``: exits are each passed on the way to the next."""
    parents: tuple[int, ...] = ()
    """By node, one that must have answered before it, -1 for none; empty where none has one."""

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

    @property
    def price(self) -> float:
        """What a unit of cost counts as, in losses."""
        return float(self.tables.prices[self.number])

    @cached_property
    def ways(self) -> Mapping[Step, tuple[Way, ...]]:
        """The ways after each set asked, in the order in which ties are broken."""
        t, ways = self.tables, dict[Step, list[Way]]()
        for e in np.flatnonzero(t.point == self.number):
            u, v = t.columns[e].tolist()
            step = t.steps[t.source[e]]
            ways.setdefault(step, []).append(Way(int(t.node[e]), t.base[e], t.slope[e], u, v))
        return {step: tuple(listed) for step, listed in ways.items()}

    def after(self, asked: Step, answered: Step) -> tuple[Way, ...]:
        """Return the ways after the nodes asked, of which some answered."""
        ways = self.ways.get(asked, ())
        # An input is never left without an answer while some node could give one.
        if not ways and not answered:  # all failed where the policy would have stopped
            ways = tuple(way for way in self.ways[()] if way.node not in asked)
        if not ways and not answered:  # so did every start: any other node may have an answer
            flat = np.zeros(self.tables.base.shape[1])
            ways = tuple(Way(v, flat, flat, 0.0, 0.0) for v in self.remaining(asked))
        return ways

    def remaining(self, asked: Step) -> list[int]:
        """Return the nodes that may be asked where none of those asked has answered."""
        tables, nodes = self.tables, range(len(self.names))
        if tables.kind == "exits":
            return [v for v in nodes if v > max(asked, default=-1)]
        parents = tables.parents or (-1,) * len(nodes)
        return [v for v in nodes if v not in asked and parents[v] < 0]

    @cached_property
    def knots(self) -> Mapping[Step, Floats]:
        """The inner knots of x after each set."""
        return dict(zip(self.tables.steps, self.tables.knots, strict=True))

    @cached_property
    def indices(self) -> Mapping[Step, Mapping[int, float]]:
        """The dynamic index of each way, by set and node: asking pays exactly where x is above it.

        x is in log-odds, on the grid; ``-inf`` where it always pays, ``inf`` where it never does.
        Where inputs are used it is that of an input of which nothing is known.
        """
        x = np.arange(-NOTHING * GRID, NOTHING * GRID + 1) / GRID
        table: dict[Step, dict[int, float]] = {}
        for step, ways in self.ways.items():
            piece, p = np.searchsorted(self.knots[step], x, side="right"), chance(x)
            for way in ways if step else ():
                q = self._chance_of_unknown(len(step), way.node, x)
                price = self.price * (self.tables.costs[way.node] + self.tables.wait[way.node])
                stops = np.flatnonzero(way.gain(piece, x, q, p * q) <= price)
                index = np.inf if len(stops) == len(x) else x[stops[-1]] if len(stops) else -np.inf
                table.setdefault(step, {})[way.node] = float(index)
        return table

    def _chance_of_unknown(self, size: int, node: int, x: Floats) -> Floats:
        """Return q of an input of which nothing is known, after so many answers."""
        belief, prior = self.tables.belief, self.tables.prior
        if prior is None or belief.first is None or belief.later is None:
            return np.zeros(len(x))
        z, bar = map(np.asarray, prior.unknown)
        odds = q_odds(belief.first[node], belief.later[node], size, z[node], bar, x)
        return chance(on_grid(odds, MAX_ODDS))

    @cached_property
    def costs(self) -> list[float]:
        """The mean cost of each node, as plain numbers."""
        return list(map(float, self.tables.costs))

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """The number of each class that the fit saw."""
        return {text: code for code, text in enumerate(self.tables.belief.classes)}

    def listed(self, asked: Step, answered: Step) -> tuple[list[float], list[PlainWay]]:
        """Return the knots and the ways after a set, as plain numbers."""
        key = asked, bool(answered)
        if key not in self._listed:
            knots = self.knots[asked].tolist() if asked in self.knots else []
            waits = self.tables.wait.tolist()
            ways = [
                (way.node, way.base.tolist(), way.slope.tolist(), way.u, way.v, waits[way.node])
                for way in self.after(asked, answered)
            ]
            self._listed[key] = knots, ways
        return self._listed[key]

    @cached_property
    def _listed(self) -> dict[tuple[Step, bool], tuple[list[float], list[PlainWay]]]:
        return {}

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
        from ttamer.fitting.session import StepSession  # it decides as this module says

        if prior is None and self.tables.prior is not None:
            return StepSession(self, *self.tables.prior.unknown, max_cost=max_cost)
        listed = None if costs is None else costs.tolist()
        if prior is None:
            return StepSession(self, costs=listed, max_cost=max_cost)
        return StepSession(self, prior.tolist(), float(bar_of(prior)), listed, max_cost)

    def play(self, answers: Seen, costs: Floats | None = None) -> Played:
        """Decide for rows: what sessions would do, one for each.

        Args:
            answers: T rows. A node without an answer fails where it is asked.
            costs: Shape (T, n): the cost that the input predicts; the means if ``None``.
        """
        return play(self, self.tables.belief.view(answers), costs)

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
                answered = tuple(step[k] for k in pattern)
                rows = arrived[group]
                choice = choose(policy, view, step, answered, rows, costs)
                if answered:
                    answer[rows] = view.best(answered)[1][rows]
                for node in np.unique(choice[choice >= 0]).tolist():
                    going = rows[choice == node]
                    waiting.setdefault(tuple(sorted((*step, node))), []).append(going)
                    asked[going, node], last[going] = True, node
    return Played(answer, asked, last)


def choose(
    policy: StepPolicy, view: View, step: Step, answered: Step, rows: Ints, costs: Floats | None
) -> Ints:
    """Return the node that each row asks after a set, -1 where it stops."""
    tables = policy.tables
    x = view.best(answered)[0][rows] if answered else np.full(len(rows), NOTHING)
    # Where all of an unforeseen set failed, the ways are those of the start, which has one piece.
    piece = np.searchsorted(policy.knots.get(step, np.empty(0)), x, side="right")
    p = chance(x)
    best = np.full(len(rows), 0.0 if answered else -np.inf)
    choice = np.full(len(rows), -1, np.intp)
    for way in policy.after(step, answered):
        cost = tables.costs[way.node] if costs is None else costs[rows, way.node]
        q = view.q(answered, way.node)[rows]
        second = p * q if step else view.typical[rows]
        net = way.gain(piece, x, q, second) - policy.price * (cost + tables.wait[way.node])
        better = net > best
        best, choice = np.where(better, net, best), np.where(better, way.node, choice)
    return choice


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
        self.costs = np.broadcast_to(self._tables.costs if costs is None else costs, shape)
        """Shape (T, n): what asking each node costs."""
        self.asked = np.zeros(shape, bool)
        self.next = np.full(len(drawn), -1, np.intp)
        """Shape (T,): the node to ask; -1 once stopped."""
        self.answer = np.full(len(drawn), -1, np.intp)
        """Shape (T,): the node whose answer is the best so far; -1 for none."""
        self._confidence = np.full(shape, np.nan)
        self._codes = np.full(shape, -1, np.intp)
        self._code = dict(policies[0].codes)  # classes that the fit never saw get new numbers
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
        choice = choose(policy, view, step, answered, np.arange(len(rows)), self.costs[rows])
        self.next[rows] = choice
        if answered:
            self.answer[rows] = view.best(answered)[1]


@dataclass(frozen=True, eq=False)
class SingleNode:
    """One node by itself: what every cascade has to be better than.

    Where it fails, the others are asked in the order of ``backups`` until one answers. Where it
    costs more than a cap, the first that fits is asked.
    """

    names: tuple[str, ...]
    costs: Floats
    """Shape (n,)."""
    node: int
    before: Step = ()
    """The nodes that must be asked before it."""
    backups: tuple[int, ...] = ()

    def session(self, max_cost: float | None = None) -> SingleNodeSession:
        """Start deciding for one input."""
        from ttamer.fitting.session import SingleNodeSession  # it decides as this module says

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
