"""What every test run shares: threads, the profile of Hypothesis, and the tiers.

A test that needs a server, a browser, a cluster or a real language model is marked so by the
fixtures it uses; ``make quick`` leaves those out, and what is marked slow. One thread per process:
several test processes share the cores. Triton's kernels are interpreted, so that they are tested
where there is no GPU.
"""

import os
import platform
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy or PyTorch is loaded
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
if platform.machine() in ("x86_64", "AMD64"):
    # Golden digests are those of one kernel: a processor with wider ones adds in another order.
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    os.environ.setdefault("MKL_CBWR", "AVX2")

from support.examples import PROFILE, load_profile

load_profile()

TIERS = {
    "server": {"start_upstream", "run_gateway", "prometheus", "start"},
    "browser": {"chromium"},
    "ray": {"cluster"},
}
"""The fixtures that put a test into a tier."""

LARGE = ("torch", "triton", "ray", "quantecon")
"""Libraries that the extra [quick] does not install."""

SLOW = (
    "tests/cli/test_cli.py",
    "tests/contracts",
    "tests/drift",
    "tests/evaluation",
    "tests/experiments",
    "tests/fitting",
    "tests/golden",
    "tests/reporting",
    "tests/sklearn",
    "tests/solvers/test_sizes.py",
    "tests/test_docs.py",
    "tests/test_wheel.py",
    "tests/torch",
    "src/ttamer/reporting",
    "src/ttamer/evaluation",
)
"""Folders and files whose tests take many seconds."""


for path in SLOW:  # a list that is out of date slows make quick down and says nothing
    if not (Path(__file__).parents[1] / path).exists():
        raise FileNotFoundError(f"{path}, in SLOW of tests/conftest.py, is gone: name what is slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        for tier, names in TIERS.items():
            if fixtures & names:
                item.add_marker(tier)
    # First, and one after another: workers take tests of others from the end of their lists.
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With ``make quick``, leave out files that import a large library that is not there."""
    if PROFILE != "quick" or collection_path.suffix != ".py":
        return None
    missing = {name for name in LARGE if find_spec(name) is None}
    imports = re.compile(rf"^\s*(?:from|import) (?:ttamer\.)?(?:{'|'.join(missing)})\b", re.M)
    text = collection_path.read_text("utf-8")
    for name in re.findall(r"^from support\.(\w+) import", text, re.M):
        text += (Path(__file__).parent / "support" / f"{name}.py").read_text("utf-8")
    is_part = missing & {*collection_path.parts, collection_path.stem}
    return True if missing and (is_part or imports.search(text)) else None
