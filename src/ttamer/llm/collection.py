"""The nodes, the prompts, and the answers to them so far; each call is paid for once."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any

from ttamer._checks import counted
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.answered import Answered, trace_of
from ttamer.llm.client import Client, UpstreamFailed, open_session
from ttamer.llm.compare import Comparer, Comparison, PairScore, label_form
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge, Verdicts
from ttamer.llm.likeness import Vectors, cosines, pairs_of, threshold_of
from ttamer.llm.node import ModelNode, Upstream, Work
from ttamer.llm.paid import Answer, Ask, Asked, PaidUpstream, Store, key_of_body, patient
from ttamer.llm.prompts import AnsweredPrompt, Prompt
from ttamer.llm.settings import CascadeSource, comparison_of, embeddings_of, read_nodes, spec_of
from ttamer.trace.trace import OnBad, Trace


class Collection:
    """The nodes, the prompts, and what was asked; everything is checked before that."""

    def __init__(
        self,
        cascade: CascadeSource,
        prompts: Sequence[Prompt],
        paid: str | os.PathLike[str],
        judge: Judge | None,
        pairs: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int, int], None] | None = None,
        only: Sequence[str] = (),
    ) -> None:
        spec = spec_of(cascade)
        self.nodes, self.rule = read_nodes(spec), comparison_of(spec)
        if only:  # the others may judge and verify
            asked = (dataclasses.replace(spec.nodes[spec.index_of(n)], after=None) for n in only)
            spec = dataclasses.replace(spec, nodes=tuple(asked))
        self.spec = spec
        self.prompts, self.paid, self.progress = prompts, Store(paid), progress
        self.pairs = pairs
        if text := self._incomparable():
            raise ArgumentError(text)
        self.verdicts = None
        if judge is not None:
            self.verdicts = Verdicts(judge, self.nodes, prompts, self.paid)
        self.labels = self._checked_labels()
        self.keys = [key_of_body(prompt.body) for prompt in prompts]
        self.bodies = dict(zip(self.keys, (prompt.body for prompt in prompts), strict=True))
        self.asked = {name: Asked(self.nodes[name]) for name in self.spec.names}
        self.upstreams: dict[str, Upstream] = {}
        self.score: PairScore | None = None

    def _incomparable(self) -> str:
        """Return why answers could not be compared; nothing where they can."""
        if self.rule.kind != "embedding":
            text = f'labelled pairs are for compare = "embedding", and it is "{self.rule}"'
            return text if self.pairs is not None else ""
        if embeddings_of(self.spec) is None:
            return '[serve]: compare = "embedding" needs the table [serve.embeddings]'
        if self.rule.threshold is not None:
            return ""
        if any(self.nodes[name].confidence == "agreement" for name in self.spec.names):
            return (
                'confidence = "agreement" compares answers while they are collected, and compare = '
                '"embedding" has no threshold yet; write one'
            )
        if self.pairs is None and all(prompt.label is None for prompt in self.prompts):
            return (
                'compare = "embedding" has no threshold: write {kind = "embedding", threshold = '
                "...}, or let it be fitted to labelled pairs (--pairs FILE) or to labels"
            )
        return ""

    def _checked_labels(self) -> list[str | None]:
        """Return the reference answers in the form that is compared."""
        has_label = any(prompt.label is not None for prompt in self.prompts)
        if self.verdicts is None and not has_label and self.spec.target == "label":
            raise TraceError(
                "the prompts have no reference answers; give each a label, name a judge (--judge "
                'NODE), or set target = "last" under [cascade]: then the last node is right, until '
                "ttamer label is used"
            )
        labels: list[str | None] = []
        for row, prompt in enumerate(self.prompts):
            try:
                labels.append(None if prompt.label is None else label_form(prompt.label, self.rule))
            except TraceError as error:
                raise TraceError(
                    f"prompt {row} (counting from 0): {error}; change it, or the comparison"
                ) from None
        return labels

    # Asking

    @asynccontextmanager
    async def opened(self, upstream: Ask | None) -> AsyncIterator[None]:
        """Open the connections to the nodes, and to what embeds texts."""
        async with open_session() as session:
            client = upstream or patient(session)
            names = {*self.asked, *(asked.node.verifier for asked in self.asked.values())}
            names |= set() if self.verdicts is None else {self.verdicts.judge.node}
            self.upstreams = {name: client(self.nodes[name]) for name in names if name}
            settings = embeddings_of(self.spec)
            if self.rule.kind == "embedding" and settings is not None:
                self.score = cosines(Vectors(self.paid, Client.of_embeddings(settings, session)))
            yield

    async def ask(self, keys: Iterable[str], names: Iterable[str] | None = None) -> None:
        """Ask nodes about prompts."""
        bodies = {key: self.bodies[key] for key in keys}
        names = self.asked if names is None else names
        calls = (self.asked[n].ask(bodies, partial(self._ask, n), self._report) for n in names)
        await asyncio.gather(*calls)

    async def ask_judge(self) -> None:
        """Ask the judge, if there is one, about each different answer."""
        if self.verdicts is not None:
            texts = {row: self._texts(row) for row in range(len(self.prompts))}
            judge = self.upstreams[self.verdicts.judge.node]
            await self.verdicts.ask(judge, texts, self._report)

    def _report(self) -> None:
        if self.progress is not None:
            asked = [
                *self.asked.values(),
                *([] if self.verdicts is None else [self.verdicts.asked]),
            ]
            failed = sum(len(node.failed) for node in asked)
            done = sum(len(node.answers) for node in asked) + failed
            self.progress(done, sum(node.total for node in asked), failed)

    def node(self, name: str) -> tuple[ModelNode, dict[str, PaidUpstream]]:
        """Return a node that is asked about one prompt, and what asks for it."""
        settings = self.nodes[name]
        upstreams = {
            asked: PaidUpstream(self.nodes[asked], self.upstreams.get(asked), self.paid)
            for asked in dict.fromkeys((name, settings.verifier or name))
        }
        verifier = None
        if judge := settings.verifier:
            verifier = ModelNode(self.nodes[judge], upstreams[judge], self.rule)
        comparer = None
        if self.score is not None and self.rule.threshold is not None:
            comparer = Comparer(self.rule, self.score)
        node = ModelNode(settings, upstreams[name], self.rule, comparer=comparer, verifier=verifier)
        return node, upstreams

    async def _ask(self, name: str, body: Mapping[str, Any]) -> Answer:
        node, upstreams = self.node(name)
        work = Work(dict(body))
        try:
            reply = await node.ask(work)
        except UpstreamFailed as error:
            if error.kind != "garbage":  # what came before, such as the answer to be verified
                for upstream in upstreams.values():
                    upstream.keep()
            raise
        if not work.is_measured:
            raise Unreadable(
                "returned no usage, and its tokens have a price: give the node a cost in place of "
                "cost_per_token, or collect into another --cache"
            )
        for upstream in upstreams.values():
            upstream.keep()
        answer = reply.answer
        return Answer(answer.text, reply.confidence, answer.cost, answer.confidence_cost)

    # Comparing

    async def _comparer(
        self, rows: Sequence[AnsweredPrompt]
    ) -> tuple[Comparer, CascadeSpec, tuple[str, ...]]:
        """Return what compares answers, the cascade with its threshold, and notes on both."""
        score = self.score
        if score is None:
            return Comparer(self.rule), self.spec, ()
        try:
            threshold, notes = await threshold_of(self.rule, rows, score, self.pairs)
            # One call embeds what trace_of would ask for row by row.
            await score([pair for row in rows for pair in pairs_of(row)])  # a few large batches
        except UpstreamFailed as error:
            raise TraceError(f"texts cannot be embedded: {error}") from None
        table = {"kind": "embedding", "threshold": threshold}
        spec = dataclasses.replace(self.spec, serve={**self.spec.serve, "compare": table})
        return Comparer(Comparison("embedding", threshold=threshold), score), spec, notes

    # The trace

    @property
    def answered_rows(self) -> list[int]:
        """The prompts with an answer."""
        return [row for row in range(len(self.prompts)) if any(self._answers(row))]

    @property
    def spent(self) -> float:
        """What all answers cost together."""
        return sum(asked.spent for asked in self.asked.values())

    def written(self) -> Iterator[dict[str, Any]]:
        """Yield the prompts and answers of the trace's rows, for people to read."""
        for row in self.answered_rows:
            prompt, answers = self.prompts[row], self._answered(row).answers
            yield {"request": dict(prompt.body), "label": prompt.label, "answers": answers}

    def _answers(self, row: int) -> list[Answer | None]:
        return [asked.answers.get(self.keys[row]) for asked in self.asked.values()]

    def _texts(self, row: int) -> list[str | None]:
        return [None if answer is None else answer.text for answer in self._answers(row)]

    def _answered(self, row: int) -> AnsweredPrompt:
        texts = dict(zip(self.asked, self._texts(row), strict=True))
        question = question_text(self.prompts[row].body)
        return AnsweredPrompt(question, self.labels[row], texts)

    async def trace(
        self, left_out: Mapping[str, int] | None = None, notes: Sequence[str] = ()
    ) -> Trace:
        """Return the trace of the prompts with an answer."""
        rows = self.answered_rows
        comparer, spec, more = await self._comparer([self._answered(row) for row in rows])
        notes = [*more, *notes]
        for name, asked in self.asked.items():
            is_report = asked.node.confidence == "self-report"
            if is_report and not any(answer.confidence for answer in asked.answers.values()):
                notes.append(
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}"
                )
        if self.verdicts is not None:
            texts = {row: self._texts(row) for row in rows}
            notes.append(await self.verdicts.note(texts, self.labels, comparer))
        answered = [self._row(row) for row in rows]
        try:
            return await trace_of(spec, comparer, answered, left_out=left_out or {}, notes=notes)
        except TraceError as error:
            raise TraceError(
                f"{error}; the answers are kept, and are not asked for again"
            ) from None

    def _row(self, row: int) -> Answered:
        """Return a prompt with its answers, right as far as a judge says so."""
        answers: list[Answer | None] = []
        for node, answer in zip(self.spec.nodes, self._answers(row), strict=True):
            if answer is not None and node.verify_cost is not None:
                # Its confidence is another node, which the fit makes of it, with that cost.
                answer = answer._replace(cost=answer.cost - answer.confidence_cost)
            if answer is not None and self.verdicts is not None:
                answer = answer._replace(right=self.verdicts.right(row, answer.text))
            answers.append(answer)
        label = self.labels[row] if self.verdicts is None else None
        return Answered(question_text(self.prompts[row].body), label, answers)

    def gaps(self, on_error: OnBad) -> tuple[Counter[str], list[str]]:
        """Return why prompts are left out, and how many answers are missing in the others."""
        lacking = [self._lacking(row) for row in range(len(self.prompts))]
        reasons = Counter(chain.from_iterable(lacking))
        has_all = all(asked.answers for asked in self.asked.values())
        if reasons and (on_error == "refuse" or not has_all):
            lack = sum(map(bool, lacking))
            lacked = "an answer" if self.verdicts is None else "an answer or a verdict"
            listed = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
            raise TraceError(
                f"{lack} of {len(self.prompts)} prompts lack {lacked} ({listed}); fix the cause"
                f"{_hint(listed, self.prompts)} and run the same command again, which asks only "
                "these, or skip them with --skip-bad"
            )
        left_out, gaps = Counter[str](), Counter[str]()
        for row, why in enumerate(lacking):
            if any(self._answers(row)):
                gaps.update(why)
            else:
                left_out[why[0] if why else "the budget was spent"] += 1
        return left_out, [f"{counted(n, 'prompt')} with a gap: {why}" for why, n in gaps.items()]

    def _lacking(self, row: int) -> list[str]:
        """Return why a prompt lacks answers or verdicts; nothing where it has all."""
        asked = [(name, asked, self.keys[row]) for name, asked in self.asked.items()]
        if self.verdicts is not None:
            keys = self.verdicts.requests(row, self._texts(row))
            asked += [("the judge", self.verdicts.asked, key) for key in keys]
        return [*dict.fromkeys(f"{who} {of.failed[key]}" for who, of, key in asked
                               if key in of.failed)]  # fmt: skip


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
