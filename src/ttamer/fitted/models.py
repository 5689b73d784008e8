"""Fitted models: what turns the answers of nodes into states of a policy's problem.

A model is what all policies of a fit share. There are two: :class:`ConfidenceModel`, where the
state of a node is the bin of its confidence, and :class:`BeliefModel`, where the state after a step
is the bin of X (see :mod:`ttamer.fitted.belief`). Both give :class:`States` for a trace, which any
policy of the fit plays, and sessions for single inputs.

The problem of a fit measures costs in shares of ``full_cost``, so its tradeoffs do not depend on
the unit of cost: the objective is ``tradeoff * loss + (1 - tradeoff) * cost / full_cost``. Where
answers have losses, losses are measured in shares of ``loss_scale`` alike.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError, TraceWarning
from ttamer.fitted.belief import Scorer, signal_values
from ttamer.fitted.replay import Played, play_states
from ttamer.fitted.sessions import BeliefSession, ConfidenceSession
from ttamer.policy.index import IndexPolicy
from ttamer.policy.session import LastAnswerSession
from ttamer.policy.walk import WalkPolicy
from ttamer.trace.checks import require_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Signals, Step
    from ttamer.fitted.quantiser import Quantiser
    from ttamer.fitted.sessions import FittedSession
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Measure, Trace

__all__ = ["BeliefModel", "ConfidenceModel", "Model", "SolvedPolicy", "States", "Visits"]

MAX_NAMED = 2
"""A warning shows the ranges of at most this many nodes."""
SolvedPolicy = IndexPolicy | WalkPolicy
"""A policy that a solver gives: tables over the places of a problem."""


@dataclass(frozen=True, eq=False)
class States:
    """T rows as a fitted model sees them: a state and an owner at each place of the problem.

    A place is a node of the problem: a node of the cascade, or a step of a belief.
    """

    found: NDArray[np.uint8]
    """Shape (T, places): the state of each row at each place."""
    owner: NDArray[np.intp]
    """Shape (T, places): the node of the cascade whose answer is the best at that place."""
    members: NDArray[np.bool_]
    """Shape (places, n): the nodes of the cascade that have been asked at each place."""

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.intp] | None, NDArray[np.intp]]:
        """One row of each kind, and the kind of each row; no rows where most are distinct."""
        rows, places = self.found.shape
        nothing = np.empty(0, np.intp)
        if places > 8 or not rows:
            return None, nothing
        packed = np.zeros((rows, 8), np.uint8)
        packed[:, :places] = self.found
        _, first, same = np.unique(
            packed.view(np.uint64)[:, 0], return_index=True, return_inverse=True
        )
        return (first, same) if 2 * len(first) < rows else (None, nothing)

    def visit(self, policy: SolvedPolicy) -> Visits:
        """Play a policy of the fit on these rows.

        Args:
            policy: A solved policy over the places.

        Returns:
            The places visited, and what that means for the nodes of the cascade.
        """
        first, same = self._distinct
        answer, path, last = play_states(policy, self.found if first is None else self.found[first])
        if first is not None:
            answer, path, last = answer[same], path[same], last[same]
        rows = np.arange(len(answer))
        owner = self.owner[rows, answer]
        if (self.members.sum(axis=1) == 1).all():  # places are nodes of the cascade
            columns = self.members.argmax(axis=1)
            asked = np.zeros((len(rows), self.members.shape[1]), bool)
            asked[:, columns] = path
            return Visits(answer, path, Played(owner, asked, columns[last]))
        before = path.copy()
        before[rows, last] = False
        earlier = before @ self.members
        new = (self.members[last] & ~earlier).argmax(axis=1)
        return Visits(answer, path, Played(owner, earlier | self.members[last], new))

    def play(self, policy: SolvedPolicy) -> Played:
        """Return what a policy of the fit does on these rows, in nodes of the cascade."""
        return self.visit(policy).played


@dataclass(frozen=True, eq=False)
class Visits:
    """The places of the problem that a policy visits on each of T rows."""

    answer: NDArray[np.intp]
    """Shape (T,): the place whose answer is returned."""
    path: NDArray[np.bool_]
    """Shape (T, places): the places visited."""
    played: Played
    """The same in nodes of the cascade."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(ABC):
    """What all policies of a fit share, and where it comes from."""

    spec: CascadeSpec
    """The cascade it was fitted for."""
    plan: Mapping[str, Any]
    """The choices of the fit, as plain values."""
    trace_digest: str
    """The digest of the fit rows."""
    rows: int
    """How many rows it was fitted to."""
    full_cost: float
    """What the full model (the last exit, or the most expensive node) costs per input on these
    rows: the unit of cost of the problem."""
    loss_scale: float | None = None
    """The unit of loss of the problem, where answers have losses: the largest loss. ``None`` where
    answers are right or wrong."""
    steps: tuple[Step, ...]
    """The nodes of the cascade that have been asked at each place of the problem."""

    @property
    def has_thresholds(self) -> bool:
        """Whether its policies are thresholds on the confidence, set before any row was seen."""
        return self.plan.get("belief") == "threshold"

    @property
    def setting(self) -> str:
        """What its policies differ in: their tradeoff, or their threshold."""
        return "threshold" if self.has_thresholds else "tradeoff"

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns beside the confidence that its policies read, by node; empty for most."""
        return {}

    @property
    def columns_read(self) -> list[str]:
        """The same as names of a trace's columns, such as ``small.margin``."""
        return [f"{node}.{name}" for node, names in self.reads.items() for name in names]

    @property
    @abstractmethod
    def _bins(self) -> Quantiser:
        """What cuts the confidences of each node of the cascade into bins."""

    def warn_of(self, trace: Trace) -> None:
        """Warn where a trace lacks columns that the policies read, or has other confidences.

        Args:
            trace: Rows of the same cascade.
        """
        missing = [
            f"{node}.{name}"
            for node, names in self.reads.items()
            for name in names
            if name not in trace.extras
            or np.isnan(trace.extras[name][:, trace.names.index(node)]).all()
        ]
        if missing:
            warnings.warn(
                f"the policy reads {', '.join(missing)}, and the trace lacks them: such answers "
                "are judged by their confidence alone",
                TraceWarning,
                stacklevel=3,
            )
        if rescaled := self._bins.rescaled(trace.confidence):
            found = "; ".join(self._ranges(node, trace) for node in rescaled[:MAX_NAMED])
            if len(rescaled) > MAX_NAMED:
                found += f"; and {len(rescaled) - MAX_NAMED} more"
            warnings.warn(
                f"confidences are on another scale than in the fit ({found}): give them on the "
                "scale of the fit, or fit again to rows like these",
                TraceWarning,
                stacklevel=3,
            )

    def _ranges(self, node: int, trace: Trace) -> str:
        """Return from where to where the confidences of a node are, in a trace and in the fit."""
        values, edges = trace.confidence[:, node], self._bins.edges[node]
        return (
            f"{trace.names[node]!r}: {values.min():.4g} to {values.max():.4g}, in the fit about "
            f"{edges[0]:.4g} to {edges[-1]:.4g}"
        )

    @property
    def measure(self) -> Measure:
        """What its policies are measured by: the error, or the mean loss."""
        return "error" if self.loss_scale is None else "mean loss"

    @property
    def loss_unit(self) -> float:
        """One unit of the problem's losses: 1 where answers are right or wrong."""
        return 1.0 if self.loss_scale is None else self.loss_scale

    @abstractmethod
    def states(self, trace: Trace) -> States:
        """Return the states of the rows of a trace.

        Args:
            trace: Rows of the same cascade.

        Returns:
            States that every policy of the fit can play.

        Raises:
            ArgumentError: The trace has other nodes, or lacks signals.
        """

    @abstractmethod
    def session(
        self, policy: SolvedPolicy, signals: Mapping[str, float] | None = None
    ) -> FittedSession:
        """Start deciding for one input.

        Args:
            policy: A solved policy of this fit.
            signals: What is known before any node is asked.

        Returns:
            A session that takes confidences and predictions.
        """

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Shape (places, n): the nodes of the cascade that have been asked at each place."""
        members = np.zeros((len(self.steps), len(self.spec)), bool)
        for place, step in enumerate(self.steps):
            members[place, list(step)] = True
        return members

    def _check(self, trace: Trace) -> None:
        """Refuse a trace of other nodes."""
        require_trace(trace, "a replay")
        if trace.names != self.spec.names:
            raise ArgumentError(
                f"the policy was fitted for {', '.join(self.spec.names)}, and the trace has "
                f"{', '.join(trace.names)}: use the same cascade.toml for both"
                + ("; trace.with_verification()" if trace.spec.has_verify_costs else "")
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class ConfidenceModel(Model):
    """States are bins of each node's own confidence: every belief but ``"full"``."""

    quantiser: Quantiser
    """Edges per node of the cascade, in the cascade's order."""

    @property
    def _bins(self) -> Quantiser:
        return self.quantiser

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """For each node of the problem, its number in the cascade."""
        return tuple(node for (node,) in self.steps)

    def states(self, trace: Trace) -> States:
        """Return the bin of each node's confidence, in the problem's order."""
        self._check(trace)
        columns = np.array(self.columns)
        found = self.quantiser.states(trace.confidence)[:, list(self.columns)]
        return States(found, np.broadcast_to(columns, found.shape), self.members)

    def session(
        self, policy: SolvedPolicy, signals: Mapping[str, float] | None = None
    ) -> ConfidenceSession:
        """Start deciding for one input, on confidence alone: signals are not used."""
        del signals
        return ConfidenceSession(self, policy.session())


