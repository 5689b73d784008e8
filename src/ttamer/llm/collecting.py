"""From prompts to a trace: every node is asked about every prompt, and each call is paid for once.

What came back is kept at once (:mod:`ttamer.llm.paid`), so that the same command continues after an
interruption of any kind, and asks only what was not asked before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted, require_number
from ttamer.cascade import CascadeSpec
from ttamer.errors import ArgumentError, TTamerError
from ttamer.fitting import plan_calls
from ttamer.fitting.fits import fit
from ttamer.llm.client import UpstreamFailed
from ttamer.llm.collection import Collection
from ttamer.llm.judging import Judge
from ttamer.llm.node import BYTES_PER_TOKEN, Work
from ttamer.llm.paid import Ask, cost_at_most, key_of, tokens_of
from ttamer.llm.prompts import Prompt, write_answers
from ttamer.llm.settings import CascadeSource, spec_of
from ttamer.trace.trace import OnBad, Trace


def collect_prompts(
    cascade: CascadeSource,
    prompts: Sequence[Prompt],
    paid: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    on_error: OnBad = "refuse",
    answers: str | os.PathLike[str] | None = None,
    judge: Judge | None = None,
    pairs: str | os.PathLike[str] | None = None,
    upstream: Ask | None = None,
    progress: Callable[[int, int, int], None] | None = None,
    budget: float | None = None,
) -> Trace:
    """Ask every node about every prompt, and return the answers as a trace.

    Args:
        cascade: The cascade with its upstreams, or the path of its ``cascade.toml``.
        prompts: The prompts, such as :func:`read_prompts` returns.
        paid: A file that keeps the responses, so that no call is made twice (SQLite, mode 600).
        only: The nodes to ask; by default all. Others may judge, and verify answers.
        on_error: "refuse" raises an error for prompts that lack an answer, once all others are
            asked; "skip" leaves a gap there, and drops and counts prompts without any answer.
        answers: A file for the prompts and the answers of the trace's rows, as JSON lines (mode
            600).
        judge: A node that decides how right answers are, instead of the comparison with labels;
            where there are labels, ``notes`` has how often both agree. Where only some prompts
            have one, the judge sees none of them, so that its agreement holds for the others too.
            Verdicts are not part of the nodes' costs.
        pairs: With ``compare = "embedding"``: a file of labelled pairs, JSON lines like ``{"one":
            "4", "two": "four", "equal": true}``, to which a threshold is fitted, or with which the
            one of the cascade is measured; without it, one is fitted to answers that contain their
            label. ``notes`` has it and how often it agrees, the trace's cascade the threshold.
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
            used, or the judge agrees with too few labels.

    ::

        prompts = read_prompts("prompts.jsonl")
        trace = collect_prompts("cascade.toml", prompts, "answers.sqlite")
    """
    if budget is not None:
        require_number(budget, "budget")
    run = Collection(cascade, prompts, paid, judge, pairs, progress, only)

    async def collected() -> Trace:
        async with run.opened(upstream):
            await (run.ask(run.keys) if budget is None else _spend(run, budget))
            await run.ask_judge()
            left_out, notes = run.gaps(on_error)
            return await run.trace(left_out, notes)

    with run.paid:
        trace = asyncio.run(collected())
    if budget is not None:
        notes = _worth(trace, run.spent, budget)
        trace = dataclasses.replace(trace, notes=(*trace.notes, *notes))
    if answers is not None:
        write_answers(answers, run.written())
    return trace


async def _spend(run: Collection, budget: float, core: int = 100) -> None:
    """Ask about prompts in random order, the same in every run, until the budget is spent.

    First every node is asked about a core of at least ``core`` prompts; then what a fit to it says
    is worth most.
    """
    order, names = sorted(run.bodies, key=lambda key: key_of("order", key)), [*run.asked]
    price = sum(run.asked[name].expected(run.bodies[order[0]]) for name in names)
    if price > budget:
        raise ArgumentError(
            f"budget is {budget:g}, and one prompt may cost {price:g} by all nodes together",
            param="budget",
        )
    for count in (core // 5, core):  # the first ones say what a prompt costs
        await _ask_some(run, order[:count], names, budget)
    # Half of the budget goes to complete rows in any case: a fit to a small core errs.
    await _ask_some(run, order, names, budget / 2)
    if not run.answered_rows or run.spent >= budget:
        return
    await run.ask_judge()
    trace = await run.trace()
    try:
        plan = plan_calls(fit(trace, inputs=False), trace, budget - run.spent)
    except TTamerError:  # too little is known, or what is right: complete rows are worth most
        await _ask_some(run, order, names, budget)
        return
    complete = len(run.asked[names[0]].answers) + plan.complete
    await _ask_some(run, order[:complete], names, budget)
    for name, count in (*plan.alone.items(), *dict.fromkeys(names, len(order)).items()):
        lacking = [key for key in order if key not in run.asked[name].answers]
        await _ask_some(run, lacking[:count], [name], budget)  # the rest completes rows


async def _ask_some(
    run: Collection, keys: Sequence[str], names: Sequence[str], budget: float
) -> None:
    """Ask nodes about those of some prompts that the budget pays for."""
    keys = [key for key in keys if any(run.asked[name].is_open(key) for name in names)]
    if keys:
        price = sum(run.asked[name].expected(run.bodies[keys[0]]) for name in names)
        affordable = int((budget - run.spent) / price * (1 + 1e-9))
        await run.ask(keys[: max(0, affordable)], names)


def _worth(trace: Trace, spent: float, budget: float) -> list[str]:
    """Return what was spent, and what more is worth."""
    notes = [f"{spent:g} of {budget:g} spent on {counted(len(trace), 'prompt')}"]
    with suppress(TTamerError):
        plan = plan_calls(fit(trace, inputs=False), trace, budget / 10)
        before, after = (100 * 1.96 * error for error in (plan.error, plan.error_after))
        notes.append(
            f"the errors of policies are known to {before:.2g} points; {plan.cost:g} more would "
            f"make that {after:.2g}"
        )
    return notes


def collect_more(
    cascade: CascadeSource,
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
    spec = spec_of(cascade)
    for name in only:
        spec.index_of(name)
    judge = options.get("judge")
    if judge is not None and judge.graded != (log.raw_loss is not None):
        raise ArgumentError("a judge gives scores (graded) where the log has them, and only there")
    if lacking := [name for name in spec.names if name not in (*log.names, *only)]:
        raise ArgumentError(f"{lacking[0]!r} is neither in the log nor among those to be asked")
    if not only:
        raise ArgumentError("name the nodes to ask", param="only")
    target = spec.target if log.label is not None else "last"  # nothing to compare with here
    part, prompts = dataclasses.replace(spec, target=target), prompts_of(log, request)
    new = collect_prompts(part, prompts, paid, only=only, on_error="skip", **options)
    return _joined(spec, log, new)


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


def _texts(trace: Trace, codes: NDArray[np.integer]) -> NDArray[np.object_]:
    """Return the classes of codes, ``None`` for -1."""
    texts: NDArray[np.object_] = np.array([*trace.classes, None], object)[codes]
    return texts


def _joined(spec: CascadeSpec, log: Trace, new: Trace) -> Trace:
    """Return a log with the columns of further nodes, whose rows are found by their prompts."""
    prompts, answered = cast("Any", log.prompt).tolist(), cast("Any", new.prompt).tolist()
    # Rows may be left out where nothing answered: they are found by their prompts again.
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
    unknown = np.full(new.confidence.shape, np.nan)
    if log.raw_loss is not None:
        losses = unknown if new.raw_loss is None else new.raw_loss
        facts["raw_loss"] = table(log.raw_loss, losses, np.nan)
    if log.correct is not None:
        verdicts, new_verdicts = (
            unknown if trace.correct is None else np.where(trace.correct < 0, np.nan, trace.correct)
            for trace in (log, new)
        )
        correct = table(verdicts, new_verdicts, np.nan)
        is_new = np.array([name in new.names for name in spec.names])
        for node, former in product(np.flatnonzero(is_new), np.flatnonzero(~is_new)):
            answers = prediction[:, node]  # one that is the same is as right
            is_same = (answers == prediction[:, former]) & answers.astype(bool)
            is_known = is_same & ~np.isnan(correct[:, former]) & np.isnan(correct[:, node])
            correct[is_known, node] = correct[is_known, former]
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
    """The calls that are not paid for yet, by node; with a judge also its verdicts, at most."""
    cost: Mapping[str, float]
    """In the cascade's units: prompts as long as their bytes say, answers as long as they may
    be."""
    kept: int
    """The responses that are there."""

    def __str__(self) -> str:
        parts = [f"{name}: {counted(count, 'call', ',')}, at most {self.cost[name]:g}"
                 for name, count in self.calls.items()]  # fmt: skip
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

    >>> import tempfile
    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 2, upstream = 'http://h/v1'}]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(plan_collection(spec, [Prompt({"prompt": "2 + 2?"})], f"{folder}/paid"))
    a: 1 call, at most 2
    in all at most 2; 0 responses are kept
    """
    file = paid if Path(paid).exists() else ":memory:"  # nothing is left behind
    spec = dataclasses.replace(spec_of(cascade), target="last")  # labels may be missing
    run = Collection(spec, prompts, file, judge, only=only)
    with run.paid:
        return asyncio.run(_plan(run))


