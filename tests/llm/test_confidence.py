from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, strategies as st

from ttamer.llm.confidence import (
    Unreadable,
    agreement,
    answer_text,
    is_plain_text,
    probability_of_answer,
    probability_of_choice,
    question_text,
    reported_confidence,
)


def chat(*tokens, text="x", top=()):
    content = [{"token": t, "logprob": math.log(p) if p else -math.inf} for t, p in tokens]
    for entry in content:
        entry["top_logprobs"] = [{"token": t, "logprob": math.log(p)} for t, p in top]
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "logprobs": {"content": content}}]}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\n6? 7?\n</think>\n\n6", "6"),
        ("6? No, 7.\n</think>\n7", "7"),
        ("<think>6? 7", ""),
        ("I think> 6", "I think> 6"),
        ("Write <think> first", "Write <think> first"),
        (" 6 ", " 6 "),
    ],
)
def test_reasoning_is_no_part_of_an_answer(text, answer):
    assert answer_text({"choices": [{"message": {"content": text}}]}) == answer


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": 3}}]},
    ],
)
def test_a_response_without_a_text_is_unreadable(response):
    with pytest.raises(Unreadable):
        answer_text(response)


def message(**fields):
    return {"choices": [{"message": {"role": "assistant", "content": None, **fields}}]}


CALL = {"function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("fields", "text", "plain"),
    [
        ({}, "", False),
        ({"content": ""}, "", False),
        ({"content": "", "reasoning_content": "I think, therefore"}, "", False),
        ({"content": None, "reasoning": "Let me see"}, "", False),
        ({"refusal": "I cannot help with that."}, "I cannot help with that.", False),
        (
            {"content": [{"type": "text", "text": "Par"}, {"type": "text", "text": "is"}]},
            "Par\nis",
            True,
        ),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No.", True),
        ({"content": "", "tool_calls": [CALL]}, '[{"arguments": {"a": 1}, "name": "f"}]', False),
        ({"function_call": CALL["function"]}, '[{"arguments": {"a": 1}, "name": "f"}]', False),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            '[{"arguments": "{", "name": "f"}]',
            False,
        ),
        ({"content": "Paris", "tool_calls": []}, "Paris", True),
    ],
)
def test_every_kind_of_answer_is_an_answer(fields, text, plain):
    assert answer_text(message(**fields)) == text
    assert is_plain_text(message(**fields)) is plain


def test_confidence_is_the_geometric_mean_of_the_tokens_probabilities():
    assert probability_of_answer(chat(("a", 0.5), ("b", 0.125))) == pytest.approx(0.25)
    assert probability_of_answer(chat(("a", 1.0))) == 1.0
    assert probability_of_answer(chat(("a", 0.0))) == 0.0
    assert probability_of_answer(chat()) == 0.0


def test_the_end_of_the_answer_is_no_token_of_it():
    assert probability_of_answer(chat(("B", 0.5), ("", 0.001))) == pytest.approx(0.5)


def test_rounding_above_one_is_one():
    assert (
        probability_of_answer({"choices": [{"logprobs": {"content": [{"logprob": 1e-9}]}}]}) == 1.0
    )


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": [3]},
        {"content": [{"token": "a"}]},
        {"content": [{"token": "a", "logprob": "x"}]},
        {"content": [{"token": "a", "logprob": True}]},
        {"content": [{"token": "a", "logprob": math.nan}]},
    ],
)
def test_no_log_probabilities_are_unreadable(logprobs):
    with pytest.raises(Unreadable, match="log-probabilit"):
        probability_of_answer({"choices": [{"logprobs": logprobs}]})


@pytest.mark.parametrize(
    ("tokens", "probability"),
    [
        ([("B", 0.4)], 0.4),
        ([("(", 0.9), ("B", 0.4), (")", 0.9)], 0.4),
        ([("B", 0.4), (".", 1.0), (" B", 0.99), ("rest", 1.0)], 0.4),
        ([("The", 0.5), (" answer", 0.9), (" is", 0.9), (" B", 0.3), (".", 1.0)], 0.3),
        ([("A", 0.5), (" or", 0.9), (" B", 0.6), ("? ", 0.9), ("(B)", 0.2)], 0.2),
        ([(" b", 0.7)], 0.7),
        ([("\u2581B", 0.7)], 0.7),
        ([("Bis", 0.25)], 0.25),
    ],
)
def test_a_choice_is_as_sure_as_the_token_that_names_it(tokens, probability):
    assert probability_of_choice(chat(*tokens), "B") == pytest.approx(probability)


def test_what_was_asked_is_read_from_every_shape():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert question_text({"messages": messages}) == "Be brief.\n\nlook"
    assert question_text({"prompt": "Once"}) == "Once"
    assert question_text({"input": "spam?"}) == "spam?"
    assert question_text({"messages": [{"role": "assistant", "content": None}, 3]}) == ""


def test_agreement_is_the_share_of_the_modal_prediction():
    assert agreement(["A", "B", "B"]) == (1, pytest.approx(2 / 3))
    assert agreement(["A", "B"]) == (0, 0.5)
    assert agreement(["A", None, None]) == (0, pytest.approx(1 / 3))
    assert agreement([None, "C"]) == (1, 0.5)
    assert agreement([None, None]) == (0, 0.0)


ODD = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | st.just("yes"),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["token", "text"]), inner)
    ),
    max_leaves=6,
)


def places(value):
    """Yield each place of a response, as what holds it and its key."""
    for key in [*value] if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@st.composite
def damaged(draw):
    """A response with an odd value somewhere."""
    response = chat(("yes", 0.5), ("B", 0.4), top=[("no", 0.2)]) | {"usage": {"prompt_tokens": 3}}
    everywhere = [*places(response)]
    holder, key = everywhere[draw(st.integers(0, len(everywhere) - 1))]
    holder[key] = draw(ODD)
    return response


@given(damaged())
def test_whatever_a_server_sends_is_read_or_unreadable(response):
    readers = (
        answer_text,
        probability_of_answer,
        lambda response: probability_of_choice(response, "B"),
    )
    for read in readers:
        with contextlib.suppress(Unreadable):
            assert isinstance(read(response), str | float)


@given(damaged())
def test_probabilities_lie_between_0_and_1(response):
    with contextlib.suppress(Unreadable):
        assert 0 <= probability_of_answer(response) <= 1


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("I am 90% sure of 3 things", 0.9),
        ("between 80-90%", 0.8),
        ("8 out of 10", 0.8),
        ("0,75", 0.75),
        ("1", 0.01),
        ("100", 1.0),
        ("-15", None),
        ("250", None),
        ("3/0", None),
        ("certain", None),
    ],
)
def test_a_self_report_is_its_number_from_0_to_100(text, confidence):
    if confidence is None:
        with pytest.raises(Unreadable, match="no number from 0 to 100"):
            reported_confidence(chat(text=text))
    else:
        assert reported_confidence(chat(text=text)) == confidence
