"""Judges: verdicts are read, and agreement has an interval."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ttamer.llm.confidence import Unreadable
from ttamer.llm.judging import Judge, agreement_of, interval_of


def reply(text):
    return {"choices": [{"message": {"content": text}}]}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("yes", True),
        ("No.", False),
        ("**Yes**, it is", True),
        ("Verdict: no", False),
        ("<think>No, or is it?</think>Yes", True),
    ],
)
def test_the_first_yes_or_no_is_the_verdict(text, verdict):
    assert Judge("large").read(reply(text)) == verdict


@pytest.mark.parametrize("text", ["", "maybe", "nothing", "yesterday"])
def test_another_reply_is_no_verdict(text):
    with pytest.raises(Unreadable, match="neither yes nor no"):
        Judge("large").read(reply(text))


@pytest.mark.parametrize(
    ("text", "score"), [("7", 0.7), ("Score: 10/10.", 1.0), ("0", 0.0), ("8.5 points", 0.85)]
)
def test_the_first_number_is_the_score(text, score):
    assert Judge("large", graded=True).read(reply(text)) == pytest.approx(score)


@pytest.mark.parametrize("text", ["", "good", "11", "A7"])
def test_another_reply_is_no_score(text):
    with pytest.raises(Unreadable, match="no score"):
        Judge("large", graded=True).read(reply(text))


@given(st.integers(1, 60), st.data())
def test_the_interval_holds_the_share(answers, data):
    agree = data.draw(st.integers(0, answers))
    low, high = interval_of(agree, answers)
    assert 0 <= low <= agree / answers <= high <= 1
    assert (low == 0) == (agree == 0)
    assert (high == 1) == (agree == answers)


def test_a_judge_that_always_says_no_is_no_better_than_one_verdict_for_all():
    labels = [True] * 2 + [False] * 8
    no = agreement_of([(False, label) for label in labels])
    assert "no more than the same verdict for all (80%)" in no
    better = [True] * 3 + [False] * 7
    assert "same verdict" not in agreement_of([*zip(better, labels, strict=True)])
    assert "there are none" in agreement_of([])
