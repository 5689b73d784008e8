"""Time to the first token and cost of a two-node cascade, by how it streams.

``python experiments/serving/streams.py [--requests N] [--speed X]``

Two models of known speed are simulated behind a real gateway: each waits before its first token,
and between tokens. Every request is streamed; the time to the first token is measured by the
client, over a real connection. The aim is the time to the first token of the node that answers,
plus the whole answers that came before it; the ratio to it is printed as a mean with its standard
error, for requests that one node and two nodes answered. All ways are asked in turn, so that they
meet the same load. ``--speed 10`` makes all waits ten times
shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import ttamer as tt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.running_gateway import running

NODES = {"small": (1.0, 0.7, 0.15, 0.01), "large": (10.0, 0.95, 0.4, 0.03)}
"""Cost, share of right answers, seconds to the first token, seconds between tokens."""
TOKENS = 40
TRADEOFF = 0.9
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"stream": "whole"},
    "last": {"stream": "last"},
    "last, speculate": {
        "stream": "last", "speculate": True, "speculate_chance": 0.3, "speculate_budget": 0.5,
    },
}  # fmt: skip


def luck(*parts: object) -> float:
    """Return a number from 0 to 1 made from some parts."""
    return float(np.random.default_rng(zlib.crc32(repr(parts).encode())).random())


class Model:
    """A simulated model: right with some chance, and more certain where it is right."""

    def __init__(self, name: str, speed: float) -> None:
        self.name = name
        self.cost, self.skill, self.first, self.each = NODES[name]
        self.first, self.each = self.first / speed, self.each / speed

    def answer(self, prompt: str) -> tuple[str, float]:
        """Return the letter and its probability."""
        number = int(prompt.split()[-1])
        is_right = luck(self.name, number) < self.skill
        letter = "ABCD"[(number + (0 if is_right else 1)) % 4]
        sure = 0.55 + 0.44 * luck("s", self.name, number)
        return letter, sure if is_right else 0.25 + 0.5 * luck("u", self.name, number)

    async def post(self, request: Any) -> Any:
        """Answer one request at the model's speed."""
        body = await request.json()
        letter, sure = self.answer(body["messages"][-1]["content"])
        words = [f"{letter}:"] + [" word"] * (TOKENS - 1)
        await asyncio.sleep(self.first)
        if body.get("stream"):
            log = float(np.log(sure)) if body.get("logprobs") else None
            return StreamingResponse(self.events(words, log), media_type="text/event-stream")
        await asyncio.sleep(self.each * (TOKENS - 1))
        logs = [{"token": w, "logprob": float(np.log(sure)), "top_logprobs": []} for w in words]
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop",
                  "logprobs": {"content": logs}}  # fmt: skip
        return JSONResponse({"object": "chat.completion", "choices": [choice]})

    async def events(self, words: list[str], log: float | None) -> Any:
        """Yield one event for each token."""
        for number, word in enumerate(words):
            if number:
                await asyncio.sleep(self.each)
            choice: dict[str, Any] = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            if log is not None:
                token = {"token": word, "logprob": log, "top_logprobs": []}
                choice["logprobs"] = {"content": [token]}
            yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


def fitted(models: dict[str, Model]) -> tt.FittedLadder:
    """Fit to what the models answer on other prompts."""
    rows = [[model.answer(f"train {number}") for model in models.values()]
            for number in range(10_000, 10_600)]  # fmt: skip
    spec = tt.CascadeSpec.of({name: model.cost for name, model in models.items()})
    trace = tt.Trace.from_arrays(
        spec, [[sure for _, sure in row] for row in rows],
        prediction=[[letter for letter, _ in row] for row in rows],
        label=["ABCD"[number % 4] for number in range(10_000, 10_600)],
    )  # fmt: skip
    return tt.fit(trace)


