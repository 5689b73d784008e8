"""What a cluster gains and costs: rows per second, where it begins to pay, 10 billion rows.

    python experiments/ray/growth.py      # some minutes; prints its tables as Markdown

A log of three models with predictions and labels is made once; longer logs are the same file named
several times, so that the disk is not what is measured. Every fit on the cluster is compared
with the local one bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray

import ttamer as tt
from ttamer.fitted.quantiser import Quantiser
from ttamer.fitting import streaming
from ttamer.fitting.counts import Counts
from ttamer.ray import fit_parquet, fitting
from ttamer.ray.cluster import in_order
from ttamer.ray.parquet import stretches
from ttamer.trace.files import read_batches
from ttamer.trace.spec import CascadeSpec
from ttamer.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURNS = 3
FILE_ROWS = 16 * streaming.BATCH_ROWS
OPTIONS = {
    "belief": "calibrated",
    "states": 16,
    "order": "skip",
    "tradeoffs": [0.5, 0.9, 0.99],
    "sample_rows": 5000,
}
"""The plan is given and the sample short: what is measured is reading and counting."""
TEN_BILLION = 10**10


def make_trace(rows: int, seed: int = 0) -> Trace:
    """Three models; better ones cost more."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 10, rows)
    hard = rng.random(rows)
    confidence, prediction = np.empty((rows, 3)), np.empty((rows, 3), np.int32)
    for column, skill in enumerate((0.5, 0.7, 0.9)):
        chance = np.clip(skill + 0.5 * (0.5 - hard), 0.05, 0.99)
        right = rng.random(rows) < chance
        prediction[:, column] = np.where(right, label, (label + rng.integers(1, 10, rows)) % 10)
        confidence[:, column] = np.clip(chance + 0.1 * rng.standard_normal(rows), 0, 1)
    spec = CascadeSpec.of({"small": 1.0, "middle": 4.0, "large": 20.0})
    names = tuple(f"class {number}" for number in range(10))
    return Trace(
        spec, confidence, prediction=prediction, label=label.astype(np.int32), classes=names
    )


def timed(work: Callable[[], object], times: int) -> tuple[float, object]:
    """The median of some runs, and what the last one gave."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), found


def bytes_of(ladder: object, folder: Path) -> bytes:
    """What is saved of a fit."""
    tt.save(ladder, folder / "policy.ttamer")  # type: ignore[arg-type]
    return (folder / "policy.ttamer").read_bytes()


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--most", type=int, default=4, help="the longest log, in files of 2 million"
    )
    most = parser.parse_args().most
    logging.getLogger("ttamer.ray").setLevel(logging.ERROR)  # the hint is what is measured here
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), most)


def measure(folder: Path, most: int) -> None:
    """Write the log, fit it in all ways, and print what that took."""
    log = folder / "log.parquet"
    trace = make_trace(FILE_ROWS)
    trace.write(log)
    spec, bytes_per_row = trace.spec, log.stat().st_size / FILE_ROWS
    sizes: dict[int, list[Path]] = {}
    for rows in (10_000, 100_000, 500_000):
        path = folder / f"{rows}.parquet"
        trace.take(slice(0, rows)).write(path)
        sizes[rows] = [path]
    for files in (1, most):
        sizes[files * FILE_ROWS] = [log] * files
    del trace

    def local(paths: list[Path]) -> Callable[[], object]:
        def batches() -> itertools.chain[Trace]:
            size = streaming.BATCH_ROWS
            return itertools.chain.from_iterable(read_batches(p, spec, rows=size) for p in paths)

        return lambda: streaming.fit_batches(batches, **OPTIONS)

    joining, _ = timed(start, 1)
    first, _ = timed(lambda: fit_parquet(sizes[10_000], spec, **OPTIONS), 1)
    seconds: dict[tuple[str, int], float] = {}
    # By turns, and the best of each: others may be using the machine.
    for _ in range(TURNS):
        for rows, paths in sizes.items():
            spent, ladder = timed(local(paths), 1)
            wanted = bytes_of(ladder, folder)
            keep(seconds, ("local", rows), spent)
            for workers in (1, 2):
                with so_many(workers):
                    # A worker that is idle for a second is ended: let there be as many as wanted.
                    fit_parquet(sizes[500_000], spec, **OPTIONS)
                    spent, ladder = timed(
                        lambda paths=paths: fit_parquet(paths, spec, **OPTIONS), 1
                    )
                if bytes_of(ladder, folder) != wanted:
                    raise SystemExit(f"{rows} rows, {workers} workers: not the local fit")
                keep(seconds, (str(workers), rows), spent)
    handing = per_block(log, spec)
    here, there = processor_seconds(log, spec, local([log]))
    ray.shutdown()
    report(seconds, joining, first)
    plan_seconds = planning(log, spec)
    estimate((here, there), first, handing, plan_seconds, bytes_per_row)


def keep(seconds: dict[tuple[str, int], float], key: tuple[str, int], spent: float) -> None:
    """Keep the best."""
    seconds[key] = min(spent, seconds.get(key, math.inf))


@contextmanager
def so_many(workers: int) -> Iterator[None]:
    """Limit the number of tasks that run at a time on the cluster of two cores."""
    kept = fitting._sampled, fitting._counted
    fitting._sampled, fitting._counted = (f.options(num_cpus=2 // workers) for f in kept)
    yield
    fitting._sampled, fitting._counted = kept


def start() -> None:
    """Start a cluster of two cores here."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error",
             log_to_driver=False, object_store_memory=500_000_000)  # fmt: skip


