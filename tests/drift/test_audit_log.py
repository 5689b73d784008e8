"""The audit log: what add() returned for is there, whatever happens to the process."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

import ttamer as tt
from support.examples import examples
from ttamer.drift import audit_log
from ttamer.drift.audit_log import (
    AuditLog,
    AuditRow,
    NodeAnswer,
    Retention,
    joined,
    read_log,
    segments,
    trace_of_rows,
)
from ttamer.errors import ArgumentError, MissingExtra, TraceError
from ttamer.trace.spec import CascadeSpec

SPEC = CascadeSpec.of({"small": 1.0, "large.v2": 5.0}, target="last")

WRITER = """
import os, signal, sys
from ttamer.trace.spec import CascadeSpec
from ttamer import _files
from ttamer.drift import audit_log
from ttamer.drift.audit_log import AuditLog, AuditRow, NodeAnswer

folder, crash = sys.argv[1:]
spec = CascadeSpec.of({"small": 1.0, "large.v2": 5.0}, target="last")

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

with AuditLog(folder, spec, segment_rows=25) as log:
    for number in range(10_000):
        if number == 60 and crash == "before the file is synced":
            _files.sync = die
        if number == 60 and crash == "before the rename":
            audit_log.Path.replace = die
        if number == 60 and crash == "before the journal goes":
            audit_log.Path.unlink = die
        said = {"small": NodeAnswer(0.5, "a", 1.0), "large.v2": NodeAnswer(0.25, "b", 5.0)}
        log.add(AuditRow(number, 1000.0 + number, 0.5, said))
        print(number, flush=True)
