"""A node's replicas grow with its traffic.

    python experiments/ray/autoscaling.py      # two minutes; prints its table as Markdown

A cascade of two nodes on a cluster here; the first takes a quarter of a second and may have one to
three replicas. Sixteen clients ask without a pause for a minute and a half. (Ray Serve lets
replicas go ten minutes after they are no longer needed; that is not waited for.)
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

BUSY, EVERY = 90.0, 10.0
CLIENTS = 16
TOML = """
[serve]
tradeoff = 0.5

[[node]]
name = "slow"
cost = 1.0
model = "autoscaling:Slow"
replicas = [1, 3]
cpus = 0.1
concurrency = 4

[[node]]
name = "last"
cost = 9.0
model = "autoscaling:Slow"
cpus = 0.1
"""


class Slow:
    """Takes its time, and is sure."""

    def __call__(self, text: str) -> tuple[str, float]:
        """Answer after a quarter of a second."""
        time.sleep(0.25)
        return text[:1], 0.9


def main() -> None:
    """Serve, ask, and print how many replicas there were and what they answered."""
    import ray
    from ray import serve

    import ttamer as tt
    from ttamer.ray import build

    folder = Path(tempfile.mkdtemp())
    spec = tt.CascadeSpec.from_toml(TOML)
    rows = [[0.9, 0.95], [0.4, 0.95]] * 50
    trace = tt.Trace.from_arrays(spec, rows, prediction=[["a", "a"], ["b", "a"]] * 50,
                                 label=["a"] * 100)  # fmt: skip
    tt.save(tt.fit(trace), folder / "policy.ttamer")
    (folder / "cascade.toml").write_text(TOML)
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
             logging_level="error", runtime_env=here)  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    files = {"cascade": str(folder / "cascade.toml"), "policy": str(folder / "policy.ttamer")}
    serve.run(build(files), name="cascade", route_prefix="/")
    try:
        watch(f"http://127.0.0.1:{port}/v1/classify")
    finally:
        serve.shutdown()
        ray.shutdown()


def watch(url: str) -> None:
    """Load it, and print a line every ten seconds."""
    from ray import serve

    answered, over = [0], threading.Event()
    counting = threading.Lock()

    def client() -> None:
        while not over.is_set():
            request = urllib.request.Request(  # noqa: S310 - our own server
                url, b'{"input": "a text"}', {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
                reply.read()
            with counting:
                answered[0] += 1

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for each in clients:
        each.start()
    print("| second | replicas | answers a second |")
    print("|---:|---:|---:|")
    before = 0
    for number in range(1, round(BUSY / EVERY) + 1):
        time.sleep(EVERY)
        done = answered[0]
        node = serve.status().applications["cascade"].deployments["node-1-slow"]
        replicas = sum(node.replica_states.values())
        print(f"| {number * EVERY:.0f} | {replicas} | {(done - before) / EVERY:.1f} |", flush=True)
        before = done
    over.set()
    for each in clients:
        each.join()


if __name__ == "__main__":
    main()
