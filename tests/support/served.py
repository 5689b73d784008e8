"""A small fitted cascade, served in this process."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

import ttamer as tt
from support.fake_models import FakeModel
from ttamer.cascade import CascadeSpec, toml_text

COSTS = {"small": 1.0, "middle": 4.0, "large": 12.5}
SKILLS = {"small": 0.6, "middle": 0.75, "large": 0.95}
NAMES = {1: ("small",), 2: ("small", "large"), 3: ("small", "middle", "large")}


@functools.cache
def fitted_ladder(nodes: int, target: str = "label") -> tt.FittedLadder:
    """A ladder fitted to rows as the fake models give them: who is sure is right more often."""
    names, rows = NAMES[nodes], 400
    rng = np.random.default_rng(nodes)
    label = rng.integers(0, 4, rows)
    right = rng.random((rows, nodes)) < [SKILLS[name] for name in names]
    wrong = (label[:, None] + rng.integers(1, 4, (rows, nodes))) % 4
    prediction = np.where(right, label[:, None], wrong)
    sure, unsure = rng.uniform(0.55, 0.99, right.shape), rng.uniform(0.25, 0.75, right.shape)
    letters = np.array(list("ABCD"))
    costs = {name: COSTS[name] for name in names}
    spec = CascadeSpec.of(costs, target=target)
    more = {"label": letters[label]} if target == "label" else {}
    trace = tt.Trace.from_arrays(
        spec, np.where(right, sure, unsure), prediction=letters[prediction], **more
    )
    return tt.fit(trace)


@dataclass
class Served:
    """An application, and the models behind it."""

    app: Any
    models: dict[str, FakeModel]
    folder: Path
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    @property
    def service(self) -> Any:
        return self.app.service

    @asynccontextmanager
    async def running(self):
        """Give a client of the application, inside its lifespan."""
        async with self.app.lifespan_context(self.app):
            transport = httpx2.ASGITransport(self.app)
            headers = {"content-type": "application/json"}
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://127.0.0.1/v1", headers=headers
            ) as client:
                yield Client(client)

    def run(self, scenario: Callable[[Client], Awaitable[Any]]) -> Any:
        """Run a test's steps against the application."""

        async def work() -> Any:
            async with self.running() as client:
                return await asyncio.wait_for(scenario(client), 60)

        return self.runner.run(work())

    async def asked(self, body: dict[str, Any], send: Any = None, leaves_after: float = 60) -> None:
        """Send a request by ASGI itself, whose client reads by ``send`` and may leave."""
        body = {"messages": [{"role": "user", "content": "x"}]} | body
        messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await asyncio.sleep(leaves_after)
            return {"type": "http.disconnect"}

        async def drop(message: Any) -> None:
            del message

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": headers,
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "app": self.app,
        }
        await self.app(scope, receive, send or drop)

    def post(self, path: str, *bodies: dict[str, Any]) -> list[Any]:
        """Return the responses to requests at a path, one after another."""

        async def scenario(client: Client) -> Any:
            return [await client.post(path, json=body) for body in bodies]

        return self.run(scenario)

    async def settle(self) -> None:
        """Wait for audits."""
        while self.service.audits._tasks:
            await asyncio.sleep(0.01)

    def chat(self, *bodies: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        """Return the responses to chat requests, one after another; of one request, its own.

        Where requests are audited, that has been done.
        """

        async def scenario(client: Client) -> Any:
            responses = [await client.chat(headers=headers, **body) for body in bodies or ({},)]
            await self.settle()
            return responses

        responses = self.run(scenario)
        return responses if len(bodies) > 1 else responses[0]


class Client:
    """Asks the application."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.get, self.post = http.get, http.post

    async def chat(
        self, content: Any = "prompt 1", *, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx2.Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": "ttamer", "messages": messages, **fields}
        return await self.http.post("/chat/completions", json=body, headers=headers)

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = (await self.http.get("http://127.0.0.1/metrics")).text.splitlines()
        named = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in named)


def write_cascade(folder: Path, nodes: int = 2, *, serve=None, node=None, urls=None, cascade=None):
    """Write a cascade.toml and its policy; return both paths."""
    settings = {"compare": "choice"} | (serve or {})
    if not {"tradeoff", "budget", "error", "mistake_cost"} & settings.keys():
        settings["tradeoff"] = 0.9
    text = "[cascade]\n" + toml_text(cascade or {})
    text += "\n[serve]\n" + toml_text({k: v for k, v in settings.items() if v is not None})
    for name in NAMES[nodes]:
        url = (urls or {}).get(name, f"http://{name}.invalid/v1")
        table = {"name": name, "cost": COSTS[name], "upstream": url}
        text += "\n[[node]]\n" + toml_text(table | (node or {}).get(name, {}))
    path, policy = folder / "cascade.toml", folder / "policy.ttamer"
    path.write_text(text, "utf-8")
    tt.save(fitted_ladder(nodes, (cascade or {}).get("target", "label")), policy)
    return path, policy
