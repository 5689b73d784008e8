"""Ten thousand requests while everything fails: none lost, none answered twice, none late.

``python experiments/serving/faults.py [--requests N] [--seconds S] [--audit SHARE] [--json FILE]``
``python experiments/serving/faults.py --only faults,hung,restarts [--workers N]``

A gateway in a process of its own serves three upstreams that fail on command. Each fault gets its
share of the requests; a client asks under an id, and asks again under the same id, as a new
attempt, only when the connection broke. For every attempt it is known how often it was answered;
the gateway's own log and metrics must tell the same. At the end the gateway is killed with SIGKILL
again and again while it serves, and started again on the same port. With ``--audit`` a share of the
requests is audited besides, into a log that every new process goes on with.

Two bad days follow, with the gateway's default settings. *Hung*: the first upstream accepts
requests and never answers, at 25 requests/s; measured is the service once the circuit breaker is
open, against the healthy one. *Restarts*: gateways replace one another on one listening socket
while clients ask over new and over kept connections; no request may be refused or broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

import ttamer as tt
from ttamer.drift.audit_log import read_log

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.faulty_upstream import FaultyUpstream

DEADLINE = 2.0
GRACE = 6.0
"""Seconds beyond the deadline that a busy machine and the network may add."""
AT_ONCE = 50
MAX_ATTEMPTS = 600
"""Attempts of a request whose connection breaks, a tenth of a second apart."""
SERVED = 200
"""Requests that a gateway answers before it is killed."""
RATE = 25.0
"""Requests per second while an upstream hangs."""
HEALTHY_SECONDS, HUNG_SECONDS = 10.0, 20.0
"""The seconds measured before the upstream hangs, and after the breaker has opened."""
RESTARTS = 4
CLIENTS = 8
"""Clients that ask without a pause during restarts: half of them keep their connection."""
LAME_DUCK = 3.0
NODES = {"small": (1.0, 0.6), "middle": (4.0, 0.75), "large": (12.5, 0.95)}
PARTS = ("faults", "hung", "restarts")
FAULTS = ("none", "down", "slow", "error", "garbage", "truncated", "reset", "loss",
          "artefact", "disk full", "kill -9")  # fmt: skip
MODES = {"down": "refuse", "slow": "slow", "error": "error", "garbage": "garbage",
         "truncated": "truncated", "reset": "reset", "loss": "loss"}  # fmt: skip


@dataclass
class Found:
    """What came of the requests of one fault."""

    fault: str
    requests: int
    statuses: Counter[int] = field(default_factory=Counter)
    attempts: int = 0
    lost: int = 0
    """Requests that got neither an answer nor an error."""
    twice: int = 0
    """Attempts that the gateway answered more than once."""
    late: int = 0
    slowest: float = 0.0
    failures_seen: float = 0.0
    """What the gateway's metrics count as failures of nodes, rows lost and reloads refused."""
    kills: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost, doubled or late."""
        return not (self.lost or self.twice or self.late)


def make_ladder(hold_out: float = 0.0) -> Any:
    """Fit a ladder to rows as the upstreams answer."""
    rng = np.random.default_rng(0)
    rows = 400
    label = rng.integers(0, 4, rows)
    sure, answers = [], []
    for _, skill in NODES.values():
        right = rng.random(rows) < skill
        answers.append(np.where(right, label, (label + rng.integers(1, 4, rows)) % 4))
        low, width = np.where(right, 0.55, 0.25), np.where(right, 0.44, 0.5)
        sure.append(low + width * rng.random(rows))
    letters = np.array(list("ABCD"))
    spec = tt.CascadeSpec.of({name: cost for name, (cost, _) in NODES.items()}, order="any")
    trace = tt.Trace.from_arrays(
        spec, np.stack(sure, 1), prediction=letters[np.stack(answers, 1)], label=letters[label]
    )
    return tt.fit(trace, hold_out=hold_out)


class Gateway:
    """A gateway in a process of its own, on one port, that can be killed and started again."""

    def __init__(
        self,
        folder: Path,
        upstreams: dict[str, FaultyUpstream],
        audit: float | None = None,
        workers: int = 1,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.artefact, self._cascade = folder / "policy.ttamer", folder / "cascade.toml"
        self.ladder = make_ladder()
        tt.save(self.ladder, self.artefact)
        self._log = (folder / "log").open("a+")
        self._upstreams, self._audit, self._workers = upstreams, audit, workers
        self._write("seen.jsonl")
        self.child: subprocess.Popen[bytes] | None = None

    def _write(self, trace_log: str | None) -> None:
        text = '[cascade]\norder = "any"\n\n[serve]\ncompare = "choice"\n'
        if trace_log is None:  # otherwise as by default
            text += f"lame_duck = {LAME_DUCK}\n"
        else:
            text += f'timeout = {DEADLINE}\nwatch = 0.02\ntrace_log = "{trace_log}"\n'
        for name, (cost, _) in NODES.items():
            text += f'\n[[node]]\nname = "{name}"\ncost = {cost}\n'
            text += "timeout = 0.8\n" if trace_log is not None else ""
            text += f'upstream = "{self._upstreams[name].url}"\n'
        if self._audit is not None:
            text += f'\n[serve.audit]\nshare = {self._audit}\nlog = "audits"\n'
        self._cascade.write_text(text)

    def start(self, trace_log: str | None = "seen.jsonl") -> None:
        """Start, and wait until it is ready."""
        self._write(trace_log)
        self.child = self._popen(subprocess.DEVNULL, "--port", str(self.port))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            time.sleep(0.02)
        raise RuntimeError("the gateway did not start")

    def start_on(self, listener: socket.socket) -> None:
        """Start on a listening socket, with the default settings, and wait until it is ready."""
        self._write(None)
        child = self._popen(subprocess.PIPE, "--fd", str(listener.fileno()), listener.fileno())
        assert child.stdout is not None  # noqa: S101 - it is a pipe
        if not child.stdout.readline():
            raise RuntimeError("the gateway did not start")
        self.child = child

    def _popen(self, stdout: int, option: str, value: str, *fds: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ttamer", "serve", str(self._cascade), str(self.artefact)]
        command += ["--workers", str(self._workers)]
        return subprocess.Popen(  # noqa: S603 - our own command
            [*command, option, value], stdout=stdout, stderr=self._log, cwd=self._cascade.parent,
            pass_fds=fds,
        )  # fmt: skip

    def end(self, sent: int = signal.SIGTERM) -> None:
        """End it, and wait until it has ended."""
        if self.child is not None:
            self.child.send_signal(sent)
            self.child.wait(60)
            self.child = None

    def answered(self) -> Counter[str]:
        """How often each attempt was answered, by the gateway's own log."""
        self._log.flush()
        lines = Path(self._log.name).read_text().splitlines()
        found: Counter[str] = Counter()
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that SIGKILL cut short
                facts = json.loads(line)
                if facts.get("event") == "request" and facts["status"] < 499:
                    found[facts["request"]] += 1
        return found


