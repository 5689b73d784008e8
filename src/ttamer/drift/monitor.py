"""Tests of a policy on audited rows, valid however often they are looked at.

Three tests share one rate of false alarms: it is divided among them, within a test among the
interval and the bets, or among the steps. While rows are drawn like the reference and the promise
holds, the chance that there is *ever* an alarm is at most ``false_alarms``.

- **calibration**: the answers are wrong more or less often than predicted: the mean of (wrong -
  believed) has left its confidence interval on reference rows.
- **promise**: the error is above the promised one (or, for a drop, the loss against a node is).
- **states**: the distribution of states at some steps has changed. An e-process for each step tests
  the conformal p-value of every row among all rows before it: while rows are exchangeable it is
  uniform, exactly (Vovk, Gammerman and Shafer, 2005).

An e-process is the wealth of bets that are fair without a change: it ever reaches ``1 / a`` with a
chance of at most ``a`` (Ville's inequality). A part of the reserve is invested before every row, so
a late change is found almost as soon as an early one (compare the e-detectors of Shin, Ramdas and
Rinaldo, 2022).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import by_pattern, chance
from ttamer.fitting.fitted import Fitted
from ttamer.fitting.ladder import FittedPolicy, Mixture
from ttamer.fitting.markov import StateTables
from ttamer.fitting.promises import Kind
from ttamer.fitting.replay import Rule, paid
from ttamer.stats.bounds import betting_upper
from ttamer.trace.checks import require_trace
from ttamer.trace.losses import Losses, complete_losses
from ttamer.trace.trace import Trace

Test = Literal["calibration", "promise", "states"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AuditedDecisions:
    """What a rule did on T rows; arrays have shape (T,) unless stated otherwise."""

    answer: NDArray[np.intp]
    # Shape (T, n): whether each node's answer is wrong, or its loss as a share of unit.
    lost: Losses
    cost: Floats
    believed: Floats | None = None  # the policy's chance that the answer it returns is wrong
    states: Floats | None = None  # shape (T, m): the states of the row at some steps
    unit: float | None = None  # the largest loss there can be, where answers have losses

    @property
    def wrong(self) -> Losses:
        """Whether the answer is wrong, or its loss as a share of ``unit``: from 0 to 1."""
        return np.asarray(self.lost[np.arange(len(self)), self.answer])

    @property
    def mean_loss(self) -> float:
        """The error, or the mean loss in the unit of the losses."""
        return float(self.wrong.mean()) * (1.0 if self.unit is None else self.unit)

    def __len__(self) -> int:
        return len(self.answer)


def decide(rule: Rule, trace: Trace, keys: Sequence[str | int] | None = None) -> AuditedDecisions:
    """Return the decisions of a rule on rows on which every node answered.

    ``keys`` are what a mixture draws its policy by on each row; by default the number of the row.

    Raises:
        ArgumentError: If answers have losses and the cascade has no largest loss.
    """
    require_trace(trace, "decide")
    unit = trace.spec.loss_bound if trace.is_graded else None
    if trace.is_graded and unit is None:
        raise ArgumentError(
            "tests of drift need the largest loss there can be, known beforehand: set max_loss in "
            "[cascade] (for scores it is 1)"
        )
    if isinstance(rule, Mixture) and keys is not None:
        is_second = np.array([rule.drawn(key) is rule.expensive for key in keys], bool)
        first, second = rule.cheap.play(trace), rule.expensive.play(trace)
        answer = np.where(is_second, second.answer, first.answer)
        asked = np.where(is_second[:, np.newaxis], second.asked, first.asked)
    else:
        played = rule.play(trace)
        answer, asked = played.answer, played.asked
    believed, states = None, None
    if isinstance(rule, FittedPolicy | Mixture):
        believed, states = _believed(rule.fitted, trace, asked)
    return AuditedDecisions(
        answer, complete_losses(trace), paid(asked, trace), believed, states, unit
    )


def _believed(
    fitted: Fitted, trace: Trace, asked: NDArray[np.bool_]
) -> tuple[Floats | None, Floats | None]:
    """Return the chance of an error by the nodes asked, and the states at six nodes at most."""
    count, tables = len(trace.names), fitted.tables
    nodes = np.linspace(0, count - 1, min(6, count)).round().astype(int).tolist()
    if isinstance(tables, StateTables):
        return None, tables.states(trace.confidence)[:, nodes].astype(float)
    if tables.are_thresholds:  # they say no chance of an error
        return None, None
    rows = fitted.read(trace)
    view = tables.belief.view(rows.answers)
    alone = [view.best((node,))[0] for node in nodes]
    believed = np.ones(len(trace))
    for step, which in by_pattern(asked & rows.answers.answered):
        if step:
            believed[which] = chance(view.best(step)[0][which])
    return believed, np.where(np.isnan(alone), 0.0, alone).T


class MixtureEProcess:
    """The wealth of several independent streams, each with the same number of bets."""

    delay = 100  # row t invests one part in t + delay of the reserve
    max_wealth = 1e250  # of one investment, so that wealth stays finite
    memory = 5000  # rows searched for the time of the change
    tolerance = 2.0  # the latest time whose log-evidence is this near the largest is the change

    def __init__(self, streams: int, bets: int) -> None:
        self.rows = 0
        self._reserve = 1.0
        self._invested = np.zeros((streams, bets))
        self._logs: deque[NDArray[np.float32]] = deque(maxlen=self.memory)

    @property
    def wealth(self) -> Floats:
        """Shape (streams,): evidence against there being no change; 1 at the start."""
        return np.asarray(self._reserve + self._invested.sum(axis=1))

    def update(self, increments: Floats) -> None:
        """Take one row.

        ``increments``, of shape (streams, bets), are the factors by which each bet's investment is
        multiplied; without a change at most 1 on average.
        """
        invested = self._reserve / (self.rows + self.delay)
        self._reserve -= invested
        self.rows += 1
        grown = (self._invested + invested / self._invested.shape[1]) * increments
        self._invested = np.minimum(grown, self.max_wealth)
        # Only the time of a change is read from these: a bet may lose nearly all, and single
        # precision is enough.
        self._logs.append(np.log(np.maximum(increments, 1e-12)).astype(np.float32))

    def since_change(self, stream: int) -> int:
        """Return the estimated number of rows since the bets of a stream began to pay."""
        # The latest time that is nearly as likely as the best: rather too few rows than too many,
        # as rows from before a change must not pass for later ones.
        logs = np.array([increments[stream] for increments in self._logs], np.float64)
        if not len(logs):
            return 0
        grown = np.cumsum(logs[::-1], axis=0)[::-1]  # since each row, by each bet
        top = grown.max(axis=1)
        score = top + np.log(np.exp(grown - top[:, np.newaxis]).sum(axis=1))
        return len(logs) - int(np.flatnonzero(score >= score.max() - self.tolerance)[-1])


def bet_sizes(lowest: float, count: int = 7, max_loss: float = 0.9) -> Floats:
    """Return sizes of bets on a number x above ``lowest``, each half of the one before.

    A bet of size s on x has the increment ``1 + s * x``; none loses more than ``max_loss``.

    >>> bet_sizes(-0.5)[:3].round(2).tolist()
    [1.8, 0.9, 0.45]
    """
    return np.asarray(max_loss / max(-lowest, 1e-6) / 2.0 ** np.arange(count))


class ConformalPValues:
    """The rank of each row among all rows before it, from 0 to 1, for several scores at once.

    ``reference`` are the scores of rows drawn as rows should be, of shape (T, scores). ``seed`` is
    for ties; it must not be the one that the rows were drawn with, as in a simulation.
    """

    def __init__(self, reference: Floats, seed: int) -> None:
        self._rows = len(reference)
        distinct = [np.unique(column, return_counts=True) for column in reference.T]
        # By score, the distinct values so far, increasing: scores take few values.
        self._values = [values.tolist() for values, _ in distinct]
        self._counts = [counts.tolist() for _, counts in distinct]
        self._draws = np.random.default_rng(seed)

    def update(self, scores: Floats) -> Floats:
        """Take the scores of rows in their order, shape (T, scores); return the rank of each."""
        return np.array([self._ranks(row) for row in scores.tolist()])

    def _ranks(self, scores: list[float]) -> list[float]:
        ranks = []
        for values, counts, score, draw in zip(
            self._values,
            self._counts,
            scores,
            self._draws.random(len(scores)).tolist(),
            strict=True,
        ):
            index = bisect_left(values, score)
            if index == len(values) or values[index] != score:
                values.insert(index, score)
                counts.insert(index, 0)
            counts[index] += 1
            ranks.append((sum(counts[:index]) + draw * counts[index]) / (self._rows + 1))
        self._rows += 1
        return ranks


def pvalue_increments(pvalues: Floats) -> Floats:
    """Return the increments of all bets on p-values, with the bets as a last axis.

    They are 1 on average where p-values are uniform.

    >>> pvalue_increments(np.array([0.0, 0.5]))[:, :2].round(2).tolist()
    [[0.1, 0.4], [1.0, 1.0]]
    """
    # Cosines of three frequencies: a p-value moves, spreads, or changes its shape.
    waves = np.cos(np.pi * np.multiply.outer(pvalues, (1, 2, 3)))
    increments = 1 + np.multiply.outer(waves, (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9))
    return np.asarray(increments.reshape(*pvalues.shape, -1))


@dataclass(frozen=True)
class Bound:
    """The promised upper bound on an error or a drop.

    >>> Bound("error", 0.05).lowest
    -0.05
    """

    kind: Kind
    at_most: float
    # The number of the node that a drop is measured from
    node: int = -1
    # The largest loss there can be, where answers have losses; ``at_most`` is in their unit
    unit: float | None = None

    @property
    def share(self) -> float:
        """The bound as a share of the largest loss."""
        return self.at_most if self.unit is None else self.at_most / self.unit

    def excess(self, decisions: AuditedDecisions) -> Floats:
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
class Alarm:
    """A test that found a change."""

    test: Test
    # The row of the traffic at which the change was found
    number: int
    # The row of the traffic at which the change is estimated to have happened
    change: int
    # The number of audited rows since then
    rows: int
    e_value: float
    threshold: float
    # Since the change: the mean of (wrong - believed), the mean loss, or the mean p-value
    observed: float
    # The bound that ``observed`` would keep without a change
    expected: float
    text: str


class Monitor:
    """Tests audited rows one after another, and raises an alarm once something has changed.

    >>> monitor = Monitor(bound=Bound("error", 0.05), false_alarms=0.05)
    >>> monitor.progress
    {'promise': 0.0}

    Args:
        reference: The policy's decisions on rows drawn as rows should be, to which it was not
            fitted; those that certified it may be used. Without any, only the promise is tested.
        bound: The promise; without it, the promise is not tested.
        false_alarms: The chance that there is ever an alarm without a change.
        seed: For ties among states; not a seed that the rows were drawn with.

    Raises:
        ArgumentError: Where there is nothing to test, or ``false_alarms`` is not between 0 and 1.
    """

    max_shown = 1e12  # larger e-values are reported as this

    def __init__(
        self,
        *,
        reference: AuditedDecisions | None = None,
        bound: Bound | None = None,
        false_alarms: float = 0.05,
        seed: int = 0,
    ) -> None:
        if not 0 < false_alarms < 1:
            raise ArgumentError(f"false_alarms is {false_alarms!r}; it must lie between 0 and 1")
        kinds: list[Callable[[float], _SequentialTest]] = []
        if reference is not None and len(reference) and reference.believed is not None:
            kinds.append(partial(_Calibration, reference, seed))
        if bound is not None:
            kinds.append(partial(_Promise, bound))
        if reference is not None and len(reference) and reference.states is not None:
            kinds.append(partial(_States, reference.states, seed))
        if not kinds:
            raise ArgumentError(
                "there is nothing to test: give reference rows that the policy was not fitted to, "
                "or a promise"
            )
        # By the union bound each has an equal share of the rate.
        self._tests = [make(false_alarms / len(kinds)) for make in kinds]
        self._numbers: deque[int] = deque(maxlen=MixtureEProcess.memory)

    @property
    def progress(self) -> dict[str, float]:
        """How near each test is to an alarm, from 0 to 1, on a logarithmic scale."""
        return {test.name: test.progress for test in self._tests}

    def update(self, decisions: AuditedDecisions, numbers: Sequence[int]) -> Alarm | None:
        """Take audited rows in their order.

        Args:
            decisions: What the policy did on them.
            numbers: Their numbers in the traffic.

        Returns:
            The first alarm, after which the remaining rows are not looked at.

        Raises:
            ArgumentError: Where these are decisions of another kind of policy.
        """
        for test in self._tests:
            if getattr(decisions, test.reads) is None:
                raise ArgumentError(
                    f"the test of {test.name} needs {test.reads}, which these decisions lack: use "
                    "those of the same policy"
                )
        values = [test.values(decisions) for test in self._tests]
        increments = [test.bets(part) for test, part in zip(self._tests, values, strict=True)]
        # Row by row: an alarm may come at any of them, and the evidence is that of its row.
        for row, number in enumerate(numbers):
            self._numbers.append(int(number))
            for test, value, factors in zip(self._tests, values, increments, strict=True):
                test.recent.append(value[row])
                test.process.update(factors[row])
            # The test that is furthest above its threshold, if any is.
            test = max(self._tests, key=lambda test: test.e_value / test.threshold)
            if test.e_value >= test.threshold:
                return self._alarm(test)
        return None

    def _alarm(self, test: _SequentialTest) -> Alarm:
        stream = int(test.process.wealth.argmax())
        since = min(max(test.process.since_change(stream), 1), len(self._numbers))
        mean = float(np.mean([values[stream] for values in list(test.recent)[-since:]]))
        observed, expected, text = test.described(mean, f"on the last {since} audited rows")
        last, change = self._numbers[-1], self._numbers[-since]
        e_value = min(test.e_value, self.max_shown)
        return Alarm(
            test.name, last, change, since, e_value, test.threshold, observed, expected, text
        )


class _SequentialTest(ABC):
    """One test: rows become values, and values become increments of an e-process."""

    name: Test
    reads: str  # of the decisions

    def __init__(self, level: float, streams: int, bets: int, unit: float | None = None) -> None:
        self.threshold = 1 / level
        self.process = MixtureEProcess(streams, bets)
        self.recent: deque[Floats] = deque(maxlen=MixtureEProcess.memory)  # values, (streams,) each
        self.is_graded = unit is not None
        self.unit, self.form = (1.0, ".2%") if unit is None else (unit, ".4g")

    @property
    def e_value(self) -> float:
        """The largest wealth, divided by the number of streams."""
        # Their union bound: each stream alone would need that much more wealth.
        wealth = self.process.wealth
        return float(wealth.max()) / len(wealth)

    @property
    def progress(self) -> float:
        """How near an alarm is."""
        return float(np.clip(math.log(max(self.e_value, 1.0)) / math.log(self.threshold), 0, 1))

    @abstractmethod
    def values(self, decisions: AuditedDecisions) -> Floats:
        """Return what is tested of each row; shape (T, streams)."""

    @abstractmethod
    def bets(self, values: Floats) -> Floats:
        """Return the increments of all bets; shape (T, streams, bets)."""

    @abstractmethod
    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        """Return what was observed, what was expected, and both in a sentence."""


class _Calibration(_SequentialTest):
    """Whether the mean of (wrong - believed) is within the interval of the reference."""

    name, reads = "calibration", "believed"

    def __init__(self, reference: AuditedDecisions, seed: int, share: float) -> None:
        # Half of the share is for the interval of the reference; bets are on both sides of it.
        super().__init__(share / 2, 1, 2 * len(bet_sizes(-1.0)), reference.unit)
        self._low, self._high = _interval(self.values(reference)[:, 0], share / 2, seed)

    def values(self, decisions: AuditedDecisions) -> Floats:
        return np.asarray(decisions.wrong - np.asarray(decisions.believed))[:, np.newaxis]

    def bets(self, values: Floats) -> Floats:
        gap = values[:, :, np.newaxis]
        up = 1 + bet_sizes(-1.0 - self._high) * (gap - self._high)
        down = 1 + bet_sizes(self._low - 1.0) * (self._low - gap)
        return np.concatenate([up, down], axis=2)

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        expected = self._high if mean > (self._low + self._high) / 2 else self._low
        verb, often = ("lose", "") if self.is_graded else ("are wrong", " often")
        text = (
            f"answers {verb} {self.unit * abs(mean):{self.form}} {'more' if mean > 0 else 'less'}"
            f"{often} than believed {where}; expected between {self.unit * self._low:+{self.form}} "
            f"and {self.unit * self._high:+{self.form}}"
        )
        return self.unit * mean, self.unit * expected, text


class _Promise(_SequentialTest):
    """Whether the mean loss is at most the promised one."""

    name, reads = "promise", "lost"

    def __init__(self, bound: Bound, share: float) -> None:
        self._bound, self._sizes = bound, bet_sizes(bound.lowest)
        super().__init__(share, 1, len(self._sizes), bound.unit)

    def values(self, decisions: AuditedDecisions) -> Floats:
        return self._bound.excess(decisions)[:, np.newaxis]

    def bets(self, values: Floats) -> Floats:
        return np.asarray(1 + self._sizes * values[:, :, np.newaxis])

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        at_most, kind = self._bound.at_most, self._bound.kind
        name = "mean loss" if kind == "error" and self.is_graded else kind
        observed = self.unit * mean + at_most
        text = f"{name} {observed:{self.form}} {where}, promised at most {at_most:{self.form}}"
        return observed, at_most, text


class _States(_SequentialTest):
    """Whether the states at some steps are distributed as in the reference."""

    name, reads = "states", "states"

    def __init__(self, reference: Floats, seed: int, share: float) -> None:
        super().__init__(share, *pvalue_increments(reference[0]).shape)
        self._pvalues = ConformalPValues(reference, seed)

    def values(self, decisions: AuditedDecisions) -> Floats:
        return self._pvalues.update(np.asarray(decisions.states))

    def bets(self, values: Floats) -> Floats:
        return pvalue_increments(values)

    def described(self, mean: float, where: str) -> tuple[float, float, str]:
        return mean, 0.5, f"states have changed {where}: mean p-value {mean:.2f}, expected 0.50"


def _interval(gap: Floats, alpha: float, seed: int) -> tuple[float, float]:
    """Return a confidence interval of level 1 - alpha for the mean of numbers in [-1, 1]."""
    values, counts = np.unique(gap, return_counts=True)
    high = 2 * betting_upper((values + 1) / 2, counts, alpha=alpha / 2, seed=seed) - 1
    low = 1 - 2 * betting_upper((1 - values) / 2, counts, alpha=alpha / 2, seed=seed)
    return low, high
