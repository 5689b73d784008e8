"""What the gateway adds: beside a bare pass-through proxy, and beside LiteLLM's, in one run.

``python benchmarks/serving.py [--litellm PYTHON] [--rounds N] [--json FILE]``
``python benchmarks/serving.py --workers 2 [--rounds N]``

Several servers run at once, each in a process of its own: an upstream that answers at once, a bare
proxy in front of it (Starlette, uvicorn, aiohttp), ``ttamer serve`` three times, and LiteLLM's
proxy where it is installed beside this interpreter, or beside the one given. The three gateways are
a pass-through (a cascade of one node), a cascade of two nodes that stops after the first, and one
that asks both. One client loads them in turn, in rounds; a ratio is the median, over rounds, of
ratios taken within one round. Latency is measured one request at a time; what a proxy adds is its
latency less that of the upstream asked directly. Processor time per request is compared too: on a
busy machine throughput depends on how often a process has to wait for its turn.

With ``--workers N`` the cascade that stops after the first node is served by one process and by N,
in the same run. The client and the upstream use processors too: ``at most`` is the ratio if all
processors were busy all the time with N workers, and one of them with one worker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 32
REQUESTS = 1500
SINGLE = 300
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"
BODY = json.dumps(
    {"model": "ttamer", "messages": [{"role": "user", "content": "What is two and two? " * 20}]}
).encode()
PATHS = {"pass": "model", "one ask": "small", "two asks": "small,large"}
"""The gateways, and the nodes that each of them asks."""
INSTALL = "python -m venv V; V/bin/pip install 'litellm[proxy]'; then pass --litellm V/bin/python"
"""How LiteLLM is installed in an environment of its own."""
AIMS = {"pass": 1.0, "one ask": 0.7, "two asks": 0.45}
"""The throughput of each gateway, as a share of the bare proxy's."""


def answer(logprob: float) -> bytes:
    """Return a response whose tokens all have one log-probability."""
    words = ["Two", "and", "two", "is", "four", "."]
    tokens = [{"token": f" {word}", "logprob": logprob, "top_logprobs": []} for word in words]
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": " ".join(words)},
                    "logprobs": {"content": tokens},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 6, "total_tokens": 106},
        }
    ).encode()


def upstream() -> object:
    """Return an application that answers at once; the model "unsure" with low probabilities."""
    answers = [answer(-0.01), answer(-3.0)]
    heads = [
        [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(each))]
        for each in answers
    ]

    async def app(scope: dict, receive: object, send: object) -> None:
        if scope["type"] == "http":
            body = b""
            while (message := await receive()).get("more_body"):
                body += message["body"]
            which = b'"unsure"' in body + message["body"]
            await send({"type": "http.response.start", "status": 200, "headers": heads[which]})
            await send({"type": "http.response.body", "body": answers[which]})

    return app


def bare_proxy(target: str) -> object:
    """Return a proxy that hands request and response on, and nothing else."""
    import aiohttp
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> object:
        connector = aiohttp.TCPConnector(limit=512)
        async with aiohttp.ClientSession(connector=connector) as session:
            app.state.session = session
            yield

    async def relay(request: object) -> Response:
        body = await request.body()
        headers = {"content-type": "application/json"}
        url = f"{target}/v1/chat/completions"
        async with request.app.state.session.post(url, data=body, headers=headers) as response:
            content = await response.read()
            kind = response.headers["content-type"]
            return Response(content, response.status, {"content-type": kind})

    route = Route("/v1/chat/completions", relay, methods=["POST"])
    return Starlette(routes=[route], lifespan=lifespan)


def serve(what: str, port: int, target: str) -> None:
    """Run one of the two applications above: what the benchmark's children do."""
    import uvicorn

    app = upstream() if what == "upstream" else bare_proxy(target)
    lifespan = "off" if what == "upstream" else "on"
    uvicorn.run(app, port=port, log_level="error", access_log=False, lifespan=lifespan, ws="none",
                server_header=False, proxy_headers=False)  # fmt: skip