def per_block(log: Path, spec: CascadeSpec) -> float:
    """Seconds that this process itself spends on one block: hand it out, take it, add it up."""
    batch = next(iter(read_batches(log, spec, rows=streaming.BATCH_ROWS)))
    quantiser = Quantiser.fit(batch.confidence, states=16, method="quantile")
    pairs = [(-1, 0), (-1, 1), (-1, 2), (0, 1), (0, 2), (1, 2)]
    counts = ray.put([(Counts.of(batch, quantiser, pairs), batch.digest)] * 8)

    @ray.remote
    def handed(found: list[tuple[Counts, str]]) -> list[tuple[Counts, str]]:
        return found

    def add_up() -> None:
        total = None
        for found in in_order(lambda _: handed.remote(counts), range(1, 201)):
            for more, _ in found:
                total = more if total is None else total + more

    add_up()
    spent, _ = timed(add_up, 3)
    return spent / (200 * 8)


def processor_seconds(
    log: Path, spec: CascadeSpec, local: Callable[[], object]
) -> tuple[float, float]:
    """Processor seconds per row, of a local fit and of the tasks of one on a cluster.

    Unlike the wall's, they do not count the waiting for a core that others use.
    """
    work = stretches([log], spec, rows=streaming.BATCH_ROWS, blocks=8)
    batch = next(iter(read_batches(log, spec, rows=streaming.BATCH_ROWS)))
    quantiser = Quantiser.fit(batch.confidence, states=16, method="quantile")
    pairs = [(-1, 0), (-1, 1), (-1, 2), (0, 1), (0, 2), (1, 2)]
    share = OPTIONS["sample_rows"] / FILE_ROWS

    def tasks() -> None:
        for piece in work:
            fitting._sampled._function(piece, 0, share)
            fitting._counted._function(piece, (quantiser, pairs))

    best = [math.inf, math.inf]
    for _ in range(TURNS):
        for way, run in enumerate((local, tasks)):
            begin = time.process_time()
            run()
            best[way] = min(best[way], time.process_time() - begin)
    return best[0] / FILE_ROWS, best[1] / FILE_ROWS


def planning(log: Path, spec: CascadeSpec) -> float:
    """Seconds to choose a plan on the full sample, as a fit does that counts all rows."""
    batch = next(iter(read_batches(log, spec, rows=streaming.SAMPLE_ROWS)))
    options = streaming.streamed({"belief": "calibrated"})
    return timed(lambda: streaming.Planned.of(batch, options), 1)[0]


def report(seconds: dict[tuple[str, int], float], joining: float, first: float) -> None:
    """Print the table, and what follows for where a cluster pays."""
    sizes = sorted({rows for _, rows in seconds})
    print("| rows | local, s | 1 worker, s | 2 workers, s | local, rows/s | 1 worker | 2 workers |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for rows in sizes:
        spent = [seconds[way, rows] for way in ("local", "1", "2")]
        rates = [f"{rows / s:,.0f}" for s in spent]
        print(f"| {rows:,} | " + " | ".join([*(f"{s:.2f}" for s in spent), *rates]) + " |")
    print(f"\nA cluster on this machine starts in {joining:.1f} s; its first fit, of 10,000 "
          f"rows, takes {first:.1f} s, the next {seconds['2', 10_000]:.2f} s.")  # fmt: skip
    last = sizes[-1]
    least = sizes[0]
    gain = (seconds["local", last] - seconds["2", last]) / last
    over = max(0.0, seconds["2", least] - seconds["local", least])
    for what, overhead in (
        ("workers up", over),
        ("workers new", over + first - seconds["2", least]),
        ("cluster new", over + first - seconds["2", least] + joining),
    ):
        rows = overhead / gain if gain > 0 else math.inf
        print(f"- {what}: {overhead:.2f} s more; two workers pay from about {rows:,.0f} rows on")


def estimate(
    processor: tuple[float, float],
    first: float,
    handing: float,
    planning: float,
    bytes_per_row: float,
) -> None:
    """Print what ten billion rows would take, from the constants measured."""
    local, rate = 1 / processor[0], 1 / processor[1]
    blocks = math.ceil(TEN_BILLION / streaming.BATCH_ROWS)
    alone = blocks * handing * 2  # two rounds
    gigabytes = 2 * bytes_per_row * TEN_BILLION / 1e9
    print(f"\nConstants: {local:,.0f} rows per processor second locally, {rate:,.0f} in a worker; ")
    print(f"{handing * 1e3:.2f} ms of the driver per block; {planning:.1f} s to choose a plan on ")
    print(f"50,000 rows; {first:.1f} s to start workers; {bytes_per_row:.1f} bytes a row.")
    print(f"\n10,000,000,000 rows are {blocks:,} blocks, {gigabytes:,.0f} GB read in two rounds; ")
    print(f"the driver itself is busy for {alone:,.0f} s.\n")
    print("| workers | counting, s | all, s | read, GB/s |")
    print("|---:|---:|---:|---:|")
    for workers in (1, 2, 16, 64, 256):
        counting = max(TEN_BILLION / (rate * workers), alone)
        read = gigabytes / counting
        print(f"| {workers} | {counting:,.0f} | {counting + planning + first:,.0f} | {read:.2f} |")
    print(f"\nLocally, on one core: {TEN_BILLION / local:,.0f} s.")


if __name__ == "__main__":
    main()
