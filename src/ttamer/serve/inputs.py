"""What policies read of a request before a node is asked: its text, vectors of it, stated facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ttamer.llm.client import Client, Deadline, UpstreamFailed
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.likeness import vectors_from
from ttamer.serve.policies import Active


class Inputs:
    """Computes the inputs of policies; one that cannot be computed counts as not known."""

    max_text = 20_000  # characters of a text that are embedded; those at the end count
    seconds = 2.0  # that a request waits for an embedding; the client learns a lower limit

    def __init__(self) -> None:
        self.embeddings: Client | None = None
        """The upstream of embeddings, while the server runs."""
        self.failed = 0
        """How often there was no embedding in time."""

    async def of(
        self, body: Mapping[str, Any], active: Active, stated: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return the inputs that a policy reads; ``None`` where it reads none.

        Args:
            body: The request.
            active: The policy in service.
            stated: What the request says of itself, by name.
        """
        if not active.reads:
            return None
        inputs = {name: value for name, value in (stated or {}).items() if name in active.reads}
        text = question_text(body)
        if "prompt" in active.reads:
            inputs["prompt"] = text
        for name, width in active.vectors.items():
            if name not in inputs and self.embeddings is not None:
                with suppress(UpstreamFailed):
                    (vector,) = await self.embed([text], Deadline.after(self.seconds))
                    if len(vector) == width:
                        inputs[name] = vector
                self.failed += name not in inputs
        return inputs

    async def embed(
        self, texts: Sequence[str], deadline: Deadline | None = None
    ) -> list[list[float]]:
        """Return a vector for each text.

        Raises:
            UpstreamFailed: If there is no such response.
        """
        if self.embeddings is None:
            raise UpstreamFailed("embeddings", "connect", "are not configured")
        body = {"input": [text[-self.max_text :] or " " for text in texts]}
        response = await self.embeddings.complete(
            body, deadline or Deadline.after(5), path="/embeddings"
        )
        try:
            return vectors_from(response.body, len(texts))
        except Unreadable as error:
            raise UpstreamFailed("embeddings", "garbage", str(error)) from None
