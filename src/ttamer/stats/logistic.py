"""Ridge logistic regression by Newton's method, with or without a term for each class.

A row has at most one class, so the class terms' part of Newton's system is diagonal and is
eliminated before the rest is solved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CLASS_RIDGE", "fit_by_class", "fit_logistic", "logit", "sigmoid"]

MAX_ROUNDS = 25
"""Newton's method stops after this many steps at the latest."""
TOLERANCE = 1e-8
"""A step that lowers the objective by less than this share of it is the last."""
EDGE = 1e-6
"""Chances are kept this far from 0 and 1 before their logit is taken."""
CLASS_RIDGE = 1.0
"""The penalty on the square of each class term."""


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
    weights = (middle if start is None else start).copy()
    wanted = outcomes.astype(float)
    best = np.inf
    step = np.zeros(width)
    for _ in range(MAX_ROUNDS):
        odds = features @ weights
        far = weights - middle
        loss = float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * penalty @ far**2)
        if loss > best + 1e-9 * abs(best):  # too long a step: half of it
            step *= 0.5
            weights = weights - step
            continue
        settled = best - loss < TOLERANCE * (1 + abs(loss))
        best = loss
        if settled:
            break
        chances = sigmoid(odds)
        slope = features.T @ (chances - wanted) + penalty * far
        bend = (features * (chances * (1 - chances))[:, np.newaxis]).T @ features
        step = -np.linalg.solve(bend + np.diag(penalty), slope)
        weights = weights + step
    return weights


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
    weights, terms = prior.copy(), np.zeros(len(met))
    step, turn = np.zeros(len(prior)), np.zeros(len(met))
    best = np.inf
    for _ in range(MAX_ROUNDS):
        odds = rows @ weights + np.repeat(terms, sizes)
        far = weights - prior
        drawn = penalty @ far**2 + class_ridge * (terms @ terms)
        loss = float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * drawn)
        if loss > best + 1e-9 * abs(best):  # too long a step: half of it
            step, turn = 0.5 * step, 0.5 * turn
            weights, terms = weights - step, terms - turn
            continue
        settled = best - loss < TOLERANCE * (1 + abs(loss))
        best = loss
        if settled:
            break
        chances = sigmoid(odds)
        bends = chances * (1 - chances)
        weighed = rows * bends[:, np.newaxis]
        across = np.add.reduceat(weighed, starts, axis=0)
        alone = np.add.reduceat(bends, starts) + holding
        slope = rows.T @ (chances - wanted) + penalty * far
        tilt = np.add.reduceat(chances - wanted, starts) + class_ridge * terms
        share = across / alone[:, np.newaxis]
        system = weighed.T @ rows + np.diag(penalty) - across.T @ share
        step = -np.linalg.solve(system, slope - share.T @ tilt)
        turn = -(tilt + across @ step) / alone
        weights, terms = weights + step, terms + turn
    every = np.zeros(classes)
    every[met[met >= 0]] = terms[met >= 0]
    return weights, every
