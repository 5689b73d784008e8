"""The loop: watch, suspect, re-fit, certify, shadow, swap, or stay with the safest policy.

::

    watching --alarm--> suspected --enough rows--> refitting --> certifying --> shadowing
        ^               (the safest policy serves)     ^             |              |
        |                                              '--more rows--+--------------+--> fallen back
        '----------------------------- swapped <------------------------------------'

It is given audited rows, on which every node was asked, in the order of the traffic, and says which
policy serves. It knows neither clocks nor files nor servers: a gateway and a replay drive the same
code. ``see`` may take seconds when it re-fits, and those who hold or roll back wait for it: call
them in a thread.

While the loop works on a change the last node answers everything (``AskLast``). The policy it
comes up with is fitted to rows after the change, as far as that is known; it is certified on others
that came after the alarm, and has decided further ones in the shadow before it serves. Once there
are twice as many rows it is fitted again in the same way, beside the policy that serves: more rows
certify a cheaper one. The tries after one alarm share the level of one promise (the k-th has a part
of 1 / (k (k + 1))), so what they come up with, taken together, breaks the promise with a chance of
at most 1 - confidence. If ``attempts`` tries fail, the safest policy stays: a person must look.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.drift.decided import decide
from ttamer.drift.event import Event
from ttamer.drift.safest import AskLast
from ttamer.drift.serving import Serving
from ttamer.drift.watch import Bound, Watch
from ttamer.errors import ArgumentError, TTamerError
from ttamer.fitted.held_out import HeldOut
from ttamer.fitted.promise import check_promise, make_promise
from ttamer.fitting.plans import fit
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ttamer.drift.event import Kind, State
    from ttamer.drift.serving import LoopSettings
    from ttamer.drift.watch import Alarm
    from ttamer.fitted.ladder import FittedLadder, FittedPolicy
    from ttamer.fitted.mixture import Mixture

__all__ = ["Loop"]

MOST_EVENTS = 1000
GROWTH = 1.5
"""Where a promise could not be certified, the next try waits for so many times the rows, ..."""
REFRESH = 2.0
"""... and where it was, for so many times."""


class Loop:
    """Keeps a policy fit for the traffic as it is.

    Args:
        serving: What serves at first; its reference rows say how traffic should look.
        settings: What to keep to.
        swap: Called with what serves from now on; the gateway puts it in place.
        told: Called with every event.
        refit: From rows to a ladder; ``ttamer.fit`` by default.
        clock: Seconds since 1970, for the events.
    """

    def __init__(
        self,
        serving: Serving,
        settings: LoopSettings,
        *,
        swap: Callable[[Serving], None] = lambda _: None,
        told: Callable[[Event], None] = lambda _: None,
        refit: Callable[[Trace], FittedLadder] = fit,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if serving.reference is None:
            raise ArgumentError("the loop needs reference rows, which the policy was not fitted to")
        self.settings = settings
        self.state: State = "watching"
        self.serving = serving
        self.former: Serving | None = None
        self.held = False
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.number = -1
        """The last row of the traffic seen."""
        self.audited = 0
        self._fresh: list[Event] = []
        self._one_at_a_time = RLock()
        self._swap, self._told, self._refit, self._clock = swap, told, refit, clock
        self._against = settings.against or serving.reference.names[-1]
        self._safest = Serving(AskLast(serving.reference.spec))
        self._rows: deque[Trace] = deque()
        self._numbers: deque[list[int]] = deque()
        self._kept = 0
        self._watch = self._watched(serving)
        self._before: Serving | None = None
        self._candidate: Serving | None = None
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
    def candidate(self) -> Serving | None:
        """What is in the shadow."""
        return self._candidate

    @property
    def watch(self) -> Watch:
        """The tests of the policy that serves, or served before the alarm."""
        return self._watch

    @property
    def rows_since_change(self) -> int:
        """Audited rows kept since the last change."""
        return 0 if self._change is None else self._counted(self._change)

    @property
    def rows_in_shadow(self) -> int:
        """Audited rows that the policy in the shadow has decided."""
        return len(self._shadow_keys)

    @property
    def rows_needed(self) -> int:
        """Audited rows since the change that the next re-fit waits for."""
        return self._needed

    def see(
        self, rows: Trace, numbers: Sequence[int], keys: Sequence[str | int] | None = None
    ) -> list[Event]:
        """Take audited rows in their order, and return what came of them.

        ``numbers`` are their places in the traffic, increasing; ``keys`` what a mixture draws by
        (the requests' ids), by default the numbers.
        """
        if len(numbers) != len(rows):
            raise ArgumentError(f"there are {len(rows)} rows and {len(numbers)} numbers")
        with self._one_at_a_time:
            self._fresh = []
            if len(rows):
                places = [int(number) for number in numbers]
                if any(b <= a for a, b in pairwise([self.number, *places])):
                    raise ArgumentError(
                        "rows must come in the order of the traffic, each number above the one "
                        f"before ({self.number}); these run from {places[0]} to {places[-1]}"
                    )
                self._see(rows, places, places if keys is None else keys)
            return self._fresh

    def hold(self, why: str = "a person holds the loop") -> None:
        """Change nothing from now on; go on testing and telling."""
        self.held = True  # at once, even while rows are worked on
        with self._one_at_a_time:
            self._tell("hold", why)

    def release(self, why: str = "a person lets the loop go on") -> None:
        """Go on after a hold."""
        with self._one_at_a_time:
            self.held = False
            self._tell("release", why)

    def roll_back(self, why: str = "a person rolled back") -> None:
        """Put the former policy back, and hold; :meth:`release` lets the loop go on."""
        with self._one_at_a_time:
            if self.former is None:
                raise ArgumentError("there is no former policy to go back to")
            self._candidate = None
            self._serve(self.former)
            self.held = True
            if not isinstance(self.policy, AskLast):
                self._watch = self._watched(self.serving)
                self.state = "watching"
            self._tell("roll back", f"{why}: {self.serving} serves; the loop holds")

    def retry(self, why: str = "a person wants another try") -> None:
        """After falling back, try again on the rows since the change."""
        with self._one_at_a_time:
            if self.state != "fallen back":
                raise ArgumentError(
                    f"the loop is {self.state}; only after falling back can it retry"
                )
            self.state, self._attempt, self._failed = "suspected", 0, 0
            self._needed = self.settings.refit_rows
            self._tell("retry", why)

    def begin_anew(self, serving: Serving, why: str = "another policy was put in place") -> None:
        """Serve what a person put in place, and watch that; what was before is forgotten."""
        with self._one_at_a_time:
            self._watch = self._watched(serving)
            self._candidate = self._before = self._change = None
            self._serve(serving)
            self.former = None
            self.state = "watching"
            self._tell("begin anew", f"{why}: {serving} serves")

    def _see(self, rows: Trace, numbers: list[int], keys: Sequence[str | int]) -> None:
        self.number = numbers[-1]
        self.audited += len(rows)
        self._keep(rows, numbers)
        if self.state in ("watching", "shadowing") and not isinstance(self.policy, AskLast):
            alarm = self._watch.see(decide(self.policy, rows, keys), numbers)
            if alarm is not None:
                self._alarmed(alarm)
        if self.state == "shadowing":
            if len(self._shadow_keys) < self.settings.shadow_rows:  # held, it may wait long
                self._shadow.append(rows)
                self._shadow_keys += keys
            if len(self._shadow_keys) >= self.settings.shadow_rows and not self.held:
                self._judge()
        elif (
            self.state in ("suspected", "watching")
            and not self.held
            and self._change is not None
            and self._needed <= min(self.rows_since_change, self.settings.window)
            and self._counted(self._alarm_at) >= round(self.settings.hold_out * self._needed)
        ):
            self._try()

    def _alarmed(self, alarm: Alarm) -> None:
        if self.held:
            self._watch = self._watched(self.serving)
            self._tell("alarm", f"{alarm.text}; nothing is changed: the loop holds", alarm)
            return
        self._change, self._alarm_at = alarm.change, alarm.number + 1
        self._attempt = self._failed = 0
        self._needed = self.settings.refit_rows
        self._candidate = None
        self.state = "suspected"
        self._before = self.serving
        self._tell("alarm", f"{alarm.text}; the change seems to be at row {alarm.change}", alarm)
        self._serve(self._safest)
        self._tell("fall back", f"{self.serving} serves until there is a policy for this traffic")

    def _try(self) -> None:
        """Fit to rows after the change, and certify on others."""
        settings = self.settings
        assert self._change is not None  # noqa: S101 - see the callers
        window, numbers = self._since(self._change)
        count = len(window)
        self._attempt += 1
        self.state = "refitting"
        later = np.flatnonzero(numbers >= self._alarm_at)
        cut = round(settings.hold_out * count)
        drawn = np.random.default_rng([settings.seed, self._attempt, count]).permutation(later)
        tested = np.isin(np.arange(count), drawn[:cut])
        held, fitted = window.take(tested), window.take(~tested)
        self._tell("refit", f"fitting to {len(fitted)} of {count} audited rows since the change")
        try:
            ladder = self._refit(fitted)
        except TTamerError as error:
            self._next_try(count, f"these rows could not be fitted to: {error}", {})
            return
        self.state = "certifying"
        level = (1 - settings.confidence) / (self._attempt * (self._attempt + 1))
        counted = HeldOut.of(ladder, held, against=self._against)
        promise = make_promise(counted, settings.kind, settings.at_most, 1 - level)
        facts = {"attempt": self._attempt, "promise": promise.to_dict()}
        if promise.certified:
            policy = ladder.keeping(promise, seed=settings.seed)
            self._candidate = Serving(policy, ladder.promising(policy), promise, held)
            self._shadow, self._shadow_keys = [], []
            self.state = "shadowing"
            self._tell("certified", f"{promise}; it decides in the shadow now", facts)
            return
        self._next_try(count, f"{promise}", facts)

    def _judge(self) -> None:
        """Compare the policy in the shadow with the one that serves, and swap them if it may."""
        candidate = self._candidate
        assert candidate is not None  # noqa: S101 - that is what shadowing means
        assert candidate.ladder is not None  # noqa: S101
        assert candidate.promise is not None  # noqa: S101
        rows = Trace.concat(self._shadow)
        mine = decide(candidate.policy, rows, self._shadow_keys)
        theirs = decide(self.policy, rows, self._shadow_keys)
        checked = check_promise(
            candidate.promise, HeldOut.of(candidate.ladder, rows, against=self._against)
        )
        facts = {
            "rows": len(rows),
            "error": float(mine.wrong.mean()),
            "cost": float(mine.cost.mean()),
            "serving_error": float(theirs.wrong.mean()),
            "serving_cost": float(theirs.cost.mean()),
            "same_answer": float((mine.answer == theirs.answer).mean()),
        }
        seen = (
            f"on {len(rows)} rows in the shadow error {facts['error']:.2%} at cost "
            f"{facts['cost']:.4g}; what serves has {facts['serving_error']:.2%} at "
            f"{facts['serving_cost']:.4g}"
        )
        self._candidate, self._shadow, self._shadow_keys = None, [], []
        if checked.refuted:
            self._next_try(self.rows_since_change, f"{seen}: the promise is broken there", facts)
            return
        if facts["cost"] >= facts["serving_cost"]:
            self._next_try(self.rows_since_change, f"{seen}: nothing is gained", facts)
            return
        assert candidate.reference is not None  # noqa: S101 - the rows that certified it
        reference = Trace.concat([candidate.reference, rows])
        was_safest = isinstance(self.policy, AskLast)
        self._serve(Serving(candidate.policy, candidate.ladder, candidate.promise, reference))
        if was_safest:
            self.former = self._before  # what served before the alarm
        self._watch = self._watched(self.serving)
        self._failed = 0
        self._needed = int(np.ceil(self.rows_since_change * REFRESH))
        self.state = "swapped"
        self._tell("swap", f"{seen}: it serves now", facts)
        self.state = "watching"

    def _next_try(self, rows: int, why: str, facts: dict[str, Any]) -> None:
        """After a try that failed: wait for more rows, or give up."""
        self._failed += 1
        self._needed = int(np.ceil(rows * GROWTH))
        if not isinstance(self.policy, AskLast):
            self.state = "watching"
            self._tell("no swap", f"{why}; {self.serving} goes on", facts)
        elif self._failed < self.settings.attempts and self._needed <= self.settings.window:
            self.state = "suspected"
            self._tell("not certified", f"{why}; the next try is at {self._needed} rows", facts)
        else:
            self.state = "fallen back"
            text = f"{why}; after {self._failed} tries {self.serving} stays: a person must look"
            self._tell("give up", text, facts)

    def _serve(self, serving: Serving) -> None:
        self.former, self.serving = self.serving, serving
        self._swap(serving)

    def _watched(self, serving: Serving) -> Watch:
        assert serving.reference is not None  # noqa: S101 - all but the safest have one
        settings = self.settings
        node = serving.reference.spec.index_of(self._against)
        return Watch(
            reference=decide(serving.policy, serving.reference),
            bound=Bound(settings.kind, settings.at_most, node),
            false_alarms=settings.false_alarms,
            seed=settings.seed,
        )

    def _keep(self, rows: Trace, numbers: list[int]) -> None:
        self._rows.append(rows)
        self._numbers.append(numbers)
        self._kept += len(rows)
        while self._kept - len(self._rows[0]) >= self.settings.window:
            self._kept -= len(self._rows.popleft())
            self._numbers.popleft()

    def _counted(self, begin: int) -> int:
        """Return how many audited rows are kept from a row of the traffic on."""
        return sum(number >= begin for part in list(self._numbers) for number in part)

    def _since(self, begin: int) -> tuple[Trace, NDArray[np.int64]]:
        """Return the audited rows kept from a row of the traffic on, and their numbers."""
        numbers = np.concatenate([np.array(part, np.int64) for part in self._numbers])
        return Trace.concat(list(self._rows)).take(numbers >= begin), numbers[numbers >= begin]

    def _tell(self, kind: Kind, text: str, facts: Alarm | dict[str, Any] | None = None) -> None:
        plain = {} if facts is None else facts if isinstance(facts, dict) else facts.to_dict()
        now = None if self._clock is None else self._clock()
        event = Event(self.number, self.state, kind, text, plain, now)
        self.events.append(event)
        self._fresh.append(event)
        self._told(event)
