"""The settings of the server: the ``[serve]`` table of ``cascade.toml``, and each ``[[node]]``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from ttamer.cascade import CascadeSpec, split_nodes
from ttamer.errors import CascadeError
from ttamer.llm.compare import Comparison
from ttamer.llm.settings import (
    Above0,
    AtLeast0,
    EmbeddingSettings,
    NodeSettings,
    by_key,
    checked,
    comparison_of,
    read_nodes,
)

OperatingPoint = Literal["tradeoff", "mistake_cost", "budget", "error"]
Point = tuple[OperatingPoint, float]

_PROXY = "it belongs to the proxy in front, such as LiteLLM, nginx or Envoy"
_FILES = "four files of the decision log are kept, of 64 MiB each"


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[serve.audit]`` table: on which requests all nodes are asked, after the response."""

    # Of the requests, while the budget lasts
    share: Annotated[float, Meta(gt=0, le=1)]
    # The most that audits may cost in an hour, in the cascade's units
    budget: Above0 = math.inf
    # A node that decides whether the answers of audited requests are right
    judge: str = ""
    # A trace of rows that the policy was not fitted to; with it the job of drift runs
    reference: str = ""
    removed: ClassVar = by_key(
        {
            "budget_in_all": "write budget, the most that audits may cost in an hour",
            "at_once": "four audits run at once",
            "max_client_share": _PROXY,
            "log": "write log in [serve]: audited rows are in the decision log",
            "log_answers": "write log_texts in [serve]",
            "keep_rows keep_bytes keep_days": _FILES,
            "error": "write error in [serve]: it is the operating point that the loop guarantees",
            "drop": "write error in [serve]; ttamer drift can guarantee a drop",
            "confidence false_alarms refit_rows": "the job has its default; see ttamer drift",
            "shadow_rows attempts window seed": "the job has its default",
        }
    )


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The operating point, of the server or of a request: at most one of these.

    >>> Points(budget=2.0).stated
    [('budget', 2.0)]
    """

    tradeoff: Annotated[float, Meta(ge=0, le=1)] | None = None
    # The cost of a wrong answer, in the cascade's units
    mistake_cost: Above0 | None = None
    # The mean cost of a request
    budget: Above0 | None = None
    # The share of wrong answers
    error: AtLeast0 | None = None

    @property
    def stated(self) -> list[Point]:
        """Those that are stated."""
        names: tuple[OperatingPoint, ...] = get_args(OperatingPoint)
        return [(name, value) for name in names if (value := getattr(self, name)) is not None]


class ServeSettings(Points, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[serve]`` table; every key is optional."""

    # The environment variable with the bearer token of the server; without it there is none
    token_env: str = ""
    # How answers are compared: a kind, or a table with the kind and its options
    compare: Any = "normalised"
    # Which of these a request may choose for itself
    allow: tuple[OperatingPoint, ...] = ()
    # The most that one request may cost
    max_cost: Above0 | None = None
    # The seconds that a request may take; then the best answer so far is returned
    timeout: Above0 = 60.0
    # The most bytes of a request
    max_body: Annotated[int, Meta(ge=1)] = 4 * 2**20
    # The most requests at once; as many more wait, others are refused
    max_concurrent: Annotated[int, Meta(ge=1)] = 256
    # With "last" the last node's tokens are relayed though the policy might prefer an earlier
    # answer; with "whole" only where it does not.
    stream: Literal["whole", "last"] = "whole"
    # A file for the decision log: one JSON line per request
    log: str = ""
    # Whether the log holds prompts and answers; by default hashes stand for them
    log_texts: bool = False
    # With "shadow" clients get the incumbent's answer, and audits ask the other nodes
    mode: Literal["policy", "shadow"] = "policy"
    # The node that answers in shadow mode; by default the last
    incumbent: str = ""
    embeddings: EmbeddingSettings | None = None
    audit: AuditSettings | None = None
    tables: ClassVar = {"embeddings": EmbeddingSettings, "audit": AuditSettings}
    removed: ClassVar = by_key(
        {
            "keys_env keys_file": "write token_env: the one token; others belong to the proxy",
            "admin_keys_env": "SIGHUP and a changed file reload the policy; there is no /admin",
            "hosts": "without a token only requests to this machine are answered",
            "key cors max_connections max_connections_per_address hedge": _PROXY,
            "queue": "as many requests wait as max_concurrent are answered",
            "retry_after": "it is one second, or what a model's server asked for",
            "max_depth": "the parser has its own limit",
            "direct": "ask a model at its own server",
            "tradeoff_range": 'write allow = ["tradeoff"]: any value may then be asked for',
            "budget_range error_range": 'write allow = ["budget"] or "error"',
            "trace_log": "write log: it is a trace",
            "trace_log_bytes trace_log_files": _FILES,
            "log_predictions": "write log_texts",
            "otel": "set OpenTelemetry's own ASGI instrumentation up around the app",
            "speculate speculate_chance speculate_budget": "nodes are asked one after another",
            "signals": "what the policy reads of a prompt is computed",
            "keep_alive": "a stream without an answer has a comment every 10 seconds",
            "watch": "the policy's file is looked at every 2 seconds",
            "lame_duck": "write ttamer serve --lame-duck SECONDS",
            "drain": "write ttamer serve --drain SECONDS",
        }
    )


