"""Warnings about answers that hardly ever match."""

from __future__ import annotations

import warnings

import numpy as np

from support.traces import answering_trace
from ttamer.trace import CascadeSpec, Trace
from ttamer.trace.checks import check_for_fit

SPEC = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="label")


def trace_of(rows, *, agreeing=0, right=1, target="label"):
    """Answers of two nodes that agree on some rows, and are right on some."""
    spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target=target)
    large = [f"large {row}" for row in range(rows)]
    small = [large[row] if row < agreeing else f"small {row}" for row in range(rows)]
    label = [large[row] if row < right else f"label {row}" for row in range(rows)]
    confidence = np.random.default_rng(0).random((rows, 2))
    answers = list(zip(small, large, strict=True))
    return Trace.from_arrays(spec, confidence, prediction=answers, label=label)


def label_warnings(trace):
    """What a fit warns of but for the number of rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_for_fit(trace, enough=0)
    return tuple(str(warning.message) for warning in caught)


def test_nodes_that_hardly_ever_agree_get_a_warning():
    (warning,) = label_warnings(trace_of(100, agreeing=19, right=60))
    assert "on more than 19.0% of rows ('small' and 'large')" in warning
    assert label_warnings(trace_of(100, agreeing=20, right=60)) == ()
    (warning,) = label_warnings(trace_of(100, agreeing=2, target="last"))
    assert "compare in [serve]" in warning


def test_nodes_that_are_all_wrong_on_most_rows_get_a_warning():
    (warning,) = label_warnings(trace_of(100, agreeing=50, right=49))
    assert "every node is wrong on most rows; the best, 'small', on 51.0%" in warning
    assert label_warnings(trace_of(100, agreeing=50, right=50)) == ()


def test_a_node_that_writes_classes_in_another_way_gets_a_warning():
    label = ["cat", "dog"] * 20
    confidence = np.ones((40, 2))

    def warnings_of(answers, **fields):
        prediction = list(zip(answers, label, strict=True))
        trace = Trace.from_arrays(SPEC, confidence, prediction=prediction, label=label, **fields)
        return [text for text in label_warnings(trace) if "is the label of any row" in text]

    (warning,) = warnings_of(["chat", "chien"] * 20)
    assert (
        "no answer of 'small' is the label of any row: its answers are 'chat', 'chien'" in warning
    )
    assert warnings_of(["chat", "dog"] * 20) == []
    assert warnings_of([None] * 40) == []
    assert warnings_of(["chat", "chien"] * 20, correct=np.ones((40, 2), bool)) == []


def test_few_rows_and_good_rows_get_none():
    assert label_warnings(trace_of(19)) == ()
    assert label_warnings(answering_trace(200)) == ()
    bare = Trace(SPEC, np.ones((50, 2)))
    assert label_warnings(bare) == ()


def test_no_answer_agrees_with_no_answer():
    spec = CascadeSpec.of({"small": 1.0, "large": 5.0}, target="last")
    empty = Trace.from_arrays(spec, np.ones((30, 2)), prediction=[[None, None]] * 30)
    assert "0.0% of rows" in label_warnings(empty)[0]
