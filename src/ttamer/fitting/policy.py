"""A fitted policy: tables of what going on gains, and prices.

After the nodes of a set A were asked, with x the log-odds of the best answer in hand, p its chance,
s what the class of that answer makes of x (x itself, but for exits) and q the chance that a node m
errs that was not asked::

    gain[A, m] = base_i + slope_i s + u q + v p q        i: the piece of s, between the knots of A
    gain[(), m] = base + u q + v bar                     before any answer
    ask m = argmax of gain[A, m] - price cost[m]         while that is above 0; ties stop

``price`` is in losses per unit of cost, ``cost[m]`` what the input predicts, or the mean. While
there is no answer some node is asked: the one of the largest difference. A node that failed counts
as asked, and x is that of the answers there are. Under a cap on the cost each way that would
exceed it is left out.

Without inputs the gain of each way rises with s. Then it is worth asking m exactly where s is above
one number, the paper's dynamic index: :attr:`StepPolicy.indices`.

Every sum is taken in one order, element by element, from numbers on a grid: a session and a batch
decide alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ttamer._checks import number, percent
from ttamer.errors import ArgumentError
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
    chance_of,
)
from ttamer.fitting.inputs import Prior
from ttamer.fitting.replay import Played
from ttamer.fitting.session import FittedSession
from ttamer.policy.session import NO_ANSWER, Explanation
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
        """Start deciding for one input, given the log-odds and the costs that it predicts, (n,).

        By default those of an input of which nothing is known.
        """
        return StepSession(self, prior, costs, max_cost)

    def play(self, answers: Seen, costs: Floats | None = None) -> Played:
        """Decide for rows: what sessions would do. A node without an answer fails if asked."""
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

        ``x`` is s of rows, ``NOTHING`` where there is no answer; ``inputs`` gives the columns of
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
    state = view.state(answered)[rows] if answered else x
    return policy.choose(
        step, answered, state, reads, None if costs is None else costs[rows]
    ), owner


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
        # Classes that the fit never saw get new numbers.
        self._code = dict(self._tables.belief.code_of)
        self._choose(np.arange(len(drawn)))

    def observe(
        self, rows: Ints, confidence: Sequence[float | None], prediction: Sequence[object]
    ) -> None:
        """Give the answers of ``next`` on some rows; a confidence of ``None`` is a failure."""
        if self._tables.belief.reads != "confidence":
            raise ArgumentError(
                "the policy reads margins of exits, and answers come with confidences: run it by "
                "ttamer.torch, or in sessions: observe(confidence=..., margin=...)"
            )
        values = np.array([np.nan if c is None else -np.inf if c != c else c for c in confidence])
        codes = []
        for c, p in zip(confidence, prediction, strict=True):
            text = None if c is None else class_text(p)
            codes.append(-1 if text is None else self._code.setdefault(text, len(self._code)))
        self.observe_codes(rows, values, np.array(codes, np.intp))

    def observe_codes(self, rows: Ints, confidence: Floats, codes: Ints) -> None:
        """Give answers whose classes are numbers of the policy, -1 for none; NaN: a failure."""
        at = rows, self.next[rows]
        self._confidence[at], self._codes[at] = confidence, codes
        self.asked[at] = True
        self._choose(rows)

    def _choose(self, rows: Ints) -> None:
        """Choose the next node for rows: those that asked alike, and had answers alike, at once."""
        for k, policy in enumerate(self._policies):
            drawn = rows[self._drawn[rows] == k]
            for step, of_step in by_pattern(self.asked[drawn]):
                for answered, group in by_pattern(~np.isnan(self._confidence[drawn[of_step]])):
                    self._decide(policy, step, answered, drawn[of_step][group])

    def _decide(self, policy: StepPolicy, step: Step, answered: Step, rows: Ints) -> None:
        prior = None if self._prior is None else self._prior[rows]
        view = self._tables.belief.view(Seen(self._confidence[rows], self._codes[rows], prior))
        decided = decide(policy, view, step, answered, np.arange(len(rows)), self.costs[rows])
        self.next[rows], self.answer[rows] = decided


@dataclass(frozen=True)
class StepExplanation(Explanation):
    """The reasons for the current decision, with what the input says and every way there is.

    ``best`` is the chance that the answer in hand is wrong, or its expected loss; ``index`` is what
    going on is expected to lose, its price counted in losses.
    """

    prior: Mapping[str, float] = field(default_factory=dict)
    """By node not asked: the chance that it errs, as the input and the answers so far say; empty
    where inputs are not used."""
    from_input: float = 0.0
    """What the input contributes to the gain of ``next``, in losses; 0 once stopped."""
    gains: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now: how much loss asking it saves."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now: what it costs, in losses."""
    indices: Mapping[str, float] = field(default_factory=dict)
    """By node that may be asked now, once there is an answer: asking it pays where the answer in
    hand is wrong with more than this chance, of an input of which nothing is known."""


