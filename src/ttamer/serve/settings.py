"""What ``cascade.toml`` says about serving: the ``[serve]`` table and each node's upstream.

Everything is checked once, before anything is served: an unknown key, a value out of range or a
node that names nobody is one line that says where it stands and what it may be.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ttamer.errors import CascadeError
from ttamer.serve.audit_settings import audit_settings_of
from ttamer.serve.checking import (
    WrongValue,
    a_flag,
    a_number,
    a_table,
    a_text,
    a_url,
    a_whole_number,
    checked,
    one_of,
)
from ttamer.trace.spec import CascadeSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from ttamer.serve.audit_settings import AuditSettings
    from ttamer.serve.checking import Check

__all__ = [
    "Choice",
    "Compare",
    "Confidence",
    "NodeSettings",
    "ServeSettings",
    "Settings",
    "TokenCost",
    "read_settings",
    "settings_of",
]

Compare = Literal["exact", "normalised", "choice"]
Confidence = Literal["logprobs", "agreement", "verifier", "field"]
Choice = Literal["tradeoff", "budget", "error"]

Range = tuple[float, float]

CLUSTER_KEYS = ("replicas", "cpus", "gpus")
"""What the same file says of a node on a cluster (ttamer.ray); nothing to one gateway."""


@dataclass(frozen=True)
class TokenCost:
    """What a token costs, in the cascade's units; added to the cost of the call."""

    input: float = 0.0
    output: float = 0.0


@dataclass(frozen=True)
class NodeSettings:
    """One ``[[node]]`` and the OpenAI-compatible server behind it."""

    name: str
    cost: float
    """Of one call."""
    upstream: str
    """Base URL, without a slash at its end: ``http://127.0.0.1:8081/v1``."""
    model: str
    """What the upstream calls it; the node's name unless said."""
    key_env: str | None = None
    """The environment variable that holds the upstream's key."""
    confidence: Confidence = "logprobs"
    samples: int = 1
    """How many answers are asked for, with confidence "agreement"."""
    temperature: float = 0.7
    """Of those answers, where the request does not set one above 0."""
    verifier: str | None = None
    """The node whose upstream judges this one's answers, with confidence "verifier"."""
    field: str | None = None
    """Where the confidence stands in the response, with confidence "field"."""
    answer: str | None = None
    """Where the answer stands in the response, if it is not of OpenAI's shape."""
    timeout: float = 30.0
    """Seconds for one call."""
    retries: int = 0
    fallback: str | None = None
    """Another base URL, tried when this one fails."""
    cost_per_token: TokenCost | None = None
    concurrency: int = 8
    """Calls at a time, when collecting."""
    max_response: int = 8 * 1024 * 1024
    """Bytes; a longer response is a failure."""


@dataclass(frozen=True)
class ServeSettings:
    """The ``[serve]`` table; every key may be left out."""

    compare: Compare = "normalised"
    max_cost: float | None = None
    """The most one request may cost."""
    timeout: float = 60.0
    """Seconds for one request, all nodes together."""
    hedge: float | None = None
    """Seconds after which a node that has not answered is asked again."""
    tradeoff: float | None = None
    """The operating point; one of tradeoff, budget and error, or none: tradeoff 0.9."""
    budget: float | None = None
    error: float | None = None
    allow: tuple[Choice, ...] = ()
    """What a request may choose for itself."""
    tradeoff_range: Range = (0.0, 1.0)
    budget_range: Range = (0.0, math.inf)
    error_range: Range = (0.0, 1.0)
    direct: bool = False
    """Whether a request may name a node as its model, and so ask that node alone."""
    keys_env: str | None = None
    """The environment variable that holds the API keys, separated by commas."""
    keys_file: str | None = None
    """A file that holds the API keys, one a line."""
    admin_keys_env: str | None = None
    """The same for ``/admin``; without it there is no ``/admin``."""
    max_body: int = 1024 * 1024
    max_depth: int = 32
    """How deep the JSON of a request may be nested."""
    max_concurrent: int = 256
    queue: int = 256
    """Requests that may wait for a place."""
    retry_after: float = 1.0
    """Seconds that a refused request is told to wait."""
    drain: float = 30.0
    """Seconds that requests in progress may take at the end."""
    watch: float = 2.0
    """Seconds between looks at the artefact's file; 0 for never."""
    trace_log: str | None = None
    """Where to keep what was seen of every request, as JSON lines."""
    trace_log_bytes: int = 64 * 1024 * 1024
    trace_log_files: int = 4
    log_predictions: bool = False
    """Whether that log holds what nodes predicted."""
    otel: str | None = None
    """Where to send OpenTelemetry spans: the URL of an OTLP/HTTP collector."""
    audit: AuditSettings | None = None
    """Which requests are audited, and the loop that learns from them."""