async def ask(
    client: aiohttp.ClientSession,
    gateway: Gateway,
    name: str,
    found: Found,
    limit: asyncio.Semaphore,
    end: float,
) -> None:
    """Ask until there is an answer or an error; a broken connection is tried again.

    After ``end`` nothing is asked, and the request does not count.
    """
    url = f"{gateway.url}/v1/chat/completions"
    body = {"model": "ttamer", "messages": [{"role": "user", "content": f"question {name}"}]}
    async with limit:
        if time.monotonic() >= end:
            found.requests -= 1
            return
        for attempt in range(MAX_ATTEMPTS):
            found.attempts += 1
            start = time.monotonic()
            try:
                headers = {"x-request-id": f"{name}.{attempt}"}
                async with client.post(url, json=body, headers=headers) as reply:
                    content = await reply.json()
                    if reply.headers["x-request-id"] != headers["x-request-id"]:
                        found.twice += 1
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0.1)  # the gateway is gone: ask again
                continue
            except TimeoutError:
                found.late += 1
                return
            seconds = time.monotonic() - start
            found.slowest = max(found.slowest, seconds)
            found.late += seconds > DEADLINE + GRACE
            found.statuses[reply.status] += 1
            if reply.status == 200 and content["choices"][0]["message"]["content"] not in "ABCD":
                found.lost += 1
            return


