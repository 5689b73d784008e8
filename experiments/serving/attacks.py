"""Attacks on a gateway of this machine, each bounded in bytes, connections and time.

``python experiments/serving/attacks.py [--json FILE]``

A gateway in a process of its own serves three upstreams, with a key for each client and a log that
is never read. Each attack runs against it while a second client polls ``/healthz``; the figure is
what the attack achieved, how much memory the gateway took at most, and how long the slowest poll
waited. The gateway must hold its limits: the exit status is 1 if an attack passes one.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
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

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from faults import make_ladder

import ttamer as tt
from support.faulty_upstream import FaultyUpstream
from ttamer.drift.refit import RefitProcess
from ttamer.errors import TTamerError
from ttamer.serve.config import read_settings
from ttamer.serve.drift import secret_names

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
KEYS = {"web": "key-of-the-web-client", "other": "key-of-other-clients", "ops": "key-of-operators"}
UPSTREAM_KEY, EMBEDDINGS_KEY = "KEY_OF_UPSTREAMS", "KEY_OF_EMBEDDINGS"
ROLES = {"web": ["ask", "label"], "other": ["ask", "label"], "ops": ["metrics"]}
BOMB_BYTES = 1536 * 2**20
"""The size of the compressed response once it is decompressed."""
CHOICE_RATE = 41
"""The requests per second that choose an operating point of their own."""
CHOICE_SECONDS = 5.0
CHOOSERS = 8
MAX_SLOWDOWN = 5.0
"""The most by which such requests may increase the median of others."""
BUDGET = 5.0
"""The budget of a mixture of two policies, each of which answers about half of the requests."""
DRAWS = 60
"""The request ids that are chosen for each side of the mixture."""
MAX_DEVIATIONS = 4.5
"""The most standard errors by which the two sides may differ by chance."""
PLANTED = "from pathlib import Path\nPath('imported').touch()\n"
"""A module in the working directory of the gateway, with the name of one that a re-fit imports."""
LOGGED = 1500
"""The requests sent while the log is not read; its pipe holds fewer lines."""


def environment() -> dict[str, str]:
    """Return the environment variables that hold keys: of clients, and of upstreams."""
    clients = {name.upper(): key for name, key in KEYS.items()}
    return {UPSTREAM_KEY: "key-of-the-upstreams", EMBEDDINGS_KEY: "key-of-embeddings", **clients}


@dataclass
class Result:
    """What one attack did."""

    attack: str
    achieved: str
    memory: int
    """The largest increase of the gateway's memory, in bytes."""
    slowest_poll: float
    """The slowest answer of /healthz meanwhile, in seconds."""
    held: bool


