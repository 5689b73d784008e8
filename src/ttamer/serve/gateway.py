"""What stands behind the gateway: the policy that serves, the nodes, and who watches."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ttamer.errors import CascadeError, TTamerError
from ttamer.runtime.calling import Call, call_async
from ttamer.runtime.outcome import CascadeFailed, NodeCall
from ttamer.runtime.reply import error_text
from ttamer.serve.adapting import Adapting, first_serving
from ttamer.serve.asking import call_cost, nodes_of
from ttamer.serve.auditing import audit_of, auditing
from ttamer.serve.chat import CASCADE, CLASSIFY_KIND
from ttamer.serve.confidence import Unreadable, answer_text
from ttamer.serve.guard import Round
from ttamer.serve.keys import Keys
from ttamer.serve.limits import Gate, Refused
from ttamer.serve.logs import RequestLog
from ttamer.serve.metrics import Metrics
from ttamer.serve.reloading import SHORT, Reload, Reloader, load_for
from ttamer.serve.routes import ASKING, POLLED, ROUTES
from ttamer.serve.rules import NotAllowed, Rules
from ttamer.serve.status import Status
from ttamer.serve.trace_log import TraceLog
from ttamer.serve.tracing import NO_TRACING, Tracing
from ttamer.serve.upstream import UpstreamFailed, open_session

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aiohttp import ClientSession

    from ttamer.runtime.outcome import Outcome
    from ttamer.serve.asking import Answered, Node
    from ttamer.serve.auditing import Auditing
    from ttamer.serve.chat import Question
    from ttamer.serve.reloading import Artefact
    from ttamer.serve.rules import Rule
    from ttamer.serve.served import Served
    from ttamer.serve.settings import ServeSettings, Settings
    from ttamer.serve.tracing import NodeSpan, RequestSpan
    from ttamer.serve.upstream import Reply

    _Said = tuple[Answered | Reply, float, str | None, float | None]
    """What a node said, what it cost, what it predicts, and how sure it is."""

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


class UnknownModel(Refused):
    """There is no model of that name."""

    status = 404
    code = "model_not_found"
    param = "model"


@dataclass(slots=True)
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
        found = {"x-request-id": self.request_id}
        found.update(span.headers())
        return found


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
        self.gate = Gate(
            most=serve.max_concurrent,
            queue=serve.queue,
            wait=serve.timeout,
            retry_after=serve.retry_after,
        )
        self.metrics = Metrics(settings.spec.names, ROUTES)
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
        self.round = Round()
        self.auditing: Auditing | None = None
        self.adapting: Adapting | None = None
        self._untold: list[Served] = []
        self._nodes: Mapping[str, Node] = {}
        self._stack = AsyncExitStack()

    def check(self) -> None:
        """Refuse an artefact that would not do, before anything listens."""
        artefact, version = load_for(self._artefact, self.settings.spec.names)
        self._rules(artefact, version)
        if self.settings.serve.audit is not None:
            audit_of(self.settings)

    async def __aenter__(self) -> Self:
        serve = self.settings.serve
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(open_session(2 * serve.max_concurrent))
            self._nodes = self._opened(session)
            self.reloader.load()
            if serve.trace_log is not None:
                self.trace_log = TraceLog(
                    serve.trace_log,
                    most_bytes=serve.trace_log_bytes,
                    keep=serve.trace_log_files,
                    predictions=serve.log_predictions,
                    on_lost=self.metrics.row_lost,
                )
                stack.push_async_callback(asyncio.to_thread, self.trace_log.close)
            stack.push_async_callback(asyncio.to_thread, self.tracing.close)
            if serve.audit is not None:
                self.auditing = await stack.enter_async_context(self._audited())
            await stack.enter_async_context(self.reloader.watching(serve.watch))
            self._stack = stack.pop_all()
        self.ready = True
        self.log.event("start", nodes=len(self._nodes), policy=self.reloader.current.short)
        return self

    def _opened(self, session: ClientSession) -> Mapping[str, Node]:
        """Return what is asked for each node."""
        return nodes_of(self.settings, session)

    @asynccontextmanager
    async def _audited(self) -> AsyncIterator[Auditing]:
        loop = None
        if self.reloader.current.built.serving is not None:
            self.adapting = Adapting(self.settings, self.reloader, self.metrics, self.log)
            loop = self.adapting.loop

        def lost(why: str) -> None:
            self.log.event("audit", message=why)

        async with auditing(
            self.settings, self._nodes, self.metrics, loop=loop, lost=lost
        ) as found:
            try:
                yield found
            finally:
                if self.adapting is not None:
                    self.adapting.stop()

    async def __aexit__(self, *_: object) -> None:
        self.ready = False
        self.tell()
        self.log.event("stop", running=self.gate.running)
        await self._stack.aclose()

    def finished(self, served: Served) -> None:
        """Tell all who watch what one request did: a moment later, with others that end then.

        Telling each at once kept the next request waiting.
        """
        self._untold.append(served)
        if len(self._untold) == 1:
            asyncio.get_running_loop().call_later(TOLD_AFTER, self.tell)

    def tell(self) -> None:
        """Tell now what has not been told yet."""
        untold, self._untold = self._untold, []
        for served in untold:
            self.metrics.finished(served)
            if served.endpoint in ASKING:
                self.status.finished(served)
                if self.trace_log is not None:
                    self.trace_log.finished(served)
        self.log.finished(
            [one for one in untold if one.status >= 400 or one.endpoint not in POLLED]
        )

    def alone(self, model: str) -> str | None:
        """Return the node that a model means, if it is one alone; None for the cascade."""
        names = self.settings.spec.names
        if model in self.names:
            return names[0] if len(names) == 1 else None
        if self.settings.serve.direct and model in names:
            cost, most = self.settings.nodes[model].cost, self.settings.serve.max_cost
            if most is not None and cost > most:
                raise NotAllowed(f"asking {model!r} costs {cost:g}, and max_cost is {most:g} here")
            return model
        raise UnknownModel(f"there is no model {model[:64]!r}; ask for {self.names[0]!r}")

    def status_now(self) -> dict[str, Any]:
        """Return all that the status page shows."""
        self.tell()
        current = self.reloader.current
        serving = current.built.rule(None).version
        return self.status.to_dict(
            current.built.frontier,
            version=current.version if serving == current.short else serving,
            running=self.gate.running,
            waiting=self.gate.waiting,
            rows_lost=0 if self.trace_log is None else self.trace_log.lost,
            drift=None if self.auditing is None else self.auditing.status(),
            admin=self.admin_keys is not None,
        )

    def models(self) -> list[str]:
        """Return the names that a request may ask for."""
        return [*self.names, *(self.settings.spec.names if self.settings.serve.direct else ())]

    async def answer(self, errand: Errand, rule: Rule) -> Outcome:
        """Answer one question by the cascade."""
        return await rule.cascade.arun(
            errand, key=errand.request_id, deadline=max(errand.left, 1e-3)
        )

    async def answer_alone(self, errand: Errand, name: str) -> tuple[Answered | Reply, NodeCall]:
        """Answer one question by one node; nothing is compared.

        Its own response is handed on, but for a classifier's.
        """
        ask: Callable[[str, Errand], Awaitable[Any]] = self._ask_plainly
        if errand.question.kind is CLASSIFY_KIND:
            ask = self._ask
        start, cost, hedge = time.monotonic(), self.settings.nodes[name].cost, self._hedge(name)
        error: Exception | None = None
        calls = paid = 1
        if hedge is None:
            try:
                said = await ask(name, errand)
            except NodeFailed as failed:
                error, paid = failed, int(failed.paid)
        else:
            result = await call_async(Call(partial(ask, name), errand, hedge=hedge))
            said, error, calls, paid = result.returned, result.error, result.calls, result.paid
        seconds = time.monotonic() - start
        if error is not None:
            asked = NodeCall(name, None, None, paid * cost, seconds, error_text(error), calls)
            raise CascadeFailed("no node gave an answer", (asked,)) from None
        answered, cost, prediction, sure = said
        return answered, NodeCall(name, prediction, sure, paid * cost, seconds, None, calls)

    def _hedge(self, name: str) -> float | None:
        """Return after how many seconds a node asked alone is asked again, if that may be paid."""
        serve = self.settings.serve
        if serve.max_cost is not None and 2 * self.settings.nodes[name].cost > serve.max_cost:
            return None
        return serve.hedge

    async def _ask(self, name: str, errand: Errand) -> _Said:
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
        return answered, answered.cost, answered.prediction, answered.confidence

    async def _ask_plainly(self, name: str, errand: Errand) -> _Said:
        """Ask one node for an answer."""
        span = errand.span.node(name)
        node, question = self._nodes[name], errand.question
        try:
            reply = await node.upstream.ask(
                question.kind.path, question.body, timeout=errand.left, headers=errand.headers(span)
            )
            answer_text(reply.body, node.settings.answer)  # an answer without one is no answer
            cost = call_cost(node.settings, reply.body)
        except Unreadable as unreadable:
            garbage = UpstreamFailed(name, "garbage", str(unreadable))
            raise self._failed(name, errand, span, garbage) from None
        except UpstreamFailed as error:
            raise self._failed(name, errand, span, error) from None
        span.finish(cost=cost)
        return reply, cost, None, None

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
        def asker(name: str) -> Callable[[Errand], Awaitable[Any]]:
            async def ask(errand: Errand) -> dict[str, Any]:
                answered, cost, prediction, confidence = await self._ask(name, errand)
                return {
                    "prediction": prediction,
                    "confidence": confidence,
                    "answer": answered,
                    "cost": cost,
                }

            return ask

        nodes = {name: asker(name) for name in self.settings.spec.names}
        serving = first_serving(artefact, self.settings)
        return Rules(artefact, version[:SHORT], self.settings.serve, nodes, serving)

    def _told(self, reload: Reload) -> None:
        if reload.changed:
            self.metrics.policy(reload.version[:16], reload.cause)
        if reload.action != "load":
            self.metrics.reloaded(reload.ok)
            if reload.changed and self.adapting is not None:
                self.adapting.reloaded(reload.cause)
        self.log.event("policy", **reload.to_dict())
        self.status.event(reload.action, reload.message, ok=reload.ok)


def _keys(serve: ServeSettings) -> Keys | None:
    if serve.keys_env is not None:
        return Keys.from_env(serve.keys_env)
    return None if serve.keys_file is None else Keys.from_file(serve.keys_file)
