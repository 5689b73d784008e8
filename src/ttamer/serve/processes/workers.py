"""Several gateways on one listening socket: a supervisor starts them, and their metrics add up.

The supervisor opens the socket and keeps it, so that no connection is refused while a worker is
replaced. A worker that ends is started again. In a private folder every worker has a Unix socket on
which it answers calls of the others (:mod:`~ttamer.serve.processes.channel`): whichever worker is
asked for ``/metrics`` or ``/status.json`` asks the others and adds up. Where requests are audited,
one more process owns audits and the drift loop (:mod:`~ttamer.serve.processes.owner`); it is
started again as workers are, and ends after them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._files import atomic_write, lines_of
from ttamer.errors import ArgumentError
from ttamer.serve.hangups import hangups_blocked
from ttamer.serve.processes.accepted import AcceptedFiles
from ttamer.serve.processes.channel import CALL_SECONDS, answering, call

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ttamer.serve.observability.logging import JsonLog

__all__ = ["WorkerPlace", "added_up", "check_workers", "supervise"]

OWNER = "owner"
"""The name of the process that owns audits and the drift loop."""
MAX_WORKERS = 256
"""The most workers of one gateway."""
RESTART_PAUSE = 1.0
"""The seconds before a worker that ended is started again."""
PARENT_SECONDS = 1.0
"""The seconds between two checks whether the supervisor runs."""
POLL_SECONDS = 0.1
"""The seconds between two checks whether all workers run."""


def check_workers(count: int) -> None:
    """Refuse a number of workers that is out of range.

    Args:
        count: The number of workers.

    Raises:
        ArgumentError: If the number is out of range.
    """
    if not 1 <= count <= MAX_WORKERS:
        raise ArgumentError(f"--workers is {count}; it must be from 1 to {MAX_WORKERS}")


@dataclass(frozen=True)
class WorkerPlace:
    """Which worker of how many this process is, or that it is their owner.

    >>> WorkerPlace.parse("1:4:/run/ttamer").name
    1
    >>> WorkerPlace.parse("owner:4:/run/ttamer").is_owner
    True
    """

    name: int | str
    count: int
    folder: Path
    """The private folder: sockets, the shared secret and counts, and what is served."""

    @classmethod
    def parse(cls, text: str) -> WorkerPlace:
        """Read what the supervisor passes to a worker."""
        name, count, folder = text.split(":", 2)
        return cls(OWNER if name == OWNER else int(name), int(count), Path(folder))

    def __str__(self) -> str:
        return f"{self.name}:{self.count}:{self.folder}"

    @property
    def is_owner(self) -> bool:
        """Whether this process owns audits and the drift loop."""
        return self.name == OWNER

    @property
    def secret(self) -> bytes:
        """The secret of the gateway, which all of its processes share."""
        return (self.folder / "secret").read_bytes()

    @property
    def accepted(self) -> AcceptedFiles:
        """The settings and the policy that all processes serve."""
        return AcceptedFiles(self.folder)

    def own(self, path: str) -> str:
        """Return the name of this worker's own file, beside those of the others."""
        file = Path(path)
        return str(file.with_name(f"{file.stem}.{self.name}{file.suffix}"))

    @asynccontextmanager
    async def answering(
        self, answers: Mapping[str, Callable[..., Any]], failed: Callable[[BaseException], None]
    ) -> AsyncIterator[None]:
        """Inside, answer the calls of other workers, and end with the supervisor."""
        watching = asyncio.create_task(_end_with_parent(self.folder))
        try:
            async with answering(self._socket(self.name), answers, failed):
                yield
        finally:
            watching.cancel()

    async def others(self, name: str, seconds: float = CALL_SECONDS) -> list[Any]:
        """Call all other processes; return the results of those that answer."""
        names = [each for each in (*range(self.count), OWNER) if each != self.name]
        calls = (call(self._socket(each), name, seconds=seconds) for each in names)
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [each for each in found if not isinstance(each, BaseException)]

    def reload_all(self) -> None:
        """Let the supervisor pass on a reload to all workers."""
        os.kill(os.getppid(), signal.SIGHUP)

    @property
    def owner_socket(self) -> Path:
        """The socket of the owner."""
        return self._socket(OWNER)

    def _socket(self, name: int | str) -> Path:
        return self.folder / f"{name}.sock"


