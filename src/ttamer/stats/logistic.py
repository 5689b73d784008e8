"""Logistic regressions of losses in [0, 1] that are drawn towards what is already known.

Newton's method with step halving::

    min over w of  sum weight (log(1 + exp(x w)) - y x w) + 1/2 sum penalty_j (w_j - prior_j)^2
    penalty_j = ridge_j max(var(x_j), 0.01)

:func:`class_offsets`: one number h_k per class k beside log-odds o that are given::

    ridge = sum info^2 / max(sum score^2 - sum info, eps)    moments: the spread of offsets
    h_k   by Newton on sum (y - chance(o + h_k)) = ridge h_k
    row t of class k, without itself: h_k - (y_t - p_t) / (H_k - v_t)     one Newton step
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sigmoid(odds: Floats) -> Floats:
    """Return the chances of log-odds."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * odds)))


def log_odds(chances: Floats, margin: float = 1e-4) -> Floats:
    """Return the log-odds of chances, kept a margin from 0 and 1."""
    chances = np.clip(chances, margin, 1 - margin)
    return np.asarray(np.log(chances) - np.log1p(-chances))


def log_loss(odds: Floats, losses: Floats) -> Floats:
    """Return the logarithmic loss of log-odds."""
    return np.asarray(np.logaddexp(0, odds) - losses * odds)


def logistic(
    columns: Floats,
    losses: Floats,
    ridge: float | Floats,
    prior: Floats | None = None,
    weight: Floats | None = None,
    *,
    rounds: int = 25,
    tolerance: float = 1e-6,
) -> Floats:
    """Fit a logistic regression that is drawn to prior weights; the first column is free.

    Args:
        columns: Shape (T, d); the first is constant.
        losses: Shape (T,), in [0, 1].
        ridge: The penalty of a column, in units of its variance.
        prior: Shape (d,): the weights it is drawn to; zeros if ``None``.
        weight: Shape (T,): of each row; ones if ``None``.
        rounds: The most Newton steps.
        tolerance: It stops where a step lowers the objective by less, relatively.

    >>> x = np.column_stack([np.ones(4), [0.0, 0.0, 1.0, 1.0]])
    >>> w = logistic(x, np.array([0.0, 1.0, 0.5, 0.5]), 0.1)
    >>> bool(np.abs(w).max() < 1e-6)
    True
    """
    count, width = columns.shape
    prior = np.zeros(width) if prior is None else prior
    ridge = np.broadcast_to(np.asarray(ridge, float), (width,))
    used = columns.any(axis=0)
    if not used.all():  # a column of zeros stays at its prior, and costs no time
        w, inner = prior.copy(), (losses, ridge[used], prior[used], weight)
        w[used] = logistic(columns[:, used], *inner, rounds=rounds, tolerance=tolerance)
        return w
    # A column that hardly varies gets no large weight: what a row's offset lacks of the row itself
    # would tell its loss.
    penalty = ridge * np.maximum(columns.var(axis=0), 0.01) + 1e-9 * count
    # The constant is free, but for what keeps the matrix regular.
    penalty[0] = 1e-6 * count
    share = np.ones(count) if weight is None else weight
    diagonal = np.arange(width)

    def objective(odds: Floats, w: Floats) -> float:
        return float(share @ log_loss(odds, losses) + 0.5 * penalty @ (w - prior) ** 2)

    w, odds = prior.copy(), columns @ prior
    best = objective(odds, w)
    for _ in range(rounds):
        p = sigmoid(odds)
        hessian = (columns * (share * p * (1 - p))[:, None]).T @ columns
        hessian[diagonal, diagonal] += penalty + 1e-9
        gradient = columns.T @ (share * (p - losses)) + penalty * (w - prior)
        step = np.linalg.solve(hessian, gradient)
        for _ in range(12):  # without halving, sets that separate diverge silently
            trial = columns @ (w - step)
            value = objective(trial, w - step)
            if value <= best:
                break
            step = step * 0.5
        else:
            return w
        gain, w, odds, best = best - value, w - step, trial, value
        if gain < tolerance * (1 + abs(best)):
            break
    return w


def class_offsets(
    codes: NDArray[np.intp], count: int, odds: Floats, losses: Floats
) -> tuple[Floats, Floats]:
    """Return what each class adds to log-odds, and the same to each row by a fit without it.

    Args:
        codes: Shape (T,): the class of each row, below ``count``; -1 for none.
        count: The number of classes.
        odds: Shape (T,): log-odds that they are added to.
        losses: Shape (T,), in [0, 1].

    Returns:
        Shapes (count,) and (T,): 0 for a class that no row has, and for rows of none.

    >>> codes, losses = np.repeat([0, 1], 50), np.repeat([0.0, 1.0], 50)
    >>> class_offsets(codes, 2, np.zeros(100), losses)[0].round(1).tolist()
    [-2.8, 2.8]
    """
    has = codes >= 0
    codes, odds, losses = codes[has], odds[has], losses[has]

    def sums(values: Floats) -> Floats:
        return np.asarray(np.bincount(codes, values, count), np.float64)

    p = sigmoid(odds)
    score, info = sums(losses - p), sums(p * (1 - p))
    spread = max(float((score**2 - info).sum()), 1e-9)
    # Offsets that spread no more than noise would get the largest ridge, and so almost nothing.
    ridge = float(np.clip((info**2).sum() / spread, 1.0, 1e4))
    table = np.zeros(count)
    for _ in range(8):
        p = sigmoid(odds + table[codes])
        step = (sums(p - losses) + ridge * table) / (sums(p * (1 - p)) + ridge)
        table -= np.clip(step, -2, 2)
    p = sigmoid(odds + table[codes])
    v = p * (1 - p)
    hessian = sums(v) + ridge
    without_row = np.zeros(len(has))
    # Else a class of one row would tell the later regressions the loss of that row.
    without_row[has] = table[codes] - (losses - p) / np.maximum(hessian[codes] - v, ridge)
    return table, without_row
