"""From prompts to a trace: every node is asked about every prompt, and each call is paid for once.

What came back is kept at once (:mod:`ttamer.llm.paid`), so that the same command continues after an
interruption of any kind, and asks only what was not asked before. The answer, its confidence and
its cost are read from the kept response each time: another comparison, other prices, or another
confidence that reads the same response need no further calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ttamer._checks import counted, require_number
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.client import Client, UpstreamFailed, open_session
from ttamer.llm.compare import Comparer, Comparison, PairScore
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge, Verdicts
from ttamer.llm.likeness import embedding_score, threshold_of
from ttamer.llm.node import ModelNode, Upstream, Work
from ttamer.llm.paid import (
    Ask,
    Asked,
    PaidUpstream,
    Pretence,
    Store,
    key_of,
    key_of_body,
    patient,
)
from ttamer.llm.prompts import Answer, AnsweredPrompt, Prompt, check_label, trace_of, write_answers
from ttamer.llm.settings import CascadeSource, comparison_of, embeddings_of, read_nodes, spec_of
from ttamer.trace.trace import OnBad, Trace

Progress = Callable[[int, int, int], None]


class Collection:
    """The nodes, the prompts, and the answers so far; all is checked before anything is asked.

    With a ``log`` the prompts are those of its rows, and ``only`` some nodes are asked: the others
    have answered.
    """

    def __init__(
        self,
        cascade: CascadeSource,
        prompts: Sequence[Prompt],
        paid: str | os.PathLike[str],
        *,
        judge: Judge | None = None,
        only: Sequence[str] = (),
        log: Trace | None = None,
        progress: Progress | None = None,
        is_dry: bool = False,
    ) -> None:
        self.spec, self.log, self.progress = spec_of(cascade), log, progress
        self.nodes, self.rule = read_nodes(self.spec), comparison_of(self.spec)
        self.prompts, self.paid = prompts, Store(paid, is_dry=is_dry)
        self._questions = [question_text(prompt.body) for prompt in prompts]
        self._logged: Sequence[Mapping[str, Answer | None]] = [{}] * len(prompts)
        if log is not None:
            self._logged = _answers_of(log, is_judged=judge is not None)
        if is_dry:  # no response has the field
            self.nodes = {
                name: replace(node, confidence="none") if node.field else node
                for name, node in self.nodes.items()
            }
        else:
            self._check(has_judge=judge is not None)
        self.verdicts = None
        if judge is not None:
            sees_labels = all(prompt.label is not None for prompt in prompts)
            self.verdicts = Verdicts(judge, self.nodes, self.paid, sees_labels=sees_labels)
        self.keys = [key_of_body(prompt.body) for prompt in prompts]
        self.bodies = dict(zip(self.keys, (prompt.body for prompt in prompts), strict=True))
        self.asked = {name: Asked(self.nodes[name]) for name in only or self.spec.names}
        self.upstreams: dict[str, Upstream] = {}
        self.score: PairScore | None = None

    def _check(self, *, has_judge: bool) -> None:
        """Refuse answers that could not be compared, and labels that no answer can equal."""
        labels = [prompt.label for prompt in self.prompts]
        if self.rule.kind == "embedding":
            fits = self.rule.threshold is None
            if embeddings_of(self.spec) is None:
                raise ArgumentError(
                    '[serve]: compare = "embedding" needs the table [serve.embeddings]'
                )
            if fits and any(node.confidence == "agreement" for node in self.nodes.values()):
                raise ArgumentError(
                    'confidence = "agreement" compares answers while they are collected, and '
                    'compare = "embedding" has no threshold yet; write one'
                )
            if fits and not any(labels):
                raise ArgumentError(
                    'compare = "embedding" has no threshold: write {kind = "embedding", threshold '
                    "= ...}, or let it be fitted to labels"
                )
        if not has_judge and not any(labels) and self.log is None and self.spec.target == "label":
            raise TraceError(
                "the prompts have no reference answers; give each a label, name a judge (--judge "
                'NODE), or set target = "last" under [cascade]: then the last node is right, until '
                "ttamer label is used"
            )
        for row, label in enumerate(labels):
            try:
                check_label(label, self.rule)
            except TraceError as error:
                raise TraceError(
                    f"prompt {row} (counting from 0): {error}; change it, or the comparison"
                ) from None

    # Asking

    @asynccontextmanager
    async def opened(self, upstream: Ask | None) -> AsyncIterator[None]:
        """Open the connections to the nodes, and to what embeds texts."""
        async with open_session() as session:
            client = upstream or patient(session)
            self.upstreams = {name: client(node) for name, node in self.nodes.items()}
            settings = embeddings_of(self.spec)
            if self.rule.kind == "embedding" and settings is not None:
                self.score = embedding_score(self.paid, Client.of_embeddings(settings, session))
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
            judge = self.upstreams[self.verdicts.judge.node]
            await self.verdicts.ask(judge, self._new_rows(), self._report)

    def _report(self) -> None:
        if self.progress is not None:
            asked = [*self.asked.values(), *([self.verdicts.asked] if self.verdicts else ())]
            failed = sum(len(node.failed) for node in asked)
            done, total = (
                sum(numbers)
                for numbers in zip(*((node.done, node.total) for node in asked), strict=True)
            )
            self.progress(done, total, failed)

    async def _ask(self, name: str, body: Mapping[str, Any]) -> Answer:
        settings = self.nodes[name]
        upstreams = {
            asked: PaidUpstream(self.nodes[asked], self.upstreams[asked], self.paid)
            for asked in dict.fromkeys((name, settings.verifier or name))
        }
        verifier = comparer = None
        if judge := settings.verifier:
            verifier = ModelNode(self.nodes[judge], upstreams[judge], self.rule)
        if self.score is not None and self.rule.threshold is not None:
            comparer = Comparer(self.rule, self.score)
        node = ModelNode(settings, upstreams[name], self.rule, comparer=comparer, verifier=verifier)
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

    # The rows

    @property
    def spent(self) -> float:
        """What all answers and verdicts cost together."""
        verdicts = 0.0 if self.verdicts is None else self.verdicts.asked.spent
        return verdicts + sum(asked.spent for asked in self.asked.values())

    def _new_rows(self) -> list[AnsweredPrompt]:
        """Return the prompts with the new answers."""
        return [
            AnsweredPrompt(
                question, prompt.label, {name: self._answer(name, key) for name in self.asked}
            )
            for question, prompt, key in zip(self._questions, self.prompts, self.keys, strict=True)
        ]

    def _answer(self, name: str, key: str) -> Answer | None:
        answer = self.asked[name].answers.get(key)
        if answer is None or self.spec.nodes[self.spec.index_of(name)].verify_cost is None:
            return answer
        # Its confidence is another node, which the fit makes of it, with that cost.
        return answer._replace(cost=answer.cost - answer.confidence_cost)

    def rows(self) -> list[AnsweredPrompt]:
        """Return the prompts with all answers, right as far as a judge says so."""
        rows = self._new_rows() if self.verdicts is None else self._judged()
        return [
            dataclasses.replace(row, answers={**logged, **row.answers})
            for row, logged in zip(rows, self._logged, strict=True)
            if any(row.answers.values()) or self.log is not None
        ]

    def _judged(self) -> list[AnsweredPrompt]:
        assert self.verdicts is not None  # noqa: S101 - asked before
        return [self.verdicts.judged(row) for row in self._new_rows()]

    async def trace(self, **facts: Any) -> Trace:
        """Return the trace of the answers so far."""
        rows, spec, rule = self.rows(), self.spec, self.rule
        notes: list[str] = []
        if self.score is not None:
            try:
                threshold, notes = await threshold_of(rule, rows, self.score)
            except UpstreamFailed as error:
                raise TraceError(f"texts cannot be embedded: {error}") from None
            table = {"kind": "embedding", "threshold": threshold}
            spec = dataclasses.replace(spec, serve={**spec.serve, "compare": table})
            rule = Comparison("embedding", threshold=threshold)
        comparer = Comparer(rule, self.score)
        notes += facts.pop("notes", ())
        for name, asked in self.asked.items():
            is_report = asked.node.confidence == "self-report"
            if is_report and not any(answer.confidence for answer in asked.answers.values()):
                notes.append(
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}"
                )
        if self.verdicts is not None:  # in place of the labels
            notes.append(await self.verdicts.note(self._judged(), comparer))
            rows = [dataclasses.replace(row, reference=None) for row in rows]
        try:
            trace = await trace_of(spec, comparer, rows, notes=notes, **facts)
        except TraceError as error:
            raise TraceError(
                f"{error}; the answers are kept, and are not asked for again"
            ) from None
        return trace if self.log is None else _with_columns_of(self.log, trace)

    def gaps(self, on_error: OnBad) -> dict[str, Any]:
        """Return why prompts are left out, and notes on answers that others lack."""
        rows = self._new_rows()
        failed = [self._reasons(row, "failed") for row in zip(rows, self.keys, strict=True)]
        reasons = Counter(chain.from_iterable(failed))
        has_all = all(asked.answers for asked in self.asked.values())
        if reasons and (on_error == "refuse" or not has_all):
            lacked = "an answer" if self.verdicts is None else "an answer or a verdict"
            listed = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
            raise TraceError(
                f"{sum(map(bool, failed))} of {len(rows)} prompts lack {lacked} ({listed}); fix "
                f"the cause{_hint(listed, self.prompts)} and run the same command again, which "
                "asks only these, or skip them with --skip-bad"
            )
        left_out, gaps = Counter[str](), Counter[str]()
        for row, key, why in zip(rows, self.keys, failed, strict=True):
            why += self._reasons((row, key), "ineligible")
            if any(row.answers.values()) or self.log is not None:
                gaps.update(why)
            else:
                left_out[why[0] if why else "the budget was spent"] += 1
        notes = [f"{counted(n, 'prompt')} with a gap: {why}" for why, n in gaps.items()]
        return {"left_out": left_out, "notes": notes}

    def _reasons(self, asked: tuple[AnsweredPrompt, str], part: str) -> list[str]:
        """Return why a prompt lacks answers or verdicts; nothing where it has all."""
        row, key = asked
        keys = [(name, getattr(node, part), key) for name, node in self.asked.items()]
        if self.verdicts is not None:
            keys += [
                ("the judge", getattr(self.verdicts.asked, part), key_of_body(request))
                for request in self.verdicts.requests(row).values()
            ]
        return [*dict.fromkeys(f"{who} {why[key]}" for who, why, key in keys if key in why)]


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


# What a log has


def _texts(trace: Trace, codes: NDArray[np.integer]) -> NDArray[np.object_]:
    """Return the classes of codes, ``None`` for -1."""
    texts: NDArray[np.object_] = np.array([*trace.classes, None], object)[codes]
    return texts


def _answers_of(log: Trace, *, is_judged: bool) -> list[dict[str, Answer | None]]:
    """Return the answers of a log by node, right as far as the log itself says so."""
    right = np.full(log.confidence.shape, math.nan)
    if log.raw_loss is not None or log.correct is not None or is_judged:
        with suppress(TraceError):  # nothing is known
            right = 1 - log.loss
    prediction = np.full(right.shape, -1) if log.prediction is None else log.prediction
    columns = [_texts(log, prediction), log.confidence, log.costs, right]
    rows = np.stack([np.asarray(column, object) for column in columns], axis=2).tolist()
    return [
        {
            name: None
            if math.isnan(sure)
            else Answer(text or "", sure, cost, right=verdict, is_form=True)
            for name, (text, sure, cost, verdict) in zip(log.names, row, strict=True)
        }
        for row in rows
    ]


def _with_columns_of(log: Trace, trace: Trace) -> Trace:
    """Return a trace of a log's rows with what else the log has."""
    columns: dict[str, Any] = {}
    for field in ("entropy", "latency", "margin"):
        if (values := getattr(log, field)) is not None:
            known = dict(zip(log.names, values.T, strict=True))
            unknown = np.full(len(log), math.nan)
            columns[field] = np.column_stack([known.get(name, unknown) for name in trace.names])
    return dataclasses.replace(
        trace, prompt=log.prompt, inputs=log.inputs, group=log.group, groups=log.groups, **columns
    )


