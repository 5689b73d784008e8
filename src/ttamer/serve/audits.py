"""Audits: on a share of requests the nodes that were not asked are, once the response has left.

Their rows go to the decision log. Nothing here slows or fails a request: what cannot be done is
counted. With a reference the job of :mod:`ttamer.drift` runs on the log from time to time, in a
process of low priority.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ttamer.drift.audits import AuditSampler
from ttamer.errors import ArgumentError, CascadeError
from ttamer.fitting.ladder import FittedLadder
from ttamer.llm.client import Deadline, UpstreamFailed
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.judging import Judge
from ttamer.llm.node import ModelNode, Usage, Verification, Work
from ttamer.runtime.calling import Call
from ttamer.runtime.cascade import Cascade
from ttamer.runtime.reply import NodeCall, Outcome
from ttamer.serve.policies import PolicyStore
from ttamer.serve.records import DecisionLog, Metrics, text_of
from ttamer.serve.requests import Job, answer, is_ineligible
from ttamer.serve.settings import AuditSettings, Settings

log = logging.getLogger("ttamer")


class Audits:
    """Draws requests for audits, asks the other nodes, and writes the rows."""

    at_once = 4
    max_waiting, max_bytes = 200, 64 * 2**20  # audits that wait, and the bytes of their requests

    def __init__(
        self,
        settings: Settings,
        policies: PolicyStore,
        nodes: Mapping[str, ModelNode | Verification],
        metrics: Metrics,
        decisions: DecisionLog,
    ) -> None:
        self._settings, self._policies, self._nodes = settings, policies, nodes
        self._metrics, self._decisions = metrics, decisions
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bytes = 0
        self._slots = asyncio.Semaphore(self.at_once)
        self._labels: dict[str, str | None] = {}  # of requests whose audit is under way
        audit = settings.serve.audit
        self._judge = Judge("" if audit is None else audit.judge)
        self._sampler = None if audit is None else _sampler(audit, settings)
        reference = "" if audit is None else audit.reference
        # Refused before a port opens, where it cannot run.
        self._drift = DriftJob(settings, reference, policies, metrics) if reference else None

    def start(self) -> None:
        """Start the drift job, where there is one."""
        if self._drift is not None:
            self._spawn(self._drift.run())

    async def close(self) -> None:
        """Cancel what is under way."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def consider(self, job: Job, outcome: Outcome) -> None:
        """Log an answered request; if it is drawn, ask the other nodes first."""
        chance: float | None = 0.0
        # A request that chose its operating point shows nothing about the policy in service.
        if self._sampler is not None and not job.is_chosen:
            # Clients choose the ids of requests, and would choose which are audited.
            is_drawn, chance = self._sampler.draw(secrets.token_hex(8), time.time())
            if is_drawn and len(self._tasks) < self.max_waiting and self._bytes <= self.max_bytes:
                self._bytes += job.size
                self._labels[job.id] = None
                self._spawn(self._audit(job, outcome, chance, self._sampler))
                return
            if is_drawn:
                self._sampler.settle(0.0)
                self._metrics.audits.labels("failed").inc()
                chance = None
        self._decisions.write(job, outcome.asked, outcome, chance)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _audit(
        self, job: Job, outcome: Outcome, chance: float, sampler: AuditSampler
    ) -> None:
        try:
            async with self._slots:
                # What the response says of usage and cost is not to have that of the audit.
                limit = Deadline.after(self._settings.serve.timeout)
                work = replace(
                    job.work, deadline=limit, usage=Usage(), answers={**job.work.answers}
                )
                extra = await self._ask_others(job.cascade, work, outcome.asked)
                job.work.answers |= work.answers
            calls = (*outcome.asked, *extra)
            answered = [call for call in calls if call.confidence is not None]
            missing = set(self._settings.spec.names) - {call.node for call in answered}
            # A node that cannot take the request would be missing on every such request.
            scores, judging = ({}, 0.0) if missing else await self._judged(job, answered)
        except BaseException:  # the server stops: drawn, and not made
            self._decisions.write(job, outcome.asked, outcome, None)
            raise
        finally:
            self._bytes -= job.size
            label = self._labels.pop(job.id, None)
        self._metrics.called(extra)
        sampler.settle(sum(call.cost for call in extra) + judging)
        self._metrics.audits.labels("failed" if missing else "taken").inc()
        ineligible = {call.node for call in calls if is_ineligible(call)}
        drawn = None if missing else chance
        # Where a node failed the row is part of no sample.
        chance_of_others = chance if missing <= ineligible else None
        self._decisions.write(
            job, calls, outcome, chance_of_others, scores=scores, judging=judging, drawn=drawn
        )
        if label is not None:
            self.say(job.id, label, None)

    async def _ask_others(
        self, cascade: Cascade, work: Work, calls: Sequence[NodeCall]
    ) -> list[NodeCall]:
        """Ask the nodes that gave no answer so far, one after another."""
        answered = {call.node for call in calls if call.error is None}
        asked: list[NodeCall] = []
        for node in self._settings.spec.nodes:
            if node.name in answered:
                continue
            result = await answer(Call(cascade.nodes[node.name], work, node=node.name))
            reply, error = result.read()
            prediction, confidence, cost = None, None, result.paid * node.cost
            if reply is not None:
                prediction, confidence = reply.prediction, reply.confidence
                cost = node.cost if reply.cost is None else reply.cost
            asked.append(NodeCall(node.name, prediction, confidence, cost, result.seconds, error))
        return asked

    async def _judged(self, job: Job, calls: Iterable[NodeCall]) -> tuple[dict[str, float], float]:
        """Return the judge's verdict on each different answer, and what they cost."""
        scores: dict[str, float] = {}
        spent, question = 0.0, question_text(job.work.body)
        node = self._nodes.get(self._judge.node)
        if not isinstance(node, ModelNode):  # there is no judge
            return scores, spent
        for text in dict.fromkeys(text_of(job, call) for call in calls):
            if not text:  # no answer can be read
                scores[text] = 0.0
                continue
            work = Work({}, Deadline.after(self._settings.serve.timeout))
            try:
                request = self._judge.request(question, text, None)
                response, cost = await node.call(work, request)
                spent += cost
                scores[text] = self._judge.read(response)
            except (UpstreamFailed, Unreadable) as error:
                log.warning("audit: the judge: %s", error)
        return scores, spent

    def say(self, request: str, label: str | None, score: float | None) -> bool:
        """Keep what is right about an earlier request; return whether its answers are at hand."""
        is_known = request in self._labels or request in self._decisions.recent
        if label is not None and request in self._labels:
            self._labels[request] = label  # the row waits for the audit
            label = None
        answers, scores = self._decisions.recent.get(request, {}), None
        rule = self._settings.compare
        if label is not None and answers:  # compared as texts, which the log may not hold
            scores = {name: float(rule.is_right(text, label)) for name, text in answers.items()}
            label = None
        elif not rule.is_transitive:
            label = None  # it cannot be compared with digests, and would count as another answer
        if not (label is None and score is None and scores is None):
            label = self._policies.active.logged(label)
            self._decisions.feedback(request, label=label, score=score, scores=scores)
        return is_known


