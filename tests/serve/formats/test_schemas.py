"""Schemas: valid values are accepted, and a violation names its place."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ttamer.serve.formats.schemas import CHAT, CLASSIFY, COMPLETION, BadField, check, compile_schema

SCHEMAS = {"chat": CHAT, "completion": COMPLETION, "classify": CLASSIFY}
VALUES = st.none() | st.booleans() | st.integers(-2, 300) | st.floats(-1, 3) | st.sampled_from(
    ["", "user", "x", "y" * 300, 10**400]
)  # fmt: skip
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "content", "tradeoff", "include_usage", "x"]), inner,
                      max_size=3),
    max_leaves=8,
)  # fmt: skip


def at(value, place):
    """The value at a dotted path; ``None`` where a required key is missing."""
    for key in place.split(".") if place else ():
        value = value[int(key)] if isinstance(value, list) else value.get(key)
    return value


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@given(data=st.data())
def test_a_violation_names_a_place_inside_the_value(schema, data):
    names = st.sampled_from([*schema["properties"], "other"])
    value = data.draw(st.dictionaries(names, JSON, max_size=6) | JSON)
    violation = compile_schema(schema)(value)
    if violation is not None:
        at(value, violation.place)
        assert violation.expected


def test_valid_bodies_are_accepted():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 1}
    validate = compile_schema(CHAT)
    assert validate(body) is None
    assert validate({**body, "max_tokens": 2.0}) is None
    assert validate({**body, "temperature": 2.5}).place == "temperature"
    assert validate({**body, "max_tokens": 1.5}).place == "max_tokens"


def test_an_integer_that_no_float_holds_is_refused():
    violation = compile_schema(CHAT["properties"]["ttamer"])({"budget": 10**400})
    assert violation.place == "budget"


CHECKS = {
    "type": ({"type": "string"}, 3, "the body must be text"),
    "true is not a number": ({"type": "number"}, True, "the body must be a number"),
    "whole": ({"type": "integer"}, 1.5, "the body must be a whole number"),
    "least": ({"type": "integer", "minimum": 1}, 0, "must be a whole number from 1"),
    "range": ({"type": "number", "minimum": 0, "maximum": 2}, 3, "a number from 0 to 2"),
    "short": ({"type": "string", "minLength": 1}, "", "text that is not empty"),
    "exactly": ({"type": "array", "minItems": 1, "maxItems": 1}, [1, 2], "of exactly 1 item"),
    "needed": ({"type": "object", "required": ["a"]}, {}, "a must be given"),
    "inside": (
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "null"}}}},
        [{"a": None}, {"a": 1}],
        "1.a must be null",
    ),
    "any": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "must be text"),
    "deepest of any": (
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        ["x"],
        "0 must be an object",
    ),
    "nothing else": (
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"b": 1},
        "of a and nothing else",
    ),
    "one of": ({"type": "string", "enum": ["a", "b"]}, "c", "must be 'a' or 'b'"),
}


@pytest.mark.parametrize(("schema", "value", "message"), CHECKS.values(), ids=CHECKS)
def test_a_violation_reports_what_is_expected(schema, value, message):
    with pytest.raises(BadField, match=message):
        check(value, compile_schema(schema))


@pytest.mark.parametrize("value", [1, 1.0, -3])
def test_whole_numbers_may_be_written_with_a_point(value):
    check(value, compile_schema({"type": "integer"}))
