"""Comparing the answers of a collection, by embeddings too.

How alike two texts are is kept in the journal, so that another threshold needs no further calls. A
threshold that is not given is fitted to labelled pairs: given ones, the labels of ``ttamer label``,
or another rule's verdicts on the prompts' labels. How often it agrees with them, on pairs that it
was not fitted to, is reported before it is used.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._files import lines_of
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.compare import (
    ALIAS_SEPARATOR,
    Agreement,
    Comparer,
    Comparison,
    cosines,
    fit_threshold,
)
from ttamer.llm.labelling import KeptRow
from ttamer.serve.collection.journal import JournalEntry, journal_key
from ttamer.serve.upstreams.embedding import EMBEDDED_AT_ONCE, Embedder, LocalEmbedder
from ttamer.serve.upstreams.upstream import UpstreamFailed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ttamer.llm.compare import ComparisonKind, Pair
    from ttamer.serve.collection.journal import Journal
    from ttamer.serve.config import Settings
    from ttamer.serve.upstreams.client import HttpClient
    from ttamer.serve.upstreams.embedding import TextVectors
    from ttamer.trace.spec import CascadeSpec

__all__ = ["AppliedComparison", "ComparedAnswers", "KeptAnswers", "Likeness", "compare_answers"]


@dataclass(frozen=True)
class ComparedAnswers:
    """What a trace has of answers: their predictions, and labels or which answers are right."""

    prediction: list[list[str | None]]
    label: Sequence[str] | None = None
    correct: list[list[bool]] | None = None
    """Where labels are compared one by one: equality is not transitive."""

    def notes(
        self, rule: Comparison, names: Sequence[str], answers: Sequence[Sequence[str]]
    ) -> list[str]:
        """Return how many answers of each node have no content, for those that have some.

        >>> found = ComparedAnswers([["4", None], ["5", "5"]])
        >>> print(*found.notes(Comparison("numeric"), ["a", "b"], [["4", "four"], ["5", "5"]]))
        1 of 2 answers of 'b' has no content under compare = "numeric"

        Args:
            rule: The rule of comparison.
            names: The nodes.
            answers: The answers to each prompt, in the order of the nodes.

        Returns:
            A text for each node with such answers.
        """
        notes = []
        for node, name in enumerate(names):
            count = sum(row[node] is None for row in self.prediction)
            empty = sum(not row[node].strip() for row in answers)
            if count:
                has = "has" if count == 1 else "have"
                note = (
                    f"{count} of {len(answers)} answers of {name!r} {has} no content under "
                    f'compare = "{rule}"'
                )
                if empty:
                    note += f", {empty} of them no text: a model that reasons needs more max_tokens"
                notes.append(note)
        return notes


async def compare_answers(
    comparer: Comparer, answers: Sequence[Sequence[str]], labels: Sequence[str] | None
) -> ComparedAnswers:
    """Compare answers with one another, and with labels where there are some.

    >>> import asyncio
    >>> comparer = Comparer(Comparison("choice"))
    >>> asyncio.run(compare_answers(comparer, [["(B)", "C."]], ["B"])).prediction
    [['B', 'C']]

    Args:
        comparer: The rule of comparison.
        answers: The answers to each prompt, in the order of the nodes.
        labels: The forms of the labels, such as
            :func:`~ttamer.llm.compare.label_form` returns.

    Returns:
        The predictions, and the labels or which answers are right.

    Raises:
        TraceError: If no answer is right.
    """
    rule = comparer.rule
    predictions = [[rule.prediction(text) for text in row] for row in answers]
    if rule.is_transitive:
        found = ComparedAnswers(predictions, labels)
        is_any_right = not {*(labels or ())}.isdisjoint(each for row in predictions for each in row)
    else:
        correct = None
        if labels is not None:
            right = [(text, label) for row, label in zip(answers, labels, strict=True)
                     for text in row]  # fmt: skip
            verdicts = iter(await comparer.right(right))
            correct = [[next(verdicts) for _ in row] for row in answers]
        matched = [await comparer.matched_all(row) for row in predictions]
        found = ComparedAnswers(matched, None, correct)
        is_any_right = any(map(any, correct or ()))
    if labels is not None and not is_any_right:
        raise TraceError(rule.unmatched(labels[0], answers[0][0]))
    return found


@dataclass(frozen=True)
class KeptAnswers:
    """The answers to one prompt, by node, and its label if there is one."""

    prompt: str
    answers: Mapping[str, str]
    label: str | None = None


@dataclass(frozen=True)
class AppliedComparison:
    """How the answers of a collection are compared."""

    comparer: Comparer
    spec: CascadeSpec
    """The cascade; where a threshold was fitted, with it."""
    notes: tuple[str, ...] = ()


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
    embed: Callable[[list[str]], Any] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_agreement <= 1:
            raise ArgumentError(f"min_agreement is {self.min_agreement!r}; it must be from 0 to 1")
        if self.like is not None:
            Comparison(self.like)
            if self.like == "embedding":
                raise ArgumentError("like is another rule than embedding, such as contains")

    def check(self, settings: Settings) -> None:
        """Refuse settings with which answers could not be compared, before any node is asked.

        Args:
            settings: The cascade and its settings.

        Raises:
            ArgumentError: If something is missing, or is not for the comparison.
        """
        rule = settings.serve.compare
        if rule.kind != "embedding":
            if self.pairs is not None or self.like is not None or self.embed is not None:
                raise ArgumentError(
                    f'labelled pairs are for compare = "embedding", and it is "{rule}"'
                )
            return
        if settings.serve.embeddings is None and self.embed is None:
            raise ArgumentError(
                '[serve]: compare = "embedding" needs the table [serve.embeddings], with upstream'
            )
        if rule.threshold is not None:
            return
        if self.pairs is None and self.like is None:
            raise ArgumentError(
                'compare = "embedding" has no threshold: write {kind = "embedding", threshold = '
                "...}, or let it be fitted to labelled pairs (--pairs FILE) or to another rule on "
                "the labels (--like contains)"
            )
        if any(node.confidence == "agreement" for node in settings.nodes.values()):
            raise ArgumentError(
                'confidence = "agreement" compares answers while they are collected, and compare = '
                '"embedding" has no threshold yet; write one'
            )

    async def comparer(
        self,
        settings: Settings,
        rows: Sequence[KeptAnswers],
        journal: Journal,
        client: HttpClient,
    ) -> AppliedComparison:
        """Return how the answers are compared, with a threshold that is fitted where none is given.

        Args:
            settings: The cascade and its settings.
            rows: The answers and labels.
            journal: The journal, which keeps how alike texts are.
            client: The connections to the embeddings upstream.

        Returns:
            The comparer, the cascade with its threshold, and notes on both.

        Raises:
            TraceError: If texts cannot be embedded, there are too few labelled pairs, or the
                threshold agrees with too few of them.
        """
        rule, spec = settings.serve.compare, settings.spec
        if rule.kind != "embedding":
            return AppliedComparison(Comparer(rule), spec)
        texts: TextVectors
        identity: Any
        if self.embed is not None:
            texts = LocalEmbedder(self.embed)
            identity = getattr(self.embed, "__qualname__", type(self.embed).__qualname__)
        else:
            assert settings.serve.embeddings is not None  # noqa: S101 - as checked
            texts = Embedder(settings.serve.embeddings, client, read_errors=True)
            identity = asdict(settings.serve.embeddings)
        score = _KeptScores(journal, texts, identity)
        labelled = self._labelled(rows)
        notes = []
        if labelled:
            threshold, note = await self._threshold(rule.threshold, labelled, score)
            notes.append(note)
            if rule.threshold is None:
                rule = Comparison("embedding", threshold=threshold)
                table = {"kind": "embedding", "threshold": threshold}
                spec = dataclasses.replace(spec, serve={**spec.serve, "compare": table})
                notes.append(
                    f'to serve it, write compare = {{kind = "embedding", threshold = '
                    f"{threshold:g}}} under [serve]"
                )
        if rule.threshold is None:
            raise TraceError('compare = "embedding": there are no labelled pairs')
        await score([pair for row in rows for pair in _pairs(row)])
        notes.append(f"{len(score.used)} likenesses by embeddings, which cost {score.cost:g}")
        return AppliedComparison(Comparer(rule, score), spec, tuple(notes))

    async def _threshold(
        self, given: float | None, labelled: Sequence[_Labelled], score: _KeptScores
    ) -> tuple[float, str]:
        """Return the given threshold, or a fitted one, with a note on how often it agrees."""
        pairs = [pair for each in labelled for pair in each.pairs]
        alike = dict(zip(pairs, await score(pairs), strict=True))
        values = [max(alike[pair] for pair in each.pairs) for each in labelled]
        equal = [each.equal for each in labelled]
        if given is None:
            try:
                fitted = fit_threshold(values, equal, groups=[each.row for each in labelled])
            except ArgumentError as error:
                raise TraceError(f'compare = "embedding": {error}') from None
            threshold, agreement = fitted.threshold, fitted.agreement
            how = "on pairs that it was not fitted to"
        else:
            threshold, how = given, "as it is given"
            agreement = Agreement.of([v >= threshold for v in values], equal, "pairs")
        found = f"the threshold {threshold:g} of embeddings {agreement}"
        if agreement.interval[1] < self.min_agreement:
            raise TraceError(
                f"{found}, and at least {100 * self.min_agreement:g}% is needed; use other "
                "embeddings or another rule, or lower --min-agreement"
            )
        return threshold, f"{found}, {how}; {sum(equal)} of them are equal"

    def _labelled(self, rows: Sequence[KeptAnswers]) -> list[_Labelled]:
        """Return the labelled pairs."""
        found: list[_Labelled] = []
        if self.pairs is not None:
            found += _read_pairs(self.pairs, rows)
        if self.like is not None:
            by = Comparison(self.like)
            for number, row in enumerate(rows):
                aliases = [each.strip() for each in (row.label or "").split(ALIAS_SEPARATOR)]
                for text in dict.fromkeys(each.strip() for each in row.answers.values()):
                    pairs = tuple((text, alias) for alias in aliases if text and alias)
                    if pairs:
                        is_right = by.is_right(text, row.label or "")
                        found.append(_Labelled(pairs, is_right, number))
        return found


@dataclass(frozen=True)
class _Labelled:
    """Two texts, or an answer with each alias of its label; whether some are equal; the row."""

    pairs: tuple[Pair, ...]
    equal: bool
    row: int


@dataclass
class _KeptScores:
    """How alike pairs of texts are, kept in the journal."""

    journal: Journal
    texts: TextVectors
    identity: Any
    used: set[str] = field(default_factory=set)
    """The keys of all likenesses that were needed."""

    def _key(self, pair: Pair) -> str:
        return journal_key({"likeness": self.identity}, {"texts": sorted(pair)})

    @property
    def cost(self) -> float:
        """What they cost, at the time when they were made."""
        return sum(entry.cost for key in self.used if (entry := self.journal.get(key)))

    async def __call__(self, pairs: Sequence[Pair]) -> list[float]:
        """Return how alike each pair is."""
        keys = {pair: self._key(pair) for pair in pairs}
        self.used.update(keys.values())
        waiting = [pair for pair, key in keys.items() if key not in self.journal]
        for chunk in _chunks(waiting):
            spent = self.texts.spent
            try:
                values = await cosines(self.texts.vectors)(chunk)
            except UpstreamFailed as error:
                raise TraceError(f"{error} ({error.upstream_text!r})") from None
            share = (self.texts.spent - spent) / len(chunk)
            for pair, value in zip(chunk, values, strict=True):
                self.journal.add(keys[pair], JournalEntry("", value, share))
        entries = [self.journal.get(keys[pair]) for pair in pairs]
        return [0.0 if entry is None else entry.confidence for entry in entries]


def _chunks(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Divide pairs into groups with few enough different texts."""
    chunk: list[Pair] = []
    texts: set[str] = set()
    for pair in pairs:
        if chunk and len(texts | set(pair)) > EMBEDDED_AT_ONCE:
            yield chunk
            chunk, texts = [], set()
        chunk.append(pair)
        texts.update(pair)
    if chunk:
        yield chunk