def _sampler(audit: AuditSettings, settings: Settings) -> AuditSampler:
    """Return what draws requests; refuse a budget that does not allow one audit."""
    # A judge is asked about each different answer.
    cost = settings.nodes[audit.judge].cost * len(settings.nodes) if audit.judge else 0.0
    cost += sum(node.cost * node.calls for node in settings.nodes.values())
    try:
        return AuditSampler(audit.share, cost=cost, budget=audit.budget)
    except ArgumentError as error:
        raise CascadeError(f"[serve.audit]: {error}") from None


class DriftJob:
    """Runs ``ttamer drift --replace`` on the decision log, in a process of low priority."""

    pause = 60.0  # seconds between two runs; more where a run takes long
    most_busy = 0.05  # of the time
    niceness = 10  # requests have priority
    variables = ("PATH", "HOME", "TMP", "LANG", "LC_", "LD_", "PYTHON", "OMP_", "OPENBLAS_")

    def __init__(
        self, settings: Settings, reference: str, policies: PolicyStore, metrics: Metrics
    ) -> None:
        self._log, self._policies, self._metrics = settings.serve.log, policies, metrics
        policy = Path(policies.path)
        is_ladder = isinstance(policies.active.artefact, FittedLadder)
        if not (is_ladder or Path(f"{policy}.drift").exists()):
            raise CascadeError(
                "[serve.audit]: the loop chooses among the policies of a ladder, and the file "
                "holds one policy; fit a ladder, or remove reference"
            )
        if not os.access(policy.absolute().parent, os.W_OK):
            raise CascadeError(
                f"[serve.audit]: the loop replaces {policy}, and its folder cannot be written; "
                "allow it, or remove reference"
            )
        # -P: a module in the working directory must not take the place of ours.
        self._command = [sys.executable, "-P", "-m", "ttamer", "drift", self._log]
        self._command += ["--policy", policies.path, "--error", repr(settings.serve.error)]
        self._command += ["--reference", reference, "--replace", "--json"]
        # It asks no model: of the environment, where keys are, it gets what programs need.
        self._env = {k: v for k, v in os.environ.items() if k.startswith(self.variables)}

    async def run(self) -> None:
        """Run the job again and again."""
        while True:
            start = time.monotonic()
            if Path(self._log).exists():
                try:
                    await self._run_once()
                except (OSError, ValueError, LookupError) as error:
                    log.warning("drift: %s", error)
            await asyncio.sleep(max(self.pause, (time.monotonic() - start) / self.most_busy))

    async def _run_once(self) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=self._env,
        )
        try:
            with suppress(AttributeError, OSError):  # where the system has no priorities
                os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in (0, 1):
            # The text of an error that is not ours may hold an answer.
            text = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            log.warning("%s", text.partition(": unexpected")[0])
            return
        facts = msgspec.json.decode(output)
        for event in facts["events"]:
            log.info("drift: row %s: %s: %s", event["number"], event["state"], event["text"])
        if facts["replaced"]:
            self._metrics.swaps.inc()
            self._policies.hangup.set()
