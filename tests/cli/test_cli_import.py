"""``ttamer import``: logs of other projects become traces that the other commands read."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from ttamer import Trace
from ttamer.cli import main


def apparate_log(path, *, own):
    rng = np.random.default_rng(0)
    conf = [rng.random(400).tolist() for _ in range(3)]
    right = [[bool(c > 0.3) for c in conf[0]], [bool(c > 0.2) for c in conf[1]], own]
    path.write_bytes(pickle.dumps({"conf": conf, "acc": right}))


@pytest.mark.parametrize(
    ("own", "words"),
    [([True] * 400, "agreement with the network itself"), ([True] * 399 + [False], "the label")],
)
def test_a_log_of_apparate_becomes_a_frontier_by_two_commands(tmp_path, capsys, own, words):
    log, output = tmp_path / "auburn_vgg11.pickle", tmp_path / "trace.csv"
    apparate_log(log, own=own)
    assert main(["import", "apparate", str(log), "-o", str(output), "--test-share", "0.5"]) == 0
    shown = capsys.readouterr()
    assert words in shown.err
    assert "every exit costs 1" in shown.err
    command = shown.out.strip().splitlines()[-1].removeprefix("Next: ttamer ").split()
    trace = Trace.read(output, tmp_path / "trace.toml")
    assert (len(trace), trace.names) == (200, ("ramp0", "ramp1", "model"))
    more = ["--families", "paper,threshold", "--resamples", "20", "--json"]
    assert main([*command, *more]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_frugalml_table_and_a_long_csv_become_traces(tmp_path, capsys):
    table, prices, long = (tmp_path / name for name in ("table.csv", "prices.csv", "long.csv"))
    table.write_text(
        "true_label,conf__A,pred__A,conf__B_x,pred__B_x\n1,0.9,1,0.2,0\n1,0.5,0,0.8,1\n"
    )
    prices.write_text("Index,MLaaS(API),Cost per 10k\n0,A,15\n1,B(x),5\n")
    long.write_text("sample,exit,confidence\n1,a,0.5\n1,b,0.9\n2,a,0.8\n")
    out = str(tmp_path / "frugal.npz")
    assert main(["import", "frugalml", str(table), "--prices", str(prices), "-o", out]) == 0
    assert "Next: ttamer fit" in capsys.readouterr().out
    assert Trace.read(out, tmp_path / "frugal.toml").names == ("B_x", "A")
    out = str(tmp_path / "long.npz")
    assert main(["import", "long-csv", str(long), "-o", out]) == 2
    assert "sample" in capsys.readouterr().err
    assert main(["import", "long-csv", str(long), "-o", out, "--skip-bad", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"] == {out: 1}
    assert "1 row left out" in shown.err


def test_a_gzipped_output_is_split_and_named_as_others_are(tmp_path):
    log = tmp_path / "log.pickle"
    apparate_log(log, own=[True] * 400)
    out = str(tmp_path / "trace.csv.gz")
    assert main(["import", "apparate", str(log), "-o", out, "--test-share", "0.5"]) == 0
    for name in ("trace.csv.gz", "trace.test.csv.gz"):
        assert len(Trace.read(tmp_path / name, tmp_path / "trace.toml")) == 200


def test_a_share_outside_its_range_is_refused(tmp_path, capsys):
    log = tmp_path / "log.pickle"
    apparate_log(log, own=[True] * 400)
    arguments = ["import", "apparate", str(log), "-o", str(tmp_path / "t.csv")]
    assert main([*arguments, "--test-share", "1"]) == 2
    assert "--test-share must be from 0 to below 1" in capsys.readouterr().err
