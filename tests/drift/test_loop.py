"""The loop: every way through it, on a stream that changes at a known row."""

from __future__ import annotations

import dataclasses

import pytest

import ttamer as tt
from support.shifting import rows_of, stream_of
from ttamer.datasets import load
from ttamer.drift.loop import Loop, LoopSettings, serving_of
from ttamer.drift.monitor import decide
from ttamer.errors import ArgumentError, TraceError

QUIET = 400


def drive(loop, stream, *, begin=0, until=None, at_once=10):
    """Give all rows as audited; stop once the loop is in a state, and say at which row."""
    first = loop.number + 1 - begin
    for row in range(begin, len(stream), at_once):
        end = min(row + at_once, len(stream))
        loop.update(stream.take(slice(row, end)), range(first + row, first + end))
        if until is not None and loop.state == until:
            return end
    return len(stream)


def misled(rows, *, seed):
    """Rows on which all but the last are very sure, alike, and wrong."""
    trace = rows_of(rows, seed=seed)
    said, sure = trace.prediction.copy(), trace.confidence.copy()
    said[:, :2] = (said[:, 2:] + 1) % 5
    sure[:, :2] = 0.98
    return dataclasses.replace(trace, prediction=said, confidence=sure)


@pytest.fixture(scope="module")
def stream():
    return stream_of(QUIET, 1600, seed=40)


@pytest.fixture(scope="module")
def whole(serving, settings, stream):
    """A loop that has seen everything, with its events and the policies that served."""
    loop, served = Loop(serving, settings), [serving]
    for row in range(0, len(stream), 10):
        loop.update(stream.take(slice(row, row + 10)), range(row, row + 10))
        if loop.serving is not served[-1]:
            served.append(loop.serving)
    return loop, loop.events, served


def test_the_first_policy_breaks_its_promise_on_the_changed_rows(serving, settings, stream):
    found = decide(serving.policy, stream)
    assert found.wrong[:QUIET].mean() < settings.at_most
    assert found.wrong[QUIET:].mean() > 1.5 * settings.at_most
    assert serving.promise.certified


def test_it_goes_all_the_way_round(whole):
    loop, reported, served = whole
    kinds = [event.kind for event in reported]
    assert kinds[:5] == ["alarm", "fallback", "refit", "certified", "swap"]
    assert [event.state for event in reported[:5]] == [
        "suspected",
        "suspected",
        "refitting",
        "shadowing",
        "swapped",
    ]
    assert loop.state == "watching"
    assert served[1] is None
    assert served[2].promise.certified


def test_the_alarm_comes_after_the_change_and_reports_when_it_was(whole):
    alarm = whole[1][0]
    assert QUIET < alarm.number < QUIET + 200
    assert QUIET - 30 < alarm.facts["change"] <= alarm.number
    assert alarm.facts["e_value"] >= alarm.facts["threshold"]


def test_the_new_policy_keeps_the_promise_on_new_rows_of_the_changed_kind(whole, serving, settings):
    loop = whole[0]
    fresh = rows_of(4000, seed=99, shifted=True)
    found = decide(loop.policy, fresh)
    assert found.wrong.mean() <= settings.at_most
    assert found.cost.mean() < decide(serving.ladder.alone("large"), fresh).cost.mean()


def test_it_was_certified_on_rows_after_the_alarm_that_it_was_not_fitted_to(
    serving, settings, stream
):
    fitted = []

    def refit(rows):
        fitted.append(rows)
        return tt.fit(rows)

    loop = Loop(serving, settings, refit=refit)
    drive(loop, stream, until="shadowing")
    alarm = next(event for event in loop.events if event.kind == "alarm")
    held = loop.candidate.reference
    after = {tuple(row) for row in stream.confidence[alarm.facts["number"] + 1 :].tolist()}
    assert {tuple(row) for row in held.confidence.tolist()} <= after
    seen = {tuple(row) for row in fitted[0].confidence.tolist()}
    assert not seen & {tuple(row) for row in held.confidence.tolist()}
    assert len(fitted[0]) + len(held) >= settings.refit_rows


def test_the_tries_after_one_alarm_share_the_level_of_one_promise(whole, settings):
    levels = [1 - e.facts["promise"]["confidence"] for e in whole[1] if "promise" in e.facts]
    assert len(levels) > 1  # with twice the rows it is fitted again
    assert levels[0] == pytest.approx((1 - settings.confidence) / 2)
    assert levels[1] == pytest.approx((1 - settings.confidence) / 6)
    assert sum(levels) < 1 - settings.confidence


def test_without_a_change_nothing_happens(serving, settings):
    loop = Loop(serving, settings)
    drive(loop, stream_of(800, 0, seed=7))
    assert loop.state == "watching"
    assert not loop.events
    assert loop.serving is serving


