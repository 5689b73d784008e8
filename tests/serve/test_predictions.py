from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttamer.serve.confidence import prediction_from


@pytest.mark.parametrize("text", ["Paris", " Paris", "Paris."])
def test_exact_is_the_text_itself(text):
    assert prediction_from(text, "exact") == text


@pytest.mark.parametrize("compare", ["exact", "normalised"])
def test_half_a_character_does_not_stop_a_file_from_being_written(compare):
    assert prediction_from("a\ud800b", compare) == "a?b"


@pytest.mark.parametrize("compare", ["exact", "normalised", "choice"])
def test_an_empty_answer_is_none(compare):
    assert prediction_from("", compare) is None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Paris", "paris"),
        ("  PARIS \n", "paris"),
        ('"Paris."', "paris"),
        ("New\tYork\n City!", "new york city"),
        ("\uff21\uff22", "ab"),  # wide letters
        ("Stra\u00dfe", "strasse"),
        ("**42**", "42"),
        ("-3", "-3"),
        ("50%", "50%"),
        ("$5", "$5"),
        ("C++", "c++"),
        ("...", None),
    ],
)
def test_normalised_forgets_case_spacing_and_punctuation_at_the_ends(text, same):
    assert prediction_from(text, "normalised") == same


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" B\n", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("**B**: Paris", "B"),
        ("B - Paris", "B"),
        ("B\nbecause it is", "B"),
        ("The answer is B.", "B"),
        ("the correct answer is (C), I think", "C"),
        ("Answer: D", "D"),
        ("Option **A** fits", "A"),
        ("The answer is A at first. No: the answer is B", "B"),
        ("I choose [C]", "C"),
        ("It must be D, surely", "D"),
        ("Paris", None),
        ("A dog", None),
        ("I do not know", None),
        ("B or C", None),
    ],
)
def test_choice_is_the_letter_an_answer_names(text, letter):
    assert prediction_from(text, "choice") == letter


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = prediction_from(text, "normalised")
    assert once is None or prediction_from(once, "normalised") == once


@given(st.text(max_size=50))
def test_a_choice_is_a_letter_or_nothing(text):
    letter = prediction_from(text, "choice")
    assert letter is None or (len(letter) == 1 and letter.isascii() and letter.isupper())
