"""From prompts to a trace: every node is asked about every prompt, and each call is paid for once.

What came back is kept at once (:mod:`ttamer.llm.paid`), so that the same command continues after an
interruption of any kind, and asks only what was not asked before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_number
from ttamer.errors import ArgumentError, TraceError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.client import open_session
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.node import ModelNode, Upstream, Work, highest_cost, requests_of
from ttamer.llm.paid import Ask, Asked, PaidUpstream, Progress, Store, call_key, key_of, patient
from ttamer.llm.prompts import Answer, AnsweredPrompt, Prompt, check_label, trace_of, write_answers
from ttamer.llm.settings import CascadeSource, comparison_of, read_nodes, spec_of
from ttamer.trace.checks import require_trace
from ttamer.trace.trace import OnBad, Trace


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
        only: Sequence[str] = (),
        log: Trace | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.spec, self.log, self.progress = spec_of(cascade), log, progress
        if log is not None and not only:
            raise ArgumentError("name the nodes to ask", param="only")
        for name in only:
            self.spec.index_of(name)
        # A model that only the log has may have no server, and no key, any more.
        self.nodes, self.rule = read_nodes(self.spec, only), comparison_of(self.spec)
        self.prompts, self.paid = prompts, Store(paid)
        self.asked = {name: Asked(node) for name, node in self.nodes.items()}
        self.upstreams: dict[str, Upstream] = {}
        self._check()
        # Equal requests are asked once.
        self.keys = [key_of(prompt.body) for prompt in prompts]
        self.bodies = dict(zip(self.keys, (prompt.body for prompt in prompts), strict=True))

    def _check(self) -> None:
        """Refuse nodes that are never asked, and labels that no answer can equal."""
        labels = [prompt.label for prompt in self.prompts]
        if self.log is not None:
            if len(self.log) != len(labels):
                raise ArgumentError(f"the log has {len(self.log)} rows, for {len(labels)} prompts")
            if lacking := {*self.spec.names} - {*self.log.names, *self.asked}:
                raise ArgumentError(
                    f"{min(lacking)!r} is neither in the log nor among those to be asked"
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
        """Open the connections to the nodes."""
        async with open_session() as session:
            client = upstream or patient(session)
            self.upstreams = {name: client(self.nodes[name]) for name in self.asked}
            yield

    async def ask(self, keys: Iterable[str], names: Iterable[str] | None = None) -> None:
        """Ask nodes about prompts."""
        bodies = {key: self.bodies[key] for key in keys}
        names = self.asked if names is None else names
        calls = (self.asked[n].ask(bodies, partial(self._ask, n), self._report) for n in names)
        await asyncio.gather(*calls)

    def _report(self) -> None:
        if self.progress is not None:
            progress = zip(*(asked.progress for asked in self.asked.values()), strict=True)
            self.progress(*map(sum, progress))

    async def _ask(self, name: str, body: Mapping[str, Any]) -> Answer:
        settings, work, new = self.nodes[name], Work(dict(body)), dict[str, bytes]()
        upstream = PaidUpstream(settings, self.upstreams[name], self.paid, new)
        reply = await ModelNode(settings, upstream, self.rule).ask(work)
        if not work.is_measured:
            raise Unreadable(
                "returned no usage, and its tokens have a price: give the node a cost in place of "
                "cost_per_token, or collect into another --cache"
            )
        self.paid.add(new)
        answer, verifying = reply.answer, 0.0
        if self.spec.nodes[self.spec.index_of(name)].verify_cost is not None:
            # Its confidence is another node, which the fit makes of it, with that cost.
            verifying = answer.confidence_cost
        return Answer(answer.text, reply.confidence, answer.cost - verifying, verifying)

    @property
    def spent(self) -> float:
        """What all answers cost together."""
        return sum(asked.spent for asked in self.asked.values())

    # The rows

    def rows(self) -> list[AnsweredPrompt]:
        """Return the prompts with any answer, those of the log included."""
        logged = [{}] * len(self.keys) if self.log is None else _answers_of(self.log)
        rows = [
            AnsweredPrompt(
                question_text(prompt.body),
                prompt.label,
                answers | {name: asked.answers.get(key) for name, asked in self.asked.items()},
            )
            for prompt, key, answers in zip(self.prompts, self.keys, logged, strict=True)
        ]
        return [row for row in rows if self.log is not None or any(row.answers.values())]

    def trace(self, on_error: OnBad = "skip") -> Trace:
        """Return the trace of the answers so far; ``on_error`` refuses or skips failures."""
        left_out, notes = self._gaps(on_error)
        for name, asked in self.asked.items():
            is_report = asked.node.confidence == "self-report"
            if is_report and not any(answer.confidence for answer in asked.answers.values()):
                notes.append(
                    f"no self-report of {name!r} holds a number: its confidence is 0 on every row; "
                    "a model that reasons needs params = {max_tokens = false}"
                )
        rows, log = self.rows(), self.log
        unit = 0.0 if log is None or log.raw_loss is None else log.unit
        try:
            trace = trace_of(self.spec, self.rule, rows, unit=unit, notes=notes, left_out=left_out)
        except TraceError as error:
            raise TraceError(
                f"{error}; the answers are kept, and are not asked for again"
            ) from None
        return trace if log is None else _with_columns_of(log, trace)

    def _gaps(self, on_error: OnBad) -> tuple[Counter[str], list[str]]:
        """Return why prompts are left out, and notes on answers that others lack."""
        missing = [
            [
                gap._replace(why=f"{n} {gap.why}")
                for n, asked in self.asked.items()
                if (gap := asked.missing.get(key))
            ]
            for key in self.keys
        ]
        failed = [[gap.why for gap in gaps if gap.is_failure] for gaps in missing]
        has_all = all(asked.answers for asked in self.asked.values())
        if any(failed) and (on_error == "refuse" or not has_all):
            reasons = Counter(why for gaps in failed for why in gaps)
            listed = "; ".join(f"{reason}: {count}" for reason, count in reasons.items())
            raise TraceError(
                f"{sum(map(bool, failed))} of {len(failed)} prompts lack an answer ({listed}); fix "
                "the cause and run the same command again, which asks only these, or skip them "
                "with --skip-bad"
            )
        left_out, gaps = Counter[str](), Counter[str]()
        for key, lacking in zip(self.keys, missing, strict=True):
            if self.log is not None or any(key in asked.answers for asked in self.asked.values()):
                gaps.update(gap.why for gap in lacking)
            else:
                left_out[lacking[0].why if lacking else "the budget was spent"] += 1
        return left_out, [f"{counted(n, 'prompt')} with a gap: {why}" for why, n in gaps.items()]


# What a log has


def _texts(trace: Trace, codes: NDArray[np.integer]) -> NDArray[np.object_]:
    """Return the classes of codes, ``None`` for -1."""
    texts: NDArray[np.object_] = np.array([*trace.classes, None], object)[codes]
    return texts


def _answers_of(log: Trace) -> list[dict[str, Answer | None]]:
    """Return the answers of a log by node, right as far as the log itself says so."""
    right = np.full(log.confidence.shape, math.nan)
    if log.raw_loss is not None or log.correct is not None:
        with suppress(TraceError):  # nothing is known
            right = 1 - log.loss
    prediction = np.full(right.shape, -1) if log.prediction is None else log.prediction
    columns = (_texts(log, prediction), log.confidence, log.costs, right)
    return [
        {
            name: None if math.isnan(sure) else Answer(text or "", sure, cost, 0.0, share, True)
            for name, text, sure, cost, share in zip(log.names, *cells, strict=True)
        }
        for cells in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _with_columns_of(log: Trace, trace: Trace) -> Trace:
    """Return a trace of a log's rows with what else the log has."""
    columns: dict[str, Any] = {}
    for field in ("entropy", "latency", "margin"):
        if (values := getattr(log, field)) is not None:
            columns[field] = np.full(trace.confidence.shape, math.nan)
            columns[field][:, [trace.spec.index_of(name) for name in log.names]] = values
    return dataclasses.replace(
        trace, prompt=log.prompt, inputs=log.inputs, group=log.group, groups=log.groups, **columns
    )


