"""Where the facts about requests go: metrics, and the decision log. They never fail a request.

The decision log has one JSON line for each answered request, and is a trace with gaps: for each
node its answer where it was asked, and the chance with which it was. Rows wait in memory for a
fifth of a second and are written by a thread: a slow or full disk costs rows, which are counted,
and no request. The file is rotated at 64 MiB, and may be renamed at any time.

Without ``log_texts`` no text is kept: answers are digests under a key beside the log, so that equal
answers are equal, and prompts are numbers and hashed words. Who has the file can guess words.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ttamer.fitting.inputs import prompt_numbers
from ttamer.llm.confidence import question_text
from ttamer.runtime.reply import NodeCall

LOG_VERSION = 1
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
HASHED_WORDS = 2**18
MAX_WORDS_TEXT = 20_000  # characters of a prompt whose words are hashed
_WORD = re.compile(r"\w+")


class Metrics:
    """The metrics of one process; label values come from the settings, never from clients."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("ttamer_requests_total", "Requests", ["status"], **made)
        self._seconds = Histogram("ttamer_request_seconds", "Time", buckets=BUCKETS, **made)
        cost = Counter(
            "ttamer_cost_total", "Cost of calls, in the cascade's units", ["node"], **made
        )
        answered = Counter("ttamer_answers_total", "Answers returned", ["node"], **made)
        seconds = Histogram("ttamer_call_seconds", "Time", ["node"], buckets=BUCKETS, **made)
        self._calls = Counter(
            "ttamer_calls_total", "Calls by their result", ["node", "result"], **made
        )
        self.audits = Counter("ttamer_audits_total", "Audits by their result", ["result"], **made)
        self.swaps = Counter("ttamer_swaps_total", "Policies put into service by the loop", **made)
        self._cost = {name: cost.labels(name) for name in nodes}
        self._answered = {name: answered.labels(name) for name in nodes}
        self._call_seconds = {name: seconds.labels(name) for name in nodes}
        self._statuses: dict[int, Any] = {}
        self._results: dict[tuple[str, str], Any] = {}

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when it is scraped."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def gauges(self, name: str, text: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Add a gauge with a value for each node."""
        gauge = Gauge(name, text, ["node"], registry=self.registry)
        for node, read in reads.items():
            gauge.labels(node).set_function(read)

    def finished(self, status: int, seconds: float) -> None:
        """Count a request."""
        child = self._statuses.get(status)
        if child is None:
            child = self._statuses[status] = self._requests.labels(str(status))
        child.inc()
        self._seconds.observe(seconds)

    def called(self, calls: Sequence[NodeCall]) -> None:
        """Count calls of nodes."""
        for call in calls:
            result = "ok" if call.error is None else call.error.partition(":")[0]
            key = call.node, result
            child = self._results.get(key)
            if child is None:
                child = self._results[key] = self._calls.labels(*key)
            child.inc()
            self._cost[call.node].inc(call.cost)
            self._call_seconds[call.node].observe(call.seconds)

    def answered(self, node: str) -> None:
        """Count an answer that was returned."""
        self._answered[node].inc()


