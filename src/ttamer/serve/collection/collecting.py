"""From prompts to a trace: ask every upstream of a cascade about every prompt.

Each node is called by as many workers as its ``concurrency`` allows. Every answer is written to the
journal at once, so that the same command continues after an interruption of any kind. Journal
entries are found by node and prompt: changed ones are asked, the others are not. Answers are priced
when the trace is made, so that other prices need no further calls.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ttamer._files import atomic_write
from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.compare import Agreement, label_form
from ttamer.llm.confidence import (
    LIKELIHOODS,
    VERIFY,
    Unreadable,
    answer_text,
    question_text,
)
from ttamer.llm.judging import score_from, verdict_from
from ttamer.llm.prompts import embedding_signals, prompt_signals
from ttamer.runtime.jsonl import json_line
from ttamer.serve.bill import Tariff, Usage
from ttamer.serve.collection.comparing import KeptAnswers, Likeness, compare_answers
from ttamer.serve.collection.journal import EXTRAS, Journal, JournalEntry, journal_key
from ttamer.serve.formats.schemas import CHAT, CLASSIFY, COMPLETION
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.embedding import EMBEDDED_AT_ONCE, Embedder
from ttamer.serve.upstreams.node import call_cost, open_nodes
from ttamer.serve.upstreams.upstream import Upstream, UpstreamFailed
from ttamer.trace.trace import OnBad, Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ttamer.llm.compare import Comparer
    from ttamer.llm.judging import Judge
    from ttamer.llm.prompts import Endpoint, Prompt
    from ttamer.serve.collection.comparing import AppliedComparison
    from ttamer.serve.config import NodeSettings, Settings
    from ttamer.serve.upstreams.node import Node

__all__ = ["collect_upstreams"]

T = TypeVar("T")

MAX_FAILURES = 10
"""The number of failures in a row after which a node is not called any more."""

SEVERAL_CALLS = ("agreement", "self-report", "verifier")
"""The sources of confidence for which an answer takes several calls."""
PRICES = ("cost", "cost_per_token")
"""The settings of a node that are prices."""
HALF = 0.5
"""The score from which an answer counts as right."""
MAX_SHOWN_ALIASES = 6
"""The number of aliases of a label that a judge sees, which bounds the length of its prompts."""


def collect_upstreams(
    settings: Settings,
    prompts: Sequence[Prompt],
    journal: str | os.PathLike[str],
    *,
    endpoint: Endpoint = "chat/completions",
    on_error: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    likeness: Likeness | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    The journal keeps the answers as text: with another ``compare`` the same call makes another
    trace, and asks only nodes whose confidence depends on the comparison.

    Args:
        settings: The cascade and its upstreams.
        prompts: The prompts, such as :func:`read_prompts` returns.
        journal: A file that keeps the answers, so that no call is made twice.
        endpoint: The endpoint of the upstreams.
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" drops and counts them.
        answers: A file for the prompts and the answers of the trace's rows, as JSON lines (mode
            600).
        judge: A node that decides how right answers are, instead of the comparison with labels;
            where there are labels, ``notes`` has how often both agree. Where only some prompts
            have one, the judge sees none of them, so that its agreement holds for the others too.
            Verdicts are kept in the journal, and are not part of the nodes' costs.
        likeness: With ``compare = "embedding"``: what the threshold is fitted to, or measured with;
            ``notes`` has it and how often it agrees, and the trace's cascade the threshold.
        progress: Called with the numbers of answers and verdicts done, total and failed.

    Returns:
        The trace, with a cost per row where calls differ in cost.

    Raises:
        TraceError: If labels are missing, the journal is not valid, a prompt lacks an answer, or
            the judge or the threshold agrees with too few labels.

    ::

        prompts = read_prompts("prompts.jsonl")
        trace = collect_upstreams(read_settings("cascade.toml"), prompts, "answers.journal")
    """
    labels = _labels(settings, prompts, needed=judge is None)
    likeness = likeness or Likeness()
    likeness.check(settings)
    if judge is not None and judge.node not in settings.nodes:
        raise ArgumentError(
            f"the judge is {judge.node!r}, and there is no such node; the nodes are "
            f"{', '.join(settings.nodes)}"
        )
    with Journal(journal) as kept:
        collection = _Collection(settings, prompts, kept, f"/{endpoint}", progress)
        try:
            asyncio.run(collection.all())
            if settings.serve.signals:
                collection.signals = _PromptSignals(collection)
                asyncio.run(collection.signals.all())
            if judge is not None:
                collection.verdicts = _Verdicts(collection, judge)
                asyncio.run(collection.verdicts.all())
        except ExceptionGroup as errors:  # of several workers: report the first
            raise errors.exceptions[0] from None
        rows, trace = asyncio.run(_trace(collection, labels, on_error, likeness))
        if answers is not None:
            _write_answers(Path(answers), collection, rows)
        return trace


