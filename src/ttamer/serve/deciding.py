"""``POST /v1/decide``: what the policy does next, for services that ask the models themselves."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ttamer.errors import TTamerError
from ttamer.serve.chat import Choice
from ttamer.serve.policies import Active
from ttamer.serve.refusals import Refused


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that was asked; without a confidence it gave no answer."""

    node: str
    confidence: float | None = None
    prediction: str | int | bool | None = None


class DecideRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body: the answers so far, in the order in which the nodes were asked."""

    asked: Annotated[list[Observation], Meta(max_length=1000)] = []
    key: str = ""
    """The same for all steps of one input, where the policy mixes two."""
    inputs: dict[str, Any] | None = None
    ttamer: Choice | None = None


def decide(content: bytes, active: Active, allowed: tuple[str, ...]) -> dict[str, Any]:
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
        raise Refused(400, "invalid_request", str(error)[:300].replace("`", "'")) from None
    choice = request.ttamer or Choice()
    try:
        cascade = active.cascade(choice.point(allowed), choice.max_cost)
        known: dict[str, Any] = {}  # not every policy takes it
        if request.inputs:
            known = {"prompt": request.inputs.get("prompt"), "inputs": dict(request.inputs)}
            known["inputs"].pop("prompt", None)
        turn = cascade.policy.session(max_cost=cascade.max_cost, key=request.key, **known)
        for given in request.asked:
            if turn.next != given.node:
                wanted = "stops" if turn.next is None else f"asks {turn.next!r}"
                raise Refused(
                    409, "other_order", f"the policy {wanted} here, and was told of {given.node!r}",
                    param="asked",
                )  # fmt: skip
            if given.confidence is None:
                turn.fail()
            else:
                turn.observe(confidence=given.confidence, prediction=given.prediction)
    except TTamerError as error:
        raise Refused(400, "invalid_request", str(error)) from None
    return {
        "next": turn.next,
        "answer": turn.answer if turn.next is None else None,
        "why": turn.explain().why,
        "price": turn.price if turn.next is not None else 0.0,
        "policy": active.version,
    }
