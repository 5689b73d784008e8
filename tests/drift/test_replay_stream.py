"""The loop over a recorded stream, beside what it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from ttamer.drift.decisions import decide
from ttamer.drift.fallback import AskLast

import ttamer as tt
from support.shifting import SPEC, stream_of
from ttamer.drift import LoopSettings, serving_of
from ttamer.drift.replay import replay_stream
from ttamer.errors import ArgumentError


class Same:
    """A rival that is what the fallback policy is; it counts the rows that it takes."""

    rows = 0

    def __init__(self):
        self.rule = AskLast(SPEC)

    def update(self, rows):
        Same.rows += len(rows)


@pytest.fixture(scope="module")
def replayed(serving, settings):
    stream = stream_of(1500, 3500, seed=40)
    return replay_stream(serving, stream, settings, share=0.3, rivals={"same": Same()}), stream


def test_the_loop_brings_the_error_back_inside_the_promise(replayed, settings):
    found, _ = replayed
    phases = found.phases()
    assert [phase["serving"] for phase in phases][:3] == [
        "the first policy", "the fallback policy", "a new policy",
    ]  # fmt: skip
    assert 1500 < phases[1]["begin"] < 2300
    assert found.audited_between(1500, phases[1]["begin"]) < 200
    last = found.between(phases[2]["begin"], len(found))
    assert last["adapted"]["error"] <= settings.at_most
    assert last["fixed"]["error"] > settings.at_most
    assert last["adapted"]["cost"] < last["fallback"]["cost"]


def test_until_the_alarm_it_is_the_policy_as_it_is(replayed, serving):
    found, stream = replayed
    end = found.phases()[0]["end"]
    plain = decide(serving.policy, stream)
    np.testing.assert_array_equal(found.arms["adapted"].lost[:end], plain.wrong[:end])
    np.testing.assert_array_equal(found.arms["fixed"].cost, plain.cost)


def test_in_its_phase_the_fallback_policy_alone_decides(replayed):
    """Also in the batch of the alarm: its rows after the alarm are not of this phase."""
    found, _ = replayed
    fallback = found.phases()[1]
    assert fallback["adapted"] == fallback["fallback"]
    alarm = next(event.number for event in found.events if event.kind == "alarm")
    assert fallback["begin"] > alarm + 1  # else this shows nothing


def test_blocks_cover_the_stream_and_agree_with_the_whole(replayed):
    found, _ = replayed
    blocks = found.blocks(700)
    assert [block["begin"] for block in blocks] == list(range(0, 5000, 700))
    assert blocks[-1]["end"] == 5000
    weights = [block["end"] - block["begin"] for block in blocks]
    assert list(found.arms) == ["adapted", "fixed", "same", "fallback"]
    for arm in found.arms:
        mean = np.average([block[arm]["error"] for block in blocks], weights=weights)
        assert mean == pytest.approx(found.between(0, 5000)[arm]["error"])
    with pytest.raises(ArgumentError, match="rows is 0"):
        found.blocks(0)
    for begin, end in ((5, 5), (-1, 5), (4000, 5001)):
        with pytest.raises(ArgumentError, match=f"begin is {begin} and end is {end}"):
            found.between(begin, end)


def test_a_rival_takes_the_audited_rows_and_decides_with_its_rule(replayed):
    found, _ = replayed
    assert Same.rows == found.audited.sum()
    np.testing.assert_array_equal(found.arms["same"].lost, found.arms["fallback"].lost)


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
    assert found.arms["fallback"].lost.mean() == pytest.approx(stream.losses()[:, -1].mean())
    assert found.to_dict(block=250)["measure"] == "mean loss"
