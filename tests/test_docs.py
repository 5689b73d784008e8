"""What the README, the docs and the examples show really runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), names)  # noqa: S102 - our own pages


def test_the_readme_has_code_to_run():
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    said = "times as fast" if "digits" in example.name else "answer of"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"],
                         ids=lambda page: page.name)  # fmt: skip
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_command_is_in_the_readme():
    shown = subprocess.run(
        [sys.executable, "-m", "ttamer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.findall(r"^    (\w+) ", shown, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert listed
    assert [name for name in listed if f"ttamer {name}" not in readme] == []
