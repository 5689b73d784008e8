"""Single values of a ``cascade.toml`` for serving: what is allowed, and the form they are used in.

A check returns a value as it is used, or raises :class:`InvalidValue` with what is allowed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from ttamer._numbers import is_number
from ttamer.errors import ArgumentError
from ttamer.llm.compare import Comparison, ComparisonKind
from ttamer.llm.confidence import MAX_PREFIX

__all__ = [
    "ENDPOINT_PATHS",
    "RESERVED_HEADERS",
    "Api",
    "Check",
    "Choice",
    "Confidence",
    "Extra",
    "HeaderFromEnv",
    "InvalidValue",
    "OperatingPoint",
    "PrefixSettings",
    "Range",
    "Role",
    "Stream",
    "TokenCost",
    "Tokens",
    "comparison",
    "flag",
    "header_map",
    "header_name",
    "integer",
    "interval",
    "list_of",
    "number",
    "one_of",
    "origins",
    "param_map",
    "prefixes",
    "proxy_url",
    "query_map",
    "table",
    "tables",
    "text",
    "texts",
    "token_cost",
    "upstreams",
    "url",
]

Confidence = Literal[
    "logprobs",
    "product",
    "min",
    "margin",
    "entropy",
    "none",
    "agreement",
    "verifier",
    "self-report",
    "field",
]
"""Where the confidence of an answer comes from."""
Extra = Literal["margin", "entropy"]
"""Further measures of an answer's certainty, kept in traces beside the confidence."""
Tokens = Literal["all", "first"]
"""The tokens of an answer that margins and entropies are averaged over."""
Choice = Literal["tradeoff", "budget", "error"]
"""What a request may choose for itself, if the operator allows it."""
Role = Literal["ask", "label", "metrics"]
"""What an API key may be used for: requests, labels, and metrics with the status page."""
OperatingPoint = Literal["tradeoff", "budget", "error", "mistake_cost"]
"""How the operator states which policy of a ladder answers."""
Api = Literal["openai", "anthropic"]
"""The format of an upstream: OpenAI's, or Anthropic's messages."""
Stream = Literal["last", "decided", "whole"]
"""When a stream is relayed: from the last node of a path, only where its answer is certain to be
returned, or never."""

Range = tuple[float, float]
Check = Callable[[Any], Any]
"""Returns a value as it is used, or raises :class:`InvalidValue`."""

RESERVED_HEADERS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "proxy-authorization",
        "transfer-encoding",
        "x-request-id",
    }
)
"""The headers of calls to upstreams that ``headers`` of a node may not set."""
ENDPOINT_PATHS = ("/chat/completions", "/completions", "/embeddings", "/messages", "/responses")
"""What is added to the base URL of a server, and may not be written there."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class InvalidValue(Exception):
    """A value that is not allowed; the text names what is."""


@dataclass(frozen=True)
class TokenCost:
    """The price of a token, in the cascade's units; added to the cost of the call."""

    input: float = 0.0
    output: float = 0.0


@dataclass(frozen=True)
class HeaderFromEnv:
    """A header whose value an environment variable holds."""

    name: str
    """The environment variable."""


@dataclass(frozen=True)
class PrefixSettings:
    """A stream is relayed once its first tokens are likely enough."""

    tokens: int
    """The number of tokens."""
    confidence: float
    """The least mean probability of these tokens (geometric)."""


def text(value: Any) -> str:
    """Accept text without control characters."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidValue("text without control characters")
    return value


def flag(value: Any) -> bool:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


def table(value: Any) -> dict[str, Any]:
    """Accept a table."""
    if not isinstance(value, dict):
        raise InvalidValue("a table")
    return value


def number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], float]:
    """Accept a finite number in a range; with ``above`` the range excludes ``low``."""
    expected = f"a number {'above' if above else 'from'} {low:g}"
    expected += f" to {high:g}" if high < math.inf else ""

    def check(value: Any) -> float:
        if not is_number(value):
            raise InvalidValue(expected)
        is_low_enough = value <= high and math.isfinite(value)
        if not is_low_enough or not (low < value if above else low <= value):
            raise InvalidValue(expected)
        return float(value)

    return check


def integer(low: int, high: int) -> Callable[[Any], int]:
    """Accept a whole number in a range."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValue(f"a whole number from {low} to {high}")
        return value

    return check


