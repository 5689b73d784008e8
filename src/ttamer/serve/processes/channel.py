"""Calls between the processes of one gateway, over Unix sockets in a private folder.

A message is its length in four bytes and a JSON object. A call has the fields ``call`` (its name)
and ``with`` (its arguments); its answer has either ``result`` or ``error``. The calls of one
connection are answered in their order. A process that may open the folder may call: its mode is
0700.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from ttamer.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

__all__ = ["MessageLine", "PeerUnavailable", "answering", "call"]

CALL_SECONDS = 5.0
"""The most seconds that another process has to answer a call."""
MAX_UNSENT = 16 * 1024 * 1024
"""The most bytes of messages that wait for a process that reads slowly."""
CONNECT_SECONDS = 2.0
"""The most seconds that a worker waits at its start for the connection to the owner."""
RECONNECT_SECONDS = 0.2
"""The seconds between two attempts to reach a process that does not answer."""


class PeerUnavailable(Exception):
    """Another process of the gateway does not answer."""


@asynccontextmanager
async def answering(
    path: Path, answers: Mapping[str, Callable[..., Any]], failed: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Inside, answer the calls of other processes.

    Args:
        path: The socket.
        answers: By name, functions from arguments to plain values, or to awaitables of them. An
            :class:`~ttamer.errors.ArgumentError` is raised in the process that calls.
        failed: Called with an unexpected error.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a task
        tasks.add(task)
        try:
            while (message := await _read(reader)) is not None:
                writer.write(_frame(await _answer(answers, message, failed)))
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the connection ends, and this task with it
        finally:
            tasks.discard(task)
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(handle, path)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(
    answers: Mapping[str, Callable[..., Any]],
    message: Mapping[str, Any],
    failed: Callable[[BaseException], None],
) -> dict[str, Any]:
    try:
        result = answers[message["call"]](**message["with"])
        return {"result": await result if inspect.isawaitable(result) else result}
    except ArgumentError as error:
        return {"error": str(error)}
    except Exception as error:  # one call must not end the others
        failed(error)
        return {"error": None}


async def call(path: Path, name: str, /, *, seconds: float = CALL_SECONDS, **arguments: Any) -> Any:
    """Call another process, on a connection of its own.

    Args:
        path: Its socket.
        name: The name of the call.
        seconds: The most seconds that the answer may take.
        **arguments: Plain values.

    Returns:
        The result, in plain values.

    Raises:
        ArgumentError: If the other process refused the arguments.
        PeerUnavailable: If there is no answer.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(_frame({"call": name, "with": arguments}))
                answer = await _read(reader)
            finally:
                writer.close()
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise PeerUnavailable(f"{path.name}: {type(error).__name__}") from None
    if answer is None or answer.get("error", "") is None:
        raise PeerUnavailable(f"{path.name}: no answer")
    if "error" in answer:
        raise ArgumentError(answer["error"])
    return answer["result"]


class MessageLine:
    """A connection that is kept open, for calls whose results are not needed.

    Args:
        path: The socket of the other process.
        lost: Called with the number of messages that were sent and not answered.
    """

    def __init__(self, path: Path, lost: Callable[[int], None]) -> None:
        self._path, self._lost = path, lost
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._unanswered = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Inside, keep the connection open, and open it again where it breaks.

        The block begins with a connection, or after ``CONNECT_SECONDS`` without one.
        """
        task = asyncio.get_running_loop().create_task(self._keep_open())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), CONNECT_SECONDS)
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def send(self, name: str, /, **arguments: Any) -> bool:
        """Send a call, without waiting.

        Args:
            name: The name of the call.
            **arguments: Plain values.

        Returns:
            Whether there is a connection, and room for the message.
        """
        writer = self._writer
        if writer is None or writer.transport.get_write_buffer_size() > MAX_UNSENT:
            return False
        writer.write(_frame({"call": name, "with": arguments}))
        self._unanswered += 1
        return True

    async def _keep_open(self) -> None:
        while True:
            with suppress(OSError, ValueError):
                reader, writer = await asyncio.open_unix_connection(self._path)
                self._writer = writer
                self._connected.set()
                try:
                    while await _read(reader) is not None:
                        self._unanswered -= 1
                finally:
                    self._writer = None
                    writer.close()
                    self._lost(self._unanswered)
                    self._unanswered = 0
            await asyncio.sleep(RECONNECT_SECONDS)


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Return the next message; ``None`` at the end of the connection."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
        found: dict[str, Any] = json.loads(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None
    return found


def _frame(message: Mapping[str, Any]) -> bytes:
    content = json.dumps(message, separators=(",", ":")).encode()
    return len(content).to_bytes(4) + content