class DecisionLog:
    """Appends rows to a file in the background; without a path it does nothing."""

    pause = 0.2  # seconds that rows wait in memory
    most_waiting = 10_000
    max_bytes, files = 64 * 2**20, 4

    def __init__(self, path: str, nodes: Sequence[str], *, texts: bool = False) -> None:
        self.path, self._nodes, self._texts = path, tuple(nodes), texts
        self._rows: list[dict[str, Any]] = []
        self.lost = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._digest = digests(path) if path else _as_it_is

    def start(self) -> None:
        """Start the thread that writes."""
        if self.path:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, daemon=True, name="ttamer log")
            self._thread.start()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def write(
        self,
        request: str,
        version: str,
        body: Mapping[str, Any],
        calls: Sequence[NodeCall],
        *,
        by: str | None,
        cost: float,
        chance: float | None = 0.0,
        asked: Collection[str] = (),
        classes: Collection[str] = (),
        **facts: Any,
    ) -> None:
        """Take a row; never waits, never raises.

        Args:
            request: The id of the request.
            version: That of the policy.
            body: The request.
            calls: The calls made, those of an audit included.
            by: The node whose answer was returned.
            cost: What the request cost, without the audit.
            chance: With which the nodes that the policy did not ask were asked; ``None`` where they
                were to be and were not, so that the row is part of no sample.
            asked: The nodes that the policy asked.
            classes: The answers that are kept as text: those that the policy knows.
            facts: Further facts.
        """
        if not self.path:
            return
        if len(self._rows) >= self.most_waiting:
            self.lost += 1
            return
        nodes: dict[str, dict[str, Any]] = {name: {"chance": chance} for name in self._nodes}
        for call in calls:
            row = nodes.setdefault(call.node, {})
            row["chance"] = 1.0 if call.node in asked else chance
            row |= {"cost": call.cost, "seconds": round(call.seconds, 4)}
            if call.error is not None:
                row["failed"] = call.error.partition(":")[0]
            elif call.confidence is not None:
                row["confidence"] = call.confidence
                row["prediction"] = self._kept(call.prediction, classes)
        self._rows.append({
            "v": LOG_VERSION, "time": round(time.time(), 3), "request": request,
            "policy": version, "by": by, "cost": cost, "nodes": nodes, "inputs": body, **facts,
        })  # fmt: skip

    def feedback(self, request: str, label: str | None, score: float | None) -> None:
        """Take what somebody says about the answer to an earlier request."""
        if self.path and len(self._rows) < self.most_waiting:
            kept = None if label is None else self._kept(label, ())
            row = {"v": LOG_VERSION, "time": round(time.time(), 3), "feedback": request}
            self._rows.append(row | {"label": kept, "score": score})

    def _kept(self, prediction: object, classes: Collection[str]) -> object:
        if self._texts or not isinstance(prediction, str):
            return prediction
        return self._digest(prediction, classes)

    def _run(self) -> None:
        while not self._stop.wait(self.pause):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits, now."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            for row in rows:
                if "inputs" in row:
                    row["inputs"] = prompt_inputs(row["inputs"], texts=self._texts)
            lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
            self._rotate(len(lines))
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            with os.fdopen(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
                file.write(lines)
        except (OSError, ValueError, TypeError):
            self.lost += len(rows)

    def _rotate(self, more: int) -> None:
        with suppress(FileNotFoundError):
            if Path(self.path).stat().st_size + more <= self.max_bytes:
                return
            for number in range(self.files - 1, 0, -1):
                older = self.path if number == 1 else f"{self.path}.{number - 1}"
                with suppress(FileNotFoundError):
                    Path(older).replace(f"{self.path}.{number}")


def digests(path: str) -> Callable[[str, Collection[str]], str]:
    """Return what a log keeps of texts: digests, but of those that the policy knows.

    Equal texts have equal digests, under a key that is made once and kept beside the log.
    """
    file = Path(f"{path}.key")
    if not file.exists():
        part = Path(f"{file}.{os.getpid()}")
        part.touch(mode=0o600)
        part.write_bytes(secrets.token_bytes(32))
        with suppress(FileExistsError):  # another process was first
            os.link(part, file)
        part.unlink()
    key = file.read_bytes()[:64]

    def digest(text: str, classes: Collection[str]) -> str:
        if text in classes:
            return text
        return f"#{blake2b(text.encode('utf-8', 'replace'), key=key, digest_size=12).hexdigest()}"

    return digest


def _as_it_is(text: str, classes: Collection[str]) -> str:
    del classes
    return text


def prompt_inputs(body: Mapping[str, Any], *, texts: bool = False) -> dict[str, Any]:
    """Return what a row of the log keeps of a prompt: numbers, and how often each hashed word is.

    >>> sorted(prompt_inputs({"messages": [{"role": "user", "content": "to be or not to be"}]}))
    ['numbers', 'words']
    """
    text = question_text(body)
    words = Counts(_WORD.findall(text[-MAX_WORDS_TEXT:].casefold()))
    hashed = {
        str(crc32(word.encode("utf-8", "replace")) % HASHED_WORDS): count
        for word, count in words.items()
    }
    kept = {"numbers": prompt_numbers(text), "words": hashed}
    return {**kept, "prompt": text} if texts else kept
