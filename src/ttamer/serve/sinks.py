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
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ttamer.fitting.inputs import prompt_numbers
from ttamer.llm.confidence import question_text
from ttamer.runtime.reply import NodeCall
from ttamer.serve.answering import is_ineligible

LOG_VERSION = 1


class Metrics:
    """The metrics of one process; label values come from the settings, never from clients."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        buckets = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
        time_of = partial(Histogram, documentation="Time", registry=self.registry, buckets=buckets)
        self._requests = count("ttamer_requests_total", "Requests", ["status"])
        self._seconds = time_of("ttamer_request_seconds")
        cost = count("ttamer_cost_total", "Cost of calls, in the cascade's units", ["node"])
        answered = count("ttamer_answers_total", "Answers returned", ["node"])
        seconds = time_of("ttamer_call_seconds", labelnames=["node"])
        self._calls = count("ttamer_calls_total", "Calls by their result", ["node", "result"])
        self.audits = count("ttamer_audits_total", "Audits by their result", ["result"])
        self.swaps = count("ttamer_swaps_total", "Policies put into service by the loop")
        # Looking a label up takes longer than counting.
        self._cost = {name: cost.labels(name) for name in nodes}
        self._answered = {name: answered.labels(name) for name in nodes}
        self._call_seconds = {name: seconds.labels(name) for name in nodes}

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
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def called(self, calls: Sequence[NodeCall]) -> None:
        """Count calls of nodes."""
        for call in calls:
            result = "ok" if call.error is None else call.error.partition(":")[0]
            self._calls.labels(call.node, result).inc()
            self._cost[call.node].inc(call.cost)
            self._call_seconds[call.node].observe(call.seconds)

    def answered(self, node: str) -> None:
        """Count an answer that was returned."""
        self._answered[node].inc()


class DecisionLog:
    """Appends rows to a file in the background; without a path it does nothing."""

    pause = 0.2  # seconds that rows wait in memory
    max_rows, max_characters = 10_000, 64 * 2**20  # that wait; further rows are lost
    max_bytes, files = 64 * 2**20, 4

    def __init__(self, path: str, nodes: Sequence[str], *, texts: bool = False) -> None:
        self.path, self._nodes, self._texts = path, tuple(nodes), texts
        self._rows: list[dict[str, Any]] = []
        self._characters = 0  # of the prompts that wait
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
        text = question_text(body)
        if len(self._rows) >= self.max_rows or self._characters > self.max_characters:
            self.lost += 1
            return
        self._characters += len(text)
        nodes: dict[str, dict[str, Any]] = {name: {"chance": chance} for name in self._nodes}
        for call in calls:
            row = nodes.setdefault(call.node, {})
            if not is_ineligible(call):  # else the node had no chance at all
                row["chance"] = 1.0 if call.node in asked else chance
            else:
                row["chance"] = 0.0
            row |= {"cost": call.cost, "seconds": round(call.seconds, 4)}
            if call.error is not None:
                row["failed"] = call.error.partition(":")[0]
            elif call.confidence is not None:
                row["confidence"] = call.confidence
                row["prediction"] = self._concealed(call.prediction, classes)
        self._rows.append({
            "v": LOG_VERSION, "time": round(time.time(), 3), "request": request,
            "policy": version, "by": by, "cost": cost, "nodes": nodes, "inputs": text, **facts,
        })  # fmt: skip

    def feedback(self, request: str, label: str | None, score: float | None) -> None:
        """Take a label or a score for the answer to an earlier request."""
        if self.path and len(self._rows) < self.max_rows:
            shown = None if label is None else self._concealed(label, ())
            row = {"v": LOG_VERSION, "time": round(time.time(), 3), "feedback": request}
            self._rows.append(row | {"label": shown, "score": score})

    def _concealed(self, prediction: object, classes: Collection[str]) -> object:
        if self._texts or not isinstance(prediction, str):
            return prediction
        return self._digest(prediction, classes)

    def _run(self) -> None:
        while not self._stop.wait(self.pause):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits, now."""
        rows, self._rows, self._characters = self._rows, [], 0
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


def prompt_inputs(text: str, *, texts: bool = False) -> dict[str, Any]:
    """Return what a row of the log has of a prompt: numbers, and how often each hashed word is.

    >>> sorted(prompt_inputs("to be or not to be"))
    ['numbers', 'words']
    """
    counts: Counts[str] = Counts()
    for word in re.findall(r"\w+", text[-20_000:].casefold()):
        counts[str(crc32(word.encode("utf-8", "replace")) % 2**18)] += 1
    inputs = {"numbers": prompt_numbers(text), "words": counts}
    return {**inputs, "prompt": text} if texts else inputs
