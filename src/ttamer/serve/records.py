"""What a server records: metrics, and the decision log. Neither ever fails a request.

The log has one JSON line for each answered request, and for what is said about it later. It is a
trace with gaps (:mod:`ttamer.trace.decisions`): of each node the answer where it was asked, and the
chance with which it was. Rows wait in memory for a fifth of a second and are written by a thread: a
slow or full disk costs rows, which are counted, and no request. ``kill -9`` costs what waits. The
file is rotated at 64 MiB, and may be renamed at any time.

Without ``log_texts`` no text is kept: answers are digests under a key beside the log, so that equal
answers are equal, and prompts are numbers and hashed words. Who has the file can guess words.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ttamer._files import atomic_write
from ttamer.cascade import CascadeSpec
from ttamer.errors import CascadeError, TraceError
from ttamer.fitting.inputs import HASHED, hashed_prompt
from ttamer.llm.confidence import question_text
from ttamer.llm.prompts import Answer, AnsweredPrompt
from ttamer.runtime.reply import NodeCall, Outcome
from ttamer.serve.requests import Job, is_ineligible
from ttamer.trace.decisions import LOG_VERSION, LoggedDecisions, log_files


class Metrics:
    """The metrics of one process; label values come from the settings, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        buckets = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
        time_of = partial(Histogram, documentation="Time", registry=self.registry, buckets=buckets)
        # Looking a label up takes longer than counting.
        self._requests = cache(count("ttamer_requests_total", "Requests", ["status"]).labels)
        self._seconds = time_of("ttamer_request_seconds")
        self._cost = cache(count("ttamer_cost_total", "Cost of calls", ["node"]).labels)
        self._answered = cache(count("ttamer_answers_total", "Answers returned", ["node"]).labels)
        self._call_seconds = cache(time_of("ttamer_call_seconds", labelnames=["node"]).labels)
        self._calls = cache(count("ttamer_calls_total", "Calls", ["node", "result"]).labels)
        self.audits = count("ttamer_audits_total", "Audits by their result", ["result"])
        self.swaps = count("ttamer_swaps_total", "Policies put into service by the loop")
        self.breakers = gauge("ttamer_breaker_open", "Whether a node is left alone", ["node"])
        self.embeddings_missing = gauge("ttamer_embeddings_missing", "Inputs not known")

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when it is scraped."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def finished(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests(str(status)).inc()
        self._seconds.observe(seconds)

    def called(self, calls: Iterable[NodeCall], by: str | None = None) -> None:
        """Count calls of nodes, and whose answer was returned."""
        for call in calls:
            result = "ok" if call.error is None else call.error.partition(":")[0]
            self._calls(call.node, result).inc()
            self._cost(call.node).inc(call.cost)
            self._call_seconds(call.node).observe(call.seconds)
        if by is not None:
            self._answered(by).inc()


