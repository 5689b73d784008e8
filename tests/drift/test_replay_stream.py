"""The loop over a recorded stream, beside what it is compared with."""

from __future__ import annotations

import numpy as np
import pytest

import ttamer as tt
from support.shifting import stream_of
from ttamer.drift import LoopSettings, serving_of
from ttamer.drift.monitor import decide
from ttamer.drift.replay import BATCH_ROWS, replay_stream
from ttamer.errors import ArgumentError


@pytest.fixture(scope="module")
def replayed(serving, settings):
    stream = stream_of(1500, 3500, seed=40)
    return replay_stream(serving, stream, settings, share=0.3), stream


def first(found, kind):
    """The first row of the batch after the first event of a kind."""
    number = next(event.number for event in found.events if event.kind == kind)
    return (number // BATCH_ROWS + 1) * BATCH_ROWS


def test_the_loop_brings_the_error_back_inside_the_promise(replayed, settings):
    found, _ = replayed
    alarm, swap = first(found, "alarm"), first(found, "swap")
    assert 1500 < alarm < 2300
    assert found.between(1500, alarm)["audited"] < 200
    last = found.between(swap, len(found))
    assert last["adapted"]["error"] <= settings.at_most
    assert last["fixed"]["error"] > settings.at_most
    assert last["adapted"]["cost"] < last["fallback"]["cost"]
    between = found.between(alarm, swap)
    assert between["adapted"] == between["fallback"]
    for begin, end in ((5, 5), (-1, 5), (4000, 5001)):
        with pytest.raises(ArgumentError, match=f"begin is {begin} and end is {end}"):
            found.between(begin, end)


def test_until_the_alarm_it_is_the_policy_as_it_is(replayed, serving):
    found, stream = replayed
    end, plain = first(found, "alarm"), decide(serving.policy, stream)
    np.testing.assert_array_equal(found.arms["adapted"].lost[:end], plain.wrong[:end])
    np.testing.assert_array_equal(found.arms["fixed"].cost, plain.cost)


def test_about_the_share_asked_for_is_audited_and_paid_for(replayed):
    found, stream = replayed
    assert found.audited.mean() == pytest.approx(0.3, abs=0.03)
    every = stream.costs.sum(axis=1).mean()
    assert 0 < found.audit_cost < 0.3 * every * 1.1


def graded(rows: int, seed: int) -> tt.Trace:
    """Return rows of two nodes with losses from 0 to 10."""
    generator = np.random.default_rng(seed)
    sure = generator.random((rows, 2))
    loss = np.array([8.0, 2.0]) * (1 - sure) + generator.random((rows, 2))
    spec = tt.CascadeSpec.of({"small": 1.0, "large": 5.0}, kind="exits", max_loss=10.0)
    return tt.Trace(spec, sure, raw_loss=loss)


def test_mean_losses_are_in_the_unit_of_the_losses():
    settings = LoopSettings(at_most=3.0)
    fitted = tt.fit(graded(600, 0), belief="markov", states=6)
    serving = serving_of(fitted, graded(400, 1), settings)
    stream = graded(500, 2)
    found = replay_stream(serving, stream, settings)
    plain = tt.evaluate(serving.policy, stream, resamples=0)
    assert found.arms["fixed"].lost.mean() == pytest.approx(plain.error)
    fallback = found.arms["fallback"].lost.mean()
    assert fallback == pytest.approx(stream.unit * stream.loss[:, -1].mean())
    assert found.measure == "mean loss"
