"""Watching a policy on audited rows: three tests, and one stated rate of false alarms.

- **calibration**: the policy's answers are wrong more often, or less often, than it believes. On
  reference rows, which the policy was not fitted to, an interval for the mean of (wrong - believed)
  is found; a gambler bets that it has left that interval.
- **promise**: the policy errs more often than was promised (or, for a drop, loses more against a
  node than was promised).
- **states**: the states in which rows are found are not as they were. A gambler for each step bets
  on the rank of every row among the reference and all rows before it (ranks.py).

Each test has a share of the rate; within it the interval and the bets, or the gamblers of several
steps, have shares of theirs. So as long as rows come as the reference came, and the promise holds,
the chance that there is *ever* an alarm, however long one watches, is at most ``false_alarms``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ttamer.drift.ranks import BETS, Ranks, pays_on
from ttamer.drift.wager import MEMORY, SIZES, ChangeBet, stakes_against
from ttamer.errors import ArgumentError
from ttamer.stats.bounds import betting_upper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.drift.decided import Decided
    from ttamer.fitted.promise import Kind

__all__ = ["Alarm", "Bound", "Evidence", "Test", "Watch"]

Test = Literal["calibration", "promise", "states"]
TESTS: tuple[Test, ...] = ("calibration", "promise", "states")
MOST_SHOWN = 1e12


@dataclass(frozen=True)
class Bound:
    """What was promised of a policy."""

    kind: Kind
    at_most: float
    node: int = -1
    """The number of the node that a drop is measured from."""

    def excess(self, decided: Decided) -> NDArray[np.float64]:
        """Return, per row, what it lost above the promise."""
        lost = decided.wrong.astype(np.float64)
        if self.kind == "drop":
            lost -= decided.lost[:, self.node]
        return lost - self.at_most

    @property
    def least(self) -> float:
        """The least a row can lose above the promise."""
        return -self.at_most if self.kind == "error" else -1.0 - self.at_most


@dataclass(frozen=True)
class Evidence:
    """How far one test is from an alarm."""

    test: Test
    e_value: float
    """At most 1 on average if there was no change."""
    threshold: float
    """An alarm is given from here on."""

    @property
    def progress(self) -> float:
        """From 0, nothing to see, to 1, an alarm; on a scale of logarithms."""
        return float(np.clip(math.log(max(self.e_value, 1.0)) / math.log(self.threshold), 0, 1))


@dataclass(frozen=True)
class Alarm:
    """A test that found a change."""

    test: Test
    number: int
    """The row of the traffic at which it was found."""
    change: int
    """The row of the traffic since which there seems to be a change."""
    rows: int
    """Audited rows since then."""
    e_value: float
    threshold: float
    observed: float
    """Since the change: the mean of (wrong - believed), the mean loss, or the mean rank."""
    expected: float
    """What it would be at most (or at least, if it fell) without a change."""
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class Watch:
    """Takes audited rows one after another, and gives an alarm once something has changed.

    Args:
        reference: What the policy did on rows that come as they should, which it was not fitted
            to. Without any, only the promise is watched. They may be those that certified it: it
            was chosen on them, but among few (experiments/drift/adapt.py counts the alarms).
        bound: What was promised; without it, that is not watched.
        false_alarms: The chance that there is ever an alarm if nothing changes.
        seed: For ties among states; not one by which the rows were drawn.
    """

    def __init__(
        self,
        *,
        reference: Decided | None = None,
        bound: Bound | None = None,
        false_alarms: float = 0.05,
        seed: int = 0,
    ) -> None:
        if not 0 < false_alarms < 1:
            raise ArgumentError(f"false_alarms is {false_alarms!r}; it must lie between 0 and 1")
        tests: list[Test] = []
        if reference is not None and len(reference) and reference.believed is not None:
            tests.append("calibration")
        if bound is not None:
            tests.append("promise")
        if reference is not None and len(reference) and reference.states is not None:
            tests.append("states")
        if not tests:
            raise ArgumentError(
                "there is nothing to watch: give reference rows the policy was not fitted to, or a "
                "promise"
            )
        self.tests = tuple(tests)
        self.false_alarms = false_alarms
        self._share = false_alarms / len(tests)
        self._bound = bound
        self._bets: dict[Test, ChangeBet] = {}
        self.rows = 0
        """How many audited rows it has taken."""
        self._numbers: deque[int] = deque(maxlen=MEMORY)
        self._values: dict[Test, deque[float | NDArray[np.float64]]] = {
            name: deque(maxlen=MEMORY) for name in tests
        }
        if "calibration" in tests:
            assert reference is not None  # noqa: S101 - see above
            gap = _gap(reference)
            self._low, self._high = _interval(gap, self._share / 2, seed)
            self._bets["calibration"] = ChangeBet(1, 2 * SIZES)
        if "promise" in tests:
            self._bets["promise"] = ChangeBet(1, SIZES)
        if "states" in tests:
            assert reference is not None  # noqa: S101 - see above
            assert reference.states is not None  # noqa: S101
            self._ranks = Ranks(reference.states, seed)
            self._bets["states"] = ChangeBet(reference.states.shape[1], BETS)

    def see(self, decided: Decided, numbers: Sequence[int]) -> Alarm | None:
        """Take rows in their order, by their numbers in the traffic; stop at the first alarm."""
        gaps = _gap(decided) if "calibration" in self.tests else None
        excess = None if self._bound is None else self._bound.excess(decided)
        for row, number in enumerate(numbers):
            self.rows += 1
            self._numbers.append(int(number))
            if gaps is not None:
                self._take_gap(float(gaps[row]))
            if excess is not None:
                self._take_excess(float(excess[row]))
            if "states" in self.tests:
                assert decided.states is not None  # noqa: S101 - the reference had them
                self._take_states(decided.states[row])
            if (alarm := self._alarm()) is not None:
                return alarm
        return None

    def evidence(self) -> tuple[Evidence, ...]:
        """Say how far each test is from an alarm."""
        return tuple(
            Evidence(test, min(float(self._e_value(test)), MOST_SHOWN), self._threshold(test))
            for test in self.tests
        )

    def _take_gap(self, gap: float) -> None:
        up = 1 + stakes_against(-1.0 - self._high) * (gap - self._high)
        down = 1 + stakes_against(self._low - 1.0) * (self._low - gap)
        self._bets["calibration"].take(np.concatenate([up, down])[np.newaxis])
        self._values["calibration"].append(gap)

    def _take_excess(self, excess: float) -> None:
        assert self._bound is not None  # noqa: S101 - see the caller
        pays = 1 + stakes_against(self._bound.least) * excess
        self._bets["promise"].take(pays[np.newaxis])
        self._values["promise"].append(excess)

    def _take_states(self, states: NDArray[np.float64]) -> None:
        ranks = self._ranks.take(states)
        self._bets["states"].take(pays_on(ranks))
        self._values["states"].append(ranks)

    def _e_value(self, test: Test) -> float:
        """Return what the richest gambler owns, shared with the others."""
        owned = self._bets[test].owned
        return float(owned.max()) / len(owned)

    def _threshold(self, test: Test) -> float:
        # Half of calibration's share is for the interval of the reference.
        return 1 / (self._share / 2 if test == "calibration" else self._share)

    def _alarm(self) -> Alarm | None:
        over = {
            test: e_value
            for test in self.tests
            if (e_value := self._e_value(test)) >= self._threshold(test)
        }
        if not over:
            return None
        test = max(over, key=lambda name: over[name] / self._threshold(name))
        bets = self._bets[test]
        gambler = int(bets.owned.argmax())
        since = min(max(bets.growth(gambler).since, 1), len(self._numbers))
        values = list(self._values[test])[-since:]
        observed = float(np.mean([v[gambler] if isinstance(v, np.ndarray) else v for v in values]))
        expected, text = self._told(test, observed, since)
        return Alarm(
            test=test,
            number=self._numbers[-1],
            change=self._numbers[-since],
            rows=since,
            e_value=min(over[test], MOST_SHOWN),
            threshold=self._threshold(test),
            observed=observed + (self._bound.at_most if test == "promise" and self._bound else 0),
            expected=expected,
            text=text,
        )

    def _told(self, test: Test, observed: float, rows: int) -> tuple[float, str]:
        since = f"on the last {rows} audited rows"
        if test == "promise":
            assert self._bound is not None  # noqa: S101 - it is watched
            most, kind = self._bound.at_most, self._bound.kind
            return most, f"{kind} {observed + most:.2%} {since}, promised at most {most:.2%}"
        if test == "states":
            return 0.5, f"states are not as they were {since}: mean rank {observed:.2f}, not 0.50"
        expected = self._high if observed > (self._low + self._high) / 2 else self._low
        how = "more" if observed > 0 else "less"
        return expected, (
            f"answers are wrong {abs(observed):.2%} {how} often than believed {since}; "
            f"{self._low:+.2%} to {self._high:+.2%} was to be expected"
        )


def _gap(decided: Decided) -> NDArray[np.float64]:
    """Return, per row, whether the answer was wrong less the chance believed."""
    if decided.believed is None:
        raise ArgumentError("this rule believes nothing of its answers: watch its promise alone")
    return np.asarray(decided.wrong - decided.believed)


def _interval(gap: NDArray[np.float64], alpha: float, seed: int) -> tuple[float, float]:
    """Return where the mean of numbers between -1 and 1 lies, but for a chance of alpha."""
    values, counts = np.unique(gap, return_counts=True)
    high = 2 * betting_upper((values + 1) / 2, counts, alpha=alpha / 2, seed=seed) - 1
    low = 1 - 2 * betting_upper((1 - values) / 2, counts, alpha=alpha / 2, seed=seed)
    return low, high
