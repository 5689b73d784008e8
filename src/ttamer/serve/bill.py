"""What requests cost: every call to an upstream is a charge, booked before it is sent.

A charge is opened with the most that the call can cost, and counts as that until it is settled:

- a response with usage: the cost of the call and the price of its tokens;
- not sent, or refused by the upstream (a status from 400 to 499, or 503): nothing;
- anything else (a timeout, a broken connection, another status, a call that was cancelled, a
  response without usage): the charge stays as it was opened. Where tokens have a price it is
  marked as an estimate.

Because open charges count in full, limits on cost hold under concurrent calls too.

The most that a call can cost: a token is at least one byte, so a prompt has no more tokens than the
request has bytes; images, sounds and files count :data:`PART_TOKENS` besides. The answer has at
most the tokens that the request allows (``max_tokens``), or, where it states no limit, as many as
the longest answer of the node so far. Where a limit on cost applies and the request states none,
the number of tokens that can be paid for is sent as its limit, up to :data:`UNSTATED_TOKENS`.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ttamer.fitted.sessions import SLACK
from ttamer.serve.sse import EventSplitter, data_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ttamer.serve.accounts import Account
    from ttamer.serve.config import NodeSettings

__all__ = [
    "UNSTATED_TOKENS",
    "Bill",
    "Charge",
    "LimitReached",
    "NodeBill",
    "StreamUsage",
    "Tariff",
    "Usage",
    "answers_of",
    "output_limit",
    "shown",
]

PART_TOKENS = 4096
"""The tokens counted for an image, a sound or a file in a request, besides its bytes."""
UNSTATED_TOKENS = 4096
"""The most tokens of an answer, where cost is limited and the request states no limit.

