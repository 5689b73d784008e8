"""The trace log: rows that come back, files that stay small, disks that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ttamer.errors import ArgumentError
from ttamer.runtime.reply import NodeCall
from ttamer.serve.observability.record import RequestRecord
from ttamer.serve.observability.trace_log import TraceLog, log_files, read_rows

HERE = str(Path(__file__).parent)


def asked(node, prediction="Paris", error=None, confidence=0.75):
    return NodeCall(node, prediction, confidence, 1.0, 0.1, error)


def served(number=0, *path) -> RequestRecord:
    nodes = path or (asked("small"),)
    return RequestRecord(f"r{number}", "/v1/classify", 200, 0.2, "ab12", nodes, "small", 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "seen.jsonl"


def test_a_row_reports_what_was_seen(path):
    log = TraceLog(path)
    log.finished(served(7, asked("small", error="timeout: x"), asked("large")))
    log.close()
    (row,) = read_rows(path)
    assert row.pop("time") > 1.7e9
    assert row == {
        "request": "r7",
        "policy": "ab12",
        "asked": [
            {"node": "small", "cost": 1.0, "seconds": 0.1, "failed": "timeout"},
            {"node": "large", "cost": 1.0, "seconds": 0.1, "confidence": 0.75},
        ],
        "by": "small",
        "cost": 1.0,
        "capped": False,
    }
    assert (log.written, log.lost) == (1, 0)


def test_predictions_are_written_only_if_wanted(path):
    for wanted in (False, True):
        log = TraceLog(path, predictions=wanted)
        log.finished(served())
        log.close()
    without, with_them = read_rows(path)
    assert "prediction" not in without["asked"][0]
    assert with_them["asked"][0]["prediction"] == "Paris"


def test_a_request_without_calls_has_no_row(path):
    log = TraceLog(path)
    log.finished(RequestRecord("1", "/v1/classify", 401, 0.0))
    log.close()
    assert not path.exists()
    assert log.lost == 0


def test_only_the_owner_may_read_it(path):
    log = TraceLog(path)
    log.finished(served())
    log.close()
    assert path.stat().st_mode & 0o077 == 0


def test_files_are_rotated_when_full_and_the_oldest_removed(path):
    log = TraceLog(path, max_bytes=1024, keep=2)
    for number in range(100):
        log.finished(served(number))
    log.close()
    files = sorted(p.name for p in path.parent.iterdir())
    assert files == ["seen.jsonl", "seen.jsonl.1", "seen.jsonl.2"]
    assert all(p.stat().st_size <= 1024 for p in path.parent.iterdir())
    rows = [row["request"] for file in log_files(path) for row in read_rows(file)]
    assert rows == [f"r{number}" for number in range(100)][-len(rows) :]
    assert (log.written, log.lost) == (100, 0)


def test_the_files_of_a_log_come_oldest_first(path):
    for name in ("seen.jsonl", "seen.jsonl.2", "seen.jsonl.10", "seen.jsonl.bak", "seen.jsonl.1"):
        (path.parent / name).touch()
    names = [file.name for file in log_files(path)]
    assert names == ["seen.jsonl.10", "seen.jsonl.2", "seen.jsonl.1", "seen.jsonl"]
    assert log_files(path.parent / "other") == []


def test_one_file_alone_stays_small_too(path):
    log = TraceLog(path, max_bytes=1024, keep=0)
    for number in range(50):
        log.finished(served(number))
    log.close()
    assert [p.name for p in path.parent.iterdir()] == ["seen.jsonl"]
    assert path.stat().st_size <= 1024
    assert [*read_rows(path)][-1]["request"] == "r49"


def test_a_log_goes_on_where_it_was_left(path):
    for number in range(3):
        log = TraceLog(path, max_bytes=1024)
        for more in range(4):
            log.finished(served(10 * number + more))
        log.close()
    rows = [row["request"] for file in log_files(path) for row in read_rows(file)]
    assert rows == ["r0", "r1", "r2", "r3", "r10", "r11", "r12", "r13", "r20", "r21", "r22", "r23"]


@pytest.mark.parametrize("torn", [b'{"request": "half', b'{"request": "no end"}', b"[1]\n", b"\n"])
def test_a_torn_last_line_is_passed_over_and_spoils_no_other(path, torn):
    log = TraceLog(path)
    log.finished(served(1))
    log.close()
    with path.open("ab") as file:
        file.write(torn)
    assert [row["request"] for row in read_rows(path)] == ["r1"]
    log = TraceLog(path)
    log.finished(served(2))
    log.close()
    found = [row["request"] for row in read_rows(path)]
    assert found[0] == "r1"
    assert found[-1] == "r2"


def test_garbage_in_the_file_is_passed_over(path):
    path.write_bytes(b"\x00\xff\n" + b"[" * 5000 + b"\n" + b'{"request": "r1"}\n')
    assert [row["request"] for row in read_rows(path)] == ["r1"]


def test_a_link_is_not_followed(tmp_path, path):
    path.symlink_to(tmp_path / "elsewhere")
    log = TraceLog(path)
    log.finished(served())
    log.close()
    assert log.lost == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_loses_rows_and_counts_them():
    lost = []
    log = TraceLog("/dev/full", on_lost=lambda: lost.append(1))
    for number in range(5):
        log.finished(served(number))
    log.close()
    assert (log.written, log.lost, len(lost)) == (0, 5, 5)


def test_a_place_that_cannot_be_written_is_harmless(tmp_path):
    log = TraceLog(tmp_path / "no" / "such" / "folder")
    log.finished(served())
    log.close()
    assert log.lost == 1


FULL = """
import resource, sys
sys.path.insert(0, {here!r})
from test_trace_log import served
from ttamer.serve.observability.trace_log import TraceLog
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
log = TraceLog({path!r})
for number in range(40):
    log.finished(served(number))
