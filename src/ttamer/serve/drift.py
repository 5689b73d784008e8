"""Audits and the drift loop beside a gateway's traffic.

After the response, a request may be drawn for an audit: the nodes that were not asked are asked
then, and the answers of all nodes go to the audit log and to the drift loop
(:mod:`ttamer.drift.loop`), which works in a thread. Its decisions become the active policy, its
steps become log lines and metrics, and an operator can hold, release, roll back or retry it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections import deque
from contextlib import ExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._files import atomic_write
from ttamer.artefact.files import save
from ttamer.drift.audit_log import AuditLog, NodeAnswer as AuditAnswer
from ttamer.drift.auditor import Auditor
from ttamer.drift.loop import CertifiedServing, Loop, serving_of
from ttamer.drift.refit import RefitProcess
from ttamer.drift.sampling import AuditSampler, Budget
from ttamer.errors import ArgumentError, CascadeError, TTamerError
from ttamer.fitted.ladder import FittedLadder
from ttamer.serve.bill import Bill
from ttamer.serve.upstreams.embedding import comparer_of
from ttamer.serve.upstreams.upstream import CallContext, UpstreamFailed
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ttamer.drift.loop import Event, Serving
    from ttamer.runtime.reply import NodeCall
    from ttamer.serve.config import AuditSettings, NodeSettings, Settings
    from ttamer.serve.observability.logging import JsonLog
    from ttamer.serve.observability.metrics import Metrics
    from ttamer.serve.policies import Artefact, PolicyStore
    from ttamer.serve.processes.owner import Notice, PolicyBoard
    from ttamer.serve.request import RequestContext
    from ttamer.serve.upstreams.embedding import TextVectors
    from ttamer.serve.upstreams.node import Node

    Conceal = Callable[[str, Artefact], str]
    AnsweredCall = tuple[str, str | None, float, float, Mapping[str, float] | None]
    """The node, its prediction, confidence and cost, and its further columns."""

__all__ = [
    "ACTIONS",
    "Audits",
    "DriftControl",
    "answered",
    "audit_from",
    "concealer",
    "open_audits",
    "save_serving",
    "secret_names",
    "starting_policy",
]

MAX_WAITING = 1000
"""The number of audits that may wait for a free slot."""
RECENT_AUDITS = 200
"""The number of audits over which a client's share is limited."""
MIN_RECENT = 20
"""The number of audits before a client's share is limited."""
CLOSE_TIMEOUT = 10.0
"""The seconds that accepted rows may take to be processed when the gateway stops."""
LABEL_TIMEOUT = 30.0
"""The seconds in which a label must have been compared with the answers of its row."""
ACTIONS = {
    "hold": Loop.hold,
    "release": Loop.release,
    "rollback": Loop.roll_back,
    "retry": Loop.retry,
}
"""The actions that an operator has over the drift loop."""


def concealer(key: bytes) -> Conceal:
    """Return a function from an answer and an artefact to the text that files keep.

    Equal answers have equal texts. The artefact's own classes stay as they are: its file holds
    them, and its decisions depend on them. Other texts become hashes under the key.

    Args:
        key: A secret of the process.

    Returns:
        The function.
    """

    def conceal(text: str, artefact: Artefact) -> str:
        if text in getattr(artefact.fitted, "classes", ()):
            return text
        return f"#{blake2b(text.encode(), key=key, digest_size=16).hexdigest()}"

    return conceal


def node_cost(node: NodeSettings, nodes: Mapping[str, NodeSettings]) -> float:
    """Return the cost of one answer with all calls it needs, without its tokens."""
    verifier = nodes.get(node.verifier or "")
    calls = 2 if node.confidence == "self-report" else node.samples
    return node.cost * calls + (0.0 if verifier is None else verifier.cost)


def audit_from(settings: Settings) -> AuditSampler:
    """Return the rule that draws requests for audits; refuse a budget that is too small."""
    audit, nodes = _audit_settings(settings), settings.nodes
    cost = sum(node_cost(node, nodes) for node in nodes.values())
    budget = Budget(audit.budget, audit.budget_in_all)
    try:
        return AuditSampler(audit.share, cost=cost, budget=budget, seed=audit.seed)
    except ArgumentError as error:
        raise CascadeError(f"[serve.audit]: {error}") from None


