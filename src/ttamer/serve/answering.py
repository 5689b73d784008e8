"""Driving a policy through its nodes; the same way for JSON and for streams."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from ttamer.errors import ArgumentError
from ttamer.llm.client import UpstreamFailed
from ttamer.llm.node import Work
from ttamer.runtime.calling import Call, CallResult
from ttamer.runtime.cascade import Cascade
from ttamer.runtime.reply import NodeCall, Outcome
from ttamer.serve.requests import Refused

Relay = Callable[[Call], Awaitable[NodeCall | CallResult | None]]
"""Sends a node's own stream to the client where that may be; returns the call if it did, and the
result of one that failed before its first chunk."""


async def run(
    cascade: Cascade, work: Work, key: str, inputs: dict[str, Any] | None,
    relay: Relay | None = None,
) -> Outcome:  # fmt: skip
    """Ask nodes until the policy stops.

    Args:
        cascade: The policy and what asks its nodes.
        work: The request.
        key: Fixes the choice of a policy that mixes two.
        inputs: What is known of the input, where the policy reads it.
        relay: Takes the call whose answer is returned in any case.

    Returns:
        The outcome; without an answer where the last call was relayed to the client.

    Raises:
        CascadeFailed: If no node gave an answer.
        Refused: If the policy cannot read an input.
    """
    start = time.monotonic()
    steps = cascade.steps(work, key, max(work.deadline.left, 1e-3), inputs)
    try:
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
    cost = sum(made.cost for made in calls)
    why = f"whatever it says, the answer of {call.node!r} is returned"
    seconds = time.monotonic() - start
    return Outcome(None, relayed.prediction, call.node, calls, cost, seconds, why, capped=False)


async def answer(call: Call) -> CallResult:
    """Make one call; a node keeps to its time by itself."""
    start = time.monotonic()
    try:
        returned = await call.function(call.value)
    except UpstreamFailed as error:
        return failed(call, error, start)
    return CallResult(returned, None, 1, 1, time.monotonic() - start)


def failed(call: Call, error: UpstreamFailed, start: float) -> CallResult:
    """Return the result of a call without an answer, which began at ``start``."""
    call.value.failures[call.node] = error
    return CallResult(None, error, 1, int(error.paid), time.monotonic() - start)


async def ask_others(cascade: Cascade, work: Work, calls: Sequence[NodeCall]) -> list[NodeCall]:
    """Ask the nodes that were not asked, one after another, and return all calls."""
    result, answered = list(calls), {call.node for call in calls if call.error is None}
    for name, function in cascade.nodes.items():
        if name in answered:
            continue
        asked = await answer(Call(function, work, node=name))
        reply, error = asked.read()
        call = NodeCall(name, None, None, 0.0, asked.seconds, error)
        if reply is not None:
            cost = reply.cost or 0.0
            call = replace(call, prediction=reply[0], confidence=reply.confidence, cost=cost)
        result.append(call)
    return result


def is_last(call: Call, *, may_differ: bool) -> bool:
    """Return whether the policy stops after this call and returns its answer, whatever it is.

    With ``may_differ`` it is enough that it stops.
    """
    session = call.session
    if not session.is_last:
        return False
    return may_differ or all(earlier.error is not None for earlier in call.asked)


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