log.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = TraceLog({path!r})
again.finished(served(99))
again.close()
print(log.written, log.lost, again.written)
"""


def test_a_disk_that_fills_in_the_middle_of_a_row_leaves_no_half_row(path):
    code = FULL.format(here=HERE, path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    written, lost, again = map(int, done.stdout.split())
    assert written + lost == 40
    assert lost > 0
    assert again == 1
    rows = path.read_bytes().splitlines()
    assert len([*read_rows(path)]) == len(rows) == written + 1


def test_a_slow_disk_fills_the_queue_and_then_rows_are_lost_not_time(path):
    os.mkfifo(path)  # a pipe that no one reads: writing stops after some pages
    log = TraceLog(path, queue_rows=100)
    for number in range(5000):
        log.finished(served(number))
    lost = log.lost
    assert lost > 0
    with path.open("rb") as reader:
        draining = threading.Thread(target=log.close, args=(30,))
        draining.start()
        text = b""
        while text.count(b"\n") < 5000 - lost:
            text += reader.read1()
        draining.join()
    assert (log.written, log.lost) == (5000 - lost, lost)


def test_what_cannot_be_flushed_in_time_is_counted_as_lost(path):
    os.mkfifo(path)
    log = TraceLog(path, queue_rows=3000)
    for number in range(3000):
        log.finished(served(number))
    log.close(0.0)
    waiting = log.lost
    assert waiting > 0
    log.finished(served())  # after the end
    assert log.lost == waiting + 1
    with path.open("rb") as reader:  # let the thread go
        for _ in range(3000):
            reader.readline()


def test_only_rows_that_wait_are_lost_at_the_end(path, monkeypatch):
    is_writing, may_write = threading.Event(), threading.Event()

    def append(*_):
        is_writing.set()
        return may_write.wait(30)

    monkeypatch.setattr("ttamer.serve.observability.trace_log._Rotating.append", append)
    log = TraceLog(path)
    log.finished(served(0))
    is_writing.wait(30)
    for number in (1, 2):
        log.finished(served(number))
    log.close(0.01)
    may_write.set()
    assert log.lost == 2


def test_a_row_that_cannot_be_written_down_does_not_end_the_log(path):
    log = TraceLog(path)
    log.finished(served(0, SimpleNamespace(node="small")))
    log.finished(served(1, asked("small", confidence=float("nan"))))
    log.finished(served(2, asked("small", confidence="high")))
    log.finished(served(3, asked("\ud800\n")))
    log.close()
    found = {row["request"]: row["asked"][0] for row in read_rows(path)}
    assert sorted(found) == ["r1", "r3"]
    assert found["r1"]["confidence"] is None
    assert found["r3"]["node"] == "\ud800\n"
    assert (log.written, log.lost) == (2, 2)


KILLED = """
import sys
sys.path.insert(0, {here!r})
from test_trace_log import served
from ttamer.serve.observability.trace_log import TraceLog
log = TraceLog({path!r}, queue_rows=100_000)
for number in range(10**9):
    log.finished(served(number))
    if log.written > 2000:
        print(log.written, flush=True)
"""


def test_after_a_kill_every_row_that_was_written_is_there(path):
    code = KILLED.format(here=HERE, path=str(path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        written = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    log = TraceLog(path)
    log.finished(served(-1))
    log.close()
    rows = [row["request"] for row in read_rows(path)]
    assert rows[-1] == "r-1"
    assert rows[:written] == [f"r{number}" for number in range(written)]


def test_closing_twice_is_closing_once(path):
    log = TraceLog(path)
    log.close()
    log.close()


@pytest.mark.parametrize("wrong", [{"max_bytes": 10}, {"keep": -1}, {"queue_rows": 0}])
def test_a_log_that_cannot_be(path, wrong):
    with pytest.raises(ArgumentError, match="a trace log needs"):
        TraceLog(path, **wrong)
