"""``POST /v1/chat/completions`` and ``/v1/decide``: requests, and the policy's answers to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from ttamer.cascade import SUFFIX
from ttamer.errors import TTamerError
from ttamer.llm.client import Deadline
from ttamer.llm.node import ModelAnswer, ModelNode, Usage, Verification, Work
from ttamer.runtime.cascade import Cascade
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.answering import Relay, path_of, run
from ttamer.serve.audits import Audits
from ttamer.serve.decisions import DecisionLog
from ttamer.serve.inputs import Inputs
from ttamer.serve.policies import Active, Point, PolicyStore
from ttamer.serve.refusals import Refused, json_response
from ttamer.serve.settings import POINTS, Settings
from ttamer.serve.sinks import Metrics

CASCADE = "ttamer"
Above0 = Annotated[float, Meta(gt=0)]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The field ``ttamer`` of a request: at most one operating point, limits, explanations."""

    tradeoff: Annotated[float, Meta(ge=0, le=1)] | None = None
    mistake_cost: Above0 | None = None
    budget: Above0 | None = None
    error: Annotated[float, Meta(ge=0)] | None = None
    max_cost: Above0 | None = None
    timeout: Above0 | None = None
    """Seconds; that of the server holds where it is shorter."""
    inputs: dict[str, str | float | list[float]] | None = None
    """What is known of the request, by name, where the policy reads it."""
    explain: bool = False

    def point(self, allowed: Sequence[str]) -> Point | None:
        """Return the operating point; refuse one that the operator does not allow."""
        stated = [(name, getattr(self, name)) for name in POINTS if getattr(self, name) is not None]
        if len(stated) > 1:
            names = " and ".join(name for name, _ in stated)
            raise Refused(400, "bad_choice", f"ttamer has {names}; keep one", param="ttamer")
        if stated and stated[0][0] not in allowed:
            names = ", ".join(allowed) or "none"
            raise Refused(
                400, "not_allowed", f"{stated[0][0]} is not allowed in requests; allowed: {names}",
                param=f"ttamer.{stated[0][0]}",
            )  # fmt: skip
        return stated[0] if stated else None


