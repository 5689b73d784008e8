"""Results: intervals that never split a group, units, differences, learning curves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.traces import answering_trace
from ttamer._checks import percent
from ttamer.evaluation import compare, evaluate, frontier
from ttamer.evaluation.frontiers import learning_curve, learnt
from ttamer.evaluation.results import RowBootstrap, standard_error, units_of
from ttamer.fitting.fits import fit
from ttamer.reporting.savings import savings
from ttamer.trace.trace import Trace


@pytest.fixture(scope="module")
def ladder():
    return fit(answering_trace(400))


def with_groups(trace: Trace, group: np.ndarray) -> Trace:
    names = tuple(map(str, range(int(group.max()) + 1)))
    return dataclasses.replace(trace, group=group, groups=names)


def test_rows_that_are_copies_of_one_another_are_no_evidence_where_they_are_one_group(ladder):
    once = answering_trace(100, seed=1)
    copies = once.take(np.repeat(np.arange(100), 10))
    grouped = with_groups(copies, np.repeat(np.arange(100), 10))
    low, high = evaluate(ladder.default(), once).error_interval
    widths = {
        name: np.diff(evaluate(ladder.default(), trace).error_interval)[0]
        for name, trace in (("copies", copies), ("grouped", grouped))
    }
    assert widths["grouped"] == pytest.approx(high - low, rel=0.2)
    assert widths["copies"] < 0.5 * widths["grouped"]
    errors = [compare(ladder[0], ladder[-1], trace).error_se for trace in (once, copies, grouped)]
    assert errors[2] == pytest.approx(errors[0])
    assert errors[1] == pytest.approx(errors[0] / 10**0.5)


def test_blocks_hold_whole_groups():
    trace = with_groups(answering_trace(60), np.tile(np.arange(20), 3).astype(np.int32))
    unit = units_of(trace)
    rows = RowBootstrap.of(unit, resamples=5, seed=0)
    assert all(len(set(rows.block[unit == number])) == 1 for number in range(20))
    alone = with_groups(answering_trace(4), np.array([-1, 0, -1, 0]))
    assert sorted(np.bincount(units_of(alone)).tolist()) == [1, 1, 2]


def test_a_standard_error_is_that_of_a_mean():
    values = np.random.default_rng(0).random(500)
    expected = values.std() / 500**0.5
    assert standard_error(values, np.arange(500)) == pytest.approx(expected)


def test_costs_are_printed_with_the_cascades_unit(ladder):
    trace = answering_trace(200, seed=1)
    trace = trace.with_spec(dataclasses.replace(trace.spec, unit="ms"))
    result = evaluate(ladder.default(), trace)
    assert " ms per input" in str(result)
    assert result.to_dict()["unit"] == "ms"
    assert " ms per input" in str(compare(ladder[0], ladder[-1], trace))
    front = frontier(trace, families=["threshold"], resamples=0)
    assert " ms per input." in str(front)
    assert front.plot().axes[0].get_xlabel() == "cost per input (ms)"


def test_results_are_frames(ladder):
    trace = answering_trace(200, seed=1)
    frame = evaluate(ladder[0], trace).to_frame()
    assert frame["rows"].tolist() == [200]
    assert {"error_interval.low", "error_interval.high", "asked.small"} <= {*frame.columns}
    assert compare(ladder[0], ladder[-1], trace).to_frame()["error_se"][0] > 0
    front = frontier(trace, families=["threshold"], resamples=0)
    assert len(front.to_frame()) == len(front.points)


def test_a_learning_curve_measures_fits_to_fewer_rows():
    # A warning is an error here: a quarter of the rows is few, and meant to be.
    rows, test = answering_trace(300), answering_trace(500, seed=1)
    full = frontier(rows, test, families=["ttamer"], resamples=0)
    share = full.cost_at("ttamer") / full.reference.cost
    curve = learning_curve(full, rows)
    assert curve.startswith("Fitted to 75, 150 and 300 rows, ttamer costs ")
    assert f" and {percent(share)} of what large alone costs" in curve


def test_a_curve_that_does_not_reach_the_error_promises_nothing():
    assert learnt({1: None, 2: None, 4: 0.5}, "large alone") == (
        "Fitted to 1, 2 and 4 rows, ttamer costs (not reached), (not reached) and 50% of what "
        "large alone costs."
    )
    assert learnt({1: 0.5, 2: 0.5, 4: 0.5}, "a").endswith("would save nothing more.")


def test_requests_without_a_group_are_drawn_one_by_one_in_savings():
    trace = answering_trace(300)
    grouped = with_groups(trace, np.where(np.arange(300) < 2, 0, -1))
    widths = [
        np.diff(savings(rows, "large", allowed=0.1, resamples=200).more_error_interval)[0]
        for rows in (trace, grouped)
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.5)
