"""Fitted policies: a solved policy with what turns an observation into a state.

They decide for traces (:meth:`FittedPolicy.play`) and for single inputs
(:meth:`FittedPolicy.session`), from confidences as the models give them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError, ObservationError
from ttamer.fitted.capped import CappedSession
from ttamer.fitted.held_out import HeldOut
from ttamer.fitted.mixture import Mixture
from ttamer.fitted.promise import make_promise
from ttamer.fitted.replay import Played
from ttamer.fitted.replay_states import play_states

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.belief_model import BeliefFitted, BeliefSession
    from ttamer.fitted.promise import Kind, Promise
    from ttamer.fitted.quantiser import Quantiser
    from ttamer.fitted.rungs import Mix, Rungs
    from ttamer.policy.base import Ladder, Policy
    from ttamer.policy.session import Explanation, Session
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

__all__ = ["Fitted", "FittedLadder", "FittedPolicy", "FittedSession"]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What every policy of a fit shares, and where it comes from."""

    spec: CascadeSpec
    quantiser: Quantiser
    """Edges per node of the cascade, in the cascade's order."""
    columns: tuple[int, ...]
    """For each node of the problem, its place in the cascade."""
    plan: Mapping[str, Any]
    trace_digest: str
    rows: int

    def states(self, trace: Trace) -> NDArray[np.uint8]:
        """Return the states of a trace, of shape (T, nodes), in the problem's order."""
        if trace.names != self.spec.names:
            raise ArgumentError(
                f"the policy was fitted for {', '.join(self.spec.names)}, and the trace has "
                f"{', '.join(trace.names)}: use the same cascade.toml for both"
            )
        return self.quantiser.states(trace.confidence)[:, list(self.columns)]

    def session(self, policy: Policy, signals: Mapping[str, float] | None = None) -> FittedSession:
        """Start deciding for one input, on confidence alone: signals are passed over."""
        del signals
        return FittedSession(self, policy.session())

    def played(self, policy: Policy, states: NDArray[np.uint8]) -> Played:
        """Play a policy on states, and number the nodes as the cascade does."""
        answer, asked, last = play_states(policy, states)
        columns = np.array(self.columns)
        theirs = np.empty_like(asked)
        theirs[:, columns] = asked
        return Played(columns[answer], theirs, columns[last])


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    """One policy of a fit."""

    policy: Policy
    fitted: Fitted | BeliefFitted

    def __repr__(self) -> str:
        names = ", ".join(self.fitted.spec.names)
        return f"FittedPolicy({names}; tradeoff={self.policy.tradeoff:g})"

    @property
    def spec(self) -> CascadeSpec:
        """The cascade it was fitted for."""
        return self.fitted.spec

    @property
    def tradeoff(self) -> float:
        """The tradeoff it was solved for."""
        return self.policy.tradeoff

    def play(self, trace: Trace) -> Played:
        """Decide for every row of a trace."""
        states: Any = self.fitted.states(trace)
        return self.fitted.played(self.policy, states)

    def session(
        self,
        *,
        max_cost: float | None = None,
        key: str | int | None = None,
        signals: Mapping[str, float] | None = None,
    ) -> FittedSession | BeliefSession | CappedSession:
        """Start deciding for one input.

        With ``max_cost`` nobody is asked who would take the cost above it. ``signals`` are what is
        known before anybody is asked, where the policy was fitted with them. ``key`` matters to
        mixtures alone, and is taken so that all policies can be told the same things.
        """
        del key
        turn = self.fitted.session(self.policy, signals)
        return turn if max_cost is None else CappedSession(turn, max_cost)


