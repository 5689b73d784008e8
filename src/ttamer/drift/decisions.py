"""The decisions of a policy on audited rows, and its belief about its own answers there.

Any rule can be monitored: its answers are right or wrong, and cost something. A fitted policy
adds the probability that its answer is wrong, and the states in which it found the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ttamer.errors import ArgumentError
from ttamer.fitting.belief import by_pattern, chance
from ttamer.fitting.ladder import FittedPolicy, Mixture
from ttamer.fitting.replay import Rule, paid
from ttamer.fitting.states import StateTables
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import Losses, Trace

# The largest number of steps whose states are monitored, evenly spaced along a long walk.
MAX_STEPS = 6


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions of a rule on T rows; arrays have shape (T,) unless stated otherwise.

    >>> lost = np.array([[True, False], [False, False]])
    >>> decisions = Decisions(
    ...     answer=np.array([1, 0]),
    ...     wrong=lost[[0, 1], [1, 0]],
    ...     lost=lost,
    ...     cost=np.array([6.0, 1.0]),
    ... )
    >>> len(decisions), float(decisions.wrong.mean())
    (2, 0.0)
    """

    answer: NDArray[np.intp]
    wrong: Losses
    """Whether the answer is wrong, or its loss as a share of ``unit``: from 0 to 1."""
    lost: Losses
    """Shape (T, n): the same of each node's answer."""
    cost: NDArray[np.float64]
    believed: NDArray[np.float64] | None = None
    """The policy's probability that the answer it returns is wrong."""
    states: NDArray[np.float64] | None = None
    """Shape (T, m): the states of the row at some steps."""
    unit: float | None = None
    """The largest loss there can be, where answers have losses."""

    @property
    def mean_loss(self) -> float:
        """The error, or the mean loss in the unit of the losses."""
        return float(self.wrong.mean()) * (1.0 if self.unit is None else self.unit)

    def __len__(self) -> int:
        return len(self.wrong)


def decide(rule: Rule, trace: Trace, keys: Sequence[str | int] | None = None) -> Decisions:
    """Return the decisions of a rule on the rows of a trace.

    >>> from ttamer.drift import AskLast
    >>> from ttamer.trace import CascadeSpec, Trace
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 5.0})
    >>> trace = Trace.from_arrays(spec, [[0.5, 0.9]], prediction=[["a", "b"]], label=["b"])
    >>> decisions = decide(AskLast(trace.spec), trace)
    >>> decisions.wrong.tolist(), decisions.cost.tolist()
    ([False], [5.0])

    Args:
        rule: A fitted policy, a mixture, or anything else with a ``play``.
        trace: The rows.
        keys: The key of each row, by which a mixture draws its policy; by default the rows are
            numbered from 0.

    Returns:
        Answers, errors and costs; for a fitted policy beliefs and states too.

    Raises:
        ArgumentError: If answers have losses and the cascade has no largest loss.
    """
    require_trace(trace, "decide")
    unit = _unit_of(trace)
    lost = trace.wrong() if unit is None else trace.losses() / unit
    rows = np.arange(len(trace))
    if isinstance(rule, Mixture):
        names = range(len(trace)) if keys is None else keys
        is_second = np.array([rule.drawn(key) is rule.expensive for key in names], bool)
        one, one_believed = _fitted_decisions(rule.cheap, trace, lost)
        two, two_believed = _fitted_decisions(rule.expensive, trace, lost)
        answer = np.where(is_second, two.answer, one.answer)
        believed = None
        if one_believed is not None and two_believed is not None:
            believed = np.where(is_second, two_believed, one_believed)
        return Decisions(
            answer,
            lost[rows, answer],
            lost,
            np.where(is_second, two.cost, one.cost),
            believed,
            one.states,
            unit,
        )
    if isinstance(rule, FittedPolicy):
        return _fitted_decisions(rule, trace, lost)[0]
    played = rule.play(trace)
    cost = paid(played.asked, trace)
    return Decisions(played.answer, lost[rows, played.answer], lost, cost, unit=unit)


def _unit_of(trace: Trace) -> float | None:
    """Return the largest loss there can be; ``None`` where answers are right or wrong."""
    if not trace.is_graded:
        return None
    bound = trace.spec.loss_bound
    if bound is None:
        raise ArgumentError(
            "tests of drift need the largest loss there can be, known beforehand: set max_loss in "
            "[cascade] (for scores it is 1)"
        )
    return bound


def _fitted_decisions(
    rule: FittedPolicy, trace: Trace, lost: Losses
) -> tuple[Decisions, NDArray[np.float64] | None]:
    """Return the decisions of a fitted policy, and the probability that each answer is wrong."""
    rows, seen = np.arange(len(trace)), rule.fitted.read(trace)
    played = seen.play(rule.rule)
    believed: NDArray[np.float64] | None = None
    tables, states = rule.fitted.tables, None
    if isinstance(tables, StateTables):
        states = tables.states(trace.confidence)[:, _monitored(len(trace.names))].astype(float)
    elif not rule.fitted.thresholds:
        view = tables.belief.view(seen.seen)
        alone = [view.best((node,))[0] for node in _monitored(len(trace.names))]
        states = np.where(np.isnan(alone), 0.0, alone).T
        believed = np.ones(len(trace))
        for step, which in by_pattern(played.asked & seen.seen.came):
            if step:
                believed[which] = chance(view.best(step)[0][which])
    cost = paid(played.asked, trace)
    wrong = lost[rows, played.answer]
    return Decisions(played.answer, wrong, lost, cost, believed, states, _unit_of(trace)), believed


def _monitored(nodes: int) -> list[int]:
    """Return the nodes whose states are monitored."""
    places = np.linspace(0, nodes - 1, min(MAX_STEPS, nodes)).round().astype(int)
    return [int(place) for place in places]