def prompts_of(log: Trace, request: Mapping[str, Any] | None = None) -> list[Prompt]:
    """Return the prompts of a log, with its labels; ``request`` is sent with each.

    Raises:
        ArgumentError: If the log has no prompts as text.
    """
    texts = [] if log.prompt is None else log.prompt.tolist()
    if not texts or any(text is None or text.startswith("#ttamer-prompt:") for text in texts):
        raise ArgumentError("the log has no prompts: they are its column prompt, as text")
    labels = [None] * len(log) if log.label is None else _texts(log, log.label).tolist()
    return [
        Prompt({**(request or {}), "messages": [{"role": "user", "content": text}]}, label)
        for text, label in zip(texts, labels, strict=True)
    ]


# What users call


def collect_prompts(
    cascade: CascadeSource,
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    on_error: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    budget: float | None = None,
    upstream: Ask | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    ::

        prompts = read_prompts("prompts.jsonl")
        trace = collect_prompts("cascade.toml", prompts, "answers.sqlite", budget=20.0)

    Args:
        cascade: The cascade with its upstreams, or the path of its ``cascade.toml``.
        prompts: The prompts, such as :func:`read_prompts` returns.
        paid: A file that keeps the responses, so that no call is made twice (SQLite, mode 600).
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" leaves a gap there, and drops and counts prompts without any answer.
        answers: A file for the prompts and the answers of the trace's rows, as JSON lines (mode
            600).
        judge: A node that decides how right answers are, instead of the comparison with labels;
            where there are labels, ``notes`` has how often both agree. Where only some prompts
            have one, the judge sees none of them, so that its agreement holds for the others too.
            Verdicts are not part of the nodes' costs.
        budget: The most that answers and verdicts together may cost, in the cascade's units, those
            of former runs included: first every node is asked about a random core of the prompts,
            then those nodes that the frontier's uncertainty falls by most. ``notes`` says what more
            is worth.
        upstream: From a node's settings to what is asked in place of its server.
        progress: Called with the numbers of answers and verdicts done, total and failed.

    Returns:
        The trace, with a cost per row where calls differ in cost. With ``compare = "embedding"``
        its cascade has the threshold, which is fitted to labels where there is none.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If labels are missing, a prompt lacks an answer, or the file of responses cannot
            be used.
    """
    run = Collection(cascade, prompts, paid, judge=judge, progress=progress)
    return _collected(run, on_error, answers, budget, upstream)


def collect_more(
    cascade: CascadeSource,
    log: Trace,
    only: Sequence[str],
    paid: str | os.PathLike[str],
    *,
    request: Mapping[str, Any] | None = None,
    answers: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    budget: float | None = None,
    upstream: Ask | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Ask some nodes about the prompts of a log, and return the log with their answers.

    ::

        log = Trace.read("log.parquet")
        trace = collect_more("cascade.toml", log, ["new"], "new.sqlite", budget=5.0)

    Args:
        cascade: The cascade with the nodes of the log and those that are new.
        log: Rows with prompts; its answers must have been compared by the same rule. What it says
            of an answer holds for new ones that equal it.
        only: The nodes to ask.
        paid: As for :func:`collect_prompts`.
        request: Fields sent with every prompt.
        answers: As there.
        judge: As there; it decides about the new answers.
        budget: As there.
        upstream: As there.
        progress: As there.

    Returns:
        The rows of the log in their order; gaps where a new node was not asked.

    Raises:
        ArgumentError: If a node is in neither, or the log has no prompts.
        TraceError: As for :func:`collect_prompts`.
    """
    spec = spec_of(cascade)
    for name in only:
        spec.index_of(name)
    if judge is not None and judge.graded != (log.raw_loss is not None):
        raise ArgumentError("a judge gives scores (graded) where the log has them, and only there")
    if lacking := [name for name in spec.names if name not in (*log.names, *only)]:
        raise ArgumentError(f"{lacking[0]!r} is neither in the log nor among those to be asked")
    if not only:
        raise ArgumentError("name the nodes to ask", param="only")
    prompts = prompts_of(log, request)
    run = Collection(spec, prompts, paid, judge=judge, only=only, log=log, progress=progress)
    return _collected(run, "skip", answers, budget, upstream)