@dataclass(frozen=True)
class Settings:
    r"""A cascade and everything needed to serve it.

    >>> spec = CascadeSpec.from_toml(
    ...     "[[node]]\nname = 'small'\ncost = 1\nupstream = 'http://127.0.0.1:8081/v1'"
    ... )
    >>> Settings.of(spec).nodes["small"].cost
    1.0
    """

    spec: CascadeSpec  # with each verified answer as a node of its own
    source: CascadeSpec  # as the file has it
    serve: ServeSettings
    nodes: dict[str, NodeSettings]  # by name, as the file has them
    compare: Comparison

    @classmethod
    def of(cls, spec: CascadeSpec) -> Settings:
        """Check a cascade for serving.

        Args:
            spec: The cascade, with its ``[serve]`` table and an upstream for each node.

        Returns:
            The checked settings.

        Raises:
            CascadeError: If a key or value is not allowed, or was a setting once.
        """
        serve = checked(ServeSettings, spec.serve, "[serve]")
        nodes, compare = read_nodes(spec), comparison_of(spec)
        settings = cls(split_nodes(spec)[0], spec, serve, nodes, compare)
        for mistake in settings._mistakes():
            raise CascadeError(mistake)
        return settings

    def _mistakes(self) -> Iterator[str]:
        """Yield what is wrong with settings that are right each by itself."""
        serve, audit, names = self.serve, self.serve.audit, ", ".join(self.source.names)
        bound, points = self.source.loss_bound or 1.0, serve.stated
        if len(points) > 1:
            stated = " and ".join(name for name, _ in points)
            yield f"[serve]: has {stated}, and there is one operating point; keep one"
        if serve.error is not None and serve.error > bound:
            yield (
                f"[serve]: error is {serve.error:g}; it must be at most {bound:g}, as 0.05 for 5% "
                "of wrong answers"
            )
        if serve.incumbent and serve.incumbent not in self.source.names:
            yield f"[serve]: incumbent is {serve.incumbent!r}; the nodes are {names}"
        if serve.incumbent and serve.mode != "shadow":
            yield '[serve]: has incumbent, which needs mode = "shadow"'
        if serve.mode == "shadow" and (audit is None or not serve.log):
            yield (
                '[serve]: mode = "shadow" needs log, and [serve.audit] with the share of requests '
                "on which the other nodes are asked"
            )
        if audit is None:
            return
        if len(self.source.nodes) < 2:
            yield "[serve.audit]: needs at least two nodes; remove the table"
        if audit.judge and audit.judge not in self.source.names:
            yield f"[serve.audit]: judge is {audit.judge!r}; the nodes are {names}"
        if any(node.verify_cost is not None for node in self.source.nodes):
            yield (
                "[serve.audit]: an audited row has every node's confidence, and with verify_cost "
                "some are not asked for; remove one of them"
            )
        if not serve.log:
            yield "[serve.audit]: audited rows go to the log; set log in [serve]"
        if audit.reference and (serve.error is None or serve.mode == "shadow"):
            yield (
                "[serve.audit]: with reference the job of drift runs, which keeps a policy within "
                'an error: set error in [serve], and no mode = "shadow"'
            )

    @property
    def incumbent(self) -> str:
        """The node that answers in shadow mode."""
        return self.serve.incumbent or self.source.names[-1]


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Read and check a ``cascade.toml`` for serving.

    Args:
        path: The file.

    Returns:
        The cascade with the settings of the server and of every node.

    Raises:
        CascadeError: If the file cannot be read, or a key or value is not allowed.

    >>> read_settings("no-such-file.toml")
    Traceback (most recent call last):
    ttamer.errors.CascadeError: no-such-file.toml: cannot be read: No such file or directory
    """
    spec = CascadeSpec.from_file(path)
    try:
        return Settings.of(spec)
    except CascadeError as error:
        raise CascadeError(f"{path}: {error}") from None
