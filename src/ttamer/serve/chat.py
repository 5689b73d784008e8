"""``POST /v1/chat/completions`` and ``/v1/decide``: requests, and the policy's answers to them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from ttamer.cascade import SUFFIX
from ttamer.errors import ArgumentError, TTamerError
from ttamer.llm.client import Deadline, UpstreamFailed
from ttamer.llm.node import ModelAnswer, ModelNode, Usage, Verification, Work
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.policies import Active, Inputs, PolicyStore
from ttamer.serve.records import DecisionLog, Metrics
from ttamer.serve.requests import (
    CASCADE,
    ChatRequest,
    Choice,
    DecideRequest,
    Job,
    Refused,
    decoded,
    json_response,
    path_of,
    refused_body,
)
from ttamer.serve.settings import Settings

Relay = Callable[[Call], Awaitable[NodeCall | CallResult | None]]
"""Sends a node's own stream to the client where that may be; returns the call if it did, and the
result of one that failed before its first chunk."""


@dataclass(frozen=True)
class Chat:
    """Answers requests for chat completions."""

    settings: Settings
    policies: PolicyStore
    nodes: Mapping[str, ModelNode | Verification]
    inputs: Inputs
    metrics: Metrics
    decisions: DecisionLog
    keep: Callable[[Job, Outcome], None]
    """Logs an outcome that has left, or audits it."""

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The names that a request may use."""
        name = self.settings.spec.name
        return (CASCADE,) if name in (None, CASCADE) else (CASCADE, str(name))

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
            raise Refused(
                404,
                "model_not_found",
                f"there is no model of that name; use {CASCADE!r}",
                param="model",
            )
        choice = chat.ttamer or Choice()
        # Models refuse fields that they do not know.
        body.pop("ttamer", None)
        active, point = self.policies.active, choice.point(self.settings.serve.allow)
        try:
            cascade = active.cascade(point, choice.max_cost)
        except TTamerError as error:
            raise Refused(400, "bad_choice", str(error), param="ttamer") from None
        deadline = min(deadline, Deadline.after(choice.timeout or deadline.left))
        work = Work(body, deadline, {"x-request-id": request_id, **headers})
        inputs = await self.inputs.of(body, active, choice.inputs)
        is_chosen = point is not None or choice.max_cost is not None
        return Job(request_id, chat, choice, work, active, cascade, inputs, is_chosen, size)

    async def answer(self, job: Job) -> Response:
        """Return the response to a request that does not stream."""
        outcome = await self.outcome(job)
        self.keep(job, outcome)
        return json_response(self.completion(job, outcome), 200, self.headers(job, outcome))

    async def outcome(self, job: Job, relay: Relay | None = None) -> Outcome:
        """Run the policy.

        Raises:
            Refused: If no node answered.
        """
        try:
            outcome = await _run(job, relay)
        except CascadeFailed as error:
            self.metrics.called(error.asked)
            cost = sum(call.cost for call in error.asked)
            self.decisions.write(job, error.asked, by=None, cost=cost, chance=None)
            raise Refused.of(error, job.work.failures) from None
        except RecursionError:  # it could just be read, and cannot be written
            raise Refused(400, "invalid_request", "the body is nested too deeply") from None
        self.metrics.called(outcome.asked)
        self.metrics.answered(outcome.by)
        return outcome

    def completion(self, job: Job, outcome: Outcome) -> dict[str, Any]:
        """Return the body of a response."""
        answer: ModelAnswer = outcome.answer
        # Requests have n = 1, and what the policy judged is the first choice.
        choice = answer.response["choices"][0]
        return {
            "id": f"chatcmpl-{job.id}",
            "object": "chat.completion",
            "created": job.created,
            "model": outcome.by.removesuffix(SUFFIX),
            "choices": [{**choice, "index": 0}],
            "usage": self.usage(job, outcome),
            "ttamer": self.facts(job, outcome),
        }

    def facts(self, job: Job, outcome: Outcome) -> dict[str, Any]:
        """Return who answered, and what that cost; on request also why."""
        by, path = outcome.by.removesuffix(SUFFIX), path_of(outcome.asked)
        facts: dict[str, Any] = {"by": by, "path": path, "policy": job.active.version}
        if job.work.is_measured:
            facts["cost"] = outcome.cost
        if job.choice.explain:
            facts["why"] = outcome.why
            facts["calls"] = [_shown_call(call) for call in outcome.asked]
        return facts

    def usage(self, job: Job, outcome: Outcome) -> dict[str, Any]:
        """Return the tokens of all calls; and their cost, which LiteLLM reads of streams."""
        usage: Usage = job.work.usage
        stated: dict[str, Any] = {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
        }
        if usage.cached:
            stated["prompt_tokens_details"] = {"cached_tokens": usage.cached}
        if usage.reasoning:
            stated["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        if job.work.is_measured:  # a gateway books it: better no cost than a guess
            stated["cost"] = outcome.cost
        return stated

    def headers(self, job: Job, outcome: Outcome) -> dict[str, str]:
        """Return the headers that say who answered."""
        headers = {
            "x-ttamer-answered-by": quote(outcome.by.removesuffix(SUFFIX), safe=""),
            "x-ttamer-path": ",".join(quote(name, safe="") for name in path_of(outcome.asked)),
            "x-ttamer-policy": job.active.version,
        }
        if job.work.is_measured:
            cost = f"{outcome.cost:.10g}"
            headers |= {"x-ttamer-cost": cost, "x-litellm-response-cost": cost}
        return headers


async def _run(job: Job, relay: Relay | None) -> Outcome:
    """Ask nodes until the policy stops; without an answer where the last call was relayed."""
    start, left = time.monotonic(), max(job.work.deadline.left, 1e-3)
    try:
        steps = job.cascade.steps(job.work, job.id, left, job.inputs)
        call = next(steps)
        while True:
            relayed = None if relay is None else await relay(call)
            if isinstance(relayed, NodeCall):
                break
            call = steps.send(relayed or await answer(call))
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    except ArgumentError as error:
        raise Refused(400, "bad_inputs", str(error), param="ttamer.inputs") from None
    steps.close()
    calls = (*call.asked, relayed)
    cost, seconds = sum(made.cost for made in calls), time.monotonic() - start
    why = f"whatever it says, the answer of {call.node!r} is returned"
    return Outcome(None, relayed.prediction, call.node, calls, cost, seconds, why, capped=False)


async def answer(call: Call) -> CallResult:
    """Make one call; a node keeps to its time by itself."""
    start = time.monotonic()
    try:
        return CallResult.of(start, await call.function(call.value), None)
    except UpstreamFailed as error:
        return failed(call, error, start)


def failed(call: Call, error: UpstreamFailed, start: float) -> CallResult:
    """Return the result of a call without an answer, which began at ``start``."""
    call.value.failures[call.node] = error
    return CallResult.of(start, None, error)


def _shown_call(call: NodeCall) -> dict[str, Any]:
    shown = {"node": call.node, "cost": call.cost, "seconds": round(call.seconds, 4)}
    if call.error is not None:
        return {**shown, "failed": call.error.partition(":")[0]}
    return {**shown, "confidence": call.confidence, "prediction": call.prediction}


def decide(content: bytes, active: Active, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the node to ask next, or whose answer to return; and why, and what it costs.

    Raises:
        Refused: If the body is not valid, or the answers are not those that the policy asked for.
    """
    request = decoded(content, DecideRequest)
    choice = request.ttamer or Choice()
    inputs = dict(choice.inputs or {})
    # Not every policy reads inputs.
    read = {"prompt": inputs.pop("prompt", None), "inputs": inputs} if inputs else {}
    try:
        cascade = active.cascade(choice.point(allowed), choice.max_cost)
        turn = cascade.policy.session(max_cost=cascade.max_cost, key=request.key, **read)
        for observation in request.asked:
            if turn.next != observation.node:
                step = "stops" if turn.next is None else f"asks {turn.next!r}"
                raise Refused(
                    409,
                    "other_order",
                    f"the policy {step} here, not {observation.node!r}",
                    param="asked",
                )
            if observation.confidence is None:
                turn.fail()
            else:
                turn.observe(confidence=observation.confidence, prediction=observation.prediction)
    except TTamerError as error:
        raise Refused(400, "invalid_request", str(error)) from None
    return {
        "next": turn.next,
        "answer": turn.answer if turn.next is None else None,
        "why": turn.explain().why,
        "price": turn.price if turn.next is not None else 0.0,
        "policy": active.version,
    }
