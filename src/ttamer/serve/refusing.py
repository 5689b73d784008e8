"""Saying no: who has no key, and how a refusal is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ttamer.serve.chat import error_body, error_of
from ttamer.serve.limits import Busy, Refused

if TYPE_CHECKING:
    from ttamer.serve.exchange import Exchange
    from ttamer.serve.keys import Keys

__all__ = ["INTERNAL", "Rejected", "check_key", "send_refusal"]

INTERNAL = error_body(500, "something went wrong here; it was logged", "internal")


class Rejected(Refused):
    """A refusal with its status said in place."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def check_key(keys: Keys | None, exchange: Exchange) -> None:
    """Refuse a request without one of the keys, where there are any."""
    if keys is not None and not keys.admit(exchange.header(b"authorization")):
        exchange.more_headers["www-authenticate"] = "Bearer"
        raise Rejected(401, "invalid_api_key", "an API key is needed: Authorization: Bearer KEY")


async def send_refusal(exchange: Exchange, error: Refused) -> None:
    """Send a refusal in OpenAI's shape."""
    headers = {"retry-after": str(error.retry_after)} if isinstance(error, Busy) else {}
    await exchange.send_json(error.status, error_of(error), headers)
