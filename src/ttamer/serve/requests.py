"""What clients send, as structs, and what they get: answers and refusals in OpenAI's form."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from ttamer.cascade import SUFFIX
from ttamer.llm.client import UpstreamFailed
from ttamer.llm.node import ModelAnswer, Work
from ttamer.llm.settings import Above0
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.cascade import Cascade
from ttamer.runtime.reply import CascadeFailed, NodeCall, Outcome
from ttamer.serve.policies import Active
from ttamer.serve.settings import Point, Points

CASCADE = "ttamer"
REQUEST_ID = r"^[A-Za-z0-9._-]{1,64}$"
T = TypeVar("T")


class Refused(Exception):
    """A request that is not answered.

    >>> Refused(503, "overloaded", "busy", retry_after=1).response().headers["retry-after"]
    '1'
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float = 0,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "code": self.code, "param": self.param}
        return {"error": error}

    def response(self) -> Response:
        """Return the response."""
        headers = {"retry-after": str(max(1, round(self.retry_after)))} if self.retry_after else {}
        return json_response(self.body, self.status, headers)

    @classmethod
    def of(cls, error: CascadeFailed, failures: Mapping[str, UpstreamFailed]) -> Refused:
        """Return what a client is told where no node answered; never an upstream's own text."""
        causes = [cause for cause in failures.values() if cause.kind != "ineligible"]
        if failures and not causes:
            details = "; ".join(map(str, failures.values()))
            return cls(400, "not_supported", f"no model takes this request: {details}")
        if error.late or any(cause.kind == "timeout" for cause in causes):
            return cls(504, "timeout", "no answer within the time limit")
        if causes and all(cause.refuses_request for cause in causes):
            code = next((cause.code for cause in causes if cause.code), "")
            invalid = "every model refused the request as invalid"
            text = UpstreamFailed.known_codes.get(code, invalid)
            return cls(400, code or "refused", text)
        wait = max((cause.retry_after for cause in causes), default=0.0)
        if causes and all(cause.kind in ("busy", "open", "queue") for cause in causes):
            return cls(503, "overloaded", "every model is busy; try again", retry_after=wait or 1)
        return cls(502, "no_answer", "no model gave an answer", retry_after=wait)


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a JSON body."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def decoded(content: bytes, kind: type[T]) -> T:
    """Return a body as a struct; refuse one that is none, with the field that is wrong."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, of how deep it is
        raise refused_body(error) from None


def refused_body(error: Exception) -> Refused:
    """Return the refusal of a body that is not a request, with the field that is wrong."""
    text = str(error)[:300] if isinstance(error, msgspec.MsgspecError) else "the body is not JSON"
    reason, _, path = text.replace("`", "'").partition(" - at '$.")
    path = path.rstrip("'")
    message = f"{reason} at {path}" if path else reason
    return Refused(400, "invalid_request", message, param=path or None)


class Choice(Points, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field ``ttamer`` of a request: at most one operating point, limits, explanations."""

    max_cost: Above0 | None = None
    # Seconds; that of the server holds where it is shorter
    timeout: Above0 | None = None
    # What is known of the request, by name, where the policy reads it
    inputs: dict[str, str | float | list[float]] | None = None
    explain: bool = False

    def point(self, allowed: Sequence[str]) -> Point | None:
        """Return the operating point; refuse one that the operator does not allow."""
        stated = self.stated
        if len(stated) > 1:
            names = " and ".join(name for name, _ in stated)
            raise Refused(400, "bad_choice", f"ttamer has {names}; keep one", param="ttamer")
        if stated and stated[0][0] not in allowed:
            names = ", ".join(allowed) or "none"
            raise Refused(
                400,
                "not_allowed",
                f"{stated[0][0]} is not allowed in requests; allowed: {names}",
                param=f"ttamer.{stated[0][0]}",
            )
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
    def choice(self) -> Choice:
        """What the request states of itself."""
        return self.ttamer or Choice()

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))


@dataclass(slots=True)
class Job:
    """One request that is answered."""

    id: str
    chat: ChatRequest
    work: Work
    active: Active
    cascade: Cascade
    inputs: dict[str, Any] | None = None
    size: int = 0  # the bytes of the request
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_chosen(self) -> bool:
        """Whether the request chose its operating point or its cap on the cost."""
        return bool(self.chat.choice.stated) or self.chat.choice.max_cost is not None


