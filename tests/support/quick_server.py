"""A server for tests that ends as soon as it is stopped: uvicorn's looks ten times a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket


class QuickServer(uvicorn.Server):
    """Tell it with :meth:`end`, from any thread."""

    async def main_loop(self) -> None:
        self._loop, self._stop_event = asyncio.get_running_loop(), asyncio.Event()
        if self.should_exit:
            return
        await self.on_tick(0)  # makes the headers sent with every answer
        await self._stop_event.wait()

    def end(self) -> None:
        self.should_exit = True
        reported = getattr(self, "_stop_event", None)  # None: it looks itself before it begins
        if reported is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(reported.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = list(self.server_state.tasks)
        if tasks and not self.force_exit:
            await asyncio.wait(tasks, timeout=self.config.timeout_graceful_shutdown)
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0.01)  # what was just let in becomes a connection, to be closed too
        for _ in range(1000):  # one may still come in while others are being lost
            if not self.server_state.connections:
                break
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await asyncio.sleep(0.001)
        if not self.force_exit:
            await self.lifespan.shutdown()
