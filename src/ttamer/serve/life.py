"""One request's life.

key -> body -> a place -> what it asks -> who may answer -> the answer, in OpenAI's shape. Whatever
happens, a request gets one response, and those who watch are told once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote

from ttamer.runtime.outcome import CascadeFailed, Outcome
from ttamer.serve import chat
from ttamer.serve.gateway import Errand, NodeFailed
from ttamer.serve.guard import Guard
from ttamer.serve.limits import Busy, ClientGone, Refused, parse_json, read_body
from ttamer.serve.refusing import (
    INTERNAL,
    Rejected,
    SlowBody,
    check_content_type,
    check_key,
    send_refusal,
)
from ttamer.serve.relaying import relayed_events
from ttamer.serve.served import Served
from ttamer.serve.upstream import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ttamer.runtime.outcome import NodeCall
    from ttamer.serve.chat import Kind, Question
    from ttamer.serve.exchange import Exchange
    from ttamer.serve.gateway import Gateway
    from ttamer.serve.rules import Rule
    from ttamer.serve.tracing import RequestSpan

__all__ = ["Life"]

GRACE = 5.0
"""Seconds beyond its deadline in which a response must have been sent."""
EARLY = 0.005
"""Seconds by which a timer may go off too soon."""
CHOICES = {name: f"x-ttamer-{name}".encode() for name in ("tradeoff", "budget", "error")}
_JSON = {"content-type": "application/json"}
_LATE = Rejected(504, "deadline", "no model answered in time")


class Life:
    """One request that asks nodes, from its first byte to its last."""

    def __init__(self, gateway: Gateway, exchange: Exchange, kind: Kind) -> None:
        self._gateway, self._exchange, self._kind = gateway, exchange, kind
        self._generation = gateway.reloader.current  # it finishes on the policy it began with
        self._policy = self._generation.short
        self._asked: tuple[NodeCall, ...] = ()
        self._by: str | None = None
        self._is_capped = False
        self._error: str | None = None
        self._has_body = False

    async def live(self) -> None:
        """See it through."""
        gateway, exchange = self._gateway, self._exchange
        gateway.metrics.started()
        span = gateway.tracing.request(
            f"/v1{self._kind.path}",
            traceparent=exchange.header(b"traceparent"),
            tracestate=exchange.header(b"tracestate"),
        )
        try:
            seconds = gateway.settings.serve.timeout + GRACE
            with Guard(gateway.round, exchange.receive, seconds) as guard:
                await self._serve(span, guard)
        except Refused as error:
            await self._refuse(error)
        except TimeoutError:
            await self._refuse(_LATE if self._has_body else SlowBody())
        except asyncio.CancelledError:
            self._error = "cancelled"
            raise
        except Exception as error:
            gateway.log.failure(exchange.request_id, error)
            self._error = "internal"
            if not exchange.status:
                await exchange.send_json(500, INTERNAL)
        finally:
            served = self._served()
            span.finish(served)
            gateway.finished(served)

    async def _serve(self, span: RequestSpan, guard: Guard) -> None:
        gateway, exchange, serve = self._gateway, self._exchange, self._gateway.settings.serve
        check_key(gateway.keys, exchange)
        question = await self._read()
        guard.look_out()
        errand = Errand(question, exchange.request_id, exchange.start + serve.timeout, span)
        rule = self._generation.built.rule(question.choice)
        alone = gateway.alone(question.model)
        self._policy = rule.version
        exchange.more_headers["x-ttamer-policy"] = rule.version
        if rule.promise is not None and question.model in gateway.names:
            exchange.more_headers["x-ttamer-promise"] = rule.promise
        async with gateway.gate.place(errand.left):
            if alone is None:
                await self._answer(errand, rule)
            elif question.stream:
                await self._relay(errand, alone)
            else:
                await self._answer_alone(errand, alone)

    async def _read(self) -> Question:
        """Read all of the request, and check it."""
        exchange, serve = self._exchange, self._gateway.settings.serve
        check_content_type(exchange)
        body = await read_body(
            exchange.receive, most=serve.max_body, content_length=exchange.header(b"content-length")
        )
        self._has_body = True
        question = chat.question_from(parse_json(body, deepest=serve.max_depth), self._kind)
        return _with_header_choice(question, exchange)

    async def _answer(self, errand: Errand, rule: Rule) -> None:
        exchange, question = self._exchange, errand.question
        try:
            outcome = await self._gateway.answer(errand, rule)
        except CascadeFailed as error:
            self._asked = error.asked
            raise _failure(error, errand) from None
        self._asked, self._by, self._is_capped = outcome.asked, outcome.by, outcome.capped
        exchange.more_headers |= _path_headers(outcome.by, outcome.path, outcome.cost)
        whole = chat.completed(question, outcome, exchange.request_id)
        if question.stream:
            await exchange.send_events(_each(chat.events(question, whole)))
        else:
            await exchange.send_json(200, whole)
        if self._gateway.auditing is not None and question.choice is None:
            self._gateway.auditing.consider(question, exchange.request_id, outcome.asked)

    async def _answer_alone(self, errand: Errand, name: str) -> None:
        exchange = self._exchange
        try:
            answered, asked = await self._gateway.answer_alone(errand, name)
        except CascadeFailed as error:
            self._asked = error.asked
            raise _failure(error, errand) from None
        self._asked, self._by = (asked,), name
        exchange.more_headers |= _path_headers(name, (name,), asked.cost)
        if isinstance(answered, Reply):
            await exchange.send_bytes(200, answered.content, _JSON)  # its own bytes
            return
        why = f"{name!r} is asked alone"
        outcome = Outcome(
            answered, asked.prediction, name, (asked,), asked.cost, asked.seconds, why, capped=False
        )
        whole = chat.completed(errand.question, outcome, exchange.request_id)
        await exchange.send_json(200, whole)

    async def _relay(self, errand: Errand, name: str) -> None:
        """Hand one node's stream on as it comes."""
        exchange = self._exchange
        async with relayed_events(self._gateway, errand, name) as relayed:
            try:
                chunks, content_type = await relayed.begin()
                exchange.more_headers |= _path_headers(name, (name,), relayed.cost)
                async with aclosing(chunks):
                    await exchange.send_events(chunks, content_type)
            except NodeFailed as error:
                failed = CascadeFailed(f"no node gave an answer: {error}")
                raise _failure(failed, errand) from None
            finally:
                self._asked = (relayed.asked(),)
                self._by = name if relayed.has_ended else None

    async def _refuse(self, error: Refused) -> None:
        exchange = self._exchange
        self._error = error.code
        if isinstance(error, ClientGone):
            return
        if isinstance(error, Busy):
            self._gateway.metrics.refused()
        if not exchange.status:
            await send_refusal(exchange, error)
        elif exchange.is_stream:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await exchange.send_error_event(chat.error_of(error))

    def _served(self) -> Served:
        exchange, asked = self._exchange, self._asked
        gone = self._error == ClientGone.code
        return Served(
            exchange.request_id,
            f"/v1{self._kind.path}",
            ClientGone.status if gone else exchange.status or 500,
            exchange.seconds,
            self._policy,
            asked,
            self._by,
            math.fsum([one.cost for one in asked]),
            self._is_capped,
            sum([one.calls for one in asked]) - len(asked),
            self._error,
        )


