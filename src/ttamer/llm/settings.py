"""The settings of a node that is asked over HTTP: what a ``[[node]]`` of ``cascade.toml`` may say.

Every setting is a field of a struct, with its check and its default. An unknown key or a value out
of range is one line that names the table and what is allowed there; a key of an earlier version is
refused with the sentence that says where the feature went.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from ttamer.cascade import CascadeNode, CascadeSpec
from ttamer.errors import ArgumentError, CascadeError
from ttamer.llm.compare import Comparison

Above0 = Annotated[float, Meta(gt=0)]
AtLeast0 = Annotated[float, Meta(ge=0)]
Url = Annotated[str, Meta(pattern=r"^https?://[^/\s]+")]
Confidence = Literal["logprobs", "product", "agreement", "self-report", "none"]
Capability = Literal["images", "tools", "json_schema"]
# A cascade, or the path of its cascade.toml.
CascadeSource = CascadeSpec | str | os.PathLike[str]
T = TypeVar("T")


def by_key(sentences: Mapping[str, str]) -> dict[str, str]:
    """Return where each former key went, of sentences for one or several."""
    return {key: text for keys, text in sentences.items() for key in keys.split()}


class TokenCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of one token, in the cascade's units."""

    input: AtLeast0
    output: AtLeast0
    # Of an input token that the upstream had kept; by default as ``input``.
    cached: AtLeast0 | None = None
    reasoning: AtLeast0 | None = None  # of a token of reasoning; by default as ``output``


