"""The names of ``ttamer.ray``: frozen, each of them there, and Ray loaded only when entered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.public import names_of
from ttamer import ray as clusters

NAMES = [
    "WorkLost",
    "application",
    "build",
    "collect",
    "collect_parquet",
    "fit_parquet",
    "joined",
]


@pytest.mark.usefixtures("cluster")
def test_the_public_names():
    assert names_of("ttamer.ray") == NAMES
    for name in NAMES:
        assert callable(getattr(clusters, name))
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        getattr(clusters, "fit")  # noqa: B009


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_ray_the_error_names_the_command_that_installs_it():
    program = """
import sys
sys.modules["ray"] = None
try:
    import ttamer.ray
except ImportError as error:
    print(error)
"""
    assert run(program) == "this needs ray, which is not installed: pip install 'ttamer[ray]'\n"


@pytest.mark.usefixtures("cluster")
def test_a_connection_that_is_there_is_used_and_left():
    import ray

    with clusters.joined("auto"):
        assert ray.is_initialized()
    assert ray.is_initialized()


def test_a_cluster_that_is_not_there_is_one_line():
    program = """
import ray
from ttamer.ray import WorkLost, joined

def init(address, **options):
    raise ConnectionError(f"no cluster at {address}\\nand more")

ray.init = init
try:
    with joined("127.0.0.1:1"):
        pass
except WorkLost as error:
    print(error)
"""
    reported = run(program)
    assert reported.startswith(
        "no Ray cluster is reachable at '127.0.0.1:1': no cluster at 127.0.0.1:1;"
    )
    assert reported.count("\n") == 1
