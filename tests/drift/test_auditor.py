"""Audits beside the traffic: nothing waits, and what is lost is counted."""

from __future__ import annotations

import dataclasses
import threading

import pytest

import ttamer as tt
from support.shifting import SPEC, stream_of
from support.waiting import until
from ttamer.drift.auditor import Auditor, AuditSampler, Budget
from ttamer.drift.audits import AuditLog, NodeAnswer, read_log
from ttamer.drift.loop import FallbackServing, Loop

LABELLED = dataclasses.replace(SPEC, target="label")


def answers_of(trace, row):
    return {
        name: NodeAnswer(
            float(trace.confidence[row, k]),
            trace.classes[trace.prediction[row, k]],
            float(trace.costs[row, k]),
        )
        for k, name in enumerate(trace.names)
    }


def serve(auditor, stream):
    """Hand over what a server would; return how many were audited."""
    audited = 0
    for row in range(len(stream)):
        drawn, number = auditor.draw(f"request-{row}")
        if drawn.audited:
            auditor.add(f"request-{row}", number, drawn.chance, answers_of(stream, row))
            audited += 1
    return audited


@pytest.fixture
def auditor(tmp_path):
    """Make an auditor with an open log in ``audits.db``."""
    logs = []

    def make(spec=SPEC, share=1.0, *, is_open=True, **options):
        sampler = options.pop("sampler", None) or AuditSampler(share)
        log = AuditLog(tmp_path / "audits.db", spec)
        if is_open:
            logs.append(log.__enter__())
        return Auditor(spec, sampler, log, clock=lambda: 1000.0, **options)

    yield make
    for log in logs:
        log.__exit__()


class ShownLoop:
    """A loop that keeps what it is shown."""

    number, change = -1, None

    def __init__(self):
        self.rows = []

    def update(self, trace, _, keys):
        self.rows.append((keys[0], trace.classes[trace.label[0]]))


