"""What a process serves, without its HTTP: from requests in OpenAI's format to their outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from aiohttp import ClientSession

from ttamer.errors import ArgumentError, TTamerError
from ttamer.llm.client import Client, Deadline, UpstreamFailed, open_session
from ttamer.llm.confidence import question_text
from ttamer.llm.node import ModelNode, Upstream, Verification, Work, open_nodes
from ttamer.llm.settings import NodeSettings
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.audits import Audits
from ttamer.serve.policies import Active, PolicyStore
from ttamer.serve.records import DecisionLog, Metrics
from ttamer.serve.requests import (
    CASCADE,
    ChatRequest,
    Choice,
    DecideRequest,
    Job,
    Refused,
    answer,
    refused_body,
)
from ttamer.serve.settings import Settings

# Makes one call of a policy; a `NodeCall` is one whose answer the client has already.
MakeCall = Callable[[Call], Awaitable[CallResult | NodeCall]]


class Service:
    """The state of one process: its nodes, the policy in service, the log and the audits.

    Args:
        settings: The cascade and its settings.
        policy: The file of the policy; "" in shadow mode.
        force: Whether a policy is served that was fitted for other costs or answers.
        connect: From a node's settings to what is asked; by default its server.

    Raises:
        TTamerError: If something cannot be served, before a port opens.
    """

    embedding_seconds = 2.0  # that a request waits; the client learns a lower limit

    def __init__(
        self,
        settings: Settings,
        policy: str = "",
        *,
        force: bool = False,
        connect: Callable[[NodeSettings, ClientSession], Upstream] = Client,
    ) -> None:
        serve, spec = settings.serve, settings.spec
        self.settings, self._connect = settings, connect
        # The names that a request may use.
        self.models = tuple(dict.fromkeys([CASCADE, spec.name or CASCADE]))
        self.is_ready = False
        self.nodes: dict[str, ModelNode | Verification] = {}
        self.embeddings: Client | None = None
        self.metrics = Metrics()
        self.decisions = DecisionLog(serve.log, spec, texts=serve.log_texts)
        self.policies = PolicyStore(
            policy, settings, self.nodes, self.decisions.digest, force=force
        )
        self.audits = Audits(settings, self.policies, self.nodes, self.metrics, self.decisions)
        gauge = self.metrics.gauge
        gauge("ttamer_log_rows_lost", "Rows of the log lost", lambda: self.decisions.lost)
        gauge("ttamer_policies_refused", "Files refused", lambda: self.policies.refused)
        for name in settings.nodes:
            self.metrics.breakers.labels(name).set_function(partial(self._is_open, name))

    def _is_open(self, name: str) -> float:
        upstream = getattr(self.nodes.get(name), "upstream", None)
        return float(isinstance(upstream, Client) and upstream.breaker.is_open)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the connections to the nodes, the log and the audits."""
        settings = self.settings
        async with open_session() as session:
            if (embeddings := settings.serve.embeddings) is not None:
                self.embeddings = Client.of_embeddings(embeddings, session)
            self.nodes |= open_nodes(
                settings.source,
                settings.nodes,
                lambda node: self._connect(node, session),
                settings.compare,
            )
            # Audits write to the log, which is open first and closed last.
            self.decisions.start()
            self.audits.start()
            watcher = asyncio.create_task(self.policies.watch())
            self.is_ready = True
            try:
                yield
            finally:
                self.is_ready = False
                watcher.cancel()
                with suppress(asyncio.CancelledError):
                    await watcher
                await self.audits.close()
                await asyncio.to_thread(self.decisions.close)

    async def job(
        self,
        body: Any,
        request_id: str,
        headers: Mapping[str, str],
        deadline: Deadline,
        *,
        size: int = 0,
    ) -> Job:
        """Return the work for a request: its decoded body, its id, and the headers to pass on.

        Raises:
            Refused: If it is not valid, or not allowed.
        """
        try:
            chat = msgspec.convert(body, ChatRequest)
        except msgspec.ValidationError as error:
            raise refused_body(error) from None
        if (chat.n or 1) != 1:
            raise Refused(400, "unsupported", "n must be 1: there is one answer", param="n")
        if chat.model not in self.models:
            text = f"there is no model of that name; use {CASCADE!r}"
            raise Refused(404, "model_not_found", text, param="model")
        # Models refuse fields that they do not know.
        body.pop("ttamer", None)
        choice, active = chat.choice, self.policies.active
        point = choice.point(self.settings.serve.allow)
        try:
            cascade = active.cascade(point, choice.max_cost)
        except TTamerError as error:
            raise Refused(400, "bad_choice", str(error), param="ttamer") from None
        deadline = min(deadline, Deadline.after(choice.timeout or deadline.left))
        work = Work(body, deadline, {"x-request-id": request_id, **headers})
        inputs = await self._inputs_of(body, active, choice.inputs or {})
        return Job(request_id, chat, work, active, cascade, inputs, size)

    async def _inputs_of(
        self, body: Mapping[str, Any], active: Active, stated: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the inputs that a policy reads; one that cannot be computed is not known."""
        if not active.reads:
            return None
        inputs = {name: value for name, value in stated.items() if name in active.reads}
        text = question_text(body)
        if "prompt" in active.reads:
            inputs["prompt"] = text
        for name, feature in active.vectors.items():
            if name not in inputs and self.embeddings is not None:
                with suppress(UpstreamFailed):
                    deadline = Deadline.after(self.embedding_seconds)
                    vector = await self.embeddings.embed(text, deadline)
                    if len(vector) == feature.width:
                        inputs[name] = vector
                if name not in inputs:
                    self.metrics.embeddings_missing.inc()
        return inputs

    async def outcome(self, job: Job, make: MakeCall = answer) -> Outcome:
        """Run the policy; its outcome has no answer where the last call was relayed by ``make``.

        Raises:
            Refused: If no node answered.
        """
        try:
            outcome = await _run(job, make)
        except CascadeFailed as error:
            self.metrics.called(error.asked)
            self.decisions.write(job, error.asked, None, None)
            raise Refused.of(error, job.work.failures) from None
        except ArgumentError as error:
            raise Refused(400, "bad_inputs", str(error), param="ttamer.inputs") from None
        except RecursionError:  # it could just be read, and cannot be written
            raise Refused(400, "invalid_request", "the body is nested too deeply") from None
        self.metrics.called(outcome.asked, outcome.by)
        return outcome

    def decide(self, request: DecideRequest) -> dict[str, Any]:
        """Return the node to ask next, or whose answer to return; and why, and what it costs.

        Raises:
            Refused: If the answers are not those that the policy asked for.
        """
        active, choice = self.policies.active, request.ttamer or Choice()
        inputs = dict(choice.inputs or {})
        # Not every policy reads inputs.
        read = {"prompt": inputs.pop("prompt", None), "inputs": inputs} if inputs else {}
        try:
            cascade = active.cascade(choice.point(self.settings.serve.allow), choice.max_cost)
            turn = cascade.policy.session(max_cost=cascade.max_cost, key=request.key, **read)
            for observation in request.asked:
                if turn.next != observation.node:
                    step = "stops" if turn.next is None else f"asks {turn.next!r}"
                    text = f"the policy {step} here, not {observation.node!r}"
                    raise Refused(409, "other_order", text, param="asked")
                if observation.confidence is None:
                    turn.fail()
                else:
                    turn.observe(
                        confidence=observation.confidence, prediction=observation.prediction
                    )
        except TTamerError as error:
            raise Refused(400, "invalid_request", str(error)) from None
        return {
            "next": turn.next,
            "answer": turn.answer if turn.next is None else None,
            "why": turn.explain().why,
            "price": turn.price if turn.next is not None else 0.0,
            "policy": active.version,
        }


async def _run(job: Job, make: MakeCall) -> Outcome:
    """Ask nodes until the policy stops, or the client has the answer of one."""
    start, limit = time.monotonic(), max(job.work.deadline.left, 1e-3)
    try:
        steps = job.cascade.steps(job.work, job.id, limit, job.inputs)
        call = next(steps)
        while not isinstance(result := await make(call), NodeCall):
            call = steps.send(result)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    steps.close()
    calls = (*call.asked, result)
    cost, seconds = sum(asked.cost for asked in calls), time.monotonic() - start
    why = f"whatever it says, the answer of {call.node!r} is returned"
    return Outcome(None, result.prediction, call.node, calls, cost, seconds, why, capped=False)
