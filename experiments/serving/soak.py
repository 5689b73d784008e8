"""A soak: 20,000 requests with failing models, reloads and ``kill -9`` of a replica.

    python experiments/serving/soak.py [--requests 20000] [--seconds 1500]

Two replicas of ``ttamer serve`` share a policy file and nothing else. Clients ask one of them, and
the other where a connection breaks, as a proxy in front would. Every answer says the prompt that it
belongs to, and each model counts what it delivered, by request. Nothing may be lost, doubled or
mixed up, and what responses cost must be what the models counted, within 1%.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from attacks import COSTS, HOST, Model, fitted, memory, started, write

import ttamer as tt
from ttamer.trace.decisions import read_decisions

WORKERS = 24
FAULTS = ("ok", "loss 500 0.2", "loss reset 0.1", "loss cut 0.1", "loss 503 0.3", "loss hang 0.02")


class Replica:
    """One process of the server; another one takes its place."""

    def __init__(self, cascade: Path, policy: Path) -> None:
        self.files = cascade, policy
        self.process: Any = None
        self.port = 0

    async def start(self) -> None:
        """Start it."""
        self.process, self.port = await started(*self.files, "uvicorn", files=2048)


class Client:
    """Sends requests, and keeps what came back."""

    def __init__(self, replicas: list[Replica], count: int, end: float) -> None:
        self.replicas, self.count, self.end = replicas, count, end
        self.sent = 0
        self.answers: dict[int, str] = {}
        """By number, the text that came back."""
        self.costs: dict[str, float] = {}
        """By attempt, what the response says that it cost."""
        self.results = Counter[str]()
        self.doubled = 0

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send requests until all are sent."""
        while self.sent < self.count and time.monotonic() < self.end:
            number = self.sent
            self.sent += 1
            for attempt in range(40):
                if await self._attempt(session, number, attempt):
                    break
                await asyncio.sleep(0.25)
            else:
                self.results["lost"] += 1

    async def _attempt(self, session: aiohttp.ClientSession, number: int, attempt: int) -> bool:
        """Send a request once; return whether there is an answer."""
        replica = self.replicas[(number + attempt) % 2]
        request, prompt = f"r{number}-{attempt}", f"number {number}"
        stream = number % 4 == 0
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        url = f"http://{HOST}:{replica.port}/v1/chat/completions"
        try:
            async with session.post(url, json=body, headers={"x-request-id": request}) as response:
                content = await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.results[f"tried again: {type(error).__name__}"] += 1
            return False
        if response.status != 200:
            self.results[f"tried again: {response.status}"] += 1
            return False
        try:
            text, cost = _read_stream(content) if stream else _read(content)
        except (ValueError, KeyError):
            self.results["tried again: cut stream"] += 1
            return False
        if response.headers["x-request-id"] != request:
            self.results["mixed up"] += 1
        self.doubled += number in self.answers
        self.answers[number] = text
        self.costs[request] = cost
        self.results["stream" if stream else "JSON"] += 1
        return True


def _read(content: str) -> tuple[str, float]:
    body = json.loads(content)
    return body["choices"][0]["message"]["content"], body["usage"]["cost"]


def _read_stream(content: str) -> tuple[str, float]:
    if not content.endswith("data: [DONE]\n\n"):
        raise ValueError("cut")
    chunks = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), chunks[-1]["usage"]["cost"]


async def disturb(models: dict[str, Model], replicas: list[Replica], counts: Counter[str]) -> None:
    """Change what models do, the policy's file, and kill replicas, again and again."""
    rng, ladder = random.Random(0), fitted()  # noqa: S311
    policy = replicas[0].files[1]
    for step in range(10_000):
        await asyncio.sleep(1.5)
        for model in models.values():
            model.mode = rng.choice(FAULTS)
        if step % 3 == 1:
            await asyncio.to_thread(tt.save, ladder.at(rng.choice((0.85, 0.9, 0.95))), policy)
            counts["reloads"] += 1
        if step % 8 == 5:
            replica = rng.choice(replicas)
            replica.process.kill()
            await asyncio.to_thread(replica.process.wait)
            counts["kill -9"] += 1
            await replica.start()


async def main() -> None:
    """Run the soak, and print what became of every request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1500)
    options = parser.parse_args()
    models = {name: Model(name, delay=0.05) for name in COSTS}
    for model in models.values():
        await model.start()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cascade, policy = write(Path(folder), models, "timeout = 20.0")
        replicas = [Replica(cascade, policy) for _ in range(2)]
        for replica in replicas:
            await replica.start()
            stack.callback(lambda r=replica: (r.process.kill(), r.process.wait()))
        client = Client(replicas, options.requests, time.monotonic() + options.seconds)
        counts = Counter[str]()
        start, before = time.monotonic(), [memory(replica.process) for replica in replicas]
        disturbing = asyncio.create_task(disturb(models, replicas, counts))
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(client.run(session) for _ in range(WORKERS)))
        disturbing.cancel()
        await asyncio.sleep(0.5)  # the log is written
        after = [memory(replica.process) for replica in replicas]
        rows = Counter(read_decisions(Path(folder, "decisions.jsonl")).requests)
        report(client, models, counts, rows, time.monotonic() - start)
        print(f"memory, MB: {before} at the start, {after} at the end")


def report(
    client: Client,
    models: dict[str, Model],
    counts: Counter[str],
    rows: Counter[str],
    seconds: float,
) -> None:
    """Print what became of every request, and fail where that is wrong."""
    mixed = sum(text != f"number {number}" for number, text in client.answers.items())
    lost = client.sent - len(client.answers)
    booked = sum(client.costs.values())
    delivered = {
        request: sum(model.delivered.get(request, 0.0) for model in models.values())
        for request in client.costs
    }
    counted = sum(delivered.values())
    in_log = sum(request in rows for request in client.costs)
    twice = sum(count > 1 for count in rows.values())
    print(f"{client.sent} requests in {seconds:.0f} s, {dict(counts)}, {dict(client.results)}")
    print(f"lost {lost}, doubled {client.doubled}, mixed up {mixed + client.results['mixed up']}")
    print(f"costs {booked:.1f} as booked, {counted:.1f} as counted: {booked / counted - 1:+.3%}")
    print(f"rows of the decision log: {in_log} of {len(client.costs)} answers, {twice} twice")
    odd = lost or client.doubled or mixed or client.results["mixed up"] or twice
    if odd or abs(booked / counted - 1) > 0.01:
        raise SystemExit("wrong")


if __name__ == "__main__":
    asyncio.run(main())
