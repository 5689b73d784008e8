"""Attacks on the server, by clients and by models: what a bystander sees, and what memory it takes.

    python experiments/serving/attacks.py [--server uvicorn|granian] [--only WORD] [--json FILE]

``ttamer serve`` runs in a process of its own, with 512 open files and two models that this process
plays. While an attack runs, a bystander asks every 50 ms, each time on a new connection. A row has
how many of its requests were answered, their median and longest time, how much the server's memory
grew, and what became of the attack. Everything is on loopback and bounded in count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gzip
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ttamer as tt
from ttamer import CascadeSpec

SECONDS = 20.0  # the most that an attack may take
HOST = "127.0.0.1"
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
)
COSTS = {"small": 1.0, "large": 12.5}


# ---------------------------------------------------------------- the models
@dataclass
class Model:
    """A model's server: it answers well, or as ``mode`` says."""

    name: str
    mode: str = "ok"
    delay: float = 0.0
    calls: int = 0
    url: str = ""
    delivered: dict[str, float] = field(default_factory=dict)
    """By request, the cost of answers that were sent whole."""
    server: Any = None

    async def start(self) -> None:
        """Listen."""
        self.server = await asyncio.start_server(self._serve, HOST, 0, limit=2**24)
        self.url = f"http://{HOST}:{self.server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                request = head.partition(b"x-request-id:")[2].split(b"\r\n")[0].strip().decode()
                self.calls += 1
                await asyncio.sleep(self.delay)
                mode = self.mode
                if mode.startswith("loss"):  # a share of the calls
                    is_bad = random.random() < float(mode.split()[2])  # noqa: S311
                    mode = mode.split()[1] if is_bad else "ok"
                if not await self._answer(writer, mode, body, request):
                    break
        writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, mode: str, body: dict[str, Any], request: str
    ) -> bool:
        """Answer one request; return whether the connection goes on."""
        content = self._stream(body) if body.get("stream") else self._whole(body)
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\n"
        good = head + b"content-length: %d\r\n\r\n" % len(content) + content
        if mode == "ok":
            writer.write(good)
            await writer.drain()
            self.delivered[request] = self.delivered.get(request, 0.0) + COSTS[self.name]
            return True
        if mode == "hang":
            await asyncio.sleep(60)
        elif mode in STATUSES:
            writer.write(STATUSES[mode])
            return True
        elif mode == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
            writer.transport.abort()
        elif mode == "cut":
            writer.write(good[: -len(content) // 2])
        elif mode == "garbage":
            writer.write(head + b"content-length: 9\r\n\r\nnot JSON!")
            return True
        elif mode == "odd json":
            odd = json.dumps({"choices": [{"message": 3, "logprobs": [None]}], "usage": "free"})
            writer.write(head + b"content-length: %d\r\n\r\n" % len(odd) + odd.encode())
            return True
        elif mode == "endless headers":
            writer.write(head)
            for _ in range(20_000):
                writer.write(b"x-y: " + b"z" * 4000 + b"\r\n")
                await writer.drain()
        elif mode == "endless body":
            writer.write(head + b"\r\n")
            for _ in range(100):
                writer.write(b"x" * 2**20)
                await writer.drain()
        elif mode == "gzip bomb":
            writer.write(head + b"content-encoding: gzip\r\n\r\n" + _bomb())
        elif mode == "one byte":
            writer.write(head + b"\r\n")
            for byte in content:
                writer.write(bytes([byte]))
                await writer.drain()
            self.delivered[request] = self.delivered.get(request, 0.0) + COSTS[self.name]
        await writer.drain()
        return False

    def _message(self, body: dict[str, Any]) -> tuple[str, float]:
        """Say what the prompt ends with, so that answers that are mixed up show."""
        prompt = str(body["messages"][-1].get("content"))[-40:]
        luck = random.Random(prompt).random()  # noqa: S311
        return prompt, 0.99 if self.name == "large" or luck < 0.5 else 0.3

    def _whole(self, body: dict[str, Any]) -> bytes:
        text, sure = self._message(body)
        message = {"role": "assistant", "content": text}
        logprobs = {"content": [{"token": text, "logprob": float(np.log(sure))}]}
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        return json.dumps({"choices": [choice], "usage": usage}).encode()

    def _stream(self, body: dict[str, Any]) -> bytes:
        text, sure = self._message(body)
        logprobs = {"content": [{"token": text, "logprob": float(np.log(sure))}]}
        choice = {"index": 0, "delta": {"content": text}, "logprobs": logprobs}
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}
        chunks = [{"choices": [choice]}, {"choices": [last]}, usage]
        return b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks) + (
            b"data: [DONE]\n\n"
        )


