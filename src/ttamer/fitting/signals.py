"""Fitting what signals add: to the chance that an answer is wrong, and to X as a state.

*Offsets* enter the regressions of a belief: one for all nodes, smooth in the rank of the signal,
and how far each node deviates from it, shrunk the more the less nodes differ.

*Shifts* correct X where it is the state of a policy. A policy compares, state by state, what
stopping loses with what asking on loses. Where a signal shows that an input is hard for every node,
X is high and asking on gains little; where one node is unsure, X is as high and asking on gains
much. With both in one state a policy may be worse than without the signal. So from X as a state is
taken what the signal adds to it on average, and what is added instead is fitted to the errors that
the best node not yet asked would correct. What the signal says about one answer against another
stays.

Both are fitted to many columns at once, the nodes or the steps: the signal is the same in all.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitted.belief import Evidence, Signals, signal_names, signal_values
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting.offsets import (
    MAX_ODDS,
    MIN_INFORMATION,
    MIN_WEIGHT,
    OFFSET_RIDGE,
    WEIGHT_RIDGE,
    dispersion,
    is_clear,
    offsets_by_code,
    ridge_of,
    rounded,
    scores_of,
)
from ttamer.stats.logistic import logit, sigmoid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Step
    from ttamer.trace.trace import Losses, Trace

__all__ = ["fit_offsets", "fit_shifts", "useful_signals"]

MAX_SIGNAL_BINS = 8
"""A signal is cut into at most this many bins."""
SIGNAL_ERRORS = 2.0
"""A signal is used if its statistic is above its mean by this many standard deviations."""
COMMON_RIDGE = 0.5
"""The penalty on the squared offset of each bin that all columns share."""
STIFFNESS = 3.0
"""The penalty on the squared bend of these offsets at each bin."""
MAX_STEPS = 48
"""Shifts are fitted to at most this many steps, the shortest ones."""
MAX_CELLS = 1 << 21
"""Shifts are fitted to every second, third or further row where rows times steps exceed this."""
MAX_ROUNDS = 25
"""Newton's method stops after this many steps at the latest."""
TOLERANCE = 1e-4
"""Newton's method stops where no offset changes by more than this."""


def useful_signals(trace: Trace, wrong: Losses) -> tuple[str, ...]:
    """Return the signals that clearly say something about the errors.

    For each signal, the errors of each node in its bins are compared with the node's own error by a
    chi-squared statistic. Nodes err together, so its mean over nodes is compared with the law of
    one.

    Args:
        trace: The rows to fit to.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.

    Returns:
        Names, in the order of the trace.
    """
    names = signal_names(trace)
    if not names:
        return ()
    _, bins = _binned(signal_values(trace, names))
    odds = np.tile(logit(wrong.mean(axis=0)), (len(wrong), 1))
    kept = []
    spread = dispersion(wrong)
    for k, name in enumerate(names):
        if is_clear(*scores_of(bins[:, k], odds, wrong), spread, SIGNAL_ERRORS):
            kept.append(name)
    return tuple(kept)


def fit_offsets(
    names: tuple[str, ...], values: NDArray[np.float64], odds: NDArray[np.float64], wrong: Losses
) -> Signals:
    """Fit offsets and router logits, one signal after the other, each to what those before leave.

    Args:
        names: The signals to use.
        values: Shape (T, k): their values.
        odds: Shape (T, n): the log-odds that each node is wrong, by confidence and class.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.

    Returns:
        The signals, without shifts.
    """
    quantiser, bins = _binned(values)
    spread = dispersion(wrong)
    explained, guess = odds.copy(), np.tile(logit(wrong.mean(axis=0)), (len(wrong), 1))
    offsets, router_logits = [], []
    for own, count in zip(bins.T, quantiser.counts, strict=True):
        common, _ = _common_offset(explained, wrong.astype(float), own, count, spread)
        explained += common[own][:, np.newaxis]
        ridge = ridge_of(own, explained, wrong, spread)
        each = [_by_bin(own, explained[:, v], wrong[:, v], ridge) for v in range(wrong.shape[1])]
        deviation = np.stack(each, axis=1)
        explained += deviation[own]
        offsets.append(common[:, np.newaxis] + deviation)
        every = np.repeat(own, wrong.shape[1])
        router_logit = _by_bin(every, guess.ravel(), wrong.ravel(), spread * OFFSET_RIDGE)
        guess += router_logit[own][:, np.newaxis]
        router_logits.append(router_logit)
    nothing = tuple(np.zeros_like(own) for own in router_logits)
    return Signals(names, quantiser.edges, tuple(offsets), tuple(router_logits), nothing)


