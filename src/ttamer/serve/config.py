"""The settings of a gateway: the ``[serve]`` table of ``cascade.toml`` and each node's upstream.

Every setting is declared once, as a field with its check and its default. All settings are checked
before anything is served: an unknown key or a value out of range is one line that names the place
and what is allowed there.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from ttamer._arguments import require_kind
from ttamer.drift.audit_log import Retention
from ttamer.drift.settings import MIN_REFIT_ROWS, LoopSettings
from ttamer.errors import ArgumentError, CascadeError
from ttamer.llm.compare import Comparison
from ttamer.llm.prompts import SIGNALS
from ttamer.serve.values import (
    Api,
    Check,
    Choice,
    Confidence,
    Extra,
    HeaderFromEnv,
    InvalidValue,
    OperatingPoint,
    PrefixSettings,
    Range,
    Role,
    Stream,
    TokenCost,
    Tokens,
    comparison,
    flag,
    header_map,
    header_name,
    integer,
    interval,
    list_of,
    number,
    one_of,
    origins,
    param_map,
    prefixes,
    proxy_url,
    query_map,
    table,
    tables,
    text,
    texts,
    token_cost,
    upstreams,
    url,
)
from ttamer.trace.spec import CascadeNode, CascadeSpec
from ttamer.trace.verification import SUFFIX

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = [
    "EMBEDDINGS_NODE",
    "AuditSettings",
    "Choice",
    "Confidence",
    "EmbeddingSettings",
    "HeaderFromEnv",
    "KeySettings",
    "NodeSettings",
    "OperatingPoint",
    "PrefixSettings",
    "ServeSettings",
    "Settings",
    "TokenCost",
    "comparison_of",
    "read_settings",
    "settings_from",
    "token_cost_of",
]


CLUSTER_KEYS = ("replicas", "cpus", "gpus")
"""The keys of a node that only :mod:`ttamer.ray` reads."""
EMBEDDINGS_NODE = "embeddings"
"""The name of the embeddings upstream in bills, metrics, errors and logs."""
DAY = 86_400.0
"""The seconds of a day."""

_LOOP_KEYS = (
    "confidence",
    "false_alarms",
    "refit_rows",
    "shadow_rows",
    "attempts",
    "window",
    "seed",
)


def setting(
    check: Check, default: Any = dataclasses.MISSING, *, changes_answers: bool = True
) -> Any:
    """Declare a setting: its check, its default, and whether a node's answers depend on it."""
    metadata = {"check": check, "changes_answers": changes_answers}
    return field(default=default, metadata=metadata)


