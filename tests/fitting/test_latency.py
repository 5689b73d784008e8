"""Two prices: fits that weigh cost and latency, and policies chosen by their latency."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support.traces import answering_trace
from ttamer.errors import ArgumentError
from ttamer.fitting import fit_batches
from ttamer.stats.bounds import quantile_upper

OPTIONS = {"belief": "calibrated", "states": 6, "order": "fixed"}


def timed_trace(rows: int, seed: int = 0) -> tt.Trace:
    """Return rows of three models whose latencies vary; the middle one is slow."""
    trace = answering_trace(rows, seed=seed)
    spread = np.random.default_rng([seed, 3]).exponential(size=(rows, 3))
    return dataclasses.replace(
        trace,
        **{"margin": None, "entropy": None, "latency": None}
        | {"latency": spread * [1.0, 50.0, 5.0]},
    )


@pytest.fixture(scope="module")
def timed() -> tt.Trace:
    return timed_trace(2000)


@pytest.fixture(scope="module")
def ladder(timed):
    return tt.fit(timed, **OPTIONS)


def test_a_weight_on_latency_trades_cost_for_speed(timed):
    test = timed_trace(4000, seed=1)
    options = {**OPTIONS, "order": "skip"}
    cheap, fast = (tt.fit(timed, **options, latency_weight=weight) for weight in (0.0, 1.0))
    one, two = (
        tt.evaluate(each.for_mistake_cost(60.0), test, resamples=0) for each in (cheap, fast)
    )
    assert two.latency < 0.5 * one.latency
    assert two.asked["middle"] < 0.1 < one.asked["middle"]
    totals = [60 * each.error + each.cost + each.latency for each in (one, two)]
    assert totals[1] < totals[0]


def test_the_weight_of_the_cascade_is_the_default(timed):
    spec = dataclasses.replace(timed.spec, latency_weight=1.0)
    weighed = tt.fit(timed.with_spec(spec), **OPTIONS)
    given = tt.fit(timed, **OPTIONS, latency_weight=1.0)
    assert (weighed.rungs.costs == given.rungs.costs).all()
    assert weighed.fitted.full_cost == given.fitted.full_cost > timed.spec.full_cost()
    assert tt.CascadeSpec.from_toml(spec.to_toml()) == spec
    assert given.fitted.trace_digest == timed.digest


def test_costs_of_rungs_are_money_and_latencies_stand_beside(timed, ladder):
    weighed = tt.fit(timed, **OPTIONS, latency_weight=1.0)
    for each in (ladder, weighed):
        for rung in (10, 30):
            result = tt.evaluate(each[rung], timed, resamples=0)
            assert each.rungs.costs[rung] == pytest.approx(result.cost)
            mean, quantile, bound = each.rungs.latencies[rung]
            assert (mean, quantile) == pytest.approx((result.latency, result.latency_p95))
            assert quantile <= bound


def test_a_policy_for_a_latency_keeps_it_on_new_rows(ladder, tmp_path):
    test = timed_trace(20_000, seed=2)
    fast, slow = ladder.for_latency(p95=10.0), ladder.for_latency(p95=1000.0)
    assert tt.evaluate(fast, test, resamples=0).latency_p95 <= 10
    assert slow.error < fast.error
    with pytest.raises(ArgumentError, match="the fastest takes"):
        ladder.for_latency(p95=0.5)
    tt.save(ladder, tmp_path / "fit.ttamer")
    assert tt.load(tmp_path / "fit.ttamer").for_latency(p95=10.0).tradeoff == fast.tradeoff
    without = tt.fit(answering_trace(300), **OPTIONS)
    with pytest.raises(ArgumentError, match=r"<node>\.latency"):
        without.for_latency(p95=10.0)


def test_batches_weigh_latency_alike(timed):
    parts = [timed.take(slice(0, 900)), timed.take(slice(900, 2000))]
    whole = tt.fit(timed, **OPTIONS, latency_weight=0.5)
    streamed = fit_batches(lambda: parts, **OPTIONS, latency_weight=0.5)
    assert streamed.rungs.latencies == pytest.approx(whole.rungs.latencies)
    assert streamed.rungs.costs == pytest.approx(whole.rungs.costs)


def test_a_weight_without_latencies_is_refused():
    trace = answering_trace(200)
    with pytest.raises(ArgumentError, match="no latency of small, middle, large"):
        tt.fit(trace, **OPTIONS, latency_weight=1.0)
    with pytest.raises(ArgumentError, match="latency_weight"):
        tt.fit(trace, **OPTIONS, latency_weight=-1.0)


def test_a_bound_on_a_quantile_holds_as_often_as_stated():
    generator = np.random.default_rng(0)
    bounds = [quantile_upper(generator.random(200), 0.9, 0.1) for _ in range(400)]
    kept = np.mean(np.array(bounds) >= 0.9)
    assert 0.88 <= kept <= 0.98