Upstreams refuse a limit that is above their own, and a call counts as all of it while it runs.
"""
PROMPT_TOKENS = 64
"""The tokens that an upstream's prompt template may add."""
OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""The fields of a request that limit the tokens of its answer."""
MAX_TOKENS = 2**53
"""The number of tokens of one call that is not believed, as floats do not hold it exactly."""
MAX_EVENT = 1024 * 1024
"""The most bytes of one event of a stream that are searched for its usage."""

_PARTS = tuple(
    f'"type":"{kind}"'.encode()
    for kind in ("image_url", "input_image", "input_audio", "input_file", "file")
)


class LimitReached(Exception):
    """A call is not made: it could cost more than is left."""

    def __init__(self, text: str, *, of_key: bool) -> None:
        super().__init__(text)
        self.of_key = of_key
        """Whether it is the budget of the API key that is spent."""


class Usage(NamedTuple):
    """The tokens of one call."""

    prompt: int
    completion: int

    @classmethod
    def of(cls, response: Mapping[str, Any]) -> Usage | None:
        """Return the usage that a response or an event states; ``None`` where it states none.

        >>> Usage.of({"usage": {"prompt_tokens": 12, "completion_tokens": 3}})
        Usage(prompt=12, completion=3)
        """
        usage = response.get("usage")
        if not isinstance(usage, dict):
            return None
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
        if not isinstance(prompt, int) or not isinstance(completion, int):
            return None
        if not (0 <= prompt < MAX_TOKENS and 0 <= completion < MAX_TOKENS):
            return None
        return cls(int(prompt), int(completion))


class Tariff:
    """What calls to one server cost."""

    def __init__(self, settings: NodeSettings) -> None:
        self.cost = settings.cost
        tokens = settings.cost_per_token
        self.has_tokens = tokens is not None
        self._input = 0.0 if tokens is None else tokens.input
        self._output = 0.0 if tokens is None else tokens.output
        self._longest = 0

    def price(self, usage: Usage | None) -> float | None:
        """Return the cost of a call; ``None`` where it depends on tokens that are not known."""
        if not self.has_tokens:
            return self.cost
        if usage is None:
            return None
        self._longest = max(self._longest, usage.completion)
        return self.cost + self._input * usage.prompt + self._output * usage.completion

    def most(self, content: bytes, output: int | None) -> float:
        """Return the most that a call can cost, with a limit on the tokens of its answer."""
        longest = self._longest if output is None else output
        return self.cost + self._input * _prompt_tokens(content) + self._output * longest

    def affordable(self, content: bytes, left: float) -> int | None:
        """Return how many tokens of an answer can be paid for; ``None`` where they are free."""
        if self._output == 0 or left == math.inf:
            return None
        rest = left - self.cost - self._input * _prompt_tokens(content)
        return max(0, math.floor(rest / self._output))


def _prompt_tokens(content: bytes) -> int:
    parts = sum(content.count(part) for part in _PARTS)
    return len(content) + PROMPT_TOKENS + parts * PART_TOKENS


def output_limit(body: Mapping[str, Any]) -> int | None:
    """Return the most tokens that all answers to a request may have; ``None`` for no limit.

    >>> output_limit({"max_tokens": 100, "n": 2}), output_limit({})
    (200, None)
    """
    limits = [body.get(name) for name in OUTPUT_LIMITS]
    given = [limit for limit in limits if isinstance(limit, int) and limit >= 0]
    return max(given) * answers_of(body) if given else None


def answers_of(body: Mapping[str, Any]) -> int:
    """Return the number of answers to a request that are paid for.

    >>> answers_of({"n": 4}), answers_of({})
    (4, 1)
    """
    wanted = (body.get("n"), body.get("best_of"))
    return max((n for n in wanted if isinstance(n, int)), default=1)


class Charge:
    """One call to a server."""

    __slots__ = ("cost", "is_estimate", "is_sent", "node", "usage", "window")

    def __init__(self, node: str, cost: float, *, is_estimate: bool, window: int) -> None:
        self.node, self.cost, self.is_estimate = node, cost, is_estimate
        self.is_sent = False
        self.usage: Usage | None = None
        self.window = window


class NodeBill(NamedTuple):
    """The charges of one node in a request."""

    calls: int
    cost: float
    estimated: float
    """The part of the cost that is an estimate."""
    usage: Usage | None
    """The tokens of the calls whose usage is known; ``None`` where none is."""


class Bill:
    """The charges of one request.

    >>> bill = Bill(limit=12.0)
    >>> charge = bill.open("small", 5.0, is_estimate=True)
    >>> bill.settle(charge, 2.0, Usage(10, 2))
    >>> bill.cost, bill.left
    (2.0, 10.0)
    >>> bill.open("large", 11.0, is_estimate=True)
    Traceback (most recent call last):
    ttamer.serve.bill.LimitReached: the call can cost 11, and 10 of max_cost is left
    """

    __slots__ = ("_account", "_charges", "_limit", "cost")

    def __init__(self, limit: float | None = None, account: Account | None = None) -> None:
        self._limit = math.inf if limit is None else limit
        self._account = account
        self._charges: list[Charge] = []
        self.cost = 0.0
        """What all charges come to, open ones at the most they can be."""

    @property
    def left(self) -> float:
        """What may still be spent; infinite without a limit."""
        left = self._limit - self.cost
        return left if self._account is None else min(left, self._account.left)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was called."""
        return not self._charges

    @property
    def estimated(self) -> float:
        """The part of the cost that is an estimate."""
        return sum([one.cost for one in self._charges if one.is_estimate])

    def open(self, node: str, most: float, *, is_estimate: bool) -> Charge:
        """Book a call that is about to be made at the most that it can cost.

        Raises:
            LimitReached: If it could cost more than is left.
        """
        if self.cost + most > self._limit * (1 + SLACK) + SLACK:
            left = max(0.0, self._limit - self.cost)
            text = f"the call can cost {most:g}, and {left:g} of max_cost is left"
            raise LimitReached(text, of_key=False)
        account, window = self._account, 0
        if account is not None:
            reserved = account.reserve(most)
            if reserved is None:
                left = account.left
                text = f"the call can cost {most:g}, and {left:g} of the key's budget is left"
                raise LimitReached(text, of_key=True)
            window = reserved
        charge = Charge(node, most, is_estimate=is_estimate, window=window)
        self._charges.append(charge)
        self.cost += most
        return charge

    def settle(self, charge: Charge, cost: float, usage: Usage | None = None) -> None:
        """Replace the most that a call can cost by what it did cost."""
        if self._account is not None:
            self._account.settle(charge.window, charge.cost, cost)
        charge.cost, charge.usage, charge.is_estimate = cost, usage, False
        charges = self._charges
        self.cost = cost if len(charges) == 1 else math.fsum([one.cost for one in charges])

    def void(self, charge: Charge) -> None:
        """Remove a call that was not sent."""
        self.settle(charge, 0.0)
        self._charges.remove(charge)

    def book(self, node: str, cost: float, usage: Usage | None, *, is_estimate: bool) -> None:
        """Book a call that was made elsewhere, at what it cost."""
        window = 0 if self._account is None else self._account.book(cost)
        charge = Charge(node, cost, is_estimate=is_estimate, window=window)
        charge.usage = usage
        self._charges.append(charge)
        self.cost += cost

    def cost_of(self, node: str) -> float:
        """Return what the calls of a node come to."""
        return sum([one.cost for one in self._charges if one.node == node])

    def by_node(self) -> dict[str, NodeBill]:
        """Return the charges of each node, in the order of their first calls."""
        single = {
            one.node: NodeBill(1, one.cost, one.cost * one.is_estimate, one.usage)
            for one in self._charges
        }
        if len(single) == len(self._charges):  # as of most requests
            return single
        found: dict[str, list[Charge]] = {}
        for one in self._charges:
            found.setdefault(one.node, []).append(one)
        return {node: _sum(charges) for node, charges in found.items()}

    @property
    def usage(self) -> Usage | None:
        """The tokens of all calls whose usage is known; ``None`` where none is."""
        return _usage(self._charges)


