"""When embeddings are alike enough: the threshold of ``compare = "embedding"``, and its agreement.

The threshold is the one at which the verdicts agree with most labelled pairs, such as answers with
their labels. How often it agrees is counted on pairs that it was not fitted to: each half of the
rows is judged by the threshold of the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.client import Client
from ttamer.llm.compare import Comparison, Pair, PairScore
from ttamer.llm.paid import Store, key_of
from ttamer.llm.prompts import AnsweredPrompt
from ttamer.runtime.calling import Call, call_async
from ttamer.stats.bounds import binomial_upper

Embed = Callable[[list[str]], Any]
"""From a list of texts to a vector for each, plain or async."""


class LabelAgreement(NamedTuple):
    """How often verdicts, of a judge or by a threshold, agree with labels."""

    answers: int
    """The number of answers, or of pairs, that have a label."""
    agree: int
    what: str = "answers"
    constant: int = 0
    """The number on which one verdict for all, the more frequent one, agrees."""

    @classmethod
    def of(
        cls, judged: Sequence[bool], by_label: Sequence[bool], what: str = "answers"
    ) -> LabelAgreement:
        """Count the answers on which both verdicts are equal.

        >>> print(LabelAgreement.of([True, True, False, True], [True, True, False, False]))
        agrees with the labels on 3 of 4 answers (75%, 95% interval 19% to 99%)
        """
        agree = sum(bool(a) == bool(b) for a, b in zip(judged, by_label, strict=True))
        right = sum(map(bool, by_label))
        return cls(len(judged), agree, what, max(right, len(judged) - right))

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval for the share (Clopper and Pearson, 1934)."""
        wrong = self.answers - self.agree
        low = 1 - binomial_upper(wrong, self.answers, 0.025) if self.agree else 0.0
        high = binomial_upper(self.agree, self.answers, 0.025) if wrong else 1.0
        return low, high

    def __str__(self) -> str:
        if not self.answers:
            return "cannot be compared with labels: there are none"
        low, high = self.interval
        text = f"agrees with the labels on {self.agree} of {self.answers} {self.what} "
        text += f"({self.agree / self.answers:.0%}, 95% interval {low:.0%} to {high:.0%})"
        if self.agree > self.constant:
            return text
        return f"{text}, no more than the same verdict for all ({self.constant / self.answers:.0%})"


def cosine(first: ArrayLike, second: ArrayLike) -> float:
    """Return the cosine of two vectors, to six decimal places; 0 where either is 0.

    >>> cosine([1.0, 0.0], [2.0, 0.0])
    1.0
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(np.clip(a @ b / size, -1.0, 1.0)), 6) if size else 0.0


def cosines(embed: Embed) -> PairScore:
    """Return the score of pairs of texts by a model of embeddings.

    >>> import asyncio
    >>> score = cosines(lambda texts: [[len(text), 1.0] for text in texts])
    >>> asyncio.run(score([("four", "five")]))
    [1.0]

    Args:
        embed: From a list of texts to a vector for each, plain or async; a plain one runs in a
            thread. Every text is embedded once in a call.

    Returns:
        The score, for :class:`ttamer.llm.Comparer`.
    """

    async def score(pairs: Sequence[Pair]) -> list[float]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        result = await call_async(Call(embed, texts))
        if result.error is not None:
            raise result.error
        vectors = dict(zip(texts, result.returned, strict=True))
        return [cosine(vectors[a], vectors[b]) for a, b in pairs]

    return score


class FittedThreshold(NamedTuple):
    """A threshold on scores, and how often it agrees with pairs that it was not fitted to."""

    threshold: float
    agreement: LabelAgreement


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
    if len(values) < 20 or labels.all() or not labels.any():
        raise ArgumentError(
            "a threshold needs at least 20 labelled pairs, equal and unequal ones; there "
            f"are {len(values)}, of which {int(labels.sum())} are equal"
        )
    if (odd := np.flatnonzero(~(np.abs(values) <= 1))).size:
        raise ArgumentError(
            f"score {odd[0]} (counting from 0) is {values[odd[0]]:g}; scores are from -1 to 1, as "
            "cosines are: scale others to that range"
        )
    _, group = np.unique(np.arange(len(values)) if groups is None else groups, return_inverse=True)
    if group.max() == 0:
        raise ArgumentError("a threshold needs labelled pairs of at least two groups")
    # At random, as labels may alternate with the order.
    is_first = np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % 2 == 0
    judged = np.empty(len(values), bool)
    for half in (is_first, ~is_first):
        judged[half] = values[half] >= _best(values[~half], labels[~half])
    agreement = LabelAgreement.of(judged.tolist(), labels.tolist(), "pairs")
    return FittedThreshold(_best(values, labels), agreement)


def _best(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Return the threshold with most agreement; of several, one in the widest gap of scores."""
    order = np.argsort(values, kind="stable")
    ends, is_equal = np.concatenate([[-1.0], values[order], [1.0]]), labels[order]
    # At cut k the pairs from k on count as equal; a cut within equal scores is none.
    right = np.append(0, np.cumsum(~is_equal)) + np.append(np.cumsum(is_equal[::-1])[::-1], 0)
    gaps = np.maximum(np.diff(ends), 0.0)
    is_cut = (gaps > 0) | (np.arange(len(gaps)) % len(values) == 0)
    is_best = is_cut & (right == right[is_cut].max())
    chosen = int(np.argmax(np.where(is_best, gaps, -1.0)))
    return round(float(np.clip((ends[chosen] + ends[chosen + 1]) / 2, -1.0, 1.0)), 4)


