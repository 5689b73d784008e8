"""Audits beside the traffic: lost rows are counted, and the loop takes every row."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from ttamer.drift.fallback import AskLast
from ttamer.drift.sampling import AuditSampler, Budget
from ttamer.drift.worker import Worker

import ttamer as tt
from support.shifting import SPEC, stream_of
from support.waiting import until
from ttamer.drift.auditor import Auditor
from ttamer.drift.audits import AuditLog, NodeAnswer, read_log
from ttamer.drift.loop import Loop


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
def clock():
    return lambda: 1000.0


def test_rows_go_to_the_log_and_to_the_loop(tmp_path, serving, settings, clock):
    stream = stream_of(300, 400, seed=60)
    swapped = []
    loop = Loop(serving, settings, swap=swapped.append, clock=clock)
    with AuditLog(tmp_path / "audits.db", SPEC) as log:
        auditor = Auditor(SPEC, AuditSampler(0.7), log=log, loop=loop, clock=clock)
        audited = serve(auditor, stream)
        auditor.close()
    assert (auditor.written, auditor.seen, auditor.lost) == (audited, audited, 0)
    assert len(read_log(tmp_path / "audits.db")) == audited
    assert isinstance(swapped[0].policy, AskLast)
    status = auditor.status()
    assert status["requests"] == 700
    assert status["loop"]["state"] == loop.state != "watching"
    assert loop.events[0].number > 300
    auditor.close()  # twice does no harm
    assert auditor.add("late", 1, 0.5, answers_of(stream, 0)) is False
    assert auditor.lost == 1


def test_a_row_that_cannot_be_used_is_counted_and_reported_and_others_go_on(tmp_path, clock):
    stream, reported = stream_of(5, 0, seed=1), []
    with AuditLog(tmp_path / "audits.db", SPEC) as log:
        auditor = Auditor(SPEC, AuditSampler(1.0), log=log, failed=reported.append, clock=clock)
        assert auditor.add("bad", 0, 0.5, {"small": NodeAnswer(0.5, "a", 1.0)})
        assert auditor.add("good", 1, 0.5, answers_of(stream, 0))
        auditor.close()
    assert (auditor.written, auditor.lost) == (1, 1)
    assert "every node" in reported[0]


def test_rows_that_end_in_another_order_are_taken(serving, settings, clock):
    stream = stream_of(6, 0, seed=1)
    loop = Loop(serving, settings)
    auditor = Auditor(SPEC, AuditSampler(1.0), loop=loop, clock=clock)
    for row in (3, 1, 2, 0):
        auditor.add(f"{row}", row, 1.0, answers_of(stream, row))
    auditor.close()
    assert (auditor.seen, loop.audited, auditor.lost) == (4, 4, 0)


def test_rows_from_before_a_change_that_end_after_the_alarm_are_not_taken_as_new(
    serving, settings, clock
):
    """Certified on them, a policy for the traffic since would be promised too much."""
    stream, quiet, fitted = stream_of(100, 700, seed=60), 100, []

    def refit(rows):
        fitted.append(rows)
        return tt.fit(rows)

    loop = Loop(serving, settings, refit=refit)
    auditor = Auditor(SPEC, AuditSampler(1.0), loop=loop, clock=clock)
    begin = range(quiet // 2, quiet)  # of the others the labels come later
    for row in [*begin, *range(quiet, quiet + 250), *range(quiet // 2), *range(350, 700)]:
        auditor.add(f"{row}", row, 1.0, answers_of(stream, row))
    auditor.close()
    assert quiet < loop.events[0].number < quiet + 250
    early = {tuple(row) for row in stream.confidence[: quiet // 2].tolist()}
    assert fitted
    assert not early & {tuple(row) for rows in fitted for row in rows.confidence.tolist()}
    status = auditor.status()
    assert (status["outdated"], status["seen"], status["lost"]) == (50, 650, 0)


def test_against_labels_the_loop_waits_for_rows_that_have_one(serving, settings, clock):
    stream = stream_of(6, 0, seed=1)
    spec = dataclasses.replace(SPEC, target="label")
    loop = Loop(serving, settings)
    auditor = Auditor(spec, AuditSampler(1.0), loop=loop, clock=clock)
    auditor.add("0", 0, 1.0, answers_of(stream, 0))
    auditor.add("1", 1, 1.0, answers_of(stream, 1), label="2")
    auditor.close()
    assert auditor.seen == 1


def test_the_budget_gets_back_what_was_not_spent(clock):
    stream = stream_of(40, 0, seed=1)
    auditor = Auditor(SPEC, AuditSampler(1.0, cost=28.0, budget=Budget(total=1000.0)), clock=clock)
    audited = serve(auditor, stream)
    auditor.close()
    assert auditor.sampler.spent == pytest.approx(14.0 * audited)


def test_an_audit_may_cost_more_than_expected_and_less_than_all_nodes(clock):
    stream = stream_of(3, 0, seed=1)
    auditor = Auditor(SPEC, AuditSampler(1.0, cost=5.0), clock=clock)
    for row, spent in enumerate((1.0, 7.5, None)):
        auditor.draw(f"{row}")
        auditor.add(f"{row}", row, 1.0, answers_of(stream, row), spent=spent)
    auditor.close()
    assert auditor.sampler.spent == pytest.approx(1.0 + 7.5 + 14.0)


def test_an_audit_that_a_node_did_not_answer_is_paid_for_and_counted(clock):
    auditor = Auditor(SPEC, AuditSampler(1.0, cost=14.0), clock=clock)
    auditor.draw("0")
    auditor.fail("0", 3.0)
    auditor.close()
    status = auditor.status()
    assert (status["audited"], status["failed"], status["lost"]) == (1, 1, 0)
    assert status["spent"] == 3.0


def test_what_the_log_cannot_keep_the_loop_still_sees(tmp_path, serving, settings, clock):
    stream, reported = stream_of(3, 0, seed=1), []
    loop = Loop(serving, settings)
    unopened = AuditLog(tmp_path / "audits.db", SPEC)
    auditor = Auditor(
        SPEC, AuditSampler(1.0), log=unopened, loop=loop, failed=reported.append, clock=clock
    )
    auditor.add("0", 0, 1.0, answers_of(stream, 0))
    auditor.close()
    assert (auditor.written, auditor.seen, auditor.lost) == (0, 1, 1)
    assert "not open" in reported[0]


LABELLED = dataclasses.replace(SPEC, target="label")


def test_a_label_may_come_after_the_row_or_before(tmp_path, clock):
    stream, shown = stream_of(6, 0, seed=1), []

    class Shown:
        number, change = -1, None

        def update(self, trace, _, keys):
            shown.append((keys[0], trace.classes[trace.label[0]]))

    with AuditLog(tmp_path / "audits.db", LABELLED) as log:
        auditor = Auditor(LABELLED, AuditSampler(1.0), log=log, loop=Shown(), clock=clock)
        for name in ("after", "before", "never", "failed"):
            auditor.draw(name)
        auditor.add("after", 0, 1.0, answers_of(stream, 0))
        assert auditor.label("before", "4")
        assert not auditor.label("before", "3")  # the first label counts, as after the row
        auditor.add("before", 1, 1.0, answers_of(stream, 1))
        assert auditor.label("after", "2")
        auditor.add("never", 2, 1.0, answers_of(stream, 2))
        auditor.fail("failed")
        assert not auditor.label("failed", "1")
        assert not auditor.label("nobody", "1")
        assert not auditor.label("after", "3")  # it has one
        assert auditor._pending is not None
        assert len(auditor._pending) == 1
        auditor.close()
        assert not auditor.label("never", "1")  # too late, and counted
    assert shown == [("before", "4"), ("after", "2")]
    assert auditor.lost == 1
    labelled = read_log(tmp_path / "audits.db", labelled=True)
    assert [labelled.classes[code] for code in labelled.label] == ["2", "4"]
    numbers = read_log(tmp_path / "audits.db").inputs["audit_number"]
    assert sorted(numbers.tolist()) == [0, 1, 2]  # each once


def test_a_label_may_be_matched_with_the_answers_of_its_row(tmp_path, clock):
    stream = stream_of(1, 0, seed=1)
    answers = answers_of(stream, 0)
    right = answers["small"].prediction

    matched, shown = [], []

    def match(label, predictions):
        assert (label, list(predictions)) == ("alias", [a.prediction for a in answers.values()])
        matched.append(label)
        return right

    class Shown:
        number, change = -1, None

        def update(self, trace, *_):
            shown.append(trace.classes[trace.label[0]])

    with AuditLog(tmp_path / "audits.db", LABELLED) as log:
        auditor = Auditor(
            LABELLED, AuditSampler(1.0), log=log, loop=Shown(), match_label=match, clock=clock
        )
        auditor.draw("0")
        auditor.add("0", 0, 1.0, answers)
        assert auditor.label("0", "alias")
        auditor.close()
    assert shown == [right]
    assert matched == ["alias"]  # once for the log and the loop, as it may cost something
    labelled = read_log(tmp_path / "audits.db", labelled=True)
    assert [labelled.classes[code] for code in labelled.label] == [right]


def test_of_too_many_rows_without_a_label_the_oldest_are_forgotten(clock):
    stream = stream_of(6, 0, seed=1)
    auditor = Auditor(LABELLED, AuditSampler(1.0), label_rows=2, clock=clock)
    for row in range(3):
        auditor.draw(f"{row}")
        auditor.add(f"{row}", row, 1.0, answers_of(stream, row))
    assert [auditor.label(f"{row}", "1") for row in range(3)] == [False, True, True]
    auditor.close()
    assert auditor.status()["unlabelled"] == 0


class SlowLoop:
    """A loop that re-fits until it may go on, and then breaks."""

    number, change = -1, None

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def update(self, *_):
        self.begun.set()
        self.go_on.wait(30)
        raise ZeroDivisionError


def test_the_log_does_not_wait_for_a_loop_that_fits(tmp_path, clock):
    stream, loop = stream_of(6, 0, seed=1), SlowLoop()
    with AuditLog(tmp_path / "audits.db", SPEC) as log:
        auditor = Auditor(SPEC, AuditSampler(1.0), log=log, loop=loop, clock=clock)
        for row in range(4):
            auditor.add(f"{row}", row, 1.0, answers_of(stream, row))
        assert loop.begun.wait(30)
        until(lambda: auditor.written == 4)
        assert (auditor.written, auditor.seen) == (4, 0)  # a kill would lose none of them
        loop.go_on.set()
        auditor.close()


def test_what_takes_too_long_at_the_end_is_left_and_counted(clock):
    stream, loop = stream_of(6, 0, seed=1), SlowLoop()
    auditor = Auditor(SPEC, AuditSampler(1.0), loop=loop, clock=clock)
    for row in range(4):
        auditor.add(f"{row}", row, 1.0, answers_of(stream, row))
    assert loop.begun.wait(30)
    auditor.close(timeout=0.01)
    assert auditor.lost == 3
    loop.go_on.set()


def test_a_full_queue_and_a_broken_loop_lose_rows_and_say_so(clock):
    stream, reported, loop = stream_of(6, 0, seed=1), [], SlowLoop()
    auditor = Auditor(
        SPEC, AuditSampler(1.0), loop=loop, queue_rows=1, failed=reported.append, clock=clock
    )
    assert auditor.add("0", 0, 1.0, answers_of(stream, 0))
    assert loop.begun.wait(30)  # the first is being worked on
    assert auditor.add("1", 1, 1.0, answers_of(stream, 1))
    assert not auditor.add("2", 2, 1.0, answers_of(stream, 2))
    assert auditor.lost == 1
    loop.go_on.set()
    auditor.close()
    assert auditor.lost == 3
    assert len(reported) == 2
    for line in reported:
        assert "was lost: ZeroDivisionError at test_auditor.py:" in line


def test_a_row_with_its_label_waits_for_none(clock):
    stream = stream_of(1, 0, seed=1)
    auditor = Auditor(LABELLED, AuditSampler(1.0), clock=clock)
    auditor.draw("0")
    auditor.add("0", 0, 1.0, answers_of(stream, 0), label="2")
    assert auditor.status()["unlabelled"] == 0
    assert not auditor.label("0", "3")  # it has one
    auditor.close()


def test_the_thread_outlives_a_report_that_fails():
    done = []

    def work(item):
        if item == "bad":
            raise ValueError(item)
        done.append(item)

    def lost(_):
        raise OSError("the terminal is gone")

    worker = Worker(work, size=10, lost=lost, name="example")
    assert worker.put("bad")
    assert worker.put("good")
    assert worker.close(60) == 0
    assert done == ["good"]
