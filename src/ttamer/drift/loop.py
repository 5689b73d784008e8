"""The drift loop: monitor, re-fit, certify, shadow, and swap, or stay with the fallback policy.

::

    watching --alarm--> suspected --enough rows--> refitting --> certifying --> shadowing
        ^          (the fallback policy is active)     ^             |              |
        |                                              '--more rows--+--------------+--> fallback
        '----------------------------- swapped <------------------------------------'

The loop takes audited rows, on which every node was asked, in the order of the traffic, and decides
which policy serves. It uses no clock, file or server, so a gateway and a replay run the same code.
:meth:`Loop.update` may take seconds when it re-fits, and :meth:`Loop.hold` and
:meth:`Loop.roll_back` wait for it: call them in a thread.

From the alarm until a new policy is certified the last node answers everything
(:class:`~ttamer.drift.fallback.AskLast`). The new policy is fitted to rows after the estimated time
of the change, certified on other rows that came after the alarm, and decides further rows in the
shadow before it serves. Once there are twice as many rows it is fitted again, while the current
policy serves: more rows certify a cheaper policy. The attempts after one alarm share the level of
one promise (the k-th has a part of 1 / (k (k + 1))), so together they break the promise with a
probability of at most 1 - confidence. After ``attempts`` failed attempts the fallback policy stays
active until an operator acts.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from threading import RLock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_kind
from ttamer.drift.audits import joined
from ttamer.drift.decisions import decide
from ttamer.drift.fallback import AskLast
from ttamer.drift.monitor import Alarm, Bound, Monitor
from ttamer.drift.settings import LoopSettings
from ttamer.drift.worker import failure_text
from ttamer.errors import ArgumentError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture, shown_error
from ttamer.fitting.promises import Promise, check_promise
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace

LoopState = Literal[
    "watching", "suspected", "refitting", "certifying", "shadowing", "swapped", "fallback"
]
EventKind = Literal[
    "alarm",
    "fallback",
    "refit",
    "certified",
    "not certified",
    "swap",
    "rejected",
    "give up",
    "hold",
    "release",
    "roll back",
    "retry",
    "reset",
]

# The number of events that a loop keeps.
MAX_EVENTS = 1000
# The number of events in a status.
MAX_STATUS_EVENTS = 20
# The factor by which the rows must grow before the next attempt after a failed one.
GROWTH = 1.5
# The factor by which the rows must grow before the next attempt after a swap.
REFRESH_GROWTH = 2.0


@dataclass(frozen=True)
class Event:
    """One step of the loop.

    >>> print(Event(1200, "suspected", "alarm", "error 9.00%, promised at most 5.00%"))
    row 1200: suspected: error 9.00%, promised at most 5.00%
    """

    number: int
    """The row of the traffic at which it happened."""
    state: LoopState
    """The state of the loop after it."""
    kind: EventKind
    """What happened."""
    text: str
    """The reason, in a sentence."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it."""
    time: float | None = None
    """The time in seconds since 1970; ``None`` without a clock."""

    def __str__(self) -> str:
        return f"row {self.number}: {self.state}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON.

        Returns:
            The fields by name.
        """
        return asdict(self)

    def to_line(self) -> str:
        """Return one line of JSON.

        Returns:
            The line, without a line feed.
        """
        return json.dumps(self.to_dict())


@dataclass(frozen=True, eq=False)
class CertifiedServing:
    """A fitted policy that serves or served, with its ladder, its promise and its reference rows.

    ``promise.certified`` is whether it could be certified.

    >>> import ttamer as tt
    >>> from ttamer.drift import LoopSettings
    >>> before = tt.datasets.load("minilm-imdb", "fit")
    >>> fitted, held = before.split(0.6, seed=0)
    >>> serving = serving_of(tt.fit(fitted), held, LoopSettings(at_most=0.15))
    >>> type(serving).__name__, serving.reference is held
    ('CertifiedServing', True)
    """

    policy: FittedPolicy | Mixture
    ladder: FittedLadder
    promise: Promise
    reference: Trace
    """Rows that the policy was not fitted to, drawn like the traffic it is meant for."""

    def __str__(self) -> str:
        return str(self.policy)


@dataclass(frozen=True, eq=False)
class FallbackServing:
    """The fallback policy: the last node answers everything.

    >>> from ttamer.drift import AskLast
    >>> from ttamer.trace import CascadeSpec
    >>> print(FallbackServing(AskLast(CascadeSpec.of({"small": 1.0, "large": 9.0}))))
    the fallback policy (large answers)
    """

    policy: AskLast

    def __str__(self) -> str:
        return f"the fallback policy ({self.policy.spec.names[-1]} answers)"


# A policy that serves, or served, and where it comes from.
Serving = CertifiedServing | FallbackServing


def serving_of(ladder: FittedLadder, reference: Trace, settings: LoopSettings) -> CertifiedServing:
    """Return the cheapest policy of a ladder that keeps the promise in the settings.

    >>> import ttamer as tt
    >>> from ttamer.drift import LoopSettings
    >>> before = tt.datasets.load("minilm-imdb", "fit")
    >>> fitted, held = before.split(0.6, seed=0)
    >>> serving = serving_of(tt.fit(fitted), held, LoopSettings(at_most=0.15))
    >>> serving.promise.certified
    True

    Args:
        ladder: The policies to choose from.
        reference: Rows that the ladder was not fitted to; the policy is certified on them.
        settings: The promise.

    Returns:
        The policy with its promise. Where no policy can be certified, ``promise.certified`` is
        false, and the policy is the most expensive of the ladder.

    Raises:
        ArgumentError: Where the ladder was fitted to the reference, or it has no rows.
    """
    require_kind(ladder, FittedLadder, "serving_of needs a ladder", "give the result of ttamer.fit")
    require_trace(reference, "serving_of")
    policy, promise = _certified(ladder, reference, settings, settings.confidence)
    return CertifiedServing(policy, ladder.with_promise(policy), promise, reference)


def _certified(
    ladder: FittedLadder, rows: Trace, settings: LoopSettings, confidence: float
) -> tuple[Mixture, Promise]:
    """Return the cheapest mixture that keeps the promise of the settings, tested on rows."""
    at_most, seed = settings.at_most, settings.seed
    if settings.kind == "error":
        policy = ladder.for_error(at_most, confidence=confidence, on=rows, seed=seed)
    else:
        policy = ladder.for_drop(
            at_most,
            against=settings.against or rows.names[-1],
            confidence=confidence,
            on=rows,
            seed=seed,
        )
    assert policy.promise is not None  # noqa: S101 - made with it
    return policy, policy.promise


class Loop:
    """Keeps a policy fitted to the current traffic.

    >>> import ttamer as tt
    >>> from ttamer.drift import LoopSettings
    >>> before = tt.datasets.load("minilm-imdb", "fit")
    >>> fitted, held = before.split(0.6, seed=0)
    >>> settings = LoopSettings(at_most=0.15)
    >>> loop = Loop(serving_of(tt.fit(fitted), held, settings), settings)
    >>> loop.state
    'watching'

    Args:
        serving: The policy that serves at first, with its reference rows.
        settings: The promise, and how many rows the loop waits for.
        swap: Called with the policy that serves from now on.
        notify: Called with every event. What ``swap`` or ``notify`` raises is raised again once the
            step that called it is complete.
        refit: The function from rows to a ladder.
        clock: The time in seconds since 1970, for the events.

    Raises:
        ArgumentError: Where the reference rows cannot be used.
    """

    def __init__(
        self,
        serving: CertifiedServing,
        settings: LoopSettings,
        *,
        swap: Callable[[Serving], None] = lambda _: None,
        notify: Callable[[Event], None] = lambda _: None,
        refit: Callable[[Trace], FittedLadder] = fit,
        clock: Callable[[], float] | None = None,
    ) -> None:
        require_kind(
            serving, CertifiedServing, "a loop needs a CertifiedServing", "give that of serving_of"
        )
        self.settings = settings
        self.state: LoopState = "watching"
        self.serving: Serving = serving
        """The policy that serves."""
        self.former: Serving | None = None
        """The policy that served before."""
        self.held = False
        """Whether an operator holds the loop."""
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        """The most recent events, the oldest first."""
        self.number = -1
        """The number of the last row taken, in the traffic."""
        self.audited = 0
        """The number of audited rows taken."""
        self._new_events: list[Event] = []
        self._callback_errors: list[Exception] = []
        self._lock = RLock()
        self._swap, self._notify, self._refit, self._clock = swap, notify, refit, clock
        self._against = settings.against or serving.reference.names[-1]
        self._fallback = FallbackServing(AskLast(serving.reference.spec))
        self._rows: deque[Trace] = deque()
        self._numbers: deque[list[int]] = deque()
        self._kept = 0
        self._monitor = self._monitor_of(serving)
        self._before_alarm: Serving | None = None
        self._candidate: CertifiedServing | None = None
        self._shadow: list[Trace] = []
        self._shadow_keys: list[str | int] = []
        self._change: int | None = None
        self._alarm_at = 0
        self._attempt = self._failed = 0
        self._needed = 0

    @property
    def policy(self) -> FittedPolicy | Mixture | AskLast:
        """The policy that serves."""
        return self.serving.policy

    @property
    def candidate(self) -> CertifiedServing | None:
        """The policy in the shadow."""
        return self._candidate

    @property
    def monitor(self) -> Monitor:
        """The tests of the policy that serves, or that served before the alarm."""
        return self._monitor

    @property
    def change(self) -> int | None:
        """The row of the traffic at which the last change is estimated to have happened."""
        return self._change

    @property
    def rows_since_change(self) -> int:
        """The number of audited rows kept since the last change."""
        return 0 if self._change is None else self._count_from(self._change)

    @property
    def rows_in_shadow(self) -> int:
        """The number of audited rows that the policy in the shadow has decided."""
        return len(self._shadow_keys)

    @property
    def rows_needed(self) -> int:
        """The number of audited rows since the change that the next re-fit waits for."""
        return self._needed

    def update(
        self, rows: Trace, numbers: Sequence[int], keys: Sequence[str | int] | None = None
    ) -> list[Event]:
        """Take audited rows in their order.

        Args:
            rows: The rows.
            numbers: Their numbers in the traffic, increasing.
            keys: The keys that a mixture draws by (the requests' ids); by default the numbers.

        Returns:
            The events that the rows caused.

        Raises:
            ArgumentError: Where the rows are of other nodes, the numbers do not increase, or
                numbers or keys are not as many as the rows.
        """
        require_trace(rows, "Loop.update")
        nodes = self._fallback.policy.spec.names
        if rows.names != nodes:
            raise ArgumentError(
                f"the loop is for the nodes {', '.join(nodes)}, and the rows have "
                f"{', '.join(rows.names)}"
            )
        for what, given in (("numbers", numbers), ("keys", numbers if keys is None else keys)):
            if len(given) != len(rows):
                raise ArgumentError(f"there are {len(rows)} rows and {len(given)} {what}")
        with self._step():
            self._new_events = []
            if len(rows):
                places = [int(number) for number in numbers]
                if any(b <= a for a, b in pairwise([self.number, *places])):
                    raise ArgumentError(
                        "rows must come in the order of the traffic, each number above the one "
                        f"before ({self.number}); these run from {places[0]} to {places[-1]}"
                    )
                self._update(rows, places, places if keys is None else keys)
            return list(self._new_events)

    def hold(self, reason: str = "held by an operator") -> None:
        """Change nothing from now on; testing and notifying continue.

        Args:
            reason: The text of the event.
        """
        self.held = True  # at once, even during an update
        with self._step():
            self._record("hold", reason)

    def release(self, reason: str = "released by an operator") -> None:
        """Continue after a hold.

        Args:
            reason: The text of the event.
        """
        with self._step():
            self.held = False
            self._record("release", reason)

    def roll_back(self, reason: str = "rolled back by an operator") -> None:
        """Restore the former policy, and hold; :meth:`release` continues.

        Args:
            reason: The beginning of the event's text.

        Raises:
            ArgumentError: Where there is no former policy.
        """
        with self._step():
            if self.former is None:
                raise ArgumentError("there is no former policy to roll back to")
            self._candidate = None
            self._serve(self.former)
            self.held = True
            if isinstance(self.serving, CertifiedServing):
                self._monitor = self._monitor_of(self.serving)
                self.state = "watching"
            else:
                self._wait_for_rows()
            self._record("roll back", f"{reason}: {self.serving} serves; the loop is held")

    def retry(self, reason: str = "retried by an operator") -> None:
        """Try again on the rows since the change, after the loop gave up.

        Args:
            reason: The text of the event.

        Raises:
            ArgumentError: Where the state is not ``"fallback"``.
        """
        with self._step():
            if self.state != "fallback":
                raise ArgumentError(
                    f'the loop is in state "{self.state}"; it can retry in state "fallback" only'
                )
            self._wait_for_rows()  # the attempts still share one level
            self._record("retry", reason)

    def fall_back(self, reason: str = "requested by an operator") -> None:
        """Let the fallback policy serve until a policy is fitted to rows from now on.

        Args:
            reason: The beginning of the event's text.
        """
        with self._step():
            self._suspect(self.number + 1, self.number + 1)
            self._serve_fallback(reason)

    def reset(
        self, serving: CertifiedServing, reason: str = "another policy was installed"
    ) -> None:
        """Serve and monitor another policy; the history of the former one is dropped.

        Args:
            serving: The policy, with its reference rows.
            reason: The beginning of the event's text.
        """
        with self._step():
            self._monitor = self._monitor_of(serving)
            self._candidate = self._before_alarm = self._change = None
            self._serve(serving)
            self.former = None
            self.state = "watching"
            self._record("reset", f"{reason}: {serving} serves")

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Hold the lock; raise what a callback raised at the end, when the state is whole."""
        with self._lock:
            yield
            if self._callback_errors:
                errors, self._callback_errors = self._callback_errors, []
                raise errors[0]

    def _call(self, callback: Callable[[Any], None], argument: object) -> None:
        """Call a function of the user's; what it raises must not leave a step half done."""
        try:
            callback(argument)
        except Exception as error:
            self._callback_errors.append(error)

    def _update(self, rows: Trace, numbers: list[int], keys: Sequence[str | int]) -> None:
        """Take audited rows that were checked."""
        self.number = numbers[-1]
        self.audited += len(rows)
        self._keep(rows, numbers)
        if self.state in ("watching", "shadowing") and isinstance(self.serving, CertifiedServing):
            alarm = self._monitor.update(decide(self.policy, rows, keys), numbers)
            if alarm is not None:
                self._raise_alarm(alarm, self.serving)
        if self.state == "shadowing" and self._candidate is not None:
            if len(self._shadow_keys) < self.settings.shadow_rows:  # a held loop may wait for long
                self._shadow.append(rows)
                self._shadow_keys += keys
            if len(self._shadow_keys) >= self.settings.shadow_rows and not self.held:
                self._judge(self._candidate)
        elif (
            self.state in ("suspected", "watching")
            and not self.held
            and self._change is not None
            and self._needed <= min(self.rows_since_change, self.settings.window)
            and self._count_from(self._alarm_at) >= round(self.settings.hold_out * self._needed)
        ):
            self._attempt_refit(self._change)

    def _raise_alarm(self, alarm: Alarm, serving: CertifiedServing) -> None:
        """Fall back after an alarm; only record it where the loop is held."""
        if self.held:
            self._monitor = self._monitor_of(serving)
            text = f"{alarm.text}; nothing is changed because the loop is held"
            self._record("alarm", text, alarm.to_dict())
            return
        self._suspect(alarm.change, alarm.number + 1)
        text = f"{alarm.text}; estimated change at row {alarm.change}"
        self._record("alarm", text, alarm.to_dict())
        self._serve_fallback()

    def _suspect(self, change: int, alarm_at: int) -> None:
        """Wait for rows to fit, from the change on."""
        self._change, self._alarm_at = change, alarm_at
        self._attempt = 0
        self._candidate = None
        self._wait_for_rows()

    def _wait_for_rows(self) -> None:
        """Wait for as many rows as a first attempt needs."""
        self.state, self._failed = "suspected", 0
        self._needed = self.settings.refit_rows

    def _serve_fallback(self, reason: str = "") -> None:
        """Let the fallback policy serve, if it does not already."""
        if isinstance(self.serving, CertifiedServing):
            self._before_alarm = self.serving
            self._serve(self._fallback)
        text = f"{self.serving} serves until a policy for this traffic is found"
        self._record("fallback", f"{reason}: {text}" if reason else text)

    def _attempt_refit(self, change: int) -> None:
        """Fit to rows after the change, and certify on others."""
        settings = self.settings
        window, numbers = self._rows_from(change)
        count = len(window)
        self._attempt += 1
        self.state = "refitting"
        later = np.flatnonzero(numbers >= self._alarm_at)
        cut = round(settings.hold_out * count)
        drawn = np.random.default_rng([settings.seed, self._attempt, count]).permutation(later)
        is_held_out = np.isin(np.arange(count), drawn[:cut])
        held, fitted = window.take(is_held_out), window.take(~is_held_out)
        self._record("refit", f"fitting {len(fitted)} of {count} audited rows since the change")
        try:
            ladder = self._refit(fitted)
            self.state = "certifying"
            level = (1 - settings.confidence) / (self._attempt * (self._attempt + 1))
            policy, promise = _certified(ladder, held, settings, 1 - level)
        except Exception as error:  # such as a full disk: the loop must not stay in this state
            text = f"these rows cannot be fitted: {failure_text(error)}"
            self._attempt_failed(count, text, {})
            return
        facts = {"attempt": self._attempt, "promise": promise.to_dict()}
        if promise.certified:
            self._candidate = CertifiedServing(policy, ladder.with_promise(policy), promise, held)
            self._shadow, self._shadow_keys = [], []
            self.state = "shadowing"
            self._record("certified", f"{promise}; the policy is in the shadow", facts)
            return
        self._attempt_failed(count, f"{promise}", facts)

    def _judge(self, candidate: CertifiedServing) -> None:
        """Compare the policy in the shadow with the one that serves, and swap if it is better."""
        rows = joined(self._shadow)
        new = decide(candidate.policy, rows, self._shadow_keys)
        current = decide(self.policy, rows, self._shadow_keys)
        ladder = candidate.ladder
        checked = check_promise(
            candidate.promise, ladder.held_rows(rows), len(ladder), ladder.spec.names
        )
        facts = {
            "rows": len(rows),
            "error": new.mean_loss,
            "cost": float(new.cost.mean()),
            "serving_error": current.mean_loss,
            "serving_cost": float(current.cost.mean()),
            "same_answer": float((new.answer == current.answer).mean()),
        }
        mine, theirs = (
            shown_error(facts[name], rows.measure) for name in ("error", "serving_error")
        )
        measured = (
            f"on {counted(len(rows), 'row')} in the shadow {rows.measure} {mine} at cost "
            f"{facts['cost']:.4g}; the policy that serves has {theirs} at "
            f"{facts['serving_cost']:.4g}"
        )
        self._candidate, self._shadow, self._shadow_keys = None, [], []
        if checked.refuted:
            text = f"{measured}: the promise is broken there"
            self._attempt_failed(self.rows_since_change, text, facts)
            return
        if facts["cost"] >= facts["serving_cost"]:
            self._attempt_failed(self.rows_since_change, f"{measured}: not cheaper", facts)
            return
        reference = joined([candidate.reference, rows])
        was_fallback = isinstance(self.serving, FallbackServing)
        serving = CertifiedServing(candidate.policy, candidate.ladder, candidate.promise, reference)
        self._serve(serving)
        if was_fallback:
            self.former = self._before_alarm
        self._monitor = self._monitor_of(serving)
        self._failed = 0
        self._needed = int(np.ceil(self.rows_since_change * REFRESH_GROWTH))
        self.state = "swapped"
        self._record("swap", f"{measured}: the new policy serves", facts)
        self.state = "watching"

    def _attempt_failed(self, rows: int, reason: str, facts: dict[str, Any]) -> None:
        """Wait for more rows after a failed attempt, or give up."""
        self._failed += 1
        self._needed = int(np.ceil(rows * GROWTH))
        if isinstance(self.serving, CertifiedServing):
            self.state = "watching"
            self._record("rejected", f"{reason}; {self.serving} continues to serve", facts)
        elif self._failed < self.settings.attempts and self._needed <= self.settings.window:
            self.state = "suspected"
            text = f"{reason}; the next attempt is at {self._needed} rows"
            self._record("not certified", text, facts)
        else:
            self.state = "fallback"
            attempts = f"{self._failed} attempt{'s' if self._failed > 1 else ''}"
            text = (
                f"{reason}; gave up after {attempts}; {self.serving} stays active, manual action "
                "required"
            )
            self._record("give up", text, facts)

    def _serve(self, serving: Serving) -> None:
        """Let another policy serve."""
        self.former, self.serving = self.serving, serving
        self._call(self._swap, serving)

    def _monitor_of(self, serving: CertifiedServing) -> Monitor:
        """Return new tests for a policy."""
        settings = self.settings
        node = serving.reference.spec.index_of(self._against)
        reference = decide(serving.policy, serving.reference)
        return Monitor(
            reference=reference,
            bound=Bound(settings.kind, settings.at_most, node, reference.unit),
            false_alarms=settings.false_alarms,
            seed=settings.seed,
        )

    def _keep(self, rows: Trace, numbers: list[int]) -> None:
        """Keep rows, and drop the oldest ones outside the window."""
        self._rows.append(rows)
        self._numbers.append(numbers)
        self._kept += len(rows)
        while self._kept - len(self._rows[0]) >= self.settings.window:
            self._kept -= len(self._rows.popleft())
            self._numbers.popleft()

    def _count_from(self, begin: int) -> int:
        """Return the number of audited rows kept from a row of the traffic on."""
        return sum(number >= begin for part in list(self._numbers) for number in part)

    def _rows_from(self, begin: int) -> tuple[Trace, NDArray[np.int64]]:
        """Return the audited rows kept from a row of the traffic on, and their numbers."""
        numbers = np.concatenate([np.array(part, np.int64) for part in self._numbers])
        return joined(list(self._rows)).take(numbers >= begin), numbers[numbers >= begin]

    def _record(self, kind: EventKind, text: str, facts: dict[str, Any] | None = None) -> None:
        """Keep an event, and notify."""
        now = None if self._clock is None else self._clock()
        event = Event(self.number, self.state, kind, text, facts or {}, now)
        self.events.append(event)
        self._new_events.append(event)
        self._call(self._notify, event)


def status_of(loop: Loop) -> dict[str, Any]:
    """Return the status of a loop: its state, the evidence of each test, and recent events.

    >>> import ttamer as tt
    >>> from ttamer.drift import LoopSettings
    >>> before = tt.datasets.load("minilm-imdb", "fit")
    >>> fitted, held = before.split(0.6, seed=0)
    >>> settings = LoopSettings(at_most=0.15)
    >>> loop = Loop(serving_of(tt.fit(fitted), held, settings), settings)
    >>> [each["test"] for each in status_of(loop)["tests"]]
    ['calibration', 'promise', 'states']

    Args:
        loop: The loop.

    Returns:
        Plain values, for JSON. ``tests`` has the e-value, the threshold, and the ``progress`` of
        each test from 0 to 1; ``waiting`` has the number of audited rows so far, and how many the
        loop waits for.
    """
    settings = loop.settings
    waiting = None
    if loop.state == "suspected":
        waiting = {"rows": loop.rows_since_change, "of": loop.rows_needed, "for": "re-fit"}
    elif loop.state == "shadowing":
        waiting = {"rows": loop.rows_in_shadow, "of": settings.shadow_rows, "for": "swap"}
    return {
        "state": loop.state,
        "held": loop.held,
        "serving": str(loop.serving),
        "promised": {
            "kind": settings.kind,
            "at_most": settings.at_most,
            "confidence": settings.confidence,
            "certified": _is_certified(loop.serving),
        },
        "false_alarms": settings.false_alarms,
        "row": loop.number,
        "audited": loop.audited,
        "tests": [
            {
                "test": each.test,
                "e_value": each.e_value,
                "threshold": each.threshold,
                "progress": each.progress,
            }
            for each in loop.monitor.evidence()
        ],
        "waiting": waiting,
        "can_roll_back": loop.former is not None,
        "events": [event.to_dict() for event in list(loop.events)[: -MAX_STATUS_EVENTS - 1 : -1]],
    }


def _is_certified(serving: Serving) -> bool | None:
    """Return whether the promise is known to hold; ``None`` where nothing is known."""
    if isinstance(serving, CertifiedServing):
        return serving.promise.certified
    # With target = "last" the last node is right by definition.
    return True if serving.policy.spec.target == "last" else None