def prompts_of(log: Trace, request: Mapping[str, Any] | None = None) -> list[Prompt]:
    """Return the prompts of a log, with its labels.

    >>> trace = Trace.from_arrays({"a": 1.0}, [[0.5]], loss=[[0.0]], prompt=["2 + 2?"])
    >>> prompts_of(trace)[0].body["messages"]
    [{'role': 'user', 'content': '2 + 2?'}]

    Args:
        log: A trace with prompts as text.
        request: Fields sent with every prompt.

    Returns:
        One prompt for each row.

    Raises:
        ArgumentError: If the log has no prompts as text.
    """
    require_trace(log, "prompts_of")
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
    log: Trace | None = None,
    only: Sequence[str] = (),
    on_error: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    upstream: Ask | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    ::

        prompts = read_prompts("prompts.jsonl")
        trace = collect_prompts("cascade.toml", prompts, "answers.sqlite", budget=20.0)

    A new model joins a log::

        log = Trace.read("log.parquet")
        prompts = prompts_of(log)
        trace = collect_prompts("cascade.toml", prompts, "new.sqlite", log=log, only=["new"])

    Args:
        cascade: The cascade with its upstreams, or the path of its ``cascade.toml``.
        prompts: The prompts, such as :func:`read_prompts` returns.
        paid: A file that keeps the responses, so that no call is made twice (SQLite, mode 600).
        log: Rows whose answers are kept; the prompts are theirs (:func:`prompts_of`). They must
            have been compared by the same rule. What the log says of an answer holds for new ones
            that equal it.
        only: The nodes to ask; by default all. A log has the answers of the others.
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" leaves a gap there, and drops and counts prompts without any answer.
        answers: A file for the prompts and the answers of the trace's rows, as JSON lines (mode
            600).
        budget: The most that all answers may cost, in the cascade's units, those of former runs
            included: first every node is asked about a random core of the prompts,
            then those nodes that the frontier's uncertainty falls by most. ``notes`` says what more
            is worth.
        upstream: From a node's settings to what is asked in place of its server.
        progress: Called with the numbers of answers done, total and failed.

    Returns:
        The trace, with a cost per row where calls differ in cost; with a log its rows, in their
        order, with gaps where a new node was not asked.

    Raises:
        ArgumentError: If a node is neither in the cascade nor in the log.
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If a prompt lacks an answer, no answer equals any label, or the file of
            responses cannot be used.
    """
    run = Collection(cascade, prompts, paid, only=only, log=log, progress=progress)
    if budget is not None:
        require_number(budget, "budget")

    async def ask() -> None:
        async with run.opened(upstream):
            await (run.ask(run.keys) if budget is None else _spend(run, budget))

    with run.paid:
        asyncio.run(ask())
    trace = run.trace(on_error)
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
    highest = {n: highest_cost(node, run.bodies[order[0]]) for n, node in run.nodes.items()}
    spending = _Spending(run, budget, highest)
    if (price := sum(spending.highest.values())) > budget:
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
        trace = _part(run, run.trace())
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
    """A budget, and what an answer of each node costs at most."""

    run: Collection
    budget: float
    highest: Mapping[str, float]  # by node

    def price(self, name: str, *, at_most: bool = False) -> float:
        """Return what a node's answer is expected to cost, judged by those so far, or at most."""
        answers = self.run.asked[name].answers.values()
        costs = [answer.cost + answer.verifying for answer in answers]
        if at_most or not costs:
            # How long an answer is without max_tokens is not known before.
            return max([self.highest[name], *costs])
        return sum(costs) / len(costs)

    async def ask(self, keys: Sequence[str], names: Sequence[str], share: float = 1.0) -> None:
        """Ask nodes about those of some prompts that a share of the budget pays for."""
        while True:
            keys = [key for key in keys if any(self.run.asked[name].is_open(key) for name in names)]
            unspent = (share * self.budget - self.run.spent) * (1 + 1e-9)
            price = sum(map(self.price, names)) or 1e-12
            # Costs differ from prompt to prompt: the last ones are asked at the highest price.
            if (count := int(0.9 * unspent / price)) < 10:
                highest = sum(self.price(name, at_most=True) for name in names)
                count = int(unspent / max(price, highest))
            if count < 1 or not keys:
                return
            await self.run.ask(keys[:count], names)


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
    """What a collection would ask, and about what that would cost at most."""

    # The calls that are not paid for yet, by node
    calls: Mapping[str, int]
    # In the cascade's units: prompts as long as their bytes say, answers as long as they may be
    cost: Mapping[str, float]
    # The responses that are there
    kept: int
    # The most that all answers may cost, those that are there included
    budget: float | None = None

    def __str__(self) -> str:
        lines = [
            f"{name}: {counted(count, 'call', ',')}, about {self.cost[name]:g} at most"
            for name, count in self.calls.items()
        ]
        total = f"in all about {sum(self.cost.values()):g} at most"
        if self.budget is not None:
            total += f", of which no more is asked than the budget of {self.budget:g} pays for"
        return "\n".join([*lines, f"{total}; {self.kept} responses are kept"])


