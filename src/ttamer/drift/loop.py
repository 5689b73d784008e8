"""The drift loop: monitor, re-fit, certify, shadow, and swap, or stay with the fallback policy.

::

    watching --alarm--> suspected --enough rows--> refitting --> certifying --> shadowing
        ^          (the fallback policy is active)     ^             |              |
        |                                              '--more rows--+--------------+--> fallback
        '----------------------------- swapped <------------------------------------'

The loop takes audited rows, on which every node was asked, in the order of the traffic. It uses no
clock, file or server, so a server, a cron job and a replay run the same code.

From the alarm until a new policy is certified the last node answers everything. The new policy is
fitted to rows after the estimated time of the change, certified on other rows that came after the
alarm, and decides further rows in the shadow before it serves. Once there are twice as many rows it
is fitted again, while the current policy serves: more rows certify a cheaper policy. The attempts
after one alarm share the level of one promise (the k-th has a part of 1 / (k (k + 1))), so together
they break it with a chance of at most 1 - confidence.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_kind, require_whole
from ttamer.drift.monitor import Alarm, Bound, Monitor, decide
from ttamer.errors import ArgumentError, TTamerError
from ttamer.fitting.fits import fit
from ttamer.fitting.ladder import FittedLadder, FittedPolicy, Mixture, shown_error
from ttamer.fitting.promises import Kind, Promise, check_promise
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Trace

LoopState = Literal[
    "watching", "suspected", "refitting", "certifying", "shadowing", "swapped", "fallback"
]
EventKind = Literal[
    "alarm", "fallback", "refit", "certified", "not certified", "swap", "rejected", "give up"
]


@dataclass(frozen=True)
class LoopSettings:
    """The settings of the drift loop.

    >>> LoopSettings(at_most=0.05).refit_rows
    400

    Args:
        at_most: The promised upper bound on the error, or on the drop.
        kind: What is promised: ``"error"`` or ``"drop"``.
        against: The node that a drop is measured from; by default the last.
        confidence: The confidence of every promise.
        false_alarms: The chance that there is ever an alarm without a change, for each policy.
        refit_rows: The audited rows after the change that a re-fit waits for.
        shadow_rows: The audited rows that a new policy decides in the shadow before it serves.
        seed: The seed of all random draws.

    Raises:
        ArgumentError: Where a setting is out of its range.
    """

    at_most: float
    kind: Kind = "error"
    against: str | None = None
    confidence: float = 0.95
    false_alarms: float = 0.05
    refit_rows: int = 400
    shadow_rows: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("error", "drop"):
            raise ArgumentError(f'kind is {self.kind!r}; it must be "error" or "drop"')
        require_whole(self.refit_rows, "refit_rows", least=50)  # fewer certify next to nothing
        require_whole(self.shadow_rows, "shadow_rows", least=1)


@dataclass(frozen=True)
class Event:
    """One step of the loop.

    >>> print(Event(1200, "suspected", "alarm", "error 9.00%, promised at most 5.00%"))
    row 1200: suspected: error 9.00%, promised at most 5.00%
    """

    # The row of the traffic at which it happened
    number: int
    # The state of the loop after it
    state: LoopState
    kind: EventKind
    # The reason, in a sentence
    text: str
    # The numbers behind it, in plain values
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"row {self.number}: {self.state}: {self.text}"


@dataclass(frozen=True, eq=False)
class CertifiedServing:
    """A fitted policy that serves or served; ``promise.certified`` says if it could be certified.

    ``reference`` are rows that it was not fitted to, drawn like the traffic it is meant for.
    """

    policy: FittedPolicy | Mixture
    ladder: FittedLadder
    promise: Promise
    reference: Trace


def serving_of(
    ladder: FittedLadder, reference: Trace, settings: LoopSettings, confidence: float | None = None
) -> CertifiedServing:
    """Return the cheapest policy of a ladder that keeps the promise in the settings.

    >>> import ttamer as tt
    >>> fitted, held = tt.datasets.load("minilm-imdb", "fit").split(0.6, seed=0)
    >>> serving = serving_of(tt.fit(fitted), held, LoopSettings(at_most=0.15))
    >>> serving.promise.certified
    True

    Args:
        ladder: The policies to choose from.
        reference: Rows that the ladder was not fitted to; the policy is certified on them.
        settings: The promise.
        confidence: The confidence of the promise, instead of that in the settings.

    Returns:
        The policy with its promise; where none can be certified, the node that it is compared with.

    Raises:
        ArgumentError: Where the ladder was fitted to the reference, or it has no rows.
    """
    require_kind(ladder, FittedLadder, "serving_of needs a ladder", "give the result of ttamer.fit")
    require_trace(reference, "serving_of")
    confidence = settings.confidence if confidence is None else confidence
    options: dict[str, Any] = {"confidence": confidence, "on": reference, "seed": settings.seed}
    if settings.kind == "error":
        policy = ladder.for_error(settings.at_most, **options)
    else:
        against = settings.against or reference.names[-1]
        policy = ladder.for_drop(settings.at_most, against=against, **options)
    assert policy.promise is not None  # noqa: S101 - made with it
    return CertifiedServing(policy, ladder.with_promise(policy), policy.promise, reference)


class Loop:
    """Keeps a policy fitted to the current traffic.

    ::

        loop = Loop(serving_of(ladder, held_out_rows, settings), settings)
        loop.update(audited_rows, numbers)

    Args:
        serving: The policy that serves at first, with its reference rows.
        settings: The promise, and how many rows the loop waits for.
        refit: The function from rows to a ladder.

    Raises:
        ArgumentError: Where the reference rows cannot be used.
    """

    hold_out = 0.5  # of the rows that a re-fit has: they certify its policy
    growth = 1.5  # of the rows from a failed attempt to the next
    refresh_growth = 2.0  # of the rows from a swap to the next attempt
    attempts = 4  # that fail before an operator must act
    window = 10_000  # audited rows kept in memory

    def __init__(
        self,
        serving: CertifiedServing,
        settings: LoopSettings,
        *,
        refit: Callable[[Trace], FittedLadder] = fit,
    ) -> None:
        require_kind(
            serving, CertifiedServing, "a loop needs a CertifiedServing", "give that of serving_of"
        )
        self.settings = settings
        self.window = max(self.window, settings.refit_rows)
        self.state: LoopState = "watching"
        self.serving: CertifiedServing | None = serving
        """The policy that serves; ``None`` while the last node answers everything."""
        self.candidate: CertifiedServing | None = None
        """The policy in the shadow."""
        self.change: int | None = None
        """The row of the traffic at which the last change is estimated to have happened."""
        self.events: list[Event] = []
        self.number = -1
        """The number of the last row taken, in the traffic."""
        self.audited = 0
        self._refit = refit
        names = serving.reference.names
        self._against = settings.against or names[-1]
        # No change of the traffic affects it: the last node answers everything.
        self._fallback = serving.ladder.alone(names[-1])
        self._rows: deque[Trace] = deque()
        self._numbers: list[int] = []
        self.monitor = self._monitor_of(serving)
        """The tests of the policy that serves, or that served before the alarm."""
        self._shadow: list[Trace] = []
        self._shadow_keys: list[str | int] = []
        self._alarm_at = self._attempt = self._failed = self._needed = 0

    @property
    def policy(self) -> FittedPolicy | Mixture:
        """The policy that serves."""
        return self._fallback if self.serving is None else self.serving.policy

    @property
    def described(self) -> str:
        """The policy that serves, in words."""
        if self.serving is None:
            return f"the fallback policy ({self._fallback.spec.names[-1]} answers)"
        return str(self.serving.policy)

    def update(
        self, rows: Trace, numbers: Sequence[int], keys: Sequence[str | int] | None = None
    ) -> None:
        """Take audited rows in their order; this may take seconds when it re-fits.

        Args:
            rows: The rows.
            numbers: Their numbers in the traffic, increasing.
            keys: The keys that a mixture draws by (the requests' ids); by default the numbers.

        Raises:
            ArgumentError: Where the rows are of other nodes, the numbers do not increase, or
                numbers or keys are not as many as the rows.
        """
        require_trace(rows, "Loop.update")
        nodes = self._fallback.spec.names
        if rows.names != nodes:
            raise ArgumentError(
                f"the loop is for the nodes {', '.join(nodes)}, and the rows have "
                f"{', '.join(rows.names)}"
            )
        numbers = [int(number) for number in numbers]
        keys = numbers if keys is None else keys
        for what, values in (("numbers", numbers), ("keys", keys)):
            if len(values) != len(rows):
                raise ArgumentError(f"there are {len(rows)} rows and {len(values)} {what}")
        if any(b <= a for a, b in pairwise([self.number, *numbers])):
            raise ArgumentError(
                "rows must come in the order of the traffic, each number above the one before "
                f"({self.number}); these run from {numbers[0]} to {numbers[-1]}"
            )
        if not numbers:
            return
        self.number = numbers[-1]
        self.audited += len(rows)
        self._keep(rows, numbers)
        if self.serving is not None:
            alarm = self.monitor.update(decide(self.policy, rows, keys), numbers)
            if alarm is not None:
                self._raise_alarm(alarm)
        if self.candidate is not None:
            self._shadow.append(rows)
            self._shadow_keys += keys
            if len(self._shadow_keys) >= self.settings.shadow_rows:
                self._judge(self.candidate)
        elif (
            self.change is not None
            and self.state != "fallback"
            and self._needed <= min(self._count_from(self.change), self.window)
            and self._count_from(self._alarm_at) >= round(self.hold_out * self._needed)
        ):
            self._attempt_refit(self.change)

    def _raise_alarm(self, alarm: Alarm) -> None:
        self.change, self._alarm_at = alarm.change, alarm.number + 1
        self._attempt = self._failed = 0
        self._needed = self.settings.refit_rows
        self.candidate, self.state = None, "suspected"
        text = f"{alarm.text}; estimated change at row {alarm.change}"
        self._record("alarm", text, asdict(alarm))
        self.serving = None
        self._record(
            "fallback", f"{self.described} serves until a policy for this traffic is found"
        )

    def _attempt_refit(self, change: int) -> None:
        settings = self.settings
        window, numbers = self._rows_from(change)
        count = len(window)
        self._attempt += 1
        self.state = "refitting"
        # Held out are rows from after the alarm: the estimated time of the change may be too early.
        later = np.flatnonzero(numbers >= self._alarm_at)
        cut = round(self.hold_out * count)
        drawn = np.random.default_rng([settings.seed, self._attempt, count]).permutation(later)
        is_held_out = np.isin(np.arange(count), drawn[:cut])
        held, fitted = window.take(is_held_out), window.take(~is_held_out)
        self._record("refit", f"fitting {len(fitted)} of {count} audited rows since the change")
        try:
            ladder = self._refit(fitted)
            self.state = "certifying"
            # Over all attempts 1 / (k (k + 1)) sums to 1: they share the level of one promise.
            level = (1 - settings.confidence) / (self._attempt * (self._attempt + 1))
            candidate = serving_of(ladder, held, settings, 1 - level)
        except Exception as error:  # such as a full disk: the loop must not stay in this state
            text = f"these rows cannot be fitted: {_failure_text(error)}"
            self._attempt_failed(count, text, {})
            return
        promise = candidate.promise
        facts = {"attempt": self._attempt, "promise": promise.to_dict()}
        if not promise.certified:
            self._attempt_failed(count, f"{promise}", facts)
            return
        self.candidate = candidate
        self._shadow, self._shadow_keys = [], []
        self.state = "shadowing"
        self._record("certified", f"{promise}; the policy is in the shadow", facts)

    def _judge(self, candidate: CertifiedServing) -> None:
        """Compare the policy in the shadow with the one that serves, and swap if it is better."""
        rows = joined(self._shadow)
        new = decide(candidate.policy, rows, self._shadow_keys)
        current = decide(self.policy, rows, self._shadow_keys)
        ladder = candidate.ladder
        # Too few rows to certify a policy: only a clear breach refutes it.
        held = ladder.held_rows(rows)
        checked = check_promise(candidate.promise, held)
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
        self.candidate, self._shadow, self._shadow_keys = None, [], []
        assert self.change is not None  # noqa: S101 - there was an alarm
        count = self._count_from(self.change)
        if checked.refuted or facts["cost"] >= facts["serving_cost"]:
            reason = "the promise is broken there" if checked.refuted else "not cheaper"
            self._attempt_failed(count, f"{measured}: {reason}", facts)
            return
        reference = joined([candidate.reference, rows])  # the policy was fitted to neither
        serving = CertifiedServing(candidate.policy, candidate.ladder, candidate.promise, reference)
        self.serving = serving
        self.monitor = self._monitor_of(serving)
        self._failed = 0
        self._needed = int(np.ceil(count * self.refresh_growth))
        self.state = "swapped"  # for its event; the new policy is watched at once
        self._record("swap", f"{measured}: the new policy serves", facts)
        self.state = "watching"

    def _attempt_failed(self, rows: int, reason: str, facts: dict[str, Any]) -> None:
        self._failed += 1
        self._needed = int(np.ceil(rows * self.growth))
        if self.serving is not None:
            self.state = "watching"
            self._record("rejected", f"{reason}; {self.described} continues to serve", facts)
        elif self._failed < self.attempts and self._needed <= self.window:
            self.state = "suspected"
            text = f"{reason}; the next attempt is at {self._needed} rows"
            self._record("not certified", text, facts)
        else:
            self.state = "fallback"
            text = (
                f"{reason}; gave up after {counted(self._failed, 'attempt')}; {self.described} "
                "stays active, manual action required"
            )
            self._record("give up", text, facts)

    def _monitor_of(self, serving: CertifiedServing) -> Monitor:
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
        self._rows.append(rows)
        self._numbers += numbers
        while len(self._numbers) - len(self._rows[0]) >= self.window:
            del self._numbers[: len(self._rows.popleft())]

    def _count_from(self, begin: int) -> int:
        return len(self._numbers) - bisect_left(self._numbers, begin)

    def _rows_from(self, begin: int) -> tuple[Trace, NDArray[np.int64]]:
        """Return the audited rows kept from a row of the traffic on, and their numbers."""
        numbers = np.array(self._numbers, np.int64)
        return joined(list(self._rows)).take(numbers >= begin), numbers[numbers >= begin]

    def _record(self, kind: EventKind, text: str, facts: dict[str, Any] | None = None) -> None:
        self.events.append(Event(self.number, self.state, kind, text, facts or {}))


def joined(parts: Sequence[Trace]) -> Trace:
    """Return rows one after the other, with the inputs and columns that all parts have."""
    names = [name for name in parts[0].inputs if all(name in part.inputs for part in parts)]
    optional = ("margin", "entropy", "latency", "chance", "prompt", "group")
    lacking: dict[str, Any] = {
        name: None for name in optional if any(getattr(part, name) is None for part in parts)
    }
    return Trace.concat(
        [
            replace(part, inputs={name: part.inputs[name] for name in names}, **lacking)
            for part in parts
        ]
    )


def _failure_text(error: Exception) -> str:
    """Return the text of an error of this package; of others, which may hold answers, the place."""
    if isinstance(error, TTamerError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + line
