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
    assert main(["import", "calls", str(log), "-o", str(output), "--test-share", "0.5"]) == 0
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert command.startswith("Next: ttamer frontier --fit")
    parts = [
        Trace.read(tmp_path / n, tmp_path / "trace.toml") for n in ("trace.csv", "trace.test.csv")
    ]
    assert sum(map(len, parts)) == 401
    assert sum(int((~part.answered).sum()) for part in parts) == 1


def test_a_gzipped_output_is_split_and_named_as_others_are(tmp_path):
    log = tmp_path / "calls.csv"
    calls(log)
    out = str(tmp_path / "trace.csv.gz")
    assert main(["import", "calls", str(log), "-o", out, "--test-share", "0.5"]) == 0
    for name in ("trace.csv.gz", "trace.test.csv.gz"):
        assert len(Trace.read(tmp_path / name, tmp_path / "trace.toml")) == 200


def test_a_share_outside_its_range_is_refused(tmp_path, capsys):
    log = tmp_path / "calls.csv"
    calls(log)
    arguments = ["import", "calls", str(log), "-o", str(tmp_path / "t.csv")]
    assert main([*arguments, "--test-share", "1"]) == 2
    assert "--test-share must be from 0 to below 1" in capsys.readouterr().err
