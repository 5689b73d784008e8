"""How far a policy is from the best one of its class, as a paired difference on the same rows.

For every candidate of the class, the policy's objective minus the candidate's is one number per
row, and mostly 0: the two decide alike. The bound covers all candidates at once by the multiplier
bootstrap of the largest studentised mean (Chernozhukov, Chetverikov and Kato, 2013), which pays
for as many candidates as really differ. It holds for many rows, drawn alike and independently, that
neither the policy nor the candidates were chosen on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ttamer.errors import ArgumentError
from ttamer.stats.bounds import check_confidence


@dataclass(frozen=True)
class Gap:
    """How much more a policy loses and pays than the best candidate.

    >>> Gap(estimate=0.01, upper=0.02, best=3).upper
    0.02
    """

    estimate: float
    """On these rows; at least 0."""
    upper: float
    """With the given confidence, the gap is at most this."""
    best: int
    """The candidate that is best on these rows; -1 where the policy itself is."""


def paired_gap(
    policy: ArrayLike,
    candidates: ArrayLike,
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> Gap:
    """Bound how far a policy is from the best of some candidates.

    Args:
        policy: Shape (rows,): what the policy loses and pays on each row.
        candidates: Shape (rows, candidates): the same of each candidate.
        confidence: How often the bound holds.
        draws: How often the rows are weighed at random.
        seed: Of these weights.

    Returns:
        The estimate and the bound, in the unit of the rows.

    Raises:
        ArgumentError: If shapes do not fit, or the confidence is out of range.

    >>> rows = np.array([0.1, 0.2, 0.3, 0.2])
    >>> paired_gap(rows, np.stack([rows, rows + 0.1], axis=1))
    Gap(estimate=0.0, upper=0.0, best=-1)
    """
    own = np.asarray(policy, np.float64)
    other = np.asarray(candidates, np.float64)
    if own.ndim != 1 or other.ndim != 2 or len(own) != len(other) or len(own) < 2:
        raise ArgumentError(
            f"paired_gap needs objectives of shape (rows,) and (rows, candidates), of at least 2 "
            f"rows, not {own.shape} and {other.shape}",
            param="candidates",
        )
    level = check_confidence(confidence)
    difference = own[:, np.newaxis] - other
    mean = difference.mean(axis=0)
    centred = difference - mean
    error = centred.std(axis=0, ddof=1) / np.sqrt(len(own))
    best = int(mean.argmax()) if mean.size and mean.max() > 0 else -1
    varies = error > 0
    reach = np.zeros(len(mean))
    if varies.any():
        weights = np.random.default_rng(seed).standard_normal((draws, len(own)))
        drawn = weights @ centred[:, varies] / (len(own) * error[varies])
        reach[varies] = np.quantile(drawn.max(axis=1), 1 - level) * error[varies]
    upper = float((mean + reach).max(initial=0.0))
    return Gap(float(mean.max(initial=0.0)), upper, best)
