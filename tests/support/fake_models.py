"""Models that answer in this process: letters from A to D, made from the prompt and the name."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ttamer.llm.client import Response, UpstreamFailed


def uniform(*parts: str) -> float:
    """A number from 0 to 1 made from text."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def truth(prompt: str) -> str:
    """The right answer to a prompt."""
    return "ABCD"[int(uniform("truth", prompt) * 4)]


class FakeModel:
    """An upstream in this process; what it is sure of is right more often."""

    def __init__(self, name: str, skill: float = 0.8) -> None:
        self.name, self.skill = name, skill
        self.plan: list[Any] = []
        """What the next calls return instead: a body, a response, an exception or its kind."""
        self.delay = 0.0
        self.cost: float | None = None
        """What it says that a call costs."""
        self.usage: dict[str, Any] | None = {}
        """Added to the usage; ``None`` for none."""
        self.cut_after: int | None = None
        """The chunks after which a stream breaks."""
        self.text: str | None = None
        """What it says, instead of a letter."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.cancelled = 0

    def answer(self, prompt: str) -> tuple[str, float]:
        """What it says, and how sure it is."""
        if self.text is not None:
            return self.text, 0.9
        luck, right = uniform(self.name, prompt), truth(prompt)
        if luck < self.skill:
            return right, 0.55 + 0.44 * uniform("sure", self.name, prompt)
        return "ABCD".replace(right, "")[int(luck * 1e6) % 3], 0.25 + 0.5 * uniform("u", prompt)

    async def complete(
        self,
        body: Mapping[str, Any],
        deadline: Any = None,
        *,
        path: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        del path
        return Response(await self._answered(body, deadline, headers), self.cost)

    @asynccontextmanager
    async def stream(
        self, body: Mapping[str, Any], deadline: Any = None, headers: Any = None
    ) -> AsyncIterator[Any]:
        whole = await self._answered(body, deadline, headers)

        async def chunks() -> AsyncIterator[dict[str, Any]]:
            choice = whole["choices"][0]
            logprobs = choice.get("logprobs")
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            deltas += [{"content": letter} for letter in choice["message"]["content"]]
            for number, delta in enumerate(deltas):
                if number == self.cut_after:
                    raise UpstreamFailed(self.name, "cut", "broke")
                more = {"logprobs": logprobs} if number == 1 else {}
                yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            if whole.get("usage"):
                usage = whole["usage"] | ({} if self.cost is None else {"cost": self.cost})
                yield {"choices": [], "usage": usage}

        yield chunks()

    async def _answered(self, body: Any, deadline: Any, headers: Any) -> dict[str, Any]:
        self.bodies.append(dict(body))
        self.headers.append(dict(headers or {}))
        self.running += 1
        try:
            if self.delay:
                await asyncio.sleep(min(self.delay, deadline.left))
                if deadline.left <= 0:
                    raise UpstreamFailed(self.name, "timeout", "did not answer in time")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        planned = self.plan.pop(0) if self.plan else None
        if isinstance(planned, str):
            planned = UpstreamFailed(self.name, planned, "was told to fail")  # type: ignore[arg-type]
        if isinstance(planned, Exception):
            raise planned
        return planned if planned is not None else self.completion(body)

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The response to a request."""
        prompt = str(body["messages"][-1].get("content"))
        text, sure = self.answer(prompt)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": text}
        if body.get("logprobs"):
            entry = {"token": text, "logprob": math.log(sure), "top_logprobs": []}
            choice["logprobs"] = {"content": [entry]}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 1}
        whole = {"id": "x", "object": "chat.completion", "created": 1, "model": self.name}
        return {**whole, "choices": [choice]} | (
            {} if self.usage is None else {"usage": usage | self.usage}
        )
