"""A fitted ladder: the policies of all tradeoffs, what each does on new rows, and choices.

Choices by cost or error are made in :mod:`ttamer.fitting.points`, certified ones in
:mod:`ttamer.fitting.promises`.

The tradeoff t of a policy and its price, in losses per unit of cost, are two names of one number:
``price = (1 - t) / t / full_cost``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from typing import Any

import numpy as np

from ttamer._checks import counted, in_unit, is_number, number, percent, priced, require
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError
from ttamer.fitting.belief import Bools, chance_of
from ttamer.fitting.fitted import FitRecord, Fitted, PolicyRule, shown_error as shown_error
from ttamer.fitting.markov import StatePolicy
from ttamer.fitting.points import Mix, OperatingPoints
from ttamer.fitting.policy import StepBatch, StepPolicy
from ttamer.fitting.promises import Held, Kind, Promise, held_of, make_promise
from ttamer.fitting.replay import Played
from ttamer.fitting.session import FittedSession, SingleNode
from ttamer.problem.checks import check_tradeoff
from ttamer.show import card, table
from ttamer.show.curves import draw_curves
from ttamer.show.graph import Arrow, Box, Drawing, draw_graph
from ttamer.stats.envelope import lower_envelope
from ttamer.trace.trace import Trace


class PartOfFit:
    """What policies, mixtures and ladders say of their fit."""

    fitted: Fitted

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.fitted.spec

    @property
    def record(self) -> FitRecord:
        """How it was fitted."""
        return self.fitted.record


class Deciding(PartOfFit, ABC):
    """What decides: one policy, or two, one of which is drawn for each input."""

    error: float | None
    cost: float | None
    promise: Promise | None = None
    """What is promised of it, where it was chosen by a promise, and whether that holds."""

    @property
    @abstractmethod
    def parts(self) -> tuple[FittedPolicy, ...]:
        """The policies that decide, the cheaper one first."""

    def draws(self, rows: int) -> Bools:
        """Return which inputs the second policy decides, numbered from 0."""
        return np.zeros(rows, bool)

    def drawn(self, key: str | int | None) -> FittedPolicy:
        """Return the policy that decides the input of this key."""
        del key
        return self.parts[0]

    @property
    def described(self) -> str:
        """What it costs and how often it errs, in words."""
        measure = self.fitted.measure
        if self.cost is None or self.error is None:
            return f"cost and {measure} not estimated"
        error = shown_error(self.error, measure)
        return f"cost {priced(self.cost, self.spec.unit)} per input, {measure} {error}"

    @property
    def single_node(self) -> str | None:
        """The only node that is ever asked; ``None`` where a second node may be asked."""
        nodes = {self.fitted.only_node(part.rule) for part in self.parts}
        return nodes.pop() if len(nodes) == 1 else None

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace of the same cascade; a mixture numbers rows from 0."""
        rows = self.fitted.read(trace)
        played = [rows.play(part.rule) for part in self.parts]
        of_row = self.draws(len(trace)).astype(int), np.arange(len(trace))
        return Played(
            np.stack([part.answer for part in played])[of_row],
            np.stack([part.asked for part in played])[of_row],
            np.stack([part.last for part in played])[of_row],
        )

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        prompt: str | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> FittedSession:
        """Start deciding for one input.

        Args:
            max_cost: No node is asked that would take the cost above this.
            key: What a mixture draws its policy by; by default the number of the call.
            prompt: The text of the input, where the policy reads it.
            inputs: What else is known of the input, by name.

        """
        rule = self.drawn(key).rule
        if isinstance(rule, StepPolicy) and (prompt is not None or inputs):
            rows = {name: [value] for name, value in (inputs or {}).items()}
            prior, costs = self.fitted.of_inputs([prompt], rows, 1)
            if prior is not None and costs is not None:
                return rule.session(prior[0], costs[0], max_cost)
        return rule.session(max_cost=max_cost)

    def batch(
        self,
        count: int,
        *,
        prompt: Sequence[str | None] | None = None,
        inputs: Mapping[str, Sequence[Any]] | None = None,
    ) -> StepBatch | None:
        """Start deciding for many inputs in step, without caps; a mixture numbers them from 0.

        ``None`` for policies that only have sessions of one input.
        """
        rules = [part.rule for part in self.parts if isinstance(part.rule, StepPolicy)]
        if len(rules) < len(self.parts):
            return None
        prior, costs = self.fitted.of_inputs(prompt, inputs or {}, count)
        return StepBatch(rules, self.draws(count).astype(np.intp), prior, costs)