async def failures(client: aiohttp.ClientSession, gateway: Gateway) -> float:
    """Sum what the metrics count as failures."""
    names = ("ttamer_failed_total", "ttamer_log_rows_lost_total", 'ttamer_reloads_total{result="f')
    async with client.get(f"{gateway.url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


async def spoil(gateway: Gateway) -> None:
    """Replace the artefact by garbage and by good ones, until cancelled."""
    good = gateway.artefact.read_bytes()
    for number in range(10**6):
        try:
            for content in (b"", b"garbage" * 1000, good[: len(good) // 2]):
                gateway.artefact.write_bytes(content)
                await asyncio.sleep(0.1)
        finally:
            tt.save(gateway.ladder, gateway.artefact, notes={"number": str(number)})
        await asyncio.sleep(0.1)


async def kill(gateway: Gateway, found: Found) -> None:
    """Kill while requests run, and start again, until cancelled."""
    while True:
        answered = found.statuses.total()
        while found.statuses.total() < answered + SERVED:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(gateway.end, signal.SIGKILL)
        found.kills += 1
        await asyncio.shield(asyncio.to_thread(gateway.start))


async def run_fault(gateway: Gateway, fault: str, requests: int, seconds: float) -> Found:
    """Make the requests of one fault; after these seconds, no further ones."""
    found = Found(fault, requests)
    end = time.monotonic() + seconds
    upstreams = gateway._upstreams
    for name, upstream in upstreams.items():
        # One of three fails outright; where calls are lost, all do.
        hit = name == "small" or fault == "loss"
        upstream.mode = MODES.get(fault, "ok") if hit else "ok"
    limit = asyncio.Semaphore(AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=DEADLINE + 2 * GRACE)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        before = await failures(client, gateway)
        helpers = {"artefact": lambda: spoil(gateway), "kill -9": lambda: kill(gateway, found)}
        helper = asyncio.create_task(helpers[fault]()) if fault in helpers else None
        tag = fault.replace(" ", "")
        names = [f"{tag}-{number}" for number in range(requests)]
        await asyncio.gather(*(ask(client, gateway, name, found, limit, end) for name in names))
        if helper is not None:
            helper.cancel()
            await asyncio.gather(helper, return_exceptions=True)
        if fault != "kill -9":
            found.failures_seen = await failures(client, gateway) - before
    found.lost += found.requests - found.statuses.total() - found.late
    mine = {name: count for name, count in gateway.answered().items() if name.startswith(f"{tag}-")}
    found.twice += sum(count > 1 for count in mine.values())
    for upstream in upstreams.values():
        upstream.mode = "ok"
    return found


@dataclass
class Asked:
    """One request of a bad day."""

    start: float
    seconds: float
    status: int
    """0 where the connection was refused or broke."""


async def ask_once(client: aiohttp.ClientSession, url: str, number: int) -> Asked:
    """Ask one question."""
    message = {"role": "user", "content": f"question {number}"}
    body = {"model": "ttamer", "messages": [message]}
    start = time.monotonic()
    status = 0
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        async with client.post(f"{url}/v1/chat/completions", json=body) as reply:
            await reply.read()
            status = reply.status
    return Asked(start, time.monotonic() - start, status)


async def open_count(client: aiohttp.ClientSession, url: str) -> float:
    """Return how many calls were not made since a breaker is open."""
    async with client.get(f"{url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    found = [line for line in lines if line.startswith("ttamer_failed_total") and '"open"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


async def hang(url: str, upstream: FaultyUpstream) -> dict[str, Any]:
    """Ask at a fixed rate while an upstream hangs; return the figures before and after."""
    tasks: list[asyncio.Task[Asked]] = []
    opened = None
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
        begin = time.monotonic()
        while opened is None or time.monotonic() < opened + HUNG_SECONDS:
            now = time.monotonic()
            if upstream.mode == "ok" and now >= begin + HEALTHY_SECONDS:
                upstream.mode = "hang"
                hung = now
            tasks.append(asyncio.create_task(ask_once(client, url, len(tasks))))
            if len(tasks) % RATE == 0 and opened is None and await open_count(client, url):
                opened = time.monotonic()
            if now > begin + 180:
                raise RuntimeError("the breaker did not open")
            await asyncio.sleep(max(0.0, begin + len(tasks) / RATE - time.monotonic()))
        every = await asyncio.gather(*tasks)
    upstream.mode = "ok"
    upstream.release()
    parts = {
        "healthy": [one for one in every if one.start < hung - 1],
        "until the breaker is open": [one for one in every if hung <= one.start < opened],
        "breaker open": [one for one in every if one.start >= opened],
    }
    figures: dict[str, Any] = {"seconds until open": round(opened - hung, 1)}
    for name, asked in parts.items():
        seconds = [one.seconds for one in asked]
        figures[name] = {
            "requests": len(asked),
            "answered": sum(one.status == 200 for one in asked) / len(asked),
            "p50": float(np.median(seconds)),
            "p99": float(np.quantile(seconds, 0.99)),
        }
    return figures


def run_hung(gateway: Gateway, upstreams: dict[str, FaultyUpstream]) -> tuple[dict[str, Any], bool]:
    """Let the first upstream hang; return the figures and whether they are good."""
    figures = asyncio.run(hang(gateway.url, upstreams["small"]))
    healthy, after = figures["healthy"], figures["breaker open"]
    good = after["answered"] >= 0.99 and after["p50"] <= 2 * healthy["p50"]
    print(f"hung: 'small' accepts and never answers, {RATE:g} requests/s")
    for name, one in figures.items():
        if isinstance(one, dict):
            print(f"  {name:26}{one['requests']:6} requests, {100 * one['answered']:6.2f}% answered"
                  f", p50 {1000 * one['p50']:.1f} ms, p99 {1000 * one['p99']:.0f} ms")  # fmt: skip
        else:
            print(f"  {name:26}{one:6}")
    return figures, good


async def restart(gateway: Gateway, listener: socket.socket) -> dict[str, Any]:
    """Replace the gateway again and again under load; return what the clients received."""
    asked: list[Asked] = []
    stop = asyncio.Event()

    async def load(keeps: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not keeps)
        async with aiohttp.ClientSession(connector=connector) as client:
            while not stop.is_set():
                asked.append(await ask_once(client, gateway.url, len(asked)))

    tasks = [asyncio.create_task(load(number % 2 == 0)) for number in range(CLIENTS)]
    for _ in range(RESTARTS):
        await asyncio.sleep(1.0)
        old = gateway.child
        assert old is not None  # noqa: S101 - it was started
        await asyncio.to_thread(gateway.start_on, listener)
        old.send_signal(signal.SIGTERM)
        await asyncio.to_thread(old.wait, 60)
    await asyncio.sleep(1.0)
    stop.set()
    await asyncio.gather(*tasks)
    statuses = Counter(one.status for one in asked)
    return {
        "restarts": RESTARTS,
        "requests": len(asked),
        "broken": statuses.pop(0, 0),
        "statuses": dict(statuses),
        "slowest": max(one.seconds for one in asked),
    }


def run_restarts(gateway: Gateway) -> tuple[dict[str, Any], bool]:
    """Restart under load; return the figures and whether they are good."""
    with socket.create_server(("127.0.0.1", gateway.port), backlog=2048) as listener:
        gateway.start_on(listener)
        figures = asyncio.run(restart(gateway, listener))
        gateway.end()
    print(f"restarts: {figures['restarts']} under load, {figures['requests']} requests: "
          f"{figures['broken']} refused or broken, statuses {figures['statuses']}, "
          f"slowest {figures['slowest']:.2f} s")  # fmt: skip
    return figures, not figures["broken"] and set(figures["statuses"]) == {200}


def main() -> None:
    """Run every fault and print a table."""
    parser = argparse.ArgumentParser(description="Serve while everything fails.")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--audit", type=float, metavar="SHARE", help="audit this share besides")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="send no request of a fault after this long"
    )
    parser.add_argument(
        "--only", metavar="NAMES", help="only these: faults or one of them, hung, restarts"
    )
    parser.add_argument("--workers", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    share = -(-options.requests // len(FAULTS))
    every: list[Found] = []
    parts = PARTS if options.only is None else tuple(options.only.split(","))
    figures: dict[str, Any] = {}
    is_good = True
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = {
            name: stack.enter_context(FaultyUpstream(name, skill=skill))
            for name, (_, skill) in NODES.items()
        }
        gateway = Gateway(folder, upstreams, options.audit, options.workers)
        stack.callback(lambda: gateway.end(signal.SIGKILL))
        faults = [fault for fault in FAULTS if "faults" in parts or fault in parts]
        if faults:
            print(f"{'fault':12}{'requests':>9}{'answered':>9}{'errors':>8}{'attempts':>9}{'lost':>6}"
                  f"{'twice':>6}{'late':>6}{'slowest s':>10}{'seen':>7}")  # fmt: skip
        for fault in faults:
            gateway.end()  # each fault begins with closed breakers
            gateway.start("/dev/full" if fault == "disk full" else "seen.jsonl")
            found = asyncio.run(run_fault(gateway, fault, share, options.seconds))
            every.append(found)
            errors = found.statuses.total() - found.statuses[200]
            print(f"{fault:12}{found.requests:9}{found.statuses[200]:9}{errors:8}"
                  f"{found.attempts:9}{found.lost:6}{found.twice:6}{found.late:6}"
                  f"{found.slowest:10.2f}{found.failures_seen:7.0f}"
                  + (f"  ({found.kills} kills)" if found.kills else ""), flush=True)  # fmt: skip
        gateway.end()
        if "hung" in parts:
            gateway.start(None)
            figures["hung"], good = run_hung(gateway, upstreams)
            is_good &= good
            gateway.end()
        if "restarts" in parts:
            figures["restarts"], good = run_restarts(gateway)
            is_good &= good
        if options.audit is not None:
            print(f"{len(read_log(folder / 'audits'))} audited rows in the log, each whole")
    total = sum(found.requests for found in every)
    good = all(found.is_good for found in every)
    if every:
        verdict = "none lost, none answered twice, none late" if good else "NOT GOOD"
        print(f"{total} requests: {verdict}")
    if options.json:
        rows = [{**vars(found), "statuses": dict(found.statuses)} for found in every]
        options.json.write_text(json.dumps({"faults": rows, **figures}, indent=1) + "\n")
    sys.exit(0 if good and is_good else 1)


if __name__ == "__main__":
    os.environ["no_proxy"] = "127.0.0.1"
    logging.disable()  # the upstreams fail on purpose
    main()
