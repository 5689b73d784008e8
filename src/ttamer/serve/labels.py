"""``/v1/labels``: the right answer to a request, told when it is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ttamer.serve.comparing import prediction_of
from ttamer.serve.limits import parse_json, read_body
from ttamer.serve.refusing import Rejected, SlowBody, check_content_type
from ttamer.serve.schemas import LABEL, check

if TYPE_CHECKING:
    from ttamer.serve.exchange import Exchange
    from ttamer.serve.gateway import Gateway

__all__ = ["take_label"]


async def take_label(gateway: Gateway, exchange: Exchange) -> None:
    """Give a label to the row of a request, if that was audited; say whether it was.

    Who sends labels need not know which requests are audited.
    """
    serve = gateway.settings.serve
    assert gateway.auditing is not None  # noqa: S101 - only then is there such a door
    check_content_type(exchange)
    length = exchange.header(b"content-length")
    try:
        async with asyncio.timeout(serve.timeout):
            body = await read_body(exchange.receive, most=serve.max_body, content_length=length)
    except TimeoutError:
        raise SlowBody from None
    data = parse_json(body, deepest=serve.max_depth)
    check(data, LABEL)
    label = prediction_of(data["label"], serve.compare)
    if label is None:
        text = f"the label says nothing, as answers are compared here ({serve.compare})"
        raise Rejected(400, "bad_label", text, "label")
    is_taken = gateway.auditing.label(data["request"], label)
    await exchange.send_json(200, {"request": data["request"], "audited": is_taken})
