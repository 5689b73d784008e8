"""What every test run shares: threads, the profile of Hypothesis, and the tiers.

A test that needs a server, a browser, a cluster or a real language model is marked so by the
fixtures it uses; ``make quick`` leaves those out, and what is marked slow. One thread per process:
several test processes share the cores. Triton's kernels are interpreted, so that they are tested
where there is no GPU.
"""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy or PyTorch is loaded
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from support.examples import load_profile

load_profile()

TIERS = {
    "server": {"start_upstream", "run_gateway", "prometheus", "start"},
    "browser": {"chromium"},
    "ray": {"cluster"},
    "llm": {"real_llms"},
}
"""The fixtures that put a test into a tier."""

SLOW = ("tests/golden", "tests/experiments", "tests/test_docs.py", "tests/test_wheel.py",
        "tests/cli/test_cli.py", "tests/reporting", "tests/torch", "tests/contracts", "tests/drift",
        "tests/evaluation/test_frontier.py", "tests/fitting/test_subsets.py",
        "tests/fitting/test_fitting.py", "tests/fitted/test_operating_points.py",
        "tests/fitted/test_belief.py", "tests/fitted/test_promises.py", "tests/serve/test_drift",
        "tests/serve/processes/test_owner.py",
        "tests/solvers/test_sizes.py", "tests/trace/test_importers.py", "tests/sklearn",
        "src/ttamer/reporting")  # fmt: skip
"""Folders and files whose tests take many seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        for tier, names in TIERS.items():
            if fixtures & names:
                item.add_marker(tier)
