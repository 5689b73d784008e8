"""What policies read of a request before a node is asked: its text, vectors of it, stated facts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ttamer.llm.client import Client, Deadline, UpstreamFailed
from ttamer.llm.confidence import question_text
from ttamer.serve.policies import Active


class Inputs:
    """Computes the inputs of policies; one that cannot be computed counts as not known."""

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
                    deadline = Deadline.after(self.seconds)
                    (vector,) = await self.embeddings.embed([text], deadline)
                    if len(vector) == width:
                        inputs[name] = vector
                self.failed += name not in inputs
        return inputs