def embedding_score(paid: Store, client: Client) -> PairScore:
    """Return the score by an upstream; each text is embedded once, and its vector is kept."""
    node = client.settings

    async def embed(texts: Sequence[str]) -> list[NDArray[np.float32]]:
        keys = {text: key_of("embedding", [node.upstream, node.model], text) for text in texts}
        waiting = [text for text in texts if paid.get(keys[text]) is None]
        for start in range(0, len(waiting), 64):  # texts in one call
            chunk = waiting[start : start + 64]
            vectors = np.array(await client.embed(chunk), np.float32)
            paid.add({keys[t]: v.tobytes() for t, v in zip(chunk, vectors, strict=True)})
        return [np.frombuffer(paid.get(keys[text]) or b"", np.float32) for text in texts]

    return cosines(embed)


async def threshold_of(
    rule: Comparison, rows: Sequence[AnsweredPrompt], score: PairScore
) -> tuple[float, list[str]]:
    """Return the threshold of a rule, fitted where it has none, and notes on its agreement.

    An answer and its label are a pair, and equal where the answer contains the label.

    Raises:
        TraceError: If there are too few.
    """
    labelled = [
        (number, text, rule.aliases(row.reference))
        for number, row in enumerate(rows)
        if row.reference
        for text in row.texts
    ]
    pairs = [(text, alias) for _, text, aliases in labelled for alias in aliases]
    between = [pair for row in rows for pair in combinations(row.texts, 2)]
    # One call embeds, a few large batches at a time, what is compared row by row later.
    scores = await score([*pairs, *between])
    if rule.threshold is not None:
        return rule.threshold, []
    alike = dict(zip(pairs, scores, strict=False))
    values = [max(alike[text, alias] for alias in aliases) for _, text, aliases in labelled]
    contains = Comparison("contains")
    equal = [contains.is_right(text, aliases) for _, text, aliases in labelled]
    try:
        fitted = fit_threshold(values, equal, groups=[number for number, *_ in labelled])
    except ArgumentError as error:
        raise TraceError(f'compare = "embedding": {error}') from None
    threshold = fitted.threshold
    return threshold, [
        f"the threshold {threshold:g} of embeddings {fitted.agreement}, on pairs that it was not "
        f"fitted to; {sum(equal)} of them are equal",
        f'to serve it, write compare = {{kind = "embedding", threshold = {threshold:g}}} under '
        "[serve]",
    ]