"""


def row(number, *, label=None, chance=0.5):
    said = {
        "small": NodeAnswer(0.1 + number % 7 / 10, "a", 1.0),
        "large.v2": NodeAnswer(0.25, None, 5.0),
    }
    return AuditRow(number, 1000.0 + number, chance, said, label)


def numbers(trace):
    return trace.signals[audit_log.NUMBER].astype(int).tolist()


def killed(folder, crash, after=None):
    """Run a writer until it is killed; return the numbers whose add() had returned."""
    command = [sys.executable, "-c", WRITER, str(folder), crash]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        done = []
        for line in process.stdout:
            done.append(int(line))
            if after is not None and len(done) == after:
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return done


@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
@pytest.mark.parametrize(
    ("crash", "after"),
    [
        ("from outside", 3),
        ("from outside", 110),
        ("before the file is synced", None),
        ("before the rename", None),
        ("before the journal goes", None),
    ],
)
def test_kill_9_loses_no_row_that_was_added_and_doubles_none(tmp_path, crash, after):
    done = killed(tmp_path, crash, after)
    assert len(done) >= (after or 60)
    whole = [each.rows for each in segments(tmp_path)]
    assert all(rows == 25 for rows in whole)
    if whole:
        assert numbers(read_log(tmp_path)) == list(range(sum(whole)))  # readers see whole segments
    with AuditLog(tmp_path, SPEC, segment_rows=25) as log:
        assert log.recovered == log.waiting
        log.add(row(99_999))
    found = numbers(read_log(tmp_path))
    assert found[-1] == 99_999
    assert found[:-1] == list(range(len(found) - 1))
    # The row that was being added when it was killed may be there too.
    assert len(done) <= len(found) - 1 <= len(done) + (1 if after is None else 10_000)
    assert not list(tmp_path.glob(".*.part"))


def left_open(log):
    """End a writer as a crash would: nothing is flushed."""
    log._journal.close()
    os.close(log._lock)


@given(torn=st.integers(1, 60))
@examples(20)
def test_a_line_cut_short_is_dropped_and_the_others_are_kept(tmp_path_factory, torn):
    folder = tmp_path_factory.mktemp("log")
    log = AuditLog(folder, SPEC).__enter__()
    for number in range(3):
        log.add(row(number))
    (journal,) = folder.glob("*.journal")
    content = journal.read_bytes()
    line = len(content) - content[:-1].rfind(b"\n") - 1
    journal.write_bytes(content[: -min(torn, line)])
    left_open(log)
    again = AuditLog(folder, SPEC).__enter__()
    assert again.recovered == 2
    again.add(row(7))
    left_open(again)
    with AuditLog(folder, SPEC) as last:
        assert last.recovered == 3
    assert numbers(read_log(folder)) == [0, 1, 7]


def test_what_is_read_is_what_was_added(tmp_path):
    with AuditLog(tmp_path, SPEC, segment_rows=4) as log:
        for number in range(10):
            log.add(row(number, chance=0.1 + number / 20))
        assert log.waiting == 2
        assert numbers(read_log(tmp_path)) == list(range(8))
    trace = read_log(tmp_path)
    assert len(trace) == 10
    assert trace.names == SPEC.names
    assert trace.spec.target == "last"
    np.testing.assert_allclose(trace.signals[audit_log.CHANCE], 0.1 + np.arange(10) / 20)
    np.testing.assert_allclose(trace.signals[audit_log.TIME], 1000.0 + np.arange(10))
    assert (trace.prediction[:, 1] == -1).all()
    assert trace.costs.tolist() == [[1.0, 5.0]] * 10
    assert numbers(read_log(tmp_path, last=3)) == [7, 8, 9]
    assert numbers(read_log(tmp_path, last=50)) == list(range(10))


def with_margins(number, *, entropy=None):
    """A row whose first node has a margin, and its second an entropy where one is given."""
    answers = {
        "small": NodeAnswer(0.5, "a", 1.0, margin=number / 8),
        "large.v2": NodeAnswer(0.25, "b", 5.0, entropy=entropy),
    }
    return AuditRow(number, 1000.0 + number, 0.5, answers)


def test_margins_and_entropies_are_kept_where_every_row_has_them(tmp_path):
    log = AuditLog(tmp_path, SPEC, segment_rows=4).__enter__()
    for number in range(9):
        log.add(with_margins(number, entropy=0.5 if number < 5 else None))
    left_open(log)
    with AuditLog(tmp_path, SPEC) as log:  # the last row comes from the journal
        assert log.recovered == 1
    assert list(tt.Trace.read(segments(tmp_path)[0].path).extras) == ["margin", "entropy"]
    trace = read_log(tmp_path)
    assert list(trace.extras) == ["margin"]
    assert trace.extras["margin"][:, 0].tolist() == [number / 8 for number in range(9)]
    assert np.isnan(trace.extras["margin"][:, 1]).all()
    with AuditLog(tmp_path, SPEC) as log:
        log.add(row(9))
    assert read_log(tmp_path).extras == {}
    assert len(read_log(tmp_path)) == 10


def test_rows_joined_have_the_columns_that_all_of_them_have():
    rows = [trace_of_rows(SPEC, [with_margins(k, entropy=k or None)], {"length": [k]})
            for k in range(3)]  # fmt: skip
    assert list(rows[1].extras) == ["margin", "entropy"]
    whole = joined([*rows, dataclasses.replace(rows[1], inputs={})])
    assert (list(whole.extras), list(whole.signals), len(whole)) == (["margin"], [], 4)
    assert joined(rows[1:]).extras["entropy"][:, 1].tolist() == [1.0, 2.0]
    assert joined([rows[1]]) is rows[1]


def test_a_margin_that_is_not_finite_is_refused(tmp_path):
    with AuditLog(tmp_path, SPEC) as log:
        with pytest.raises(ArgumentError, match="finite margins"):
            log.add(AuditRow(0, 0.0, 0.5, dict.fromkeys(SPEC.names, NodeAnswer(
                0.5, "a", 1.0, entropy=float("nan")))))  # fmt: skip
        assert log.waiting == 0


def test_a_segment_is_an_ordinary_trace(tmp_path):
    with AuditLog(tmp_path, SPEC, segment_rows=4) as log:
        for number in range(4):
            log.add(row(number))
    (only,) = segments(tmp_path)
    assert len(tt.Trace.read(only.path)) == 4


@pytest.mark.parametrize("target", ["label", "last"])
def test_rows_with_and_without_labels_can_be_mixed(tmp_path, target):
    spec = dataclasses.replace(SPEC, target=target)
    with AuditLog(tmp_path, spec, segment_rows=5) as log:
        for number in range(20):
            log.add(row(number, label="a" if number % 3 == 0 or number >= 15 else None))
    every, known = read_log(tmp_path), read_log(tmp_path, labelled=True)
    assert numbers(every) == list(range(20))
    assert every.label is None
    assert numbers(known) == [n for n in range(20) if n % 3 == 0 or n >= 15]
    assert (known.label >= 0).all()
    assert numbers(read_log(tmp_path, last=2, labelled=True)) == [18, 19]


def test_a_label_that_no_node_predicted_is_kept(tmp_path):
    spec = dataclasses.replace(SPEC, target="label")
    with AuditLog(tmp_path, spec) as log:
        log.add(row(0, label="another"))
        log.add(row(1))
    known = read_log(tmp_path, labelled=True)
    assert numbers(known) == [0]
    assert known.wrong().tolist() == [[True, True]]


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(), range(40)),
        (Retention(rows=12), range(25, 40)),
        (Retention(rows=15), range(25, 40)),
        (Retention(seconds=11.0), range(25, 40)),
        (Retention(bytes=1), range(35, 40)),
    ],
)
def test_the_oldest_go_by_retention_and_the_newest_never(tmp_path, retention, kept):
    with AuditLog(tmp_path, SPEC, segment_rows=5, retention=retention) as log:
        for number in range(40):
            log.add(row(number))
    assert numbers(read_log(tmp_path)) == list(kept)


def test_bytes_are_what_the_files_take(tmp_path):
    with AuditLog(tmp_path / "free", SPEC, segment_rows=5) as log:
        for number in range(20):
            log.add(row(number))
    size = max(each.path.stat().st_size for each in segments(tmp_path / "free"))
    limit = Retention(bytes=2 * size)
    with AuditLog(tmp_path / "less", SPEC, segment_rows=5, retention=limit) as log:
        for number in range(20):
            log.add(row(number))
    left = segments(tmp_path / "less")
    assert sum(each.path.stat().st_size for each in left) <= 2 * size
    assert len(left) == 2


def test_a_reader_starts_again_when_retention_removed_a_segment(tmp_path, monkeypatch):
    with AuditLog(tmp_path, SPEC, segment_rows=5) as log:
        for number in range(15):
            log.add(row(number))
    first, real = segments(tmp_path)[0], audit_log.segments
    calls = []

    def once(folder):
        calls.append(folder)
        return [first._replace(path=tmp_path / "gone")] if len(calls) == 1 else real(folder)

    monkeypatch.setattr(audit_log, "segments", once)
    assert len(read_log(tmp_path)) == 15
    assert len(calls) == 2


def test_one_writer_at_a_time(tmp_path):
    with (
        AuditLog(tmp_path, SPEC),
        pytest.raises(TraceError, match="another process writes"),
        AuditLog(tmp_path, SPEC),
    ):
        pass
    with AuditLog(tmp_path, SPEC) as log:
        log.add(row(1))


def test_without_pyarrow_no_row_is_taken(tmp_path, monkeypatch):
    """Once it failed at the first segment, and again when the gateway stopped."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        AuditLog(tmp_path / "log", SPEC).__enter__()
    assert not (tmp_path / "log").exists()


