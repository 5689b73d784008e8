"""Monitoring a policy on audited rows: three tests that share one rate of false alarms.

- **calibration**: the policy's answers are wrong more often, or less often, than predicted. A
  confidence interval for the mean of (wrong - believed) is computed on reference rows, to which the
  policy was not fitted; an e-process tests whether the mean has left that interval.
- **promise**: the error is above the promised one (or, for a drop, the loss against a node is).
- **states**: the distribution of the states at some steps has changed. An e-process for each step
  tests the conformal p-value of every row among the reference and all rows before it.

The rate is divided among the tests, within a test among the interval and the bets, or among the
steps. So while rows are drawn like the reference and the promise holds, the probability that there
is *ever* an alarm, over any length of time, is at most ``false_alarms``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ttamer.drift.decisions import Decisions
from ttamer.drift.eprocess import (
    BET_SIZES,
    MEMORY,
    PVALUE_BETS,
    ConformalPValues,
    MixtureEProcess,
    bet_sizes,
    pvalue_increments,
)
from ttamer.errors import ArgumentError
from ttamer.fitting.promises import Kind
from ttamer.stats.bounds import betting_upper

Test = Literal["calibration", "promise", "states"]
# E-values above this are reported as this.
MAX_SHOWN = 1e12


@dataclass(frozen=True)
class Bound:
    """The promised upper bound on an error or a drop.

    >>> Bound("error", 0.05).lowest
    -0.05
    """

    kind: Kind
    at_most: float
    node: int = -1
    """The number of the node that a drop is measured from."""
    unit: float | None = None
    """The largest loss there can be, where answers have losses; ``at_most`` is in their unit."""

    @property
    def share(self) -> float:
        """The bound as a share of the largest loss."""
        return self.at_most if self.unit is None else self.at_most / self.unit

    def excess(self, decisions: Decisions) -> NDArray[np.float64]:
        """Return the loss of each row above the bound, as a share of the largest loss.

        Args:
            decisions: What the policy did on T rows.

        Returns:
            Shape (T,).
        """
        lost = decisions.wrong.astype(np.float64)
        if self.kind == "drop":
            lost -= decisions.lost[:, self.node]
        return lost - self.share

    @property
    def lowest(self) -> float:
        """The smallest excess that a row can have."""
        return -self.share if self.kind == "error" else -1.0 - self.share


@dataclass(frozen=True)
class Evidence:
    """How far one test is from an alarm.

    >>> Evidence("promise", e_value=10.0, threshold=100.0).progress
    0.5
    """

    test: Test
    e_value: float
    """At most 1 on average without a change."""
    threshold: float
    """The e-value at which the test raises an alarm."""

    @property
    def progress(self) -> float:
        """From 0, no evidence, to 1, an alarm; on a logarithmic scale."""
        return float(np.clip(math.log(max(self.e_value, 1.0)) / math.log(self.threshold), 0, 1))


@dataclass(frozen=True)
class Alarm:
    """A test that found a change.

    >>> alarm = Alarm(
    ...     test="promise", number=1200, change=1000, rows=40, e_value=90.0, threshold=60.0,
    ...     observed=0.09, expected=0.05, text="error 9.00%, promised at most 5.00%",
    ... )
    >>> alarm.to_dict()["change"]
    1000
    """

    test: Test
    number: int
    """The row of the traffic at which the change was found."""
    change: int
    """The row of the traffic at which the change is estimated to have happened."""
    rows: int
    """The number of audited rows since then."""
    e_value: float
    threshold: float
    observed: float
    """Since the change: the mean of (wrong - believed), the mean loss, or the mean p-value."""
    expected: float
    """The bound that ``observed`` would keep without a change."""
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON.

        Returns:
            The fields by name.
        """
        return asdict(self)