@dataclass
class _Collection:
    """The calls to make, the answers, and the failures."""

    settings: Settings
    prompts: Sequence[Prompt]
    journal: Journal
    path: str
    progress: Callable[[int, int, int], None] | None
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why there is no answer: for each node, by key."""
    verdicts: _Verdicts | None = None
    signals: _PromptSignals | None = None
    done: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        self._priced = {name: self._identity(name) for name in self.settings.nodes}
        self._identities = {
            name: _without_prices(values) if self._is_one_call(name) else values
            for name, values in self._priced.items()
        }

    def _is_one_call(self, name: str) -> bool:
        """Return whether an answer takes one call, so that its usage is enough to price it."""
        return self.settings.nodes[name].confidence not in SEVERAL_CALLS

    def _identity(self, name: str) -> dict[str, Any]:
        """Return the settings that a node's answers depend on."""
        node = self.settings.nodes[name]
        values = {"path": self.path, **node.answer_settings}
        compare = self.settings.serve.compare
        if node.confidence == "agreement" or (
            node.confidence == "logprobs" and compare.kind == "choice"
        ):
            values["compare"] = str(compare)  # the confidence depends on it
        elif node.confidence in LIKELIHOODS and compare.kind != "choice":
            values.pop("confidence", None)  # an entry has the confidences by all of these
        if node.verifier is not None:
            verifier = self.settings.nodes[node.verifier].answer_settings
            values["verifier"] = {**verifier, "prompt": VERIFY}  # the confidence depends on it
        return values

    def key(self, name: str, row: int) -> str:
        return journal_key(self._identities[name], self.prompts[row].body)

    async def all(self) -> None:
        """Make the calls whose answers are not in the journal; equal prompts are asked once."""
        different = {name: self._different(name) for name in self.settings.nodes}
        waiting = {
            name: {key: row for key, row in rows.items() if self.entry(name, row) is None}
            for name, rows in different.items()
        }
        self.total = sum(map(len, different.values()))
        self.done = self.total - sum(map(len, waiting.values()))
        self.report()
        async with HttpClient() as client, asyncio.TaskGroup() as group:
            nodes = open_nodes(self.settings, client, read_errors=True, keep_first=True)
            for name, node in nodes.items():
                failed = self.failed[name] = {}
                ask = partial(self._ask, node)
                self.start_workers(group, node.settings, waiting[name], ask, failed)

    def _different(self, name: str) -> dict[str, int]:
        """Return the rows of different prompts, by key; of equal ones, the first."""
        first: dict[str, int] = {}
        for row in range(len(self.prompts)):
            first.setdefault(self.key(name, row), row)
        return first

    def start_workers(
        self,
        group: asyncio.TaskGroup,
        node: NodeSettings,
        waiting: Mapping[str, T],
        ask: Callable[[T], Awaitable[JournalEntry]],
        failed: dict[str, str],
    ) -> None:
        """Ask a node about all that waits, by key; keep its answers in the journal.

        ``failed`` gets the reason for each key without an answer. After too many failures in a row
        the node is not called any more.
        """
        calls, failures = iter(waiting.items()), 0

        async def work() -> None:
            nonlocal failures
            for key, each in calls:
                if failures >= MAX_FAILURES:
                    failed[key] = "was not called any more"
                else:
                    try:
                        entry = await ask(each)
                    except (UpstreamFailed, Unreadable) as error:
                        failed[key] = _reason(error, node)
                        failures += 1
                    else:
                        failures = 0
                        self.journal.add(key, entry)
                self.done += 1
                self.report()

        for _ in range(min(node.concurrency, len(waiting))):
            group.create_task(work())

    def entries(self, row: int) -> list[JournalEntry | None]:
        """Return the answers to a prompt, in the order of the nodes."""
        return [self.entry(name, row) for name in self.settings.nodes]

    def _kept(self, name: str, row: int) -> JournalEntry | None:
        """Return a node's answer to a prompt from the journal, with its cost at today's prices."""
        found = self.journal.get(self.key(name, row))
        if not self._is_one_call(name):
            return found
        if found is None:  # earlier versions kept answers by their prices, too
            return self.journal.get(journal_key(self._priced[name], self.prompts[row].body))
        usage = None if found.usage is None else Usage(*found.usage)
        cost = Tariff(self.settings.nodes[name]).price(usage)
        return None if cost is None else replace(found, cost=cost)

    def entry(self, name: str, row: int) -> JournalEntry | None:
        """Return a node's answer to a prompt, with the confidence by the node's source."""
        found, source = self._kept(name, row), self.settings.nodes[name].confidence
        if (
            found is None
            or source not in LIKELIHOODS
            or self.settings.serve.compare.kind == "choice"
        ):
            return found
        if found.likelihoods is None:  # of an earlier version
            return found if source == "logprobs" else None
        confidence = found.likelihoods.get(source)
        return None if confidence is None else replace(found, confidence=confidence)

    async def _ask(self, node: Node, row: int) -> JournalEntry:
        answer = await node.ask(self.path, self.prompts[row].body)
        confidence = float(answer.confidence or 0.0)
        usage = Usage.of(answer.response) if self._is_one_call(node.settings.name) else None
        return JournalEntry(
            answer.text, confidence, answer.cost, answer.margin, answer.entropy, answer.first,
            answer.likelihoods, answer.verification, usage,
        )  # fmt: skip

    def report(self) -> None:
        """Report how many answers and verdicts are there."""
        if self.progress is not None:
            failed = sum(map(len, self.failed.values()))
            failed += 0 if self.verdicts is None else len(self.verdicts.failed)
            self.progress(self.done, self.total, failed)


