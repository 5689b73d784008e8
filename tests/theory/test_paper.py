"""The figures of the paper that take a moment are made from the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ttamer as tt

ROOT = Path(__file__).parents[2]


def test_the_quick_figures_are_made(tmp_path):
    script = ROOT / "experiments" / "paper" / "make.py"
    command = [sys.executable, script, "--only", "1,3.4,3", "--to", tmp_path]
    subprocess.run(command, check=True, timeout=120)
    page = (tmp_path / "index.md").read_text("utf-8")
    assert page.count("| `ttamer ") == 3
    assert {"figure-1-line.svg", "figure-1-skip.svg", "figure-1-tree.svg", "figure-3.svg"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "problems").glob("*.json")))
def test_every_example_is_solved(path):
    problem = tt.Problem.from_file(path)
    policy = tt.solve(problem, 0.9)
    assert policy.value == pytest.approx(
        0.9 * policy.expected_loss + 0.1 * policy.expected_cost, abs=1e-12
    )
