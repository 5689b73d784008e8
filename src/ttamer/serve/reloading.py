"""Change the policy while it serves.

The new file is loaded aside, in a thread, and checked against the cascade. Only then is it put in
place, by one assignment: a request takes ``reloader.current`` once and finishes on what it took.
The former policy is kept, so that :meth:`Reloader.rollback` needs no file. A file that is not good
changes nothing: it is told about, and the old policy goes on serving.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ttamer.artefact.files import inspect, load
from ttamer.errors import ArtefactError, TTamerError
from ttamer.fitted.ladder import FittedLadder, FittedPolicy

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Sequence

__all__ = ["Artefact", "Generation", "Reload", "Reloader", "load_for"]

Artefact = FittedLadder | FittedPolicy
T = TypeVar("T")
SHORT = 16


@dataclass(frozen=True, eq=False)
class Generation(Generic[T]):
    """A policy that serves or served, and what requests use of it."""

    artefact: Artefact
    version: str
    """The SHA-256 of the file, 64 digits."""
    path: str
    built: T

    @property
    def short(self) -> str:
        """The first 16 digits of the version."""
        return self.version[:SHORT]


@dataclass(frozen=True)
class Reload:
    """What came of one try."""

    ok: bool
    action: str
    """``"load"``, ``"reload"`` or ``"rollback"``."""
    cause: str
    """Who wanted it: ``"start"``, ``"file"``, ``"signal"``, ``"admin"``."""
    version: str
    """What serves now."""
    changed: bool
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def load_for(path: str | os.PathLike[str], nodes: Sequence[str]) -> tuple[Artefact, str]:
    """Return a fitted policy or ladder for these nodes, and its version."""
    before = inspect(path)["sha256"]
    artefact = load(path)
    if inspect(path)["sha256"] != before:
        raise ArtefactError(f"{path}: changed while it was read; try again when it is complete")
    if not isinstance(artefact, FittedLadder | FittedPolicy):
        raise ArtefactError(
            f"{path}: was solved from a problem, and only a fit knows what a confidence means; "
            "make one with: ttamer fit"
        )
    names = artefact.fitted.spec.names
    if names != tuple(nodes):
        raise ArtefactError(
            f"{path}: was fitted for {_listed(names)}, and the cascade has {_listed(nodes)}; fit "
            "it with the same cascade.toml"
        )
    return artefact, before


def _listed(names: Sequence[str]) -> str:
    """Names of a stranger's file, short and printable."""
    text = ", ".join(names)
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Reloader(Generic[T]):
    """Holds the policy that serves, and changes it on demand.

    ``build`` makes of an artefact and its version what requests use; a
    :class:`~ttamer.errors.TTamerError` from it refuses the file. ``told`` hears of every try.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        nodes: Sequence[str],
        build: Callable[[Artefact, str], T],
        told: Callable[[Reload], None] = lambda _: None,
    ) -> None:
        self._path = Path(path)
        self._nodes = tuple(nodes)
        self._build = build
        self._told = told
        self._current: Generation[T] | None = None
        self._former: Generation[T] | None = None
        self._seen: object = None
        self._one_at_a_time = asyncio.Lock()
        self.last: Reload | None = None

    @property
    def current(self) -> Generation[T]:
        """What serves now. Take it once per request."""
        if self._current is None:
            raise ArtefactError("no policy is loaded yet")
        return self._current

    def load(self, cause: str = "start") -> Generation[T]:
        """Load the first policy; a file that is not good is an error here."""
        self._seen = self._signature()
        self._current = self._load()
        self._tell(True, "load", cause, changed=True)
        return self._current

    async def reload(self, cause: str = "admin") -> Reload:
        """Load the file again, aside, and put it in place if it is good."""
        async with self._one_at_a_time:
            self._seen = await asyncio.to_thread(self._signature)
            try:
                new = await asyncio.to_thread(self._load)
            except TTamerError as error:
                return self._tell(False, "reload", cause, changed=False, message=str(error))
            except Exception as error:  # whatever a file can do, it does not end the watching
                text = f"{self._path}: could not be loaded: {type(error).__name__}"
                return self._tell(False, "reload", cause, changed=False, message=text)
            if new.version == self.current.version:
                text = "the file holds the policy that serves already"
                return self._tell(True, "reload", cause, changed=False, message=text)
            self._former, self._current = self._current, new
            return self._tell(True, "reload", cause, changed=True)

    async def rollback(self, cause: str = "admin") -> Reload:
        """Put the former policy back; once more, and the newer one is back.

        The file is left alone: it is read again when it changes, or on the next reload.
        """
        async with self._one_at_a_time:
            if self._former is None:
                text = "there is no former policy to go back to"
                return self._tell(False, "rollback", cause, changed=False, message=text)
            self._former, self._current = self._current, self._former
            return self._tell(True, "rollback", cause, changed=True)

    @asynccontextmanager
    async def watching(self, every: float = 1.0) -> AsyncIterator[None]:
        """While inside, reload on SIGHUP, and when the file changes.

        The file is looked at every so many seconds; 0 for never.
        """
        loop = asyncio.get_running_loop()
        hangups = asyncio.Event()
        tasks = [loop.create_task(self._obey(hangups))]
        if every > 0:
            tasks.append(loop.create_task(self._watch(every)))
        heard = _listen(loop, hangups)
        try:
            yield
        finally:
            if heard:
                loop.remove_signal_handler(signal.SIGHUP)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, every: float) -> None:
        """Reload a file that is not as it was, once it has stayed the same for one look."""
        before = self._seen
        while True:
            await asyncio.sleep(every)
            now = await asyncio.to_thread(self._signature)
            if now == before and now not in (None, self._seen):
                await self.reload("file")
            before = now

    async def _obey(self, hangups: asyncio.Event) -> None:
        while True:
            await hangups.wait()
            hangups.clear()
            await self.reload("signal")

    def _signature(self) -> object:
        """What tells one state of the file from another; ``None`` where there is none."""
        with suppress(OSError, ValueError):
            found = self._path.stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None

    def _load(self) -> Generation[T]:
        artefact, version = load_for(self._path, self._nodes)
        return Generation(artefact, version, str(self._path), self._build(artefact, version))

    def _tell(
        self, ok: bool, action: str, cause: str, *, changed: bool, message: str = ""
    ) -> Reload:
        now = self.current
        said = message or f"serving {now.short} from {now.path}"
        self.last = Reload(ok, action, cause, now.version, changed, said)
        self._told(self.last)
        return self.last


def _listen(loop: asyncio.AbstractEventLoop, hangups: asyncio.Event) -> bool:
    """Hear SIGHUP, where there is such a signal and this is the main thread."""
    try:
        loop.add_signal_handler(signal.SIGHUP, hangups.set)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return False
    return True
