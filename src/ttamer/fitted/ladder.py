"""Fitted policies: a solved policy with the model that turns answers of nodes into its states.

They decide for traces (:meth:`FittedPolicy.play`) and for single inputs
(:meth:`FittedPolicy.session`), from confidences and predictions as the nodes give them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log
from typing import TYPE_CHECKING

import numpy as np

from ttamer._display.drawing import draw_curves
from ttamer._display.notebook import card
from ttamer._numbers import counted, is_number, number
from ttamer.errors import ArgumentError
from ttamer.fitted.alone import alone
from ttamer.fitted.cautious import Cautious, cautious_model, cautious_problem
from ttamer.fitted.gap import gap_of
from ttamer.fitted.mixture import Mix, Mixture, Rung, Rungs, described, policy_card, shown_error
from ttamer.fitted.models import BeliefModel, Model, SolvedPolicy
from ttamer.fitted.promise import HeldOut, make_promise, refuse_fitted_rows
from ttamer.fitted.sessions import CappedSession
from ttamer.policy.base import MAX_ROWS, Ladder, Policy

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ttamer._display.drawing import Drawing
    from ttamer.fitted.gap import Gap
    from ttamer.fitted.promise import Kind, Promise
    from ttamer.fitted.replay import Played
    from ttamer.fitted.sessions import FittedSession
    from ttamer.policy.batch import Batch
    from ttamer.policy.future import Expected, Future
    from ttamer.problem.problem import Problem
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

__all__ = ["FittedLadder", "FittedPolicy"]

MAJORITY_SHARE = 0.5
"""From this share on, the more expensive policy of a mixture decides most inputs."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FittedPolicy(Policy):
    """One policy of a fit: a solved policy and the model that gives its states.

    The tables (``index``, ``choice``, ``equivalent_loss``, ``future``, ``batch``) are those of the
    solved policy, over the problem of the fit.

    >>> from ttamer import datasets, fit
    >>> trace = datasets.load("minilm-imdb").take(slice(500))
    >>> policy = fit(trace, belief="calibrated", states=4).at(0.9)
    >>> policy.spec.names, len(policy.play(trace).answer)
    (('layer1', 'layer2', 'layer3', 'layer4', 'layer5', 'full'), 500)
    """

    policy: SolvedPolicy
    """The solved policy."""
    fitted: Model
    """What all policies of the fit share."""
    error: float | None = None
    """The expected error on new rows, by cross-fitting."""
    cost: float | None = None
    """The expected cost per input on new rows, in the cascade's units."""

    @classmethod
    def of(cls, policy: Policy, fitted: Model, rung: Rung | None = None) -> FittedPolicy:
        """Join a solved policy with a fitted model.

        Args:
            policy: A policy that a solver gave for the problem of the fit.
            fitted: The model of the fit.
            rung: What to expect of it on new rows.

        Returns:
            A policy that decides from confidences and predictions.

        Raises:
            ArgumentError: The policy is of another kind.
        """
        if not isinstance(policy, SolvedPolicy):
            raise ArgumentError(
                f"a fitted policy needs a policy that a solver gave, not a {type(policy).__name__}"
            )
        return cls(
            problem=policy.problem,
            tradeoff=policy.tradeoff,
            value=policy.value,
            recall=policy.recall,
            policy=policy,
            fitted=fitted,
            error=None if rung is None else rung.error,
            cost=None if rung is None else rung.cost,
        )

    def __repr__(self) -> str:
        names = ", ".join(self.fitted.spec.names)
        return f"FittedPolicy({names}; {self.described}, {self.fitted.setting} {self.setting})"

    def _repr_html_(self) -> str:
        return policy_card("Policy", self)

    @property
    def described(self) -> str:
        """What it costs and how often it errs, in words."""
        return described(self.cost, self.error, self.fitted.measure)

    @property
    def setting(self) -> str:
        """Its tradeoff, or its threshold, in few digits."""
        return f"{self.tradeoff:.{6 if self.fitted.has_thresholds else 3}g}"

    @cached_property
    def single_node(self) -> str | None:
        """The only node that is ever asked; ``None`` where a second node may be asked."""
        first: set[int] = set()
        seen: list[tuple[int, ...]] = [()]
        while seen:
            states = seen.pop()
            turn = self.policy.session()
            for state in states:
                turn.observe(state)
            place = turn.number
            if place < 0:
                continue
            step = self.fitted.steps[place]
            if step and any(self.fitted.steps[turn.problem.index_of(name)] for name in turn.asked):
                return None
            first.update(step)
            if len(first) > 1:
                return None
            seen += [(*states, state) for state in range(len(turn.problem.nodes[place].losses))]
        return self.spec.names[first.pop()]

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.fitted.spec

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace.

        Args:
            trace: Rows of the same cascade.

        Returns:
            The nodes asked and the node that answers, row by row.
        """
        states = self.fitted.states(trace)
        self.fitted.warn_of(trace)
        return states.play(self.policy)

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        signals: Mapping[str, float] | None = None,
    ) -> FittedSession:
        """Start deciding for one input.

        Args:
            max_cost: No node is asked that would take the cost above this.
            key: Only mixtures use it; here it is ignored.
            signals: What is known before any node is asked, where the policy was fitted with
                signals.

        Returns:
            A session that takes confidences and predictions.
        """
        del key
        turn = self.fitted.session(self.policy, signals)
        return turn if max_cost is None else CappedSession(turn, max_cost)

    def index(self, node: str) -> NDArray[np.float64]:
        """Return the dynamic index of a node of the problem, weighed.

        Args:
            node: The name of a node of ``problem``.

        Returns:
            Shape (states of the parent,); one entry for a root.

        Raises:
            ArgumentError: There is no such node, or it has no index of its own.
        """
        return self.policy.index(node)

    def choice(self, after: str | None = None) -> NDArray[np.int32]:
        """Return the routing table after a node of the problem.

        Args:
            after: The name of the node of the problem asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns): the number of the node to ask next, or -1
            to stop.

        Raises:
            ArgumentError: There is no such node.
        """
        return self.policy.choice(after)

    def equivalent_loss(self, after: str | None = None) -> NDArray[np.float64]:
        """Return the expected loss and further cost after a node of the problem, weighed.

        Args:
            after: The name of the node of the problem asked last; ``None`` for the start.

        Returns:
            Shape (states of ``after``, columns), as :meth:`choice`.

        Raises:
            ArgumentError: There is no such node.
        """
        return self.policy.equivalent_loss(after)

    def future(self, after: str | None = None, state: int = 0, best: float = np.inf) -> Future:
        """Return the joint law of the best future loss and the future cost.

        Args:
            after: The name of the node of the problem asked last; ``None`` for the start.
            state: The number of the state in which that node was observed.
            best: The best loss so far, in the problem's units; ``inf`` for none yet.

        Returns:
            The law, in the problem's units.

        Raises:
            ArgumentError: There is no such node, state or loss, or the cost takes too many
                distinct values.
        """
        return self.policy.future(after, state, best)

    def batch(self, size: int) -> Batch:
        """Start deciding for many inputs at once, by states of the problem.

        Args:
            size: The number of inputs.

        Returns:
            A batch at the start.

        Raises:
            ArgumentError: The size is negative.
        """
        return self.policy.batch(size)

    @property
    def _expected(self) -> tuple[Expected, NDArray[np.float64]]:
        return self.policy._expected


@dataclass(frozen=True, eq=False, repr=False)
class FittedLadder(Ladder):
    """The policies of a fit, in increasing order of tradeoff.

    >>> from ttamer import datasets, fit
    >>> ladder = fit(datasets.load("minilm-imdb").take(slice(500)), belief="calibrated", states=4)
    >>> len(ladder), ladder.at(0.9) is ladder[ladder.tradeoffs.index(ladder.at(0.9).tradeoff)]
    (48, True)
    """

    policies: tuple[FittedPolicy, ...]
    rungs: Rungs | None = None
    """What each policy does on rows it was not fitted to, by cross-fitting."""
    held: HeldOut | None = None
    """What they do on rows held out, on which promises are tested."""
    promises: tuple[Promise, ...] = ()
    """The promises made so far: they are saved with the ladder."""
    held_rows: Trace | None = None
    """The rows held out, while they are in memory: a file keeps what promises need of them."""
    cautious: Cautious | None = None
    """On exits of one network, policies that differ little from the last exit, for ``for_drop``.
    They are numbered from ``len(ladder)`` on."""

    @classmethod
    def of(
        cls,
        ladder: Ladder,
        fitted: Model,
        rungs: Rungs | None = None,
        held: HeldOut | None = None,
        promises: tuple[Promise, ...] = (),
    ) -> FittedLadder:
        """Join the solved policies of a ladder with a fitted model.

        Args:
            ladder: The policies that a solver gave.
            fitted: The model of the fit.
            rungs: Estimates of what each policy does on new rows.
            held: Counts on rows held out.
            promises: Promises made before.

        Returns:
            A ladder of fitted policies.
        """
        policies = tuple(FittedPolicy.of(policy, fitted) for policy in ladder)
        bare = cls(policies, None, held, promises)
        return bare if rungs is None else bare.with_rungs(rungs)

    def with_rungs(self, rungs: Rungs) -> FittedLadder:
        """Return the ladder with other estimates of what its policies do on new rows.

        Args:
            rungs: One estimate for each policy.

        Returns:
            The same ladder; each policy has its ``error`` and ``cost``.
        """
        policies = tuple(
            dataclasses.replace(policy, error=rung.error, cost=rung.cost)
            for policy, rung in zip(self, rungs, strict=True)
        )
        return dataclasses.replace(self, policies=policies, rungs=rungs)

    @property
    def fitted(self) -> Model:
        """What all policies share."""
        return self.policies[0].fitted

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.fitted.spec

    @property
    def tested(self) -> tuple[int, ...]:
        """The policies whose mixtures promises are tested on, by number, the cheapest first.

        They are the corners of the frontier. Thresholds are all tested, since they may be tested on
        the rows that the frontier was measured on.
        """
        return self.require_rungs().tested(every=self.fitted.has_thresholds)

    def __iter__(self) -> Iterator[FittedPolicy]:
        return iter(self.policies)

    def __getitem__(self, rung: int) -> FittedPolicy:
        return self.policies[rung]

    def rung(self, number: int) -> FittedPolicy:
        """Return a policy by the number that a mix has for it.

        Args:
            number: From 0; the policies of the ladder come first, then the cautious ones.

        Returns:
            The policy.

        Raises:
            ArgumentError: There is no such policy.
        """
        if 0 <= number < len(self):
            return self[number]
        cautious, place = self.cautious, number - len(self)
        if cautious is None or not 0 <= place < len(cautious):
            raise ArgumentError(f"this ladder has no policy of number {number}")
        problem, model = self._cautious_parts
        rung = Rung(float(cautious.errors[place]), float(cautious.costs[place]))
        return FittedPolicy.of(cautious.policy(place, problem), model, rung)

    @cached_property
    def _cautious_parts(self) -> tuple[Problem, BeliefModel]:
        """The problem and the model that cautious policies share."""
        model, cautious = self.fitted, self.cautious
        if cautious is None or not isinstance(model, BeliefModel):
            raise ArgumentError("this ladder has no cautious policies")
        name, error = model.spec.names[-1], float(cautious.errors[-1])
        return cautious_problem(self[0].problem, name, error), cautious_model(model)

    def __repr__(self) -> str:
        plan = self.fitted.plan
        return (
            f"FittedLadder({counted(len(self), 'policy')}, {', '.join(self.fitted.spec.names)}; "
            f"belief {plan.get('belief')}, order {plan.get('order')}, {plan.get('states')} states, "
            f"{counted(self.fitted.rows, 'row')})"
        )

    def _repr_html_(self) -> str:
        if self.rungs is None:
            return card(repr(self), notes=["no estimates of what its policies do on new rows"])
        corners = self.rungs.corners
        rows = [
            [
                number(float(self.rungs.costs[rung])),
                shown_error(float(self.rungs.errors[rung]), self.fitted.measure),
                self[rung].setting,
            ]
            for rung in corners[:: -(-len(corners) // MAX_ROWS)]
        ]
        head = ["cost per input", self.fitted.measure, self.fitted.setting]
        return card(repr(self), head=head, rows=rows, drawing=self.plot())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Drawing:
        """Draw the error (or mean loss) against the cost of its policies, and of each node alone.

        Args:
            path: Where to write the drawing, if anywhere.

        Returns:
            The text of an SVG file; notebooks show it as a picture.

        Raises:
            ArgumentError: If the ladder has no estimates.
        """
        rungs = self.require_rungs()
        corners = list(rungs.corners)
        curve = (rungs.costs[corners].tolist(), rungs.errors[corners].tolist())
        marks = {}
        if rungs.node_errors is not None:
            alone = self.spec.answer_costs(self.spec.costs).tolist()
            marks = {
                f"{name} alone": (cost, error)
                for name, cost, error in zip(
                    self.spec.names, alone, rungs.node_errors.tolist(), strict=True
                )
            }
        labels = ("cost per input", self.fitted.measure)
        share = self.fitted.measure == "error"
        return draw_curves({"policies": curve}, *labels, marks=marks, y_percent=share).written(path)

    def at(self, tradeoff: float) -> FittedPolicy:
        """Return the policy solved for the nearest tradeoff; the lower one if two are as near.

        Args:
            tradeoff: From 0, the cheapest answer, to 1, the best answer whatever it costs. With
                ``belief="threshold"`` it is the threshold.

        Returns:
            One policy of the ladder.

        Raises:
            ArgumentError: The tradeoff is not from 0 to 1.
        """
        return self.policies[self.rung_at(tradeoff)]

    def for_mistake_cost(self, cost: float, *, price: float = 1.0) -> FittedPolicy:
        """Return the policy that minimises ``cost of mistakes + cost of asking``.

        Args:
            cost: What one wrong answer, or one unit of loss, costs, in the cascade's units.
            price: What asking costs on this input, as a multiple of its mean on the fit rows:
                with prices by token, the tokens of the prompt over their mean number.

        Returns:
            The policy solved for the nearest such cost, on a scale of ratios. It is the policy of
            tradeoff ``m / (m + price * full_cost)``, m being the cost times ``fitted.loss_unit``.
            Of thresholds, which are not solved for, the one of least cost on the rows.

        Raises:
            ArgumentError: The cost or the price is not positive and finite.
        """
        for name, value in (("mistake_cost", cost), ("price", price)):
            if not is_number(value) or not (isfinite(value) and value > 0):
                raise ArgumentError(f"{name} is {value!r}; it must be a finite number above 0")
        if self.fitted.has_thresholds:
            rungs = self.require_rungs()
            return self[int((cost * rungs.errors + price * rungs.costs).argmin())]
        wanted = log(cost * self.fitted.loss_unit / self.fitted.full_cost) - log(price)
        inside = [policy for policy in self if 0 < policy.tradeoff < 1]
        if not inside:  # the ends alone: mistakes count for nothing, or for everything
            return self[-1 if wanted > 0 else 0]
        return min(inside, key=lambda policy: abs(log(_odds(policy.tradeoff)) - wanted))

    def default(self, *, seed: int = 0) -> Mixture:
        """Return the cheapest mixture whose expected error is not above the best node's.

        The best node is the one with the lowest error by itself on the fit rows. Where it is
        cheaper than any such mixture, or none is expected to err as little, it is used alone.

        Args:
            seed: The seed of the mixture's draws.

        Returns:
            A mixture of two policies of the ladder, or of one; or the best node alone
            (``single_node`` names it).

        Raises:
            ArgumentError: The ladder has no estimates.
        """
        best, mix = self._default_mix()
        rungs = self.require_rungs()
        errors, costs = rungs.node_errors, rungs.node_costs
        if errors is not None and costs is not None and not self.spec.has_passing:
            worse = rungs.error_of(mix) > errors[best] + 1e-9 * self.fitted.loss_unit
            if worse or rungs.cost_of(mix) > costs[best]:
                one = self.alone(self.spec.names[best])
                return Mixture(one, one, 1.0, seed, error=one.error, cost=one.cost)
        return self.mixed(mix, seed=seed)

    def _default_mix(self) -> tuple[int, Mix]:
        """Return the node of least error, and the cheapest mix expected to err no more."""
        errors = self.require_rungs().node_errors
        if errors is None:
            raise ArgumentError(
                "this ladder has no record of each node's own error, so it has no default policy: "
                "choose one by tradeoff, budget or mistake cost, or fit it again with ttamer.fit"
            )
        best = int(errors.argmin())
        return best, self.require_rungs().for_error(float(errors[best]))

    def alone(self, node: str) -> FittedPolicy:
        """Return the policy that returns the answer of one node, whatever it is.

        Nodes that must be asked before it are asked too. Where the node fails, the others are asked
        until one answers: separate models by their error, the lowest first, others in their order.

        Args:
            node: The name of a node of the cascade.

        Returns:
            A policy with the node's error and cost on the fit rows.

        Raises:
            ArgumentError: There is no such node, exits may be passed, or the ladder has no record
                of each node.

        >>> from ttamer import datasets, fit
        >>> ladder = fit(datasets.load("langid", "fit").take(slice(500)))
        >>> ladder.alone("fasttext").single_node
        'fasttext'
        """
        rungs, place = self.require_rungs(), self.spec.index_of(node)
        if rungs.node_errors is None or rungs.node_costs is None or self.spec.has_passing:
            raise ArgumentError(
                "this ladder has no policy of one node: its file has no record of each node's cost "
                "(fit it again with ttamer.fit), or its exits may be passed (use its last policy)"
            )
        policy, model = alone(self.fitted, place, rungs.node_errors)
        rung = Rung(float(rungs.node_errors[place]), float(rungs.node_costs[place]))
        return FittedPolicy.of(policy, model, rung)

    def for_budget(self, cost: float, *, seed: int = 0) -> Mixture:
        """Return the mixture of least expected error whose expected cost is the budget.

        Two neighbouring policies are mixed: each input is given to one of them, drawn by the seed
        and the key of the input (``policy.session(key=...)``).

        Args:
            cost: The mean cost per input, in the cascade's units.
            seed: The seed of the draws.

        Returns:
            A mixture of two policies of the ladder.

        Raises:
            ArgumentError: No policy is that cheap, or the ladder has no estimates.
        """
        if not is_number(cost) or cost != cost:
            raise ArgumentError(f"cost is {cost!r}; it must be a number")
        return self.mixed(self.require_rungs().for_budget(cost), seed=seed)

    def for_latency(self, *, p95: float) -> FittedPolicy:
        """Return the policy of least expected error that answers within a time on 95% of inputs.

        Nodes are asked one after another, so a row takes the sum of the latencies of the nodes
        asked. A policy qualifies if an upper bound on the 95% quantile, with confidence 0.95 for
        each policy, is at most ``p95``. Policies are not mixed: the quantile of a mixture may be
        that of its slower part.

        Args:
            p95: The time that 95% of inputs may take, in the unit of ``<node>.latency``.

        Returns:
            One policy of the ladder; of equal errors, the cheapest.

        Raises:
            ArgumentError: If the fit rows have no latencies, or no policy is that fast.
        """
        if not is_number(p95):
            raise ArgumentError(f"p95 is {p95!r}; it must be a number")
        rungs = self.require_rungs()
        if rungs.latencies is None:
            raise ArgumentError(
                "the rows fitted to have no latencies: add columns <node>.latency to the trace, "
                "and fit it again"
            )
        bounds = rungs.latencies[:, 2]
        fast = np.flatnonzero(bounds <= p95)
        if not fast.size:
            raise ArgumentError(
                f"no policy of this ladder answers 95% of inputs within {p95:g}: the fastest takes "
                f"{bounds.min():g} (an upper bound); give at least that"
            )
        return self[int(min(fast, key=lambda rung: (rungs.errors[rung], rungs.costs[rung])))]

    def for_error(
        self, at_most: float, *, confidence: float = 0.95, on: Trace | None = None, seed: int = 0
    ) -> Mixture:
        """Return the cheapest mixture whose error is certified to be at most this.

        It is tested on the rows held out from the fit (``hold_out``), or on those given. Where it
        cannot be certified, the most cautious policy is returned; its ``promise`` records that, and
        how many rows would be enough.

        Args:
            at_most: The error that is promised.
            confidence: The chance with which the promise holds, at least.
            on: Rows to test on that the ladder was not fitted to.
            seed: The seed of the mixture's draws.

        Returns:
            A mixture with its ``promise``.

        Raises:
            ArgumentError: There are no rows to test on, or a number is out of range.
        """
        return self._promised("error", at_most, confidence, self._held(on, None), seed)

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

        On exits of one network, against the last one, it is a mixture of cautious policies: they
        stop where the last exit would hardly differ, and return its own answer once it is asked.

        Args:
            at_most: The difference of errors that is promised.
            against: ``"last"``, the last node; ``"best"``, the node with the lowest error by itself
                on the fit rows; or any node's name.
            confidence: The chance with which the promise holds, at least.
            on: Rows to test on that the ladder was not fitted to.
            seed: The seed of the mixture's draws.

        Returns:
            A mixture with its ``promise``; all else as for :meth:`for_error`.

        Raises:
            ArgumentError: There are no rows to test on, or a number is out of range.
        """
        return self._promised("drop", at_most, confidence, self._held(on, against), seed)

    def gap(
        self, *, confidence: float = 0.95, tradeoff: float | None = None, on: Trace | None = None
    ) -> Gap:
        """Return how far a policy is, at most, above the best policy of its class.

        The class holds every policy that looks at the nodes asked so far and at the state of the
        fit. Costs are those of the rows; what latency is worth to a fit is not counted.
        What is assumed, and why the bound holds, is stated at the top of ``fitted/gap.py``.

        Args:
            confidence: The chance with which the bound holds, at least.
            tradeoff: Of the policy; by default that of the policy which decides most inputs of
                the cheapest mixture expected to err no more than the best node.
            on: Rows that the ladder was not fitted to; by default those held out by the fit, while
                they are in memory.

        Returns:
            The bound, its two sides, and what would make it smaller.

        Raises:
            ArgumentError: There are no such rows, a number is out of range, or the states of the
                fit do not hold the best answer so far.

        >>> from ttamer import datasets, fit
        >>> trace = datasets.load("minilm-imdb").take(slice(2000))
        >>> ladder = fit(trace, hold_out=0.5, belief="calibrated", states=4)
        >>> 0 < ladder.gap(tradeoff=0.8).bound < 0.2
        True
        """
        if self.fitted.has_thresholds:
            raise ArgumentError(
                "a gap compares a policy with the best one for its tradeoff, and thresholds have "
                'none: fit with another belief than "threshold"'
            )
        rows = self.held_rows if on is None else on
        if rows is None:
            raise ArgumentError(
                "a gap needs rows the ladder was not fitted to, and a file keeps only counts of "
                "those held out: give rows (on=trace), or fit with hold_out=0.2"
            )
        if tradeoff is None:
            _, mix = self._default_mix()
            policy = self[mix.expensive if mix.share >= MAJORITY_SHARE else mix.cheap]
        else:
            policy = self.at(tradeoff)
        rows = rows.with_verification()
        refuse_fitted_rows(self, rows, "a gap")
        return gap_of(policy, rows, confidence=confidence)

    def with_holdout(self, trace: Trace) -> FittedLadder:
        """Return the ladder with what it does on held-out rows, for promises.

        Args:
            trace: Rows that the ladder was not fitted to.

        Returns:
            The same ladder with counts of these rows.

        Raises:
            ArgumentError: If these are the fit rows, or there are none.
        """
        return dataclasses.replace(self, held=self._held(trace, None), held_rows=trace)

    def with_promise(self, policy: Mixture) -> FittedLadder:
        """Return the ladder with a mixture's promise in it, to be saved and checked again.

        Args:
            policy: A mixture that :meth:`for_error` or :meth:`for_drop` gave.

        Returns:
            The same ladder with one more promise.

        Raises:
            ArgumentError: The mixture has no promise.
        """
        if policy.promise is None:
            raise ArgumentError("this mixture has no promise: make one with for_error or for_drop")
        return dataclasses.replace(self, promises=(*self.promises, policy.promise))

    def mixture_for(self, promise: Promise, *, seed: int = 0) -> Mixture:
        """Return the mixture that a promise is about.

        Args:
            promise: One of ``promises``.
            seed: The seed of the draws.

        Returns:
            The mixture, with the promise.
        """
        return dataclasses.replace(self.mixed(promise.mix, seed=seed), promise=promise)

    def mixed(self, mix: Mix, *, seed: int = 0) -> Mixture:
        """Return two policies of the ladder as a mixture.

        Args:
            mix: The two rungs, and the share of the more expensive one.
            seed: The seed of the draws.

        Returns:
            The mixture, with its expected error and cost.
        """
        rungs, numbers = self.require_rungs(), mix
        if self.cautious is not None and mix.cheap >= len(self):
            rungs = Rungs(self.cautious.errors, self.cautious.costs)
            numbers = Mix(mix.cheap - len(self), mix.expensive - len(self), mix.share)
        return Mixture(
            self.rung(mix.cheap),
            self.rung(mix.expensive),
            mix.share,
            seed,
            error=rungs.error_of(numbers),
            cost=rungs.cost_of(numbers),
        )

    def require_rungs(self) -> Rungs:
        """Return the estimates of what each policy does on new rows.

        Returns:
            The expected errors and costs, one per policy.

        Raises:
            ArgumentError: The ladder has none.
        """
        if self.rungs is None:
            raise ArgumentError(
                "this ladder has no estimates of what its policies do on new rows, so it cannot "
                "choose by budget or error: fit it again with ttamer.fit"
            )
        return self.rungs

    def _held(self, on: Trace | None, against: str | None) -> HeldOut:
        node = None if against is None else self._node(against)
        if on is not None:
            held = HeldOut.of(self, on, against=node)
            self.fitted.warn_of(on.with_verification())
            return held
        if self.held is None:
            raise ArgumentError(
                "a promise needs rows the ladder was not fitted to: hold some out of the fit "
                "(hold_out=0.2; ttamer fit --hold-out 0.2), give others (on=trace; ttamer "
                'certify POLICY TRACE), or fit with belief="threshold", which needs no others'
            )
        return self.held if node is None else self.held.compared_with(node)

    def _node(self, against: str) -> str:
        """Return the name of the node to compare with."""
        names = self.spec.names
        if against in names:
            return against
        if against == "last":
            return names[-1]
        if against != "best":
            raise ArgumentError(
                f"against is {against!r}; it must be 'last', 'best' or one of {', '.join(names)}"
            )
        errors = self.require_rungs().node_errors
        if errors is None:
            raise ArgumentError(
                "this ladder has no record of each node's own error: name the node to compare "
                "with, or fit it again with ttamer.fit"
            )
        return names[int(errors.argmin())]

    def _promised(
        self, kind: Kind, at_most: float, confidence: float, held: HeldOut, seed: int
    ) -> Mixture:
        return self.mixture_for(make_promise(held, kind, at_most, confidence), seed=seed)

    def play_all(self, trace: Trace) -> Iterator[Played]:
        """Play every policy on a trace, computing its states once.

        Args:
            trace: Rows of the same cascade.

        Returns:
            What each policy does, in the order of the ladder.
        """
        states = self.fitted.states(trace)
        return (states.play(policy.policy) for policy in self)


def _odds(tradeoff: float) -> float:
    """Return what a unit of loss weighs in units of the full model's cost."""
    return tradeoff / (1 - tradeoff)
