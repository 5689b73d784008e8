"""Ten thousand requests while everything fails: none lost, none answered twice, none late.

``python experiments/serving/faults.py [--requests N] [--audit SHARE] [--json FILE]``

A gateway in a process of its own serves three upstreams that fail on command. Each fault gets its
share of the requests; a client asks under an id, and asks again under the same id, as a new
attempt, only when the connection broke. For every attempt it is known how often it was answered;
the gateway's own log and metrics must tell the same. At the end the gateway is killed with SIGKILL
again and again while it serves, and started again on the same port. With ``--audit`` a share of the
requests is audited besides, into a log that every new process goes on with.
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
NODES = {"small": (1.0, 0.6), "middle": (4.0, 0.75), "large": (12.5, 0.95)}
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
        self, folder: Path, upstreams: dict[str, FaultyUpstream], audit: float | None = None
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.artefact, self._cascade = folder / "policy.ttamer", folder / "cascade.toml"
        self.ladder = make_ladder()
        tt.save(self.ladder, self.artefact)
        self._log = (folder / "log").open("a+")
        self._upstreams, self._audit = upstreams, audit
        self._write("seen.jsonl")
        self.child: subprocess.Popen[bytes] | None = None

    def _write(self, trace_log: str) -> None:
        text = (
            f'[cascade]\norder = "any"\n\n[serve]\ncompare = "choice"\ntimeout = {DEADLINE}\n'
            f'watch = 0.02\ntrace_log = "{trace_log}"\n'
        )
        for name, (cost, _) in NODES.items():
            text += f'\n[[node]]\nname = "{name}"\ncost = {cost}\ntimeout = 0.8\n'
            text += f'upstream = "{self._upstreams[name].url}"\n'
        if self._audit is not None:
            text += f'\n[serve.audit]\nshare = {self._audit}\nlog = "audits"\n'
        self._cascade.write_text(text)

    def start(self, trace_log: str = "seen.jsonl") -> None:
        """Start, and wait until it is ready."""
        self._write(trace_log)
        self.child = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "ttamer", "serve", str(self._cascade), str(self.artefact),
             "--port", str(self.port)],
            stdout=subprocess.DEVNULL, stderr=self._log, cwd=self._cascade.parent,
        )  # fmt: skip
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            time.sleep(0.02)
        raise RuntimeError("the gateway did not start")

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
) -> None:
    """Ask until there is an answer or an error; a broken connection is tried again."""
    url = f"{gateway.url}/v1/chat/completions"
    body = {"model": "ttamer", "messages": [{"role": "user", "content": f"question {name}"}]}
    async with limit:
        for attempt in range(200):
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
        found.lost += 1


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
    """Kill and start again, until cancelled."""
    while True:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(gateway.end, signal.SIGKILL)
        found.kills += 1
        await asyncio.shield(asyncio.to_thread(gateway.start))


async def run_fault(gateway: Gateway, fault: str, requests: int) -> Found:
    """Make the requests of one fault."""
    found = Found(fault, requests)
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
        await asyncio.gather(*(ask(client, gateway, name, found, limit) for name in names))
        if helper is not None:
            helper.cancel()
            await asyncio.gather(helper, return_exceptions=True)
        if fault != "kill -9":
            found.failures_seen = await failures(client, gateway) - before
    found.lost += requests - found.statuses.total() - found.late
    mine = {name: count for name, count in gateway.answered().items() if name.startswith(f"{tag}-")}
    found.twice += sum(count > 1 for count in mine.values())
    for upstream in upstreams.values():
        upstream.mode = "ok"
    return found


def main() -> None:
    """Run every fault and print a table."""
    parser = argparse.ArgumentParser(description="Serve while everything fails.")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--audit", type=float, metavar="SHARE", help="audit this share besides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers")
    options = parser.parse_args()
    share = -(-options.requests // len(FAULTS))
    every: list[Found] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = {
            name: stack.enter_context(FaultyUpstream(name, skill=skill))
            for name, (_, skill) in NODES.items()
        }
        gateway = Gateway(folder, upstreams, options.audit)
        stack.callback(lambda: gateway.end(signal.SIGKILL))
        gateway.start()
        print(f"{'fault':12}{'requests':>9}{'answered':>9}{'errors':>8}{'attempts':>9}{'lost':>6}"
              f"{'twice':>6}{'late':>6}{'slowest s':>10}{'seen':>7}")  # fmt: skip
        for fault in FAULTS:
            if fault == "disk full":
                gateway.end()
                gateway.start("/dev/full")
            found = asyncio.run(run_fault(gateway, fault, share))
            every.append(found)
            errors = found.statuses.total() - found.statuses[200]
            print(f"{fault:12}{found.requests:9}{found.statuses[200]:9}{errors:8}"
                  f"{found.attempts:9}{found.lost:6}{found.twice:6}{found.late:6}"
                  f"{found.slowest:10.2f}{found.failures_seen:7.0f}"
                  + (f"  ({found.kills} kills)" if found.kills else ""), flush=True)  # fmt: skip
            if fault == "disk full":
                gateway.end()
                gateway.start()
        if options.audit is not None:
            gateway.end()
            print(f"{len(read_log(folder / 'audits'))} audited rows in the log, each whole")
    total = sum(found.requests for found in every)
    good = all(found.is_good for found in every)
    print(
        f"{total} requests: {'none lost, none answered twice, none late' if good else 'NOT GOOD'}"
    )
    if options.json:
        rows = [{**vars(found), "statuses": dict(found.statuses)} for found in every]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    os.environ["no_proxy"] = "127.0.0.1"
    logging.disable()  # the upstreams fail on purpose
    main()