def _audit_settings(settings: Settings) -> AuditSettings:
    if settings.serve.audit is None:
        raise CascadeError("[serve.audit]: is missing")
    return settings.serve.audit


@asynccontextmanager
async def open_audits(
    settings: Settings,
    nodes: Mapping[str, Node],
    metrics: Metrics,
    *,
    loop: Loop | None,
    conceal: Callable[[str], str] | None,
    lost: Callable[[str], None],
    texts: TextVectors | None = None,
) -> AsyncIterator[Audits]:
    """Audit requests inside the block.

    Rows go to the log, and to the loop where it runs. ``conceal`` returns what the log keeps
    instead of an answer. ``lost`` is called, in another thread, with the reason why a row was lost.
    ``texts`` embeds answers, where they are compared so.
    """
    audit = _audit_settings(settings)
    event_loop = asyncio.get_running_loop()

    def match_label(label: str, predictions: Sequence[str | None]) -> str:
        """Return the prediction that a label states; called in a thread of the auditor."""
        bill = Bill()
        comparer = comparer_of(settings.serve.compare, texts, CallContext(bill=bill))
        work = comparer.right_prediction(label, predictions)
        try:
            return asyncio.run_coroutine_threadsafe(work, event_loop).result(LABEL_TIMEOUT)
        finally:
            metrics.audit_paid(bill.cost, bill.estimated)

    with ExitStack() as stack:
        log = None
        if audit.log is not None:
            log = AuditLog(audit.log, settings.spec, retention=audit.retention)
            await asyncio.to_thread(stack.enter_context, log)
        auditor = Auditor(
            settings.spec,
            audit_from(settings),
            log=log,
            loop=loop,
            match_label=match_label,
            conceal=conceal,
            failed=lost,
        )
        audits = Audits(settings, nodes, metrics, auditor, texts)
        try:
            yield audits
        finally:
            await audits.stop()
            await asyncio.to_thread(auditor.close, CLOSE_TIMEOUT)