@dataclass(frozen=True, eq=False, kw_only=True)
class BeliefModel(Model):
    """States are bins of X, the chance that the best answer so far is wrong: ``belief="full"``."""

    belief: Belief
    edges: tuple[NDArray[np.float64], ...]
    """Per step, increasing log-odds that separate the states of X."""
    classes: tuple[str, ...]
    """The classes of the fit rows, in the order of the belief's codes."""

    @property
    def _bins(self) -> Quantiser:
        return self.belief.quantiser

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns beside the confidence that the belief reads, by node; empty for most."""
        return {self.spec.names[node]: own.names for node, own in self.belief.extras.items()}

    def states(self, trace: Trace) -> States:
        """Return the state and the owner of X after each step."""
        self._check(trace)
        signals = self.belief.signals
        known = None if signals is None else signal_values(trace, signals.names)
        seen = self.belief.evidence(trace.confidence, self.predictions(trace), known, trace.extras)
        found = np.empty((len(trace), len(self.steps)), np.uint8)
        owner = np.zeros(found.shape, np.intp)
        for k, step in enumerate(self.steps):
            if step:
                least, owner[:, k] = self.belief.least(seen, step)
                state = self.belief.state(seen, step, least, owner[:, k])
            else:
                state = _router_logit(signals, known)
            found[:, k] = np.searchsorted(self.edges[k], state, side="right")
        return States(found, owner, self.members)

    def states_at(
        self,
        place: int,
        confidence: NDArray[np.float64],
        predictions: NDArray[np.int32],
        known: NDArray[np.float64] | None,
        extras: Mapping[str, NDArray[np.float64]] | None,
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the states of rows after one step, and the owners of their best answers.

        Args:
            place: The number of the step; only the columns of its nodes are used.
            confidence: Shape (T, n), finite.
            predictions: Shape (T, n), in the belief's codes; -1 is no answer.
            known: Shape (T, k): the signals, if the fit has them.
            extras: Shape (T, n) each: the columns that the belief reads, NaN where not given.
        """
        step, signals = self.steps[place], self.belief.signals
        if not step:
            state, owner = _router_logit(signals, known), np.full(len(confidence), -1)
        else:
            answers = predictions if self.belief.has_predictions else None
            seen = self.belief.evidence(confidence, answers, known, extras)
            least, owner = self.belief.least(seen, step)
            state = self.belief.state(seen, step, least, owner)
        return np.searchsorted(self.edges[place], state, side="right"), owner

    def session(
        self, policy: SolvedPolicy, signals: Mapping[str, float] | None = None
    ) -> BeliefSession:
        """Start deciding for one input."""
        if not isinstance(policy, WalkPolicy) or policy.recall:
            raise ArgumentError(
                "a policy on beliefs is a walk without recall, since recall is inside X: use a "
                "policy of this fit"
            )
        return BeliefSession(self, LastAnswerSession(policy), signals)

    @cached_property
    def scorer(self) -> Scorer:
        """The belief laid out for one input at a time."""
        return Scorer(self.belief, self.steps, self.edges)

    @cached_property
    def codes(self) -> dict[str, int]:
        """The belief's code of each class."""
        return {name: code for code, name in enumerate(self.classes)}

    def predictions(self, trace: Trace) -> NDArray[np.int32] | None:
        """Return a trace's predictions in the belief's own codes; new classes get new codes."""
        if not self.belief.has_predictions:
            return None
        if trace.prediction is None:
            return np.full(trace.confidence.shape, -1, np.int32)
        if trace.classes == self.classes:
            return trace.prediction
        known = self.codes
        codes = [known.get(name, len(known) + new) for new, name in enumerate(trace.classes)]
        return np.array([*codes, -1], np.int32)[trace.prediction]


def _router_logit(
    signals: Signals | None, known: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return the router logit of every row."""
    if signals is None or known is None:
        raise ArgumentError("this policy has a router and no signals to route by: fit it again")
    return signals.router_logit(known)
