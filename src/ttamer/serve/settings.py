"""What ``cascade.toml`` says about serving: the ``[serve]`` table and each node's upstream.

Everything is checked once, before anything is served: an unknown key, a value out of range or a
node that names nobody is one line that says where it stands and what it may be.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from ttamer.cascade_spec import CascadeSpec
from ttamer.errors import CascadeError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

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
    serve = ServeSettings(**_checked(spec.serve, _SERVE, "[serve]"))
    points = [name for name in get_args(Choice) if getattr(serve, name) is not None]
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
        values = {"model": node.name} | _checked(options, _NODE, place)
        nodes[node.name] = NodeSettings(name=node.name, cost=node.cost, **values)
        _check_confidence(nodes[node.name], values, spec.names, place)
    return Settings(spec, serve, nodes)


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


class _WrongError(Exception):
    """A value that cannot be; its text says what is needed."""


def _checked(table: Mapping[str, Any], checks: Mapping[str, Any], place: str) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in checks:
            raise CascadeError(f"{place}: has an unknown key {key!r}; it may have "
                               f"{', '.join(checks)}")  # fmt: skip
        try:
            values[key] = checks[key](value)
        except _WrongError as error:
            raise CascadeError(f"{place}: {key} is {value!r}; it must be {error}") from None
    return values


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _WrongError("text without control characters")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("true or false")
    return value


def _number(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[Any], float]:
    wanted = f"a number {'above' if above else 'from'} {least:g}"
    wanted += f" to {most:g}" if most < math.inf else ""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _WrongError(wanted)
        low_enough = value <= most and math.isfinite(value)
        if not low_enough or not (least < value if above else least <= value):
            raise _WrongError(wanted)
        return float(value)

    return check


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _WrongError(f"a whole number from {least} to {most}")
        return value

    return check


def _one_of(kind: Any) -> Callable[[Any], str]:
    names = get_args(kind)

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise _WrongError("one of " + ", ".join(f'"{name}"' for name in names))
        return value

    return check


def _choices(value: Any) -> tuple[str, ...]:
    names = get_args(Choice)
    if not isinstance(value, list) or any(item not in names for item in value):
        raise _WrongError("a list of " + ", ".join(f'"{name}"' for name in names))
    return tuple(value)


def _range(least: float, most: float = math.inf) -> Callable[[Any], Range]:
    number = _number(least, most)

    def check(value: Any) -> Range:
        if not isinstance(value, list) or len(value) != 2:
            raise _WrongError("a list of two numbers, the lowest and the highest")
        low, high = number(value[0]), number(value[1])
        if low > high:
            raise _WrongError("a list of two numbers, the lowest first")
        return low, high

    return check


def _url(value: Any) -> str:
    wanted = 'a URL like "http://127.0.0.1:8081/v1", without user, query or fragment'
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise _WrongError(wanted)
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - a port out of range is found when it is read
    except ValueError:
        raise _WrongError(wanted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _WrongError(wanted)
    if "@" in parts.netloc or "?" in value or "#" in value:
        raise _WrongError(wanted)
    return value.rstrip("/")


def _token_cost(value: Any) -> TokenCost:
    keys = [field.name for field in dataclasses.fields(TokenCost)]
    if not isinstance(value, dict) or not set(value) <= set(keys):
        raise _WrongError("a table like {input = 0.1, output = 0.4}")
    return TokenCost(**{key: _number(0)(value[key]) for key in value})


_NODE: dict[str, Callable[[Any], Any]] = {
    "upstream": _url,
    "model": _text,
    "key_env": _text,
    "confidence": _one_of(Confidence),
    "samples": _whole(1, 64),
    "temperature": _number(0, 2, above=True),
    "verifier": _text,
    "field": _text,
    "answer": _text,
    "timeout": _number(0, above=True),
    "retries": _whole(0, 10),
    "fallback": _url,
    "cost_per_token": _token_cost,
    "concurrency": _whole(1, 1024),
    "max_response": _whole(1, 2**40),
}

_SERVE: dict[str, Callable[[Any], Any]] = {
    "compare": _one_of(Compare),
    "max_cost": _number(0, above=True),
    "timeout": _number(0, above=True),
    "hedge": _number(0, above=True),
    "tradeoff": _number(0, 1),
    "budget": _number(0),
    "error": _number(0, 1),
    "allow": _choices,
    "tradeoff_range": _range(0, 1),
    "budget_range": _range(0),
    "error_range": _range(0, 1),
    "direct": _flag,
    "keys_env": _text,
    "keys_file": _text,
    "admin_keys_env": _text,
    "max_body": _whole(1, 2**40),
    "max_depth": _whole(1, 500),
    "max_concurrent": _whole(1, 100_000),
    "queue": _whole(0, 1_000_000),
    "retry_after": _number(0, 86_400),
    "drain": _number(0, 86_400),
    "watch": _number(0, 86_400),
    "trace_log": _text,
    "trace_log_bytes": _whole(1024, 2**50),
    "trace_log_files": _whole(1, 1000),
    "log_predictions": _flag,
    "otel": _url,
}
