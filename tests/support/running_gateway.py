"""A gateway on a thread of its own, for tests and experiments."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from typing import TYPE_CHECKING, Any

from support.quick_server import QuickServer
from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.observability.logging import JsonLog
from ttamer.serve.server import listen, server_config

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ttamer.serve.processes.workers import WorkerPlace


class RunningGateway:
    """What a test needs of a gateway that runs."""

    def __init__(self, gateway: Gateway, stream: io.StringIO, port: int) -> None:
        self.gateway, self._stream = gateway, stream
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/v1"
        self.port = port
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def log(self) -> list[dict[str, Any]]:
        """What was logged, line by line."""
        self._tell()
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        self._tell()
        lines = self.gateway.metrics.text().decode().splitlines()
        found = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def _tell(self) -> None:
        """Let the gateway tell now what it would tell in a moment."""

        async def tell() -> None:
            self.gateway.flush()

        if self.loop is not None and self.loop.is_running():
            self.do(tell())

    def do(self, coroutine: Any) -> Any:
        """Run something on the gateway's loop."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)


@contextlib.contextmanager
def running(
    cascade: str | os.PathLike[str],
    artefact: str | os.PathLike[str],
    place: WorkerPlace | None = None,
) -> Iterator[RunningGateway]:
    """Serve a cascade while inside; with a place, as one of several workers."""
    stream = io.StringIO()
    gateway = Gateway(read_settings(cascade), artefact, log=JsonLog(stream), place=place)
    with listen("127.0.0.1", 0) as listener:
        found = RunningGateway(gateway, stream, listener.getsockname()[1])
        config = server_config(gateway)
        config.timeout_graceful_shutdown = 2
        server = QuickServer(config)
        ended: list[BaseException] = []
        started = threading.Event()

        async def serve() -> None:
            found.loop = asyncio.get_running_loop()
            waiter = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not waiter.done():
                await asyncio.sleep(0.005)
            started.set()
            await waiter

        def work() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                ended.append(error)
                started.set()

        thread = threading.Thread(target=work, daemon=True, name="gateway")
        thread.start()
        assert started.wait(30)
        if ended or not server.started:
            raise RuntimeError(f"the gateway did not start: {ended}")
        try:
            yield found
        finally:
            server.end()
            thread.join(15)
            assert not thread.is_alive(), "the gateway did not stop"
