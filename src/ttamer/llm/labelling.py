"""Labels from a person: which answers of a trace are right, asked on a local page.

The prompts and answers are those that ``ttamer collect`` keeps beside the trace. Every label is
written to ``<trace>.labels.jsonl`` (mode 600) before the next row is shown, so that labelling
continues after an interruption of any kind; a label belongs to its prompt and answers, and not to a
row number. Answers are shown without the names of the nodes, equal ones once, in an order that
differs from row to row.

Where all nodes return the same answer, every policy has the same loss: the label of such a row
says nothing about which node to ask. So most labels go to rows on which nodes differ, and one in
five to rows on which all agree, to estimate how often they are all wrong. Within both groups the
order is random, so that the labelled rows of a group represent it. The trace for a fit holds both
groups in the shares that they have among all rows: rows on which nodes agree are added without a
label of their own, wrong as often as the labelled ones are. They make a fit right about how often
nodes agree; a certificate needs rows that are labelled one by one in random order (``uniform``).

The server listens on loopback only. Its address holds a random token without which it answers
nothing, and requests with another Host or Origin are refused.
"""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ttamer._checks import counted
from ttamer._files import atomic_write, lines_of, sync
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.confidence import question_text
from ttamer.trace.trace import Trace

MAX_BODY = 64 * 1024  # bytes of a label