async def serve(models: dict[str, Model]) -> tuple[list[uvicorn.Server], dict[str, str]]:
    """Start the models; return their servers and base URLs."""
    servers, urls = [], {}
    for name, model in models.items():
        app = Starlette(routes=[Route("/v1/chat/completions", model.post, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        servers.append(server)
        asyncio.get_running_loop().create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        urls[name] = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    return servers, urls


def toml(urls: dict[str, str], serve_settings: dict[str, Any]) -> str:
    """Return the cascade."""
    lines = ["[serve]", 'compare = "choice"', f"tradeoff = {TRADEOFF}", "direct = true"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in serve_settings.items()]
    for name, url in urls.items():
        lines += ["[[node]]", f'name = "{name}"', f"cost = {NODES[name][0]}", f'upstream = "{url}"']
    return "\n".join(lines)


async def timed(client: httpx.AsyncClient, url: str, model: str, number: int) -> tuple[Any, ...]:
    """Return the seconds to the first text and to the end, the cost and the path."""
    body = {"model": model, "stream": True,
            "messages": [{"role": "user", "content": f"question {number}"}]}  # fmt: skip
    start, first = time.perf_counter(), None
    async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if first is None and line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    first = time.perf_counter() - start
        path = response.headers.get("x-ttamer-path", model)
        cost = float(response.headers["x-ttamer-cost"])
    return first, time.perf_counter() - start, cost, path


def ratios(
    rows: list[tuple[Any, ...]], whole: dict[str, float], alone: dict[str, float], count: int
) -> str:
    """Return the mean ratio to the aim of the requests that this many nodes answered."""
    found = []
    for first, _, _, path in rows:
        *before, by = path.split(",")
        if len(before) + 1 == count:
            found.append(first / (alone[by] + sum(whole[name] for name in before)))
    if len(found) < 2:
        return "none"
    error = np.std(found, ddof=1) / len(found) ** 0.5
    return f"{np.mean(found):.2f} ({error:.2f}), {len(found)}"


async def measure(requests: int, speed: float) -> None:
    """Print the table."""
    models = {name: Model(name, speed) for name in NODES}
    servers, urls = await serve(models)
    ladder = fitted(models)
    print(f"{requests} requests of {TOKENS} tokens; waits {speed:g} times shorter than stated")
    print(
        "| stream | to the first token, s | to the end, s | cost | over the aim: one node | two |"
    )
    print("|---|---|---|---|---|---|")
    rows: dict[str, list[tuple[Any, ...]]] = {way: [] for way in (*NODES, *WAYS)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        artefact, gateways = Path(folder, "policy.ttamer"), {}
        tt.save(ladder, artefact)
        for number, way in enumerate(rows):
            cascade = Path(folder, f"cascade{number}.toml")
            cascade.write_text(toml(urls, WAYS.get(way, {})), "utf-8")
            gateways[way] = stack.enter_context(running(cascade, artefact))
        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(requests):  # in turn, so that all meet the same load
                for way, gateway in gateways.items():
                    name = way if way in NODES else "ttamer"
                    rows[way].append(await timed(client, gateway.url, name, number))
    alone = {way: float(np.mean([row[0] for row in rows[way]])) for way in NODES}
    whole = {n: each.first + each.each * (TOKENS - 1) for n, each in models.items()}
    for way, found in rows.items():
        firsts = np.array([row[0] for row in found])
        ends, costs = (np.mean([row[k] for row in found]) for k in (1, 2))
        shown = " | "
        if way in WAYS:
            shown = " | ".join(ratios(found, whole, alone, count) for count in (1, 2))
        error = firsts.std(ddof=1) / len(firsts) ** 0.5
        print(f"| {way} | {firsts.mean():.3f} ({error:.3f}) | {ends:.3f} | {costs:.2f} | {shown} |")
    for server in servers:
        server.should_exit = True
    await asyncio.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--speed", type=float, default=1.0)
    args = parser.parse_args()
    asyncio.run(measure(args.requests, args.speed))