class Monitor:
    """Tests audited rows one after another, and raises an alarm once something has changed.

    >>> monitor = Monitor(bound=Bound("error", 0.05), false_alarms=0.05)
    >>> monitor.tests
    ('promise',)

    Args:
        reference: The policy's decisions on rows drawn as rows should be, to which it was not
            fitted. Without any, only the promise is tested. The rows that certified the policy may
            be used (experiments/drift/adapt.py counts the false alarms).
        bound: The promise; without it, the promise is not tested.
        false_alarms: The probability that there is ever an alarm without a change.
        seed: For ties among states; not a seed that the rows were drawn with.

    Raises:
        ArgumentError: Where there is nothing to test, or ``false_alarms`` is not between 0 and 1.
    """

    def __init__(
        self,
        *,
        reference: Decisions | None = None,
        bound: Bound | None = None,
        false_alarms: float = 0.05,
        seed: int = 0,
    ) -> None:
        if not 0 < false_alarms < 1:
            raise ArgumentError(f"false_alarms is {false_alarms!r}; it must lie between 0 and 1")
        known = reference if reference is not None and len(reference) else None
        states = None if known is None else known.states
        is_calibrated = known is not None and known.believed is not None
        count = is_calibrated + (bound is not None) + (states is not None)
        if not count:
            raise ArgumentError(
                "there is nothing to test: give reference rows that the policy was not fitted to, "
                "or a promise"
            )
        self.false_alarms = false_alarms
        self.rows = 0
        """The number of audited rows taken."""
        self._numbers: deque[int] = deque(maxlen=MEMORY)
        share = false_alarms / count
        tests: list[_SequentialTest] = []
        if known is not None and is_calibrated:
            tests.append(_Calibration(known, share, seed))
        if bound is not None:
            tests.append(_Promise(bound, share))
        if states is not None:
            tests.append(_States(states, share, seed))
        self._tests = tests

    @property
    def tests(self) -> tuple[Test, ...]:
        """The names of the tests that are run."""
        return tuple(each.name for each in self._tests)

    def update(self, decisions: Decisions, numbers: Sequence[int]) -> Alarm | None:
        """Take audited rows in their order.

        Args:
            decisions: What the policy did on them.
            numbers: Their numbers in the traffic.

        Returns:
            The first alarm, after which the remaining rows are not looked at; ``None`` where there
            is none.
        """
        scores = [test.scores(decisions) for test in self._tests]
        for row, number in enumerate(numbers):
            self.rows += 1
            self._numbers.append(int(number))
            for test, score in zip(self._tests, scores, strict=True):
                test.update(score[row])
            if (alarm := self._alarm()) is not None:
                return alarm
        return None

    def evidence(self) -> tuple[Evidence, ...]:
        """Return how far each test is from an alarm.

        Returns:
            The evidence of each test, in the order of ``tests``.
        """
        return tuple(
            Evidence(test.name, min(test.e_value, MAX_SHOWN), test.threshold)
            for test in self._tests
        )

    def _alarm(self) -> Alarm | None:
        """Return the alarm of the test that is furthest above its threshold, if any is."""
        e_values = [(test, test.e_value) for test in self._tests]
        over = [(test, e_value) for test, e_value in e_values if e_value >= test.threshold]
        if not over:
            return None
        test, e_value = max(over, key=lambda each: each[1] / each[0].threshold)
        stream = int(test.process.wealth.argmax())
        since = min(max(test.process.growth(stream).since, 1), len(self._numbers))
        observed = float(np.mean([values[stream] for values in list(test.values)[-since:]]))
        observed, expected, text = test.described(observed, f"on the last {since} audited rows")
        return Alarm(
            test=test.name,
            number=self._numbers[-1],
            change=self._numbers[-since],
            rows=since,
            e_value=min(e_value, MAX_SHOWN),
            threshold=test.threshold,
            observed=observed,
            expected=expected,
            text=text,
        )


class _SequentialTest(ABC):
    """One test: rows become scores, scores become increments of an e-process."""

    name: Test

    def __init__(self, level: float, streams: int, bets: int) -> None:
        self.threshold = 1 / level
        self.process = MixtureEProcess(streams, bets)
        self.values: deque[NDArray[np.float64]] = deque(maxlen=MEMORY)
        """What was tested of recent rows; shape (streams,) each."""

    @property
    def e_value(self) -> float:
        """The largest wealth, divided by the number of streams."""
        wealth = self.process.wealth
        return float(wealth.max()) / len(wealth)

    @abstractmethod
    def scores(self, decisions: Decisions) -> NDArray[np.float64]:
        """Return what is tested of each row; shape (T, streams)."""

    @abstractmethod
    def update(self, score: NDArray[np.float64]) -> None:
        """Take the scores of one row; shape (streams,)."""

    @abstractmethod
    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        """Return what was observed, what was expected, and both in a sentence."""