@dataclass(frozen=True)
class AnsweredPrompt:
    """The prompt of a row, its reference answer if there is one, and the nodes' answers."""

    prompt: str
    reference: str | None
    answers: Mapping[str, str | None]
    """By node; ``None`` where it gave none."""

    @property
    def key(self) -> str:
        """Identifies the prompt and its answers, whatever the row's number."""
        text = json.dumps([self.prompt, dict(sorted(self.answers.items()))])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def write_answers(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write prompts and answers as JSON lines (mode 600), for people to read and to label."""
    try:
        with atomic_write(path, private=True) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from None


def read_answers(path: str | os.PathLike[str], names: Sequence[str]) -> list[AnsweredPrompt]:
    """Read the prompts and answers that ``ttamer collect`` keeps in ``<trace>.answers.jsonl``.

    Raises:
        TraceError: If the file cannot be read, or lacks a prompt or a node.

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
            texts = {name: row["answers"][name] for name in names}
            answers = {name: None if t is None else str(t) for name, t in texts.items()}
            label = row.get("label")
            reference = " | ".join(label) if isinstance(label, list) else label
            rows.append(AnsweredPrompt(question_text(row["request"]), reference, answers))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TraceError(
                f"{path}: line {number} lacks the prompt or an answer of a node; collect the trace "
                "again (its responses are kept)"
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
    rows: Sequence[AnsweredPrompt]
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
        self._rows_of: dict[str, list[int]] = {}  # equal rows have one label
        for number, row in enumerate(self.rows):
            self._rows_of.setdefault(row.key, []).append(number)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(self.path, flags, 0o600)
            content = Path(self.path).read_bytes()
            end = content.rfind(b"\n") + 1
            os.truncate(self._file, end)  # half a line of a process that was killed
            sync(Path(self.path).parent)
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be opened: {error.strerror}") from None
        for number, line in enumerate(content[:end].splitlines(), start=1):
            try:
                entry = json.loads(line)
                rows = self._rows_of.get(entry["key"])
                right = entry["right"]
                names = None if right is None else set(map(str, right))
            except (ValueError, KeyError, TypeError):
                os.close(self._file)
                raise TraceError(
                    f"{self.path}: line {number} is not a label; remove the line"
                ) from None
            if rows is None:
                self.unknown += 1
            else:
                self._set(rows, names)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

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
        ordered = None if names is None else [n for n in self.plan.trace.names if n in names]
        key = self.rows[row].key
        line = json.dumps({"key": key, "right": ordered}).encode() + b"\n"
        with self._lock:
            end = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as below
                os.fsync(self._file)
            except OSError as error:
                os.truncate(self._file, end)
                raise TraceError(f"{self.path}: cannot be written: {error.strerror}") from None
            self._set(self._rows_of[key], names)

    def next(self) -> int | None:
        """Return the row to label next; ``None`` where all are done."""
        return next(self.plan.rows([*self.right, *self.skipped]), None)

    def trace(self) -> Trace:
        """Return the trace for a fit, with what is right by the labels."""
        return self.plan.labelled(self.right)

    def choices(self, row: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return the different answers to a row, in an order that depends on their text alone.

        Each comes with the nodes that returned it.
        """
        prompt, codes = self.rows[row], self.plan.trace.prediction
        groups: dict[object, tuple[str, list[str]]] = {}
        for node, (name, text) in enumerate(prompt.answers.items()):
            if text is not None:
                code = -1 if codes is None else int(codes[row, node])
                groups.setdefault(text if code < 0 else code, (text, []))[1].append(name)
        hashed = {hashlib.sha256(f"{prompt.key}{text}".encode()).digest(): (text, tuple(nodes))
                  for text, nodes in groups.values()}  # fmt: skip
        return [hashed[digest] for digest in sorted(hashed)]

    def to_dict(self, row: int | None) -> dict[str, Any]:
        """Return what the page shows for a row, in plain values; ``None`` once all are done."""
        facts: dict[str, Any] = {
            "row": row,
            "labelled": len(self.right),
            "skipped": len(self.skipped),
            "rows": len(self.rows),
            "note": str(self.plan.estimate(self.right)),
        }
        if row is None:
            return facts
        right = dict(zip(self.plan.trace.names, self.right.get(row, ()), strict=False))
        choices = self.choices(row)
        return facts | {
            "prompt": self.rows[row].prompt,
            "reference": self.rows[row].reference,
            "answers": [text for text, _ in choices],
            "right": [right.get(nodes[0], False) for _, nodes in choices],
        }


class LabelServer(ThreadingHTTPServer):
    """Serves the page on loopback, until the person is done; use it with ``with``."""

    daemon_threads = True

    def __init__(self, labelling: Labelling, port: int = 0) -> None:
        self.labelling = labelling
        self.token = secrets.token_urlsafe(24)
        self.is_done = threading.Event()
        self.page, self.page_headers = load_page("ttamer.llm", "label.html")
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Refused(Exception):
    """A request that is not answered; its argument is the status."""


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
            self._send(refused.args[0], b"", {})
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
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(404)
        return name

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
        labelling = self.server.labelling
        if path != "label":
            raise _Refused(404)
        if not isinstance(row, int) or not 0 <= row < len(labelling.rows):
            raise _Refused(400)
        names: list[str] | None = None
        if right is not None:
            choices = labelling.choices(row)
            is_list = isinstance(right, list) and len(right) == len(choices)
            if not is_list or not all(isinstance(value, bool) for value in right):
                raise _Refused(400)
            nodes = (nodes for value, (_, nodes) in zip(right, choices, strict=True) if value)
            names = [*chain.from_iterable(nodes)]
        labelling.add(row, names)
        self._send_json(labelling.to_dict(labelling.next()))

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


AGREED_EVERY = 5  # one label in this many is of a row on which all nodes agree
Z = 1.96  # the standard errors of a 95% interval
MIN_LABELS = 10  # of rows that differ, below which nothing is estimated


@dataclass(frozen=True)
class LabelEstimate:
    """What the labels so far say, and how many more are worth it."""

    labels: int
    half_width: float | None
    """Half of the 95% interval for the difference in error between the best node and the node whose
    difference is known least; ``None`` for too few labels."""
    more: int | None
    """How many more labels bring it down to the width wanted."""

    def __str__(self) -> str:
        count = f"{self.labels} label{'' if self.labels == 1 else 's'}"
        if self.half_width is None or self.more is None:
            return f"{count}: too few for an estimate"
        facts = f"{count}: differences in error are known to {self.half_width:.1%}"
        if self.more <= 0:
            return f"{facts}; more labels change little"
        return f"{facts}; {self.more} more are worth it"


@dataclass(frozen=True)
class LabelPlan:
    """The order in which the rows of a trace are labelled.

    >>> from ttamer.trace import CascadeSpec, Trace
    >>> spec = CascadeSpec.of({"small": 1.0, "large": 9.0})
    >>> answers = [["a", "a"], ["a", "b"], ["c", "c"], ["b", "c"]]
    >>> trace = Trace.from_arrays(spec, [[0.5, 0.6]] * 4, prediction=answers)
    >>> sorted(next(LabelPlan(trace).rows([row])) for row in (1, 3))
    [1, 3]

    Args:
        trace: The rows, with predictions.
        within: Half of the width wanted of the interval for a difference in error.
        uniform: Whether all rows are equally likely to come next, as a certificate needs.
        seed: Of the order.

    Raises:
        TraceError: If the trace has no predictions.
    """

    trace: Trace
    within: float = 0.02
    uniform: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trace.prediction is None:
            raise TraceError("the trace has no predictions, so that no rows can be chosen")
        if not 0 < self.within < 1:
            raise ArgumentError(f"within is {self.within!r}; it must be between 0 and 1")

    @cached_property
    def agreed(self) -> NDArray[np.bool_]:
        """Shape (T,): whether all nodes return the same answer."""
        codes = self.trace.prediction
        assert codes is not None  # noqa: S101 - checked above
        return np.asarray((codes == codes[:, :1]).all(axis=1) & (codes[:, 0] >= 0))

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.random.default_rng(self.seed).permutation(len(self.trace))

    def rows(self, done: Sequence[int]) -> Iterator[int]:
        """Yield the rows that are not done, in the order in which they are labelled."""
        skip, agreed = set(done), self.agreed
        rows = [row for row in self._order.tolist() if row not in skip]
        if self.uniform:
            yield from rows
            return
        same = iter([row for row in rows if agreed[row]])
        different = iter([row for row in rows if not agreed[row]])
        asked, of_same = len(skip), sum(bool(agreed[row]) for row in skip)
        for _ in rows:
            is_due = of_same * AGREED_EVERY < asked + 1 - (AGREED_EVERY - 1)
            order = (same, different) if is_due else (different, same)
            row = next(chain(*order))
            asked, of_same = asked + 1, of_same + bool(agreed[row])
            yield row

    def estimate(self, right: Mapping[int, Sequence[bool]]) -> LabelEstimate:
        """Return how well labels, whether each node is right by row, determine differences."""
        rows = [row for row in right if not self.agreed[row]]
        if len(rows) < MIN_LABELS or len(self.trace.names) < 2:
            return LabelEstimate(len(right), None, None)
        wrong = ~np.array([right[row] for row in rows], bool)
        best = int(wrong.mean(axis=0).argmin())
        # Nodes that agree differ in nothing: the variance is that of the rows on which they differ.
        spread = (wrong.astype(float) - wrong[:, [best]]).var(axis=0, ddof=1).max()
        total = int((~self.agreed).sum())
        share = total / len(self.trace)
        unlabelled = max(0.0, 1 - len(rows) / total)
        half = Z * share * math.sqrt(spread / len(rows) * unlabelled)
        unlimited = spread * (Z * share / self.within) ** 2
        wanted = unlimited / (1 + unlimited / total)  # rows are labelled once each
        more = max(0, math.ceil(wanted) - len(rows))
        differing = share if self.uniform else 1 - 1 / AGREED_EVERY  # of the labels to come
        return LabelEstimate(len(right), half, math.ceil(more / differing))

    def labelled(self, right: Mapping[int, Sequence[bool]]) -> Trace:
        """Return the trace that a fit takes, with what is right by the labels.

        It has the labelled rows, and without ``uniform`` further rows on which all nodes agree, so
        that both kinds have their shares; ``notes`` has the counts.
        """
        if not right:
            raise TraceError("no row is labelled; label some first")
        rows = sorted(right)
        correct = [list(right[row]) for row in rows]
        note = f"{counted(len(rows), 'row')} labelled by a person, in random order"
        if not self.uniform:
            added, wrong = self._agreed_rows(right)
            rows += added
            correct += [[not is_wrong] * len(self.trace.names) for is_wrong in wrong]
            note = (
                f"{counted(len(right), 'row')} labelled by a person, most where nodes differ; "
                f"{counted(len(added), 'row')} on which all nodes agree added without a label, so "
                "do not certify on this trace: label with --uniform for that"
            )
        trace = self.trace.take(np.array(rows))
        return dataclasses.replace(
            trace,
            spec=dataclasses.replace(trace.spec, target="label"),
            correct=np.where(trace.answered, np.array(correct, bool), np.nan),
            label=None,
            notes=(*trace.notes, note),
        )

    def _agreed_rows(self, right: Mapping[int, Sequence[bool]]) -> tuple[list[int], list[bool]]:
        """Return rows on which all nodes agree to add, and whether each counts as wrong."""
        agreed = self.agreed
        labelled = [row for row in right if agreed[row]]
        differ = int((~agreed).sum())
        same = len(agreed) - differ
        wanted = round((len(right) - len(labelled)) * same / differ) if differ else 0
        free = [row for row in self._order.tolist() if agreed[row] and row not in right]
        added = free[: max(0, wanted - len(labelled))]
        share = (sum(not right[row][0] for row in labelled) + 0.5) / (len(labelled) + 1)
        confidence = self.trace.confidence
        ranks = confidence.argsort(axis=0).argsort(axis=0).mean(axis=1) / max(1, len(agreed) - 1)
        drawn = np.random.default_rng(self.seed).random(len(added))
        wrong = drawn < np.minimum(1.0, 2 * share * (1 - ranks[added]))
        return added, wrong.tolist()


def load_page(package: str, name: str) -> tuple[bytes, dict[str, str]]:
    """Return a page of a package and the headers that it is sent with.

    The browser runs the one inline script and style of the page, by their hashes, and connects to
    nothing but the page's own server.
    """
    html = files(package).joinpath(name).read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_allowed(html, 'script')}; "
        f"style-src {_allowed(html, 'style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    return html.encode(), {
        "content-type": "text/html; charset=utf-8",
        "cache-control": "no-store",
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


def _allowed(page: str, tag: str) -> str:
    """Return the hash by which a browser accepts the one inline script or style of the page."""
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
