"""Labels from a person: which answers of a trace are right, asked on a local page.

The prompts and answers are those that ``ttamer collect`` keeps beside the trace. Every label is in
``<trace>.labels`` (SQLite, mode 600) before the next row is shown, so that labelling continues
after an interruption of any kind; a label belongs to its prompt and answers, and not to a row
number. Answers are shown without the names of the nodes, equal ones once, in an order that differs
from row to row.

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

import asyncio
import base64
import dataclasses
import hashlib
import json
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from aiohttp import web

from ttamer._checks import counted
from ttamer.errors import ArgumentError, TraceError
from ttamer.llm.paid import Store, key_of
from ttamer.llm.prompts import AnsweredPrompt
from ttamer.trace.trace import Trace


class Labelling:
    """The labels of a trace: which are there, which row comes next, and where they are kept.

    Use it with ``with``; every label is kept when :meth:`add` returns.

    ::

        trace = Trace.read("trace.parquet")
        rows = read_answers("trace.parquet.answers.jsonl", trace.names)
        with Labelling(trace, rows, "trace.parquet.labels") as labelling:
            labelling.add(labelling.next(), right=["large"])

    Args:
        trace: The answers, with predictions.
        rows: The prompt and the answers of each row.
        path: Where labels are kept.
        uniform: Whether all rows are equally likely to come next, as a certificate needs.

    Raises:
        TraceError: If the trace has no predictions, or not as many rows as there are prompts.
    """

    agreed_every = 5  # one label in this many is of a row on which all nodes agree

    def __init__(
        self,
        trace: Trace,
        rows: Sequence[AnsweredPrompt],
        path: str | os.PathLike[str],
        *,
        uniform: bool = False,
    ) -> None:
        if trace.prediction is None:
            raise TraceError("the trace has no predictions, so that no rows can be chosen")
        if len(rows) != len(trace):
            raise TraceError(
                f"there are prompts for {counted(len(rows), 'row')}, and the trace has "
                f"{len(trace)}; both must be of the same collection"
            )
        self.trace, self.rows, self._labels = trace, rows, Store(path)
        self.uniform, self._codes = uniform, trace.prediction
        self.right: dict[int, tuple[bool, ...]] = {}  # by row: whether each node is right
        self.skipped: set[int] = set()
        self._rows_of = defaultdict[str, list[int]](list)  # equal rows have one label
        for number, row in enumerate(rows):
            self._rows_of[row.key].append(number)
        codes = self._codes
        # Shape (T,): whether all nodes return the same answer.
        self.agreed = (codes == codes[:, :1]).all(axis=1) & (codes[:, 0] >= 0)
        order = np.random.default_rng(0).permutation(len(trace))
        if not uniform:  # in rounds: some rows on which nodes differ, then one on which they agree
            rounds = np.empty(len(order))
            for same, per_round in ((False, self.agreed_every - 1), (True, 1)):
                part = self.agreed[order] == same
                rounds[part] = np.arange(part.sum()) // per_round + 0.5 * same
            order = order[np.argsort(rounds, kind="stable")]
        self.order: list[int] = order.tolist()

    def __enter__(self) -> Self:
        self._labels.__enter__()
        for key in self._rows_of:
            if label := self._labels.get(key):
                self._set(key, json.loads(label))
        return self

    def __exit__(self, *error: object) -> None:
        self._labels.__exit__(*error)

    def _set(self, key: str, right: Sequence[str] | None) -> None:
        for row in self._rows_of[key]:
            self.right.pop(row, None)
            self.skipped.discard(row)
            if right is None:
                self.skipped.add(row)
            else:
                self.right[row] = tuple(name in right for name in self.trace.names)

    def add(self, row: int, right: Sequence[str] | None) -> None:
        """Keep which nodes are right on a row and on those with the same prompt and answers.

        A second label replaces the first; ``None`` skips the row.

        Raises:
            ArgumentError: If there is no such row or node.
            TraceError: If the label cannot be written.
        """
        if not 0 <= row < len(self.rows) or {*(right or ())} - {*self.trace.names}:
            raise ArgumentError(f"there is no row {row}, or no node of the label's {right!r}")
        key = self.rows[row].key
        self._labels.add({key: json.dumps(right).encode()})
        self._set(key, right)

    def next(self) -> int | None:
        """Return the row to label next; ``None`` where all are done."""
        done = self.right.keys() | self.skipped
        return next((row for row in self.order if row not in done), None)

    def choices(self, row: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return the different answers to a row, each with the nodes that returned it."""
        # Answers that compare as equal are shown once, others each by its text.
        groups: dict[object, tuple[str, list[str]]] = {}
        prompt = self.rows[row]
        for code, (name, answer) in zip(self._codes[row], prompt.answers.items(), strict=True):
            if answer is not None:
                key = answer.text if code < 0 else int(code)
                groups.setdefault(key, (answer.text, []))[1].append(name)
        # An order by hashes of texts: it says nothing about who answered, and stays the same.
        choices = [(text, tuple(names)) for text, names in groups.values()]
        return sorted(choices, key=lambda choice: key_of(prompt.key, choice[0]))

    def to_dict(self, row: int | None) -> dict[str, Any]:
        """Return what the page shows for a row, in plain values; ``None`` once all are done."""
        facts: dict[str, Any] = {"row": row, "rows": len(self.rows)}
        facts |= {"labelled": len(self.right), "skipped": len(self.skipped)}
        if row is None:
            return facts
        right = dict(zip(self.trace.names, self.right.get(row, ()), strict=False))
        choices, reference = self.choices(row), self.rows[row].reference
        return facts | {
            "prompt": self.rows[row].prompt,
            "reference": " | ".join(reference) if isinstance(reference, tuple) else reference,
            "answers": [text for text, _ in choices],
            "right": [right.get(nodes[0], False) for _, nodes in choices],
        }

    def labelled(self) -> Trace:
        """Return the trace that a fit takes, with what is right by the labels.

        It has the labelled rows, and without ``uniform`` further rows on which all nodes agree, so
        that both kinds have their shares; ``notes`` has the counts.
        """
        if not self.right:
            raise TraceError("no row is labelled; label some first")
        right, count = dict(sorted(self.right.items())), counted(len(self.right), "row")
        note = f"{count} labelled by a person, in random order"
        if not self.uniform:
            added = self._agreed_rows()
            right |= {row: (is_right,) * len(self.trace.names) for row, is_right in added.items()}
            note = (
                f"{count} labelled by a person, most where nodes differ; "
                f"{counted(len(added), 'row')} on which all nodes agree added without a label, so "
                "do not certify on this trace: label with --uniform for that"
            )
        trace = self.trace.take(np.array([*right]))
        return dataclasses.replace(
            trace,
            spec=dataclasses.replace(trace.spec, target="label"),
            correct=np.where(trace.answered, np.array([*right.values()], bool), np.nan),
            label=None,
            notes=(*trace.notes, note),
        )

    def _agreed_rows(self) -> dict[int, bool]:
        """Return rows on which all nodes agree to add, and whether each counts as right."""
        agreed, labelled = self.agreed, [row for row in self.right if self.agreed[row]]
        differ = int((~agreed).sum())
        same = len(agreed) - differ
        wanted = round((len(self.right) - len(labelled)) * same / differ) if differ else 0
        unlabelled = [row for row in self.order if agreed[row] and row not in self.right]
        added = unlabelled[: max(0, wanted - len(labelled))]
        # As often wrong as labelled ones are, and rather where confidences are low.
        share = (sum(not self.right[row][0] for row in labelled) + 0.5) / (len(labelled) + 1)
        confidence = self.trace.confidence
        ranks = confidence.argsort(axis=0).argsort(axis=0).mean(axis=1) / max(1, len(agreed) - 1)
        drawn = np.random.default_rng(0).random(len(added))
        is_right = drawn >= np.minimum(1.0, 2 * share * (1 - ranks[added]))
        return dict(zip(added, is_right.tolist(), strict=True))


