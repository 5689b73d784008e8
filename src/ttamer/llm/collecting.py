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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_number
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.client import Client, UpstreamFailed, open_session
from ttamer.llm.compare import Comparer, Comparison, compare_answers, label_form
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge, score_from, verdict_from
from ttamer.llm.likeness import LabelAgreement, Likeness, cosines, pairs_of, vectors_from
from ttamer.llm.node import BYTES_PER_TOKEN, ModelNode, Upstream, Usage, Work, call_cost
from ttamer.llm.paid import PaidUpstream, Store, key_of
from ttamer.llm.prompts import AnsweredPrompt, Endpoint, Prompt, write_answers
from ttamer.llm.settings import NodeSettings, comparison_of, embeddings_of, read_nodes
from ttamer.runtime.calling import Call, call_async
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import OnBad, Trace

CORE = 100  # prompts of a budget that every node is asked about first, at least
MAX_FAILURES = 10  # in a row, after which a node is not called any more
WORKERS = 8  # of a node without max_concurrent
HALF = 0.5  # the score from which an answer counts as right
MAX_SHOWN_ALIASES = 6  # of a label that a judge sees: it bounds the length of its prompts

T = TypeVar("T")
Labels = Sequence[str | None] | None
Ask = Callable[[NodeSettings], Upstream]
"""From a node's settings to what is asked."""


class Answer(NamedTuple):
    """What a node answered to a prompt."""

    text: str
    confidence: float
    cost: float
    confidence_cost: float = 0.0
    """The part of the cost that is for the confidence alone."""


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
    run = _Collection.of(cascade, prompts, paid, endpoint, judge, likeness or Likeness())
    run.labels(needed=judge is None)  # refused before anything is asked
    run.progress = progress
    if budget is not None:
        require_number(budget, "budget")
        run.budget = budget
    with run.paid:
        try:
            return asyncio.run(run.all(upstream, on_error, answers))
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
    run = _Collection.of(cascade, prompts, paid, "chat/completions", judge, Likeness())
    run.answers = {name: {} for name in run.nodes}
    for prompt, row in zip(prompts, rows, strict=True):
        for name, text in row.answers.items():
            if text is not None:
                run.answers[name][_key(prompt.body)] = Answer(text, 0.0, 0.0)
    with run.paid:
        scores, note = asyncio.run(run.verdicts_on(range(len(rows)), upstream))
    correct: Any = np.where(np.isnan(scores), math.nan, scores >= HALF)
    columns = [run.spec.index_of(name) for name in trace.names]
    facts: dict[str, Any] = {"correct": correct[:, columns], "raw_loss": None}
    spec = dataclasses.replace(trace.spec, target="label")
    if judge.graded:
        facts = {"correct": None, "raw_loss": 1 - scores[:, columns]}
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
    spec = cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)
    for name in only:
        spec.index_of(name)
    if lacking := [name for name in spec.names if name not in (*log.names, *only)]:
        raise ArgumentError(f"{lacking[0]!r} is neither in the log nor among those to be asked")
    prompts = [] if log.prompt is None else log.prompt.tolist()
    if not prompts or any(text is None or text.startswith("#ttamer-prompt:") for text in prompts):
        raise ArgumentError("the log has no prompts: they are its column prompt, as text")
    labels = [None] * len(log) if log.label is None else log.label.tolist()
    asked = [
        Prompt(
            {**(request or {}), "messages": [{"role": "user", "content": text}]},
            None if label is None or label < 0 else log.classes[label],
        )
        for text, label in zip(prompts, labels, strict=True)
    ]
    nodes = tuple(node for node in spec.nodes if node.name in only)
    target = spec.target if log.label is not None else "last"  # nothing to compare with here
    part = dataclasses.replace(spec, nodes=nodes, target=target)
    new = collect_prompts(part, asked, paid, on_error="skip", **options)
    return _with_nodes(spec, log, new, prompts)