@lru_cache(maxsize=1024)
def shown(cost: float) -> str:
    """Return a cost as clients see it, without the noise of adding prices.

    >>> shown(0.1 + 0.2), shown(16.4 + 2e-15)
    ('0.3', '16.4')
    """
    return f"{cost:.10g}"


def _sum(charges: list[Charge]) -> NodeBill:
    return NodeBill(
        len(charges),
        math.fsum([one.cost for one in charges]),
        math.fsum([one.cost for one in charges if one.is_estimate]),
        _usage(charges),
    )


def _usage(charges: Iterable[Charge]) -> Usage | None:
    is_known, prompt, completion = False, 0, 0
    for one in charges:
        if one.usage is not None:
            is_known = True
            prompt += one.usage.prompt
            completion += one.usage.completion
    return Usage(prompt, completion) if is_known else None


class StreamUsage:
    r"""Finds the usage in the events of a stream, and removes an event that only states it.

    >>> found = StreamUsage(keep=False)
    >>> found.feed(b'data: {"choices": [{}]}\n\ndata: {"choices": [], "usage": {"prompt_tok')
    b'data: {"choices": [{}]}\n\n'
    >>> found.feed(b'ens": 5, "completion_tokens": 2}}\n\ndata: [DONE]\n\n')
    b'data: [DONE]\n\n'
    >>> found.usage
    Usage(prompt=5, completion=2)
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._events = EventSplitter()
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Take bytes of the stream; return those to relay: whole events."""
        events = self._events.feed(chunk)
        if not events and len(self._events.rest) > MAX_EVENT:
            return self.end()
        return b"".join([each + b"\n\n" for each in events if self._is_kept(each)])

    def end(self) -> bytes:
        """Return what is left at the end of the stream."""
        rest, self._events.rest = self._events.rest, b""
        return rest if self._is_kept(rest) else b""

    def _is_kept(self, event: bytes) -> bool:
        """Read the usage of an event; return whether the event is relayed."""
        if b'"usage"' not in event:
            return True
        try:
            data = json.loads(data_of(event) or event)  # without data, a response as a whole
        except (ValueError, RecursionError):
            return True
        if not isinstance(data, dict):
            return True
        usage = Usage.of(data)
        self.usage = usage or self.usage
        return self._keep or usage is None or data.get("choices") != []