class _Label(msgspec.Struct):
    """What the page sends: which of the answers shown are right; ``None`` skips the row."""

    row: Annotated[int, msgspec.Meta(ge=0)]
    right: list[bool] | None = None


class LabelPage:
    """The page on which a person labels, and its server on loopback."""

    def __init__(self, labelling: Labelling) -> None:
        self.labelling = labelling
        self.token, self.port = secrets.token_urlsafe(24), 0
        self.is_done = asyncio.Event()
        self.app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        self.app.add_routes(
            [
                web.get("/{token}/", self._show),
                web.get(r"/{token}/{row:next|[0-9]{1,9}}", self._row),
                web.post("/{token}/label", self._label),
                web.post("/{token}/done", self._done),
            ]
        )
        html = files("ttamer.llm").joinpath("label.html").read_text("utf-8")
        # The browser runs the one script and style of the page, and connects nowhere else.
        hashes = {
            tag: base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            for tag, inside in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
        }
        self._html = html
        self._policy = (
            f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src "
            f"'sha256-{hashes['style']}'; connect-src 'self'; img-src data:; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'self'"
        )

    async def serve(self, port: int = 0, ready: Callable[[str], object] = print) -> None:
        """Serve the page until the person is done; ``ready`` is called with its address.

        Raises:
            OSError, OverflowError: If the port cannot be used.
        """
        # Requests are not logged: their paths hold the token.
        runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            self.port = runner.addresses[0][1]
            ready(f"http://127.0.0.1:{self.port}/{self.token}/")
            await self.is_done.wait()
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse requests that another page makes, also under another name of this machine."""
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        if (host := request.headers.get("Host")) not in hosts:
            raise web.HTTPMisdirectedRequest
        if request.headers.get("Origin", f"http://{host}").removeprefix("http://") not in hosts:
            raise web.HTTPForbidden
        token = request.match_info.get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise web.HTTPNotFound
        if request.method == "POST" and request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        try:
            response: web.StreamResponse = await handler(request)
        except (ArgumentError, TraceError) as error:
            response = web.json_response({"error": str(error)}, status=409)
        response.headers.setdefault("cache-control", "no-store")
        return response

    async def _show(self, _request: web.Request) -> web.Response:
        headers = {
            "content-security-policy": self._policy,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }
        return web.Response(text=self._html, content_type="text/html", headers=headers)

    async def _row(self, request: web.Request) -> web.Response:
        asked = request.match_info["row"]
        row = self.labelling.next() if asked == "next" else int(asked)
        if row is not None and row >= len(self.labelling.rows):
            raise web.HTTPNotFound
        return web.json_response(self.labelling.to_dict(row))

    async def _label(self, request: web.Request) -> web.Response:
        names: list[str] | None = None
        try:
            label = msgspec.json.decode(await request.read(), type=_Label)
            choices = self.labelling.choices(label.row)
            if label.right is not None:
                pairs = zip(label.right, choices, strict=True)
                names = [name for is_right, (_, nodes) in pairs if is_right for name in nodes]
        except (msgspec.MsgspecError, IndexError, ValueError):
            raise web.HTTPBadRequest from None
        self.labelling.add(label.row, names)
        return web.json_response(self.labelling.to_dict(self.labelling.next()))

    async def _done(self, _request: web.Request) -> web.Response:
        self.is_done.set()
        return web.json_response({})
