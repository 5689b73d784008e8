"""The drift loop of a gateway: what it decides to serve is put in place, and a person has a say.

The loop (:mod:`ttamer.drift.loop`) works in the thread of the audits. Here its decisions become the
policy that requests take, its steps become lines of the log and metrics, and what a person wants of
it (hold, release, roll back, retry, another artefact) reaches it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer.artefact.files import save
from ttamer.drift.loop import CertifiedServing, Loop, serving_of
from ttamer.drift.refit import RefitProcess
from ttamer.errors import CascadeError, TTamerError
from ttamer.fitted.ladder import FittedLadder
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from ttamer.drift.loop import Event, Serving
    from ttamer.serve.logs import RequestLog
    from ttamer.serve.metrics import Metrics
    from ttamer.serve.reloading import Artefact, Reloader
    from ttamer.serve.rules import Rules
    from ttamer.serve.settings import Settings

__all__ = ["ACTIONS", "Adapting", "first_serving"]

ACTIONS = {
    "hold": Loop.hold,
    "release": Loop.release,
    "rollback": Loop.roll_back,
    "retry": Loop.retry,
}
"""What a person can do."""


def first_serving(artefact: Artefact, settings: Settings) -> CertifiedServing | None:
    """Return the policy the loop begins with; ``None`` where there is no loop."""
    audit = settings.serve.audit
    if audit is None or audit.reference is None:
        return None
    if not isinstance(artefact, FittedLadder):
        raise CascadeError(
            "[serve.audit]: the loop chooses among the policies of a ladder, and the artefact "
            "holds one policy; fit a ladder, or remove reference"
        )
    fitted_for = artefact.fitted.spec.target
    if fitted_for != settings.spec.target:
        raise CascadeError(
            f"[cascade]: target is {settings.spec.target!r}, and the artefact was fitted for "
            f"{fitted_for!r}; the loop needs them alike"
        )
    reference = Trace.read(audit.reference, settings.spec)
    serving = serving_of(artefact, reference, audit.loop)
    Loop(serving, audit.loop)  # refuses a reference that would not do
    return serving


class Adapting:
    """Lives in an event loop, beside the thread of the drift loop."""

    def __init__(
        self, settings: Settings, reloader: Reloader[Rules], metrics: Metrics, log: RequestLog
    ) -> None:
        audit, serving = settings.serve.audit, reloader.current.built.serving
        assert audit is not None  # noqa: S101 - only then is there a loop
        assert serving is not None  # noqa: S101
        self._reloader, self._metrics, self._log = reloader, metrics, log
        self._folder = None if audit.log is None else Path(audit.log)
        self._home = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._puts = 0
        self._fit = RefitProcess()
        self.loop = Loop(
            serving,
            audit.loop,
            swap=self._put,
            notify=self._notify,
            refit=self._fit,
            clock=time.time,
        )

    def stop(self) -> None:
        """End a fit that is under way."""
        self._fit.stop()

    async def do(self, action: str) -> dict[str, Any]:
        """Do what a person wants, one of :data:`ACTIONS`; return where the loop stands then."""
        loop = self.loop
        await asyncio.to_thread(ACTIONS[action], loop)  # it may be in the middle of a re-fit
        return {"state": loop.state, "held": loop.held, "serving": str(loop.serving)}

    def reloaded(self, cause: str) -> None:
        """Reset the loop to the artefact that was installed."""
        current = self._reloader.current
        serving = current.built.serving
        assert serving is not None  # noqa: S101 - an artefact without is refused
        current.built.put(serving, current.short)  # at once, even while the loop is busy
        why = f"an artefact was installed ({cause})"
        task = self._home.create_task(asyncio.to_thread(self.loop.reset, serving, why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _put(self, serving: Serving) -> None:
        """Let requests take another policy from now on; called in the loop's thread."""
        current = self._reloader.current
        is_artefacts = serving is current.built.serving
        self._puts += not is_artefacts
        version = current.short if is_artefacts else f"{current.short}+{self._puts}"
        current.built.put(serving, version)
        self._metrics.policy(version, "drift")
        if self._folder is not None and not is_artefacts:
            try:
                _keep(serving, self._folder / "policies", version)
            except (OSError, TTamerError) as error:
                self._log.event("audit", message=f"{version} could not be kept: {error}")

    def _notify(self, event: Event) -> None:
        if not self._home.is_closed():
            self._home.call_soon_threadsafe(self._heard, event)

    def _heard(self, event: Event) -> None:
        self._metrics.drifted(event.kind)
        self._log.event("drift", **event.to_dict())


def _keep(serving: Serving, folder: Path, version: str) -> None:
    """Write a policy, and the rows that say how its traffic should look.

    Both can be put in place of the artefact and of the reference when a gateway starts again.
    """
    if not isinstance(serving, CertifiedServing):
        return
    folder.mkdir(exist_ok=True)
    save(serving.ladder, folder / f"{version}.ttamer")
    serving.reference.write(folder / f"{version}.parquet")