def test_what_cannot_be_a_row_is_refused_and_the_log_goes_on(tmp_path):
    good = row(1)
    with AuditLog(tmp_path, SPEC) as log:
        for bad, text in (
            (AuditRow(1, 0.0, 0.5, {"small": NodeAnswer(0.5, "a", 1.0)}), "answers of every node"),
            (AuditRow(1, 0.0, 0.0, good.answers), "chance of an audited row is 0"),
            (
                AuditRow(
                    1, 0.0, 0.5, {**good.answers, "small": NodeAnswer(float("nan"), "a", 1.0)}
                ),
                "finite confidences",
            ),
        ):
            with pytest.raises(ArgumentError, match=text):
                log.add(bad)
        log.add(good)
    assert len(read_log(tmp_path)) == 1
    with pytest.raises(ArgumentError, match="not open"):
        log.add(good)


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(TraceError, match="no log to read"):
        read_log(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TraceError, match="no log to read"):
        read_log(file)
    for folder in (file, file / "log"):
        with pytest.raises(TraceError, match=r"cannot be written: (File exists|Not a directory)"):
            AuditLog(folder, SPEC).__enter__()
    with pytest.raises(ArgumentError, match="last is 0; it must be at least 1"):
        read_log(tmp_path, last=0)
    with AuditLog(tmp_path, SPEC), pytest.raises(TraceError, match="wait for more rows, or flush"):
        read_log(tmp_path)
    with pytest.raises(ArgumentError, match="segment_rows"):
        AuditLog(tmp_path, SPEC, segment_rows=0)
    (tmp_path / "00000001.journal").write_text("[1, 2]\n")
    damaged = AuditLog(tmp_path, SPEC)
    with pytest.raises(TraceError, match="line 1 is not a row"):
        damaged.__enter__()
    (tmp_path / "00000001.journal").unlink()
    with AuditLog(tmp_path, SPEC):  # nothing holds the lock
        pass


