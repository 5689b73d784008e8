"""From prompts to a trace: every node is asked about every prompt, and each call is paid for once.

Each node is called by as many workers as its ``max_concurrent`` allows. What came back is kept at
once (:mod:`ttamer.llm.paid`), so that the same command continues after an interruption of any kind,
and asks only what was not asked before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import aiohttp
import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_number
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.answered import Answer, Answered, trace_of
from ttamer.llm.client import Client, UpstreamFailed, open_session
from ttamer.llm.compare import Comparer, Comparison, label_form
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge
from ttamer.llm.likeness import Likeness, Vectors, cosines, pairs_of, vectors_from
from ttamer.llm.node import BYTES_PER_TOKEN, ModelNode, Upstream, Usage, Work, call_cost
from ttamer.llm.paid import PaidUpstream, Store, key_of
from ttamer.llm.prompts import AnsweredPrompt, Endpoint, Prompt, write_answers
from ttamer.llm.settings import NodeSettings, comparison_of, embeddings_of, read_nodes
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import OnBad, Trace

T = TypeVar("T")
Ask = Callable[[NodeSettings], Upstream]
"""From a node's settings to what is asked."""


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
    budget: float | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    Args:
        cascade: The cascade with its upstreams, or the path of its ``cascade.toml``.
        prompts: The prompts, such as :func:`read_prompts` returns.
        paid: A file that keeps the responses, so that no call is made twice (SQLite, mode 600).
        endpoint: The endpoint of the upstreams.
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" leaves a gap there, and drops and counts prompts without any answer.
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
        budget: The most that all answers together may cost, in the cascade's units, those of former
            runs included: first every node is asked about a random core of the prompts, then those
            nodes that the frontier's uncertainty falls by most. ``notes`` says what more is worth.

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
    run = _Collection.of(cascade, prompts, paid, endpoint, judge, likeness)
    run.progress = progress
    if budget is not None:
        require_number(budget, "budget")
        run.budget = budget
    with run.paid:
        return _run(run.all(upstream, on_error, answers))


