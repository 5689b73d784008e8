"""Embeddings: texts to vectors, by an upstream in OpenAI's format or by a function of the user."""

from __future__ import annotations

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ttamer._numbers import is_number
from ttamer.llm.compare import Comparer
from ttamer.llm.likeness import cosines
from ttamer.serve.bill import Usage
from ttamer.serve.config import EMBEDDINGS_NODE, NodeSettings
from ttamer.serve.upstreams.upstream import NO_REQUEST, CallContext, Upstream, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ttamer.llm.compare import Comparison
    from ttamer.serve.config import EmbeddingSettings
    from ttamer.serve.upstreams.client import HttpClient

__all__ = [
    "EMBEDDED_AT_ONCE",
    "Embedder",
    "LocalEmbedder",
    "TextVectors",
    "comparer_of",
    "vectors_from",
]

EMBEDDED_AT_ONCE = 64
"""The number of texts that a collection embeds in one call."""
MAX_KEPT = 1024
"""The number of texts whose vectors are kept in memory."""
MAX_TEXT = 20_000
"""The number of characters of a text that are embedded; the ones at the end count."""


def vectors_from(body: Mapping[str, Any], count: int) -> list[list[float]]:
    """Return the vectors of an embeddings response, in the order of the texts.

    >>> vectors_from({"data": [{"index": 0, "embedding": [0.5, 1]}]}, 1)
    [[0.5, 1.0]]

    Raises:
        UpstreamFailed: If there are not as many vectors of finite numbers.
    """
    data = body.get("data")
    if isinstance(data, list) and len(data) == count and all(isinstance(e, dict) for e in data):
        ordered = sorted(enumerate(data), key=lambda item: _index(item[1], item[0]))
        vectors = [entry.get("embedding") for _, entry in ordered]
        if all(_is_vector(vector) for vector in vectors):
            return [[float(value) for value in vector] for vector in vectors if vector]
    raise UpstreamFailed(EMBEDDINGS_NODE, "garbage", "returned no vector for each text")


def _index(entry: Mapping[str, Any], position: int) -> int:
    index = entry.get("index")
    return index if isinstance(index, int) else position


def _is_vector(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(is_number(each) and math.isfinite(each) for each in value)
    )


class TextVectors(ABC):
    """From texts to vectors; those of recent texts are kept."""

    def __init__(self) -> None:
        self.calls = 0
        """The number of calls made."""
        self.spent = 0.0
        """What they cost."""
        self._kept: OrderedDict[str, list[float]] = OrderedDict()

    async def vectors(
        self, texts: Sequence[str], context: CallContext = NO_REQUEST
    ) -> list[list[float]]:
        """Return a vector for each text.

        Raises:
            UpstreamFailed: If there are no usable vectors.
        """
        cut = [text[-MAX_TEXT:] or " " for text in texts]
        found = {text: self._kept[text] for text in cut if text in self._kept}
        new = [text for text in dict.fromkeys(cut) if text not in found]
        if new:
            self.calls += 1
            vectors = dict(zip(new, await self._embed(new, context), strict=True))
            found |= vectors
            self._kept.update(vectors)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return [found[text] for text in cut]

    @abstractmethod
    async def _embed(self, texts: list[str], context: CallContext) -> list[list[float]]:
        """Return a vector for each text, by a call."""


class LocalEmbedder(TextVectors):
    """Embeds texts by a function: from a list of texts to a vector for each, plain or async."""

    def __init__(self, embed: Callable[[list[str]], Any]) -> None:
        super().__init__()
        self._function = embed

    async def _embed(self, texts: list[str], context: CallContext) -> list[list[float]]:
        del context
        try:
            if inspect.iscoroutinefunction(self._function):
                found = await self._function(texts)
            else:
                found = await asyncio.to_thread(self._function, texts)
            data = [{"embedding": [float(each) for each in vector]} for vector in found]
        except Exception as error:  # a model of the user may raise anything
            raise UpstreamFailed(EMBEDDINGS_NODE, "error", f"raised {error!r}") from error
        return vectors_from({"data": data}, len(texts))


class Embedder(TextVectors):
    """Calls an embeddings upstream.

    ::

        async with HttpClient() as client:
            (vector,) = await Embedder(settings.serve.embeddings, client).vectors(["2 + 2?"])
    """

    def __init__(
        self,
        settings: EmbeddingSettings,
        client: HttpClient,
        *,
        read_errors: bool = False,
    ) -> None:
        super().__init__()
        self.settings = settings
        node = NodeSettings(
            EMBEDDINGS_NODE,
            settings.cost,
            settings.upstream,
            settings.model,
            key_env=settings.key_env,
            timeout=settings.timeout,
            max_response=settings.max_response,
            cost_per_token=settings.cost_per_token,
        )
        self.upstream = Upstream(node, client, read_errors=read_errors)

    async def _embed(self, texts: list[str], context: CallContext) -> list[list[float]]:
        response = await self.upstream.call("/embeddings", {"input": texts}, context)
        cost = self.upstream.tariff.price(Usage.of(response.body))
        self.spent += self.settings.cost if cost is None else cost
        return vectors_from(response.body, len(texts))


def comparer_of(rule: Comparison, texts: TextVectors | None, context: CallContext) -> Comparer:
    """Return the comparer of a rule; the context is that of its calls for embeddings.

    Raises:
        ArgumentError: If the rule needs embeddings or a threshold, and there are none.
    """
    if rule.kind != "embedding" or texts is None:
        return Comparer(rule)

    async def embed(given: list[str]) -> list[list[float]]:
        return await texts.vectors(given, context)

    return Comparer(rule, cosines(embed))
