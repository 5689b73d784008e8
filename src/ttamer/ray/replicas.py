"""Replicas: the placement of a node on a cluster, and the process that answers for it.

A replica loads neither the gateway nor Ray Serve. The placement is in ``cascade.toml``::

    [[node]]
    name = "small"
    cost = 1.0
    model = "models:Small"     # module:factory; the factory returns a callable
    replicas = [1, 4]          # the smallest and the largest number, or one number for both
    cpus = 1.0                 # of each replica
    gpus = 0.0
    concurrency = 8            # the inputs that a replica works on at a time

The replicas of a node with an ``upstream`` instead of a ``model`` call it over HTTP.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from ttamer._numbers import is_number
from ttamer.errors import CascadeError
from ttamer.llm.confidence import question_text
from ttamer.runtime.calling import Call, call_async
from ttamer.runtime.references import import_reference
from ttamer.runtime.reply import Unusable, error_text, reply_of
from ttamer.serve.config import Settings, settings_from
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.node import Node, NodeAnswer, open_nodes
from ttamer.serve.upstreams.upstream import CallContext, UpstreamFailed
from ttamer.trace.classes import class_text
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import BELIEF_FIELDS

# The upstream of a node that has a model instead; it is never called.
NOWHERE = "http://nowhere.invalid/v1"


@dataclass(frozen=True)
class Placement:
    """The model of a node, and the number and size of its replicas."""

    model: str | None
    """``"module:factory"``; ``None`` for a node with an upstream."""
    replicas: tuple[int, int] = (1, 1)
    """The smallest and the largest number of replicas."""
    cpus: float = 1.0
    """The cores of each replica."""
    gpus: float = 0.0
    """The GPUs of each replica."""


@dataclass(frozen=True)
class Failed:
    """The reason why a replica has no answer."""

    kind: Any
    text: str
    status: int | None = None
    code: str | None = None
    """The upstream's code, where the gateway passes it on to clients."""


def read_placements(spec: CascadeSpec) -> tuple[Settings, dict[str, Placement]]:
    """Return the settings of a cascade on a cluster, and the placement of each node.

    >>> spec = CascadeSpec.from_toml('''
    ... [[node]]
    ... name = "small"
    ... cost = 1
    ... model = "models:Small"
    ... replicas = [1, 4]
    ... ''')
    >>> read_placements(spec)[1]["small"].replicas
    (1, 4)
    """
    nodes, placements = [], {}
    for number, node in enumerate(spec.nodes, start=1):
        place = f"[[node]] {number} ({node.name!r})"
        options = dict(node.options)
        model = None
        if "upstream" not in options:
            model = options.pop("model", None)
            if not isinstance(model, str) or not all(model.partition(":")):
                raise CascadeError(
                    f"{place}: has no upstream, and model is {model!r}; write model = "
                    '"module:factory", or upstream = "http://..."'
                )
            options["upstream"] = NOWHERE
            options.setdefault("extras", list(BELIEF_FIELDS))  # a model may return them
        placements[node.name] = Placement(
            model,
            _replicas(options.pop("replicas", 1), place),
            _amount(options.pop("cpus", 1.0), f"{place}: cpus"),
            _amount(options.pop("gpus", 0.0), f"{place}: gpus"),
        )
        nodes.append(dataclasses.replace(node, options=options))
    return settings_from(dataclasses.replace(spec, nodes=tuple(nodes))), placements


def _replicas(value: Any, place: str) -> tuple[int, int]:
    """Check ``replicas``."""
    ends = [value, value] if isinstance(value, int) else value
    whole = isinstance(ends, list) and len(ends) == 2 and all(type(end) is int for end in ends)
    if not whole or not 1 <= ends[0] <= ends[1]:
        raise CascadeError(
            f"{place}: replicas is {value!r}; it must be a whole number from 1, or two such as "
            "[1, 4]"
        )
    return ends[0], ends[1]


def _amount(value: Any, what: str) -> float:
    """Check ``cpus`` or ``gpus``."""
    if not is_number(value) or not 0 <= value < 2**20:
        raise CascadeError(f"{what} is {value!r}; it must be a number from 0")
    return float(value)


class Replica:
    """A process that answers for one node."""

    def __init__(self, cascade: str, name: str) -> None:
        self._settings, placements = read_placements(CascadeSpec.from_toml(cascade))
        self._node = self._settings.nodes[name]
        place = placements[name].model
        self._model = None if place is None else import_reference(place)()
        self._upstream: Node | None = None
        self._stack = AsyncExitStack()

    async def ask(
        self, path: str, body: dict[str, Any], timeout: float, headers: dict[str, str]
    ) -> NodeAnswer | Failed:
        """Answer one request; an error is returned, not raised, so that it can be pickled."""
        try:
            if self._model is None:
                node = await self._opened()
                context = CallContext.within(timeout, headers)
                whole = context._replace(seconds=self._settings.serve.timeout)
                return await node.ask(path, body, whole)
            return await self._asked(path, body, timeout)
        except UpstreamFailed as error:
            text = str(error).removeprefix(f"node {error.node!r}: ")  # the gateway adds it
            return Failed(error.kind, text, error.status, error.code)

    async def close(self) -> None:
        """Close the connections to the upstream."""
        await self._stack.aclose()

    async def _opened(self) -> Node:
        """Return the upstream, with an open session."""
        if self._upstream is None:
            client = await self._stack.enter_async_context(HttpClient(1024))
            self._upstream = open_nodes(self._settings, client)[self._node.name]
        return self._upstream

    async def _asked(
        self, path: str, body: Mapping[str, Any], timeout: float
    ) -> NodeAnswer | Failed:
        """Return the model's answer to one request."""
        model: Any = self._model
        result = await call_async(Call(model, question_text(body), timeout))
        if result.error is not None:
            return Failed("error", error_text(result.error))
        try:
            reply = reply_of(result.returned)
        except Unusable as error:
            return Failed("garbage", str(error))
        prediction = class_text(reply.prediction)
        text = str(prediction if reply.answer is reply.prediction else reply.answer)
        cost = self._node.cost if reply.cost is None else reply.cost
        answer = NodeAnswer(prediction, reply.confidence, text, _response(path, text), cost)
        columns = reply.columns or {}
        answer.margin, answer.entropy = columns.get("margin"), columns.get("entropy")
        return answer


def _response(path: str, text: str) -> dict[str, Any]:
    """Return a model's answer in the form of an upstream's response."""
    message = {"message": {"role": "assistant", "content": text}}
    choice = message if path.startswith("/chat") else {"text": text}
    return {"choices": [{"index": 0, "finish_reason": "stop", **choice}]}