def test_where_nothing_can_be_certified_the_fallback_policy_stays(serving, settings):
    loop = Loop(serving, dataclasses.replace(settings, at_most=1e-4))
    loop.attempts = 2
    drive(loop, stream_of(0 + 20, 1800, seed=3), until="fallback")
    assert loop.state == "fallback"
    assert loop.serving is None
    kinds = [event.kind for event in loop.events]
    assert kinds.count("refit") == 2
    assert kinds[-1] == "give up"
    assert "gave up after 2 attempts" in loop.events[-1].text


def test_a_policy_that_breaks_the_promise_in_the_shadow_does_not_serve(serving, settings, stream):
    loop = Loop(serving, settings)
    drive(loop, stream, until="shadowing")
    drive(loop, misled(200, seed=31), until="suspected")
    assert loop.state == "suspected"
    assert "broken there" in loop.events[-1].text
    assert loop.serving is None


def test_a_policy_that_saves_nothing_does_not_serve(serving, settings, stream):
    loop = Loop(
        serving, settings, refit=lambda rows: tt.fit(rows, belief="markov", tradeoffs=[1.0])
    )
    drive(loop, stream, until="suspected", begin=drive(loop, stream, until="shadowing"))
    assert "not cheaper" in loop.events[-1].text
    assert loop.serving is None


def test_a_change_in_mid_shadow_of_a_better_policy_is_found(serving, settings, stream):
    loop = Loop(serving, settings)
    row = drive(loop, stream, until="shadowing")
    row = drive(loop, stream, begin=row, until="watching")
    row = drive(loop, stream, begin=row, until="shadowing")
    assert loop.serving is not None  # the one before still serves
    drive(loop, misled(25, seed=78), until="suspected", at_once=5)
    assert loop.state == "suspected"
    assert loop.serving is None
    assert loop.candidate is None


def test_rows_outside_the_window_are_dropped(serving, settings):
    loop = Loop(serving, settings)
    loop.window = 300
    drive(loop, stream_of(1000, 0, seed=7))
    assert loop.audited == 1000
    assert loop._count_from(0) == 300


def test_settings_that_cannot_be_are_refused(serving, settings):
    for wrong, text in (
        ({"refit_rows": 5}, "refit_rows is 5"),
        ({"refit_rows": 400.5}, "refit_rows is 400.5; it must be a whole number from 50"),
        ({"shadow_rows": 0}, "shadow_rows is 0"),
        ({"kind": "errors"}, 'it must be "error" or "drop"'),
    ):
        with pytest.raises(ArgumentError, match=text):
            dataclasses.replace(settings, **wrong)
    with pytest.raises(ArgumentError, match="3 rows and 1 numbers"):
        Loop(serving, settings).update(rows_of(3, seed=1), [1])
    with pytest.raises(ArgumentError, match="3 rows and 1 keys"):
        Loop(serving, settings).update(rows_of(3, seed=1), [1, 2, 3], ["a"])
    with pytest.raises(ArgumentError, match="the nodes small, middle, large, and the rows have"):
        Loop(serving, settings).update(load("minilm-imdb").take(slice(1)), [1])
    with pytest.raises(ArgumentError, match="a loop needs a CertifiedServing, not FittedLadder"):
        Loop(serving.ladder, settings)
    with pytest.raises(ArgumentError, match="order of the traffic"):
        Loop(serving, settings).update(rows_of(3, seed=1), [1, 3, 3])


def test_a_drop_can_be_promised_too(before):
    settings = LoopSettings(0.05, kind="drop", against="middle")
    fitted, held = before.split(0.6, 0)
    serving = serving_of(tt.fit(fitted), held, settings)
    assert serving.promise.kind == "drop"
    assert serving.promise.against == "middle"
    loop = Loop(serving, settings)
    drive(loop, rows_of(100, seed=3))
    assert loop.state == "watching"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TraceError("no good"), "no good"),
        (OSError("no space left: a text that events must not hold"), "OSError at test_loop.py"),
    ],
)
def test_any_error_of_a_fit_is_a_failed_attempt(serving, settings, stream, error, text):
    """Such as a full disk, which once left the loop in the state "refitting" for good."""

    def refit(_):
        raise error

    loop = Loop(serving, settings, refit=refit)
    loop.attempts = 2
    drive(loop, stream, until="fallback")
    assert loop.serving is None
    failed = [event for event in loop.events if "cannot be fitted" in event.text]
    assert [event.kind for event in failed] == ["not certified", "give up"]
    assert text in failed[0].text
    assert "must not hold" not in failed[0].text
