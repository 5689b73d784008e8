"""JSON as bytes: what upstreams return, and what is sent to them and to clients.

orjson takes a third of the time of Python's own module. What it refuses is left to that module:
integers beyond 64 bits to write, halves of characters, keys that are not text. Integers beyond 64
bits that are read may be floats. Requests of clients are read by
:func:`ttamer.serve.http.parse_json`, which is stricter.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ttamer.errors import MissingExtra

try:
    import orjson
except ModuleNotFoundError:
    raise MissingExtra("orjson", "serve") from None

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["decode", "encode"]


def _no_constant(token: str) -> float:
    raise ValueError(token)


_own_encode: Callable[[Any], str] = json.JSONEncoder(
    separators=(",", ":"), check_circular=False
).encode
_own_decode: Callable[[str], Any] = json.JSONDecoder(parse_constant=_no_constant).decode


def encode(data: Any) -> bytes:
    """Return a value as JSON, without spaces.

    >>> encode({"model": "small", "n": [1, 2.5]})
    b'{"model":"small","n":[1,2.5]}'
    """
    try:
        return orjson.dumps(data)
    except TypeError:
        return _own_encode(data).encode()


def decode(content: bytes) -> Any:
    """Return the value that JSON holds; NaN and infinities are refused, as JSON has none.

    Raises:
        ValueError: If it is not JSON.
        RecursionError: If it is nested too deeply.

    >>> decode(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        return orjson.loads(content)
    except ValueError:
        return _own_decode(content.decode())
