"""The paper's impossibility (Thm. 3.4): without recall nothing can be promised.

Two nodes, asking is free. The first loses 1/alpha^2 for certain; the second loses nothing with
probability 1 - 1/alpha, and 1/alpha otherwise. Without recall both choices come to 1/alpha^2;
a prophet gets 1/alpha^3. The ratio is alpha, as large as one likes.

What recall changes: ask both, keep the better answer, and the prophet's loss is reached exactly.
The paper remarks that the gap remains with recall; with costs that do not depend on the input,
which it assumes, it does not. What recall cannot change is shown by :func:`needle`: against a
prophet, which has every loss in advance, even the best policy with recall can be worse by any
factor. That is why policies with recall are measured against the online optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ttamer.errors import ArgumentError
from ttamer.problem.problem import Problem
from ttamer.theory.optimal_values import no_recall_optimum, offline_optimum, online_optimum

# The largest ratio for which the two-node example stays within floating point.
MAX_ALPHA = 1e100


@dataclass(frozen=True)
class Impossibility:
    """The three optima of the two-node example.

    >>> from ttamer.theory import impossibility
    >>> found = impossibility(10)
    >>> round(found.ratio, 9), round(found.ratio_with_recall, 9)
    (10.0, 1.0)
    """

    alpha: float
    no_recall: float
    with_recall: float
    offline: float

    @property
    def ratio(self) -> float:
        """How many times the prophet's loss the best policy without recall pays."""
        return self.no_recall / self.offline

    @property
    def ratio_with_recall(self) -> float:
        """The same with recall."""
        return self.with_recall / self.offline


def two_nodes(alpha: float) -> Problem:
    """Return the paper's two-node example."""
    if not 1 < alpha <= MAX_ALPHA:
        raise ArgumentError(f"alpha must be a number above 1 and at most 1e100, not {alpha!r}")
    return Problem.line(
        losses=[[alpha**-2], [0.0, 1 / alpha]],
        costs=[0.0, 0.0],
        probabilities=[[1.0], [[1 - 1 / alpha, 1 / alpha]]],
        names=["first", "second"],
    )


def impossibility(alpha: float) -> Impossibility:
    """Solve the two-node example.

    Args:
        alpha: The ratio, above 1 and at most 1e100.

    Returns:
        Its three optima.

    Raises:
        ArgumentError: If alpha is out of range.

    >>> round(impossibility(10).ratio, 9)
    10.0
    """
    problem = two_nodes(alpha)
    return Impossibility(
        alpha=alpha,
        no_recall=no_recall_optimum(problem, 1.0),
        with_recall=online_optimum(problem, 1.0),
        offline=offline_optimum(problem, 1.0),
    )


@dataclass(frozen=True)
class Needle:
    """The optima of a needle in a haystack, in units of loss plus cost."""

    branches: int
    with_recall: float
    offline: float

    @property
    def ratio(self) -> float:
        """How many times the prophet's total the best policy with recall pays."""
        return self.with_recall / self.offline


def needle(branches: int) -> Needle:
    """Solve many alike, independent nodes, each of which is perfect with a small chance.

    Each loses 0 with probability p = log(m) / m, else 1, and costs p to ask: searching is worth
    exactly its price, so the best policy comes to 1. The prophet asks one good node.

    >>> needle(1000).ratio > 100
    True
    """
    if branches < 2:
        raise ArgumentError(f"a haystack needs at least 2 nodes, not {branches!r}")
    chance = math.log(branches) / branches
    problem = Problem.forest(
        losses=[0.0, 1.0],
        costs=[chance] * branches,
        probabilities=[[chance, 1 - chance]] * branches,
        parents=[None] * branches,
    )
    # At equal weights both parts count half; double for units of loss plus cost.
    return Needle(branches, 2 * online_optimum(problem, 0.5), 2 * offline_optimum(problem, 0.5))
