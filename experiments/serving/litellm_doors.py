"""LiteLLM's proxy with a cascade behind it, by URL and as a plug-in: chat, stream, cost, fallback.

    make litellm        # installs litellm[proxy] in an environment of its own, and runs this there

Two models answer in this process; ``ttamer serve`` and LiteLLM's proxy are processes, the latter
with ``examples/serving/litellm.yaml``. Prints what was seen, and fails where it is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import ttamer as tt
from ttamer import CascadeSpec

CONFIG = Path(__file__).parents[2] / "examples" / "serving" / "litellm.yaml"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
PRICES = {"small": (1e-6, 2e-6), "large": (3e-5, 6e-5)}  # as in CONFIG, of a token in and out
COSTS = {name: 100 * price[0] + 10 * price[1] for name, price in PRICES.items()}


async def chat(request: Request) -> Response:
    """A model: it is sure where its path is /large."""
    name, body = request.path_params["name"], await request.json()
    token = {"token": "A", "logprob": math.log(0.99 if name == "large" else 0.3)}
    message = {"role": "assistant", "content": "A"}
    logprobs = {"content": [token | {"top_logprobs": []}]} if body.get("logprobs") else None
    choice = {"index": 0, "finish_reason": "stop", "logprobs": logprobs}
    whole: dict[str, Any] = {"id": "x", "created": 1, "model": name}
    if not body.get("stream"):
        choices = [choice | {"message": message}]
        fields = {"object": "chat.completion", "choices": choices, "usage": USAGE}
        return JSONResponse(whole | fields)
    whole["object"] = "chat.completion.chunk"
    parts = [{"choices": [choice | {"delta": message}]}, {"choices": [], "usage": USAGE}]
    lines = [f"data: {json.dumps(whole | part)}\n\n" for part in parts]
    return StreamingResponse(iter([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(url: str) -> None:
    """Wait until a URL answers."""
    for _ in range(400):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return
        time.sleep(0.5)
    raise TimeoutError(url)


def ask(url: str, model: str, *, stream: bool = False) -> tuple[str, Any, float | None]:
    """Return the text, the usage and the cost that LiteLLM states."""
    body = {"model": model, "messages": [{"role": "user", "content": "A or B?"}], "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())  # noqa: S310
    request.add_header("authorization", "Bearer sk-master")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        content, cost = response.read().decode(), response.headers.get("x-litellm-response-cost")
    if not stream:
        answer = json.loads(content)
        text = answer["choices"][0]["message"]["content"]
        return text, answer["usage"], None if cost is None else float(cost)
    chunks = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    usage = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), {})
    return "".join(delta.get("content") or "" for delta in deltas), usage, usage.get("cost")


def write(folder: Path, port: int) -> None:
    """Write the cascade and its policy, which asks both models where the first is not sure."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 400)
    right = rng.random((400, 2)) < [0.6, 0.98]
    sure = np.where(right, rng.uniform(0.7, 1, right.shape), rng.uniform(0.2, 0.6, right.shape))
    letters = np.array(["a", "b"])
    said = letters[np.where(right, label[:, None], 1 - label[:, None])]
    spec = CascadeSpec.of(COSTS)
    trace = tt.Trace.from_arrays(spec, sure, prediction=said, label=letters[label])
    tt.save(tt.fit(trace), folder / "inside.ttamer")
    text = "[serve]\nmistake_cost = 0.02\n"
    for name, cost in COSTS.items():
        text += f'[[node]]\nname = "{name}"\ncost = {cost!r}\n'
        text += f'upstream = "http://127.0.0.1:{port}/{name}/v1"\n'
    (folder / "inside.toml").write_text(text)


def main() -> None:
    """Run both doors."""
    model, server, proxy = free_port(), free_port(), free_port()
    app = Starlette(routes=[Route("/{name}/v1/chat/completions", chat, methods=["POST"])])
    config = uvicorn.Config(app, port=model, log_level="error")
    work = lambda: asyncio.run(uvicorn.Server(config).serve())  # noqa: E731
    threading.Thread(target=work, daemon=True).start()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        write(Path(name), model)
        base = f"http://127.0.0.1:{model}"
        env = os.environ | {"SMALL_URL": f"{base}/small/v1", "LARGE_URL": f"{base}/large/v1"}
        env |= {"TTAMER_URL": f"http://127.0.0.1:{server}/v1", "TTAMER_CASCADES": name}
        env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        files = [Path(name, f"inside.{suffix}") for suffix in ("toml", "ttamer")]
        command = [sys.executable, "-m", "ttamer", "serve", *files, "--port", str(server)]
        served = subprocess.Popen([*command, "--lame-duck", "0"], env=env)  # noqa: S603
        stack.callback(served.terminate)
        program = Path(sys.executable).with_name("litellm")
        command = [program, "--config", CONFIG, "--port", str(proxy), "--host", "127.0.0.1"]
        running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)  # noqa: S603
        stack.callback(running.terminate)
        url = f"http://127.0.0.1:{proxy}"
        wait_for(f"http://127.0.0.1:{server}/ready")
        wait_for(f"{url}/health/liveliness")
        print(f"litellm {version('litellm')}")
        for door in ("support", "inside"):
            for stream in (False, True):
                text, usage, cost = ask(url, door, stream=stream)
                kind = "stream" if stream else "JSON"
                print(f"{door}, {kind}: {text!r}, {usage.get('total_tokens')} tokens, cost {cost}")
                if (text, usage["total_tokens"]) != ("A", 220):
                    raise SystemExit("wrong answer or tokens")
                if cost is None or abs(cost - sum(COSTS.values())) > 1e-9:
                    raise SystemExit(f"the cost should be {sum(COSTS.values())}")
        served.terminate()
        served.wait(60)
        text, _, cost = ask(url, "support")
        print(f"support while the server is down: {text!r} by the fallback, cost {cost}")


if __name__ == "__main__":
    main()