async def _end_with_parent(folder: Path) -> None:
    """Stop when the supervisor has ended without a signal, and remove its private folder."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def added_up(texts: Sequence[str]) -> str:
    r"""Return Prometheus metrics of several processes as one: values of a series are added.

    Of ``_created`` times the first stays, and of ``_info`` the value 1.

    >>> added_up(["# TYPE a counter\na_total 1.0\n", "# TYPE a counter\na_total 2.0\n"])
    '# TYPE a counter\na_total 3.0\n'

    Args:
        texts: The metrics of each process, in Prometheus's text format.

    Returns:
        Their sum, in the same format.
    """
    values: dict[str, float | None] = {}
    for text in texts:
        for line in lines_of(text):
            if line.startswith("#"):
                values.setdefault(line, None)
                continue
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            before = values.get(series)
            if before is None:
                values[series] = float(value)
            elif name.endswith("_created"):
                values[series] = min(before, float(value))
            elif not name.endswith("_info"):
                values[series] = before + float(value)
    lines = [key if value is None else f"{key} {value!r}" for key, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


def supervise(
    command: Sequence[str],
    count: int,
    listener: socket.socket,
    started: Callable[[], None],
    log: JsonLog,
    *,
    has_owner: bool = False,
) -> None:
    """Run workers until SIGTERM or SIGINT; SIGHUP is passed on to them.

    Args:
        command: The arguments of ``ttamer`` for one worker, without its place.
        count: The number of workers.
        listener: The listening socket that they share.
        started: Called once all of them serve.
        log: Where ends of workers are reported.
        has_owner: Whether one more process owns audits and the drift loop.

    Raises:
        ArgumentError: If a worker does not start.
    """
    with _Supervisor(command, count, listener, log, has_owner) as supervisor:
        supervisor.start()
        started()
        supervisor.watch()


class _Supervisor:
    """The processes of the workers."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        listener: socket.socket,
        log: JsonLog,
        has_owner: bool,
    ) -> None:
        self._command, self._count, self._log = tuple(command), count, log
        self._descriptor = listener.fileno()
        self._folder = Path(tempfile.mkdtemp(prefix="ttamer-"))  # mode 0700
        with atomic_write(self._folder / "secret", private=True) as part:
            part.write_bytes(secrets.token_bytes(32))
        self._names = [*((OWNER,) if has_owner else ()), *range(count)]
        self._children: dict[int | str, subprocess.Popen[bytes]] = {}
        self._is_stopping = False
        self._handlers = {
            sig: signal.signal(sig, self._pass_on)
            for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }

    def __enter__(self) -> _Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._workers():
            child.terminate()
        self._wait()
        for child in self._children.values():
            _close(child)
        for sig, handler in self._handlers.items():
            signal.signal(sig, handler)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start all workers, and wait until they serve."""
        for name in self._names:
            self._start(name)
        for name, child in self._children.items():
            assert child.stdout is not None  # noqa: S101 - it is a pipe
            if not child.stdout.readline() and not self._is_stopping:
                raise ArgumentError(f"worker {name} did not start; its error is above")

    def watch(self) -> None:
        """Start again what ends, until a signal stops all."""
        while not self._is_stopping:
            time.sleep(POLL_SECONDS)
            for name, child in self._children.items():
                status = child.poll()
                if status is None or self._is_stopping:
                    continue
                self._log.event("worker", worker=name, ended=status)
                _close(child)
                time.sleep(RESTART_PAUSE)
                if not self._is_stopping:
                    self._start(name)
        self._wait()

    def _wait(self) -> None:
        """Wait until all workers have ended, and then end their owner."""
        for child in self._workers():
            child.wait()
        if (owner := self._children.get(OWNER)) is not None:
            owner.terminate()
            owner.wait()

    def _workers(self) -> list[subprocess.Popen[bytes]]:
        return [child for name, child in self._children.items() if name != OWNER]

    def _start(self, name: int | str) -> None:
        """Start a process, and stop it where a signal arrived before it was known."""
        child = self._children[name] = self._popen(name)
        if self._is_stopping:
            child.terminate()

    def _popen(self, name: int | str) -> subprocess.Popen[bytes]:
        place = WorkerPlace(name, self._count, self._folder)
        options, passed = ["--worker", str(place)], [] if place.is_owner else [self._descriptor]
        for descriptor in passed:
            options += ["--fd", str(descriptor)]
        with hangups_blocked():
            return subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "ttamer", *self._command, *options],
                stdout=subprocess.PIPE,
                pass_fds=passed,
            )

    def _pass_on(self, sig: int, frame: object) -> None:
        """Pass a signal on to all workers; their owner ends after them."""
        del frame
        is_reload = sig == signal.SIGHUP
        self._is_stopping |= not is_reload
        for child in self._children.values() if is_reload else self._workers():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM if sig == signal.SIGINT else sig)


def _close(child: subprocess.Popen[bytes]) -> None:
    """Close the pipe by which a worker reported that it serves."""
    if child.stdout is not None:
        child.stdout.close()