class ChatRequest(msgspec.Struct):
    """The fields of a request that the server itself reads; all others are passed on."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str = CASCADE
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ttamer: Choice | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))


@dataclass(slots=True)
class Job:
    """One request on its way."""

    id: str
    chat: ChatRequest
    choice: Choice
    work: Work
    active: Active
    cascade: Cascade
    inputs: dict[str, Any] | None = None
    is_chosen: bool = False
    """Whether the request chose its operating point or its cap on the cost."""
    size: int = 0
    """The bytes of the request."""
    created: int = field(default_factory=lambda: int(time.time()))


class Chat:
    """Answers requests for chat completions."""

    def __init__(
        self,
        settings: Settings,
        policies: PolicyStore,
        nodes: Mapping[str, ModelNode | Verification],
        inputs: Inputs,
        metrics: Metrics,
        decisions: DecisionLog,
        audits: Audits,
    ) -> None:
        self._settings, self._policies, self.nodes = settings, policies, nodes
        self._inputs, self._metrics = inputs, metrics
        self._decisions, self._audits = decisions, audits
        self.may_differ = settings.serve.stream == "last"

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The names that a request may use."""
        name = self._settings.spec.name
        return (CASCADE,) if name in (None, CASCADE) else (CASCADE, str(name))

    async def read(self, content: bytes, request_id: str, headers: Mapping[str, str]) -> Job:
        """Return the work for a request.

        Raises:
            Refused: If it is not valid, or not allowed.
        """
        try:
            body = msgspec.json.decode(content)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise refused_body(error) from None
        return await self.job(body, request_id, headers, size=len(content))

    async def job(
        self, body: Any, request_id: str, headers: Mapping[str, str], *, size: int = 0
    ) -> Job:
        """Return the work for a request that is decoded."""
        try:
            chat = msgspec.convert(body, ChatRequest)
        except msgspec.ValidationError as error:
            raise refused_body(error) from None
        if (chat.n or 1) != 1:
            raise Refused(400, "unsupported", "n must be 1: there is one answer", param="n")
        if chat.model not in self.models:
            raise Refused(
                404, "model_not_found", f"there is no model of that name; use {CASCADE!r}",
                param="model",
            )  # fmt: skip
        choice = chat.ttamer or Choice()
        # Models refuse fields that they do not know.
        body.pop("ttamer", None)
        serve, active = self._settings.serve, self._policies.active
        point = choice.point(serve.allow)
        try:
            cascade = active.cascade(point, choice.max_cost)
        except TTamerError as error:
            raise Refused(400, "bad_choice", str(error), param="ttamer") from None
        seconds = min(serve.timeout, choice.timeout or serve.timeout)
        work = Work(body, Deadline.after(seconds), {"x-request-id": request_id, **headers})
        inputs = await self._inputs.of(body, active, choice.inputs)
        is_chosen = point is not None or choice.max_cost is not None
        return Job(request_id, chat, choice, work, active, cascade, inputs, is_chosen, size)

    async def answer(self, job: Job) -> Response:
        """Return the response to a request that does not stream."""
        outcome = await self.outcome(job)
        return json_response(self.completion(job, outcome), 200, self.headers(job, outcome))

    async def outcome(self, job: Job, relay: Relay | None = None) -> Outcome:
        """Run the policy and record what happened.

        Raises:
            Refused: If no node answered.
        """
        try:
            outcome = await run(job.cascade, job.work, job.id, job.inputs, relay)
        except CascadeFailed as error:
            self._metrics.called(error.asked)
            cost = sum(call.cost for call in error.asked)
            self._decisions.write(
                job.id, job.active.version, job.work.body, error.asked, by=None, cost=cost,
                chance=None,
            )  # fmt: skip
            raise Refused.of(error, job.work.failures) from None
        self._metrics.called(outcome.asked)
        self._metrics.answered(outcome.by)
        if self._settings.serve.log or self._settings.audit is not None:
            self._audits.consider(job, outcome)
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
        if promise := job.active.promise:
            headers["x-ttamer-promise"] = promise
        return headers


def _shown_call(call: NodeCall) -> dict[str, Any]:
    shown = {"node": call.node, "cost": call.cost, "seconds": round(call.seconds, 4)}
    if call.error is not None:
        return {**shown, "failed": call.error.partition(":")[0]}
    return {**shown, "confidence": call.confidence, "prediction": call.prediction}


def refused_body(error: Exception) -> Refused:
    """Return the refusal of a body that is not a request, with the field that is wrong."""
    text = str(error)[:300] if isinstance(error, msgspec.MsgspecError) else "the body is not JSON"
    reason, _, path = text.replace("`", "'").partition(" - at '$.")
    path = path.rstrip("'")
    message = f"{reason} at {path}" if path else reason
    return Refused(400, "invalid_request", message, param=path or None)


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that was asked; without a confidence it gave no answer."""

    node: str
    confidence: float | None = None
    prediction: str | int | bool | None = None


class DecideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``/v1/decide``: the answers so far, in the order in which nodes were asked."""

    asked: Annotated[list[Observation], Meta(max_length=1000)] = []
    key: str = ""
    """The same for all steps of one input, where the policy mixes two."""
    ttamer: Choice | None = None


def decide(content: bytes, active: Active, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the node to ask next, or whose answer to return; and why, and what it costs.

    Args:
        content: The body of the request.
        active: The policy.
        allowed: The operating points that requests may choose.

    Returns:
        ``next`` and ``answer``, one of which is a node, ``why``, ``price`` and the policy's
        version.

    Raises:
        Refused: If the body is not valid, or the answers are not those that the policy asked for.
    """
    try:
        request = msgspec.json.decode(content, type=DecideRequest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refused_body(error) from None
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
                    409, "other_order", f"the policy {step} here, not {observation.node!r}",
                    param="asked",
                )  # fmt: skip
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
