"""The JSON schemas of request bodies: one description, both published and enforced.

The schemas are JSON Schema as in OpenAPI 3.1, with the keywords that :func:`compile_schema`
supports. A schema is compiled once into a validator, which returns ``None`` for a valid value and
otherwise where the value is wrong and what is expected there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ttamer.serve.http import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable

    Validator = Callable[[Any], "Violation | None"]

__all__ = ["CHAT", "CLASSIFY", "COMPLETION", "EMBEDDING", "LABEL", "MESSAGE", "RESPONSE",
           "TOOL_CALL", "BadField", "check", "compile_schema"]  # fmt: skip

Schema = dict[str, Any]


class BadField(HttpError):
    """A field of the request does not match the schema."""

    code = "bad_field"

    def __init__(self, param: str | None, expected: str) -> None:
        super().__init__(f"{param or 'the body'} must be {expected}", param=param)


class Violation(NamedTuple):
    """Where a value is wrong, innermost key first, and what is expected there."""

    path: list[str]
    expected: str

    def within(self, key: str) -> Violation:
        """Return the same violation, seen from the list or object that holds the value."""
        self.path.append(key)
        return self

    @property
    def place(self) -> str:
        """The dotted path to the value; empty for the value itself."""
        return ".".join(reversed(self.path))


def check(value: Any, validator: Validator) -> None:
    """Raise :class:`BadField`, which names the field, unless the value is valid.

    >>> check({"model": "ttamer", "messages": []}, compile_schema(CHAT))
    Traceback (most recent call last):
    ttamer.serve.formats.schemas.BadField: messages must be a list of at least 1 item
    """
    violation = validator(value)
    if violation is not None:
        raise BadField(violation.place or None, violation.expected)


def compile_schema(schema: Schema) -> Validator:
    """Return the validator of a schema, for values that JSON can hold.

    >>> short = compile_schema({"type": ["string", "null"], "maxLength": 3})
    >>> short("abc"), short(None)
    (None, None)
    >>> short("abcd").expected
    'text or null'
    """
    if "anyOf" in schema:
        return _any_of([compile_schema(each) for each in schema["anyOf"]])
    types = schema.get("type", ())
    types = (types,) if isinstance(types, str) else tuple(types)
    expected = _expected(schema, types)
    validators: dict[type, Validator] = {}
    for name in types:
        validator = _COMPILERS[name](schema, expected)
        validators |= dict.fromkeys(_PYTHON_TYPES[name], validator)
    enum = schema.get("enum")

    def validate(value: Any) -> Violation | None:
        validator = validators.get(type(value))
        if validator is None:
            return Violation([], expected)
        if enum is not None and value not in enum:
            return Violation([], " or ".join(map(repr, enum)))
        return None if validator is _accept else validator(value)

    return validate if validators else _accept


def _accept(_: Any) -> None:
    return None


def _any_of(validators: list[Validator]) -> Validator:
    """Accept what one of them accepts; report the violation that lies deepest."""

    def validate(value: Any) -> Violation | None:
        deepest: Violation | None = None
        for validator in validators:
            violation = validator(value)
            if violation is None:
                return None
            if deepest is None or len(violation.place) > len(deepest.place):
                deepest = violation
        return deepest

    return validate


def _object(schema: Schema, expected: str) -> Validator:
    del expected
    required = schema.get("required", ())
    fields = {name: compile_schema(each) for name, each in schema.get("properties", {}).items()}
    low, high = schema.get("minProperties", 0), schema.get("maxProperties", sys.maxsize)
    is_closed = schema.get("additionalProperties") is False

    def validate(value: dict[str, Any]) -> Violation | None:
        for name in required:
            if name not in value:
                return Violation([name], "given")
        for name, item in value.items():
            field = fields.get(name)
            if field is not None:
                violation = field(item)
                if violation is not None:
                    return violation.within(name)
            elif is_closed:
                return Violation([], f"an object of {', '.join(fields)} and nothing else")
        if not low <= len(value) <= high:
            return Violation([], f"an object with one of {', '.join(fields)}")
        return None

    return validate


def _array(schema: Schema, expected: str) -> Validator:
    item = compile_schema(schema.get("items", {}))
    low, high = schema.get("minItems", 0), schema.get("maxItems", sys.maxsize)

    def validate(value: list[Any]) -> Violation | None:
        if not low <= len(value) <= high:
            return Violation([], expected)
        for number, each in enumerate(value):
            violation = item(each)
            if violation is not None:
                return violation.within(str(number))
        return None

    return validate


def _string(schema: Schema, expected: str) -> Validator:
    low, high = schema.get("minLength", 0), schema.get("maxLength", sys.maxsize)
    if low == 0 and high == sys.maxsize:
        return _accept
    return lambda value: None if low <= len(value) <= high else Violation([], expected)


def _number(schema: Schema, expected: str) -> Validator:
    # The bounds of a float: JSON can hold integers that are larger.
    low = schema.get("minimum", -sys.float_info.max)
    high = schema.get("maximum", sys.float_info.max)
    return lambda value: None if low <= value <= high else Violation([], expected)


def _integer(schema: Schema, expected: str) -> Validator:
    number = _number(schema, expected)
    return lambda value: number(value) if value == int(value) else Violation([], expected)


def _anything(schema: Schema, expected: str) -> Validator:
    del schema, expected
    return _accept


def _expected(schema: Schema, types: tuple[str, ...]) -> str:
    """Describe in words what a schema accepts."""
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = "" if low is None else f" from {low}"
    bounds += "" if high is None else f" to {high}"
    words = []
    for name in types:
        word = _WORDS[name]
        if name in ("number", "integer"):
            word += bounds
        elif name == "array" and schema.get("minItems"):
            count = schema["minItems"]
            exact = "exactly" if schema.get("maxItems") == count else "at least"
            word += f" of {exact} {count} item{'s' * (count > 1)}"
        elif name == "string" and schema.get("minLength"):
            word = "text that is not empty"
        words.append(word)
    return " or ".join(words)


_COMPILERS: dict[str, Callable[[Schema, str], Validator]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "integer": _integer,
    "boolean": _anything,
    "null": _anything,
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
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

MAX_CHOICES = 8
"""The most choices (``n``) of one request."""
MAX_INPUTS = 2048
"""The most texts of one request for embeddings."""

_MODEL: Schema = {"type": "string", "minLength": 1, "maxLength": 256}
_CHOICE: Schema = {
    "type": "object",
    "description": "The tradeoff between error and cost, if the operator allows it.",
    "properties": {
        "tradeoff": {"type": "number", "minimum": 0, "maximum": 1},
        "budget": {"type": "number", "minimum": 0},
        "error": {"type": "number", "minimum": 0},
    },
    "additionalProperties": False,
    "maxProperties": 1,
}
_SAMPLING: Schema = {
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_CHOICES},
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": {"type": ["boolean", "null"]}},
    },
    "stop": {
        "anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]
    },
    "ttamer": _CHOICE,
}
_TRANSLATED: Schema = {
    name: _SAMPLING[name] for name in ("temperature", "top_p", "stream", "ttamer")
}
"""The fields of chat completions that requests in other formats have too."""
_TEXT_OR_PARTS: Schema = {
    "anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object"}}]
}
TOOL_CALL: Schema = {
    "type": "object",
    "properties": {
        "function": {
            "type": ["object", "null"],
            "properties": {"arguments": {"type": ["string", "object", "null"]}},
        }
    },
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {
            "type": "string",
            "enum": ["system", "developer", "user", "assistant", "tool", "function"],
        },
        "content": _TEXT_OR_PARTS,
        "tool_calls": {"type": ["array", "null"], "items": TOOL_CALL},
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
        "tools": {
            "type": ["array", "null"],
            "items": {"type": "object", "properties": {"function": {"type": "object"}}},
        },
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
EMBEDDING: Schema = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "model": _MODEL,
        "input": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_INPUTS,
                    "items": {"type": "string", "minLength": 1},
                },
            ]
        },
        "encoding_format": {"type": ["string", "null"], "enum": ["float", "base64", None]},
        "dimensions": {"type": ["integer", "null"], "minimum": 1},
    },
}
RESPONSE: Schema = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": _MODEL,
        "input": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "object"}},
            ]
        },
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
        "previous_response_id": {"type": "null"},
        "store": {"type": ["boolean", "null"]},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "text": {"type": ["object", "null"]},
        "reasoning": {"type": ["object", "null"]},
        **_TRANSLATED,
    },
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["model", "messages", "max_tokens"],
    "properties": {
        "model": _MODEL,
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"type": "string", "enum": ["user", "assistant"]},
                    "content": {
                        "anyOf": [
                            {"type": "string"},
                            {"type": "array", "items": {"type": "object"}},
                        ]
                    },
                },
            },
        },
        "max_tokens": {"type": "integer", "minimum": 1},
        "system": _TEXT_OR_PARTS,
        "stop_sequences": {"type": ["array", "null"], "items": {"type": "string"}},
        "tools": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_choice": {"type": ["object", "null"]},
        "metadata": {"type": ["object", "null"]},
        **_TRANSLATED,
    },
}
