"""An embeddings upstream: texts to vectors, in OpenAI's format."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ttamer._numbers import is_number
from ttamer.serve.config import EMBEDDINGS_NODE, NodeSettings
from ttamer.serve.upstream import Upstream, UpstreamFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ttamer.serve.bill import Bill
    from ttamer.serve.client import HttpClient
    from ttamer.serve.config import EmbeddingSettings

__all__ = ["Embedder", "vectors_from"]

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


class Embedder:
    """Calls an embeddings upstream; the vectors of recent texts are kept.

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
        self.settings = settings
        self.calls = 0
        """The number of calls made."""
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
        self._kept: OrderedDict[str, list[float]] = OrderedDict()

    async def vectors(
        self, texts: Sequence[str], *, timeout: float | None = None, bill: Bill | None = None
    ) -> list[list[float]]:
        """Return a vector for each text; a call is booked on the bill.

        Raises:
            UpstreamFailed: If the upstream returned no usable vectors.
        """
        cut = [text[-MAX_TEXT:] or " " for text in texts]
        new = [text for text in dict.fromkeys(cut) if text not in self._kept]
        found: dict[str, list[float]] = {}
        if new:
            self.calls += 1
            response = await self.upstream.call(
                "/embeddings", {"input": new}, timeout=timeout, bill=bill
            )
            found = dict(zip(new, vectors_from(response.body, len(new)), strict=True))
        vectors = [found.get(text) or self._kept[text] for text in cut]
        self._kept.update(found)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return vectors
