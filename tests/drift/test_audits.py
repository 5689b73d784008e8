"""The audit log: a row that was added is there, whatever happens to the process."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import ttamer as tt
from ttamer.cascade import CascadeSpec
from ttamer.drift.audits import AuditLog, AuditRow, NodeAnswer, forget_rows, read_log, trace_of_rows

SPEC = CascadeSpec.of({"small": 1.0, "large.v2": 5.0}, target="last")
WRITER = """
import sys
from ttamer.drift.audits import AuditLog, AuditRow, NodeAnswer
from ttamer.cascade import CascadeSpec

spec = CascadeSpec.of({"small": 1.0, "large.v2": 5.0}, target="last")
with AuditLog(sys.argv[1], spec) as log:
    for number in range(10_000):
        answers = {"small": NodeAnswer(0.5, "a", 1.0), "large.v2": NodeAnswer(0.25, "b", 5.0)}
        log.add(AuditRow(number, 1000.0 + number, 0.5, answers))
        print(number, flush=True)
"""


def row(number, *, label=None, time=None, **fields):
    answers = {
        "small": NodeAnswer(0.1 + number % 7 / 10, "a", 1.0),
        "large.v2": NodeAnswer(0.25, None, 5.0),
    }
    fields = {"chance": 0.5, "answers": answers, "label": label, **fields}
    return AuditRow(number, 1000.0 + number if time is None else time, **fields)


def numbers(trace):
    return trace.inputs["audit_number"].astype(int).tolist()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audits.db"


def test_kill_9_between_two_rows_loses_none_that_was_added_and_doubles_none(path):
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        done = []
        for line in process.stdout:
            done.append(int(line))
            if len(done) == 110:
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with AuditLog(path, SPEC) as log:
        log.add(row(99_999))
    rows = numbers(read_log(path))
    assert rows[-1] == 99_999
    assert rows[:-1] == list(range(len(rows) - 1))
    assert len(rows) - 1 >= len(done)


def test_what_is_read_is_what_was_added(path):
    answers = {"small": NodeAnswer(0.5, "a", 1.0), "large.v2": NodeAnswer(0.25, "b", 5.0)}
    with AuditLog(path, SPEC) as log:
        log.add(row(3, answers=answers, inputs={"length": 7.0, "odd": 1.0}))
        log.add(row(5, answers=answers, inputs={"length": 9.0}, chance=0.25))
        assert len(log) == 2
    trace = read_log(path)
    assert numbers(trace) == [3, 5]
    assert trace.names == SPEC.names
    assert trace.spec.target == "last"
    np.testing.assert_array_equal(trace.inputs["audit_chance"], [0.5, 0.25])
    np.testing.assert_array_equal(trace.inputs["audit_time"], [1003.0, 1005.0])
    np.testing.assert_array_equal(trace.inputs["length"], [7.0, 9.0])
    assert "odd" not in trace.inputs  # not every row has it
    np.testing.assert_array_equal(trace.cost, [[1.0, 5.0]] * 2)
    assert trace.label is None


def test_a_label_comes_after_its_row_or_before_and_the_first_counts(path):
    with AuditLog(path, dataclasses.replace(SPEC, target="label")) as log:
        assert log.label("early", "a") is None  # no row is expected
        assert log.label("early", "b", is_expected=True) is None
        for number, request in enumerate(("late", "early", "never")):
            log.add(row(number, request=request))
        assert log.label("late", "b").label == "b"  # no node predicted it
        assert log.label("late", "c") is None
    assert numbers(read_log(path)) == [0, 1, 2]
    labelled = read_log(path, labelled=True)
    assert numbers(labelled) == [0, 1]
    assert [labelled.classes[code] for code in labelled.label] == ["b", "b"]


def test_verdicts_are_what_is_right_and_a_label_where_there_is_none():
    answers = {"small": NodeAnswer(0.5, "a", 1.0, 1.0), "large.v2": NodeAnswer(0.2, "b", 5.0, 0.0)}
    spec = dataclasses.replace(SPEC, target="label")
    rows = [row(0, answers=answers), row(1, label="a"), row(2)]
    assert [r.is_known for r in rows] == [True, True, False]
    assert trace_of_rows(spec, rows).loss.tolist()[:2] == [[0.0, 1.0], [0.0, 1.0]]
    graded = dataclasses.replace(spec, max_loss=1.0)
    half = {name: answer._replace(score=0.5) for name, answer in answers.items()}
    assert trace_of_rows(graded, [row(0, answers=half)]).loss.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("retention", "first"),
    [({"max_rows": 150}, 150), ({"max_age": 49.5}, 250), ({}, 0)],
)
def test_the_oldest_rows_are_deleted(path, retention, first):
    with AuditLog(path, SPEC, **retention) as log:
        for number in range(300):
            log.add(row(number))
    assert numbers(read_log(path)) == list(range(first, 300))
    assert numbers(read_log(path, last=2)) == [298, 299]


def test_rows_of_a_request_are_deleted_on_demand(path):
    with AuditLog(path, SPEC) as log:
        for number in range(4):
            log.add(row(number, request=f"r{number % 2}"))
        assert forget_rows(path, ["r1", "nobody"]) == 2  # while it is open
    assert numbers(read_log(path)) == [0, 2]
    with pytest.raises(tt.TraceError, match="no log"):
        forget_rows(path.with_name("gone"), ["r1"])


def test_threads_and_logs_of_several_processes_share_a_file(path):
    with AuditLog(path, SPEC) as one, AuditLog(path, SPEC) as two:
        threads = [
            threading.Thread(target=lambda k=k: [(one, two)[k % 2].add(row(4 * n + k))
                                                 for n in range(50)])
            for k in range(4)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers(read_log(path))) == list(range(200))


BAD = {
    "needs the answers of every node \\(small, large.v2\\); it has small": {
        "answers": {"small": NodeAnswer(0.5, "a", 1.0)}
    },
    "chance of an audited row is 0; it must be above 0": {"chance": 0},
    "time of an audited row is nan; it must be in seconds": {"time": float("nan")},
    "finite confidences, and costs": {
        "answers": {"small": NodeAnswer(np.nan, "a", 1.0), "large.v2": NodeAnswer(0.1, "a", 1.0)}
    },
    "finite inputs": {"inputs": {"length": np.inf}},
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_a_row_is_refused_and_the_log_goes_on(path, text):
    with AuditLog(path, SPEC) as log:
        log.add(row(0))
        with pytest.raises(tt.ArgumentError, match=text):
            log.add(row(1, **BAD[text]))
        log.add(row(2))
    assert numbers(read_log(path)) == [0, 2]


def test_errors_say_what_to_do(path):
    with pytest.raises(tt.TraceError, match=r"audits\.db: there is no log to read"):
        read_log(path)
    with pytest.raises(tt.ArgumentError, match="the log is not open; use it with `with`"):
        AuditLog(path, SPEC).add(row(0))
    with AuditLog(path, SPEC) as log:
        with pytest.raises(tt.TraceError, match="there is no row yet"):
            read_log(path)
        log.add(row(0))
    with pytest.raises(tt.TraceError, match="there is no row with a label yet"):
        read_log(path, labelled=True)
    with pytest.raises(tt.ArgumentError, match="last is 0; it must be at least 1"):
        read_log(path, last=0)
    others = CascadeSpec.of({"a": 1.0, "b": 5.0}, target="last")
    with (
        pytest.raises(tt.TraceError, match=r"has rows of the nodes small, large.v2, not of a, b"),
        AuditLog(path, others),
    ):
        pass


@pytest.mark.skipif(os.name != "posix", reason="there is no mode")
def test_only_the_owner_may_read_it(path):
    with AuditLog(path, SPEC) as log:
        log.add(row(0))
        assert path.stat().st_mode & 0o777 == 0o600
