"""Attacks on a gateway of this machine, each bounded in bytes, connections and time.

``python experiments/serving/attacks.py [--json FILE]``

A gateway in a process of its own serves two upstreams. Each attack runs against it while a second
client polls ``/healthz``; the figure is what the attack achieved, how much memory the gateway took,
and how long the slowest poll waited. The gateway must hold its limits: the exit status is 1 if an
attack passes one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from faults import make_ladder

import ttamer as tt
from support.faulty_upstream import FaultyUpstream

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 64 * 2**20
"""The most bytes that one attack sends."""
CONNECTIONS = 300
"""The half-open connections of the slow attack."""
ATTACKER = "127.0.0.2"
"""The address that attacks come from; other clients have another."""
MAX_MEMORY = 64 * 2**20
"""The most bytes by which an attack may increase the gateway's memory."""
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
FLOODS = {
    "headers without end": (HEAD, b"x-a: " + b"b" * 8000 + b"\r\n"),
    "one header without end": (HEAD + b"x-a: ", b"b" * 8000),
    "a URL without end": (b"GET /", b"a" * 8000),
    "trailers without end": (CHUNKED, b"x-a: b\r\n" * 1000),
}
COSTS = {"small": 1.0, "middle": 4.0, "large": 12.5}


@dataclass
class Result:
    """What one attack did."""

    attack: str
    achieved: str
    memory: int
    """The increase of the gateway's memory, in bytes."""
    slowest_poll: float
    """The slowest answer of /healthz meanwhile, in seconds."""
    held: bool


class Target:
    """A gateway in a process of its own."""

    def __init__(self, folder: Path, upstreams: dict[str, FaultyUpstream]) -> None:
        text = '[cascade]\norder = "any"\n[serve]\ncompare = "choice"\nallow = ["budget"]\n'
        text += f"max_connections_per_address = {CONNECTIONS // 2}\n"
        for name, upstream in upstreams.items():
            text += f'[[node]]\nname = "{name}"\ncost = {COSTS[name]}\n'
            text += f'upstream = "{upstream.url}"\n'
        cascade, policy = folder / "cascade.toml", folder / "policy.ttamer"
        cascade.write_text(text, "utf-8")
        tt.save(make_ladder(), policy)
        command = [sys.executable, "-m", "ttamer", "serve", str(cascade), str(policy)]
        self._child = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._child.stdout is not None  # noqa: S101 - it is a pipe
        self.url = json.loads(self._child.stdout.readline())["url"]
        self.port = int(self.url.rsplit(":", 1)[1])

    @property
    def memory(self) -> int:
        """The resident memory of the process, in bytes."""
        fields = Path(f"/proc/{self._child.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> socket.socket:
        """Open a connection of the attacker, which has an address of its own."""
        address = ("127.0.0.1", self.port)
        return socket.create_connection(address, timeout=20, source_address=(ATTACKER, 0))

    def post(self, **fields: Any) -> tuple[int, float]:
        """Ask a question; return the status and the seconds."""
        body = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}], **fields}
        request = urllib.request.Request(  # noqa: S310 - a loopback address
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        start = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
                return reply.status, time.monotonic() - start
        except urllib.error.HTTPError as error:
            return error.code, time.monotonic() - start

    def stop(self) -> None:
        """Stop the process."""
        self._child.terminate()
        self._child.wait(30)


@contextlib.contextmanager
def polled(target: Target) -> Iterator[list[float]]:
    """Poll /healthz inside; the list holds the seconds of each poll."""
    seconds: list[float] = []
    stop = threading.Event()

    def poll() -> None:
        while True:
            start = time.monotonic()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{target.url}/healthz", timeout=20).read()  # noqa: S310
            seconds.append(time.monotonic() - start)
            if stop.wait(0.01):
                return

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield seconds
    finally:
        stop.set()
        thread.join(30)


def flood(target: Target, head: bytes, part: bytes) -> tuple[str, bool]:
    """Send a request that never ends."""
    sent = 0
    with target.connect() as line:
        line.sendall(head)
        with contextlib.suppress(OSError):
            while sent < MAX_BYTES:
                sent += line.send(part)
    return f"cut off after {sent / 2**20:.1f} MB were sent", sent < MAX_BYTES


def slow_headers(target: Target) -> tuple[str, bool]:
    """Open many connections that never complete their headers."""
    lines = []
    for _ in range(CONNECTIONS):
        line = target.connect()
        with contextlib.suppress(OSError):
            line.sendall(HEAD)
        lines.append(line)
    status, seconds = target.post()
    for line in lines:
        line.close()
    text = f"{CONNECTIONS} connections; a request meanwhile: {status} in {seconds:.2f} s"
    return text, status == 200


def compressed(target: Target, upstreams: dict[str, FaultyUpstream]) -> tuple[str, bool]:
    """Let upstreams declare compressed responses."""
    for upstream in upstreams.values():
        upstream.headers = {"content-encoding": "gzip"}
    status, _ = target.post()
    for upstream in upstreams.values():
        upstream.headers = {}
    return f"status {status}", status == 502


def random_choices(target: Target) -> tuple[str, bool]:
    """Choose a new budget with every request, beside a client that chooses nothing."""
    draw = random.Random(0)  # noqa: S311 - not a secret
    others = []
    for _ in range(60):
        target.post(ttamer={"budget": 5 + 10 * draw.random()})
        others.append(target.post()[1])
    return f"p50 of other requests {1000 * statistics.median(others):.0f} ms", True


def run(target: Target, upstreams: dict[str, FaultyUpstream]) -> list[Result]:
    """Run every attack."""
    attacks = {name: lambda t, p=parts: flood(t, *p) for name, parts in FLOODS.items()}
    attacks["slow headers"] = slow_headers
    attacks["a budget per request"] = random_choices
    attacks["compressed responses"] = lambda t: compressed(t, upstreams)
    results = []
    for name, attack in attacks.items():
        before = target.memory
        with polled(target) as seconds:
            achieved, held = attack(target)
        growth = max(0, target.memory - before)
        held = held and growth <= MAX_MEMORY
        results.append(Result(name, achieved, growth, max(seconds, default=0.0), held))
    return results


def main() -> int:
    """Run the attacks, print the figures, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = {name: stack.enter_context(FaultyUpstream(name)) for name in COSTS}
        target = Target(folder, upstreams)
        stack.callback(target.stop)
        target.post()
        results = run(target, upstreams)
    for each in results:
        verdict = "held" if each.held else "DID NOT HOLD"
        print(f"{each.attack:24} {verdict}: {each.achieved}; memory +{each.memory / 2**20:.1f} MB, "
              f"slowest poll {1000 * each.slowest_poll:.0f} ms")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(each) for each in results], indent=1))
    return 0 if all(each.held for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