def _with_nodes(spec: CascadeSpec, log: Trace, new: Trace, prompts: Sequence[str]) -> Trace:
    """Return a log with the columns of further nodes, whose rows are found by their prompts."""
    assert new.prompt is not None  # noqa: S101 - as it was collected
    row_of = {text: row for row, text in enumerate(new.prompt.tolist())}
    rows = [row_of.get(text, -1) for text in prompts]
    table: dict[str, list[list[Any]]] = {"confidence": [], "cost": [], "prediction": []}
    correct = np.full((len(log), len(spec)), np.nan)
    sources = [(new, new.names.index(name), True) if name in new.names
               else (log, log.names.index(name), False) for name in spec.names]  # fmt: skip
    for number, row in enumerate(rows):
        verdicts: dict[object, float] = {}
        cells: list[tuple[float, float, str | None]] = []
        for node, (trace, column, is_new) in enumerate(sources):
            at = row if is_new else number
            if at < 0:
                cells.append((math.nan, math.nan, None))
                continue
            code = -1 if trace.prediction is None else int(trace.prediction[at, column])
            text = None if code < 0 else trace.classes[code]
            cost = float(trace.costs[at, column])
            cells.append((float(trace.confidence[at, column]), cost, text))
            if not is_new and log.correct is not None and log.correct[number, column] >= 0:
                correct[number, node] = verdicts[text] = float(log.correct[number, column])
        for node, (_, _, text) in enumerate(cells):  # the same answer is as right
            if np.isnan(correct[number, node]) and text in verdicts:
                correct[number, node] = verdicts[text]
        for name, values in zip(table, zip(*cells, strict=True), strict=True):
            table[name].append(list(values))
    facts: dict[str, Any] = {}
    if log.label is not None:
        facts["label"] = [None if code < 0 else log.classes[code] for code in log.label.tolist()]
    if log.correct is not None:
        facts["correct"] = correct
    return Trace.from_arrays(
        spec, table["confidence"], prediction=table["prediction"], cost=table["cost"],
        prompt=np.array(prompts, object), notes=new.notes, inputs=log.inputs, **facts,
    )  # fmt: skip


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
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], f"{folder}/paid"))
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
    paid: Store
    path: str
    judge: Judge | None
    likeness: Likeness
    progress: Callable[[int, int, int], None] | None = None
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    vectors: _Vectors | None = None
    budget: float | None = None
    answers: dict[str, dict[str, Answer]] = field(default_factory=dict)
    """By node and prompt."""
    verdicts: dict[str, Answer] = field(default_factory=dict)
    """By request to the judge; their confidence is the score."""
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why there is no answer, by node and prompt; the judge's are under the empty name."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    """How many answers are missing in the trace, in words."""
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
        return cls(spec, nodes, rule, prompts, Store(paid), f"/{endpoint}", judge, likeness)

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
            if self.budget is None:
                await self._ask_nodes(self.bodies, tuple(self.nodes))
            else:
                await self._spend(self.budget)
            if self.judge is not None:
                await self._ask_judge(self.judge)
            rows = self._complete_rows(on_error)
            trace = await self._trace(rows)
            if self.budget is not None:
                trace = self._with_worth(trace, self.budget)
        if path is not None:
            write_answers(path, (
                {
                    "request": dict(self.prompts[row].body),
                    "label": self.prompts[row].label,
                    "answers": self._texts(row),
                }
                for row in rows
            ))  # fmt: skip
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

    async def _ask_nodes(
        self, bodies: Mapping[str, Mapping[str, Any]], names: Sequence[str]
    ) -> None:
        self.total += len(bodies) * len(names)
        self._report()
        async with asyncio.TaskGroup() as group:
            for name in names:
                answers = self.answers.setdefault(name, {})
                ask = partial(self._ask, name)
                self._start_workers(group, self.nodes[name], bodies, ask, answers, name)

    async def _spend(self, budget: float) -> None:
        """Ask about prompts in random order, the same in every run, until the budget is spent.

        First every node is asked about a core; then what a fit to it says is worth most.
        """
        order = sorted(self.bodies, key=lambda key: key_of("order", key))
        self.answers = {name: {} for name in self.nodes}
        names = tuple(self.nodes)
        for count in (CORE // 5, CORE):  # the first ones say what a prompt costs
            await self._ask_some(order[:count], names, budget)
        await self._ask_some(order, names, budget / 2)
        rows = [row for row in range(len(self.prompts)) if any(self._answers(row))]
        if not rows or self.spent >= budget:
            return
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
        await self._ask_nodes({key: self.bodies[key] for key in keys}, names)

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

    @property
    def _judge_sees_labels(self) -> bool:
        return all(prompt.label is not None for prompt in self.prompts)

    def _request(self, judge: Judge, row: int, text: str) -> dict[str, Any]:
        """Return the request for a verdict on an answer."""
        prompt, label = self.prompts[row], self.prompts[row].label
        if isinstance(label, tuple):
            label = " or ".join(label[:MAX_SHOWN_ALIASES])
        label = label if self._judge_sees_labels else None
        return judge.request(question_text(prompt.body), text, label)

    async def _ask_judge(self, judge: Judge) -> None:
        """Ask about each different answer with text; one without is wrong."""
        node = self.nodes[judge.node]
        texts = ((row, t) for row in range(len(self.prompts)) for t in self._texts(row).values())
        requests = (self._request(judge, row, t) for row, t in texts if t is not None and t.strip())
        waiting = {_key(request): request for request in requests}
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
            self._start_workers(group, node, waiting, ask, self.verdicts, "")

    async def verdicts_on(
        self, rows: Sequence[int], upstream: Ask | None
    ) -> tuple[NDArray[np.float64], str]:
        """Ask the judge about answers that are there; return the scores, and what they cost."""
        assert self.judge is not None  # noqa: S101 - it is what this is for
        async with AsyncExitStack() as stack:
            if upstream is None:
                session = await stack.enter_async_context(open_session())
                upstream = partial(_patient, session=session)
            self.upstreams = {self.judge.node: upstream(self.nodes[self.judge.node])}
            await self._ask_judge(self.judge)
            if failed := Counter(self.failed[""].values()):
                reason, count = failed.most_common(1)[0]
                raise TraceError(f"{counted(count, 'verdict')} missing: the judge {reason}")
            labels = self.labels(needed=False)
            return await self._judged(self.judge, rows, labels, Comparer(self.rule))

    async def _judged(
        self, judge: Judge, rows: Sequence[int], labels: Labels, comparer: Comparer
    ) -> tuple[NDArray[np.float64], str]:
        """Return the scores, what they cost, and how often they agree with the labels."""
        scores = np.full((len(rows), len(self.nodes)), math.nan)
        costs: dict[str, float] = {}
        judged: list[bool] = []
        labelled: list[tuple[str, str]] = []
        for position, row in enumerate(rows):
            label = None if labels is None else labels[row]
            for node, text in enumerate(self._texts(row).values()):
                if text is not None and not text.strip():
                    scores[position, node] = 0.0
                if text is None or not text.strip():
                    continue
                key = _key(self._request(judge, row, text))
                if (verdict := self.verdicts.get(key)) is None:
                    continue
                scores[position, node], costs[key] = verdict.confidence, verdict.cost
                if label is not None:
                    judged.append(verdict.confidence >= HALF)
                    labelled.append((text, label))
        agreement = LabelAgreement.of(judged, await comparer.right(labelled))
        wanted = judge.min_agreement
        if agreement.answers and agreement.interval[1] < wanted:
            raise TraceError(
                f"the judge {judge.node!r} {agreement}, and at least {100 * wanted:g}% is needed; "
                "change the rubric or the judge, or lower --min-agreement"
            )
        unseen = "" if self._judge_sees_labels or not judged else ", which it did not see"
        return scores, (
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

    def labels(self, *, needed: bool) -> Labels:
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

    def _complete_rows(self, on_error: OnBad) -> list[int]:
        """Return the prompts of the trace: those with all answers and verdicts, or with some."""
        lacking = [self._lacking(row) for row in range(len(self.prompts))]
        reasons = Counter(chain.from_iterable(lacking))
        none = {row for row in range(len(lacking)) if not any(self._answers(row))}
        if reasons and (on_error == "refuse" or not all(self.answers.values())):
            lack = sum(map(bool, lacking))
            lacked = "an answer" if self.judge is None else "an answer or a verdict"
            listed = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
            raise TraceError(
                f"{lack} of {len(self.prompts)} prompts lack {lacked} ({listed}); fix the cause"
                f"{_hint(listed, self.prompts)} and run the same command again, which asks only "
                "these, or skip them with --skip-bad"
            )
        reason = "the budget was spent"
        self.left_out = dict(Counter((lacking[row] or [reason])[0] for row in sorted(none)))
        gaps = Counter(chain.from_iterable(r for row, r in enumerate(lacking) if row not in none))
        self.gaps = tuple(
            f"{counted(count, 'prompt')} with a gap: {reason}" for reason, count in gaps.items()
        )
        return [row for row in range(len(self.prompts)) if row not in none]

    def _lacking(self, row: int) -> list[str]:
        """Return why a prompt lacks answers or verdicts; nothing where it has all."""
        key = _key(self.prompts[row].body)
        reasons = [f"{name} {self.failed[name][key]}" for name in self.nodes
                   if key in self.failed.get(name, ())]  # fmt: skip
        for text in self._texts(row).values() if self.judge is not None else ():
            if self.judge is not None and text is not None and text.strip():
                verdict = _key(self._request(self.judge, row, text))
                if verdict in self.failed[""]:
                    reasons.append(f"the judge {self.failed[''][verdict]}")
        return [*dict.fromkeys(reasons)]

    def _answers(self, row: int) -> list[Answer | None]:
        key = _key(self.prompts[row].body)
        return [answers.get(key) for answers in self.answers.values()]

    def _texts(self, row: int) -> dict[str, str | None]:
        answers = zip(self.nodes, self._answers(row), strict=True)
        return {name: None if answer is None else answer.text for name, answer in answers}

    async def _trace(self, rows: Sequence[int]) -> Trace:
        labels = self.labels(needed=self.judge is None)
        table = [self._answers(row) for row in rows]
        texts = [[*self._texts(row).values()] for row in rows]
        prompts = [question_text(self.prompts[row].body) for row in rows]
        answered = [
            AnsweredPrompt(prompt, None if labels is None else labels[row], self._texts(row))
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        try:
            comparer, spec, notes = await self._comparer(answered)
        except (UpstreamFailed, Unreadable) as error:
            raise TraceError(f"texts cannot be embedded: {error}") from None
        right = None
        if self.judge is None and labels is not None:
            right = [labels[row] or "" for row in rows]
        try:
            compared = await compare_answers(comparer, spec.names, texts, right)
        except TraceError as error:
            raise TraceError(
                f"{error}, or name a judge (--judge NODE); the answers are kept, and are not asked "
                "for again"
            ) from None
        notes += (*self.gaps, *compared.notes)
        columns = [_numbers(table, field) for field in ("confidence", "cost", "confidence_cost")]
        confidence, cost, confidence_cost = columns
        for (name, node), values in zip(self.nodes.items(), confidence.T, strict=True):
            if node.confidence == "self-report" and not np.nan_to_num(values).any():
                notes += (
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}",
                )
        correct: Any = compared.correct
        score = None
        if self.judge is not None:
            scores, note = await self._judged(self.judge, rows, labels, comparer)
            notes += (note,)
            correct = np.where(np.isnan(scores), math.nan, scores >= HALF)
            correct, score = (None, scores) if self.judge.graded else (correct, None)
        # A cost of its own for a confidence is that of another node, which the fit makes of it.
        is_apart = np.array([node.verify_cost is not None for node in spec.nodes])
        cost -= is_apart * confidence_cost
        return Trace.from_arrays(
            spec,
            confidence,
            prediction=compared.prediction,
            label=compared.label,
            correct=correct,
            score=score,
            cost=None if (cost == spec.costs).all() else cost,
            prompt=np.array(prompts, object),
            left_out=self.left_out,
            notes=notes,
        )


@dataclass
class _Vectors:
    """Embeds texts, each of them once; the vectors are kept."""

    paid: Store
    identity: object
    embed: Callable[[list[str]], Any]
    batch: int = 64
    """Texts in one call."""
    max_text: int = 20_000
    """Characters at the end of a text that are embedded."""

    async def __call__(self, texts: list[str]) -> list[NDArray[np.float32]]:
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


def _numbers(table: Sequence[Sequence[Answer | None]], field: str) -> NDArray[np.float64]:
    """Return a number of each answer, NaN where there is none."""
    rows = [[math.nan if answer is None else getattr(answer, field) for answer in row]
            for row in table]  # fmt: skip
    return np.array(rows, np.float64)


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