def _with_header_choice(question: Question, exchange: Exchange) -> Question:
    """Take what the headers choose; twice over is refused."""
    choices = [] if question.choice is None else [question.choice]
    for name, header in CHOICES.items():
        text = exchange.header(header)
        if text is None:
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Rejected(400, "bad_header", f"the header x-ttamer-{name} must be a number")
        choices.append((name, value))
    if len(choices) > 1:
        raise Rejected(400, "bad_choice", "choose one of tradeoff, budget and error, once")
    return dataclasses.replace(question, choice=choices[0]) if choices else question


def _failure(error: CascadeFailed, errand: Errand) -> Refused:
    """Return what the client is told when no node answered: how many, never what they said."""
    nodes = [one.node for one in error.asked]
    if nodes and errand.clients_fault >= set(nodes):
        return Rejected(400, "refused_upstream", "the model refused the request as malformed")
    if error.late or errand.left <= EARLY:
        return _LATE
    return Rejected(502, "upstream_failed", "no model gave an answer that can be used")


def _path_headers(by: str, path: tuple[str, ...], cost: float) -> dict[str, str]:
    return {
        "x-ttamer-answered-by": _quoted(by),
        "x-ttamer-path": ",".join(map(_quoted, path)),
        "x-ttamer-cost": f"{cost:.10g}",
    }


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return quote(name, safe="")


async def _each(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
