"""What the README, the docs and the examples show really runs."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pages
import pytest

from support.commands import options_of, parse
from support.public import names_of
from ttamer.baselines import FAMILIES
from ttamer.cli import COMMANDS
from ttamer.evaluation.frontiers import OURS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


RUN = [page for page in PAGES if blocks(page)]
SHOWING = ("tutorials", "gallery.md", "index.md")  # pages that show all that they print


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in pages.run(page.read_text("utf-8")):
        if block.shown is not None and not block.varies:
            assert block.printed == block.shown
        if set(SHOWING) & {page.name, page.parent.name}:
            assert bool(block.printed) == (block.shown is not None), block.code


def test_the_readme_has_code_to_run():
    assert blocks(ROOT / "README.md")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    said = "times as fast" if "digits" in example.name else "answer of"
    assert said in capsys.readouterr().out


LINKED = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "experiments").glob("*/README.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if "://" not in target:
            linked = page.parent / path if path else page
            assert linked.exists(), target
            is_page = linked.suffix == ".md"  # of a picture an anchor says the color scheme
            assert not (anchor and is_page) or anchor in anchors(linked), target


def public(dotted: str) -> bool:
    """Whether a dotted name is a package, a public name of one, or an attribute of one."""
    package, *parts = dotted.split(".")
    holder: object = importlib.import_module(package)
    for part in parts:
        path = f"{package}.{part}"
        if getattr(holder, "__path__", None) is None:  # a module, a class, or a function
            if not hasattr(holder, part):
                return False
            holder = getattr(holder, part)
        elif part in [*names_of(package), "main"]:  # ttamer.cli.main
            holder, package = getattr(holder, part), path
        elif (package == "ttamer" and (ROOT / f"src/ttamer/{part}.py").exists()) or (
            ROOT / "src" / path.replace(".", "/") / "__init__.py"
        ).exists():
            holder, package = importlib.import_module(path), path
        else:
            return False
    return True


def names_used(code: str) -> set[str]:
    """The dotted names of the package that code imports, or reads from what it imported."""
    tree = ast.parse(code)
    found, bound = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ttamer":
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "ttamer":
                    bound[alias.asname or "ttamer"] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = bound.get(node.value.id, "")
            if home and home.rpartition(".")[2].islower():  # of a package; not of a class
                found.add(f"{home}.{node.attr}")
    return found | set(bound.values())


MENTIONED = re.compile(r"(?<![\w./-])ttamer(?:\.[A-Za-z_]\w*)+")
GUIDES = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
GUIDES += [*sorted((ROOT / "experiments").glob("*/*.md")), ROOT / "benchmarks" / "README.md"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_a_page_names_only_public_names(page):
    text = page.read_text("utf-8")
    used = set(MENTIONED.findall(text))
    for code in blocks(page):
        used |= names_used(code)
    assert sorted(name for name in used if not public(name)) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_uses_only_public_names(example):
    used = names_used(example.read_text("utf-8"))
    assert used
    assert sorted(name for name in used if not public(name)) == []


@pytest.mark.parametrize(
    ("name", "is_public"),
    [
        ("ttamer.fit", True),
        ("ttamer.datasets", True),
        ("ttamer.datasets.load", True),
        ("ttamer.FittedLadder.at", True),
        ("ttamer.FittedLadder.nonsense", False),
        ("ttamer.nonsense", False),
        ("ttamer.fitting.ladder.FittedLadder", False),
        ("ttamer.reporting.style", False),
    ],
)
def test_private_names_would_be_noticed(name, is_public):
    assert public(name) == is_public


def test_every_command_is_on_the_page_of_commands_and_in_the_readme():
    shown = subprocess.run(
        [sys.executable, "-m", "ttamer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    listed = list(COMMANDS)
    assert all(name in shown for name in listed)
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    assert listed
    assert [name for name in listed if f"| `ttamer {name}` |" not in page] == []
    assert [name for name in listed if not re.search(rf"`(ttamer )?{name}`", readme)] == []


def commands_shown(page: Path) -> list[list[str]]:
    """The ``ttamer`` commands in blocks of shell, and on lines that are indented as code."""
    text = page.read_text("utf-8")
    shell = "".join(re.findall(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", text, re.DOTALL | re.M))
    shell = shell.replace("\\\n", " ")
    lines = [line.strip() for line in shell.splitlines()]
    lines += [line.strip() for line in re.findall(r"^    (?:\S.*)$", text, re.MULTILINE)]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("ttamer ")]
    return [words[1 : words.index("&") if "&" in words else None] for words in found]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_commands_of_a_page_are_accepted(page):
    for words in commands_shown(page):
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"ttamer {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_options_that_a_page_mentions_exist(page):
    for command, rest in re.findall(r"`ttamer ([a-z]+) ([^`]*)`", page.read_text("utf-8")):
        asked = set(re.findall(r"(?<!\S)\[?(--[a-z0-9-]+)", rest))
        assert asked <= options_of(command), (command, rest)


def test_pages_show_commands():
    shown = [words[0] for page in GUIDES for words in commands_shown(page)]
    assert {"fit", "serve", "report", "collect"} <= set(shown)


def test_every_family_is_explained():
    page = (ROOT / "docs" / "how-to-choose.md").read_text("utf-8")
    assert [name for name in (*OURS, *FAMILIES) if f"\n| `{name}` | " not in page] == []
