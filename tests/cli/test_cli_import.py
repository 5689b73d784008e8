"""Logs with one line per call are read as they are."""

from __future__ import annotations

import json

import numpy as np

from ttamer import Trace
from ttamer.cli import main


def calls(path, count=400):
    """A log with one line per call; the last input was asked of one node alone."""
    rng = np.random.default_rng(0)
    lines = ["id,node,confidence,correct,cost"]
    for row in range(count):
        for node, cost in (("small", 1), ("large", 10)):
            sure = rng.random()
            if row < count - 1 or node == "small":
                lines.append(f"{row},{node},{sure:.3f},{int(rng.random() < sure)},{cost}")
    path.write_text("\n".join(lines) + "\n")


def test_a_log_of_calls_is_read_by_the_commands(tmp_path, capsys):
    log = tmp_path / "calls.csv"
    calls(log, 401)
    command = ["frontier", str(log), "--families", "threshold,always-best", "--json"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "every answer is judged: --skip-bad leaves the others out" in said
    assert "fitting" not in said
    assert main([*command, "--skip-bad"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["test_rows"] == 200
    assert "1 row of 201 left out of what is measured" in shown.err
    assert "the nodes are 'small', 'large', each at the mean of its cost column" in shown.err
    trace = Trace.read(log)
    assert (len(trace), int((~trace.answered).sum())) == (401, 1)


def test_a_log_of_calls_without_costs_needs_them(tmp_path, capsys):
    log = tmp_path / "calls.csv"
    calls(log)
    lines = [line.rpartition(",")[0] for line in log.read_text().splitlines()]
    log.write_text("\n".join(lines))
    assert main(["frontier", str(log)]) == 2
    assert "keeps no cascade: give what a call of each node costs" in capsys.readouterr().err
