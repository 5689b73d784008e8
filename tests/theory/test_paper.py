"""What is quick of ``make paper``: its figures and tables are made, and its page lists them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import ttamer as tt
from ttamer.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def paper():
    spec = importlib.util.spec_from_file_location("paper", ROOT / "experiments/paper/make.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_quick_part_of_make_paper(paper, tmp_path):
    paper.main(["--only", "1,2,3,6,3.4,t1,t2", "--to", str(tmp_path)])
    index = (tmp_path / "index.md").read_text("utf-8")
    assert index.count("\n| ") == 8  # a head and seven rows
    assert index.count("`ttamer theory figure") == 7
    assert "1000 at alpha 1000" in index
    for name in ("1-line", "1-skip", "1-tree", "2", "3", "6"):
        drawing = (tmp_path / f"figure-{name}.svg").read_text("utf-8")
        assert drawing.startswith("<svg")
        assert drawing.endswith("</svg>\n")
    # Lemma C.6: the box of least index first.
    assert paper.payoffs("AB")[2]["A"] < paper.payoffs("AB")[2]["B"]
    assert paper.payoffs("AB")[1] < paper.payoffs("BA")[1]


@pytest.mark.slow
def test_the_curves_of_figures_4_and_5_are_measured(paper, monkeypatch):
    load = paper.traces.load
    few = range(120)
    monkeypatch.setattr(paper.traces, "load", lambda name, part: load(name, part).take(few))
    curves = paper.curves("smollm2-imdb")
    assert set(curves) == set(paper.COLOURS)
    for costs, errors in curves.values():
        assert (np.diff(costs) >= 0).all()
        assert (np.diff(errors) <= 0).all()
        assert 0 < costs[0] <= costs[-1] < 1.01


def test_one_figure_is_one_command_in_a_clone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(ROOT)
    assert main(["theory", "figure", "3", "--to", str(tmp_path)]) == 0
    assert "step 4: draft" in (tmp_path / "figure-3.svg").read_text("utf-8")
    assert main(["theory", "figure", "9", "--to", str(tmp_path)]) == 2
    assert "there is no figure '9'; there are 1, 2, 3" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["theory", "figure", "3"]) == 2
    assert "root of a clone" in capsys.readouterr().err


def test_every_figure_and_table_of_the_paper_is_there(paper):
    assert {*map(str, range(1, 9)), "3.4", "t1", "t2", "t3"} == set(paper.FIGURES)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "problems").glob("*.json")))
def test_every_example_is_solved(path):
    problem = tt.Problem.from_file(path)
    policy = tt.solve(problem, 0.9)
    assert policy.value == pytest.approx(
        0.9 * policy.expected_loss + 0.1 * policy.expected_cost, abs=1e-12
    )