class Target:
    """A gateway in a process of its own."""

    def __init__(self, folder: Path, upstreams: dict[str, FaultyUpstream]) -> None:
        text = f"""
[cascade]
order = "any"
[serve]
compare = "choice"
allow = ["error", "budget"]
max_connections_per_address = {CONNECTIONS // 2}
hosts = ["127.0.0.1"]
[serve.embeddings]
upstream = "{upstreams["small"].url}"
key_env = "{EMBEDDINGS_KEY}"
[serve.audit]
share = 0.5
max_client_share = 1.0
log = "{folder / "audits"}"
"""
        for name, roles in ROLES.items():
            text += f'[[serve.key]]\nname = "{name}"\nenv = "{name.upper()}"\nroles = {roles}\n'
        for name, upstream in upstreams.items():
            text += f'[[node]]\nname = "{name}"\ncost = {COSTS[name]}\nbreaker = 0\n'
            text += f'upstream = "{upstream.url}"\nkey_env = "{UPSTREAM_KEY}"\n'
        cascade, policy = folder / "cascade.toml", folder / "policy.ttamer"
        cascade.write_text(text, "utf-8")
        self.cascade, self.ladder = cascade, make_ladder(hold_out=0.3)
        tt.save(self.ladder, policy)
        command = [sys.executable, "-m", "ttamer", "serve", str(cascade), str(policy)]
        self._child = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # never read
            env=os.environ | environment(),
        )
        assert self._child.stdout is not None  # noqa: S101 - it is a pipe
        self.url = json.loads(self._child.stdout.readline())["url"]
        self.port = int(self.url.rsplit(":", 1)[1])

    @property
    def memory(self) -> int:
        """The resident memory of the process, in bytes."""
        return self._status("VmRSS")

    @property
    def peak_memory(self) -> int:
        """The most resident memory since :meth:`reset_peak`."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        """Count the peak from now on."""
        Path(f"/proc/{self._child.pid}/clear_refs").write_text("5")

    def _status(self, field: str) -> int:
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

    def connect(self) -> socket.socket:
        """Open a connection of the attacker, which has an address of its own."""
        address = ("127.0.0.1", self.port)
        return socket.create_connection(address, timeout=20, source_address=(ATTACKER, 0))

    def ask(self, path: str, body: Any, **headers: str) -> tuple[int, bytes, float]:
        """Send a request; return the status, the body and the seconds."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {KEYS['web']}", **headers}
        request = urllib.request.Request(  # noqa: S310 - a loopback address
            self.url + path, content, {"content-type": "application/json", **headers}
        )
        start = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
                return reply.status, reply.read(), time.monotonic() - start
        except urllib.error.HTTPError as error:
            return error.code, error.read(), time.monotonic() - start

    def post(self, *, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, float]:
        """Ask a question; return the status and the seconds."""
        body = {"model": "ttamer", "messages": [{"role": "user", "content": "Which?"}], **fields}
        status, _, seconds = self.ask("/v1/chat/completions", body, **(headers or {}))
        return status, seconds

    def metric(self, name: str) -> float:
        """Return the sum of a metric."""
        _, text, _ = self.ask("/metrics", None, authorization=f"Bearer {KEYS['ops']}")
        lines = [line for line in text.decode().splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        """Stop the process."""
        self._child.kill()
        self._child.communicate(timeout=30)


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


def bomb() -> bytes:
    """Return zeros as gzip: members of 64 MB each, which decompress to one text."""
    member = gzip.compress(bytes(64 * 2**20))
    return member * (BOMB_BYTES // (64 * 2**20))


@contextlib.contextmanager
def sending(upstreams: dict[str, FaultyUpstream], raw: bytes, **headers: str) -> Iterator[None]:
    """Let every upstream send these bytes inside."""
    for upstream in upstreams.values():
        upstream.raw, upstream.headers = raw, headers
    try:
        yield
    finally:
        for upstream in upstreams.values():
            upstream.raw, upstream.headers = None, {}


def compressed(target: Target, upstreams: dict[str, FaultyUpstream]) -> tuple[str, bool]:
    """Let upstreams send a small response that decompresses to a large one."""
    content = bomb()
    asked = {name: upstream.request_headers for name, upstream in upstreams.items()}
    with sending(upstreams, content, **{"content-encoding": "gzip"}):
        status, seconds = target.post()
    wanted = {headers[-1].get("accept-encoding") for headers in asked.values() if headers}
    text = f"{len(content) / 2**20:.1f} MB that become {BOMB_BYTES / 2**20:.0f} MB, three times: "
    text += (
        f"status {status} in {seconds:.2f} s; encodings requested: {', '.join(map(str, wanted))}"
    )
    return text, status == 502 and wanted == {"identity"}


def not_a_number(target: Target, upstreams: dict[str, FaultyUpstream]) -> tuple[str, bool]:
    """Let upstreams send NaN."""
    with sending(upstreams, b'{"choices": [], "usage": {"prompt_tokens": NaN}}'):
        status, _ = target.post()
    return f"status {status}", status == 502


def random_choices(target: Target) -> tuple[str, bool]:
    """Choose another error or budget with every request, beside a client that chooses nothing.

    Before, the same clients ask as often and choose nothing.
    """
    draw = random.Random(0)  # noqa: S311 - not a secret

    def chosen() -> dict[str, float]:
        name = draw.choice(["error", "budget"])
        return {name: draw.random() if name == "error" else 1 + 16 * draw.random()}

    before, _, _ = beside(target, dict)
    during, statuses, rate = beside(target, lambda: {"ttamer": chosen()})
    p50 = {name: statistics.median(each) for name, each in (("a", before), ("b", during))}
    text = (
        f"{rate:.0f} requests/s: p50 of another client {1000 * p50['a']:.1f} ms without choices, "
    )
    text += f"{1000 * p50['b']:.1f} ms with, worst {1000 * max(during):.0f} ms"
    return text, statuses == {200} and p50["b"] <= MAX_SLOWDOWN * p50["a"]


def beside(target: Target, fields: Any) -> tuple[list[float], set[int], float]:
    """Ask from several threads; return another client's seconds, the statuses and the rate."""
    stop = threading.Event()
    statuses: list[int] = []

    def ask() -> None:
        following = time.monotonic()
        while not stop.wait(max(0.0, following - time.monotonic())):
            following += CHOOSERS / CHOICE_RATE
            statuses.append(target.post(**fields())[0])

    threads = [threading.Thread(target=ask) for _ in range(CHOOSERS)]
    for thread in threads:
        thread.start()
    seconds: list[float] = []
    end = time.monotonic() + CHOICE_SECONDS
    while time.monotonic() < end:
        seconds.append(target.post()[1])
        time.sleep(0.01)
    rate = len(statuses) / CHOICE_SECONDS
    stop.set()
    for thread in threads:
        thread.join(60)
    return seconds, set(statuses), rate


def long_numbers(target: Target) -> tuple[str, bool]:
    """Choose a budget of 400 digits, in the body and in a header."""
    digits = "9" * 400
    in_header, _ = target.post(headers={"x-ttamer-budget": digits})
    in_body, _ = target.post(ttamer={"budget": int(digits)})
    return f"status {in_header} and {in_body}", in_header == in_body == 400


def labels(target: Target) -> tuple[str, bool]:
    """Label the requests of another key, and guess the next request id."""
    ids = [f"victim-{number}" for number in range(30)]
    for name in ids:
        target.post(headers={"x-request-id": name})
    taken = {"other": 0, "web": 0}
    for client in taken:  # the attacker first
        for name in ids:
            _, body, _ = target.ask(
                "/v1/labels",
                {"request": name, "label": "A"},
                authorization=f"Bearer {KEYS[client]}",
            )
            taken[client] += json.loads(body)["audited"]
    status, _, _ = target.ask("/metrics", None)
    text = f"of {len(ids)} requests, another key labelled {taken['other']}, their own "
    text += f"{taken['web']}; metrics without the role: {status}"
    return text, taken["other"] == 0 < taken["web"] and status == 403


def chosen_side(target: Target) -> tuple[str, bool]:
    """Choose request ids that would draw one side of a budget's mixture if they were its keys."""
    mixture = target.ladder.for_budget(BUDGET)
    ids: dict[str, list[str]] = {"cheap": [], "expensive": []}
    number = 0
    while min(map(len, ids.values())) < DRAWS:
        name, number = f"id-{number}", number + 1
        side = ids["expensive" if mixture.drawn(name) is mixture.expensive else "cheap"]
        if len(side) < DRAWS:
            side.append(name)

    def cost(name: str, prompt: str) -> float:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "ttamer", "messages": messages, "ttamer": {"budget": BUDGET}}
        _, answer, _ = target.ask("/v1/chat/completions", body, **{"x-request-id": name})
        return float(json.loads(answer)["ttamer"]["cost"])

    for trial in range(50):  # a prompt on which the two policies differ
        prompt = f"question {trial}"
        if len({cost(f"trial-{each}", prompt) for each in range(12)}) > 1:
            break
    found = {side: [cost(name, prompt) for name in names] for side, names in ids.items()}
    most = max(map(max, found.values()))
    shares = {side: costs.count(most) / DRAWS for side, costs in found.items()}
    mean = sum(shares.values()) / 2
    error = (2 * mean * (1 - mean) / DRAWS) ** 0.5
    cheap, expensive = (statistics.mean(found[side]) for side in ("cheap", "expensive"))
    text = f"mean cost {cheap:.2f} with {DRAWS} ids for the cheap side, {expensive:.2f} with "
    text += f"{DRAWS} for the expensive one"
    differ = abs(shares["expensive"] - shares["cheap"])
    return text, 0 < mean < 1 and differ <= MAX_DEVIATIONS * error


def refit_child(target: Target) -> tuple[str, bool]:
    """Let the gateway's re-fit start in a folder with planted modules, with all keys set."""
    refit = RefitProcess(hidden=secret_names(read_settings(target.cascade)))
    seen: list[tuple[bytes, bytes]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.005):
            with contextlib.suppress(OSError, AttributeError):
                place = Path(f"/proc/{refit._process.pid}")
                seen.append(((place / "cmdline").read_bytes(), (place / "environ").read_bytes()))

    rng = np.random.default_rng(0)
    sure = rng.random((400, 2))
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 9.0})
    rows = tt.Trace(spec, sure, correct=rng.random(sure.shape) < sure)
    watch = threading.Thread(target=look)
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for module in ("numpy", "ttamer", "sitecustomize"):
            Path(f"{module}.py").write_text(PLANTED)
        os.environ.update(environment())
        watch.start()
        try:
            with contextlib.suppress(TTamerError):  # a planted module took the place of ours
                refit(rows)
        finally:
            done.set()
            watch.join()
            os.environ.clear()
            os.environ.update(before)
        is_imported = Path("imported").exists()
    children = [each for each in seen if b"ttamer.drift.refit" in each[0]]
    secrets = [value.encode() for value in environment().values()]
    leaked = sum(any(secret in found for _, found in children) for secret in secrets)
    text = f"planted modules imported: {'yes' if is_imported else 'no'}; keys in its environment: "
    text += f"{leaked} of {len(secrets)}"
    return text, bool(children) and not leaked and not is_imported


