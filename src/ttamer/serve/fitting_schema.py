"""Whether a value is as a schema says: the quick yes, made once from the schema.

It says the same as :func:`ttamer.serve.schemas.check`, which finds out what is wrong and where.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ttamer.serve.schemas import Schema

    Test = Callable[[Any], bool]

__all__ = ["fits"]


def fits(schema: Schema) -> Test:
    """Return what says whether a value that JSON can hold is as the schema says.

    >>> short = fits({"type": ["string", "null"], "maxLength": 3})
    >>> short("abc"), short(None), short("abcd"), short(1)
    (True, True, False, False)
    """
    if "anyOf" in schema:
        ways = tuple(fits(one) for one in schema["anyOf"])
        return lambda value: any(way(value) for way in ways)
    kinds = schema.get("type", ())
    tests: dict[type, Test] = {}
    for kind in (kinds,) if isinstance(kinds, str) else kinds:
        test = _MAKERS[kind](schema)
        tests |= dict.fromkeys(_TYPES[kind], test)
    enum = schema.get("enum")

    def fit(value: Any) -> bool:
        test = tests.get(type(value))
        return test is not None and test(value) and (enum is None or value in enum)

    return fit if tests else _anything


def _anything(_: Any) -> bool:
    return True


def _object(schema: Schema) -> Test:
    required = frozenset(schema.get("required", ()))
    fields = {name: fits(one) for name, one in schema.get("properties", {}).items()}
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
    others = schema.get("additionalProperties") is not False

    def test(value: dict[str, Any]) -> bool:
        if not required <= value.keys() or not least <= len(value) <= most:
            return False
        for name, item in value.items():
            field = fields.get(name)
            if not (others if field is None else field(item)):
                return False
        return True

    return test


def _array(schema: Schema) -> Test:
    item = fits(schema.get("items", {}))
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    return lambda value: least <= len(value) <= most and all(map(item, value))


def _string(schema: Schema) -> Test:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    return lambda value: least <= len(value) <= most


def _number(schema: Schema) -> Test:
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    return lambda value: least <= value <= most


def _integer(schema: Schema) -> Test:
    number = _number(schema)
    return lambda value: number(value) and value == int(value)


_MAKERS: dict[str, Callable[[Schema], Test]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "integer": _integer,
    "boolean": lambda _: _anything,
    "null": lambda _: _anything,
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
