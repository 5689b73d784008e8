"""When embeddings are alike enough: the threshold of ``compare = "embedding"``, and its agreement.

The threshold is the one at which the verdicts agree with most labelled pairs: pairs of the user,
the labels of ``ttamer label``, or another rule's verdicts on the labels of prompts. How often it
agrees is counted on pairs that it was not fitted to: each half of the rows is judged by the
threshold of the other half.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.compare import Comparer, Comparison, ComparisonKind, Pair, PairScore
from ttamer.llm.confidence import Unreadable
from ttamer.llm.paid import Store, key_of
from ttamer.llm.prompts import AnsweredPrompt, json_rows, read_text
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
        >>> print(LabelAgreement.of([False, False, False, False], [True, False, False, False]))
        agrees with the labels on 3 of 4 answers (75%, 95% interval 19% to 99%), no more than the \
same verdict for all (75%)
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
    """A threshold on scores, and how often it agrees with pairs that it was not fitted to.

    >>> print(FittedThreshold(0.8, LabelAgreement(40, 38, "pairs")))
    threshold 0.8 agrees with the labels on 38 of 40 pairs (95%, 95% interval 83% to 99%)
    """

    threshold: float
    agreement: LabelAgreement

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
    if len(values) < 20 or labels.all() or not labels.any():
        raise ArgumentError(
            "a threshold needs at least 20 labelled pairs, equal and unequal ones; there "
            f"are {len(values)}, of which {int(labels.sum())} are equal"
        )
    if not (np.abs(values) <= 1).all():
        odd = int(np.flatnonzero(~(np.abs(values) <= 1))[0])
        raise ArgumentError(
            f"score {odd} (counting from 0) is {values[odd]:g}; scores are from -1 to 1, as "
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


@dataclass
class Vectors:
    """Embeds texts, each of them once; the vectors are kept."""

    paid: Store
    identity: object
    embed: Callable[[list[str]], Any]
    batch: int = 64
    """Texts in one call."""
    max_text: int = 20_000
    """Characters at the end of a text that are embedded."""

    async def __call__(self, texts: list[str]) -> list[NDArray[np.float32]]:
        """Return the vector of each text."""
        keys = {text: key_of("embedding", self.identity, text) for text in texts}
        waiting = [text for text in texts if self.paid.get(keys[text]) is None]
        for start in range(0, len(waiting), self.batch):
            chunk = waiting[start : start + self.batch]
            result = await call_async(
                Call(self.embed, [text[-self.max_text :] or " " for text in chunk])
            )
            if result.error is not None:
                raise Unreadable(f"embedding raised {result.error!r}") from result.error
            data = [{"embedding": [float(x) for x in vector]} for vector in result.returned]
            vectors = vectors_from({"data": data}, len(chunk))
            self.paid.add({
                keys[text]: np.array(vector, np.float32).tobytes()
                for text, vector in zip(chunk, vectors, strict=True)
            })  # fmt: skip
        return [np.frombuffer(self.paid.get(keys[text]) or b"", np.float32) for text in texts]

    def comparer(self, rule: Comparison) -> Comparer | None:
        """Return what compares answers while they are asked for; ``None`` before a threshold."""
        return None if rule.threshold is None else Comparer(rule, cosines(self))


def vectors_from(body: Mapping[str, Any], count: int) -> list[list[float]]:
    """Return the vectors of an embeddings response, in the order of the texts.

    >>> vectors_from({"data": [{"index": 0, "embedding": [0.5, 1]}]}, 1)
    [[0.5, 1.0]]

    Raises:
        Unreadable: If there are not as many vectors of finite numbers.
    """
    with suppress(msgspec.ValidationError):
        data = msgspec.convert(body.get("data"), list[_Embedding])
        if {entry.index for entry in data} == set(range(count)):  # else in the order of the texts
            data.sort(key=lambda entry: int(entry.index or 0))
        vectors = [entry.embedding for entry in data]
        is_finite = all(map(math.isfinite, chain.from_iterable(vectors)))
        if len(vectors) == count and all(vectors) and is_finite:
            return vectors
    raise Unreadable("returned no vector for each text")


class _Embedding(msgspec.Struct):
    """One vector of a response."""

    embedding: list[float]
    index: int | None = None


@dataclass(frozen=True)
class Likeness:
    """What the threshold of ``compare = "embedding"`` is fitted to, or measured with.

    >>> Likeness(like="contains").min_agreement
    0.0

    Args:
        pairs: A file of labelled pairs, JSON lines like ``{"one": "4", "two": "four", "equal":
            true}``, or the labels of ``ttamer label`` on the same prompts and answers.
        like: A rule whose verdicts on the prompts' labels are the labels of pairs.
        min_agreement: The share of labelled pairs on which the threshold must agree. Where the
            upper end of the 95% interval is below it, it is not used.
        embed: From a list of texts to a vector for each, plain or async: a local model in place of
            ``[serve.embeddings]``.

    Raises:
        ArgumentError: If the share is not from 0 to 1, or the rule has options.
    """

    pairs: str | os.PathLike[str] | None = None
    like: ComparisonKind | None = None
    min_agreement: float = 0.0
    embed: Embed | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_agreement <= 1:
            raise ArgumentError(f"min_agreement is {self.min_agreement!r}; it must be from 0 to 1")
        if self.like is not None:
            Comparison(self.like)
            if self.like == "embedding":
                raise ArgumentError("like is another rule than embedding, such as contains")

    def check(self, rule: Comparison, *, has_upstream: bool, has_agreement: bool) -> None:
        """Refuse settings with which answers could not be compared, before any node is asked.

        Args:
            rule: How answers are compared.
            has_upstream: Whether the cascade has ``[serve.embeddings]``.
            has_agreement: Whether a node compares its own answers while it is asked.

        Raises:
            ArgumentError: If something is missing, or is not for the rule.
        """
        has_pairs, text = self.pairs is not None or self.like is not None, ""
        if rule.kind != "embedding":
            if has_pairs or self.embed is not None:
                text = f'labelled pairs are for compare = "embedding", and it is "{rule}"'
        elif not has_upstream and self.embed is None:
            text = (
                '[serve]: compare = "embedding" needs the table [serve.embeddings], with upstream'
            )
        elif rule.threshold is None and not has_pairs:
            text = (
                'compare = "embedding" has no threshold: write {kind = "embedding", threshold = '
                "...}, or let it be fitted to labelled pairs (--pairs FILE) or to another rule on "
                "the labels (--like contains)"
            )
        elif rule.threshold is None and has_agreement:
            text = (
                'confidence = "agreement" compares answers while they are collected, and compare = '
                '"embedding" has no threshold yet; write one'
            )
        if text:
            raise ArgumentError(text)

    async def threshold(
        self, threshold: float | None, rows: Sequence[AnsweredPrompt], score: PairScore
    ) -> tuple[float, tuple[str, ...]]:
        """Return a threshold, fitted where there is none, and notes on its agreement.

        Args:
            threshold: The threshold that the rule has, or ``None``.
            rows: The prompts, labels and answers.
            score: How alike pairs of texts are.

        Returns:
            The threshold, and what is to be reported.

        Raises:
            TraceError: If there are too few labelled pairs, or it agrees with too few of them.
        """
        labelled = [*self._labelled(rows)]
        if threshold is not None and not labelled:
            return threshold, ()
        pairs = [pair for group in labelled for pair in group.pairs]
        alike = dict(zip(pairs, await score(pairs), strict=True))
        values = [max(alike[pair] for pair in group.pairs) for group in labelled]
        equal = [group.equal for group in labelled]
        notes: tuple[str, ...] = ()
        if threshold is not None:
            agreement = LabelAgreement.of([v >= threshold for v in values], equal, "pairs")
            how = "as it is written"
        else:
            try:
                threshold, agreement = fit_threshold(
                    values, equal, groups=[group.row for group in labelled]
                )
            except ArgumentError as error:
                raise TraceError(f'compare = "embedding": {error}') from None
            how = "on pairs that it was not fitted to"
            notes = (
                f'to serve it, write compare = {{kind = "embedding", threshold = {threshold:g}}} '
                "under [serve]",
            )
        note = f"the threshold {threshold:g} of embeddings {agreement}"
        if agreement.interval[1] < self.min_agreement:
            raise TraceError(
                f"{note}, and at least {100 * self.min_agreement:g}% is needed; use other "
                "embeddings or another rule, or lower --min-agreement"
            )
        return threshold, (f"{note}, {how}; {sum(equal)} of them are equal", *notes)

    def _labelled(self, rows: Sequence[AnsweredPrompt]) -> Iterator[_Labelled]:
        if self.pairs is not None:
            yield from _read_pairs(Path(self.pairs), rows)
        if self.like is None:
            return
        rule = Comparison(self.like)
        for number, row in enumerate(rows):
            for text in row.texts:
                if pairs := tuple((text, alias) for alias in row.aliases):
                    yield _Labelled(pairs, rule.is_right(text, row.reference or ""), number)


class _Labelled(NamedTuple):
    """Two texts, or an answer with each alias of its label; whether some are equal; the row."""

    pairs: tuple[Pair, ...]
    equal: bool
    row: int


def pairs_of(row: AnsweredPrompt) -> Iterator[Pair]:
    """Yield the pairs of a row that are compared: answers, and answers with the label."""
    yield from ((second, first) for first, second in combinations(row.texts, 2))
    yield from ((text, alias) for alias in row.aliases for text in row.texts if text != alias)


def _read_pairs(path: Path, rows: Sequence[AnsweredPrompt]) -> Iterator[_Labelled]:
    """Read labelled pairs, or the labels of ``ttamer label``."""
    if path.is_file() and path.read_bytes()[:6] == b"SQLite":
        with Store(path) as labels:
            for number, row in enumerate(rows):
                yield from _of_label(row, json.loads(labels.get(row.key) or b"null"), number)
        return
    for number, (where, entry) in enumerate(json_rows(path, read_text(path)), start=1):
        try:
            pair = entry["one"].strip(), entry["two"].strip()
            is_equal = {True: True, False: False}[entry["equal"]]
        except (KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{where} is not a labelled pair; write lines like "
                '{"one": "4", "two": "four", "equal": true}'
            ) from None
        yield _Labelled((pair,), is_equal, -number)


def _of_label(row: AnsweredPrompt, right: Sequence[str] | None, number: int) -> Iterator[_Labelled]:
    """Yield pairs of answers: two right ones are equal, a right and a wrong one are not."""
    texts = {name: (text or "").strip() for name, text in row.answers.items()}
    for (node, first), (later, second) in combinations(texts.items(), 2):
        is_right = right is not None and (node in right, later in right)
        if is_right and any(is_right) and first and second:
            yield _Labelled(((second, first),), all(is_right), number)