def other_host(target: Target) -> tuple[str, bool]:
    """Ask under another host name, as a page in a browser can."""
    status, _ = target.post(headers={"host": "evil.example"})
    return f"status {status}", status == 421


def unread_log(target: Target) -> tuple[str, bool]:
    """Send more requests than the pipe of the log holds lines."""
    seconds = []
    for _ in range(LOGGED):
        status, taken, *_ = target.ask("/v1/models", None)[::2]
        seconds.append(taken)
        if status != 200:
            return f"status {status}", False
    lost = target.metric("ttamer_log_lines_lost_total")
    text = f"{LOGGED} requests, slowest {1000 * max(seconds):.0f} ms; {lost:.0f} lines lost"
    return text, max(seconds) < 5


def run(target: Target, upstreams: dict[str, FaultyUpstream]) -> list[Result]:
    """Run every attack."""
    attacks = {name: lambda t, p=parts: flood(t, *p) for name, parts in FLOODS.items()}
    attacks["slow headers"] = slow_headers
    attacks["choices at random"] = random_choices
    attacks["a budget of 400 digits"] = long_numbers
    attacks["compressed responses"] = lambda t: compressed(t, upstreams)
    attacks["NaN in a response"] = lambda t: not_a_number(t, upstreams)
    attacks["labels of another key"] = labels
    attacks["ids for one side"] = chosen_side
    attacks["the re-fit's process"] = refit_child
    attacks["another host name"] = other_host
    attacks["a log that is not read"] = unread_log
    results = []
    for name, attack in attacks.items():
        target.reset_peak()
        before = target.memory
        with polled(target) as seconds:
            achieved, held = attack(target)
        growth = max(0, target.peak_memory - before)
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