@dataclass(frozen=True, eq=False, repr=False)
class FittedPolicy(Deciding):
    """One policy of a fit, or one node by itself.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(500))
    >>> policy = fit(trace, belief="threshold").at(0.9)
    >>> policy.spec.names, len(policy.play(trace).answer)
    (('layer1', 'layer2', 'layer3', 'layer4', 'layer5', 'full'), 500)
    """

    fitted: Fitted
    rule: PolicyRule
    """What decides, on plain numbers."""
    number: int
    """Its place in the ladder; nodes by themselves come after all policies."""
    error: float | None = None
    """The expected loss on new rows, in the trace's unit, by cross-fitting."""
    cost: float | None = None
    """The expected cost per input on new rows, in the cascade's unit."""

    def __repr__(self) -> str:
        names = ", ".join(self.spec.names)
        return f"FittedPolicy({names}; {self.described}, {self.setting})"

    @property
    def parts(self) -> tuple[FittedPolicy, ...]:
        """Itself."""
        return (self,)

    @property
    def tradeoff(self) -> float | None:
        """Its tradeoff, or its threshold; ``None`` of a node by itself."""
        alone = isinstance(self.rule, SingleNode)
        return None if alone else float(self.fitted.tradeoffs[self.number])

    @property
    def setting(self) -> str:
        """Its tradeoff, its threshold, or its node, in words."""
        if isinstance(self.rule, SingleNode):
            return f"{self.spec.names[self.rule.node]} alone"
        kind = "threshold" if self.fitted.thresholds else "tradeoff"
        return f"{kind} {self.tradeoff:.{6 if self.fitted.thresholds else 3}g}"

    @property
    def indices(self) -> dict[tuple[str, ...], dict[str, float]]:
        """The table that it is: by nodes asked, and node that may be next, the dynamic index.

        Asking pays exactly where the answer in hand is wrong with a chance above the index: 0
        where it always pays, 1 where it never does. Where inputs are used, they shift it: this is
        that of an input of which nothing is known. Empty for a node by itself and for thresholds;
        for ``belief="markov"`` see ``rule.solved``.

        >>> from ttamer import datasets, fit
        >>> policy = fit(datasets.load("minilm-imdb").take(slice(500))).at(0.7)
        >>> list(policy.indices)[:2]
        [('layer1',), ('layer1', 'layer2')]
        """
        names, rule = self.spec.names, self.rule
        if not isinstance(rule, StepPolicy) or rule.tables.are_thresholds:
            return {}
        return {
            tuple(names[v] for v in step): {names[v]: chance_of(index) for v, index in ways.items()}
            for step, ways in rule.indices.items()
        }

    def table(self) -> str:
        """Return its table of indices as text.

        Returns:
            For the nodes asked so far: which node it may ask next, and where that pays.
        """
        rows = [
            [", ".join(asked), node, percent(index, digits=2)]
            for asked, ways in self.indices.items()
            for node, index in ways.items()
        ]
        return table(["asked", "then", "if wrong with a chance above"], rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw its table of indices: from the nodes asked to the next, with the chance that pays.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.
        """
        if isinstance(self.rule, StatePolicy):
            return self.rule.solved.plot(path)
        order, indices = self.spec.names.index, self.indices
        ways = [
            (asked, tuple(sorted((*asked, node), key=order)), f"> {percent(index, digits=2)}")
            for asked, following in indices.items()
            for node, index in following.items()
            if index < 1
        ]
        sets = list(dict.fromkeys([*indices, *(target for _, target, _ in ways)]))
        boxes = [Box((", ".join(asked),), len(asked)) for asked in sets]
        arrows = [Arrow(sets.index(a), sets.index(b), label) for a, b, label in ways]
        return draw_graph(boxes, arrows, caption=self.described).written(path)


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(Deciding):
    """Two policies of a ladder, and the share of inputs that the more expensive one decides.

    The draw is fixed by the seed and the input's key, so a repeated request is decided alike.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(500))
    >>> mixture = fit(trace, belief="threshold").for_budget(0.5)
    >>> mixture.cost <= 0.5 * (1 + 1e-9)
    True
    """

    cheap: FittedPolicy
    expensive: FittedPolicy
    share: float
    seed: int = 0
    promise: Promise | None = None

    # Fractional parts of multiples of the golden ratio are spread evenly over [0, 1). Larger
    # numbers are hashed: their multiples have no fraction left.
    _golden_ratio = (5**0.5 - 1) / 2
    _max_number = 2**32

    def __repr__(self) -> str:
        return f"Mixture({', '.join(self.spec.names)}; {self.described})"

    @property
    def parts(self) -> tuple[FittedPolicy, ...]:
        """Its two policies."""
        return self.cheap, self.expensive

    @property
    def fitted(self) -> Fitted:  # type: ignore[override]
        """What both policies share."""
        return self.cheap.fitted

    @property
    def error(self) -> float | None:  # type: ignore[override]
        """The expected loss on new rows, in the trace's unit."""
        return self._mean(self.cheap.error, self.expensive.error)

    @property
    def cost(self) -> float | None:  # type: ignore[override]
        """The expected cost per input on new rows, in the cascade's unit."""
        return self._mean(self.cheap.cost, self.expensive.cost)

    def _mean(self, low: float | None, high: float | None) -> float | None:
        return None if low is None or high is None else (1 - self.share) * low + self.share * high

    @property
    def setting(self) -> str:
        """Its two policies in words, and the share of the more expensive one."""
        low, high = self.cheap.setting, self.expensive.setting
        return high if low == high else f"{low} or {high} ({self.share:.0%})"

    @property
    def mix(self) -> Mix:
        """Its points in the ladder, and its share."""
        return Mix(self.cheap.number, self.expensive.number, self.share)

    def draws(self, rows: int) -> Bools:
        """Return which inputs the expensive policy decides, numbered from 0.

        Args:
            rows: The number of inputs.

        Returns:
            Shape (rows,): true where the expensive policy decides.
        """
        return np.asarray((self._start + self._golden_ratio * np.arange(rows)) % 1.0 < self.share)

    def drawn(self, key: str | int | None) -> FittedPolicy:
        """Return the policy that decides the input of this key.

        Args:
            key: The same key always draws the same policy. Whole numbers below 2**32 are numbers of
                inputs, drawn in turn; others are drawn by a hash. Without a key inputs are numbered
                from 0 in the order of the calls.

        Returns:
            ``cheap`` or ``expensive``.
        """
        if key is None:
            key = next(self._count)
        if isinstance(key, int | np.integer) and abs(int(key)) < self._max_number:
            draw = (self._start + self._golden_ratio * int(key)) % 1.0
        else:
            draw = _uniform(f"{self.seed}:{key}")
        return self.expensive if draw < self.share else self.cheap

    @cached_property
    def _start(self) -> float:
        return _uniform(f"{self.seed}")

    @cached_property
    def _count(self) -> Iterator[int]:
        return itertools.count()


@dataclass(frozen=True, eq=False, repr=False)
class PolicyList(PartOfFit):
    """The policies of a fit, in increasing order of tradeoff, and each node by itself."""

    fitted: Fitted
    points: OperatingPoints
    """What each policy, and each node by itself, does on rows it was not fitted to."""

    @property
    def tradeoffs(self) -> tuple[float, ...]:
        """The tradeoff of each policy; of thresholds, the thresholds."""
        return tuple(self.fitted.tradeoffs.tolist())

    @cached_property
    def policies(self) -> tuple[FittedPolicy, ...]:
        """The policies, in increasing order of tradeoff."""
        return tuple(map(self.point, range(len(self))))

    def __len__(self) -> int:
        return len(self.fitted.tradeoffs)

    def __iter__(self) -> Iterator[FittedPolicy]:
        return iter(self.policies)

    def __getitem__(self, number: int) -> FittedPolicy:
        return self.policies[number]

    def point(self, number: int) -> FittedPolicy:
        """Return a policy by its number: those of the ladder come first, then nodes alone."""
        fitted, points, node = self.fitted, self.points, number - len(self)
        rule = fitted.rule(number) if node < 0 else fitted.alone(node, points.alone_error)
        error = fitted.unit * float(points.errors[number])
        return FittedPolicy(fitted, rule, number, error, float(points.costs[number]))

    def alone(self, node: str) -> FittedPolicy:
        """Return the policy that returns the answer of one node of this name, whatever it is.

        Nodes that must be asked before it are asked too. Where the node fails, the others are asked
        until one answers: separate models by their error, the lowest first, others in their order.
        """
        return self.point(self.points.alone(self.spec.index_of(node)))

    def __repr__(self) -> str:
        record = self.record
        return (
            f"FittedLadder({counted(len(self), 'policy')}, {', '.join(self.spec.names)}; "
            f"belief {record.belief}, {counted(record.rows, 'row')})"
        )

    def _repr_html_(self) -> str:
        head, *rows = self._cells(12)
        notes = [*filter(None, [self.record.on_gaps])]
        return card(repr(self), notes=notes, head=head, rows=rows)

    def _cells(self, limit: int) -> list[list[str]]:
        """Return a head, and a row for each policy of the frontier."""
        points, fitted, measure = self.points, self.fitted, self.fitted.measure
        cells = [[in_unit("cost", self.spec.unit), "of full", measure, "std. error", "policy"]]
        for k in points.corners[:: -(-len(points.corners) // limit)]:
            cost, spread = float(points.costs[k]), ""
            if k < len(self):  # nodes alone are counted, not estimated
                spread = shown_error(fitted.unit * float(points.standard_error[k]), measure)
            error = shown_error(fitted.unit * float(points.errors[k]), measure)
            share = f"{cost / fitted.full_cost:.1%}"
            cells.append([number(cost), share, error, spread, self.point(k).setting])
        return cells

    def table(self) -> str:
        """Return what the policies of the frontier cost per input and how they err, as text.

        Returns:
            A table with one line for each policy, the cheapest first; "of full" is the share of the
            full model's cost, or of the most expensive model's.

        >>> from ttamer import datasets, fit
        >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)), belief="threshold")
        >>> print(ladder.table().splitlines()[0])
          cost  of full   error  std. error  policy
        """
        head, *rows = self._cells(len(self) + len(self.spec))
        return table(head, rows)

    def to_frame(self) -> Any:
        """Return every policy and every node alone, with cost, error and tradeoff.

        Returns:
            A pandas frame with one row for each.
        """
        pandas = require("pandas", "frames")
        points = [self.point(k) for k in range(len(self.points.costs))]
        return pandas.DataFrame(
            {
                "policy": [point.setting for point in points],
                "tradeoff": [point.tradeoff for point in points],
                "cost": self.points.costs,
                "error": self.fitted.unit * self.points.errors,
                "on_frontier": np.isin(np.arange(len(points)), self.points.corners),
            }
        )

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the error (or mean loss) against the cost of its policies, and of each node alone.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            A matplotlib figure.
        """
        points, measure = self.points, self.fitted.measure
        corners = lower_envelope(points.cost, points.error)
        costs, errors = points.costs.tolist(), (self.fitted.unit * points.errors).tolist()
        alone = list(zip(costs, errors, strict=True))[len(self) :]
        return draw_curves(
            {"policies": ([costs[k] for k in corners], [errors[k] for k in corners])},
            in_unit("cost per input", self.spec.unit),
            measure,
            marks=dict(zip(self.spec.names, alone, strict=True)),
            y_percent=measure == "error",
            path=path,
        )

    def play_all(self, trace: Trace) -> Iterator[Played]:
        """Play every policy on a trace of the same cascade, reading it once."""
        rows = self.fitted.read(trace)
        return (rows.play(policy.rule) for policy in self)


@dataclass(frozen=True, eq=False, repr=False)
class FittedLadder(PolicyList):
    """The policies of a fit, and choices among them.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)), belief="threshold")
    >>> len(ladder), ladder.at(0.9) is ladder[ladder.tradeoffs.index(ladder.at(0.9).tradeoff)]
    (64, True)
    """

    held: Held | None = None
    """What they do on rows held out, on which promises are tested."""
    promises: tuple[Promise, ...] = ()
    """The promises made so far: they are saved with the ladder."""

    def at(self, tradeoff: float) -> FittedPolicy:
        """Return the policy of the nearest price: ``(1 - t) / t`` losses per full cost.

        Args:
            tradeoff: From 0, the cheapest answer, to 1, the best answer whatever it costs. With
                ``belief="threshold"`` it is the threshold.

        Returns:
            One policy of the ladder.

        Raises:
            ArgumentError: The tradeoff is not from 0 to 1.
        """
        numbers = np.append(self.fitted.tradeoffs, check_tradeoff(tradeoff))
        if not self.fitted.thresholds:
            with np.errstate(divide="ignore"):  # prices of 0 and 1 are beyond all others
                odds = np.log(numbers) - np.log1p(-numbers)
            numbers = np.nan_to_num(odds, posinf=1e9, neginf=-1e9)
        return self[int(np.abs(numbers[:-1] - numbers[-1]).argmin())]

    def for_mistake_cost(self, cost: float) -> FittedPolicy:
        """Return the policy that minimises ``cost of mistakes + cost of asking``.

        Args:
            cost: What one wrong answer, or one unit of loss, costs, in the cascade's unit.

        Returns:
            The policy of the nearest price; of thresholds, the one of least cost on the rows.

        Raises:
            ArgumentError: The cost is not positive and finite.
        """
        if not is_number(cost) or not (isfinite(cost) and cost > 0):
            raise ArgumentError(
                f"mistake_cost is {cost!r}; it must be a finite number above 0",
                param="mistake_cost",
            )
        worth = cost * self.fitted.unit
        if self.fitted.thresholds:
            return self[int((worth * self.points.error + self.points.cost).argmin())]
        return self.at(worth / (worth + self.fitted.full_cost))

    def default(self, *, seed: int = 0) -> Mixture:
        """Return the cheapest mixture that errs no more than the node of least error by itself.

        Estimates are compared with that node row by row, with caution by their own standard errors
        (:mod:`ttamer.fitting.points`); where none stands the comparison the node is used alone.

        Args:
            seed: The seed of the mixture's draws.

        Returns:
            A mixture of two policies, or of one, that costs no more than the best node.
        """
        return self.mixed(self.points.default(allowed=self.allowed_drop), seed=seed)

    @property
    def allowed_drop(self) -> float:
        """How much more than the best node, in losses, :meth:`default` may err on the mean.

        0; one point where the last node is right by definition: no other errs as little.
        """
        return 0.01 if self.spec.target == "last" else 0.0

    def for_budget(
        self,
        cost: float,
        *,
        exceeded_at_most: float | None = None,
        confidence: float = 0.95,
        on: Trace | None = None,
        seed: int = 0,
    ) -> Mixture:
        """Return the mixture of least expected error whose expected cost is within a budget.

        What lowers the expected error by less than 0.05 points is not spent.

        Args:
            cost: The mean cost per input, in the cascade's unit.
            exceeded_at_most: Instead, the share of inputs that may cost more than ``cost``; it is
                certified on rows held out.
            confidence: As for :meth:`for_error`.
            on: Likewise.
            seed: Likewise.

        Returns:
            A mixture; with its ``promise`` where a share is given.

        Raises:
            ArgumentError: No policy is that cheap, or there are no rows to test on.
        """
        if not is_number(cost) or cost != cost:
            raise ArgumentError(f"cost is {cost!r}; it must be a number", param="cost")
        if exceeded_at_most is None:
            return self.mixed(self.points.for_budget(cost), seed=seed)
        return self._promised(
            "budget", exceeded_at_most, confidence, on, seed, self.points.best, budget=cost
        )

    def for_error(
        self, at_most: float, *, confidence: float = 0.95, on: Trace | None = None, seed: int = 0
    ) -> Mixture:
        """Return the cheapest mixture whose error is certified to be at most this.

        It is tested on the rows held out from the fit (``hold_out``), or on those given. Where
        nothing passes, the node of least error is returned alone; its ``promise`` says so, and how
        many rows would be enough. Nothing returned costs more than that node.

        Args:
            at_most: The error that is promised, in the trace's unit.
            confidence: The chance with which the promise holds, at least.
            on: Rows to test on that the ladder was not fitted to; by default those held out.
            seed: The seed of the mixture's draws.

        Returns:
            A mixture with its ``promise``.

        Raises:
            ArgumentError: There are no rows to test on, or a number is out of range.
        """
        return self._promised("error", at_most, confidence, on, seed, self.points.best)

    def for_drop(
        self,
        at_most: float,
        *,
        against: str = "last",
        confidence: float = 0.95,
        on: Trace | None = None,
        seed: int = 0,
    ) -> Mixture:
        """Return the cheapest mixture whose error is at most this far above that of one node.

        The node by itself, whose drop is 0, is tested first; so nothing returned costs more than
        it, and something is always certified.

        Args:
            at_most: The difference of errors that is promised, in the trace's unit.
            against: ``"last"``, the last node; ``"best"``, the node with the lowest error by itself
                on the rows fitted to; or any node's name.
            confidence: As for :meth:`for_error`.
            on: Likewise.
            seed: Likewise.

        Returns:
            A mixture with its ``promise``.
        """
        names = self.spec.names
        node_of = {"best": self.points.best, "last": len(names) - 1}
        node_of |= {name: node for node, name in enumerate(names)}
        if against not in node_of:
            raise ArgumentError(
                f"against is {against!r}; it must be 'last', 'best' or one of {', '.join(names)}",
                param="against",
            )
        chosen = self.fitted.thresholds and against == "best" and against not in names
        return self._promised(
            "drop", at_most, confidence, on, seed, node_of[against], chosen=chosen
        )

    def _promised(
        self,
        kind: Kind,
        at_most: float,
        confidence: float,
        on: Trace | None,
        seed: int,
        against: int,
        **more: Any,
    ) -> Mixture:
        facts = self.held_rows(on), self.points, kind, at_most, confidence, against
        promise = make_promise(*facts, thresholds=self.fitted.thresholds, **more)
        return self.mixed(promise.mix, seed=seed, promise=promise)

    def held_rows(self, on: Trace | None = None) -> Held:
        """Return what points do on the rows that promises are tested on.

        Args:
            on: Rows that the ladder was not fitted to; by default those held out by the fit.

        Returns:
            The losses and costs of each point, row by row.

        Raises:
            ArgumentError: There are none, or they are rows fitted to, or no evidence.
        """
        if on is not None:
            return held_of(self.fitted, self.points, on)
        if self.held is None:
            raise ArgumentError(
                "a promise needs rows the ladder was not fitted to: hold some out of the fit "
                "(hold_out=0.2; ttamer fit --hold-out 0.2), give others (on=trace; ttamer "
                'certify POLICY TRACE), or fit with belief="threshold", which needs no others',
                param="on",
            )
        return self.held

    def with_holdout(self, trace: Trace) -> FittedLadder:
        """Return the ladder with what it does on held-out rows, for promises.

        Args:
            trace: Rows that the ladder was not fitted to.

        Returns:
            The same ladder.
        """
        return dataclasses.replace(self, held=self.held_rows(trace))

    def with_promise(self, policy: Mixture) -> FittedLadder:
        """Return the ladder with a mixture's promise in it, to be saved and checked again.

        Args:
            policy: A mixture with a promise.

        Returns:
            The same ladder with one more promise.
        """
        if policy.promise is None:
            raise ArgumentError("this mixture has no promise: make one with for_error or for_drop")
        return dataclasses.replace(self, promises=(*self.promises, policy.promise))

    def mixed(self, mix: Mix, *, seed: int = 0, promise: Promise | None = None) -> Mixture:
        """Return two points of the ladder as a mixture.

        Args:
            mix: The two points, by number, and the share of the more expensive one.
            seed: The seed of the draws.
            promise: What is promised of it.

        Returns:
            The mixture, with its expected error and cost.
        """
        points = self.point(mix.cheap), self.point(mix.expensive)
        return Mixture(*points, mix.share, seed, promise)


def _uniform(text: str) -> float:
    return float(int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48)