def one_of(kind: Any) -> Callable[[Any], str]:
    """Accept one of the values of a ``Literal``."""
    names = get_args(kind)

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise InvalidValue("one of " + ", ".join(f'"{name}"' for name in names))
        return value

    return check


def list_of(kind: Any, *, required: bool = False) -> Callable[[Any], tuple[str, ...]]:
    """Accept a list of values of a ``Literal``, each once; with ``required``, at least one."""
    names = get_args(kind)

    def check(value: Any) -> tuple[str, ...]:
        is_list = isinstance(value, list) and (bool(value) or not required)
        if not is_list or any(item not in names for item in value):
            raise InvalidValue("a list of " + ", ".join(f'"{name}"' for name in names))
        return tuple(dict.fromkeys(value))

    return check


def interval(low: float, high: float = math.inf) -> Callable[[Any], Range]:
    """Accept a list of the lowest and the highest number of a range."""
    check_end = number(low, high)

    def check(value: Any) -> Range:
        if not isinstance(value, list) or len(value) != 2:
            raise InvalidValue("a list of two numbers, the lowest and the highest")
        first, last = check_end(value[0]), check_end(value[1])
        if first > last:
            raise InvalidValue("a list of two numbers, the lowest first")
        return first, last

    return check


def texts(value: Any) -> tuple[str, ...]:
    """Accept a list of texts, at least one."""
    if not isinstance(value, list) or not value:
        raise InvalidValue("a list of text")
    return tuple(text(item) for item in value)