@dataclass(frozen=True, eq=False)
class FittedLadder:
    """The policies of a fit, in increasing order of tradeoff."""

    ladder: Ladder
    fitted: Fitted | BeliefFitted
    rungs: Rungs | None = None
    """What each policy does on rows it was not fitted to, by cross-fitting."""
    held: HeldOut | None = None
    """What they did on rows held out, on which promises are tested."""
    promises: tuple[Promise, ...] = ()
    """The promises made so far: they are saved with the ladder."""

    def __len__(self) -> int:
        return len(self.ladder)

    def __iter__(self) -> Iterator[FittedPolicy]:
        return (FittedPolicy(policy, self.fitted) for policy in self.ladder)

    def __getitem__(self, rung: int) -> FittedPolicy:
        return FittedPolicy(self.ladder[rung], self.fitted)

    def __repr__(self) -> str:
        plan = self.fitted.plan
        return (
            f"FittedLadder({len(self)} policies, {', '.join(self.fitted.spec.names)}; belief "
            f"{plan.get('belief')}, order {plan.get('order')}, {plan.get('states')} states, "
            f"{self.fitted.rows} rows)"
        )

    def at(self, tradeoff: float) -> FittedPolicy:
        """Return the policy solved for the nearest tradeoff."""
        return FittedPolicy(self.ladder.at(tradeoff), self.fitted)

    def for_budget(self, cost: float, *, seed: int = 0) -> Mixture:
        """Return what errs least at so much cost per input, in expectation exactly.

        Two neighbouring policies are mixed: each input is given to one of them, drawn by the seed
        and the key of the input (``policy.session(key=...)``).
        """
        rungs = self.require_rungs()
        return self._mixed(rungs.for_budget(cost), seed)

    def for_error(
        self, at_most: float, *, confidence: float = 0.95, on: Trace | None = None, seed: int = 0
    ) -> Mixture:
        """Return the cheapest mixture whose error is at most so much, with this confidence.

        It is tested on the rows held out from the fit (``hold_out``), or on those given. Where the
        promise cannot be certified, the safest policy is returned and its ``promise`` says so, and
        how many rows would do.
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
        """Return the cheapest mixture that errs at most so much more than a node does by itself.

        ``against`` is ``"last"``, the last node, or with rows given (``on``) any node's name; all
        else as for :meth:`for_error`.
        """
        return self._promised("drop", at_most, confidence, self._held(on, against), seed)

    def tested(self, trace: Trace) -> FittedLadder:
        """Return the ladder with what it did on rows it was not fitted to, for promises."""
        return dataclasses.replace(self, held=HeldOut.of(self, trace))

    def promising(self, policy: Mixture) -> FittedLadder:
        """Return the ladder with a mixture's promise kept in it, to be saved and checked again."""
        if policy.promise is None:
            raise ArgumentError("this mixture has no promise: make one with for_error or for_drop")
        return dataclasses.replace(self, promises=(*self.promises, policy.promise))

    def keeping(self, promise: Promise, *, seed: int = 0) -> Mixture:
        """Return the mixture that a promise is about."""
        return dataclasses.replace(self._mixed(promise.mix, seed), promise=promise)

    def require_rungs(self) -> Rungs:
        """Return what is known of the rungs, or say that nothing is."""
        if self.rungs is None:
            raise ArgumentError(
                "this ladder does not know what its policies do on new rows, so it cannot be asked "
                "by budget or error: fit it again with ttamer.fit"
            )
        return self.rungs

    def _mixed(self, mix: Mix, seed: int) -> Mixture:
        rungs = self.require_rungs()
        return Mixture(
            self[mix.cheap],
            self[mix.dear],
            mix.share,
            seed,
            error=rungs.error_of(mix),
            cost=rungs.cost_of(mix),
        )

    def _held(self, on: Trace | None, against: str | None) -> HeldOut:
        last = self.fitted.spec.names[-1]
        node = last if against in (None, "last") else against
        if on is not None:
            return HeldOut.of(self, on, against=node)
        if self.held is None:
            raise ArgumentError(
                "a promise needs rows the ladder was not fitted to: fit with hold_out=0.2, or give "
                "some to test on (on=trace)"
            )
        if against is not None and node != self.held.against:
            raise ArgumentError(
                f"the rows held out were compared with {self.held.against!r}; to compare with "
                f"{node!r}, give rows to test on (on=trace)"
            )
        return self.held

    def _promised(
        self, kind: Kind, at_most: float, confidence: float, held: HeldOut, seed: int
    ) -> Mixture:
        return self.keeping(make_promise(held, kind, at_most, confidence), seed=seed)

    def play_all(self, trace: Trace) -> Iterator[Played]:
        """Play every policy on a trace, quantising it once."""
        states: Any = self.fitted.states(trace)
        return (self.fitted.played(policy, states) for policy in self.ladder)


class FittedSession:
    """One input's way through a fitted policy.

    ::

        turn = policy.session()
        while turn.next is not None:
            turn.observe(confidence=...)     # what turn.next said
        turn.answer                          # whose answer to return
    """

    __slots__ = ("_fitted", "_session", "unclear")

    def __init__(self, fitted: Fitted, session: Session) -> None:
        self._fitted = fitted
        self._session = session
        self.unclear = 0
        """How many observations were not a number, and counted as the least sure state."""

    def __repr__(self) -> str:
        return f"FittedSession(next={self.next!r}, answer={self.answer!r})"

    def observe(self, *, confidence: float, prediction: object = None) -> None:
        """Say how sure ``next`` was of its answer, and move on.

        These policies decide on confidence alone; ``prediction`` is taken so that all sessions
        can be told the same things.
        """
        del prediction
        session = self._session
        if session.next is None:
            raise ObservationError("the session has stopped: start a new one")
        column = self._fitted.columns[session.number]
        try:
            state = self._fitted.quantiser.state(column, confidence)
        except TypeError:
            raise ObservationError(
                f"node {session.next!r}: confidence must be a number, not {confidence!r}"
            ) from None
        self.unclear += confidence != confidence
        session.observe(state)

    def fail(self) -> None:
        """Say that ``next`` was asked and gave no answer, and move on."""
        self._session.fail()

    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy says."""
        self._session.start_with(self._session.names.index(node))

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and what each costs."""
        names = self._session.names
        return {names[node]: cost for node, cost in self._session.starts.items()}

    @property
    def price(self) -> float:
        """What asking ``next`` costs, in the cascade's units; 0 once stopped."""
        return self._session.price

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        return self._session.next

    @property
    def stopped(self) -> bool:
        """Whether to ask nobody else."""
        return self._session.stopped

    @property
    def answer(self) -> str | None:
        """Whose answer to return."""
        return self._session.answer

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return self._session.asked

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units."""
        return self._session.cost

    def explain(self) -> Explanation:
        """Say why the session stands where it stands."""
        return self._session.explain()