def fit_shifts(
    belief: Belief,
    seen: Evidence,
    values: NDArray[np.float64],
    wrong: Losses,
    steps: Sequence[Step],
    *,
    weighed: bool,
) -> Belief:
    """Fit what signals add to X as a state.

    Args:
        belief: The belief, with offsets of signals.
        seen: The rows it was fitted to.
        values: Shape (T, k): their signals.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.
        steps: The steps it was fitted for, the shortest first.
        weighed: Whether its regressions weigh the offsets. Else they fit nodes by themselves, and
            are changed by what X lacks on average over steps.

    Returns:
        The belief, with shifts.
    """
    signals = belief.signals
    if signals is None:
        return belief
    some = [step for step in steps if 0 < len(step) < wrong.shape[1]][:MAX_STEPS]
    every = slice(None, None, 1 + len(wrong) * len(some) // MAX_CELLS)
    values, losses = values[every], wrong[every].astype(float)
    answers = None if seen.predictions is None else seen.predictions[every]
    seen = Evidence(seen.odds[every], seen.offset[every], answers)
    blank = Evidence(seen.odds, seen.offset - signals.offset(values), answers)
    ranked = np.argsort(losses.mean(axis=0), kind="stable").tolist()
    x, added, met, gained = [], [], [], []
    for step in some:
        least, owner = belief.least(seen, step)
        best_left = next(node for node in ranked if node not in step)
        loss = losses[np.arange(len(losses)), owner]
        gain = loss - losses[:, best_left]
        if (gain > 0).any():
            x.append(np.clip(least, -MAX_ODDS, MAX_ODDS))
            added.append(least - belief.least(blank, step)[0])
            met.append(loss)
            gained.append(np.maximum(gain, 0.0))
    if not gained:
        return belief
    as_belief, lost, gains = (np.stack(each, axis=1) for each in (x, met, gained))
    as_state, mean_added = as_belief.copy(), np.mean(added, axis=0)
    offsets, shifts = [], []
    spread = dispersion(wrong)
    for own, table in zip(Quantiser(signals.bounds).states(values).T, signals.offsets, strict=True):
        count = len(table)
        lacking = np.zeros(count)
        if not weighed:
            lacking, _ = _common_offset(as_belief, lost, own, count, spread)
            as_belief += lacking[own][:, np.newaxis]
        rows = np.maximum(np.bincount(own, minlength=count), 1)
        taken = np.bincount(own, mean_added, minlength=count) / rows
        as_state -= taken[own][:, np.newaxis]
        mean_added = mean_added - taken[own]
        offset, weight = _common_offset(as_state, gains, own, count, spread)
        offset /= max(weight, MIN_WEIGHT)
        as_state += offset[own][:, np.newaxis]
        offsets.append(table + lacking[:, np.newaxis])
        shifts.append(rounded(offset - taken - lacking))
    found = dataclasses.replace(signals, offsets=tuple(offsets), shifts=tuple(shifts))
    return dataclasses.replace(belief, signals=found)


def _binned(values: NDArray[np.float64]) -> tuple[Quantiser, NDArray[np.int32]]:
    """Return how signals are cut into bins, and the bins of the rows, shape (T, k)."""
    quantiser = Quantiser.fit(values, states=MAX_SIGNAL_BINS, method="quantile")
    return quantiser, quantiser.states(values).astype(np.int32)


def _common_offset(
    odds: NDArray[np.float64],
    outcomes: NDArray[np.float64],
    bins: NDArray[np.integer],
    count: int,
    spread: float,
) -> tuple[NDArray[np.float64], float]:
    """Return what each bin adds to the log-odds in every column, and the mean weight of these.

    ``odds`` and ``outcomes`` have shape (T, columns). A column has a constant and a weight of its
    own. A row counts once, although it stands in every column.
    """
    bends = np.diff(np.eye(count), 2, axis=0)
    penalty = spread * (COMMON_RIDGE * np.eye(count) + STIFFNESS * bends.T @ bends)
    constant, weight = np.zeros(odds.shape[1]), np.ones(odds.shape[1])
    offset = np.zeros(count)

    def errors() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        chance = sigmoid(constant + weight * odds + offset[bins][:, np.newaxis])
        return chance - outcomes, chance * (1 - chance)

    for _ in range(MAX_ROUNDS):
        error, information = errors()
        down = error.sum(axis=0)
        tilt = (error * odds).sum(axis=0) + spread * WEIGHT_RIDGE * (weight - 1)
        one = information.sum(axis=0) + MIN_INFORMATION
        both = (information * odds).sum(axis=0)
        two = (information * odds**2).sum(axis=0) + spread * WEIGHT_RIDGE
        size = one * two - both**2
        constant = constant - np.clip((two * down - both * tilt) / size, -1.0, 1.0)
        weight = weight - np.clip((one * tilt - both * down) / size, -1.0, 1.0)
        error, information = errors()
        down = np.bincount(bins, error.mean(axis=1), count) + penalty @ offset
        bend = np.diag(np.bincount(bins, information.mean(axis=1), count)) + penalty
        step = np.clip(np.linalg.solve(bend, down), -1.0, 1.0)
        offset = offset - step
        if np.abs(step).max() < TOLERANCE:
            break
    each = information.sum(axis=0)
    return rounded(offset - offset[bins].mean()), float(each @ weight / each.sum())


def _by_bin(
    bins: NDArray[np.int32], odds: NDArray[np.float64], wrong: Losses, ridge: float
) -> NDArray[np.float64]:
    """Return what each bin adds to log-odds, shape (bins,); every bin has rows."""
    return np.array(list(offsets_by_code(bins, odds, wrong, ridge).values()))