def plan_collection(
    cascade: CascadeSource,
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    budget: float | None = None,
) -> CollectionPlan:
    """Return what :func:`collect_prompts` would ask, without asking anything.

    >>> import tempfile
    >>> from ttamer.cascade import CascadeSpec
    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 2, upstream = 'http://h/v1'}]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], f"{folder}/paid"))
    a: 1 call, about 2 at most
    in all about 2 at most; 0 responses are kept

    Args:
        cascade: As for :func:`collect_prompts`.
        prompts: The prompts.
        paid: The file of responses.
        only: The nodes to ask; by default all.
        budget: The most that all answers may cost.

    Returns:
        The calls of each node, and their cost at most.

    Raises:
        CascadeError: If a setting of the cascade cannot be used.
        TraceError: If the file of responses cannot be used.
    """
    # Nothing is left behind where there is no such file yet.
    run = Collection(cascade, prompts, paid if Path(paid).exists() else ":memory:", only=only)
    calls, cost = dict.fromkeys(run.nodes, 0), dict.fromkeys(run.nodes, 0.0)
    with run.paid as store:
        for name, node in run.nodes.items():
            for body in run.bodies.values():
                if store.get(call_key(node, requests_of(node, body)[0])) is None:
                    calls[name] += node.calls
                    cost[name] += highest_cost(node, body)
        return CollectionPlan(calls, cost, len(store), budget)
