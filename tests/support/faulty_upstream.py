"""An OpenAI-compatible server that fails on command, on a thread of its own.

Its answers are letters from A to D, made from the prompt and the model alone, so that two runs
agree; what it says twice in a row differs only where a temperature is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from support.waiting import LONGEST_WAIT

MODES = ("ok", "slow", "error", "garbage", "reset", "loss", "hang")
LOSS = 0.3
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def uniform(*parts: str) -> float:
    """A number from 0 to 1 made from text."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def truth(prompt: str) -> str:
    """The right answer to a prompt."""
    return "ABCD"[int(uniform("truth", prompt) * 4)]


@dataclass
class Call:
    """A request that came, and what became of it."""

    size: int
    """The bytes of its body."""
    body: dict[str, Any]
    usage: dict[str, int] | None = None
    result: str = "lost"
    """Delivered: the response and its usage; refused: an error that no provider bills; lost: any
    other, which a provider may bill."""


class FaultyUpstream:
    """Start it with ``with``; then set ``mode``, or ``plan`` the modes of the next requests."""

    def __init__(self, name: str = "model", *, skill: float = 0.8, seed: int = 0) -> None:
        self.name, self.skill = name, skill
        self.plan: list[str] = []
        """Modes of the next requests, one each; then ``mode`` again."""
        self.status = 500
        """What mode "error" answers with."""
        self.headers: dict[str, str] = {}
        """Sent with every answer."""
        self.raw: bytes | None = None
        """Sent instead of an answer."""
        self.requests: list[dict[str, Any]] = []
        """The bodies that came, in order."""
        self.calls: list[Call] = []
        """What the upstream would bill, in the order in which requests came."""
        self.states_usage = True
        """Whether responses have a usage."""
        self.answered = 0
        """How many answers were whole."""
        self.yes = lambda prompt: uniform("yes", prompt)
        """The probability of "yes", where a prompt asks for yes or no."""
        self.answer = self._answer
        """From (prompt, sample) to (text, probability of each token)."""
        self.mode = "ok"
        self._random = random.Random(seed)  # noqa: S311 - loss, not secrets
        self._samples: Counter[str] = Counter()
        self._lock = threading.Condition()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._release: asyncio.Event | None = None
        self.port = 0

    # What a test says and reads

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
        if self._server is not None and self._release is not None:
            self._loop.call_soon_threadsafe(self._let_go)

    def wait_for(self, count: int) -> None:
        """Wait until this many requests have come."""
        with self._lock:
            if not self._lock.wait_for(lambda: self.count >= count, LONGEST_WAIT):
                raise TimeoutError(f"{self.count} requests came, not {count}")

    def _let_go(self) -> None:
        assert self._release is not None
        self._release.set()
        self._release = asyncio.Event()

    # Life

    def __enter__(self) -> FaultyUpstream:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> FaultyUpstream:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(512)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none"
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener, started), daemon=True)
        self._thread.start()
        if not started.wait(10):
            raise RuntimeError("the upstream did not start")
        return self

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self.release()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._server = self._thread = None

    def _run(self, listener: socket.socket, started: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._release = asyncio.Event()
            assert self._server is not None
            self._loop.call_soon(started.set)  # the socket listens: whoever comes now waits
            await self._server.serve(sockets=[listener])

        try:
            asyncio.run(serve())
        finally:
            listener.close()

    # Answers

    def _app(self) -> Starlette:
        async def health(_: Any) -> Response:
            return JSONResponse({"status": "ok"})

        async def models(_: Any) -> Response:
            return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model"}]})

        paths = ("/v1/chat/completions", "/v1/embeddings")
        posts = [Route(path, self._post, methods=["POST"]) for path in paths]
        return Starlette(routes=[Route("/health", health), Route("/v1/models", models), *posts])

    async def _post(self, request: Any) -> Response:
        content = await request.body()
        with self._lock:
            mode = self.plan.pop(0) if self.plan else self.mode
            lost = mode == "loss" and self._random.random() < LOSS
            body = json.loads(content)
            self.requests.append(body)
            call = Call(len(content), body)
            self.calls.append(call)
            self._lock.notify_all()
        if mode == "reset" or lost:
            return _reset(request)
        if mode in ("slow", "hang"):
            assert self._release is not None
            await asyncio.wait_for(self._release.wait(), LONGEST_WAIT)
        is_refused = mode == "error" and (400 <= self.status < 500 or self.status == 503)
        call.result = "refused" if is_refused and self.status != 408 else "lost"
        return self._response(request.url.path, body, mode, call)

    def _response(self, path: str, body: dict[str, Any], mode: str, call: Call) -> Response:
        if mode == "error":
            said = {"error": {"message": "out of order, sk-secret", "type": "server_error"}}
            return JSONResponse(said, self.status, self.headers)
        if mode == "garbage":
            return Response(b'{"choices": [', media_type="application/json")
        if self.raw is not None:
            return Response(self.raw, media_type="application/json", headers=self.headers)
        if path.endswith("/embeddings"):
            return JSONResponse(_embeddings(body), headers=self.headers)
        answer = self._completion(body)
        call.usage = answer.get("usage")
        if not self.states_usage:
            answer.pop("usage", None)
        if body.get("stream"):
            return self._stream(answer, call, mode)
        if mode in ("ok", "loss"):
            call.result = "delivered" if self.states_usage else "lost"
        with self._lock:
            self.answered += 1
        return JSONResponse(answer, headers=self.headers)

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

    def _stream(self, answer: dict[str, Any], call: Call, mode: str) -> Response:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
        whole = {key: value for key, value in answer.items() if key != "usage"}

        def event(delta: dict[str, Any], logs: Any = None, finish: str | None = None) -> bytes:
            part = {"index": 0, "delta": delta, "finish_reason": finish}
            if logs:
                part["logprobs"] = {"content": logs}
            return _event({**whole, "choices": [part]})

        async def events() -> Any:
            yield event({"role": "assistant", "content": ""})
            logs = (choice.get("logprobs") or {}).get("content") or []
            for log in logs:
                yield event({"content": log["token"]}, [log])
            for start in range(0, 0 if logs else len(text), 4):
                yield event({"content": text[start : start + 4]})
            yield event({}, finish="stop")
            if (call.body.get("stream_options") or {}).get("include_usage") and "usage" in answer:
                yield _event({**answer, "choices": []})
                call.result = "delivered" if mode == "ok" else "lost"
            yield b"data: [DONE]\n\n"
            with self._lock:
                self.answered += 1

        return StreamingResponse(events(), media_type="text/event-stream", headers=self.headers)


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    """Vectors that count words, by their first letters: texts of the same words are near."""
    given = body["input"]
    texts = [given] if isinstance(given, str) else given
    counts = [[sum(w[:1] == c for w in t.lower().split()) for c in LETTERS] for t in texts]
    data = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(counts)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return {"object": "list", "data": data, "model": body.get("model"), "usage": usage}


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