class DecisionLog:
    """Appends rows to a file in the background; without a path it does nothing."""

    pause = 0.2  # seconds that rows wait in memory
    max_rows, max_characters = 10_000, 64 * 2**20  # that wait; further rows are lost
    max_bytes, files = 64 * 2**20, 4
    # Requests whose answers are known as text, to compare a label with; and their characters.
    max_recent, max_answers = 10_000, 6_000

    def __init__(self, path: str, spec: CascadeSpec, *, texts: bool = False) -> None:
        self.path, self._spec, self._texts = path, spec, texts
        # The thread takes rows while requests add others: each step of a deque is atomic.
        self._rows: deque[dict[str, Any]] = deque()
        self._characters = 0  # of rows that wait
        # By the id of a request and node: the answers as they are, in memory alone.
        self.recent: OrderedDict[str, dict[str, str]] = OrderedDict()
        self.lost = 0
        self._stop, self._thread = threading.Event(), threading.Thread()
        self._key = b""
        if path:
            try:
                self._key = _key_of(path)
            except OSError as error:  # before a port opens
                raise CascadeError(f"[serve]: log is {path!r}: {error.strerror}") from None

    def start(self) -> None:
        """Start the thread that writes."""
        if self.path:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, daemon=True, name="ttamer log")
            self._thread.start()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def write(
        self,
        job: Job,
        calls: Sequence[NodeCall],
        outcome: Outcome | None,
        chance: float | None,
        *,
        scores: Mapping[str, float] | None = None,
        **facts: Any,
    ) -> None:
        """Take a row; never waits, never raises.

        Args:
            job: The request.
            calls: The calls made, those of an audit included.
            outcome: What the client got; ``None`` where no node answered.
            chance: With which the nodes that the policy did not ask were asked; ``None`` where they
                were to be and were not, so that the row is part of no sample.
            scores: By answer: the verdict of a judge.
            facts: Further facts.
        """
        if not self.path:
            return
        text = question_text(job.work.body)
        answers = {call.node: text_of(job, call) for call in calls if call.error is None}
        length = sum(map(len, answers.values()))
        if length <= self.max_answers:
            self.recent[job.id] = answers
            if len(self.recent) > self.max_recent:
                self.recent.popitem(last=False)
        if not self._has_room(len(text) + length):
            return
        asked = () if outcome is None else {call.node for call in outcome.asked}
        nodes: dict[str, dict[str, Any]] = {name: {"chance": chance} for name in self._spec.names}
        for call in calls:
            # An audit asks a node that failed once more: both calls may have been paid.
            cost = call.cost + nodes.get(call.node, {}).get("cost", 0.0)
            row: dict[str, Any] = {"cost": cost, "seconds": round(call.seconds, 4)}
            row["chance"] = 1.0 if call.node in asked else chance
            if is_ineligible(call):  # the node had no chance at all
                row["chance"] = 0.0
            if call.error is not None:
                row["failed"] = call.error.partition(":")[0]
            elif call.confidence is not None:
                row["confidence"] = call.confidence
                row["prediction"] = job.active.logged(call.prediction)
                if scores and answers[call.node] in scores:
                    row["score"] = scores[answers[call.node]]
            nodes[call.node] = row
        if outcome is None:
            facts |= {"by": None, "cost": sum(call.cost for call in calls)}
        else:
            facts |= {"by": outcome.by, "cost": outcome.cost, "capped": outcome.capped}
        self._rows.append(
            {
                **_head(),
                "request": job.id,
                "policy": job.active.version,
                "nodes": nodes,
                "prompt": text,
                "inputs": stated_numbers(job.inputs),
                **facts,
            }
        )

    def _has_room(self, characters: int) -> bool:
        """Count the characters of a row, or the row as lost where too much waits."""
        if len(self._rows) >= self.max_rows or self._characters > self.max_characters:
            self.lost += 1
            return False
        self._characters += characters
        return True

    def feedback(self, request: str, **facts: Any) -> None:
        """Take the right answer to an earlier request, a score of the one returned, or of all."""
        if self.path and self._has_room(len(facts["label"] or "")):
            self._rows.append({**_head(), "feedback": request, **facts})

    def digest(self, answer: Any) -> Any:
        """Return what is kept of an answer that a policy does not know."""
        if self._texts or not self.path or not isinstance(answer, str):
            return answer
        text = answer.encode("utf-8", "replace")
        return f"#{blake2b(text, key=self._key, digest_size=12).hexdigest()}"

    def _run(self) -> None:
        while not self._stop.wait(self.pause):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits, now."""
        self._characters = 0
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows:
            return
        try:
            for row in rows:
                if "prompt" in row and not self._texts:
                    row["prompt"] = hashed_prompt(row["prompt"])
            lines = _lines(rows)
            with _locked(self.path):
                self._rotate(len(lines))
                head = {"v": LOG_VERSION, "cascade": self._spec.to_toml()}
                _append(self.path, lines, _lines([head]))
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


def text_of(job: Job, call: NodeCall) -> str:
    """Return the answer of a call as text: a policy may know it by its digest."""
    answer = job.work.answers.get(call.node)
    return str((call.prediction if answer is None else answer.prediction) or "")


def forget(path: str | os.PathLike[str], requests: Collection[str]) -> int:
    """Delete all that a decision log keeps of some requests, in the older files beside it too.

    A server may go on writing the log meanwhile.

    Args:
        path: The log.
        requests: The ids of the requests, as ``x-request-id`` had them.

    Returns:
        The number of lines deleted.
    """
    deleted = 0
    with _locked(path):
        for file in log_files(Path(path)):
            lines = file.read_bytes().splitlines(keepends=True)
            remaining = [line for line in lines if _request_of(line) not in requests]
            if len(remaining) < len(lines):
                with atomic_write(file, private=True) as part:
                    part.write_bytes(b"".join(remaining))
                deleted += len(lines) - len(remaining)
    return deleted


def prompts_of(decisions: LoggedDecisions) -> tuple[list[int], list[AnsweredPrompt]]:
    """Return the audited rows of a decision log with texts, and their prompts and answers.

    Raises:
        TraceError: If there are none, or the log has no texts.
    """
    # Requests on which the policy asked every node by itself are no sample of the traffic.
    is_audited = ~np.isnan(decisions.drawn) & decisions.trace.answered.all(axis=1)
    rows, prompts = np.flatnonzero(is_audited).tolist(), []
    for row in rows:
        line = decisions.lines[row]
        if HASHED.fullmatch(line["prompt"]):
            raise TraceError("this decision log has no texts: set log_texts = true in [serve]")
        texts = {name: line["nodes"][name].get("prediction") for name in decisions.trace.names}
        answers = {n: None if text is None else Answer(str(text)) for n, text in texts.items()}
        prompts.append(AnsweredPrompt(line["prompt"], None, answers))
    if not rows:
        raise TraceError("this decision log has no audited request; set share in [serve.audit]")
    return rows, prompts


def add_labels(path: str | os.PathLike[str], scores: Mapping[str, Mapping[str, float]]) -> None:
    """Add to a decision log, by request and node, whether answers are right."""
    head = {**_head(), "label": None, "score": None}
    with _locked(path):
        _append(path, _lines({**head, "feedback": key, "scores": scores[key]} for key in scores))


def _head() -> dict[str, Any]:
    return {"v": LOG_VERSION, "time": round(time.time(), 3)}


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _append(path: str | os.PathLike[str], lines: bytes, head: bytes = b"") -> None:
    """Append all lines or none; ``head`` begins a new file."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        if not end:
            lines = head + lines
        elif os.pread(file.fileno(), 1, end - 1) != b"\n":
            lines = b"\n" + lines  # after half a line of a process that was killed
        if file.write(lines) != len(lines):  # a full disk
            file.truncate(end)
            raise OSError(f"{path}: cannot be written")


def _request_of(line: bytes) -> str | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        row = msgspec.json.decode(line)
        if isinstance(row, dict):
            return row.get("request", row.get("feedback"))
    return None


def _key_of(path: str) -> bytes:
    """Return the key of a log's digests, which is made once and kept beside it."""
    file = Path(f"{path}.key")
    with _locked(path):
        if not file.exists():
            with atomic_write(file, private=True) as part:
                part.write_bytes(secrets.token_bytes(32))
        return file.read_bytes()[:64]


@contextmanager
def _locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Exclude other processes that write a log."""
    handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def stated_numbers(inputs: Mapping[str, Any] | None) -> dict[str, float | list[float]]:
    """Return the inputs of a request that are numbers or vectors: a log has no texts.

    >>> stated_numbers({"prompt": "text", "length": 4, "plan": "free"})
    {'length': 4.0}
    """
    numbers: dict[str, float | list[float]] = {}
    for name, value in (inputs or {}).items():
        if isinstance(value, int | float):
            numbers[name] = float(value)
        elif not isinstance(value, str):
            numbers[name] = [float(part) for part in value]
    return numbers
