"""How alike texts are: cosines of embeddings, and the threshold from which texts count as equal.

The threshold is the one at which the verdicts agree with most labelled pairs. How often it agrees
is counted on pairs that it was not fitted to: each half of the rows is judged by the threshold of
the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ttamer.errors import ArgumentError
from ttamer.runtime.agreement import Agreement
from ttamer.runtime.calling import Call, call_async

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from ttamer.runtime.comparison import Pair, PairScore

__all__ = ["FittedThreshold", "cosine", "cosines", "fit_threshold"]

MIN_PAIRS = 20
"""The least number of labelled pairs that a threshold is fitted to."""
DIGITS = 4
"""The decimal places of a threshold."""


def cosine(one: ArrayLike, two: ArrayLike) -> float:
    """Return the cosine of two vectors; 0 where one of them is 0.

    >>> cosine([1.0, 0.0], [2.0, 0.0])
    1.0

    Args:
        one: A vector.
        two: Another vector of the same length.

    Returns:
        A number from -1 to 1, to six decimal places.
    """
    first, second = np.asarray(one, np.float64), np.asarray(two, np.float64)
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return round(float(np.clip(first @ second / size, -1.0, 1.0)), 6) if size else 0.0


def cosines(embed: Callable[[list[str]], Any]) -> PairScore:
    """Return the score of pairs of texts by a model of embeddings.

    >>> import asyncio
    >>> score = cosines(lambda texts: [[len(text), 1.0] for text in texts])
    >>> asyncio.run(score([("four", "five")]))
    [1.0]

    Args:
        embed: From a list of texts to a vector for each, plain or async; a plain one runs in a
            thread. Every text is embedded once in a call.

    Returns:
        The score, for :class:`ttamer.runtime.Comparer`.
    """

    async def score(pairs: Sequence[Pair]) -> list[float]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        result = await call_async(Call(embed, texts))
        if result.error is not None:
            raise result.error
        vectors = dict(zip(texts, result.returned, strict=True))
        return [cosine(vectors[one], vectors[two]) for one, two in pairs]

    return score


@dataclass(frozen=True)
class FittedThreshold:
    """A threshold on scores, and how often it agrees with pairs that it was not fitted to.

    >>> print(FittedThreshold(0.8, Agreement(40, 38, "pairs")))
    threshold 0.8 agrees with the labels on 38 of 40 pairs (95%, 95% interval 83% to 99%)
    """

    threshold: float
    agreement: Agreement

    def __str__(self) -> str:
        return f"threshold {self.threshold:g} {self.agreement}"


def fit_threshold(
    scores: ArrayLike, equal: ArrayLike, *, groups: ArrayLike | None = None
) -> FittedThreshold:
    """Fit the threshold from which pairs count as equal, by labelled pairs.

    >>> scores = [0.95, 0.4, 0.9, 0.5] * 10
    >>> fit_threshold(scores, [True, False] * 20).threshold
    0.7

    Args:
        scores: How alike each pair is, from -1 to 1, shape (n,).
        equal: Whether each pair is equal, shape (n,).
        groups: Where each pair comes from, such as the number of its row, shape (n,): pairs of one
            group are on the same side when the agreement is counted. By default each is its own.

    Returns:
        The threshold that agrees with most pairs, and how often thresholds fitted to one half agree
        with the other.

    Raises:
        ArgumentError: If there are fewer than 20 pairs, or all are equal, or none is, or a score is
            not from -1 to 1.
    """
    values, labels = np.asarray(scores, np.float64), np.asarray(equal, bool)
    if len(values) != len(labels):
        raise ArgumentError(f"there are {len(values)} scores and {len(labels)} labels")
    if len(values) < MIN_PAIRS or labels.all() or not labels.any():
        raise ArgumentError(
            f"a threshold needs at least {MIN_PAIRS} labelled pairs, equal and unequal ones; there "
            f"are {len(values)}, of which {int(labels.sum())} are equal"
        )
    if not (np.abs(values) <= 1).all():
        odd = int(np.flatnonzero(~(np.abs(values) <= 1))[0])
        raise ArgumentError(
            f"score {odd} (counting from 0) is {values[odd]:g}; scores are from -1 to 1, as "
            "cosines are: scale others to that range"
        )
    _, place = np.unique(np.arange(len(values)) if groups is None else groups, return_inverse=True)
    if place.max() == 0:
        raise ArgumentError("a threshold needs labelled pairs of at least two groups")
    # At random, as labels may alternate with the order.
    sides = np.random.default_rng(0).permutation(int(place.max()) + 1)[place] % 2
    judged = np.empty(len(values), bool)
    for side in (0, 1):
        held = sides == side
        judged[held] = values[held] >= _best(values[~held], labels[~held])
    agreement = Agreement.of(judged.tolist(), labels.tolist(), "pairs")
    return FittedThreshold(_best(values, labels), agreement)


def _best(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Return the threshold with most agreement; of several, one in the widest gap of scores."""
    order = np.argsort(values, kind="stable")
    ordered, is_equal = values[order], labels[order]
    # At cut k the pairs from k on count as equal.
    right = np.concatenate([[0], np.cumsum(~is_equal)]) + np.concatenate(
        [np.cumsum(is_equal[::-1])[::-1], [0]]
    )
    ends = np.concatenate([[-1.0], ordered, [1.0]])
    gaps = np.diff(ends)
    # A cut within equal scores is none; those at the ends are.
    gaps[0], gaps[-1] = max(gaps[0], 0.0), max(gaps[-1], 0.0)
    is_cut = np.concatenate([[True], np.diff(ordered) > 0, [True]])
    best = right == right[is_cut].max()
    chosen = int(np.flatnonzero(is_cut & best)[np.argmax(gaps[is_cut & best])])
    middle = (ends[chosen] + ends[chosen + 1]) / 2
    return round(float(np.clip(middle, -1.0, 1.0)), DIGITS)