class StepSession(FittedSession):
    """A session of a fitted policy: for single numbers plain Python is faster than arrays.

    >>> import ttamer as tt
    >>> trace = tt.datasets.load("minilm-imdb").take(slice(300))
    >>> turn = tt.fit(trace, belief="threshold").at(0.9).session()
    >>> turn.observe(confidence=0.95, prediction="pos")
    >>> turn.next, turn.answer
    (None, 'layer1')
    """

    def __init__(
        self, policy: StepPolicy, prior: Floats | None, costs: Floats | None, max_cost: float | None
    ) -> None:
        tables = policy.tables
        costs = tables.costs if costs is None else costs
        super().__init__(tables.names, costs.tolist(), max_cost)
        self._prior: list[float] | None = None
        self._bar = 0.0
        if prior is not None:
            self._prior, self._bar = prior.tolist(), float(bar_of(prior))
        elif tables.prior is not None:  # nothing is known of the input
            self._prior, self._bar = tables.prior.unknown
        count, self.reads = len(self._names), tables.belief.reads
        self._policy, self._belief, self._scorer = policy, tables.belief, tables.belief.scorer
        self._curve, self._offset, self._codes = [0.0] * count, [0.0] * count, [-1] * count
        self._unknown: dict[str, int] = {}
        self._step: Step = ()
        self._came: Step = ()
        self._x = self._state = NOTHING
        self._choose()
        if max_cost is not None:
            self._require_start([*policy.ahead(()), *policy.remaining(())])

    def _advance(self, node: int, confidence: float | None, prediction: str | None) -> None:
        self._step = tuple(sorted((*self._step, node)))
        if confidence is not None:
            reads = prediction is not None and self._belief.agree
            self._codes[node] = code = self._code(str(prediction)) if reads else -1
            self._curve[node], self._offset[node] = self._scorer.evidence(
                node, confidence, code, self._prior, self._bar
            )
            self._came = tuple(sorted((*self._came, node)))
            context, odds = self._risks()
            self._x = min(odds)
            self._answer = context[odds.index(self._x)]
            code = self._codes[self._answer]
            self._state = self._scorer.state(self._came, self._x, code)
        self._choose()

    def _risks(self) -> tuple[Step, list[float]]:
        """Return the answers that count, and their log-odds of being wrong."""
        context = self._belief.context(self._came)
        odds = self._scorer.odds(context, self._curve, self._offset, self._codes, self._bar)
        return context, odds

    def _code(self, prediction: str) -> int:
        classes = self._belief.code_of
        code = classes.get(prediction)
        if code is None:  # a class of its own, for this input
            code = self._unknown.setdefault(prediction, len(classes) + len(self._unknown))
        return code

    def _choose(self) -> None:
        """Choose the node of the largest gain above its price, of those that the cap allows."""
        self._capped = False
        best, chosen = 0.0 if self._came else -inf, -1
        for node, gain, price in self._ways(self._prior, self._bar):
            net = gain - price
            if net > best:
                if self._cost + self._costs[node] <= self._limit:
                    best, chosen = net, node
                else:
                    self._capped = True
        if chosen < 0 and not self._came and self._limit < inf:
            # No way is within the cap: the most expensive node that is.
            nodes = self._policy.remaining(self._step)
            within = [v for v in nodes if self._cost + self._costs[v] <= self._limit]
            chosen = max(within, key=self._costs.__getitem__, default=-1)
        self._next = chosen

    def _ways(self, prior: Sequence[float] | None, bar: float) -> list[tuple[int, float, float]]:
        """Return each way with its gain and its price, in losses, for what an input says."""
        policy, step, x, state = self._policy, self._step, self._x, self._state
        piece = bisect_right(policy.knots(step), state)
        p = chance_of(x)
        gains = []
        for node, base, slope, u, v, wait in policy.after(step, self._came):
            gain = base[piece] + slope[piece] * state
            if u or v:
                q = self._scorer.q(self._came, node, x, prior, bar)
                gain = gain + u * q + v * (p * q if step else chance_of(bar))
            gains.append((node, gain, policy.price * (self._costs[node] + wait)))
        return gains

    @property
    def is_last(self) -> bool:
        """Whether no node is asked after ``next``, if that answers."""
        spent = self._cost + self.price
        following = self._policy.ahead(tuple(sorted((*self._step, self._next))))
        return all(spent + self._costs[node] > self._limit for node in following)

    @property
    def beliefs(self) -> dict[str, float]:
        """The chance that each answer is wrong, the least likely first; of thresholds none."""
        if not self._came or self._policy.tables.are_thresholds:
            return {}
        context, odds = self._risks()
        return {self._names[v]: chance_of(x) for x, v in sorted(zip(odds, context, strict=True))}

    def explain(self) -> StepExplanation:
        """Return the reasons for the current decision."""
        names, tables, prior = self._names, self._policy.tables, dict[str, float]()
        ways = {names[v]: way for v, *way in self._ways(self._prior, self._bar)}
        best = self.next or max(ways, key=lambda name: ways[name][0] - ways[name][1], default=None)
        gain, price = ways.get(best or "", (0.0, 0.0))
        risk, from_input = chance_of(self._x) if self._came else inf, 0.0
        why = self._in_words(risk, best, gain, price)
        if tables.are_thresholds:  # they say no chance, and nothing that is gained
            return StepExplanation(self.next, self.answer, inf, inf, why, self.price)
        if self._prior is not None:
            evidence = self._x, self._prior, self._bar
            nodes = [v for v in range(len(names)) if v not in self._step]
            prior = {names[v]: self._scorer.q(self._came, v, *evidence) for v in nodes}
        if self.next is not None and tables.prior is not None:
            typical = {v: base for v, base, _ in self._ways(*tables.prior.unknown)}
            from_input = gain - typical.get(self._next, 0.0)
        indices = self._policy.indices.get(self._step, {}) if self._came else {}
        shift = self._state - self._x
        return StepExplanation(
            self.next,
            self.answer,
            risk,
            risk - (gain - price) if best in ways else inf,
            why,
            self.price,
            self.beliefs,
            prior=prior,
            from_input=from_input,
            gains={name: gain for name, (gain, _) in ways.items()},
            prices={name: price for name, (_, price) in ways.items()},
            indices={names[v]: chance_of(index - shift) for v, index in indices.items()},
        )

    def _in_words(self, risk: float, best: str | None, gain: float, price: float) -> str:
        """Return the decision in words, by the best way."""
        decision = ": stop" if self.next is None else f": ask {self.next!r}"
        if self.next is None and self._capped:
            cap = f"is left of the cap of {number(self._limit)}"
            decision = f", and asking on would cost more than {cap}: stop"
        if not self._came:
            return NO_ANSWER if self.next is None else f"there is no answer yet{decision}"
        nothing, answer = (
            "the policy asks no node after this: stop",
            f"the answer of {self.answer!r}",
        )
        if self._policy.tables.are_thresholds:
            sure = "" if self.next is None and not self._capped else "not "
            return nothing if best is None else f"{answer} is {sure}confident enough{decision}"
        doubt = f"{answer} is wrong with chance {percent(risk, digits=1)}"
        if best is None:
            return f"{doubt}, and {nothing}"
        saves = f"asking {best!r} saves {100 * gain:.2f} points of loss"
        return f"{doubt}; {saves} at a price of {100 * price:.2f}{decision}"
