"""What is known of a prompt before any node is asked, where the policy reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ttamer.llm.client import Client, Deadline, UpstreamFailed
from ttamer.llm.confidence import Unreadable, question_text
from ttamer.llm.likeness import vectors_from
from ttamer.serve.policies import Active

MAX_TEXT = 20_000  # characters of a text that are embedded; those at the end count


class Prompts:
    """Computes the inputs of policies from the bodies of requests."""

    def __init__(self) -> None:
        self.embeddings: Client | None = None
        """The upstream of embeddings, while the server runs."""

    def inputs(self, body: Mapping[str, Any], active: Active) -> dict[str, Any] | None:
        """Return the inputs that a policy reads; ``None`` where it reads none."""
        return {"prompt": question_text(body)} if "prompt" in active.reads else None

    async def embed(
        self, texts: Sequence[str], deadline: Deadline | None = None
    ) -> list[list[float]]:
        """Return a vector for each text.

        Raises:
            UpstreamFailed: If there is no such response.
        """
        if self.embeddings is None:
            raise UpstreamFailed("embeddings", "connect", "are not configured")
        wanted = {"input": [text[-MAX_TEXT:] or " " for text in texts]}
        response = await self.embeddings.complete(
            wanted, deadline or Deadline.after(5), path="/embeddings"
        )
        try:
            return vectors_from(response.body, len(texts))
        except Unreadable as error:
            raise UpstreamFailed("embeddings", "garbage", str(error)) from None
