"""Asking every node once, before it is served."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from ttamer.llm.client import Client, Deadline, UpstreamFailed, open_session
from ttamer.llm.node import Usage, Work, open_nodes
from ttamer.serve.settings import Settings

QUESTION = "Reply with the letter A and nothing else."


class Probe(NamedTuple):
    """What a node answered.

    >>> print(Probe("small", 0.25, 0.9, 1.0))
    small: answered in 0.25 s, with confidence 0.9 and cost 1
    """

    node: str
    seconds: float = 0.0
    confidence: float = 0.0
    cost: float = 0.0
    lacks: str = ""
    """What the settings need and the response has not."""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return self.error
        text = f"{self.node}: answered in {self.seconds:.2f} s"
        text += f", with confidence {self.confidence:.4g} and cost {self.cost:.4g}"
        return text + (f"; the settings need {self.lacks}" if self.lacks else "")

    @property
    def is_good(self) -> bool:
        """Whether the node can be served as it is configured."""
        return not (self.error or self.lacks)


def probe(settings: Settings) -> list[Probe]:
    """Ask every node one question.

    Args:
        settings: The cascade and its settings.

    Returns:
        One result for each node, in their order.
    """
    return asyncio.run(_probe(settings))


async def _probe(settings: Settings) -> list[Probe]:
    probes = []
    async with open_session() as session:
        clients = {
            name: Client(node, session, read_errors=True) for name, node in settings.nodes.items()
        }
        nodes = open_nodes(
            settings.source, settings.nodes, lambda node: clients[node.name], settings.compare
        )
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8}
        work = Work({**body, "temperature": 0}, Deadline.after(settings.serve.timeout))
        for name, node in nodes.items():
            start = time.monotonic()
            work.usage, work.is_measured = Usage(), True
            try:
                reply = await node.ask(work)
            except UpstreamFailed as error:
                probes.append(Probe(name, error=str(error)))
                continue
            lacks = "" if work.is_measured else "usage, for cost_per_token"
            seconds = time.monotonic() - start
            probes.append(Probe(name, seconds, reply.confidence, reply.cost or 0.0, lacks))
    return probes
