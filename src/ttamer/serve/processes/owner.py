"""One process that owns audits, labels and the drift loop of several workers.

Workers answer requests. The owner is a process of its own: it draws the requests that are audited,
asks the nodes that were not asked, keeps the audit log and runs the drift loop.

- **Audits.** A request is audited if a random number is below the probability of an audit, which is
  at most the stated share. So a worker draws the number, and passes on the request only where it is
  below the share; the owner compares it with the probability and asks.
- **Labels** go to the owner, whichever worker receives them.
- **Policies.** When the loop activates a policy, the owner writes it and a notice of it into the
  gateway's private folder, and calls the workers, which read both, until each of them serves it.
  A worker that starts later reads them too, and so does an owner that is started again.

While there is no owner, workers go on with the policy they have; audits are dropped and counted,
and labels are refused with 503.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ttamer._files import atomic_write
from ttamer.artefact.files import load
from ttamer.drift.fallback import AskLast
from ttamer.drift.loop import CertifiedServing, FallbackServing
from ttamer.errors import TTamerError
from ttamer.fitted.ladder import FittedLadder
from ttamer.runtime.reply import NodeCall
from ttamer.serve.drift import answered, audit_from, save_serving
from ttamer.serve.formats.openai import ENDPOINTS
from ttamer.serve.http import HttpError
from ttamer.serve.processes.channel import MessageLine, PeerUnavailable, call
from ttamer.serve.request import RequestContext
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from ttamer.drift.loop import Serving
    from ttamer.serve.config import Settings
    from ttamer.serve.drift import AnsweredCall, Audits, Conceal, DriftControl
    from ttamer.serve.observability.metrics import Metrics
    from ttamer.serve.policies import LoadedArtefact
    from ttamer.serve.processes.workers import WorkerPlace

__all__ = ["AuditCalls", "Notice", "PolicyBoard", "RemoteAudits"]

ACTION_SECONDS = 600.0
"""The most seconds that an action waits for the drift loop, which may be fitting."""
LABEL_SECONDS = 30.0
"""The most seconds that a label waits for the owner."""
MAX_EARLY_LABELS = 10_000
"""The number of labels kept for requests that have not reached the owner yet."""


@dataclass(frozen=True)
class Notice:
    """Which policy the drift loop has activated."""

    artefact: str
    """The version of the artefact that the loop began with."""
    version: str
    """The version of the policy in responses."""
    kind: Literal["artefact", "certified", "fallback"]
    activations: int
    """The number of policies that the loop has activated."""
    held: bool
    """Whether an operator holds the loop."""


class PolicyBoard:
    """The active policy in the private folder: written by the owner, read by all.

    Args:
        folder: The private folder.
        seed: The seed of mixtures.
        conceal: From an answer to the text that files keep.
        published: Called with the version of a policy that was written; in any thread.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        conceal: Conceal | None = None,
        published: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._file, self._policies = folder / "policy.json", folder / "policies"
        self._seed, self._conceal, self._published = seed, conceal, published
        self._notice: Notice | None = None

    def publish(
        self, current: LoadedArtefact, serving: Serving, version: str, *, held: bool
    ) -> None:
        """Write the policy that serves from now on.

        Raises:
            OSError: If the folder cannot be written.
        """
        kind: Literal["artefact", "certified", "fallback"] = "fallback"
        if serving is current.policies.serving:
            kind = "artefact"
        elif isinstance(serving, CertifiedServing):
            kind = "certified"
            save_serving(serving, self._policies, version, self._conceal)
        activations = int(version.partition("+")[2] or 0)
        self._write(Notice(current.version, version, kind, activations, held))
        self._published(version)

    def hold(self, held: bool) -> None:
        """Write whether an operator holds the loop."""
        if self._notice is not None:
            self._write(replace(self._notice, held=held))

    def _write(self, notice: Notice) -> None:
        self._notice = notice
        with atomic_write(self._file, private=True) as part:
            part.write_text(json.dumps(asdict(notice)), "utf-8")

    def read(self, artefact: str) -> Notice | None:
        """Return the notice of the active policy; ``None`` where it is for another artefact."""
        try:
            notice = Notice(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        if notice.artefact != artefact:
            return None
        self._notice = notice
        return notice

    def serving(self, notice: Notice, own: CertifiedServing) -> Serving | None:
        """Return the policy of a notice; ``None`` where its files cannot be read.

        Args:
            notice: The notice.
            own: The policy that the artefact begins with.
        """
        if notice.kind == "artefact":
            return own
        if notice.kind == "fallback":
            return FallbackServing(AskLast(own.reference.spec))
        path = self._policies / f"{notice.version}.ttamer"
        try:
            ladder = load(path)
            reference = Trace.read(path.with_suffix(".parquet"), own.reference.spec)
        except (OSError, TTamerError):
            return None
        if not isinstance(ladder, FittedLadder) or not ladder.promises:
            return None
        promise = ladder.promises[-1]
        policy = ladder.mixture_for(promise, seed=self._seed)
        return CertifiedServing(policy, ladder, promise, reference)


class AuditCalls:
    """What the owner does for workers.

    Args:
        audits: The audits.
        drift: The drift loop, where it runs.
    """

    def __init__(self, audits: Audits, drift: DriftControl | None) -> None:
        self._audits, self._drift = audits, drift
        self._early: OrderedDict[str, str] = OrderedDict()
        self._endpoints = {endpoint.path: endpoint for endpoint in ENDPOINTS}

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Return the calls that are answered, by name."""
        found: dict[str, Callable[..., Any]] = {"consider": self._consider, "label": self._label}
        return found if self._drift is None else found | {"act": self._drift.act}

    async def _consider(
        self,
        skipped: int,
        draw: str,
        request: Mapping[str, Any],
        asked: Sequence[AnsweredCall],
    ) -> None:
        """Audit a request that a worker has answered, if it is drawn."""
        key = request["key"]
        context = RequestContext(
            self._endpoints[request["path"]],
            model="",
            body=request["body"],
            request_id=request["id"],
            client=request["client"],
            key=key,
            signals=request["signals"],
        )
        self._audits.skip(skipped)
        calls = [
            NodeCall(node, prediction, confidence, cost, 0.0, columns=columns)
            for node, prediction, confidence, cost, columns in asked
        ]
        self._audits.consider(context, calls, draw)
        if (label := self._early.pop(key, None)) is not None:
            await self._audits.label(key, label)

    async def _label(self, key: str, label: str) -> bool:
        """Take a label; one that was faster than its request is kept for a while."""
        is_taken = await self._audits.label(key, label)
        if not is_taken:
            self._early[key] = label
            if len(self._early) > MAX_EARLY_LABELS:
                self._early.popitem(last=False)
        return is_taken


class RemoteAudits:
    """The audits of a worker: all that it does is pass on to the owner.

    Args:
        settings: The cascade and its settings.
        place: Which worker this is.
        metrics: Where audits that could not be passed on are counted.
    """

    def __init__(self, settings: Settings, place: WorkerPlace, metrics: Metrics) -> None:
        self._sampler, self._metrics = audit_from(settings), metrics
        self._owner = place.owner_socket
        self._line = MessageLine(self._owner, self._dropped)
        self._skipped = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Inside, keep a connection to the owner."""
        async with self._line.opened():
            yield

    def consider(self, request: RequestContext, asked: Sequence[NodeCall]) -> None:
        """Pass an answered request on if it may be drawn; never waits."""
        draw = secrets.token_hex(8)
        if self._sampler.position(draw) >= self._sampler.share:
            self._skipped += 1
            return
        is_sent = self._line.send(
            "consider",
            skipped=self._skipped,
            draw=draw,
            request={
                "path": request.endpoint.path,
                "body": request.body,
                "id": request.request_id,
                "client": request.client,
                "key": request.key,
                "signals": request.signals,
            },
            asked=answered(asked),
        )
        if is_sent:
            self._skipped = 0
        else:
            self._skipped += 1
            self._dropped(1)

    async def label(self, key: str, label: str) -> bool:
        """Take the right answer to a request; return whether an audit waits for it."""
        return bool(await self._call("label", seconds=LABEL_SECONDS, key=key, label=label))

    async def act(self, action: str) -> dict[str, Any]:
        """Do one of the actions that an operator has over the drift loop."""
        found = await self._call("act", seconds=ACTION_SECONDS, action=action)
        return dict(found)

    def status(self) -> None:
        """Return nothing: the owner has the data of the status page."""

    def _dropped(self, count: int) -> None:
        for _ in range(count):
            self._metrics.audited("dropped", 0.0)

    async def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return await call(self._owner, name, **arguments)
        except PeerUnavailable:
            raise HttpError(
                "the process that owns audits is being started; retry in a moment",
                status=503,
                code="not_now",
            ) from None
