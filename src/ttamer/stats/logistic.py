"""Ridge logistic regression by Newton's method, with or without a term for each class.

A row has at most one class, so the class terms' part of Newton's system is diagonal and is
eliminated before the rest is solved.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Newton's method stops after this many steps at the latest.
MAX_ROUNDS = 25
# It stops after this many halvings of steps, all together: where chances are near 0 or 1, a step
# may be a million times too long.
MAX_HALVINGS = 200
# A step that lowers the objective by less than this share of it is the last.
TOLERANCE = 1e-8
# Chances are kept this far from 0 and 1 before their logit is taken.
EDGE = 1e-6
# The penalty on the square of each class term.
CLASS_RIDGE = 1.0


def sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return chances from log-odds, without overflow.

    Args:
        values: Log-odds, of any shape.

    Returns:
        Chances from 0 to 1, of the same shape.

    >>> sigmoid(np.array([0.0, -1000.0, 1000.0])).tolist()
    [0.5, 0.0, 1.0]
    """
    half = np.tanh(0.5 * values)
    return np.asarray(0.5 * (1 + half))


def logit(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-odds of chances, kept off the ends.

    Args:
        chances: Numbers from 0 to 1, of any shape; clipped to 1e-6 from either end.

    Returns:
        Log-odds, of the same shape.

    >>> logit(np.array([0.5])).tolist()
    [0.0]
    """
    inside = np.clip(chances, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def fit_logistic(
    features: NDArray[np.float64],
    outcomes: NDArray[np.bool_] | NDArray[np.float64],
    *,
    ridge: float,
    prior: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return weights w so that ``sigmoid(features @ w)`` is the chance of each outcome.

    The weight of the first column is not penalised; the others are penalised by ``ridge`` times
    the square of weight times spread. With a ``prior``, the distance of a weight from its prior is
    penalised instead.

    Args:
        features: Shape (T, d), with a first column of ones.
        outcomes: Shape (T,): whether the outcome occurred, or a number from 0 to 1, of which the
            mean is estimated.
        ridge: The strength of the penalty, at least 0.
        prior: Shape (d,): the weights towards which the fit is drawn; zeros by default.
        start: Shape (d,): the weights at which Newton's method starts; the prior by default.

    Returns:
        Shape (d,): the weights.

    >>> features = np.column_stack([np.ones(4), [0.0, 1.0, 2.0, 3.0]])
    >>> weights = fit_logistic(features, np.array([False, True, False, True]), ridge=1.0)
    >>> chances = sigmoid(features @ weights)
    >>> bool(chances[0] < 0.5 < chances[3])
    True
    """
    rows, width = features.shape
    spread = features.std(axis=0)
    spread[0] = 0.0
    penalty = ridge * spread**2 + 1e-9 * rows  # a column without spread keeps a weight near zero
    penalty[0] = 1e-9 * rows
    middle = np.zeros(width) if prior is None else prior
    wanted = outcomes.astype(float)

    def loss(weights: NDArray[np.float64], odds: NDArray[np.float64]) -> float:
        far = weights - middle
        return float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * penalty @ far**2)

    def step(weights: NDArray[np.float64], odds: NDArray[np.float64]) -> NDArray[np.float64]:
        chances = sigmoid(odds)
        slope = features.T @ (chances - wanted) + penalty * (weights - middle)
        bend = (features * (chances * (1 - chances))[:, np.newaxis]).T @ features
        return -np.linalg.solve(bend + np.diag(penalty), slope)

    return _minimise(middle if start is None else start, features.__matmul__, loss, step)


def fit_by_class(
    features: NDArray[np.float64],
    codes: NDArray[np.int32],
    outcomes: NDArray[np.bool_] | NDArray[np.float64],
    *,
    classes: int,
    ridge: float,
    prior: NDArray[np.float64],
    class_ridge: float = CLASS_RIDGE,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights, and a term for each class, so that their sum is the log-odds of outcomes.

    ``features`` has shape (T, d) with a first column of ones; weights are drawn towards the prior
    as :func:`ttamer.stats.fit_logistic` draws them. ``codes`` holds the class of each row, or -1
    for none; such rows have no term. The square of a term is penalised by ``class_ridge``.
    """
    order = np.argsort(codes, kind="stable")
    rows, own = features[order], codes[order]
    wanted = outcomes[order].astype(float)
    starts = np.flatnonzero(np.diff(own, prepend=own[0] - 1))
    met = own[starts]
    sizes = np.diff(np.append(starts, len(own)))
    spread = rows.std(axis=0)
    spread[0] = 0.0
    penalty = ridge * spread**2 + 1e-9 * len(rows)
    holding = np.where(met < 0, np.inf, class_ridge)
    width = len(prior)

    def odds_at(both: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(rows @ both[:width] + np.repeat(both[width:], sizes))

    def loss(both: NDArray[np.float64], odds: NDArray[np.float64]) -> float:
        far, terms = both[:width] - prior, both[width:]
        drawn = penalty @ far**2 + class_ridge * (terms @ terms)
        return float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * drawn)

    def step(both: NDArray[np.float64], odds: NDArray[np.float64]) -> NDArray[np.float64]:
        chances = sigmoid(odds)
        bends = chances * (1 - chances)
        weighed = rows * bends[:, np.newaxis]
        across = np.add.reduceat(weighed, starts, axis=0)
        alone = np.add.reduceat(bends, starts) + holding
        slope = rows.T @ (chances - wanted) + penalty * (both[:width] - prior)
        tilt = np.add.reduceat(chances - wanted, starts) + class_ridge * both[width:]
        share = across / alone[:, np.newaxis]
        system = weighed.T @ rows + np.diag(penalty) - across.T @ share
        turn = -np.linalg.solve(system, slope - share.T @ tilt)
        return np.concatenate([turn, -(tilt + across @ turn) / alone])

    both = _minimise(np.concatenate([prior, np.zeros(len(met))]), odds_at, loss, step)
    every = np.zeros(classes)
    every[met[met >= 0]] = both[width:][met >= 0]
    return both[:width], every


def _minimise(
    start: NDArray[np.float64],
    odds_at: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    loss_at: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
    step_at: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the weights of least loss by Newton's method; a step that raises it is halved."""
    weights, kept, step = start.copy(), start.copy(), np.zeros_like(start)
    best, rounds, halvings = np.inf, 0, 0
    while True:
        odds = odds_at(weights)
        loss = loss_at(weights, odds)
        if not loss <= best + 1e-9 * abs(best):  # too long a step: half of it
            if halvings == MAX_HALVINGS:
                return kept
            halvings += 1
            step *= 0.5
            weights = weights - step
            continue
        settled = best - loss < TOLERANCE * (1 + abs(loss))
        best, kept = loss, weights
        if settled or rounds == MAX_ROUNDS:
            return weights
        rounds += 1
        step = step_at(weights, odds)
        weights = weights + step