def tables(value: Any) -> list[dict[str, Any]]:
    """Accept a list of tables."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidValue("a list of tables")
    return value


def url(value: Any) -> str:
    """Accept the base URL of a server, and remove the slash at its end."""
    expected = 'a URL like "http://127.0.0.1:8081/v1", without user, query or fragment'
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise InvalidValue(expected)
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - a port out of range is found when it is read
    except ValueError:
        raise InvalidValue(expected) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue(expected)
    if "@" in parts.netloc or "?" in value or "#" in value:
        raise InvalidValue(expected)
    for ending in ENDPOINT_PATHS:
        if parts.path.rstrip("/").endswith(ending):
            raise InvalidValue(f"a base URL, without {ending} at its end, which is added")
    return value.rstrip("/")


def upstreams(value: Any) -> str | tuple[str, ...]:
    """Accept the base URL of a server, or a list of several."""
    if not isinstance(value, list):
        return url(value)
    found = tuple(url(item) for item in value)
    if not found or len(set(found)) < len(found):
        raise InvalidValue("a URL, or a list of different URLs")
    return found


def proxy_url(value: Any) -> str:
    """Accept the URL of an HTTP proxy."""
    expected = 'a URL like "http://proxy.example:3128", without user, path or query'
    try:
        found = url(value)
    except InvalidValue:
        raise InvalidValue(expected) from None
    if urlsplit(found).scheme != "http" or urlsplit(found).path:
        raise InvalidValue(expected)
    return found


def origins(value: Any) -> tuple[str, ...]:
    """Accept a list of origins, or every origin."""
    if value == ["*"]:
        return ("*",)
    expected = 'a list of origins like "https://app.example", or ["*"]'
    if not isinstance(value, list) or not value:
        raise InvalidValue(expected)
    for item in value:
        try:
            found = urlsplit(url(item))
        except InvalidValue:
            raise InvalidValue(expected) from None
        if found.path or item.endswith("/") or item != item.lower():
            raise InvalidValue(f"{expected}, in lower case and without a path")
    return tuple(value)


def header_name(value: Any) -> str:
    """Accept the name of a header."""
    if not isinstance(value, str) or not _HEADER_NAME.fullmatch(value):
        raise InvalidValue('the name of a header, such as "api-key"')
    return value


def header_map(value: Any) -> tuple[tuple[str, str | HeaderFromEnv], ...]:
    """Accept a table of headers, each a text or the name of an environment variable."""
    expected = 'a table like {x-team = "search", x-token = {env = "TOKEN"}}'
    if not isinstance(value, dict):
        raise InvalidValue(expected)
    found: list[tuple[str, str | HeaderFromEnv]] = []
    for name, content in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValue(f"{expected}; {name!r} is no name of a header")
        if name.lower() in RESERVED_HEADERS:
            raise InvalidValue(f"{expected}, without {name}, which the gateway sets itself")
        if isinstance(content, dict) and set(content) == {"env"}:
            found.append((name, HeaderFromEnv(text(content["env"]))))
        elif isinstance(content, str) and content.isprintable() and content.isascii():
            found.append((name, content))
        else:
            raise InvalidValue(expected)
    return tuple(found)


def query_map(value: Any) -> tuple[tuple[str, str], ...]:
    """Accept a table of query parameters."""
    if not isinstance(value, dict) or not value:
        raise InvalidValue('a table like {api-version = "2024-10-21"}')
    return tuple((text(name), text(content)) for name, content in value.items())


def param_map(value: Any) -> tuple[tuple[str, str | None], ...]:
    """Accept a table of request fields, each with another name or false."""
    expected = 'a table like {max_tokens = "max_completion_tokens", temperature = false}'
    if not isinstance(value, dict):
        raise InvalidValue(expected)
    for name in value.values():
        if name is not False and (not isinstance(name, str) or not name.isidentifier()):
            raise InvalidValue(expected)
    return tuple((key, name or None) for key, name in value.items())


def token_cost(value: Any) -> TokenCost:
    """Accept the prices of tokens, a table like {input = 0.1, output = 0.4}."""
    keys = [each.name for each in dataclasses.fields(TokenCost)]
    if not isinstance(value, dict) or not set(value) <= set(keys):
        raise InvalidValue("a table like {input = 0.1, output = 0.4}")
    return TokenCost(**{key: number(0)(value[key]) for key in value})


def comparison(value: Any) -> Comparison:
    """Accept a kind of comparison, or a table like {kind = "numeric", tolerance = 0.01}."""
    table = {"kind": value} if isinstance(value, str) else value
    names = [each.name for each in dataclasses.fields(Comparison)]
    if not isinstance(table, dict) or "kind" not in table or not set(table) <= set(names):
        kinds = ", ".join(f'"{name}"' for name in get_args(ComparisonKind))
        options_text = "tolerance, fields, pattern or threshold"
        raise InvalidValue(f"one of {kinds}, or a table with kind and {options_text}")
    options: dict[str, Any] = {"kind": one_of(ComparisonKind)(table["kind"])}
    if "tolerance" in table:
        options["tolerance"] = number(0)(table["tolerance"])
    if "fields" in table:
        if not isinstance(table["fields"], list) or not table["fields"]:
            raise InvalidValue("a table whose fields are a list of paths")
        options["fields"] = tuple(text(path) for path in table["fields"])
    if "threshold" in table:
        options["threshold"] = number(-1, 1)(table["threshold"])
    if "pattern" in table:
        options["pattern"] = text(table["pattern"])
    try:
        return Comparison(**options)
    except ArgumentError as error:
        raise InvalidValue(f"a comparison whose options fit: {error}") from None


def prefixes(value: Any) -> tuple[PrefixSettings, ...]:
    """Accept a table like {tokens = 8, confidence = 0.9}, or a list of such tables."""
    expected = "a table like {tokens = 8, confidence = 0.9}, or a list of them by tokens"
    found = []
    for each in value if isinstance(value, list) and value else [value]:
        if not isinstance(each, dict) or set(each) != {"tokens", "confidence"}:
            raise InvalidValue(expected)
        tokens = integer(1, MAX_PREFIX)(each["tokens"])
        found.append(PrefixSettings(tokens, number(0, 1)(each["confidence"])))
    if any(one.tokens >= two.tokens for one, two in pairwise(found)):
        raise InvalidValue(expected)
    return tuple(found)
