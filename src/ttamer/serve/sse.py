"""Server-sent events: one event as bytes, and a stream of bytes as events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DONE", "EVENT_STREAM", "EventSplitter", "data_of", "event_of"]

EVENT_STREAM = "text/event-stream"
"""The content type of a stream of events."""
DONE = b"data: [DONE]\n\n"
"""The event that ends a stream in OpenAI's format."""


def event_of(data: Mapping[str, Any], name: str = "") -> bytes:
    r"""Return an event with a JSON object, and with a name if there is one.

    >>> event_of({"type": "ping"}, "ping")
    b'event: ping\ndata: {"type": "ping"}\n\n'
    """
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + json.dumps(data).encode() + b"\n\n"


def data_of(event: bytes) -> bytes:
    r"""Return the data of an event; empty for a comment.

    >>> data_of(b'id: 7\ndata: {"n":\ndata: 1}')
    b'{"n":\n1}'
    """
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


class EventSplitter:
    r"""Splits the bytes of a stream into whole events, wherever they are cut.

    >>> events = EventSplitter()
    >>> events.feed(b"data: 1\r\n\r"), events.feed(b"\ndata: 2")
    ([], [b'data: 1'])
    >>> events.rest
    b'data: 2'
    """

    def __init__(self) -> None:
        self.rest = b""
        """The bytes of an event that is not complete."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take bytes; return the complete events, without the blank lines after them."""
        *events, self.rest = (self.rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        return events