class Audits:
    """Draws requests for audits, and asks the nodes that were not asked."""

    def __init__(
        self,
        settings: Settings,
        nodes: Mapping[str, Node],
        metrics: Metrics,
        auditor: Auditor,
        texts: TextVectors | None = None,
    ) -> None:
        self._texts = texts
        self._nodes, self._metrics = nodes, metrics
        self.change(settings)
        self._auditor = auditor
        self._slots = asyncio.Semaphore(_audit_settings(settings).at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._recent: deque[str] = deque(maxlen=RECENT_AUDITS)

    def change(self, settings: Settings) -> None:
        """Take settings that were reloaded: the API keys may be others."""
        self._settings = settings
        self._has_clients = sum("ask" in key.roles for key in settings.serve.key) > 1

    async def stop(self) -> None:
        """Cancel the audits that run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def skip(self, count: int) -> None:
        """Count requests that other processes answered and did not draw."""
        self._auditor.skip(count)

    def consider(
        self, request: RequestContext, asked: Sequence[NodeCall], draw: str | None = None
    ) -> None:
        """Draw for an answered request; if it is drawn, ask the other nodes now."""
        # A client chooses the request's id, so the draw needs another key.
        drawn, number = self._auditor.draw(request.key, key=draw or secrets.token_hex(8))
        if not drawn.audited:
            return
        if self._has_too_many(request.client):
            self._auditor.fail(request.key)
            return
        signals = request.signals or {}
        is_full = len(self._tasks) >= MAX_WAITING
        if is_full or signals.keys() < set(self._settings.serve.signal_names):
            self._auditor.fail(request.key)
            self._metrics.audited("failed", 0.0)
            return
        work = self._audit(request, asked, number, drawn.chance)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _has_too_many(self, client: str) -> bool:
        """Return whether a client would have too large a share of recent audits; count it if not.

        One client alone must not decide what the loop concludes about all traffic.
        """
        if self._has_clients:
            limit = _audit_settings(self._settings).max_client_share
            known, own = len(self._recent), self._recent.count(client)
            if known >= MIN_RECENT and own + 1 > limit * (known + 1):
                return True
            self._recent.append(client)
        return False

    async def label(self, key: str, label: str) -> bool:
        """Take the right answer to a request; return whether an audit waits for it."""
        return self._auditor.label(key, label)

    def status(self) -> dict[str, Any]:
        """Return the data of the status page."""
        return self._auditor.status()

    async def _audit(
        self, request: RequestContext, asked: Sequence[NodeCall], number: int, chance: float
    ) -> None:
        answers = {
            node: AuditAnswer(confidence, prediction, cost, **(columns or {}))
            for node, prediction, confidence, cost, columns in answered(asked)
        }
        others = [name for name in self._settings.spec.names if name not in answers]
        bill, result = Bill(), "failed"
        try:
            async with self._slots:
                asks = [self._ask(name, request, bill) for name in others]
                results = await asyncio.gather(*asks)
            context = CallContext(bill=bill)
            comparer = comparer_of(self._settings.serve.compare, self._texts, context)
            for name, answer in zip(others, results, strict=True):
                if answer is not None:
                    earlier = [each.prediction for each in answers.values()]
                    matched = await comparer.matched(answer.prediction, earlier)
                    answers[name] = answer._replace(prediction=matched)
            if len(answers) == len(self._settings.spec.names):
                spent = bill.cost
                is_taken = self._auditor.add(
                    request.key, number, chance, answers, spent=spent, signals=request.signals
                )
                result = "taken" if is_taken else "lost"
        except UpstreamFailed:
            pass  # the answers cannot be compared: there is no row
        finally:
            if result == "failed":
                self._auditor.fail(request.key, bill.cost)
            self._metrics.audited(result, bill.cost, bill.estimated)

    async def _ask(self, name: str, request: RequestContext, bill: Bill) -> AuditAnswer | None:
        """Ask one node; return its answer, if there is one."""
        node = self._nodes[name]
        context = CallContext(headers={"x-request-id": request.request_id}, bill=bill)
        try:
            answer = await node.ask(request.endpoint.upstream_path, request.body, context)
        except UpstreamFailed:
            return None
        confidence = float(answer.confidence or 0.0)
        return AuditAnswer(
            confidence, answer.prediction, answer.cost, answer.margin, answer.entropy
        )


def answered(asked: Sequence[NodeCall]) -> list[AnsweredCall]:
    """Return the calls whose answers an audit need not ask for again, in plain values."""
    return [
        (
            one.node,
            None if one.prediction is None else str(one.prediction),
            one.confidence,
            one.cost,
            one.columns,
        )
        for one in asked
        if one.error is None and one.confidence is not None
    ]


def starting_policy(artefact: Artefact, settings: Settings) -> CertifiedServing | None:
    """Return what the drift loop begins with; ``None`` where no loop runs."""
    audit = settings.serve.audit
    if audit is None or audit.reference is None:
        return None
    if not isinstance(artefact, FittedLadder):
        raise CascadeError(
            "[serve.audit]: the loop chooses among the policies of a ladder, and the artefact "
            "holds one policy; fit a ladder, or remove reference"
        )
    fitted_target = artefact.fitted.spec.target
    if fitted_target != settings.spec.target:
        raise CascadeError(
            f"[cascade]: target is {settings.spec.target!r}, and the artefact was fitted for "
            f"{fitted_target!r}; the loop needs the same target"
        )
    reference = Trace.read(audit.reference, settings.spec)
    serving = serving_of(artefact, reference, audit.loop)
    Loop(serving, audit.loop)  # refuses a reference that is too small
    return serving


class DriftControl:
    """Connects the drift loop, which has a thread, with the gateway's event loop."""

    def __init__(
        self,
        settings: Settings,
        policies: PolicyStore,
        metrics: Metrics,
        log: JsonLog,
        conceal: Conceal | None = None,
        board: PolicyBoard | None = None,
    ) -> None:
        audit, serving = _audit_settings(settings), policies.current.policies.serving
        assert serving is not None  # noqa: S101 - only then is there a loop
        self._board = board
        notice = None if board is None else board.read(policies.current.version)
        former = None if board is None or notice is None else board.serving(notice, serving)
        self._policies, self._metrics, self._log = policies, metrics, log
        self._conceal = conceal
        self._folder = None if audit.log is None else Path(audit.log)
        self._event_loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._activations = 0
        self._fit = RefitProcess(hidden=secret_names(settings))
        self.loop = Loop(
            former if isinstance(former, CertifiedServing) else serving,
            audit.loop,
            swap=self._activate,
            notify=self._notify,
            refit=self._fit,
            clock=time.time,
        )
        if board is not None and (notice is None or former is None):
            board.publish(policies.current, serving, policies.current.short_version, held=False)
        elif notice is not None and former is not None:
            self._resume(former, notice)

    def _resume(self, former: Serving, notice: Notice) -> None:
        """Continue with the policy that served before this process was started again."""
        self._activations = notice.activations
        if isinstance(former, CertifiedServing):
            self._policies.current.policies.activate(former, notice.version)
        else:
            self.loop.fall_back("the process of the loop was started again")
        if notice.held:
            self.loop.hold("held before the process of the loop was started again")

    def stop(self) -> None:
        """Stop a re-fit that runs."""
        self._fit.stop()

    async def act(self, action: str) -> dict[str, Any]:
        """Do one of :data:`ACTIONS`; return the state of the loop after it."""
        loop = self.loop
        await asyncio.to_thread(ACTIONS[action], loop)  # a re-fit may hold the loop's lock
        return {"state": loop.state, "held": loop.held, "serving": str(loop.serving)}

    def reloaded(self, cause: str) -> None:
        """Restart the loop with the artefact that an operator activated."""
        current = self._policies.current
        serving = current.policies.serving
        assert serving is not None  # noqa: S101 - an artefact without is refused
        current.policies.activate(serving, current.short_version)  # even while the loop is busy
        why = f"an artefact was installed ({cause})"
        work = asyncio.to_thread(self.loop.reset, serving, why)
        task = self._event_loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _activate(self, serving: Serving) -> None:
        """Answer requests by another policy from now on; called in the loop's thread."""
        current = self._policies.current
        is_artefacts = serving is current.policies.serving
        self._activations += not is_artefacts
        version = current.short_version
        if not is_artefacts:
            version = f"{version}+{self._activations}"
        current.policies.activate(serving, version)
        self._metrics.policy(version, "drift")
        try:
            if self._folder is not None and not is_artefacts:
                save_serving(serving, self._folder / "policies", version, self._conceal)
            if self._board is not None:
                self._board.publish(current, serving, version, held=self.loop.held)
        except (OSError, TTamerError) as error:
            self._log.event("audit", message=f"{version} could not be saved: {error}")

    def _notify(self, event: Event) -> None:
        """Hand a step of the loop to the event loop; called in the loop's thread."""
        if self._board is not None and event.kind in ("hold", "release", "roll back"):
            self._board.hold(self.loop.held)
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(self._record, event)

    def _record(self, event: Event) -> None:
        self._metrics.drifted(event.kind)
        self._log.event("drift", **event.to_dict())


def secret_names(settings: Settings) -> frozenset[str]:
    """Return the environment variables that hold keys, which a re-fit does not need."""
    serve = settings.serve
    names = [serve.keys_env, serve.admin_keys_env, *(key.env for key in serve.key)]
    if serve.embeddings is not None:
        names.append(serve.embeddings.key_env)
    for node in settings.nodes.values():
        names += [node.key_env, node.proxy_auth_env]
        names += [value.name for _, value in node.headers if not isinstance(value, str)]
    return frozenset(name for name in names if name is not None)


def save_serving(serving: Serving, folder: Path, version: str, conceal: Conceal | None) -> None:
    """Write a policy, and the rows that describe its traffic; of the fallback policy, nothing.

    Both can replace the artefact and the reference when a gateway starts again: the classes of the
    policy, on which its decisions depend, are kept as they are.
    """
    from ttamer.trace.arrow import write_parquet

    if not isinstance(serving, CertifiedServing):
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    with atomic_write(folder / f"{version}.ttamer", private=True) as part:
        save(serving.ladder, part)
    reference = serving.reference
    if conceal is not None:
        hidden = tuple(conceal(text, serving.ladder) for text in reference.classes)
        reference = dataclasses.replace(reference, classes=hidden)
    with atomic_write(folder / f"{version}.parquet", private=True) as part:
        write_parquet(reference, part)