class EnvName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that is read from the environment."""

    env: str

    def read(self) -> str:
        """Return the value; an unset variable is an error."""
        value = os.environ.get(self.env)
        if not value:
            raise CascadeError(f"the environment variable {self.env} is not set; export it")
        return value


class EmbeddingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[serve.embeddings]`` table: an embeddings upstream in OpenAI's format."""

    upstream: Url
    model: str = "embeddings"
    key_env: str = ""  # the environment variable with the upstream's key
    removed: ClassVar = by_key(
        {
            "cost cost_per_token": "embeddings are no part of the cost of a request",
            "timeout": "a request waits 2 seconds for its embedding",
            "max_response": "responses have at most 8 MiB",
            "signals": "name the embedder in the fit: tt.fit(trace, embedders={...})",
        }
    )


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[node]]`` and the OpenAI-compatible server behind it.

    >>> NodeSettings(name="small", cost=1.0, upstream="http://127.0.0.1:8081/v1").timeout
    30.0
    """

    name: str
    cost: float  # the cost of one call, beside the price of its tokens
    upstream: Url  # the base URL, such as ``http://127.0.0.1:8081/v1``
    model: str = ""  # the model's name at the upstream; by default the node's name
    key_env: str = ""  # the environment variable with the upstream's key
    # Further headers sent to the upstream; a value may be ``{env = "NAME"}``.
    headers: dict[str, str | EnvName] = {}
    # Fields set in every request, such as ``{reasoning_effort = "low"}``; ``false`` removes one
    # that the upstream does not take.
    params: dict[str, Any] = {}
    # Fields that the upstream calls otherwise: ``{max_tokens = "max_completion_tokens"}``.
    rename: dict[str, str] = {}
    confidence: Confidence = "logprobs"
    # The number of answers, with confidence "agreement".
    samples: Annotated[int, Meta(ge=2, le=64)] = 5
    cost_per_token: TokenCost | None = None
    # The seconds that one call may take at most; the limit that is learnt is below it.
    timeout: Above0 = 30.0
    retries: Annotated[int, Meta(ge=0, le=10)] = 1
    # The most calls at once; by default 8 while collecting, and any number while serving.
    max_concurrent: Annotated[int, Meta(ge=1)] | None = None
    # The tokens of the model's context; a request that is longer is not sent to it.
    context: Annotated[int, Meta(ge=1)] | None = None
    # What a request may have for this node; the policy goes on without it for others.
    accepts: tuple[Capability, ...] = ("images", "tools", "json_schema")
    removed: ClassVar = by_key(
        {
            "api": "nodes speak OpenAI's format; for others put LiteLLM in front, and name its URL",
            "answer field": "for servers of another format use ttamer.Cascade with your function",
            "verifier": 'write confidence = "self-report": a model is asked about its own answer',
            "key_header": 'write headers = {"api-key" = {env = "NAME"}}',
            "query": "write the query into upstream",
            "proxy proxy_auth_env": "set HTTPS_PROXY in the environment of the server",
            "ca_file": "set SSL_CERT_FILE in the environment of the server",
            "tokens": "a confidence is of all tokens of an answer",
            "temperature": "write params = {temperature = 0.7}",
            "fallback max_rate": "it belongs to the proxy in front of servers, such as LiteLLM",
            "breaker": "it opens by itself, where half of the recent calls fail",
            "concurrency": "write max_concurrent",
            "max_wait": "a request waits for max_concurrent until its own deadline",
            "max_response": "responses have at most 8 MiB",
            "extras": "fits read one confidence of a node",
            "prefix": "streams of a node are relayed where its answer is returned in any case",
        }
    )

    @property
    def calls(self) -> int:
        """The calls for one answer and its confidence."""
        return {"agreement": self.samples, "self-report": 2}.get(self.confidence, 1)

    @property
    def needs_logprobs(self) -> bool:
        """Whether log-probabilities are needed."""
        return self.confidence in ("logprobs", "product")


def spec_of(cascade: CascadeSource) -> CascadeSpec:
    """Return a cascade, read where it is a path."""
    return cascade if isinstance(cascade, CascadeSpec) else CascadeSpec.from_file(cascade)


def read_nodes(spec: CascadeSpec, only: Sequence[str] = ()) -> dict[str, NodeSettings]:
    """Return the settings of nodes by name, checked, in the cascade's order; by default of all.

    >>> spec = CascadeSpec.from_toml("node = [{name = 'a', cost = 1, upstream = 'http://h/v1/'}]")
    >>> read_nodes(spec)["a"].upstream
    'http://h/v1'

    Raises:
        CascadeError: If a key or value is not allowed, or a node lacks its upstream.
    """
    return {
        node.name: _node(node, f"[[node]] {number} ({node.name!r})")
        for number, node in enumerate(spec.nodes, start=1)
        if not only or node.name in only
    }


def _node(node: CascadeNode, where: str) -> NodeSettings:
    of_ray = ("replicas", "cpus", "gpus")  # only ttamer.ray reads them
    table = {key: value for key, value in node.options.items() if key not in of_ray}
    if "upstream" not in table:
        raise CascadeError(
            f"{where}: lacks upstream, the base URL of an OpenAI-compatible server; "
            'write upstream = "http://..."'
        )
    if table.get("confidence") in ("min", "margin", "entropy"):
        raise CascadeError(
            f'{where}: confidence = "{table["confidence"]}" is gone: write "logprobs" or '
            '"product", from which a fit computes the chance of an error'
        )
    table = {"model": node.name, **table, "name": node.name, "cost": node.cost}
    settings = checked(NodeSettings, table, where)
    source = settings.confidence
    if "samples" in table and source != "agreement":
        raise CascadeError(
            f'{where}: has samples, which applies to confidence = "agreement" only, not '
            f'"{source}"; change one of them'
        )
    if settings.needs_logprobs and settings.params.get("logprobs") is False:
        raise CascadeError(
            f'{where}: params remove logprobs, and confidence = "{source}" needs '
            'them; set it to "agreement", "self-report" or "none"'
        )
    if node.verify_cost is not None and source != "self-report":
        raise CascadeError(
            f'{where}: has verify_cost, and its confidence = "{source}" comes with the '
            'answer; use "self-report", or remove verify_cost'
        )
    return msgspec.structs.replace(settings, upstream=settings.upstream.rstrip("/"))


def comparison_of(spec: CascadeSpec) -> Comparison:
    r"""Return how the answers of a cascade are compared.

    >>> toml = "serve = {compare = 'choice'}\nnode = [{name = 'a', cost = 1}]"
    >>> comparison_of(CascadeSpec.from_toml(toml)).kind
    'choice'
    """
    rule = spec.serve.get("compare", "normalised")
    table = {"kind": rule} if isinstance(rule, str) else rule
    where = "[serve]: compare"
    if not isinstance(table, Mapping):
        raise CascadeError(f"{where} is {rule!r}; it must be a kind or a table with one")
    if table.get("kind") in ("judge", "embedding"):
        raise CascadeError(
            f"{where} is {table['kind']!r}, which is no rule: let a node decide which answers are "
            "right, with ttamer label --judge NODE"
        )
    return checked(Comparison, table, where)


def checked(kind: type[T], table: Any, where: str) -> T:
    """Return a table of settings as a struct; its ``removed`` says where the keys of old went."""
    if not isinstance(table, Mapping):
        raise CascadeError(f"{where}: must be a table, not {table!r}")
    removed: Mapping[str, str] = getattr(kind, "removed", {})
    fields = {field.name: field.type for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]
    tables: Mapping[str, type[Any]] = getattr(kind, "tables", {})
    for key in table:
        if key in fields:
            continue
        if key in removed:
            raise CascadeError(f"{where}: {key} is no setting any more: {removed[key]}")
        alike = get_close_matches(key, fields, n=1, cutoff=0.75)
        advice = f"did you mean {alike[0]!r}?" if alike else f"allowed are {', '.join(fields)}"
        raise CascadeError(f"{where}: has an unknown key {key!r}; {advice}")
    inner = {
        key: checked(tables[key], value, f"{where[:-1]}.{key}]")
        for key, value in table.items()
        if key in tables
    }
    try:
        return msgspec.convert({**table, **inner}, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        key = re.split(r"[.\[`]", path)[0]
        if "enum value" in reason:
            allowed = getattr(fields[key], "values", None) or fields[key].item_type.values
            reason = f"it must be {' or '.join(map(repr, allowed))}"
        if isinstance(error.__cause__, ArgumentError):  # in words of our own
            raise CascadeError(f"{where}: {reason}") from None
        for pattern, words in _WORDS.items():
            reason = re.sub(pattern, words, reason)
        received = f"{key} is {table[key]!r}; " if key in table else ""
        raise CascadeError(f"{where}: {received}{reason}") from None


_WORDS = {
    r", got `.*": "",
    "`": "",
    "^Expected ": "it must be ",
    "Object missing required field ": "it lacks ",
    "Object contains unknown field (.*)": r"\1 is unknown",
    r"\bfloat\b": "a number",
    r"\bint\b": "a whole number",
    r"\bbool\b": "true or false",
    r"\bobject\b": "a table",
    r"\barray\b": "a list",
    r"\bstr matching regex .*": "a URL that begins with http:// or https://",
    r"\bstr\b": "text",
    "> ": "above ",
    ">= ": "at least ",
    "<= ": "at most ",
    r"\.0\b": "",
}
