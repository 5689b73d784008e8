"""Fitting what the class of an answer adds to X as the state of a policy on a network's exits.

Two inputs of equal X differ in what there is to gain by going on: mistakes between some classes are
corrected by the next exits, those between others by none. The class that is predicted shows a part
of that. So after each step, given X, the errors that exits to come correct are regressed on the
class of X's answer; nearer exits count more, for they cost less. X plus what the class adds is in
the order of what there is to gain. Answers are still chosen by X.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ttamer.fitting.offsets import MAX_ODDS, MIN_WEIGHT, WEIGHT_RIDGE, dispersion, rounded
from ttamer.stats.logistic import fit_by_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Evidence, Step
    from ttamer.trace.trace import Losses

__all__ = ["fit_class_shifts"]

CLASS_RIDGE = 10.0
"""The penalty on the squared shift of each class."""
MAX_SHIFT = 4.0
"""No shift is larger than this in absolute value."""
NEARNESS = 0.7
"""Each exit to come counts this many times as much as the one before it."""
MIN_CORRECTED = 20.0
"""With fewer errors corrected after a step it has no shifts."""


def fit_class_shifts(
    belief: Belief, seen: Evidence, wrong: Losses, steps: Sequence[Step], classes: int
) -> Belief:
    """Fit what the class of X's answer adds to X as a state.

    Args:
        belief: The belief, of the exits of one network.
        seen: The rows it was fitted to.
        wrong: Shape (T, n), whether each answer is wrong, or its loss from 0 to 1.
        steps: The steps it was fitted for.
        classes: The number of classes.

    Returns:
        The belief, with shifts.
    """
    predictions = seen.predictions
    if predictions is None:
        return belief
    losses, spread = wrong.astype(float), dispersion(wrong)
    every, shifts = np.arange(len(losses)), {}
    for step in steps:
        to_come = losses[:, max(step, default=losses.shape[1]) + 1 :]
        if not to_come.size:
            continue
        least, owner = belief.least(seen, step)
        weights = NEARNESS ** np.arange(to_come.shape[1])
        gains = np.maximum(losses[every, owner] - to_come @ weights / weights.sum(), 0.0)
        if gains.sum() >= MIN_CORRECTED:
            shifts[step] = _shifts(least, predictions[every, owner], gains, classes, spread)
    return dataclasses.replace(belief, shifts=shifts)


def _shifts(
    least: NDArray[np.float64],
    codes: NDArray[np.int32],
    gains: NDArray[np.float64],
    classes: int,
    spread: float,
) -> NDArray[np.float64]:
    """Return what each class adds to X so that it is in the order of gains, shape (classes,)."""
    odds = np.clip(least, -MAX_ODDS, MAX_ODDS)
    weights, terms = fit_by_class(
        np.stack([np.ones(len(odds)), odds], axis=1),
        codes,
        gains,
        classes=classes,
        ridge=spread * WEIGHT_RIDGE,
        prior=np.array([0.0, 1.0]),
        class_ridge=spread * CLASS_RIDGE,
    )
    return rounded(np.clip(terms / max(weights[1], MIN_WEIGHT), -MAX_SHIFT, MAX_SHIFT))
