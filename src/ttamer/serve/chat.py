"""``POST /v1/chat/completions``: a policy decides whom to ask; the answer as JSON or as events."""

from __future__ import annotations

import logging
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
from ttamer.llm.node import Node, NodeAnswer, Usage, Verification, Work
from ttamer.runtime.cascade import Cascade
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.answering import Relay, path_of, run
from ttamer.serve.audits import Audits
from ttamer.serve.policies import Active, Point, PolicyStore
from ttamer.serve.prompts import Prompts
from ttamer.serve.refusals import Refused, json_response
from ttamer.serve.settings import POINTS, Settings
from ttamer.serve.sinks import DecisionLog, Metrics

log = logging.getLogger("ttamer")
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
    created: int = field(default_factory=lambda: int(time.time()))


class Chat:
    """Answers requests for chat completions."""

    def __init__(
        self,
        settings: Settings,
        policies: PolicyStore,
        nodes: Mapping[str, Node | Verification],
        prompts: Prompts,
        metrics: Metrics,
        decisions: DecisionLog,
        audits: Audits,
    ) -> None:
        self._settings, self._policies, self.nodes = settings, policies, nodes
        self._prompts, self._metrics = prompts, metrics
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
            chat = msgspec.convert(body, ChatRequest)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise _invalid(error) from None
        if (chat.n or 1) != 1:
            raise Refused(400, "unsupported", "n must be 1: there is one answer", param="n")
        if chat.model not in self.models:
            raise Refused(
                404, "model_not_found", f"there is no model of that name; use {CASCADE!r}",
                param="model",
            )  # fmt: skip
        choice = chat.ttamer or Choice()
        body.pop("ttamer", None)
        serve, active = self._settings.serve, self._policies.active
        point = choice.point(serve.allow)
        try:
            cascade = active.cascade(point, choice.max_cost)
        except TTamerError as error:
            raise Refused(400, "bad_choice", str(error), param="ttamer") from None
        seconds = min(serve.timeout, choice.timeout or serve.timeout)
        work = Work(body, Deadline.after(seconds), {"x-request-id": request_id, **headers})
        inputs = self._prompts.inputs(body, active)
        is_chosen = point is not None or choice.max_cost is not None
        return Job(request_id, chat, choice, work, active, cascade, inputs, is_chosen)

    async def answer(self, job: Job) -> Response:
        """Return the response to a request that does not stream."""
        outcome = await self.outcome(job)
        assert isinstance(outcome, Outcome)  # noqa: S101 - nothing was relayed
        return json_response(self.completion(job, outcome), 200, self.headers(job, outcome))

    async def outcome(self, job: Job, relay: Relay | None = None) -> Outcome | tuple[NodeCall, ...]:
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
        calls = outcome.asked if isinstance(outcome, Outcome) else outcome
        by = outcome.by if isinstance(outcome, Outcome) else calls[-1].node
        self._metrics.called(calls)
        self._metrics.answered(by)
        cost = sum(call.cost for call in calls)
        is_capped = isinstance(outcome, Outcome) and outcome.capped
        is_audited = self._settings.serve.log or self._settings.audit is not None
        if is_audited:
            self._audits.consider(job, calls, by=by, cost=cost, capped=is_capped)
        return outcome

    def completion(self, job: Job, outcome: Outcome) -> dict[str, Any]:
        """Return the body of a response."""
        answer: NodeAnswer = outcome.answer
        choice = answer.response["choices"][0]
        facts = self.facts(job, outcome.asked, outcome.by)
        if job.choice.explain:
            facts["why"] = outcome.why
            facts["calls"] = [_shown_call(call) for call in outcome.asked]
        return {
            "id": f"chatcmpl-{job.id}",
            "object": "chat.completion",
            "created": job.created,
            "model": outcome.by.removesuffix(SUFFIX),
            "choices": [{**choice, "index": 0}],
            "usage": self.usage(job, outcome.asked),
            "ttamer": facts,
        }

    def facts(self, job: Job, calls: Sequence[NodeCall], by: str) -> dict[str, Any]:
        """Return who answered, and what that cost."""
        facts: dict[str, Any] = {"by": by.removesuffix(SUFFIX), "path": path_of(calls)}
        facts["policy"] = job.active.version
        if job.work.is_measured:
            facts["cost"] = sum(call.cost for call in calls)
        return facts

    def usage(self, job: Job, calls: Sequence[NodeCall]) -> dict[str, Any]:
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
            stated["cost"] = sum(call.cost for call in calls)
        return stated

    def headers(self, job: Job, outcome: Outcome) -> dict[str, str]:
        """Return the headers that say who answered."""
        headers = {
            "x-ttamer-answered-by": quote(outcome.by.removesuffix(SUFFIX), safe=""),
            "x-ttamer-path": ",".join(quote(name, safe="") for name in path_of(outcome.asked)),
            "x-ttamer-policy": job.active.version,
        }
        if job.work.is_measured:
            cost = f"{sum(call.cost for call in outcome.asked):.10g}"
            headers |= {"x-ttamer-cost": cost, "x-litellm-response-cost": cost}
        if promise := job.active.promise:
            headers["x-ttamer-promise"] = promise
        return headers


def _shown_call(call: NodeCall) -> dict[str, Any]:
    shown = {"node": call.node, "cost": call.cost, "seconds": round(call.seconds, 4)}
    if call.error is not None:
        return {**shown, "failed": call.error.partition(":")[0]}
    return {**shown, "confidence": call.confidence, "prediction": call.prediction}


def _invalid(error: Exception) -> Refused:
    """Return the refusal of a body that is not a request, with the field that is wrong."""
    text = str(error)[:300] if isinstance(error, msgspec.MsgspecError) else "the body is not JSON"
    reason, _, path = text.replace("`", "'").partition(" - at '$.")
    path = path.rstrip("'")
    message = f"{reason} at {path}" if path else reason
    return Refused(400, "invalid_request", message, param=path or None)
