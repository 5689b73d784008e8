"""The job: the same rows give the same events, in however many runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

import ttamer as tt
from support.shifting import rows_of, stream_of
from ttamer.drift.audits import AuditedRows, forget_rows
from ttamer.drift.job import watch
from ttamer.drift.loop import LoopSettings
from ttamer.errors import ArgumentError, ArtefactError, TraceError

SETTINGS = LoopSettings(0.08, refit_rows=300, shadow_rows=30)
WRITER = """
import sys
from ttamer.drift.audits import AuditedRows

with AuditedRows(sys.argv[1]) as rows:
    for number in range(10_000):
        rows.add({"request": f"r{number}", "time": float(number)})
        print(number, flush=True)
"""


def lines_of(trace, version, *, first=0, inputs=None, **fields):
    """The lines of a decision log in which every request was audited."""
    for row in range(len(trace)):
        nodes = {
            name: {
                "chance": 0.5,
                "cost": trace.costs[row, node],
                "confidence": trace.confidence[row, node],
                "prediction": trace.classes[trace.prediction[row, node]],
            }
            for node, name in enumerate(trace.names)
        }
        number = first + row
        line = {"v": 1, "time": 1.0 + number, "request": f"r{number}", "policy": version}
        line |= {"by": "large", "cost": 1.0, "drawn": 0.5, "nodes": nodes, **fields}
        yield line | ({} if inputs is None else {"inputs": inputs(row)})


def write(path, *parts, spec=None):
    head = {"v": 1, "cascade": (spec or rows_of(1, seed=0).spec).to_toml()}
    lines = [json.dumps(line) for part in ([head], *parts) for line in part]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def ladder(before):
    return tt.fit(before.take(slice(1500)))


@pytest.fixture
def files(tmp_path, ladder):
    """A log without rows yet, a policy, and its version."""
    policy = tmp_path / "policy.ttamer"
    tt.save(ladder, policy)
    return tmp_path / "d.jsonl", policy, tt.inspect(policy)["sha256"][:16]


def test_a_row_that_two_runs_read_at_once_is_there_once(tmp_path):
    with AuditedRows(tmp_path / "a.drift") as one, AuditedRows(tmp_path / "a.drift") as two:
        for rows in (one, two):
            rows.add({"request": "r", "time": 1.0})
        one.add({"request": "r", "time": 2.0})
        assert [(row.request, row.time) for row in two] == [("r", 1.0), ("r", 2.0)]


def test_it_waits_for_a_reference_then_tests_and_after_a_change_falls_back_and_swaps(files):
    log, policy, version = files
    stream = stream_of(500, 1200, seed=20)
    other = lines_of(rows_of(30, seed=9), "another policy", first=-30)  # decided by another
    lines = [*other, *lines_of(stream, version)]
    write(log, lines[:180])
    waiting = watch(log, policy, SETTINGS)
    assert str(waiting) == "waiting for 150 more audited rows as a reference"
    write(log, lines)
    former, seen = policy.read_bytes(), []
    whole = watch(log, policy, SETTINGS, replace=True)
    assert [event.kind for event in whole.events][:5] == [
        "alarm",
        "fallback",
        "refit",
        "certified",
        "swap",
    ]
    assert 500 <= whole.events[0].facts["change"] < 600
    assert whole.replaced
    assert policy.read_bytes() != former
    assert "replaced: " in str(whole)
    again = watch(log, policy, SETTINGS, replace=True)
    assert (again.events, again.replaced, again.is_current) == ((), False, True)

    # In parts: the same events.
    policy.write_bytes(former)
    for end in (400, 800, 1300, len(lines)):
        write(log, lines[:end])
        seen += watch(log, policy, SETTINGS, replace=True).events
    assert [str(event) for event in seen] == [str(event) for event in whole.events]


def test_another_policy_of_the_operator_begins_anew_and_a_single_one_is_refused(files, ladder):
    log, policy, version = files
    write(log, lines_of(rows_of(360, seed=3), version))
    assert watch(log, policy, SETTINGS).rows == 60
    tt.save(ladder.at(0.5), policy)
    with pytest.raises(ArgumentError, match="holds one policy"):
        watch(log, policy, SETTINGS)
    with AuditedRows(f"{policy}.drift") as rows:
        assert len(list(rows)) == 360  # a mistake of the operator deletes nothing
    policy.write_bytes(b"half a file")
    with pytest.raises(ArtefactError, match=r"policy\.ttamer: ") as error:
        watch(log, policy, SETTINGS)
    assert str(error.value).count("policy.ttamer") == 1
    tt.save(tt.fit(rows_of(600, seed=5)), policy)
    assert watch(log, policy, SETTINGS).waiting == 300


def test_a_reference_may_be_a_file_without_its_cascade(files, tmp_path):
    log, policy, version = files
    write(log, lines_of(rows_of(60, seed=3), version))
    rows_of(400, seed=4).write(tmp_path / "held.csv")
    assert watch(log, policy, SETTINGS, reference=tmp_path / "held.csv").rows == 60


def test_a_rows_inputs_labels_and_verdicts_are_read(tmp_path):
    spec = tt.CascadeSpec.of({"small": 1.0, "middle": 3.0, "large": 10.0}, kind="exits")
    rng = np.random.default_rng(0)
    trace = rows_of(500, seed=2)
    length = rng.random(500)
    right = trace.prediction == trace.prediction[:, 2:]
    fitted = tt.Trace.from_arrays(spec, trace.confidence, correct=right, inputs={"length": length})
    tt.save(tt.fit(fitted, inputs=["length"]), tmp_path / "policy.ttamer")
    version = tt.inspect(tmp_path / "policy.ttamer")["sha256"][:16]
    state = lambda row: {} if row == 7 else {"length": length[row]}  # noqa: E731
    lines = list(lines_of(trace, version, inputs=state))
    for row, line in enumerate(lines):
        if row % 2:
            line["label"] = trace.classes[trace.prediction[row, 2]]
        else:
            for node, name in enumerate(spec.names):
                line["nodes"][name]["score"] = float(right[row, node])
    lines[0]["nodes"]["small"].pop("score")  # not known: no part of the tests
    lines[0]["nodes"]["small"]["prediction"] = "else"
    write(tmp_path / "d.jsonl", lines, spec=spec)
    seen = []

    def refit(rows):
        seen.append(rows)
        return tt.fit(rows)

    found = watch(
        tmp_path / "d.jsonl",
        tmp_path / "policy.ttamer",
        LoopSettings(0.5, refit_rows=100),
        refit=refit,
    )
    assert found.rows == 380  # of 499, the reference and a batch that is not complete
    with AuditedRows(tmp_path / "policy.ttamer.drift") as rows:
        assert [row.line.get("inputs") for row in rows][6:8] == [{}, {"length": length[8]}]


def test_kill_9_between_two_rows_loses_none_that_was_added_and_doubles_none(tmp_path):
    path = tmp_path / "policy.drift"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        done = []
        for line in process.stdout:
            done.append(int(line))
            if len(done) == 110:
                process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with AuditedRows(path) as rows:
        kept = [row.request for row in rows]
    assert kept[: len(done)] == [f"r{number}" for number in done]
    assert len(kept) <= len(done) + 1
    assert path.stat().st_mode & 0o077 == 0  # only the owner may read it


def test_rows_of_a_request_are_deleted_on_demand(tmp_path):
    path = tmp_path / "policy.drift"
    with AuditedRows(path) as rows:
        for number in range(3):
            rows.add({"request": f"r{number}", "time": float(number)})
        assert forget_rows(path, ["r1", "unknown"]) == 1  # while another process has it open
        assert [row.number for row in rows] == [1, 3]
    with pytest.raises(TraceError, match="there is no file of audited rows"):
        forget_rows(tmp_path / "no.drift", ["r1"])
    (tmp_path / "bad").write_text("no database, whatever its name may say")
    with pytest.raises(TraceError, match="cannot be used as a database"):
        forget_rows(tmp_path / "bad", ["r1"])