class _PromptSignals:
    """The signals of the prompts; embeddings are kept in the journal, as a few numbers each."""

    def __init__(self, collection: _Collection) -> None:
        self._collection = collection
        self._settings = collection.settings.serve.embeddings
        self._identity = {} if self._settings is None else asdict(self._settings)

    def _key(self, row: int) -> str:
        return journal_key({"embeddings": self._identity}, self._collection.prompts[row].body)

    async def all(self) -> None:
        """Embed the prompts that have no embedding in the journal, where embeddings are used."""
        journal, prompts = self._collection.journal, self._collection.prompts
        if self._settings is None or not self._settings.signals:
            return
        keys = {self._key(row): row for row in range(len(prompts))}
        waiting = [row for key, row in keys.items() if key not in journal]
        async with HttpClient() as client:
            embedder = Embedder(self._settings, client, read_errors=True)
            for start in range(0, len(waiting), EMBEDDED_AT_ONCE):
                rows = waiting[start : start + EMBEDDED_AT_ONCE]
                try:
                    vectors = await embedder.vectors(
                        [question_text(prompts[row].body) for row in rows]
                    )
                except UpstreamFailed as error:
                    raise TraceError(f"{error} ({error.upstream_text!r})") from None
                for row, vector in zip(rows, vectors, strict=True):
                    numbers = embedding_signals(vector, self._settings.signals)
                    entry = JournalEntry(json.dumps(numbers), 0.0, self._settings.cost / len(rows))
                    journal.add(self._key(row), entry)

    def columns(self, rows: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Return the signals of some rows, by name."""
        found = [prompt_signals(self._collection.prompts[row].body) for row in rows]
        for row, signals in zip(rows, found, strict=True):
            entry = self._collection.journal.get(self._key(row))
            if entry is not None:
                signals |= json.loads(entry.text)
        return {name: np.array([each[name] for each in found]) for name in found[0]}


class _Verdicts:
    """A judge's verdicts on the answers of a collection; each different answer is judged once."""

    def __init__(self, collection: _Collection, judge: Judge) -> None:
        self._collection, self._judge = collection, judge
        self._node = collection.settings.nodes[judge.node]
        self._priced = {"judge": self._node.answer_settings, "rubric": judge.rubric}
        self._identity = {**self._priced, "judge": _without_prices(self._node.answer_settings)}
        self._sees_labels = all(prompt.label is not None for prompt in collection.prompts)
        self.failed: dict[str, str] = {}
        """The reasons why answers have no verdict, by key."""

    def _request(self, row: int, answer: str) -> dict[str, Any]:
        prompt = self._collection.prompts[row]
        label = prompt.label
        if isinstance(label, tuple):
            label = " or ".join(label[:MAX_SHOWN_ALIASES])
        shown = label if self._sees_labels else None
        return self._judge.request(question_text(prompt.body), answer, shown)

    def key(self, row: int, answer: str) -> str:
        """Return the key of a verdict in the journal."""
        return journal_key(self._identity, self._request(row, answer))

    def _entry(self, row: int, answer: str) -> JournalEntry | None:
        """Return a verdict; earlier versions kept verdicts by the judge's prices, too."""
        journal, request = self._collection.journal, self._request(row, answer)
        found = journal.get(journal_key(self._identity, request))
        return found or journal.get(journal_key(self._priced, request))

    def score(self, row: int, answer: str) -> float | None:
        """Return how right an answer is, from 0 to 1; ``None`` where there is no verdict.

        An answer without text is wrong, and is not judged.
        """
        if not answer.strip():
            return 0.0
        entry = self._entry(row, answer)
        return None if entry is None else entry.confidence

    @property
    def is_graded(self) -> bool:
        """Whether answers have scores between right and wrong."""
        return self._judge.graded

    async def all(self) -> None:
        """Ask the judge about the answers that have no verdict yet."""
        waiting: dict[str, dict[str, Any]] = {}
        for row in range(len(self._collection.prompts)):
            for entry in self._collection.entries(row):
                if entry is not None and self.score(row, entry.text) is None:
                    waiting[self.key(row, entry.text)] = self._request(row, entry.text)
        self._collection.total += len(waiting)
        async with HttpClient() as client, asyncio.TaskGroup() as group:
            ask = partial(self._ask, Upstream(self._node, client, read_errors=True))
            self._collection.start_workers(group, self._node, waiting, ask, self.failed)

    async def _ask(self, upstream: Upstream, request: Mapping[str, Any]) -> JournalEntry:
        response = await upstream.call("/chat/completions", request)
        read = score_from if self._judge.graded else verdict_from
        score = float(read(response.body))
        cost = call_cost(self._node, response.body)
        return JournalEntry(answer_text(response.body), score, cost)

    async def note(
        self,
        rows: Sequence[int],
        answers: Sequence[Sequence[str]],
        labels: Sequence[str | None] | None,
        comparer: Comparer,
    ) -> str:
        """Return what the verdicts cost, and how often they agree with the labels.

        Raises:
            TraceError: If they agree with fewer labels than the judge must.
        """
        verdicts: dict[str, JournalEntry] = {}
        judged: list[bool] = []
        labelled: list[tuple[str, str]] = []
        for place, (row, texts) in enumerate(zip(rows, answers, strict=True)):
            label = None if labels is None else labels[place]
            for text in filter(str.strip, texts):
                entry = self._entry(row, text)
                assert entry is not None  # noqa: S101 - rows without all verdicts are left out
                verdicts[self.key(row, text)] = entry
                if label is not None:
                    judged.append(entry.confidence >= HALF)
                    labelled.append((text, label))
        costs = [entry.cost for entry in verdicts.values()]
        agreement = Agreement.of(judged, await comparer.right(labelled))
        least = self._judge.min_agreement
        if agreement.answers and agreement.interval[1] < least:
            raise TraceError(
                f"the judge {self._judge.node!r} {agreement}, and at least {100 * least:g}% is "
                "needed; change the rubric or the judge, or lower --min-agreement"
            )
        unseen = "" if self._sees_labels or not judged else ", which it did not see"
        return (
            f"judged by {self._judge.node!r} in {counted(len(costs), 'call')} that cost "
            f"{sum(costs):g}; the judge {agreement}{unseen}"
        )


def _without_prices(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that answers do not depend on, only their costs."""
    return {key: value for key, value in settings.items() if key not in PRICES}


def _reason(error: UpstreamFailed | Unreadable, node: NodeSettings) -> str:
    """Return why a call has no result, with the upstream's own text and what helps."""
    if isinstance(error, Unreadable):
        return str(error)
    more = [repr(error.upstream_text)] if error.upstream_text else []
    more += [error.remedy] if error.remedy else []
    if error.kind == "connect":
        more.append(f"upstream = {str(node.upstream)!r}")
    elif error.kind == "timeout":
        more.append(f"timeout = {node.timeout:g}")
    reason = str(error).partition(": ")[2]
    return f"{reason} ({'; '.join(more)})" if more else reason


def _hint(reasons: str, prompts: Sequence[Prompt]) -> str:
    """Return what helps against an upstream that refuses calls: too many, or for their fields."""
    if "status 429" in reasons:
        return " (429: a lower concurrency, or retries, of the node)"
    known = {*CHAT["properties"], *COMPLETION["properties"], *CLASSIFY["properties"]}
    others = dict.fromkeys(name for prompt in prompts for name in prompt.body if name not in known)
    if others and ("status 400" in reasons or "status 422" in reasons):
        return (
            f" (each prompt's other fields are sent with its request, here {', '.join(others)}: "
            "remove those that the upstream does not take)"
        )
    return ""


def _labels(
    settings: Settings, prompts: Sequence[Prompt], *, needed: bool
) -> list[str] | list[str | None] | None:
    """Return the predictions of the reference answers; ``None`` where there are none."""
    given = [prompt.label is not None for prompt in prompts]
    if not any(given):
        if settings.spec.target == "label" and needed:
            raise TraceError(
                "the prompts have no reference answers; give each a label, name a judge (--judge "
                'NODE), or set target = "last" under [cascade]: then the last node is right, until '
                "ttamer label is used"
            )
        return None
    compare = settings.serve.compare
    labels: list[str | None] = []
    for row, prompt in enumerate(prompts):
        if prompt.label is None:
            if needed:
                raise TraceError(
                    f"prompt {row} (counting from 0) has no label, and {sum(given)} of "
                    f"{len(prompts)} have one; label all, or name a judge (--judge NODE)"
                )
            labels.append(None)
            continue
        try:
            labels.append(label_form(prompt.label, compare))
        except TraceError as error:
            raise TraceError(
                f"prompt {row} (counting from 0): {error}; change it, or the comparison"
            ) from None
    return labels


async def _trace(
    collection: _Collection,
    labels: Sequence[str | None] | None,
    on_error: OnBad,
    likeness: Likeness,
) -> tuple[list[int], Trace]:
    """Return the prompts that have all answers, and the trace of them."""
    settings = collection.settings
    names, verdicts = tuple(settings.nodes), collection.verdicts
    left_out: dict[str, int] = {}
    rows, table = [], []
    for row in range(len(collection.prompts)):
        entries = collection.entries(row)
        found = [entry for entry in entries if entry is not None]
        unjudged = None
        if verdicts is not None:
            unjudged = next((e for e in found if verdicts.score(row, e.text) is None), None)
        if len(found) == len(names) and unjudged is None:
            rows.append(row)
            table.append(found)
            continue
        if unjudged is not None and verdicts is not None:
            reason = f"the judge {verdicts.failed[verdicts.key(row, unjudged.text)]}"
        else:
            name = names[entries.index(None)]
            reason = f"{name} {collection.failed[name][collection.key(name, row)]}"
        left_out[reason] = left_out.get(reason, 0) + 1
    if left_out and (on_error == "refuse" or not rows):
        failed = Counter(
            f"{name} {reason}"
            for name, reasons in collection.failed.items()
            for reason in reasons.values()
        )
        counts = {**left_out, **failed}  # every node's failures, and the judge's
        reasons = "; ".join(f"{reason}: {count}" for reason, count in counts.items())
        lacked = "an answer" if verdicts is None else "an answer or a verdict"
        raise TraceError(
            f"{sum(left_out.values())} of {len(collection.prompts)} prompts lack {lacked} "
            f"({reasons}); fix the cause{_hint(reasons, collection.prompts)} and run the same "
            "command again, which asks only these, or skip them with --skip-bad"
        )
    right = None if labels is None else [labels[row] for row in rows]
    kept = [
        KeptAnswers(
            question_text(collection.prompts[row].body),
            {name: entry.text for name, entry in zip(names, found, strict=True)},
            None if right is None else right[place],
        )
        for place, (row, found) in enumerate(zip(rows, table, strict=True))
    ]
    async with HttpClient() as client:
        applied = await likeness.comparer(settings, kept, collection.journal, client)
        return rows, await _compared(collection, applied, rows, table, right, left_out)


async def _compared(
    collection: _Collection,
    applied: AppliedComparison,
    rows: Sequence[int],
    table: Sequence[Sequence[JournalEntry]],
    right: Sequence[str | None] | None,
    left_out: Mapping[str, int],
) -> Trace:
    """Return the trace of answers that are compared."""
    verdicts, comparer, spec = collection.verdicts, applied.comparer, applied.spec
    notes = list(applied.notes)
    apart = [node.verify_cost is not None for node in spec.nodes]
    cost = np.array([
        [entry.cost - entry.verification * is_apart
         for entry, is_apart in zip(found, apart, strict=True)]
        for found in table
    ])  # fmt: skip
    answers = [[entry.text for entry in found] for found in table]
    labels = None if verdicts is not None or right is None else [each or "" for each in right]
    try:
        compared = await compare_answers(comparer, answers, labels)
    except TraceError as error:
        raise TraceError(
            f"{error}, or name a judge (--judge NODE); the answers are kept, and are not asked for "
            "again"
        ) from None
    notes += compared.notes(comparer.rule, spec.names, answers)
    for place, (name, node) in enumerate(collection.settings.nodes.items()):
        if node.confidence == "self-report" and not any(found[place].confidence for found in table):
            notes.append(
                f"no self-report of {name!r} holds a number: its confidence is 0 on every row; a "
                "model that reasons needs params = {max_tokens = false}"
            )
    correct: Any = compared.correct
    score = None
    if verdicts is not None:
        scores = np.array([
            [verdicts.score(row, text) for text in texts]
            for row, texts in zip(rows, answers, strict=True)
        ], np.float64)  # fmt: skip
        notes.append(await verdicts.note(rows, answers, right, comparer))
        correct, score = (None, scores) if verdicts.is_graded else (scores >= HALF, None)
    extras = _extras(table, collection.settings.nodes, notes)
    return Trace.from_arrays(
        spec,
        [[entry.confidence for entry in found] for found in table],
        prediction=compared.prediction,
        label=compared.label,
        correct=correct,
        score=score,
        cost=None if (cost == spec.costs).all() else cost,
        extras=extras,
        signals={} if collection.signals is None else collection.signals.columns(rows),
        left_out=left_out,
        notes=tuple(notes),
    )


def _write_answers(path: Path, collection: _Collection, rows: Sequence[int]) -> None:
    """Write the prompts and the answers of some rows, for people to read and to label."""
    names = tuple(collection.settings.nodes)
    lines = []
    for row in rows:
        prompt = collection.prompts[row]
        entries = dict(zip(names, collection.entries(row), strict=True))
        texts = {name: None if entry is None else entry.text for name, entry in entries.items()}
        first = {name: entry.first for name, entry in entries.items() if entry and entry.first}
        kept = {"request": dict(prompt.body), "label": prompt.label, "answers": texts}
        lines.append(json_line({**kept, "first": first}))
    try:
        with atomic_write(path) as part:
            part.touch(0o600)  # before anything is in it
            part.write_bytes(b"".join(lines))
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


def _extras(
    table: Sequence[Sequence[JournalEntry]], nodes: Mapping[str, NodeSettings], notes: list[str]
) -> dict[str, NDArray[np.float64]]:
    """Return the further measures that a node has on every row; NaN for the other nodes.

    A column that some rows lack is left out, and noted where the settings ask for it.
    """
    found = {}
    for name in EXTRAS:
        values = np.array([[getattr(entry, name) for entry in row] for row in table], np.float64)
        lacking = np.isnan(values).sum(axis=0)
        for node, count in zip(nodes, lacking.tolist(), strict=True):
            if count and name in nodes[node].extras:
                notes.append(
                    f"the column {node}.{name} is left out: "
                    f"{counted(count, 'answer')} without top_logprobs"
                )
        values[:, lacking > 0] = np.nan
        if not np.isnan(values).all():
            found[name] = values
    return found
