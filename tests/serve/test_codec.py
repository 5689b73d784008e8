"""JSON as bytes: values that orjson refuses are left to Python's own module."""

from __future__ import annotations

import math

import pytest

from ttamer.serve import codec

VALUES = [
    {"a": [1, 2.5, None, True, "é"], "b": {"c": "\u2028"}},
    "half a character: \ud800",
    2**70,
    {1: "a key that is a number"},
    [1e22, 5e-324, -0.0, 0.1],
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_are_the_same_after_writing_and_reading(value):
    expected = {"1": "a key that is a number"} if value == VALUES[3] else value
    read = codec.decode(codec.encode(value))
    assert read == expected or math.isclose(read, expected)


@pytest.mark.parametrize("content", [b"NaN", b"[Infinity]", b"{", b"\xff", b"", b"[1,]"])
def test_what_is_not_json_is_refused(content):
    with pytest.raises(ValueError):  # noqa: PT011 - orjson's own, and Python's
        codec.decode(content)


def test_deep_nesting_is_refused():
    with pytest.raises((ValueError, RecursionError)):
        codec.decode(b"[" * 100_000)


def test_there_are_no_spaces():
    assert codec.encode({"a": [1, 2]}) == b'{"a":[1,2]}'
