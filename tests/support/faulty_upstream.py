"""An OpenAI-compatible server that fails on command, on a thread of its own.

Its answers are letters from A to D, made from the prompt and the model alone, so that two runs
agree; what it says twice in a row differs only where a temperature is set.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import threading
from collections import Counter
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from support.fake_models import truth, uniform

# Seconds after which a test gives up. It is long because a busy machine is no fault: only a test
# that would fail anyway waits for all of it.
LONGEST_WAIT = 600.0


class FaultyUpstream:
    """Start it with ``with``; then set ``mode``, or ``plan`` the modes of the next requests.

    Modes are "ok", "slow" (until ``release``), "error", "garbage" and "reset".
    """

    def __init__(self, name: str = "model", *, skill: float = 0.8) -> None:
        self.name, self.skill, self.mode = name, skill, "ok"
        self.plan: list[str] = []
        """Modes of the next requests, one each; then ``mode`` again."""
        self.status = 500
        """What mode "error" answers with."""
        self.raw: bytes | None = None
        """Sent instead of an answer."""
        self.requests: list[dict[str, Any]] = []
        """The bodies that came, in order."""
        self.states_usage = True
        """Whether responses have a usage."""
        self.yes = lambda prompt: uniform("yes", prompt)
        """The probability of "yes", where a prompt asks for yes or no."""
        self.answer = self._answer
        """From (prompt, sample) to (text, probability of each token)."""
        self._samples: Counter[str] = Counter()
        self._lock = threading.Condition()
        self._released = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """The base URL, for ``upstream`` in a cascade.toml."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def count(self) -> int:
        """How many requests came."""
        return len(self.requests)

    def release(self) -> None:
        """Let the requests of mode "slow" that wait now be answered."""
        waiting, self._released = self._released, threading.Event()
        waiting.set()

    def wait_for(self, count: int) -> None:
        """Wait until this many requests have come."""
        with self._lock:
            if not self._lock.wait_for(lambda: self.count >= count, LONGEST_WAIT):
                raise TimeoutError(f"{self.count} requests came, not {count}")

    def __enter__(self) -> FaultyUpstream:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)  # whoever comes now waits
        self.port = listener.getsockname()[1]
        models = {"object": "list", "data": [{"id": self.name, "object": "model"}]}
        app = Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse(models)),
                Route("/v1/chat/completions", self._post, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=[[listener]], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    async def _post(self, request: Any) -> Response:
        body = await request.json()
        with self._lock:
            mode = self.plan.pop(0) if self.plan else self.mode
            self.requests.append(body)
            self._lock.notify_all()
        if mode == "reset":
            return _reset(request)
        if mode == "slow":
            await asyncio.to_thread(self._released.wait, LONGEST_WAIT)
        return self._response(body, mode)

    def _response(self, body: dict[str, Any], mode: str) -> Response:
        if mode == "error":
            said = {"error": {"message": "out of order, sk-secret", "type": "server_error"}}
            return JSONResponse(said, self.status)
        if mode == "garbage" or self.raw is not None:
            return Response(self.raw or b'{"choices": [', media_type="application/json")
        answer = self._completion(body)
        if not self.states_usage:
            del answer["usage"]
        return self._stream(answer, body) if body.get("stream") else JSONResponse(answer)

    def _answer(self, prompt: str, sample: int) -> tuple[str, float]:
        luck = uniform(self.name, prompt, str(sample))
        right = truth(prompt)
        if luck < self.skill:
            return right, 0.55 + 0.44 * uniform("sure", self.name, prompt)
        wrong = "ABCD".replace(right, "")[int(luck * 1e6) % 3]
        return wrong, 0.25 + 0.5 * uniform("unsure", self.name, prompt)

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = str(body["messages"][-1].get("content") if "messages" in body else body["prompt"])
        sample = 0
        if body.get("temperature"):
            with self._lock:
                sample = self._samples[prompt]
                self._samples[prompt] += 1
        if "yes or no" in prompt:
            sure = self.yes(prompt)
            text, tokens = ("yes", [("yes", sure)]) if sure >= 0.5 else ("no", [("no", 1 - sure)])
            others = {"yes": sure, "no": 1 - sure}
        else:
            text, sure = self.answer(prompt, sample)
            words = text.split(" ")
            tokens = [(word if i == 0 else f" {word}", sure) for i, word in enumerate(words)]
            others = {}
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(tokens)}
        usage["total_tokens"] = sum(usage.values())
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        whole = {"id": "x-1", "created": 1, "model": body.get("model"), "usage": usage}
        choice["message"] = {"role": "assistant", "content": text}
        if body.get("logprobs"):
            alone = bool(body.get("top_logprobs")) and not others
            content = [_token(t, p, {t: p} if alone else others) for t, p in tokens]
            choice["logprobs"] = {"content": content}
        return {**whole, "object": "chat.completion", "choices": [choice]}

    def _stream(self, answer: dict[str, Any], body: dict[str, Any]) -> Response:
        choice = answer["choices"][0]
        text, logs = choice["message"]["content"], choice.get("logprobs", {}).get("content", [])
        whole = {key: value for key, value in answer.items() if key != "usage"}
        wants_usage = (body.get("stream_options") or {}).get("include_usage")

        def event(delta: dict[str, Any], logs: Any = None, finish: str | None = None) -> bytes:
            part = {"index": 0, "delta": delta, "finish_reason": finish}
            if logs:
                part["logprobs"] = {"content": logs}
            return _event({**whole, "choices": [part]})

        async def events() -> Any:
            yield event({"role": "assistant", "content": ""})
            for log in logs:
                yield event({"content": log["token"]}, [log])
            for start in range(0, 0 if logs else len(text), 4):
                yield event({"content": text[start : start + 4]})
            yield event({}, finish="stop")
            if wants_usage and "usage" in answer:
                yield _event({**answer, "choices": []})
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


def _token(text: str, probability: float, others: dict[str, float]) -> dict[str, Any]:
    top = [{"token": t, "logprob": math.log(max(p, 1e-9))} for t, p in others.items()]
    return {"token": text, "logprob": math.log(probability), "top_logprobs": top}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _reset(request: Any) -> Response:
    """Break the connection off, with a reset."""
    transport = request.receive.__self__.transport  # uvicorn's cycle of this request
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    return Response(status_code=500)
