"""Ridge logistic regression by Newton's method: a few small linear systems, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fit_logistic", "logit", "sigmoid"]

ROUNDS = 25
ENOUGH = 1e-6
EDGE = 1e-6
"""Chances are kept this far from 0 and 1 before their logit is taken."""


def sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return chances from log-odds, without overflow.

    >>> sigmoid(np.array([0.0, -1000.0, 1000.0])).tolist()
    [0.5, 0.0, 1.0]
    """
    half = np.tanh(0.5 * values)
    return np.asarray(0.5 * (1 + half))


def logit(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-odds of chances, kept off the ends.

    >>> logit(np.array([0.5])).tolist()
    [0.0]
    """
    inside = np.clip(chances, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def fit_logistic(
    features: NDArray[np.float64],
    outcomes: NDArray[np.bool_],
    *,
    ridge: float,
    prior: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return weights w so that ``sigmoid(features @ w)`` is the chance of each outcome.

    ``features`` has shape (T, d) with a first column of ones, whose weight is not penalised; the
    others are penalised by ``ridge`` times the square of weight times spread. With a ``prior``
    it is how far a weight is from there that is penalised.
    """
    rows, width = features.shape
    spread = features.std(axis=0)
    spread[0] = 0.0
    penalty = ridge * spread**2 + 1e-9 * rows  # a column without spread keeps a weight near zero
    penalty[0] = 1e-9 * rows
    middle = np.zeros(width) if prior is None else prior
    weights = (middle if start is None else start).copy()
    wanted = outcomes.astype(float)
    best = np.inf
    step = np.zeros(width)
    for _ in range(ROUNDS):
        odds = features @ weights
        far = weights - middle
        loss = float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * penalty @ far**2)
        if loss > best + 1e-9 * abs(best):  # too long a step: half of it
            step *= 0.5
            weights = weights - step
            continue
        settled = best - loss < ENOUGH * (1 + abs(loss)) * 1e-2
        best = loss
        if settled:
            break
        chances = sigmoid(odds)
        slope = features.T @ (chances - wanted) + penalty * far
        bend = (features * (chances * (1 - chances))[:, np.newaxis]).T @ features
        step = -np.linalg.solve(bend + np.diag(penalty), slope)
        weights = weights + step
    return weights
