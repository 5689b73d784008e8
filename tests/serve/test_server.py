"""The server over real sockets, with the official client: the same suite for both ASGI servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from unittest.mock import Mock

import httpx2
import openai
import pytest
import uvicorn
from uvicorn.server import ServerState

import ttamer as tt
from support.faulty_upstream import FaultyUpstream
from support.served import SKILLS, fitted_ladder, write_cascade
from ttamer.serve.server import BoundedH11

pytestmark = pytest.mark.server


@contextlib.contextmanager
def serving(folder, server, *, limit=None, **tables):
    """Serve two models; give the process, the base URL and the models."""
    with contextlib.ExitStack() as stack:
        names = ("small", "large")
        models = {
            name: stack.enter_context(FaultyUpstream(name, skill=SKILLS[name])) for name in names
        }
        urls = {name: model.url for name, model in models.items()}
        cascade, policy = write_cascade(folder, 2, urls=urls, **tables)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m"]
        if server == "uvicorn":
            command += ["ttamer", "serve", cascade, policy, "--lame-duck", "5"]
        else:
            command += ["granian", "--interface", "asgi", "--factory", "ttamer.serve:create"]
        command += ["--port", str(port)]
        if limit is not None:
            command = ["bash", "-c", f'ulimit -n {limit}; exec "$@"', "bash", *map(str, command)]
        env = os.environ | {"TTAMER_CASCADE": str(cascade), "TTAMER_POLICY": str(policy)}
        env |= {"TOKEN": "t"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        stack.callback(process.stdout.close)
        stack.callback(process.wait, 40)
        stack.callback(process.terminate)
        root = f"http://127.0.0.1:{port}"
        wait_for(lambda: httpx2.get(f"{root}/ready").status_code == 200)
        yield process, root, models


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx2.HTTPError):
            if condition():
                return
        time.sleep(0.05)
    raise TimeoutError


def ask(root, prompt="prompt 1", **options):
    body = {"model": "ttamer", "messages": [{"role": "user", "content": prompt}]}
    return httpx2.post(f"{root}/v1/chat/completions", json=body, timeout=30, **options)


@pytest.mark.parametrize("server", ["uvicorn", "granian"])
def test_the_official_client_faults_reload_and_shutdown(tmp_path, server):
    with serving(tmp_path, server, serve={"token_env": "TOKEN"}) as (process, root, models):
        client = openai.OpenAI(base_url=f"{root}/v1", api_key="t", max_retries=0)
        messages = [{"role": "user", "content": "prompt 1"}]
        whole = client.chat.completions.create(model="ttamer", messages=messages)
        stream = client.chat.completions.create(
            model="ttamer", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content in list("ABCD")
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert [model.id for model in client.models.list()] == ["ttamer"]
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="no").chat.completions.create(
                model="ttamer", messages=messages
            )
        models["small"].mode, models["large"].mode = "error", "reset"
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="ttamer", messages=messages)
        models["small"].mode = models["large"].mode = "ok"

        former = httpx2.get(f"{root}/ready").json()["policy"]
        tt.save(fitted_ladder(2).at(0.5), tmp_path / "policy.ttamer")
        if server == "uvicorn":  # granian starts new workers on a hangup by itself
            process.send_signal(signal.SIGHUP)
        wait_for(lambda: httpx2.get(f"{root}/ready").json()["policy"] != former)

        headers = {"authorization": "Bearer t"}
        models["small"].mode = models["large"].mode = "ok"
        process.terminate()
        if server == "uvicorn":
            wait_for(lambda: httpx2.get(f"{root}/ready").status_code == 503, 15)
            assert ask(root, headers=headers).status_code == 200  # a lame duck still answers
        assert process.wait(40) in (0, -signal.SIGTERM)


def test_silent_half_and_idle_connections_do_not_keep_others_out(tmp_path):
    contents = (
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n",
        b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    )
    with (
        serving(tmp_path, "uvicorn", limit=512) as (_, root, _),
        contextlib.ExitStack() as stack,
    ):
        address = ("127.0.0.1", int(root.rpartition(":")[2]))
        for number in range(750):
            if number == 450:
                contents = contents[2:]  # then those alone that idle after an answer
            connection = stack.enter_context(socket.create_connection(address))
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                connection.sendall(contents[number % len(contents)])
                if number >= 450:
                    connection.recv(1000)
            if number in (449, 749):
                wait_for(lambda: ask(root).status_code == 200, 5)


def test_a_response_that_is_not_read_is_given_up(monkeypatch):
    config = uvicorn.Config(lambda *_: None, http=BoundedH11)
    config.load()
    transport = Mock()
    transport.get_extra_info.return_value = None
    now = [100.0]
    monkeypatch.setattr("ttamer.serve.server.time", Mock(monotonic=lambda: now[0]))

    async def scenario():
        connection = BoundedH11(config, ServerState(), {})
        connection.connection_made(transport)
        for is_read in (True, False):
            connection.pause_writing()
            if is_read:
                connection.resume_writing()
            now[0] += 1 + BoundedH11.unread_seconds
            connection.expire()
            assert transport.abort.called is not is_read
        connection.connection_lost(None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: -1\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 5, 6\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"x: " + b"y" * 200_000 + b"\r\n",
        b"a b: c\r\n",
        b"content-length : 5\r\n",
        b"x\x00y: z\r\n",
    ],
    ids=lambda head: head[:30].decode("latin-1"),
)
def test_a_head_that_proxies_read_in_two_ways_is_refused(odd_root, head):
    with socket.create_connection(("127.0.0.1", int(odd_root.rpartition(":")[2]))) as connection:
        connection.settimeout(10)
        start = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        start += b"content-type: application/json\r\n"
        with contextlib.suppress(ConnectionError):
            connection.sendall(
                start + head + b"\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n\r\n"
            )
        received = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while part := connection.recv(65536):
                received += part
    assert received.count(b"HTTP/1.1") <= 1
    assert not received.startswith(b"HTTP/1.1 2")


@pytest.fixture(scope="module")
def odd_root(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("odd"), "uvicorn") as (_, root, _):
        yield root
