"""What deciding costs: the server beside a bare proxy of the same libraries, in one run.

``python benchmarks/serving.py [--rounds N] [--litellm PYTHON] [--json FILE]``

Servers run at once, each in a process of its own: a model's server that answers at once, a bare
proxy in front of it (Starlette and aiohttp), and the server four times: as a pass-through (one
node), stopping after the first of two nodes, asking both, and with a decision log; each on uvicorn
with h11, the first ones on granian too. With the Python of an environment that has LiteLLM, its
proxy runs twice: in front of the model, and in front of the server with one ask. One client loads
them in turn, in rounds. A ratio is the median, over rounds, of ratios to the bare proxy on the same
ASGI server within one round, or to LiteLLM in front of the model; so is processor time per request,
which a busy machine disturbs less. The spread is that of the middle half of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import ttamer as tt
from ttamer.cascade import CascadeSpec

CONNECTIONS, REQUESTS = 32, 1600
FEWER = 192  # requests of a round to LiteLLM
KINDS = ("bare", "pass", "one", "two", "log")
BODY = json.dumps(
    {"model": "ttamer", "messages": [{"role": "user", "content": "What is two and two? " * 20}]}
).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer sk-master\r\n"
)
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
NODE = '[[node]]\nname = "{}"\ncost = {}\nupstream = "http://127.0.0.1:{}/{}/v1"\n'


def completion(sure: float) -> bytes:
    """A response of six tokens."""
    words = ["Two", "and", "two", "is", "four", "."]
    tokens = [{"token": f" {word}", "logprob": math.log(sure)} for word in words]
    message = {"role": "assistant", "content": " ".join(words)}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": tokens},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 120, "completion_tokens": 6, "total_tokens": 126}
    return json.dumps(
        {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
    ).encode()


class Model(asyncio.Protocol):
    """A model's server that answers at once; it is sure below the path /sure."""

    answers = (completion(0.3), completion(0.99))

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if b"transfer-encoding: chunked" in head:
                length = self.received.find(b"0\r\n\r\n", end + 4) + 1 - end
            if length < 0 or len(self.received) < end + 4 + length:
                return
            self.received = self.received[end + 4 + length :]
            body = self.answers[b"/sure/" in head[:40]]
            start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            self.transport.write(start + b"content-length: %d\r\n\r\n" % len(body) + body)


async def run_model(port: int) -> None:
    """Serve the model until the process ends."""
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", port)
    await server.serve_forever()


def bare() -> Starlette:
    """A proxy that passes bodies on; its upstream is in the environment."""
    url = os.environ["BARE_UPSTREAM"]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            app.state.session = session
            yield

    async def chat(request: Request) -> Response:
        headers, body = {"content-type": "application/json"}, await request.body()
        async with request.app.state.session.post(url, data=body, headers=headers) as answer:
            return Response(await answer.read(), answer.status, media_type="application/json")

    routes = [Route("/v1/chat/completions", chat, methods=["POST"])]
    return Starlette(routes=routes, lifespan=lifespan)


