"""Experiments over splits: a run that is cut off goes on, and a failed job ends no other."""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np

from support.traces import chain_trace

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
from over_splits import load, mean, read, run, split


def halved(number):
    if number == 3:
        raise ValueError("three")
    return number / 2


def test_results_are_kept_and_not_computed_again(tmp_path, capsys):
    options = Namespace(jobs=2, results=tmp_path / "results.jsonl", minutes=np.inf)
    assert run(halved, [(2,), (3,), (4,)], options) == {(2,): 1.0, (4,): 2.0}
    printed = capsys.readouterr().out
    assert "failed: (3,)" in printed
    assert "2 of 3 jobs are done" in printed
    assert run(abs, [(2,), (4,), (-5,)], options) == {(2,): 1.0, (4,): 2.0, (-5,): 5}
    assert read(options.results) == {(2,): 1.0, (4,): 2.0, (-5,): 5}


def test_no_job_starts_once_the_minutes_are_over():
    options = Namespace(jobs=1, results=None, minutes=1e-9)
    assert run(abs, [(-1,), (-2,), (-3,)], options) == {(-1,): 1}
    assert run(abs, [(-1,)], Namespace(jobs=1, results=None, minutes=0.0)) == {}


def test_a_folder_s_trace_is_read_and_split_into_other_rows(tmp_path):
    trace = chain_trace(40)
    trace.write(tmp_path / "mine.npz")
    trace.spec.to_file(tmp_path / "mine.toml")
    fit, test = split(load("mine", tmp_path), 0)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([fit.confidence, test.confidence])[:, 0]),
        np.sort(trace.confidence[:, 0]),
    )
    fit, test = split(load("mine", tmp_path), 0, rows=10, most=5)
    assert (len(fit), len(test)) == (10, 5)


def test_a_mean_has_its_standard_error():
    assert mean([1.0, 3.0]) == "2.000 ± 1.000"
    assert mean([0.01, 0.03], "+.1%") == "+2.0% ± 1.0%"
    assert mean([0.5], ".0%") == "50%"
    assert mean([]) == mean([1.0, np.nan]) == "-"