def test_after_a_change_of_the_cascade_the_newest_holds(tmp_path):
    dearer = CascadeSpec.of({"small": 2.0, "large.v2": 5.0}, target="label")
    more = CascadeSpec.of({"small": 2.0, "middle": 3.0, "large.v2": 5.0}, target="label")
    for number, spec in enumerate((SPEC, dearer)):
        with AuditLog(tmp_path, spec) as log:
            log.add(row(number))
    assert read_log(tmp_path).spec == dearer
    with AuditLog(tmp_path, more) as log:
        answers = {**row(2).answers, "middle": NodeAnswer(0.5, "a", 3.0)}
        log.add(dataclasses.replace(row(2), answers=answers))
    with pytest.raises(TraceError, match=r"has the nodes small, large\.v2, .*with last=1"):
        read_log(tmp_path)
    assert read_log(tmp_path, last=1).spec == more


def test_rows_whose_segment_cannot_be_written_stay_in_the_journal(tmp_path, monkeypatch):
    """Nor is a segment tried again at each of the rows after it."""
    tried = []

    def full(*_, **__):
        tried.append(True)
        raise OSError(errno.ENOSPC, "No space left on device")

    with AuditLog(tmp_path, SPEC, segment_rows=3) as log:
        with monkeypatch.context() as patch:
            patch.setattr(audit_log, "atomic_write", full)
            for number in range(5):
                if number == 2:
                    with pytest.raises(TraceError, match="No space left"):
                        log.add(row(number))
                else:
                    log.add(row(number))
        assert (len(tried), log.waiting) == (1, 5)
        log.add(row(5))
        assert log.waiting == 0
    assert numbers(read_log(tmp_path)) == list(range(6))


def test_a_journal_that_is_long_enough_becomes_a_segment_with_the_next_row(tmp_path):
    """As where the process was killed before the segment was written."""
    log = AuditLog(tmp_path, SPEC, segment_rows=10)
    log.__enter__()
    for number in range(4):
        log.add(row(number))
    log._close()
    with AuditLog(tmp_path, SPEC, segment_rows=3) as log:
        assert log.recovered == 4
        log.add(row(4))
        assert log.waiting == 0
    assert numbers(read_log(tmp_path)) == list(range(5))


def test_a_journal_that_cannot_be_opened_is_opened_later(tmp_path, monkeypatch):
    """As where the process has too many open files when a segment is complete."""

    def too_many(_):
        raise OSError(errno.EMFILE, "too many open files")

    with AuditLog(tmp_path, SPEC, segment_rows=2) as log:
        log.add(row(0))
        with monkeypatch.context() as patch:
            patch.setattr(audit_log.JsonLines, "open", too_many)
            for number in (1, 2):  # the first completes the segment, the second is not taken
                with pytest.raises(TraceError, match="cannot be written: too many open files"):
                    log.add(row(number))
        log.add(row(3))
    assert numbers(read_log(tmp_path)) == [0, 1, 3]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"time": -1.0}, "time of an audited row is -1.0"),
        ({"time": float("inf")}, "time of an audited row is inf"),
        (
            {"answers": {name: NodeAnswer(0.5, "a", float("inf")) for name in SPEC.names}},
            "finite and not negative",
        ),
    ],
)
def test_rows_that_no_segment_could_hold_are_refused(tmp_path, change, text):
    """A time before 1970 would give its segment a name that no reader finds."""
    with AuditLog(tmp_path, SPEC) as log, pytest.raises(ArgumentError, match=text):
        log.add(dataclasses.replace(row(0), **change))