async def load(port: int, requests: int) -> float:
    """Return the requests per second of a server."""

    async def ask(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            writer.write(REQUEST)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if b" 200 " not in head[:20]:
                raise RuntimeError(head.decode())
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(ask(requests // CONNECTIONS) for _ in range(CONNECTIONS)))
    return requests / (time.perf_counter() - start)


def fitted(names: tuple[str, ...]) -> tt.FittedLadder:
    """A ladder of policies that stop where the first node is sure."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, 400)
    right = rng.random((400, len(names))) < [0.7, 0.97][: len(names)]
    sure = np.where(right, rng.uniform(0.7, 1, right.shape), rng.uniform(0.2, 0.7, right.shape))
    letters = np.array(list("ABCD"))
    said = letters[np.where(right, label[:, None], (label[:, None] + 1) % 4)]
    spec = CascadeSpec.of({name: 1.0 + 8 * k for k, name in enumerate(names)})
    return tt.fit(tt.Trace.from_arrays(spec, sure, prediction=said, label=letters[label]))


def write(folder: Path, kind: str, port: int) -> tuple[Path, Path]:
    """Write the cascade and the policy of a kind; return both paths."""
    names = ("small",) if kind == "pass" else ("small", "large")
    text = "[serve]\ntradeoff = 0.9\n" + (f'log = "{folder}/log.jsonl"\n' if kind == "log" else "")
    for number, name in enumerate(names):
        path = "unsure" if (kind, name) == ("two", "small") else "sure"
        text += NODE.format(name, 1 + 8 * number, port, path)
    cascade, policy = folder / f"{kind}.toml", folder / f"{len(names)}.ttamer"
    cascade.write_text(text, "utf-8")
    if not policy.exists():
        tt.save(fitted(names), policy)
    return cascade, policy


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def seconds_of(process: subprocess.Popen[bytes]) -> float:
    """The processor time of a process and its children."""
    listed = subprocess.run(
        ["/bin/ps", "-o", "pid=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    total = 0.0
    for pid in [process.pid, *map(int, listed.stdout.split())]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def start(server: str, app: str, port: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start an application on an ASGI server, and wait until it listens."""
    common = [sys.executable, "-m", server, "--port", str(port), "--factory"]
    if server == "granian":
        common += ["--interface", "asgi", "--no-ws", "--http", "1", "--log-level", "error"]
    else:
        common += ["--http", "h11", "--ws", "none", "--no-access-log", "--log-level", "error"]
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *sys.path])
    process = subprocess.Popen([*common, app], env=os.environ | env | {"PYTHONPATH": path})
    wait_for(port)
    return process


def start_litellm(python: str, folder: Path, name: str, url: str) -> tuple[int, Any]:
    """Start LiteLLM's proxy in front of a URL; return its port and process."""
    port, config = free_port(), folder / f"{name}.yaml"
    params = {"model": "openai/ttamer", "api_base": url, "api_key": "none"}
    params |= {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    models = [{"model_name": "ttamer", "litellm_params": params}]
    tables = {"model_list": models, "litellm_settings": {"telemetry": False}}
    config.write_text(json.dumps(tables | {"general_settings": {"master_key": "sk-master"}}))
    program = Path(python).with_name("litellm")
    command = [program, "--config", config, "--port", port, "--host", "127.0.0.1"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [str(part) for part in command],
        env=env | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        with contextlib.suppress(OSError, RuntimeError, EOFError):
            asyncio.run(load(port, CONNECTIONS))
            return port, process
        time.sleep(0.5)
    raise RuntimeError("LiteLLM does not start")


def wait_for(port: int) -> None:
    """Wait until somebody listens on a port."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError(port)


def measure(rounds: int, litellm: str) -> list[dict[str, Any]]:
    """Return a row for each server."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model_port = free_port()
        command = [sys.executable, __file__, "--model", str(model_port)]
        stack.callback(subprocess.Popen(command).terminate)
        wait_for(model_port)
        url = f"http://127.0.0.1:{model_port}/sure/v1/chat/completions"
        servers = {}
        for server in ("uvicorn", "granian"):
            for kind in KINDS if server == "uvicorn" else KINDS[:3]:
                port, env = free_port(), {"BARE_UPSTREAM": url}
                if kind != "bare":
                    cascade, policy = write(Path(folder), kind, model_port)
                    env |= {"TTAMER_CASCADE": str(cascade), "TTAMER_POLICY": str(policy)}
                app = "serving:bare" if kind == "bare" else "ttamer.serve:create"
                process = start(server, app, port, env)
                stack.callback(process.wait)
                stack.callback(process.terminate)
                servers[server, kind] = port, process
        if litellm:
            behind = f"http://127.0.0.1:{servers['uvicorn', 'one'][0]}/v1"
            for kind, base in (("alone", url.removesuffix("/chat/completions")), ("ours", behind)):
                port, process = start_litellm(litellm, Path(folder), kind, base)
                stack.callback(process.wait)
                stack.callback(process.terminate)
                servers["LiteLLM", kind] = port, process
        rates: dict[Any, list[float]] = {key: [] for key in servers}
        times: dict[Any, list[float]] = {key: [] for key in servers}
        for number in range(rounds + 1):
            for key, (port, process) in servers.items():
                before = seconds_of(process)
                count = FEWER if key[0] == "LiteLLM" else REQUESTS
                rate = asyncio.run(load(port, count))
                if number:  # the first round warms up
                    rates[key].append(rate)
                    times[key].append((seconds_of(process) - before) / count)
    rows = []
    for (server, kind), values in rates.items():
        base = server, "alone" if server == "LiteLLM" else "bare"
        ratios = [a / b for a, b in zip(values, rates[base], strict=True)]
        shares = [b / a for a, b in zip(times[server, kind], times[base], strict=True)]
        rows.append(
            {
                "server": server,
                "kind": kind,
                "requests/s": spread(values),
                "of the base": spread(ratios),
                "processor, us": spread([1e6 * seconds for seconds in times[server, kind]]),
                "of the base, by processor": spread(shares),
            }
        )
    if litellm:
        pairs = zip(rates["uvicorn", "one"], rates["LiteLLM", "alone"], strict=True)
        print("one ask, times LiteLLM:", spread([a / b for a, b in pairs]))
        pairs = zip(times["LiteLLM", "alone"], times["uvicorn", "one"], strict=True)
        print("the same by processor:", spread([a / b for a, b in pairs]))
    return rows


def spread(values: list[float]) -> str:
    """The median, and the middle half."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values * 3)
    return f"{statistics.median(values):.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--litellm", default="", help="the Python of an environment that has it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        asyncio.run(run_model(options.model))
        return
    rows = measure(options.rounds, options.litellm)
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