def _collected(
    run: Collection,
    on_error: OnBad,
    answers: str | os.PathLike[str] | None,
    budget: float | None,
    upstream: Ask | None,
) -> Trace:
    if budget is not None:
        require_number(budget, "budget")

    async def collected() -> Trace:
        async with run.opened(upstream):
            await (run.ask(run.keys) if budget is None else _spend(run, budget))
            await run.ask_judge()
            unit = 0.0 if run.log is None or run.log.raw_loss is None else run.log.unit
            return await run.trace(unit=unit, **run.gaps(on_error))

    with run.paid:
        trace = asyncio.run(collected())
    if budget is not None:
        notes = _worth(run, trace, budget)
        trace = dataclasses.replace(trace, notes=(*trace.notes, *notes))
    if answers is not None:
        write_answers(answers, run.rows())
    return trace


# Budgets


async def _spend(run: Collection, budget: float, core: int = 100) -> None:
    """Ask about prompts in random order, the same in every run, until the budget is spent.

    First every node is asked about a core of at least ``core`` prompts; then what a fit to it says
    is worth most.
    """
    order, names = sorted(run.bodies, key=lambda key: key_of("order", key)), [*run.asked]
    spending = _Spending(run, budget, await _most_of(run, order[0]))
    if (price := spending.price(names)) > budget:
        raise ArgumentError(
            f"budget is {budget:g}, and one prompt may cost {price:g} by all nodes together",
            param="budget",
        )
    # The first ones say what a prompt costs. Half of the budget goes to complete rows in any case:
    # a fit to a small core errs.
    for count, share in ((1, 1.0), (core // 5, 1.0), (core, 1.0), (len(order), 0.5)):
        await spending.ask(order[:count], names, share)
    if run.spent >= budget:
        return
    try:
        trace = _part(run, await run.trace())
        plan = plan_calls(fit(trace, inputs=False), trace, budget - run.spent)
    except TTamerError:  # too little is known, or what is right: complete rows are worth most
        await spending.ask(order, names)
        return
    complete = len(run.asked[names[0]].answers) + plan.complete
    await spending.ask(order[:complete], names)
    for name, count in (*plan.alone.items(), *dict.fromkeys(names, len(order)).items()):
        lacking = [key for key in order if run.asked[name].is_open(key)]
        await spending.ask(lacking[:count], [name])  # the rest completes rows


class _Spending(NamedTuple):
    """A budget, and what a call of each node costs at most, its verdict included."""

    run: Collection
    budget: float
    most: Mapping[str, float]

    def price(self, names: Iterable[str]) -> float:
        """Return what asking nodes about a prompt is expected to cost: as so far, or the most."""
        verdicts, price = self.run.verdicts, 1e-12  # never 0: it divides a budget
        answers = sum(len(self.run.asked[name].answers) for name in self.run.asked)
        for name in names:
            asked = self.run.asked[name]
            if not asked.answers:
                price += self.most[name]
                continue
            price += asked.spent / len(asked.answers)
            price += 0.0 if verdicts is None else verdicts.asked.spent / answers
        return price

    async def ask(self, keys: Sequence[str], names: Sequence[str], share: float = 1.0) -> None:
        """Ask nodes about those of some prompts that a share of the budget pays for."""
        keys = [key for key in keys if any(self.run.asked[name].is_open(key) for name in names)]
        left = (share * self.budget - self.run.spent) / self.price(names) * (1 + 1e-9)
        if affordable := keys[: max(0, int(left))]:
            await self.run.ask(affordable, names)
            await self.run.ask_judge()


async def _most_of(run: Collection, key: str) -> dict[str, float]:
    """Return what an answer of each node to a prompt may cost, its verdict included."""
    judge = None if run.verdicts is None else run.verdicts.judge
    dry = Collection(
        run.spec, [Prompt(run.bodies[key])], ":memory:", judge=judge, only=[*run.asked], is_dry=True
    )
    with dry.paid:
        await _planned(dry)
    verdicts = 0.0 if dry.verdicts is None else dry.verdicts.asked.spent / len(dry.asked)
    return {name: max(asked.spent, asked.node.cost) + verdicts for name, asked in dry.asked.items()}


def _part(run: Collection, trace: Trace) -> Trace:
    """Return the part of a trace that was asked, and not logged."""
    part = trace if run.log is None else trace.restrict([*run.asked])
    return part.take(np.flatnonzero(part.answered.any(axis=1)))


def _worth(run: Collection, trace: Trace, budget: float) -> list[str]:
    """Return what was spent, and what more is worth."""
    asked = counted(max(len(node.answers) for node in run.asked.values()), "prompt")
    notes = [f"{run.spent:g} of {budget:g} spent on {asked}"]
    with suppress(TTamerError):
        trace = _part(run, trace)
        plan = plan_calls(fit(trace, inputs=False), trace, budget / 10)
        before, after = (100 * 1.96 * error for error in (plan.error, plan.error_after))
        notes.append(
            f"the errors of policies are known to {before:.2g} points; {plan.cost:g} more would "
            f"make that {after:.2g}"
        )
    return notes


# Dry runs


@dataclass(frozen=True)
class CollectionPlan:
    """What a collection would ask, and what that would cost at most."""

    calls: Mapping[str, int]
    """The calls that are not paid for yet, by node; with a judge also its verdicts, at most."""
    cost: Mapping[str, float]
    """In the cascade's units: prompts as long as their bytes say, answers as long as they may
    be."""
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
    cascade: CascadeSource,
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    judge: Judge | None = None,
) -> CollectionPlan:
    """Return what :func:`collect_prompts` would ask, without asking anything.

    >>> import tempfile
    >>> from ttamer.cascade import CascadeSpec
    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 2, upstream = 'http://h/v1'}]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], f"{folder}/paid"))
    a: 1 call, at most 2
    in all at most 2; 0 responses are kept

    Args:
        cascade: As for :func:`collect_prompts`.
        prompts: The prompts.
        paid: The file of responses.
        only: The nodes to ask; by default all.
        judge: The node that judges, if one does.

    Returns:
        The calls of each node, and their cost at most.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If the file of responses cannot be used.
    """
    run = Collection(cascade, prompts, paid, only=only, judge=judge, is_dry=True)
    with run.paid:
        return asyncio.run(_planned(run))


async def _planned(run: Collection) -> CollectionPlan:
    """Run a collection dry: with stand-ins that answer as long as they may."""
    costs: dict[str, list[float]] = {name: [] for name in run.asked}
    async with run.opened(lambda node: Pretence(node, costs.setdefault(node.name, []))):
        await run.ask(run.keys)
        if run.verdicts is not None:
            node = run.verdicts.asked.node
            verdicts = costs[f"verdicts of {node.name}"] = []
            run.upstreams[node.name] = Pretence(node, verdicts)
            await run.ask_judge()
    costs = {name: calls for name, calls in costs.items() if calls or name in run.asked}
    calls = {name: len(parts) for name, parts in costs.items()}
    return CollectionPlan(calls, {n: sum(parts) for n, parts in costs.items()}, len(run.paid))
