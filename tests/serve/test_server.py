"""The server: one log for all libraries, and a stop that breaks no connection."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import httpx2 as httpx
import pytest

from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.observability.logging import JsonLog
from ttamer.serve.server import _logging_to, _Server, _SharedListener, listen, server_config


@pytest.fixture
def root():
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before = logger.handlers[:], logger.level
    yield logger
    logging.captureWarnings(False)
    logger.handlers[:], level = before
    logger.setLevel(level)


def test_every_library_logs_one_way(root):
    stream = io.StringIO()
    with _logging_to(JsonLog(stream)):
        logging.getLogger("some.library").error("no luck with %s", "a secret prompt")
        logging.getLogger("some.library").info("all is well")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("of a secret prompt", stacklevel=1)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("some.library", "error"),
        ("py.warnings", "warning"),
    ]
    assert lines[0]["message"] == "no luck with %s"
    assert "secret" not in stream.getvalue()
    assert len(root.handlers) == 1


def test_small_writes_are_sent_at_once():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as taken,
    ):
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_accepted_before_the_stop_is_answered(served):
    gateway = Gateway(read_settings(served.cascade), served.artefact, log=JsonLog(io.StringIO()))

    async def run() -> bytes:
        with listen("127.0.0.1", 0) as listener:
            async with gateway:
                server = _Server(server_config(gateway, lifespan="off"), gateway, lambda: None)
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                await until(lambda: server.started)
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await until(lambda: server.server_state.connections)
                server.should_exit = True
                await until(lambda: not server.servers[0].is_serving())
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                content = await reader.read()
                writer.close()
                await serving
                return content

    async def until(condition) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200 ")


EARLY = """
import signal, sys
from ttamer.serve.config import read_settings
from ttamer.serve.gateway import Gateway
from ttamer.serve.server import listen, run

class Signalled(Gateway):
    async def __aenter__(self):
        entered = await super().__aenter__()
        signal.raise_signal(signal.SIGTERM)
        return entered

with listen("127.0.0.1", 0) as listener:
    run(Signalled(read_settings(sys.argv[1]), sys.argv[2]), listener, lambda: None)
print("stopped")
"""


def test_a_signal_that_arrives_during_the_start_stops_the_gateway(served):
    program = [sys.executable, "-c", EARLY, str(served.cascade), str(served.artefact)]
    found = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "stopped\n"


def test_a_stopping_gateway_keeps_no_connection(run_gateway):
    gateway = run_gateway(1)
    assert "connection" not in httpx.get(f"{gateway.root}/healthz").headers
    gateway.gateway.ready = False
    assert httpx.get(f"{gateway.root}/healthz").headers["connection"] == "close"


def test_workers_on_one_socket_accept_in_turns():
    """Connections that arrive together are shared."""

    class Greeting(asyncio.Protocol):
        def __init__(self, name: str) -> None:
            self._name = name

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.write(self._name.encode())
            transport.close()

    async def run() -> list[str]:
        config = SimpleNamespace(ssl=None)
        with listen("127.0.0.1", 0) as one, one.dup() as two:
            address = one.getsockname()
            clients = [await asyncio.open_connection(*address) for _ in range(8)]
            servers = [
                _SharedListener(each, partial(Greeting, name), config)
                for each, name in ((one, "a"), (two, "b"))
            ]
            found = [(await reader.read()).decode() for reader, _ in clients]
            for server in servers:
                server.close()
                await server.wait_closed()
                assert not server.is_serving()
            for _, writer in clients:
                writer.close()
            return found

    assert sorted(asyncio.run(run())) == ["a"] * 4 + ["b"] * 4