def _run(work: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await work

    try:
        return asyncio.run(awaited())
    except ExceptionGroup as errors:  # of several workers: report the first
        raise errors.exceptions[0] from None


def judge_answers(
    trace: Trace,
    rows: Sequence[AnsweredPrompt],
    cascade: CascadeSpec | str | os.PathLike[str],
    judge: Judge,
    paid: str | os.PathLike[str],
    *,
    upstream: Ask | None = None,
) -> Trace:
    """Let a node decide which answers of a trace are right, such as of an imported log.

    ::

        rows = read_answers("trace.parquet.answers.jsonl", trace.names)
        judged = judge_answers(trace, rows, "cascade.toml", Judge("large"), "verdicts.sqlite")

    Args:
        trace: The answers.
        rows: The prompt and the answers of each row.
        cascade: A cascade with the upstream of the judge and the nodes of the trace.
        judge: The node that judges.
        paid: A file that keeps the verdicts, so that none is paid for twice.
        upstream: From a node's settings to what is asked in place of its server.

    Returns:
        The trace, with what is right by the verdicts; ``notes`` has what they cost, and how often
        they agree with the reference answers.

    Raises:
        TraceError: If a verdict is missing, or the judge agrees with too few labels.
    """
    require_trace(trace, "a judge")
    if len(rows) != len(trace):
        raise TraceError(f"there are {len(trace)} rows, and prompts for {len(rows)}")
    prompts = [Prompt({"prompt": row.prompt, "row": number}, row.reference or None)
               for number, row in enumerate(rows)]  # fmt: skip
    run = _Collection.of(cascade, prompts, paid, "chat/completions", judge)
    for key, row in zip(run.keys, rows, strict=True):
        for name, text in row.answers.items():
            if text is not None:
                run.answers[name][key] = Answer(text, 0.0, 0.0)
    with run.paid:
        right, note = _run(run.judged(judge, upstream))
    columns = right[:, [run.spec.index_of(name) for name in trace.names]]
    facts: dict[str, Any] = {"correct": columns, "raw_loss": None}
    spec = dataclasses.replace(trace.spec, target="label")
    if judge.graded:
        facts = {"correct": None, "raw_loss": 1 - columns}
        spec = dataclasses.replace(spec, max_loss=1.0)
    return dataclasses.replace(trace, spec=spec, label=None, notes=(*trace.notes, note), **facts)


def collect_more(
    cascade: CascadeSpec | str | os.PathLike[str],
    log: Trace,
    only: Sequence[str],
    paid: str | os.PathLike[str],
    *,
    request: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trace:
    """Ask some nodes about the prompts of a log, and return the log with their answers.

    ::

        log = Trace.read("log.parquet")
        trace = collect_more("cascade.toml", log, ["new"], "new.sqlite", budget=5.0)

    Args:
        cascade: The cascade with the nodes of the log and those that are new.
        log: Rows with prompts; its answers are compared with the new ones as they are, so they must
            have been compared by the same rule.
        only: The nodes to ask.
        paid: As for :func:`collect_prompts`.
        request: Fields sent with every prompt.
        options: Those of :func:`collect_prompts`, such as ``budget``.

    Returns:
        The rows of the log in their order; gaps where a new node was not asked.

    Raises:
        ArgumentError: If a node is in neither, or the log has no prompts.
        TraceError: As for :func:`collect_prompts`.
    """
    spec = _spec(cascade)
    for name in only:
        spec.index_of(name)
    if lacking := [name for name in spec.names if name not in (*log.names, *only)]:
        raise ArgumentError(f"{lacking[0]!r} is neither in the log nor among those to be asked")
    prompts = prompts_of(log, request)
    nodes = tuple(node for node in spec.nodes if node.name in only)
    target = spec.target if log.label is not None else "last"  # nothing to compare with here
    part = dataclasses.replace(spec, nodes=nodes, target=target)
    new = collect_prompts(part, prompts, paid, on_error="skip", **options)
    return _joined(spec, log, new)


def prompts_of(log: Trace, request: Mapping[str, Any] | None = None) -> list[Prompt]:
    """Return the prompts of a log, with its labels.

    Args:
        log: The rows.
        request: Fields sent with every prompt.

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


def _texts(trace: Trace, codes: NDArray[np.integer]) -> NDArray[np.object_]:
    """Return the classes of codes, ``None`` for -1."""
    texts: NDArray[np.object_] = np.array([*trace.classes, None], object)[codes]
    return texts


def _joined(spec: CascadeSpec, log: Trace, new: Trace) -> Trace:
    """Return a log with the columns of further nodes, whose rows are found by their prompts."""
    prompts, answered = cast("Any", log.prompt).tolist(), cast("Any", new.prompt).tolist()
    row_of = {text: row for row, text in enumerate(answered)}
    rows = np.array([row_of.get(text, -1) for text in prompts])

    def table(old: Any, asked: Any, missing: Any) -> Any:
        columns = [np.where(rows < 0, missing, asked[rows, new.names.index(name)])
                   if name in new.names else old[:, log.names.index(name)]
                   for name in spec.names]  # fmt: skip
        return np.column_stack(columns)

    old, asked = (_texts(trace, cast("Any", trace.prediction)) for trace in (log, new))
    prediction = table(old, asked, None)
    facts: dict[str, Any] = {}
    if log.label is not None:
        facts["label"] = _texts(log, log.label).tolist()
    if log.correct is not None:
        known = np.where(log.correct < 0, np.nan, log.correct)
        correct = table(known, np.full(new.confidence.shape, np.nan), np.nan)
        is_new = np.array([name in new.names for name in spec.names])
        for node, other in product(np.flatnonzero(is_new), np.flatnonzero(~is_new)):
            answers = prediction[:, node]  # one that is the same is as right
            is_same = (answers == prediction[:, other]) & answers.astype(bool)
            is_known = is_same & ~np.isnan(correct[:, other])
            correct[is_known, node] = correct[is_known, other]
        facts["correct"] = correct
    return Trace.from_arrays(
        spec,
        table(log.confidence, new.confidence, np.nan),
        prediction=prediction.tolist(),
        cost=table(log.costs, new.costs, np.nan),
        prompt=log.prompt,
        notes=new.notes,
        inputs=log.inputs,
        **facts,
    )


@dataclass(frozen=True)
class CollectionPlan:
    """What a collection would ask, and what that would cost at most."""

    calls: Mapping[str, int]
    """The calls of each node that are not paid for yet."""
    cost: Mapping[str, float]
    """By node, in the cascade's units: prompts as long as their bytes say, answers as long as they
    may be."""
    kept: int
    """The responses that are there."""
    verdicts: int = 0
    """The calls of a judge, if all answers differ."""
    verdict_cost: float = 0.0

    def __str__(self) -> str:
        parts = [
            f"{name}: {counted(count, 'call', ',')}, at most {self.cost[name]:g}"
            for name, count in self.calls.items()
        ]
        if self.verdicts:
            parts.append(
                f"verdicts: at most {counted(self.verdicts, 'call', ',')}, at most "
                f"{self.verdict_cost:g}"
            )
        total = sum(self.cost.values()) + self.verdict_cost
        return "\n".join([*parts, f"in all at most {total:g}; {self.kept} responses are kept"])


def plan_collection(
    cascade: CascadeSpec | str | os.PathLike[str],
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    endpoint: Endpoint = "chat/completions",
    only: Sequence[str] = (),
    judge: Judge | None = None,
) -> CollectionPlan:
    """Return what :func:`collect_prompts` would ask, without asking anything.

    Args:
        cascade: As for :func:`collect_prompts`.
        prompts: The prompts.
        paid: The file of responses.
        endpoint: The endpoint of the upstreams.
        only: The nodes to ask; by default all.
        judge: The node that judges, if one does.

    Returns:
        The calls of each node, and their cost at most.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If the file of responses cannot be used.

    >>> import tempfile
    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 2, upstream = 'http://h/v1'}]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], f"{folder}/paid"))
    a: 1 call, at most 2
    in all at most 2; 0 responses are kept
    """
    file = paid if Path(paid).exists() else ":memory:"  # nothing is left behind
    spec = dataclasses.replace(_spec(cascade), target="last")  # labels may be missing
    run = _Collection.of(spec, prompts, file, endpoint, judge)
    with run.paid:
        return asyncio.run(run.plan(only or [*run.nodes]))


def _spec(cascade: CascadeSpec | str | os.PathLike[str]) -> CascadeSpec:
    return cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)


@dataclass
class _Collection:
    """The calls to make, the answers, and the failures."""

    spec: CascadeSpec
    nodes: dict[str, NodeSettings]
    rule: Comparison
    prompts: Sequence[Prompt]
    paid: Store
    path: str
    judge: Judge | None
    likeness: Likeness
    progress: Callable[[int, int, int], None] | None = None
    budget: float | None = None
    core: ClassVar = 100  # prompts of a budget that every node is asked about first, at least
    max_failures: ClassVar = 10  # in a row, after which a node is not called any more
    workers: ClassVar = 8  # of a node without max_concurrent
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    vectors: Vectors | None = None
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why there is no answer, by node and prompt; the judge's are under the empty name."""
    verdicts: dict[str, Answer] = field(default_factory=dict)
    """By request to the judge."""
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
        likeness: Likeness | None = None,
    ) -> _Collection:
        """Check what is asked of a collection, before anything is asked."""
        spec, likeness = _spec(cascade), likeness or Likeness()
        nodes, rule = read_nodes(spec), comparison_of(spec)
        if likeness != Likeness() or rule.kind == "embedding":
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
        store = Store(paid)
        run = cls(spec, nodes, rule, prompts, store, f"/{endpoint}", judge, likeness)
        run._check_labels()
        return run

    def __post_init__(self) -> None:
        self.keys = [_key(prompt.body) for prompt in self.prompts]
        self.bodies = dict(zip(self.keys, (prompt.body for prompt in self.prompts), strict=True))
        self.answers: dict[str, dict[str, Answer]] = {name: {} for name in self.nodes}

    def _check_labels(self) -> None:
        count = sum(prompt.label is not None for prompt in self.prompts)
        if self.judge is None and not count and self.spec.target == "label":
            raise TraceError(
                "the prompts have no reference answers; give each a label, name a judge (--judge "
                'NODE), or set target = "last" under [cascade]: then the last node is right, until '
                "ttamer label is used"
            )
        if self.judge is None and 0 < count < len(self.prompts):
            row = next(row for row, prompt in enumerate(self.prompts) if prompt.label is None)
            raise TraceError(
                f"prompt {row} (counting from 0) has no label, and {count} of {len(self.prompts)} "
                "have one; label all, or name a judge (--judge NODE)"
            )
        _ = self.labels

    @cached_property
    def labels(self) -> list[str | None]:
        """The reference answers in the form that is compared."""
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

    async def all(
        self, upstream: Ask | None, on_error: OnBad, path: str | os.PathLike[str] | None
    ) -> Trace:
        """Ask whatever was not asked before, and return the trace."""
        async with open_session() as session:
            self._open(upstream, session, self.nodes)
            if self.rule.kind == "embedding":
                self._open_vectors(session)
            if self.budget is None:
                await self._ask_nodes(self.keys, tuple(self.nodes))
            else:
                await self._spend(self.budget)
            if self.judge is not None:
                await self._ask_judge(self.judge)
            rows = [row for row in range(len(self.prompts)) if any(self._row(row).answers)]
            trace = await self._trace(rows, *self._gaps(rows, on_error))
            if self.budget is not None:
                trace = self._with_worth(trace, self.budget)
        if path is not None:
            write_answers(path, (
                {
                    "request": dict(self.prompts[row].body),
                    "label": self.prompts[row].label,
                    "answers": self._answered(row).answers,
                }
                for row in rows
            ))  # fmt: skip
        return trace

    def _open(
        self, upstream: Ask | None, session: aiohttp.ClientSession, names: Iterable[str]
    ) -> None:
        upstream = upstream or partial(_patient, session=session)
        self.upstreams = {name: upstream(self.nodes[name]) for name in names}

    async def plan(self, names: Sequence[str]) -> CollectionPlan:
        """Return what would be asked."""
        calls, cost = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)

        def add(name: str, request: Mapping[str, Any]) -> None:
            calls[name] = calls.get(name, 0) + 1
            cost[name] = cost.get(name, 0.0) + _cost_at_most(self.nodes[name], request)

        for name in names:
            for body in self.bodies.values():
                node, upstreams = self._node(name)
                with suppress(UpstreamFailed):
                    await node.ask(Work(dict(body), path=self.path))
                verifier = node.settings.verifier
                for asked, upstream in upstreams.items():
                    for request in upstream.missing:
                        add(asked, request)
                        if verifier and asked == name:  # its verdict will be asked for
                            add(verifier, request)
        requests = []
        if self.judge is not None:
            longest = [" " * int(BYTES_PER_TOKEN * _tokens(p.body)) for p in self.prompts]
            requests = [self._request(self.judge, row, text) for row, text in enumerate(longest)]
        verdict_cost = sum(
            len(names) * _cost_at_most(self.nodes[self.judge.node], request)
            for request in requests if self.judge is not None
        )  # fmt: skip
        return CollectionPlan(calls, cost, len(self.paid), len(names) * len(requests), verdict_cost)

    def _node(self, name: str) -> tuple[ModelNode, dict[str, PaidUpstream]]:
        """Return a node that is asked about one prompt, and what asks for it."""
        settings = self.nodes[name]
        upstreams = {
            asked: PaidUpstream(self.nodes[asked], self.upstreams.get(asked), self.paid)
            for asked in dict.fromkeys((name, settings.verifier or name))
        }
        verifier = None
        if settings.verifier:
            verifier = ModelNode(
                self.nodes[settings.verifier], upstreams[settings.verifier], self.rule
            )
        comparer = None if self.vectors is None else self.vectors.comparer(self.rule)
        node = ModelNode(settings, upstreams[name], self.rule, comparer=comparer, verifier=verifier)
        return node, upstreams

    async def _ask_nodes(self, keys: Iterable[str], names: Sequence[str]) -> None:
        bodies = {key: self.bodies[key] for key in keys}
        self.total += len(bodies) * len(names)
        self._report()
        async with asyncio.TaskGroup() as group:
            for name in names:
                ask = partial(self._ask, name)
                self._start_workers(group, self.nodes[name], bodies, ask, self.answers[name], name)

    async def _spend(self, budget: float) -> None:
        """Ask about prompts in random order, the same in every run, until the budget is spent.

        First every node is asked about a core; then what a fit to it says is worth most.
        """
        order = sorted(self.bodies, key=lambda key: key_of("order", key))
        names = tuple(self.nodes)
        for count in (self.core // 5, self.core):  # the first ones say what a prompt costs
            await self._ask_some(order[:count], names, budget)
        await self._ask_some(order, names, budget / 2)
        rows = [row for row in range(len(self.prompts)) if any(self._row(row).answers)]
        if not rows or self.spent >= budget:
            return
        if self.judge is not None:
            await self._ask_judge(self.judge)
        trace = await self._trace(rows)
        try:
            plan = plan_calls(fit(trace, inputs=False), trace, budget - self.spent)
        except TTamerError:  # too little is known, or what is right: complete rows are worth most
            await self._ask_some(order, names, budget)
            return
        asked = len(self.answers[names[0]])
        await self._ask_some(order[: asked + plan.complete], names, budget)
        for name, count in (*plan.alone.items(), *dict.fromkeys(names, len(order)).items()):
            lacking = [key for key in order if key not in self.answers[name]]
            await self._ask_some(lacking[:count], (name,), budget)  # the rest completes rows

    async def _ask_some(self, keys: Sequence[str], names: Sequence[str], budget: float) -> None:
        """Ask nodes about those of some prompts that the budget pays for."""
        keys = [key for key in keys if any(self._is_open(name, key) for name in names)]
        if not keys:
            return
        price = sum(self._expected(name, keys[0]) for name in names)
        keys = keys[: max(0, int((budget - self.spent) / price * (1 + 1e-9)))]
        await self._ask_nodes(keys, names)

    def _is_open(self, name: str, key: str) -> bool:
        return key not in self.answers[name] and key not in self.failed.get(name, ())

    def _with_worth(self, trace: Trace, budget: float) -> Trace:
        """Add what was spent, and what more is worth, to the notes."""
        notes = [f"{self.spent:g} of {budget:g} spent on {counted(len(trace), 'prompt')}"]
        with suppress(TTamerError):
            plan = plan_calls(fit(trace, inputs=False), trace, budget / 10)
            before, after = (100 * 1.96 * error for error in (plan.error, plan.error_after))
            notes.append(
                f"the errors of policies are known to {before:.2g} points; {plan.cost:g} more "
                f"would make that {after:.2g}"
            )
        return dataclasses.replace(trace, notes=(*trace.notes, *notes))

    @property
    def spent(self) -> float:
        """What the answers cost together, when they came."""
        return sum(a.cost for answers in self.answers.values() for a in answers.values())

    def _expected(self, name: str, key: str) -> float:
        """Return what a call is expected to cost: the mean so far, or the most that it can."""
        costs = [answer.cost for answer in self.answers[name].values()]
        if costs:
            return max(sum(costs) / len(costs), 1e-12)
        return max(_cost_at_most(self.nodes[name], self.bodies[key]), self.nodes[name].cost, 1e-12)

    async def _ask(self, name: str, body: Mapping[str, Any], *, is_second: bool = False) -> Answer:
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
            if not is_second and sum(upstream.forget() for upstream in upstreams.values()):
                return await self._ask(name, body, is_second=True)
            raise Unreadable(
                "returned no usage, and its tokens have a price: give the node a cost in place of "
                "cost_per_token"
            )
        for upstream in upstreams.values():
            upstream.keep()
        answer = reply.answer
        return Answer(answer.text, reply.confidence, answer.cost, answer.confidence_cost)

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
        failed = self.failed.setdefault(name, {})

        async def work() -> None:
            nonlocal failures
            for key, question in questions:
                if failures >= self.max_failures:
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

        for _ in range(min(node.max_concurrent or self.workers, len(waiting))):
            group.create_task(work())

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total, sum(map(len, self.failed.values())))

    # Judging

    def _request(self, judge: Judge, row: int, text: str) -> dict[str, Any]:
        """Return the request for a verdict on an answer."""
        label: Any = self.prompts[row].label
        if isinstance(label, tuple):
            label = " or ".join(label[:6])  # it bounds the length of the prompt
        label = label if self._judge_sees_labels else None
        return judge.request(question_text(self.prompts[row].body), text, label)

    @cached_property
    def _judge_sees_labels(self) -> bool:
        return all(prompt.label is not None for prompt in self.prompts)

    def _requests(self, judge: Judge, row: int) -> dict[str, dict[str, Any]]:
        """Return the requests for verdicts on the answers to a prompt, by key."""
        answers = (self.answers[name].get(self.keys[row]) for name in self.nodes)
        texts = dict.fromkeys(a.text for a in answers if a is not None and a.text.strip())
        requests = [self._request(judge, row, text) for text in texts]
        return {_key(request): request for request in requests}

    async def _ask_judge(self, judge: Judge) -> None:
        """Ask about each different answer with text; one without is wrong."""
        node, upstream = self.nodes[judge.node], self.upstreams[judge.node]
        waiting: dict[str, dict[str, Any]] = {}
        for row in range(len(self.prompts)):
            waiting |= self._requests(judge, row)

        async def ask(request: Mapping[str, Any]) -> Answer:
            paid = PaidUpstream(node, upstream, self.paid)
            response = await paid.complete(request)
            right = judge.read(response.body)
            paid.keep()
            cost = response.cost
            if cost is None:
                cost = call_cost(node, Usage.of(response.body))
            return Answer("", math.nan, node.cost if cost is None else cost, right=right)

        waiting = {key: request for key, request in waiting.items() if key not in self.verdicts}
        self.total += len(waiting)
        async with asyncio.TaskGroup() as group:
            self._start_workers(group, node, waiting, ask, self.verdicts, "")

    async def judged(self, judge: Judge, upstream: Ask | None) -> tuple[NDArray[np.float64], str]:
        """Ask the judge about answers that are there; return how right they are, and a note."""
        async with open_session() as session:
            self._open(upstream, session, [judge.node])
            await self._ask_judge(judge)
        if failed := Counter(self.failed[""].values()):
            reason, count = failed.most_common(1)[0]
            raise TraceError(f"{counted(count, 'verdict')} missing: the judge {reason}")
        rows = range(len(self.prompts))
        note = await self._agreement(judge, rows, Comparer(self.rule))
        table = [[math.nan if answer is None else answer.right for answer in self._row(row).answers]
                 for row in rows]  # fmt: skip
        return np.array(table), note

    async def _agreement(self, judge: Judge, rows: Iterable[int], comparer: Comparer) -> str:
        """Return what the verdicts cost, and how often they agree with the labels."""
        cells = [(answer.right, answer.text, self.labels[row]) for row in rows
                 for answer in self._row(row).answers
                 if answer is not None and answer.text.strip()
                 and not math.isnan(answer.right)]  # fmt: skip
        labelled = [(right >= 0.5, (text, label)) for right, text, label in cells if label]
        by_label = await comparer.right([pair for _, pair in labelled])
        agreement = judge.agreement([is_right for is_right, _ in labelled], by_label)
        unseen = "" if self._judge_sees_labels or not labelled else ", which it did not see"
        costs = [verdict.cost for verdict in self.verdicts.values()]
        return (
            f"judged by {judge.node!r} in {counted(len(costs), 'call')} that cost "
            f"{sum(costs):g}; the judge {agreement}{unseen}"
        )

    # Comparing

    def _open_vectors(self, session: aiohttp.ClientSession) -> None:
        """Set what embeds texts: the function of the user, or the upstream."""
        settings, embed = embeddings_of(self.spec), self.likeness.embed
        if embed is not None:
            name = getattr(embed, "__qualname__", type(embed).__qualname__)
            self.vectors = Vectors(self.paid, name, embed)
        elif settings is not None:
            client = Client.of_embeddings(settings, session)

            async def ask(texts: list[str]) -> list[list[float]]:
                response = await client.complete({"input": texts}, path="/embeddings")
                return vectors_from(response.body, len(texts))

            self.vectors = Vectors(self.paid, [settings.upstream, settings.model], ask)

    async def _comparer(
        self, rows: Sequence[AnsweredPrompt]
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

    def _row(self, row: int) -> Answered:
        """Return a prompt with its answers, right as far as a judge says so."""
        answers = [self.answers[name].get(self.keys[row]) for name in self.nodes]
        label, judge = self.labels[row], self.judge
        if judge is not None:
            label = None
            answers = [None if answer is None else answer._replace(
                right=self._verdict(judge, row, answer.text)) for answer in answers]  # fmt: skip
        return Answered(question_text(self.prompts[row].body), label, answers)

    def _verdict(self, judge: Judge, row: int, text: str) -> float:
        if not text.strip():
            return 0.0
        verdict = self.verdicts.get(_key(self._request(judge, row, text)))
        return math.nan if verdict is None else verdict.right

    def _answered(self, row: int) -> AnsweredPrompt:
        answered = self._row(row)
        texts = dict(zip(self.nodes, answered.texts, strict=True))
        return AnsweredPrompt(answered.prompt or "", self.labels[row], texts)

    def _gaps(self, rows: Sequence[int], on_error: OnBad) -> tuple[Mapping[str, int], list[str]]:
        """Return why prompts are left out, and how many answers are missing in the others."""
        lacking = [self._lacking(row) for row in range(len(self.prompts))]
        reasons = Counter(chain.from_iterable(lacking))
        if reasons and (on_error == "refuse" or not all(self.answers.values())):
            lack = sum(map(bool, lacking))
            lacked = "an answer" if self.judge is None else "an answer or a verdict"
            listed = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
            raise TraceError(
                f"{lack} of {len(self.prompts)} prompts lack {lacked} ({listed}); fix the cause"
                f"{_hint(listed, self.prompts)} and run the same command again, which asks only "
                "these, or skip them with --skip-bad"
            )
        absent = [row for row in range(len(self.prompts)) if row not in {*rows}]
        left_out = Counter((lacking[row] or ["the budget was spent"])[0] for row in absent)
        gaps = Counter(chain.from_iterable(lacking[row] for row in rows))
        notes = [f"{counted(n, 'prompt')} with a gap: {reason}" for reason, n in gaps.items()]
        return left_out, notes

    def _lacking(self, row: int) -> list[str]:
        """Return why a prompt lacks answers or verdicts; nothing where it has all."""
        asked = [(name, name, self.keys[row]) for name in self.nodes]
        if self.judge is not None:
            asked += [("the judge", "", key) for key in self._requests(self.judge, row)]
        reasons = (f"{who} {self.failed[name][key]}" for who, name, key in asked
                   if key in self.failed.get(name, ()))  # fmt: skip
        return [*dict.fromkeys(reasons)]

    async def _trace(
        self,
        rows: Sequence[int],
        left_out: Mapping[str, int] | None = None,
        gaps: Sequence[str] = (),
    ) -> Trace:
        try:
            comparer, spec, notes = await self._comparer([self._answered(row) for row in rows])
        except (UpstreamFailed, Unreadable) as error:
            raise TraceError(f"texts cannot be embedded: {error}") from None
        notes += tuple(gaps)
        answered = [self._row(row) for row in rows]
        for number, (name, node) in enumerate(self.nodes.items()):
            answers = (row.answers[number] for row in answered)
            if node.confidence == "self-report" and not any(a and a.confidence for a in answers):
                notes += (
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}",
                )
        if self.judge is not None:
            notes += (await self._agreement(self.judge, rows, comparer),)
        # A cost of its own for a confidence is that of another node, which the fit makes of it.
        apart = [node.verify_cost is not None for node in spec.nodes]
        answered = [row._replace(answers=[
            a._replace(cost=a.cost - a.confidence_cost) if a is not None and is_apart else a
            for a, is_apart in zip(row.answers, apart, strict=True)
        ]) for row in answered]  # fmt: skip
        try:
            return await trace_of(spec, comparer, answered, left_out=left_out or {}, notes=notes)
        except TraceError as error:
            raise TraceError(
                f"{error}; the answers are kept, and are not asked for again"
            ) from None


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
    return call_cost(node, Usage(int(prompt), _tokens(body))) or 0.0


def _tokens(body: Mapping[str, Any]) -> int:
    """Return the most tokens that an answer may have."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)


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
