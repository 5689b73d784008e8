"""Saying no: who has no key, and how a refusal is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttamer.serve.chat import error_body, error_of
from ttamer.serve.limits import Busy, Refused

if TYPE_CHECKING:
    from ttamer.serve.exchange import Exchange
    from ttamer.serve.keys import Keys

__all__ = [
    "INTERNAL",
    "Rejected",
    "SlowBody",
    "check_content_type",
    "check_key",
    "send_refusal",
]

INTERNAL = error_body(500, "something went wrong here; it was logged", "internal")


class Rejected(Refused):
    """A refusal with its status said in place."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class SlowBody(Refused):
    """The body did not come in time."""

    status, code = 408, "request_timeout"

    def __init__(self) -> None:
        super().__init__("the body did not come in time")


def check_key(keys: Keys | None, exchange: Exchange) -> None:
    """Refuse a request without one of the keys, where there are any."""
    if keys is not None and not keys.admit(exchange.header(b"authorization")):
        exchange.more_headers["www-authenticate"] = "Bearer"
        raise Rejected(401, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY")


def check_content_type(exchange: Exchange) -> None:
    """Refuse a body that is not declared as JSON."""
    content_type = exchange.header(b"content-type") or ""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Rejected(415, "unsupported_media_type", "send application/json")


async def send_refusal(exchange: Exchange, error: Refused) -> None:
    """Send a refusal in OpenAI's shape."""
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, Busy) else {}
    await exchange.send_json(error.status, error_of(error), headers)
