"""What stands behind the gateway: the policy that serves, the nodes, and who watches."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ttamer.errors import CascadeError, TTamerError
from ttamer.outcome import Asked, CascadeFailed, Outcome
from ttamer.serve.asking import Answered, call_cost, nodes_of
from ttamer.serve.chat import CASCADE, CLASSIFY_KIND, KINDS
from ttamer.serve.confidence import Unreadable, answer_text
from ttamer.serve.keys import Keys
from ttamer.serve.limits import Gate, Refused
from ttamer.serve.logs import RequestLog
from ttamer.serve.metrics import Metrics
from ttamer.serve.reloading import Reload, Reloader, load_for
from ttamer.serve.rules import Rules
from ttamer.serve.status import Status
from ttamer.serve.trace_log import TraceLog
from ttamer.serve.tracing import NO_TRACING, Tracing
from ttamer.serve.upstream import UpstreamFailed, open_session

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable

    from ttamer.serve.asking import Node
    from ttamer.serve.chat import Question
    from ttamer.serve.reloading import Artefact, Generation
    from ttamer.serve.served import Served
    from ttamer.serve.settings import ServeSettings, Settings
    from ttamer.serve.tracing import NodeSpan, RequestSpan

__all__ = ["Errand", "Gateway", "NodeFailed", "UnknownModel"]

TOLD_AFTER = 0.02
"""Seconds after which those who watch are told of a request."""
CLIENTS_FAULT = (400, 413, 422)
"""What an upstream answers when the request itself is at fault."""


class NodeFailed(TTamerError):  # noqa: N818 - the name says what happened
    """A node gave no answer; ``kind`` is a word of :data:`ttamer.serve.served.KINDS`."""

    def __init__(self, failure: UpstreamFailed) -> None:
        super().__init__(str(failure))
        self.kind: str = failure.kind
        self.paid = failure.paid
        self.is_clients_fault = failure.status in CLIENTS_FAULT


@dataclass(frozen=True)
class _AnsweredPlainly(Answered):
    """What one node said, and its very bytes."""

    content: bytes = b""


class UnknownModel(Refused):
    """There is no model of that name."""

    status = 404
    code = "model_not_found"
    param = "model"


@dataclass
class Errand:
    """One question on its way through the nodes."""

    question: Question
    request_id: str
    end: float
    """When it must be answered, by ``time.monotonic()``."""
    span: RequestSpan
    clients_fault: set[str] = field(default_factory=set)
    """Nodes that refused the request itself."""

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.end - time.monotonic())

    def headers(self, span: NodeSpan) -> dict[str, str]:
        """Return what upstreams are sent besides the body."""
        return {"x-request-id": self.request_id, **span.headers()}


class Gateway:
    """Everything one server needs, open between ``async with`` and its end."""

    def __init__(
        self,
        settings: Settings,
        artefact: str | os.PathLike[str],
        *,
        log: RequestLog | None = None,
    ) -> None:
        serve = settings.serve
        self.settings = settings
        self.log = RequestLog() if log is None else log
        self.keys = _keys(serve)
        self.admin_keys = None if serve.admin_keys_env is None else Keys.from_env(
            serve.admin_keys_env
        )  # fmt: skip
        self.gate = Gate(most=serve.max_concurrent, queue=serve.queue, wait=serve.timeout)
        self.metrics = Metrics(settings.spec.names, [f"/v1{kind.path}" for kind in KINDS])
        self.metrics.watch_queue(lambda: self.gate.waiting)
        self.tracing = NO_TRACING if serve.otel is None else Tracing.to(serve.otel)
        self.trace_log: TraceLog | None = None
        costs = {node.name: node.cost for node in settings.spec.nodes}
        self.status = Status(costs, settings.spec.name or CASCADE)
        self.names = tuple(dict.fromkeys([settings.spec.name or CASCADE, CASCADE]))
        """The names of the cascade as a model."""
        if taken := set(self.names) & set(settings.spec.names):
            raise CascadeError(
                f"a node is called {taken.pop()!r}, the name of the whole cascade; rename it"
            )
        self._artefact = artefact
        self.reloader: Reloader[Rules] = Reloader(
            artefact, settings.spec.names, self._rules, self._told
        )
        self.ready = False
        self._untold: list[Served] = []
        self._nodes: dict[str, Node] = {}
        self._stack = AsyncExitStack()

    def check(self) -> None:
        """Refuse an artefact that would not do, before anything listens."""
        artefact, version = load_for(self._artefact, self.settings.spec.names)
        self._rules(artefact, version)

    async def __aenter__(self) -> Self:
        serve = self.settings.serve
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(open_session(2 * serve.max_concurrent))
            self._nodes = nodes_of(self.settings, session)
            self.reloader.load()
            if serve.trace_log is not None:
                self.trace_log = TraceLog(
                    serve.trace_log,
                    most_bytes=serve.trace_log_bytes,
                    keep=serve.trace_log_files,
                    on_lost=self.metrics.row_lost,
                )
                stack.callback(self.trace_log.close)
            stack.callback(self.tracing.close)
            if serve.watch:
                await stack.enter_async_context(self.reloader.watching(serve.watch))
            self._stack = stack.pop_all()
        self.ready = True
        self.log.event("start", nodes=len(self._nodes), policy=self.reloader.current.short)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        self.tell()
        self.log.event("stop", running=self.gate.running)
        await self._stack.aclose()

    def finished(self, served: Served, span: RequestSpan) -> None:
        """Tell all who watch what one request did: a moment later, with others that end then.

        Telling each at once kept the next request waiting.
        """
        span.finish(served)
        self._untold.append(served)
        if len(self._untold) == 1:
            asyncio.get_running_loop().call_later(TOLD_AFTER, self.tell)

    def tell(self) -> None:
        """Tell now what has not been told yet."""
        untold, self._untold = self._untold, []
        for served in untold:
            self.metrics.finished(served)
            self.log.finished(served)
            self.status.finished(served)
            if self.trace_log is not None:
                self.trace_log.finished(served)

    def alone(self, model: str) -> str | None:
        """Return the node that a model means, if it is one alone; None for the cascade."""
        names = self.settings.spec.names
        if model in self.names:
            return names[0] if len(names) == 1 else None
        if self.settings.serve.direct and model in names:
            return model
        raise UnknownModel(f"there is no model {model[:64]!r}; ask for {self.names[0]!r}")

    def status_now(self) -> dict[str, Any]:
        """Return all that the status page shows."""
        self.tell()
        current = self.reloader.current
        return self.status.to_dict(
            current.built.frontier,
            version=current.version,
            running=self.gate.running,
            waiting=self.gate.waiting,
            rows_lost=0 if self.trace_log is None else self.trace_log.lost,
        )

    def models(self) -> list[str]:
        """Return the names that a request may ask for."""
        return [*self.names, *(self.settings.spec.names if self.settings.serve.direct else ())]

    async def answer(
        self, errand: Errand, generation: Generation[Rules], alone: str | None
    ) -> Outcome:
        """Answer one question by the cascade, or by one node alone."""
        if alone is not None:
            return await self._answer_alone(errand, alone)
        cascade = generation.built.cascade(errand.question.choice)
        return await cascade.arun(errand, key=errand.request_id, deadline=max(errand.left, 1e-3))

    async def _answer_alone(self, errand: Errand, name: str) -> Outcome:
        """Ask one node. Nothing is compared, so how sure it is matters to classifiers only."""
        start = time.monotonic()
        try:
            if errand.question.kind is CLASSIFY_KIND:
                answered = await self._ask(name, errand)
            else:
                answered = await self._ask_plainly(name, errand)
        except NodeFailed as error:
            seconds = time.monotonic() - start
            cost = self.settings.nodes[name].cost if error.paid else 0.0
            failed = Asked(name, None, None, cost, seconds, f"{error.kind}: {error}")
            late = error.kind == "timeout" and errand.left <= 0
            raise CascadeFailed(f"no node gave an answer: {error}", (failed,), late=late) from None
        seconds = time.monotonic() - start
        sure = None if math.isnan(answered.confidence) else answered.confidence
        asked = Asked(name, answered.prediction, sure, answered.cost, seconds)
        why = f"{name!r} is asked alone"
        return Outcome(
            answered, answered.prediction, name, (asked,), answered.cost, seconds, why, False
        )

    async def _ask(self, name: str, errand: Errand) -> Answered:
        """Ask one node for an answer and for how sure it is of it."""
        span = errand.span.node(name)
        question = errand.question
        try:
            answered = await self._nodes[name].ask(
                question.kind.path, question.body, timeout=errand.left, headers=errand.headers(span)
            )
        except UpstreamFailed as error:
            raise self._failed(name, errand, span, error) from None
        span.finish(cost=answered.cost, confidence=answered.confidence)
        return answered

    async def _ask_plainly(self, name: str, errand: Errand) -> Answered:
        """Ask one node for an answer."""
        span = errand.span.node(name)
        node, question = self._nodes[name], errand.question
        try:
            reply = await node.upstream.ask(
                question.kind.path, question.body, timeout=errand.left, headers=errand.headers(span)
            )
            text = answer_text(reply.body, node.settings.answer)
            cost = call_cost(node.settings, reply.body)
        except Unreadable as unreadable:
            garbage = UpstreamFailed(name, "garbage", str(unreadable))
            raise self._failed(name, errand, span, garbage) from None
        except UpstreamFailed as error:
            raise self._failed(name, errand, span, error) from None
        span.finish(cost=cost)
        return _AnsweredPlainly(
            None, math.nan, text, reply.body, cost, 1, reply.seconds, reply.content
        )

    def _failed(
        self, name: str, errand: Errand, span: NodeSpan, failure: UpstreamFailed
    ) -> NodeFailed:
        failed = NodeFailed(failure)
        if failed.is_clients_fault:
            errand.clients_fault.add(name)
        span.finish(cost=self.settings.nodes[name].cost if failed.paid else 0.0, error=failed)
        return failed

    def node(self, name: str) -> Node:
        """Return a node, ready to be asked."""
        return self._nodes[name]

    def _rules(self, artefact: Artefact, version: str) -> Rules:
        del version

        def asker(name: str) -> Callable[[Errand], Awaitable[Any]]:
            async def ask(errand: Errand) -> dict[str, Any]:
                answered = await self._ask(name, errand)
                return {
                    "prediction": answered.prediction,
                    "confidence": answered.confidence,
                    "answer": answered,
                    "cost": answered.cost,
                }

            return ask

        names = self.settings.spec.names
        return Rules(artefact, self.settings.serve, {name: asker(name) for name in names})

    def _told(self, reload: Reload) -> None:
        self.metrics.policy(reload.version[:16], reload.cause)
        if reload.action != "load":
            self.metrics.reloaded(reload.ok)
        self.log.event("policy", **reload.to_dict())
        self.status.event(reload.action, reload.message, ok=reload.ok)


def _keys(serve: ServeSettings) -> Keys | None:
    if serve.keys_env is not None:
        return Keys.from_env(serve.keys_env)
    return None if serve.keys_file is None else Keys.from_file(serve.keys_file)