class SlowLoop(ShownLoop):
    """A loop that re-fits until it may go on, and then breaks."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def update(self, *_):
        self.begun.set()
        assert self.go_on.wait(60)
        raise ZeroDivisionError


def test_rows_go_to_the_log_and_to_the_loop(tmp_path, auditor, serving, settings):
    swapped = []
    loop = Loop(serving, settings, swap=swapped.append)
    made = auditor(share=0.7, loop=loop)
    audited = serve(made, stream_of(300, 400, seed=60))
    made.close()
    assert (made.written, made.seen, made.lost) == (audited, audited, 0)
    assert len(read_log(tmp_path / "audits.db")) == audited
    assert isinstance(swapped[0], FallbackServing)
    status = made.status()
    assert status["requests"] == 700
    assert status["loop"]["state"] == loop.state != "watching"
    assert loop.events[0].number > 300
    made.close()  # twice does no harm
    assert made.add("late", 1, 0.5, answers_of(stream_of(1, 0, seed=1), 0)) is False
    assert made.lost == 1


def test_rows_from_before_a_change_that_end_after_the_alarm_are_not_taken_as_new(
    auditor, serving, settings
):
    """Certified on them, a policy for the traffic since would be promised too much."""
    stream, quiet, fitted = stream_of(100, 700, seed=60), 100, []

    def refit(rows):
        fitted.append(rows)
        return tt.fit(rows)

    loop = Loop(serving, settings, refit=refit)
    made = auditor(loop=loop)
    begin = range(quiet // 2, quiet)  # of the others the labels come later
    for row in [*begin, *range(quiet, quiet + 250), *range(quiet // 2), *range(350, 700)]:
        made.add(f"{row}", row, 1.0, answers_of(stream, row))
    made.close()
    assert quiet < loop.events[0].number < quiet + 250
    early = {tuple(row) for row in stream.confidence[: quiet // 2].tolist()}
    assert fitted
    assert not early & {tuple(row) for rows in fitted for row in rows.confidence.tolist()}
    assert (made.outdated, made.seen, made.lost) == (50, 650, 0)


@pytest.mark.parametrize(("spent", "total"), [(None, 14.0), (1.0, 1.0), (7.5, 7.5)])
def test_an_audit_is_paid_by_what_it_cost_and_not_by_what_was_expected(auditor, spent, total):
    sampler = AuditSampler(1.0, cost=28.0, budget=Budget(total=1000.0))
    made = auditor(sampler=sampler)
    for row in range(3):
        made.draw(f"{row}")
        made.add(f"{row}", row, 1.0, answers_of(stream_of(3, 0, seed=1), row), spent=spent)
    made.draw("3")
    made.fail("3", 3.0)
    made.close()
    assert sampler.spent == pytest.approx(3 * total + 3.0)
    assert (made.audited, made.failed, made.lost) == (4, 1, 0)


def test_a_label_may_come_after_the_row_or_before_and_after_a_restart(tmp_path, auditor):
    stream, loop = stream_of(6, 0, seed=1), ShownLoop()
    made = auditor(LABELLED, loop=loop)
    for name in ("after", "before", "never", "failed"):
        made.draw(name)
    made.add("after", 0, 1.0, answers_of(stream, 0))
    assert made.label("before", "4")
    assert not made.label("before", "3")  # the first label counts
    made.add("before", 1, 1.0, answers_of(stream, 1))
    until(lambda: made.written == 2)
    assert made.label("after", "2")
    assert not made.label("after", "3")
    made.add("never", 2, 1.0, answers_of(stream, 2))
    made.fail("failed")
    assert not made.label("failed", "1")
    assert not made.label("nobody", "1")
    made.close()
    assert not made.label("never", "1")  # it is closed
    assert loop.rows == [("before", "4"), ("after", "2")]
    again = auditor(LABELLED, loop=loop)
    assert again.label("never", "1")
    again.close()
    assert loop.rows[2:] == [("never", "1")]
    labelled = read_log(tmp_path / "audits.db", labelled=True)
    assert [labelled.classes[code] for code in labelled.label] == ["2", "4", "1"]


def test_a_label_may_be_matched_with_the_answers_of_its_row(tmp_path, auditor):
    answers, loop = answers_of(stream_of(1, 0, seed=1), 0), ShownLoop()
    right = answers["small"].prediction

    def match(label, predictions):
        assert (label, list(predictions)) == ("alias", [a.prediction for a in answers.values()])
        return right

    made = auditor(LABELLED, loop=loop, match_label=match, conceal=lambda text: f"#{text}")
    made.draw("0")
    assert made.add("0", 0, 1.0, answers)
    assert made.label("0", "alias")
    made.close()
    assert loop.rows == [("0", f"#{right}")]
    assert right not in read_log(tmp_path / "audits.db").classes


def test_a_judged_row_needs_no_label(auditor):
    answers = {n: a._replace(score=1.0) for n, a in answers_of(stream_of(1, 0, seed=1), 0).items()}

    class Loss(ShownLoop):
        def update(self, trace, *_):
            self.rows.append(trace.loss.tolist())

    loop = Loss()
    made = auditor(LABELLED, loop=loop)
    made.draw("0")
    made.add("0", 0, 1.0, answers)
    made.close()
    assert loop.rows == [[[0.0, 0.0, 0.0]]]


def test_a_row_that_cannot_be_used_is_counted_and_reported_and_others_go_on(auditor):
    reported = []
    made = auditor(failed=reported.append)
    assert made.add("bad", 0, 0.5, {"small": NodeAnswer(0.5, "a", 1.0)})
    assert made.add("good", 1, 0.5, answers_of(stream_of(5, 0, seed=1), 0))
    made.close()
    assert (made.written, made.lost) == (1, 1)
    assert "every node" in reported[0]


def test_rows_are_in_the_log_while_the_loop_fits_and_what_is_too_much_is_counted(auditor):
    stream, loop, reported = stream_of(6, 0, seed=1), SlowLoop(), []
    made = auditor(loop=loop, most_waiting=3, failed=reported.append)
    for row in range(4):
        made.add(f"{row}", row, 1.0, answers_of(stream, row))
        until(lambda row=row: made.written == row + 1)
        assert loop.begun.wait(30)
    assert (made.written, made.seen) == (4, 0)  # a kill would lose none of them
    made.add("4", 4, 1.0, answers_of(stream, 4))  # no room for the loop's copy
    until(lambda: made.lost == 1)
    loop.go_on.set()
    made.close()
    assert made.lost == 5
    assert all("ZeroDivisionError at test_auditor.py:" in line for line in reported)


def test_what_takes_too_long_at_the_end_is_left_and_counted(auditor):
    stream, loop = stream_of(6, 0, seed=1), SlowLoop()
    made = auditor(loop=loop)
    for row in range(4):
        made.add(f"{row}", row, 1.0, answers_of(stream, row))
    assert loop.begun.wait(30)
    made.close(timeout=0.05)
    assert made.lost == 3
    loop.go_on.set()
