"""Likeness of texts: cosines, the threshold that agrees best, and comparisons by both."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ttamer.errors import ArgumentError
from ttamer.llm import Comparer, Comparison, cosines, fit_threshold
from ttamer.llm.likeness import cosine

VECTORS = {"four": [1.0, 0.0], "4": [0.9, 0.1], "five": [0.0, 1.0], "5": [0.1, 0.9]}


def embed(texts):
    return [VECTORS[text] for text in texts]


async def embed_later(texts):
    return embed(texts)


def comparer(threshold=0.9, function=embed):
    return Comparer(Comparison("embedding", threshold=threshold), cosines(function))


class Model:
    async def __call__(self, texts):
        return embed(texts)


def test_a_model_that_raises_stop_iteration_fails():
    """A future cannot carry one: the comparison waited for ever."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(comparer(function=lambda texts: next(iter([]))).right([("4", "5")]))


@pytest.mark.parametrize("function", [embed, embed_later, Model()])
def test_texts_are_equal_from_the_threshold_on(function):
    found = comparer(function=function)
    pairs = [("four", "4"), ("four", "five"), ("5", "five"), ("", "4"), ("4", "4")]
    assert asyncio.run(found.right(pairs)) == [True, False, True, False, True]
    score = asyncio.run(found.score([("four", "4")]))[0]
    exact = comparer(threshold=score)
    assert asyncio.run(exact.right([("four", "4")])) == [True]


def test_an_answer_is_right_if_it_equals_an_alias():
    found = comparer()
    assert asyncio.run(found.right([(" 4 ", "five|four"), ("4", "five")])) == [True, False]
    predictions = ["5", None, "4", "four"]
    assert asyncio.run(found.matched_all(predictions)) == ["5", None, "4", "4"]


def test_every_text_is_embedded_once_in_a_batch():
    seen = []

    def counting(texts):
        seen.append(sorted(texts))
        return embed(texts)

    found = comparer(function=counting)
    asyncio.run(found.matched_all(["four", "4", "five", "four"]))
    assert seen == [["4", "five", "four"]]


def test_a_rule_of_embeddings_needs_its_score_and_its_threshold():
    with pytest.raises(ArgumentError, match="needs a score"):
        Comparer(Comparison("embedding", threshold=0.5))
    with pytest.raises(ArgumentError, match="and a threshold"):
        Comparer(Comparison("embedding"), cosines(embed))
    with pytest.raises(ArgumentError, match="use Comparer"):
        Comparison("embedding", threshold=0.5).equal("a", "b")
    with pytest.raises(ArgumentError, match="from -1 to 1"):
        Comparison("embedding", threshold=1.5)
    with pytest.raises(ArgumentError, match='"embedding" only'):
        Comparison("exact", threshold=0.5)


@given(st.lists(st.integers(0, 12), min_size=20, max_size=40), st.randoms())
def test_no_other_threshold_agrees_with_more_pairs(whole, random):
    scores = np.array(whole) / 12
    equal = np.array([random.random() < score for score in scores])
    if equal.all() or not equal.any():
        with pytest.raises(ArgumentError, match="equal and unequal"):
            fit_threshold(scores, equal)
        return
    found = fit_threshold(scores, equal).threshold
    best = max(((scores >= cut) == equal).sum() for cut in (-1.0, *scores, *(scores + 1e-9), 1.01))
    at_the_top = (equal & (scores == 1)).sum() - (~equal & (scores == 1)).sum()
    assert ((scores >= found) == equal).sum() >= best + min(at_the_top, 0)


def test_the_agreement_is_counted_on_pairs_that_the_threshold_was_not_fitted_to():
    rng = np.random.default_rng(0)
    scores, equal = rng.random(40), np.arange(40) % 2 == 0  # nothing to learn
    fitted = fit_threshold(scores, equal)
    own = ((scores >= fitted.threshold) == equal).mean()
    assert own > 0.5
    assert fitted.agreement.agree / 40 < own
    assert "of 40 pairs" in str(fitted.agreement)


def test_pairs_of_one_group_are_on_one_side():
    # Each group has its own threshold: without the groups, halves would share them.
    scores = np.repeat([0.2, 0.8], 20) + np.tile([0.0, 0.1], 20)
    equal = np.tile([False, True], 20)
    alone = fit_threshold(scores, equal)
    apart = fit_threshold(scores, equal, groups=np.repeat([0, 1], 20))
    assert apart.agreement.agree < alone.agreement.agree


@pytest.mark.parametrize(
    ("scores", "equal", "groups", "said"),
    [
        ([0.5] * 19, [True, False] * 9 + [True], None, "at least 20"),
        ([0.5] * 20, [True] * 20, None, "20 are equal"),
        ([0.5] * 20, [True] * 19, None, "19 labels"),
        ([0.5] * 20, [True, False] * 10, [3] * 20, "two groups"),
        ([0.5, 95.0] * 10, [True, False] * 10, None, r"score 1 .* is 95; .* from -1 to 1"),
        ([0.5] * 19 + [float("nan")], [True, False] * 10, None, "score 19 .* is nan"),
    ],
)
def test_pairs_that_teach_nothing_are_refused(scores, equal, groups, said):
    with pytest.raises(ArgumentError, match=said):
        fit_threshold(scores, equal, groups=groups)


def test_a_vector_of_zeros_is_like_no_other():
    assert cosine([0.0, 0.0], [1.0, 0.0]) == 0.0
