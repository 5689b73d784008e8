"""Scripts outside the package import names that the package has; nothing is run."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support.public import names_of as names_of_package

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SCRIPTS = [
    path
    for folder in ("benchmarks", "examples", "experiments", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


@cache
def names_of(module: str) -> set[str]:
    """Return the names at the top of a module, of a package also its modules."""
    place = SOURCE.joinpath(*module.split("."))
    files = [place.with_suffix(".py"), place / "__init__.py", place / "__init__.pyi"]
    found = {path.stem for path in place.glob("*") if path.suffix == ".py" or path.is_dir()}
    for path in files:
        if not path.exists():
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                found |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def missing(script: str) -> list[str]:
    """Return what a script imports from the package and the package does not have."""
    tree = ast.parse(script)
    # What a script tries first, or where that fails, may be of another version.
    tried = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.Try) for each in ast.walk(node)
    }
    return [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in tried
        if node.module is not None and node.module.split(".")[0] == "ttamer"
        for alias in node.names
        if alias.name not in names_of(node.module)
    ]


# What experiments use although it is not public: scores of curves, boxes and arrows, baselines by
# name, and the clocks of other packages.
NOT_PUBLIC = {"ttamer.stats.envelope", "ttamer.show.graph", "ttamer.baselines"}
NOT_PUBLIC |= {"ttamer.sklearn.base", "ttamer.torch.profiling"}


def used(path: Path) -> list[tuple[str, str]]:
    """Return the modules of the package and the names that a script imports."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return [
        (node.module, alias.name)
        for node in imports
        if node.module.split(".")[0] == "ttamer"
        for alias in node.names
    ]


EXPERIMENTS = [path for path in SCRIPTS if "experiments" in path.parts]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_use_public_names(path):
    names = [(module, name) for module, name in used(path) if module not in NOT_PUBLIC]
    public = {module: {*names_of_package(module), "torch"} for module, _ in names}
    assert not [(module, name) for module, name in names if name not in public[module]]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(path):
    assert missing(path.read_text("utf-8")) == []


def test_a_name_that_is_gone_is_found():
    script = "from ttamer.fitting.fits import fit, gone\nfrom ttamer.nowhere import fit"
    assert missing(script) == ["ttamer.fitting.fits.gone", "ttamer.nowhere.fit"]
