"""Frontiers: measured on rows not fitted to, compared by envelopes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from support.traces import answering_trace, chain_trace
from ttamer.errors import ArgumentError
from ttamer.evaluation.frontiers import frontier
from ttamer.evaluation.results import measure
from ttamer.stats.envelope import cost_at_error, error_at_cost
from ttamer.trace.trace import Trace

FEW = ["ttamer", "paper", "threshold", "always-best", "oracle"]


@pytest.fixture(scope="module")
def result():
    return frontier(answering_trace(600), answering_trace(500, seed=1), families=FEW, resamples=50)


def test_every_point_is_what_measuring_its_rule_gives(result):
    test = answering_trace(500, seed=1)
    for family in result.families:
        for point in result.of(family):
            again = measure(point.played, test, resamples=0)
            assert point.result.error == again.error
            assert point.result.cost == again.cost
            low, high = point.result.error_interval
            assert low <= again.error <= high


def test_the_json_has_the_promised_form(result):
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    keys = {"policy", "knob", "cost", "relative_cost", "error", "cost_interval", "error_interval"}
    assert {frozenset(point) for point in facts["points"]} == {frozenset(keys)}
    assert [*facts["families"]] == FEW
    for summary in facts["families"].values():
        assert [*summary["cost_at_error"]] == ["+0", "+0.5", "+1", "+2", "+5"]
    assert facts["reference"]["node"] == "large"


def test_relative_cost_is_against_the_most_expensive_of_separate_models_and_all_exits_of_one(
    result,
):
    for point in result.points:
        assert point.result.relative_cost == pytest.approx(point.result.cost / 20)
    exits = frontier(chain_trace(400), chain_trace(300, seed=1), families=["threshold"])
    for point in exits.points:
        assert point.result.relative_cost == pytest.approx(point.result.cost / (1 + 2 + 3))
    assert exits.reference.node == "exit3"
    assert exits.reference.cost == 6


def test_cost_at_an_error_lies_on_the_lower_envelope(result):
    costs, errors = result.curve("threshold")
    for more in (0.0, 0.01, 0.05):
        want = cost_at_error(costs, errors, result.reference.error + more)
        assert result.cost_at("threshold", more) == want


def test_the_reference_is_the_model_that_was_best_on_the_rows_fitted_to(result):
    test = answering_trace(500, seed=1)
    assert result.reference.error == test.loss[:, 2].mean()
    only = result.of("always-best")[0].result
    assert (only.error, only.cost) == (result.reference.error, result.reference.cost)


def test_the_oracle_is_the_best_at_its_cost(result):
    oracle = result.of("oracle")[0].result
    for family in result.families:
        error = error_at_cost(*result.curve(family), oracle.cost)
        assert error is None or error >= oracle.error


def test_families_that_do_not_suit_are_named_with_the_reason():
    trace = chain_trace(300)
    some = frontier(trace, chain_trace(200, seed=1), families=["threshold", "patience", "margin"])
    assert some.families == ["threshold"]
    assert set(some.left_out) == {"patience", "margin"}
    with pytest.raises(ArgumentError, match="no family suits"):
        frontier(trace, trace, families=["patience"])


def test_families_that_suit_the_fit_rows_alone_leave_no_empty_frontier():
    rows = answering_trace(200)
    bare = Trace(rows.spec, rows.confidence, correct=(rows.loss == 0))
    with pytest.raises(ArgumentError, match=r"no family suits .*patience: on the test rows"):
        frontier(rows, bare, families=["patience"])


def test_confidences_of_another_scale_leave_the_paper_out_but_not_us():
    trace = chain_trace(300)
    wide = type(trace)(trace.spec, trace.confidence * 10, correct=trace.correct)
    some = frontier(wide, wide, families=["ttamer", "paper"])
    assert some.families == ["ttamer"]
    assert "from 0 to 1" in some.left_out["paper"]


def test_bad_calls_are_refused():
    trace = chain_trace(300)
    with pytest.raises(ArgumentError, match="no family 'magic'"):
        frontier(trace, trace, families=["magic"])
    with pytest.raises(ArgumentError, match="differ in their nodes"):
        frontier(trace, answering_trace(50))
    with pytest.raises(ArgumentError, match="no rows"):
        frontier(trace, trace.take(np.array([], int)))
    with pytest.raises(ArgumentError, match="resamples is -1"):
        frontier(trace, trace, families=["always-first"], resamples=-1)
