"""From prompts to a trace: every node is asked about every prompt, and each call is paid for once.

Each node is called by as many workers as its ``max_concurrent`` allows. What came back is kept at
once (:mod:`ttamer.llm.paid`), so that the same command continues after an interruption of any kind,
and asks only what was not asked before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ttamer._files import atomic_write
from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.client import Client, UpstreamFailed, open_session
from ttamer.llm.compare import Comparer, Comparison, compare_answers, label_form
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge, score_from, verdict_from
from ttamer.llm.labelling import KeptRow
from ttamer.llm.likeness import (
    EMBEDDED_AT_ONCE,
    MAX_TEXT,
    Agreement,
    Likeness,
    cosines,
    pairs_of,
    vectors_from,
)
from ttamer.llm.node import BYTES_PER_TOKEN, Node, Upstream, Usage, Work, call_cost
from ttamer.llm.paid import PaidCalls, PaidUpstream, key_of
from ttamer.llm.prompts import Endpoint, Prompt, prompt_signals
from ttamer.llm.settings import NodeSettings, comparison_of, embeddings_of, read_nodes
from ttamer.runtime.calling import Call, call_async
from ttamer.runtime.reply import columns_of
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import BELIEF_FIELDS, OnBad, Trace

MAX_FAILURES = 10  # in a row, after which a node is not called any more
WORKERS = 8  # of a node without max_concurrent
HALF = 0.5  # the score from which an answer counts as right
MAX_SHOWN_ALIASES = 6  # of a label that a judge sees: it bounds the length of its prompts

T = TypeVar("T")
Ask = Callable[[NodeSettings], Upstream]
"""From a node's settings to what is asked."""


class Answer(NamedTuple):
    """What a node answered to a prompt."""

    text: str
    confidence: float
    cost: float
    confidence_cost: float = 0.0
    """The part of the cost that is for the confidence alone."""
    columns: Mapping[str, float] = {}


def collect_prompts(
    cascade: CascadeSpec | str | os.PathLike[str],
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    endpoint: Endpoint = "chat/completions",
    on_error: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    likeness: Likeness | None = None,
    upstream: Ask | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    Args:
        cascade: The cascade with its upstreams, or the path of its ``cascade.toml``.
        prompts: The prompts, such as :func:`read_prompts` returns.
        paid: A file that keeps the responses, so that no call is made twice (SQLite, mode 600).
        endpoint: The endpoint of the upstreams.
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" drops and counts them.
        answers: A file for the prompts and the answers of the trace's rows, as JSON lines (mode
            600).
        judge: A node that decides how right answers are, instead of the comparison with labels;
            where there are labels, ``notes`` has how often both agree. Where only some prompts
            have one, the judge sees none of them, so that its agreement holds for the others too.
            Verdicts are not part of the nodes' costs.
        likeness: With ``compare = "embedding"``: what the threshold is fitted to, or measured with;
            ``notes`` has it and how often it agrees, and the trace's cascade the threshold.
        upstream: From a node's settings to what is asked in place of its server.
        progress: Called with the numbers of answers and verdicts done, total and failed.

    Returns:
        The trace, with a cost per row where calls differ in cost.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If labels are missing, a prompt lacks an answer, the file of responses cannot be
            used, or the judge or the threshold agrees with too few labels.

    ::

        prompts = read_prompts("prompts.jsonl")
        trace = collect_prompts("cascade.toml", prompts, "answers.sqlite")
    """
    run = _Collection.of(cascade, prompts, paid, endpoint, judge, likeness or Likeness())
    run.labels(needed=judge is None)  # refused before anything is asked
    run.progress = progress
    with run.paid:
        try:
            return asyncio.run(run.all(upstream, on_error, answers))
        except ExceptionGroup as errors:  # of several workers: report the first
            raise errors.exceptions[0] from None


@dataclass(frozen=True)
class CollectionPlan:
    """What a collection would ask, and what that would cost at most."""

    calls: Mapping[str, int]
    """The calls of each node that are not paid for yet; a judge's verdicts are not counted."""
    cost: Mapping[str, float]
    """By node, in the cascade's units: prompts as long as their bytes say, answers as long as they
    may be."""
    kept: int
    """The responses that are there."""

    def __str__(self) -> str:
        parts = [
            f"{name}: {counted(count, 'call', ',')}, at most {self.cost[name]:g}"
            for name, count in self.calls.items()
        ]
        total = f"in all at most {sum(self.cost.values()):g}; {self.kept} responses are kept"
        return "\n".join([*parts, total])