def _pairs(row: KeptAnswers) -> Iterator[Pair]:
    """Return the pairs of a row that are compared: answers, and answers with the label."""
    answers = [
        text for text in dict.fromkeys(each.strip() for each in row.answers.values()) if text
    ]
    for one, two in combinations(answers, 2):
        yield two, one
    if row.label is not None:
        for alias in row.label.split(ALIAS_SEPARATOR):
            for text in answers:
                if text != alias:
                    yield text, alias


def _read_pairs(path: str | os.PathLike[str], rows: Sequence[KeptAnswers]) -> list[_Labelled]:
    """Read labelled pairs, or the labels of ``ttamer label``."""
    by_key = {KeptRow(row.prompt, None, row.answers).key: n for n, row in enumerate(rows)}
    found: list[_Labelled] = []
    try:
        lines = lines_of(Path(path).read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if "key" in entry:
                place = by_key.get(entry["key"])
                if place is not None and entry["right"] is not None:
                    found += _of_label(rows[place], set(map(str, entry["right"])), place)
            else:
                pair = entry["one"].strip(), entry["two"].strip()
                equal = {True: True, False: False}[entry["equal"]]
                found.append(_Labelled((pair,), equal, -number))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{path}: line {number} is not a labelled pair; write lines like "
                '{"one": "4", "two": "four", "equal": true}'
            ) from None
    return found


def _of_label(row: KeptAnswers, right: set[str], place: int) -> Iterator[_Labelled]:
    """Return pairs of answers: two right ones are equal, a right and a wrong one are not."""
    for (one, first), (two, second) in combinations(row.answers.items(), 2):
        known = one in right or two in right
        if known and first.strip() and second.strip():
            pair = second.strip(), first.strip()
            yield _Labelled((pair,), (one in right) == (two in right), place)
