"""Audits: on a share of requests the nodes that were not asked are, once the response has left.

Their rows go to the decision log, and to the audits of :mod:`ttamer.drift` where these are set up:
its loop watches the policy in service, fits and certifies another where the traffic has changed,
and puts it into service. Nothing here slows or fails a request: what cannot be done is counted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.artefact.file import save
from ttamer.drift import (
    AuditLog,
    Auditor,
    AuditSampler,
    Budget,
    Loop,
    LoopSettings,
    NodeAnswer,
    RefitProcess,
    serving_of,
)
from ttamer.errors import ArgumentError, CascadeError, TTamerError
from ttamer.fitting.inputs import hashed_prompt
from ttamer.fitting.ladder import FittedLadder
from ttamer.llm.client import Deadline, UpstreamFailed
from ttamer.llm.compare import Comparer
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.settings import EnvName
from ttamer.runtime.reply import NodeCall, Outcome
from ttamer.serve.answering import ask_others, is_ineligible
from ttamer.serve.decisions import DecisionLog, digests, stated_numbers
from ttamer.serve.policies import PolicyStore
from ttamer.serve.settings import AuditSettings, Settings
from ttamer.serve.sinks import Metrics
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from ttamer.serve.chat import Job  # which asks for audits

log = logging.getLogger("ttamer")


class Audits:
    """Draws requests for audits, asks the other nodes, and keeps the rows."""

    at_once = 4
    max_waiting, max_bytes = 200, 64 * 2**20  # audits that wait, and the bytes of their requests
    close_seconds = 10.0

    def __init__(
        self, settings: Settings, policies: PolicyStore, metrics: Metrics, decisions: DecisionLog
    ) -> None:
        self._settings, self._policies = settings, policies
        self._metrics, self._decisions = metrics, decisions
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bytes = 0
        self._slots = asyncio.Semaphore(self.at_once)
        self._stack = ExitStack()
        self._labels: dict[str, str | None] = {}  # of requests whose audit is under way
        self._auditor: Auditor | None = None
        self.drift: Drift | None = None
        self.comparer: Comparer | None = None
        """What compares a label with answers."""
        self.ask_judge: Callable[[str, str], Awaitable[tuple[float, float]]] | None = None
        """From a question and an answer to a verdict and its cost."""
        audit = settings.audit
        self._sampler = None if audit is None else _sampler(audit, settings)
        if audit is not None and audit.reference:
            self.drift = Drift(audit, settings, policies, metrics)  # refused before a port opens

    async def start(self) -> None:
        """Open the audit log, and start the drift loop."""
        audit = self._settings.audit
        if audit is None or not (audit.log or audit.reference):
            return
        conceal: Callable[[str], str] | None = None
        audit_log = AuditLog(audit.log or None, self._settings.spec, max_age=30 * 86_400.0)
        await asyncio.to_thread(self._stack.enter_context, audit_log)
        if audit.log and not self._settings.serve.log_texts:
            digest, policies = digests(audit.log), self._policies

            def conceal(text: str) -> str:
                return digest(text, policies.active.classes)

        assert self._sampler is not None  # noqa: S101 - as there are settings
        self._auditor = Auditor(
            self._settings.spec,
            self._sampler,
            audit_log,
            loop=None if self.drift is None else self.drift.loop,
            match_label=self._matcher(asyncio.get_running_loop()),
            conceal=conceal,
            failed=lambda text: log.warning("audit: %s", text),
        )

    async def close(self) -> None:
        """Cancel the audits under way, and work off the rows that wait."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.drift is not None:
            await asyncio.to_thread(self.drift.stop)
        if self._auditor is not None:
            await asyncio.to_thread(self._auditor.close, self.close_seconds)
        await asyncio.to_thread(self._stack.close)

    def consider(self, job: Job, outcome: Outcome) -> None:
        """Keep an answered request; if it is drawn, ask the other nodes first."""
        # A request that chose its operating point shows nothing about the policy in service.
        if self._sampler is None or job.is_chosen:
            self._write(job, outcome, outcome.asked, 0.0)
            return
        key = secrets.token_hex(8)  # clients choose the ids of requests
        if self._auditor is not None:
            draw, number = self._auditor.draw(job.id, key=key)
        else:
            draw, number = self._sampler.draw(key, time.time()), 0
        if not draw.audited:
            self._write(job, outcome, outcome.asked, draw.chance)
            return
        if len(self._tasks) >= self.max_waiting or self._bytes > self.max_bytes:
            self._failed(job, 0.0)
            self._write(job, outcome, outcome.asked, None)
            return
        self._bytes += job.size
        self._labels[job.id] = None
        self._spawn(self._audit(job, outcome, draw.chance, number))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _audit(self, job: Job, outcome: Outcome, chance: float, number: int) -> None:
        try:
            async with self._slots:
                job.work.deadline = Deadline.after(self._settings.serve.timeout)
                calls = await ask_others(job.cascade, job.work, outcome.asked)
        except BaseException:
            self._labels.pop(job.id, None)
            raise
        finally:
            self._bytes -= job.size
        extra = calls[len(outcome.asked) :]
        self._metrics.called(extra)
        spent = sum(call.cost for call in extra)
        answers = {call.node: call for call in calls if call.confidence is not None}
        missing = set(self._settings.spec.names) - answers.keys()
        ineligible = {call.node for call in calls if is_ineligible(call)}
        # A node that cannot take the request would be missing on every such request.
        scores, judging = ({}, 0.0) if missing else await self._judged(job, answers.values())
        if (label := self._labels.pop(job.id, None)) is not None:
            texts = [str(call.prediction or "") for call in answers.values()]
            scores = await self._scores(label, texts)
        spent += judging
        self._write(
            job, outcome, calls, chance if missing <= ineligible else None,
            scores=scores, judging=judging, drawn=None if missing else chance,
        )  # fmt: skip
        if missing:
            self._failed(job, spent)
            return
        if self._auditor is None:
            assert self._sampler is not None  # noqa: S101 - it drew
            self._sampler.settle(spent)
        elif not self._auditor.add(
            job.id, number, chance,
            {name: _audited(call, scores) for name, call in answers.items()}, spent=spent,
            inputs={k: v for k, v in stated_numbers(job.inputs).items() if isinstance(v, float)},
            prompt=hashed_prompt(question_text(job.work.body)),
        ):  # fmt: skip
            self._metrics.audits.labels("lost").inc()
            return
        self._metrics.audits.labels("taken").inc()

    def _failed(self, job: Job, spent: float) -> None:
        self._metrics.audits.labels("failed").inc()
        if self._auditor is not None:
            self._auditor.fail(job.id, spent)
        elif self._sampler is not None:
            self._sampler.settle(spent)

    def _write(
        self, job: Job, outcome: Outcome, calls: Sequence[NodeCall], chance: float | None,
        **facts: Any,
    ) -> None:  # fmt: skip
        self._decisions.write(
            job.id, job.active.version, job.work.body, calls, by=outcome.by, cost=outcome.cost,
            chance=chance, asked={call.node for call in outcome.asked}, capped=outcome.capped,
            classes=job.active.classes, inputs=stated_numbers(job.inputs), **facts,
        )  # fmt: skip

    async def _judged(self, job: Job, calls: Iterable[NodeCall]) -> tuple[dict[str, float], float]:
        """Return the judge's verdict on each different answer, and what they cost."""
        scores: dict[str, float] = {}
        spent = 0.0
        if self.ask_judge is None:
            return scores, spent
        question = question_text(job.work.body)
        for text in dict.fromkeys(str(call.prediction or "") for call in calls):
            if not text:  # no answer can be read
                scores[text] = 0.0
                continue
            try:
                scores[text], cost = await self.ask_judge(question, text)
                spent += cost
            except (UpstreamFailed, Unreadable) as error:
                log.warning("audit: the judge: %s", error)
        return scores, spent

    async def say(self, request: str, label: str | None, score: float | None) -> None:
        """Keep what is right about an earlier request: for every answer, where they are known."""
        if label is not None and request in self._labels:
            self._labels[request] = label  # the row waits for the audit
            label = None
        answers = self._decisions.recent.get(request, {})
        scores = None
        if label is not None and answers:
            verdicts = await self._scores(label, list(answers.values()))
            scores, label = {node: verdicts[text] for node, text in answers.items()}, None
        if not (label is None and score is None and scores is None):
            self._decisions.feedback(
                request, label=label, score=score, scores=scores,
                classes=self._policies.active.classes,
            )  # fmt: skip

    async def _scores(self, label: str, texts: Sequence[str]) -> dict[str, float]:
        """Return by answer whether a label says that it is right."""
        comparer = self.comparer or Comparer(self._settings.compare)
        right = await comparer.right([(text, label) for text in texts])
        return {text: float(is_right) for text, is_right in zip(texts, right, strict=True)}

    def label(self, request: str, label: str) -> bool:
        """Keep the right answer to an audited request; return whether it is one. In a thread."""
        return self._auditor is not None and self._auditor.label(request, label)

    def _matcher(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[str, Sequence[str | None]], str]:
        rule = self._settings.compare

        def match(label: str, predictions: Sequence[str | None]) -> str:
            """Return the prediction that a label states; called in a thread of the auditor."""
            comparer = self.comparer or Comparer(rule)
            work = comparer.right_prediction(rule.label(label) or label, predictions)
            return asyncio.run_coroutine_threadsafe(work, loop).result(30.0)

        return match


