"""The public surface: frozen names, loaded only when used, never shadowed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import ttamer
from support.public import names_of

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
    for package in packages():
        module = importlib.import_module(package)
        shadowed = [n for n in names_of(package) if isinstance(getattr(module, n), type(sys))]
        listed = {"ttamer": ["datasets"]}
        assert shadowed == listed.get(package, []), package


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


def test_the_help_of_the_commands_loads_neither_pyarrow_nor_torch():
    heavy = "{'pyarrow', 'torch', 'matplotlib', 'ray', 'sklearn', 'aiohttp'}"
    code = (
        "import sys, contextlib, ttamer.cli\n"
        "with contextlib.suppress(SystemExit): ttamer.cli.main(['--help'])\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def packages():
    """The names of the packages that have public names."""
    inner = [m.name for m in pkgutil.iter_modules(ttamer.__path__, "ttamer.") if m.ispkg]
    return [name for name in ("ttamer", *inner) if names_of(name)]


def public_callables():
    """Every public function, and every public method of a public class, by its dotted name."""
    for package in packages():
        module = importlib.import_module(package)
        for name in names_of(package):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{package}.{name}", value
            elif inspect.isclass(value) and not issubclass(value, BaseException):
                for method, member in vars(value).items():
                    member = getattr(member, "__func__", member)  # class and static methods
                    if not method.startswith("_") and inspect.isfunction(member):
                        yield f"{package}.{name}.{method}", member


def public_with_examples():
    """Every public function and class."""
    for name, value in public_callables():
        if value.__qualname__ == value.__name__:
            yield name, value
    for name in NAMES:
        value = getattr(ttamer, name)
        if inspect.isclass(value) and not issubclass(value, (BaseException, Warning)):
            yield f"ttamer.{name}", value


def test_public_callables_document_their_arguments_and_results():
    missing = []
    for name, function in public_callables():
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        if set(signature.parameters) - {"self", "cls"} and "Args:" not in text:
            missing.append(f"{name}: Args")
        result = signature.return_annotation
        gives = result not in (None, "None", inspect.Signature.empty)
        if gives and not ("Returns:" in text or "Yields:" in text):
            missing.append(f"{name}: Returns")
    assert not missing


def test_public_functions_and_classes_have_an_example():
    missing = [
        name
        for name, value in public_with_examples()
        if not (">>>" in (inspect.getdoc(value) or "") or "::\n" in (inspect.getdoc(value) or ""))
    ]
    assert not missing


def test_the_root_holds_few_modules():
    modules = [found.name for found in pkgutil.iter_modules(ttamer.__path__) if not found.ispkg]
    assert len(modules) + 1 <= 11, modules  # and __init__
