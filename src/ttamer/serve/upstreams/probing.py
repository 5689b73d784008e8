"""Ask every upstream once, and report what its response lacks."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ttamer.llm.confidence import (
    Unreadable,
    answer_text,
    field_value,
    margin_of_tokens,
    probability_of_answer,
    report_request,
    reported_confidence,
)
from ttamer.serve.config import EMBEDDINGS_NODE
from ttamer.serve.upstreams.client import HttpClient
from ttamer.serve.upstreams.embedding import Embedder
from ttamer.serve.upstreams.node import with_logprobs
from ttamer.serve.upstreams.upstream import Upstream, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ttamer.serve.config import EmbeddingSettings, NodeSettings, Settings

__all__ = ["Endpoint", "Probe", "probe"]

Endpoint = Literal["chat", "completions", "classify"]
"""The endpoint that upstreams are asked at."""

QUESTION = "Reply with the letter A and nothing else."
"""What every upstream is asked."""
MAX_TOKENS = 8
"""The most tokens of the answer."""
_FIELDS = {"max_tokens": MAX_TOKENS, "temperature": 0}  # as ttamer collect sends them
_ASK: dict[Endpoint, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"messages": [{"role": "user", "content": QUESTION}], **_FIELDS}),
    "completions": ("/completions", {"prompt": QUESTION, **_FIELDS}),
    "classify": ("/classify", {"input": QUESTION}),
}


@dataclass(frozen=True)
class Probe:
    """What one server answered.

    >>> print(Probe("small", "http://127.0.0.1:8081/v1", 0.25, lacks=("usage",)))
    small at http://127.0.0.1:8081/v1: answered in 0.25 s; lacks usage
    """

    node: str
    server: str
    seconds: float = 0.0
    lacks: tuple[str, ...] = ()
    """What the response has not, whether the settings need it or not."""
    needs: tuple[str, ...] = ()
    """What the settings need and the response has not."""
    error: str | None = None
    """Why there was no response."""

    @property
    def ok(self) -> bool:
        """Whether the node can be served as it is configured."""
        return self.error is None and not self.needs

    def __str__(self) -> str:
        where = f"{self.node} at {self.server}"
        if self.error is not None:
            return f"{where}: failed: {self.error}"
        text = f"{where}: answered in {self.seconds:.2f} s"
        text += f"; lacks {', '.join(self.lacks)}" if self.lacks else "; lacks nothing"
        if self.needs:
            text += f"; the settings need {', '.join(self.needs)}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**dataclasses.asdict(self), "ok": self.ok}


async def probe(settings: Settings, endpoint: Endpoint = "chat") -> list[Probe]:
    """Ask every server of every node once, fallbacks and the embeddings upstream included.

    Args:
        settings: The cascade and its settings.
        endpoint: Where to ask.

    Returns:
        One result per server, in the order of the nodes.
    """
    results = []
    async with HttpClient() as client:
        for node in settings.nodes.values():
            for server in node.servers:
                alone = dataclasses.replace(node, upstream=server, fallback=None, retries=0)
                results.append(await _probe(alone, client, endpoint))
        if settings.serve.embeddings is not None:
            results.append(await _probe_embeddings(settings.serve.embeddings, client))
    return results


async def _probe_embeddings(settings: EmbeddingSettings, client: HttpClient) -> Probe:
    """Ask the embeddings upstream for one vector."""
    start = time.monotonic()
    try:
        await Embedder(settings, client, read_errors=True).vectors([QUESTION])
    except UpstreamFailed as error:
        return Probe(EMBEDDINGS_NODE, settings.upstream, error=_failure(error))
    return Probe(EMBEDDINGS_NODE, settings.upstream, time.monotonic() - start)


async def _probe(node: NodeSettings, client: HttpClient, endpoint: Endpoint) -> Probe:
    path, body = _ASK[endpoint]
    if node.needs_logprobs:
        body = with_logprobs(path, body, top=node.needs_alternatives)
    server = str(node.upstream)
    try:
        response = await Upstream(node, client, read_errors=True).call(path, body)
    except UpstreamFailed as error:
        return Probe(node.name, server, error=_failure(error))
    found = response.body
    usage = found.get("usage")
    has_usage = isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int)
    has_tokens = _can(lambda: probability_of_answer(found))
    parts = {
        "an answer": (_can(lambda: answer_text(found, node.answer)), True),
        "log-probabilities": (has_tokens, node.needs_logprobs),
        "log-probabilities of likely tokens": (
            _can(lambda: margin_of_tokens(found)),
            node.needs_alternatives,
        ),
        f"the field {node.field}": (
            node.field is None or _can(lambda: field_value(found, node.field or "")),
            node.field is not None,
        ),
        "usage": (has_usage, node.cost_per_token is not None),
    }
    asked = {"log-probabilities": node.needs_logprobs,
             "log-probabilities of likely tokens": node.needs_alternatives}  # fmt: skip
    if node.confidence == "self-report" and endpoint == "chat":
        parts["a number as self-report"] = (await _reports(node, client), True)
    lacks = tuple(name for name, (has, _) in parts.items() if not has and asked.get(name, True))
    needs = tuple(name for name, (has, needed) in parts.items() if needed and not has)
    return Probe(node.name, server, response.seconds, lacks, needs)


async def _reports(node: NodeSettings, client: HttpClient) -> bool:
    """Return whether a server reports how sure it is."""
    try:
        response = await Upstream(node, client).call(
            "/chat/completions", report_request(QUESTION, "A")
        )
    except UpstreamFailed:
        return False
    return _can(lambda: reported_confidence(response.body))


def _failure(error: UpstreamFailed) -> str:
    """Return a failure in the upstream's words, with the setting to change if it is known."""
    text = f"{error}: {error.upstream_text}" if error.upstream_text else str(error)
    return f"{text.rstrip('.')}; {error.remedy}" if error.remedy else text


def _can(read: Callable[[], object]) -> bool:
    """Return whether a part of a response can be read."""
    try:
        read()
    except Unreadable:
        return False
    return True