def plan_collection(
    cascade: CascadeSpec | str | os.PathLike[str],
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    endpoint: Endpoint = "chat/completions",
) -> CollectionPlan:
    """Return what :func:`collect_prompts` would ask, without asking anything.

    Args:
        cascade: As for :func:`collect_prompts`.
        prompts: The prompts.
        paid: The file of responses.
        endpoint: The endpoint of the upstreams.

    Returns:
        The calls of each node, and their cost at most.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If the file of responses cannot be used.

    >>> import tempfile
    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 2, upstream = 'http://h/v1'}]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], Path(folder, "paid")))
    a: 1 call, at most 2
    in all at most 2; 0 responses are kept
    """
    run = _Collection.of(cascade, prompts, paid, endpoint, None, Likeness())
    with run.paid:
        return asyncio.run(run.plan())


@dataclass
class _Collection:
    """The calls to make, the answers, and the failures."""

    spec: CascadeSpec
    nodes: dict[str, NodeSettings]
    rule: Comparison
    prompts: Sequence[Prompt]
    paid: PaidCalls
    path: str
    judge: Judge | None
    likeness: Likeness
    progress: Callable[[int, int, int], None] | None = None
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    vectors: _Vectors | None = None
    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    """By node and prompt."""
    scores: dict[str, Answer] = field(default_factory=dict)
    """The judge's verdicts; their confidence is the score."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why there is no answer, by node and prompt; the judge's are under the empty name."""
    done: int = 0
    total: int = 0

    @classmethod
    def of(
        cls,
        cascade: CascadeSpec | str | os.PathLike[str],
        prompts: Sequence[Prompt],
        paid: str | os.PathLike[str],
        endpoint: Endpoint,
        judge: Judge | None,
        likeness: Likeness,
    ) -> _Collection:
        """Check what is asked of a collection."""
        spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
        nodes, rule = read_nodes(spec), comparison_of(spec)
        likeness.check(
            rule,
            has_upstream=embeddings_of(spec) is not None,
            has_agreement=any(node.confidence == "agreement" for node in nodes.values()),
        )
        if judge is not None and judge.node not in nodes:
            raise ArgumentError(
                f"the judge is {judge.node!r}, and there is no such node; the nodes are "
                f"{', '.join(nodes)}"
            )
        return cls(spec, nodes, rule, prompts, PaidCalls(paid), f"/{endpoint}", judge, likeness)

    @property
    def bodies(self) -> dict[str, Mapping[str, Any]]:
        """The different prompts, by key."""
        return {_key(prompt.body): prompt.body for prompt in self.prompts}

    # Asking

    async def all(
        self, upstream: Ask | None, on_error: OnBad, path: str | os.PathLike[str] | None
    ) -> Trace:
        """Ask whatever was not asked before, and return the trace."""
        async with AsyncExitStack() as stack:
            if upstream is None or embeddings_of(self.spec) is not None:
                session = await stack.enter_async_context(open_session())
                upstream = upstream or partial(_patient, session=session)
            self.upstreams = {name: upstream(node) for name, node in self.nodes.items()}
            if self.rule.kind == "embedding":
                await self._open_vectors(stack)
            await self._ask_nodes()
            if self.judge is not None:
                await self._ask_judge(self.judge)
            rows = self._complete_rows(on_error)
            trace = await self._trace(rows)
        if path is not None:
            self._write_answers(Path(path), rows)
        return trace

    async def plan(self) -> CollectionPlan:
        """Return what would be asked."""
        calls, cost = dict.fromkeys(self.nodes, 0), dict.fromkeys(self.nodes, 0.0)
        for name in self.nodes:
            for body in self.bodies.values():
                node, upstreams = self._node(name)
                with suppress(UpstreamFailed):
                    await node.ask(Work(dict(body), path=self.path))
                verifier = node.settings.verifier
                for asked, upstream in upstreams.items():
                    for request in upstream.missing:
                        calls[asked] += 1
                        cost[asked] += _cost_at_most(self.nodes[asked], request)
                        if verifier and asked == name:  # its verdict will be asked for
                            calls[verifier] += 1
                            cost[verifier] += _cost_at_most(self.nodes[verifier], request)
        return CollectionPlan(calls, cost, len(self.paid))

    def _node(self, name: str) -> tuple[Node, dict[str, PaidUpstream]]:
        """Return a node that is asked about one prompt, and what asks for it."""
        settings = self.nodes[name]
        upstreams = {
            asked: PaidUpstream(self.nodes[asked], self.upstreams.get(asked), self.paid)
            for asked in dict.fromkeys((name, settings.verifier or name))
        }
        verifier = None
        if settings.verifier:
            verifier = Node(self.nodes[settings.verifier], upstreams[settings.verifier], self.rule)
        comparer = None if self.vectors is None else self.vectors.comparer(self.rule)
        node = Node(settings, upstreams[name], self.rule, comparer=comparer, verifier=verifier)
        return node, upstreams

    async def _ask_nodes(self) -> None:
        bodies = self.bodies
        self.total = len(bodies) * len(self.nodes)
        self._report()
        async with asyncio.TaskGroup() as group:
            for name, node in self.nodes.items():
                found = self.answers[name] = {}
                self._start_workers(group, node, bodies, partial(self._ask, name), found, name)

    async def _ask(self, name: str, body: Mapping[str, Any], *, again: bool = False) -> Answer:
        node, upstreams = self._node(name)
        work = Work(dict(body), path=self.path)
        try:
            reply = await node.ask(work)
        except UpstreamFailed as error:
            if error.kind != "garbage":  # what came before, such as the answer to be verified
                for upstream in upstreams.values():
                    upstream.keep()
            raise
        if not work.is_measured:
            # Responses of a time when tokens had no price, and nobody needed their usage.
            if not again and sum(upstream.forget() for upstream in upstreams.values()):
                return await self._ask(name, body, again=True)
            raise Unreadable(
                "returned no usage, and its tokens have a price: give the node a cost in place of "
                "cost_per_token"
            )
        for upstream in upstreams.values():
            upstream.keep()
        answer = reply.answer
        columns = columns_of(reply, BELIEF_FIELDS)
        return Answer(answer.text, reply.confidence, answer.cost, answer.confidence_cost, columns)

    def _start_workers(
        self,
        group: asyncio.TaskGroup,
        node: NodeSettings,
        waiting: Mapping[str, T],
        ask: Callable[[T], Awaitable[Answer]],
        answers: dict[str, Answer],
        name: str,
    ) -> None:
        """Ask a node about all that waits, until it has failed too often in a row."""
        questions, failures = iter(waiting.items()), 0
        failed = self.failed[name] = {}

        async def work() -> None:
            nonlocal failures
            for key, question in questions:
                if failures >= MAX_FAILURES:
                    failed[key] = "was not called any more"
                else:
                    try:
                        answers[key] = await ask(question)
                        failures = 0
                    except (UpstreamFailed, Unreadable) as error:
                        failed[key] = _reason(error, node)
                        failures += 1
                self.done += 1
                self._report()

        for _ in range(min(node.max_concurrent or WORKERS, len(waiting))):
            group.create_task(work())

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total, sum(map(len, self.failed.values())))

    # Judging

    def _verdict_request(self, judge: Judge, prompt: Prompt, text: str) -> dict[str, Any]:
        label = prompt.label
        if isinstance(label, tuple):
            label = " or ".join(label[:MAX_SHOWN_ALIASES])
        return judge.request(
            question_text(prompt.body), text, label if self._judge_sees_labels else None
        )

    @property
    def _judge_sees_labels(self) -> bool:
        return all(prompt.label is not None for prompt in self.prompts)

    def _verdict_key(self, row: int, text: str) -> str:
        assert self.judge is not None  # noqa: S101 - there are verdicts
        return _key(self._verdict_request(self.judge, self.prompts[row], text))

    async def _ask_judge(self, judge: Judge) -> None:
        """Ask about each different answer; one without text is wrong, and is not judged."""
        node = self.nodes[judge.node]
        waiting: dict[str, dict[str, Any]] = {}
        for prompt in self.prompts:
            for answers in self.answers.values():
                answer = answers.get(_key(prompt.body))
                if answer is not None and answer.text.strip():
                    request = self._verdict_request(judge, prompt, answer.text)
                    waiting[_key(request)] = request
        read = score_from if judge.graded else verdict_from

        async def ask(request: Mapping[str, Any]) -> Answer:
            upstream = PaidUpstream(node, self.upstreams[judge.node], self.paid)
            response = await upstream.complete(request)
            score = float(read(response.body))
            upstream.keep()
            cost = response.cost
            if cost is None:
                cost = call_cost(node, Usage.of(response.body))
            return Answer("", score, node.cost if cost is None else cost)

        self.total += len(waiting)
        async with asyncio.TaskGroup() as group:
            self._start_workers(group, node, waiting, ask, self.scores, "")

    def _score(self, row: int, text: str) -> float | None:
        if not text.strip():
            return 0.0
        verdict = self.scores.get(self._verdict_key(row, text))
        return None if verdict is None else verdict.confidence

    async def _judged(
        self,
        judge: Judge,
        rows: Sequence[int],
        texts: Sequence[Sequence[str]],
        labels: Sequence[str | None] | None,
        comparer: Comparer,
    ) -> str:
        """Return what the verdicts cost, and how often they agree with the labels."""
        costs: dict[str, float] = {}
        judged: list[bool] = []
        labelled: list[tuple[str, str]] = []
        for row, answers in zip(rows, texts, strict=True):
            label = None if labels is None else labels[row]
            for text in filter(str.strip, answers):
                key = self._verdict_key(row, text)
                costs[key] = self.scores[key].cost
                if label is not None:
                    judged.append(self.scores[key].confidence >= HALF)
                    labelled.append((text, label))
        agreement = Agreement.of(judged, await comparer.right(labelled))
        least = judge.min_agreement
        if agreement.answers and agreement.interval[1] < least:
            raise TraceError(
                f"the judge {judge.node!r} {agreement}, and at least {100 * least:g}% is needed; "
                "change the rubric or the judge, or lower --min-agreement"
            )
        unseen = "" if self._judge_sees_labels or not judged else ", which it did not see"
        return (
            f"judged by {judge.node!r} in {counted(len(costs), 'call')} that cost "
            f"{sum(costs.values()):g}; the judge {agreement}{unseen}"
        )

    # Comparing

    async def _open_vectors(self, stack: AsyncExitStack) -> None:
        """Set what embeds texts: the function of the user, or the upstream."""
        settings, embed = embeddings_of(self.spec), self.likeness.embed
        if embed is not None:
            name = getattr(embed, "__qualname__", type(embed).__qualname__)
            self.vectors = _Vectors(self.paid, name, embed)
            return
        assert settings is not None  # noqa: S101 - as checked
        client = Client.of_embeddings(settings, await stack.enter_async_context(open_session()))

        async def ask(texts: list[str]) -> list[list[float]]:
            response = await client.complete({"input": texts}, path="/embeddings")
            return vectors_from(response.body, len(texts))

        self.vectors = _Vectors(self.paid, [settings.upstream, settings.model], ask)

    def labels(self, *, needed: bool) -> list[str | None] | None:
        """Return the reference answers in the form that is compared; ``None`` for none."""
        count = sum(prompt.label is not None for prompt in self.prompts)
        if not count:
            if self.spec.target == "label" and needed:
                raise TraceError(
                    "the prompts have no reference answers; give each a label, name a judge "
                    '(--judge NODE), or set target = "last" under [cascade]: then the last node is '
                    "right, until ttamer label is used"
                )
            return None
        labels: list[str | None] = []
        for row, prompt in enumerate(self.prompts):
            if prompt.label is None:
                if needed:
                    raise TraceError(
                        f"prompt {row} (counting from 0) has no label, and {count} of "
                        f"{len(self.prompts)} have one; label all, or name a judge (--judge NODE)"
                    )
                labels.append(None)
                continue
            try:
                labels.append(label_form(prompt.label, self.rule))
            except TraceError as error:
                raise TraceError(
                    f"prompt {row} (counting from 0): {error}; change it, or the comparison"
                ) from None
        return labels

    async def _comparer(
        self, rows: Sequence[KeptRow]
    ) -> tuple[Comparer, CascadeSpec, tuple[str, ...]]:
        """Return what compares answers, the cascade with its threshold, and notes on both."""
        if self.vectors is None:
            return Comparer(self.rule), self.spec, ()
        score = cosines(self.vectors)
        threshold, notes = await self.likeness.threshold(self.rule.threshold, rows, score)
        rule, spec = Comparison("embedding", threshold=threshold), self.spec
        if self.rule.threshold is None:
            table = {"kind": "embedding", "threshold": threshold}
            spec = dataclasses.replace(spec, serve={**spec.serve, "compare": table})
        await score([pair for row in rows for pair in pairs_of(row)])
        return Comparer(rule, score), spec, notes

    # The trace

    def _complete_rows(self, on_error: OnBad) -> list[int]:
        """Return the prompts that have all answers and verdicts."""
        left_out: Counter[str] = Counter()
        rows = []
        for row, prompt in enumerate(self.prompts):
            reason = self._lacking(row, _key(prompt.body))
            if reason:
                left_out[reason] += 1
            else:
                rows.append(row)
        self.left_out = dict(left_out)
        if left_out and (on_error == "refuse" or not rows):
            failed = Counter(
                f"{name} {reason}" for name in self.nodes for reason in self.failed[name].values()
            )
            reasons = "; ".join(f"{k}: {count}" for k, count in {**left_out, **failed}.items())
            lacked = "an answer" if self.judge is None else "an answer or a verdict"
            raise TraceError(
                f"{sum(left_out.values())} of {len(self.prompts)} prompts lack {lacked} "
                f"({reasons}); fix the cause{_hint(reasons, self.prompts)} and run the same "
                "command again, which asks only these, or skip them with --skip-bad"
            )
        return rows

    def _lacking(self, row: int, key: str) -> str:
        """Return why a prompt lacks an answer or a verdict; nothing where it has all."""
        for name, answers in self.answers.items():
            if key not in answers:
                return f"{name} {self.failed[name][key]}"
        if self.judge is not None:
            for answers in self.answers.values():
                if self._score(row, answers[key].text) is None:
                    verdict = self._verdict_key(row, answers[key].text)
                    return f"the judge {self.failed[''][verdict]}"
        return ""

    def _row(self, row: int) -> list[Answer]:
        key = _key(self.prompts[row].body)
        return [answers[key] for answers in self.answers.values()]

    async def _trace(self, rows: Sequence[int]) -> Trace:
        labels = self.labels(needed=self.judge is None)
        table = [self._row(row) for row in rows]
        texts = [[answer.text for answer in answers] for answers in table]
        kept = [
            KeptRow(
                question_text(self.prompts[row].body),
                None if labels is None else labels[row],
                dict(zip(self.nodes, answers, strict=True)),
            )
            for row, answers in zip(rows, texts, strict=True)
        ]
        try:
            comparer, spec, notes = await self._comparer(kept)
        except (UpstreamFailed, Unreadable) as error:
            raise TraceError(f"texts cannot be embedded: {error}") from None
        right = None
        if self.judge is None and labels is not None:
            right = [labels[row] or "" for row in rows]
        try:
            compared = await compare_answers(comparer, texts, right)
        except TraceError as error:
            raise TraceError(
                f"{error}, or name a judge (--judge NODE); the answers are kept, and are not asked "
                "for again"
            ) from None
        notes += tuple(compared.notes(comparer.rule, spec.names, texts))
        for place, (name, node) in enumerate(self.nodes.items()):
            if node.confidence == "self-report" and not any(r[place].confidence for r in table):
                notes += (
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}",
                )
        correct: Any = compared.correct
        score = None
        if self.judge is not None:
            scores = np.array(
                [
                    [self._score(row, text) for text in answers]
                    for row, answers in zip(rows, texts, strict=True)
                ],
                np.float64,
            )
            notes += (await self._judged(self.judge, rows, texts, labels, comparer),)
            correct, score = (None, scores) if self.judge.graded else (scores >= HALF, None)
        is_apart = np.array([node.verify_cost is not None for node in spec.nodes])
        cost = np.array([[answer.cost for answer in answers] for answers in table])
        cost -= is_apart * [[answer.confidence_cost for answer in answers] for answers in table]
        columns, lacking = self._columns(table)
        signals = {}
        if self.spec.serve.get("signals"):
            found = [prompt_signals(self.prompts[row].body) for row in rows]
            signals = {name: np.array([values[name] for values in found]) for name in found[0]}
        return Trace.from_arrays(
            spec,
            [[answer.confidence for answer in answers] for answers in table],
            prediction=compared.prediction,
            label=compared.label,
            correct=correct,
            score=score,
            cost=None if (cost == spec.costs).all() else cost,
            **columns,
            inputs=signals,
            left_out=self.left_out,
            notes=(*notes, *lacking),
        )

    def _columns(
        self, table: Sequence[Sequence[Answer]]
    ) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
        """Return the margins and entropies that a node has on every row, and what is left out."""
        columns, notes = {}, []
        for column in BELIEF_FIELDS:
            values = np.array([[answer.columns[column] for answer in row] for row in table])
            lacking = np.isnan(values).sum(axis=0)
            for (name, node), count in zip(self.nodes.items(), lacking.tolist(), strict=True):
                if count and column in node.extras:
                    notes.append(
                        f"the column {name}.{column} is left out: "
                        f"{counted(count, 'answer')} without top_logprobs"
                    )
            values[:, lacking > 0] = np.nan
            if not np.isnan(values).all():
                columns[column] = values
        return columns, notes

    def _write_answers(self, path: Path, rows: Sequence[int]) -> None:
        """Write the prompts and the answers of some rows, for people to read and to label."""
        lines = []
        for row in rows:
            prompt = self.prompts[row]
            texts = dict(zip(self.nodes, (answer.text for answer in self._row(row)), strict=True))
            line = {"request": dict(prompt.body), "label": prompt.label, "answers": texts}
            lines.append(json.dumps(line) + "\n")
        try:
            with atomic_write(path, private=True) as part:
                part.write_text("".join(lines), "utf-8")
        except OSError as error:
            raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


