"""Fitting in batches: the same counts, bounded memory, the same policies."""

from __future__ import annotations

import numpy as np
import pytest

from support.traces import answering_trace, chain_trace
from ttamer.errors import TraceError
from ttamer.fitting.plans import fit
from ttamer.fitting.streaming import fit_batches, fit_file


def parts(trace, count):
    return [trace.take(rows) for rows in np.array_split(np.arange(len(trace)), count)]


@pytest.mark.parametrize("belief", ["calibrated", "full"])
def test_a_trace_that_fits_in_the_sample_gives_the_fit_in_memory(belief):
    trace = answering_trace(900)
    options = {"belief": belief, "tradeoffs": [0.5, 0.9]}
    whole = fit(trace, **options)
    streamed = fit_batches(lambda: parts(trace, 7), **options)
    assert dict(streamed.fitted.plan) == dict(whole.fitted.plan)
    for one, two in zip(whole, streamed, strict=True):
        assert one.value == pytest.approx(two.value, abs=1e-12)
        for name in one.problem.names:
            np.testing.assert_array_equal(one.choice(name), two.choice(name))


def test_counts_come_from_all_rows_even_where_the_sample_is_small():
    trace = chain_trace(20_000)
    options = {"belief": "calibrated", "states": 3, "tradeoffs": [0.9]}
    streamed = fit_batches(lambda: parts(trace, 9), sample_rows=500, **options)
    assert streamed.fitted.rows == 20_000
    whole = fit(trace, **options)
    assert streamed[0].value == pytest.approx(whole[0].value, abs=1e-12)


def test_a_full_belief_is_fitted_to_the_sample_in_one_reading():
    trace = answering_trace(3000)
    readings = iter([parts(trace, 4)])
    streamed = fit_batches(lambda: next(readings), sample_rows=2500, tradeoffs=[0.5, 0.9])
    assert streamed.fitted.plan["belief"] == "full"
    assert (streamed.fitted.rows, streamed.fitted.plan["sampled"]) == (3000, 2500)
    whole = fit(trace, tradeoffs=[0.5, 0.9])
    for one, two in zip(streamed, whole, strict=True):
        assert one.error == pytest.approx(two.error, abs=0.03)
        assert one.cost == pytest.approx(two.cost, rel=0.2)


def test_a_file_is_read_in_batches(tmp_path):
    trace = answering_trace(700)
    trace.write(tmp_path / "trace.parquet")
    trace.spec.to_file(tmp_path / "cascade.toml")
    lines: list[str] = []
    streamed = fit_file(
        tmp_path / "trace.parquet",
        tmp_path / "cascade.toml",
        belief="calibrated",
        tradeoffs=[0.9],
        states=4,
        progress=lines.append,
    )
    assert streamed.fitted.rows == 700
    assert any("counted 700 of 700" in line for line in lines)


def test_a_file_that_changes_between_the_readings_is_noticed():
    trace = chain_trace(100)
    readings = iter([parts(trace, 2), parts(trace.take(slice(0, 60)), 2)])
    with pytest.raises(TraceError, match="has changed"):
        fit_batches(lambda: next(readings), belief="calibrated", states=3)
    with pytest.raises(TraceError, match="no rows"):
        fit_batches(list)