class _Calibration(_SequentialTest):
    """Whether the mean of (wrong - believed) is within the interval of the reference."""

    name = "calibration"

    def __init__(self, reference: Decisions, share: float, seed: int) -> None:
        # Half of the share is for the interval of the reference.
        super().__init__(share / 2, 1, 2 * BET_SIZES)
        self._low, self._high = _interval(_gap(reference), share / 2, seed)
        self._unit = reference.unit

    def scores(self, decisions: Decisions) -> NDArray[np.float64]:
        return _gap(decisions)[:, np.newaxis]

    def update(self, score: NDArray[np.float64]) -> None:
        gap = float(score[0])
        up = 1 + bet_sizes(-1.0 - self._high) * (gap - self._high)
        down = 1 + bet_sizes(self._low - 1.0) * (self._low - gap)
        self.process.update(np.concatenate([up, down])[np.newaxis])
        self.values.append(score)

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        expected = self._high if mean > (self._low + self._high) / 2 else self._low
        how = "more" if mean > 0 else "less"
        if self._unit is not None:
            low, high = self._unit * self._low, self._unit * self._high
            text = (
                f"answers lose {self._unit * abs(mean):.4g} {how} than believed {where}; expected "
                f"between {low:+.4g} and {high:+.4g}"
            )
            return self._unit * mean, self._unit * expected, text
        text = (
            f"answers are wrong {abs(mean):.2%} {how} often than believed {where}; expected "
            f"between {self._low:+.2%} and {self._high:+.2%}"
        )
        return mean, expected, text


class _Promise(_SequentialTest):
    """Whether the mean loss is at most the promised one."""

    name = "promise"

    def __init__(self, bound: Bound, share: float) -> None:
        super().__init__(share, 1, BET_SIZES)
        self._bound = bound

    def scores(self, decisions: Decisions) -> NDArray[np.float64]:
        return self._bound.excess(decisions)[:, np.newaxis]

    def update(self, score: NDArray[np.float64]) -> None:
        self.process.update((1 + bet_sizes(self._bound.lowest) * float(score[0]))[np.newaxis])
        self.values.append(score)

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        most, kind, unit = self._bound.at_most, self._bound.kind, self._bound.unit
        if unit is None:
            observed = mean + most
            return observed, most, f"{kind} {observed:.2%} {where}, promised at most {most:.2%}"
        observed, name = unit * mean + most, "mean loss" if kind == "error" else kind
        return observed, most, f"{name} {observed:.4g} {where}, promised at most {most:.4g}"


class _States(_SequentialTest):
    """Whether the states at some steps are distributed as in the reference."""

    name = "states"

    def __init__(self, reference: NDArray[np.float64], share: float, seed: int) -> None:
        super().__init__(share, reference.shape[1], PVALUE_BETS)
        self._pvalues = ConformalPValues(reference, seed)

    def scores(self, decisions: Decisions) -> NDArray[np.float64]:
        if decisions.states is None:
            raise ArgumentError(
                "the reference rows have states and these rows have none: use decisions of the "
                "same policy"
            )
        return decisions.states

    def update(self, score: NDArray[np.float64]) -> None:
        pvalues = self._pvalues.update(score)
        self.process.update(pvalue_increments(pvalues))
        self.values.append(pvalues)

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        return mean, 0.5, f"states have changed {where}: mean p-value {mean:.2f}, expected 0.50"


def _gap(decisions: Decisions) -> NDArray[np.float64]:
    """Return, per row, whether the answer was wrong minus the believed probability."""
    if decisions.believed is None:
        raise ArgumentError(
            "this rule gives no probability of being wrong, so its calibration cannot be tested; "
            "test its promise alone"
        )
    return np.asarray(decisions.wrong - decisions.believed)


def _interval(gap: NDArray[np.float64], alpha: float, seed: int) -> tuple[float, float]:
    """Return a confidence interval of level 1 - alpha for the mean of numbers in [-1, 1]."""
    values, counts = np.unique(gap, return_counts=True)
    high = 2 * betting_upper((values + 1) / 2, counts, alpha=alpha / 2, seed=seed) - 1
    low = 1 - 2 * betting_upper((1 - values) / 2, counts, alpha=alpha / 2, seed=seed)
    return low, high