async def _plan(run: Collection) -> CollectionPlan:
    requests: list[tuple[str, Mapping[str, Any]]] = []
    for name, body in product(run.asked, run.bodies.values()):
        node, upstreams = run.node(name)
        with suppress(UpstreamFailed):
            await node.ask(Work(dict(body)))
        requests += [(asked, r) for asked, up in upstreams.items() for r in up.missing]
        if node.settings.verifier:  # the verdict will be asked for
            requests += [(node.settings.verifier, r) for r in upstreams[name].missing]
    costs: dict[str, list[float]] = {name: [] for name in run.asked}
    for name, request in requests:
        costs.setdefault(name, []).append(cost_at_most(run.nodes[name], request))
    if run.verdicts is not None:
        judge = run.verdicts.asked.node
        longest = (" " * int(BYTES_PER_TOKEN * tokens_of(prompt.body)) for prompt in run.prompts)
        verdicts = [run.verdicts.request(row, text) for row, text in enumerate(longest)]
        costs[f"verdicts of {judge.name}"] = [
            cost_at_most(judge, request) for request, _ in product(verdicts, run.asked)
        ]
    calls = {name: len(parts) for name, parts in costs.items()}
    return CollectionPlan(calls, {n: sum(parts) for n, parts in costs.items()}, len(run.paid))
