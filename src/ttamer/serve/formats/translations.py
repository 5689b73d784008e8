"""Endpoints whose requests are translated to chat completions, and their answers back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ttamer.serve.formats.messages import (
    MessageEvents,
    chat_from_request,
    message_from,
)
from ttamer.serve.formats.openai import MESSAGES, RESPONSES
from ttamer.serve.formats.responses import ResponseEvents, chat_body, response_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["TRANSLATIONS", "Translation"]


class AnswerEvents(Protocol):
    """The events of a streamed answer."""

    def start(self) -> Iterator[bytes]:
        """Yield the events with which it begins."""

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the events of a chunk of a chat completion."""

    def end(self) -> Iterator[bytes]:
        """Yield the events with which it ends."""


@dataclass(frozen=True)
class Translation:
    """How the format of an endpoint is translated to chat completions, and back."""

    chat: Callable[[Mapping[str, Any]], dict[str, Any]]
    """From a request to one for chat completions."""
    answer: Callable[[Mapping[str, Any], str], dict[str, Any]]
    """From a chat completion and the request's id to an answer."""
    events: Callable[[str, str], AnswerEvents]
    """From the request's id and the node to the events of a stream."""


TRANSLATIONS = {
    RESPONSES.path: Translation(chat_body, response_from, ResponseEvents),
    MESSAGES.path: Translation(chat_from_request, message_from, MessageEvents),
}
"""The translation of each such endpoint, by its path."""