def _status(line: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + line + b"\r\n" + more + b"content-length: 2\r\n\r\n{}"


STATUSES = {
    "500": _status(b"500 no"),
    "400": _status(b"400 no"),
    "429": _status(b"429 busy", b"retry-after: 1\r\n"),
    "503": _status(b"503 busy", b"retry-after: 3600\r\n"),
    "302": _status(b"302 away", b"location: http://127.0.0.1:9/\r\n"),
}


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(b"0" * 200 * 2**20, 1)


# ---------------------------------------------------------------- the server
def fitted() -> tt.FittedLadder:
    """A ladder of policies that stop where the first node is sure."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 400)
    right = rng.random((400, 2)) < [0.6, 0.97]
    sure = np.where(right, rng.uniform(0.7, 1, right.shape), rng.uniform(0.2, 0.7, right.shape))
    letters = np.array(list("ABCD"))
    said = letters[np.where(right, label[:, None], (label[:, None] + 1) % 4)]
    return tt.fit(
        tt.Trace.from_arrays(CascadeSpec.of(COSTS), sure, prediction=said, label=letters[label])
    )


def write(folder: Path, models: dict[str, Model], serve: str = "") -> tuple[Path, Path]:
    """Write a cascade and its policy."""
    text = f'[serve]\ntradeoff = 0.9\nlog = "{folder}/decisions.jsonl"\n{serve}\n'
    for name, model in models.items():
        text += f'[[node]]\nname = "{name}"\ncost = {COSTS[name]}\nupstream = "{model.url}"\n'
    cascade, policy = folder / "cascade.toml", folder / "policy.ttamer"
    cascade.write_text(text)
    if not policy.exists():
        tt.save(fitted(), policy)
    return cascade, policy


GRANIAN = ["granian", "--interface", "asgi", "--factory", "ttamer.serve:create", "--no-ws"]
GRANIAN += ["--http", "1", "--http1-header-read-timeout", "15000"]


async def started(
    cascade: Path, policy: Path, server: str, *, files: int = 512
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server, and wait until it is ready; return its process and its port."""
    listener = await asyncio.start_server(lambda *_: None, HOST, 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", sys.executable, "-m"]
    command += ["ttamer", "serve", cascade, policy] if server == "uvicorn" else GRANIAN
    env = os.environ | {"TTAMER_CASCADE": str(cascade), "TTAMER_POLICY": str(policy)}
    output = cascade.with_name("server.log").open("ab")
    with output:
        arguments = [*map(str, command), "--port", str(port)]
        process = subprocess.Popen(arguments, env=env, stdout=output, stderr=output)  # noqa: S603
    for _ in range(600):
        await asyncio.sleep(0.1)
        with contextlib.suppress(OSError, TimeoutError):
            if b" 200 " in await exchange(port, b"GET /ready HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"):
                return process, port
    raise TimeoutError("the server does not start")


def memory(process: subprocess.Popen[bytes]) -> float:
    """The MB of memory of a process and its children."""
    command = ["/bin/ps", "-o", "pid=", "--ppid", str(process.pid)]
    listed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    total = 0
    for pid in [process.pid, *map(int, listed.stdout.split())]:
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total / 2**20


# ---------------------------------------------------------------- clients
def request_bytes(prompt: str = "hello", head: bytes = b"", **fields: Any) -> bytes:
    """A chat request as bytes."""
    messages = [{"role": "user", "content": prompt}]
    body = json.dumps({"model": "ttamer", "messages": messages, **fields}).encode()
    return HEAD + head + b"content-length: %d\r\n\r\n" % len(body) + body


async def exchange(port: int, content: bytes, seconds: float = SECONDS) -> bytes:
    """Send bytes on a new connection, and return the first response."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            if length:
                return head + await reader.readexactly(int(length))
            parts = [head]
            while not parts[-1].endswith((b"0\r\n\r\n", b"[DONE]\n\n\r\n")):
                parts.append(await reader.read(65536))
                if not parts[-1]:
                    break
            return b"".join(parts)
        finally:
            writer.close()


async def ask(port: int, prompt: str = "hello", **fields: Any) -> int:
    """Return the status of one request; 0 where there is no response."""
    try:
        answer = await exchange(port, request_bytes(prompt, **fields))
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        ERRORS[type(error).__name__] += 1
        return 0
    return int(answer[9:12])


ERRORS = Counter[str]()


@contextlib.asynccontextmanager
async def held(
    port: int, count: int, readers: list[asyncio.StreamReader] | None = None
) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Open connections, and hold them; what is put into ``readers`` sees their end."""
    writers = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, port, limit=2**12)
                writers.append(writer)
                if readers is not None:
                    readers.append(reader)
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


class Bystander:
    """Asks every 50 ms, each time on a new connection."""

    def __init__(self, port: int) -> None:
        self.port, self.seconds, self.statuses = port, [], Counter[int]()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        async with asyncio.TaskGroup() as group:
            while True:
                number += 1
                group.create_task(self._ask(f"bystander {number}"))
                await asyncio.sleep(0.05)

    async def _ask(self, prompt: str) -> None:
        start = time.monotonic()
        status = await ask(self.port, prompt)
        self.statuses[status] += 1
        self.seconds.append(time.monotonic() - start)

    async def stop(self) -> dict[str, Any]:
        """Return what it saw."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if not self.seconds:
            return {"answered": "0/0", "median_s": float("nan"), "longest_s": float("nan")}
        others = {status: count for status, count in self.statuses.items() if status != 200}
        return {
            "answered": f"{self.statuses[200]}/{self.statuses.total()} {others or ''}".strip(),
            "median_s": statistics.median(self.seconds),
            "longest_s": max(self.seconds),
        }


# ---------------------------------------------------------------- attacks by clients
async def silent_connections(port: int) -> str:
    """600 connections that send nothing."""
    readers: list[asyncio.StreamReader] = []
    async with held(port, 600, readers):
        await asyncio.sleep(18)
        return f"{sum(map(_has_ended, readers))} of 600 closed by the server within 18 s"


async def half_requests(port: int) -> str:
    """600 heads of requests that never end."""
    async with held(port, 600) as writers:
        for writer in writers:
            writer.write(HEAD)
        await asyncio.sleep(3)
        return "600 heads without an end"


async def idle_after_an_answer(port: int) -> str:
    """600 connections that stay open after an answer."""
    async with held(port, 600) as writers:
        for writer in writers:
            writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await asyncio.sleep(3)
        return "600 connections kept alive"


async def unread_pipelines(port: int) -> str:
    """200 requests on each of 60 connections, whose responses are not read."""
    many = request_bytes("x" * 2000) * 200
    async with held(port, 60) as writers:
        for writer in writers:
            writer.write(many)
        await asyncio.sleep(5)
        return "60 connections with 200 requests each, no response read"


async def endless_headers(port: int) -> str:
    """One head of 150 MB."""
    async with held(port, 1) as (writer,):
        writer.write(HEAD)
        sent = 0
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                for _ in range(150):
                    writer.write(b"x-y: " + b"z" * 2**20 + b"\r\n")
                    await writer.drain()
                    sent += 1
        return f"closed after {sent} MB" if sent < 150 else "150 MB taken"


async def many_headers(port: int) -> str:
    """One head of 20,000 fields."""
    head = b"".join(b"x-%d: y\r\n" % n for n in range(20_000))
    try:
        return str((await exchange(port, request_bytes(head=head)))[9:12])
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        return type(error).__name__


async def slow_bodies(port: int) -> str:
    """150 bodies of one byte a second."""
    readers: list[asyncio.StreamReader] = []
    async with held(port, 150, readers) as writers:
        for second in range(18):
            for writer in writers:
                with contextlib.suppress(OSError):
                    writer.write(b"x" if second else HEAD + b"content-length: 1000\r\n\r\n{")
            await asyncio.sleep(1)
        return f"{sum(map(_has_ended, readers))} of 150 closed by the server within 18 s"


def _has_ended(reader: asyncio.StreamReader) -> bool:
    error = reader.exception()
    return error is not None or reader._eof  # type: ignore[attr-defined]  # at_eof needs a read


async def large_bodies(port: int) -> str:
    """80 bodies as large as may be, at once."""
    content = request_bytes("x " * (2**21 - 200))
    tasks = [exchange(port, content, 30) for _ in range(80)]
    return _counted(await asyncio.gather(*tasks, return_exceptions=True))


async def too_large_bodies(port: int) -> str:
    """20 bodies without a length, twice as large as may be."""
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    content = head + (b"100000\r\n" + b"x" * 2**20 + b"\r\n") * 8
    tasks = [exchange(port, content) for _ in range(20)]
    return _counted(await asyncio.gather(*tasks, return_exceptions=True))


async def deep_and_odd_json(port: int) -> str:
    """Bodies that parsers fail on."""
    bodies = [
        b"[" * 500_000,
        b'{"messages":' * 50_000,
        b"\xff" * 1000,
        b'"\\ud800"',
        b"1e999",
        b'{"messages": [{"content": "\\ud800"}], "ttamer": {"inputs": {"a": 1e999}}}',
    ]
    tasks = [
        exchange(port, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        for body in bodies * 10
    ]
    return _counted(await asyncio.gather(*tasks, return_exceptions=True))


async def long_texts(port: int) -> str:
    """Prompts on which a search that goes back takes for ever."""
    texts = ["(" * 10**6, "a " * 10**6, "{" * 10**6, "1," * 10**6, "\u00df" * 10**6]
    tasks = [exchange(port, request_bytes(text), 30) for text in texts * 3]
    return _counted(await asyncio.gather(*tasks, return_exceptions=True))


async def other_points(port: int) -> str:
    """Each request with an operating point that no other had."""
    points = [{"budget": 1 + n / 97} for n in range(150)]
    points += [{"tradeoff": n / 151} for n in range(150)] + [{"error": n / 999} for n in range(99)]
    random.shuffle(points)
    counts = Counter[int]()
    for start in range(0, len(points), 40):
        some = points[start : start + 40]
        counts.update(await asyncio.gather(*(ask(port, ttamer=point) for point in some)))
    return _counts(counts)


async def clients_that_leave(port: int) -> str:
    """400 clients that do not wait for their answers."""
    for _ in range(10):
        async with held(port, 40) as writers:
            for number, writer in enumerate(writers):
                writer.write(request_bytes("leave", stream=bool(number % 2)))
            await asyncio.sleep(0.05)
    return "400 left at once"


async def unread_streams(port: int) -> str:
    """150 streams that are not read."""
    async with held(port, 150) as writers:
        for writer in writers:
            writer.write(request_bytes("x" * 5000, stream=True))
        await asyncio.sleep(5)
        return "150 streams, none read"


async def flood(port: int) -> str:
    """400 requests at once."""
    statuses = await asyncio.gather(*(ask(port, f"flood {n}") for n in range(400)))
    return _counts(Counter(statuses))


SMUGGLED = [
    head + body
    for body in (b"\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n\r\n",)
    for head in (
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5, 6\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: -1\r\n",
        b"content-length: +5\r\n",
        b"content-length: 0x5\r\n",
        b"content-length: 5 5\r\n",
        b"content-length:\r\n",
        b"content-length: 1e1\r\n",
        b"content-length : 5\r\n",
        b" content-length: 5\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: identity, chunked\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: ,chunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding:\x0bchunked\r\n",
        b"transfer-encoding: \x00chunked\r\n",
        b"transfer_encoding: chunked\r\n",
        b"transfer-encoding: chunked;x=1\r\n",
        b"Transfer-Encoding: CHUNKED, gzip\r\n",
        b"x: y\rtransfer-encoding: chunked\r\n",
        b"x: y\ntransfer-encoding: chunked\r\n",
        b"a b: c\r\ncontent-length: 5\r\n",
        b"x\x00y: z\r\n",
        b"x: y\x00\r\n",
        b"host: other\r\ncontent-length: 5\r\n",
        b"content-length: 99999999999999999999\r\n",
        b"connection: content-length\r\ncontent-length: 0\r\n",
        b"expect: 100-continue\r\ncontent-length: -5\r\n",
        b"\xff: y\r\ncontent-length: 5\r\n",
    )
]


async def smuggling(port: int) -> str:
    """Heads that two servers read in two ways: a bad one is answered with success, or twice."""
    answered, twice = 0, []
    for number, part in enumerate(SMUGGLED):
        received = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(HEAD + part)
                while block := await reader.read(65536):
                    received += block
        writer.transport.abort()
        answered += received.startswith(b"HTTP/1.1 2")
        if b"HTTP/1.1 2" in received[1:]:
            twice.append(SMUGGLED[number].partition(b"\r\n0")[0])
    return f"{len(SMUGGLED)} variants, {answered} with success, a second one after: {twice}"


def _counted(results: list[Any]) -> str:
    shown = [r[9:12].decode() if isinstance(r, bytes) else type(r).__name__ for r in results]
    return _counts(Counter(shown))


def _counts(counts: Counter[Any]) -> str:
    return ", ".join(f"{key}: {count}" for key, count in sorted(counts.items(), key=str))


CLIENT_ATTACKS: list[Callable[[int], Awaitable[str]]] = [
    silent_connections,
    half_requests,
    idle_after_an_answer,
    unread_pipelines,
    endless_headers,
    many_headers,
    slow_bodies,
    large_bodies,
    too_large_bodies,
    deep_and_odd_json,
    long_texts,
    other_points,
    clients_that_leave,
    unread_streams,
    flood,
    smuggling,
]
FAULTS = [
    "hang",
    "reset",
    "cut",
    "garbage",
    "odd json",
    "endless headers",
    "endless body",
    "gzip bomb",
    "one byte",
    *STATUSES,
]


async def faulty(port: int, model: Model, mode: str, *, stream: bool) -> str:
    """One of both models fails in one way while clients ask."""
    model.mode = mode
    statuses = Counter[int]()
    end = time.monotonic() + 6
    while time.monotonic() < end:
        made = await asyncio.gather(*(ask(port, f"f{n}", stream=stream) for n in range(8)))
        statuses.update(made)
        await asyncio.sleep(0.1)
    model.mode = "ok"
    return f"{_counts(statuses)}; {model.calls} calls"


# ---------------------------------------------------------------- the run
async def measured(
    server: str, folder: Path, name: str, attack: Callable[..., Awaitable[str]], **options: Any
) -> dict[str, Any]:
    """Return the row of one attack on a new server."""
    models = {model: Model(model) for model in COSTS}
    for model in models.values():
        await model.start()
    allow = 'allow = ["tradeoff", "budget", "error"]\ntimeout = 20.0'
    cascade, policy = write(folder, models, allow)
    process, port = await started(cascade, policy, server)
    try:
        for number in range(40):  # time limits are learnt
            await ask(port, f"warm {number}")
        sizes, bystander = [memory(process)], Bystander(port)
        watching = asyncio.create_task(_watch(process, sizes))
        if "mode" in options:
            options["model"] = models["small"]
        try:
            async with asyncio.timeout(2 * SECONDS):
                end = time.monotonic() + 3
                result = await attack(port, **options)
                while time.monotonic() < end:  # a short one again, for the bystander
                    result = await attack(port, **options)
        except TimeoutError:
            result = "took too long"
        watching.cancel()
        row = {"attack": name, **await bystander.stop(), "MB": max(sizes) - sizes[0]}
        alive = await ask(port, "after")
        row["after"] = alive if process.poll() is None else "dead"
        if ERRORS:
            result += f" ({_counts(ERRORS)})"
            ERRORS.clear()
        return {**row, "result": result}
    finally:
        process.kill()
        process.wait()
        for model in models.values():
            model.server.close()


async def _watch(process: subprocess.Popen[bytes], sizes: list[float]) -> None:
    while True:
        sizes.append(memory(process))
        await asyncio.sleep(0.25)


async def main() -> None:
    """Run all attacks, and print the table."""
    _bomb()  # made before anything is measured
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=("uvicorn", "granian"), default="uvicorn")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    attacks: list[tuple[str, Callable[..., Awaitable[str]], dict[str, Any]]] = [
        (attack.__name__.replace("_", " "), attack, {}) for attack in CLIENT_ATTACKS
    ]
    streams = ("hang", "cut", "one byte", "endless body")
    attacks += [(f"a model: {m}", faulty, {"mode": m, "stream": False}) for m in FAULTS]
    attacks += [(f"a model's stream: {m}", faulty, {"mode": m, "stream": True}) for m in streams]
    rows = []
    names = ["attack", "answered", "median_s", "longest_s", "MB", "after", "result"]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, attack, more in attacks:
            if options.only not in name:
                continue
            rows.append(await measured(options.server, Path(folder), name, attack, **more))
            cells = (rows[-1][key] for key in names)
            shown = (f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells)
            print("| " + " | ".join(shown) + " |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
