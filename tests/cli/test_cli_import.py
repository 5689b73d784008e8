"""``ttamer import``: logs of other projects become traces that the other commands read."""

from __future__ import annotations

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


def test_a_log_of_calls_becomes_a_frontier_by_two_commands(tmp_path, capsys):
    log, output = tmp_path / "calls.csv", tmp_path / "trace.csv"
    calls(log, 401)
    assert main(["import", "calls", str(log), "-o", str(output)]) == 0
    command = capsys.readouterr().out.strip().splitlines()[-1]
    cascade = tmp_path / "trace.toml"
    assert command == f"Next: ttamer frontier {output} --cascade {cascade}"
    trace = Trace.read(output, cascade)
    assert (len(trace), int((~trace.answered).sum())) == (401, 1)
