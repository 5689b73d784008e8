"""What the class of an answer adds after each step: ridge logistic regression with class terms.

A node may be good at a class by itself, and no better than others once they agree. So with rows
enough every regression of a belief has a term for each class its answer may be, shrunk towards
none. A row has one class: the terms' part of Newton's system is diagonal, and is eliminated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ttamer.stats.logistic import sigmoid

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LEAST_ROWS", "MOST_CLASSES", "fit_by_class"]

LEAST_ROWS = 200
"""From so many rows on, of separate models, ..."""
MOST_CLASSES = 64
"""... with no more classes than this, there are terms for classes."""
RIDGE = 1.0
ROUNDS = 25
ENOUGH = 1e-8


def fit_by_class(
    features: NDArray[np.float64],
    codes: NDArray[np.int32],
    outcomes: NDArray[np.bool_],
    *,
    classes: int,
    ridge: float,
    prior: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights, and a term for each class, so that their sum is the log-odds of outcomes.

    ``features`` has shape (T, d) with a first column of ones; weights are drawn towards the prior
    as :func:`ttamer.stats.fit_logistic` draws them. ``codes`` say the class of each row, -1 being
    none; such rows have no term.
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
    holding = np.where(met < 0, np.inf, RIDGE)
    weights, terms = prior.copy(), np.zeros(len(met))
    step, turn = np.zeros(len(prior)), np.zeros(len(met))
    best = np.inf
    for _ in range(ROUNDS):
        odds = rows @ weights + np.repeat(terms, sizes)
        far = weights - prior
        drawn = penalty @ far**2 + RIDGE * (terms @ terms)
        loss = float(np.logaddexp(0, odds).sum() - wanted @ odds + 0.5 * drawn)
        if loss > best + 1e-9 * abs(best):  # too long a step: half of it
            step, turn = 0.5 * step, 0.5 * turn
            weights, terms = weights - step, terms - turn
            continue
        settled = best - loss < ENOUGH * (1 + abs(loss))
        best = loss
        if settled:
            break
        chances = sigmoid(odds)
        bends = chances * (1 - chances)
        weighed = rows * bends[:, np.newaxis]
        across = np.add.reduceat(weighed, starts, axis=0)
        alone = np.add.reduceat(bends, starts) + holding
        slope = rows.T @ (chances - wanted) + penalty * far
        tilt = np.add.reduceat(chances - wanted, starts) + RIDGE * terms
        share = across / alone[:, np.newaxis]
        system = weighed.T @ rows + np.diag(penalty) - across.T @ share
        step = -np.linalg.solve(system, slope - share.T @ tilt)
        turn = -(tilt + across @ step) / alone
        weights, terms = weights + step, terms + turn
    every = np.zeros(classes)
    every[met[met >= 0]] = terms[met >= 0]
    return weights, every
