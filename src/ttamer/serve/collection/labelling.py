"""Labels from a person: which answers of a trace are right, asked on a local page.

The prompts and answers are those that ``ttamer collect`` keeps beside the trace. Every label is
written to ``<trace>.labels.jsonl`` (mode 600) before the next row is shown, so that labelling
continues after an interruption of any kind; a label belongs to its prompt and answers, and not to a
row number. Answers are shown without the names of the nodes, equal ones once, in an order that
differs from row to row.

The server listens on loopback only. Its address holds a random token without which it answers
nothing, and requests with another Host or Origin are refused.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttamer._files import lines_of
from ttamer._numbers import counted
from ttamer.errors import ArgumentError, TraceError
from ttamer.runtime.jsonl import JsonLines, json_line
from ttamer.serve.answers.confidence import question_text
from ttamer.serve.observability.pages import load_page

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from ttamer.serve.collection.label_choice import LabelPlan
    from ttamer.trace.trace import Trace

__all__ = ["KeptRow", "LabelServer", "Labelling", "read_answers"]

MAX_BODY = 64 * 1024
"""The most bytes of a label."""


@dataclass(frozen=True)
class KeptRow:
    """The prompt of a row, its reference answer if there is one, and the nodes' answers."""

    prompt: str
    reference: str | None
    answers: Mapping[str, str]

    @property
    def key(self) -> str:
        """Identifies the prompt and its answers, whatever the row's number."""
        text = json.dumps([self.prompt, dict(sorted(self.answers.items()))])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_answers(path: str | os.PathLike[str], names: Sequence[str]) -> list[KeptRow]:
    """Read the prompts and answers that ``ttamer collect`` keeps.

    Args:
        path: The file, ``<trace>.answers.jsonl``.
        names: The nodes of the trace.

    Returns:
        One entry for each row of the trace.

    Raises:
        TraceError: If the file cannot be read, or lacks an answer.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.parquet.answers.jsonl")
    ...     _ = path.write_text('{"request": {"prompt": "2 + 2?"}, "answers": {"small": "4"}}')
    ...     read_answers(path, ["small"])[0].prompt
    '2 + 2?'
    """
    try:
        lines = lines_of(Path(path).read_text("utf-8"))
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read: {error.strerror or error}; ttamer collect writes it beside "
            "the trace, unless --forget is given"
        ) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            answers = {name: str(row["answers"][name]) for name in names}
            label = row.get("label")
            reference = " | ".join(label) if isinstance(label, list) else label
            rows.append(KeptRow(question_text(row["request"]), reference, answers))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{path}: line {number} lacks the prompt or an answer of a node; collect the trace "
                "again (its journal keeps the answers)"
            ) from None
    return rows


