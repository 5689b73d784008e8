"""The loop in a gateway that serves: error, cost and latency before, during and after a change.

    python experiments/drift/gateway.py      # a minute or two; prints its table as Markdown

Two models behind ``ttamer serve``, a process of its own; a fifth of requests is audited, target
"last", an error of at most 10% promised. After 2,000 requests the small model is another one: right
as often as before, and sure of everything. A second gateway with the same policy that audits
next to none gets the same requests in turn before the change, so that latencies can be compared.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import httpx2 as httpx
import numpy as np

from support.changing import models, write_changing
from support.faulty_upstream import truth, uniform

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET, MOST, AFTER = 2000, 20_000, 1000
AUDIT = {"share": 0.2, "error": 0.1, "refit_rows": 200, "shadow_rows": 50}


def boastful(prompt: str, sample: int) -> tuple[str, float]:
    """Another small model: right in four of five cases, and sure of everything."""
    del sample
    right, sure = truth(prompt), uniform("boastful", prompt)
    if uniform("luck", prompt) < 0.8:
        return right, 0.91 + 0.08 * sure
    return "ABCD"[(ord(right) - 64) % 4], 0.82 + 0.1 * sure


class Client:
    """Sends prompts one by one, and keeps what came of them."""

    def __init__(self, root: str) -> None:
        self._http = httpx.Client(base_url=root, timeout=30)
        self.seconds: list[float] = []
        self.wrong: list[bool] = []
        self.cost: list[float] = []

    def send(self, number: int) -> None:
        """Send one prompt; the large model is always right."""
        prompt = f"prompt {number}"
        body = {"model": "ttamer", "messages": [{"role": "user", "content": prompt}]}
        start = time.perf_counter()
        reply = self._http.post("/v1/chat/completions", json=body)
        self.seconds.append(time.perf_counter() - start)
        self.wrong.append(reply.json()["choices"][0]["message"]["content"] != truth(prompt))
        self.cost.append(float(reply.headers["x-ttamer-cost"]))

    @property
    def drift(self) -> dict[str, Any]:
        """What the status page shows of the loop."""
        found: dict[str, Any] = self._http.get("/status.json").json()["drift"]
        return found

    def line(self, what: str, since: int, until: int | None = None) -> str:
        """What happened in some of the requests, as a row of a table."""
        rows = slice(since, until)
        seconds = 1e3 * np.quantile(self.seconds[rows], [0.5, 0.99])
        error, cost = np.mean(self.wrong[rows]), np.mean(self.cost[rows])
        return (f"| {what} | {len(self.seconds[rows])} | {error:.1%} | {cost:.2f} "
                f"| {seconds[0]:.2f} | {seconds[1]:.2f} |")  # fmt: skip


@contextlib.contextmanager
def serving(cascade: Path, artefact: Path) -> Iterator[str]:
    """Run ``ttamer serve``; give where it listens."""
    command = [sys.executable, "-m", "ttamer", "serve", str(cascade), str(artefact), "--port", "0"]
    child = subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cascade.parent
    )
    assert child.stdout is not None  # noqa: S101 - it is a pipe
    try:
        yield child.stdout.readline().partition(" at ")[2].partition("/v1")[0]
    finally:
        child.terminate()
        child.wait()


def main() -> None:
    """Serve, change the model, and print what happened."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.ExitStack() as stack:
        upstreams = {name: stack.enter_context(each) for name, each in models().items()}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = write_changing(folder, upstreams, audit=AUDIT)
        watched = Client(stack.enter_context(serving(files.cascade, files.artefact)))
        text = files.cascade.read_text("utf-8").replace("share = 0.2", "share = 1e-9")
        bare_toml = folder / "bare.toml"
        bare_toml.write_text(text.replace(str(files.log), str(folder / "none")), "utf-8")
        bare = Client(stack.enter_context(serving(bare_toml, files.artefact)))
        for number in range(QUIET):
            for client in (bare, watched) if number % 2 else (watched, bare):
                client.send(number)
        print("| requests | count | error | cost | p50 ms | p99 ms |")
        print("|---|---:|---:|---:|---:|---:|")
        print(bare.line("before the change, next to none audited", 0))
        print(watched.line("before the change, a fifth audited", 0))
        follow(watched, upstreams)


def follow(client: Client, upstreams: dict[str, Any]) -> None:
    """Change the small model, send on until two policies were swapped in, and print the phases."""
    marks = [QUIET]
    fitting: list[int] = []
    upstreams["small"].answer = boastful
    steps = ["fallback", "swap", "swap"]
    for number in range(QUIET, QUIET + MOST):
        client.send(number)
        if number % 10:
            continue
        loop = client.drift["loop"]
        kinds = [event["kind"] for event in reversed(loop["events"])]
        done = [kind for kind in kinds if kind in steps]
        marks += [number] * (len(done) - len(marks) + 1)
        if loop["state"] in ("refitting", "certifying"):
            fitting += range(number + 1, number + 10)
        if done == steps:
            break
    else:
        raise SystemExit(f"this is all the loop did: {kinds}")
    for number in range(len(client.seconds), len(client.seconds) + AFTER):
        client.send(number)
    phases = ("from the change to the alarm", "the last node answers",
              "after the first swap", "after the second swap")  # fmt: skip
    for what, since, until in zip(phases, marks, [*marks[1:], None], strict=True):
        print(client.line(what, since, until))
    p50, p99 = 1e3 * np.quantile(np.array(client.seconds)[fitting], [0.5, 0.99])
    print(f"\n{len(fitting)} of them came while a fit was under way: p50 {p50:.2f}, "
          f"p99 {p99:.2f} ms.")  # fmt: skip
    drift = client.drift
    print(f"\n{drift['audited']} of {drift['requests']} requests were audited. The loop:\n")
    for event in reversed(drift["loop"]["events"]):
        print(f"- {event['kind']}: {event['text']}")


if __name__ == "__main__":
    main()
