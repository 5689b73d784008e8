"""Policies on beliefs: what a fit on beliefs shares, and a session that believes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ttamer.errors import ArgumentError, ObservationError, TraceError
from ttamer.fitted.belief import LIFT
from ttamer.fitted.replay import Played
from ttamer.fitted.replay_states import play_states
from ttamer.fitted.scorer import Scorer
from ttamer.fitted.signals import signal_values
from ttamer.policy.session import Explanation, LastAnswerSession
from ttamer.stats.logistic import sigmoid
from ttamer.trace.classes import class_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Step
    from ttamer.fitted.signals import Signals
    from ttamer.policy.base import Policy
    from ttamer.policy.walk import WalkPolicy
    from ttamer.trace.spec import CascadeSpec
    from ttamer.trace.trace import Trace

__all__ = ["BeliefFitted", "BeliefSession"]


@dataclass(frozen=True, eq=False)
class BeliefFitted:
    """What every policy of a fit on beliefs shares, and where it comes from."""

    spec: CascadeSpec
    belief: Belief
    steps: tuple[Step, ...]
    """The nodes asked at each node of the problem."""
    edges: tuple[NDArray[np.float64], ...]
    """Per step, how X becomes a state."""
    classes: tuple[str, ...]
    """The classes the belief knows, in the order of its codes."""
    plan: Mapping[str, Any]
    trace_digest: str
    rows: int

    def states(self, trace: Trace) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
        """Return the state and the owner of X on every row, shape (T, steps) each."""
        if trace.names != self.spec.names:
            raise ArgumentError(
                f"the policy was fitted for {', '.join(self.spec.names)}, and the trace has "
                f"{', '.join(trace.names)}: use the same cascade.toml for both"
            )
        signals = self.belief.signals
        known = None if signals is None else signal_values(trace, signals.names)
        seen = self.belief.evidence(trace.confidence, self._said(trace), known)
        found = np.empty((len(trace), len(self.steps)), np.uint8)
        owner = np.zeros(found.shape, np.intp)
        for k, step in enumerate(self.steps):
            if step:
                least, owner[:, k] = self.belief.least(seen, step)
            else:
                least = _router_state(signals, known)
            found[:, k] = np.searchsorted(self.edges[k], least, side="right")
        return found, owner

    def session(self, policy: Policy, signals: Mapping[str, float] | None = None) -> BeliefSession:
        """Start deciding for one input."""
        return BeliefSession(self, LastAnswerSession(cast("WalkPolicy", policy)), signals)

    @cached_property
    def scorer(self) -> Scorer:
        """The belief laid out for one input at a time."""
        return Scorer(self.belief, self.steps, self.edges)

    @cached_property
    def codes(self) -> dict[str, int]:
        """The belief's code of each class it knows."""
        return {name: code for code, name in enumerate(self.classes)}

    def _said(self, trace: Trace) -> NDArray[np.int32] | None:
        """Return predictions in the belief's own codes; classes it does not know get new ones."""
        if not self.belief.knows_predictions:
            return None
        if trace.prediction is None:
            return np.full(trace.confidence.shape, -1, np.int32)
        if trace.classes == self.classes:
            return trace.prediction
        known = self.codes
        codes = [known.get(name, len(known) + new) for new, name in enumerate(trace.classes)]
        return np.array([*codes, -1], np.int32)[trace.prediction]

    def played(self, policy: Policy, states: tuple[NDArray[np.uint8], NDArray[np.intp]]) -> Played:
        """Play a policy on states, and say whom it asked and whose answer it returns."""
        found, owner = states
        step, path, _ = play_states(policy, found)
        members = np.zeros((len(self.steps), len(self.spec.names)), bool)
        for k, nodes in enumerate(self.steps):
            members[k, list(nodes)] = True
        before = path.copy()
        before[np.arange(len(step)), step] = False
        earlier = before @ members
        last = (members[step] & ~earlier).argmax(axis=1)
        return Played(owner[np.arange(len(step)), step], earlier | members[step], last)