@dataclass
class Labelling:
    """The labels of a trace: which are there, which row comes next, and where they are kept.

    Use it with ``with``; every label is on the disk when :meth:`add` returns.

    ::

        plan = LabelPlan(Trace.read("trace.parquet"))
        rows = read_answers("trace.parquet.answers.jsonl", plan.trace.names)
        with Labelling(plan, rows, "trace.parquet.labels.jsonl") as labelling:
            labelling.add(labelling.next(), right=["large"])

    Args:
        plan: The trace, and the order of its rows.
        rows: The prompts and answers, one for each row.
        path: The file of the labels.

    Raises:
        TraceError: If there are not as many prompts as rows, or the file is not valid.
    """

    plan: LabelPlan
    rows: Sequence[KeptRow]
    path: str | os.PathLike[str]
    right: dict[int, tuple[bool, ...]] = field(default_factory=dict)
    """Whether each node is right, by row."""
    skipped: set[int] = field(default_factory=set)
    unknown: int = 0
    """The labels in the file that belong to no row of the trace."""

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.plan.trace):
            raise TraceError(
                f"there are prompts for {counted(len(self.rows), 'row')}, and the trace has "
                f"{len(self.plan.trace)}; both must be of the same collection"
            )
        self._places: dict[str, list[int]] = {}  # equal rows have one label
        for number, row in enumerate(self.rows):
            self._places.setdefault(row.key, []).append(number)
        self._file = JsonLines(self.path, sync_lines=1)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self._file.open()
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be opened: {error.strerror}") from None
        for number, line in self._file.lines():
            try:
                entry = json.loads(line)
                rows = self._places.get(entry["key"])
                right = entry["right"]
                names = None if right is None else set(map(str, right))
            except (ValueError, KeyError, TypeError):
                raise TraceError(
                    f"{self.path}: line {number} is not a label; remove the line"
                ) from None
            if rows is None:
                self.unknown += 1
            else:
                self._set(rows, names)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _set(self, rows: Sequence[int], names: set[str] | None) -> None:
        for row in rows:
            if names is None:
                self.right.pop(row, None)
                self.skipped.add(row)
            else:
                self.skipped.discard(row)
                self.right[row] = tuple(name in names for name in self.plan.trace.names)

    def add(self, row: int, right: Sequence[str] | None) -> None:
        """Keep a label, and write it at once; a second label for a row replaces the first.

        Rows with the same prompt and answers have the same label.

        Args:
            row: The row.
            right: The nodes whose answers are right, possibly none; ``None`` skips the row.

        Raises:
            ArgumentError: If there is no such row or node.
            TraceError: If the label cannot be written.
        """
        names = None if right is None else set(right)
        if not 0 <= row < len(self.rows) or (names or set()) - set(self.plan.trace.names):
            raise ArgumentError(f"there is no row {row}, or no node of the label's {right!r}")
        kept = None if names is None else [n for n in self.plan.trace.names if n in names]
        key = self.rows[row].key
        with self._lock:
            try:
                self._file.append(json_line({"key": key, "right": kept}))
            except OSError as error:
                raise TraceError(f"{self.path}: cannot be written: {error.strerror}") from None
            self._set(self._places[key], names)

    def next(self) -> int | None:
        """Return the row to label next; ``None`` where all are done.

        Returns:
            The number of a row.
        """
        return next(self._rest(), None)

    def _rest(self) -> Iterator[int]:
        return self.plan.rows([*self.right, *self.skipped])

    def trace(self) -> Trace:
        """Return the trace for a fit; see :meth:`LabelPlan.labelled`.

        Returns:
            The trace, with what is right by the labels.
        """
        return self.plan.labelled(self.right)

    def choices(self, row: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return the different answers to a row, each with the nodes that returned it.

        Args:
            row: The row.

        Returns:
            The answers, in an order that depends on their text alone.
        """
        kept, codes = self.rows[row], self.plan.trace.prediction
        groups: dict[object, tuple[str, list[str]]] = {}
        for position, (name, text) in enumerate(kept.answers.items()):
            code = -1 if codes is None else int(codes[row, position])
            key = text if code < 0 else code
            groups.setdefault(key, (text, []))[1].append(name)

        def place(group: tuple[str, list[str]]) -> str:
            return hashlib.sha256(f"{kept.key}{group[0]}".encode()).hexdigest()

        return [(text, tuple(nodes)) for text, nodes in sorted(groups.values(), key=place)]

    def to_dict(self, row: int | None) -> dict[str, Any]:
        """Return what the page shows for a row, in plain values.

        Args:
            row: The row; ``None`` once all are done.

        Returns:
            The prompt, the answers and the progress.
        """
        facts: dict[str, Any] = {
            "row": row,
            "labelled": len(self.right),
            "skipped": len(self.skipped),
            "rows": len(self.rows),
            "note": str(self.plan.estimate(self.right)),
        }
        if row is None:
            return facts
        kept, choices = self.rows[row], self.choices(row)
        given = self.right.get(row)
        by_name = dict(zip(self.plan.trace.names, given or (), strict=bool(given)))
        return facts | {
            "prompt": kept.prompt,
            "reference": kept.reference,
            "answers": [text for text, _ in choices],
            "right": [bool(by_name.get(nodes[0])) for _, nodes in choices],
        }


class LabelServer(ThreadingHTTPServer):
    """Serves the page on loopback, until the person is done; use it with ``with``."""

    daemon_threads = True

    def __init__(self, labelling: Labelling, port: int = 0) -> None:
        self.labelling = labelling
        self.token = secrets.token_urlsafe(24)
        self.is_done = threading.Event()
        self.page, self.page_headers = load_page("ttamer.serve.collection", "label.html")
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Refused(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Answers the page's requests."""

    server: LabelServer
    timeout = 30
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the page, or a row."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Take a label, or the end of labelling."""
        self._answer(self._post)

    def _answer(self, handler: Any) -> None:
        try:
            self._check_origin()
            handler(self._path())
        except _Refused as refused:
            self.close_connection = True
            self._send(refused.status, b"", {})
        except (ArgumentError, TraceError) as error:
            self._send_json({"error": str(error)}, 409)

    def _check_origin(self) -> None:
        """Refuse requests that another page makes, also under another name of this machine."""
        hosts = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in hosts:
            raise _Refused(421)
        if origin is not None and origin.removeprefix("http://") not in hosts:
            raise _Refused(403)

    def _path(self) -> str:
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(404)
        return rest

    def _get(self, path: str) -> None:
        labelling = self.server.labelling
        if path == "":
            self._send(200, self.server.page, self.server.page_headers)
        elif path == "next":
            self._send_json(labelling.to_dict(labelling.next()))
        elif path.isascii() and path.isdecimal() and int(path) < len(labelling.rows):
            self._send_json(labelling.to_dict(int(path)))
        else:
            raise _Refused(404)

    def _post(self, path: str) -> None:
        data = self._body()
        if path == "done":
            self._send_json({})
            self.server.is_done.set()
            return
        row, right = data.get("row"), data.get("right")
        if path != "label":
            raise _Refused(404)
        if not isinstance(row, int) or not 0 <= row < len(self.server.labelling.rows):
            raise _Refused(400)
        if not isinstance(right, list | None):
            raise _Refused(400)
        names: list[str] | None = None
        if right is not None:
            choices = self.server.labelling.choices(row)
            if len(right) != len(choices) or not all(isinstance(each, bool) for each in right):
                raise _Refused(400)
            found = zip(right, choices, strict=True)
            names = [name for is_right, (_, nodes) in found if is_right for name in nodes]
        self.server.labelling.add(row, names)
        self._send_json(self.server.labelling.to_dict(self.server.labelling.next()))

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise _Refused(413)
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415)
        try:
            data = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _Refused(400) from None
        if not isinstance(data, dict):
            raise _Refused(400)
        return data

    def _send_json(self, data: Mapping[str, Any], status: int = 200) -> None:
        headers = {"content-type": "application/json", "cache-control": "no-store"}
        self._send(status, json.dumps(data).encode(), headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base has it
        """Log nothing: the path holds the token."""
