"""Several gateways on one listening socket: a supervisor starts them, and their metrics add up.

The supervisor opens the socket and keeps it, so that no connection is refused while a worker is
replaced. A worker that ends is started again. In a private folder every worker has a Unix socket on
which it answers calls of the others (:mod:`ttamer.serve.channel`): whichever worker is asked for
``/metrics`` or ``/status.json`` asks the others and adds up.
"""

from __future__ import annotations

import asyncio
import os
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

from ttamer.errors import ArgumentError, CascadeError
from ttamer.serve.channel import answering, call

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ttamer.serve.config import Settings
    from ttamer.serve.logging import JsonLog

__all__ = ["WorkerPlace", "added_up", "check_workers", "supervise"]

MAX_WORKERS = 256
"""The most workers of one gateway."""
RESTART_PAUSE = 1.0
"""The seconds before a worker that ended is started again."""
PARENT_SECONDS = 1.0
"""The seconds between two checks whether the supervisor runs."""
POLL_SECONDS = 0.1
"""The seconds between two checks whether all workers run."""


def check_workers(count: int, settings: Settings) -> None:
    """Refuse several workers where counts must be those of one process.

    Args:
        count: The number of workers.
        settings: The cascade and its settings.

    Raises:
        ArgumentError: If the number is out of range.
        CascadeError: If requests are audited.
    """
    if not 1 <= count <= MAX_WORKERS:
        raise ArgumentError(f"--workers is {count}; it must be from 1 to {MAX_WORKERS}")
    if count == 1:
        return
    if settings.serve.audit is not None:
        raise CascadeError(
            "[serve.audit]: audits and the drift loop belong to one process, and --workers is "
            f"{count}; use one worker"
        )


@dataclass(frozen=True)
class WorkerPlace:
    """Which worker of how many this process is.

    >>> WorkerPlace.parse("1:4:/run/ttamer").number
    1
    """

    number: int
    count: int
    folder: Path

    @classmethod
    def parse(cls, text: str) -> WorkerPlace:
        """Read what the supervisor passes to a worker."""
        number, count, folder = text.split(":", 2)
        return cls(int(number), int(count), Path(folder))

    def __str__(self) -> str:
        return f"{self.number}:{self.count}:{self.folder}"

    def own(self, path: str) -> str:
        """Return the name of this worker's own file, beside those of the others."""
        file = Path(path)
        return str(file.with_name(f"{file.stem}.{self.number}{file.suffix}"))

    @asynccontextmanager
    async def answering(
        self, answers: Mapping[str, Callable[..., Any]], failed: Callable[[BaseException], None]
    ) -> AsyncIterator[None]:
        """Inside, answer the calls of other workers, and end with the supervisor."""
        watching = asyncio.create_task(_end_with_parent())
        try:
            async with answering(self.socket(self.number), answers, failed):
                yield
        finally:
            watching.cancel()

    async def others(self, name: str) -> list[Any]:
        """Call all other workers; return the results of those that answer."""
        numbers = [number for number in range(self.count) if number != self.number]
        calls = (call(self.socket(number), name) for number in numbers)
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [each for each in found if not isinstance(each, BaseException)]

    def reload_all(self) -> None:
        """Let the supervisor pass on a reload to all workers."""
        os.kill(os.getppid(), signal.SIGHUP)

    def socket(self, number: int) -> Path:
        """Return the socket of a worker."""
        return self.folder / f"{number}.sock"


async def _end_with_parent() -> None:
    """Stop this process when the supervisor has ended without a signal."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_SECONDS)
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
        for line in text.splitlines():
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
) -> None:
    """Run workers until SIGTERM or SIGINT; SIGHUP is passed on to them.

    Args:
        command: The arguments of ``ttamer`` for one worker, without its place.
        count: The number of workers.
        listener: The listening socket that they share.
        started: Called once all of them serve.
        log: Where ends of workers are reported.

    Raises:
        ArgumentError: If a worker does not start.
    """
    with _Supervisor(command, count, listener, log) as supervisor:
        supervisor.start()
        started()
        supervisor.watch()


class _Supervisor:
    """The processes of the workers."""

    def __init__(
        self, command: Sequence[str], count: int, listener: socket.socket, log: JsonLog
    ) -> None:
        self._command, self._count, self._log = tuple(command), count, log
        self._descriptor = listener.fileno()
        self._folder = Path(tempfile.mkdtemp(prefix="ttamer-"))  # mode 0700
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._is_stopping = False
        self._handlers = {
            sig: signal.signal(sig, self._pass_on)
            for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }

    def __enter__(self) -> _Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            child.wait()
            _close(child)
        for sig, handler in self._handlers.items():
            signal.signal(sig, handler)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start all workers, and wait until they serve."""
        for number in range(self._count):
            self._children[number] = self._popen(number)
        for number, child in self._children.items():
            assert child.stdout is not None  # noqa: S101 - it is a pipe
            if not child.stdout.readline() and not self._is_stopping:
                raise ArgumentError(f"worker {number} did not start; its error is above")

    def watch(self) -> None:
        """Start again what ends, until a signal stops all."""
        while not self._is_stopping:
            time.sleep(POLL_SECONDS)
            for number, child in self._children.items():
                status = child.poll()
                if status is None or self._is_stopping:
                    continue
                self._log.event("worker", worker=number, ended=status)
                _close(child)
                time.sleep(RESTART_PAUSE)
                if not self._is_stopping:
                    self._children[number] = self._popen(number)
        for child in self._children.values():
            child.wait()

    def _popen(self, number: int) -> subprocess.Popen[bytes]:
        place = WorkerPlace(number, self._count, self._folder)
        options = ["--fd", str(self._descriptor), "--worker", str(place)]
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "ttamer", *self._command, *options],
            stdout=subprocess.PIPE,
            pass_fds=(self._descriptor,),
        )

    def _pass_on(self, sig: int, frame: object) -> None:
        """Pass a signal on to all workers."""
        del frame
        self._is_stopping = self._is_stopping or sig != signal.SIGHUP
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM if sig == signal.SIGINT else sig)


def _close(child: subprocess.Popen[bytes]) -> None:
    """Close the pipe by which a worker reported that it serves."""
    if child.stdout is not None:
        child.stdout.close()
