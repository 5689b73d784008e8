"""``ttamer serve`` in a process of its own, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2 as httpx

from support.waiting import LONGEST_WAIT

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK = {"model": "ttamer", "messages": [{"role": "user", "content": "Which letter?"}]}


class GatewayProcess:
    """A gateway in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "ttamer", "serve", *arguments, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        self.lines: list[dict] = []
        self._changed = threading.Condition()
        line = self.child.stdout.readline()
        if not line:
            _, said = self.child.communicate(timeout=30)
            raise RuntimeError(said)
        self.url = json.loads(line)["url"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.child.stderr:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()

    def wait_for(self, event: str, count: int = 1) -> dict:
        """Wait until this many of these events were logged; return the last."""

        def found():
            return [line for line in self.lines if line["event"] == event]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, LONGEST_WAIT), self.lines
            return found()[-1]

    def workers(self) -> dict[str, int]:
        """The processes that the gateway has started, by the first part of their place."""
        pid = self.child.pid
        found = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split():
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            found[command[command.index("--worker") + 1].partition(":")[0]] = int(child)
        return found

    @contextmanager
    def only(self, worker: str) -> Iterator[None]:
        """Inside, no other worker accepts connections."""
        others = [pid for name, pid in self.workers().items() if name not in (worker, "owner")]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def post(self, headers=None, **fields):
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json={**ASK, **fields}, headers=headers, timeout=30.0)

    def end(self, sent: int = signal.SIGTERM) -> int:
        self.child.send_signal(sent)
        return self.child.wait(30)

    def close(self) -> None:
        """Kill it, and release what it holds."""
        self.child.kill()
        self.child.wait(30)
        self.child.stdout.close()
        self._reader.join(30)
        self.child.stderr.close()