@dataclass
class _Vectors:
    """Embeds texts, each of them once; the vectors are kept."""

    paid: PaidCalls
    identity: object
    embed: Callable[[list[str]], Any]

    async def __call__(self, texts: list[str]) -> list[NDArray[np.float32]]:
        keys = {text: key_of("embedding", self.identity, text) for text in texts}
        waiting = [text for text in texts if self.paid.get(keys[text]) is None]
        for start in range(0, len(waiting), EMBEDDED_AT_ONCE):
            chunk = waiting[start : start + EMBEDDED_AT_ONCE]
            result = await call_async(Call(self.embed, [text[-MAX_TEXT:] or " " for text in chunk]))
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


def _key(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)


def _patient(settings: NodeSettings, session: Any) -> Client:
    """Return a client that no user waits for: it does not stop calls, and waits to the limit."""
    client = Client(settings, session, read_errors=True)
    client.breaker.row = 1000  # more than it counts
    client.limit.floor = settings.timeout
    return client


def _cost_at_most(node: NodeSettings, body: Mapping[str, Any]) -> float:
    prompt = len(json.dumps(body)) / BYTES_PER_TOKEN
    usage = Usage(
        int(prompt), int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)
    )
    return call_cost(node, usage) or 0.0


def _reason(error: UpstreamFailed | Unreadable, node: NodeSettings) -> str:
    """Return why a call has no result, with what helps."""
    if isinstance(error, Unreadable):
        return str(error)
    reason = str(error).partition(": ")[2]
    if error.kind == "connect":
        return f"{reason} (upstream = {node.upstream!r})"
    return f"{reason} (timeout = {node.timeout:g})" if error.kind == "timeout" else reason


def _hint(reasons: str, prompts: Sequence[Prompt]) -> str:
    """Return what helps against an upstream that refuses calls: too many, or for their fields."""
    if "status 429" in reasons:
        return " (429: a lower max_concurrent, or retries, of the node)"
    usual = ("messages", "prompt", "temperature", "max_tokens")
    fields = dict.fromkeys(name for prompt in prompts for name in prompt.body if name not in usual)
    if fields and ("status 400" in reasons or "status 422" in reasons):
        return (
            f" (each prompt's other fields are sent with its request, here {', '.join(fields)}: "
            "remove those that the upstream does not take)"
        )
    return ""
