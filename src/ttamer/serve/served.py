"""What one request did, as those who watch the gateway need to know it.

The gateway makes one :class:`Served` at the very end of a request and gives it to every sink
(metrics, log, trace log, status). It holds no prompt, no header and no key.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KINDS", "AskedNode", "Served", "kind_of", "request_id_from"]

KINDS = (
    "connect",
    "timeout",
    "refused",
    "busy",
    "error",
    "cut",
    "garbage",
    "too_large",
    "reply",
    "other",
)
"""The ways in which a node fails to answer: those of :data:`ttamer.serve.upstream.Failure`, then a
reply that cannot be used, then all else."""

_RANDOM = random.Random()  # noqa: S311 - an id tells requests apart, and keeps no secret
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class AskedNode(Protocol):
    """What came of asking one node."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def prediction(self) -> object:
        """What it answered, as answers are compared."""

    @property
    def confidence(self) -> float | None:
        """How sure it was."""

    @property
    def cost(self) -> float:
        """What asking it cost."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def error(self) -> object | None:
        """Why there is no answer, as "kind: text"; ``None`` where there is one."""


class Served(NamedTuple):
    """One request, once its last byte was sent.

    >>> Served("7f3a", "/v1/chat/completions", 200, 0.12, by="small", cost=1.0).by
    'small'
    """

    request_id: str
    endpoint: str
    """The route, never the path as it was sent."""
    status: int
    """What was sent; 499 where the client went away before."""
    seconds: float
    policy: str = ""
    """The first 16 digits of the policy's version."""
    asked: Sequence[AskedNode] = ()
    by: str | None = None
    """The node whose answer was returned."""
    cost: float = 0.0
    capped: bool = False
    """Whether the hard cap on cost or time ended it."""
    hedged: int = 0
    """How many second calls were started."""
    error: str | None = None
    """A fixed word of ours, never text from outside."""


def kind_of(error: object) -> str:
    """Return which of :data:`KINDS` an error is: its ``kind``, or the word before the colon.

    >>> kind_of("timeout: no answer after 2 s"), kind_of(TimeoutError()), kind_of("sk-123")
    ('timeout', 'timeout', 'other')
    """
    kind = "timeout" if isinstance(error, TimeoutError) else str(error).partition(":")[0]
    kind = getattr(error, "kind", kind)
    return kind if kind in KINDS else "other"


def request_id_from(header: str | None) -> str:
    r"""Return the client's own id where it is short and harmless, else a new one.

    >>> request_id_from("job-17"), len(request_id_from("a\nb"))
    ('job-17', 32)
    """
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    return f"{_RANDOM.getrandbits(128):032x}"