def _router_state(
    signals: Signals | None, known: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    if signals is None or known is None:
        raise ArgumentError("this policy has a router and no signals to route by: fit it again")
    return signals.doubt(known)


class BeliefSession:
    """One input's way through a policy on beliefs.

    ::

        turn = policy.session()
        while turn.next is not None:
            turn.observe(confidence=..., prediction=...)   # what turn.next said
        turn.answer                                        # whose answer to return
    """

    __slots__ = ("_asked", "_failed", "_fitted", "_lean", "_least", "_odds", "_owner", "_said",
                 "_session", "_step", "_unknown", "unclear")  # fmt: skip

    def __init__(
        self,
        fitted: BeliefFitted,
        session: LastAnswerSession,
        signals: Mapping[str, float] | None = None,
    ) -> None:
        count = len(fitted.spec.names)
        self._fitted = fitted
        self._session = session
        self._asked: list[int] = []
        self._odds = [0.0] * count
        self._lean = [0.0] * count
        self._said = [-1] * count
        self._unknown: dict[str, int] = {}
        self._owner = -1
        self._least = float("inf")
        self._failed: tuple[int, ...] = ()
        self._step = -1
        self.unclear = 0
        """How many confidences were not a number, and counted as the least sure; and how many
        signals were not known, and told nothing."""
        known = fitted.belief.signals
        if known is not None:
            self._lean, doubt, self.unclear = known.told(signals or {})
            router = session.number
            if not fitted.steps[router]:
                session.observe(fitted.scorer.state(router, doubt))

    def __repr__(self) -> str:
        return f"BeliefSession(next={self.next!r}, answer={self.answer!r})"

    def observe(self, *, confidence: float, prediction: object = None) -> None:
        """Say what ``next`` answered and how sure it was, and move on.

        A prediction is compared as text with the other nodes' and with those fitted to. Without one
        the node counts as having given no answer, where the fit knew predictions.
        """
        node = self._next_node()
        if node < 0:
            raise ObservationError("the session has stopped: start a new one")
        try:
            value = float(0.0 + confidence)  # a number, and not the text of one
        except (TypeError, ValueError, OverflowError):
            raise ObservationError(
                f"node {self.next!r}: confidence must be a number, not {confidence!r}"
            ) from None
        fitted, scorer = self._fitted, self._fitted.scorer
        try:
            text = class_text(prediction)
        except TraceError as error:
            raise ObservationError(f"node {self.next!r}: {error}") from None
        self.unclear += value != value
        self._odds[node] = scorer.odds(node, value)
        if text is not None:
            known = fitted.codes
            new = len(known) + len(self._unknown)  # a class of its own, for this input
            code = known[text] if text in known else self._unknown.setdefault(text, new)
            self._said[node] = code
            self._lean[node] += scorer.leans[node].get(code, 0.0)
        self._asked.append(node)
        step = self._step = self._session.number
        self._least, self._owner = scorer.least(
            step, self._odds, self._lean, self._said, self._failed
        )
        self._session.observe(scorer.state(step, self._least))

    def fail(self) -> None:
        """Say that ``next`` was asked and gave no answer, and move on.

        What is known of the answers in hand stays as it was.
        """
        node = self._next_node()
        if node < 0:
            raise ObservationError("the session has stopped: start a new one")
        scorer = self._fitted.scorer
        step = self._step = self._session.number
        self._odds[node] = scorer.odds(node, float("nan"))
        self._failed = (*self._failed, node)
        self._asked.append(node)
        self._session.observe(scorer.state(step, self._least))
        if self._owner < 0:
            self._session.go_on()

    def start_with(self, node: str) -> None:
        """Ask this one of ``starts`` first, whatever the policy says."""
        number = self._fitted.spec.names.index(node)
        self._session.start_with(self._fitted.steps.index((number,)))

    @property
    def starts(self) -> dict[str, float]:
        """The nodes that may be asked first, and what each costs."""
        spec, steps = self._fitted.spec, self._fitted.steps
        first = [steps[step] for step in self._session.starts]
        if first == [()]:  # a router comes before them
            first = [step for step in steps if len(step) == 1]
        return {spec.names[step[0]]: self._fare(-1, step[0]) for step in first}

    def _next_node(self) -> int:
        step = self._session.number
        if step < 0:
            return -1
        return next(v for v in self._fitted.steps[step] if v not in self._asked)

    @property
    def next(self) -> str | None:
        """The node to ask now; ``None`` once stopped."""
        node = self._next_node()
        return None if node < 0 else self._fitted.spec.names[node]

    @property
    def stopped(self) -> bool:
        """Whether to ask nobody else."""
        return self._session.stopped

    @property
    def answer(self) -> str | None:
        """Whose answer to return."""
        return None if self._owner < 0 else self._fitted.spec.names[self._owner]

    @property
    def asked(self) -> tuple[str, ...]:
        """The nodes asked, in order."""
        return tuple(self._fitted.spec.names[node] for node in self._asked)

    @property
    def cost(self) -> float:
        """What they cost, in the cascade's units."""
        spec = self._fitted.spec
        last = self._asked[-1] if self._asked else -1
        passed = [node for node in range(last) if node not in self._asked]
        return float(spec.costs[self._asked].sum() + spec.passing[passed].sum())

    @property
    def price(self) -> float:
        """What asking ``next`` costs, in the cascade's units; 0 once stopped."""
        node = self._next_node()
        return 0.0 if node < 0 else self._fare(self._asked[-1] if self._asked else -1, node)

    def _fare(self, last: int, node: int) -> float:
        return self._fitted.spec.step_cost(last, node)

    def _chance(self) -> str:
        """Say how likely the answer in hand is wrong."""
        chance = float(sigmoid(np.array(self._least)))
        return f"the answer of {self.answer!r} is wrong with chance {chance:.2%}"

    def explain(self) -> Explanation:
        """Say why the session stands where it stands."""
        inner = self._session.explain()
        if not self._asked:
            why = f"there is no answer yet: ask {self.next!r}"
        elif self.next is not None:
            on = f"asking on comes to {inner.index:.4g}, its {inner.best:.4g} is more"
            why = f"{self._chance()}; {on}: ask {self.next!r}"
        elif inner.index == float("inf"):
            why = f"no node is left to ask: answer with {self.answer!r}"
        else:
            on = f"asking on would come to {inner.index:.4g}, its {inner.best:.4g} is no more"
            why = f"{self._chance()}; {on}: stop"
        return Explanation(
            self.next, self.answer, inner.best, inner.index, why, self.price, self.beliefs
        )

    @property
    def beliefs(self) -> dict[str, float]:
        """The chance that each answer in hand is wrong, the likeliest right first.

        An answer that several nodes gave is judged once: by the one likeliest right, or where the
        belief has no terms for classes, by the one of them that errs least.
        """
        if self._step < 0:
            return {}
        names = self._fitted.spec.names
        odds = self._fitted.scorer.every(
            self._step, self._odds, self._lean, self._said, self._failed
        )
        chances = {v: float(sigmoid(np.array(x))) for v, x in odds.items() if x < LIFT / 2}
        judged: dict[str, float] = {}
        codes: set[int] = set()
        for v in sorted(chances, key=chances.__getitem__):
            if self._said[v] not in codes:
                judged[names[v]] = chances[v]
            codes |= {self._said[v]} - {-1}
        return judged