@dataclass(frozen=True)
class Settings:
    """A cascade and everything needed to serve it."""

    spec: CascadeSpec
    serve: ServeSettings
    nodes: Mapping[str, NodeSettings]
    """By name, in the cascade's order."""


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Read and check a ``cascade.toml`` for serving."""
    spec = CascadeSpec.from_file(path)
    try:
        return settings_of(spec)
    except CascadeError as error:
        raise CascadeError(f"{path}: {error}") from None


def settings_of(spec: CascadeSpec) -> Settings:
    """Check a cascade for serving.

    >>> spec = CascadeSpec.from_toml('''
    ... [serve]
    ... compare = "choice"
    ... [[node]]
    ... name = "small"
    ... cost = 1
    ... upstream = "http://127.0.0.1:8081/v1/"
    ... ''')
    >>> settings = settings_of(spec)
    >>> settings.serve.compare, settings.nodes["small"].upstream
    ('choice', 'http://127.0.0.1:8081/v1')
    """
    serve = _serve_settings(spec)
    points = [name for name in get_args(Choice) if getattr(serve, name) is not None]
    if serve.audit is not None and serve.audit.reference is not None and points:
        raise CascadeError(
            f"[serve]: has {points[0]}, and with a reference the promise in [serve.audit] is the "
            f"operating point; remove {points[0]}"
        )
    if len(points) > 1:
        raise CascadeError(
            f"[serve]: has {' and '.join(points)}, and there is one operating point; keep one"
        )
    nodes = {}
    for number, node in enumerate(spec.nodes, start=1):
        place = f"[[node]] {number} ({node.name!r})"
        if "upstream" not in node.options:
            raise CascadeError(
                f"{place}: lacks upstream, the base URL of an OpenAI-compatible server; "
                'write upstream = "http://..."'
            )
        options = {key: value for key, value in node.options.items() if key not in CLUSTER_KEYS}
        values = {"model": node.name} | checked(options, _NODE, place)
        nodes[node.name] = NodeSettings(name=node.name, cost=node.cost, **values)
        _check_confidence(nodes[node.name], values, spec.names, place)
    return Settings(spec, serve, nodes)


def _serve_settings(spec: CascadeSpec) -> ServeSettings:
    values = checked(spec.serve, _SERVE, "[serve]")
    if "audit" in values:
        values["audit"] = audit_settings_of(values["audit"], nodes=len(spec.nodes))
    return ServeSettings(**values)


def _check_confidence(
    node: NodeSettings, given: Mapping[str, Any], names: tuple[str, ...], place: str
) -> None:
    """Refuse a way to confidence that lacks its option, and an option without its way."""
    for option, way in (("samples", "agreement"), ("verifier", "verifier"), ("field", "field")):
        if node.confidence == way and option not in given:
            raise CascadeError(f'{place}: confidence = "{way}" needs {option}')
        if option in given and node.confidence != way:
            raise CascadeError(
                f'{place}: has {option}, which is of use with confidence = "{way}" only, not '
                f'"{node.confidence}"; change one of them'
            )
    if node.confidence == "agreement" and node.samples < 2:
        raise CascadeError(f"{place}: samples is {node.samples}; two answers at least can agree")
    if node.verifier is not None and node.verifier not in names:
        raise CascadeError(
            f"{place}: verifier is {node.verifier!r}, and there is no such node; "
            f"the nodes are {', '.join(names)}"
        )


def _choices(value: Any) -> tuple[str, ...]:
    names = get_args(Choice)
    if not isinstance(value, list) or any(item not in names for item in value):
        raise WrongValue("a list of " + ", ".join(f'"{name}"' for name in names))
    return tuple(value)


def _range(least: float, most: float = math.inf) -> Callable[[Any], Range]:
    number = a_number(least, most)

    def check(value: Any) -> Range:
        if not isinstance(value, list) or len(value) != 2:
            raise WrongValue("a list of two numbers, the lowest and the highest")
        low, high = number(value[0]), number(value[1])
        if low > high:
            raise WrongValue("a list of two numbers, the lowest first")
        return low, high

    return check


def _token_cost(value: Any) -> TokenCost:
    keys = [field.name for field in dataclasses.fields(TokenCost)]
    if not isinstance(value, dict) or not set(value) <= set(keys):
        raise WrongValue("a table like {input = 0.1, output = 0.4}")
    return TokenCost(**{key: a_number(0)(value[key]) for key in value})


_NODE: dict[str, Check] = {
    "upstream": a_url,
    "model": a_text,
    "key_env": a_text,
    "confidence": one_of(Confidence),
    "samples": a_whole_number(1, 64),
    "temperature": a_number(0, 2, above=True),
    "verifier": a_text,
    "field": a_text,
    "answer": a_text,
    "timeout": a_number(0, above=True),
    "retries": a_whole_number(0, 10),
    "fallback": a_url,
    "cost_per_token": _token_cost,
    "concurrency": a_whole_number(1, 1024),
    "max_response": a_whole_number(1, 2**40),
}

_SERVE: dict[str, Check] = {
    "compare": one_of(Compare),
    "max_cost": a_number(0, above=True),
    "timeout": a_number(0, above=True),
    "hedge": a_number(0, above=True),
    "tradeoff": a_number(0, 1),
    "budget": a_number(0),
    "error": a_number(0, 1),
    "allow": _choices,
    "tradeoff_range": _range(0, 1),
    "budget_range": _range(0),
    "error_range": _range(0, 1),
    "direct": a_flag,
    "keys_env": a_text,
    "keys_file": a_text,
    "admin_keys_env": a_text,
    "max_body": a_whole_number(1, 2**40),
    "max_depth": a_whole_number(1, 500),
    "max_concurrent": a_whole_number(1, 100_000),
    "queue": a_whole_number(0, 1_000_000),
    "retry_after": a_number(0, 86_400),
    "drain": a_number(0, 86_400),
    "watch": a_number(0, 86_400),
    "trace_log": a_text,
    "trace_log_bytes": a_whole_number(1024, 2**50),
    "trace_log_files": a_whole_number(1, 1000),
    "log_predictions": a_flag,
    "otel": a_url,
    "audit": a_table,
}