async def answer(call: Call) -> CallResult:
    """Make one call; a node keeps to its time by itself."""
    start = time.perf_counter()
    try:
        return CallResult.of(start, await call.function(call.value), None)
    except UpstreamFailed as error:
        return failed(call, error, start)


def failed(call: Call, error: UpstreamFailed, start: float) -> CallResult:
    """Return the result of a call without an answer, which began at ``start``."""
    call.value.failures[call.node] = error
    return CallResult.of(start, None, error)


def is_ineligible(call: NodeCall) -> bool:
    """Return whether a node was not asked as it could not take the request."""
    return (call.error or "").startswith("ineligible:")


def path_of(calls: Sequence[NodeCall]) -> list[str]:
    """Return the nodes that were asked.

    >>> calls = [NodeCall("a", None, None, 0, 0, "ineligible: no"), NodeCall("b", "x", 0.5, 1, 0)]
    >>> path_of(calls)
    ['b']
    """
    return [call.node for call in calls if not is_ineligible(call)]


class Answered(NamedTuple):
    """A request and its outcome, as clients see them."""

    job: Job
    outcome: Outcome

    @property
    def model(self) -> str:
        """The node that answered, also where its answer was verified."""
        return self.outcome.by.removesuffix(SUFFIX)

    def body(self) -> dict[str, Any]:
        """Return the body of a response."""
        answer: ModelAnswer = self.outcome.answer
        # Requests have n = 1, and what the policy judged is the first choice.
        choice = answer.response["choices"][0]
        return {
            "id": f"chatcmpl-{self.job.id}",
            "object": "chat.completion",
            "created": self.job.created,
            "model": self.model,
            "choices": [{**choice, "index": 0}],
            "usage": self.usage(),
            "ttamer": self.facts(),
        }

    def facts(self) -> dict[str, Any]:
        """Return who answered, and what that cost; on request also why."""
        job, outcome = self.job, self.outcome
        facts: dict[str, Any] = {"by": self.model, "path": path_of(outcome.asked)}
        facts["policy"] = job.active.version
        if job.work.is_measured:
            facts["cost"] = outcome.cost
        if job.chat.choice.explain:
            facts["why"] = outcome.why
            facts["calls"] = [_shown_call(call) for call in outcome.asked]
        return facts

    def usage(self) -> dict[str, Any]:
        """Return the tokens of all calls; and their cost, which LiteLLM reads of streams."""
        usage = self.job.work.usage
        stated: dict[str, Any] = {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
        }
        if usage.cached:
            stated["prompt_tokens_details"] = {"cached_tokens": usage.cached}
        if usage.reasoning:
            stated["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        if self.job.work.is_measured:  # a gateway books it: better no cost than a guess
            stated["cost"] = self.outcome.cost
        return stated

    def headers(self) -> dict[str, str]:
        """Return the headers that say who answered."""
        headers = {
            "x-ttamer-answered-by": quote(self.model, safe=""),
            "x-ttamer-path": ",".join(quote(n, safe="") for n in path_of(self.outcome.asked)),
            "x-ttamer-policy": self.job.active.version,
        }
        if self.job.work.is_measured:
            cost = f"{self.outcome.cost:.10g}"
            headers |= {"x-ttamer-cost": cost, "x-litellm-response-cost": cost}
        return headers


def _shown_call(call: NodeCall) -> dict[str, Any]:
    shown = {"node": call.node, "cost": call.cost, "seconds": round(call.seconds, 4)}
    if call.error is not None:
        return {**shown, "failed": call.error.partition(":")[0]}
    return {**shown, "confidence": call.confidence, "prediction": call.prediction}


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that was asked; without a confidence it gave no answer."""

    node: str
    confidence: float | None = None
    prediction: str | int | bool | None = None


class DecideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``/v1/decide``: the answers so far, in the order in which nodes were asked."""

    asked: Annotated[list[Observation], Meta(max_length=1000)] = []
    # The same for all steps of one input, where the policy mixes two
    key: str = ""
    ttamer: Choice | None = None


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /v1/feedback``: a label or a score for an earlier answer."""

    # The id of the request: its header ``x-request-id``
    request: Annotated[str, Meta(pattern=REQUEST_ID)]
    # The right answer
    label: Annotated[str, Meta(max_length=2**16)] | None = None
    # How good the answer was; thumbs are 1 and 0
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
