"""A cascade on a cluster of two nodes: throughput beside one process, and a worker that is killed.

Run it with: python benchmarks/ray_run.py [--rows 600]. A call of a model waits, as one that is far
away: 5 ms the small one, 20 ms the large one. Needs: pip install 'ttamer[ray]'
"""

import argparse
import hashlib
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import ray
import ray.data
from ray.cluster_utils import Cluster

import ttamer as tt
from ttamer import ray as clusters


def luck(*parts: str) -> float:
    """Return a number from 0 to 1 made from text."""
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:6]) / 2**48


class Model:
    """Waits, notes the call in a folder, and ends its process once where it is told to."""

    def __init__(
        self, name: str, seconds: float, skill: float, folder: str, dies: str = ""
    ) -> None:
        self.name, self.seconds, self.skill = name, seconds, skill
        self.folder, self.dies = folder, dies

    def __call__(self, text: str) -> tuple[str, float]:
        """Answer."""
        time.sleep(self.seconds)
        died = Path(self.folder, "died")
        if text == self.dies and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.folder:
            with Path(self.folder, f"{self.name}-{os.getpid()}").open("a") as file:
                file.write(text + "\n")
        right = luck(self.name, text) < self.skill
        return ("yes" if right else "no"), 0.4 + 0.6 * luck("sure", text) * right


def nodes_of(folder: str = "", dies: str = "") -> dict[str, Model]:
    """Return both models."""
    return {
        "small": Model("small", 0.005, 0.7, folder),
        "large": Model("large", 0.02, 0.95, folder, dies),
    }


def calls(folder: str, name: str) -> Counter[str]:
    """Return how often a model finished a call about each text."""
    files = Path(folder).glob(f"{name}-*")
    return Counter(line for file in files for line in file.read_text().splitlines())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=600)
    rows = parser.parse_args().rows
    texts = [f"text {number}" for number in range(rows)]
    fitted = [f"fit {number}" for number in range(300)]
    costs = {"small": 1.0, "large": 9.0}
    trace = tt.collect(fitted, nodes_of(), labels=["yes"] * 300, costs=costs)
    policy = tt.fit(trace).at(0.9)

    start = time.perf_counter()
    here = [tt.Cascade(policy, nodes_of()).run(text, key=text) for text in texts]
    alone = rows / (time.perf_counter() - start)
    asked = [text for text, outcome in zip(texts, here, strict=True) if "large" in outcome.path]
    print(f"one process: {alone:.0f} rows/s; {len(asked)} of {rows} rows ask the large model")

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    paths = f"{Path(tt.__file__).parents[1]}:{Path(__file__).parent}"  # for the workers
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init(address=cluster.address, runtime_env=environment, log_to_driver=False)
    data = ray.data.from_items([{"input": text} for text in texts], override_num_blocks=8)
    try:
        for dies in ("", asked[len(asked) // 2]):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                table = clusters.run(
                    data,
                    policy,
                    nodes_of(folder, dies),
                    key="input",
                    workers=2,
                    batch_size=50,
                    output=Path(folder, "out"),
                ).to_pandas()
                speed = rows / (time.perf_counter() - start)
                same = dict(zip(table["input"], table["answer"], strict=True)) == {
                    text: outcome.answer for text, outcome in zip(texts, here, strict=True)
                }
                small, large = calls(folder, "small"), calls(folder, "large")
                what = "two workers, one killed" if dies else "two workers"
                print(
                    f"{what}: {speed:.0f} rows/s with the start of the actors, "
                    f"{speed / alone:.2f} of one process; the same answers: {same}; "
                    f"asked twice: small {sum(n > 1 for n in small.values())}, "
                    f"large {sum(n > 1 for n in large.values())}; "
                    f"lost: {len(texts) - len(table)}; large asked beyond the policy: "
                    f"{len(set(large) - set(asked))}",
                    flush=True,
                )
    finally:
        ray.shutdown()
        cluster.shutdown()
