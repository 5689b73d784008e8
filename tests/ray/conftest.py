"""One Ray cluster of two nodes on this machine for all tests of this folder."""

from __future__ import annotations

import fcntl
import os
import warnings
from pathlib import Path

import pytest

import ttamer

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def cluster_folder(tmp_path_factory):
    """A folder that the processes of the cluster know as RAY_TEST_FOLDER."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def cluster(cluster_folder, tmp_path_factory):
    """A real cluster of two nodes with one core each; of several test processes, one at a time."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
        import ray.data
        from ray.cluster_utils import Cluster

        with warnings.catch_warnings():  # Ray's own models, in an old way of pydantic's
            warnings.filterwarnings("ignore", "Using extra keyword arguments on `Field`")
            import ray.serve
    except ImportError as error:
        pytest.fail(f"{error}: pip install -c constraints.txt -e '.[ray]'", pytrace=False)
    paths = [str(TESTS), str(Path(ttamer.__file__).parents[1])]  # the source under test
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_TEST_FOLDER": str(cluster_folder),
        # On a busy machine, Ray's own limits would end what is only slow to start.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    }
    sizes = {"num_cpus": 1, "object_store_memory": 150_000_000}
    with (tmp_path_factory.getbasetemp().parent / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        machines = Cluster(
            initialize_head=True, head_node_args={**sizes, "include_dashboard": False}
        )
        machines.add_node(**sizes, resources={"second": 1})
        ray.init(
            address=machines.address,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": variables},
        )
        yield ray
        ray.shutdown()
        machines.shutdown()
