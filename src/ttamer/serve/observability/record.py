"""The record of one request, which the gateway hands to every sink when the request ends.

The sinks are metrics, log, trace log, status page and spans. A record holds no prompt, no header
and no key.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ttamer.runtime.reply import NodeCall
    from ttamer.serve.bill import NodeBill

__all__ = [
    "FAILURES",
    "REFUSALS",
    "Failure",
    "Refusal",
    "RequestRecord",
    "failure_kind",
    "request_id_from",
]

Failure = Literal[
    "connect",
    "timeout",
    "refused",
    "busy",
    "error",
    "cut",
    "garbage",
    "too_large",
    "open",
    "limit",
    "budget",
    "queue",
]
"""How an upstream fails.

connect: the connection failed; timeout: no response in time; refused: a status from 400 to 499
other than 408 and 429; busy: 429 or 503; error: another status that is not 200; cut: the connection
broke; garbage: not a JSON object; too_large: more bytes than allowed; open: not called, since the
circuit breaker is open; limit, budget: not called, since the call could cost more than is left of
max_cost, or of the key's budget; queue: not called, since the node's own limit of calls is reached.
"""

FAILURES: tuple[str, ...] = (*get_args(Failure), "reply", "cancelled", "other")
"""The ways in which a node fails to answer.

Those of an upstream, then a reply that cannot be used, a call that was ended with its request, and
any other error.
"""

Refusal = Literal["process", "address", "headers", "timeout"]
"""Why a connection is closed before its request is answered.

process: the process has too many; address: its address has too many; headers: they are too large;
timeout: they were not complete in time.
"""
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
"""All of these reasons."""

IDS_AT_A_TIME = 64
"""The random ids that are made with one call to the system, which takes longer than all of them."""

_unused_ids: list[str] = []
os.register_at_fork(after_in_child=_unused_ids.clear)  # no two processes use the same ids
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestRecord(NamedTuple):
    """One request, once its last byte was sent.

    >>> RequestRecord("7f3a", "/v1/chat/completions", 200, 0.12, by="small", cost=1.0).by
    'small'
    """

    request_id: str
    endpoint: str
    """The route, never the path as it was sent."""
    status: int
    """The status sent, or 499 where the client disconnected first."""
    seconds: float
    policy: str = ""
    """The first 16 digits of the policy's version."""
    asked: Sequence[NodeCall] = ()
    """The nodes asked, in order."""
    by: str | None = None
    """The node whose answer was returned."""
    cost: float = 0.0
    """The cost of all calls, in the cascade's units."""
    capped: bool = False
    """Whether the limit on cost or time ended the request."""
    hedged: int = 0
    """How many second calls were started."""
    error: str | None = None
    """An error code of the gateway, never text from outside."""
    client: str = ""
    """The name of the API key; empty where there are no keys."""
    bill: Mapping[str, NodeBill] = {}
    """The charges of each node."""

    @property
    def estimated(self) -> float:
        """The part of the cost that is an estimate."""
        return sum([each.estimated for each in self.bill.values()])


def failure_kind(error: object) -> str:
    """Return which of :data:`FAILURES` an error is: its ``kind``, or the word before the colon.

    >>> failure_kind("timeout: no answer in 2 s"), failure_kind(TimeoutError())
    ('timeout', 'timeout')
    >>> failure_kind("sk-123")
    'other'
    """
    kind = "timeout" if isinstance(error, TimeoutError) else str(error).partition(":")[0]
    kind = getattr(error, "kind", kind)
    return kind if kind in FAILURES else "other"


def request_id_from(header: str | None) -> str:
    r"""Return the client's own id where it is short and harmless, else a new random one.

    >>> request_id_from("job-17"), len(request_id_from("a\nb"))
    ('job-17', 32)
    """
    if header is not None and _REQUEST_ID.fullmatch(header):
        return header
    try:
        return _unused_ids.pop()
    except IndexError:
        digits = os.urandom(16 * IDS_AT_A_TIME).hex()
        _unused_ids.extend(digits[k : k + 32] for k in range(32, len(digits), 32))
        return digits[:32]