def _audited(call: NodeCall, scores: Mapping[str, float]) -> NodeAnswer:
    prediction = None if call.prediction is None else str(call.prediction)
    score = scores.get(prediction or "")
    return NodeAnswer(float(call.confidence or 0.0), prediction, call.cost, score)


def _sampler(audit: AuditSettings, settings: Settings) -> AuditSampler:
    """Return what draws requests; refuse a budget that does not allow one audit."""
    cost = 0.0
    for node in settings.nodes.values():
        calls = {"agreement": node.samples, "self-report": 2}.get(node.confidence, 1)
        cost += node.cost * calls
        if node.verifier:
            cost += settings.nodes[node.verifier].cost
    try:
        return AuditSampler(audit.share, cost=cost, budget=Budget(audit.budget))
    except ArgumentError as error:
        raise CascadeError(f"[serve.audit]: {error}") from None


class Drift:
    """Connects the drift loop, which has a thread, with the policy in service."""

    def __init__(
        self, audit: AuditSettings, settings: Settings, policies: PolicyStore, metrics: Metrics
    ) -> None:
        self._audit, self._policies, self._metrics = audit, policies, metrics
        assert settings.serve.error is not None  # noqa: S101 - as checked with the settings
        self._limits = LoopSettings(settings.serve.error)
        self._reference = Trace.read(audit.reference, settings.source)
        serving = self._serving()
        self._file, self._swaps = policies.active.version, 0
        self._refit = RefitProcess(hidden=_secrets(settings))
        self.loop = Loop(
            serving, self._limits, swap=self._swap, notify=self._notify, refit=self._refit,
            clock=time.time,
        )  # fmt: skip
        policies.swap(serving.policy, serving.ladder, self._file)
        policies.reloaded = self._reloaded

    def _serving(self) -> Any:
        artefact = self._policies.active.artefact
        if not isinstance(artefact, FittedLadder):
            raise CascadeError(
                "[serve.audit]: the loop chooses among the policies of a ladder, and the file "
                "holds one policy; fit a ladder, or remove reference"
            )
        return serving_of(artefact, self._reference, self._limits)

    def stop(self) -> None:
        """Stop a re-fit that runs."""
        self._refit.stop()

    def _reloaded(self) -> None:
        """Begin again with the policy that an operator put into the file; in a thread."""
        serving = self._serving()
        self._file = self._policies.active.version
        self._policies.swap(serving.policy, serving.ladder, self._file)
        self.loop.reset(serving, "a policy was installed")

    def _swap(self, serving: Any) -> None:
        """Put a policy of the loop into service; called in the loop's thread."""
        self._swaps += 1
        version = f"{self._file}+{self._swaps}"
        ladder = getattr(serving, "ladder", None)
        self._policies.swap(serving.policy, ladder, version)
        self._metrics.swaps.inc()
        if self._audit.log and ladder is not None:
            folder = Path(f"{self._audit.log}.policies")
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                save(ladder, folder / f"{version}.ttamer")
            except (OSError, TTamerError) as error:
                log.warning("the policy %s could not be saved: %s", version, error)

    def _notify(self, event: Any) -> None:
        log.info("drift: %s", event)


def _secrets(settings: Settings) -> frozenset[str]:
    """Return the environment variables that hold keys, which a re-fit does not need."""
    names = [settings.serve.token_env]
    if settings.embeddings is not None:
        names.append(settings.embeddings.key_env)
    for node in settings.nodes.values():
        values = node.headers.values()
        names += [node.key_env, *(value.env for value in values if isinstance(value, EnvName))]
    return frozenset(filter(None, names))
