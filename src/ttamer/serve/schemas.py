"""What requests may look like: one description, both published and enforced.

The schemas are JSON Schema as OpenAPI 3.1 has it, of the few words that :func:`check` knows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ttamer.serve.limits import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHAT", "CLASSIFY", "COMPLETION", "LABEL", "BadField", "check"]

Schema = dict[str, Any]


class BadField(Refused):
    """A field of the request is not what it may be."""

    code = "bad_field"

    def __init__(self, param: str | None, wanted: str) -> None:
        super().__init__(f"{param or 'the body'} must be {wanted}")
        self.param = param


def check(value: Any, schema: Schema, place: str = "") -> None:
    """Raise :class:`BadField`, naming the place, unless the value is as the schema says.

    >>> check({"model": "ttamer", "messages": []}, CHAT)
    Traceback (most recent call last):
    ttamer.serve.schemas.BadField: messages must be a list of at least 1 item
    """
    if "anyOf" in schema:
        _check_any(value, schema["anyOf"], place)
        return
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        raise BadField(place or None, _wanted(schema, kinds))
    if "enum" in schema and value not in schema["enum"]:
        raise BadField(place, " or ".join(map(repr, schema["enum"])))
    if isinstance(value, str):
        _check_size(len(value), schema, "Length", place, kinds)
    elif isinstance(value, list):
        _check_size(len(value), schema, "Items", place, kinds)
        for number, item in enumerate(value):
            check(item, schema.get("items", {}), f"{place}.{number}" if place else str(number))
    elif isinstance(value, dict):
        _check_object(value, schema, place)
    elif _is_number(value):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            raise BadField(place, _wanted(schema, kinds))


def _check_any(value: Any, schemas: list[Schema], place: str) -> None:
    """Take it if one of them does; the error is that of the one that went deepest."""
    deepest: BadField | None = None
    for schema in schemas:
        try:
            check(value, schema, place)
        except BadField as error:
            if deepest is None or len(error.param or "") > len(deepest.param or ""):
                deepest = error
        else:
            return
    if deepest is not None:
        raise deepest


def _check_object(value: dict[str, Any], schema: Schema, place: str) -> None:
    dot = f"{place}." if place else ""
    for name in schema.get("required", ()):
        if name not in value:
            raise BadField(f"{dot}{name}", "given")
    fields = schema.get("properties", {})
    for name, item in value.items():
        if name in fields:
            check(item, fields[name], f"{dot}{name}")
        elif schema.get("additionalProperties") is False:
            raise BadField(place or None, f"an object of {', '.join(fields)} and nothing else")
    if len(value) < schema.get("minProperties", 0) or len(value) > schema.get(
        "maxProperties", math.inf
    ):
        raise BadField(place or None, f"an object with one of {', '.join(fields)}")


def _check_size(size: int, schema: Schema, what: str, place: str, kinds: tuple[str, ...]) -> None:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", math.inf):
        raise BadField(place, _wanted(schema, kinds))


def _wanted(schema: Schema, kinds: tuple[str, ...]) -> str:
    """Say in words what a schema takes."""
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f" from {least}"
    bounds += "" if most is None else f" to {most}"
    words = []
    for kind in kinds:
        word = _WORDS[kind]
        if kind in ("number", "integer"):
            word += bounds
        elif kind == "array" and schema.get("minItems"):
            count = schema["minItems"]
            exact = "exactly" if schema.get("maxItems") == count else "at least"
            word += f" of {exact} {count} item{'s' * (count > 1)}"
        elif kind == "string" and schema.get("minLength"):
            word = "text that is not empty"
        words.append(word)
    return " or ".join(words)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
    "null": lambda value: value is None,
}
_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "null": "null",
}

_MODEL: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_CHOICE: Schema = {
    "type": "object",
    "description": "Where to stand between error and cost, if the operator allows it.",
    "properties": {
        "tradeoff": {"type": "number", "minimum": 0, "maximum": 1},
        "budget": {"type": "number", "minimum": 0},
        "error": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "additionalProperties": False,
    "maxProperties": 1,
}
_SAMPLING: Schema = {
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 1},
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": {"type": ["boolean", "null"]}},
    },
    "ttamer": _CHOICE,
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {
            "type": "string",
            "enum": ["system", "developer", "user", "assistant", "tool", "function"],
        },
        "content": {
            "anyOf": [
                {"type": ["string", "null"]},
                {"type": "array", "items": {"type": "object"}},
            ]
        },
    },
}

LABEL: Schema = {
    "type": "object",
    "required": ["request", "label"],
    "properties": {
        "request": {"type": "string", "minLength": 1, "maxLength": 64},
        "label": {"type": "string", "minLength": 1, "maxLength": 65536},
    },
    "additionalProperties": False,
}
CHAT: Schema = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": _MODEL,
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
        "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
        **_SAMPLING,
    },
}
COMPLETION: Schema = {
    "type": "object",
    "required": ["model", "prompt"],
    "properties": {
        "model": _MODEL,
        "prompt": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string"}},
            ]
        },
        "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 5},
        "best_of": {"type": ["integer", "null"], "minimum": 1, "maximum": 1},
        **_SAMPLING,
    },
}
CLASSIFY: Schema = {
    "type": "object",
    "required": ["input"],
    "properties": {"model": _MODEL, "input": {"type": "string"}, "ttamer": _CHOICE},
}
