"""The public surface: frozen names, loaded only when used, never shadowed."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import ttamer

NAMES = [
    "ArgumentError",
    "ArtefactDamaged",
    "ArtefactError",
    "ArtefactTooNew",
    "Cascade",
    "CascadeError",
    "CascadeFailed",
    "CascadeSpec",
    "Edge",
    "Explanation",
    "FittedLadder",
    "FittedPolicy",
    "Frontier",
    "Future",
    "IndexPolicy",
    "Ladder",
    "LossGrid",
    "MissingExtra",
    "Mixture",
    "Node",
    "ObservationError",
    "Optima",
    "Outcome",
    "Policy",
    "Problem",
    "ProblemError",
    "Promise",
    "Result",
    "Session",
    "Simulation",
    "TTamerError",
    "Trace",
    "TraceError",
    "TraceWarning",
    "WalkPolicy",
    "__version__",
    "collect",
    "datasets",
    "evaluate",
    "fit",
    "frontier",
    "inspect",
    "load",
    "offline_optimum",
    "optima",
    "report",
    "save",
    "simulate",
    "solve",
    "solve_ladder",
]


def test_public_names_are_these():
    assert sorted(ttamer.__all__) == sorted(NAMES)
    assert sorted(dir(ttamer)) == sorted(NAMES)


def test_every_public_name_can_be_had_after_every_module_was_loaded():
    # A module named like a public function would shadow it as soon as it is imported.
    for module in pkgutil.walk_packages(ttamer.__path__, "ttamer."):
        if module.name != "ttamer.__main__":
            importlib.import_module(module.name)
    for name in NAMES:
        value = getattr(ttamer, name)
        assert isinstance(value, type(sys)) == (name == "datasets"), f"{name} is a module"
    modules = {module.name for module in pkgutil.iter_modules(ttamer.__path__)}
    assert modules & set(NAMES) == {"datasets"}  # a package, and nothing else of that name


def test_an_unknown_name_is_an_attribute_error():
    try:
        ttamer.nonsense  # noqa: B018
    except AttributeError as error:
        assert "nonsense" in str(error)
    else:
        raise AssertionError("an unknown name was found")


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'numpy', 'matplotlib', 'pyarrow', 'threadpoolctl', 'argparse'}"
    code = f"import sys, ttamer; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
