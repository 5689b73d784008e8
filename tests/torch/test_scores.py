"""What logits say, whatever they are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttamer.torch.deciding import sureness
from ttamer.torch.scores import NO_ANSWER, scores_of

NAN, INF = float("nan"), float("inf")


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(-30, 30), min_size=3, max_size=3), min_size=1, max_size=6))
def test_scores_are_those_of_the_softmax_in_double_precision(rows):
    logits = np.array(rows, float)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    ranked = np.sort(chances, axis=1)
    found = scores_of(torch.tensor(logits, dtype=torch.float32))
    np.testing.assert_allclose(found.confidence, ranked[:, -1], rtol=1e-5)
    np.testing.assert_allclose(found.margin, ranked[:, -1] - ranked[:, -2], atol=1e-6)
    entropy = -(chances * np.log(np.maximum(chances, 1e-300))).sum(axis=1)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-5)
    assert found.prediction.tolist() == logits.argmax(axis=1).tolist()  # of equals the first


def test_what_decides_is_what_a_trace_records():
    torch.manual_seed(0)
    logits = torch.randn(100, 7) * 4
    logits[3, 2] = NAN
    logits[4] = INF
    confidence, prediction = sureness(logits)
    scores = scores_of(logits)
    assert torch.equal(confidence.nan_to_num(-1), scores.confidence.nan_to_num(-1))
    assert torch.equal(prediction, scores.prediction)
    assert prediction.dtype == scores.prediction.dtype == torch.int32


@pytest.mark.parametrize("row", [[NAN, 0, 1], [NAN] * 3, [INF, 0, 1], [INF, -INF, INF]])
def test_where_the_softmax_is_no_number_nothing_is_said(row):
    scores = scores_of(torch.tensor([row, [0.0, 1.0, 2.0]]))
    assert scores.prediction.tolist() == [NO_ANSWER, 2]
    for part in (scores.confidence, scores.margin, scores.entropy):
        assert part.isnan().tolist() == [True, False]


def test_a_class_that_is_ruled_out_takes_no_part():
    scores = scores_of(torch.tensor([[-INF, 0.0, 0.0]]))
    assert scores.confidence.item() == pytest.approx(0.5)
    assert scores.entropy.item() == pytest.approx(math.log(2))


def test_of_one_class_the_margin_is_its_probability():
    scores = scores_of(torch.tensor([[3.0], [-1.0]]))
    assert scores.margin.tolist() == [1.0, 1.0]
    assert scores.prediction.tolist() == [0, 0]


def test_half_precision_is_scored_in_single():
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    for half, single in zip(scores_of(logits), scores_of(logits.float()), strict=True):
        assert half.dtype != torch.bfloat16
        assert torch.equal(half, single)


def test_no_rows():
    scores = scores_of(torch.zeros(0, 3))
    assert [len(part) for part in scores] == [0, 0, 0, 0]
