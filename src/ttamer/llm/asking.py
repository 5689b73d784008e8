"""Asking a node about many prompts: by as many workers as it allows, until it only fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import aiohttp

from ttamer.llm.answered import Answer
from ttamer.llm.client import Client, UpstreamFailed
from ttamer.llm.confidence import Unreadable
from ttamer.llm.node import BYTES_PER_TOKEN, Upstream, Usage, call_cost
from ttamer.llm.settings import NodeSettings

T = TypeVar("T")
Ask = Callable[[NodeSettings], Upstream]
"""From a node's settings to what is asked."""


@dataclass
class Asked:
    """What one node was asked: its answers, and why others are missing, by question."""

    node: NodeSettings
    answers: dict[str, Answer] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    total: int = 0
    """The questions that are answered, failed, or waiting."""
    max_failures: ClassVar = 10  # in a row, after which a node is not called any more
    workers: ClassVar = 8  # of a node without max_concurrent

    def is_open(self, key: str) -> bool:
        """Whether a question was not asked yet."""
        return key not in self.answers and key not in self.failed

    @property
    def spent(self) -> float:
        """What the answers cost together, when they came."""
        return sum(answer.cost for answer in self.answers.values())

    def expected(self, body: Mapping[str, Any]) -> float:
        """Return what a call is expected to cost: the mean so far, or the most that it can."""
        if self.answers:
            return max(self.spent / len(self.answers), 1e-12)
        return max(cost_at_most(self.node, body), self.node.cost, 1e-12)

    async def ask(
        self,
        questions: Mapping[str, T],
        call: Callable[[T], Awaitable[Answer]],
        report: Callable[[], None],
    ) -> None:
        """Ask what was not asked yet, until the node has failed too often in a row."""
        waiting = {key: asked for key, asked in questions.items() if self.is_open(key)}
        self.total += len(waiting)
        questions_left, failures = iter(waiting.items()), 0

        async def work() -> None:
            nonlocal failures
            for key, question in questions_left:
                if failures >= self.max_failures:
                    self.failed[key] = "was not called any more"
                else:
                    try:
                        self.answers[key] = await call(question)
                        failures = 0
                    except (UpstreamFailed, Unreadable) as error:
                        self.failed[key] = _reason(error, self.node)
                        failures += 1
                report()

        workers = min(self.node.max_concurrent or self.workers, len(waiting))
        await asyncio.gather(*(work() for _ in range(workers)))


def key_of_body(body: Mapping[str, Any]) -> str:
    """Return the key of a question: equal requests are asked once."""
    return json.dumps(body, sort_keys=True)


def patient(session: aiohttp.ClientSession) -> Ask:
    """Return clients that no user waits for: they do not stop calls, and wait to the limit."""

    def client(settings: NodeSettings, session: aiohttp.ClientSession) -> Client:
        client = Client(settings, session, read_errors=True)
        client.breaker.row = 1000  # more than it counts
        client.limit.floor = settings.timeout
        return client

    return partial(client, session=session)


def cost_at_most(node: NodeSettings, body: Mapping[str, Any]) -> float:
    """Return what a call may cost: a prompt as long as its bytes say, the longest answer."""
    prompt = len(json.dumps(body)) / BYTES_PER_TOKEN
    return call_cost(node, Usage(int(prompt), tokens_of(body))) or 0.0


def tokens_of(body: Mapping[str, Any]) -> int:
    """Return the most tokens that an answer may have."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 0)


def _reason(error: UpstreamFailed | Unreadable, node: NodeSettings) -> str:
    """Return why a call has no result, with what helps."""
    if isinstance(error, Unreadable):
        return str(error)
    reason = str(error).partition(": ")[2]
    if error.kind == "connect":
        return f"{reason} (upstream = {node.upstream!r})"
    return f"{reason} (timeout = {node.timeout:g})" if error.kind == "timeout" else reason