class Line:
    """One connection that is kept open, over which one request at a time is made."""

    def __init__(self, port: int) -> None:
        self._port = port
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(BODY)}\r\n\r\n"
        )
        self._request = head.encode() + BODY

    async def open(self) -> Line:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def ask(self, path: str = "") -> float:
        """Make one request; return how long it took. ``path`` is the nodes that must be asked."""
        start = time.perf_counter()
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await self._reader.readexactly(size)
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"port {self._port} answered {head[:40]!r} {content[:200]!r}")
        if path and f"x-ttamer-path: {path.replace(',', '%2c')}\r\n".encode() not in head.replace(
            b",", b"%2c"
        ):
            raise RuntimeError(f"port {self._port} did not ask {path}: {head!r}")
        return time.perf_counter() - start


async def load(
    port: int, connections: int, requests: int, path: str = ""
) -> tuple[float, list[float]]:
    """Return requests per second, and how long each took."""
    lines = await asyncio.gather(*(Line(port).open() for _ in range(connections)))
    seconds: list[float] = []

    async def work(line: Line) -> None:
        seconds.extend([await line.ask() for _ in range(requests // connections)])

    await asyncio.gather(*(line.ask(path) for line in lines))
    start = time.perf_counter()
    await asyncio.gather(*map(work, lines))
    rate = len(seconds) / (time.perf_counter() - start)
    for line in lines:
        line.close()
    return rate, seconds


def cascade_files(folder: Path, port: int, name: str) -> list[str]:
    """Write the cascade of one gateway and its policy; return their paths."""
    import ttamer as tt

    names = PATHS[name].split(",") if name == "pass" else ["small", "large"]
    rng = np.random.default_rng(0)
    sure = rng.random((400, len(names))) ** 0.25
    right = rng.random(sure.shape) < sure
    right[:, -1] |= len(names) > 1  # the large model is always right
    spec = tt.CascadeSpec.of({each: 30.0**number for number, each in enumerate(names)})
    folder = folder / name.replace(" ", "-")
    folder.mkdir()
    tt.save(tt.fit(tt.Trace(spec, sure, correct=right)), folder / "policy.ttamer")
    tradeoff = "" if name == "pass" else "tradeoff = 0.9\n"
    text = f'[serve]\nkeys_env = "BENCHMARK_KEYS"\n{tradeoff}'
    for number, each in enumerate(names):
        model = "unsure" if name == "two asks" and not number else "model"
        text += f'\n[[node]]\nname = "{each}"\ncost = {30.0**number}\nmodel = "{model}"\n'
        text += f'upstream = "http://127.0.0.1:{port}/v1"\n'
    (folder / "cascade.toml").write_text(text)
    return [str(folder / "cascade.toml"), str(folder / "policy.ttamer")]


def litellm_file(folder: Path, port: int) -> str:
    """Write LiteLLM's configuration; return its path."""
    path = folder / "litellm.json"  # YAML takes JSON
    params = {"model": "openai/model", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "x"}
    models = [{"model_name": "ttamer", "litellm_params": params}]
    path.write_text(json.dumps({"model_list": models, "litellm_settings": {"telemetry": False}}))
    return str(path)


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    import socket

    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def children(
    litellm: str | None, workers: int | None = None
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Start all servers; give their ports and their processes by name.

    With a number of workers: the upstream, a gateway of one process, and one of as many workers.
    """
    names = ("direct", "bare", *PATHS, "litellm")
    if workers is not None:
        names = ("direct", "one ask", "workers")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    target = f"http://127.0.0.1:{ports['direct']}"
    own = [sys.executable, str(Path(__file__).resolve())]
    environment = {**os.environ, "BENCHMARK_KEYS": KEY, "LITELLM_MASTER_KEY": KEY}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commands = {"direct": [*own, "--child", "upstream", str(ports["direct"])]}
        if "bare" in ports:
            commands["bare"] = [*own, "--child", "bare", str(ports["bare"]), target]
        for name in ports.keys() & PATHS:
            files = cascade_files(folder, ports["direct"], name)
            serve = [sys.executable, "-m", "ttamer", "serve", *files]
            commands[name] = [*serve, "--port", str(ports[name])]
            if workers is not None:
                several = ["--port", str(ports["workers"]), "--workers", str(workers)]
                commands["workers"] = [*serve, *several]
        if litellm is None:
            ports.pop("litellm", None)
        else:
            program = str(Path(litellm).with_name("litellm"))
            config = litellm_file(folder, ports["direct"])
            commands["litellm"] = [program, "--config", config, "--port", str(ports["litellm"]),
                                   "--host", "127.0.0.1", "--telemetry", "False"]  # fmt: skip
        pids = {}
        for name, command in commands.items():
            child = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd=folder,
            )  # fmt: skip
            pids[name] = child.pid
            stack.callback(child.wait)
            stack.callback(child.terminate)
        for port in ports.values():
            wait_for(port)
        yield ports, pids


def cpu_seconds(pid: int) -> float:
    """Return how long a process and its children have run on a processor (Linux)."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        own = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        started = [child for task in tasks for child in (task / "children").read_text().split()]
        return own + sum(cpu_seconds(int(child)) for child in started)
    except OSError:
        return float("nan")


def wait_for(port: int, seconds: float = 90.0) -> None:
    """Wait until a server answers the request that will be made."""
    end = time.monotonic() + seconds
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", BODY,
        {"content-type": "application/json", "authorization": f"Bearer {KEY}"},
    )  # fmt: skip
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - our own server
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


async def measured(
    ports: dict[str, int], pids: dict[str, int], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return, by server, rates, latencies and processor time per request of every round."""
    found = {name: {"rate": [], "p50": [], "p99": [], "cpu": []} for name in ports}
    for name, port in ports.items():
        await load(port, CONNECTIONS, REQUESTS // 3, PATHS.get(name, ""))  # warm
    for number in range(rounds):
        names = list(ports) if number % 2 else list(ports)[::-1]
        for name in names:
            fewer = 4 if name == "litellm" else 1
            before = cpu_seconds(pids[name])
            rate, every = await load(ports[name], CONNECTIONS, REQUESTS // fewer)
            spent = cpu_seconds(pids[name]) - before
            found[name]["cpu"].append(spent / (len(every) + CONNECTIONS))
            _, seconds = await load(ports[name], 1, SINGLE // fewer)
            found[name]["rate"].append(rate)
            found[name]["p50"].append(float(np.quantile(seconds, 0.5)))
            found[name]["p99"].append(float(np.quantile(seconds, 0.99)))
    return found


def ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Return the median of ratios within rounds, and their quartiles."""
    each = [a / b for a, b in zip(above, below, strict=True)]
    low, middle, high = np.quantile(each, [0.25, 0.5, 0.75]).tolist()
    return middle, low, high


def added(found: dict[str, dict[str, list[float]]], name: str, what: str) -> list[float]:
    """Return, per round, the latency that a proxy adds."""
    pairs = zip(found[name][what], found["direct"][what], strict=True)
    return [through - direct for through, direct in pairs]


def verdicts(found: dict[str, dict[str, list[float]]]) -> list[dict[str, object]]:
    """Return each aim, what was found, and whether it is met."""
    rows: list[tuple[object, ...]] = []
    for name, aim in AIMS.items():
        share = ratio(found[name]["rate"], found["bare"]["rate"])
        rows.append((f"{name}: throughput / bare proxy's", *share, ">=", aim))
        work = ratio(found["bare"]["cpu"], found[name]["cpu"])
        rows.append((f"{name}: bare proxy's CPU / its own", *work, ">=", aim))
    slower = ratio(added(found, "pass", "p50"), added(found, "bare", "p50"))
    rows.append(("pass: added p50 / bare proxy's", *slower, "<=", 1.1))
    for name in AIMS if "litellm" in found else ():
        faster = ratio(found[name]["rate"], found["litellm"]["rate"])
        rows.append((f"{name}: throughput / LiteLLM's", *faster, ">=", 3.0))
    keys = ("what", "ratio", "low", "high", "sign", "aim")
    named = [dict(zip(keys, row, strict=True)) for row in rows]
    for row in named:
        met = row["ratio"] >= row["aim"] if row["sign"] == ">=" else row["ratio"] <= row["aim"]
        row["met"] = bool(met)
    return named


def compare_workers(workers: int, rounds: int, file: Path | None) -> None:
    """Print the throughput of one process and of several, of rounds of one run."""
    with children(None, workers) as (ports, pids):
        rates: dict[str, list[float]] = {"one ask": [], "workers": []}
        spent: dict[str, list[float]] = {"one ask": [], "workers": [], "others": []}
        for number in range(-1, rounds):
            for name in ("one ask", "workers") if number % 2 else ("workers", "one ask"):
                before = [time.process_time(), *map(cpu_seconds, (pids["direct"], pids[name]))]
                rate, every = asyncio.run(load(ports[name], CONNECTIONS, REQUESTS, "small"))
                after = [time.process_time(), *map(cpu_seconds, (pids["direct"], pids[name]))]
                client, upstream, gateway = (
                    (b - a) / (len(every) + CONNECTIONS) for a, b in zip(before, after, strict=True)
                )
                if number >= 0:  # the first round warms up
                    rates[name].append(rate)
                    spent[name].append(1e6 * gateway)
                    spent["others"].append(1e6 * (client + upstream))
    middle, low, high = ratio(rates["workers"], rates["one ask"])
    alone, several, others = (statistics.median(each) for each in spent.values())
    cores = len(os.sched_getaffinity(0))
    bound = min(workers, cores * alone / (several + others))
    for name, count in (("one ask", 1), ("workers", workers)):
        print(f"{count} worker{'s'[: count > 1]}: {statistics.median(rates[name]):.0f} requests/s")
    print(
        f"ratio {middle:.2f} ({low:.2f} to {high:.2f}), at most {bound:.2f} here: a request takes"
    )
    print(f"{alone:.0f} us of one worker, {several:.0f} us of {workers}, {others:.0f} us of client "
          "and upstream")  # fmt: skip
    load_now = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{rounds} rounds, load {load_now} on {cores} cores")
    if file:
        file.write_text(json.dumps({"rates": rates, "spent": spent}, indent=1) + "\n")


def main() -> None:
    """Measure, print a table, say which aims are met."""
    parser = argparse.ArgumentParser(description="What the gateway adds, beside other proxies.")
    parser.add_argument(
        "--litellm", metavar="PYTHON", help="interpreter of a LiteLLM installation (default: this)"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    parser.add_argument("--workers", type=int, metavar="N", help="compare one process with N")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, port, *target = options.child
        serve(what, int(port), *target or [""])
        return
    if options.workers:
        compare_workers(options.workers, options.rounds, options.json)
        return
    litellm = options.litellm or sys.executable
    has_litellm = Path(litellm).with_name("litellm").exists()
    if options.litellm and not has_litellm:
        parser.error(f"there is no program litellm beside {options.litellm}; {INSTALL}")
    with children(litellm if has_litellm else None) as (ports, pids):
        found = asyncio.run(measured(ports, pids, options.rounds))
    heads = ("requests/s", "p50 ms", "p99 ms", "added p50", "added p99", "CPU us")
    print(" " * 10 + "".join(f"{head:>12}" for head in heads))
    for name, values in found.items():
        cells = [1000 * statistics.median(values[what]) for what in ("p50", "p99")]
        cells += [1000 * statistics.median(added(found, name, what)) for what in ("p50", "p99")]
        rate, spent = statistics.median(values["rate"]), 1e6 * statistics.median(values["cpu"])
        row = "".join(f"{cell:12.2f}" for cell in cells)
        print(f"{name:10}{rate:12.0f}{row}{spent:12.0f}")
    rows = verdicts(found)
    for row in rows:
        verdict = f"aim {row['sign']} {row['aim']}: {'met' if row['met'] else 'not met'}"
        spread = f"({row['low']:.2f} to {row['high']:.2f})"
        print(f"{row['what']:38}{row['ratio']:8.2f}  {spread}   {verdict}")
    load_now = " ".join(f"{each:.1f}" for each in os.getloadavg())
    if not has_litellm:
        print(f"LiteLLM is not measured: it is not installed; {INSTALL}")
    print(f"{options.rounds} rounds, load {load_now} on {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({"rounds": found, "aims": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
