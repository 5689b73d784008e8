"""Watching: few false alarms at any time, and each test finds what it is for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ttamer as tt
from support.shifting import decided
from ttamer.cascade import CascadeSpec
from ttamer.drift.monitor import Bound, Monitor, decide
from ttamer.errors import ArgumentError
from ttamer.stats.bounds import binomial_p
from ttamer.trace.trace import Trace


def watch(rng, *, only=None, bound=None, rows=600, **options):
    reference = decided(rng, rows)
    if only == "calibration":
        reference = dataclasses.replace(reference, states=None)
    elif only == "states":
        reference = dataclasses.replace(reference, believed=None)
    elif only == "promise":
        reference = None
    if bound is None and only in (None, "promise"):
        bound = Bound("error", 0.07)
    return Monitor(reference=reference, bound=bound, **options)


@pytest.mark.parametrize("only", ["calibration", "promise", "states"])
def test_false_alarms_are_as_rare_as_stated(only):
    # At the edge: a promise that holds exactly, a reference of few rows.
    runs, alarms = 120, 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 5])
        bound = Bound("error", 0.05) if only == "promise" else None
        found = watch(rng, only=only, bound=bound, rows=60, false_alarms=0.2, seed=seed)
        alarms += found.update(decided(rng, 300), range(300)) is not None
    # Not more than stated: this many alarms would be likely enough at a rate of 0.2.
    assert binomial_p(runs - alarms, runs, 0.8) > 0.01


def test_a_short_reference_is_not_taken_for_the_truth():
    # Its mean is off by several points: betting against that mean would find a change every time.
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 6])
        short = dataclasses.replace(decided(rng, 40, error=0.3, believed=0.3), states=None)
        found = Monitor(reference=short, false_alarms=0.2, seed=seed)
        later = decided(rng, 600, error=0.3, believed=0.3)
        alarms += found.update(later, range(600)) is not None
    assert alarms <= 8


@pytest.mark.parametrize(
    ("change", "test"),
    [
        ({"error": 0.3}, "promise"),
        ({"error": 0.3}, "calibration"),
        ({"believed": 0.4}, "calibration"),
        ({"states": 0.6}, "states"),
        ({"states": -1.5}, "states"),
    ],
)
def test_each_test_finds_what_it_is_for_soon_after_it_happens(change, test):
    rng = np.random.default_rng(8)
    found = watch(rng, only=test)
    assert found.update(decided(rng, 400), range(0, 800, 2)) is None
    alarm = found.update(decided(rng, 400, **change), range(800, 1600, 2))
    assert alarm is not None
    assert alarm.test == test
    assert alarm.e_value >= alarm.threshold
    assert 800 < alarm.number < 1200
    assert 780 <= alarm.change <= alarm.number
    assert alarm.rows == len(range(alarm.change, alarm.number + 1, 2))


def test_all_three_are_watched_and_share_the_rate():
    rng = np.random.default_rng(11)
    found = watch(rng, false_alarms=0.06)
    assert list(found.progress) == ["calibration", "promise", "states"]
    assert [test.threshold for test in found._tests] == pytest.approx([100, 50, 50])
    assert found.update(decided(rng, 200), range(200)) is None
    assert all(0 <= progress < 1 for progress in found.progress.values())


def test_a_drop_is_measured_from_the_node_it_is_promised_against():
    rng = np.random.default_rng(2)
    bad = decided(rng, 400, error=0.3)
    alike = dataclasses.replace(bad, lost=np.stack([bad.wrong, bad.wrong], axis=1))
    bound = Bound("drop", 0.02, node=1)
    assert Monitor(bound=bound).update(alike, range(400)) is None
    alarm = Monitor(bound=bound).update(bad, range(400))
    assert alarm is not None
    assert "drop" in alarm.text
    assert alarm.observed > 0.1


def test_calibration_reports_which_way_it_went():
    rng = np.random.default_rng(3)
    found = watch(rng, only="calibration")
    text = found.update(decided(rng, 500, believed=0.5), range(500)).text
    assert "less often than believed" in text


def test_an_alarm_reports_what_was_promised_and_what_was_seen():
    rng = np.random.default_rng(4)
    alarm = watch(rng, only="promise").update(decided(rng, 400, error=0.5), range(400))
    assert "promised at most 7.00%" in alarm.text
    assert 0.3 < alarm.observed <= 1


def test_rows_may_come_in_any_parts():
    one, many = (watch(np.random.default_rng(5)) for _ in range(2))
    rows = decided(np.random.default_rng(6), 60)
    one.update(rows, range(60))
    for k in range(60):
        part = {
            field.name: getattr(rows, field.name)[k : k + 1]
            for field in dataclasses.fields(rows)
            if field.name != "unit"
        }
        many.update(dataclasses.replace(rows, **part), [k])
    assert one.progress == many.progress


def test_there_must_be_something_to_test():
    with pytest.raises(ArgumentError, match="nothing to test"):
        Monitor()
    with pytest.raises(ArgumentError, match=r"false_alarms is 1\.5"):
        Monitor(bound=Bound("error", 0.1), false_alarms=1.5)
    rows = decided(np.random.default_rng(1), 50)
    for lacking in ("believed", "states"):
        with pytest.raises(ArgumentError, match=f"needs {lacking}, which these decisions lack"):
            Monitor(reference=rows).update(dataclasses.replace(rows, **{lacking: None}), range(50))


def graded(rows: int, seed: int, *, worse: float = 1.0):
    """Return rows of two nodes with losses from 0 to 10, which may be larger than usual."""
    generator = np.random.default_rng(seed)
    hard = generator.random(rows)
    loss = np.stack([4 * hard, hard], axis=1) * generator.random((rows, 2)) * 2 * worse
    spec = CascadeSpec.of({"small": 1.0, "large": 8.0}, kind="exits", max_loss=10.0)
    confidence = np.stack([1 - hard, 1 - hard], axis=1)
    return Trace(spec, confidence, raw_loss=np.minimum(loss, 10.0))


def test_a_rise_of_the_mean_loss_is_found_and_named_in_its_unit():
    ladder = tt.fit(graded(1500, 0))
    policy = ladder.for_mistake_cost(4.0)
    reference = decide(policy, graded(800, 1))
    promised = 1.4 * reference.mean_loss
    bound = Bound("error", promised, unit=reference.unit)
    assert reference.unit == 10
    usual = Monitor(reference=reference, bound=bound)
    assert usual.update(decide(policy, graded(1500, 2)), range(1500)) is None
    changed = Monitor(bound=bound)
    alarm = changed.update(decide(policy, graded(3000, 3, worse=2.0)), range(3000))
    assert alarm.test == "promise"
    assert alarm.observed > promised == alarm.expected
    assert f"promised at most {promised:.4g}" in alarm.text
    assert alarm.text.startswith("mean loss")
    better = Monitor(reference=reference)
    alarm = better.update(decide(policy, graded(3000, 4, worse=0.3)), range(3000))
    assert "less than believed" in alarm.text
    rows = graded(50, 5)
    unknown = rows.with_spec(dataclasses.replace(rows.spec, max_loss=None))
    with pytest.raises(ArgumentError, match="max_loss"):
        decide(policy, unknown)
