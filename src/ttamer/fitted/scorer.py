"""A belief laid out for one input at a time: plain lists, a few dozen products and sums.

The numbers are such that sums are exact (see :mod:`ttamer.fitted.belief`), so this comes to the
same X as whole columns do.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ttamer.fitted.belief import SURE, context_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ttamer.fitted.belief import Belief, Step

__all__ = ["Scorer"]

Terms = tuple[int, list[float], list[tuple[int, list[float]]], list[float]]
"""An answer; what it weighs by itself; for each other node, what that one's answer weighs; what
each class it may be adds."""


class Scorer:
    """X and its owner after a step, for one input."""

    __slots__ = ("_bounds", "_edges", "_levels", "_terms", "_told", "leans")

    def __init__(
        self, belief: Belief, steps: Sequence[Step], edges: Sequence[NDArray[np.float64]]
    ) -> None:
        self._bounds = [bounds.tolist() for bounds in belief.bounds]
        self._levels = [levels.tolist() for levels in belief.levels]
        self._edges = [own.tolist() for own in edges]
        self._told = belief.knows_predictions
        self.leans: tuple[Mapping[int, float], ...] = belief.leans
        self._terms = [[_terms(belief, step, a) for a in context_of(step)] for step in steps]

    def odds(self, node: int, confidence: float) -> float:
        """Return the log-odds of being wrong, by the confidence alone."""
        if confidence != confidence:
            return float(self._levels[node][0])
        return float(self._levels[node][bisect_right(self._bounds[node], confidence)])

    def state(self, step: int, least: float) -> int:
        """Return the state of X."""
        return bisect_right(self._edges[step], least)

    def least(
        self,
        step: int,
        odds: list[float],
        lean: list[float],
        said: list[int],
        failed: tuple[int, ...] = (),
    ) -> tuple[float, int]:
        """Return X as log-odds, and whose answer it is; those who failed have none."""
        best, owner = float("inf"), -1
        for terms in self._terms[step]:
            if terms[0] in failed:
                continue
            total = self._odds_of(terms, odds, lean, said)
            if total < best:
                best, owner = total, terms[0]
        return best, owner

    def every(
        self,
        step: int,
        odds: list[float],
        lean: list[float],
        said: list[int],
        failed: tuple[int, ...] = (),
    ) -> dict[int, float]:
        """Return the log-odds that each answer looked at is wrong."""
        answers = (terms for terms in self._terms[step] if terms[0] not in failed)
        return {terms[0]: self._odds_of(terms, odds, lean, said) for terms in answers}

    def _odds_of(
        self, terms: Terms, odds: list[float], lean: list[float], said: list[int]
    ) -> float:
        answer, own, others, by_class = terms
        if not own:
            return SURE
        total = own[0] + own[1] * odds[answer] + own[2] * lean[answer]
        if 0 <= said[answer] < len(by_class):
            total += by_class[said[answer]]
        for other, weights in others:
            if not self._told:
                total += weights[0] * odds[other]
            elif said[other] == said[answer]:
                total += weights[0] + weights[1] * odds[other]
            else:
                total += weights[2] * odds[other] + weights[3] * lean[other]
        return total


def _terms(belief: Belief, step: Step, answer: int) -> Terms:
    if belief.sure_last and answer == len(belief.bounds) - 1:
        return answer, [], [], []
    weights = belief.weights[step, answer].tolist()
    width = 4 if belief.knows_predictions else 1
    others = [node for node in context_of(step) if node != answer]
    parts = [weights[3 + width * k : 3 + width * (k + 1)] for k in range(len(others))]
    by_class = belief.by_class[step, answer].tolist() if belief.by_class else []
    return answer, weights[:3], list(zip(others, parts, strict=True)), by_class
