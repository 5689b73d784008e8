"""The quick yes says what the slow check says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.serve.fitting_schema import fits
from ttamer.serve.schemas import CHAT, CLASSIFY, COMPLETION, BadField, check

SCHEMAS = {"chat": CHAT, "completion": COMPLETION, "classify": CLASSIFY}
VALUES = st.none() | st.booleans() | st.integers(-2, 300) | st.floats(-1, 3) | st.sampled_from(
    ["", "user", "x", "y" * 300]
)  # fmt: skip
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "content", "tradeoff", "include_usage", "x"]), inner,
                      max_size=3),
    max_leaves=8,
)  # fmt: skip


def is_taken(value, schema) -> bool:
    try:
        check(value, schema)
    except BadField:
        return False
    return True


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@given(data=st.data())
def test_the_quick_yes_and_the_slow_check_agree(schema, data):
    names = st.sampled_from([*schema["properties"], "other"])
    value = data.draw(st.dictionaries(names, JSON, max_size=6) | JSON)
    assert fits(schema)(value) == is_taken(value, schema)
    for name, inner in schema["properties"].items():
        if isinstance(value, dict) and name in value:
            assert fits(inner)(value[name]) == is_taken(value[name], inner)


def test_what_is_right_is_taken():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 1}
    assert fits(CHAT)(body)
    assert not fits(CHAT)({**body, "temperature": 2.5})
    assert not fits(CHAT)({**body, "max_tokens": 1.5})
    assert fits(CHAT)({**body, "max_tokens": 2.0})
