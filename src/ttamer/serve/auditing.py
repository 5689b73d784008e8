"""Audits beside a gateway's traffic.

After a request was answered it may be drawn to be audited: the nodes that were not asked are asked
now, when nobody waits for them, and what all of them said goes to a log and to the drift loop.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ttamer.drift.audit_log import AuditLog, NodeAnswer
from ttamer.drift.auditor import Auditor
from ttamer.drift.sampling import AuditSampler, Budget
from ttamer.errors import ArgumentError, CascadeError
from ttamer.serve.upstream import UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ttamer.drift.loop import Loop
    from ttamer.runtime.outcome import NodeCall
    from ttamer.serve.asking import Node
    from ttamer.serve.audit_settings import AuditSettings
    from ttamer.serve.chat import Question
    from ttamer.serve.metrics import Metrics
    from ttamer.serve.settings import NodeSettings, Settings

__all__ = ["Auditing", "audit_of", "auditing"]

MOST_WAITING = 1000
"""Audits that may wait until nodes are free for them."""
PATIENCE = 10.0
"""Seconds that rows which were taken may take to be worked off at the end."""


def cost_of_asking(node: NodeSettings, nodes: Mapping[str, NodeSettings]) -> float:
    """Return what one answer of a node costs with all calls it needs, but for its tokens."""
    judge = nodes.get(node.verifier or "")
    return node.cost * node.samples + (0.0 if judge is None else judge.cost)


@asynccontextmanager
async def auditing(
    settings: Settings,
    nodes: Mapping[str, Node],
    metrics: Metrics,
    *,
    loop: Loop | None,
    lost: Callable[[str], None],
) -> AsyncIterator[Auditing]:
    """Audit while inside.

    Rows go to the log, and to the loop, where there is one. ``lost`` is called, in another thread,
    with every reason why a row came to nothing.
    """
    audit = _table(settings)
    with ExitStack() as stack:
        log = None
        if audit.log is not None:
            log = AuditLog(audit.log, settings.spec, retention=audit.retention)
            await asyncio.to_thread(stack.enter_context, log)
        auditor = Auditor(settings.spec, audit_of(settings), log=log, loop=loop, failed=lost)
        found = Auditing(settings, nodes, metrics, auditor)
        try:
            yield found
        finally:
            await found.end()
            await asyncio.to_thread(auditor.close, PATIENCE)


class Auditing:
    """Draws requests, and asks about those drawn whoever was not asked."""

    def __init__(
        self, settings: Settings, nodes: Mapping[str, Node], metrics: Metrics, auditor: Auditor
    ) -> None:
        self._settings, self._nodes, self._metrics = settings, nodes, metrics
        self._auditor = auditor
        self._places = asyncio.Semaphore(_table(settings).at_once)
        self._tasks: set[asyncio.Task[None]] = set()

    async def end(self) -> None:
        """End the audits under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def consider(self, question: Question, request: str, asked: Sequence[NodeCall]) -> None:
        """Draw for a request that was answered; if it is audited, ask the others now."""
        # Not by the request's id alone: that is the client's to choose.
        drawn, number = self._auditor.draw(request, key=secrets.token_hex(8))
        if not drawn.audited:
            return
        if len(self._tasks) >= MOST_WAITING:
            self._auditor.fail(request)
            self._metrics.audited("failed", 0.0)
            return
        work = self._ask_others(question, request, asked, number, drawn.chance)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def label(self, request: str, label: str) -> bool:
        """Take the right answer to a request; say whether it was waited for."""
        return self._auditor.label(request, label)

    def status(self) -> dict[str, Any]:
        """Return what the status page shows."""
        return self._auditor.status()

    async def _ask_others(
        self,
        question: Question,
        request: str,
        asked: Sequence[NodeCall],
        number: int,
        chance: float,
    ) -> None:
        said = {
            one.node: NodeAnswer(one.confidence, _text(one.prediction), one.cost)
            for one in asked
            if one.error is None and one.confidence is not None
        }
        others = [name for name in self._settings.spec.names if name not in said]
        spent, result = 0.0, "failed"
        try:
            async with self._places:
                heard = await asyncio.gather(
                    *(self._ask(name, question, request) for name in others)
                )
            spent = sum(cost for _, cost in heard)
            said |= {
                name: answer
                for name, (answer, _) in zip(others, heard, strict=True)
                if answer is not None
            }
            if len(said) == len(self._settings.spec.names):
                is_taken = self._auditor.add(request, number, chance, said, spent=spent)
                result = "taken" if is_taken else "lost"
        finally:
            if result == "failed":
                self._auditor.fail(request, spent)
            self._metrics.audited(result, spent)

    async def _ask(
        self, name: str, question: Question, request: str
    ) -> tuple[NodeAnswer | None, float]:
        """Ask one node; return what it said, if it did, and what that cost."""
        node = self._nodes[name]
        headers = {"x-request-id": request}
        try:
            found = await node.ask(question.kind.path, question.body, headers=headers)
        except UpstreamFailed as error:
            paid = cost_of_asking(node.settings, self._settings.nodes) if error.paid else 0.0
            return None, paid
        return NodeAnswer(found.confidence, found.prediction, found.cost), found.cost


def audit_of(settings: Settings) -> AuditSampler:
    """Return what draws the audited requests; a budget that is too small is refused."""
    audit, nodes = _table(settings), settings.nodes
    cost = sum(cost_of_asking(node, nodes) for node in nodes.values())
    budget = Budget(audit.budget, audit.budget_in_all)
    try:
        return AuditSampler(audit.share, cost=cost, budget=budget, seed=audit.seed)
    except ArgumentError as error:
        raise CascadeError(f"[serve.audit]: {error}") from None


def _table(settings: Settings) -> AuditSettings:
    assert settings.serve.audit is not None  # noqa: S101 - whoever audits has looked
    return settings.serve.audit


def _text(prediction: object) -> str | None:
    return None if prediction is None else str(prediction)