def _checked(kind: type[Any], given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the checked values of a table; refuse an unknown key and a value out of range."""
    checks = {
        each.name: each.metadata["check"]
        for each in dataclasses.fields(kind)
        if "check" in each.metadata
    }
    values = {}
    for key, value in given.items():
        if key not in checks:
            alike = get_close_matches(key, checks, n=1, cutoff=0.75)
            advice = f"did you mean {alike[0]!r}?" if alike else f"allowed are {', '.join(checks)}"
            raise CascadeError(f"{place}: has an unknown key {key!r}; {advice}")
        try:
            values[key] = checks[key](value)
        except InvalidValue as error:
            raise CascadeError(f"{place}: {key} is {value!r}; it must be {error}") from None
    return values


@dataclass(frozen=True)
class NodeSettings:
    """One ``[[node]]`` and the OpenAI-compatible server behind it."""

    name: str
    cost: float
    """The cost of one call."""
    upstream: str | tuple[str, ...] = setting(upstreams)
    """The base URL, without a slash at its end: ``http://127.0.0.1:8081/v1``; or several."""
    model: str = setting(text, "")
    """The model's name at the upstream; by default the node's name."""
    api: Api = setting(one_of(Api), "openai")
    """The format that the upstream takes."""
    key_env: str | None = setting(text, None, changes_answers=False)
    """The environment variable that holds the upstream's key."""
    key_header: str | None = setting(header_name, None, changes_answers=False)
    """The header that holds the key alone, such as "api-key"; else ``Authorization: Bearer``."""
    headers: tuple[tuple[str, str | HeaderFromEnv], ...] = setting(
        header_map, (), changes_answers=False
    )
    """Further headers sent to the upstream."""
    query: tuple[tuple[str, str], ...] = setting(query_map, (), changes_answers=False)
    """Query parameters of every call, such as Azure's ``api-version``."""
    proxy: str | None = setting(proxy_url, None, changes_answers=False)
    """The HTTP proxy through which the upstream is called."""
    proxy_auth_env: str | None = setting(text, None, changes_answers=False)
    """The environment variable that holds ``user:password`` for the proxy."""
    ca_file: str | None = setting(text, None, changes_answers=False)
    """A PEM file of certificates that are trusted besides those of the system."""
    confidence: Confidence = setting(one_of(Confidence), "logprobs")
    tokens: Tokens = setting(one_of(Tokens), "all")
    """The tokens that count, with "margin" and "entropy"."""
    extras: tuple[Extra, ...] = setting(list_of(Extra), ())
    """Further measures, kept as ``<node>.margin`` and ``<node>.entropy``."""
    params: tuple[tuple[str, str | None], ...] = setting(param_map, ())
    """Fields of requests that the upstream calls otherwise, or (``None``) does not take."""
    samples: int = setting(integer(1, 64), 1)
    """The number of answers requested, with confidence "agreement"."""
    temperature: float = setting(number(0, 2, above=True), 0.7)
    """The temperature of these answers, where the request does not set one above 0."""
    verifier: str | None = setting(text, None)
    """The node whose upstream judges this node's answers, with confidence "verifier"."""
    field: str | None = setting(text, None)
    """The path to the confidence in the response, with confidence "field"."""
    answer: str | None = setting(text, None)
    """The path to the answer in the response, if the response is not in OpenAI's format."""
    timeout: float = setting(number(0, above=True), 30.0, changes_answers=False)
    """The seconds that one call may take."""
    retries: int = setting(integer(0, 10), 0, changes_answers=False)
    fallback: str | None = setting(url, None, changes_answers=False)
    """Another base URL, called when this one fails."""
    breaker: int = setting(integer(0, 1000), 5, changes_answers=False)
    """The failures in a row after which a server is not called for a while; 0 for never."""
    cost_per_token: TokenCost | None = setting(token_cost, None)
    concurrency: int = setting(integer(1, 1024), 8, changes_answers=False)
    """The number of concurrent calls while collecting."""
    max_concurrent: int | None = setting(integer(1, 100_000), None, changes_answers=False)
    """The most calls at once while serving."""
    max_rate: float | None = setting(number(0, above=True), None, changes_answers=False)
    """The most calls that begin in a second."""
    max_wait: float = setting(number(0, 86_400), 5.0, changes_answers=False)
    """The most seconds that a request waits for these limits; then it goes on without the node."""
    max_response: int = setting(integer(1, 2**40), 8 * 1024 * 1024, changes_answers=False)
    """The most bytes of a response; a longer one is a failure."""
    prefix: tuple[PrefixSettings, ...] = setting(prefixes, (), changes_answers=False)
    """When a stream is relayed although another node could be asked."""
    verifies: str | None = None
    """The node whose answer this one verifies, where the cascade is split for serving."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The base URLs of all servers, the fallback last."""
        first = (self.upstream,) if isinstance(self.upstream, str) else self.upstream
        return first if self.fallback is None else (*first, self.fallback)

    @property
    def needs_alternatives(self) -> bool:
        """Whether the probabilities of likely tokens are needed."""
        return bool(self.extras) or self.confidence in ("margin", "entropy")

    @property
    def needs_logprobs(self) -> bool:
        """Whether log-probabilities are needed."""
        return self.needs_alternatives or self.confidence in ("logprobs", "product", "min")

    @property
    def answer_settings(self) -> dict[str, Any]:
        """The settings that the node's answers depend on, in plain values.

        Defaults are left out: a setting that a later version adds changes no key of a journal.
        """
        values = dataclasses.asdict(self)
        return {
            each.name: values[each.name]
            for each in dataclasses.fields(self)
            if each.metadata.get("changes_answers", True)
            and getattr(self, each.name) != each.default
        }


@dataclass(frozen=True)
class AuditSettings:
    """The ``[serve.audit]`` table: which requests are audited, and the limits of the drift loop.

    ::

        [serve.audit]
        share = 0.05                 # of requests: all nodes are asked, after the response
        budget = 500                 # the most that audits may cost in an hour
        log = "audits"               # a folder of Parquet segments
        reference = "held.parquet"   # rows the policy was not fitted to: with them the loop runs
        error = 0.05                 # the error rate that the loop guarantees
    """

    share: float = setting(number(0, 1, above=True))
    """The share of requests without a choice of their own that is audited, within the budget."""
    budget: float = setting(number(0, above=True), math.inf)
    """The most that audits may cost in an hour, in the cascade's units."""
    budget_in_all: float = setting(number(0, above=True), math.inf)
    """The most that audits may cost until the gateway stops."""
    at_once: int = setting(integer(1, 1024), 4)
    """The number of audits that run at the same time."""
    max_client_share: float = setting(number(0, 1, above=True), 0.5)
    """The highest share of one client in recent audits, where several clients have keys."""
    log: str | None = setting(text, None)
    """A folder for audited rows."""
    log_answers: bool = setting(flag, False)
    """Whether the folder holds the nodes' answers; by default keyed hashes stand for them."""
    keep_rows: int | None = setting(integer(1, 2**40), None)
    keep_bytes: int | None = setting(integer(1, 2**50), None)
    keep_days: float | None = setting(number(0, above=True), None)
    reference: str | None = setting(text, None)
    """A trace of rows the policy was not fitted to; with it the drift loop runs."""
    error: float | None = setting(number(0), None)
    """The highest share of wrong answers, or mean loss, that the loop accepts."""
    drop: float | None = setting(number(0), None)
    """The highest share of wrong answers, or mean loss, above the last node's."""
    confidence: float = setting(number(0.5, 0.999999), LoopSettings.confidence)
    false_alarms: float = setting(number(0.000001, 0.5), LoopSettings.false_alarms)
    refit_rows: int = setting(integer(MIN_REFIT_ROWS, 10**7), LoopSettings.refit_rows)
    shadow_rows: int = setting(integer(1, 10**7), LoopSettings.shadow_rows)
    attempts: int = setting(integer(1, 1000), LoopSettings.attempts)
    window: int = setting(integer(MIN_REFIT_ROWS, 10**7), LoopSettings.window)
    seed: int = setting(integer(0, 2**53), 0)

    @classmethod
    def from_table(cls, given: Mapping[str, Any], *, nodes: int) -> AuditSettings:
        """Check a ``[serve.audit]`` table of a cascade with that number of nodes.

        >>> AuditSettings.from_table({"share": 0.05, "log": "audits"}, nodes=2).budget
        inf
        """
        place = "[serve.audit]"
        if "share" not in given:
            raise CascadeError(
                f"{place}: lacks share, the share of requests to audit; write share = 0.05"
            )
        audit = cls(**_checked(cls, given, place))
        if nodes < 2:
            raise CascadeError(f"{place}: an audit needs at least two nodes; remove the table")
        if audit.log is None and audit.reference is None:
            raise CascadeError(
                f"{place}: audited rows have no destination; set log (a folder), reference (rows "
                "that the policy was not fitted to), or both"
            )
        audit._check_loop(given, place)
        return audit

    @property
    def retention(self) -> Retention:
        """What the audit log keeps."""
        seconds = None if self.keep_days is None else self.keep_days * DAY
        return Retention(self.keep_rows, self.keep_bytes, seconds)

    @property
    def loop(self) -> LoopSettings:
        """The settings of the drift loop; only valid with a reference."""
        kind, limit = ("error", self.error) if self.drop is None else ("drop", self.drop)
        if limit is None:
            raise ArgumentError("the drift loop needs error or drop")
        values = {name: getattr(self, name) for name in _LOOP_KEYS}
        return LoopSettings(limit, kind, **values)  # type: ignore[arg-type]

    def _check_loop(self, given: Mapping[str, Any], place: str) -> None:
        limits = [name for name in ("error", "drop") if name in given]
        if self.reference is None:
            for name in (*limits, *_LOOP_KEYS):
                if name in given:
                    raise CascadeError(
                        f"{place}: has {name}, which is for the drift loop, and the loop needs "
                        "reference, a trace of rows that the policy was not fitted to"
                    )
            return
        if len(limits) != 1:
            raise CascadeError(
                f"{place}: the drift loop guarantees one limit, and the table has {len(limits)}; "
                "write error (the share of wrong answers) or drop (that share above the last "
                "node's)"
            )
        try:
            self.loop  # noqa: B018 - it checks itself
        except ArgumentError as error:
            raise CascadeError(f"{place}: {error}") from None


@dataclass(frozen=True)
class KeySettings:
    """One ``[[serve.key]]``: an API key with a name and roles."""

    name: str = setting(text)
    """The client's name in logs."""
    env: str | None = setting(text, None)
    """The environment variable that holds the key, or several separated by commas."""
    file: str | None = setting(text, None)
    """A file that holds the key, or several, one per line."""
    roles: tuple[Role, ...] = setting(list_of(Role, required=True), ("ask",))
    """What the key may be used for."""
    budget: float | None = setting(number(0, above=True), None)
    """The most that the key may spend in a period, in the cascade's units."""
    budget_seconds: float = setting(number(1), DAY)
    """The length of the period."""
    requests_per_minute: float | None = setting(number(0, above=True), None)
    """The most requests in a minute."""


@dataclass(frozen=True)
class EmbeddingSettings:
    """The ``[serve.embeddings]`` table: an embeddings upstream in OpenAI's format."""

    upstream: str = setting(url)
    """The base URL, without a slash at its end."""
    model: str = setting(text, "embeddings")
    """The model's name at the upstream."""
    key_env: str | None = setting(text, None, changes_answers=False)
    """The environment variable that holds the upstream's key."""
    cost: float = setting(number(0), 0.0)
    """The cost of one call."""
    cost_per_token: TokenCost | None = setting(token_cost, None)
    """The price of its tokens, besides."""
    timeout: float = setting(number(0, above=True), 5.0, changes_answers=False)
    """The seconds that one call may take; a request goes on without its embedding."""
    max_response: int = setting(integer(1, 2**40), 64 * 1024 * 1024, changes_answers=False)
    """The most bytes of a response."""
    signals: int = setting(integer(0, 32), 0)
    """The numbers that the embedding of a prompt is reduced to, with ``signals = true``."""


@dataclass(frozen=True)
class ServeSettings:
    """The ``[serve]`` table; every key is optional."""

    compare: Comparison = setting(comparison, Comparison())
    """How answers are compared: a kind, or a table with the kind and its options."""
    max_cost: float | None = setting(number(0, above=True), None)
    """The most that one request may cost."""
    timeout: float = setting(number(0, above=True), 60.0)
    """The seconds that one request may take, all nodes together."""
    hedge: float | None = setting(number(0, above=True), None)
    """The seconds after which a node that has not answered is called a second time."""
    tradeoff: float | None = setting(number(0, 1), None)
    """The operating point is one of tradeoff, budget, error and mistake_cost."""
    budget: float | None = setting(number(0), None)
    error: float | None = setting(number(0), None)
    """At most 1, or the largest loss of the cascade where it has one."""
    mistake_cost: float | None = setting(number(0, above=True), None)
    """The cost of a wrong answer, in the cascade's units."""
    allow: tuple[Choice, ...] = setting(list_of(Choice), ())
    """What a request may choose for itself."""
    tradeoff_range: Range = setting(interval(0, 1), (0.0, 1.0))
    budget_range: Range = setting(interval(0), (0.0, math.inf))
    error_range: Range = setting(interval(0), (0.0, 1.0))
    """By default up to 1, or up to the largest loss of the cascade where it has one."""
    direct: bool = setting(flag, False)
    """Whether a request may name a node as its model, which then answers alone."""
    keys_env: str | None = setting(text, None)
    """The environment variable that holds the API keys, separated by commas."""
    keys_file: str | None = setting(text, None)
    """A file that holds the API keys, one per line."""
    key: tuple[KeySettings, ...] = setting(tables, ())
    """API keys with names and roles, beside those of keys_env or keys_file."""
    hosts: tuple[str, ...] | None = setting(texts, None)
    """The values of the Host header that are accepted, without a port."""
    cors: tuple[str, ...] = setting(origins, ())
    """The origins whose pages may ask from a browser; ``("*",)`` for all."""
    admin_keys_env: str | None = setting(text, None)
    """The environment variable with the keys of ``/admin``; without it there is no ``/admin``."""
    max_body: int = setting(integer(1, 2**40), 1024 * 1024)
    max_depth: int = setting(integer(1, 500), 32)
    """The deepest nesting of a request's JSON."""
    max_concurrent: int = setting(integer(1, 100_000), 256)
    max_connections: int | None = setting(integer(1, 1_000_000), None)
    """The number of client connections; by default as many as the open files allow."""
    max_connections_per_address: int | None = setting(integer(1, 1_000_000), None)
    """The number of connections of one address; by default half of all."""
    queue: int = setting(integer(0, 1_000_000), 256)
    """The number of requests that may wait for a slot."""
    retry_after: float = setting(number(0, 86_400), 1.0)
    """The least seconds that a refused client is asked to wait."""
    lame_duck: float = setting(number(0, 3600), 0.0)
    """The seconds in which a stopping gateway still accepts connections, with /readyz 503."""
    drain: float = setting(number(0, 86_400), 30.0)
    """The seconds that running requests may take when the gateway stops."""
    watch: float = setting(number(0, 86_400), 2.0)
    """The seconds between checks of the artefact's file; 0 for never."""
    trace_log: str | None = setting(text, None)
    """A file for one JSON line per request."""
    trace_log_bytes: int = setting(integer(1024, 2**50), 64 * 1024 * 1024)
    trace_log_files: int = setting(integer(1, 1000), 4)
    log_predictions: bool = setting(flag, False)
    """Whether the trace log holds the nodes' predictions."""
    otel: str | None = setting(url, None)
    """The URL of an OTLP/HTTP collector for OpenTelemetry spans."""
    audit: AuditSettings | None = setting(table, None)
    """Which requests are audited, and the drift loop that uses them."""
    stream: Stream = setting(one_of(Stream), "last")
    """When the tokens of the answering node are relayed."""
    keep_alive: float = setting(number(0, 3600), 10.0)
    """The seconds between comments in a stream whose answer has not begun; 0 for none."""
    speculate: bool = setting(flag, False)
    """Whether a streamed request calls the node that is probably needed next at once."""
    speculate_chance: float = setting(number(0, 1), 0.5)
    """The chance of being needed from which a node is called ahead."""
    speculate_budget: float = setting(number(0, 1), 0.1)
    """What calls ahead may waste, as a share of the cost of all requests."""
    signals: bool = setting(flag, False)
    """Whether signals of the prompt are computed, so that a fit can route the first question."""
    embeddings: EmbeddingSettings | None = setting(table, None)
    """The embeddings upstream."""

    @property
    def signal_names(self) -> tuple[str, ...]:
        """The signals of a prompt that are computed."""
        if not self.signals:
            return ()
        count = 0 if self.embeddings is None else self.embeddings.signals
        return (*SIGNALS, *(f"prompt_embedding_{k}" for k in range(count)))

    @property
    def operating_point(self) -> tuple[OperatingPoint, float] | None:
        """The operating point that the operator states; ``None`` where none is stated."""
        points = self._points()
        return points[0] if points else None

    def _points(self) -> list[tuple[OperatingPoint, float]]:
        names: tuple[OperatingPoint, ...] = get_args(OperatingPoint)
        return [(name, getattr(self, name)) for name in names if getattr(self, name) is not None]


@dataclass(frozen=True)
class Settings:
    r"""A cascade and all settings needed to serve it, as :func:`settings_from` returns them.

    >>> settings = settings_from(CascadeSpec.from_toml(
    ...     "[[node]]\nname = 'small'\ncost = 1\nupstream = 'http://127.0.0.1:8081/v1'"
    ... ))
    >>> settings.nodes["small"].cost
    1.0
    """

    spec: CascadeSpec
    serve: ServeSettings
    nodes: Mapping[str, NodeSettings]
    """The nodes by name, in the cascade's order."""

    @property
    def models(self) -> tuple[str, ...]:
        """The nodes that a request may name."""
        return tuple(name for name, node in self.nodes.items() if node.verifies is None)

    def split_verified(self) -> Settings:
        """Return the settings with each verification as a node of its own, after the answer's.

        Returns:
            The settings; these where no node has a ``verify_cost``.

        Raises:
            CascadeError: If a confidence with a ``verify_cost`` cannot be asked for by itself.
        """
        if not self.spec.has_verify_costs:
            return self
        nodes: dict[str, NodeSettings] = {}
        for each in self.spec.nodes:
            own = nodes[each.name] = self.nodes[each.name]
            if each.verify_cost is None:
                continue
            if own.confidence not in ("verifier", "self-report"):
                raise CascadeError(
                    f'node {each.name!r}: has verify_cost, and its confidence = "{own.confidence}" '
                    'comes with the answer; use "verifier" or "self-report", or remove verify_cost'
                )
            nodes[each.name] = dataclasses.replace(own, confidence="none", verifier=None)
            name = each.name + SUFFIX
            nodes[name] = dataclasses.replace(
                own, name=name, cost=each.verify_cost, verifies=each.name
            )
        if self.serve.audit is not None:
            raise CascadeError(
                "[serve.audit]: an audited row has every node's confidence, and with verify_cost "
                "some are not asked for; remove verify_cost or the table"
            )
        return Settings(self.spec.split_verified(), self.serve, nodes)


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Read and check a ``cascade.toml`` for serving.

    Args:
        path: The file.

    Returns:
        The cascade with the settings of the gateway and of every node.

    Raises:
        CascadeError: If the file cannot be read, or a key or value is not allowed.

    >>> read_settings("no-such-file.toml")
    Traceback (most recent call last):
    ttamer.errors.CascadeError: no-such-file.toml: cannot be read: No such file or directory
    """
    spec = CascadeSpec.from_file(path)
    try:
        return settings_from(spec)
    except CascadeError as error:
        raise CascadeError(f"{path}: {error}") from None


def settings_from(spec: CascadeSpec) -> Settings:
    """Check a cascade for serving.

    Args:
        spec: The cascade, with its ``[serve]`` table and the options of its nodes.

    Returns:
        The checked settings.

    Raises:
        CascadeError: If a key or value is not allowed.

    >>> spec = CascadeSpec.from_toml('''
    ... [serve]
    ... compare = "choice"
    ... [[node]]
    ... name = "small"
    ... cost = 1
    ... upstream = "http://127.0.0.1:8081/v1/"
    ... ''')
    >>> settings = settings_from(spec)
    >>> settings.serve.compare.kind, settings.nodes["small"].upstream
    ('choice', 'http://127.0.0.1:8081/v1')
    """
    remedy = "read a file with read_settings(path)"
    require_kind(spec, CascadeSpec, "settings_from needs a CascadeSpec", remedy)
    serve = _serve_settings(spec)
    nodes = {}
    for position, node in enumerate(spec.nodes, start=1):
        place = f"[[node]] {position} ({node.name!r})"
        options = {key: value for key, value in node.options.items() if key not in CLUSTER_KEYS}
        values = {"model": node.name} | _checked(NodeSettings, options, place)
        if "upstream" not in values:
            raise CascadeError(
                f"{place}: lacks upstream, the base URL of an OpenAI-compatible server; "
                'write upstream = "http://..."'
            )
        nodes[node.name] = NodeSettings(name=node.name, cost=node.cost, **values)
        _check_confidence(nodes[node.name], values, spec.names, place)
        for option, needed in (("key_header", "key_env"), ("proxy_auth_env", "proxy")):
            if option in values and needed not in values:
                raise CascadeError(f"{place}: has {option}, which needs {needed}; add it")
        if "max_wait" in values and not {"max_concurrent", "max_rate"} & set(values):
            raise CascadeError(
                f"{place}: has max_wait, which needs max_concurrent or max_rate; add one"
            )
        _check_limits(nodes[node.name], serve, place)
    return Settings(spec, serve, nodes)


def comparison_of(spec: CascadeSpec) -> Comparison:
    """Return how the answers of a cascade are compared; it may lack upstreams."""
    given = {key: value for key, value in spec.serve.items() if key == "compare"}
    rule: Comparison = _checked(ServeSettings, given, "[serve]").get("compare", Comparison())
    return rule


def token_cost_of(node: CascadeNode) -> TokenCost | None:
    """Return the prices of a node's tokens, if there are any; it may lack an upstream."""
    given = {key: value for key, value in node.options.items() if key == "cost_per_token"}
    prices: TokenCost | None = _checked(NodeSettings, given, f"the node {node.name!r}").get(
        "cost_per_token"
    )
    return prices


def _serve_settings(spec: CascadeSpec) -> ServeSettings:
    values = _checked(ServeSettings, spec.serve, "[serve]")
    if "audit" in values:
        values["audit"] = AuditSettings.from_table(values["audit"], nodes=len(spec.nodes))
    if "key" in values:
        keys = enumerate(values["key"], start=1)
        values["key"] = tuple(_key_settings(given, f"[[serve.key]] {n}") for n, given in keys)
        names = [each.name for each in values["key"]]
        if len(set(names)) < len(names):
            raise CascadeError("[[serve.key]]: two keys have the same name; rename one")
    if "embeddings" in values:
        given = values["embeddings"]
        if "upstream" not in given:
            raise CascadeError('[serve.embeddings]: lacks upstream; write upstream = "http://..."')
        if EMBEDDINGS_NODE in spec.names:
            raise CascadeError(
                f"[serve.embeddings]: a node is called {EMBEDDINGS_NODE!r}, the name under which "
                "embeddings are booked; rename the node"
            )
        table = _checked(EmbeddingSettings, given, "[serve.embeddings]")
        values["embeddings"] = EmbeddingSettings(**table)
    values.setdefault("error_range", (0.0, spec.loss_bound or 1.0))
    serve = ServeSettings(**values)
    _check_errors(serve, spec)
    if serve.embeddings is not None and serve.embeddings.signals and not serve.signals:
        raise CascadeError("[serve.embeddings]: has signals, which need signals = true in [serve]")
    points = [name for name, _ in serve._points()]
    if serve.audit is not None and serve.audit.reference is not None and points:
        raise CascadeError(
            f"[serve]: has {points[0]}, and with a reference the limit in [serve.audit] is the "
            f"operating point; remove {points[0]}"
        )
    if len(points) > 1:
        raise CascadeError(
            f"[serve]: has {' and '.join(points)}, and there is one operating point; keep one"
        )
    return serve


def _check_errors(serve: ServeSettings, spec: CascadeSpec) -> None:
    """Refuse an error above what one answer can lose."""
    bound = spec.loss_bound
    limits = [("[serve]", "error", serve.error), ("[serve]", "error_range", serve.error_range[1])]
    if serve.audit is not None:
        audit = {"error": serve.audit.error, "drop": serve.audit.drop}
        limits += [("[serve.audit]", name, value) for name, value in audit.items()]
    for place, name, value in limits:
        if value is not None and value > (bound or 1.0):
            allowed = (
                "1, as 0.05 for 5% of wrong answers; where answers have losses, set mistakes or "
                "max_loss in [cascade]"
                if bound is None
                else f"{bound:g}, the largest loss of [cascade]"
            )
            raise CascadeError(f"{place}: {name} is {value:g}; it must be at most {allowed}")


def _key_settings(given: Mapping[str, Any], place: str) -> KeySettings:
    if "name" not in given or ("env" in given) == ("file" in given):
        raise CascadeError(f"{place}: needs a name, and one of env and file")
    return KeySettings(**_checked(KeySettings, given, place))


def _check_limits(node: NodeSettings, serve: ServeSettings, place: str) -> None:
    """Refuse a limit on cost where the tokens of an answer have a price and no limit."""
    is_limited = serve.max_cost is not None or any(key.budget is not None for key in serve.key)
    has_price = node.cost_per_token is not None and node.cost_per_token.output > 0
    dropped = {key for key, name in node.params if name is None}
    if is_limited and has_price and dropped & {"max_tokens", "max_output_tokens"}:
        raise CascadeError(
            f"{place}: params drop max_tokens, which max_cost and the budgets of keys need where "
            "tokens have a price; rename it instead"
        )


def _check_confidence(
    node: NodeSettings, given: Mapping[str, Any], names: tuple[str, ...], place: str
) -> None:
    """Refuse a source of confidence that lacks its option, and an option without its source."""
    for option, source in (("samples", "agreement"), ("verifier", "verifier"), ("field", "field")):
        if node.confidence == source and option not in given:
            raise CascadeError(f'{place}: confidence = "{source}" needs {option}')
        if option in given and node.confidence != source:
            raise CascadeError(
                f'{place}: has {option}, which applies to confidence = "{source}" only, not '
                f'"{node.confidence}"; change one of them'
            )
    if node.api == "anthropic" and node.needs_logprobs:
        raise CascadeError(
            f'{place}: messages of api = "anthropic" have no log-probabilities; set confidence to '
            '"agreement", "verifier", "self-report" or "none", without extras'
        )
    if node.prefix and not node.needs_logprobs:
        raise CascadeError(
            f'{place}: has prefix, which needs log-probabilities; use confidence = "logprobs"'
        )
    dropped = [key for key, name in node.params if name is None]
    if node.needs_logprobs and {"logprobs", "top_logprobs"} & set(dropped):
        raise CascadeError(
            f'{place}: params drop logprobs, and confidence = "{node.confidence}" or extras need '
            'them; set it to "agreement", "verifier", "self-report" or "none", without extras'
        )
    if node.extras and node.confidence == "agreement":
        raise CascadeError(f'{place}: extras are of one answer, and "agreement" has several')
    if node.confidence == "agreement" and node.samples < 2:
        raise CascadeError(f"{place}: samples is {node.samples}; agreement needs at least 2")
    if node.verifier is not None and node.verifier not in names:
        raise CascadeError(
            f"{place}: verifier is {node.verifier!r}, and there is no such node; "
            f"the nodes are {', '.join(names)}"
        )
